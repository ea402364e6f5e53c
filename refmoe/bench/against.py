"""How fast the executor is beside the one of another checkout: the same launches, turn by turn, in one run.

The launches are recorded here: PTX and arguments. Two processes run them, one with this refmoe and one with the other
checkout's, so that neither host code nor a compiler is compared, and a noisy machine is noisy for both.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from refmoe.bench.executor import GEMM_N, GEMM_TILE, SEED, K, gemm_operands
from refmoe.bench.timing import machine
from refmoe.cuda.device import PtxDevice, open_device
from refmoe.cuda.gemm.kernel import grouped_gemm
from refmoe.cuda.launch import LaunchPlan
from refmoe.cuda.quantize import mxfp8_quantize
from refmoe.cuda.toolchain import build
from refmoe.errors import ArgumentError, RefmoeError
from refmoe.ptx import Buffer

_HERE = "this checkout"
_ROWS = 2048


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
    """Quantization and two grouped GEMMs, with all checks.

    Quantization is MXFP8 of BF16 [2048, 2880] with linear scales. The GEMMs are MXFP8 by MXFP4, with the 5760 x 2880
    weights of one expert for one row, and of four experts for eight rows. What is timed is the launch on the executor,
    by the CPU time of its process; each runs once unmeasured before.

    Args:
        folder: a checkout of refmoe, `git worktree add --detach FOLDER COMMIT` makes one.
        rounds: of each launch.

    Returns:
        JSON-able: `against` the folder, `comparisons` by launch with `medians_s` of both, `ratio` of the other's to
        ours, and `lane_instructions`, `rounds`, `cores`, `versions`.

    Raises:
        ArgumentError: no refmoe is there, or another one is imported from there.
        RefmoeError: a launch fails in one of them, or leaves other bytes.
    """
    if not (folder / "refmoe" / "ptx").is_dir():
        raise ArgumentError("against", f"{folder}, without refmoe/ptx", "the folder of a checkout of refmoe")
    launches = {"quantize": _quantize(), "gemm, one row": _gemm([0, 1]), "gemm, eight rows": _gemm([0, 2, 4, 6, 8])}
    with tempfile.TemporaryDirectory() as place:
        recording = Path(place) / "launches.npz"
        _record(launches, recording)
        folders = {_HERE: Path(__file__).resolve().parents[2], str(folder): folder.resolve()}
        contenders = {name: _Contender(name, where, recording) for name, where in folders.items()}
        try:
            comparisons = {name: _compared(name, contenders, rounds) for name in launches}
        finally:
            for contender in contenders.values():
                contender.end()
    return {"against": str(folder), "comparisons": comparisons, "rounds": rounds, **machine()}


def _recorded(compute: Callable[[_Recorder], object]) -> _Recorder:
    device = open_device("ptx")
    assert isinstance(device, PtxDevice)
    recorder = _Recorder(device.arch, device.multiprocessors)
    compute(recorder)
    return recorder


def _quantize() -> _Recorder:
    x = np.random.default_rng(SEED).standard_normal((_ROWS, K), np.float32).astype(ml_dtypes.bfloat16)
    return _recorded(lambda device: mxfp8_quantize(x, device=device))


def _gemm(offsets: list[int]) -> _Recorder:
    operands = gemm_operands(np.array(offsets, np.int64), GEMM_N, K)
    return _recorded(partial(_multiply, operands))


def _multiply(operands: dict[str, Any], device: _Recorder) -> object:
    return grouped_gemm(**operands, device=device, tile=GEMM_TILE, out_dtype="f32")


def _record(launches: dict[str, _Recorder], path: Path) -> None:
    """Write launches as `replay` reads them."""
    arrays: dict[str, Any] = {}
    described = []
    for name, recorder in launches.items():
        plan = recorder.plan
        assert plan is not None
        arguments: list[dict[str, Any]] = []
        for number, (argument, before) in enumerate(zip(plan.arguments, recorder.before, strict=True)):
            if not isinstance(argument, Buffer):
                arguments.append({"number": argument})
                continue
            arrays[key := f"{name} {number}"] = before
            arguments.append(
                {
                    "array": key,
                    "name": argument.name,
                    "initialised": argument.initialised is True,
                    "writable": argument.writable,
                }
            )
        arrays[f"{name} text"] = np.array(recorder.text)
        described.append(
            {
                "name": name,
                "text": f"{name} text",
                "entry": plan.kernel.entry,
                "grid": [plan.grid, 1, 1],
                "block": [plan.block, 1, 1],
                "shared_bytes": plan.shared_bytes,
                "arguments": arguments,
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
    return {
        "medians_s": medians,
        "ratio": theirs / ours,
        "lane_instructions": first[_HERE]["lane_instructions"],
    }
