"""`wmma`: how the lanes of a warp share matrices, and `wmma.mma` as the `mma.sync` that it stands for.

PTX leaves open how the lanes of a warp share a matrix. Here they do as ptxas 13.0 has it for sm_90: a matrix is one or
two tiles of `mma.sync`, and a lane holds of each what that instruction wants of it (`refmoe.ptx.engine.tensor.mma`).
With g = lane / 4, t = lane % 4, and p elements in a register,

    operand    tiles            element of the first register    further registers of a tile
    16 rows    [16, K]          (g, p t ..)                      row + 8, then column + 4p
    8 columns  [K, 8]           (p t .., g)                      row + 4p
    C, D       [16, 8], [8, 8]  (g, 2t), (g, 2t + 1)             row + 8

    m16n16     A 16 rows, B two times 8 columns        m32n8      A two times 16 rows, B 8 columns
    m8n8       A 8 rows, B 8 columns                   m8n32      transposed: B two times 16 columns, A 8 rows

Of FP16 an operand always has eight registers: those that a tile leaves over repeat the first. TF32 is multiplied in two
halves of K, by `mma.m16n8k4` (HMMA.1684), and everything else by one instruction a tile.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from refmoe.ptx.text.syntax import Instruction, Operand, Register, Sink, Vector

_SHAPE = re.compile(r"m(8|16|32)n(8|16|32)k(\d+)")
_SPACES = ("global", "shared", "shared::cta")
# Bits of an element in memory, and of the register that holds one or several.
_BITS = {
    "f16": 16,
    "bf16": 16,
    "tf32": 32,
    "s8": 8,
    "u8": 8,
    "s4": 4,
    "u4": 4,
    "b1": 1,
    "f64": 64,
    "f32": 32,
    "s32": 32,
}
_HALF_REGISTERS = 8
_SQUARE = ("m16n16", "m32n8", "m8n32")
# Shapes of each type of A and B, as (rows and columns, K).
_SHAPES: dict[str, tuple[tuple[str, ...], int]] = {
    **dict.fromkeys(("f16", "bf16", "s8", "u8"), (_SQUARE, 16)),
    "tf32": (("m16n16",), 8),
    **dict.fromkeys(("s4", "u4"), (("m8n8",), 32)),
    "b1": (("m8n8",), 128),
    "f64": (("m8n8",), 4),
}
# Types of C and D that go with them.
_SUMS = {"f16": ("f16", "f32"), "bf16": ("f32",), "tf32": ("f32",), "f64": ("f64",)}


@dataclass(frozen=True)
class WmmaShape:
    """M, N and K of an instruction, and how they are tiles of `mma.sync`."""

    m: int
    n: int
    k: int

    @classmethod
    def of(cls, part: str) -> WmmaShape | None:
        """The shape of that name, or None."""
        match = _SHAPE.fullmatch(part)
        return None if match is None else cls(*map(int, match.groups()))

    @property
    def outline(self) -> str:
        """`m16n16`."""
        return f"m{self.m}n{self.n}"

    @property
    def transposed(self) -> bool:
        """Whether B's columns are the rows of the tiles."""
        return self.n == 32

    def fits(self, name: str) -> bool:
        """Whether A and B of that type have this shape."""
        outlines, k = _SHAPES.get(name, ((), 0))
        return self.outline in outlines and self.k == k

    def places(self, operand: str, bits: int) -> list[tuple[int, int]]:
        """(row or column, step of K) that each register of A or B adds to its lane's first element."""
        outer, per_register = (self.m if operand == "a" else self.n), max(1, 32 // bits)
        tall = outer == 32 or (outer == 16 and operand == "a")
        steps = range(0, self.k, 4 * per_register)
        tile = [(upper, k) for k in steps for upper in ((0, 8) if tall else (0,))]
        return [(first + upper, k) for first in range(0, outer, 16 if tall else 8) for upper, k in tile]

    def sums(self) -> list[tuple[int, int]]:
        """(place along g, place along t) that each element of C adds to its lane's first."""
        if self.outline == "m8n8":
            return [(0, 0), (0, 1)]
        tile = [(0, 0), (0, 1), (8, 0), (8, 1)]
        along_t = self.outline == "m16n16"
        seconds = ((0, 0), (0, 8) if along_t else (16, 0))
        return [(u + first, v + second) for first, second in seconds for u, v in tile]


def lowered(instruction: Instruction) -> list[Instruction]:
    """The instructions that a `wmma.mma` stands for; any other, and one that is not known here, as it is."""
    parts = instruction.opcode.split(".")
    if parts[0] != "wmma":
        return [instruction]
    return (_product(instruction, parts[2:]) if parts[1:2] == ["mma"] else None) or [instruction]


def _temporary(name: str, kind: str) -> Register:
    return Register(f"@wmma:{name}", kind)


class _Sequence:
    """Instructions in the place of one."""

    def __init__(self, instruction: Instruction) -> None:
        self.instruction = instruction
        self.made: list[Instruction] = []

    def add(self, opcode: str, *operands: Operand, guarded: bool = False) -> None:
        """Append an instruction; one that touches memory or a register of the program has the guard."""
        guard = self.instruction.guard if guarded else None
        negated = self.instruction.negated and guarded
        self.made.append(replace(self.instruction, opcode=opcode, operands=operands, guard=guard, negated=negated))


@dataclass(frozen=True)
class Transfer:
    """What a `wmma.load` or `wmma.store` moves.

    Attributes:
        loads: whether it is a load.
        space: as written, `""` for generic addresses.
        bits: of an element.
        lines_along_g: whether g counts lines of memory, and t elements of one, or the other way round.
        count: elements of a register.
        apart: elements, or lines, from one t to the next.
        pitch: elements from a line to the next where the instruction does not say.
        places: what each register adds to its lane's first element, (along g, along t).
        registers: of a fragment; those behind `places` repeat the first.
    """

    loads: bool
    space: str
    bits: int
    lines_along_g: bool
    count: int
    apart: int
    pitch: int
    places: tuple[tuple[int, int], ...]
    registers: int


def transfer(opcode: str) -> Transfer | None:
    """What `wmma.load.a`, `.b`, `.c` or `wmma.store.d` moves; None for another spelling."""
    parts = opcode.split(".")
    if len(parts) < 6 or parts[0] != "wmma" or parts[3:5] != ["sync", "aligned"]:
        return None
    operand, rest, name = parts[2], parts[5:-1], parts[-1]
    shape = next((found for part in rest if (found := WmmaShape.of(part))), None)
    layouts = [part for part in rest if part in ("row", "col")]
    spaces = [part for part in rest if part in _SPACES]
    if shape is None or len(layouts) != 1 or len(spaces) > 1 or len(rest) != 2 + len(spaces) or name not in _BITS:
        return None
    if operand not in {"load": ("a", "b", "c"), "store": ("d",)}.get(parts[1], ()):
        return None
    by_row, bits = layouts[0] == "row", _BITS[name]
    if operand in ("a", "b"):
        # Along K lies t: a line is a row of A, or a column of B, where K runs along it.
        along_g, count = by_row == (operand == "a"), max(1, 32 // bits)
        if not shape.fits(name) or (bits < 8 and not along_g):
            return None
        places, apart = shape.places(operand, bits), count
        pitch = shape.k if along_g else (shape.m if operand == "a" else shape.n)
        registers = _HALF_REGISTERS if name == "f16" else len(places)
    else:
        if not any(shape.fits(each) and name in _SUMS.get(each, ("s32",)) for each in _SHAPES):
            return None
        along_g, count, apart = by_row != shape.transposed, 32 // bits if bits < 32 else 1, 2
        places, pitch = shape.sums()[::count], shape.n if by_row else shape.m
        registers = len(places)
    space = "".join(spaces).split("::")[0]
    return Transfer(parts[1] == "load", space, bits, along_g, count, apart, pitch, tuple(places), registers)


def _product(instruction: Instruction, parts: list[str]) -> list[Instruction] | None:
    """`wmma.mma`; None for another spelling."""
    shape = next((found for part in parts if (found := WmmaShape.of(part))), None)
    modifiers = [part for part in parts if part in ("xor", "and", "popc", "satfinite", "rn", "rz", "rm", "rp")]
    types = [part for part in parts if part in _BITS]
    layouts = [part for part in parts if part in ("row", "col")]
    if shape is None or len(layouts) != 2 or len(instruction.operands) != 4:
        return None
    if len(parts) != len(modifiers) + len(types) + 5 or not {"sync", "aligned"} <= set(parts):
        return None
    if len(types) == 2:
        # The types of A and B are left out where they are FP16.
        types = [types[0], "f16", "f16", types[1]]
    if len(types) != 4 or types[0] != types[3] or types[0] not in _SUMS.get(types[1], ("s32",)):
        return None
    _, a_type, b_type, _ = types
    if not shape.fits(a_type) or not shape.fits(b_type) or ("satfinite" in modifiers and types[0] != "s32"):
        return None
    operands = [each.elements if isinstance(each, Vector) else (each,) for each in instruction.operands]
    return _tiles(instruction, shape, types, modifiers, operands)


def _tiles(
    instruction: Instruction,
    shape: WmmaShape,
    types: list[str],
    modifiers: list[str],
    operands: list[tuple[Operand, ...]],
) -> list[Instruction] | None:
    """An `mma.sync` for each tile, or two for the halves of K of TF32."""
    (d, a, b, c), (sums, a_type, b_type, _) = operands, types
    bits = _BITS[a_type]
    a_count, b_count = len(shape.places("a", bits)), len(shape.places("b", bits))
    needed = [_HALF_REGISTERS] * 2 if a_type == "f16" else [a_count, b_count]
    count = len(shape.sums()) // (2 if sums == "f16" else 1)
    if [len(each) for each in (d, a, b, c)] != [count, *needed, count]:
        return None
    rows, columns = a[:a_count], b[:b_count]
    if shape.transposed:
        rows, columns, a_type, b_type = columns, rows, b_type, a_type
    of_rows, of_columns = (2 if shape.m == 32 or shape.n == 32 else 1), (2 if shape.outline == "m16n16" else 1)
    tiles, short = of_rows * of_columns, "m8n8" if shape.outline == "m8n8" else "m16n8"
    kind = "b64" if bits == 64 else "b32"
    work = _Sequence(instruction)
    # D may lie where A or B do, or where another tile finds its part of C.
    moved = any(each in (*a, *b, *(c[:at] + c[at + 1 :])) or isinstance(each, Sink) for at, each in enumerate(d))
    made = tuple(_temporary(f"sum{each}", kind) for each in range(count)) if moved else d
    for tile in range(tiles):
        left = _part(rows, tile if of_rows == 2 else 0, of_rows)
        right = _part(columns, tile if of_columns == 2 else 0, of_columns)
        before, after = _part(c, tile, tiles), Vector(_part(made, tile, tiles))
        halves = 2 if a_type == "tf32" else 1
        for half in range(halves):
            opcode = f"mma.sync.aligned.{short}k{shape.k // halves}.row.col"
            opcode = ".".join([opcode, *modifiers, sums, a_type, b_type, sums])
            factors = [Vector(_part(each, half, halves)) for each in (left, right)]
            work.add(opcode, after, *factors, Vector(before), guarded=True)
            before = after.elements
    for register, value in zip(d, made, strict=True):
        if moved and not isinstance(register, Sink):
            work.add(f"mov.{kind}", register, value, guarded=True)
    return work.made


def _part(registers: tuple[Operand, ...], number: int, of: int) -> tuple[Operand, ...]:
    """One of several equal parts."""
    size = len(registers) // of
    return registers[number * size : (number + 1) * size]
