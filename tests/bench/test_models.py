"""The benchmark of the models: what it reports, and that it refuses to time a wrong result."""

from __future__ import annotations

import numpy as np
import pytest

from refmoe.bench import models as bench
from refmoe.errors import RefmoeError


def test_report():
    report = bench.run(m=2, n=8, k=64, rounds=1, checked=4)
    assert [row["data"] for row in report["rows"]] == list(bench.TARGETS)
    assert bench.TARGETS == {"gaussian": 20.0, "wide elements": 20.0, "wide blocks": 20.0}
    for row in report["rows"]:
        assert min(row["gflops"], row["median_ms"], row["specification_gflops"]) > 0
        assert row["reached"] == (row["gflops"] >= bench.TARGETS[row["data"]])
    assert report["all_reached"] == all(row["reached"] for row in report["rows"])
    assert report["evidence"] == "extrapolated"


def test_a_wrong_result_is_not_timed(monkeypatch):
    right = bench.tensor_core_mma
    monkeypatch.setattr(bench, "tensor_core_mma", lambda *a, **k: np.nextafter(right(*a, **k), np.float32(np.inf)))
    with pytest.raises(RefmoeError, match=r"bench models: output \[\d+, \d+\] of gaussian data"):
        bench.run(m=2, n=8, k=64, rounds=1, checked=4)


def test_the_kinds_of_data_are_what_they_say():
    """Binades between the blocks of a row, and between a block's largest and its median element."""
    rng = np.random.default_rng(0)
    spreads = {}
    for kind in bench.TARGETS:
        x = np.abs(bench._draw(rng, kind, 64, 512)).reshape(64, 16, 32)
        tops = np.log2(x.max(axis=2))
        spreads[kind] = np.ptp(tops, axis=1).mean(), np.log2(x.max(axis=2) / np.median(x, axis=2)).mean()
    assert spreads["gaussian"][0] < 2
    assert spreads["gaussian"][1] < 3
    assert spreads["wide elements"][1] > 8
    assert spreads["wide blocks"][0] > 15
