"""The benchmark of memory: what it counts, and what it says when a target is missed."""

from __future__ import annotations

import json
import multiprocessing
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from refmoe import ptx
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
    # Whoever comes first compiles, which takes memory too.
    bench._in_child(bench.sparse_launch, 2 * MIB, MIB)
    little, much = (bench._in_child(bench.sparse_launch, 128 * MIB, touched * MIB) for touched in (1, 128))
    # Half of the buffers is the caller's, who filled it. What is touched costs records of two reads of four bytes, of a
    # write, and the mask. Of pages of one byte over and over there is no copy.
    assert little > 64 * MIB
    assert 64 * (4 + 1) * MIB < much - little < 64 * (1 + 1 + 4 + 2 + 1 + 1) * MIB
    assert multiprocessing.active_children() == []


@pytest.mark.usefixtures("compiler")
def test_what_a_kernel_touches_is_what_its_shape_says() -> None:
    rows = 64
    assert bench.bytes_touched("quantize", rows, 1) == [rows * (2880 * 3 + 2880 // 32)]
    [cost] = bench.bytes_of_checks("quantize", rows, 1)
    assert cost["touched"] == 0
    written = rows * (2880 + 2880 // 32)
    # A byte of the mask for each byte, in whole pages; a word for each page of the codes, which held one byte alone.
    assert written <= cost["initialised"] <= written + 8 * bench.PAGE
    assert 0 < cost["kept"] <= 8 * bench.PAGE
    # Codes are written 16 bytes at a time, scales by bytes.
    assert rows * (2880 // 2 + 90 * 8) <= cost["records"] <= rows * (2880 // 2 + 90 * 8) + 64 * bench.PAGE


# Each of 1024 threads writes a word of shared memory, and reads that of another warp.
WORDS = """
.version 8.7
.target sm_120a
.address_size 64
.visible .entry words(.param .u64 out) {
    .reg .b32 %r<8>;
    .reg .b64 %rd<2>;
    .shared .align 4 .b8 words[4096];
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, words;
    shl.b32 %r3, %r1, 2;
    add.u32 %r4, %r2, %r3;
    st.shared.u32 [%r4], %r1;
    bar.sync 0;
    xor.b32 %r5, %r3, 128;
    add.u32 %r6, %r2, %r5;
    ld.shared.u32 %r7, [%r6];
    mad.wide.u32 %rd1, %r1, 4, %rd1;
    mov.u32 %r2, %ctaid.x;
    mad.wide.u32 %rd1, %r2, 4096, %rd1;
    st.global.u32 [%rd1], %r7;
    ret;
}
"""


def test_blocks_that_ended_touched_what_they_touched() -> None:
    keeper, grids = bench.Keeper(), (100, 2)
    for grid in grids:
        ptx.run_ptx(WORDS, grid=grid, block=1024, args=[np.zeros(grid << 10, np.uint32)], profile=keeper)
    for held, grid in zip(keeper.launches, grids, strict=True):
        machines = [kept.accessed >> 12 for kept in held.owned if kept.region.space == "shared"]
        assert sum(machines) == grid
        # Those that ran one after another were not there together, and count on neither side.
        together = max(machines)
        assert held.most["touched"] == together << 12
        buffers = sum(kept.cost for kept in held.buffers)
        # A record of a write for each word; a page of the system's for what each of 32 warps read in a block, or two.
        records, written = held.most["records"] - buffers[0], 2 * (together << 12)
        assert written + together * 32 * bench.PAGE <= records <= written + together * 32 * 2 * bench.PAGE
        assert [kept.accessed for kept in held.buffers if kept.shadow is not None] == [grid << 12]
    assert len([kept for kept in keeper.launches[0].owned if kept.at_end is not None]) > 0


@pytest.mark.usefixtures("compiler")
def test_routing_costs_no_more_than_its_records_need() -> None:
    [_, sort] = bench.bytes_of_checks("routing", 2048, 1)
    # Of a block's 4480 bytes each of 32 warps writes and reads 128 by itself, and all of them read 384: beside a column
    # of writes that is one page of the system's in each column of reads for the former, and up to two for the latter.
    blocks = sort["touched"] // 4480
    assert sort["touched"] == blocks * 4480 > 0
    assert sort["records"] < blocks * (4480 * 8 + 32 * 3 * bench.PAGE)
    # Of the clocks a page of the system's for each warp, and less for all that blocks share.
    assert blocks * 32 * bench.PAGE <= sort["clocks"] < blocks * 48 * bench.PAGE


@pytest.mark.usefixtures("compiler")
def test_run_reports_every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_in_child", inline)
    report = bench.run(buffers=16 * MIB, touched=MIB, rows=32, experts=1)
    assert json.loads(json.dumps(report)) == report
    assert bench.TARGETS == {"resident_bytes": 2 << 30, "bytes_per_byte_touched": 8.0}
    assert [row["kernel"] for row in report["rows"]] == ["quantize", "gemm", "routing"]
    for row in report["rows"]:
        assert min(row["touched"], row["records"], row["initialised"], row["kept"] + 1) > 0
        ratio = (row["records"] + row["initialised"] + row["kept"] + row["clocks"]) / row["touched"]
        assert row["bytes_per_byte_touched"] == ratio
        assert row["most_of_a_launch"] >= ratio
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
        if function is bench.bytes_touched:
            return [touched - 300, 200]
        launch = {"touched": 50, "records": 3500, "initialised": 250, "kept": 150, "clocks": 100}
        return [launch, launch]

    monkeypatch.setattr(bench, "_in_child", child)
    result = CliRunner().invoke(app, ["bench", "memory"])
    assert result.exit_code == missed
    assert f"all reached: {'NO' if missed else 'yes'}" in result.output


def test_a_system_that_does_not_tell_what_is_resident(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.Path, "exists", lambda self: False)
    with pytest.raises(RefmoeError, match="needs Linux"):
        bench.run()
