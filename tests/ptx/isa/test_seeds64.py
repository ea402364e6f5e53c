"""The estimates of FP64 against an H200, and how far from it they may be."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import run

from refmoe.ptx import isa

# Operand, rcp.approx.ftz.f64, rsqrt.approx.ftz.f64 and rsqrt.approx.f64 of an H200.
SILICON = [
    (0x0000000000000000, 0x7FF0000000000000, 0x7FF0000000000000, 0x7FF0000000000000),
    (0x8000000000000000, 0xFFF0000000000000, 0xFFF0000000000000, 0xFFF0000000000000),
    (0x0000000000000001, 0x7FF0000000000000, 0x7FF0000000000000, 0x6180000000000000),
    (0x8000000000000001, 0xFFF0000000000000, 0xFFF0000000000000, 0xFFF8000000000000),
    (0x000FFFFFFFFFFFFF, 0x7FF0000000000000, 0x7FF0000000000000, 0x5FE0000000000001),
    (0x0010000000000000, 0x7FD0000000000000, 0x5FE0000000000000, 0x5FE0000000000000),
    (0x0020000000000000, 0x7FC0000000000000, 0x5FD6A09E00000000, 0x5FD6A09E667F3BCD),
    (0x3FF0000000000001, 0x3FF0000000000000, 0x3FF0000000000000, 0x3FEFFFFFFFFFFFFF),
    (0x7FC0000000000000, 0x0020000000000000, 0x2006A09E00000000, 0x2006A09E667F3BCD),
    (0x7FD0000100000000, 0x0000000000000000, None, 0x1FFFFFFF00000C00),
    (0x7FE0000000000000, 0x0000000000000000, 0x1FF6A09E00000000, 0x1FF6A09E667F3BCD),
    (0x7FF0000000000000, 0x0000000000000000, 0x0000000000000000, 0x0000000000000000),
    (0x7FF0000000000001, 0x0000000000000000, 0x0000000000000000, 0x7FF8000000000001),
    (0x7FF0000100000000, 0x7FFFFFFF00000000, 0x7FFFFFFF00000000, 0x7FF8000100000000),
    (0xBFF0000000000000, 0xBFF0000000000000, 0x7FFFFFFF00000000, 0xFFF8000000000000),
    (0xFFF0000000000000, 0x8000000000000000, 0x7FFFFFFF00000000, 0xFFF8000000000000),
    (0xFFFFFFFFFFFFFFFF, 0x7FFFFFFF00000000, 0x7FFFFFFF00000000, 0xFFFFFFFFFFFFFFFF),
]
OPCODES = ("rcp.approx.ftz.f64", "rsqrt.approx.ftz.f64", "rsqrt.approx.f64")


@pytest.mark.parametrize("column", range(3))
def test_what_an_h200_gave(column: int) -> None:
    rows = [(row[0], row[column + 1]) for row in SILICON if row[column + 1] is not None]
    operation = isa.resolve(OPCODES[column])
    with np.errstate(all="ignore"):
        found = operation.function(np.array([a for a, _ in rows], np.uint64))
        assert [hex(x) for x in found] == [hex(expected or 0) for _, expected in rows]
        assert operation.function(np.uint64(rows[7][0])) == rows[7][1]


@pytest.mark.parametrize("opcode", OPCODES)
def test_estimates_are_close_and_claim_little(opcode: str) -> None:
    operation = isa.resolve(opcode)
    a = np.random.default_rng(3).uniform(0.01, 100, 4096)
    true = 1 / a if opcode.startswith("rcp") else 1 / np.sqrt(a)
    found = operation.function(a.view(np.uint64)).view(np.float64)
    # A seed cuts its operand and its result to 20 fraction bits. The method of third order leaves
    # 5/16 h^3 of h < 2^-18, the rounding of the square and its own, and the true value here has two:
    # 3.1 units of 2^-53 in all.
    bound = 2.0**-20 * (1 + 2.0**-18) if ".ftz" in opcode else 2.0**-51
    assert (np.abs(found / true - 1) < bound).all()
    assert operation.exact_when is not None
    assert not operation.exact_when(a.view(np.uint64)).any()
    assert operation.exact_when(np.array([4.0, 1.0, 0.25, 0.0, np.inf, np.nan]).view(np.uint64)).all()


def test_an_estimate_in_a_kernel() -> None:
    out, source = np.zeros(16, np.float64), np.arange(32.0) + 1
    body = """
        setp.ge.u32 %p1, %r1, 16; @%p1 ret;
        mul.wide.u32 %d3, %r1, 8; add.u64 %d4, %d3, %d1; add.u64 %d5, %d3, %d0;
        ld.global.f64 %d6, [%d4]; rsqrt.approx.f64 %d7, %d6; st.global.f64 [%d5], %d7; ret;
    """
    result = run(body, out, source)
    specified = isa.resolve("rsqrt.approx.f64").function(source[:16].view(np.uint64))
    np.testing.assert_array_equal(out.view(np.uint64), specified)
    assert [opcode for opcode, _ in result.approximate] == ["rsqrt.approx.f64"]


@pytest.mark.parametrize("opcode", ["rcp.approx.f64", "sqrt.approx.f64", "rcp.ftz.f64", "ex2.approx.ftz.f64"])
def test_other_spellings_are_unknown(opcode: str) -> None:
    with pytest.raises(isa.NoSuchInstruction):
        isa.resolve(opcode)
