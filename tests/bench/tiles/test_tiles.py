"""The tiles of the GEMM read from machine code: counts that the tile's own arithmetic decides."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from refmoe.bench import tiles
from refmoe.bench.tiles.counts import Run, counted_run, step_of
from refmoe.bench.tiles.flow import FlowError
from refmoe.bench.tiles.view import prediction_table, reasons, renderables, tile_table
from refmoe.chips import Mma
from refmoe.cuda import toolchain
from refmoe.cuda.device import PtxDevice
from refmoe.cuda.gemm.kernel import GEMM
from refmoe.cuda.gemm.tile import Tile
from refmoe.cuda.nvfp4_gemm import NVFP4_GEMM
from refmoe.cuda.toolchain import CSRC, Target, ToolchainError, build
from refmoe.views.sass import PtxasReport, disassembly, find_nvdisasm


def _tools() -> bool:
    try:
        find_nvdisasm()
    except ToolchainError:
        return False
    return not all(candidate.problem for candidate in toolchain.candidates())


needs_tools = pytest.mark.skipif(not _tools(), reason="no nvcc or no nvdisasm on this machine")
FAMILIES = {Mma.SYNC_MX: (GEMM, 32), Mma.SYNC_NVF4: (NVFP4_GEMM, 64)}
CASES = [(Mma.SYNC_MX, Tile(128, 8, 128)), (Mma.SYNC_MX, Tile(256, 8, 256)), (Mma.SYNC_NVF4, Tile(128, 8, 128))]


@pytest.mark.slow
@needs_tools
@pytest.mark.parametrize(("mma", "tile"), CASES, ids=str)
def test_a_step_has_the_products_and_copies_of_its_tile(mma: Mma, tile: Tile) -> None:
    family, depth = FAMILIES[mma]
    found = tiles._ours(family, mma, tile, "sm_121a")
    assert found.step is not None
    assert found.step.products == pytest.approx(tile.m // 16 * (tile.n // 8) * (tile.k // depth))
    # Each copy of a whole warp moves 32 times 16 bytes; the warps of a loop's tail may be fewer than a block has.
    assert found.step.by_family["LDGSTS"] * 32 * 16 >= family.stage_bytes(tile)
    assert found.step.by_family["LDGSTS"] * 32 * 16 <= family.stage_bytes(tile) * 1.05
    assert found.step.loads.taken >= found.step.loads.needed > 0
    assert found.step.open_instructions < 0.15 * found.step.instructions
    row = tiles._row(found)
    assert (row["spill_bytes"], row["tile"]) == (0, str(tile))
    assert row["bytes_in_flight"] == (row["stages"] - 1) * family.stage_bytes(tile)
    assert row["tensor_share"] == pytest.approx(found.step.products / found.step.instructions, abs=1e-4)
    assert not tiles._spills(found.sass)
    spilled = replace(found.sass, usage=PtxasReport(255, 8, 8, 4))
    assert tiles._spills(spilled)


@needs_tools
@pytest.mark.slow
def test_launches_of_as_many_steps_and_foreign_ptx_are_refused(tmp_path: Path) -> None:
    tile = Tile(128, 8, 128)

    def launch(steps: int, profile: object) -> None:
        tiles._launch(GEMM, PtxDevice("sm_121a", 1, observer=profile), tile, steps * tile.k)  # type: ignore[arg-type]

    runs: list[Run] = [counted_run(steps, partial(launch, steps)) for steps in (10, 11)]
    code, text = (Target(CSRC / "gemm.cu", "sm_121a", kind) for kind in ("cubin", "ptx"))  # type: ignore[arg-type]
    files = build([code, text])
    sass = disassembly(files[code])
    entry = GEMM.kernel(tile, "bf16").entry
    with pytest.raises(FlowError, match="have 10 and 10 steps"):
        step_of(sass[entry], files[text], runs[0], runs[0])
    with pytest.raises(FlowError, match=r"machine code has \d+ of the kind"):
        step_of(sass[GEMM.kernel(Tile(128, 128, 128), "bf16").entry], files[text], *runs)
    assert step_of(sass[entry], files[text], *runs).products == pytest.approx(32)


def test_a_launch_that_runs_nothing_is_refused() -> None:
    with pytest.raises(FlowError, match="counted 0 kernels"):
        counted_run(1, lambda profile: None)


def test_rows_of_architectures_merge_only_where_all_figures_are_the_same() -> None:
    rows = [
        {"kernel": "a", "archs": [arch], "registers": registers} for arch, registers in (("x", 1), ("y", 1), ("z", 2))
    ]
    assert tiles._merged(rows) == [
        {"kernel": "a", "archs": ["x", "y"], "registers": 1},
        {"kernel": "a", "archs": ["z"], "registers": 2},
    ]


def test_what_is_printed_names_each_absent_build_and_calls_the_model_a_model() -> None:
    prediction = {"kernel": "k", "tile": "128x8x512", "product": "GB10", "model": "m", "gemm": "GEMM1"}
    timed = {"tokens": 8, "predicted_microseconds": 12.5, "bound": "memory", "by_resource": {"memory": 12.5}}
    document = {
        "rows": [{"kernel": "k", "tile": "128x8x512", "archs": ["sm_121a"], "registers": 40}],
        "not_built": [{"name": f"CUTLASS {name}", "reason": "asserts N >= 32", "command": None} for name in "ab"],
        "predictions": [prediction | timed],
        "sources": {"GB10": {"bandwidth_source": "one", "peaks_source": "two"}},
        "spills": [],
    }
    assert reasons(document["not_built"]) == {"asserts N >= 32": ["a", "b"]}  # type: ignore[arg-type]
    printed = [each for each in renderables(document) if isinstance(each, str)]
    assert "Not there, asserts N >= 32: a, b" in printed
    assert any(text.startswith("A MODEL, no measurement") for text in printed)
    assert "GB10: one; two" in printed
    assert tile_table(document["rows"]).row_count == 1  # type: ignore[arg-type]
    table = prediction_table(document["predictions"])  # type: ignore[arg-type]
    assert list(table.columns[-1].cells) == ["12.5 m"]
