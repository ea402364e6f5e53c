"""The benchmark of memory: what it counts, and what it says when a target is missed."""

from __future__ import annotations

import json
import multiprocessing
from typing import Any

import pytest
from typer.testing import CliRunner

from refmoe.bench import memory as bench
from refmoe.cli import app
from refmoe.cuda.toolchain import ToolchainError, find_toolchain
from refmoe.errors import RefmoeError

MIB = 1 << 20


@pytest.fixture
def compiler() -> None:
    try:
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(str(error))


def inline(function: Any, *arguments: Any) -> Any:
    return function(*arguments)


def test_the_resident_memory_is_that_of_a_process_of_its_own() -> None:
    little, much = (bench._in_child(bench.sparse_launch, 128 * MIB, touched * MIB) for touched in (1, 128))
    # Half of the buffers is the caller's, who filled it. What is touched costs its copy, records of two reads of four
    # bytes, of a write, and the mask.
    assert little > 64 * MIB
    assert 64 * (1 + 4 + 1) * MIB < much - little < 64 * (1 + 1 + 4 + 2 + 1 + 1) * MIB
    assert multiprocessing.active_children() == []


@pytest.mark.usefixtures("compiler")
def test_what_a_kernel_touches_is_what_its_shape_says() -> None:
    rows = 64
    assert bench.bytes_touched("quantize", rows, 1) == rows * (2880 * 3 + 2880 // 32)
    cost = bench.bytes_of_checks("quantize", rows, 1)
    written = rows * (2880 + 2880 // 32)
    # A byte of the mask for each byte, in whole pages; the pages of the codes, which were written, and a word for each.
    assert written <= cost["initialised"] <= written + 8 * bench.PAGE
    assert rows * 2880 <= cost["kept"] <= written + 8 * bench.PAGE
    # Codes are written 16 bytes at a time, scales by bytes.
    assert rows * (2880 // 2 + 90 * 8) <= cost["records"] <= rows * (2880 // 2 + 90 * 8) + 64 * bench.PAGE


@pytest.mark.usefixtures("compiler")
def test_run_reports_every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_in_child", inline)
    report = bench.run(buffers=16 * MIB, touched=MIB, rows=32, experts=1)
    assert json.loads(json.dumps(report)) == report
    assert bench.TARGETS == {"resident_bytes": 2 << 30, "bytes_per_byte_touched": 8.0}
    assert [row["kernel"] for row in report["rows"]] == ["quantize", "gemm", "routing"]
    for row in report["rows"]:
        assert min(row["touched"], row["records"], row["initialised"], row["kept"] + 1) > 0
        ratio = (row["records"] + row["initialised"] + row["kept"]) / row["touched"]
        assert row["bytes_per_byte_touched"] == ratio
    ratios = [row["bytes_per_byte_touched"] for row in report["rows"]]
    assert report["bytes_per_byte_touched"] == pytest.approx(sum(ratios) / 3)
    assert report["reached"]["resident_bytes"] == (report["resident_bytes"] <= 2 << 30)
    assert report["reached"]["bytes_per_byte_touched"] == (report["bytes_per_byte_touched"] <= 8)
    assert report["all_reached"] == all(report["reached"].values())


@pytest.mark.parametrize(("buffers", "touched", "missed"), [(1, 900, 1), (2 << 30, 1000, 0), ((2 << 30) + 1, 1000, 1)])
def test_a_missed_target_is_exit_status_one(
    monkeypatch: pytest.MonkeyPatch, buffers: int, touched: int, missed: int
) -> None:
    def child(function: Any, *arguments: Any) -> Any:
        if function is bench.sparse_launch:
            return buffers
        return touched if function is bench.bytes_touched else {"records": 7000, "initialised": 500, "kept": 500}

    monkeypatch.setattr(bench, "_in_child", child)
    result = CliRunner().invoke(app, ["bench", "memory"])
    assert result.exit_code == missed
    assert f"all reached: {'NO' if missed else 'yes'}" in result.output


def test_a_system_that_does_not_tell_what_is_resident(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.Path, "exists", lambda self: False)
    with pytest.raises(RefmoeError, match="needs Linux"):
        bench.run()
