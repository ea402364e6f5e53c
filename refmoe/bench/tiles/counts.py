"""What one step along K costs a block of threads of a grouped GEMM: instructions, and turns of shared memory.

A *step* multiplies one stage of the ring and starts the copies of another. Its counts come from two launches on the
executor that differ only in K: what the longer one does more, divided by the steps that it has more. So nothing that
happens once a tile or once a launch is in them. Machine code is then counted by `refmoe.bench.tiles.flow`.

One *wavefront* is a turn of shared memory, in which each of its 32 banks gives one word of 4 bytes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from refmoe.bench.tiles.flow import FlowError, SassBlock, SassLoop, blocks_of, frequencies, loops
from refmoe.ptx import Profile
from refmoe.ptx.observe.kernel_profile import KernelProfile

#: Kinds of instructions that PTX and machine code have one for one: opcodes of machine code, and of PTX.
MARKERS: Mapping[str, tuple[str, str]] = {
    "asynchronous copy": (r"LDGSTS\b", r"cp\.async\.c[ag]\."),
    "matrix load": (r"LDSM\b", r"ldmatrix\."),
    "product": (r"[QO]MMA\b", r"mma\.sync\."),
    "bulk load": (r"UTMALDG\b", r"cp\.async\.bulk\.tensor\.\dd\.shared"),
    "exchange": (r"SHFL\b", r"shfl\.sync\."),
    "matrix store": (r"STSM\b", r"stmatrix\."),
    "arrival of copies": (r"ARRIVES\b", r"cp\.async\.mbarrier\.arrive"),
    "arrival": (r"SYNCS\.ARRIVE\b", r"mbarrier\.arrive\."),
}
#: Without these in equal number there is no telling how often a loop ran.
_NEEDED = ("product", "matrix load")
_FRAGMENT_LOADS = ("ldmatrix", "ld.shared")
_COPIES = ("cp.async",)
_GUARD = re.compile(r"^\s*(?:@!?%\w+\s+)?")


@dataclass(frozen=True)
class Turns:
    """Wavefronts of some accesses in one step: how many they took, how many they need, and the worst degree seen."""

    taken: float
    needed: float
    worst: int

    @property
    def conflicts(self) -> float:
        """Wavefronts more than needed."""
        return self.taken - self.needed


@dataclass(frozen=True)
class TileStep:
    """One step along K of one block of threads.

    Attributes:
        instructions: of machine code, by warps: each warp that issues one counts.
        by_family: the same by opcode without suffixes.
        products: tensor-core instructions among them.
        open_instructions: those in blocks whose count the executor's leaves open.
        loads: fragment loads from shared memory.
        copies: asynchronous copies into it; zero where bulk copies fill it, whose turns the executor does not count.
    """

    instructions: float
    by_family: Mapping[str, float]
    products: float
    open_instructions: float
    loads: Turns
    copies: Turns


@dataclass(frozen=True)
class Run:
    """A launch on the executor that was counted: its steps along K, and what it did."""

    steps: int
    profile: KernelProfile


def counted_run(steps: int, launch: Callable[[Profile], object]) -> Run:
    """The counts of one launch of `steps` steps; `launch` gives the profile to the executor.

    Raises:
        FlowError: it launched no kernel, or several.
    """
    profile = Profile()
    launch(profile)
    if len(profile.kernels) != 1:
        raise FlowError(f"the executor counted {len(profile.kernels)} kernels; needed one")
    return Run(steps, profile.kernels[0])


def step_of(sass: str, ptx: Path, short: Run, long: Run) -> TileStep:
    """The cost of one step from the machine code of an entry, its PTX and two launches of it.

    Args:
        sass: the entry as `nvdisasm -c` prints it.
        ptx: the file of its PTX, which both launches executed.
        short: a launch that goes around the ring of stages.
        long: the same with more steps.

    Raises:
        FlowError: the long one has no more steps, or PTX and machine code differ in what makes them comparable.
    """
    more = long.steps - short.steps
    if more < 1:
        raise FlowError(f"the launches have {short.steps} and {long.steps} steps; needed a second one with more")
    times = _times(ptx, short, long)
    blocks = blocks_of(sass)
    counted = _marked(blocks, times)
    loop = _steady(blocks, counted)
    runs, open_ = frequencies(blocks, loop, {block: counted[block] for block in loop.body if block in counted})
    families: Counter[str] = Counter()
    for block, count in runs.items():
        for operation in blocks[block].operations:
            if operation.family == "CALL" and count > 1e-6:
                raise FlowError(f"a step runs {operation.text!r}; needed a loop without calls, whose code is elsewhere")
            families[operation.family] += count  # type: ignore[assignment]
    size = {block: runs[block] * len(blocks[block].operations) for block in loop.body}
    return TileStep(
        instructions=round(sum(size.values()), 6),
        by_family={name: round(count, 6) for name, count in families.most_common() if count > 1e-6},
        products=round(sum(count for name, count in families.items() if name.endswith("MMA")), 6),
        open_instructions=round(abs(sum(size[block] for block in open_)), 6),
        loads=_turns(short, long, _FRAGMENT_LOADS),
        copies=_turns(short, long, _COPIES),
    )


def _times(ptx: Path, short: Run, long: Run) -> dict[str, list[float]]:
    """By kind of marker how often each one ran in a step, in the order of the PTX text."""
    counts = [{line: row.warps for line, row in run.profile.by_line().items()} for run in (short, long)]
    more = long.steps - short.steps
    found: dict[str, list[float]] = {kind: [] for kind in MARKERS}
    inside = False
    for number, line in enumerate(ptx.read_text().splitlines(), 1):
        if ".entry" in line:
            inside = re.search(rf"\.entry\s+{re.escape(short.profile.entry)}\b", line) is not None
        if not inside:
            continue
        code = line[_GUARD.match(line).end() :]  # type: ignore[union-attr]
        for kind, (_, pattern) in MARKERS.items():
            if re.match(pattern, code):
                found[kind].append((counts[1].get(number, 0) - counts[0].get(number, 0)) / more)
    return found


def _marked(blocks: Sequence[SassBlock], times: Mapping[str, Sequence[float]]) -> dict[int, float]:
    """How often blocks with markers ran in a step.

    Raises:
        FlowError: machine code lacks products or matrix loads of the PTX, or two markers of a block disagree.
    """
    counted: dict[int, float] = {}
    for kind, (opcode, _) in MARKERS.items():
        places = [
            number for number, block in enumerate(blocks) for each in block.operations if re.match(opcode, each.opcode)
        ]
        if len(places) != len(times[kind]):
            if kind in _NEEDED:
                text = f"machine code has {len(places)} of the kind {kind!r} and PTX has {len(times[kind])}"
                raise FlowError(f"{text}; needed as many of each, to count the blocks of one by the other's")
            continue
        for place, count in zip(places, times[kind], strict=True):
            if abs(counted.setdefault(place, count) - count) > 1e-9:
                raise FlowError(f"in one block of machine code markers ran {counted[place]:g} and {count:g} times")
    return counted


def _steady(blocks: Sequence[SassBlock], counted: Mapping[int, float]) -> SassLoop:
    """The outermost loops in which something ran in every step, as one: products, and copies of other warps."""
    at_work = {block for block, count in counted.items() if count}
    body: set[int] = set()
    head = None
    for loop in loops([block.successors for block in blocks]):
        if at_work & (set(loop.body) - body):
            body |= set(loop.body)
            head = loop.head if head is None else head
    if head is None or not at_work <= body:
        raise FlowError("what runs in every step lies in no loop of the machine code; needed a loop over K")
    return SassLoop(head, tuple(sorted(body)))


def _turns(short: Run, long: Run, opcodes: tuple[str, ...]) -> Turns:
    taken, needed, worst = [0, 0], [0, 0], 0
    for place, run in enumerate((short, long)):
        for instruction, traffic in run.profile.shared.items():
            if instruction.opcode.startswith(opcodes):
                taken[place] += traffic.wavefronts
                needed[place] += traffic.fewest
                worst = max(worst, traffic.worst)
    more = long.steps - short.steps
    return Turns((taken[1] - taken[0]) / more, (needed[1] - needed[0]) / more, worst)
