"""Tokens in block FP8 in the rows of their experts: equal to their specification; what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refmoe.errors import ArgumentError
from refmoe.families.case import Shape
from refmoe.families.deepseek.expand import DEEPSEEK_EXPAND
from refmoe.reference import fp32
from refmoe.reference.block_fp8 import LAYOUTS, POLICIES, SCALES
from refmoe.reference.deepseek.expand import expand_block_fp8
from refmoe.reference.scalar.block_fp8 import QuantizedTile
from refmoe.reference.scalar.deepseek.expand import expand_tokens


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("fill", DEEPSEEK_EXPAND.fills)
def test_every_fill_is_as_specified(fill: str, policy: str) -> None:
    case = DEEPSEEK_EXPAND.case(fill, Shape(3, 256, 6, 3), "f32", 3, first_expert=2, ranks=2)
    given = case.family.inputs(case)
    entries = given["unpermuted_to_permuted"]
    for scales in SCALES:
        found = expand_block_fp8(given["x"], entries, policy=policy, scales=scales, fill=0x7F)
        tokens, placed = expand_tokens(fp32.fp32_bits(given["x"]).tolist(), entries.tolist(), policy, scales)
        for codes, factors, wanted in (
            (found.token_codes, found.token_scales, dict(enumerate(tokens))),
            (found.codes, found.scales, placed),
        ):
            for row, tiles in wanted.items():
                check_row(codes[row], factors[row], tiles)
        others = [row for row in range(entries.size) if row not in placed]
        assert (found.codes[others] == 0x7F).all()
        assert (found.scales[others].view(np.uint8) == 0x7F).all()


def check_row(codes: Any, factors: Any, tiles: list[QuantizedTile]) -> None:
    assert codes.tolist() == [code for tile in tiles for code in tile.codes]
    assert factors.view(np.uint32).tolist() == [tile.scale for tile in tiles]


def test_layouts_hold_the_same_scales() -> None:
    x = np.random.default_rng(1).standard_normal((4, 384), np.float32)
    entries = np.array([3, 0, -1, 5, 1, -1, 2, 4], np.int32)
    by_row, by_column = (expand_block_fp8(x, entries, layout=layout) for layout in LAYOUTS)
    assert by_column.scales.shape == (3, 8)
    assert by_row.scales.tobytes() == np.ascontiguousarray(by_column.scales.T).tobytes()
    assert by_row.token_scales.tobytes() == np.ascontiguousarray(by_column.token_scales.T).tobytes()
    assert by_row.codes.tobytes() == by_column.codes.tobytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": np.zeros((2, 192), np.float32)}, "x: .* needed K a positive multiple of 128"),
        ({"x": np.zeros((2, 128), np.float16)}, "x: found float16"),
        ({"unpermuted_to_permuted": np.zeros(3, np.int32)}, r"needed int32 \[k \* 2\]"),
        ({"unpermuted_to_permuted": np.array([0, 1, 4, 2], np.int32)}, "found 4 at 2; needed -1, or a row below 4"),
        ({"unpermuted_to_permuted": np.array([0, 1, -2, 2], np.int32)}, "found -2 at 2"),
        ({"unpermuted_to_permuted": np.array([0, 1, 1, 2], np.int32)}, "found row 1 twice"),
        ({"layout": "linear"}, "layout: found str 'linear'"),
        ({"fill": 256}, "fill: found"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    given = {"x": np.zeros((2, 128), np.float32), "unpermuted_to_permuted": np.arange(4, dtype=np.int32)}
    with pytest.raises(ArgumentError, match=message):
        expand_block_fp8(**{**given, **changes})
