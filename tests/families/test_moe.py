"""The family `moe`: what its cases say, that all paths expect the same, and that a fault is reported at its stage."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from support.selection.thinned import thinned

from refmoe.catalog import list_cases, parse_case
from refmoe.cuda.toolchain import ToolchainError, find_toolchain
from refmoe.errors import ArgumentError
from refmoe.families.moe import MOE, weights_of
from refmoe.families.real_data import EXPERT
from refmoe.verify.kernel import Devices, Kernel
from refmoe.verify.plant import load_patches, patched_sources
from refmoe.verify.runner import run_case
from refmoe.verify.verdict import Verdict

REAL = "moe:bf16:m4k384n768e8t4:real:path=fused:bias=distinct:seed7@ptx"
SMALL = "moe:bf16:m5k160n96e6t3:gaussian{}:bias=distinct:poison=0x7F:seed7@ptx"


@pytest.fixture
def compiler() -> None:
    try:
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(str(error))


def planted(name: str, folder: Path) -> Kernel:
    """The layer with that patch's fault."""
    (patch,) = [patch for patch in load_patches() if patch.name == name]
    return Kernel(MOE, Devices(csrc=patched_sources(patch, folder), entry_by_entry=True))


@pytest.mark.parametrize("text", [REAL, SMALL.format("")])
def test_all_paths_expect_the_same_bytes(text: str) -> None:
    plain = parse_case(text.replace(":path=fused", ""))
    made = {}
    for path in ("separate", "fused", "ready"):
        case = plain.having(path=path)
        made[path] = MOE.expect(case, MOE.inputs(case))
    for path in ("fused", "ready"):
        assert [stage.name for stage in made[path].stages] == list(made[path].outputs)
        for stage, found in made[path].outputs.items():
            assert found.tobytes() == made["separate"].outputs[stage].tobytes(), (path, stage)
        assert made[path].doubt is None
    assert [stage.name for stage in made["separate"].stages] == [
        "permute.offsets", "permute.unpermuted_to_permuted", "permute.permuted_to_unpermuted",
        "quantize.codes", "quantize.scales", "expand.codes", "expand.scales", "gemm1.out",
        "activation.codes", "activation.scales", "gemm2.out", "finalize.out",
    ]  # fmt: skip


#: A mutant for each stage that writes wrong bytes, the stage, and a case.
WRONG_BYTES = [
    ("91-routing-rank-after-token", "permute", SMALL.format(":path=fused").replace("m5k", "m22k")),
    ("25-zero-column", "expand", SMALL.format("")),
    ("33-gemm-scales-ignored", "gemm1", SMALL.format(":path=fused")),
    ("105-activation-gate-unclamped", "activation", SMALL.format(":path=fused")),
    # Both GEMMs lose a last step of K that is not whole; only the second has one behind a whole step.
    ("44-gemm-k-tail-dropped", "gemm2", "moe:bf16:m2k32n544e3t1:gaussian:path=fused:poison=0x7F:seed7@ptx"),
    ("122-finalize-bias-after-weight", "finalize", SMALL.format(":path=fused")),
]


@pytest.mark.parametrize(("mutant", "stage", "text"), thinned(WRONG_BYTES, 2))
def test_wrong_bytes_are_reported_at_the_stage_that_writes_them(
    mutant: str, stage: str, text: str, compiler: None, tmp_path: Path
) -> None:
    result = run_case(planted(mutant, tmp_path / "csrc"), parse_case(text))
    assert result.verdict is Verdict.MISMATCH, result
    assert str(result.stage).partition(".")[0] == stage
    assert str(result.first_mismatch).startswith(f"{result.stage}[")


#: A mutant that the executor stops, the launch that it stops at, the stage to blame, and a case.
STOPPED = [
    ("93-routing-offset-many", "RaceError: write-write race", 0, "permute", SMALL.format("").replace("m5k", "m22k")),
    ("08-tail-read-past-end", "MemoryFault: out of bounds", 1, "quantize", SMALL.format("")),
    # Quantize leaves the end of rows wider than a CTA unwritten; expand, which reads it, is not to blame.
    (
        *("10-first-round-only", "MemoryFault: uninitialised", 2, "quantize.codes"),
        "moe:bf16:m1k8224n32e2t1:gaussian:poison=0x7F:seed7@ptx",
    ),
]


@pytest.mark.parametrize(("mutant", "reason", "before", "stage", "text"), STOPPED)
def test_a_launch_that_fails_is_reported_at_the_stage_to_blame(
    mutant: str, reason: str, before: int, stage: str, text: str, compiler: None, tmp_path: Path
) -> None:
    result = run_case(planted(mutant, tmp_path / "csrc"), parse_case(text))
    assert (result.verdict, result.stage, len(result.launches)) == (Verdict.ERROR, stage, before), result
    assert str(result.reason).startswith(reason)
    assert (result.first_mismatch is not None) == ("." in stage)  # bytes to blame, or the launch itself


def test_the_real_experts_differ_and_are_made_of_one_real_block() -> None:
    weights = weights_of("real", 7, "gpt_oss", 8, 384, 768)
    assert weights.gate_up.shape == (8, 1536, 384)
    assert weights.down.shape == (8, 384, 768)
    assert len({codes.tobytes() for codes in weights.gate_up.codes}) == 8
    # Sums that are rounded once differ by powers of two exactly, in whatever order the rows are.
    sums = [math.fsum(np.abs(expert).ravel().tolist()) for expert in weights.down.dequantize()]
    assert all(math.frexp(total / sums[0])[0] == 0.5 for total in sums)
    # The same expert on every rank.
    later = weights_of("real", 7, "gpt_oss", 2, 384, 768, first_expert=5)
    assert later.gate_up.codes.tobytes() == weights.gate_up.codes[5:7].tobytes()
    halves = weights_of("real", 7, "silu", 1, 384, 768).gate_up.codes[0]
    assert np.array_equal(halves[:768], weights.gate_up.codes[0][::2])
    assert EXPERT.stat().st_size < 500_000


@pytest.mark.parametrize(
    ("text", "field", "needed"),
    [
        ("moe:bf16:m4k384n700e8t4:gaussian:seed7@ptx", "shape", "multiple of 32"),
        ("moe:bf16:m4k384n384e8t4:real:seed7@ptx", "shape", "k384n768"),
        ("moe:bf16:m4k384n768e8t4:real:path=both:seed7@ptx", "path", "separate, fused, ready"),
        ("moe:bf16:m4k384n768e8t4:real:input_sf=128x4:seed7@ptx", "input_sf", "path=ready"),
        ("moe:bf16:m4k96n64e4t2:gaussian:first_expert=2:ranks=2:seed7@ptx", "first_expert", "multiple of the 4"),
        ("moe:bf16:m4k96n64e4t2:gaussian:variant=silu:params=distinct:seed7@ptx", "params", "gpt_oss"),
        ("moe:f32:m4k96n64e4t2:gaussian:seed7@ptx", "dtype", "bf16"),
        ("moe:fp16:m4k96n64e4t2:gaussian:path=ready:seed7@ptx", "path", "separate or fused"),
    ],
)
def test_refused_cases(text: str, field: str, needed: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        parse_case(text)
    assert refused.value.argument == f"case {field}"
    assert needed in refused.value.needed


def test_the_group_holds_the_layer_and_its_steps() -> None:
    listed = list_cases("default", ["moe"], arch="sm_120a")
    assert {case.family.name for case in listed} == {"routing", "activation", "finalize", "moe"}
    layers = [case for case in listed if case.family is MOE]
    assert {case.path for case in layers} == {"separate", "fused", "ready"}
    assert {case.shape.t for case in layers} >= {1, 4}
    assert {case.routing for case in layers} >= {"uniform", "empty-experts", "elsewhere", "padded", "same-experts"}
    assert {case.shape.m for case in layers if case.shape.k == case.shape.n == 2880} == {1, 8}
    assert 512 in {case.shape.m for case in layers}
    everything = [case for case in list_cases("full", ["moe"], arch="sm_120a") if case.family is MOE]
    assert {case.shape.m for case in everything if case.shape.k == 2880} >= {1, 2, 4, 7, 8}


def test_a_change_of_any_of_its_kernels_changes_its_hash(tmp_path: Path) -> None:
    for mutant in ("122-finalize-bias-after-weight", "33-gemm-scales-ignored", "25-zero-column"):
        assert planted(mutant, tmp_path / mutant).source_sha256() != Kernel(MOE).source_sha256()
