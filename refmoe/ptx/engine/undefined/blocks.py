"""What the following of undefined values has to know of the code, found once in a launch for each block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from refmoe.ptx.program.blocks import Block
from refmoe.ptx.program.registers import results_and_uses
from refmoe.ptx.program.unwritten import instructions_of, uses_of
from refmoe.ptx.text.syntax import Instruction, Register
from refmoe.ptx.text.wgmma import is_product

# Of these the result may be undefined though no register that they read is.
_BEGINNERS = frozenset(("ld", "ldu", "ldmatrix", "atom", "red", "shfl"))


@dataclass(frozen=True)
class FollowedInstruction:
    """An instruction of a block.

    Attributes:
        instruction: itself.
        stem: its opcode up to the first dot.
        results: the registers that it writes.
        uses: those that it reads when it runs, its guard included.
        quiet: whether all of its results are defined where all that it uses is.
        product: whether it is a product of a warpgroup.
        decided: whether a CAS has told what it compares, see `decided_by_swaps`.
    """

    instruction: Instruction
    stem: str
    results: tuple[Register, ...]
    uses: tuple[Register, ...]
    quiet: bool
    product: bool
    decided: bool


@dataclass(frozen=True)
class FollowedBlock:
    """A block.

    Attributes:
        instructions: of it, its terminator last if there is one.
        homes: numbers of the homes of all registers that they name.
    """

    instructions: tuple[FollowedInstruction, ...]
    homes: frozenset[int]


def followed_block(
    block: Block, homes: Mapping[str, tuple[int, str]], decided: frozenset[Instruction]
) -> FollowedBlock:
    """What is to be known of a block.

    Args:
        block: it.
        homes: (number, kind) of each register that lives across blocks, by name.
        decided: see `decided_by_swaps`.
    """
    instructions = tuple(_followed(each, each in decided) for each in instructions_of(block))
    named = {register.name for each in instructions_of(block) for part in results_and_uses(each) for register in part}
    return FollowedBlock(instructions, frozenset(homes[name][0] for name in named & homes.keys()))


def _followed(instruction: Instruction, decided: bool) -> FollowedInstruction:
    stem, product = instruction.opcode.split(".")[0], is_product(instruction)
    # A product uses more registers than `uses_of` says.
    quiet = not (stem in _BEGINNERS or instruction.opcode.startswith("wmma.load") or product)
    results, uses = tuple(results_and_uses(instruction)[0]), tuple(uses_of(instruction))
    return FollowedInstruction(instruction, stem, results, uses, quiet, product, decided)
