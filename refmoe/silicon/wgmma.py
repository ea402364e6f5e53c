"""Small kernels around one `wgmma.mma_async`, for a GPU and for the executor: operands in, accumulators out.

Each block is a warpgroup that copies one image into its shared memory, takes two matrix descriptors, four registers of
A and its accumulators, multiplies once, and stores its accumulators. Descriptors name places in the image: the kernel
adds where it lies.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx.text.wgmma import A_REGISTERS, Form, form_of

Array = Any
LANES = 128
"""Threads of a warpgroup."""
IMAGE_BYTES = 47 * 1024
"""Of shared memory: what a kernel has without asking, but for 1 KB. Its first byte is a multiple of 1024."""
VERSION = "8.7"
TARGET = "sm_90a"
"""The only architecture that has these instructions."""


@dataclass(frozen=True)
class InstructionKernel:
    """A kernel around one instruction.

    Attributes:
        opcode: the full spelling.
        held: whether A comes from registers.
        a_sign, b_sign: 1 or -1; of integers 1.
        a_across, b_across: of 16-bit elements in shared memory, whether rows or columns lie side by side.
        selector: of a sparse A, whose lanes' metadata are used.
    """

    opcode: str
    held: bool = False
    a_sign: int = 1
    b_sign: int = 1
    a_across: bool = False
    b_across: bool = False
    selector: int = 0

    @property
    def rows(self) -> int:
        """Registers that a lane takes: four of A, and the metadata of a sparse one."""
        return A_REGISTERS + self.form.sparse

    @property
    def together(self) -> int:
        """Registers of D that are one access."""
        return 4 if self.form.accumulators % 4 == 0 else 2

    def packed(self, sums: Array) -> Array:
        """D's registers, uint32 [blocks, registers, 128], as kernels have them: [blocks, accesses, 128, registers]."""
        split = sums.reshape(len(sums), -1, self.together, LANES).transpose(0, 1, 3, 2)
        return np.ascontiguousarray(split, np.uint32)

    def unpacked(self, sums: Array) -> Array:
        """The reverse of `packed`."""
        split = sums.reshape(-1, self.form.accumulators // self.together, LANES, self.together).transpose(0, 1, 3, 2)
        return np.ascontiguousarray(split).reshape(len(split), -1, LANES)

    @property
    def form(self) -> Form:
        """What it multiplies."""
        form = form_of(self.opcode)
        assert form is not None, self.opcode
        return form

    def __str__(self) -> str:
        parts = [self.opcode, "registers" if self.held else "shared"]
        parts += [f"{self.a_sign}, {self.b_sign}"] if self.form.negates else []
        parts += [f"{int(self.a_across)}, {int(self.b_across)}"] if self.form.transposes else []
        return " ".join(parts)

    def text(self, name: str) -> str:
        """The entry in PTX."""
        form = self.form
        d = [f"%acc{i}" for i in range(form.accumulators)]
        # Several registers in one access: there is less to compile.
        many = self.together
        access = f"v{many}.u32"
        moved = [(f"{{{', '.join(d[i : i + many])}}}", 4 * LANES * i) for i in range(0, len(d), many)]
        a = f"{{{', '.join(f'%a{i}' for i in range(A_REGISTERS))}}}" if self.held else "%da"
        operands = [f"{{{', '.join(d)}}}", a, "%db"]
        operands += ["%meta", str(self.selector)] if form.sparse else []
        operands.append("%adds")
        operands += [str(self.a_sign), str(self.b_sign)] if form.negates else []
        if form.transposes:
            operands += ([] if self.held else [str(int(self.a_across))]) + [str(int(self.b_across))]
        lines = [
            f".visible .entry {name}(.param .u64 image, .param .u64 places, .param .u64 rows, .param .u64 sums)",
            ".reqntid 128 {",
            f".reg .pred %more, %adds; .reg .b32 %t, %at, %base, %v<4>, %a<{A_REGISTERS}>, %meta, %acc<{len(d)}>;",
            ".reg .b64 %from, %to, %da, %db, %start, %flags, %case;",
            f".shared .align 1024 .b8 memory[{IMAGE_BYTES}];",
            "mov.u32 %t, %tid.x; mov.u32 %base, memory; mov.u32 %at, %ctaid.x; cvt.u64.u32 %case, %at;",
            "ld.param.u64 %from, [image]; shl.b32 %at, %t, 4;",
            "COPY:",
            "cvt.u64.u32 %to, %at; add.s64 %to, %to, %from;",
            "ld.global.v4.u32 {%v0, %v1, %v2, %v3}, [%to]; add.u32 %v0, %v0, 0;",
            "add.u32 %t, %base, %at; st.shared.v4.u32 [%t], {%v0, %v1, %v2, %v3};",
            f"add.u32 %at, %at, {16 * LANES}; setp.lt.u32 %more, %at, {IMAGE_BYTES};",
            "@%more bra COPY;",
            "fence.proxy.async.shared::cta; bar.sync 0; mov.u32 %t, %tid.x;",
            "ld.param.u64 %from, [places]; mad.lo.u64 %from, %case, 24, %from;",
            "ld.global.u64 %da, [%from]; ld.global.u64 %db, [%from+8]; ld.global.u64 %flags, [%from+16];",
            "cvt.u64.u32 %start, %base; shr.u64 %start, %start, 4;",
            "add.s64 %da, %da, %start; add.s64 %db, %db, %start; setp.ne.u64 %adds, %flags, 0;",
            f"ld.param.u64 %from, [rows]; mad.lo.u64 %from, %case, {4 * LANES * self.rows}, %from;",
            "mul.wide.u32 %to, %t, 4; add.s64 %from, %from, %to;",
            *(f"ld.global.u32 %a{i}, [%from+{4 * LANES * i}];" for i in range(A_REGISTERS) if self.held),
            *([f"ld.global.u32 %meta, [%from+{4 * LANES * A_REGISTERS}];"] if form.sparse else []),
            f"ld.param.u64 %from, [sums]; mad.lo.u64 %from, %case, {4 * LANES * len(d)}, %from;",
            f"mul.wide.u32 %to, %t, {4 * self.together}; add.s64 %from, %from, %to;",
            *(f"ld.global.{access} {each}, [%from+{at}];" for each, at in moved),
            "wgmma.fence.sync.aligned;",
            f"{self.opcode} {', '.join(operands)};",
            "wgmma.commit_group.sync.aligned;",
            "wgmma.wait_group.sync.aligned 0;",
            *(f"st.global.{access} [%from+{at}], {each};" for each, at in moved),
            "ret;",
            "}",
        ]
        return "\n".join(lines)


def module_text_of(entries: Sequence[InstructionKernel]) -> str:
    """One PTX module with the entries w0, w1, ..."""
    texts = [entry.text(f"w{number}") for number, entry in enumerate(entries)]
    return "\n".join([f".version {VERSION}", f".target {TARGET}", ".address_size 64", *texts]) + "\n"


def descriptor(start: int, leading: int, stride: int, swizzle: int, base: int = 0) -> int:
    """A matrix descriptor: bytes, and the bytes of a swizzled line, 0 for none."""
    code = {0: 0, 128: 1, 64: 2, 32: 3}[swizzle]
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | base << 49 | code << 62


# --- what is held against a GPU -------------------------------------------------------------------------------------

_DENSE, _SPARSE = "wgmma.mma_async.sync.aligned", "wgmma.mma_async.sp.sync.aligned"
_FP8, _BYTES = ("e4m3", "e5m2"), ("s8", "u8")
# (type of D, of A, of B)
_TYPES = (
    ("f32", "f16", "f16"),
    ("f16", "f16", "f16"),
    ("f32", "bf16", "bf16"),
    ("f32", "tf32", "tf32"),
    *((d, a, b) for d in ("f32", "f16") for a in _FP8 for b in _FP8),
    *(("s32", a, b) for a in _BYTES for b in _BYTES),
    *((".satfinite", a, b) for a in _BYTES for b in _BYTES),
    ("s32", "b1", "b1"),
)
# Bits of exponent, bits of fraction, and bits below the code.
_FLOATS = {
    "f16": (5, 10, 0),
    "bf16": (8, 7, 0),
    "tf32": (8, 10, 13),
    "e4m3": (4, 3, 0),
    "e5m2": (5, 2, 0),
    "f32": (8, 23, 0),
}
CLASSES = ("normal", "wide", "full", "special", "tiny", "huge", "zeros", "cancelling")
"""Of the data of floats: numbers of a size, of many sizes, all finite codes, all codes, the least, the largest, seven
of ten zero, and neighbours that cancel each other. Integers are drawn from all codes each time."""
_CASES = 3
_SIGNS = ((1, 1), (-1, 1), (1, -1), (-1, -1))
_SWIZZLES = (0, 32, 64, 128)
_MARKS = 200  # descriptors of a swizzle
_MARKED_BYTES = 46 * 1024
# Of an image: what A lies in, in front of B.
_ROWS_BYTES = 15 * 1024


@dataclass(frozen=True)
class Draw:
    """Blocks of one entry: their operands.

    Attributes:
        entry: the kernel.
        image: uint8 [IMAGE_BYTES].
        places: uint64 [blocks, 3]: A's descriptor, B's, and whether D is added.
        rows: uint32 [blocks, registers, 128], A and the metadata of a sparse one.
        sums: uint32 [blocks, registers, 128], D before.
    """

    entry: InstructionKernel
    image: Array
    places: Array
    rows: Array
    sums: Array


def spelling(d: str, a: str, b: str, n: int, sparse: bool = False) -> str:
    """The opcode of types, of which `.satfinite` stands for s32 with that."""
    bits = {"tf32": 32, "f16": 16, "bf16": 16, "b1": 1}.get(a, 8)
    saturates, sums = (d, "s32") if d == ".satfinite" else ("", d)
    k = 256 // bits * (2 if sparse else 1)
    tail = ".and.popc" if a == "b1" else ""
    return f"{_SPARSE if sparse else _DENSE}.m64n{n}k{k}{saturates}.{sums}.{a}.{b}{tail}"


def all_draws() -> dict[InstructionKernel, list[Draw]]:
    """Every kernel that is held against a GPU, and its blocks."""
    return {**{entry: draws(entry) for entry in entries()}, **{entry: marked(entry) for entry in marked_entries()}}


def entries() -> list[InstructionKernel]:
    """The kernels that are held against a GPU, of each type.

    A comes from shared memory and from registers. Dense products have N of 8, of 256 and of one value between for each,
    with three pairs of signs. Sparse ones have two values of N for each, and two pairs of signs. Of 16-bit elements A
    and B lie along and across K. Each N is in some.
    """
    found: list[InstructionKernel] = []
    turn = 0
    for d, a, b in _TYPES:
        integer, wide = a in (*_BYTES, "b1"), a in ("f16", "bf16")
        sizes = (8, 24, *range(16, 257, 16)) if integer else tuple(range(8, 257, 8))
        for sparse, held in itertools.product((False, True), (False, True)):
            if sparse and a == "b1":
                continue
            # Each size in turn, and then again.
            between = sizes[turn * 11 % len(sizes)]
            turn += 1
            least, most = (8,) if held or not sparse else (), () if held and sparse else (256,)
            for number, n in enumerate(dict.fromkeys((*least, between, *most))):
                signs = (1, 1) if integer else _SIGNS[(number + turn) % 4]
                across = (not held and number % 2 == 1, (number + turn) % 4 > 1) if wide else (False, False)
                selector = number % 2 if sparse and (wide or a == "tf32") else 0
                found.append(InstructionKernel(spelling(d, a, b, n, sparse), held, *signs, *across, selector))
    return list(dict.fromkeys(found))


def draws(entry: InstructionKernel) -> list[Draw]:
    """Blocks of an entry over all classes of data; the same ones each time."""
    rng = np.random.default_rng(zlib.crc32(str(entry).encode()))
    floats = entry.form.negates
    return [_draw(entry, rng, name) for name in (CLASSES if floats else ("full", "full"))]


def marked_entries() -> list[InstructionKernel]:
    """Kernels that show where descriptors lead, for A and for B, along and across K."""
    single = ("f32", "f16", "f16")
    found = [InstructionKernel(spelling(*single, 16), a_across=across) for across in (False, True)]
    return found + [InstructionKernel(spelling(*single, 64), held=True, b_across=across) for across in (False, True)]


def marked(entry: InstructionKernel) -> list[Draw]:
    """Blocks that multiply FP16 numbers, all different, by ones, under descriptors of any fields."""
    rng = np.random.default_rng(zlib.crc32(str(entry).encode()))
    image = (np.arange(IMAGE_BYTES // 2) + 1).astype(np.uint16)
    ones = np.eye(64, 16, dtype=np.float16)
    for row in range(16):
        for chunk in range(2):
            place = (_MARKED_BYTES + row // 8 * 256 + chunk * 128 + row % 8 * 16) // 2
            image[place : place + 8] = ones[row, 8 * chunk : 8 * chunk + 8].view(np.uint16)
    found = []
    for swizzle in _SWIZZLES:
        bits = [_any_descriptor(rng, swizzle) for _ in range(_MARKS)]
        eye = descriptor(_MARKED_BYTES, 128, 256, 0)
        places = [(0, each, 0) if entry.held else (each, eye, 0) for each in bits]
        rows = np.broadcast_to(_in_registers(ones.view(np.uint8)), (_MARKS, A_REGISTERS, LANES))
        sums = np.zeros((_MARKS, entry.form.accumulators, LANES), np.uint32)
        found.append(Draw(entry, image.view(np.uint8), np.array(places, np.uint64), rows, sums))
    return found


def _any_descriptor(rng: np.random.Generator, swizzle: int) -> int:
    """With any offsets that stay in front of the ones, any base offset, and bits that mean nothing."""
    while True:
        start = int(rng.integers(0, 256)) * 16
        leading, stride = (
            int(rng.integers(0, 1024)) * 16 if rng.integers(2) else int(rng.integers(0, 64)) * 128 for _ in range(2)
        )
        if start + 8 * max(leading, stride) + 2 * (leading + stride) + 1024 < _MARKED_BYTES:
            break
    bits = descriptor(start, leading, stride, swizzle, int(rng.integers(0, 8)) if rng.integers(2) else 0)
    if rng.integers(4) == 0:
        bits |= int(rng.integers(0, 4)) << 14 | int(rng.integers(0, 4)) << 30 | int(rng.integers(0, 8)) << 46
        bits |= int(rng.integers(0, 1024)) << 52
    return bits


def _draw(entry: InstructionKernel, rng: np.random.Generator, name: str) -> Draw:
    form = entry.form
    kinds = form.a, form.b
    image = _elements(rng, form.b, IMAGE_BYTES, name, "b")
    # A lies in the first third, B behind it.
    image[:_ROWS_BYTES] = _elements(rng, form.a, _ROWS_BYTES, name, "a")
    places, rows = [], []
    for number in range(_CASES):
        a = _place(rng, 0, _ROWS_BYTES, (64, 32), form.bits, entry.a_across)
        size = (form.n, form.column_bytes)
        b = _place(rng, _ROWS_BYTES, IMAGE_BYTES, size, form.bits, entry.b_across)
        places.append((0 if entry.held else a, b, number > 0 or name == "cancelling"))
        held = _in_registers(_elements(rng, kinds[0], 64 * 32, name, "a").reshape(64, 32))
        rows.append(np.concatenate([held, _metadata(rng, form)[None]]) if form.sparse else held)
    if form.d == "s32":
        sums = rng.integers(0, 1 << 32, (_CASES, form.accumulators, LANES)).astype(np.uint32)
        # Next to where saturation begins.
        sums[::2] = np.where(sums[::2] >> 31, 0x7FFFFF00, 0x80000100)
    else:
        count = form.accumulators * LANES * 4
        sums = np.stack([_elements(rng, form.d, count, name, "d") for _ in range(_CASES)]).view(np.uint32)
        sums = sums.reshape(_CASES, form.accumulators, LANES)
    return Draw(entry, image, np.array(places, np.uint64), np.stack(rows), sums)


def _place(rng: np.random.Generator, begin: int, end: int, size: tuple[int, int], bits: int, across: bool) -> int:
    """A descriptor of an operand somewhere between two bytes of the image, in any layout that has room."""
    outer, line = size
    if across:
        outer, line = line * 8 // bits, outer * bits // 8
    groups = -(-outer // 8)
    while True:
        swizzle = int(rng.choice(_SWIZZLES))
        wide = swizzle or 16
        # (count, stride) of the groups of eight lines, and of what is beside one another.
        beside = -(-line // wide)
        first = 8 * wide * int(rng.integers(1, 3))
        second = first * groups
        if rng.integers(2):
            second = 8 * wide * int(rng.integers(1, 3))
            first = second * beside
        room = end - begin - (first * (groups - 1) + second * (beside - 1) + 8 * wide) - 1024
        if room >= 0:
            break
    unit = 1024 if swizzle else 16
    start = -(-begin // 1024) * 1024 + int(rng.integers(0, room // unit + 1)) * unit
    leading, stride = (first, second) if across and not swizzle else (second, first)
    return descriptor(start, leading, stride, swizzle)


def _elements(rng: np.random.Generator, kind: str, size: int, name: str, role: str) -> Array:
    """Bytes of elements of a class."""
    if kind not in _FLOATS:
        return rng.integers(0, 256, size).astype(np.uint8)
    exponent_bits, fraction_bits, shift = _FLOATS[kind]
    bias, top = (1 << exponent_bits - 1) - 1, (1 << exponent_bits) - 1
    low, high = {
        "normal": (bias - 3, bias + 2),
        "wide": (max(bias - 9, 1), min(bias + 7, top - 2)),
        "full": (0, top - 1),
        "special": (0, top),
        "tiny": (0, 2),
        "huge": (top - 3, top - 1),
        "zeros": (bias - 3, bias + 2),
        "cancelling": (bias - 4, bias + 3),
    }[name]
    width = (1 + exponent_bits + fraction_bits + shift) // 8
    count = size // width
    codes = rng.integers(low, high + 1, count) << fraction_bits | rng.integers(0, 1 << fraction_bits, count)
    if name == "zeros":
        codes = np.where(rng.random(count) < 0.7, 0, codes)
    signs = rng.integers(0, 2, count)
    if name == "cancelling" and role in ("a", "b"):
        codes[1::2] = codes[: count // 2 * 2 : 2]
        signs[1::2] = signs[: count // 2 * 2 : 2] ^ (role == "a")
    codes = (codes | signs << exponent_bits + fraction_bits) << shift
    # What lies below a TF32 is ignored.
    codes |= rng.integers(0, 1 << shift, count) if shift else 0
    return codes.astype(f"u{width}").view(np.uint8)


def _metadata(rng: np.random.Generator, form: Form) -> Array:
    """Of a sparse A in all lanes, uint32 [128]: any order of two in four, or one in two."""
    allowed = np.array([0x4, 0xE] if form.bits == 32 else [0x4, 0x8, 0xC, 0x9, 0xD, 0xE], np.uint32)
    groups = rng.choice(allowed, (LANES, 8)) << np.arange(0, 32, 4, dtype=np.uint32)
    found: Array = np.bitwise_or.reduce(groups, axis=1)
    return found


def _in_registers(rows: Array) -> Array:
    """Rows of A, uint8 [64, 32], as registers uint32 [4, 128]."""
    # [warp, upper, g, half, t] -> [half, upper, warp, g, t]
    split = np.ascontiguousarray(rows).view(np.uint32).reshape(4, 2, 8, 2, 4)
    return np.ascontiguousarray(split.transpose(3, 1, 0, 2, 4)).reshape(A_REGISTERS, LANES)
