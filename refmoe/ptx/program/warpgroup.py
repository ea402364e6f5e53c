"""Which instructions may touch registers that a product of a warpgroup uses: a forward analysis of an entry.

`wgmma.mma_async` uses its accumulators, and the registers of A, until a `wgmma.wait_group` that waits for its group,
and between any other access of them and a product stands a `wgmma.fence`. (PTX ISA, "wgmma.fence", "wgmma.wait_group".)
Whether an instruction breaks a rule is decided when it runs. Here are those for which some way through the entry, taken
or not, would: of most entries there are none, and nothing else has to be looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

from refmoe.ptx.program.blocks import Program
from refmoe.ptx.program.registers import operands_of
from refmoe.ptx.text.syntax import Immediate, Instruction
from refmoe.ptx.text.wgmma import is_product, registers_in_use

FENCE, COMMIT, WAIT = "wgmma.fence.sync.aligned", "wgmma.commit_group.sync.aligned", "wgmma.wait_group.sync.aligned"


@dataclass
class _State:
    """What may hold at a point; registers are a bit each.

    Attributes:
        running: by the number of groups closed since, registers of products that may not have been waited for.
        touched: those that something else may have accessed since the last fence.
    """

    running: list[int]
    touched: int = 0

    def joined(self, other: _State) -> _State:
        """What may hold where two ways meet."""
        running = [one | another for one, another in zip(self.running, other.running, strict=True)]
        return _State(running, self.touched | other.touched)

    @property
    def used(self) -> int:
        found = 0
        for registers in self.running:
            found |= registers
        return found


class _Analysis:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.numbers: dict[str, int] = {}
        self.suspects: set[Instruction] = set()
        self.unfenced = 0
        self.bodies = [
            [each for each in (*block.instructions, block.terminator.instruction) if each is not None]
            for block in program.blocks
        ]
        for each in (each for body in self.bodies for each in body if is_product(each)):
            for register in (register for registers in registers_in_use(each) for register in registers):
                self.numbers.setdefault(register.name, len(self.numbers))
        # Groups that a wait may leave alone, and one more.
        self.ages = 2 + max((_kept(each) for body in self.bodies for each in body if each.opcode == WAIT), default=0)
        self.masks = {id(each): self._mask(each) for body in self.bodies for each in body}

    def _mask(self, instruction: Instruction) -> int:
        if is_product(instruction):
            named = [register for registers in registers_in_use(instruction) for register in registers]
        else:
            written, read = operands_of(instruction)
            named = [*written, *read]
        found = 0
        for register in named:
            if register.name in self.numbers:
                found |= 1 << self.numbers[register.name]
        return found

    def run(self) -> None:
        into: dict[int, _State] = {0: _State([0] * (self.ages + 1))}
        work = [0]
        while work:
            place = work.pop()
            state = self._through(place, into[place])
            for target in self.program.blocks[place].terminator.targets:
                before = into.get(target)
                after = state if before is None else before.joined(state)
                if after != before:
                    into[target] = after
                    work.append(target)
        self.suspects.update(
            each
            for place in into
            for each in self.bodies[place]
            if not is_product(each) and self.masks[id(each)] & self.unfenced
        )

    def _through(self, place: int, state: _State) -> _State:
        running, touched = list(state.running), state.touched
        for each in self.bodies[place]:
            mask = self.masks[id(each)]
            if is_product(each):
                self.unfenced |= mask & touched
                running[0] |= mask
            elif each.opcode == FENCE:
                touched = 0
            elif each.opcode == COMMIT:
                running = [0, *running[:-2], running[-2] | running[-1]]
            elif each.opcode == WAIT:
                # Products of no group yet are not waited for.
                running = [held if age <= _kept(each) else 0 for age, held in enumerate(running)]
            elif mask:
                touched |= mask
                if mask & _State(running).used:
                    self.suspects.add(each)
        return _State(running, touched)


def _kept(wait: Instruction) -> int:
    """Groups that a wait leaves alone; operands that do not fit are found elsewhere."""
    operand = wait.operands[0] if wait.operands else None
    return max(operand.value, 0) if isinstance(operand, Immediate) else 0


def may_touch(program: Program) -> frozenset[Instruction]:
    """The instructions other than `wgmma` that may touch registers of a running product, or lack a fence before it."""
    if not any(is_product(each) for block in program.blocks for each in block.instructions):
        return frozenset()
    analysis = _Analysis(program)
    analysis.run()
    return frozenset(analysis.suspects)
