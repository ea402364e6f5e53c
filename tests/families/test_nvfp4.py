"""Fills of NVFP4: what each one promises, and that a seed's data never changes."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from refmoe.catalog import parse_case
from refmoe.errors import ArgumentError
from refmoe.families.nvfp4 import NVFP4_FILLS
from refmoe.formats import E2M1, UE4M3
from refmoe.reference.nvfp4 import nvfp4_encode_scale, quantize_nvfp4, tensor_amax

GENERATED = [name for name in NVFP4_FILLS if name not in ("real", "activations", "gaussian", "specials")]
STEPS, SCALES = E2M1.values()[:8], UE4M3.values()[:127]


def case(fill: str, dtype: str = "bf16", shape: str = "m16k2880", options: str = "") -> Any:
    return parse_case(f"nvfp4_quantize:{dtype}:{shape}:{fill}{options}:seed7@ptx")


def made(fill: str, dtype: str = "bf16", shape: str = "m16k2880") -> NDArray[Any]:
    x: NDArray[Any] = NVFP4_FILLS[fill].make(case(fill, dtype, shape), dtype)
    return x


def encode_scale(x: NDArray[Any]) -> float:
    return float(nvfp4_encode_scale(tensor_amax(x)))


@pytest.mark.parametrize("fill", GENERATED)
def test_the_data_of_a_seed_never_changes(fill: str) -> None:
    data = b"".join(made(fill, dtype, "m4k400").tobytes() for dtype in ("bf16", "fp16"))
    assert hashlib.sha256(data).hexdigest()[:16] == DIGESTS[fill]


DIGESTS = {
    "wide-range": "08d5954c389e9023",
    "rne-ties": "47107680bc4bf445",
    "scale-bytes": "4eabeb14f7a6fb89",
    "scale-ties": "68a6c25d52d2b01f",
    "every-maximum": "f0f98f74aae4d5cc",
    "every-element": "a60607330c1ff3a2",
    "fingerprint": "8a9c3daf45da302b",
    "tiny": "6acc69cdfa28c930",
    "huge": "3ae3238e31ae5933",
}


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("fill", GENERATED)
def test_fills_take_empty_shapes_and_single_blocks(fill: str, dtype: str) -> None:
    assert made(fill, dtype, "m0k400").shape == (0, 400)
    assert made(fill, dtype, "m1k16").shape == (1, 16)
    assert np.isfinite(made(fill, dtype).astype(np.float32)).all()


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("fill", ["rne-ties", "scale-bytes", "every-element", "fingerprint"])
def test_the_global_scale_is_32(fill: str, dtype: str) -> None:
    assert encode_scale(made(fill, dtype)) == 32


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_every_scale_byte_occurs_the_first_and_the_last_too(dtype: str) -> None:
    x = made("scale-bytes", dtype, "m8k400")
    scales = quantize_nvfp4(x).scales
    assert set(range(0x7F)) <= set(np.unique(scales).tolist())
    # Byte 0 is that of zero blocks and of blocks whose scale rounds to it.
    zero = x.astype(np.float64).reshape(-1, 16)[scales.reshape(-1) == 0]
    assert (zero == 0).all(axis=1).any()
    assert (zero != 0).any(axis=1).any()


def test_elements_lie_on_ties_of_every_kind_and_beside_them() -> None:
    x = made("rne-ties")
    scales = SCALES[quantize_nvfp4(x).scales.reshape(-1)]
    scaled = np.abs(x.astype(np.float64).reshape(-1, 16)) * 32 / scales[:, None]
    ties = (STEPS[:-1] + STEPS[1:]) / 2
    exact = np.isin(scaled, ties)
    assert 0.4 < exact.mean() < 0.6
    assert set(scaled[exact]) == set(ties)
    near = np.abs(scaled[..., None] - ties).min(axis=-1) <= scaled * 2.0**-7
    assert (near | (scaled == 6)).mean() > 0.999  # but for the very first element, which sets the global scale


def test_scales_on_a_tie_fall_by_the_order_of_the_operations() -> None:
    x = made("scale-ties")
    g, sixth = np.float32(encode_scale(x)), np.float32(1) / np.float32(6)
    assert g == np.float32(38.4)
    amax = np.abs(x.astype(np.float32).reshape(-1, 16)).max(axis=1)

    def codes(wanted: NDArray[np.float32]) -> NDArray[np.intp]:
        middles = ((SCALES[:-1] + SCALES[1:]) / 2).astype(np.float32)
        below = np.searchsorted(middles, wanted)
        return below + (np.isin(wanted, middles) & (below % 2 == 1))

    right = codes(amax * (g * sixth))
    assert np.array_equal(right, quantize_nvfp4(x).scales.reshape(-1))
    for other in (amax * (g / np.float32(6)), amax / np.float32(6) * g, amax * g / np.float32(6), amax * sixth * g):
        assert (codes(other) != right).sum() > 20


def test_fingerprints_differ_from_every_neighbour_that_a_layout_can_confuse() -> None:
    scales = quantize_nvfp4(made("fingerprint", shape="m300k2880")).scales.astype(np.int64)
    scales[0, 0] = -1
    for rows, columns in [(1, 0), (8, 0), (16, 0), (32, 0), (64, 0), (128, 0), (0, 1), (0, 2), (0, 4), (1, 1), (32, 1)]:
        here, there = scales[: 300 - rows, : 180 - columns], scales[rows:, columns:]
        assert not np.any(here == there)


def test_tiny_and_huge_data_have_the_extreme_global_scales() -> None:
    assert np.float32(encode_scale(made("tiny"))) == np.finfo(np.float32).max
    assert encode_scale(made("huge")) < 2.0**-116
    assert np.unique(quantize_nvfp4(made("tiny")).scales).size > 20


@pytest.mark.parametrize(("calibration", "factor"), [("own", 1), ("larger", 1 / 8), ("smaller", 8), ("none", 1 / 32)])
def test_calibrations_are_those_of_other_data(calibration: str, factor: float) -> None:
    chosen = case("fingerprint", options="" if calibration == "own" else f":calibration={calibration}")
    inputs = chosen.family.inputs(chosen)
    assert inputs["global_scale"].tolist() == [32 * factor]
    made_of = quantize_nvfp4(inputs["x"], global_encode_scale=inputs["global_scale"][0])
    assert ((made_of.scales == UE4M3.max_code).mean() > 0.05) == (calibration == "smaller")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nvfp4_quantize:bf16:m4k24:gaussian:seed1@ptx", "a k that is a multiple of 16"),
        ("nvfp4_quantize:bf16:m4k32:gaussian:layout=8x4:seed1@ptx", "needed one of linear, 128x4"),
        ("nvfp4_quantize:bf16:m4k32:activations:seed1@ptx", "file=PATH with the fill 'activations'"),
        (
            "expand:bf16:m4k64e8t2:gaussian:prescale=channel:seed1@ptx",
            "one of the outputs nvfp4, fp8_tensor, fp8_token",
        ),
        ("expand:bf16:m4k64e8t2:row-ties:seed1@ptx", "another output than mxfp8 with it"),
        ("expand:bf16:m4k64e8t2:gaussian:mode=floor:output=nvfp4:seed1@ptx", "output mxfp8 with it, not nvfp4"),
        ("expand:bf16:m4k64e8t2:gaussian:layout=8x4:output=copy:seed1@ptx", "block scales with it: copy has none"),
        ("expand:mxfp8:m4k64e8t2:gaussian:output=nvfp4:seed1@ptx", "dtype bf16 or fp16 with it"),
    ],
)
def test_what_means_nothing_is_refused(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        parse_case(text)
