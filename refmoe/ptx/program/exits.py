"""Whether lanes of a warp may exit while others go on to meet.

`bar.warp.sync` orders what its members did, and a lane that has exited is none of them: what it wrote is not ordered
before what the others do then. Nor is it by a barrier of the block or of the cluster to which the rest of its warp
comes: each thread that executes one has its own accesses ordered. So such an entry needs clocks that tell lanes apart,
whatever its schedule. An entry whose lanes exit before they touch memory needs none: `if (i >= n) return;` at its
start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from refmoe.ptx.program.blocks import Block, Program
from refmoe.ptx.text.memory_ops import memory_opcode

_MEETS = "bar.warp.sync"
_OWN = ("param", "const", "local")


def lanes_stay_away(program: Program) -> bool:
    """Whether a lane that has accessed memory may exit, and others of its warp may come to a barrier then."""
    blocks = program.blocks
    meets = {block.index for block in blocks if _meets(block)}
    if not meets:
        return False
    touches = {block.index for block in blocks if _touches(block)}
    accessed = _reached(blocks, touches, lambda block: block.terminator.targets)
    before: dict[int, list[int]] = {block.index: [] for block in blocks}
    for block in blocks:
        for target in block.terminator.targets:
            before[target].append(block.index)
    to_meeting = _reached(blocks, meets, lambda block: before[block.index])
    exits = {block.index for block in blocks if block.terminator.kind == "exit"} - meets
    # Ways back from an exit end at a meeting.
    away = _reached(blocks, exits, lambda block: [each for each in before[block.index] if each not in meets])
    for block in blocks:
        targets = block.terminator.targets
        if block.index in accessed and len(set(targets)) > 1:
            for target in targets:
                if target in away and any(other in to_meeting for other in targets if other != target):
                    return True
    return False


def _meets(block: Block) -> bool:
    return block.terminator.kind == "barrier" or any(each.opcode == _MEETS for each in block.instructions)


def _touches(block: Block) -> bool:
    for each in block.instructions:
        opcode = memory_opcode(each.opcode)
        if opcode is not None and opcode.space not in _OWN:
            return True
    return False


def _reached(blocks: tuple[Block, ...], start: set[int], following: Callable[[Block], Iterable[int]]) -> set[int]:
    found, ahead = set(start), list(start)
    while ahead:
        for each in following(blocks[ahead.pop()]):
            if each not in found:
                found.add(each)
                ahead.append(each)
    return found
