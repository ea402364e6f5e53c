"""Which tile is chosen, against brute force over every width and against the design's thresholds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from refmoe.chips import CHIPS, KERNEL_ARCHS
from refmoe.cuda.gemm.choice import DYNAMIC_TILES, most_tokens, tiles_needed
from refmoe.cuda.gemm.tile import TILES, Tile, check_tile, max_stages, stage_bytes
from refmoe.errors import ArgumentError
from refmoe.views.weighed import (
    PREFILL_TILE,
    Choice,
    Rule,
    TileVerdict,
    explained,
    llama_cpp_warps,
    reason,
    use_percent,
    weigh,
)

#: The tile of each width, as the dynamic rule has it.
BY_WIDTH = {8: 512, 16: 256, 32: 256, 64: 128, 128: 128}


def brute_force(m: int, capacity: int) -> tuple[int, int, int]:
    """Try every width: count tiles one by one, keep the narrowest of those with the fewest."""
    best = None
    for width, k in BY_WIDTH.items():
        if 2 * (64 * k + width * k + (128 + 128) * k // 32) > capacity:
            continue
        count, covered = 0, 0
        while covered < m:
            covered += width
            count += 1
        if best is None or count < best[0]:
            best = (count, width, k)
    assert best is not None
    return 128, best[1], best[2]


def least_padding(m: int) -> Tile:
    """The rule that the design sketched: the least padding, ties to the narrower tile."""
    return min(DYNAMIC_TILES, key=lambda tile: (math.ceil(m / tile.n) * tile.n - m, tile.n))


@pytest.mark.parametrize("arch", KERNEL_ARCHS)
def test_dynamic_choice_is_the_brute_force_one(arch: str) -> None:
    for m in [*range(1, 700), 1023, 1024, 1025, 4096, 65_536]:
        chosen = explained(m, arch=arch).tile
        assert (chosen.m, chosen.n, chosen.k) == brute_force(m, 100_352)


@pytest.mark.parametrize(
    ("m", "tile"),
    [
        (1, "128x8x512"),
        (8, "128x8x512"),
        (9, "128x16x256"),
        (16, "128x16x256"),
        (17, "128x32x256"),
        (32, "128x32x256"),
        (33, "128x64x128"),
        (64, "128x64x128"),
        (65, "128x128x128"),
        (128, "128x128x128"),
        (129, "128x128x128"),
        (100_000, "128x128x128"),
    ],
)
def test_dynamic_choice_at_every_boundary(m: int, tile: str) -> None:
    choice = explained(m)
    assert str(choice.tile) == tile
    assert choice.stages == max_stages(choice.tile)
    assert choice.rule is Rule.DYNAMIC


def test_least_padding_is_wrong_at_128_tokens() -> None:
    """An 8-wide tile pads nothing at M = 128 either, and needs 16 tiles, each of which reads all weights."""
    wrong, right = least_padding(128), explained(128).tile
    assert (str(wrong), str(right)) == ("128x8x512", "128x128x128")
    assert use_percent(wrong, 128) == use_percent(right, 128) == 100
    assert (tiles_needed(wrong, 128), tiles_needed(right, 128)) == (16, 1)
    # Up to 8 tokens the two agree.
    assert next(m for m in range(1, 129) if least_padding(m) != explained(m).tile) == 9


def test_a_tile_that_does_not_fit_is_not_chosen() -> None:
    """With room for 48,128 bytes of stages neither 128x8x512 nor 128x32x256 has two, 128x16x256 has."""
    small = replace(CHIPS["sm_120a"], arch="sm_small", shared_bytes=49_152)
    for m in range(1, 300):
        chosen = explained(m, arch=small).tile
        assert (chosen.m, chosen.n, chosen.k) == brute_force(m, 48_128)
    verdicts = {str(entry.tile): entry for entry in weigh(explained(1, arch=small))}
    assert verdicts["128x8x512"].verdict is TileVerdict.REFUSED
    assert "40,960 bytes" in verdicts["128x8x512"].reason
    assert verdicts["128x16x256"].verdict is TileVerdict.CHOSEN


@pytest.mark.parametrize("arch", KERNEL_ARCHS)
@pytest.mark.parametrize("min_latency", [False, True])
def test_static_choice_is_the_designs(min_latency: bool, arch: str) -> None:
    for m in range(1, 600):
        if min_latency and m <= 8:
            wanted = "128x8x512"
        elif min_latency and m <= 32:
            wanted = "128x32x256"
        else:
            wanted = "128x128x128"
        choice = explained(m, rule="static", min_latency=min_latency, arch=arch)
        assert str(choice.tile) == wanted
        refusals = [entry for entry in weigh(choice) if entry.verdict is TileVerdict.REFUSED]
        assert [entry.tile for entry in refusals] == ([PREFILL_TILE] if m > 256 else [])


def test_above_256_tokens_the_design_is_refused_with_its_reason() -> None:
    choice = explained(300, rule="static")
    assert str(choice.tile) == "128x128x128"
    assert reason(choice) == "M = 300 is above 256, for which 256x8x512 cannot be had"
    refused = next(entry.reason for entry in weigh(choice) if entry.verdict is TileVerdict.REFUSED)
    assert "sm_120a has no multicast between blocks" in refused
    assert "a stage takes 75,776 bytes" in refused
    assert "8 wide would read the weights 38 times for 300 tokens" in refused


def all_choices() -> list[Choice]:
    dynamic = [explained(m) for m in (1, 7, 9, 40, 128, 257, 5000)]
    static = [
        explained(m, rule=Rule.STATIC, min_latency=latency) for m in (1, 8, 9, 32, 33, 256, 257) for latency in (0, 1)
    ]
    return dynamic + static


@pytest.mark.parametrize("choice", all_choices(), ids=lambda c: f"{c.rule.value}-{c.m}-{c.min_latency}")
def test_every_tile_has_its_reason(choice: Choice) -> None:
    assert [entry.tile for entry in weigh(choice)[: len(TILES)]] == list(TILES)
    assert {entry.tile for entry in weigh(choice)[len(TILES) :]} <= {PREFILL_TILE}
    assert [entry.tile for entry in weigh(choice) if entry.verdict is TileVerdict.CHOSEN] == [choice.tile]
    assert all(entry.reason for entry in weigh(choice))
    assert choice.stages == check_tile(choice.tile, arch=choice.chip) >= 2


def test_reasons_state_true_numbers() -> None:
    reasons = {str(entry.tile): entry.reason for entry in weigh(explained(40))}
    assert reasons["128x64x128"] == "1 tile is enough, and no narrower tile needs as few"
    assert reasons["128x8x512"] == "needs 5 tiles where 128x64x128 needs 1"
    assert reasons["128x128x128"] == "needs as many tiles as 128x64x128, but is wider"
    assert reasons["256x8x256"] == "the rule has one tile a width, 128x8x512 for 8"
    assert reason(explained(300)) == "3 tiles are enough, and no narrower tile needs as few"
    reasons = {str(entry.tile): entry.reason for entry in weigh(explained(4, rule="static", min_latency=True))}
    assert reasons["128x8x512"] == "min_latency, and M = 4 is at most 8"
    assert reasons["128x32x256"] == "M = 4 already fits 128x8x512"
    assert reasons["128x128x128"] == "the default, but 128x8x512 has less latency"


def test_use_counts_columns() -> None:
    for tile in TILES:
        for m in range(1, 300):
            columns = np.zeros(-(-m // tile.n) * tile.n, bool)
            columns[:m] = True
            assert tiles_needed(tile, m) * tile.n == columns.size
            assert use_percent(tile, m) == 100 * int(columns.sum()) / columns.size
    # One token of decode uses 0.8 % of the usual tile and 12.5 % of the narrow one.
    assert round(use_percent(Tile(128, 128, 128), 1), 1) == 0.8
    assert use_percent(Tile(128, 8, 512), 1) == 12.5


def test_llama_cpp_warps() -> None:
    assert [llama_cpp_warps(m) for m in range(1, 11)] == [4, 4, 4, 4, 2, 2, 2, 2, 1, 1]
    with pytest.raises(ArgumentError, match="m: found int 0"):
        llama_cpp_warps(0)


def test_m_is_the_most_tokens_of_any_expert() -> None:
    offsets = np.array([0, 1, 1, 10, 12], np.int64)
    assert most_tokens(offsets) == 9
    # Neither all rows (12) nor their mean (3) would do: 16 columns for 9 tokens, where the mean asks for 8.
    assert str(explained(most_tokens(offsets)).tile) == "128x16x256"
    with pytest.raises(ArgumentError, match="offsets"):
        most_tokens(np.array([0, 3, 1], np.int64))


@pytest.mark.parametrize(
    ("m", "options", "words"),
    [
        (0, {}, "m: found int 0; needed an integer of at least 1"),
        (2.0, {}, "m: found float 2.0"),
        (1, {"arch": "sm_80"}, "arch: found str 'sm_80'"),
        (1, {"rule": "best"}, "rule: found str 'best'; needed one of static, dynamic"),
        (1, {"min_latency": True}, "min_latency: found min_latency with the dynamic rule"),
    ],
)
def test_bad_requests(m: int, options: dict[str, object], words: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        explained(m, **options)  # type: ignore[arg-type]
    assert str(caught.value).startswith(words)


def test_the_narrow_tile_is_the_deepest_of_its_width_that_fits_twice() -> None:
    for tile in DYNAMIC_TILES:
        assert max_stages(tile) >= 2
    assert 2 * stage_bytes(Tile(128, 8, 1024)) > 100_352
