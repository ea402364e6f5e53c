"""Changes that may order the two accesses of a race, the smallest first.

Nothing here decides whether a change does: every one of them is tried, see `refmoe.ptx.findings.trials`. What decides
the order of trials is the cost of a change on a chip: a scope, a fence or an acquire before a barrier of a warp, that
before a barrier of a block.

A change that only makes accesses strong orders nothing: PTX then calls the two no race, and lets either come first. It
is a remedy only for a launch whose result does not depend on which one does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from refmoe.ptx.errors import RaceError
from refmoe.ptx.findings.accesses import scope_at
from refmoe.ptx.findings.edits import PtxEdit
from refmoe.ptx.text.memory_ops import memory_opcode
from refmoe.ptx.text.syntax import Instruction, Label, Symbol

Relation = Literal["thread", "warp", "block", "cluster", "grid"]
Body = Sequence[Instruction | Label]
_WIDER = {"cta": 1, "cluster": 2, "gpu": 3, "sys": 4}
_SCOPE = {"thread": "cta", "warp": "cta", "block": "cta", "cluster": "cluster", "grid": "gpu"}
# Strong accesses and fences of an entry of which each is tried by itself, and of which pairs are.
_SINGLE, _PAIRED = 12, 4
_PLACES = 6

SECTIONS: dict[Relation, str] = {
    "thread": "one-thread",
    "warp": "two-lanes-of-a-warp",
    "block": "two-warps-of-a-block",
    "cluster": "two-blocks-of-a-cluster",
    "grid": "two-blocks",
}
_MISSING: dict[Relation, str] = {
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
    """

    words: str
    edits: tuple[PtxEdit, ...]
    missing: str
    section: str
    orders: bool = True

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
        return self.error.warning == "same value" and first.startswith(_BULK)

    @property
    def default(self) -> tuple[str, str]:
        """(what is missing, section) as long as nothing better is known."""
        kind, relation = self.error.kind, self.relation
        if self.error.warning == "non-coherent":
            return _NC_BEHIND
        if kind in _KINDS:
            return _KINDS[kind]
        if self.twins:
            return "the choice of one lane: each of several issues this copy", "the-same-value"
        if self.error.warning == "same value":
            return _MISSING[relation], "the-same-value"
        first = "" if self.earlier is None else self.earlier.opcode
        if ".nc." in first:
            return _NC
        if first.startswith("wgmma."):
            return "the end of a product of a warpgroup, which nobody waited for", "products-of-warpgroups"
        if first.startswith(_BULK):
            return "the end of a bulk copy, which nobody waited for", "bulk-copies"
        if first.startswith("cp.async"):
            return "the end of an asynchronous copy, which nobody waited for", "asynchronous-copies"
        if relation in ("cluster", "grid", "block") and _mixed(self):
            return "strength: a plain access races with every access of another thread, strong ones too", _MIXED
        return _MISSING[relation], SECTIONS[relation]


_BULK = ("cp.async.bulk", "cp.reduce.async.bulk", "st.async", "red.async", "clusterlaunchcontrol")
_MIXED = "strong-and-plain-accesses"
_PROXY = ("a fence between the generic and the asynchronous proxy, by whoever wrote, before the barrier", "proxies")
_GRID = ("griddepcontrol.wait, by the thread or by one that it comes after", "the-grid-before")
_MAPS = ("the end of the copies that go by the tensor map", "tensor-maps")
_NC = ("coherence: ld.global.nc may read what was there before the launch", "non-coherent-loads")
_NC_BEHIND = (
    "coherence: the grid before wrote while this one ran, and ld.global.nc may read what was there before",
    "non-coherent-loads",
)
_EXIT = ("an order between the access and the exit of the block whose memory it is", "blocks-that-exit")
_TEXTURE = ("a launch of its own: the texture cache may not see what this one writes", "textures-and-surfaces")
_KINDS = {
    "proxy": _PROXY, "previous grid": _GRID, "tensor map": _MAPS, "non-coherent": _NC, "exit": _EXIT,
    "texture": _TEXTURE,
}  # fmt: skip


def remedies(race: RaceSite) -> Iterator[Remedy]:
    """Changes that may help, in the order in which they are tried."""
    kind = race.error.kind
    if kind in _OF_KINDS:
        yield from _OF_KINDS[kind](race)
        return
    yield from _coherent_loads(race)
    yield from _waits(race)
    if kind == "read-write" and race.relation in ("warp", "block") and _mixed(race):
        # Who reads before another thread of the block writes mostly wants what was there.
        yield from _barriers(race)
    yield from _strength(race)
    yield from _semantics_of_barriers(race)
    yield from _signals(race)
    yield from _later_releases(race)
    yield from _meetings_before_arrivals(race)
    yield from _barriers(race)
    yield from _sequential_fences(race)
    if not _mixed(race):
        yield from _strong_pair(race)


def where(instruction: Instruction) -> str:
    """`line 25 (kernel.cu:9)`."""
    return f"line {instruction.line}" + (f" ({instruction.source})" if instruction.source else "")


def _mixed(race: RaceSite) -> bool:
    """Whether one of both accesses is strong."""
    return any(scope_at(each.opcode) is not None for each in (race.later, race.earlier) if each is not None)


# Of single kinds


def _proxy(race: RaceSite) -> Iterator[Remedy]:
    space = "shared::cta" if race.error.space == "shared" else "global"
    fence = f"fence.proxy.async.{space};"
    if race.earlier is not None:
        yield Remedy(
            f"fence.proxy.async (cuda::ptx::fence_proxy_async) after {where(race.earlier)}, by the thread that wrote",
            (PtxEdit(race.earlier, "after", fence),), *_PROXY,
        )  # fmt: skip
    yield Remedy(
        f"fence.proxy.async before {where(race.later)}, by the thread that copies",
        (PtxEdit(race.later, "before", fence),), *_PROXY,
    )  # fmt: skip


def _previous_grid(race: RaceSite) -> Iterator[Remedy]:
    if race.error.warning == "non-coherent":
        yield from _non_coherent(race)
        return
    yield Remedy(
        f"griddepcontrol.wait (cudaGridDependencySynchronize()) before {where(race.later)}",
        (PtxEdit(race.later, "before", "griddepcontrol.wait;"),), *_GRID,
    )  # fmt: skip


def _tensor_map(race: RaceSite) -> Iterator[Remedy]:
    drain = "cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;"
    words = "cp.async.bulk.commit_group and wait_group.read 0"
    yield from _smaller_waits(race, *_MAPS)
    wait = PtxEdit(race.later, "before", "cp.async.bulk.wait_group.read 0;")
    yield Remedy(f"cp.async.bulk.wait_group.read 0 before {where(race.later)}", (wait,), *_MAPS)
    yield Remedy(f"{words} before {where(race.later)}", (PtxEdit(race.later, "before", drain),), *_MAPS)
    if race.earlier is not None:
        after = PtxEdit(race.earlier, "after", drain)
        yield Remedy(f"{words} after {where(race.earlier)}, by the thread that copies", (after,), *_MAPS)
        for place, barriers, _ in _barrier_edits(race):
            yield Remedy(
                f"{words} after {where(race.earlier)}, by the thread that copies, and {place}", (after, *barriers),
                *_MAPS,
            )  # fmt: skip
    if race.earlier is not None and "mbarrier::complete_tx" in race.earlier.opcode:
        yield from _phase_waits(race, *_MAPS)


def _non_coherent(race: RaceSite) -> Iterator[Remedy]:
    for each in (race.later, race.earlier):
        if each is None or ".nc" not in each.opcode:
            continue
        plain = PtxEdit(each, "opcode", each.opcode.replace(".nc", ""))
        writer, why = ("grid before", _NC_BEHIND) if race.error.kind == "previous grid" else ("grid", _NC)
        words = f"a plain ld.global at {where(each)} (no __ldg, and no const __restrict__ on what the {writer} writes)"
        yield Remedy(words, (plain,), *why)
        for place, barriers, _ in _barrier_edits(race):
            yield Remedy(f"{words}, and {place}", (plain, *barriers), *why)


def _exit(race: RaceSite) -> Iterator[Remedy]:
    meeting = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
    ends = tuple(each for each in race.instructions if each.opcode in ("ret", "exit"))
    yield Remedy(
        "barrier.cluster (cluster.sync()) before the blocks exit",
        tuple(PtxEdit(each, "before", meeting) for each in ends), *_EXIT,
    )  # fmt: skip


def _texture(race: RaceSite) -> Iterator[Remedy]:
    """No change of the kernel orders a read through the texture cache behind a write."""
    yield from ()


_OF_KINDS = {
    "proxy": _proxy,
    "previous grid": _previous_grid,
    "tensor map": _tensor_map,
    "non-coherent": _non_coherent,
    "exit": _exit,
    "texture": _texture,
}


def _coherent_loads(race: RaceSite) -> Iterator[Remedy]:
    """The grid writes what `ld.global.nc` read."""
    if race.earlier is not None and memory_opcode(race.earlier.opcode) is not None and ".nc" in race.earlier.opcode:
        yield from _non_coherent(race)


# Copies under way


def _waits(race: RaceSite) -> Iterator[Remedy]:
    """Waiting for the copy that the earlier access is."""
    if race.earlier is None:
        return
    opcode = race.earlier.opcode
    missing, section = race.default
    if opcode.startswith(_BULK):
        if "mbarrier::complete_tx" in opcode:
            yield from _phase_waits(race, missing, section)
            return
        yield from _smaller_waits(race, missing, section)
        read = "" if race.error.kind == "write-read" or race.error.space == "global" else ".read"
        commit, wait = "cp.async.bulk.commit_group; ", f"cp.async.bulk.wait_group{read} 0;"
    elif opcode.startswith("wgmma."):
        yield from _smaller_waits(race, missing, section)
        commit, wait = "wgmma.commit_group.sync.aligned; ", "wgmma.wait_group.sync.aligned 0;"
    elif opcode.startswith("cp.async."):
        yield from _smaller_waits(race, missing, section)
        commit, wait = "", "cp.async.wait_all;"
    else:
        return
    after = PtxEdit(race.earlier, "after", commit + wait)
    for text in dict.fromkeys((wait, commit + wait)):
        words = text.rstrip(";").replace("; ", " and ")
        yield Remedy(f"{words} before {where(race.later)}", (PtxEdit(race.later, "before", text),), missing, section)
    for each in race.instructions:
        if commit and each.opcode == commit.split(";")[0]:
            yield Remedy(
                f"{wait.rstrip(';')} after {where(each)}, by the thread that copies", (PtxEdit(each, "after", wait),),
                missing, section,
            )  # fmt: skip
    words = (commit + wait).rstrip(";").replace("; ", " and ")
    yield Remedy(f"{words} after {where(race.earlier)}, by the thread that copies", (after,), missing, section)
    for place, barriers, _ in _barrier_edits(race):
        yield Remedy(
            f"{words} after {where(race.earlier)}, by the thread that copies, and {place}", (after, *barriers), missing,
            section,
        )  # fmt: skip


def _smaller_waits(race: RaceSite, missing: str, section: str) -> Iterator[Remedy]:
    """`wait_group 1` where it has to be `wait_group 0`, and `.read` where the copy has to be complete."""
    for each in race.instructions:
        match = re.fullmatch(
            r"(cp\.async(?:\.bulk)?\.wait_group|wgmma\.wait_group\.sync\.aligned)(\.read)?", each.opcode
        )
        if match is None:
            continue
        keep = int(re.sub(r"\D", "", each.text.split(each.opcode)[1]) or 0)
        for fewer in range(keep - 1, -1, -1):
            yield Remedy(
                f"{each.opcode} {fewer} in the place of {keep} at {where(each)}",
                (PtxEdit(each, "before", f"{each.opcode} {fewer};"),), missing, section,
            )  # fmt: skip
        if match[2]:
            yield Remedy(
                f"{match[1]} without .read at {where(each)}: it waits until the copy has written",
                (PtxEdit(each, "opcode", match[1]),), missing, section,
            )  # fmt: skip


def _phase_waits(race: RaceSite, missing: str, section: str) -> Iterator[Remedy]:
    """Waiting for a phase of the mbarrier on which a bulk copy completes."""
    earlier = race.earlier
    assert earlier is not None
    # What comes from another block completes on a barrier that the block itself names in another way.
    named = [earlier] if race.relation in ("thread", "warp", "block") else []
    named += [each for each in race.instructions if each.opcode.startswith(("mbarrier.init", "mbarrier.arrive.expect"))]
    barriers = dict.fromkeys(each.text.split("[")[-1].split("]")[0] for each in named if "]" in each.text)
    acquire = "" if race.relation in ("thread", "warp", "block") else ".acquire.cluster"
    for barrier, parity in product(list(barriers)[:_PAIRED], (0, 1)):
        loop = (
            f"{{ .reg .pred %landed; LANDED: mbarrier.try_wait.parity{acquire}.shared::cta.b64 %landed, [{barrier}], "
            f"{parity}; @!%landed bra LANDED; }}"
        )
        yield Remedy(
            f"a wait for the phase of parity {parity} of [{barrier}] (mbarrier.try_wait) before {where(race.later)}",
            (PtxEdit(race.later, "before", loop),), missing, section,
        )  # fmt: skip


def _meetings_before_arrivals(race: RaceSite) -> Iterator[Remedy]:
    """A lane that arrives on an mbarrier for its warp: the others have to meet it first."""
    if race.error.kind != "read-write" and race.relation == "warp":
        return
    arrivals = [each for each in race.instructions if re.match(r"mbarrier\.arrive(?!\.expect)", each.opcode)]
    for each in arrivals[:_SINGLE]:
        yield Remedy(
            f"__syncwarp() (bar.warp.sync 0xffffffff) before {where(each)}: one lane arrives for its warp",
            (PtxEdit(each, "before", "bar.warp.sync 0xffffffff;"),),
            "an order between the lanes of a warp and the one that arrives for them", SECTIONS["warp"],
        )  # fmt: skip


def _semantics_of_barriers(race: RaceSite) -> Iterator[Remedy]:
    """Arrivals and waits that are relaxed, or of too narrow a scope."""
    missing = "a release by who arrives and an acquire by who waits: .relaxed orders no memory"
    section = "barriers-in-memory"
    edits: list[tuple[str, PtxEdit]] = []
    for each in race.instructions:
        stem = re.match(r"(mbarrier\.(?:arrive|test_wait|try_wait)|barrier\.cluster\.(?:arrive|wait))", each.opcode)
        if stem is None:
            continue
        spelled = each.opcode.replace(".relaxed", ".release" if "arrive" in stem[1] else ".acquire")
        if race.relation in ("cluster", "grid"):
            spelled = re.sub(r"\.cta(?=\.)", ".cluster", spelled)
        if spelled != each.opcode:
            edits.append((f"{spelled} at {where(each)}", PtxEdit(each, "opcode", spelled)))
    for words, edit in edits[:_SINGLE]:
        yield Remedy(words, (edit,), missing, section)
    if 1 < len(edits) <= _SINGLE:
        yield Remedy(
            " and ".join(words for words, _ in edits), tuple(edit for _, edit in edits), missing, section
        )  # fmt: skip


def _later_releases(race: RaceSite) -> Iterator[Remedy]:
    """A release that stands before the access that it is to pass on: it goes behind it."""
    if race.earlier is None:
        return
    missing = "a release behind the access: what stands behind a release is not passed on by it"
    ahead: list[Instruction] = []
    for each in race.body:
        if isinstance(each, Label) or each.opcode.split(".")[0] in ("bra", "brx", "call"):
            ahead = []
        elif each == race.earlier:
            break
        else:
            ahead.append(each)
    else:
        return
    for each in ahead[-_PLACES:]:
        parts = memory_opcode(each.opcode)
        strong = parts is not None and parts.strong and parts.stem != "ld"
        if not strong and not re.match(r"mbarrier\.arrive", each.opcode):
            continue
        yield Remedy(
            f"{each.opcode} of {where(each)} behind {where(race.earlier)}",
            (PtxEdit(race.earlier, "after", each.text.rstrip(";") + ";"), PtxEdit(each, "whole", "")),
            missing, "release-and-acquire",
        )  # fmt: skip


def _sequential_fences(race: RaceSite) -> Iterator[Remedy]:
    """Threads that write one place and read the other's: only fences `.sc` have an order of their own."""
    missing = "a fence.sc between the strong write and the strong read of each thread"
    found: list[PtxEdit] = []
    for each in race.instructions:
        stem, *rest = each.opcode.split(".")
        if stem == "fence" and "acq_rel" in rest:
            found.append(PtxEdit(each, "opcode", _scoped(each.opcode.replace("acq_rel", "sc"), race.scope)))
    for some in [found] if 0 < len(found) <= _SINGLE else []:
        words = " and ".join(f"{edit.text} at line {edit.at.line}" for edit in some)
        yield Remedy(words, tuple(some), missing, "fences-in-sequence")


# Signals: strong accesses and fences


def _scoped(opcode: str, scope: str) -> str:
    """A spelling with another scope."""
    stem, *parts = opcode.split(".")
    if stem == "membar":
        return f"membar.{ {'cta': 'cta', 'cluster': 'gl', 'gpu': 'gl', 'sys': 'sys'}[scope] }"
    known = [part for part in parts if part in _WIDER]
    if known:
        return ".".join([stem, *(scope if part == known[0] else part for part in parts)])
    return opcode


def _strength(race: RaceSite) -> Iterator[Remedy]:
    """Both accesses touch one place, and one is strong: the other has to be, in scopes that have both threads."""
    if not _mixed(race) or race.earlier is None:
        return
    missing = "strength: a plain access races with every access of another thread, strong ones too"
    narrow = [
        each
        for each in (race.later, race.earlier)
        if _WIDER.get(scope_at(each.opcode) or "sys", 4) < _WIDER[race.scope]
    ]
    if narrow:
        words = " and ".join(f"{_scoped(each.opcode, race.scope)} at {where(each)}" for each in _once(narrow))
        edits = tuple(PtxEdit(each, "opcode", _scoped(each.opcode, race.scope)) for each in _once(narrow))
        yield Remedy(words, edits, f"a scope that has both threads: .{race.scope}", "scopes", orders=False)
    weak = [each for each in (race.later, race.earlier) if scope_at(each.opcode) is None]
    for semantics in ("relaxed", ""):
        edits = tuple(
            PtxEdit(each, "opcode", spelled)
            for each in _once(weak)
            if (spelled := _strong(each, semantics, race.scope))
        )
        if edits and len(edits) == len(_once(weak)):
            words = " and ".join(
                f"{edit.text} at {where(edit.at)}" for edit in edits if isinstance(edit.at, Instruction)
            )
            yield Remedy(words, edits, missing, _MIXED, orders=False)


def _strong_pair(race: RaceSite) -> Iterator[Remedy]:
    """Two plain accesses of one place, which may be a flag: strong ones, or a release and an acquire."""
    both = [each for each in (race.later, race.earlier) if each is not None]
    if len(both) < 2 or not _may_come_in_any_order(race, both):
        return
    for semantics in ("relaxed", ""):
        edits = tuple(
            PtxEdit(each, "opcode", spelled)
            for each in _once(both)
            if (spelled := _strong(each, semantics, race.scope))
        )
        if len(edits) == len(_once(both)):
            words = " and ".join(
                f"{edit.text} at {where(edit.at)}" for edit in edits if isinstance(edit.at, Instruction)
            )
            section = race.default[1] if race.error.warning == "same value" else _MIXED
            missing = "strength: both are plain accesses of one place"
            yield Remedy(words, edits, missing, section, orders=False)


def _may_come_in_any_order(race: RaceSite, both: Sequence[Instruction]) -> bool:
    """Whether a program may be right whichever of two plain accesses comes first: two writes, or a flag that is polled.

    Data that is read once needs an order, whatever the values of one launch are.
    """
    return all(_stores(each) for each in both) or any(_is_polled(race.body, each) for each in both)


def _stores(instruction: Instruction) -> bool:
    return instruction.opcode.split(".")[0] == "st"


def _is_polled(body: Body, load: Instruction) -> bool:
    """Whether a load stands in a loop without another access of memory: what it reads lets the thread out of it."""
    places = {each.name: number for number, each in enumerate(body) if isinstance(each, Label)}
    here = next((number for number, each in enumerate(body) if each is load or each == load), None)
    if here is None or load.opcode.split(".")[0] not in ("ld", "ldu"):
        return False
    for number, each in enumerate(body[here + 1 :], here + 1):
        if isinstance(each, Label):
            continue
        if each.opcode.split(".")[0] == "bra":
            targets = [places[name] for name in _symbols(each) if name in places]
            if any(target <= here for target in targets):
                between = body[min(targets) : number]
                return not any(isinstance(one, Instruction) and _stores(one) for one in between)
        elif memory_opcode(each.opcode) is not None:
            return False
    return False


def _symbols(instruction: Instruction) -> list[str]:
    return [operand.name for operand in instruction.operands if isinstance(operand, Symbol)]


def _once(instructions: Sequence[Instruction]) -> list[Instruction]:
    return list(dict.fromkeys(instructions))


def _strong(instruction: Instruction, semantics: str, scope: str) -> str | None:
    """A plain load or store as a relaxed one, or as an acquire or a release."""
    parts = memory_opcode(instruction.opcode)
    if parts is None or parts.stem not in ("ld", "st") or parts.strong or parts.count > 1:
        return None
    stem, *rest = instruction.opcode.split(".")
    kept = [part for part in rest if part not in ("weak", "nc", "ca", "cg", "cs", "cv", "lu", "wb", "wt")]
    semantics = semantics or ("acquire" if stem == "ld" else "release")
    return ".".join([stem, semantics, scope, *kept])


def _signals(race: RaceSite) -> Iterator[Remedy]:
    """What the entry already passes on lacks a scope, a release or an acquire."""
    missing, section = "a release and an acquire", "release-and-acquire"
    strong = [each for each in race.instructions if scope_at(each.opcode) is not None]
    fences = [each for each in strong if each.opcode.split(".")[0] in ("fence", "membar")]
    accesses = [each for each in strong if each not in fences]
    narrow = [each for each in strong if _WIDER[scope_at(each.opcode) or "sys"] < _WIDER[race.scope]]
    for some in [[each] for each in narrow[:_SINGLE]] + ([narrow] if 1 < len(narrow) <= _SINGLE else []):
        yield Remedy(
            " and ".join(f"{_scoped(each.opcode, race.scope)} at {where(each)}" for each in some),
            tuple(PtxEdit(each, "opcode", _scoped(each.opcode, race.scope)) for each in some),
            f"a scope that has both threads: .{race.scope}", "scopes",
        )  # fmt: skip
    acquires = [each for access in accesses if (each := _acquiring(access, race.scope)) is not None]
    releases = [each for access in accesses if (each := _releasing(access, race.scope)) is not None]
    for words, edit in acquires[:_SINGLE]:
        yield Remedy(words, (edit,), "an acquire: what was read strongly orders nothing by itself", section)
    for words, edit in releases[:_SINGLE]:
        yield Remedy(words, (edit,), "a release: what is written strongly passes nothing on by itself", section)
    for access in accesses[:_SINGLE]:
        parts = memory_opcode(access.opcode)
        if parts is not None and parts.stem == "atom" and parts.semantics == "relaxed":
            spelled = _scoped(access.opcode.replace(".relaxed", ".acq_rel"), _wider(parts.scope, race.scope))
            yield Remedy(f"{spelled} at {where(access)}", (PtxEdit(access, "opcode", spelled),), missing, section)
    for (first, one), (second, other) in product(releases[:_PAIRED], acquires[:_PAIRED]):
        yield Remedy(f"{first}, and {second}", (one, other), missing, section)
    if narrow and len(narrow) <= _SINGLE:
        widened = tuple(PtxEdit(each, "opcode", _scoped(each.opcode, race.scope)) for each in narrow)
        for words, edit in (*releases[:_PAIRED], *acquires[:_PAIRED]):
            if all(edit.at is not each or edit.where != "opcode" for each in narrow):
                scopes = f".{race.scope} at lines {', '.join(str(each.line) for each in narrow)}"
                yield Remedy(f"{words}, and {scopes}", (*widened, edit), missing, section)


def _wider(one: str, other: str) -> str:
    return one if _WIDER[one] >= _WIDER[other] else other


def _acquiring(access: Instruction, scope: str) -> tuple[str, PtxEdit] | None:
    """(words, change) that make a strong access an acquire."""
    parts = memory_opcode(access.opcode)
    if parts is None or parts.stem in ("st", "red") or parts.semantics in ("acquire", "acq_rel"):
        return None
    reach = _wider(parts.scope, scope)
    if parts.semantics in ("relaxed", "release"):
        better = "acq_rel" if parts.semantics == "release" else "acquire"
        spelled = _scoped(access.opcode.replace(f".{parts.semantics}", f".{better}"), reach)
        return f"{spelled} at {where(access)}", PtxEdit(access, "opcode", spelled)
    name = _FENCES[scope]
    return f"{name} after {where(access)}", PtxEdit(access, "after", f"fence.acq_rel.{scope};")


def _releasing(access: Instruction, scope: str) -> tuple[str, PtxEdit] | None:
    """(words, change) that make a strong access a release."""
    parts = memory_opcode(access.opcode)
    if parts is None or parts.stem == "ld" or parts.semantics in ("release", "acq_rel"):
        return None
    reach = _wider(parts.scope, scope)
    if parts.semantics in ("relaxed", "acquire"):
        better = "acq_rel" if parts.semantics == "acquire" else "release"
        spelled = _scoped(access.opcode.replace(f".{parts.semantics}", f".{better}"), reach)
        return f"{spelled} at {where(access)}", PtxEdit(access, "opcode", spelled)
    name = _FENCES[scope]
    return f"{name} before {where(access)}", PtxEdit(access, "before", f"fence.acq_rel.{scope};")


_FENCES = {
    "cta": "__threadfence_block() (fence.acq_rel.cta)",
    "cluster": "fence.acq_rel.cluster",
    "gpu": "__threadfence() (fence.acq_rel.gpu)",
    "sys": "__threadfence_system() (fence.acq_rel.sys)",
}


# Barriers


_BARRIERS: dict[Relation, tuple[str, str]] = {
    "warp": ("__syncwarp() (bar.warp.sync 0xffffffff)", "bar.warp.sync 0xffffffff;"),
    "block": ("__syncthreads() (bar.sync 0)", "bar.sync 0;"),
    "cluster": (
        "barrier.cluster (cluster.sync())",
        "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;",
    ),
}


def _barriers(race: RaceSite) -> Iterator[Remedy]:
    kept = race.default[1]
    for words, edits, relation in _barrier_edits(race):
        section = SECTIONS[relation] if kept == SECTIONS[race.relation] else kept
        yield Remedy(words, edits, _MISSING[relation], section)
    if race.relation not in ("cluster", "grid"):
        return
    # A barrier of a block orders nothing between two blocks, but one thread may signal, or poll, for the others.
    missing = "an order between the thread that signals, or polls, and those of its block for which it does"
    for relation in ("warp", "block"):
        words, text = _BARRIERS[relation]
        places: list[tuple[str, PtxEdit]] = []
        if race.earlier is not None:
            places.append((f"{words} after {where(race.earlier)}", PtxEdit(race.earlier, "after", text)))
        places.append((f"{words} before {where(race.later)}", PtxEdit(race.later, "before", text)))
        for place, edit in places:
            yield Remedy(place, (edit,), missing, "one-thread-for-others")
        for each in _meetings(race):
            yield Remedy(
                f"{words} before {where(each)}", (PtxEdit(each, "before", text),), missing, "one-thread-for-others"
            )
        if len(places) > 1:
            yield Remedy(
                " and ".join(place for place, _ in places), tuple(edit for _, edit in places), missing,
                "one-thread-for-others",
            )  # fmt: skip


def _barrier_edits(race: RaceSite) -> Iterator[tuple[str, tuple[PtxEdit, ...], Relation]]:
    """(words, changes, whose) of barriers of those who have both threads, at both accesses and where lanes meet."""
    relations: list[Relation] = ["warp", "block"] if race.relation in ("thread", "warp") else [race.relation]
    if race.warps and not any(map(_passes_on, race.instructions)):
        # A meeting of a warp orders nothing between two warps: what does comes first.
        relations.reverse()
    for relation in relations:
        if relation not in _BARRIERS:
            return
        words, text = _BARRIERS[relation]
        before_later = PtxEdit(race.later, "before", text)
        yield f"{words} before {where(race.later)}", (before_later,), relation
        if race.earlier is not None:
            after_earlier = PtxEdit(race.earlier, "after", text)
            yield f"{words} after {where(race.earlier)}", (after_earlier,), relation
            # Which of both accesses is found out first depends on the schedule.
            yield f"{words} before {where(race.earlier)}", (PtxEdit(race.earlier, "before", text),), relation
            yield f"{words} after {where(race.later)}", (PtxEdit(race.later, "after", text),), relation
        for each in _meetings(race):
            yield f"{words} before {where(each)}", (PtxEdit(each, "before", text),), relation
        if race.earlier is not None and relation == "block":
            # Each of two branches has its own.
            yield (
                f"{words} after {where(race.earlier)}, and before {where(race.later)}", (after_earlier, before_later),
                relation,
            )  # fmt: skip


def _passes_on(instruction: Instruction) -> bool:
    """Whether a lane may pass on to other warps what its own warp did, or nobody knows."""
    opcode = instruction.opcode
    return scope_at(opcode) is not None or opcode.startswith(("mbarrier.", "barrier.", "call"))


def _meetings(race: RaceSite) -> list[Instruction]:
    """Instructions behind labels between the two, or behind the earlier one, where lanes may meet again."""
    lines = sorted(each.line for each in (race.later, race.earlier) if each is not None)
    found = []
    for first, second in zip(race.body, race.body[1:], strict=False):
        if isinstance(first, Label) and isinstance(second, Instruction) and lines[0] <= second.line <= lines[-1]:
            found.append(second)
    return found[:_PLACES]
