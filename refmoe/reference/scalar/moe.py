"""One token through a whole MoE layer, out of the specifications of its steps: that of `refmoe.reference.moe.pipeline`.

Lists of bits in, lists of bits out; the caller says how an expert's rows are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from refmoe.formats import BF16, E2M1, E4M3, E8M0, FP32
from refmoe.policy import EdgePolicy, ScaleMode
from refmoe.reference.scalar import nvfp4
from refmoe.reference.scalar.activation import swiglu
from refmoe.reference.scalar.arithmetic import add, cast, exact_product, multiply, rounded
from refmoe.reference.scalar.dp4a import dot
from refmoe.reference.scalar.gemm import Row
from refmoe.reference.scalar.numbers import BLOCK, decode
from refmoe.reference.scalar.q8_1 import Block
from refmoe.reference.scalar.quantize import quantize_block
from refmoe.reference.scalar.swiglu_q8_1 import swiglu_blocks

_ALPHA, _BETA, _LIMIT = 0x3FD9DB23, 0x3F800000, 0x40E00000
_IDENTITY = 127


class Expert(NamedTuple):
    """Weight rows of MXFP4, one code an element, and FP32 bits of the biases."""

    gate_up: Sequence[Row]
    gate_up_bias: Sequence[int]
    down: Sequence[Row]
    down_bias: Sequence[int]


def moe_token(
    x: Sequence[int],
    experts: Sequence[Expert],
    weights: Sequence[int],
    accumulate: Callable[[Row, Row], int],
    *,
    mxfp8: bool,
    variant: str = "gpt_oss",
) -> list[int]:
    """BF16 bits [H].

    Args:
        x: FP32 bits of a BF16 token [H].
        experts: those that were chosen, by rank.
        weights: FP32 bits, by rank.
        accumulate: FP32 bits of the sum over a token's row and a weight row.
        mxfp8: whether tokens and activations are quantized; else weights and activations are BF16.
        variant: of the activation.
    """
    row = _quantized(x) if mxfp8 else _bf16(x)
    total = [0] * len(x)
    for expert, weight in zip(experts, weights, strict=True):
        up = [_gemm1(row, w, b, accumulate, mxfp8) for w, b in zip(expert.gate_up, expert.gate_up_bias, strict=True)]
        hidden = swiglu(up, variant, None, _ALPHA, _BETA, _LIMIT)
        hidden_row = _quantized(hidden) if mxfp8 else _bf16(hidden)
        for column, (w, b) in enumerate(zip(expert.down, expert.down_bias, strict=True)):
            value = _short(accumulate(hidden_row, w if mxfp8 else _widened(w)))
            total[column] = add(total[column], multiply(weight, add(value, b)))
    return [cast(bits, BF16) for bits in total]


def integer_token(
    blocks: Sequence[Block],
    experts: Sequence[Expert],
    weights: Sequence[int],
    *,
    tokens: int,
    bf16: bool,
    variant: str = "gpt_oss",
) -> list[int]:
    """A token along a path of integer products, up to the sum of its experts: FP32 bits [H].

    Args:
        blocks: the token in Q8_1.
        experts: those that were chosen, by rank.
        weights: FP32 bits, by rank.
        tokens: of the batch, which decides the order in which a product adds up.
        bf16: whether the results of a product are rounded to BF16, as on the path dp4a; on llama_cpp they are not.
        variant: of the activation.
    """

    def product(operand: Sequence[Block], row: Row, bias: int | None) -> int:
        codes = [code for block in operand for code in block.codes]
        bits = dot(codes, [block.d for block in operand], row.codes, row.scales, tokens, None, bias)
        return _short(bits) if bf16 else bits

    total = [0] * BLOCK * len(blocks)
    for expert, weight in zip(experts, weights, strict=True):
        up = [product(blocks, row, bias) for row, bias in zip(expert.gate_up, expert.gate_up_bias, strict=True)]
        hidden = swiglu_blocks(up, variant, "llama_cpp_mmvq", _ALPHA, _BETA, _LIMIT)
        for column, (row, bias) in enumerate(zip(expert.down, expert.down_bias, strict=True)):
            total[column] = add(total[column], multiply(weight, add(product(hidden, row, None), bias)))
    return total


class ScalarNVFP4Expert(NamedTuple):
    """Weight rows of NVFP4, one code an element, and FP32 bits.

    For each GEMM: the global encode scale of its tokens, the factor of its sums, the bias.
    """

    gate_up: Sequence[Row]
    gate_up_encode: int
    gate_up_alpha: int
    gate_up_bias: Sequence[int]
    down: Sequence[Row]
    down_encode: int
    down_alpha: int
    down_bias: Sequence[int]


def moe_token_nvfp4(
    x: Sequence[int],
    experts: Sequence[ScalarNVFP4Expert],
    weights: Sequence[int],
    accumulate: Callable[[Row, Row], int],
    variant: str = "gpt_oss",
) -> list[int]:
    """`moe_token` with NVFP4 on both sides; the activation is rounded to BF16 before it is quantized."""
    total = [0] * len(x)
    for expert, weight in zip(experts, weights, strict=True):
        row = _nvfp4(x, expert.gate_up_encode)
        sums = [multiply(expert.gate_up_alpha, accumulate(row, w)) for w in expert.gate_up]
        up = [_short(add(value, b)) for value, b in zip(sums, expert.gate_up_bias, strict=True)]
        hidden = [_short(value) for value in swiglu(up, variant, None, _ALPHA, _BETA, _LIMIT)]
        row = _nvfp4(hidden, expert.down_encode)
        for column, (w, b) in enumerate(zip(expert.down, expert.down_bias, strict=True)):
            value = _short(multiply(expert.down_alpha, accumulate(row, w)))
            total[column] = add(total[column], multiply(weight, add(value, b)))
    return [cast(bits, BF16) for bits in total]


def _nvfp4(values: Sequence[int], encode: int) -> Row:
    blocks = [nvfp4.quantize_block(values[at : at + nvfp4.BLOCK], encode) for at in range(0, len(values), nvfp4.BLOCK)]
    return Row([code for block in blocks for code in block.codes], [block.scale for block in blocks], E2M1)


def _gemm1(row: Row, weights: Row, bias: int, accumulate: Callable[[Row, Row], int], mxfp8: bool) -> int:
    return _short(add(accumulate(row, weights if mxfp8 else _widened(weights)), bias))


def _short(bits: int) -> int:
    """FP32 bits of the number rounded to BF16."""
    return cast(bits, BF16) << 16


def _quantized(values: Sequence[int]) -> Row:
    codes: list[int] = []
    scales = []
    for start in range(0, len(values), BLOCK):
        numbers = [decode(bits, FP32) for bits in values[start : start + BLOCK]]
        block = quantize_block(numbers, E4M3, ScaleMode.RCEIL, EdgePolicy.EXACT)
        codes += block.codes
        scales.append(block.scale)
    return Row(codes, scales, E4M3)


def _bf16(values: Sequence[int]) -> Row:
    return Row([cast(bits, BF16) for bits in values], [_IDENTITY] * (len(values) // BLOCK), BF16)


def _widened(row: Row) -> Row:
    """MXFP4 in BF16, which has every value of it up to its own largest."""
    scales = [decode(scale, E8M0) for scale in row.scales]
    numbers = [exact_product(decode(code, E2M1), scales[k // BLOCK]) for k, code in enumerate(row.codes)]
    return Row([rounded(number, BF16) for number in numbers], [_IDENTITY] * len(row.scales), BF16)
