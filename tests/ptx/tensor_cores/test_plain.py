"""mma.sync of integers, bits and FP64, and with FP16 accumulators: fragments as the manual writes them."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import refmoe
from refmoe import ptx
from refmoe.reference.mma import tensor_core_mma


def row_of_a(rows: int, per_register: int, g: int, i: int) -> int:
    """PTX ISA, "Matrix fragments for mma.m16n8k*": which row element i of A is in."""
    return g if rows == 8 or i // per_register % 2 == 0 else g + 8


def column_of_a(rows: int, per_register: int, t: int, i: int) -> int:
    # "threadID_in_group * p + (i & (p-1))", and half of K further on for the second pair of registers.
    step = i // (per_register * (1 if rows == 8 else 2))
    return t * per_register + i % per_register + step * 4 * per_register


def row_of_b(per_register: int, t: int, i: int) -> int:
    return t * per_register + i % per_register + i // per_register * 4 * per_register


def place_of_c(g: int, t: int, i: int) -> tuple[int, int]:
    return g + 8 * (i // 2), 2 * t + i % 2


def packed(elements: np.ndarray, bits: int) -> np.ndarray:
    """Codes [32, n] of `bits` bits to registers uint32 [32, n * bits / 32], the first in the low bits."""
    digits = (elements[..., None] >> np.arange(bits)) & 1
    return np.packbits(digits.reshape(32, -1).astype(np.uint8), axis=1, bitorder="little").view(np.uint32)


def registers_of(a: np.ndarray, b: np.ndarray, c: np.ndarray, bits: int) -> list[np.ndarray]:
    """Registers [32, n] of A [M, K] and B [K, 8], codes, and of C [M, 8], 32-bit words."""
    rows, length = a.shape
    per_register = 32 // bits
    lanes = [(lane // 4, lane % 4) for lane in range(32)]
    of_a = [
        [
            a[row_of_a(rows, per_register, g, i), column_of_a(rows, per_register, t, i)]
            for i in range(rows * length // 32)
        ]
        for g, t in lanes
    ]
    of_b = [[b[row_of_b(per_register, t, i), g] for i in range(8 * length // 32)] for g, t in lanes]
    of_c = [[c[place_of_c(g, t, i)] for i in range(rows // 4)] for g, t in lanes]
    return [packed(np.array(of_a), bits), packed(np.array(of_b), bits), np.array(of_c).astype(np.uint32)]


def text_of(opcode: str, counts: list[int], kind: str = "b32", guard: str = "") -> str:
    """A kernel that reads the registers of each lane, one lane after another, and writes those of D."""
    size = 8 if kind == "b64" else 4
    names = [[f"%{letter}{number}" for number in range(count)] for letter, count in zip("xyzw", counts, strict=True)]
    loads = [
        f"ld.global.{kind} {name}, [%d1+{size * number}];"
        for number, name in enumerate(each for group in names[:3] for each in group)
    ]
    stores = [f"st.global.{kind} [%d0+{size * number}], {name};" for number, name in enumerate(names[3])]
    vectors = [f"{{{', '.join(group)}}}" for group in names]
    return f"""
.version 8.5
.target sm_90
.address_size 64
.visible .entry k(.param .u64 out, .param .u64 in) {{
    .reg .{kind} %x<9>, %y<9>, %z<9>, %w<9>;
    .reg .b32 %r<4>;
    .reg .b64 %d<4>;
    .reg .pred %p<2>;
    ld.param.u64 %d0, [out];
    ld.param.u64 %d1, [in];
    mov.u32 %r1, %tid.x;
    mad.wide.u32 %d0, %r1, {size * counts[3]}, %d0;
    mad.wide.u32 %d1, %r1, {size * sum(counts[:3])}, %d1;
    {" ".join(loads)}
    {guard}
    {opcode} {vectors[3]}, {vectors[0]}, {vectors[1]}, {vectors[2]};
    {" ".join(stores)}
    ret;
}}"""


def product(opcode: str, registers: list[np.ndarray], guard: str = "") -> tuple[np.ndarray, ptx.LaunchResult]:
    """The registers of D [32, n] of one instruction."""
    data = np.ascontiguousarray(np.concatenate(registers, axis=1))
    counts = [each.shape[1] for each in registers]
    kind = "b64" if data.dtype == np.uint64 else "b32"
    out = np.zeros((32, counts[2]), data.dtype)
    result = refmoe.run_ptx(text_of(opcode, [*counts, counts[2]], kind, guard), block=32, args=[out, data])
    return out, result


INTEGERS = [
    (shape, bits, a, b)
    for bits, shapes in ((8, ("m8n8k16", "m16n8k16", "m16n8k32")), (4, ("m8n8k32", "m16n8k32", "m16n8k64")))
    for shape in shapes
    for a, b in (("s", "s"), ("u", "s"), ("s", "u"), ("u", "u"))
]


def signed_values(codes: np.ndarray, bits: int, kind: str) -> np.ndarray:
    codes = codes.astype(np.int64)
    return codes - (codes >> (bits - 1) << bits) if kind == "s" else codes


@pytest.mark.parametrize(("shape", "bits", "a_kind", "b_kind"), INTEGERS)
def test_integers(shape: str, bits: int, a_kind: str, b_kind: str) -> None:
    rng = np.random.default_rng(2)
    rows, length = int(shape[1:].split("n")[0]), int(shape.split("k")[1])
    a, b = rng.integers(0, 1 << bits, (rows, length)), rng.integers(0, 1 << bits, (length, 8))
    c = rng.integers(-(1 << 31), 1 << 31, (rows, 8))
    c[0, :2] = (1 << 31) - 1, -(1 << 31)
    # Where nothing is clamped: the sum of the first row leaves 32 bits on one side, and wraps.
    a[0], b[:, 0], b[:, 1] = (1 << (bits - 1)) - 1, 1, 1
    exact = signed_values(a, bits, a_kind) @ signed_values(b, bits, b_kind) + c
    assert exact[0, 0] >= 1 << 31
    types = f"s32.{a_kind}{bits}.{b_kind}{bits}.s32"
    for modifier, expected in (("", exact), (".satfinite", np.clip(exact, -(1 << 31), (1 << 31) - 1))):
        opcode = f"mma.sync.aligned.{shape}.row.col{modifier}.{types}"
        out, result = product(opcode, registers_of(a, b, c & 0xFFFFFFFF, bits))
        for lane in range(32):
            for i in range(rows // 4):
                place = place_of_c(lane // 4, lane % 4, i)
                assert int(out[lane, i]) == int(expected[place]) & 0xFFFFFFFF
        assert not result.models


@pytest.mark.parametrize("shape", ["m8n8k128", "m16n8k128", "m16n8k256"])
@pytest.mark.parametrize("operation", ["and", "xor"])
def test_single_bits(shape: str, operation: str) -> None:
    rng = np.random.default_rng(3)
    rows, length = int(shape[1:].split("n")[0]), int(shape.split("k")[1])
    a, b = rng.integers(0, 2, (rows, length)), rng.integers(0, 2, (length, 8))
    c = rng.integers(0, 1 << 32, (rows, 8))
    both = (a[:, :, None] & b) if operation == "and" else (a[:, :, None] ^ b)
    expected = (both.sum(axis=1) + c) & 0xFFFFFFFF
    out, _ = product(f"mma.sync.aligned.{shape}.row.col.s32.b1.b1.s32.{operation}.popc", registers_of(a, b, c, 1))
    for lane in range(32):
        for i in range(rows // 4):
            assert int(out[lane, i]) == int(expected[place_of_c(lane // 4, lane % 4, i)])


def rounded_down(value: Fraction) -> float:
    """The FP64 number nearest to `value` on the side of minus infinity."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else float(np.nextafter(nearest, -np.inf))


@pytest.mark.parametrize("shape", ["m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"])
@pytest.mark.parametrize("rounding", ["", ".rm"])
def test_doubles_are_chains_of_fused_multiply_adds(shape: str, rounding: str) -> None:
    rng = np.random.default_rng(1)
    rows, length = int(shape[1:].split("n")[0]), int(shape.split("k")[1])
    a, b, c = (rng.standard_normal(size) for size in ((rows, length), (length, 8), (rows, 8)))
    lanes = [(lane // 4, lane % 4) for lane in range(32)]
    count = rows * length // 32
    of_a = [[a[row_of_a(rows, 1, g, i), column_of_a(rows, 1, t, i)] for i in range(count)] for g, t in lanes]
    of_b = [[b[row_of_b(1, t, i), g] for i in range(8 * length // 32)] for g, t in lanes]
    of_c = [[c[place_of_c(g, t, i)] for i in range(rows // 4)] for g, t in lanes]
    held = [np.array(each).view(np.uint64) for each in (of_a, of_b, of_c)]
    out, result = product(f"mma.sync.aligned.{shape}.row.col.f64.f64.f64.f64{rounding}", held)
    assert dict(result.models) == {"fp64_fma": "extrapolated"}
    nearest = rounded_down if rounding else float
    for lane, (g, t) in enumerate(lanes):
        for i in range(rows // 4):
            row, column = place_of_c(g, t, i)
            total = float(c[row, column])
            for k in range(length):
                total = nearest(Fraction(float(a[row, k])) * Fraction(float(b[k, column])) + Fraction(total))
            assert float(out.view(np.float64)[lane, i]) == total


@pytest.mark.parametrize(("target", "evidence"), [("sm_90a", "hardware-checked"), ("sm_120a", "extrapolated")])
def test_accumulators_of_fp16(target: str, evidence: str) -> None:
    rng = np.random.default_rng(6)
    a, b, c = (rng.standard_normal(size).astype(np.float16) for size in ((16, 16), (16, 8), (16, 8)))
    a[2, 3] = np.inf
    codes = [each.view(np.uint16).astype(np.int64) for each in (a, b, c)]
    registers = registers_of(codes[0], codes[1], codes[2], 16)
    # Two neighbours of C in a register.
    registers[2] = packed(registers[2].astype(np.int64), 16)
    b[3, 4] = 0
    registers[1] = registers_of(codes[0], b.view(np.uint16).astype(np.int64), codes[2], 16)[1]
    data = np.ascontiguousarray(np.concatenate(registers, axis=1))
    out = np.zeros((32, 2), np.uint32)
    text = text_of("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", [4, 2, 2, 2]).replace("sm_90", target)
    result = refmoe.run_ptx(text, block=32, args=[out, data])
    expected = tensor_core_mma(
        a.view(np.uint16), np.ascontiguousarray(b.T).view(np.uint16), c.astype(np.float32),
        model="sm90_mma_f16acc", a_format="f16", b_format="f16",
    )  # fmt: skip
    assert dict(result.models) == {"sm90_mma_f16acc": evidence}
    halves = out.view(np.uint16).reshape(32, 4)
    for lane in range(32):
        for i in range(4):
            value = expected[place_of_c(lane // 4, lane % 4, i)]
            assert int(halves[lane, i]) == (0x7FFF if np.isnan(value) else int(np.float16(value).view(np.uint16)))
    assert (halves == 0x7FFF).sum() == 1


@pytest.mark.parametrize(
    "opcode",
    [
        "mma.sync.aligned.m16n8k32.col.row.s32.s8.s8.s32",
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s4.s32",
        "mma.sync.aligned.m16n8k64.row.col.s32.s8.s8.s32",
        "mma.sync.aligned.m16n8k32.row.col.rn.s32.s8.s8.s32",
        "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.or.popc",
        "mma.sync.m16n8k32.row.col.s32.s8.s8.s32",
    ],
)
def test_other_spellings_are_refused(opcode: str) -> None:
    registers = [np.zeros((32, count), np.uint32) for count in (4, 2, 4)]
    with pytest.raises(ptx.UnknownOpcode):
        product(opcode, registers)


def test_a_part_of_a_warp_is_refused() -> None:
    registers = [np.zeros((32, count), np.uint32) for count in (4, 2, 4)]
    opcode = "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"
    with pytest.raises(ptx.WarpError, match="31 lanes"):
        product(opcode, registers, "setp.eq.u32 %p1, %r1, 4; @%p1 exit;")
    with pytest.raises(ptx.UnknownOpcode, match="4 registers of 32 bits"):
        product(opcode, [registers[1], *registers[1:]])
