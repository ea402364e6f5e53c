"""Fills of BF16 and FP16 input: what each one promises, and that a seed's data never changes."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from refmoe.families.case import Shape
from refmoe.families.quantize import FILLS, INPUT_FORMATS, QUANTIZE
from refmoe.reference.quantize import quantize_mxfp8

BF16 = INPUT_FORMATS["bf16"]
FP16 = INPUT_FORMATS["fp16"]
GENERATED = [name for name in FILLS if name not in ("real", "activations")]


def made(name: str, m: int, k: int, format: str = "bf16", seed: int = 7) -> NDArray[np.uint16]:
    # No case: a case has to be large enough for what the fill's name says.
    asked = SimpleNamespace(shape=Shape(m, k), seed=seed)
    return FILLS[name].make(asked, format).view(np.uint16)


def blocks_of(patterns: NDArray[np.uint16]) -> NDArray[np.int64]:
    return patterns.reshape(-1, 32).astype(np.int64)


def amax_of(patterns: NDArray[np.uint16]) -> NDArray[np.int64]:
    return (blocks_of(patterns) & 0x7FFF).max(axis=1)


@pytest.mark.parametrize("name", GENERATED)
def test_the_data_of_a_seed_never_changes(name: str) -> None:
    digest = hashlib.sha256(made(name, 4, 416).tobytes() + made(name, 4, 416, "fp16").tobytes()).hexdigest()
    assert digest[:16] == DIGESTS[name]


DIGESTS = {
    "gaussian": "8b0e50da064ad37e",
    "wide-range": "66cc55c328902bcf",
    "rne-ties": "d5ede6a57e6d1928",
    "boundary-mantissas": "efc12b406a45b729",
    "scale-bytes": "379495ac5c6ad761",
    "fingerprint": "7b36443034b1d4eb",
    "exhaustive-max": "1f94cf58d702fed8",
    "exhaustive-element": "1ca550a35cdabb9e",
    "specials": "08d4e1302ee60ab0",
    "tiny": "d586b8b45bf7cfd3",
    "saturation": "366da307904ac34d",
}


@pytest.mark.parametrize("format", INPUT_FORMATS)
@pytest.mark.parametrize("name", GENERATED)
def test_fills_depend_on_the_seed_and_take_empty_shapes(name: str, format: str) -> None:
    first, second = made(name, 8, 416, format, 1), made(name, 8, 416, format, 2)
    assert first.dtype == np.uint16
    assert first.shape == (8, 416)
    assert np.any(first != second)
    assert made(name, 0, 416, format).shape == (0, 416)


def test_rne_ties_are_ties_and_their_neighbours() -> None:
    elements = made("rne-ties", 64, 2880).view(ml_dtypes.bfloat16).astype(np.float64).reshape(-1, 32)
    scaled = np.abs(elements) / (np.abs(elements).max(axis=1, keepdims=True) / 448)
    codes = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    ties = (codes[:-1] + codes[1:]) / 2
    exact = np.isin(scaled, ties)
    assert 0.4 < exact.mean() < 0.6
    # Each tie occurs with an even and with an odd code below it, so half up, half down and half away all fail.
    assert set(scaled[exact]) == set(ties)
    # The rest are the maxima, and neighbours one ulp of the input away: these tell a tie rule from a second rounding.
    near = np.abs(scaled[..., None] - ties).min(axis=-1) <= scaled * 2.0**-7
    assert np.all(near | (scaled == 448))


@pytest.mark.parametrize("format", [BF16, FP16], ids=lambda format: format.name)
def test_boundary_mantissas_are_all_there_and_the_boundaries_come_first(format: object) -> None:
    size = 1 << format.mantissa_bits  # type: ignore[attr-defined]
    found = amax_of(made("boundary-mantissas", size, 32, format.name)) % size  # type: ignore[attr-defined]
    assert set(found) == set(range(size))
    rceil, even = size * 3 // 4, size * 15 // 16
    assert {rceil, rceil + 1, rceil - 1, even, even - 1, 0, size - 1} <= set(found[:20])
    if format is BF16:
        assert (rceil, even) == (0x60, 0x78)


@pytest.mark.parametrize(("format", "count"), [("bf16", 249), ("fp16", 41)])
def test_scale_bytes_reach_every_scale_that_the_format_can_have(format: str, count: int) -> None:
    # BF16 under RCEIL: bytes 0 to 247 and NaN. FP16: 2^-24 has byte 127 - 24 - 8 = 95, 65504 has byte 135.
    values = made("scale-bytes", 128, 2048, format).view(INPUT_FORMATS[format].dtype)
    scales = set(np.unique(quantize_mxfp8(values).scales).tolist())
    largest = {"bf16": 247, "fp16": 135}[format]
    smallest = {"bf16": 0, "fp16": 95}[format]
    assert scales <= {*range(smallest, largest + 1), 255}
    assert len(scales) >= count - (0 if format == "bf16" else 12)
    if format == "bf16":
        assert scales == {*range(248), 255}


def test_fingerprints_differ_from_every_neighbour_that_a_layout_can_confuse() -> None:
    scales = quantize_mxfp8(made("fingerprint", 300, 2880).view(ml_dtypes.bfloat16)).scales.astype(np.int64)
    for rows, columns in [(1, 0), (8, 0), (16, 0), (32, 0), (64, 0), (128, 0), (0, 1), (0, 2), (0, 4), (1, 1), (32, 1)]:
        here, there = scales[: 300 - rows, : 90 - columns], scales[rows:, columns:]
        # RCEIL may add one to a scale, so that two different exponents can meet; almost never, and never in a row.
        assert np.mean(here == there) < 0.02


def test_exhaustive_max_makes_every_bf16_decide_a_block() -> None:
    blocks = blocks_of(made("exhaustive-max", 1024, 2048))
    top = blocks[np.arange(65536), np.arange(65536) % 32]
    assert set(top) == set(range(65536))
    # Nothing beside a finite maximum is larger than it, so it does decide.
    finite = (top & 0x7FFF) < BF16.infinity
    assert np.all((blocks & 0x7FFF).max(axis=1)[finite] == (top & 0x7FFF)[finite])


def test_exhaustive_element_holds_every_bf16_at_five_distances_below_the_maximum() -> None:
    blocks = blocks_of(made("exhaustive-element", 128, 2880))[: 2115 * 5]
    assert np.unique(blocks).size == 65536
    for part in np.split(blocks, 5):
        assert np.unique(part).size == 65536


def test_specials_hold_every_kind_of_block() -> None:
    patterns = made("specials", 64, 416)
    values = patterns.view(ml_dtypes.bfloat16).astype(np.float32).reshape(-1, 32)
    bits = blocks_of(patterns)
    nan, inf = np.isnan(values), np.isinf(values)
    assert np.any(np.all(bits == 0, axis=1))
    assert np.any(np.all(bits == 0x8000, axis=1))
    assert np.any(
        np.all((bits == 0) | (bits == 0x8000), axis=1) & np.any(bits == 0, axis=1) & np.any(bits == 0x8000, axis=1)
    )
    assert np.any(nan.all(axis=1))
    assert np.any(nan.any(axis=1) & inf.any(axis=1))
    assert np.any((nan.sum(axis=1) == 1) & ~inf.any(axis=1))
    assert np.any((values == np.inf).any(axis=1) & (values == -np.inf).any(axis=1))
    assert np.any(inf.any(axis=1) & (np.abs(values) < np.inf).any(axis=1) & ~nan.any(axis=1))


def test_tiny_blocks_lie_on_both_sides_of_scale_byte_zero() -> None:
    patterns = made("tiny", 16, 416)
    scales = quantize_mxfp8(patterns.view(ml_dtypes.bfloat16)).scales
    assert np.mean(scales == 0) > 0.5
    assert scales.max() >= 2
    assert np.any(amax_of(patterns) < 0x80)  # a block of subnormals


def test_saturation_puts_elements_past_464() -> None:
    values = made("saturation", 8, 416).view(ml_dtypes.bfloat16)
    scales = np.ldexp(1.0, np.frexp(np.abs(values.astype(np.float64).reshape(8, 13, 32)).max(axis=2))[1] - 1 - 8)
    scaled = np.abs(values.astype(np.float64).reshape(8, 13, 32)) / scales[..., None]
    assert np.mean(scaled >= 464) > 0.3
    assert scaled.max() < 512


def test_a_fill_whose_name_promises_every_pattern_needs_blocks_for_them() -> None:
    lack = QUANTIZE.fills["exhaustive-max"].lack(QUANTIZE.case("gaussian", Shape(1023, 2048)))
    assert lack == "at least 65536 blocks of 32 for the fill exhaustive-max"
    assert QUANTIZE.case("exhaustive-max", Shape(1024, 2048)).shape.m == 1024
