"""Values that an instruction of the whole warp consumed before one lane signalled for all.

A pipeline may read shared memory with plain loads of all lanes, give the values to `mma.sync`, and then let lane 0
arrive on an mbarrier for the warp, without `bar.warp.sync`. PTX orders nothing between the lanes there: `mma.sync`
moves no memory. But it cannot execute before every lane's loads have given their values, and lane 0 goes on behind it.
Nobody has seen it go wrong, so that a race of such a load with a later write is a warning. Of a collective with a mask
that holds for the lanes of the mask alone.

The value must flow into the collective on the way from the load, and no signal may lie in between. Then the launch is
run with its lanes meeting at that collective: what is ordered by it is the warning, and what is not remains a fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from refmoe.ptx.program.registers import names_read, names_written
from refmoe.ptx.text.syntax import Immediate, Instruction, Label, Symbol

# Those that all lanes of a warp execute together and that take a value of each lane.
_COLLECTIVE = re.compile(
    r"(mma|wmma\.mma)\.(.*\.)?sync\.aligned.*|(shfl|vote|redux|match)\.(.*\.)?sync.*|(ldmatrix|stmatrix)\.sync\.aligned.*"
)
# What may tell others that the values were read.
_SIGNAL = re.compile(
    r"(atom|red|fence|membar|barrier|bar|mbarrier|cp\.async\.mbarrier|st\.async|red\.async|griddepcontrol|cp\.async\.bulk)"
    r"\..*|st\.(.*\.)?(volatile|relaxed|release|mmio).*"
)
# Arrivals that tell nobody anything.
_WAITS = re.compile(r"mbarrier\.(try_wait|test_wait|pending_count|init).*|cp\.async\.bulk\.(wait|commit)_group.*")
_ENDS = ("ret", "exit", "trap", "brkpt")
# The last operand of these is the mask of the lanes that take part. In the others it is the whole warp.
_MASKED = ("shfl", "vote", "redux", "match")
ALL_LANES = "0xffffffff"


def members(collective: Instruction) -> str:
    """The lanes that execute a collective together, as PTX has the mask: `0xffffffff`, or a register."""
    if collective.opcode.split(".")[0] not in _MASKED:
        return ALL_LANES
    mask = collective.operands[-1]
    if isinstance(mask, Immediate):
        return f"0x{mask.value & 0xFFFFFFFF:x}"
    return collective.text.rstrip("; ").rsplit(",", 1)[1].strip()


def meeting_at(collective: Instruction) -> str:
    """A meeting of the lanes that execute a collective together, to stand before it."""
    guard = collective.text[: collective.text.index(collective.opcode)]
    return f"{guard}bar.warp.sync {members(collective)};"


def consumers(body: Sequence[Instruction | Label], load: Instruction) -> tuple[Instruction, ...]:
    """Collectives into which what `load` gives flows on every way from it that meets no signal first."""
    start = next((number for number, each in enumerate(body) if each is load or each == load), None)
    if start is None or load.opcode.split(".")[0] not in ("ld", "ldu", "ldmatrix"):
        return ()
    places = {each.name: number for number, each in enumerate(body) if isinstance(each, Label)}
    found: dict[Instruction, None] = {}
    seen: set[tuple[int, frozenset[str]]] = set()
    ways = [(start + 1, names_written(load))]
    while ways:
        number, held = ways.pop()
        while number < len(body) and held and (number, held) not in seen:
            seen.add((number, held))
            each = body[number]
            number += 1
            if isinstance(each, Label):
                continue
            if each is load or (_SIGNAL.fullmatch(each.opcode) and not _WAITS.fullmatch(each.opcode)):
                break
            takes = held & names_read(each)
            if takes and _COLLECTIVE.fullmatch(each.opcode):
                found[each] = None
                break
            if each.opcode.split(".")[0] == "bra":
                ways.extend((place, held) for place in _targets(each, places))
                if each.guard is None:
                    break
                continue
            if each.opcode in _ENDS and each.guard is None:
                break
            held = _passed(each, held, takes)
    return tuple(found)


def _passed(instruction: Instruction, held: frozenset[str], takes: frozenset[str]) -> frozenset[str]:
    """The registers that hold the value, or one made of it, behind an instruction."""
    written = names_written(instruction)
    if takes:
        return held | written
    return held if instruction.guard is not None else held - written


def _targets(branch: Instruction, places: Mapping[str, int]) -> Iterator[int]:
    for operand in branch.operands:
        if isinstance(operand, Symbol) and operand.name in places:
            yield places[operand.name]
