"""The expand step, one byte at a time: the specification of `refmoe.reference.expand`.

Plain Python on nested lists, written from the text: row = token + k_rank * T, experts in order, that order within an
expert, scales from row align128(first row + 127 * expert) on. Tokens come ready quantized, so that this says where a
byte goes and `refmoe.reference.scalar.quantize` what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from refmoe.formats import E4M3, FP32
from refmoe.reference.scalar.arithmetic import NAN, divide, multiply, rounded
from refmoe.reference.scalar.layout import base_row, scale_offset, scale_size
from refmoe.reference.scalar.numbers import BLOCK, Number, NumberKind, decode, encode
from refmoe.reference.scalar.nvfp4 import quantize_block

Matrix = Sequence[Sequence[int]]


class Permuted(NamedTuple):
    """First row of each expert and the number of rows in use; the two maps, -1 where there is no counterpart."""

    offsets: list[int]
    permuted_to_unpermuted: list[int]
    unpermuted_to_permuted: list[int]


class Rows(NamedTuple):
    """Codes, T * k rows of K bytes on end, and scales in the layout of the grouped GEMM."""

    codes: bytes
    scales: bytes


def build_permutation(topk_ids: Matrix, num_experts: int, first_expert: int = 0) -> Permuted:
    """Hand out rows expert by expert; choices outside [first_expert, first_expert + num_experts) get none."""
    tokens = len(topk_ids)
    k = len(topk_ids[0]) if tokens else 0
    offsets = [0]
    to_unpermuted = [-1] * (tokens * k)
    to_permuted = [-1] * (tokens * k)
    row = 0
    for expert in range(first_expert, first_expert + num_experts):
        for k_rank in range(k):
            for token in range(tokens):
                if topk_ids[token][k_rank] == expert:
                    to_unpermuted[row] = token + k_rank * tokens
                    to_permuted[token + k_rank * tokens] = row
                    row += 1
        offsets.append(row)
    return Permuted(offsets, to_unpermuted, to_permuted)


def expand_rows(codes: Matrix, scales: Matrix, permuted: Permuted, layout: str, fill: int = 0) -> Rows:
    """Copy each token's codes [T][K] and scales [T][K / 32] to its rows; bytes that belong to no row hold `fill`."""
    tokens = len(codes)
    rows = len(permuted.permuted_to_unpermuted)
    width = len(codes[0]) if tokens else 0
    # K is padded to 128, which makes the scale columns a multiple of 4 in every layout.
    columns = (width + 127) // 128 * 4
    experts = len(permuted.offsets) - 1
    out_codes = bytearray([fill]) * (rows * width)
    out_scales = bytearray([fill]) * scale_size(layout, base_row(rows, experts), columns)
    for expert in range(experts):
        first = permuted.offsets[expert]
        for row in range(first, permuted.offsets[expert + 1]):
            token = permuted.permuted_to_unpermuted[row] % tokens
            for column in range(width):
                out_codes[row * width + column] = codes[token][column]
            scale_row = base_row(first, expert) + row - first
            for block in range(columns):
                scale = scales[token][block] if block < width // BLOCK else 0x00
                out_scales[scale_offset(layout, scale_row, block, columns)] = scale
    return Rows(bytes(out_codes), bytes(out_scales))


def expand_blocks_of_16(codes: Matrix, scales: Matrix, permuted: Permuted, layout: str, fill: int = 0) -> Rows:
    """As `expand_rows` of NVFP4: packed codes [T][K / 2], scales [T][K / 16], columns padded to a multiple of 4."""
    columns = (len(scales[0]) + 3) // 4 * 4 if scales else 0
    experts = len(permuted.offsets) - 1
    out_scales = bytearray([fill]) * scale_size(
        layout, base_row(len(permuted.permuted_to_unpermuted), experts), columns
    )
    for expert in range(experts):
        first = permuted.offsets[expert]
        for row in range(first, permuted.offsets[expert + 1]):
            token = permuted.permuted_to_unpermuted[row] % len(codes)
            scale_row = base_row(first, expert) + row - first
            for block in range(columns):
                scale = scales[token][block] if block < len(scales[token]) else 0x00
                out_scales[scale_offset(layout, scale_row, block, columns)] = scale
    return Rows(expand_bytes(codes, permuted, fill), bytes(out_scales))


def expand_by_expert(
    tokens: Matrix, encode_scales: Sequence[int], permuted: Permuted, layout: str, fill: int = 0
) -> Rows:
    """NVFP4 under a global encode scale of each expert: FP32 bits [T][K] and [E]; else as `expand_blocks_of_16`."""
    used = permuted.offsets[-1]
    rows = permuted.permuted_to_unpermuted
    codes, scales = [[0] * (len(tokens[0]) // 2) for _ in rows], [[0] * (len(tokens[0]) // 16) for _ in rows]
    for row in range(used):
        expert = next(e for e in range(len(encode_scales)) if row < permuted.offsets[e + 1])
        token = tokens[rows[row] % len(tokens)]
        for block in range(len(token) // 16):
            made = quantize_block(token[16 * block : 16 * block + 16], encode_scales[expert])
            scales[row][block] = made.scale
            for pair in range(8):
                codes[row][8 * block + pair] = made.codes[2 * pair] | made.codes[2 * pair + 1] << 4
    # Each row is a token of its own by now.
    alone = permuted._replace(permuted_to_unpermuted=[row if row < used else -1 for row in range(len(rows))])
    return expand_blocks_of_16(codes, scales, alone, layout, fill)


def expand_bytes(rows: Matrix, permuted: Permuted, fill: int = 0) -> bytes:
    """Each token's bytes [T][n] copied to its rows, on end; rows that no token has hold `fill`."""
    out = bytearray()
    for source in permuted.permuted_to_unpermuted:
        out += bytes(rows[source % len(rows)]) if source >= 0 else bytes([fill]) * len(rows[0])
    return bytes(out)


def fp8_code(x: int, factor: int) -> int:
    """The E4M3 code of the FP32 number x times a factor, both as bits; rounded to FP32 first, saturating, NaN 0x7F."""
    number = decode(multiply(x, factor), FP32)
    if number.kind is NumberKind.NAN:
        return 0x7F
    finite = number if number.kind is NumberKind.FINITE else Number(NumberKind.FINITE, number.negative, FP32.max)
    return encode(finite, E4M3)


def token_factor(row: Sequence[int]) -> int:
    """FP32 bits of min(448 / amax, FLT_MAX) of a token's FP32 elements; 1 for zeros, NaN for what is not finite."""
    numbers = [decode(bits, FP32) for bits in row]
    if any(number.kind is not NumberKind.FINITE for number in numbers):
        return NAN[FP32]
    amax = rounded(Number(NumberKind.FINITE, False, max(number.magnitude for number in numbers)))
    most = rounded(Number(NumberKind.FINITE, False, E4M3.max))
    return min(divide(most, amax), 0x7F7FFFFF) if amax else 0x3F800000
