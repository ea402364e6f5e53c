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
from dataclasses import replace
from itertools import product

from refmoe.ptx.findings.accesses import scope_at
from refmoe.ptx.findings.barriers import barrier_edits, barriers, branches_around
from refmoe.ptx.findings.edits import PtxEdit
from refmoe.ptx.findings.site import (
    CROSSED,
    EXIT,
    GRID,
    MAPS,
    MIXED,
    NC,
    NC_BEHIND,
    PAIRED,
    PLACES,
    SECTIONS,
    SINGLE,
    Body,
    RaceSite,
    Remedy,
    mixed,
    symbols,
    where,
)  # fmt: skip
from refmoe.ptx.findings.updates import atomic_remedies, updates_of
from refmoe.ptx.findings.waits import phase_waits, smaller_waits, waits
from refmoe.ptx.text.memory_ops import memory_opcode
from refmoe.ptx.text.syntax import Address, Instruction, Label

_WIDER = {"cta": 1, "cluster": 2, "gpu": 3, "sys": 4}


def remedies(race: RaceSite) -> Iterator[Remedy]:
    """Changes that may help, in the order in which they are tried."""
    kind = race.error.kind
    if kind in _OF_KINDS:
        yield from _OF_KINDS[kind](race)
        return
    if race.crosses:
        yield from _crossing(race)
        return
    yield from _coherent_loads(race)
    yield from waits(race)
    updates = updates_of(race)
    if updates:
        # A lock may be meant. Strong accesses, or a barrier between load and store, would still lose updates.
        yield from _passing_on(race)
        yield from _sequential_fences(race)
        yield from atomic_remedies(race, updates)
        return
    if kind == "read-write" and race.relation in ("warp", "block") and mixed(race):
        # Who reads before another thread of the block writes mostly wants what was there.
        yield from barriers(race)
    yield from _strength(race)
    yield from _passing_on(race)
    yield from barriers(race)
    yield from _sequential_fences(race)
    if not mixed(race):
        yield from _strong_pair(race)


def _passing_on(race: RaceSite) -> Iterator[Remedy]:
    """What the entry already passes on from thread to thread, made stronger."""
    yield from _semantics_of_barriers(race)
    yield from _signals(race)
    yield from _later_releases(race)
    yield from _meetings_before_signals(race)


def _crossing(race: RaceSite) -> Iterator[Remedy]:
    """What orders a bulk copy behind an access of the generic proxy, alone and with a fence between the two proxies."""
    assert race.earlier is not None
    space = "shared::cta" if race.error.space == "shared" else "global"
    fence = PtxEdit(race.earlier, "after", f"fence.proxy.async.{space};")
    for each in (*_signals(race), *_later_releases(race), *_meetings_before_signals(race), *barriers(race)):
        yield each
        words = f"{each.words}, and fence.proxy.async after {where(race.earlier)}, by the thread that wrote"
        yield replace(each, words=words, edits=(*each.edits, fence), missing=CROSSED[0], section=CROSSED[1])


# Of single kinds


def _proxy(race: RaceSite) -> Iterator[Remedy]:
    space = "shared::cta" if race.error.space == "shared" else "global"
    fence = f"fence.proxy.async.{space};"
    why = race.default
    if race.earlier is not None:
        yield Remedy(
            f"fence.proxy.async (cuda::ptx::fence_proxy_async) after {where(race.earlier)}, by the thread that wrote",
            (PtxEdit(race.earlier, "after", fence),), *why,
        )  # fmt: skip
    yield Remedy(
        f"fence.proxy.async before {where(race.later)}, by the thread that copies",
        (PtxEdit(race.later, "before", fence),), *why,
    )  # fmt: skip


def _previous_grid(race: RaceSite) -> Iterator[Remedy]:
    if race.error.warning == "non-coherent":
        yield from _non_coherent(race)
        return
    yield Remedy(
        f"griddepcontrol.wait (cudaGridDependencySynchronize()) before {where(race.later)}",
        (PtxEdit(race.later, "before", "griddepcontrol.wait;"),), *GRID,
    )  # fmt: skip


def _tensor_map(race: RaceSite) -> Iterator[Remedy]:
    drain = "cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;"
    words = "cp.async.bulk.commit_group and wait_group.read 0"
    yield from smaller_waits(race, *MAPS)
    wait = PtxEdit(race.later, "before", "cp.async.bulk.wait_group.read 0;")
    yield Remedy(f"cp.async.bulk.wait_group.read 0 before {where(race.later)}", (wait,), *MAPS)
    yield Remedy(f"{words} before {where(race.later)}", (PtxEdit(race.later, "before", drain),), *MAPS)
    if race.earlier is not None:
        after = PtxEdit(race.earlier, "after", drain)
        yield Remedy(f"{words} after {where(race.earlier)}, by the thread that copies", (after,), *MAPS)
        for place, meeting, _ in barrier_edits(race):
            yield Remedy(
                f"{words} after {where(race.earlier)}, by the thread that copies, and {place}", (after, *meeting),
                *MAPS,
            )  # fmt: skip
    if race.earlier is not None and "mbarrier::complete_tx" in race.earlier.opcode:
        yield from phase_waits(race, *MAPS)


def _non_coherent(race: RaceSite) -> Iterator[Remedy]:
    for each in (race.later, race.earlier):
        if each is None or ".nc" not in each.opcode:
            continue
        plain = PtxEdit(each, "opcode", each.opcode.replace(".nc", ""))
        writer, why = ("grid before", NC_BEHIND) if race.error.kind == "previous grid" else ("grid", NC)
        words = f"a plain ld.global at {where(each)} (no __ldg, and no const __restrict__ on what the {writer} writes)"
        yield Remedy(words, (plain,), *why)
        for place, meeting, _ in barrier_edits(race):
            yield Remedy(f"{words}, and {place}", (plain, *meeting), *why)


def _exit(race: RaceSite) -> Iterator[Remedy]:
    meeting = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
    ends = tuple(each for each in race.instructions if each.opcode in ("ret", "exit"))
    yield Remedy(
        "barrier.cluster (cluster.sync()) before the blocks exit",
        tuple(PtxEdit(each, "before", meeting) for each in ends), *EXIT,
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


def _meetings_before_signals(race: RaceSite) -> Iterator[Remedy]:
    """A lane that arrives on an mbarrier, or sets a flag, for its warp: the others have to meet it first."""
    if race.error.kind != "read-write" and race.relation == "warp":
        return
    arrivals = [each for each in race.instructions if re.match(r"mbarrier\.arrive(?!\.expect)", each.opcode)]
    flags = [each for each in race.instructions if race.relation == "block" and _is_strong_write(each)]
    for signals, does in ((arrivals[:SINGLE], "arrives"), (flags[:PAIRED], "signals")):
        for each in signals:
            for place in (each, *branches_around(race.body, each)):
                yield Remedy(
                    f"__syncwarp() (bar.warp.sync 0xffffffff) before {where(place)}: one lane {does} for its warp",
                    (PtxEdit(place, "before", "bar.warp.sync 0xffffffff;"),),
                    f"an order between the lanes of a warp and the one that {does} for them", SECTIONS["warp"],
                )  # fmt: skip


def _is_strong_write(instruction: Instruction) -> bool:
    parts = memory_opcode(instruction.opcode)
    return parts is not None and parts.strong and parts.stem != "ld"


def _semantics_of_barriers(race: RaceSite) -> Iterator[Remedy]:
    """Arrivals and waits that are relaxed, or of too narrow a scope."""
    missing = "a release by who arrives and an acquire by who waits: .relaxed orders no memory"
    section = "barriers-in-memory"
    edits: list[tuple[str, PtxEdit]] = []
    relaxed = False
    for each in race.instructions:
        stem = re.match(r"(mbarrier\.(?:arrive|test_wait|try_wait)|barrier\.cluster\.(?:arrive|wait))", each.opcode)
        if stem is None:
            continue
        spelled = each.opcode.replace(".relaxed", ".release" if "arrive" in stem[1] else ".acquire")
        relaxed = relaxed or spelled != each.opcode
        if race.relation in ("cluster", "grid"):
            spelled = re.sub(r"\.cta(?=\.)", ".cluster", spelled)
        if spelled != each.opcode:
            edits.append((f"{spelled} at {where(each)}", PtxEdit(each, "opcode", spelled)))
    if not relaxed:
        missing = f"a scope that has both threads: .{race.scope}"
    for words, edit in edits[:SINGLE]:
        yield Remedy(words, (edit,), missing, section)
    if 1 < len(edits) <= SINGLE:
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
    for each in ahead[-PLACES:]:
        if not _is_strong_write(each) and not re.match(r"mbarrier\.arrive", each.opcode):
            continue
        yield Remedy(
            f"{each.opcode} of {where(each)} behind {where(race.earlier)}",
            (PtxEdit(race.earlier, "after", each.text.rstrip(";") + ";"), PtxEdit(each, "whole", "")),
            missing, "release-and-acquire",
        )  # fmt: skip


def _sequential_fences(race: RaceSite) -> Iterator[Remedy]:
    """Threads that write one place and read the other's: only fences `.sc` have an order of their own."""
    missing = "a fence.sc between the strong write and the strong read of each thread"
    found: list[tuple[str, PtxEdit]] = []
    for each in race.instructions:
        stem, *rest = each.opcode.split(".")
        if stem == "fence" and "acq_rel" in rest:
            spelled = _scoped(each.opcode.replace("acq_rel", "sc"), race.scope)
            found.append((f"{spelled} at {where(each)}", PtxEdit(each, "opcode", spelled)))
    if 0 < len(found) <= SINGLE:
        words = " and ".join(words for words, _ in found)
        yield Remedy(words, tuple(edit for _, edit in found), missing, "fences-in-sequence")


# Signals: strong accesses and fences


def _scoped(opcode: str, scope: str) -> str:
    """A spelling with another scope."""
    stem, *parts = opcode.split(".")
    if stem == "membar":
        return {"cta": "membar.cta", "cluster": "fence.sc.cluster", "gpu": "membar.gl", "sys": "membar.sys"}[scope]
    known = [part for part in parts if part in _WIDER]
    if known:
        return ".".join([stem, *(scope if part == known[0] else part for part in parts)])
    return opcode


def _strength(race: RaceSite) -> Iterator[Remedy]:
    """Both accesses touch one place, and one is strong: the other has to be, in scopes that have both threads."""
    if not mixed(race) or race.earlier is None or race.error.poll is not None:
        # Who has polled a signal wants what came before it.
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
    weak = _with_twins(race, [each for each in (race.later, race.earlier) if scope_at(each.opcode) is None])
    for semantics in ("relaxed", ""):
        edits = tuple(
            PtxEdit(each, "opcode", spelled) for each in weak if (spelled := _strong(each, semantics, race.scope))
        )
        if edits and len(edits) == len(weak):
            words = " and ".join(
                f"{edit.text} at {where(edit.at)}" for edit in edits if isinstance(edit.at, Instruction)
            )
            if _undoes(race):
                words += ", if the store may undo what an atomic of another thread has just done"
            yield Remedy(words, edits, missing, MIXED, orders=False)


def _undoes(race: RaceSite) -> bool:
    """Whether one access is a store and the other an atomic: even if they do not race, one of the two may be lost."""
    stems = {each.opcode.split(".")[0] for each in (race.later, race.earlier) if each is not None}
    return "st" in stems and bool(stems & {"atom", "red"})


def _strong_pair(race: RaceSite) -> Iterator[Remedy]:
    """Two plain accesses of one place, which may be a flag: strong ones, or a release and an acquire."""
    both = [each for each in (race.later, race.earlier) if each is not None]
    if len(both) < 2 or not _may_come_in_any_order(race, both):
        return
    both = _with_twins(race, both)
    for semantics in ("relaxed", ""):
        edits = tuple(
            PtxEdit(each, "opcode", spelled) for each in both if (spelled := _strong(each, semantics, race.scope))
        )
        if len(edits) == len(both):
            words = " and ".join(
                f"{edit.text} at {where(edit.at)}" for edit in edits if isinstance(edit.at, Instruction)
            )
            section = race.default[1] if race.error.warning == "same value" else MIXED
            missing = "strength: both are plain accesses of one place"
            yield Remedy(words, edits, missing, section, orders=False)


def _with_twins(race: RaceSite, accesses: Sequence[Instruction]) -> list[Instruction]:
    """Accesses and the others of the same address, by the same instruction: a compiler takes the first turn of a loop
    out of it, so that `while (*flag == 0)` has two loads.
    """
    alike = [
        each
        for access in accesses
        for each in race.instructions
        if each.opcode == access.opcode and _address(each) is not None and _address(each) == _address(access)
    ]
    return _once([*accesses, *alike])


def _address(instruction: Instruction) -> Address | None:
    return next((each for each in instruction.operands if isinstance(each, Address)), None)


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
            targets = [places[name] for name in symbols(each) if name in places]
            if any(target <= here for target in targets):
                between = body[min(targets) : number]
                return not any(isinstance(one, Instruction) and _stores(one) for one in between)
        elif memory_opcode(each.opcode) is not None:
            return False
    return False


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
    for some in [[each] for each in narrow[:SINGLE]] + ([narrow] if 1 < len(narrow) <= SINGLE else []):
        yield Remedy(
            " and ".join(f"{_scoped(each.opcode, race.scope)} at {where(each)}" for each in some),
            tuple(PtxEdit(each, "opcode", _scoped(each.opcode, race.scope)) for each in some),
            f"a scope that has both threads: .{race.scope}", "scopes",
        )  # fmt: skip
    acquires = [each for access in accesses if (each := _acquiring(access, race.scope)) is not None]
    releases = [each for access in accesses if (each := _releasing(access, race.scope)) is not None]
    for words, edit in acquires[:SINGLE]:
        yield Remedy(words, (edit,), "an acquire: what was read strongly orders nothing by itself", section)
    for words, edit in releases[:SINGLE]:
        yield Remedy(words, (edit,), "a release: what is written strongly passes nothing on by itself", section)
    yield from _fences_behind_polls(race, accesses, fences)
    for access in accesses[:SINGLE]:
        parts = memory_opcode(access.opcode)
        if parts is not None and parts.stem == "atom" and parts.semantics == "relaxed":
            spelled = _scoped(access.opcode.replace(".relaxed", ".acq_rel"), _wider(parts.scope, race.scope))
            yield Remedy(f"{spelled} at {where(access)}", (PtxEdit(access, "opcode", spelled),), missing, section)
    for (first, one), (second, other) in product(releases[:PAIRED], acquires[:PAIRED]):
        yield Remedy(f"{first}, and {second}", (one, other), missing, section)
    if narrow and len(narrow) <= SINGLE:
        widened = tuple(PtxEdit(each, "opcode", _scoped(each.opcode, race.scope)) for each in narrow)
        for words, edit in (*releases[:PAIRED], *acquires[:PAIRED]):
            if all(edit.at is not each or edit.where != "opcode" for each in narrow):
                scopes = f".{race.scope} at lines {', '.join(str(each.line) for each in narrow)}"
                yield Remedy(f"{words}, and {scopes}", (*widened, edit), missing, section)


def _fences_behind_polls(
    race: RaceSite, accesses: Sequence[Instruction], fences: Sequence[Instruction]
) -> Iterator[Remedy]:
    """Threads that write have executed fences `.sc`, and one of them signals for all: one behind the poll is enough."""
    if not any(each.opcode.startswith("membar") or ".sc" in each.opcode for each in fences):
        return
    for access in accesses[:SINGLE]:
        parts = memory_opcode(access.opcode)
        if parts is not None and parts.stem not in ("st", "red"):
            yield Remedy(
                f"fence.sc.{race.scope}{' (__threadfence())' if race.scope == 'gpu' else ''} after {where(access)}",
                (PtxEdit(access, "after", f"fence.sc.{race.scope};"),),
                "a fence.sc behind the strong read that saw the signal", "one-thread-for-others",
            )  # fmt: skip


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
