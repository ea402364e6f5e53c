"""Race-free litmus programs on a GPU, millions of times under stress: no outcome outside of what PTX's axioms allow.

Each launch runs many instances of one program at once, see `refmoe.litmus.stressed`. What each instance left behind is
counted by its outcome, and every outcome is held against the axioms' set. Which allowed outcomes appear is recorded:
that one does not appear proves nothing.

A `Host` runs the launches: a GPU, or the executor, on which the same kernels and the same counting are tested.
"""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from refmoe import ptx
from refmoe.cuda.device import CudaDevice
from refmoe.draw import Draw
from refmoe.litmus.emit import shape
from refmoe.litmus.events import Memory
from refmoe.litmus.generate import judged
from refmoe.litmus.program import Program
from refmoe.litmus.stressed import INSTANCE_BYTES, MEETING_BYTES, SCRATCH_BYTES, clusters_of, stressed_text
from refmoe.litmus.verdict import ModelVerdict
from refmoe.reports.documents import digest_of
from refmoe.reports.litmus import LITMUS, litmus_sha256
from refmoe.silicon.conformance import assembled

Array = Any
Progress = Callable[[Iterable[Any]], Iterable[Any]]
Outcome = tuple[int, ...]

#: Programs of one module.
BATCH = 64
#: Blocks of a launch that only stress, as a part of those that run instances.
_STRESSING = 8
# Turns that a block waits for the others of its instance, and a thread by itself, at most.
_PATIENCE = 256
_SHOWN = 8


@dataclass(frozen=True)
class Launch:
    """One launch of a program.

    Attributes:
        entry: of its kernel.
        program: what runs.
        instances: how many at once.
        multiplier, offset, seed: of the order of blocks and the turns that threads wait.
    """

    entry: str
    program: Program
    instances: int
    multiplier: int
    offset: int
    seed: int

    @property
    def grid(self) -> int:
        """Blocks: those of the instances, and in whole clusters those that stress."""
        how = shape(self.program)
        used = self.instances * how.grid
        return used + -(-used // (_STRESSING * how.cluster)) * how.cluster


class Host(Protocol):
    """Where launches run."""

    name: str
    arch: str

    def load(self, text: str) -> Any:
        """A module of PTX."""

    def instances(self, program: Program) -> int:
        """How many instances of a program are resident at once, so that they may wait for each other."""

    #: Launches that run behind one another before anybody looks.
    at_once: int

    def run(self, module: Any, launches: Sequence[Launch], memory: Array, results: Array) -> None:
        """Run launches of one program.

        Args:
            module: of its entry.
            launches: m of them, of as many instances each.
            memory: uint8 [m, instances, INSTANCE_BYTES], changed in place.
            results: uint64 [m, instances, n], changed in place.
        """


class ExecutorHost:
    """The executor, on which few instances run."""

    name, arch, at_once = "the executor", "sm_90a", 2

    def __init__(self, instances: int = 3) -> None:
        self._instances = instances

    def load(self, text: str) -> ptx.Module:
        """See `Host.load`."""
        return ptx.Module.parse(text, "litmus")

    def instances(self, program: Program) -> int:
        """See `Host.instances`."""
        return self._instances

    def run(self, module: ptx.Module, launches: Sequence[Launch], memory: Array, results: Array) -> None:
        """See `Host.run`."""
        for number, launch in enumerate(launches):
            self._run(module, launch, memory[number], results[number])

    def _run(self, module: ptx.Module, launch: Launch, memory: Array, results: Array) -> None:
        how = shape(launch.program)
        meetings = np.zeros(launch.instances * MEETING_BYTES, np.uint8)
        scratch = np.zeros(SCRATCH_BYTES, np.uint8)
        ptx.launch(
            module,
            launch.entry,
            (launch.grid, 1, 1),
            (how.block, 1, 1),
            [
                ptx.Buffer(memory.reshape(-1), "memory"), ptx.Buffer(results.reshape(-1).view(np.uint8), "results"),
                ptx.Buffer(meetings, "meetings"), ptx.Buffer(scratch, "scratch"),
                launch.instances, launch.multiplier, launch.offset, _PATIENCE, launch.seed,
            ],
            cluster=(how.cluster, 1, 1) if how.cluster > 1 else None,
            checks=ptx.Checks(strict=True, explain=False),
        )  # fmt: skip


class GpuHost:
    """A GPU, full of instances.

    Raises:
        DeviceUnavailable: there is none.
    """

    at_once = 32

    def __init__(self) -> None:
        self._device = CudaDevice()
        self.name, self.arch = self._device.gpu_name, self._device.arch

    def load(self, text: str) -> Any:
        """See `Host.load`."""
        return self._device.call("cuModuleLoadData", assembled(text, self.arch))

    def instances(self, program: Program) -> int:
        """See `Host.instances`: half of the blocks that fit by their threads leave room for those that stress."""
        how = shape(program)
        threads = 32 * -(-how.block // 32)
        together = max(1, min(16, 1024 // threads))
        return max(1, self._device.multiprocessors * together // 2 // how.grid)

    def run(self, module: Any, launches: Sequence[Launch], memory: Array, results: Array) -> None:
        """See `Host.run`."""
        device, how = self._device, shape(launches[0].program)
        function = device.call("cuModuleGetFunction", module, launches[0].entry.encode())
        tensors = [
            device.upload("memory", memory.reshape(-1)),
            device.upload("results", results.reshape(-1)),
            device.output("meetings", (len(launches) * launches[0].instances * MEETING_BYTES,), 0),
        ]
        scratch = device.output("scratch", (SCRATCH_BYTES,), 0)
        stream = device.torch.cuda.current_stream().cuda_stream
        for number, launch in enumerate(launches):
            places = [tensor.data_ptr() + number * tensor.numel() // len(launches) for tensor in tensors]
            numbers = (launch.instances, launch.multiplier, launch.offset, _PATIENCE, launch.seed)
            values = (*places, scratch.data_ptr(), *numbers)
            types = (ctypes.c_void_p,) * (len(places) + 1) + (ctypes.c_uint32,) * len(numbers)
            # The cluster's size is the entry's own (.reqnctapercluster).
            device.call("cuLaunchKernel", function, launch.grid, 1, 1, how.block, 1, 1, 0, stream, (values, types), 0)
        device.torch.cuda.synchronize()
        memory[:] = device.download(tensors[0]).reshape(memory.shape)
        results[:] = device.download(tensors[1]).view(np.uint64).reshape(results.shape)


def launches(program: Program, entry: str, instances: int, seed: int) -> Iterator[Launch]:
    """Launches without end, each with another order of blocks."""
    clusters = instances * clusters_of(program)
    draw = Draw("litmus on silicon", program.key, seed)
    while True:
        multiplier, offset, own = (int(word) & 0xFFFFFFFF for word in draw.words(3))
        multiplier = max(1, multiplier % clusters)
        while math.gcd(multiplier, clusters) > 1:
            multiplier += 1
        yield Launch(entry, program, instances, multiplier, offset % clusters, own)


def outcomes_of(host: Host, module: Any, program: Program, entry: str, runs: int, seed: int) -> Counter[Outcome]:
    """How often each outcome is left behind by at least so many instances."""
    found: Counter[Outcome] = Counter()
    cells = Memory(program).observed
    first = np.zeros(INSTANCE_BYTES, np.uint8)
    for at, width, value in program.initial:
        first[at.offset : at.offset + width] = np.frombuffer(value.to_bytes(width, "little"), np.uint8)
    instances, registers = host.instances(program), len(program.registers)
    bytes_ = np.concatenate([np.arange(cell.start, cell.start + cell.width) for cell in cells] or [np.arange(0)])
    coming = launches(program, entry, instances, seed)
    while found.total() < runs:
        several = [next(coming) for _ in range(host.at_once)]
        memory = np.tile(first, (len(several), instances, 1))
        results = np.zeros((len(several), instances, max(1, registers)), np.uint64)
        host.run(module, several, memory, results)
        own = results.reshape(-1, results.shape[2])[:, :registers].copy().view(np.uint8)
        rows, counts = _counted(np.hstack([own, memory.reshape(-1, INSTANCE_BYTES)[:, bytes_]]))
        for row, count in zip(rows, counts.tolist(), strict=True):
            seen, begin = row[: 8 * registers].copy().view(np.uint64).tolist(), 8 * registers
            for cell in cells:
                seen.append(int.from_bytes(row[begin : begin + cell.width].tobytes(), "little"))
                begin += cell.width
            found[tuple(seen)] += count
    return found


def _counted(rows: Array) -> tuple[Array, Array]:
    """The different rows of uint8 [n, k], and how often each is there."""
    if not rows.shape[1]:
        return rows[:1], np.array([len(rows)])
    whole = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.shape[1]))).reshape(-1)
    _, first, counts = np.unique(whole, return_index=True, return_counts=True)
    return rows[first], counts


def run(
    programs: int = 1000, seed: int = 0, runs: int = 1_000_000, host: Host | None = None, progress: Progress = iter
) -> dict[str, Any]:
    """Run race-free programs so often and return a JSON-able document.

    Args:
        programs: how many of the generator's are judged; those with a race, and those left open, are left out.
        seed: of the generator, and of the orders of blocks.
        runs: of each program, at least.
        host: where they run; by default a GPU.
        progress: wraps the programs that are gone through.

    Raises:
        DeviceUnavailable: no GPU that the kernels are built for.
        ToolchainError: no ptxas.
    """
    place = GpuHost() if host is None else host
    free = [
        (program, verdict)
        for program, verdict in judged(programs, seed)
        if not verdict.racy and not verdict.open and verdict.outcomes is not None
    ]
    rows = []
    for batch in progress(list(_batches(free))):
        module = place.load(stressed_text([program for program, _ in batch]))
        for number, (program, verdict) in enumerate(batch):
            found = outcomes_of(place, module, program, f"litmus_{number}", runs, seed)
            rows.append(_row(program, verdict, found))
    document = {
        "kind": LITMUS.name,
        "gpu": place.name,
        "arch": place.arch,
        "litmus_sha256": litmus_sha256(),
        "seed": seed,
        "programs": len(rows),
        "runs": sum(row["runs"] for row in rows),
        "allowed_outcomes": sum(row["allowed"] for row in rows),
        "seen_outcomes": sum(row["seen"] for row in rows),
        "outside": sum(len(row["outside"]) > 0 for row in rows),
        "rows": rows,
    }
    return {**document, "digest": digest_of(document)}


def _batches(free: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(free), BATCH):
        yield free[start : start + BATCH]


def _row(program: Program, verdict: ModelVerdict, found: Counter[Outcome]) -> dict[str, Any]:
    """What a document has of a program."""
    allowed = verdict.outcomes or frozenset()
    outside = sorted(set(found) - allowed)
    return {
        "shape": program.shape,
        "cause": program.cause,
        "program": program.key.splitlines(),
        "runs": found.total(),
        "allowed": len(allowed),
        "seen": len(set(found) & allowed),
        "never_seen": [list(outcome) for outcome in sorted(allowed - set(found))[:_SHOWN]],
        "outside": [[*outcome, found[outcome]] for outcome in outside[:_SHOWN]],
    }


def summary(document: Mapping[str, Any]) -> str:
    """What a run found, in lines: every program with an outcome that PTX does not allow, and the totals."""
    lines = [
        f"OUTSIDE {row['shape']} / {row['cause']}: {row['outside'][0][:-1]}, {row['outside'][0][-1]} times"
        for row in document["rows"]
        if row["outside"]
    ]
    lines.append(
        f"{document['programs']} programs on {document['gpu']} ({document['arch']}), {document['runs']:,} runs: "
        f"{document['outside']} left behind what PTX does not allow; "
        f"{document['seen_outcomes']} of {document['allowed_outcomes']} allowed outcomes were seen"
    )
    return "\n".join(lines) + "\n"
