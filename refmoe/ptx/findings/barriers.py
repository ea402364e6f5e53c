"""Barriers that may order the two accesses of a race, and where in the text they may stand."""

from __future__ import annotations

from collections.abc import Iterator

from refmoe.ptx.findings.accesses import scope_at
from refmoe.ptx.findings.edits import PtxEdit
from refmoe.ptx.findings.site import LANES, MISSING, PLACES, SECTIONS, Body, RaceSite, Relation, Remedy, symbols, where
from refmoe.ptx.text.syntax import Instruction, Label

# Branches around an instruction in front of which a barrier is tried.
_AROUND = 2

BARRIERS: dict[Relation, tuple[str, str]] = {
    "warp": ("__syncwarp() (bar.warp.sync 0xffffffff)", "bar.warp.sync 0xffffffff;"),
    "block": ("__syncthreads() (bar.sync 0)", "bar.sync 0;"),
    "cluster": (
        "barrier.cluster (cluster.sync())",
        "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;",
    ),
}


def barriers(race: RaceSite) -> Iterator[Remedy]:
    """Barriers of who has both threads, and of a block whose one thread signals, or polls, for the others."""
    kept = race.default[1]
    for words, edits, relation in barrier_edits(race):
        # Where a barrier orders them, two lanes store by two executions of one instruction.
        section = SECTIONS[relation] if kept in (SECTIONS[race.relation], LANES[1]) else kept
        yield Remedy(words, edits, MISSING[relation], section)
    if race.relation not in ("cluster", "grid"):
        return
    # A barrier of a block orders nothing between two blocks, but one thread may signal, or poll, for the others.
    missing = "an order between the thread that signals, or polls, and those of its block for which it does"
    for relation in ("warp", "block"):
        words, text = BARRIERS[relation]
        places: list[tuple[str, PtxEdit]] = []
        if race.earlier is not None:
            places.append((f"{words} after {where(race.earlier)}", PtxEdit(race.earlier, "after", text)))
        places.append((f"{words} before {where(race.later)}", PtxEdit(race.later, "before", text)))
        for place, edit in places:
            yield Remedy(place, (edit,), missing, "one-thread-for-others")
        for each in meetings(race):
            yield Remedy(
                f"{words} before {where(each)}", (PtxEdit(each, "before", text),), missing, "one-thread-for-others"
            )
        if len(places) > 1:
            yield Remedy(
                " and ".join(place for place, _ in places), tuple(edit for _, edit in places), missing,
                "one-thread-for-others",
            )  # fmt: skip


def barrier_edits(race: RaceSite) -> Iterator[tuple[str, tuple[PtxEdit, ...], Relation]]:
    """(words, changes, whose) of barriers of those who have both threads, at both accesses and where lanes meet."""
    relations: list[Relation] = ["warp", "block"] if race.relation in ("thread", "warp") else [race.relation]
    if race.warps and not any(map(_passes_on, race.instructions)):
        # A meeting of a warp orders nothing between two warps: what does comes first.
        relations.reverse()
    for relation in relations:
        if relation not in BARRIERS:
            return
        words, text = BARRIERS[relation]
        before_later = PtxEdit(race.later, "before", text)
        yield f"{words} before {where(race.later)}", (before_later,), relation
        for each in branches_around(race.body, race.later):
            yield f"{words} before {where(each)}", (PtxEdit(each, "before", text),), relation
        if race.earlier is not None:
            after_earlier = PtxEdit(race.earlier, "after", text)
            yield f"{words} after {where(race.earlier)}", (after_earlier,), relation
            # Which of both accesses is found out first depends on the schedule.
            yield f"{words} before {where(race.earlier)}", (PtxEdit(race.earlier, "before", text),), relation
            yield f"{words} after {where(race.later)}", (PtxEdit(race.later, "after", text),), relation
        for each in meetings(race):
            yield f"{words} before {where(each)}", (PtxEdit(each, "before", text),), relation
        if race.earlier is not None and relation in ("block", "cluster"):
            # Each of two branches has its own.
            yield (
                f"{words} after {where(race.earlier)}, and before {where(race.later)}", (after_earlier, before_later),
                relation,
            )  # fmt: skip


def _passes_on(instruction: Instruction) -> bool:
    """Whether a lane may pass on to other warps what its own warp did, or nobody knows."""
    opcode = instruction.opcode
    return scope_at(opcode) is not None or opcode.startswith(("mbarrier.", "barrier.", "call"))


def branches_around(body: Body, instruction: Instruction) -> list[Instruction]:
    """Branches around an instruction, the nearest first: those who skip it meet the others in front of them."""
    here = next(number for number, each in enumerate(body) if each is instruction)
    labels = {each.name for each in body[here:] if isinstance(each, Label)}
    found = []
    for each in reversed(body[:here]):
        if isinstance(each, Label):
            break
        if each.guard is not None and each.opcode.split(".")[0] == "bra" and labels.intersection(symbols(each)):
            found.append(each)
    return found[:_AROUND]


def meetings(race: RaceSite) -> list[Instruction]:
    """Instructions behind labels between the two, or behind the earlier one, where lanes may meet again."""
    lines = sorted(each.line for each in (race.later, race.earlier) if each is not None)
    found = []
    for first, second in zip(race.body, race.body[1:], strict=False):
        if isinstance(first, Label) and isinstance(second, Instruction) and lines[0] <= second.line <= lines[-1]:
            found.append(second)
    return found[:PLACES]
