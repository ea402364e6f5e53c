"""What launches on the executor keep in memory: buffers that are hardly touched, and the checks of three kernels.

Every launch has a process of its own, whose resident memory the system counts.
"""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from refmoe import ptx
from refmoe.bench.executor import GEMM_N, GEMM_TILE, SEED, K, executors, gemm_operands
from refmoe.bench.timing import machine, verdict
from refmoe.cuda.device import PtxDevice
from refmoe.cuda.gemm.kernel import grouped_gemm
from refmoe.cuda.quantize import quantize_mxfp8
from refmoe.cuda.routing import route
from refmoe.errors import RefmoeError
from refmoe.ptx.engine.code import View
from refmoe.ptx.engine.machine import Machine
from refmoe.ptx.engine.races import RaceShadow, shadow_of
from refmoe.ptx.state.pages import PAGE, Journal, resident_bytes

if TYPE_CHECKING:
    from refmoe.ptx.engine.frame import Frame
    from refmoe.ptx.engine.machine import Launch
    from refmoe.ptx.state.memory import Region
    from refmoe.ptx.text.syntax import Instruction

TARGETS = {"resident_bytes": 2 << 30, "bytes_per_byte_touched": 8.0}
"""At most so many bytes resident with 1 GiB of buffers of which 64 MiB are touched; at most so many bytes of checks for
each byte that a kernel touches, on average over the kernels."""

# What checks need memory for: records of accesses, the mask of initialised bytes, what pages held before, and what
# threads know of each other.
_COSTS = ("records", "initialised", "kept", "clocks")
_STEPS = View("steps", lambda _: True, False, lambda work: work)
_BUFFERS, _TOUCHED = 1 << 30, 64 << 20
# Thread t of block b doubles words t, t + 256, ... of page `spread` * b of `from`, into the same words of `to`.
_SPARSE = """
.version 8.7
.target sm_120a
.address_size 64
.visible .entry sparse(.param .u64 from, .param .u64 to, .param .u64 spread) {
    .reg .pred %p<2>;
    .reg .b32 %r<5>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [from];
    ld.param.u64 %rd2, [to];
    ld.param.u64 %rd3, [spread];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %tid.x;
    cvt.u64.u32 %rd4, %r1;
    mul.lo.u64 %rd4, %rd4, %rd3;
    mad.wide.u32 %rd4, %r2, 4, %rd4;
    add.u64 %rd5, %rd1, %rd4;
    add.u64 %rd6, %rd2, %rd4;
    mov.u32 %r3, 0;
MORE:
    ld.global.u32 %r4, [%rd5];
    shl.b32 %r4, %r4, 1;
    st.global.u32 [%rd6], %r4;
    add.u64 %rd5, %rd5, 1024;
    add.u64 %rd6, %rd6, 1024;
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p1, %r3, 4;
    @%p1 bra MORE;
    ret;
}
"""


def run(*, buffers: int = _BUFFERS, touched: int = _TOUCHED, rows: int = 2048, experts: int = 2) -> dict[str, Any]:
    """A launch with few pages of large buffers touched; quantization, the grouped GEMM and routing at sizes of gpt-oss.

    The first launch reads pages that lie far apart of one array, which its caller has filled, and writes those of
    another, which counts as uninitialised; each has half of `buffers` bytes, and half of `touched` bytes are touched in
    each. What is held against its target is the most that the process ever had resident.

    The kernels: MXFP8 quantization of BF16 [rows, 2880]; the GEMM sm12x_gemm, `experts` of 5760 x 2880, MXFP8 by
    MXFP4, with 8 tokens an expert, in the tile 128x8x512; routing of float32 logits [rows, 128] to 4 experts each, in
    two launches. Bytes touched and bytes of checks are of one time and of the same memories. The memories are all
    buffers of a launch, and the shared and local memory of those of its blocks that are there together when checks hold
    the most; the time is the end of these. Touched are the distinct bytes that the launch has accessed there. The
    checks cost what is resident of four things: records of accesses, the mask of initialised bytes, what pages held
    before they were written, and the clocks of those blocks and of their barriers, which say what comes after what.
    Pages that blocks before these left resident count, if these blocks use them again.
    A kernel of several launches touches what each of them touches, and costs what each of them costs.

    Returns:
        JSON-able: `buffers`, `touched`, `resident_bytes` of the first launch, in `rows` for each kernel its bytes
        `touched`, those of the `records`, of the mask (`initialised`), those `kept` and those of the `clocks`, the
        ratio `bytes_per_byte_touched`, and that of the launch in which it is highest, `most_of_a_launch`; the average
        of the former over the kernels, `cores`, `versions`, `targets`, `reached` by target, and `all_reached`.

    Raises:
        RefmoeError: no nvcc, or a system that does not tell what is resident.
    """
    if not Path("/proc/self/pagemap").exists():
        raise RefmoeError("bench memory needs Linux: it reads /proc/self/pagemap")
    resident = _in_child(sparse_launch, buffers, touched)
    measured = []
    for kernel in _kernels(rows, experts):
        buffers_touched = _in_child(bytes_touched, kernel, rows, experts)
        launches = _in_child(bytes_of_checks, kernel, rows, experts)
        measured.append({"kernel": kernel, **_together(buffers_touched, launches)})
    average = sum(row["bytes_per_byte_touched"] for row in measured) / len(measured)
    reached = {
        "resident_bytes": resident <= TARGETS["resident_bytes"],
        "bytes_per_byte_touched": average <= TARGETS["bytes_per_byte_touched"],
    }
    return {
        "buffers": buffers,
        "touched": touched,
        "resident_bytes": resident,
        "rows": measured,
        "bytes_per_byte_touched": average,
        **machine(),
        **verdict(TARGETS, reached),
    }


def _together(buffers: Sequence[int], launches: Sequence[Mapping[str, int]]) -> dict[str, Any]:
    """Of a kernel's launches, what of each of `buffers` was touched and what `bytes_of_checks` says: a row of `run`."""
    touched = [of_buffers + each["touched"] for of_buffers, each in zip(buffers, launches, strict=True)]
    sums = {name: sum(each[name] for each in launches) for name in _COSTS}
    ratios = [sum(each[name] for name in _COSTS) / bytes_ for bytes_, each in zip(touched, launches, strict=True)]
    ratio = sum(sums.values()) / sum(touched)
    return {"touched": sum(touched), **sums, "bytes_per_byte_touched": ratio, "most_of_a_launch": max(ratios)}


def most_resident() -> int:
    """Most bytes that this process had resident: `getrusage` would count what its parent had when it began.

    Raises:
        RefmoeError: the system does not say, as Linux does in /proc/self/status.
    """
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise RefmoeError("bench memory: /proc/self/status has no VmHWM, the most that a process had resident")
    return int(found[1]) * 1024


def _in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns in a process of its own, which nothing else has made larger."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def sparse_launch(buffers: int, touched: int) -> int:
    """Most bytes that this process had resident, after the first launch of `run`."""
    half, blocks = buffers // 2, touched // 2 // PAGE
    source, target = np.ones(half // 4, np.uint32), np.empty(half // 4, np.uint32)
    spread = half // blocks // PAGE * PAGE
    arguments = [source, ptx.Buffer(target, "to", initialised=False), spread]
    ptx.run_ptx(_SPARSE, grid=blocks, block=256, args=arguments)
    first = target[: blocks * spread // 4].reshape(blocks, -1)[:, : PAGE // 4]
    if not (first == 2).all():
        raise RefmoeError("bench memory: the launch did not double what it was to touch")
    return most_resident()


@dataclass
class Kept:
    """Memory that checks need for a region; it outlives the region.

    Attributes:
        region: it.
        shadow: its records of accesses, or None.
        valid: its mask of initialised bytes, or None.
        journal: what its pages held before, or None.
        machine: the blocks whose memory it is, and whose clocks count with it, or None.
        at_end: `accessed` and `cost` when its records were given back, or None.
    """

    region: Region
    shadow: RaceShadow | None
    valid: Any
    journal: Journal | None
    machine: Machine | None = None
    at_end: tuple[int, Any] | None = None

    @classmethod
    def of(cls, region: Region, machine: Machine | None = None) -> Kept:
        """That of a region, which says what it has before its records are given back."""
        shadow = None if region.shadow is None else shadow_of(region)
        kept = cls(region, shadow, region.valid, region.journal, machine)
        if shadow is not None:
            shadow.granules.before_release = kept.end
        return kept

    def end(self) -> None:
        """The records are about to be given back."""
        self.at_end = self.accessed, self.cost

    @property
    def accessed(self) -> int:
        """Distinct bytes that somebody accessed."""
        if self.at_end is not None:
            return self.at_end[0]
        if self.shadow is not None:
            return self.shadow.granules.accessed
        # Parameters and constants have no checks that cost anything.
        return int(np.count_nonzero(self.valid)) if self.region.space == "local" else 0

    @property
    def cost(self) -> Any:
        """Resident bytes, int64 [4], of `_COSTS`."""
        if self.at_end is not None:
            return self.at_end[1]
        tables = () if self.shadow is None else self.shadow.tables
        mask = () if self.valid is None else (self.valid,)
        pages = () if self.journal is None else (self.journal.kept, self.journal.before)
        clocks = () if self.machine is None or self.machine.clocks is None else _clocks(self.machine)
        return np.array([sum(map(resident_bytes, arrays)) for arrays in (tables, mask, pages, clocks)])


def _clocks(machine: Machine) -> tuple[Any, ...]:
    """All that says what the threads of some blocks know of each other, and of the other blocks."""
    clocks = machine.clocks
    own = clocks.seen, clocks.foreign, clocks.apart, clocks.last_fence
    # The rows of all blocks that somebody knows.
    return *own, clocks.pool.rows, *machine.mbarriers.tables


@dataclass
class Held:
    """What the checks of one launch need.

    Attributes:
        buffers: device memory.
        owned: shared and local memory of blocks.
        together: numbers of those of `owned` that were there at one time.
    """

    buffers: list[Kept]
    owned: list[Kept] = field(default_factory=list)
    together: list[list[int]] = field(default_factory=list)

    @property
    def most(self) -> dict[str, int]:
        """`_COSTS` when they are most, and the bytes `touched` of those blocks that are there then."""
        costs = [kept.cost for kept in self.owned]
        numbers = max(self.together, key=lambda each: int(sum(costs[number].sum() for number in each)), default=[])
        total = sum(costs[number] for number in numbers) + sum(kept.cost for kept in self.buffers)
        touched = sum(self.owned[number].accessed for number in numbers)
        return {"touched": touched, **dict(zip(_COSTS, total.tolist(), strict=True))}


@dataclass
class Keeper:
    """An observer of launches that keeps what their checks need.

    Attributes:
        launches: in order.
    """

    launches: list[Held] = field(default_factory=list)
    _known: set[int] = field(default_factory=set)

    @property
    def view(self) -> View:
        """Code as it runs without an observer, but told of each step."""
        return _STEPS

    def attach(self, launch: Launch) -> None:
        """A launch begins."""
        self.launches.append(Held([Kept.of(region) for region in launch.arena.regions]))

    def step(self, place: int, frame: Frame) -> None:
        """Blocks run."""
        machine, held = frame.machine, self.launches[-1]
        assert isinstance(machine, Machine)
        if id(machine.shared) not in self._known:
            # These objects stay, so that their numbers stay theirs.
            self._known.add(id(machine.shared))
            held.owned += Kept.of(machine.shared, machine), Kept.of(machine.local)
            held.together.append([number for number, kept in enumerate(held.owned) if kept.region.data.size])

    def at(self, frame: Frame, instruction: Instruction) -> None:
        """Not called: the view does not ask for it."""


class _AllWatched(PtxDevice):
    """A device on which all buffers may be written: those that may not have no records of accesses."""

    def upload(self, name: str, array: Any) -> Any:
        """See `PtxDevice.upload`."""
        return ptx.Buffer(array.view(np.uint8).copy(), name=name, initialised=True, writable=True)


def bytes_touched(kernel: str, rows: int, experts: int) -> list[int]:
    """Distinct bytes of its buffers that each launch of a kernel accesses."""
    keeper, device = Keeper(), executors()["all checks"]
    watched = _AllWatched(device.arch, device.multiprocessors, observer=keeper)
    _kernels(rows, experts)[kernel](watched)
    return [sum(kept.accessed for kept in held.buffers) for held in keeper.launches]


def bytes_of_checks(kernel: str, rows: int, experts: int) -> list[dict[str, int]]:
    """What each launch of a kernel needs for its checks when that is most, see `Held.most`."""
    keeper, device = Keeper(), executors()["all checks"]
    device.observer = keeper
    _kernels(rows, experts)[kernel](device)
    return [held.most for held in keeper.launches]


def _kernels(rows: int, experts: int) -> dict[str, Callable[[PtxDevice], Any]]:
    """The kernels of `run`, each a call that makes its operands."""
    rng = np.random.default_rng(SEED)

    def quantize(device: PtxDevice) -> Any:
        x = rng.standard_normal((rows, K), np.float32).astype(ml_dtypes.bfloat16)
        return quantize_mxfp8(x, device=device)

    def gemm(device: PtxDevice) -> Any:
        operands = gemm_operands(np.arange(experts + 1, dtype=np.int64) * 8, GEMM_N, K)
        return grouped_gemm(**operands, device=device, tile=GEMM_TILE, out_dtype="f32")

    def routing(device: PtxDevice) -> Any:
        return route(rng.standard_normal((rows, 128), np.float32), 4, 128, device=device)

    return {"quantize": quantize, "gemm": gemm, "routing": routing}
