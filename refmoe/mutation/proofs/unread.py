"""What nobody reads of an entry: a text without exchanges and results of atomics that are of no account."""

from __future__ import annotations

import re

from refmoe.mutation.proofs.program import EntryCode
from refmoe.mutation.ptx import Instruction

#: Atomics without an order of their own, which become reductions: these do the same and give nothing.
_ATOMIC = re.compile(r"atom((?:\.(?:global|shared))(?:\.(?:add|min|max|and|or|xor))\.[usb](?:32|64))$")
_EXCHANGE = re.compile(r"shfl\.sync\.")


def without_unread(text: str) -> str:
    """A text of an entry that does the same, without what gives registers that no instruction reads.

    An exchange waits for the lanes of its mask and does nothing else. Between the same two branches there is another
    one of the same mask, which stays: the same lanes wait for each other there. It orders no memory.

    Raises:
        NoProof: the text is not followed.
    """
    program = EntryCode.of(text)
    made = text
    edits: list[tuple[int, int, str]] = []
    for block in program.blocks:
        code = [program.code[index] for index in block.code]
        for place, each in enumerate(code):
            if _unread(program, each) and (match := _ATOMIC.match(each.opcode)) is not None:
                end = each.operands[1][0]
                edits.append((each.opcode_at, end, f"red{match[1]} "))
            elif _waits_twice(program, code, place):
                edits.append((each.start, each.end, ""))
    for start, end, after in sorted(edits, reverse=True):
        made = made[:start] + after + made[end:]
    return made


def _unread(program: EntryCode, each: Instruction) -> bool:
    results = program.destinations(each)
    return bool(results) and not any(program.users.get(name) for name in results)


def _waits_twice(program: EntryCode, code: list[Instruction], place: int) -> bool:
    """Whether an exchange is one that nobody reads, beside another one of the same lanes that somebody does."""
    each = code[place]
    if not _EXCHANGE.match(each.opcode) or each.guard or not _unread(program, each):
        return False
    mask = each.operands[-1][1]
    for others, forward in ((code[place + 1 :], True), (code[:place][::-1], False)):
        for other in others:
            renewed = mask in program.destinations(other)
            if renewed and not forward:
                break  # what is in front of it has another mask, it itself included
            alike = _EXCHANGE.match(other.opcode) and not other.guard and other.operands[-1][1] == mask
            if alike and not _unread(program, other):
                return True
            if renewed:
                break
    return False
