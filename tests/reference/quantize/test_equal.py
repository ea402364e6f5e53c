from __future__ import annotations

import numpy as np
import pytest
from support.mx_blocks import BOUNDARY_MANTISSAS, INPUTS, adversarial_blocks, build, differing_blocks, fast, specified
from support.selection.thinned import thinned

from refmoe.errors import ArgumentError
from refmoe.formats import BF16, E4M3, E8M0, FP32
from refmoe.policy import EDGE_FORMATS, EdgePolicy, ScaleMode
from refmoe.reference import quantize_mxfp8
from refmoe.reference.scalar import decode, encode, scale_byte
from refmoe.reference.scalar.quantize import quantize_block

MODES = list(ScaleMode)
EDGES = [edge for edge in EdgePolicy if "mxfp8" in EDGE_FORMATS[edge]]


@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: edge.value)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("dtype", thinned(INPUTS, 3))
def test_mxfp8_on_adversarial_blocks(dtype: str, mode: ScaleMode, edge: EdgePolicy) -> None:
    assert differing_blocks(adversarial_blocks(dtype), dtype, E4M3, mode, edge) == 0


def test_every_adversarial_block_is_refused_or_defined_alike() -> None:
    for edge in EDGES:
        bits = adversarial_blocks("bf16")
        defined, _, _ = specified(bits, "bf16", E4M3, ScaleMode.RCEIL, edge)
        for row in bits[~defined]:
            with pytest.raises(ArgumentError, match="block 0"):
                fast(row[None], "bf16", E4M3, ScaleMode.RCEIL, edge)
        # EXACT and FLASHINFER define every block; the other two refuse some.
        assert defined.all() == (edge in (EdgePolicy.EXACT, EdgePolicy.FLASHINFER))


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_every_scale_byte_of_fp32(mode: ScaleMode) -> None:
    """Every exponent of FP32 with every boundary mantissa as the block's maximum: all the bytes that a mode reaches."""
    exponents = np.arange(-127, 128)[:, None]
    amax = build(FP32, 0, exponents, np.array(BOUNDARY_MANTISSAS)[None, :]).reshape(-1)
    x = np.zeros((amax.size, 32), np.uint32)
    x[:, 7] = amax
    scales = quantize_mxfp8(x.view(np.float32), mode=mode).scales[:, 0]
    wanted = [scale_byte(FP32.decode(int(bits)), E4M3, mode) for bits in amax]
    np.testing.assert_array_equal(scales, np.array(wanted, np.uint8))
    top = 246 if mode in (ScaleMode.FLOOR, ScaleMode.FLOOR_RATIO) else 247
    assert set(wanted) == set(range(top + 1))


# The values of a type: every seventh, which has all last bits, and all of them by `make slow`.
each_step = pytest.mark.parametrize("step", thinned([7, 1], 2))


@each_step
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_every_bf16_magnitude_as_block_maximum(mode: ScaleMode, step: int) -> None:
    bits = np.arange(0, BF16.infinity_code, step, dtype=np.uint16)
    x = np.zeros((bits.size, 32), np.uint16)
    x[:, 31] = bits
    tensor = quantize_mxfp8(x.view(INPUTS["bf16"][1]), mode=mode)
    numbers = [decode(int(code), BF16) for code in bits]
    scales = [scale_byte(number.magnitude, E4M3, mode) for number in numbers]
    np.testing.assert_array_equal(tensor.scales[:, 0], np.array(scales, np.uint8))
    factors = [1 / E8M0.decode(scale) for scale in range(E8M0.max_code + 1)]
    codes = [encode(number.times(factors[scale]), E4M3) for number, scale in zip(numbers, scales, strict=True)]
    np.testing.assert_array_equal(tensor.codes[:, 31], np.array(codes, np.uint8))


@each_step
@pytest.mark.parametrize("edge", [EdgePolicy.EXACT, EdgePolicy.FLASHINFER], ids=lambda edge: edge.value)
def test_all_65536_bf16_values_as_block_maximum(edge: EdgePolicy, step: int) -> None:
    """Both signs, NaN and infinities included, as the one value of a block of zeros."""
    bits = np.arange(0, 1 << 16, step, dtype=np.uint32).astype(np.uint16)
    x = np.zeros((bits.size, 32), np.uint16)
    x[:, 0] = bits
    codes, scales = fast(x, "bf16", E4M3, ScaleMode.RCEIL, edge)
    zero = decode(0, BF16)
    blocks = [quantize_block([decode(int(code), BF16), zero], E4M3, ScaleMode.RCEIL, edge) for code in bits]
    np.testing.assert_array_equal(scales, np.array([block.scale for block in blocks], np.uint8))
    np.testing.assert_array_equal(codes[:, :2], np.array([block.codes for block in blocks], np.uint8))
    assert (codes[:, 2:] == codes[:, 1:2]).all()


@pytest.mark.parametrize("scale", thinned([0, 1, 2, 9, 10, 11, 12, 127, 246], 3))
def test_every_bf16_value_as_element(scale: int) -> None:
    """Under the scales where subnormals begin and cease to matter (10 and 11), the ends, and the middle.

    FLOOR gives `scale` to every maximum in [2^8, 2^9) * 2^(scale - 127): the first of them stands in front of 31
    values up to the last, both signs.
    """
    anchor = BF16.encode(E8M0.decode(scale) * 256)
    limit = anchor + 0x7F
    values = np.concatenate([np.arange(limit + 1), 0x8000 + np.arange(limit + 1)]).astype(np.uint16)
    rows = np.resize(values, (-(-values.size // 31), 31))
    x = np.concatenate([np.full((len(rows), 1), anchor, np.uint16), rows], axis=1)
    codes, scales = fast(x, "bf16", E4M3, ScaleMode.FLOOR, EdgePolicy.EXACT)
    assert (scales == scale).all()
    factor = 1 / E8M0.decode(scale)
    wanted = [encode(decode(int(code), BF16).times(factor), E4M3) for code in values]
    np.testing.assert_array_equal(codes[:, 1:].reshape(-1)[: values.size], np.array(wanted, np.uint8))


def test_threads_and_chunks_do_not_show() -> None:
    """More blocks than one chunk holds: every block as when it is quantized alone, in the right place."""
    bits = np.random.default_rng(3).integers(0, 1 << 16, (40_000, 32), dtype=np.uint16)
    x = bits.view(INPUTS["bf16"][1])
    whole = quantize_mxfp8(x)
    parts = [quantize_mxfp8(x[start : start + 5_000]) for start in range(0, len(x), 5_000)]
    np.testing.assert_array_equal(whole.codes, np.concatenate([part.codes for part in parts]))
    np.testing.assert_array_equal(whole.scales, np.concatenate([part.scales for part in parts]))
