"""wmma: matrices from memory, multiplied and stored again, against products that no order of addition changes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from support.selection.thinned import thinned

import refmoe
from refmoe import ptx
from refmoe.reference.mma import tensor_core_mma

DTYPES = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "f32": np.float32,
    "f64": np.float64,
    "s8": np.int8,
    "u8": np.uint8,
    "s32": np.int32,
}
# Registers of A, B and of C and D as PTX asks for them, and their kind.
SQUARE = ("m16n16k16", "m32n8k16", "m8n32k16")
COUNTS = {
    **{("f16", shape): (8, 8) for shape in SQUARE},
    **dict(zip([(t, s) for t in ("bf16",) for s in SQUARE], [(4, 4), (8, 2), (2, 8)], strict=True)),
    **dict(zip([("s8", s) for s in SQUARE], [(2, 2), (4, 1), (1, 4)], strict=True)),
    **dict(zip([("u8", s) for s in SQUARE], [(2, 2), (4, 1), (1, 4)], strict=True)),
    ("tf32", "m16n16k8"): (4, 4),
    ("f64", "m8n8k4"): (1, 1),
}
SUMS = {"bf16": "f32", "tf32": "f32", "s8": "s32", "u8": "s32", "f64": "f64"}
FORMS = [(*key, SUMS.get(key[0], "f32")) for key in COUNTS] + [("f16", shape, "f16") for shape in SQUARE]


def vector(prefix: str, count: int) -> str:
    return "{" + ", ".join(f"%{prefix}{number}" for number in range(count)) + "}"


def kernel(
    name: str, shape: str, sums: str, layouts: tuple[str, str, str], pitches: tuple[str, str, str], between: str = ""
) -> str:
    """D = A B + C in place of C. The parameters are A, B, C and an unused pitch."""
    a_count, b_count = COUNTS[name, shape]
    kind = "b64" if name == "f64" else "b32"
    c_count = 2 if name == "f64" else 4 if sums == "f16" else 8
    types = f"{sums}.{sums}" if name == "f16" else f"{sums}.{name}.{name}.{sums}"
    a, b, c = (vector(prefix, count) for prefix, count in (("a", a_count), ("b", b_count), ("c", c_count)))
    return f"""
.version 8.5
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u32 p3) {{
    .reg .{kind} %a<8>, %b<8>, %c<8>;
    .reg .b32 %r<9>;
    .reg .b64 %d<4>;
    .reg .f32 %f<4>;
    .reg .pred %p<4>;
    ld.param.u64 %d0, [p0];
    ld.param.u64 %d1, [p1];
    ld.param.u64 %d2, [p2];
    ld.param.u32 %r0, [p3];
    mov.u32 %r1, %tid.x;
    {between.split("@@")[0]}
    wmma.load.a.sync.aligned.{layouts[0]}.{shape}.global.{name} {a}, [%d0]{pitches[0]};
    wmma.load.b.sync.aligned.{layouts[1]}.{shape}.{name} {b}, [%d1]{pitches[1]};
    wmma.load.c.sync.aligned.{layouts[2]}.{shape}.{sums} {c}, [%d2]{pitches[2]};
    {between.split("@@")[-1]}
    wmma.mma.sync.aligned.{layouts[0]}.{layouts[1]}.{shape}.{types} {c}, {a}, {b}, {c};
    wmma.store.d.sync.aligned.{layouts[2]}.{shape}.global.{sums} [%d2], {c}{pitches[2]};
    ret;
}}"""


def sizes(shape: str) -> tuple[int, int, int]:
    m, rest = shape[1:].split("n")
    n, k = rest.split("k")
    return int(m), int(n), int(k)


def stored(matrix: np.ndarray, layout: str, pitch: int, fill: int) -> np.ndarray:
    """A matrix in memory, its rows or columns `pitch` elements apart, with `fill` between them."""
    lines = matrix if layout == "row" else matrix.T
    held = np.full((lines.shape[0], pitch), fill, matrix.dtype)
    held[:, : lines.shape[1]] = lines
    return held


def taken(held: np.ndarray, layout: str, rows: int, columns: int) -> np.ndarray:
    lines = held[:, : columns if layout == "row" else rows]
    return lines if layout == "row" else lines.T


@pytest.mark.parametrize(
    "layouts", thinned(map(pytest.param, [("row", "col", "row"), ("col", "row", "col"), ("row", "row", "row")]), 3)
)
@pytest.mark.parametrize(("name", "shape", "sums"), FORMS)
def test_products(name: str, shape: str, sums: str, layouts: tuple[str, str, str]) -> None:
    m, n, k = sizes(shape)
    rng = np.random.default_rng(5)
    low = 0 if name == "u8" else -5
    a, b = (rng.integers(low, 6, size).astype(DTYPES[name]) for size in ((m, k), (k, n)))
    c = rng.integers(-90, 90, (m, n)).astype(DTYPES[sums])
    pitch, wide = 40, 48
    held = [stored(a, layouts[0], pitch, 77), stored(b, layouts[1], wide, 78), stored(c, layouts[2], pitch, 79)]
    # One pitch is a constant, one a register.
    text = kernel(name, shape, sums, layouts, (f", {pitch}", ", %r0", f", {pitch}"))
    ptx.launch(ptx.Module.parse(text), "k", (1, 1, 1), (32, 1, 1), [*held, wide])
    expected = a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)
    np.testing.assert_array_equal(taken(held[2], layouts[2], m, n).astype(np.float64), expected)
    between = held[2][:, (n if layouts[2] == "row" else m) :]
    assert (between.astype(np.float64) == 79).all()


@pytest.mark.parametrize(("name", "shape", "sums"), FORMS)
def test_matrices_without_gaps(name: str, shape: str, sums: str) -> None:
    m, n, k = sizes(shape)
    rng = np.random.default_rng(6)
    a, b = (rng.integers(0, 4, size).astype(DTYPES[name]) for size in ((m, k), (k, n)))
    c = np.zeros((m, n), DTYPES[sums])
    text = kernel(name, shape, sums, ("row", "row", "row"), ("", "", ""))
    ptx.launch(ptx.Module.parse(text), "k", (1, 1, 1), (32, 1, 1), [a, b, c, 0])
    np.testing.assert_array_equal(c.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64))


def test_single_bits_and_integers_of_four_bits() -> None:
    rng = np.random.default_rng(8)
    for name, shape, bits, pattern in (("s4", "m8n8k32", 4, ""), ("b1", "m8n8k128", 1, "xor.popc.")):
        a, b = rng.integers(0, 256, (2, 8, 16), dtype=np.uint8)
        out = np.zeros((8, 8), np.int32)
        text = f"""
.version 8.5
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2) {{
    .reg .b32 %r<9>;
    .reg .b64 %d<4>;
    ld.param.u64 %d0, [p0];
    ld.param.u64 %d1, [p1];
    ld.param.u64 %d2, [p2];
    wmma.load.a.sync.aligned.row.{shape}.{name} {{%r0}}, [%d0];
    wmma.load.b.sync.aligned.col.{shape}.{name} {{%r1}}, [%d1];
    wmma.mma.{pattern}sync.aligned.row.col.{shape}.s32.{name}.{name}.s32 {{%r2, %r3}}, {{%r0}}, {{%r1}}, {{%r2, %r3}};
    wmma.store.d.sync.aligned.row.{shape}.s32 [%d2], {{%r2, %r3}};
    ret;
}}""".replace("    wmma.mma", "    mov.u32 %r2, 3; mov.u32 %r3, 3;\n    wmma.mma")
        refmoe.run_ptx(text, block=32, args=[a, b, out])
        x, y = (np.unpackbits(each, axis=1, bitorder="little").astype(np.int64) for each in (a, b))
        if bits == 4:
            x, y = (each.reshape(8, 32, 4) @ np.array([1, 2, 4, -8]) for each in (x[:, :128], y[:, :128]))
            expected = x @ y.T + 3
        else:
            expected = (x[:, None] != y[None]).sum(axis=2) + 3
        np.testing.assert_array_equal(out, expected)


def problem(name: str, shape: str, sums: str) -> list[np.ndarray]:
    m, n, k = sizes(shape)
    rng = np.random.default_rng(4)
    values = [rng.standard_normal(size) for size in ((m, k), (n, k), (m, n))]
    return [value.astype(DTYPES[dtype]) for value, dtype in zip(values, (name, name, sums), strict=True)]


def launched(text: str, arrays: list[np.ndarray], threads: int = 32, wide: int = 0) -> ptx.LaunchResult:
    return ptx.launch(ptx.Module.parse(text), "k", (1, 1, 1), (threads, 1, 1), [*arrays, wide])


@pytest.mark.parametrize(
    ("name", "shape", "sums", "model", "evidence"),
    [
        ("f16", "m16n16k16", "f32", "sm90_mma", "hardware-checked"),
        ("bf16", "m8n32k16", "f32", "sm90_mma", "hardware-checked"),
        ("f16", "m32n8k16", "f16", "sm90_mma_f16acc", "hardware-checked"),
        ("tf32", "m16n16k8", "f32", "sm90_mma_k4", "hardware-checked"),
    ],
)
def test_products_follow_their_model(name: str, shape: str, sums: str, model: str, evidence: str) -> None:
    a, b, c = problem(name, shape, sums)
    codes = [each.view(f"u{each.itemsize}") for each in (a, b)]
    expected = tensor_core_mma(*codes, c.astype(np.float32), model=model, a_format=name, b_format=name)
    result = launched(kernel(name, shape, sums, ("row", "col", "row"), ("", "", "")), [a, b, c])
    assert c.tobytes() == expected.astype(c.dtype).tobytes()
    assert dict(result.models) == {model: evidence}


def test_two_halves_of_tf32_are_not_one_step() -> None:
    # 2^-26 is lost in a step that has a 1 too, and kept in the next one.
    a, b, c = np.zeros((16, 8), np.float32), np.zeros((16, 8), np.float32), np.zeros((16, 16), np.float32)
    a[0], b[0] = [1, -1, 0, 0, 2.0**-26, 0, 0, 0], 1
    codes = a.view(np.uint32), b.view(np.uint32)
    whole = tensor_core_mma(*codes, c, model="sm90_mma_k8", a_format="tf32", b_format="tf32")
    halves = tensor_core_mma(*codes, c, model="sm90_mma_k4", a_format="tf32", b_format="tf32")
    launched(kernel("tf32", "m16n16k8", "f32", ("row", "col", "row"), ("", "", "")), [a, b, c])
    assert c.tobytes() == halves.tobytes()
    assert (float(c[0, 0]), float(whole[0, 0])) == (2.0**-26, 0.0)


def test_a_part_of_a_warp_is_refused() -> None:
    arrays = problem("f16", "m16n16k16", "f32")
    text = kernel("f16", "m16n16k16", "f32", ("row", "col", "row"), ("", "", ""), "setp.eq.u32 %p1, %r1, 9; @%p1 exit;")
    with pytest.raises(ptx.WarpError, match="31 lanes of its warp"):
        launched(text, arrays)


def test_a_guard_that_is_off_everywhere_leaves_all_as_it_was() -> None:
    arrays = problem("bf16", "m16n16k16", "f32")
    before = arrays[2].copy()
    text = kernel("bf16", "m16n16k16", "f32", ("row", "col", "row"), ("", "", ""), "setp.eq.u32 %p1, 1, 2;")
    launched(text.replace("wmma.store", "@%p1 wmma.store"), arrays)
    np.testing.assert_array_equal(arrays[2], before)
    launched(text.replace("wmma.store", "@!%p1 wmma.store"), arrays)
    assert (arrays[2] != before).any()


def test_a_matrix_that_leaves_its_buffer_is_reported() -> None:
    a, b, c = problem("f16", "m16n16k16", "f32")
    with pytest.raises(ptx.MemoryFault, match="out of bounds") as caught:
        launched(kernel("f16", "m16n16k16", "f32", ("row", "col", "row"), (", 24", "", "")), [a, b, c])
    assert "wmma.load.a" in caught.value.text


def test_elements_that_nobody_wrote_are_reported() -> None:
    a, b, c = problem("f16", "m16n16k16", "f32")
    initialised = np.ones(a.shape, bool)
    initialised[3, 7] = False
    buffer = ptx.Buffer(a, "a", initialised=initialised)
    text = kernel("f16", "m16n16k16", "f32", ("row", "col", "row"), ("", "", ""))
    with pytest.raises(ptx.MemoryFault, match="uninitialised"):
        ptx.launch(ptx.Module.parse(text), "k", (1, 1, 1), (32, 1, 1), [buffer, b, c, 0])


def test_every_accumulator_has_a_lane_of_its_own() -> None:
    # What a program does with each register of C, it does with each element once.
    arrays = problem("f16", "m16n16k16", "f32")
    arrays[0][:] = 0
    before = arrays[2].copy()
    scaled = "".join(f"mul.rn.f32 %c{number}, %c{number}, 0f40400000;" for number in range(8))
    launched(kernel("f16", "m16n16k16", "f32", ("row", "col", "row"), ("", "", ""), "@@" + scaled), arrays)
    np.testing.assert_array_equal(arrays[2], before * np.float32(3))


def test_results_may_lie_where_factors_were() -> None:
    a, b, c = problem("f16", "m16n16k16", "f32")
    expected = [a, b, c.copy()]
    launched(kernel("f16", "m16n16k16", "f32", ("row", "col", "row"), ("", "", "")), expected)
    text = kernel("f16", "m16n16k16", "f32", ("row", "col", "row"), ("", "", ""))
    text = text.replace("f32.f32 {%c0, %c1, %c2, %c3, %c4", "f32.f32 {%a0, %a1, %a2, %a3, %b0")
    text = text.replace("%b0, %c5, %c6, %c7}", "%b0, %b1, %b2, %b3}")
    places = "{%a0, %a1, %a2, %a3, %b0, %b1, %b2, %b3}"
    text = text.replace("[%d2], {%c0, %c1, %c2, %c3, %c4, %c5, %c6, %c7}", f"[%d2], {places}")
    launched(text, [a, b, c])
    assert c.tobytes() == expected[2].tobytes()


@pytest.mark.parametrize(
    "wrong",
    [
        ("wmma.load.a.sync.aligned.row.m16n16k16", "wmma.load.a.sync.aligned.row.m16n16k8"),
        ("wmma.mma.sync.aligned", "wmma.mma.sync"),
        ("f32.f32 {", "f32.f16 {"),
    ],
)
def test_other_spellings_are_refused_where_they_are_reached(wrong: tuple[str, str]) -> None:
    arrays = problem("f16", "m16n16k16", "f32")
    text = kernel("f16", "m16n16k16", "f32", ("row", "col", "row"), ("", "", "")).replace(*wrong)
    with pytest.raises(ptx.UnknownOpcode, match="wmma"):
        launched(text, arrays)
    launched(text.replace("mov.u32 %r1, %tid.x;", "ret;"), arrays)


def test_a_store_gathers_the_lanes_under_every_schedule() -> None:
    # Behind a product, which is native, a store is not: its lanes may have parted at the end of that block.
    kernel = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out)
{
    .reg .b32 %r<32>; .reg .f32 %f<16>; .reg .b64 %d<4>;
    .shared .align 32 .b8 tile[512];
    ld.param.u64 %d0, [out]; mov.u32 %r0, tile; mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 4; add.u32 %r2, %r2, %r0;
    mov.u32 %r3, 0x3C003C00; st.shared.v4.b32 [%r2], {%r3, %r3, %r3, %r3}; mov.u32 %r4, 16; mov.f32 %f8, 0f00000000;
    bar.warp.sync -1;
    wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {%r10, %r11, %r12, %r13, %r14, %r15, %r16, %r17}, [%r0], %r4;
    wmma.load.b.sync.aligned.col.m16n16k16.shared.f16 {%r20, %r21, %r22, %r23, %r24, %r25, %r26, %r27}, [%r0], %r4;
    wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7},
        {%r10, %r11, %r12, %r13, %r14, %r15, %r16, %r17}, {%r20, %r21, %r22, %r23, %r24, %r25, %r26, %r27},
        {%f8, %f8, %f8, %f8, %f8, %f8, %f8, %f8};
    cvta.to.global.u64 %d1, %d0;
    wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%d1], {%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7}, %r4;
    ret;
}
"""
    out = np.zeros(256, np.float32)
    refmoe.run_ptx(kernel, block=32, args=[out], schedules=6)
    assert (out == 16).all()
