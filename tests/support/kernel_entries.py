"""Every entry of each source of refmoe's own kernels, by the words that its name is made of.

A launch names its one entry. So these lists are no part of the package: they say what has to be in a source, whatever
is launched.
"""

from __future__ import annotations

from itertools import product

from refmoe.cuda.activation import swiglu_kernel
from refmoe.cuda.block_fp8 import block_fp8_kernel
from refmoe.cuda.deepseek.activation import deepseek_activation_kernel
from refmoe.cuda.deepseek.expand import deepseek_expand_kernel
from refmoe.cuda.deepseek.finalize import deepseek_finalize_kernel
from refmoe.cuda.deepseek.routing import deepseek_route_kernel
from refmoe.cuda.deepseek_gemm import MMA, WGMMA, Instruction
from refmoe.cuda.dp4a import dp4a_gemv_kernel
from refmoe.cuda.expand import choice_kernel, expand_as_kernel, expand_kernel
from refmoe.cuda.finalize import finalize_kernel
from refmoe.cuda.finalize_q8_1 import finalize_q8_1_kernel
from refmoe.cuda.gemm.grouped import GroupedGemm
from refmoe.cuda.gemm.kernel import GEMM
from refmoe.cuda.launch import Entry
from refmoe.cuda.nvfp4 import nvfp4_quantize_kernel
from refmoe.cuda.nvfp4_gemm import NVFP4_GEMM
from refmoe.cuda.q8_1 import q8_1_quantize_kernel
from refmoe.cuda.quantize import mxfp8_quantize_kernel
from refmoe.cuda.routing import SORT_CHOSEN_KERNEL, SORT_FEW_KERNEL, SORT_KERNEL, route_kernels
from refmoe.cuda.swiglu_q8_1 import swiglu_q8_1_kernel
from refmoe.reference.deepseek.finalize import ORDERS
from refmoe.reference.deepseek.routing import RULES
from refmoe.reference.q8_1 import VARIANTS as Q8_1_VARIANTS

_HALVES = ("bf16", "fp16")
_SUMS = ("bf16", "f32")
_FLOATS = ("bf16", "fp16", "f32")
_GROUPED = ("128x4", "8x4")
_SWIGLU = ("gpt_oss", "silu")
#: Policies of MX: modes by edges; and of block FP8: quantizers by scales.
_MX = tuple(product(("rceil", "floor"), ("exact", "flashinfer")))
_BLOCK_FP8 = tuple(product(("deepgemm", "exact"), ("fp32", "ue8m0")))


def _mma(instruction: Instruction) -> tuple[Entry, ...]:
    shapes = [(tile, 1) for tile in instruction.tiles_m] + [(tile, 2) for tile in instruction.paired]
    return tuple(instruction.kernel(tile, out, ctas) for (tile, ctas), out in product(shapes, _SUMS))


def _grouped(gemm: GroupedGemm) -> tuple[Entry, ...]:
    return tuple(gemm.kernel(tile, out) for tile, out in product(gemm.tiles, _SUMS))


ACTIVATION_KERNELS = tuple(swiglu_kernel(word, *policy, at) for word, policy, at in product(_SWIGLU, _MX, _GROUPED))
BLOCK_FP8_KERNELS = tuple(
    block_fp8_kernel(block, dtype, *policy)
    for block, dtype, policy in product(("1x128", "128x128"), _FLOATS, _BLOCK_FP8)
)
DEEPSEEK_ACTIVATION_KERNELS = tuple(
    deepseek_activation_kernel(dtype, *policy) for dtype, policy in product(_SUMS, _BLOCK_FP8)
)
DEEPSEEK_EXPAND_KERNELS = tuple(deepseek_expand_kernel(dtype, *policy) for dtype, policy in product(_SUMS, _BLOCK_FP8))
DEEPSEEK_FINALIZE_KERNELS = tuple(deepseek_finalize_kernel(*words) for words in product(_SUMS, _SUMS, ORDERS))
DEEPSEEK_GEMM_KERNELS = (*_mma(MMA), *_mma(WGMMA))
DEEPSEEK_ROUTING_KERNELS = tuple(
    deepseek_route_kernel(dtype, experts, rule) for dtype, experts, rule in product(_SUMS, (256, 512), RULES)
)
DP4A_KERNELS = tuple(dp4a_gemv_kernel(*words) for words in product((1, 8), _SUMS, (2, 4)))
EXPAND_KERNELS = tuple(
    of_tokens(expand_kernel(rows, layout))
    for rows, layout in product(
        (
            *(f"mxfp8_{scales}" for scales in ("none", "linear", "128x4")),
            *("_".join((dtype, *policy)) for dtype, policy in product(_HALVES, _MX)),
        ),
        _GROUPED,
    )
    for of_tokens in (lambda kernel: kernel, choice_kernel)
)
EXPAND_AS_KERNELS = (
    expand_as_kernel("", "copy"),
    *(
        expand_as_kernel(dtype, output, prescaled)
        for dtype, prescaled, output in product(_HALVES, (False, True), ("fp8_tensor", "fp8_token"))
    ),
    *(
        expand_as_kernel(dtype, "nvfp4", prescaled, layout, by_expert=by_expert)
        for dtype, prescaled, layout, by_expert in product(_HALVES, (False, True), _GROUPED, (False, True))
    ),
)
FINALIZE_KERNELS = tuple(finalize_kernel(rows, out) for rows, out in product(_SUMS, _SUMS))
FINALIZE_Q8_1_KERNELS = tuple(finalize_q8_1_kernel(*words) for words in product(_SUMS, Q8_1_VARIANTS))
GEMM_KERNELS = _grouped(GEMM)
NVFP4_GEMM_KERNELS = _grouped(NVFP4_GEMM)
NVFP4_KERNELS = tuple(nvfp4_quantize_kernel(*words) for words in product(_HALVES, ("linear", "128x4")))
Q8_1_KERNELS = tuple(q8_1_quantize_kernel(*words) for words in product(_FLOATS, Q8_1_VARIANTS))
QUANTIZE_KERNELS = tuple(
    mxfp8_quantize_kernel(dtype, *policy, layout)
    for dtype, policy, layout in product(_HALVES, _MX, ("linear", *_GROUPED))
)
ROUTING_KERNELS = (
    *(kernel for words in product(_SUMS, (128, 256, 1024)) for kernel in route_kernels(*words)),
    *(SORT_CHOSEN_KERNEL, SORT_KERNEL, SORT_FEW_KERNEL),
)
SWIGLU_Q8_1_KERNELS = tuple(swiglu_q8_1_kernel(*words) for words in product(_SWIGLU, _SUMS, Q8_1_VARIANTS))
