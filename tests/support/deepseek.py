"""Random DeepSeek-V3 layers in block FP8 and NVFP4, tokens for them, and one token of NVFP4 in exact rationals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from support.fp32_values import bits

from refmoe.formats import BF16 as BF16_FORMAT
from refmoe.formats import E2M1
from refmoe.reference import BF16Expert, DeepSeekNVFP4Layer, NVFP4Expert, NVFP4Tensor, quantize_nvfp4, unpack_fp4
from refmoe.reference.block_fp8 import BlockFP8Tensor, quantize_block_fp8
from refmoe.reference.deepseek.layer import BlockFP8Expert, DeepSeekMoELayer
from refmoe.reference.scalar.activation import swiglu
from refmoe.reference.scalar.arithmetic import add, cast, divide, multiply
from refmoe.reference.scalar.gemm import Row
from refmoe.reference.scalar.nvfp4 import quantize_block
from refmoe.reference.scalar.nvfp4_gemm import Grouped

BF16 = np.dtype(ml_dtypes.bfloat16)

_ONE, _BLOCK = 0x3F800000, 16


def random_weight(rng: np.random.Generator, rows: int, columns: int) -> BlockFP8Tensor:
    """About 1 / sqrt(columns) large."""
    values = (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)
    return quantize_block_fp8(values, block="128x128")


def random_expert(rng: np.random.Generator, hidden: int, intermediate: int) -> BlockFP8Expert:
    return BlockFP8Expert(random_weight(rng, 2 * intermediate, hidden), random_weight(rng, hidden, intermediate))


def random_layer(
    rng: np.random.Generator,
    *,
    experts: int = 16,
    hidden: int = 256,
    intermediate: int = 128,
    shared: bool = True,
    local: tuple[int, int] | None = None,
    **sizes: Any,
) -> DeepSeekMoELayer:
    """A layer with a router over `experts`; `local` is the first expert of this rank and how many it has."""
    settings = {"top_k": 4, "groups": 4, "top_groups": 2, "scale": 2.5, **sizes}
    routed = [random_expert(rng, hidden, intermediate) for _ in range(experts)]
    router = (rng.standard_normal((experts, hidden)) / 8).astype(BF16)
    bias = (rng.standard_normal(experts) / 8).astype(np.float32)
    always = random_expert(rng, hidden, 2 * intermediate)
    first, count = local or (0, experts)
    return DeepSeekMoELayer(
        routed[first : first + count], hidden, intermediate, shared=always if shared else None,
        router_weight=router, correction_bias=bias, **settings,
    )  # fmt: skip


def random_tokens(rng: np.random.Generator, tokens: int, hidden: int = 256) -> np.ndarray:
    values = rng.standard_normal((tokens, hidden))
    values[:, 3::17] *= 12
    return values.astype(BF16)


def nvfp4_weight(rng: np.random.Generator, rows: int, columns: int) -> NVFP4Tensor:
    """About 1 / sqrt(columns) large, block scales with mantissas."""
    return quantize_nvfp4((rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32))


def nvfp4_expert(rng: np.random.Generator, hidden: int, intermediate: int) -> NVFP4Expert:
    """No two experts have a factor in common."""
    tokens, inner = (2.0**-7 * (1 + rng.random(2))).astype(np.float32)
    gate_up, down = nvfp4_weight(rng, 2 * intermediate, hidden), nvfp4_weight(rng, hidden, intermediate)
    return NVFP4Expert(gate_up, down, tokens, inner)


def bf16_expert(rng: np.random.Generator, hidden: int, intermediate: int) -> BF16Expert:
    shapes = (2 * intermediate, hidden), (hidden, intermediate)
    gate_up, down = ((rng.standard_normal(shape) / np.sqrt(shape[1])).astype(BF16) for shape in shapes)
    return BF16Expert(gate_up, down)


def nvfp4_layer(
    rng: np.random.Generator,
    *,
    experts: int = 8,
    hidden: int = 64,
    intermediate: int = 32,
    shared: str | None = "nvfp4",
    **sizes: Any,
) -> DeepSeekNVFP4Layer:
    """A layer with a router over `experts`; `shared` is the format of its shared expert."""
    settings = {"top_k": 3, "groups": 4, "top_groups": 2, "scale": 2.5, **sizes}
    routed = [nvfp4_expert(rng, hidden, intermediate) for _ in range(experts)]
    router = (rng.standard_normal((experts, hidden)) / 8).astype(BF16)
    bias = (rng.standard_normal(experts) / 8).astype(np.float32)
    made = {"nvfp4": nvfp4_expert, "bf16": bf16_expert}
    always = None if shared is None else made[shared](rng, hidden, 2 * intermediate)
    return DeepSeekNVFP4Layer(
        routed, hidden, intermediate, shared=always, router_weight=router, correction_bias=bias, **settings
    )


def expert_row(x: Sequence[int], expert: NVFP4Expert) -> list[int]:
    """FP32 bits of what one expert makes of one token, both as FP32 bits of BF16 numbers; every step written out."""
    up = _product(x, expert.gate_up, expert.gate_up_input_scale)
    hidden = [cast(value, BF16_FORMAT) << 16 for value in swiglu(up, "silu", None, 0, 0, 0)]
    return _product(hidden, expert.down, expert.down_input_scale)


def weighted_sum(rows: Sequence[Sequence[int]], weights: Sequence[int], shared: Sequence[int] | None) -> list[int]:
    """BF16 bits of the weighted rows, one after the other, and the shared expert's last."""
    out = []
    for column in range(len(rows[0])):
        total = 0
        for row, weight in zip(rows, weights, strict=True):
            total = add(total, multiply(weight, row[column]))
        out.append(cast(total if shared is None else add(total, shared[column]), BF16_FORMAT))
    return out


def _product(values: Sequence[int], weights: NVFP4Tensor, input_scale: np.float32) -> list[int]:
    """The values quantized under 1 / input_scale, each weight row's sum by alpha, rounded to BF16."""
    scale = bits(np.array([input_scale, weights.global_decode_scale], np.float32))
    encode, alpha = divide(_ONE, scale[0]), multiply(scale[0], scale[1])
    blocks = [quantize_block(values[at : at + _BLOCK], encode) for at in range(0, len(values), _BLOCK)]
    row = Row([code for block in blocks for code in block.codes], [block.scale for block in blocks], E2M1)
    codes = unpack_fp4(np.ascontiguousarray(weights.codes)).tolist()
    sums = (Grouped()(row, Row(c, s, E2M1)) for c, s in zip(codes, weights.scales.tolist(), strict=True))
    return [cast(multiply(alpha, each), BF16_FORMAT) << 16 for each in sums]
