"""The model of a tile's time, against what can be worked out by hand."""

from __future__ import annotations

import pytest

from refmoe.bench.tiles.model import DEEPSEEK_V3, GPT_OSS_120B, StepCost, predict
from refmoe.bench.tiles.peaks import PEAKS, modelled_products
from refmoe.chips import CHIPS, Mma, Product
from refmoe.cuda.gemm.tile import Tile
from refmoe.errors import ArgumentError

COST = StepCost(Tile(128, 8, 512), Mma.SYNC_MX, 4000.0, 800.0, 4.25, 8.25)
CHIP = Product("a chip", 10, 1000.0, "made up")


def _times(loads: dict[int, int], n: int = 1280, k: int = 1024, cost: StepCost = COST) -> dict[str, float]:
    peaks = PEAKS["RTX 5090"]
    return dict(predict(cost, n, k, loads, CHIP, peaks).microseconds)


def test_each_resource_by_hand() -> None:
    # 10 tiles of weight rows for the one expert, one a multiprocessor, two steps each; 2407 clocks a microsecond.
    found = _times({1: 1})
    assert found["issue"] == pytest.approx(2 * 4000 / 4 / 2407)
    assert found["tensor"] == pytest.approx(2 * 2 * 128 * 8 * 512 / 1024 / 2407)
    assert found["shared"] == pytest.approx(2 * 800 / 2407)
    assert found["memory"] == pytest.approx((1280 * 1024 * 4.25 / 8 + 1024 * 8.25 / 8 + 1280 * 2) / 1000e9 * 1e6)


def test_the_busiest_multiprocessor_counts_and_a_tail_costs_a_whole_step() -> None:
    assert _times({1: 1}, n=1281)["issue"] == pytest.approx(2 * _times({1: 1})["issue"])
    assert _times({1: 1}, k=1025)["issue"] == pytest.approx(1.5 * _times({1: 1})["issue"])
    assert _times({8: 1})["tensor"] == _times({1: 1})["tensor"]  # a tile is as wide as it is, however few its tokens
    assert _times({9: 1})["tensor"] == 2 * _times({1: 1})["tensor"]


def test_the_longest_resource_is_the_prediction() -> None:
    found = predict(COST, 1280, 1024, {1: 1}, CHIP, PEAKS["RTX 5090"])
    assert found.longest == max(found.microseconds.values()) == found.microseconds[found.bound]


def test_without_wavefronts_shared_memory_is_left_out() -> None:
    assert "shared" not in _times({1: 1}, cost=StepCost(COST.tile, COST.mma, 4000.0, None, 4.25, 8.25))


def test_choices_spread_over_as_many_experts_as_can_have_one() -> None:
    assert GPT_OSS_120B.loads(1) == {1: 4}
    assert GPT_OSS_120B.loads(64) == {2: 128}
    assert GPT_OSS_120B.loads(33) == {2: 4, 1: 124}
    assert DEEPSEEK_V3.loads(32) == {1: 256}
    for tokens in range(1, 100):
        loads = DEEPSEEK_V3.loads(tokens)
        assert sum(rows * experts for rows, experts in loads.items()) == 8 * tokens
    with pytest.raises(ArgumentError, match="tokens: found 0; needed at least 1"):
        GPT_OSS_120B.loads(0)


def test_the_shapes_are_those_of_the_models() -> None:
    assert GPT_OSS_120B.gemms() == {"GEMM1": (5760, 2880), "GEMM2": (2880, 2880)}
    assert DEEPSEEK_V3.gemms() == {"GEMM1": (4096, 7168), "GEMM2": (7168, 2048)}


def test_published_rates_agree_with_the_published_totals() -> None:
    found = {product.name: (product, peaks) for _, product, peaks in modelled_products()}
    assert set(found) == {product.name for arch in ("sm_120a", "sm_121a") for product in CHIPS[arch].products}

    def tera(name: str, mma: Mma) -> float:
        product, peaks = found[name]
        return product.multiprocessors * peaks.clock * peaks.operations[mma] / 1e6

    assert tera("RTX 5090", Mma.SYNC_MX) == pytest.approx(419, rel=0.002)
    assert tera("RTX 5090", Mma.SYNC_NVF4) == pytest.approx(1676, rel=0.002)
    assert tera("GB10", Mma.SYNC_NVF4) == pytest.approx(500, rel=0.01)
    assert all(peaks.source.startswith("NVIDIA") for _, peaks in found.values())
