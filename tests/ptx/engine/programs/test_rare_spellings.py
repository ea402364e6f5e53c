"""Instructions that few kernels have, one small program each, with results worked out here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.ptx_kernel import run
from support.selection.thinned import thinned

from refmoe import ptx
from refmoe.ptx import isa

LANES = np.arange(32, dtype=np.uint32)


def of_lanes(body: str, target: str = "sm_90a", **options: Any) -> np.ndarray:
    """What each lane of a warp leaves in `%r3`."""
    out = np.zeros(32, np.uint32)
    run(f"mov.u32 %r3, 0; {body} st.global.u32 [%d2], %r3; ret;", out, target=target, **options)
    return out


def test_movmatrix_transposes() -> None:
    rows = np.arange(64, dtype=np.uint16).reshape(8, 8) * 257
    out = rows.copy().view(np.uint32).ravel()
    run("ld.global.u32 %r3, [%d2]; movmatrix.sync.aligned.m8n8.trans.b16 %r3, %r3; st.global.u32 [%d2], %r3; ret;", out)
    assert (out.view(np.uint16).reshape(8, 8) == rows.T).all()


def test_movmatrix_needs_the_whole_warp() -> None:
    with pytest.raises(ptx.WarpError, match="31 lanes"):
        of_lanes("setp.eq.u32 %p1, %r1, 4; @%p1 exit; movmatrix.sync.aligned.m8n8.trans.b16 %r3, %r1;")


def test_what_is_undefined_moves_with_its_half() -> None:
    # Lane 9 has elements 2 and 3 of row 2: they become element 2 of rows 2 and 3, the lower halves of lanes 9 and 13.
    body = """
        setp.ne.u32 %p1, %r1, 9; mov.u32 %r4, 7; @%p1 mov.u32 %r5, %r4;
        movmatrix.sync.aligned.m8n8.trans.b16 %r6, %r5;
        setp.eq.u32 %p2, %r1, LANE; @%p2 and.b32 %r3, %r6, MASK;
    """
    for lane, mask in ((9, 0xFFFF0000), (13, 0xFFFF0000), (10, 0xFFFFFFFF), (14, 0xFFFFFFFF)):
        of_lanes(body.replace("LANE", str(lane)).replace("MASK", str(mask)), checks=ptx.Checks(undefined=True))
    for lane in (9, 13):
        with pytest.raises(ptx.UndefinedError, match="%r5"):
            of_lanes(body.replace("LANE", str(lane)).replace("MASK", "1"), checks=ptx.Checks(undefined=True))


def test_a_breakpoint_ends_the_kernel() -> None:
    assert (of_lanes("setp.gt.u32 %p1, %r1, 40; @%p1 brkpt; mov.u32 %r3, 6;") == 6).all()
    with pytest.raises(ptx.Trap, match=r"brkpt in block \(0, 0, 0\) thread \(7, 0, 0\)"):
        of_lanes("setp.eq.u32 %p1, %r1, 7; @%p1 brkpt;")


@pytest.mark.parametrize("instruction", ["fence.proxy.alias;", "pmevent 3;"])
def test_what_changes_nothing(instruction: str) -> None:
    assert (of_lanes(f"{instruction} mov.u32 %r3, 6;") == 6).all()


def test_performance_counters_are_zero() -> None:
    reads = "".join(f"mov.u32 %r4, %pm{n}; or.b32 %r3, %r3, %r4; mov.u64 %d5, %pm{n}_64;" for n in range(8))
    assert (of_lanes(f"{reads} cvt.u32.u64 %r4, %d5; or.b32 %r3, %r3, %r4;") == 0).all()


# ptxas 13.0 takes modifiers and types of these in any order.
ORDERS = [
    ("max.s16x2.relu", "max.relu.s16x2"), ("min.s32.relu", "min.relu.s32"), ("cvt.rn.bf16x2.f32.relu",
    "cvt.rn.relu.bf16x2.f32"), ("cvt.bf16x2.f32.rn", "cvt.rn.bf16x2.f32"), ("cvt.rn.f16x2.f32.relu.satfinite",
    "cvt.rn.relu.satfinite.f16x2.f32"), ("cvt.satfinite.rn.e4m3x2.f32", "cvt.rn.satfinite.e4m3x2.f32"),
    ("cvt.rn.e4m3x2.relu.f32.satfinite", "cvt.rn.satfinite.relu.e4m3x2.f32"), ("cvt.s32.f32.rzi", "cvt.rzi.s32.f32"),
    ("cvt.sat.rzi.s32.f32", "cvt.rzi.sat.s32.f32"), ("cvt.f16.f32.sat.rn", "cvt.rn.sat.f16.f32"), ("mul.u32.lo",
    "mul.lo.u32"), ("mad.sat.hi.s32", "mad.hi.sat.s32"), ("add.f32.rz", "add.rz.f32"), ("fma.f32.sat.rn",
    "fma.rn.sat.f32"), ("add.u32.cc", "add.cc.u32"), ("div.f64.rp", "div.rp.f64"), ("rcp.f32.ftz.approx",
    "rcp.approx.ftz.f32"), ("min.f32.abs.xorsign.NaN", "min.NaN.xorsign.abs.f32"), ("set.f32.u32.lt", "set.lt.f32.u32"),
    ("rem.s32", "rem.s32"),
]  # fmt: skip


@pytest.mark.parametrize(("written", "known"), thinned(ORDERS, 3))
def test_modifiers_in_any_order(written: str, known: str) -> None:
    found, meant = isa.resolve(written), isa.resolve(known)
    assert (found.sources, found.destinations, found.carry_out) == (meant.sources, meant.destinations, meant.carry_out)
    kinds = {"b16": "%h3", "b32": "%r3", "b64": "%d3"}
    given = {"b16": "%h4", "b32": "%r4", "b64": "%d4"}
    loads = "ld.global.u32 %r4, [%d2]; cvt.u16.u32 %h4, %r4; cvt.u64.u32 %d4, %r4; shl.b64 %d4, %d4, 29;"
    results = []
    for opcode in (written, known):
        out = (LANES * np.uint32(0x9E3779B1)) ^ np.uint32(0x3F800000)
        operands = ", ".join((kinds[meant.destinations[0]], *(given[kind] for kind in meant.sources)))
        run(
            f"mov.u32 %r3, 0; mov.b64 %d3, 0; mov.b16 %h3, 0; {loads} {opcode} {operands}; cvt.u32.u16 %r5, %h3; "
            "cvt.u32.u64 %r6, %d3; add.u32 %r3, %r3, %r5; add.u32 %r3, %r3, %r6; st.global.u32 [%d2], %r3; ret;",
            out,
        )
        results.append(out)
    assert (results[0] == results[1]).all()


@pytest.mark.parametrize("modifiers", ["v4.f32.add", "f32.v4.add", "add.f32.v4", "v4.add.f32", "add.v4.f32"])
@pytest.mark.parametrize("stem", ["red.global", "red.global.gpu.relaxed", "red"])
def test_vectors_of_sums_in_any_order(stem: str, modifiers: str) -> None:
    out = np.arange(4, dtype=np.float32)
    one = "0f3F800000"
    run(f"mov.f32 %r3, {one}; {stem}.{modifiers} [%d0], {{%r3, %r3, %r3, %r3}}; ret;", out)
    assert out.tolist() == [32, 33, 34, 35]


def test_sums_of_halves_in_any_order() -> None:
    out = np.zeros(2, np.float16)
    for opcode in ("red.global.v2.f16.add.noftz", "red.global.noftz.f16.v2.add", "red.f16.noftz.add.v2"):
        run(f"mov.b16 %h3, 0x3C00; {opcode} [%d0], {{%h3, %h3}}; ret;", out, block=(2, 1, 1))
    assert out.tolist() == [6, 6]


def test_loads_in_any_order() -> None:
    out = np.array([3, 5, 0], np.uint32)
    body = "ld.u32.global.v2 {%r3, %r4}, [%d0]; mad.lo.u32 %r3, %r3, 10, %r4; st.u32.global [%d0 + 8], %r3; ret;"
    run(body, out, block=(1, 1, 1))
    assert out[2] == 35


@pytest.mark.parametrize(("modifiers", "expected"), [
    ("min", -3.0), ("max", 28.0), ("min.abs", 0.0), ("max.abs", 28.0), ("max.NaN", 28.0), ("min.NaN.abs", 0.0),
])  # fmt: skip
def test_redux_of_floats(modifiers: str, expected: float) -> None:
    body = f"sub.s32 %r4, %r1, 3; cvt.rn.f32.s32 %r4, %r4; redux.sync.{modifiers}.f32 %r3, %r4, -1;"
    assert (of_lanes(body, target="sm_100a").view(np.float32) == np.float32(expected)).all()
    # A NaN in lane 5 loses, or wins.
    nan = "setp.eq.u32 %p1, %r1, 5; @%p1 mov.b32 %r4, 0xFFC00001; redux"
    found = of_lanes(body.replace("redux", nan), target="sm_100a")
    assert (found == (0x7FFFFFFF if "NaN" in modifiers else np.float32(expected).view(np.uint32))).all()
    with pytest.raises(ptx.UnknownOpcode, match="sm_100a and sm_103a, not of sm_90a"):
        of_lanes(body)


def test_a_factor_from_outside_a_tensor_makes_zero() -> None:
    one, two, outside, nan = 0x3C00, 0x4000, 0x7FF7, 0x7E00
    cases = [(one, two, one, 0x4200), (outside, two, one, 0), (two, outside, nan, 0), (nan, two, one, 0x7FFF)]
    for a, b, c, expected in cases:
        given = f"mov.b16 %h1, {a}; mov.b16 %h2, {b}; mov.b16 %h4, {c};"
        found = of_lanes(f"{given} fma.rn.oob.f16 %h3, %h1, %h2, %h4; cvt.u32.u16 %r3, %h3;")
        assert (found == expected).all()
    pair = f"mov.b32 %r4, 0x{two << 16 | outside:x}; mov.b32 %r5, 0x{0xC000 << 16 | one:x};"
    assert (of_lanes(f"{pair} fma.rn.oob.f16x2 %r3, %r4, %r5, %r4;") == 0xC000 << 16).all()
    assert (of_lanes(f"{pair} fma.rn.oob.relu.f16x2 %r3, %r4, %r5, %r4;") == 0).all()


@pytest.mark.parametrize(("to", "cut"), [("f16x2", 13), ("bf16x2", 16)])
def test_rounding_by_bits_of_an_operand(to: str, cut: int) -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(32).astype(np.float32) for _ in range(2))
    bits = rng.integers(0, 1 << 32, 32, np.uint32)

    def one(values: np.ndarray, amounts: np.ndarray) -> list[int]:
        # What is cut off, and the bits, are integers: away from zero where their sum needs one bit more.
        codes = []
        for value, amount in zip(values.view(np.uint32).tolist(), amounts.tolist(), strict=True):
            mask = (1 << cut) - 1
            up = (value & mask) + (amount & mask) >> cut
            kept = np.uint32(value & ~mask & 0xFFFFFFFF) + np.uint32(up << cut)
            code = kept >> 16 if cut == 16 else int(kept.view(np.float32).astype(np.float16).view(np.uint16))
            codes.append(int(code))
        return codes

    out = np.concatenate([a.view(np.uint32), b.view(np.uint32), bits])
    body = f"""
        ld.global.u32 %r3, [%d2]; ld.global.u32 %r4, [%d2 + 128]; ld.global.u32 %r5, [%d2 + 256];
        cvt.rs.{to}.f32 %r6, %r3, %r4, %r5; st.global.u32 [%d2], %r6; ret;
    """
    run(body, out, target="sm_100a")
    expected = [high << 16 | low for high, low in zip(one(a, bits >> 16), one(b, bits & 0xFFFF), strict=True)]
    assert out[:32].tolist() == expected
