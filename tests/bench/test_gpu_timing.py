"""Rows of the GPU's benchmarks, made from times without a GPU."""

from __future__ import annotations

import pytest

from refmoe.bench.compare import LEAST_REPETITIONS
from refmoe.bench.gpu.timing import ROUNDS, Calls, rows_of

GROUP = (Calls("floor", 4_000_000, ()), Calls("kernel", 8_000_000, ()))


def test_a_row_has_its_median_its_spread_and_every_repetition() -> None:
    floor, kernel = rows_of(GROUP, [[2.0, 2.0, 8.0], [5.0, 3.0, 4.00004]])
    assert floor["microseconds"] == 2.0
    assert floor["ratio_to_floor"] == 1.0
    assert kernel["microseconds"] == 4.0
    assert kernel["ratio_to_floor"] == 2.0
    assert kernel["spread"] == [3.0, 5.0]
    assert kernel["repetitions"] == [5.0, 3.0, 4.0]
    assert kernel["terabytes_per_second"] == pytest.approx(2.0)


def test_each_contender_needs_its_times() -> None:
    with pytest.raises(ValueError, match="zip"):
        rows_of(GROUP, [[1.0]])


def test_a_run_keeps_as_many_repetitions_as_a_comparison_needs() -> None:
    assert ROUNDS >= LEAST_REPETITIONS
