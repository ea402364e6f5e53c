"""What a search for a remedy is given, a race with the code around it, and what it tries, a change of that code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from refmoe.ptx.errors import RaceError
from refmoe.ptx.findings.accesses import scope_at
from refmoe.ptx.findings.edits import PtxEdit
from refmoe.ptx.text.memory_ops import memory_opcode
from refmoe.ptx.text.syntax import Instruction, Label, Symbol, in_source

Relation = Literal["thread", "warp", "block", "cluster", "grid"]
Body = Sequence[Instruction | Label]
_SCOPE = {"thread": "cta", "warp": "cta", "block": "cta", "cluster": "cluster", "grid": "gpu"}
# Strong accesses and fences of an entry of which each is tried by itself, and of which pairs are.
SINGLE, PAIRED = 12, 4
PLACES = 6


SECTIONS: dict[Relation, str] = {
    "thread": "one-thread",
    "warp": "two-lanes-of-a-warp",
    "block": "two-warps-of-a-block",
    "cluster": "two-blocks-of-a-cluster",
    "grid": "two-blocks",
}
MISSING: dict[Relation, str] = {
    "thread": "a wait of the thread for its own copy",
    "warp": "an order between two lanes of a warp, which do not run in step (bar.warp.sync, or release and acquire)",
    "block": "an order between two warps of a block (a barrier, or a release and an acquire that reads from it)",
    "cluster": "an order between two blocks of a cluster (barrier.cluster, or a release and an acquire of .cluster)",
    "grid": "an order between two blocks (a release and an acquire of .gpu that reads from it, or two launches)",
}


@dataclass(frozen=True)
class Remedy:
    """A change, in words, and as edits of the text.

    Attributes:
        words: what to do, and where.
        edits: of the text.
        missing: which order the two accesses lack, if this gives it.
        section: of the page on races.
        orders: whether it may order the two; else it makes them strong, so that they may come in any order, unless a
            release and an acquire come with it.
        updates: whether it makes one atomic of a load and a store. Then nothing is lost in whichever order they come,
            though the order may show in the result, as in `slot = count++`.
    """

    words: str
    edits: tuple[PtxEdit, ...]
    missing: str
    section: str
    orders: bool = True
    updates: bool = False

    @property
    def suffices(self) -> bool:
        """Whether it counts where the bytes depend on the schedule, and where another race is left."""
        return self.orders or self.updates

    @property
    def passes_on(self) -> bool:
        """Whether it orders the two where the result shows that it does."""
        return self.orders or any(re.search(r"\b(release|acquire|acq_rel)\b", each.text) for each in self.edits)


@dataclass(frozen=True)
class RaceSite:
    """A race, with the code around it.

    Attributes:
        error: it.
        later, earlier: the instructions; the earlier one may be unknown.
        body: of the function that they are in.
        relation: what the two threads have in common.
        warps: whether other threads of the block race at the later instruction that are of two warps.
    """

    error: RaceError
    later: Instruction
    earlier: Instruction | None
    body: Body
    relation: Relation
    warps: bool = False

    @property
    def scope(self) -> str:
        """The smallest that has both threads."""
        return _SCOPE[self.relation]

    @property
    def instructions(self) -> list[Instruction]:
        """Of the body."""
        return [each for each in self.body if isinstance(each, Instruction)]

    @property
    def twins(self) -> bool:
        """Whether several lanes issue one bulk copy, each the very same."""
        first = "" if self.earlier is None else self.earlier.opcode
        return self.error.warning == "same value" and first.startswith(BULK)

    @property
    def crosses(self) -> bool:
        """Whether a bulk copy comes behind a write of the generic proxy that nothing orders before it.

        Over what was only read a copy needs no proxy fence.
        """
        first = "" if self.earlier is None else self.earlier.opcode
        copies = self.error.kind != "read-write" and self.later.opcode.startswith(BULK[:2])
        return copies and bool(first) and not first.startswith((*BULK, "wgmma."))

    @property
    def _waited(self) -> bool:
        """Whether the thread of a copy that came first has waited for it: then it counts as an access of its thread."""
        return self.error.among is not None and "bulk copy" not in self.error.message

    @property
    def one_store(self) -> bool:
        """Whether two lanes of a warp store at one place by one instruction."""
        both = self.relation == "warp" and self.error.kind == "write-write" and self.later == self.earlier
        return both and self.later.opcode.split(".")[0] == "st"

    @property
    def default(self) -> tuple[str, str]:
        """(what is missing, section) as long as nothing better is known."""
        missing, section = self._default
        return missing, "values-that-nobody-uses" if self.error.warning == "unused value" else section

    @property
    def _default(self) -> tuple[str, str]:
        kind, relation = self.error.kind, self.relation
        if self.error.warning == "non-coherent":
            return NC_BEHIND
        if self.error.warning == "unfenced init":
            return INIT
        if kind in _KINDS:
            return _KINDS[kind]
        if self.twins:
            return "the choice of one lane: each of several issues this copy", "the-same-value"
        if self.error.warning == "same value":
            return MISSING[relation], "the-same-value"
        first = "" if self.earlier is None else self.earlier.opcode
        if ".nc." in first:
            return NC
        if first.startswith("wgmma."):
            return "the end of a product of a warpgroup, which nobody waited for", "products-of-warpgroups"
        if first.startswith(BULK) and not self._waited:
            return "the end of a bulk copy, which nobody waited for", "bulk-copies"
        if first.startswith("cp.async"):
            return "the end of an asynchronous copy, which nobody waited for", "asynchronous-copies"
        if widths(self) is not None:
            return "one width: strong accesses excuse each other if they are of the very same bytes", MIXED
        if self.one_store:
            return LANES
        if self.crosses:
            return CROSSED
        if relation in ("cluster", "grid", "block") and mixed(self) and not self.later.opcode.startswith(BULK[:2]):
            return "strength: a plain access races with every access of another thread, strong ones too", MIXED
        return MISSING[relation], SECTIONS[relation]


BULK = ("cp.async.bulk", "cp.reduce.async.bulk", "st.async", "red.async", "clusterlaunchcontrol")
MIXED = "strong-and-plain-accesses"
LANES = (
    "the choice of one lane: several store unlike values at one place, and which of them stays is not defined",
    "lanes-of-one-store",
)
UPDATES = (
    "an atomic: each thread stores what it made of the value that it read, and what another one stores between is lost",
    "updates-by-several-threads",
)
PROXY = ("a fence between the generic and the asynchronous proxy, by whoever wrote, before the barrier", "proxies")
CROSSED = (
    "an order, and a fence between the generic and the asynchronous proxy: two proxies never excuse each other",
    "proxies",
)
INIT = ("a fence between mbarrier.init and the copies that complete on the barrier", "barriers-that-copies-complete-on")
GRID = ("griddepcontrol.wait, by the thread or by one that it comes after", "the-grid-before")
MAPS = ("the end of the copies that go by the tensor map", "tensor-maps")
NC = ("coherence: ld.global.nc may read what was there before the launch", "non-coherent-loads")
NC_BEHIND = (
    "coherence: the grid before wrote while this one ran, and ld.global.nc may read what was there before",
    "non-coherent-loads",
)
EXIT = ("an order between the access and the exit of the block whose memory it is", "blocks-that-exit")
TEXTURE = ("a launch of its own: the texture cache may not see what this one writes", "textures-and-surfaces")
_KINDS = {
    "proxy": PROXY, "previous grid": GRID, "tensor map": MAPS, "non-coherent": NC, "exit": EXIT,
    "texture": TEXTURE,
}  # fmt: skip


def lines_of(race: RaceSite | RaceError) -> frozenset[int]:
    """The lines of both accesses."""
    later = race.line if isinstance(race, RaceError) else race.later.line
    return frozenset((later,)) if race.earlier is None else frozenset((later, race.earlier.line))


def where(instruction: Instruction) -> str:
    """`line 25 (kernel.cu:9)`."""
    return f"line {instruction.line}{in_source(instruction.source, instruction.callers)}"


def mixed(race: RaceSite) -> bool:
    """Whether one of both accesses is strong."""
    return any(scope_at(each.opcode) is not None for each in (race.later, race.earlier) if each is not None)


def symbols(instruction: Instruction) -> list[str]:
    """The names among its operands: of a branch, where it goes."""
    return [operand.name for operand in instruction.operands if isinstance(operand, Symbol)]


def widths(race: RaceSite) -> tuple[int, int] | None:
    """The bytes of the later access and of the earlier one if both are strong and they differ: that excuses neither."""
    parts = [memory_opcode(each.opcode) for each in (race.later, race.earlier) if each is not None]
    sizes = [each.size * each.count for each in parts if each is not None and each.strong]
    return (sizes[0], sizes[1]) if len(sizes) == 2 and sizes[0] != sizes[1] else None
