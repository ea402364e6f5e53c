"""How the GPU bench times launches: as nodes of CUDA graphs, on rotating buffers, beside a floor.

The first contender of a group is the floor of the others: a copy of as many bytes with the same share of reads, or a
kernel that does nothing.
"""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from refmoe.bench.gpu.graphs import Graphs, graphs_of
from refmoe.cuda.device import CudaDevice
from refmoe.cuda.launch import Buffer, Entry, LaunchPlan
from refmoe.driver import DriverDevice, opened
from refmoe.driver.packaged import FLOORS
from refmoe.errors import RefmoeError

Group = TypeVar("Group")

ROUNDS = 15
TARGET_NODES = 40
ROTATING_BYTES = 256 * 2**20  # several times the L2 of any GPU that runs these kernels
MAX_BUFFER_SETS = 64
PIECE_BYTES, COPY_THREADS = 16, 512
_BUSY_LAUNCHES = 4000  # of 256 MB each: half a second
_BLOCK_BYTES = 4 * 2**20  # that the host draws, and repeats
_DRAWN_ROWS = 1 << 16  # at a time, so that their float32 form is no second matrix
READ_PIECES = 4  # kPieces, of a thread that only reads


@dataclass(frozen=True)
class Contender:
    """Something to time.

    Attributes:
        name: of its row.
        traffic: bytes that it must move.
        device: where its kernels are.
        sets: the launches of one run, in order, on each set of buffers.
    """

    name: str
    traffic: int
    device: CudaDevice
    sets: Sequence[Sequence[LaunchPlan]]

    def enqueue(self, turn: int) -> None:
        """Put one run on the current stream; each turn takes the next set of buffers."""
        for plan in self.sets[turn % len(self.sets)]:
            self.device.enqueue(plan)


@dataclass(frozen=True)
class Calls:
    """Something to time that is no kernel of ours: functions that put work on torch's current stream.

    Attributes:
        name: of its row.
        traffic: bytes that it must move.
        sets: one function for each set of buffers.
    """

    name: str
    traffic: int
    sets: Sequence[Callable[[], object]]

    def enqueue(self, turn: int) -> object:
        """Put one run on the current stream and return its result; each turn takes the next set of buffers."""
        return self.sets[turn % len(self.sets)]()


class _Sets(Sequence[Sequence[LaunchPlan]]):
    """Sets of buffers by seed, each made when it is first asked for: who launches once needs one."""

    def __init__(self, launches: Callable[[int], Sequence[LaunchPlan]], count: int) -> None:
        self._launches, self._count = launches, count
        self._made: dict[int, Sequence[LaunchPlan]] = {}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, seed: Any) -> Any:
        if not 0 <= seed < self._count:
            raise IndexError(seed)
        if seed not in self._made:
            self._made[seed] = self._launches(seed)
        return self._made[seed]


def contender(
    device: CudaDevice, name: str, traffic: int, launches: Callable[[int], Sequence[LaunchPlan]]
) -> Contender:
    """A contender with as many sets of buffers as keep it out of the L2 cache; `launches` makes one from a seed."""
    return Contender(name, traffic, device, _Sets(launches, set_count(traffic)))


def set_count(traffic: int) -> int:
    """How many sets of buffers keep a contender out of the L2 cache that moves so many bytes."""
    return max(2, min(MAX_BUFFER_SETS, -(-ROTATING_BYTES // max(traffic, 1))))


def gpu_device() -> CudaDevice:
    """The current GPU; where torch or nvcc is missing, the first one through the driver alone.

    Raises:
        DeviceUnavailable: no GPU that the kernels are built for.
        ToolchainError: neither nvcc nor PTX in the package.
    """
    device = opened("cuda")
    assert isinstance(device, CudaDevice)
    if isinstance(device, DriverDevice):
        device.launch_on_a_stream()
    return device


def beside(device: CudaDevice, csrc: Path) -> CudaDevice:
    """The GPU of a device with the kernels of another folder."""
    return device.beside(csrc) if isinstance(device, DriverDevice) else CudaDevice(csrc=csrc)


def has_torch(device: CudaDevice) -> bool:
    """Whether contenders on a device may use torch."""
    return not isinstance(device, DriverDevice)


def floor_device(device: CudaDevice | None = None) -> CudaDevice:
    """The GPU of a device with the kernels of `floors.cu` instead of refmoe's; without one the current GPU by torch.

    Raises:
        DeviceUnavailable: no GPU that the kernels are built for.
    """
    return CudaDevice(csrc=FLOORS.parent) if device is None else beside(device, FLOORS.parent)


def empty(floors: CudaDevice) -> Contender:
    """A launch that does nothing."""
    plan = LaunchPlan(Entry("floors", "refmoe_bench_empty"), grid=1, block=32, arguments=())
    return Contender("an empty kernel", 0, floors, [[plan]])


def copy(floors: CudaDevice, traffic: int, writes: int) -> Contender:
    """A plain copy that reads once and writes `writes` times, `traffic` bytes in all."""
    return _moving(floors, "refmoe_bench_copy", traffic, reads=1, writes=writes)


def gather(floors: CudaDevice, traffic: int, reads: int) -> Contender:
    """Reads of `reads` rows for each that is written, `traffic` bytes in all."""
    return _moving(floors, "refmoe_bench_gather", traffic, reads=reads, writes=1)


def read(floors: CudaDevice, traffic: int) -> Contender:
    """A pure read of `traffic` bytes."""
    count = traffic // PIECE_BYTES

    def launches(seed: int) -> list[LaunchPlan]:
        source = floors.output("source", (count * PIECE_BYTES,), seed)
        target = floors.output("target", (PIECE_BYTES,), 0)
        grid = -(-count // (READ_PIECES * COPY_THREADS))
        return [LaunchPlan(Entry("floors", "refmoe_bench_read"), grid, COPY_THREADS, (source, target, count))]

    return contender(floors, f"read, {traffic / 1e6:.1f} MB", traffic, launches)


def _moving(floors: CudaDevice, entry: str, traffic: int, reads: int, writes: int) -> Contender:
    count = traffic // (PIECE_BYTES * (reads + writes))

    def launches(seed: int) -> list[LaunchPlan]:
        source = floors.output("source", (count * PIECE_BYTES * reads,), seed)
        target = floors.output("target", (count * PIECE_BYTES * writes,), 0)
        arguments = (source, target, count, max(reads, writes))
        return [LaunchPlan(Entry("floors", entry), -(-count // COPY_THREADS), COPY_THREADS, arguments)]

    return contender(floors, f"copy, reads {reads} : writes {writes}, {traffic / 1e6:.1f} MB", traffic, launches)


def clocks(floors: CudaDevice) -> str:
    """The GPU's clocks while it copies, as nvidia-smi tells them, or an empty text without it."""
    if shutil.which("nvidia-smi") is None:
        return ""
    busy = copy(floors, ROTATING_BYTES, writes=1)
    for turn in range(_BUSY_LAUNCHES):
        busy.enqueue(turn)
    query = ["nvidia-smi", "--query-gpu=clocks.sm,clocks.mem", "--format=csv,noheader", "--id=0"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False, timeout=30)
    graphs_of(floors).settle()
    found = [part.strip() for part in answer.stdout.strip().split(",")]
    return f"SM {found[0]}, memory {found[1]}, under load" if answer.returncode == 0 and len(found) == 2 else ""


def drawn_bytes(device: CudaDevice, seed: int, shape: tuple[int, ...], low: int, high: int) -> Buffer:
    """Bytes in [low, high), made on the device: gigabytes of them would take the host minutes.

    Without torch the host makes a block of them, which is repeated.
    """
    if isinstance(device, DriverDevice):
        drawn = np.random.default_rng(seed).integers(low, high, min(math.prod(shape), _BLOCK_BYTES), np.uint8)
        return device.repeated(shape, drawn)
    torch = device.torch
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randint(low, high, shape, dtype=torch.uint8, device="cuda", generator=generator)


def drawn_normal(device: CudaDevice, shape: tuple[int, int], seed: int, scale: float = 1.0) -> Buffer:
    """BF16 numbers of a normal distribution, made on the device; without torch the host makes a block of them."""
    if isinstance(device, DriverDevice):
        (rows, width), each = shape, np.dtype(ml_dtypes.bfloat16).itemsize
        count = min(rows * width, _BLOCK_BYTES // each)
        drawn = np.random.default_rng(seed).standard_normal(count, np.float32) * np.float32(scale)
        return device.repeated((rows, width * each), drawn.astype(ml_dtypes.bfloat16).view(np.uint8))
    torch = device.torch
    generator = torch.Generator(device="cuda").manual_seed(seed)
    values = torch.randn(shape, dtype=torch.float32, device="cuda", generator=generator) * scale
    return values.to(torch.bfloat16)


def drawn_codes(device: CudaDevice, rows: int, width: int, seed: int) -> Buffer:
    """E4M3 codes [rows, width] of normal numbers as a quantizer leaves them, whose largest is near 448."""
    torch = device.torch
    generator = torch.Generator(device="cuda").manual_seed(seed)
    codes = torch.empty((rows, width), dtype=torch.uint8, device="cuda")
    for part in codes.split(_DRAWN_ROWS):
        normal = torch.randn(part.shape, generator=generator, device="cuda") * 112
        part.copy_(normal.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8))
    return codes


def drawn_scales(device: CudaDevice, count: int, seed: int) -> Buffer:
    """FP32 scales between a half and one and a half."""
    torch = device.torch
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.rand((count,), generator=generator, device="cuda") + 0.5


def time_groups(device: CudaDevice, groups: Iterable[Sequence[Contender | Calls]]) -> list[dict[str, Any]]:
    """A row for each contender, as `rows_of` makes it."""
    return [row for group in groups for row in rows_of(group, interleaved(device, group))]


def taken_out(groups: Iterable[Group]) -> Iterator[Group]:
    """Groups that nobody else holds, one by one: the memory of each is free before the next one takes its own."""
    waiting = list(groups)
    del groups
    while waiting:
        yield waiting.pop(0)


def rows_of(group: Sequence[Contender | Calls], samples: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    """A row for each contender of a group, the first of which is the floor of the others.

    Args:
        group: the contenders.
        samples: of each the microseconds of one node, one for each round.

    Returns:
        JSON-able rows: median microseconds of a node, the smallest and largest (`spread`), bytes, TB/s, the ratio to
        the floor, and the `repetitions`, which `refmoe bench compare` needs.
    """
    medians = [median(each) for each in samples]
    return [
        {
            "name": one.name,
            "microseconds": round(microseconds, 2),
            "spread": [round(min(each), 2), round(max(each), 2)],
            "traffic_bytes": one.traffic,
            "terabytes_per_second": round(one.traffic / microseconds / 1e6, 3),
            "ratio_to_floor": round(microseconds / medians[0], 3),
            "repetitions": [round(sample, 4) for sample in each],
        }
        for one, microseconds, each in zip(group, medians, samples, strict=True)
    ]


def interleaved(
    device: CudaDevice, contenders: Sequence[Contender | Calls], target_nodes: int = TARGET_NODES
) -> list[list[float]]:
    """Microseconds of one node of each, by rounds, which alternate between them, so that drift hits all alike.

    Args:
        device: the GPU.
        contenders: what is timed.
        target_nodes: about how many nodes a graph has; milliseconds need fewer than microseconds.
    """
    graphs = graphs_of(device)
    captured = []
    for one in contenders:
        sets = len(one.sets)
        nodes = max(target_nodes // sets, 1) * sets
        try:
            captured.append((_captured(graphs, one, nodes), nodes))
        except RefmoeError as error:
            # An error of a kind of its own tells of the machine.
            if type(error) is not RefmoeError:
                raise
            raise RefmoeError(f"{one.name}: {error}") from error
    times: list[list[float]] = [[] for _ in contenders]
    for _ in range(ROUNDS):
        for (graph, nodes), samples in zip(captured, times, strict=True):
            samples.append(graphs.microseconds(graph) / nodes)
    return times


def _captured(graphs: Graphs, one: Contender | Calls, nodes: int) -> Any:
    """A graph of so many runs, which has run once, after a run on each set of buffers."""
    for turn in range(len(one.sets)):
        one.enqueue(turn)
    graphs.settle()
    graph = graphs.captured(lambda: [one.enqueue(turn) for turn in range(nodes)])
    graphs.replay(graph)
    return graph
