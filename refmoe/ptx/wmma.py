"""`wmma.load`, `wmma.store` and `wmma.mma` as the loads, stores and `mma.sync` that they stand for.

PTX leaves open how the lanes of a warp share a matrix. Here they do as ptxas 13.0 has it for sm_90: a matrix is one or
two tiles of `mma.sync`, and a lane holds of each what that instruction wants of it (`refmoe.ptx.tensor`). With g = lane
/ 4, t = lane % 4, and p elements in a register,

    operand    tiles            element of the first register    further registers of a tile
    16 rows    [16, K]          (g, p t ..)                      row + 8, then column + 4p
    8 columns  [K, 8]           (p t .., g)                      row + 4p
    C, D       [16, 8], [8, 8]  (g, 2t), (g, 2t + 1)             row + 8

    m16n16     A 16 rows, B two times 8 columns        m32n8      A two times 16 rows, B 8 columns
    m8n8       A 8 rows, B 8 columns                   m8n32      transposed: B two times 16 columns, A 8 rows

Of FP16 an operand always has eight registers: those that a tile leaves over repeat the first. TF32 is multiplied in two
halves of K, by `mma.m16n8k4` (HMMA.1684), and everything else by one instruction a tile.

The lanes of a warp must take part together; a pseudo-instruction, `wmma.aligned`, sees to it in front of loads and
stores. That addresses are aligned as PTX asks is not checked beyond the words that a lane loads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from refmoe.ptx.syntax import (
    Address,
    Immediate,
    Instruction,
    Operand,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)

ALIGNED = "wmma.aligned"
_LANE = Special("%laneid")
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
# Instructions behind which lanes may be apart.
_PARTS = ("bra", "brx", "call", "ret", "exit", "trap", "bar", "barrier", "mbarrier")
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
class Shape:
    """M, N and K of an instruction, and how they are tiles of `mma.sync`."""

    m: int
    n: int
    k: int

    @classmethod
    def of(cls, part: str) -> Shape | None:
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
    """The instructions that a `wmma` instruction stands for; any other, and one that is not known here, as it is."""
    parts = instruction.opcode.split(".")
    if parts[0] != "wmma":
        return [instruction]
    if parts[1:2] == ["mma"]:
        return _product(instruction, parts[2:]) or [instruction]
    if parts[1:2] in (["load"], ["store"]) and parts[3:5] == ["sync", "aligned"]:
        return _transfer(instruction, parts) or [instruction]
    return [instruction]


def stays_together(instruction: Instruction) -> bool:
    """Whether lanes that ran the instruction in front of this one together also run the one behind it together."""
    # A guard may become a branch.
    return instruction.guard is None and instruction.opcode.split(".")[0] not in _PARTS


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


class _Pointers(_Sequence):
    """Loads or stores of a lane: `base` is its first element, and `pitch` the bytes from a line to the next."""

    def __init__(self, instruction: Instruction, space: str, *, strided: bool, bits: int) -> None:
        super().__init__(instruction)
        self.space = f".{space}" if space else ""
        self.strided = strided
        self.bits = bits
        self.pitch: Operand = Immediate(0)
        self.offset = 0
        self._lines: dict[int, Register] = {}

    def begin(self, address: Address, pitch: Operand, per_register: int) -> None:
        """Compute where a lane's first element lies. `strided`: g counts lines, and t elements of one."""
        base, step = _temporary("base", "b64"), _temporary("pitch", "b64")
        g, t, wide = _temporary("g", "b32"), _temporary("t", "b32"), _temporary("wide", "b64")
        self.add(ALIGNED, guarded=True)
        self.add("shr.u32", g, _LANE, Immediate(2))
        self.add("and.b32", t, _LANE, Immediate(3))
        lines, elements = (g, t) if self.strided else (t, g)
        # Lanes that differ in t lie as many elements apart, or as many lines, as a register has elements.
        apart, bytes_of = (1, per_register) if self.strided else (per_register, 1)
        if isinstance(pitch, Immediate):
            self.add("mul.wide.u32", wide, lines, Immediate(apart * pitch.value * self.bits // 8))
        else:
            self.add("mul.wide.u32", step, pitch, Immediate(self.bits))
            self.add("shr.u64", step, step, Immediate(3))
            self.add("mul.wide.u32", wide, lines, Immediate(apart))
            self.add("mul.lo.u64", wide, wide, step)
        self.add("mad.wide.u32", wide, elements, Immediate(bytes_of * self.bits // 8), wide)
        if isinstance(address.base, Register) and address.base.kind == "b32":
            self.add("cvt.u64.u32", base, address.base)
            self.add("add.u64", base, base, wide)
        else:
            self.add("add.u64", base, wide, address.base)
        self.pitch, self.offset = pitch, address.offset
        self._lines = {0: base}

    def place(self, u: int, v: int) -> Address:
        """The address of the element that lies `u` along g and `v` along t from the lane's first."""
        line, element = (u, v) if self.strided else (v, u)
        within = self.offset + element * self.bits // 8
        if isinstance(self.pitch, Immediate):
            return Address(self._lines[0], within + line * self.pitch.value * self.bits // 8)
        if line not in self._lines:
            self._lines[line] = _temporary(f"line{line}", "b64")
            step = _temporary("pitch", "b64")
            self.add("mad.lo.u64", self._lines[line], step, Immediate(line), self._lines[0])
        return Address(self._lines[line], within)

    def load(self, register: Operand, u: int, v: int, count: int) -> None:
        """Load `count` neighbours along t into a register."""
        if isinstance(register, Sink):
            register = _temporary("unused", "b64" if self.bits == 64 else "b32")
        if self.strided or count == 1:
            self.add(f"ld{self.space}.b{self.bits * count}", register, self.place(u, v), guarded=True)
            return
        kind = "b16" if self.bits == 16 else "b32"
        held = [_temporary(f"element{each}", kind) for each in range(count)]
        for each, element in enumerate(held):
            self.add(f"ld{self.space}.u{self.bits}", element, self.place(u, v + each), guarded=True)
        if self.bits == 16:
            self.add("mov.b32", register, Vector(tuple(held)), guarded=True)
            return
        whole = held.pop()
        while held:
            self.add("mad.lo.u32", whole, whole, Immediate(1 << self.bits), held.pop())
        self.add("mov.b32", register, whole, guarded=True)

    def store(self, register: Operand, u: int, v: int, count: int) -> None:
        """Store `count` neighbours along t from a register."""
        if self.strided or count == 1:
            self.add(f"st{self.space}.b{self.bits * count}", self.place(u, v), register, guarded=True)
            return
        held = [_temporary(f"element{each}", "b16") for each in range(count)]
        self.add("mov.b32", Vector(tuple(held)), register)
        for each, element in enumerate(held):
            self.add(f"st{self.space}.b{self.bits}", self.place(u, v + each), element, guarded=True)


def _transfer(instruction: Instruction, parts: list[str]) -> list[Instruction] | None:
    """`wmma.load.a`, `.b`, `.c` or `wmma.store.d`; None for another spelling."""
    loads, operand = parts[1] == "load", parts[2]
    rest, name = parts[5:-1], parts[-1]
    shape = next((found for part in rest if (found := Shape.of(part))), None)
    layouts = [part for part in rest if part in ("row", "col")]
    spaces = [part for part in rest if part in _SPACES]
    operands = instruction.operands
    if shape is None or len(layouts) != 1 or len(spaces) > 1 or len(rest) != 2 + len(spaces):
        return None
    if operand not in (("a", "b", "c") if loads else ("d",)) or not 2 <= len(operands) <= 3 or name not in _BITS:
        return None
    by_row, space, bits = layouts[0] == "row", "".join(spaces), _BITS[name]
    address, fragment = (operands[1], operands[0]) if loads else (operands[0], operands[1])
    registers = fragment.elements if isinstance(fragment, Vector) else (fragment,)
    if not isinstance(address, Address) or (isinstance(address.base, Symbol) and not space):
        return None
    if operand in ("a", "b"):
        if not shape.fits(name):
            return None
        # Along K lies t: a line is a row of A, or a column of B, where K runs along it.
        strided, count, places = by_row == (operand == "a"), max(1, 32 // bits), shape.places(operand, bits)
        lines = (shape.k if strided else shape.m) if operand == "a" else (shape.k if strided else shape.n)
        if bits < 8 and not strided:
            return None
    else:
        if not any(shape.fits(each) and name in _SUMS.get(each, ("s32",)) for each in _SHAPES):
            return None
        strided, count = by_row != shape.transposed, 32 // bits if bits < 32 else 1
        places = shape.sums()[::count]
        lines = shape.n if by_row else shape.m
    repeats = _HALF_REGISTERS // len(places) if name == "f16" and operand in ("a", "b") else 1
    if len(registers) != len(places) * repeats:
        return None
    work = _Pointers(instruction, space, strided=strided, bits=bits)
    pitch = operands[2] if len(operands) == 3 else Immediate(lines)
    work.begin(address, pitch, 2 if operand in ("c", "d") else count)
    for register, (u, v) in zip(registers, places, strict=False):
        (work.load if loads else work.store)(register, u, v, count)
    for register, first in zip(registers[len(places) :], registers * repeats, strict=False):
        if isinstance(register, Register):
            work.add("mov.b32", register, first if isinstance(first, Register) else Immediate(0), guarded=True)
    return work.made


def _product(instruction: Instruction, parts: list[str]) -> list[Instruction] | None:
    """`wmma.mma`; None for another spelling."""
    shape = next((found for part in parts if (found := Shape.of(part))), None)
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
    instruction: Instruction, shape: Shape, types: list[str], modifiers: list[str], operands: list[tuple[Operand, ...]]
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
