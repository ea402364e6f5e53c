"""Data that could not have failed is doubted, and no listed case has any."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from support.selection.thinned import thinned

from refmoe.catalog import list_cases
from refmoe.families.family import Case
from refmoe.families.vacuity import Limits, doubt_codes, doubt_products


@pytest.mark.parametrize("case", thinned(list_cases("quick", arch="sm_120a"), 4), ids=str)
def test_no_listed_case_is_vacuous(case: Case) -> None:
    assert case.family.expect(case, case.family.inputs(case)).doubt is None


def sample(code: int, scale: int = 127, spoiled: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    codes = np.full((4, 320), 0x38, np.uint8)
    codes.reshape(-1)[:spoiled] = code
    scales = (np.arange(40) % 3 + scale).astype(np.uint8).reshape(4, 10)
    return codes, scales


@pytest.mark.parametrize(
    ("code", "word"),
    [(0x00, "zero"), (0x80, "zero"), (0x7E, "saturated"), (0xFE, "saturated"), (0x7F, "NaN"), (0xFF, "NaN")],
)
def test_too_many_codes_of_a_kind_are_doubted(code: int, word: str) -> None:
    limits = Limits(zeros=0.1, saturated=0.1, nans=0.1)
    assert doubt_codes(*sample(code, spoiled=128), limits) is None  # 128 of 1280 is exactly the limit
    text = doubt_codes(*sample(code, spoiled=129), limits)
    assert text is not None
    assert word in text


def test_equal_scales_are_doubted_unless_they_are_not_part_of_the_data() -> None:
    codes = np.full((4, 320), 0x38, np.uint8)
    same = codes, np.full((4, 10), 127, np.uint8)
    assert "1 distinct scale bytes in 40 blocks, fewer than 2" in str(doubt_codes(*same, Limits(scales=2)))
    assert doubt_codes(*same, Limits(scales=2), scales_copied=False) is None


def test_a_case_without_rows_is_not_doubted() -> None:
    assert doubt_codes(np.zeros((0, 32), np.uint8), np.zeros((0, 1), np.uint8), Limits()) is None


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"values": np.zeros((4, 8), np.float32)}, "zero"),
        ({"values": np.full((4, 8), np.nan, np.float32)}, "not finite"),
        ({"token_scales": np.full((4, 16), 127, np.uint8)}, "distinct token scales"),
        ({"weight_scales": np.full((1, 8, 16), 127, np.uint8)}, "distinct weight scales"),
        ({"relative_bounds": np.full(32, 0.5)}, "error bound"),
    ],
)
def test_results_that_could_not_have_failed_are_doubted(change: dict[str, NDArray[np.generic]], word: str) -> None:
    limits = Limits(zeros=0.02)
    fields = {
        "values": np.arange(1, 33, dtype=np.float32).reshape(4, 8),
        "token_scales": np.arange(64, dtype=np.uint8).reshape(4, 16),
        "weight_scales": np.arange(128, dtype=np.uint8).reshape(1, 8, 16),
        "relative_bounds": np.full(32, 1e-6),
    }
    assert doubt_products(**fields, limits=limits) is None  # type: ignore[arg-type]
    assert word in str(doubt_products(**{**fields, **change}, limits=limits))  # type: ignore[arg-type]
