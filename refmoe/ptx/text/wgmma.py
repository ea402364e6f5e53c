"""`wgmma`: the spellings of the product of a warpgroup, and which registers it uses while it runs.

D [64, N] = A [64, K] * B [K, N] + D, by the four warps of a warpgroup. A row of A and a column of B have 32 bytes of
elements in every type, so that K follows from the type. A comes from four registers of each lane or, like B, from
shared memory, where a matrix descriptor says how it lies. (PTX ISA, "wgmma.mma_async".)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from refmoe.ptx.text.syntax import Immediate, Instruction, Operand, Register, Sink, Vector

WARPS = 4
"""Of a warpgroup; the first is a multiple of that."""
ROWS = 64
"""Of A and of D."""
ROW_BYTES = 32
"""Of a row of A or a column of B, which is twice that where A is sparse."""
A_REGISTERS = 4
"""Of A in each lane, where it comes from registers."""

_OPCODE = re.compile(
    r"wgmma\.mma_async(?P<sparse>\.sp)?\.sync\.aligned\.m64n(?P<n>\d+)k(?P<k>\d+)(?P<saturates>\.satfinite)?"
    r"\.(?P<d>f32|f16|s32)\.(?P<a>\w+)\.(?P<b>\w+)(?P<popc>\.and\.popc)?"
)
_FP8, _BYTES = ("e4m3", "e5m2"), ("s8", "u8")
# Bits of an element by its type.
_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "b1": 1}
# Types of D that go with each type of A.
_SUMS = {
    "f16": ("f16", "f32"),
    "bf16": ("f32",),
    "tf32": ("f32",),
    **dict.fromkeys(_FP8, ("f16", "f32")),
    **dict.fromkeys((*_BYTES, "b1"), ("s32",)),
}
_ANY_N = range(8, 257, 8)
_INTEGER_N = (8, 24, *range(16, 257, 16))


@dataclass(frozen=True)
class Form:
    """What a spelling of `wgmma.mma_async` multiplies.

    Attributes:
        n: columns of B and D.
        a: the type of A's elements.
        b: of B's.
        d: of the accumulators.
        saturates: `.satfinite`, of integers.
        sparse: `.sp`: of four neighbouring elements of A two are stored.
    """

    n: int
    a: str
    b: str
    d: str
    saturates: bool = False
    sparse: bool = False

    @property
    def bits(self) -> int:
        """Of an element of A or B."""
        return _BITS[self.a]

    @property
    def k(self) -> int:
        """Elements of a column of B, and of a row of A with those that a sparse one does not store."""
        return 8 * self.column_bytes // self.bits

    @property
    def column_bytes(self) -> int:
        """Of a column of B."""
        return ROW_BYTES * (2 if self.sparse else 1)

    @property
    def shape(self) -> str:
        """As in the spelling."""
        return f"m{ROWS}n{self.n}k{self.k}"

    @property
    def accumulators(self) -> int:
        """Registers of D in each lane: an element each, or two of FP16."""
        return self.n // (4 if self.d == "f16" else 2)

    @property
    def negates(self) -> bool:
        """Whether it has operands that negate A and B."""
        return self.d != "s32"

    @property
    def transposes(self) -> bool:
        """Whether it has operands that say along which dimension A and B lie in shared memory."""
        return self.bits == 16


@dataclass(frozen=True)
class Operands:
    """The operands of a `wgmma.mma_async`.

    Attributes:
        d: registers of the accumulators.
        a: registers of A, or None.
        a_place: A's matrix descriptor, or None.
        b_place: B's.
        metadata: of a sparse A, and the lanes that hold it, or None.
        selector: which lanes hold the metadata.
        adds: the predicate, or constant, that says whether D is added: `scale-d`.
        a_sign, b_sign: 1 or -1.
        a_across, b_across: whether rows of A, or columns of B, lie side by side in shared memory, instead of the
            elements of one.
    """

    d: tuple[Operand, ...]
    a: tuple[Operand, ...] | None
    a_place: Operand | None
    b_place: Operand
    metadata: Operand | None
    selector: int
    adds: Operand
    a_sign: int
    b_sign: int
    a_across: bool
    b_across: bool


def is_product(instruction: Instruction) -> bool:
    """Whether an instruction is a `wgmma.mma_async`: it runs on while later instructions do."""
    return instruction.opcode.startswith("wgmma.mma_async.")


def form_of(opcode: str) -> Form | None:
    """What a spelling of `wgmma.mma_async` multiplies; None for one that PTX does not have."""
    match = _OPCODE.fullmatch(opcode)
    if match is None:
        return None
    form = Form(int(match["n"]), match["a"], match["b"], match["d"], bool(match["saturates"]), bool(match["sparse"]))
    if form.d not in _SUMS.get(form.a, ()) or form.n not in (_INTEGER_N if form.d == "s32" else _ANY_N):
        return None
    alike = next((types for types in (_FP8, _BYTES) if form.a in types), (form.a,))
    bytes_only = form.saturates and form.a not in _BYTES
    if form.b not in alike or bytes_only or bool(match["popc"]) != (form.a == "b1") or (form.sparse and form.a == "b1"):
        return None
    return form if form.k == int(match["k"]) else None


def operands_of(form: Form, instruction: Instruction) -> Operands:
    """The operands of an instruction of that form.

    Raises:
        ValueError: one that does not fit.
    """
    given = list(instruction.operands)
    d = _registers(given.pop(0) if given else None, form.accumulators, "D")
    held = isinstance(given[0], Vector) if given else False
    across = 0 if not form.transposes else 1 if held else 2
    needed = 3 + 2 * form.sparse + 2 * form.negates + across
    if len(given) != needed:
        raise ValueError(f"{needed + 1} operands needed, not {len(given) + 1}")
    first, b_place = given.pop(0), given.pop(0)
    metadata, selector = (given.pop(0), _constant(given.pop(0), (0, 1), "a selector")) if form.sparse else (None, 0)
    adds = given.pop(0)
    signs = [_constant(given.pop(0), (1, -1), f"imm-scale-{name}") for name in ("a", "b") if form.negates]
    bits = [bool(_constant(each, (0, 1), "imm-trans")) for each in given]
    a_across, b_across = ([False] if held else []) + bits if bits else (False, False)
    a_sign, b_sign = signs or (1, 1)
    a = _registers(first, A_REGISTERS, "A") if held else None
    a_place = None if held else first
    return Operands(d, a, a_place, b_place, metadata, selector, adds, a_sign, b_sign, a_across, b_across)


def registers_in_use(instruction: Instruction) -> tuple[list[Register], list[Register]]:
    """The registers of D, and those of A, that a product uses until it is waited for."""
    # Asked of products too whose operands do not fit, before anybody refuses them.
    d, a = (
        [each for each in (operand.elements if isinstance(operand, Vector) else ()) if isinstance(each, Register)]
        for operand in (*instruction.operands, Sink(), Sink())[:2]
    )
    return d, a


def _registers(operand: Operand | None, count: int, name: str) -> tuple[Operand, ...]:
    elements = operand.elements if isinstance(operand, Vector) else ()
    if len(elements) != count or not all(isinstance(each, Register) and each.kind == "b32" for each in elements):
        raise ValueError(f"{name}: a vector of {count} registers of 32 bits needed")
    return elements


def _constant(operand: Operand, allowed: tuple[int, ...], name: str) -> int:
    value = operand.value if isinstance(operand, Immediate) and operand.form == "int" else None
    if value not in allowed:
        raise ValueError(f"{name}: the constant {' or '.join(map(str, allowed))} needed")
    assert value is not None
    return value
