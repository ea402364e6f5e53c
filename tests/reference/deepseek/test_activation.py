"""SwiGLU into block FP8: equal to its specification, contiguous and masked; what it refuses."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.selection.thinned import thinned

from refmoe.errors import ArgumentError
from refmoe.families.case import Shape
from refmoe.families.deepseek.activation import DEEPSEEK_ACTIVATION
from refmoe.reference import fp32
from refmoe.reference.block_fp8 import LAYOUTS, POLICIES, SCALES
from refmoe.reference.deepseek.activation import swiglu_block_fp8, swiglu_block_fp8_masked
from refmoe.reference.scalar.deepseek.activation import swiglu_tiles

BF16 = ml_dtypes.bfloat16


# BF16 has no numbers beside its ties, and no smaller steps.
OF_FP32 = ("ties", "near-ties", "exponents")
FILLS = [
    (fill, dtype)
    for fill in DEEPSEEK_ACTIVATION.fills
    for dtype in ("f32", "bf16")
    if dtype == "f32" or fill not in OF_FP32
]


@pytest.mark.parametrize(("fill", "dtype"), thinned(FILLS, 2))
def test_every_fill_is_as_specified(fill: str, dtype: str) -> None:
    case = DEEPSEEK_ACTIVATION.case(fill, Shape(2, 256, 2), dtype, 3)
    given = case.family.inputs(case)
    for number, (policy, scales) in enumerate((policy, scales) for policy in POLICIES for scales in SCALES):
        found = swiglu_block_fp8(given["gate_up"], given["offsets"], policy=policy, scales=scales)
        row = number % 2
        wanted = swiglu_tiles(fp32.fp32_bits(given["gate_up"])[row].tolist(), policy, scales)
        assert found.codes[row].tolist() == [code for tile in wanted for code in tile.codes]
        assert found.scales.view(np.uint32)[row].tolist() == [tile.scale for tile in wanted]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_masked_rows_are_those_of_each_expert_alone(layout: str) -> None:
    rng = np.random.default_rng(3)
    gate_up, counts = rng.standard_normal((4, 5, 512)).astype(BF16), np.array([5, 0, 3, 1], np.int32)
    found = swiglu_block_fp8_masked(gate_up, counts, layout=layout, fill=0x7F)
    for expert, count in enumerate(counts):
        alone = swiglu_block_fp8(gate_up[expert], np.array([0, count]), layout=layout, fill=0x7F)
        assert found.codes[expert].tobytes() == alone.codes.tobytes()
        assert found.scales[expert].tobytes() == alone.scales.tobytes()
        by_row = found.scales[expert] if layout == "k_major" else found.scales[expert].T
        assert (np.ascontiguousarray(by_row[count:]).view(np.uint8) == 0x7F).all()
        assert (found.codes[expert, count:] == 0x7F).all()


def test_rows_that_are_not_in_use_are_not_read() -> None:
    rng = np.random.default_rng(4)
    gate_up = rng.standard_normal((6, 256), np.float32)
    clean = swiglu_block_fp8(gate_up, np.array([0, 1, 4]))
    gate_up[4:] = np.nan
    found = swiglu_block_fp8(gate_up, np.array([0, 1, 4]))
    assert found.codes.tobytes() == clean.codes.tobytes()
    assert found.scales.tobytes() == clean.scales.tobytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gate_up": np.zeros((2, 256))}, "gate_up: found float64"),
        ({"gate_up": np.zeros((2, 128), BF16)}, "needed I a positive multiple of 128"),
        ({"gate_up": np.zeros((2, 0), BF16)}, "needed I a positive multiple of 128"),
        ({"offsets": np.array([0, 3])}, "offsets: found 3 rows in use; needed at most the 2 rows"),
        ({"offsets": np.array([1, 2])}, "offsets"),
        ({"policy": "ocp"}, "policy: found str 'ocp'"),
        ({"scales": "e8m0"}, "scales: found str 'e8m0'"),
        ({"layout": "linear"}, "layout: found str 'linear'"),
        ({"fill": 256}, "fill"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    given = {"gate_up": np.zeros((2, 256), BF16), "offsets": np.array([0, 2]), **changes}
    with pytest.raises(ArgumentError, match=message):
        swiglu_block_fp8(**given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gate_up": np.zeros((2, 256), BF16)}, r"needed bfloat16 or float32 \[E, M, 2 I\]"),
        ({"masked_m": np.array([1, 2])}, r"masked_m: found int64 \[2\]"),
        ({"masked_m": np.array([1], np.int32)}, r"masked_m: found int32 \[1\]"),
        ({"masked_m": np.array([1, 4], np.int32)}, "masked_m: found 1 to 4; needed 0 to the 3 rows"),
        ({"masked_m": np.array([-1, 0], np.int32)}, "masked_m: found -1 to 0"),
    ],
)
def test_masked_refused(changes: dict[str, Any], message: str) -> None:
    given = {"gate_up": np.zeros((2, 3, 256), BF16), "masked_m": np.array([0, 3], np.int32), **changes}
    with pytest.raises(ArgumentError, match=message):
        swiglu_block_fp8_masked(**given)
