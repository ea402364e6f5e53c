"""Results of a GPU where the manual is silent, or silicon differs from it: vectors, not statements.

All were seen on an NVIDIA H200 (sm_90a, ptxas 13.0) in runs of `refmoe conformance`, which compares many lanes of
each opcode; these are lanes on which an earlier executor was wrong.
"""

from __future__ import annotations

import numpy as np
import pytest

from refmoe.ptx import isa

# Opcode, operands, results; the carry flag is the last operand and the last result.
VECTORS = [
    # CC.CF after a subtraction is the carry of a + ~b + 1, and subc adds it.
    ("sub.cc.u32", (0xE7007F01, 0x9CD9CF38), (0x4A26AFC9, 1)),
    ("sub.cc.s64", (0x20E9FA102240CC4E, 0x8000000000), (0x20E9F9902240CC4E, 1)),
    ("subc.cc.u32", (0xE7007F01, 0x9CD9CF38, 1), (0x4A26AFC9, 1)),
    ("subc.cc.s64", (0x20E9FA102240CC4E, 0x8000000000, 1), (0x20E9F9902240CC4E, 1)),
    ("subc.u32", (0xE7007F01, 0x9CD9CF38, 1), (0x4A26AFC9,)),
    ("subc.u64", (0x20E9FA102240CC4E, 0x8000000000, 1), (0x20E9F9902240CC4E,)),
    # abs and neg of a double make a signalling NaN quiet and leave its sign alone.
    ("abs.f64", (0xFFF0000000000001,), (0xFFF8000000000001,)),
    ("neg.f64", (0xFFF0000000000001,), (0xFFF8000000000001,)),
    # Moves and shifts leave NaN as it is.
    ("cvt.f32.f32", (0xFFC03FC0,), (0xFFC03FC0,)),
    ("cvt.f32.bf16", (0xFFE3,), (0xFFE30000,)),
    ("cvt.rz.f32.bf16", (0xFFE3,), (0xFFE30000,)),
    # To and from a double NaN keeps its sign and the top of its payload, unless .ftz made it canonical first.
    ("cvt.f64.f64", (0x7FFC000000000000,), (0x7FFC000000000000,)),
    ("cvt.rni.f64.f64", (0x7FFC000000000000,), (0x7FFC000000000000,)),
    ("cvt.f64.f32", (0xFFC03FC0,), (0xFFF807F800000000,)),
    ("cvt.ftz.f64.f32", (0xFFC03FC0,), (0x7FFFFFFFE0000000,)),
    ("cvt.f64.f16", (0xFF7F,), (0xFFFDFC0000000000,)),
    ("cvt.f64.bf16", (0xFFE3,), (0xFFFC600000000000,)),
    ("cvt.rn.f32.f64", (0x7FFC000000000000,), (0x7FE00000,)),
    ("cvt.rp.ftz.f32.f64", (0x7FFC000000000000,), (0x7FE00000,)),
    ("cvt.rn.f16.f64", (0x7FFC000000000000,), (0x7F00,)),
    ("cvt.rm.bf16.f64", (0x7FFC000000000000,), (0x7FE0,)),
    ("cvt.rn.tf32.f32", (0xFFC03FC0,), (0x7FFFE000,)),
    ("cvt.rz.relu.tf32.f32", (0xFFC03FC0,), (0x7FFFE000,)),
    ("cvt.rna.tf32.f32", (0xFFC03FC0,), (0xFFC02000,)),
    ("cvt.rna.satfinite.tf32.f32", (0xFFC03FC0,), (0xFFC00000,)),
    # .ftz does nothing on the way to f16.
    ("cvt.rm.ftz.f16.f32", (0x80600000,), (0x8001,)),
    ("cvt.rp.ftz.f16.f32", (0x0001FFFF,), (0x0001,)),
    ("cvt.rp.ftz.sat.f16.f32", (0x0001FFFF,), (0x0001,)),
    # .ftz flushes what is tiny after rounding: 2^-25 below the least normal number, but not 2^-34 below it.
    ("mul.rn.ftz.f16", (0x0400, 0xBBFF), (0x8000,)),
    ("mul.rn.ftz.f16", (0xBBFE, 0x8401), (0x0400,)),
    ("mul.ftz.f16x2", (0xBBFF3FC0, 0x04000000), (0x80000000,)),
    ("cvt.rp.ftz.f32.f64", (0x380FFFFFE0000000,), (0,)),
    ("cvt.rm.ftz.f32.f64", (0xB80FFFFFE0000000,), (0x80000000,)),
    ("fma.rn.ftz.f16x2", (0xBBFF3FC0, 0x04000000, 0x00C00800), (0x80000800,)),
    # Divided by zero, a number gives all ones as quotient and as remainder, whatever it is. None of these is claimed.
    ("div.u16", (0xB408, 0), (0xFFFF,)),
    ("div.s16", (0xBFFF, 0), (0xFFFF,)),
    ("div.u32", (0, 0), (0xFFFFFFFF,)),
    ("div.s32", (0xE700E701, 0), (0xFFFFFFFF,)),
    ("div.u64", (1, 0), (0xFFFFFFFFFFFFFFFF,)),
    ("div.s64", (0xCE71106AA57CCC29, 0), (0xFFFFFFFFFFFFFFFF,)),
    ("rem.u16", (0xF720, 0), (0xFFFF,)),
    ("rem.s16", (0x13, 0), (0xFFFF,)),
    ("rem.u32", (0x8007F02, 0), (0xFFFFFFFF,)),
    ("rem.s32", (0x89B2B0FD, 0), (0xFFFFFFFF,)),
    ("rem.u64", (0x7FEC000000000000, 0), (0xFFFFFFFFFFFFFFFF,)),
    ("rem.s64", (0x802FFFFFFFFFFFFF, 0), (0xFFFFFFFFFFFFFFFF,)),
]


@pytest.mark.parametrize(("opcode", "operands", "results"), VECTORS)
def test_result(opcode: str, operands: tuple[int, ...], results: tuple[int, ...]) -> None:
    operation = isa.resolve(opcode)
    kinds = (*operation.sources, "pred") if operation.carry_in else operation.sources
    sources = [np.array([x]).astype(isa.DTYPES[kind]) for x, kind in zip(operands, kinds, strict=True)]
    with np.errstate(all="ignore"):
        found = operation.function(*sources)
    assert tuple(int(x[0]) for x in (found if isinstance(found, tuple) else (found,))) == results


# Opcode, operands; what the GPU gave for them the executor does not claim, and mostly does not give.
UNCLAIMED = [
    ("bfe.u64", (0x20E9FA102240CC4E, 0x9CD9CF38, 0xE55D34BC)),  # 0x0: all 32 bits of position and length count
    ("bfe.s64", (0x20E9FA102240CC4E, 0x9CD9CF38, 0xE55D34BC)),  # 0x0
    ("bfi.b64", (0x3F, 0x432FFFFFFFFFFFFE, 0xDAF51B09, 0x3FBF)),  # the second operand
    ("fns.b32", (0xC0608A00, 0xBAC00003, 0x80000000)),  # 0x0
    ("div.s16", (0xBFFF, 0)),  # 0xFFFF
    ("rem.u64", (0x7FEC000000000000, 0)),  # all ones
    ("add.rn.f64", (0x7FFC000000000000, 0xFFFFFFFFF)),  # the NaN operand
]


@pytest.mark.parametrize(("opcode", "operands"), UNCLAIMED)
def test_result_is_not_claimed(opcode: str, operands: tuple[int, ...]) -> None:
    operation = isa.resolve(opcode)
    assert operation.exact_when is not None
    sources = [np.array([x]).astype(isa.DTYPES[kind]) for x, kind in zip(operands, operation.sources, strict=True)]
    with np.errstate(all="ignore"):
        assert operation.exact_when(*sources).tolist() == [False]
