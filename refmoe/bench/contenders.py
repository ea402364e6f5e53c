"""What a GPU bench times: a name, the bytes it must move, and how to enqueue it; and the floors of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from refmoe.cuda.device import CudaDevice
from refmoe.cuda.launch import Kernel, LaunchPlan

__all__ = ["Contender", "buffer_sets", "copy", "empty", "gather", "of_plans"]

ROTATING_BYTES = 256 * 2**20  # several times the L2 of any GPU that runs these kernels
MAX_BUFFER_SETS = 64
PIECE_BYTES, COPY_THREADS = 16, 512

Enqueue = Callable[[int], None]  # puts the contender's work on the current stream, with buffer set i


@dataclass(frozen=True)
class Contender:
    """Something to time: its name, the bytes that it must move, how many buffer sets it has, and how to enqueue it."""

    name: str
    traffic: int
    sets: int
    enqueue: Enqueue


def buffer_sets(traffic: int) -> int:
    """How many sets of buffers keep a contender of this traffic out of the L2 cache."""
    return max(2, min(MAX_BUFFER_SETS, -(-ROTATING_BYTES // max(traffic, 1))))


def of_plans(device: CudaDevice, name: str, traffic: int, sets: Sequence[Sequence[LaunchPlan]]) -> Contender:
    """A contender that enqueues, for buffer set i, the plans of `sets[i]` in order."""

    def enqueue(index: int) -> None:
        for plan in sets[index]:
            device.enqueue(plan)

    return Contender(name, traffic, len(sets), enqueue)


def empty(floors: CudaDevice) -> Contender:
    """A launch that does nothing."""
    plan = LaunchPlan(Kernel("floors", "refmoe_bench_empty"), grid=1, block=32, arguments=())
    return of_plans(floors, "an empty kernel", 0, [[plan]])


def copy(floors: CudaDevice, traffic: int, writes: int) -> Contender:
    """A plain copy that reads once and writes `writes` times, `traffic` bytes in all."""
    return _moving(floors, "refmoe_bench_copy", traffic, reads=1, writes=writes)


def gather(floors: CudaDevice, traffic: int, reads: int) -> Contender:
    """Reads of `reads` rows for each that is written, `traffic` bytes in all."""
    return _moving(floors, "refmoe_bench_gather", traffic, reads=reads, writes=1)


def _moving(floors: CudaDevice, entry: str, traffic: int, reads: int, writes: int) -> Contender:
    count = traffic // (PIECE_BYTES * (reads + writes))
    plans = [
        LaunchPlan(
            Kernel("floors", entry),
            grid=-(-count // COPY_THREADS),
            block=COPY_THREADS,
            arguments=(
                floors.output("source", (count * PIECE_BYTES * reads,), seed),
                floors.output("target", (count * PIECE_BYTES * writes,), 0),
                count,
                max(reads, writes),
            ),
        )
        for seed in range(buffer_sets(traffic))
    ]
    name = f"copy, reads {reads} : writes {writes}, {traffic / 1e6:.1f} MB"
    return of_plans(floors, name, traffic, [[plan] for plan in plans])
