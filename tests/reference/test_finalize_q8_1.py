"""The reference of finalize into Q8_1: equal to the specification; no BF16 in between; what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.fp32_values import BF16, bits, mixed

from refmoe.errors import ArgumentError
from refmoe.families.case import Shape
from refmoe.families.finalize_q8_1 import FINALIZE_Q8_1
from refmoe.reference import build_permutation, finalize
from refmoe.reference.finalize_q8_1 import finalize_q8_1
from refmoe.reference.q8_1 import VARIANTS, Q8Tensor, dequantize_q8_1, quantize_q8_1
from refmoe.reference.scalar.finalize_q8_1 import finalize_blocks


def assert_as_specified(found: Q8Tensor, wanted: list[Any]) -> None:
    assert found.codes.tolist() == [[code for block in token for code in block.codes] for token in wanted]
    assert found.d.view(np.uint16).tolist() == [[block.d for block in token] for token in wanted]
    assert found.s.view(np.uint16).tolist() == [[block.s for block in token] for token in wanted]


@pytest.mark.parametrize("quantizer", VARIANTS)
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("fill", FINALIZE_Q8_1.fills)
def test_every_fill_is_as_specified(fill: str, dtype: str, quantizer: str) -> None:
    case = FINALIZE_Q8_1.case(fill, Shape(3, 64, 4, 3), dtype, 5, quantizer=quantizer, bias="distinct")
    given = FINALIZE_Q8_1.inputs(case)
    maps, weights, ids = (given[name] for name in ("unpermuted_to_permuted", "weights", "topk_ids"))
    found = finalize_q8_1(given["rows"], maps, weights, topk_ids=ids, bias=given["bias"], quantizer=quantizer)
    wanted = finalize_blocks(
        bits(given["rows"]), maps.tolist(), bits(weights), quantizer, ids.tolist(), bits(given["bias"])
    )
    assert_as_specified(found, wanted)


@pytest.mark.parametrize("quantizer", VARIANTS)
def test_mixed_numbers_with_experts_of_other_ranks_are_as_specified(quantizer: str) -> None:
    rng = np.random.default_rng(3)
    ids = np.array([rng.permutation(12)[:4] for _ in range(5)], np.int32)
    maps = build_permutation(ids, 5, 3).unpermuted_to_permuted
    rows, weights = mixed(rng, (20, 32)).astype(np.float32), mixed(rng, (5, 4), finite=True)
    found = finalize_q8_1(rows, maps, weights, quantizer=quantizer)
    assert_as_specified(found, finalize_blocks(bits(rows), maps.tolist(), bits(weights), quantizer))


def test_a_tie_of_codes_goes_away_from_zero_and_a_cast_to_bf16_would_move_it() -> None:
    """Sums of 127 and 0.5 have the codes 127 and 1; 126.4999 is 126, which BF16 makes 126.5, and so 127."""
    rows = np.zeros((1, 32), np.float32)
    rows[0, :4] = 127, 0.5, -0.5, 126.4999
    one, order = np.ones((1, 1), np.float32), np.zeros(1, np.int32)
    assert finalize_q8_1(rows, order, one).codes[0, :4].tolist() == [127, 1, -1, 126]
    assert quantize_q8_1(finalize(rows, order, one)).codes[0, 3] == 127


def test_the_sum_is_that_of_the_elements_and_nowhere_is_zeros() -> None:
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((2, 64)).astype(np.float32)
    maps, weights = np.array([0, -1, 1, -1], np.int32), np.ones((2, 2), np.float32)
    found = finalize_q8_1(np.concatenate([rows, np.full_like(rows, np.nan)]), maps, weights)
    sums = finalize(rows[[0, 1, 0, 1]], maps, weights, out_dtype=np.float32)
    for part in (found.codes, found.d, found.s):
        assert not part[1].any()
    exact = sums[0].astype(np.float64).reshape(2, 32).sum(axis=1)
    # 31 additions in FP32 and a rounding to FP16.
    slack = 32 * 2.0**-24 * np.abs(sums[0]).reshape(2, 32).sum(axis=1) + 2.0**-11 * np.abs(exact) + 2.0**-25
    assert (np.abs(found.s[0] - exact) <= slack).all()
    half_a_code = np.repeat(found.d[0].astype(np.float64), 32) * (0.5 + 127 * 2.0**-11 + 2.0**-15)
    assert (np.abs(dequantize_q8_1(found)[0] - sums[0]) <= half_a_code).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": np.zeros((4, 48), BF16)}, r"rows: found bfloat16 \[4, 48\]; needed .* H a multiple of 32"),
        ({"rows": np.zeros(4, BF16)}, r"rows: found bfloat16 \[4\]"),
        ({"rows": np.zeros((4, 32))}, "rows: found float64"),
        ({"rows": np.zeros((5, 32), BF16)}, "rows: found .* needed the T . k = 4 rows"),
        ({"unpermuted_to_permuted": np.array([0, 1, 2, 4], np.int32)}, "unpermuted_to_permuted: found 4 at 3"),
        ({"weights": np.zeros((2, 2), BF16)}, "weights: found bfloat16"),
        ({"bias": np.zeros((2, 32), np.float32)}, "topk_ids: found"),
        ({"quantizer": "q8_0"}, "variant: found str 'q8_0'; needed one of llama_cpp_mmvq, llama_cpp_mmq"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    good = {
        "rows": np.zeros((4, 32), BF16),
        "unpermuted_to_permuted": np.arange(4, dtype=np.int32),
        "weights": np.ones((2, 2), np.float32),
    }
    with pytest.raises(ArgumentError, match=message):
        finalize_q8_1(**{**good, **changes})
