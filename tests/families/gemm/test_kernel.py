"""The harness with the real kernel on the executor: a few cases, a few mutants, and what becomes of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from refmoe.catalog import parse_case, sound_kernel
from refmoe.cli import app
from refmoe.families.gemm import SM12X_GEMM
from refmoe.reports.parity import read_report
from refmoe.verify import plant
from refmoe.verify.kernel import Devices, Kernel
from refmoe.verify.plant import MUTANTS, load_patches, plant_faults
from refmoe.verify.runner import run_case
from refmoe.verify.tolerances import TOLERANCES
from refmoe.verify.verdict import Verdict

SMALL = "sm12x_gemm:f32:m5k160n40e3:wide-range:tile=128x8x128:seed7@ptx"
BIASED = "sm12x_gemm:bf16:m5k160n40e3:gaussian:tile=128x8x128:alpha=distinct:bias=distinct:seed7@ptx"


@pytest.mark.parametrize(
    "text",
    [
        SMALL,
        BIASED,
        "sm12x_gemm:f32:m5k160n40e3:integer:tile=128x8x128:seed7@ptx",
        "sm12x_gemm:f32:m6k96n24e2:specials:tile=128x8x128:seed7@ptx",
        "sm12x_gemm:f32:m0k96n24e2:gaussian:tile=128x8x128:seed7@ptx",
        "sm12x_gemm:f32:m3k96n24e4:gaussian:routing=elsewhere:first_expert=4:ranks=2:seed7@ptx",
    ],
)
def test_the_kernel_equals_the_model(text: str, devices: Devices) -> None:
    result = run_case(Kernel(SM12X_GEMM, devices), parse_case(text))
    assert (result.verdict, result.reason, result.first_mismatch) == (Verdict.PASS, None, None)
    assert result.evidence in ("bit-exact", "none")
    assert result.assumption is not None
    assert (result.assumption.model, result.assumption.evidence) == ("sm120", "extrapolated")


@pytest.mark.parametrize(
    ("options", "why", "instead"),
    [
        ("tile=128x128x64", "no whole number of atoms", "needed 128x128x128"),
        ("tile=128x128x128:stages=6", "153,600 bytes", "2 to 3 stages"),
        ("tile=128x8x512:stages=1", "nothing can be loaded while the tile is computed", "needed 2 stages"),
        ("tile=256x8x512", "a stage takes 75,776 bytes", "256x8x256"),
        ("tile=256x8x512:cluster=2x1x1", "no multicast between blocks", "256x8x256 in a cluster of 1x1x1"),
    ],
)
@pytest.mark.parametrize("arch", ["", ".sm_121a"])
def test_what_cannot_be_had_is_unsupported_in_one_sentence(
    options: str, why: str, instead: str, arch: str, devices: Devices
) -> None:
    case = parse_case(f"sm12x_gemm:f32:m2k96n24e2:wide-range:{options}:seed7@ptx{arch}")
    result = run_case(Kernel(SM12X_GEMM, devices), case)
    assert result.verdict is Verdict.UNSUPPORTED
    assert not result.verdict.fails
    assert why in str(result.reason)
    assert instead in str(result.reason)
    assert "\n" not in str(result.reason)
    assert result.launches == ()


def test_mutants_are_caught_by_bits_bound_and_races_and_weighed_by_published_tolerances(
    devices: Devices, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ("gemm-zero-column", "gemm-bias-dropped", "gemm-epilogue-race")
    folder = tmp_path / "mutants"
    folder.mkdir()
    for name in names:
        (path,) = MUTANTS.glob(f"gemm/*-{name}.patch")
        (folder / path.name).write_text(path.read_text())
    monkeypatch.setattr(plant, "_listed", lambda: (parse_case(SMALL), parse_case(BIASED)))
    monkeypatch.setattr("refmoe.cli.session.load_patches", lambda: load_patches(folder))
    report = tmp_path / "report.json"
    shown = CliRunner().invoke(
        app, ["parity", "--case", SMALL, "--mutants", "--report", str(report), "--markdown", str(tmp_path / "r.md")]
    )
    assert shown.exit_code == 0, shown.output
    found = {mutant.name.split("-", 1)[1]: mutant for mutant in read_report(report).mutants}
    assert all(mutant.caught for mutant in found.values())
    zero, bias, race = (found[name] for name in names)
    assert (zero.verdict, bias.verdict, race.verdict) == (Verdict.OUT_OF_BOUND, Verdict.MISMATCH, Verdict.ERROR)
    assert "race" in str(race.finding)
    # The race leaves every result as it is, so no test of results can see it, whatever its tolerance.
    assert race.accepted_by == [rule.name for rule in TOLERANCES]
    # One column of 40 and a missing bias are visible, but not to a tolerance of 1.5 standard deviations for 97 %.
    assert "flashinfer-sm12x" in (zero.accepted_by or [])
    assert "te-nvfp4" not in (zero.accepted_by or [])
    assert "flashinfer-sm12x" in (bias.accepted_by or [])

    assert "what tests with published tolerances would have let through" in shown.output
    assert "(1) FlashInfer, MoE on SM12x: |d| < max(0.05, 1.5 std)" in shown.output
    markdown = (tmp_path / "r.md").read_text()
    assert "| planted fault of the GEMM | flashinfer-sm12x |" in markdown
    assert (
        f"| **let through** | {sum('flashinfer-sm12x' in (m.accepted_by or []) for m in found.values())} |" in markdown
    )
    document = json.loads(report.read_text())
    assert [rule["name"] for rule in document["tolerances"]] == [rule.name for rule in TOLERANCES]
    assert document["cases"][0]["model"] == "sm120"
    assert document["cases"][0]["model_evidence"] == "extrapolated"
    assert "extrapolated" in document["evidence"]["sm120"]


def test_another_order_of_k_is_a_mismatch_inside_the_bound(devices: Devices, tmp_path: Path) -> None:
    """It is another rounding, which no error bound can exclude: only bits find it."""
    (path,) = MUTANTS.glob("gemm/*-gemm-k-order.patch")
    (tmp_path / path.name).write_text(path.read_text())
    (found,) = plant_faults(load_patches(tmp_path), sound_kernel)
    assert found.caught
    assert found.verdict is Verdict.MISMATCH
    # No published tolerance finds it either.
    assert found.accepted_by == tuple(rule.name for rule in TOLERANCES)
