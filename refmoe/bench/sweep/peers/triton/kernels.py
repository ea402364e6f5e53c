"""The kernels, and the functions that launch them. A program has some MX blocks of 32 elements.

Scales are token-linear. Triton's exponential and division are approximate, so that some codes of the activations are
the next ones.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from refmoe.formats import MX_BLOCK

#: MX blocks of a program: few while there are not enough for every multiprocessor, then as many as pay.
FEW_BLOCKS, MANY_BLOCKS = 16, 64
_MANY = 1 << 15


@triton.jit
def _mxfp8(values):
    """E4M3 codes and E8M0 scales of float32 [blocks, 32]: the least power of two that fits."""
    largest = tl.max(tl.abs(values), axis=1).to(tl.int32, bitcast=True)
    # The mantissa carries above that of 448, 1.75, whose exponent is 8.
    exponents = tl.maximum(((largest + 0x1FFFFF) >> 23) - 8, 0)
    inverse = ((254 - exponents) << 23).to(tl.float32, bitcast=True)
    scaled = tl.minimum(tl.maximum(values * inverse[:, None], -448.0), 448.0)
    return scaled.to(tl.float8e4nv), exponents.to(tl.uint8)


@triton.jit
def _store(codes, scales, values, block, held, WIDTH: tl.constexpr):
    """Write the MXFP8 of float32 [blocks, 32]."""
    made, exponents = _mxfp8(values)
    tl.store(codes + block[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :], made, mask=held[:, None])
    tl.store(scales + block, exponents, mask=held)


@triton.jit
def quantize_kernel(x, codes, scales, blocks, BLOCKS: tl.constexpr, WIDTH: tl.constexpr):
    """MXFP8 of `blocks` MX blocks of BF16, `WIDTH` elements each."""
    block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    held = block < blocks
    values = tl.load(x + block[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :], mask=held[:, None], other=0.0)
    _store(codes, scales, values.to(tl.float32), block, held, WIDTH)


@triton.jit
def gpt_oss_kernel(gate_up, codes, scales, blocks, BLOCKS: tl.constexpr, WIDTH: tl.constexpr):
    """MXFP8 of the clamped SwiGLU of gpt-oss; gates are the even columns."""
    block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    held = block < blocks
    at = block[:, None] * (2 * WIDTH) + tl.arange(0, 2 * WIDTH)[None, :]
    pairs = tl.load(gate_up + at, mask=held[:, None], other=0.0).to(tl.float32)
    gate, up = tl.split(tl.reshape(pairs, (BLOCKS, WIDTH, 2)))
    gate, up = tl.minimum(gate, 7.0), tl.minimum(tl.maximum(up, -7.0), 7.0)
    _store(codes, scales, gate * tl.sigmoid(gate * 1.702) * (up + 1.0), block, held, WIDTH)


@triton.jit
def silu_kernel(gate_up, codes, scales, blocks, row_blocks, BLOCKS: tl.constexpr, WIDTH: tl.constexpr):
    """MXFP8 of SiLU(gate) * up; a row's `row_blocks` MX blocks of gates are in front of those of ups."""
    block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    held = block < blocks
    first = (block // row_blocks) * (2 * row_blocks) + block % row_blocks
    at = first[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    gate = tl.load(gate_up + at, mask=held[:, None], other=0.0).to(tl.float32)
    up = tl.load(gate_up + at + row_blocks * WIDTH, mask=held[:, None], other=0.0).to(tl.float32)
    _store(codes, scales, gate * tl.sigmoid(gate) * up, block, held, WIDTH)


def quantize(x: Any) -> tuple[Any, Any]:
    """E4M3 codes [M, K] and E8M0 scales uint8 [M, K/32] of BF16 rows [M, K]."""
    return _launched(quantize_kernel, x, x.shape[1], ())


def activation(gate_up: Any, kind: str) -> tuple[Any, Any]:
    """MXFP8 of the activation of BF16 rows [M, 2 I], as `quantize` returns it.

    Args:
        gate_up: the rows.
        kind: "gpt_oss" or "silu".
    """
    width = gate_up.shape[1] // 2
    if kind == "gpt_oss":
        return _launched(gpt_oss_kernel, gate_up, width, ())
    return _launched(silu_kernel, gate_up, width, (width // MX_BLOCK,))


def _launched(kernel: Any, x: Any, width: int, more: tuple[int, ...]) -> tuple[Any, Any]:
    """Launch a kernel that makes MXFP8 rows of `width` elements."""
    codes = torch.empty((x.shape[0], width), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty((x.shape[0], width // MX_BLOCK), dtype=torch.uint8, device=x.device)
    blocks = scales.numel()
    each = MANY_BLOCKS if blocks >= _MANY else FEW_BLOCKS
    kernel[(triton.cdiv(blocks, each),)](x, codes, scales, blocks, *more, BLOCKS=each, WIDTH=MX_BLOCK)
    return codes, scales
