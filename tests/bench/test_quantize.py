from __future__ import annotations

import json

import pytest

from refmoe.bench import quantize as bench
from refmoe.bench.timing import Timing, measure
from refmoe.errors import ArgumentError, RefmoeError


def test_measure_takes_turns_after_one_unmeasured_round_each() -> None:
    calls: list[str] = []
    timings = measure({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3)
    assert calls == ["a", "b"] * 4
    assert {name: len(timing.seconds) for name, timing in timings.items()} == {"a": 3, "b": 3}
    assert all(second >= 0 for timing in timings.values() for second in timing.seconds)
    assert Timing((3.0, 1.0, 2.0)).median == 2.0
    with pytest.raises(ArgumentError, match="rounds: found 0; needed at least 1"):
        measure({}, rounds=0)


@pytest.mark.slow
def test_run_reports_both_comparisons() -> None:
    pytest.importorskip("torchao")
    pytest.importorskip("gguf")
    report = bench.run(size=64, rounds=1)
    assert json.loads(json.dumps(report)) == report
    assert set(report["comparisons"]) == set(bench.TARGETS) == {"quantize_mxfp8", "dequantize_mxfp4"}
    assert bench.TARGETS == {"quantize_mxfp8": 4.0, "dequantize_mxfp4": 6.0}
    for name, comparison in report["comparisons"].items():
        peers = [median for who, median in comparison["medians_s"].items() if not who.startswith("refmoe")]
        assert comparison["ratio"] == min(peers) / comparison["medians_s"]["refmoe"]
        assert comparison["target"] == bench.TARGETS[name]
        assert comparison["reached"] == (comparison["ratio"] >= comparison["target"])
    assert report["reached"] == all(comparison["reached"] for comparison in report["comparisons"].values())
    assert set(report["versions"]) == {"numpy", "torch", "torchao", "gguf"}


def test_functions_that_do_different_things_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchao")
    wrong = bench.quantize_mxfp8
    monkeypatch.setattr(bench, "quantize_mxfp8", lambda x: wrong(x, mode="floor"))
    with pytest.raises(RefmoeError, match="scales differ"):
        bench.run(size=64, rounds=1)
