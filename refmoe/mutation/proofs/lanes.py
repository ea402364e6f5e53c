"""Values that are the same in several lanes, so that it is of no account which of them stores.

Lanes that exchange a maximum by `shfl.sync.bfly` over a distance hold the same one afterwards. If all that decides the
path to a store, its address and what it stores are the same in all lanes of such a group, then any of them may make the
store, or several: the memory is the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

from refmoe.mutation.proofs.flow import Act, SideBySide
from refmoe.mutation.proofs.nodes import Node
from refmoe.mutation.proofs.program import WARP

_DISTANCES = (1, 2, 4, 8, 16)
_LANES = frozenset(("%tid.x", "%laneid"))
#: A value of two operands that is the same whichever comes first.
_SYMMETRIC = re.compile(r"(?:add|max|min|or|and|xor|mul)\b")
#: What a store may be for several lanes to make it: of the last of many, which others do not wait for.
_STORE = re.compile(r"st\.(?:global|shared)(?:\.wt|\.wb)?(?:\.v[24])?\.[subf]\d+$")
#: Doing it twice is doing it once.
_AGAIN = re.compile(r"red\.(?:relaxed\.)?(?:gpu\.)?global(?:\.gpu)?\.(?:max|min|and|or)\.[sub]\d+$")


def stored_by_others(side: SideBySide, one: Act, other: Act) -> bool:
    """Whether two stores of equal operands under different guards leave the same memory."""
    if not (_STORE.match(one.opcode) or _AGAIN.match(one.opcode)):
        return False
    nodes = side.nodes
    guards = [set(_conjuncts(side, each.guard)) for each in (one, other)]
    shared, own = guards[0] & guards[1], [guards[0] - guards[1], guards[1] - guards[0]]
    truths = []
    for each in own:
        held = [[_of_lane(side, node, lane) for node in each] for lane in range(WARP)]
        if any(value is None for row in held for value in row):
            return False
        truths.append([all(row) for row in held])
    same = SameLanes(side)
    # What is under the guard alone is asked for where it holds: operands were made so.
    wanted = [*one.operands, *(nodes.given(each, one.guard) for each in one.operands), *shared]
    distances = [
        step for step in _DISTANCES if all(same.across(node, step) for node in {*wanted, *_branches(side)})
    ]
    for lane in range(WARP):
        group = {lane}
        for step in distances:
            group |= {each ^ step for each in group}
        if any(truths[0][each] for each in group) != any(truths[1][each] for each in group):
            return False
    return True


def _branches(side: SideBySide) -> set[Node]:
    """The predicates of all branches of both entries."""
    return {node for pair in side.branches.values() for node in pair if node is not None}


def _conjuncts(side: SideBySide, guard: Node) -> tuple[Node, ...]:
    shape = side.nodes.shapes[guard]
    if shape[:2] == ("op", "and.pred"):
        return tuple(shape[2:])
    return () if side.nodes.word(guard) == 1 else (guard,)


def _of_lane(side: SideBySide, node: Node, lane: int) -> int | None:
    """The value of a node in a lane of any warp, if it follows from the lane alone."""
    nodes = side.nodes
    shape = nodes.shapes[node]
    if shape[0] == "int":
        return int(shape[1])
    if shape == ("atom", "steady", "%laneid"):
        return lane
    if shape[0] == "op" and shape[1] == "and.b32":
        # A thread's number ends with its lane's: blocks are whole warps of one dimension.
        for mine, mask in ((shape[2], shape[3]), (shape[3], shape[2])):
            word = nodes.word(mask)
            if nodes.shapes[mine] == ("atom", "steady", "%tid.x") and word is not None and word < WARP:
                return lane & word
    given = [_of_lane(side, each, lane) for each in nodes.arguments(node)]
    if any(each is None for each in given):
        return None
    values = [each for each in given if each is not None]
    if shape[0] == "not":
        return 1 - values[0]
    if shape[0] == "op" and shape[1].startswith("setp.eq.u"):
        return int(values[0] == values[1])
    if shape[0] == "op" and shape[1].startswith("setp.lt.u"):
        return int(values[0] < values[1])
    if shape[0] == "op" and shape[1] == "and.pred":
        return int(all(values))
    if shape[0] == "op" and shape[1] in ("and.b32", "xor.b32", "or.b32"):
        return {"and": values[0] & values[1], "xor": values[0] ^ values[1], "or": values[0] | values[1]}[shape[1][:-4]]
    return None


@dataclass
class SameLanes:
    """Which values are the same in lanes that are some distance apart.

    A meeting of paths keeps what all paths to it have, as long as the lanes take the same one; whoever asks has to ask
    for the branches, too.
    """

    side: SideBySide
    _known: dict[tuple[Node, int], bool] = field(default_factory=dict)

    @cached_property
    def _acts(self) -> dict[tuple[int, int], Act]:
        return {(number, place): act for number, (acts, _) in self.side.acts.items() for place, act in enumerate(acts)}

    def across(self, node: Node, step: int) -> bool:
        """Whether each lane has the value of the lane whose number differs in the bit `step`."""
        key = (node, step)
        if key not in self._known:
            # A value of a loop is the same if it is wherever it comes from, taking for granted that it was.
            self._known[key] = True
            if not self._across(node, step):
                self._known = {each: held for each, held in self._known.items() if not held}
                self._known[key] = False
        return self._known[key]

    def _across(self, node: Node, step: int) -> bool:
        nodes = self.side.nodes
        shape = nodes.shapes[node]
        if shape[0] == "int":
            return True
        if shape[0] == "atom":
            return self._atom(node, step)
        if shape[0] == "op" and self._by_lane(shape, step):
            return True
        if self._symmetric(node, step):
            return True
        return all(self.across(each, step) for each in nodes.arguments(node))

    def _atom(self, node: Node, step: int) -> bool:
        kind, *rest = self.side.nodes.shapes[node][1:]
        if kind == "steady":
            return rest[0] not in _LANES and not rest[0].startswith(("%tid", "%lanemask"))
        if kind == "meet":
            known = self.side.meets.get(node)
            return known is not None and all(self.across(each, step) for each in known)
        if kind == "act":
            act = self._acts.get((rest[0], rest[1]))
            return act is not None and self._result(act, rest[2], step)
        return kind in ("parameter", "name")

    def _result(self, act: Act, place: int, step: int) -> bool:
        """Whether what an act gives is the same, which every lane does."""
        if self.side.nodes.word(act.guard) != 1:
            # Of a guarded load the guard and the address are: the lanes load together or not at all.
            guarded = act.opcode.startswith("ld.global.nc.") and self.across(act.guard, step)
            return guarded and all(self.across(each, step) for each in act.operands)
        if act.opcode.startswith("ld.global.nc."):
            return all(self.across(each, step) for each in act.operands)
        words = [self.side.nodes.word(each) for each in act.operands[1:]]
        everyone = words and words[-1] is not None and words[-1] & 0xFFFFFFFF == 0xFFFFFFFF
        if not everyone or place:
            return False
        if act.opcode.startswith("redux.sync."):
            return True
        if act.opcode == "shfl.sync.bfly.b32" and words[1] == WARP - 1 and words[0] is not None:
            return self.across(act.operands[0], step)
        return act.opcode == "shfl.sync.idx.b32" and words[1] == WARP - 1 and words[0] is not None

    def _by_lane(self, shape: tuple[object, ...], step: int) -> bool:
        """Bits of the thread's number in which the lanes do not differ."""
        nodes = self.side.nodes
        opcode, sources = str(shape[1]), [int(str(each)) for each in shape[2:]]
        words = [nodes.word(each) for each in sources]
        threads = [nodes.shapes[each][:2] == ("atom", "steady") for each in sources]
        threads = [each and nodes.shapes[node][2] in _LANES for each, node in zip(threads, sources, strict=True)]
        if opcode == "and.b32":
            for mine, other in ((0, 1), (1, 0)):
                if threads[mine] and words[other] is not None:
                    return not int(words[other] or 0) & step
        return opcode == "shr.u32" and threads[0] and words[1] is not None and step < 1 << int(words[1] or 0)

    def _symmetric(self, node: Node, step: int) -> bool:
        """A value of a lane's own and of that of the lane it exchanged with."""
        nodes = self.side.nodes
        shape = nodes.shapes[node]
        if shape[0] == "sum":
            pair = [each for each, _ in shape[3:]]
            alike = len(pair) == 2 and shape[3][1] == shape[4][1]
        else:
            pair = list(nodes.arguments(node))
            alike = shape[0] == "op" and len(pair) == 2 and _SYMMETRIC.match(shape[1]) is not None
        if not alike:
            return False
        return any(self._exchanged(one, other, step) for one, other in ((pair[0], pair[1]), (pair[1], pair[0])))

    def _exchanged(self, own: Node, other: Node, step: int) -> bool:
        shape = self.side.nodes.shapes[other]
        if shape[:2] != ("atom", "act") or shape[4] != 0:
            return False
        act = self._acts.get((shape[2], shape[3]))
        if act is None or act.opcode != "shfl.sync.bfly.b32" or self.side.nodes.word(act.guard) != 1:
            return False
        words = [self.side.nodes.word(each) for each in act.operands[1:]]
        return act.operands[0] == own and words[:2] == [step, WARP - 1] and words[2] in (-1 & 0xFFFFFFFF, -1 & (1 << 64) - 1)
