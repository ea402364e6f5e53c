"""DeepGEMM's kernel for SM90, executed as it is: the reference's bytes, two orders that it lacks, and its faults."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from support.selection.thinned import thinned
from support.toolchain import NVCC

from refmoe import ptx
from refmoe.catalog import kernel_of, parse_case
from refmoe.cuda.launch import MatrixMap
from refmoe.errors import RefmoeError
from refmoe.museum.deepgemm import DeepGemmMissing, find_headers
from refmoe.museum.deepgemm.faults import CONTIGUOUS, DEEPGEMM_FAULTS, MASKED, Everywhere
from refmoe.museum.deepgemm.gemm import (
    Buffers,
    DeepGemmBuild,
    Problem,
    Sizes,
    assemble,
    check_contraction,
    compile_ptx,
    contiguous,
    entry_of,
    execute,
    launch_plan,
    mended,
)
from refmoe.museum.deepgemm.headers import PYPI_SHA256, RELEASE
from refmoe.museum.edits import EditError
from refmoe.ptx.findings import unexplained
from refmoe.verify.kernel import Devices
from refmoe.verify.plant import plant_faults
from refmoe.verify.runner import run_case
from refmoe.verify.verdict import Verdict

try:
    HEADERS = find_headers()
except DeepGemmMissing:
    HEADERS = None

installed = pytest.mark.skipif(HEADERS is None or NVCC is None, reason="no headers of DeepGEMM, or no nvcc")


def problem() -> Problem:
    rng = np.random.default_rng(3)
    tokens = rng.integers(0x30, 0x40, (130, K)).astype(np.uint8)
    weights = rng.integers(0x30, 0x40, (EXPERTS, 128, K)).astype(np.uint8)
    scales = rng.random((K // 128, 130), np.float32), rng.random((EXPERTS, 1, K // 128), np.float32)
    return contiguous(tokens, scales[0], weights, scales[1], np.array([0, 1, 130, 130, 130]), 128)


#: More blocks than there are stages, so that a stage is filled again.
K = 768
#: As many as in cases of the list, whose instantiation is compiled anyway.
EXPERTS = 4
BUILD = DeepGemmBuild("contiguous", 128, 128, 1, EXPERTS, 4)


def launched(text: str, **options: object) -> np.ndarray:
    return execute(problem(), BUILD, text, BUILD.stages(K), 0xFF, **options)[0]


@installed
def test_the_headers_are_those_that_reports_vouch_for() -> None:
    assert HEADERS is not None
    assert (HEADERS.release, HEADERS.sha256) == (RELEASE, PYPI_SHA256)


@installed
@pytest.mark.parametrize("case", thinned([MASKED, CONTIGUOUS], 2))
def test_it_gives_the_reference_s_bytes(case: str) -> None:
    parsed = parse_case(case)
    result = run_case(kernel_of(parsed, Devices()), parsed)
    assert result.verdict is Verdict.PASS, result.line
    assert "without a look for races" in str(result.made_of)


@installed
def test_the_two_orders_that_it_lacks() -> None:
    text = compile_ptx(BUILD, BUILD.stages(K)).read_text()
    assert "add.f32" not in text
    # A copy overwrites what lanes have read without an order. (What would mend it takes as many launches again.)
    with unexplained(), pytest.raises(ptx.RaceError, match=r"read-write race.*of shared memory.*cp\.async\.bulk"):
        launched(text)
    meets = text.replace("wgmma.wait_group.sync.aligned 0;", "wgmma.wait_group.sync.aligned 0; bar.warp.sync -1;")
    with pytest.raises(ptx.MisuseError, match="exits without having waited until its bulk copy has read"):
        launched(meets)
    assert launched(mended(text), schedules=2).tobytes() == launched(text, checks=ptx.Checks(races=False)).tobytes()


@installed
@pytest.mark.slow
def test_faults_are_caught() -> None:
    """Four of them; `make mutants` plants all."""
    chosen = [fault for fault in DEEPGEMM_FAULTS if fault.name[:3] in ("703", "708", "710", "711")]
    results = list(plant_faults(chosen, lambda case: kernel_of(case, Devices())))
    assert [(result.caught, result.check) for result in results] == [
        (True, "bytes"), (True, "race"), (True, "misuse"), (True, "race"),
    ]  # fmt: skip


def test_faults_go_to_other_processes() -> None:
    assert pickle.loads(pickle.dumps(DEEPGEMM_FAULTS)) == DEEPGEMM_FAULTS


def test_an_edit_that_fits_nothing() -> None:
    with pytest.raises(EditError, match="has 0 places that match 'fma'"):
        Everywhere("fma", "mul")("ret;")
    with pytest.raises(RefmoeError, match=r"has 0 times 'wgmma\.wait_group"):
        mended("\tret;")
    with pytest.raises(RefmoeError, match=r"has 1 add\.f32, which ptxas may fuse"):
        check_contraction("\tadd.f32 %f1, %f2, %f3;")


def test_rows_of_an_expert_begin_at_a_tile() -> None:
    found = problem()
    assert found.rows == 384
    assert found.grouped[[0, 1, 127, 128, 256, 257]].tolist() == [0, -1, -1, 1, 1, -1]
    assert found.source is not None
    assert found.source[[0, 1, 128, 256]].tolist() == [0, -1, 1, 129]
    assert not found.tokens[1:128].any()
    assert found.token_scales.shape == (1, K // 128, 384)


def test_a_launch_on_whatever_device() -> None:
    """The maps tell of whole matrices, the boxes are tiles, and a pair of CTAs is a cluster."""
    build = DeepGemmBuild("masked", 64, 160, 2, 3, 132)
    buffers = Buffers("tokens", "token_scales", "weights", "weight_scales", "grouped", "out")
    plan = launch_plan(build, 5, "entry", buffers, Sizes(rows=128, batches=3, scale_width=128, experts=3, n=384, k=256))
    assert (plan.grid, plan.block, plan.cluster) == (132, 256, 2)
    assert plan.arguments[:5] == ("weight_scales", "grouped", 128, 384, 256)
    assert plan.arguments[5:] == (
        MatrixMap("tokens", "u8", 384, 256, (64, 128), "128B"),
        MatrixMap("weights", "u8", 1152, 256, (160, 128), "128B"),
        MatrixMap("out", "bf16", 384, 384, (64, 32), "64B"),
        MatrixMap("token_scales", "f32", 6, 128, (1, 64), "none"),
    )
    assert [each.row_bytes for each in plan.arguments[5:]] == [256, 256, 768, 512]


@installed
def test_a_cubin_lies_beside_its_text() -> None:
    text = compile_ptx(BUILD, BUILD.stages(K))
    cubin = assemble(text)
    assert (cubin.parent, cubin.suffix) == (text.parent, ".cubin")
    assert entry_of(text.read_text()).encode() in cubin.read_bytes()
    before = cubin.stat().st_mtime_ns
    assert assemble(text).stat().st_mtime_ns == before


@pytest.mark.parametrize(("tile_n", "swizzle", "stages"), [(128, 128, 5), (160, 64, 5)])
def test_what_fits_into_shared_memory(tile_n: int, swizzle: int, stages: int) -> None:
    build = DeepGemmBuild("contiguous", 128, tile_n, 1, 2, 4)
    assert (build.store_swizzle, build.stages(7168)) == (swizzle, stages)
    assert build.shared_bytes(7168, stages) <= 232448 < build.shared_bytes(7168, stages + 1)


def test_headers_that_are_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REFMOE_DEEPGEMM_DIR", str(tmp_path))
    with pytest.raises(DeepGemmMissing, match=re.escape(f"REFMOE_DEEPGEMM_DIR is {tmp_path}, and there is no include")):
        find_headers()
    case = parse_case(CONTIGUOUS)
    result = run_case(kernel_of(case, Devices()), case)
    assert (result.verdict, "REFMOE_DEEPGEMM_DIR" in str(result.reason)) == (Verdict.SKIPPED, True)
