"""Two texts of an entry side by side: the paths that both take, and the value of each register as a node.

What memory, other threads or the end of a launch see of an entry is a list of *acts*: stores, loads, exchanges,
barriers, products. If both entries have the same acts in the same order along the same paths, and the operands of each
act are equal, then each act of one does what that of the other does, and so gives the same result to the next.

Where a branch steps over nothing but plain instructions, loads and stores, these count as guarded by its predicate: the
branch itself is no path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from refmoe.mutation import ptx
from refmoe.mutation.proofs.nodes import Node, Nodes
from refmoe.mutation.proofs.program import EntryCode, NoProof

#: Instructions of one result that depends on their operands alone.
PURE = frozenset(
    (
        *("mov", "add", "sub", "mul", "mad", "fma", "div", "rem", "min", "max", "abs", "neg", "and", "or", "xor"),
        *("not", "shl", "shr", "selp", "setp", "cvt", "cvta", "prmt", "bfi", "bfe", "brev", "popc", "clz", "bfind"),
        *("copysign", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "tanh", "dp4a", "lop3"),
    )
)
#: Acts of one thread, which a branch may step over: others wait for lanes.
_ALONE = frozenset(("ld", "st", "red", "prefetch"))
#: Read-only registers that have one value as long as a thread lives, and the same one in both entries.
_STEADY = re.compile(r"%(?:tid|ntid|ctaid|nctaid|cluster_ctaid|cluster_nctaid|clusterid|nclusterid)\.[xyz]$|%laneid$")
_STEADY_MORE = frozenset(("%cluster_ctarank", "%cluster_nctarank", "%lanemask_lt", "%lanemask_le", "%lanemask_eq"))
_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|\d+)U?$")
_FLOAT = re.compile(r"0[fFdD]([0-9A-Fa-f]{8}|[0-9A-Fa-f]{16})$")
_ADDRESS = re.compile(r"\[\s*([%$\w]+)\s*(?:\+\s*(-?\w+)\s*)?\]$")
#: Where a load's bytes stay, which no value depends on.
_HINT = re.compile(r"\.L[12]::\w+")
#: Loads that order nothing, so that it is of no account which of two comes first.
_PLAIN_LOAD = re.compile(r"ld\.(?:global|shared|const)(?:\.nc)?(?:\.v[24])?\.[usfb](?:8|16|32|64)$")
_READ_ONLY_LOAD = re.compile(r"\.nc(?=\.)")
_REGISTER = re.compile(r"%\w+")
_PARTED = re.compile(r"[{}|]")
#: Rounds after which values that still change prove nothing.
_ROUNDS = 40


@dataclass(frozen=True)
class GuardedStep:
    """An instruction, guarded by all of some predicates.

    Attributes:
        opcode: in full, without hints to a cache.
        results: the registers that it writes, "" for one that nobody reads.
        sources: its operands.
        guards: (register, truth).
    """

    opcode: str
    results: tuple[str, ...]
    sources: tuple[str, ...]
    guards: tuple[tuple[str, bool], ...] = ()

    @property
    def name(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def pure(self) -> bool:
        """Whether it does nothing but compute its result."""
        return self.name in PURE or self.opcode.startswith("ld.param")


@dataclass
class Path:
    """Steps that run one after the other, and where they lead.

    Attributes:
        steps: in order.
        predicate: (register, truth) of the branch at its end; None if it always goes the same way.
        onward: the path where the predicate is as it says, then the other one; -1 for the end.
    """

    steps: list[GuardedStep]
    predicate: tuple[str, bool] | None = None
    onward: tuple[int, ...] = ()


@dataclass
class Paths:
    """An entry as paths, the first of which is the beginning.

    Attributes:
        program: its text.
        held: by number.
    """

    program: EntryCode
    held: dict[int, Path]

    @classmethod
    def of(cls, program: EntryCode) -> Paths:
        """Take an entry apart, and guard what short branches step over."""
        made = cls(program, {})
        for number, block in enumerate(program.blocks):
            made.held[number] = made._path(number, block.code)
        made._reachable()
        while any(made._joined(number) or made._guarded(number) for number in list(made.held)):
            made._reachable()
        return made

    def _path(self, number: int, code: Sequence[int]) -> Path:
        behind = number + 1 if number + 1 < len(self.program.blocks) else -1
        steps = [step for index in code if (step := self._step(self.program.code[index])) is not None]
        last = self.program.code[code[-1]] if code else None
        if last is None or last.name not in ("bra", "ret", "exit"):
            ends = last is not None and last.name == "trap" and not last.guard
            return Path(steps, None, (-1,) if ends else (behind,))
        target = self._target(last) if last.name == "bra" else -1
        if not last.guard:
            return Path(steps, None, (target,))
        return Path(steps, (last.guard.lstrip("@!"), "!" not in last.guard), (target, behind))

    def _target(self, branch: ptx.Instruction) -> int:
        label = branch.operands[-1][1]
        if label not in self.program.targets:
            raise NoProof(f"where {label} is")
        return self.program.targets[label]

    def _step(self, each: ptx.Instruction) -> GuardedStep | None:
        if each.name in ("bra", "ret", "exit"):
            return None
        guards = ((each.guard.lstrip("@!"), "!" not in each.guard),) if each.guard else ()
        operands = [operand for _, operand in each.operands]
        results: tuple[str, ...] = ()
        if self.program.destinations(each) and not operands[0].startswith("["):
            first = [part.strip() for part in re.split(r"[{}|,]", operands[0]) if part.strip()]
            if not all(part == "_" or self.program.registers(part) == [part] for part in first):
                raise NoProof(f"what {operands[0]} of {each.opcode} is")
            results = tuple("" if part == "_" else part for part in first)
            # What a product adds to is its first operand, too.
            operands = operands if each.opcode.startswith("wgmma.mma") else operands[1:]
        return GuardedStep(_HINT.sub("", each.opcode), results, tuple(operands), guards)

    def _reachable(self) -> None:
        seen, waiting = {0}, [0]
        while waiting:
            for onward in self.held[waiting.pop()].onward:
                if onward >= 0 and onward not in seen:
                    seen.add(onward)
                    waiting.append(onward)
        self.held = {number: path for number, path in self.held.items() if number in seen}

    def before(self) -> Mapping[int, list[int]]:
        """By path, those that lead to it, one as often as it does."""
        found: dict[int, list[int]] = {number: [] for number in self.held}
        for number, path in self.held.items():
            for onward in path.onward:
                if onward >= 0:
                    found[onward].append(number)
        return found

    def _joined(self, number: int) -> bool:
        """Put a path and the only one behind it, to which no other leads, together."""
        path = self.held.get(number)
        if path is None or len(path.onward) != 1 or path.onward[0] in (-1, 0, number):
            return False
        if self.before()[path.onward[0]] != [number]:
            return False
        behind = self.held.pop(path.onward[0])
        self.held[number] = Path([*path.steps, *behind.steps], behind.predicate, behind.onward)
        return True

    def _guarded(self, number: int) -> bool:
        """Put what a branch steps over in front of where it ends, guarded by its predicate."""
        path = self.held.get(number)
        if path is None or path.predicate is None or path.onward[0] == path.onward[1]:
            return False
        taken, other = path.onward
        arms = [(arm, truth) for arm, truth in ((taken, True), (other, False)) if self._plain(arm, number)]
        ends = {self.held[arm].onward[0]: (arm, truth) for arm, truth in arms}
        end: int | None = None
        if len(arms) == 2 and len(ends) == 1:
            end = next(iter(ends))
        else:
            arms = [(arm, truth) for arm, truth in arms if self.held[arm].onward[0] == (other if truth else taken)][:1]
            end = (other if arms[0][1] else taken) if arms else None
        if end is None or not arms:
            return False
        register, sense = path.predicate
        saved = f"%kept.{number}.{len(path.steps)}"
        steps = [*path.steps, GuardedStep("mov.pred", (saved,), (register,))]
        for arm, truth in arms:
            # Where a guard is taken, the predicate is as the branch says.
            guard = (saved, sense == truth)
            steps += [_under(guard, each) for each in self.held[arm].steps]
        self.held[number] = Path(steps, None, (end,))
        return True

    def _plain(self, arm: int, number: int) -> bool:
        path = self.held.get(arm)
        if path is None or arm == 0 or path.predicate is not None or len(path.onward) != 1:
            return False
        if self.before()[arm] != [number]:
            return False
        return path.onward[0] != arm and all(each.pure or each.name in _ALONE for each in path.steps)


@dataclass(frozen=True)
class Act:
    """What an entry does at one place: an opcode with the nodes of its operands, if its guard holds.

    Attributes:
        operands: as they are where the guard holds.
        spelled: their text.
        anywhere: as they are wherever paths lead there.
    """

    opcode: str
    operands: tuple[Node, ...]
    guard: Node
    spelled: tuple[str, ...]
    anywhere: tuple[Node, ...]


Registers = dict[str, Node]


def _under(guard: tuple[str, bool], step: GuardedStep) -> GuardedStep:
    """A step with one guard more, behind its own. Where it does not hold, nobody asks for a predicate that is kept."""
    if step.results and step.results[0].startswith("%kept."):
        return step
    return GuardedStep(step.opcode, step.results, step.sources, (*step.guards, guard))


@dataclass
class SideBySide:
    """Two entries whose paths correspond.

    Attributes:
        sides: the sound entry, and the other one.
        nodes: of both.
        pairs: by number, the paths of both that correspond, in an order in which most come before what is behind them.
        acts: by pair, what each side does there.
        branches: by pair, the predicates of the branches at the end.
        meets: by node of a value where paths meet, what it is on each of them.
        ways: of the same, the predicate that leads there on each of them; None for always.
        before: by pair, those that lead to it, one as often as it does.
        ends: by side and pair, the registers at the end.
    """

    sides: tuple[Paths, Paths]
    nodes: Nodes
    pairs: list[tuple[int, int]] = field(default_factory=list)
    acts: dict[int, tuple[list[Act], list[Act]]] = field(default_factory=dict)
    branches: dict[int, tuple[Node | None, Node | None]] = field(default_factory=dict)
    meets: dict[Node, tuple[Node, ...]] = field(default_factory=dict)
    ways: dict[Node, tuple[Node | None, ...]] = field(default_factory=dict)
    before: dict[int, list[int]] = field(default_factory=dict)
    ends: dict[tuple[int, int], Registers] = field(default_factory=dict)
    _entries: dict[tuple[int, int, str], Node] = field(default_factory=dict)
    _steady: set[tuple[int, int, str]] = field(default_factory=set)
    _restless: bool = False  # a register that is taken to be the same on all paths is not

    def solve(self) -> None:
        """Walk both entries until no value changes any more.

        Raises:
            NoProof: their paths do not correspond, or there are too many rounds.
        """
        self._correspond()
        self._settle()
        # What only comes back to itself where paths meet is what it was at first.
        self._steady = self._coming_back()
        if not self._steady:
            return
        try:
            self._settle()
        except NoProof:
            self._restless = True
        if self._restless:
            self._steady = set()
            self._settle()

    def _coming_back(self) -> set[tuple[int, int, str]]:
        """By side, path and register, what is one value on all paths that meet, or itself."""
        first: dict[Node, Node] = {}

        def of(node: Node) -> Node:
            while node in first:
                node = first[node]
            return node

        changed = True
        while changed:
            changed = False
            for node, ways in self.meets.items():
                if node not in first and len(others := {of(each) for each in ways} - {node}) == 1:
                    first[node], changed = others.pop(), True
        return {place for place, node in self._entries.items() if node in first}

    def _settle(self) -> None:
        """Walk both entries until no value changes any more.

        Raises:
            NoProof: there are too many rounds.
        """
        before: dict[tuple[int, int], Registers] = {}
        for _ in range(_ROUNDS):
            self.ends, last = {}, self.ends
            self._entries, self._restless = {}, False
            met: dict[tuple[int, tuple[Node | None, ...]], Node] = {}
            self.meets, self.ways = {}, {}
            for number in range(len(self.pairs)):
                acts = []
                for side in (0, 1):
                    registers = self._entered(side, number, last, met)
                    acts.append(self.walked(side, number, registers))
                    self.ends[side, number] = registers
                self.acts[number] = (acts[0], acts[1])
            if self.ends == before:
                return
            before = self.ends
        raise NoProof("the values of loops")

    def _correspond(self) -> None:
        found: dict[tuple[int, int], int] = {}
        onward: dict[tuple[int, int], list[tuple[int, int]]] = {}
        waiting = [(0, 0)]
        while waiting:
            pair = waiting.pop()
            if pair in onward:
                continue
            one, other = (side.held[each] for side, each in zip(self.sides, pair, strict=True))
            if len(one.onward) != len(other.onward):
                raise NoProof("paths that do not correspond")
            ahead = list(zip(one.onward, other.onward, strict=True))
            if any((a < 0) != (b < 0) for a, b in ahead):
                raise NoProof("paths that do not correspond")
            onward[pair] = [each for each in ahead if each[0] >= 0]
            waiting += onward[pair]
        for side in (0, 1):
            if len({pair[side] for pair in onward}) != len(onward):
                raise NoProof("paths that do not correspond")
        self.pairs = _in_order(onward)
        found = {pair: number for number, pair in enumerate(self.pairs)}
        self._numbers = found
        self.before = {number: [] for number in range(len(self.pairs))}
        for pair, behind in onward.items():
            for each in behind:
                self.before[found[each]].append(found[pair])

    @cached_property
    def _live(self) -> tuple[dict[int, set[str]], dict[int, set[str]]]:
        return tuple(_live_registers(side) for side in self.sides)  # type: ignore[return-value]

    def _entered(
        self,
        side: int,
        number: int,
        last: Mapping[tuple[int, int], Registers],
        met: dict[tuple[int, tuple[Node | None, ...]], Node],
    ) -> Registers:
        """The registers where a path begins."""
        made: Registers = {}
        if number == 0 and not self.before[0]:
            return made
        for register in sorted(self._live[side][self.pairs[number][side]]):
            found: list[Node | None] = []
            for one in self.before[number]:
                # Of a path that has not been walked yet nothing is known, in this round or in the one before.
                held = self.ends.get((side, one), last.get((side, one)))
                found.append(None if held is None else held.get(register, self._nothing(side, register)))
            if number == 0:
                found.append(self._nothing(side, register))
            known = {node for node in found if node is not None}
            if (side, number, register) in self._steady and known:
                self._restless |= len(known) > 1
                known = {next(node for node in found if node is not None)}
            if len(known) == 1:
                made[register] = known.pop()
            elif known:
                key = (number, tuple(found))
                if key not in met:
                    bits = self._width(side, register)
                    met[key] = self.nodes.of(("atom", "meet", number, side, register), bits)
                made[register] = self._entries[side, number, register] = met[key]
                if None not in found:
                    self.meets[met[key]] = tuple(node for node in found if node is not None)
                    self.ways[met[key]] = (*self._way(number, side), *([None] if number == 0 else []))
        return made

    def _way(self, number: int, side: int) -> Iterator[Node | None]:
        """By path that leads to one, the predicate that does; None where it is not known yet, or there is none."""
        for one in self.before[number]:
            path = self.sides[side].held[self.pairs[one][side]]
            predicate = self.branches.get(one, (None, None))[side]
            if predicate is None or path.onward[0] == path.onward[-1]:
                yield None
            else:
                there = self.pairs[number][side] == path.onward[0]
                yield predicate if there else self.nodes.negated(predicate)

    def _nothing(self, side: int, register: str) -> Node:
        # A sound entry depends on no such value. One that does has the same one in both, as long as it has one name.
        return self.nodes.of(("atom", "unwritten", register), self._width(side, register))

    def _width(self, side: int, register: str) -> int:
        return 1 if register.startswith("%kept.") else self.sides[side].program.width(register)

    def walked(self, side: int, number: int, registers: Registers) -> list[Act]:
        """Go over a path's steps; `registers` are those at its end afterwards."""
        path = self.sides[side].held[self.pairs[number][side]]
        acts: list[Act] = []
        for step in path.steps:
            guard = self.nodes.integer(1, 1)
            for register, truth in reversed(step.guards):
                inner = self._predicate(side, registers, register, truth)
                guard = self.nodes.both([self.nodes.given(inner, guard), guard])
            anywhere = () if step.pure else tuple(self._operands(side, registers, step))
            operands = tuple(self.nodes.given(each, guard) for each in anywhere)
            if step.pure:
                results = self._computed(side, registers, step)
            elif (twin := self._other_half(acts, step, operands, guard)) is not None:
                # Under one of two opposite guards the same is loaded: by one load, under what they have in common.
                half, held = acts[twin].guard, acts[twin].operands
                both = self.nodes.both(sorted(self._parts(guard) & self._parts(half)))
                acts[twin] = Act(_READ_ONLY_LOAD.sub("", step.opcode), held, both, step.sources, held)
                results = self._given_by(number, twin, side, step)
                given = [(each, node) for each, node in zip(step.results, results, strict=True) if node is not None]
                others = {register: self._otherwise(registers.get(register), half, node) for register, node in given}
                if None not in others.values():
                    # The other load gave the same to the same registers: so now they have it under either guard.
                    registers |= {register: other for register, other in others.items() if other is not None}
                    guard = both
            else:
                results = self._given_by(number, len(acts), side, step)
                acts.append(Act(step.opcode, operands, guard, step.sources, anywhere))
            for register, node in zip(step.results, results, strict=True):
                if register and node is not None:
                    before = registers.get(register)
                    if before is None:
                        before = self._nothing(side, register)
                    registers[register] = self.nodes.selected(guard, node, before, self._width(side, register))
        if path.predicate is None:
            self.branches[number] = (None, None)
        else:
            made = list(self.branches.get(number, (None, None)))
            made[side] = self._predicate(side, registers, *path.predicate)
            self.branches[number] = (made[0], made[1])
        return acts

    def _given_by(self, number: int, place: int, side: int, step: GuardedStep) -> list[Node | None]:
        """The nodes of what an act gives, None for what nobody reads."""
        widths = [self._width(side, register) if register else 0 for register in step.results]
        return [
            self.nodes.of(("atom", "act", number, place, result, width), width) if width else None
            for result, width in enumerate(widths)
        ]

    def _other_half(
        self, acts: Sequence[Act], step: GuardedStep, operands: tuple[Node, ...], guard: Node
    ) -> int | None:
        """The place of a load of the same under the opposite guard, behind which there are plain loads alone.

        What an entry reads by way of the read-only cache is written by nobody as long as it runs. So any other load
        gives the same.
        """
        if not _PLAIN_LOAD.match(step.opcode) or self.nodes.word(guard) is not None:
            return None
        for place in reversed(range(len(acts))):
            before = acts[place]
            if not _PLAIN_LOAD.match(before.opcode):
                return None
            same = _READ_ONLY_LOAD.sub("", before.opcode) == _READ_ONLY_LOAD.sub("", step.opcode)
            if same and before.operands == operands:
                return place if self._opposite(before.guard, guard) else None
        return None

    def _opposite(self, one: Node, other: Node) -> bool:
        """Whether two guards differ in one predicate, which is turned round."""
        mine, its = self._parts(one), self._parts(other)
        apart = mine - its, its - mine
        return len(apart[0]) == len(apart[1]) == 1 and self.nodes.negated(*apart[0]) in apart[1]

    def _parts(self, guard: Node) -> set[Node]:
        shape = self.nodes.shapes[guard]
        return set(shape[2:]) if shape[:2] == ("op", "and.pred") else {guard}

    def _otherwise(self, held: Node | None, guard: Node, node: Node) -> Node | None:
        """What a register has where a guard does not hold, if it has a node where it does; None if it has another."""
        shape = ("",) if held is None else self.nodes.shapes[held]
        if shape[:3] == ("sel", guard, node):
            return int(shape[3])
        if shape[0] == "sel" and shape[1] == self.nodes.negated(guard) and shape[3] == node:
            return int(shape[2])
        return None

    def _predicate(self, side: int, registers: Registers, register: str, truth: bool) -> Node:
        node = registers.get(register)
        if node is None:
            node = self._nothing(side, register)
        return node if truth else self.nodes.negated(node)

    def _computed(self, side: int, registers: Registers, step: GuardedStep) -> list[Node | None]:
        bits = [self._width(side, register) if register else 1 for register in step.results]
        sources = list(self._operands(side, registers, step))
        if step.opcode.startswith("ld.param"):
            # The parameter is the operand's text.
            return [
                self.nodes.of(("atom", "parameter", step.opcode.rpartition(".")[2], step.sources[0], place), width)
                for place, width in enumerate(bits)
            ]
        if len(step.results) == 1 and len(sources) == len(step.sources):
            return [self.nodes.computed(step.opcode, sources, bits[0])]
        # Halves that are put together or taken apart, and comparisons of two results.
        return [
            self.nodes.of(("op", f"{step.opcode} {len(step.results)}:{place}", *sources), width)
            for place, width in enumerate(bits)
        ]

    def _operands(self, side: int, registers: Registers, step: GuardedStep) -> Iterator[Node]:
        for operand in step.sources:
            if operand.startswith("{"):
                parts = _PARTED.sub(" ", operand).split(",")
            elif operand.startswith("[") and "," in operand:
                # The coordinates of a tensor copy: what is between them is a name of its own.
                parts = [*self.sides[side].program.registers(operand), _REGISTER.sub("", operand)]
            else:
                parts = [operand]
            for part in parts:
                yield self._operand(side, registers, step, part.strip())

    def _operand(self, side: int, registers: Registers, step: GuardedStep, operand: str) -> Node:
        program = self.sides[side].program
        if operand.startswith("!"):
            return self.nodes.negated(self._operand(side, registers, step, operand[1:].strip()))
        if operand.startswith("%kept.") or program.registers(operand) == [operand]:
            node = registers.get(operand)
            return self._nothing(side, operand) if node is None else node
        if _INTEGER.match(operand):
            return self.nodes.integer(_number(operand), _literal_bits(step, operand))
        if (match := _FLOAT.match(operand)) is not None:
            return self.nodes.integer(int(match[1], 16), 4 * len(match[1]))
        if _STEADY.match(operand) or operand in _STEADY_MORE:
            return self.nodes.of(("atom", "steady", operand), 32)
        if (match := _ADDRESS.match(operand)) is not None:
            base = self._operand(side, registers, step, match[1])
            offset = _number(match[2]) if match[2] else 0
            bits = self.nodes.widths[base]
            # An address is a sum like others.
            return self.nodes.total(bits, offset, [(base, 1)])
        if program.registers(operand):
            raise NoProof(f"what {operand} is")
        if operand.startswith("%"):
            return self.nodes.of(("atom", "changing", side, operand, len(self.nodes.shapes)), 32)
        return self.nodes.of(("atom", "name", operand), 64)


def _number(literal: str) -> int:
    """The value of an integer of PTX.

    Raises:
        NoProof: it is one that Python reads in another way, such as an octal one.
    """
    try:
        return int(literal.rstrip("U"), 0)
    except ValueError:
        raise NoProof(f"what {literal} is") from None


def _literal_bits(step: GuardedStep, operand: str) -> int:
    if step.opcode.startswith("mad.wide") and operand in step.sources[2:]:
        # What is added is as wide as the result. A factor of the same text is one that nobody proves anything of.
        return 64
    if step.name in ("shl", "shr"):
        return 32
    match = re.search(r"\.(?:[subf]|bf)(8|16|32|64)$", step.opcode)
    if step.opcode.endswith(".pred"):
        return 1
    return int(match[1]) if match else 64


def _in_order(onward: Mapping[tuple[int, int], Iterable[tuple[int, int]]]) -> list[tuple[int, int]]:
    """Paths in reverse postorder: all but the ends of loops come before what is behind them."""
    order: list[tuple[int, int]] = []
    seen = {(0, 0)}
    stack = [((0, 0), iter(onward[0, 0]))]
    while stack:
        pair, behind = stack[-1]
        for each in behind:
            if each not in seen:
                seen.add(each)
                stack.append((each, iter(onward[each])))
                break
        else:
            order.append(pair)
            stack.pop()
    return order[::-1]


def _live_registers(paths: Paths) -> dict[int, set[str]]:
    """By path, the registers that are read before they are written for sure."""
    used: dict[int, set[str]] = {}
    killed: dict[int, set[str]] = {}
    for number, path in paths.held.items():
        reads: set[str] = set()
        writes: set[str] = set()
        for step in path.steps:
            named = {name for operand in step.sources for name in _named(paths.program, operand)}
            named |= {register for register, _ in step.guards}
            if step.guards:
                # What is not written keeps what it had.
                named |= {each for each in step.results if each}
            reads |= named - writes
            writes |= {each for each in step.results if each}
        if path.predicate is not None and path.predicate[0] not in writes:
            reads.add(path.predicate[0])
        used[number], killed[number] = reads, writes
    live = {number: set(reads) for number, reads in used.items()}
    changed = True
    while changed:
        changed = False
        for number, path in paths.held.items():
            behind = {name for onward in path.onward if onward >= 0 for name in live[onward]}
            grown = used[number] | behind - killed[number]
            if grown != live[number]:
                live[number], changed = grown, True
    return live


def _named(program: EntryCode, operand: str) -> list[str]:
    return [operand] if operand.startswith("%kept.") else program.registers(operand)
