"""Fills and cases of block FP8: what each fill promises, what a mismatch says, what is refused."""

from __future__ import annotations

import hashlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from refmoe.catalog import parse_case
from refmoe.errors import ArgumentError
from refmoe.families import FAMILIES, family_called
from refmoe.families.block_fp8 import BLOCK_FP8_QUANTIZE, TileCodes, TileScales
from refmoe.formats import BLOCK_FP8
from refmoe.reference.block_fp8 import quantize_block_fp8
from refmoe.testing import kernel
from refmoe.verify.runner import run_case

FLOOR = 0x38D1B717


def made(fill: str, dtype: str = "f32", shape: str = "m16k416", block: str = "1x128") -> Any:
    option = "" if block == "1x128" else f"block={block}:"
    case = parse_case(f"block_fp8_quantize:{dtype}:{shape}:{fill}:{option}seed7@ptx")
    return case.family.inputs(case)["x"]


def scales(x: Any, **words: str) -> np.ndarray:
    return quantize_block_fp8(x, **words).scales.view(np.uint32)


@pytest.mark.parametrize("fill", sorted(set(BLOCK_FP8_QUANTIZE.fills) - {"real"}))
def test_the_data_of_a_seed_never_changes(fill: str) -> None:
    parts = [made(fill, dtype, "m4k416", block).tobytes() for dtype in ("bf16", "fp16", "f32") for block in BLOCK_FP8]
    assert hashlib.sha256(b"".join(parts)).hexdigest()[:16] == DIGESTS[fill]


DIGESTS = {
    "fingerprint": "ddb3a4babb1ccb26",
    "floor": "0e33cb51d320f732",
    "gaussian": "8356e6e0062ddac6",
    "powers": "729729f961a0c5ce",
    "reciprocal": "7da43f3755fa2f09",
    "rne-ties": "af9354b7cea3bc31",
    "scale-range": "c11be2f7a1b755ac",
    "specials": "f70074a388689d13",
    "tiny": "8ee8497f64edfa93",
}


def test_the_floor_is_met_from_both_sides() -> None:
    for dtype, nearest in (("bf16", 0x38D20000), ("f32", FLOOR)):
        x = made("floor", dtype)
        amax = np.abs(np.concatenate([part.astype(np.float32) for part in np.split(x[:, :384], 3, axis=1)])).max(axis=1)
        bits = amax.view(np.uint32)
        step = 1 if dtype == "f32" else 1 << 16
        assert {nearest - step, nearest, nearest + step} <= set(bits.tolist())


def test_powers_reach_scales_on_and_beside_a_power_of_two() -> None:
    bits = scales(made("powers"))
    mantissas = set((bits & 0x7FFFFF).reshape(-1).tolist())
    assert {0, 1, 0x7FFFFF} <= mantissas
    assert (scales(made("powers"), scales="ue8m0") & 0x7FFFFF == 0).all()


def test_ties_are_ties() -> None:
    x = made("rne-ties")
    tensor = quantize_block_fp8(x)
    scaled = np.abs(x.astype(np.float64)) / tensor.element_scales()
    codes = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    assert 0.4 < np.isin(scaled, (codes[:-1] + codes[1:]) / 2).mean() < 0.6


@pytest.mark.parametrize("dtype", BLOCK_FP8_QUANTIZE.dtypes)
def test_reciprocal_tells_orders_of_rounding_apart(dtype: str) -> None:
    """Each of three formulas that are equal in exact arithmetic gives other codes somewhere."""
    x = made("reciprocal", dtype, "m64k416")
    tensor = quantize_block_fp8(x)
    wide = x.astype(np.float32)
    sf = tensor.element_scales()
    amax = np.repeat(np.abs(np.pad(wide, ((0, 0), (0, 96))).reshape(64, 4, 128)).max(axis=2), 128, axis=1)[:, :416]
    for other in (wide / sf, wide * (np.float32(448) / amax)):
        codes = np.clip(other, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        assert (codes != tensor.codes).any(), dtype


def test_specials_hold_every_kind_of_tile() -> None:
    for block, shape in (("1x128", "m16k416"), ("128x128", "m300k416")):
        x = made("specials", "f32", shape, block)
        bits = x.view(np.uint32)
        tile = BLOCK_FP8[block]
        kinds = set()
        for row, column in np.ndindex(*tile.scale_shape(*x.shape)):
            part = bits[row * tile.rows : (row + 1) * tile.rows, column * 128 : (column + 1) * 128]
            magnitude = part & 0x7FFFFFFF
            kinds.add(
                (bool((magnitude > 0x7F800000).any()), bool((magnitude == 0x7F800000).any()), not magnitude.any())
            )
        assert kinds == {
            *((False, False, False), (True, False, False), (False, True, False)),
            *((False, False, True), (True, True, False)),
        }


def test_tiny_lies_on_both_sides_of_the_least_exact_scale() -> None:
    bits = scales(made("tiny"), policy="exact")
    assert 0.3 < (bits == 0x00800000).mean() < 0.95
    assert (bits > 0x00800000).any()


def test_fingerprints_differ_in_every_direction() -> None:
    bits = scales(made("fingerprint", "bf16", "m40k2880"))
    for rows, columns in ((1, 0), (0, 1), (1, 1), (8, 0), (0, 2)):
        assert (bits[rows:, columns:] != bits[: 40 - rows, : 23 - columns]).all()


def test_words_of_a_mismatch() -> None:
    bits = np.full((2, 3), 0x3F800000, np.uint32)
    codes = TileCodes("codes", 320, BLOCK_FP8["1x128"], bits)
    where, _ = codes.describe(320 + 130, 0x6F, 0x70)
    assert where == (
        "tile (1, 1) row 1 column 130: kernel 0x6F (120) reference 0x70 (128), 1 ulp, scale 0x3F800000 (1)"
    )
    for layout, index in (("k_major", 4), ("mn_major", 3)):
        where, _ = TileScales("scales", layout, {"k_major": 3, "mn_major": 2}[layout]).describe(
            index, 0x40000000, 0x3F800000
        )
        assert where.startswith("tile (1, 1): kernel 0x40000000 (2) reference 0x3F800000 (1)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("block_fp8_quantize:bf16:m4k320:gaussian:block=128x128:layout=mn_major:seed1@ptx", "weights have no other"),
        ("block_fp8_quantize:bf16:m4k320:gaussian:block=32x32:seed1@ptx", "one of 1x128, 128x128"),
        ("block_fp8_quantize:bf16:m4k300:gaussian:seed1@ptx", "multiple of 32"),
    ],
)
def test_what_means_nothing_is_refused(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        parse_case(text)


def test_the_operation_names_its_family_and_quantize_still_means_mxfp8() -> None:
    assert family_called("block_fp8") is BLOCK_FP8_QUANTIZE
    assert family_called("quantize") is FAMILIES["mxfp8_quantize"]


def test_a_function_of_a_user_is_held_against_it() -> None:
    """With its own words for what the contract fixes; and one with the former formula is caught."""

    def cast(x: Any, block: str, scale_format: str, *, former: bool = False) -> tuple[Any, Any]:
        tensor = quantize_block_fp8(x, block=block, policy="exact", scales=scale_format)
        if former:
            tensor.codes.flat[0] ^= 1
        return tensor.codes, tensor.scales

    sound = kernel("block_fp8", arrays="numpy", policy="exact")(
        lambda x, block, scale_format: cast(x, block, scale_format)
    )
    case = sound.cases("quick")[0]
    assert case.policy == "exact"
    assert run_case(sound, case).verdict.value == "PASS"
    wrong = kernel("block_fp8", arrays="numpy", policy="exact", layout="k_major")(
        lambda x, block, scale_format: cast(x, block, scale_format, former=True)
    )
    assert run_case(wrong, case).verdict.value == "MISMATCH"
