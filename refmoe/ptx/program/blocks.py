"""An entry as blocks in scheduling order.

A block is straight-line code, cut where native code ends or begins: a warp runs natively from one native block to the
next, and the scheduler sees the others.

A block's index is its priority: reverse post-order, in which a loop's body comes before what follows the loop, so that
lanes which leave a loop early wait for the others. The order of the text would not do: nvcc puts cold blocks behind
`ret`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from refmoe.ptx.errors import UnknownOpcode
from refmoe.ptx.state.special_registers import CLOCKS
from refmoe.ptx.text.spellings import LEGACY
from refmoe.ptx.text.syntax import Function, Instruction, Label, Special, Symbol

# Instructions that end a block because their lanes may not go on at once, or at all.
_STOPS = {
    "ret": "exit", "exit": "exit", "trap": "trap", "brkpt": "trap", "bar": "barrier", "barrier": "barrier",
}  # fmt: skip
# Warp-level instructions that wait for other lanes begin a block: lanes gather at its start. Those without `.sync` take
# the lanes that are there.
_GATHERS = ("shfl", "vote", "match", "redux", "elect")
# Those that every lane of the warp runs: they have no mask, and need not gather again after one another.
_WHOLE_WARP = ("mma", "wmma", "wgmma", "ldmatrix", "stmatrix", "movmatrix", "setmaxnreg")
# Of these every lane of four warps runs each.
_WARPGROUP = "wgmma"
# An access that is one of these is strong.
_STRONG = ("volatile", "relaxed", "acquire", "release", "mmio")
_COMMUNICATES = ("atom", "red", "mbarrier", "fence", "membar")
# A loop that holds one of these may wait for another lane's write; one that reads a clock waits for time to pass.
_POLLS = ("volatile", "relaxed", "acquire", "mmio", "atom", "nanosleep", "test_wait")


@dataclass(frozen=True)
class Terminator:
    """How a block ends.

    `kind` is `"jump"`, `"branch"` (targets: taken, not taken), `"index"` (targets by register value), `"exit"`,
    `"trap"` or `"barrier"` (target: where lanes go on). `instruction` is None for a fall-through.
    """

    kind: str
    targets: tuple[int, ...]
    instruction: Instruction | None = None


@dataclass
class Block:
    """Straight-line code.

    `gathers`: the first instruction waits for the lanes of its mask; `whole_warp`: for all; `warpgroup`: for those of
    four warps; `waits`: it parks lanes.
    """

    index: int
    instructions: tuple[Instruction, ...]
    terminator: Terminator
    gathers: bool = False
    whole_warp: bool = False
    waits: bool = False
    warpgroup: bool = False
    polling_edges: frozenset[int] = frozenset()
    back_edges: frozenset[int] = frozenset()

    @property
    def line(self) -> int:
        """The line of the first instruction, 0 for an empty block."""
        first = self.instructions[0] if self.instructions else self.terminator.instruction
        return first.line if first else 0


@dataclass(frozen=True)
class Program:
    """The blocks of an entry, in scheduling order; block 0 is where lanes start."""

    blocks: tuple[Block, ...]


@dataclass
class _Draft:
    instructions: list[Instruction] = field(default_factory=list)
    kind: str = "jump"
    targets: list[str | int] = field(default_factory=list)
    instruction: Instruction | None = None
    gathers: bool = False
    whole_warp: bool = False
    warpgroup: bool = False
    waits: bool = False
    native: bool = False


def build(function: Function, is_native: Callable[[Instruction], bool], apart: bool = False) -> Program:
    """Blocks of `function`, which must have no calls.

    Args:
        function: an entry or what became of one.
        is_native: whether an instruction has native code; all of a block's have it, or none.
        apart: whether instructions by which threads communicate begin blocks of their own.
    """
    drafts, places = _split(lower_guards(function), function.tables, is_native, apart)
    successors = [[places[target] if isinstance(target, str) else target for target in d.targets] for d in drafts]
    order = _schedule(successors)
    number = {draft: index for index, draft in enumerate(order)}
    loops = _loops([[number[target] for target in successors[draft]] for draft in order])
    blocks = []
    for index, draft in enumerate(order):
        d = drafts[draft]
        targets = tuple(number[target] for target in successors[draft])
        terminator = Terminator(d.kind, targets, d.instruction)
        blocks.append(Block(index, tuple(d.instructions), terminator, d.gathers, d.whole_warp, d.waits, d.warpgroup))
    for block in blocks:
        back = {target for target in block.terminator.targets if target <= block.index}
        block.back_edges = frozenset(back)
        block.polling_edges = frozenset(
            target for target in back if _polls(blocks, loops.get((block.index, target), frozenset({block.index})))
        )
    return Program(tuple(blocks))


def polling_instruction(program: Program, place: int) -> Instruction | None:
    """The first instruction from block `place` on that reads what another lane may write meanwhile."""
    instructions = (each for block in program.blocks[place:] for each in block.instructions)
    return next((each for each in instructions if _reads_anew(each)), None)


def _reads_anew(instruction: Instruction) -> bool:
    return any(part in _POLLS for part in instruction.opcode.split("."))


def _polls(blocks: list[Block], loop: frozenset[int]) -> bool:
    instructions = [instruction for index in loop for instruction in blocks[index].instructions]
    return any(map(_reads_anew, instructions)) or any(
        isinstance(operand, Special) and operand.name in CLOCKS for each in instructions for operand in each.operands
    )


def lower_guards(function: Function) -> list[Instruction | Label]:
    """A guard on an instruction that waits becomes a branch around it: lanes whose guard is off do not take part."""
    result: list[Instruction | Label] = []
    for count, statement in enumerate(function.body or ()):
        if isinstance(statement, Label) or statement.guard is None:
            result.append(statement)
            continue
        stem = statement.opcode.split(".")[0]
        waits = stem in _STOPS or stem in _GATHERS or _takes_warp(statement) or _parks(statement)
        if waits or stem == "brx":
            skip = f"@skip{count}"
            result.append(replace(statement, opcode="bra", operands=(Symbol(skip),), negated=not statement.negated))
            result.append(replace(statement, guard=None, negated=False))
            result.append(Label(skip))
        else:
            result.append(statement)
    return result


def _takes_warp(instruction: Instruction) -> bool:
    return instruction.opcode.split(".")[0] in _WHOLE_WARP or instruction.opcode.startswith("tensormap.cp_fenceproxy")


def _gathers(instruction: Instruction) -> bool:
    stem = instruction.opcode.split(".")[0]
    return stem in _GATHERS and (stem not in LEGACY or ".sync" in instruction.opcode)


def communicates(instruction: Instruction) -> bool:
    """Whether other threads may tell when it happens: a strong access, a fence, or an operation on an mbarrier."""
    stem, *parts = instruction.opcode.split(".")
    return stem in _COMMUNICATES or (stem in ("ld", "st") and any(part in _STRONG for part in parts))


def _parks(instruction: Instruction) -> bool:
    return instruction.opcode.startswith("mbarrier.try_wait")


def _split(
    statements: list[Instruction | Label],
    tables: dict[str, tuple[str, ...]],
    is_native: Callable[[Instruction], bool],
    apart: bool,
) -> tuple[list[_Draft], dict[str, int]]:
    drafts = [_Draft()]
    places: dict[str, int] = {}

    def fresh() -> _Draft:
        drafts.append(_Draft())
        return drafts[-1]

    current, closed = drafts[0], False
    for statement in statements:
        if isinstance(statement, Label):
            if current.instructions or closed:
                if not closed:
                    current.targets = [len(drafts)]
                current, closed = fresh(), False
            places[statement.name] = len(drafts) - 1
            continue
        if closed:
            current, closed = fresh(), False
        stem = statement.opcode.split(".")[0]
        native = is_native(statement)
        gathers = _gathers(statement) or _takes_warp(statement) or statement.opcode == "bar.warp.sync"
        together = current.warpgroup or (current.whole_warp and stem != _WARPGROUP)
        begins = (gathers or _parks(statement)) and not (_takes_warp(statement) and together)
        # Branches and exits go with whatever stands before them.
        leaves_native = current.native != native and stem not in ("bra", "ret", "exit")
        # Before it ends a thread may do what it has put off: the end is a block of its own then.
        ends = stem in ("ret", "exit") and any(map(communicates, current.instructions))
        if current.instructions and (begins or leaves_native or (apart and (ends or communicates(statement)))):
            current.targets = [len(drafts)]
            current = fresh()
            # Lanes that gathered for the block before may have parted at its end.
            begins = gathers or _parks(statement)
        if not current.instructions:
            current.native = native
        if begins:
            current.waits = _parks(statement)
            current.gathers = not current.waits
            current.whole_warp, current.warpgroup = _takes_warp(statement), stem == _WARPGROUP
            current.instructions.append(statement)
        elif stem == "bra":
            label = statement.operands[0]
            assert isinstance(label, Symbol)
            current.instruction = statement
            current.targets = [label.name]
            if statement.guard is not None:
                current.kind = "branch"
                current.targets.append(len(drafts))
            closed = True
        elif stem == "brx":
            table = statement.operands[-1]
            assert isinstance(table, Symbol)
            if table.name not in tables:
                raise UnknownOpcode.of(statement, f"brx without .branchtargets at line {statement.line}")
            current.kind, current.instruction = "index", statement
            current.targets = list(tables[table.name])
            closed = True
        elif stem in _STOPS:
            current.kind, current.instruction = _STOPS[stem], statement
            current.targets = [len(drafts)] if current.kind == "barrier" else []
            closed = True
        else:
            current.instructions.append(statement)
    if closed and any(len(drafts) in d.targets for d in drafts):
        fresh()
    if not closed or drafts[-1] is not current:
        drafts[-1].kind, drafts[-1].targets = "exit", []
    return drafts, places


def _schedule(successors: list[list[int]]) -> list[int]:
    """Reverse post-order from block 0 in which a loop's exits come after its body; unreachable blocks last."""
    bodies = list(_loops(successors).values())

    def ranked(block: int) -> list[int]:
        # Last visited comes first in the order: the successor that stays in the most of the block's loops.
        around = [body for body in bodies if block in body]
        return sorted(successors[block], key=lambda target: sum(target in body for body in around))

    walks, _ = _depth_first([ranked(block) for block in range(len(successors))])
    return [block for walk in walks for block in reversed(walk)]


def _loops(successors: list[list[int]]) -> dict[tuple[int, int], frozenset[int]]:
    """Blocks of the loop of each retreating edge (latch, head): those that reach the latch without the head."""
    predecessors: list[list[int]] = [[] for _ in successors]
    for block, targets in enumerate(successors):
        for target in targets:
            predecessors[target].append(block)
    loops = {}
    for latch, head in _depth_first(successors)[1]:
        body = {head, latch}
        work = [latch] if latch != head else []
        while work:
            for before in predecessors[work.pop()]:
                if before not in body:
                    body.add(before)
                    work.append(before)
        loops[latch, head] = frozenset(body)
    return loops


def _depth_first(successors: list[list[int]]) -> tuple[list[list[int]], list[tuple[int, int]]]:
    """Blocks in post-order, a list for each root of a depth-first walk, and the edges to a block that is still open."""
    walks, edges = [], []
    state = [0] * len(successors)
    for root in range(len(successors)):
        if state[root]:
            continue
        reached: list[int] = []
        walks.append(reached)
        state[root] = 1
        stack = [(root, iter(successors[root]))]
        while stack:
            block, rest = stack[-1]
            for target in rest:
                if state[target] == 1:
                    edges.append((block, target))
                elif not state[target]:
                    state[target] = 1
                    stack.append((target, iter(successors[target])))
                    break
            else:
                stack.pop()
                reached.append(block)
                state[block] = 2
    return walks, edges
