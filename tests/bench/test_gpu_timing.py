"""Rows of the GPU's benchmarks, made from times without a GPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from refmoe.bench.compare import LEAST_REPETITIONS
from refmoe.bench.gpu import _OTHER_SOURCES, _pair_of, run
from refmoe.bench.gpu.timing import ROUNDS, Calls, Contender, rows_of
from refmoe.cuda.expand import choice_kernel, expand_kernel
from refmoe.cuda.launch import LaunchPlan
from refmoe.cuda.quantize import mxfp8_quantize_kernel
from refmoe.errors import ArgumentError

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


@pytest.mark.parametrize("lacks", _OTHER_SOURCES)
def test_a_checkout_without_a_kernel_that_is_timed_is_refused(lacks: str, tmp_path: Path) -> None:
    csrc = tmp_path / "refmoe" / "cuda" / "csrc"
    csrc.mkdir(parents=True)
    for source in _OTHER_SOURCES:
        if source != lacks:
            (csrc / source).touch()
    with pytest.raises(
        ArgumentError, match=rf"--against: found .* without refmoe/cuda/csrc/{re.escape(lacks)}; needed"
    ):
        run(tmp_path)


def test_the_pair_of_the_other_checkout_is_launched_as_it_launches_it() -> None:
    """One CTA for a token alone, and none of the kernels that only the present sources have."""
    quantize = LaunchPlan(mxfp8_quantize_kernel("bf16", "rceil", "exact", "linear"), 1, 192, ())
    alone = LaunchPlan(choice_kernel(expand_kernel("mxfp8_linear", "128x4")), 4, 192, ())
    device: Any = object()
    other: Any = object()
    pair = _pair_of(Contender("pair", 1, device, [[quantize, alone]]), 1, other, " of old")
    assert (pair.name, pair.device) == ("pair of old", other)
    first, second = pair.sets[0]
    assert (first.kernel.source, first.kernel.entry, first.grid) == ("mxfp8_quantize", quantize.kernel.entry, 1)
    assert (second.kernel, second.grid) == (expand_kernel("mxfp8_linear", "128x4"), 1)
