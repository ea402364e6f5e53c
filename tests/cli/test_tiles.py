from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from refmoe.cli import app
from refmoe.cuda.gemm.tile import TILES
from refmoe.museum.cutlass.tiles import CUTLASS_RELEASES
from refmoe.views.weighed import explained, reason


def tiles(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["tiles", *arguments])


def test_the_table_for_one_token() -> None:
    found = tiles("--m", "1", "--arch", "sm_121a")
    assert found.exit_code == 0
    lines = found.output.splitlines()
    assert lines[0].startswith("M = 1 (the most tokens of any expert), sm_121a, dynamic rule: 128x8x512, 2 stages;")
    compared = (
        "for comparison: llama.cpp's matrix-vector kernel, which has no tiles, would give each weight row 4 warps"
    )
    assert lines[1].endswith(compared)
    row = next(line for line in lines if line.startswith("128x8x512"))
    assert row.split()[:6] == ["128x8x512", "12.5", "40,960", "2", "1", "chosen"]
    row = next(line for line in lines if line.startswith("128x128x128"))
    assert row.split()[:6] == ["128x128x128", "0.8", "25,600", "3", "1", "skipped"]
    for name in ("tile", "use %", "bytes/stage", "stages", "tiles needed", "verdict", "why"):
        assert name in lines[3]
    for release in CUTLASS_RELEASES:
        assert f"CUTLASS {release}" in found.output


def test_the_document_has_everything_of_the_table() -> None:
    found = tiles("--m", "300", "--rule", "static", "--json")
    assert found.exit_code == 0
    document = json.loads(found.output)
    choice = explained(300, rule="static")
    assert (document["tile"], document["stages"], document["reason"]) == ("128x128x128", 3, reason(choice))
    assert (document["shared_bytes"], document["stage_capacity"]) == (101_376, 100_352)
    rows = {row["tile"]: row for row in document["tiles"]}
    assert list(rows) == [*map(str, TILES), "256x8x512"]
    assert rows["256x8x512"]["verdict"] == "refused"
    assert rows["128x128x128"] == {
        "tile": "128x128x128",
        "use_percent": 78.125,
        "stage_bytes": 25_600,
        "stages": 3,
        "tiles_needed": 3,
        "verdict": "chosen",
        "reason": reason(choice),
        "cutlass": rows["128x128x128"]["cutlass"],
    }
    assert rows["128x128x128"]["cutlass"]["4.6"] == {
        "opens": True,
        "evidence": "compiled",
        "note": "spills: 72 bytes stored, 52 loaded",
        "stages": 2,
        "shared_bytes": 78_848,
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tile", "128x128x64", "--arch", "sm_120a"], "tile: found 128x128x64 on sm_120a, but a K of 64 elements"),
        (["--tile", "128x128x128", "--stages", "6"], "stages: found 6 stages of 128x128x128 on sm_120a, 153,600 bytes"),
        (["--tile", "128x128x128", "--stages", "1"], "1 stage of 128x128x128"),
        (["--tile", "256x8x512"], "a stage takes 75,776 bytes"),
        (["--tile", "256x8x512", "--cluster", "2x1x1"], "needed 256x8x256 in a cluster of 1x1x1"),
    ],
)
def test_a_refused_tile_is_one_sentence_and_exit_1(arguments: list[str], words: str) -> None:
    found = tiles(*arguments)
    assert found.exit_code == 1
    assert found.output.startswith("refused: ")
    assert words in found.output
    assert found.output.count("\n") == 1
    as_json = tiles(*arguments, "--json")
    assert as_json.exit_code == 1
    parts = json.loads(as_json.output)["refused"]
    assert f"{parts['argument']}: found {parts['found']}; needed {parts['needed']}" in found.output


def test_a_tile_that_can_be_had() -> None:
    found = tiles("--tile", "128x16x256")
    assert (found.exit_code, found.output) == (0, "128x16x256 on sm_120a: 4 stages of 22,528 bytes, 90,112 in all\n")
    document = json.loads(tiles("--tile", "128x16x256", "--stages", "3", "--json").output)
    assert document == {"tile": "128x16x256", "arch": "sm_120a", "stages": 3, "stage_bytes": 22_528, "refused": None}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--m", "0"], "m: found int 0; needed an integer of at least 1"),
        (["--m", "one"], "Invalid value for '--m'"),
        (["--arch", "sm_80"], "arch: found str 'sm_80'"),
        (["--rule", "best"], "rule: found str 'best'; needed one of static, dynamic"),
        (["--min-latency"], "min_latency: found min_latency with the dynamic rule"),
        (["--tile", "128x8"], "tile: found str '128x8'; needed three positive integers"),
        (["--tile", "128x8x512", "--cluster", "2"], "cluster: found str '2'"),
        (["--stages", "3"], "tile: found none with --stages or --cluster"),
    ],
)
def test_usage_errors_exit_with_2(arguments: list[str], words: str) -> None:
    found = tiles(*arguments)
    assert found.exit_code == 2
    assert words in found.output
    assert "Traceback" not in found.output


def test_help_has_examples() -> None:
    found = tiles("--help")
    assert found.exit_code == 0
    for words in ("Examples", "refmoe tiles --m 1 --arch sm_121a", "--json", "--min-latency"):
        assert words in found.output
