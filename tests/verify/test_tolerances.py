from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from refmoe.verify.tolerances import TOLERANCES, accepting

NAMES = [rule.name for rule in TOLERANCES]
ALL = set(NAMES)


@pytest.fixture
def reference() -> NDArray[np.float64]:
    """Outputs of standard deviation 1, none of them near 0."""
    values = np.linspace(0.25, 1.75, 4000).reshape(4, 1000)
    signed: NDArray[np.float64] = np.where(np.arange(4000).reshape(4, 1000) % 2, values, -values)
    return signed / signed.std()


def test_equal_outputs_pass_everywhere_and_nan_nowhere(reference: NDArray[np.float64]) -> None:
    assert set(accepting(reference, reference)) == ALL
    broken = reference.copy()
    broken[3, 999] = np.nan
    assert accepting(broken, reference) == ()
    broken[3, 999] = np.inf
    assert accepting(broken, reference) == ()


def test_the_unit_of_the_outputs_does_not_matter(reference: NDArray[np.float64]) -> None:
    wrong = reference * 1.05
    assert accepting(wrong * 2.0**20, reference * 2.0**20) == accepting(wrong, reference)


@pytest.mark.parametrize(
    ("factor", "refusing"),
    [
        # |d| = 0.005 |x|: inside every rule.
        (1.005, set()),
        # |d| = 0.03 |x|, at most 0.05: past 0.8 % + 0.008 and 1 % + 0.01, and inside the cosine, 1 - 0.99956.
        (1.03, {"te-nvfp4", "flashinfer-bench"}),
        # |d| = 0.2 |x|: 1 - 2 * 1.2 / (1 + 1.44) = 0.016; 0.1 + 0.1 |x| is passed from |x| = 1 on.
        (1.2, {"te-nvfp4", "flashinfer-bench", "deepgemm", "flashinfer-cutlass"}),
        # Twice the value: |d| = |x|, at most 1.6, is past 0.85 |x| + 0.1 from |x| = 0.67 on, and past 0.25 |x| + 0.5.
        (2.0, {"te-nvfp4", "flashinfer-bench", "deepgemm", "flashinfer-cutlass", "te-grouped", "trtllm-gen",
               "flashinfer-padding", "flashinfer-sm12x"}),
    ],
)  # fmt: skip
def test_a_wrong_factor_is_refused_by_whom_its_rule_says(
    factor: float, refusing: set[str], reference: NDArray[np.float64]
) -> None:
    assert ALL - set(accepting(reference * factor, reference)) == refusing


def test_shares_are_counted_of_all_elements(reference: NDArray[np.float64]) -> None:
    """FlashInfer on SM12x lets 3 % of the elements be anything; trtllm-gen 7.5 %, FlashInfer-Bench 5 %."""

    def spoiled(count: int) -> set[str]:
        wrong = reference.copy()
        wrong.reshape(-1)[:count] += 100
        return set(accepting(wrong, reference))

    assert spoiled(120) == {"flashinfer-sm12x", "trtllm-gen", "flashinfer-bench"}
    assert spoiled(121) == {"trtllm-gen", "flashinfer-bench"}
    assert spoiled(200) == {"trtllm-gen", "flashinfer-bench"}
    assert spoiled(201) == {"trtllm-gen"}
    assert spoiled(300) == {"trtllm-gen"}
    assert spoiled(301) == set()


def test_a_zeroed_column_passes_the_cosine(reference: NDArray[np.float64]) -> None:
    """One column of a thousand: about 1 / 2000 of the energy, below DeepGEMM's thousandth."""
    wrong = reference.copy()
    wrong[:, 500] = 0
    assert "deepgemm" in accepting(wrong, reference)
    wrong[:, 500:503] = 0
    assert "deepgemm" not in accepting(wrong, reference)


def test_every_rule_says_where_it_is_from_and_what_it_accepts() -> None:
    assert len(ALL) == len(NAMES) == 8
    for rule in TOLERANCES:
        assert rule.source
        assert rule.rule
