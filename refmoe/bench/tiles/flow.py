"""How often each block of machine code runs in one step of a loop, from a few counts and the flow between blocks.

A *block* is a run of instructions that is entered only at its first and left only at its last. A *back edge* goes to a
block that every way from the entry to its source passes through: that block *dominates* the source and is the head of a
*loop*, whose body is all that reaches the source without the head.

The disassembly says which blocks follow which, not how often each runs. Some instructions are *markers*: asynchronous
copies, `ldmatrix`, matrix products. PTX and machine code have the same number of each in the same order, so the counts
of the executor, which runs the PTX, are counts of their blocks in machine code. The other blocks follow from
conservation: a block runs as often as it is entered and as often as it is left.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.errors import RefmoeError

_LABEL = re.compile(r"^(\.L_\w+):")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:\{\s*)?(?P<guard>@!?U?P\w+\s+)?(?P<text>.+?)\s*[;}]")
_TARGET = re.compile(r"`\((\.L_\w+)\)")
# nvdisasm names where an indirect branch may go: BRX R6 -0x2520 (*"BRANCH_TARGETS .L_x_1,.L_x_2"*)
_TARGETS = re.compile(r"BRANCH_TARGETS ([^\"]+)\"")
_ENDS = ("BRA", "BRX", "JMX", "EXIT", "RET")
_UNCERTAIN = 1e-6
#: Waits for a barrier: a block that jumps back to itself with one of these is a wait that has failed before.
_POLL = "TRYWAIT"


class FlowError(RefmoeError):
    """Machine code whose flow cannot be followed, or counts that do not fit it; the message says which."""


@dataclass(frozen=True)
class SassOperation:
    """One instruction of machine code: its `opcode` with all suffixes, and whether a predicate `guarded` it."""

    opcode: str
    text: str
    guarded: bool

    @property
    def family(self) -> str:
        """The opcode without suffixes."""
        return self.opcode.split(".")[0]

    @property
    def never(self) -> bool:
        """Whether its predicate is the constant false: it takes an issue slot and does nothing."""
        return self.text.startswith("@!PT ")


@dataclass(frozen=True)
class SassBlock:
    """A run of instructions, and the numbers of the blocks that may follow it."""

    operations: tuple[SassOperation, ...]
    successors: tuple[int, ...]

    @property
    def polls(self) -> bool:
        """Whether it tries a barrier."""
        return any(_POLL in each.opcode for each in self.operations)


@dataclass(frozen=True)
class SassLoop:
    """A loop: the number of its first block, and of all of its blocks in the order of the text."""

    head: int
    body: tuple[int, ...]


def blocks_of(text: str) -> list[SassBlock]:
    """The blocks of one entry, as `nvdisasm -c` prints it; block 0 is the entry.

    A call comes back to the instruction behind it; what it calls is in no loop of the caller.

    Raises:
        FlowError: an indirect branch, or a jump to a label that is not there.
    """
    lines = _parsed(text)
    starts = {0}
    for number, (_, operation) in enumerate(lines):
        if operation.family in _ENDS:
            starts.add(number + 1)
    jumped = {target for _, operation in lines for target in _goes_to(operation)}
    places = {label: number for number, (labels, _) in enumerate(lines) for label in labels}
    if missing := sorted(jumped - places.keys()):
        raise FlowError(f"a branch goes to {missing[0]}; needed a label of the same entry")
    starts |= {places[label] for label in jumped}
    ordered = sorted(start for start in starts if start < len(lines))
    index = {start: block for block, start in enumerate(ordered)}
    blocks = []
    for start, end in zip(ordered, [*ordered[1:], len(lines)], strict=True):
        last = lines[end - 1][1]
        next_ = [index[places[label]] for label in _goes_to(last)]
        if end < len(lines) and not _leaves(last):
            next_.append(index[end])
        blocks.append(SassBlock(tuple(operation for _, operation in lines[start:end]), tuple(dict.fromkeys(next_))))
    return blocks


def _parsed(text: str) -> list[tuple[list[str], SassOperation]]:
    """Each instruction with the labels in front of it."""
    found: list[tuple[list[str], SassOperation]] = []
    labels: list[str] = []
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels.append(label[1])
        elif match := _INSTRUCTION.match(line):
            guard = match["guard"] or ""
            body = match["text"]
            found.append((labels, SassOperation(body.split()[0], guard + body, bool(guard))))
            labels = []
    if not found:
        raise FlowError("found no instruction in the disassembly; needed the text of one entry")
    return found


def _goes_to(operation: SassOperation) -> list[str]:
    """The labels that a branch may go to; empty for what is none.

    Raises:
        FlowError: an indirect branch whose targets nvdisasm does not name.
    """
    if operation.family == "BRA":
        return _TARGET.findall(operation.text)[:1]
    if operation.family not in ("BRX", "JMX"):
        return []
    named = _TARGETS.search(operation.text)
    if named is None:
        raise FlowError(
            f"the text does not say where {operation.text.split('(*')[0].strip()!r} goes; needed its targets"
        )
    return [label.strip() for label in named[1].split(",")]


def _leaves(operation: SassOperation) -> bool:
    """Whether the next instruction never follows: a branch or an exit without any condition."""
    if operation.guarded or operation.family not in _ENDS:
        return False
    # A uniform branch names its condition as an operand: BRA.U UP0, `(.L_x_1).
    return operation.family != "BRA" or operation.text.split(None, 1)[1].startswith("`")


def dominators(successors: Sequence[Sequence[int]]) -> list[set[int]]:
    """For each block those that every way from block 0 to it passes through, itself included; none if there is no way.

    By iteration to the fixed point of: the dominators of a block are itself and those common to all its predecessors
    (Allen and Cocke, 1972).
    """
    before = _predecessors(successors)
    reachable = _reach([0], successors, frozenset())
    everything = set(reachable)
    found = [set(everything) if block in reachable else set() for block in range(len(successors))]
    found[0] = {0}
    changed = True
    while changed:
        changed = False
        for block in sorted(reachable - {0}):
            common = set.intersection(*(found[each] for each in before[block] if each in reachable)) | {block}
            if common != found[block]:
                found[block], changed = common, True
    return found


def loops(successors: Sequence[Sequence[int]]) -> list[SassLoop]:
    """The natural loops; back edges to one head make one loop. The largest comes first."""
    above, before = dominators(successors), _predecessors(successors)
    bodies: dict[int, set[int]] = {}
    for block, following in enumerate(successors):
        for head in following:
            if head in above[block]:
                bodies.setdefault(head, {head}).update(_reach([block], before, frozenset({head})))
    found = [SassLoop(head, tuple(sorted(body))) for head, body in bodies.items()]
    return sorted(found, key=lambda loop: (-len(loop.body), loop.head))


def _predecessors(successors: Sequence[Sequence[int]]) -> list[list[int]]:
    before: list[list[int]] = [[] for _ in successors]
    for block, following in enumerate(successors):
        for each in following:
            before[each].append(block)
    return before


def _reach(starts: Iterable[int], edges: Sequence[Sequence[int]], walls: frozenset[int]) -> set[int]:
    """All that can be reached from `starts` along edges, not past `walls`."""
    found = set(starts)
    pending = [each for each in found if each not in walls]
    while pending:
        for each in edges[pending.pop()]:
            if each not in found:
                found.add(each)
                if each not in walls:
                    pending.append(each)
    return found


def frequencies(
    blocks: Sequence[SassBlock], loop: SassLoop, counted: Mapping[int, float]
) -> tuple[dict[int, float], set[int]]:
    """How often each block of a loop runs where those of `counted` run so often, and which of them that leaves open.

    Edges that leave the loop are taken to be gone once and for all: they do not belong to a step. A failed wait is not
    counted either. What the counts leave open gets the least-squares solution of the smallest norm, which halves what
    two ways could share.

    Args:
        blocks: of the entry.
        loop: one of its loops.
        counted: by block how often it runs in one step.

    Raises:
        FlowError: no flow has these counts.
    """
    inside = set(loop.body)
    failed = {block for block in inside if blocks[block].polls and block in blocks[block].successors}
    edges = [
        (source, target)
        for source in loop.body
        for target in blocks[source].successors
        if target in inside and source not in failed and target not in failed
    ]
    rows, values = [], []
    for block in loop.body:
        enters = [float(target == block) for _, target in edges]
        leaves = [float(source == block) for source, _ in edges]
        if block in counted:
            rows += [enters, leaves]
            values += [counted[block]] * 2
        else:
            rows.append([one - other for one, other in zip(enters, leaves, strict=True)])
            values.append(0.0)
    matrix, wanted = np.array(rows).reshape(len(rows), len(edges)), np.array(values)
    flow = _flow(matrix, wanted)
    rank = np.linalg.matrix_rank(matrix) if edges else 0
    free = np.linalg.svd(matrix)[2][rank:] if edges else np.zeros((0, 0))
    times, open_ = {}, set()
    for block in loop.body:
        enters_block = np.array([float(target == block) for _, target in edges])
        times[block] = float(enters_block @ flow)
        if free.size and np.abs(free @ enters_block).max() > _UNCERTAIN:
            open_.add(block)
    return times, open_


def _flow(matrix: np.ndarray[tuple[int, int], np.dtype[np.float64]], wanted: np.ndarray[Any, Any]) -> Any:
    """The smallest flow with matrix @ flow == wanted, none below zero: edges that would be are taken out one by one.

    Raises:
        FlowError: there is none.
    """
    scale = max(1.0, float(np.abs(wanted).max(initial=0)))
    kept = list(range(matrix.shape[1]))
    while True:
        some = np.linalg.lstsq(matrix[:, kept], wanted, rcond=None)[0] if kept else np.zeros(0)
        if np.abs(matrix[:, kept] @ some - wanted).max(initial=0) > _UNCERTAIN * scale:
            raise FlowError("the counts of the executor do not fit the flow of the machine code")
        if some.min(initial=0) >= -_UNCERTAIN * scale:
            flow = np.zeros(matrix.shape[1])
            flow[kept] = some
            return flow
        del kept[int(np.argmin(some))]
