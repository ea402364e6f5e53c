"""Whether those who have to meet at a barrier that a change inserts do.

A barrier takes part in the count of all others of its name. One that the readers alone reach meets the next barrier of
the writers, and from then on each side is one barrier apart: the last of the readers' finds nobody but threads that
have exited. Such a launch ends, with every access in order, and yet the change is none: `__syncthreads()` needs all
threads of its block, and `__syncwarp()` all of its mask.

So a launch with an inserted barrier is run twice more, and one of both has to do what it did. In the one the inserted
barriers meet nobody but each other. In the other no thread exits before all do, so that one that is missing is missed:
there a barrier may meet one of the text, as the twin that a branch lacks does.

The barrier of a cluster has no numbers, so that it cannot be run alone. There both threads have to come equally often,
see `refmoe.ptx.engine.cluster.meetings`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from refmoe.ptx.findings.edits import PtxEdit
from refmoe.ptx.module import Module
from refmoe.ptx.text.syntax import Function, Instruction

_OF_BLOCK, _OF_WARP = "bar.sync 0;", "bar.warp.sync 0xffffffff;"
_NAMED = re.compile(r"\bbar(?:rier)?(?:\.cta)?\.(?:sync|arrive|red)\S*\s([^;]*);")
_GUARD = re.compile(r"@!?\s*[%$\w]+")
_NUMBERS = 16
# It needs all lanes of its mask at an instruction of its spelling, and orders no memory.
_EXCHANGE = "{ .reg .b32 %refmoe_met; match.any.sync.b64 %refmoe_met, 0, 0xffffffff; }"


def inserts_meetings(edits: Iterable[PtxEdit]) -> bool:
    """Whether a barrier of a block or of a warp is among what is inserted."""
    return any(_OF_BLOCK in each.text or _OF_WARP in each.text for each in edits)


def spare_barrier(text: str) -> int | None:
    """The highest number of a barrier that no instruction of a text names; None if all are named."""
    named = {int(number) for operands in _NAMED.findall(text) for number in re.findall(r"\b\d+\b", operands)}
    return max(set(range(_NUMBERS)) - named, default=None)


def among_themselves(edits: Sequence[PtxEdit], barrier: int) -> tuple[PtxEdit, ...]:
    """The edits, with inserted barriers that meet no other: those of a block have the number `barrier`."""
    return tuple(
        replace(
            each,
            text=each.text.replace(_OF_BLOCK, f"bar.sync {barrier};").replace(_OF_WARP, f"{_EXCHANGE} {_OF_WARP}"),
        )
        for each in edits
    )


def exits_together(module: Module, barrier: int) -> tuple[PtxEdit, ...] | None:
    """Edits with which threads of a block exit together; None where the end of a body is one more way out."""
    found = list[PtxEdit]()
    for name, declared in list(module.declared.items()):
        function: Function = module.read(name) or declared
        if not function.body:
            continue
        ends = ("ret", "exit") if function.is_entry else ("exit",)
        last = function.body[-1]
        if function.is_entry and not (
            isinstance(last, Instruction) and last.guard is None and _stem(last) in (*ends, "bra", "trap")
        ):
            return None
        for each in function.body:
            if isinstance(each, Instruction) and _stem(each) in ends:
                guard = _GUARD.match(each.text)
                found.append(PtxEdit(each, "before", f"{guard[0] if guard else ''} barrier.sync {barrier};"))
    return tuple(found)


def _stem(instruction: Instruction) -> str:
    return instruction.opcode.split(".")[0]
