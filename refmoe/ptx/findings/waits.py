"""Waits for the copy, or for the product, that the earlier access of a race is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

from refmoe.ptx.findings.barriers import barrier_edits
from refmoe.ptx.findings.edits import PtxEdit
from refmoe.ptx.findings.site import BULK, PAIRED, PLACES, RaceSite, Remedy, where
from refmoe.ptx.text.syntax import Immediate, Instruction, Operand, Register, Symbol

_WAITED = re.compile(r"(cp\.async(\.bulk)?|wgmma)\.wait_")


def waits(race: RaceSite) -> Iterator[Remedy]:
    """Waiting for the copy that the earlier access is."""
    if race.earlier is None:
        return
    opcode = race.earlier.opcode
    missing, section = race.default
    if opcode.startswith(BULK):
        if "mbarrier::complete_tx" in opcode:
            yield from phase_waits(race, missing, section)
            return
        yield from smaller_waits(race, missing, section)
        read = "" if race.error.kind == "write-read" or race.error.space == "global" else ".read"
        commit, wait = "cp.async.bulk.commit_group; ", f"cp.async.bulk.wait_group{read} 0;"
    elif opcode.startswith("wgmma."):
        yield from smaller_waits(race, missing, section)
        commit, wait = "wgmma.commit_group.sync.aligned; ", "wgmma.wait_group.sync.aligned 0;"
    elif opcode.startswith("cp.async."):
        yield from smaller_waits(race, missing, section)
        commit, wait = "", "cp.async.wait_all;"
    else:
        return
    yield from _behind_a_wait(race, section)
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
    for place, meeting, _ in barrier_edits(race):
        yield Remedy(
            f"{words} after {where(race.earlier)}, by the thread that copies, and {place}", (after, *meeting), missing,
            section,
        )  # fmt: skip


def _behind_a_wait(race: RaceSite, section: str) -> Iterator[Remedy]:
    """Who copied has waited, and the other thread has no order behind that wait: a barrier alone gives it."""
    waited = any(_WAITED.match(each.opcode) for each in race.instructions)
    if race.relation == "thread" or not waited:
        return
    missing = "a barrier behind the wait of the thread that copied: it waited for itself alone"
    for place, meeting, _ in barrier_edits(race):
        yield Remedy(place, meeting, missing, section)


def smaller_waits(race: RaceSite, missing: str, section: str) -> Iterator[Remedy]:
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


def phase_waits(race: RaceSite, missing: str, section: str) -> Iterator[Remedy]:
    """Waiting for a phase of the mbarrier on which a bulk copy completes."""
    earlier = race.earlier
    assert earlier is not None
    # What comes from another block completes on a barrier that the block itself names in another way.
    named = [earlier] if race.relation in ("thread", "warp", "block") else []
    named += [each for each in race.instructions if each.opcode.startswith(("mbarrier.init", "mbarrier.arrive.expect"))]
    barriers = dict.fromkeys(_barrier(race, each) for each in named if "]" in each.text)
    acquire = "" if race.relation in ("thread", "warp", "block") else ".acquire.cluster"
    for barrier, parity in product(list(barriers)[:PAIRED], (0, 1)):
        loop = (
            f"{{ .reg .pred %landed; LANDED: mbarrier.try_wait.parity{acquire}.shared::cta.b64 %landed, [{barrier}], "
            f"{parity}; @!%landed bra LANDED; }}"
        )
        yield Remedy(
            f"a wait for the phase of parity {parity} of [{barrier}] (mbarrier.try_wait) before {where(race.later)}",
            (PtxEdit(race.later, "before", loop),), missing, section,
        )  # fmt: skip


def _barrier(race: RaceSite, instruction: Instruction) -> str:
    """The address of the mbarrier that an instruction names last, as every thread can write it.

    A register may have it in the branch of one thread alone, so that the variable is named in its place.
    """
    written = instruction.text.split("[")[-1].split("]")[0]
    name, offset = written, 0
    for _ in range(PLACES):
        made = [each for each in race.instructions if each.operands and _is_register(each.operands[0], name)]
        if len(made) != 1 or len(made[0].operands) < 2:
            return written
        stem, source = made[0].opcode.split(".")[0], made[0].operands[1]
        if stem == "mov" and isinstance(source, Symbol):
            offset += source.offset
            return f"{source.name}+{offset}" if offset else source.name
        added = made[0].operands[2:]
        if stem != "add" or not isinstance(source, Register) or not isinstance(added[0], Immediate):
            return written
        name, offset = source.name, offset + added[0].value
    return written


def _is_register(operand: Operand, name: str) -> bool:
    return isinstance(operand, Register) and operand.name == name
