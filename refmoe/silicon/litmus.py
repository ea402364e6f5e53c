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
from collections.abc import Iterator, Mapping, Sequence
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
from refmoe.silicon.conformance import Progress, assembled

Array = Any
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

    def run(self, module: Any, launches: Sequence[Launch], before: Array, observed: Array) -> tuple[Array, Array]:
        """Run launches of one program, and count what its instances leave behind.

        Args:
            module: of its entry.
            launches: of as many instances each.
            before: uint8 [INSTANCE_BYTES], the memory of an instance before the launch.
            observed: int [k], the bytes of it that are part of the outcome.

        Returns:
            The outcomes that there are, uint8 [u, 8 n + k], the n registers first; and how often each is there, [u].
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

    def run(
        self, module: ptx.Module, launches: Sequence[Launch], before: Array, observed: Array
    ) -> tuple[Array, Array]:
        """See `Host.run`."""
        program, instances = launches[0].program, launches[0].instances
        memory = np.tile(before, (len(launches), instances, 1))
        results = np.zeros((len(launches), instances, max(1, len(program.registers))), np.uint64)
        for number, launch in enumerate(launches):
            self._run(module, launch, memory[number], results[number])
        registers = results.reshape(-1, results.shape[2])[:, : len(program.registers)].copy().view(np.uint8)
        return _counted(np.hstack([registers, memory.reshape(-1, INSTANCE_BYTES)[:, observed]]))

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

    at_once = 256

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

    def run(self, module: Any, launches: Sequence[Launch], before: Array, observed: Array) -> tuple[Array, Array]:
        """See `Host.run`. Memory and counting stay on the GPU: what comes back is a row for each outcome."""
        device, torch, program = self._device, self._device.torch, launches[0].program
        function = device.call("cuModuleGetFunction", module, launches[0].entry.encode())
        count, width = len(launches) * launches[0].instances, max(1, len(program.registers))
        memory = torch.from_numpy(before).cuda().repeat(count)
        results = torch.zeros(count * width, dtype=torch.int64, device="cuda").view(torch.uint8)
        meetings = torch.zeros(count * MEETING_BYTES, dtype=torch.uint8, device="cuda")
        scratch = torch.zeros(SCRATCH_BYTES, dtype=torch.uint8, device="cuda")
        stream = torch.cuda.current_stream().cuda_stream
        for number, launch in enumerate(launches):
            buffers = (memory, results, meetings)
            places = [buffer.data_ptr() + number * buffer.numel() // len(launches) for buffer in buffers]
            numbers = (launch.instances, launch.multiplier, launch.offset, _PATIENCE, launch.seed)
            values = (*places, scratch.data_ptr(), *numbers)
            types = (ctypes.c_void_p,) * (len(places) + 1) + (ctypes.c_uint32,) * len(numbers)
            block = shape(program).block
            # The cluster's size is the entry's own (.reqnctapercluster).
            device.call("cuLaunchKernel", function, launch.grid, 1, 1, block, 1, 1, 0, stream, (values, types), 0)
        registers = results.view(count, 8 * width)[:, : 8 * len(program.registers)]
        rows = torch.hstack([registers, memory.view(count, INSTANCE_BYTES)[:, torch.from_numpy(observed).cuda()]])
        length = rows.shape[1]
        if not length:
            return np.zeros((1, 0), np.uint8), np.array([count])
        # In words of 8 bytes, which sort faster than as many times more bytes.
        words = torch.nn.functional.pad(rows, (0, -length % 8)).contiguous().view(torch.int64)
        found, counts = torch.unique(words, dim=0, return_counts=True)
        return found.cpu().numpy().view(np.uint8)[:, :length], counts.cpu().numpy()


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
    before = np.zeros(INSTANCE_BYTES, np.uint8)
    for at, width, value in program.initial:
        before[at.offset : at.offset + width] = np.frombuffer(value.to_bytes(width, "little"), np.uint8)
    parts = [np.arange(cell.start, cell.start + cell.width) for cell in cells]
    observed = np.concatenate([*parts, np.arange(0)])
    instances, registers = host.instances(program), len(program.registers)
    coming = launches(program, entry, instances, seed)
    while found.total() < runs:
        rows, counts = host.run(module, [next(coming) for _ in range(host.at_once)], before, observed)
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
        return np.zeros((1, 0), np.uint8), np.array([len(rows)])
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
