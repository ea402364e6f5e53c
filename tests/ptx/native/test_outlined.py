from __future__ import annotations

import numpy as np
from llvmlite import ir

from refmoe.ptx import run_ptx
from refmoe.ptx.native.outlined import Outlined
from refmoe.ptx.ops.lanes import LaneBuilder, vector
from refmoe.ptx.ops.table import lowering

_STEPS = 200


def _text() -> str:
    """Each thread folds pairs of halves many times, unrolled, and stores what a predicate chose."""
    body = "\n".join("fma.rn.f16x2 %h3, %h3, %h1, %h2; fma.rn.f16x2 %h3, %h3, %h2, %h1;" for _ in range(_STEPS))
    return f""".version 9.0
.target sm_90a
.address_size 64
.visible .entry fold(.param .u64 x, .param .u64 y) {{
    .reg .pred %p<2>; .reg .b32 %h<6>; .reg .b64 %d<4>;
    ld.param.u64 %d1, [x]; ld.param.u64 %d2, [y];
    mov.u32 %h4, %tid.x; mul.wide.u32 %d3, %h4, 4; add.s64 %d1, %d1, %d3; add.s64 %d2, %d2, %d3;
    ld.global.b32 %h1, [%d1]; ld.global.b32 %h2, [%d1+128]; mov.b32 %h3, %h1;
    {body}
    setp.lt.u32 %p1, %h4, 16;
    @%p1 fma.rn.f16x2 %h3, %h3, %h3, %h3;
    st.global.b32 [%d2], %h3;
    ret;
}}
"""


def _fma(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    # Products of halves are exact in FP64, and so are these sums: the exponents lie close together.
    return (x.astype(np.float64) * y.astype(np.float64) + z.astype(np.float64)).astype(np.float16)


def test_long_forms_are_called_and_give_the_same() -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((2, 32, 2)) * 0.3).astype(np.float16)
    y = np.zeros((32, 2), np.float16)
    run_ptx(_text(), block=32, args=[x, y])
    total = x[0].copy()
    for _ in range(_STEPS):
        total = _fma(_fma(total, x[0], x[1]), x[1], x[0])
    total[:16] = _fma(total[:16], total[:16], total[:16])
    assert y.view(np.uint16).tolist() == total.view(np.uint16).tolist()


def _lines(opcode: str, kinds: list[int], times: int) -> tuple[int, ir.Module]:
    """(instructions of a function that has an opcode so many times, its module)."""
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [vector(bits) for bits in kinds]), "f")
    build = ir.IRBuilder(function.append_basic_block())
    lanes = LaneBuilder(module, build, function.args[0])
    outlined, form = Outlined(module), lowering(opcode, 1, len(kinds))
    assert form is not None
    for _ in range(times):
        outlined.results(opcode, form, lanes, list(function.args))
    return sum(len(block.instructions) for block in function.blocks), module


def test_only_long_forms_are_functions_and_each_once() -> None:
    count, module = _lines("fma.rn.f16x2", [32, 32, 32], 5)
    assert count == 5
    assert [each.name for each in module.functions if each.name.startswith("form_")] == ["form_0"]
    count, module = _lines("add.u32", [32, 32], 5)
    assert count == 5
    assert not [each.name for each in module.functions if each.name.startswith("form_")]
