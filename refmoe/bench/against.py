"""How fast the executor is beside the one of another checkout: the same launches, turn by turn, in one run.

The launches are recorded here: PTX, arguments and memory. Two processes run them, one with this refmoe and one with the
other checkout's, so that neither host code nor a compiler is compared, and a noisy machine is noisy for both.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from refmoe.bench.cutlass import OFFSETS as CUTLASS_OFFSETS
from refmoe.bench.cutlass import K as CUTLASS_K
from refmoe.bench.cutlass import N as CUTLASS_N
from refmoe.bench.executor import GEMM_N, GEMM_TILE, SEED, K, gemm_operands
from refmoe.bench.timing import machine
from refmoe.cuda.device import PtxDevice, open_device
from refmoe.cuda.gemm.kernel import grouped_gemm
from refmoe.cuda.launch import LaunchPlan
from refmoe.cuda.quantize import quantize_mxfp8
from refmoe.cuda.toolchain import build
from refmoe.errors import ArgumentError, RefmoeError
from refmoe.museum.cutlass import Build, find_built, host_launch, prepare
from refmoe.ptx import Buffer

TARGETS = {"quantize": 8.0, "CUTLASS's GEMM": 5.0}
"""The executor of commit 2db4e6e takes at least so many times as long."""

_HERE = "refmoe"
_ROWS = 2048


@dataclass(frozen=True)
class Recorded:
    """A launch, as `replay` is told of it.

    Attributes:
        text: the PTX.
        entry: of it.
        grid, block: three sizes each.
        shared_bytes: dynamic shared memory.
        arguments: numbers, bytes, and buffers as they were before the launch.
        memory: buffers at addresses of their own, by address, in the order of their addresses.
        options: of `refmoe.ptx.launch`, for executors that have them.
    """

    text: str
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: list[Any]
    memory: dict[int, Buffer] = field(default_factory=dict)
    options: dict[str, bool] = field(default_factory=dict)


@dataclass
class _Recorder(PtxDevice):
    """The executor, which keeps what its last launch was given."""

    text: str = ""
    plan: LaunchPlan | None = None
    before: list[np.ndarray[Any, Any]] = field(default_factory=list)

    def launch(self, plan: LaunchPlan) -> None:
        """See `PtxDevice.launch`."""
        target = self._target(plan.kernel)
        self.text, self.plan = build([target])[target].read_text(), plan
        self.before = [each.array.copy() if isinstance(each, Buffer) else np.zeros(0) for each in plan.arguments]
        super().launch(plan)


def run(folder: Path, *, rounds: int = 5) -> dict[str, Any]:
    """Quantization, two grouped GEMMs and CUTLASS's, with all checks.

    Quantization is MXFP8 of BF16 [2048, 2880] with linear scales. The GEMMs are MXFP8 by MXFP4, with the 5760 x 2880
    weights of one expert for one row, and of four experts for eight rows. CUTLASS's is that of the benchmark `cutlass`.
    What is timed is the launch on the executor, by the CPU time of its process; each runs once unmeasured before.

    Args:
        folder: a checkout of refmoe, `git worktree add --detach FOLDER COMMIT` makes one.
        rounds: of each launch.

    Returns:
        JSON-able: `against` the folder's name, `comparisons` by launch with `medians_s` of both, `ratio` of the other's
        to ours, `lane_instructions`, and of those in `TARGETS` `target` and `reached`, `rounds`, `cores`, `versions`,
        and `reached` and `all_reached`, whether all targets are.

    Raises:
        ArgumentError: no refmoe is there, or another one is imported from there.
        RefmoeError: CUTLASS's kernel is not built, or a launch fails in one of them, or leaves other bytes.
    """
    if not (folder / "refmoe" / "ptx").is_dir():
        raise ArgumentError("against", f"{folder}, without refmoe/ptx", "the folder of a checkout of refmoe")
    other = folder.resolve()
    launches = {
        "quantize": _quantize(),
        "gemm, one row": _gemm([0, 1]),
        "gemm, eight rows": _gemm([0, 2, 4, 6, 8]),
        "CUTLASS's GEMM": _cutlass(),
    }
    with tempfile.TemporaryDirectory() as place:
        recording = Path(place) / "launches.npz"
        _record(launches, recording)
        folders = {_HERE: Path(__file__).resolve().parents[2], f"checkout {other.name}": other}
        contenders = {name: _Contender(name, where, recording) for name, where in folders.items()}
        try:
            comparisons = {name: _compared(name, contenders, rounds) for name in launches}
        finally:
            for contender in contenders.values():
                contender.end()
    reached = all(each["reached"] for each in comparisons.values() if "reached" in each)
    return {
        "against": other.name,
        "comparisons": comparisons,
        "rounds": rounds,
        **machine(),
        "reached": reached,
        "all_reached": reached,
    }


def _recorded(compute: Callable[[_Recorder], object]) -> Recorded:
    device = open_device("ptx")
    assert isinstance(device, PtxDevice)
    recorder = _Recorder(device.arch, device.multiprocessors)
    compute(recorder)
    plan = recorder.plan
    assert plan is not None
    arguments = [
        replace(argument, array=before) if isinstance(argument, Buffer) else argument
        for argument, before in zip(plan.arguments, recorder.before, strict=True)
    ]
    sizes = (plan.grid, 1, 1), (plan.block, 1, 1)
    return Recorded(recorder.text, plan.kernel.entry, *sizes, plan.shared_bytes, arguments)


def _quantize() -> Recorded:
    x = np.random.default_rng(SEED).standard_normal((_ROWS, K), np.float32).astype(ml_dtypes.bfloat16)
    return _recorded(lambda device: quantize_mxfp8(x, device=device))


def _gemm(offsets: list[int]) -> Recorded:
    operands = gemm_operands(np.array(offsets, np.int64), GEMM_N, K)
    return _recorded(partial(_multiply, operands))


def _multiply(operands: dict[str, Any], device: _Recorder) -> object:
    return grouped_gemm(**operands, device=device, tile=GEMM_TILE, out_dtype="f32")


def _cutlass() -> Recorded:
    """The launch that CUTLASS's host code makes; what lies in device memory is known by its address."""
    build = Build()
    if (built := find_built(build)) is None:
        raise RefmoeError(f"bench executor --against: {build} is not built: make cutlass")
    operands = gemm_operands(CUTLASS_OFFSETS, CUTLASS_N, CUTLASS_K)
    device = open_device("ptx", build.arch)
    prepared = prepare(**operands, device=device, build=build, built=built)
    launch, memory = host_launch(prepared), prepared.memory
    assert memory is not None
    placed = {memory.place(each): each for each in memory.buffers}
    sizes = launch.grid, launch.block, launch.shared_bytes
    text = built.ptx.read_text()
    return Recorded(text, launch.entry, *sizes, [launch.parameters], placed, {"lowest_leader": True})


def _record(launches: dict[str, Recorded], path: Path) -> None:
    """Write launches as `replay` reads them."""
    arrays: dict[str, Any] = {}
    described = []

    def described_buffer(key: str, buffer: Buffer) -> dict[str, Any]:
        arrays[key] = buffer.array
        # A mask says by now what the launch wrote; before it no element was initialised.
        initialised = buffer.initialised is True
        return {"array": key, "name": buffer.name, "initialised": initialised, "writable": buffer.writable}

    def described_argument(key: str, argument: Any) -> dict[str, Any]:
        if isinstance(argument, Buffer):
            return described_buffer(key, argument)
        return {"bytes": argument.hex()} if isinstance(argument, bytes) else {"number": argument}

    for name, launch in launches.items():
        arrays[f"{name} text"] = np.array(launch.text)
        described.append(
            {
                "name": name,
                "text": f"{name} text",
                "entry": launch.entry,
                "grid": launch.grid,
                "block": launch.block,
                "shared_bytes": launch.shared_bytes,
                "arguments": [described_argument(f"{name} {i}", each) for i, each in enumerate(launch.arguments)],
                "memory": [
                    {"address": address, **described_buffer(f"{name} at {address}", each)}
                    for address, each in launch.memory.items()
                ],
                "options": launch.options,
            }
        )
    np.savez(path, launches=np.array(json.dumps(described)), **arrays)


class _Contender:
    """The process of one checkout."""

    def __init__(self, name: str, folder: Path, recording: Path) -> None:
        self.name = name
        source = Path(__file__).with_name("replay.py").read_text()
        # Run as text in the checkout's folder, which is then the first place where Python looks.
        self._process = subprocess.Popen(
            [sys.executable, "-c", source, str(recording)],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        found = Path(self._answer()["module"]).resolve()
        if not found.is_relative_to(folder):
            self.end()
            raise ArgumentError("against", f"{folder}, from which Python imports {found}", "the refmoe that lies there")

    def run(self, launch: str) -> dict[str, Any]:
        """One launch."""
        assert self._process.stdin is not None
        self._process.stdin.write(launch + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            _, told = self._process.communicate()
            last = told.strip().splitlines()[-1:] or ["no message"]
            raise RefmoeError(f"bench executor --against: {self.name} ended: {last[0]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


def _compared(launch: str, contenders: dict[str, _Contender], rounds: int) -> dict[str, Any]:
    first = {name: contender.run(launch) for name, contender in contenders.items()}
    if len({answer["sha256"] for answer in first.values()}) > 1:
        raise RefmoeError(f"bench executor --against: {launch} leaves other bytes in {' and in '.join(first)}")
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            seconds[name].append(contender.run(launch)["cpu_s"])
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ours, theirs = medians.values()
    compared: dict[str, Any] = {
        "medians_s": medians,
        "ratio": theirs / ours,
        "lane_instructions": first[_HERE]["lane_instructions"],
    }
    if (target := TARGETS.get(launch)) is not None:
        compared |= {"target": target, "reached": theirs / ours >= target}
    return compared
