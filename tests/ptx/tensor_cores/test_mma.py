"""mma.sync: fragments as the manual writes them, element by element, on sums that no order of addition can change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
from support.ptx_kernel import run, text
from support.selection.thinned import thinned

from refmoe import ptx
from refmoe.reference.mma import MODELS, tensor_core_mma
from refmoe.reference.scalar.mma import accumulate

Place = Callable[[int, int, int], tuple[int, int]]
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


@dataclass(frozen=True)
class Layout:
    """PTX ISA, "Matrix fragments for mma.m16n8k*": (row, column) of element i of lane (g = lane / 4, t = lane % 4)."""

    k: int
    bits: int
    a: Place
    b: Place


LAYOUTS = {
    "m16n8k16": Layout(
        16, 16,
        lambda g, t, i: (g if i < 2 or 4 <= i < 6 else g + 8, t * 2 + (i & 1) + (0 if i < 4 else 8)),
        lambda g, t, i: (t * 2 + (i & 1) + (0 if i < 2 else 8), g),
    ),
    "m16n8k8": Layout(
        8, 16,
        lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
        lambda g, t, i: (t * 2 + i, g),
    ),
    "m16n8k8 tf32": Layout(
        8, 32,
        lambda g, t, i: (g if i in (0, 2) else g + 8, t if i in (0, 1) else t + 4),
        lambda g, t, i: (t if i == 0 else t + 4, g),
    ),
    "m16n8k32": Layout(
        32, 8,
        lambda g, t, i: (g if i < 4 or 8 <= i < 12 else g + 8, t * 4 + (i & 3) + (0 if i < 8 else 16)),
        lambda g, t, i: (t * 4 + (i & 3) + (0 if i < 4 else 16), g),
    ),
}  # fmt: skip


def c_place(g: int, t: int, i: int) -> tuple[int, int]:
    return (g if i < 2 else g + 8, t * 2 + (i & 1))


def fragments(matrix: np.ndarray, place: Place, count: int, bits: int) -> np.ndarray:
    """Registers uint32 [32, n] of a matrix of codes."""
    held = np.zeros((32, count), f"u{bits // 8}")
    for lane in range(32):
        for i in range(count):
            held[lane, i] = matrix[place(lane // 4, lane % 4, i)]
    return held.view(np.uint32)


def execute(
    opcode: str, registers: list[np.ndarray], extra: str = "", prepare: str = "", target: str = "sm_120a"
) -> tuple[np.ndarray, ptx.LaunchResult]:
    """D float32 [16, 8] of one instruction on A, B, C and further registers, [32, n] each."""
    data = np.ascontiguousarray(np.concatenate(registers, axis=1))
    sizes = [array.shape[1] for array in registers]
    load = [f"mul.wide.u32 %d3, %r1, {4 * data.shape[1]}; add.s64 %d3, %d3, %d1;"]
    load += [f"ld.global.u32 %r{20 + i}, [%d3+{4 * i}];" for i in range(data.shape[1])]
    names, start = [], 20
    for size in sizes[:3]:
        names.append("{" + ", ".join(f"%r{start + i}" for i in range(size)) + "}")
        start += size
    body = "".join(load) + prepare + f"{opcode} {{%r50, %r51, %r52, %r53}}, {', '.join(names)}{extra};"
    body += "mul.wide.u32 %d4, %r1, 16; add.s64 %d4, %d4, %d0;"
    body += "st.global.v4.u32 [%d4], {%r50, %r51, %r52, %r53}; ret;"
    out = np.zeros((32, 4), np.uint32)
    module = ptx.Module.parse(text(body).replace("sm_120a", target), name="test.ptx")
    result = ptx.launch(module, "k", (1, 1, 1), (32, 1, 1), [out.reshape(-1), data, 0], step_budget=1000)
    d = np.zeros((16, 8), np.float32)
    for lane in range(32):
        for i in range(4):
            d[c_place(lane // 4, lane % 4, i)] = out.view(np.float32)[lane, i]
    return d, result


def codes_of(values: np.ndarray, name: str) -> np.ndarray:
    """Codes as they stand in registers."""
    if name == "tf32":
        # Low bits that no TF32 has: they are ignored.
        return values.astype(np.float32).view(np.uint32) | np.uint32(0x1FFF)
    if name == "e2m1":
        nearest = np.abs(values[..., None] - E2M1[:8]).argmin(-1)
        # In bits 2..5, with something in the padding around.
        return (nearest << 2 | 0xC1).astype(np.uint8)
    dtype = {
        "bf16": ml_dtypes.bfloat16, "f16": np.float16, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
    }[name]  # fmt: skip
    codes = values.astype(dtype)
    assert (codes.astype(np.float64) == values).all()
    return codes.view(f"u{codes.itemsize}")


# Small integers: 2^0 divides every term and no sum passes 2^12, so that every model and every order is exact.
def lattice(rng: np.random.Generator, shape: tuple[int, int], name: str) -> np.ndarray:
    if name == "e2m1":
        return rng.choice([1.0, 2.0, 3.0, 4.0, 6.0], shape)
    return rng.choice([-6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], shape)


FORMS = [
    ("m16n8k16.row.col.f32.bf16.bf16.f32", "m16n8k16", "bf16", "bf16", "sm_120a", "sm90_mma", "extrapolated"),
    ("m16n8k16.row.col.f32.f16.f16.f32", "m16n8k16", "f16", "f16", "sm_90a", "sm90_mma", "hardware-checked"),
    ("m16n8k8.row.col.f32.bf16.bf16.f32", "m16n8k8", "bf16", "bf16", "sm_90a", "sm90_mma_k8", "hardware-checked"),
    ("m16n8k8.row.col.f32.f16.f16.f32", "m16n8k8", "f16", "f16", "sm_120a", "sm90_mma_k8", "extrapolated"),
    ("m16n8k8.row.col.f32.tf32.tf32.f32", "m16n8k8 tf32", "tf32", "tf32", "sm_90a", "sm90_mma_k8", "hardware-checked"),
    ("m16n8k32.row.col.f32.e4m3.e5m2.f32", "m16n8k32", "e4m3", "e5m2", "sm_90a", "sm90_mma_fp8", "hardware-checked"),
    ("m16n8k32.row.col.f32.e4m3.e4m3.f32", "m16n8k32", "e4m3", "e4m3", "sm_120a", "sm120", "published"),
    ("m16n8k32.row.col.f32.e5m2.e4m3.f32", "m16n8k32", "e5m2", "e4m3", "sm_121a", "sm120", "extrapolated"),
    ("kind::f8f6f4.m16n8k32.row.col.f32.e2m1.e4m3.f32", "m16n8k32", "e2m1", "e4m3", "sm_120a", "sm120", "extrapolated"),
    ("m16n8k32.kind::f8f6f4.row.col.f32.e4m3.e2m1.f32", "m16n8k32", "e4m3", "e2m1", "sm_120a", "sm120", "extrapolated"),
    ("m16n8k32.kind::f8f6f4.row.col.f32.e2m1.e2m1.f32", "m16n8k32", "e2m1", "e2m1", "sm_121a", "sm120", "extrapolated"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "layout", "a_format", "b_format", "target", "model", "evidence"), FORMS)
def test_fragments(
    form: str, layout: str, a_format: str, b_format: str, target: str, model: str, evidence: str
) -> None:
    rng = np.random.default_rng(7)
    shape = LAYOUTS[layout]
    a, b = lattice(rng, (16, shape.k), a_format), lattice(rng, (shape.k, 8), b_format)
    c = rng.integers(-1000, 1000, (16, 8)).astype(np.float32)
    per_lane = shape.k * 16 // 32
    registers = [
        fragments(codes_of(a, a_format), shape.a, per_lane, shape.bits),
        fragments(codes_of(b, b_format), shape.b, per_lane // 2, shape.bits),
        fragments(c.view(np.uint32), c_place, 4, 32),
    ]
    found, result = execute(f"mma.sync.aligned.{form}", registers, target=target)
    np.testing.assert_array_equal(found, (a @ b + c).astype(np.float32))
    assert dict(result.models) == {model: evidence}
    assert MODELS[model].pair(a_format, b_format).block <= shape.k


def zeros_of(rng: np.random.Generator, shape: tuple[int, int], name: str, bits: int) -> np.ndarray:
    """Codes of zeros of either sign, as they stand in registers."""
    if name == "e2m1":
        return (rng.choice([0, 8], shape) << 2 | 0xC1).astype(np.uint8)
    low = 0x1FFF if name == "tf32" else 0
    return (rng.choice([0, 1 << (bits - 1)], shape) | low).astype(f"u{bits // 8}")


@pytest.mark.parametrize("empty", ["a", "b"])
@pytest.mark.parametrize(("form", "layout", "a_format", "b_format", "target", "model", "evidence"), FORMS)
def test_products_of_zeros(
    form: str, layout: str, a_format: str, b_format: str, target: str, model: str, evidence: str, empty: str
) -> None:
    # The way that is taken where an operand is all zeros, against the model: every kind of C, and one NaN or infinity.
    rng = np.random.default_rng(9)
    shape = LAYOUTS[layout]
    c = rng.integers(0, 1 << 32, (16, 8), dtype=np.uint32)
    c[0] = [0, 1 << 31, 1, 0x80000001, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFF800001]
    for special in (False, True):
        a = codes_of(lattice(rng, (16, shape.k), a_format), a_format)
        b = codes_of(lattice(rng, (shape.k, 8), b_format), b_format)
        if empty == "a":
            a, other = zeros_of(rng, a.shape, a_format, shape.bits), b
        else:
            b, other = zeros_of(rng, b.shape, b_format, shape.bits), a
        if special:
            other[3, 5] = (1 << (shape.bits - 1)) - 1
        per_lane = shape.k * 16 // 32
        registers = [
            fragments(a, shape.a, per_lane, shape.bits),
            fragments(b, shape.b, per_lane // 2, shape.bits),
            fragments(c, c_place, 4, 32),
        ]
        found, _ = execute(f"mma.sync.aligned.{form}", registers, target=target)
        x, y = (m >> np.uint8(2) & np.uint8(15) if f == "e2m1" else m for m, f in ((a, a_format), (b, b_format)))
        expected = tensor_core_mma(
            x, np.ascontiguousarray(y.T), c.view(np.float32), model=model, a_format=a_format, b_format=b_format
        )
        assert found.tobytes() == expected.tobytes()
        met = found[:, 5] if empty == "a" else found[3]
        has_special = (b_format if empty == "a" else a_format) != "e2m1"
        assert np.isnan(met).all() == (special and has_special)


def scaled_opcode(form: str) -> str:
    layouts = "" if "row.col" in form else ".row.col"
    return f"mma.sync.aligned.{form}{layouts}.f32.e2m1.e4m3.f32.ue8m0"


SPELLINGS = [
    "kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32",
    "m16n8k32.kind::mxf8f6f4.block_scale.scale_vec::1X",
    "kind::mxf8f6f4.block_scale.m16n8k32",
    "m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X",
]
SCALED_OPERANDS = ", {{%r40}}, {{{a_byte}, {a_thread}}}, {{%r41}}, {{{b_byte}, {b_thread}}}"


def scaled_problem(a_byte: int, a_thread: int, b_byte: int, b_thread: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Registers with a scale of its own in every byte of every lane, and D with those that the selectors mean."""
    rng = np.random.default_rng(3)
    shape = LAYOUTS["m16n8k32"]
    a, b = lattice(rng, (16, 32), "e2m1"), lattice(rng, (32, 8), "e4m3")
    # Wide enough to tell any two lanes or bytes of A apart, and of B; C is zero, so that scales only shift the sum.
    a_words = np.arange(32 * 4, dtype=np.uint8).reshape(32, 4) + np.uint8(60)
    b_words = (np.arange(32 * 4, dtype=np.uint8).reshape(32, 4) % 64 + 100).astype(np.uint8)
    expected = np.zeros((16, 8))
    for row in range(16):
        for column in range(8):
            # A: the pair of lanes 2 * thread, 2 * thread + 1 of quad g holds the scales of rows g and g + 8.
            lane = row % 8 * 4 + 2 * a_thread + row // 8
            exponent = int(a_words[lane, a_byte]) - 127 + int(b_words[column * 4 + b_thread, b_byte]) - 127
            expected[row, column] = np.ldexp(a[row] @ b[:, column], exponent)
    registers = [
        fragments(codes_of(a, "e2m1"), shape.a, 16, 8),
        fragments(codes_of(b, "e4m3"), shape.b, 8, 8),
        np.zeros((32, 4), np.uint32),
        a_words.view(np.uint32),
        b_words.view(np.uint32),
    ]
    return [*registers[:3], np.zeros((32, 10), np.uint32), *registers[3:]], expected.astype(np.float32)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize(
    ("a_byte", "a_thread", "b_byte", "b_thread"),
    thinned([(0, 0, 0, 0), (1, 1, 2, 3), (2, 0, 3, 1), (3, 1, 1, 2), (3, 0, 0, 3)], 3),
)
def test_selectors_of_scales(spelling: str, a_byte: int, a_thread: int, b_byte: int, b_thread: int) -> None:
    registers, expected = scaled_problem(a_byte, a_thread, b_byte, b_thread)
    selectors = {"a_byte": a_byte, "a_thread": a_thread, "b_byte": b_byte, "b_thread": b_thread}
    for operands, prepare in (
        (SCALED_OPERANDS.format(**selectors), ""),
        (SCALED_OPERANDS.format(**selectors).replace("{%r40}", "%r40").replace("{%r41}", "%r41"), ""),
        (
            SCALED_OPERANDS.format(a_byte="%h1", a_thread="%h2", b_byte="%h3", b_thread="%h4"),
            "".join(f"mov.u16 %h{i}, {value};" for i, value in enumerate(selectors.values(), 1)),
        ),
    ):
        found, result = execute(scaled_opcode(spelling), registers, operands, prepare)
        np.testing.assert_array_equal(found, expected)
        assert dict(result.models) == {"sm120": "extrapolated"}


@pytest.mark.parametrize(
    ("selectors", "message"),
    [
        ({"a_byte": 4}, "a byte-id of 4, not 0 to 3"),
        ({"a_thread": 2}, "a thread-id of 2, not 0 or 1"),
        ({"b_thread": 4}, "a thread-id of 4, not 0 to 3"),
    ],
)
def test_selectors_out_of_range(selectors: dict[str, int], message: str) -> None:
    registers, _ = scaled_problem(0, 0, 0, 0)
    operands = SCALED_OPERANDS.format(**{"a_byte": 0, "a_thread": 0, "b_byte": 0, "b_thread": 0, **selectors})
    with pytest.raises(ptx.MisuseError, match=message):
        execute(scaled_opcode(SPELLINGS[0]), registers, operands)


def test_selectors_are_the_warps() -> None:
    registers, _ = scaled_problem(0, 0, 0, 0)
    operands = SCALED_OPERANDS.format(a_byte="%h1", a_thread=0, b_byte=0, b_thread=0)
    with pytest.raises(ptx.MisuseError, match="differs between the lanes of a warp"):
        execute(scaled_opcode(SPELLINGS[0]), registers, operands, "cvt.u16.u32 %h1, %r1; and.b16 %h1, %h1, 1;")


def test_nan_scale() -> None:
    # Byte 0xFF in A's row 0 makes that row NaN, and no other.
    registers, expected = scaled_problem(0, 0, 0, 0)
    words = registers[4].view(np.uint8).copy()
    words[0, 0] = 0xFF
    registers[4] = words.view(np.uint32)
    found, _ = execute(
        scaled_opcode(SPELLINGS[0]), registers, SCALED_OPERANDS.format(a_byte=0, a_thread=0, b_byte=0, b_thread=0)
    )
    assert (found[0].view(np.uint32) == 0x7FFFFFFF).all()
    np.testing.assert_array_equal(found[1:], expected[1:])
    # So it is where all that it scales is zero.
    registers[1] = np.zeros_like(registers[1])
    found, _ = execute(
        scaled_opcode(SPELLINGS[0]), registers, SCALED_OPERANDS.format(a_byte=0, a_thread=0, b_byte=0, b_thread=0)
    )
    assert (found[0].view(np.uint32) == 0x7FFFFFFF).all()
    assert np.isfinite(found[1:]).all()


def test_warps_apart() -> None:
    # Two of eight warps multiply, in a branch; the others keep what they have.
    body = """
        shr.u32 %r3, %r1, 5; and.b32 %r4, %r3, 3; setp.ne.u32 %p1, %r4, 1;
        cvt.rn.f32.u32 %r50, %r1; mov.b32 %r51, %r50; mov.b32 %r52, %r50; mov.b32 %r53, %r50;
        mov.u32 %r20, 0x38383838; mov.u32 %r21, 0x38383838;
        @%p1 bra OUT;
        mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32
            {%r50, %r51, %r52, %r53}, {%r20, %r20, %r20, %r20}, {%r21, %r21}, {%r50, %r51, %r52, %r53};
    OUT:
        cvt.rzi.u32.f32 %r5, %r50; st.global.u32 [%d2], %r5; ret;
    """
    out = np.zeros(256, np.uint32)
    run(body, out, block=(256, 1, 1))
    thread = np.arange(256)
    # 0x38 is 1: the sum of 32 products.
    np.testing.assert_array_equal(out, thread + np.where(thread // 32 % 4 == 1, 32, 0))


def test_a_launch_rests_on_its_weakest_instruction() -> None:
    # E4M3 by E4M3 is published, E2M1 by E4M3 extrapolated; an entry with both claims no more than the latter.
    body = "mov.u32 %r20, 0;"
    for formats in ("e4m3.e4m3", "e2m1.e4m3", "e4m3.e4m3"):
        body += f"mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.{formats}.f32 {{%r50, %r51, %r52, %r53}}, "
        body += "{%r20, %r20, %r20, %r20}, {%r20, %r20}, {%r20, %r20, %r20, %r20};"
    result = run(body + "ret;", np.zeros(1, np.uint32))
    assert dict(result.models) == {"sm120": "extrapolated"}


def test_a_warp_that_is_not_whole() -> None:
    body = """
        mov.u32 %r20, 0;
        mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32
            {%r50, %r51, %r52, %r53}, {%r20, %r20}, {%r20}, {%r20, %r20, %r20, %r20};
        ret;
    """
    with pytest.raises(ptx.WarpError, match="31 lanes of its warp take part"):
        run(body, np.zeros(1, np.uint32), block=(31, 1, 1))


@pytest.mark.parametrize(
    ("form", "target"),
    [
        ("m16n8k8.row.col.f16.f16.f16.f16", "sm_120a"),
        ("m16n8k16.row.col.f32.bf16.f16.f32", "sm_120a"),
        ("m16n8k16.row.row.f32.bf16.bf16.f32", "sm_120a"),
        ("m16n8k32.row.col.f32.e2m1.e4m3.f32", "sm_120a"),
        ("m16n8k32.row.col.s32.s8.s4.s32", "sm_120a"),
        ("kind::f8f6f4.m16n8k32.row.col.f32.e3m2.e4m3.f32", "sm_120a"),
        ("kind::f8f6f4.m16n8k32.row.col.f32.e2m1.e4m3.f32", "sm_90a"),
        ("kind::f8f6f4.row.col.f32.e2m1.e4m3.f32", "sm_120a"),
        ("kind::f8f6f4.m16n8k32.kind::f8f6f4.row.col.f32.e2m1.e4m3.f32", "sm_120a"),
        ("m16n8k4.row.col.f32.bf16.bf16.f32", "sm_90a"),
        ("m16n8k32.row.col.f32.e4m3.e4m3.f32.ue8m0", "sm_120a"),
        ("kind::mxf8f6f4.block_scale.row.col.f32.e2m1.e4m3.f32.ue8m0", "sm_120a"),
        ("kind::mxf8f6f4.block_scale.scale_vec::2X.m16n8k32.row.col.f32.e2m1.e4m3.f32.ue8m0", "sm_120a"),
        ("kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e2m1.e4m3.f32.ue4m3", "sm_120a"),
        ("m16n8k32.row.col.f32.e4m3.e4m3.f32", "sm_100a"),
    ],
)
def test_forms_without_a_model_are_unknown(form: str, target: str) -> None:
    registers = [np.zeros((32, 4), np.uint32), np.zeros((32, 2), np.uint32), np.zeros((32, 4), np.uint32)]
    with pytest.raises(ptx.UnknownOpcode) as caught:
        execute(f"mma.sync.aligned.{form}", registers, target=target)
    assert caught.value.opcode == f"mma.sync.aligned.{form}"


def test_a_wrong_number_of_registers() -> None:
    registers = [np.zeros((32, 2), np.uint32), np.zeros((32, 2), np.uint32), np.zeros((32, 4), np.uint32)]
    with pytest.raises(ptx.UnknownOpcode, match="4 registers of 32 bits needed"):
        execute("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", registers)


NVF4 = "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3"


def packed_fragments(codes: np.ndarray, rows: list[int], halves: int) -> np.ndarray:
    """PTX ISA, "Matrix fragments for mma.m16n8k64": eight codes of 4 bits a register, the first one low."""
    held = np.zeros((32, len(rows) * halves), np.uint32)
    for lane in range(32):
        for half in range(halves):
            for position, row in enumerate(rows):
                first = 32 * half + lane % 4 * 8
                for i in range(8):
                    code = int(codes[lane // 4 + row, first + i])
                    held[lane, half * len(rows) + position] |= np.uint32(code << 4 * i)
    return held


@pytest.mark.parametrize(("a_thread", "b_thread"), [(0, 0), (1, 3), (0, 2)])
def test_nvfp4(a_thread: int, b_thread: int) -> None:
    """Every code, and a UE4M3 scale of its own in every byte of every lane."""
    rng = np.random.default_rng(a_thread)
    a, b = rng.integers(0, 16, (16, 64)), rng.integers(0, 16, (8, 64))
    a_words = rng.integers(0x30, 0x40, (32, 4)).astype(np.uint8)
    b_words = rng.integers(0x30, 0x40, (32, 4)).astype(np.uint8)
    registers = [
        packed_fragments(a, [0, 8], 2),
        packed_fragments(b, [0], 2),
        np.zeros((32, 4), np.uint32),
        np.zeros((32, 10), np.uint32),
        a_words.view(np.uint32),
        b_words.view(np.uint32),
    ]
    operands = f", {{%r40}}, {{0, {a_thread}}}, {{%r41}}, {{0, {b_thread}}}"
    found, result = execute(NVF4, registers, operands)
    assert dict(result.models) == {"sm120_nvf4": "published"}
    value = {code: float(np.uint8(code).view(ml_dtypes.float8_e4m3fn)) for code in range(0x30, 0x40)}
    for row in range(16):
        for column in range(8):
            a_lane, b_lane = row % 8 * 4 + 2 * a_thread + row // 8, column * 4 + b_thread
            # Scales of 1.0 to 1.9 with 3 bits: the sum of 64 products has no more bits than FP32 holds.
            exact = sum(
                E2M1[a[row, k]] * E2M1[b[column, k]]
                * value[int(a_words[a_lane, k // 16])] * value[int(b_words[b_lane, k // 16])]
                for k in range(64)
            )  # fmt: skip
            assert found[row, column] == np.float32(exact)


MXF4 = "mma.sync.aligned.m16n8k64.row.col.kind::mxf4{nv}.block_scale{vec}.f32.e2m1.e2m1.f32.ue8m0"
MXF4_SPELLINGS = [
    MXF4.format(nv="nvf4", vec=".scale_vec::2X"),
    MXF4.format(nv="", vec=".scale_vec::2X"),
    MXF4.format(nv="", vec=""),
]


@pytest.mark.parametrize("spelling", MXF4_SPELLINGS)
@pytest.mark.parametrize(
    ("a_byte", "a_thread", "b_byte", "b_thread"), thinned([(0, 0, 0, 0), (2, 1, 0, 3), (0, 1, 2, 2), (2, 0, 2, 1)], 3)
)
def test_mxfp4_by_mxfp4(spelling: str, a_byte: int, a_thread: int, b_byte: int, b_thread: int) -> None:
    """scale_vec::2X: an E8M0 of its own in every byte of every lane, two neighbouring bytes for a row."""
    rng = np.random.default_rng(a_byte + b_byte)
    a, b = rng.integers(0, 16, (16, 64)), rng.integers(0, 16, (8, 64))
    a_words = rng.integers(122, 132, (32, 4)).astype(np.uint8)
    b_words = rng.integers(122, 132, (32, 4)).astype(np.uint8)
    c = rng.integers(-64, 64, (32, 4)).astype(np.float32)
    registers = [
        packed_fragments(a, [0, 8], 2),
        packed_fragments(b, [0], 2),
        c.view(np.uint32),
        np.zeros((32, 10), np.uint32),
        a_words.view(np.uint32),
        b_words.view(np.uint32),
    ]
    operands = f", {{%r40}}, {{{a_byte}, {a_thread}}}, {{%r41}}, {{{b_byte}, {b_thread}}}"
    found, result = execute(spelling, registers, operands)
    assert dict(result.models) == {"sm120_mxf4": "published"}
    for row in range(16):
        for column in range(8):
            a_lane, b_lane = row % 8 * 4 + 2 * a_thread + row // 8, column * 4 + b_thread
            a_scales = [int(a_words[a_lane, a_byte + i]) for i in range(2)]
            b_scales = [int(b_words[b_lane, b_byte + i]) for i in range(2)]
            start = int(c[row % 8 * 4 + column // 2, row // 8 * 2 + column % 2].view(np.uint32))
            model = MODELS["sm120_mxf4"]
            codes = a[row].tolist(), b[column].tolist()
            expected = accumulate(*codes, start, model, "e2m1", "e2m1", a_scales, b_scales)
            assert int(found[row, column].view(np.uint32)) == expected


@pytest.mark.parametrize("byte", [0xFF, 0x7F])
def test_a_nan_scale_of_what_is_zero(byte: int) -> None:
    """0xFF is E8M0's only NaN; 0x7F and 0xFF are both UE4M3's. A zero operand does not take it away."""
    for spelling, count, nan in ((MXF4_SPELLINGS[0], 2, (0xFF,)), (NVF4, 4, (0x7F, 0xFF))):
        words = np.full((32, 4), 0x30, np.uint8)
        words[4 * 3, 0] = byte
        registers = [
            np.zeros((32, 4), np.uint32),
            packed_fragments(np.full((8, 64), 2), [0], 2),
            *(np.zeros((32, n), np.uint32) for n in (4, 10)),
            words.view(np.uint32),
            np.full((32, 1), 0x30303030, np.uint32),
        ]
        found, _ = execute(spelling, registers, ", {%r40}, {0, 0}, {%r41}, {0, 0}")
        assert count
        assert np.isnan(found[3]).all() == (byte in nan)
        assert not found[[0, 1, 2, 4]].any()


@pytest.mark.parametrize("seed", range(3))
def test_nvfp4_against_the_specification(seed: int) -> None:
    """Every code under every scale byte, signs and NaN included, onto any C: bits, not values."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 16, (16, 64)), rng.integers(0, 16, (8, 64))
    a_words, b_words = (rng.integers(0, 256, (32, 4)).astype(np.uint8) for _ in range(2))
    a_words[::2][a_words[::2] & 0x7F == 0x7F] = 0x38
    b_words[b_words & 0x7F == 0x7F] = 0xB8
    c = rng.integers(0, 1 << 32, (32, 4), np.uint32)
    c[:, 2:] = (rng.normal(size=(32, 2)) * 2.0 ** rng.integers(-20, 20, (32, 2))).astype(np.float32).view(np.uint32)
    registers = [
        *(packed_fragments(a, [0, 8], 2), packed_fragments(b, [0], 2), c),
        *(np.zeros((32, 10), np.uint32), a_words.view(np.uint32), b_words.view(np.uint32)),
    ]
    found, _ = execute(NVF4, registers, ", {%r40}, {0, 1}, {%r41}, {0, 2}")
    for row in range(16):
        for column in range(8):
            a_scales = a_words[row % 8 * 4 + 2 + row // 8].tolist()
            b_scales = b_words[column * 4 + 2].tolist()
            start = int(c[row % 8 * 4 + column // 2, row // 8 * 2 + column % 2])
            codes = a[row].tolist(), b[column].tolist()
            expected = accumulate(*codes, start, MODELS["sm120_nvf4"], "e2m1", "e2m1", a_scales, b_scales)
            assert int(found[row, column].view(np.uint32)) == expected


def test_selectors_of_two_scales() -> None:
    registers = [np.zeros((32, n), np.uint32) for n in (4, 2, 4, 10, 1, 1)]
    for selectors, words in (
        (("1, 0", "0, 0"), "a byte-id of 1, not 0 or 2"),
        (("0, 0", "3, 0"), "a byte-id of 3, not 0 or 2"),
        (("0, 2", "0, 0"), "a thread-id of 2, not 0 or 1"),
        (("0, 0", "0, 4"), "a thread-id of 4, not 0 to 3"),
    ):
        with pytest.raises(ptx.MisuseError, match=words):
            execute(MXF4_SPELLINGS[0], registers, f", {{%r40}}, {{{selectors[0]}}}, {{%r41}}, {{{selectors[1]}}}")


def test_nvfp4_has_no_byte_to_choose() -> None:
    registers = [np.zeros((32, n), np.uint32) for n in (4, 2, 4, 10, 1, 1)]
    with pytest.raises(ptx.MisuseError, match="a byte-id of 1, not 0"):
        execute(NVF4, registers, ", {%r40}, {1, 0}, {%r41}, {0, 0}")
    # ptxas refuses these too; kind::mxf4nvf4 has to say how many scales a row has.
    for wrong in (
        NVF4.replace("4X", "2X"),
        NVF4.replace("ue4m3", "ue8m0"),
        NVF4.replace("m16n8k64", "m16n8k32"),
        MXF4.format(nv="nvf4", vec=""),
        MXF4.format(nv="", vec=".scale_vec::4X"),
    ):
        with pytest.raises(ptx.UnknownOpcode):
            execute(wrong, registers, ", {%r40}, {0, 0}, {%r41}, {0, 0}")
