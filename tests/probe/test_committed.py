"""`refmoe gate` holds `refmoe/evidence.json` against itself, refmoe's models, and the bundles of reports/probe/."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.damages.sound import parity, sealed
from support.probe.executor_driver import ExecutorDriver
from typer.testing import CliRunner

from refmoe.cli import app
from refmoe.evidence import read_evidence
from refmoe.probe.bundle import bundle_of, chosen, probe
from refmoe.probe.committed import bundle_refusals, evidence_refusals
from refmoe.probe.hosts import CudaBox
from refmoe.probe.merge import check_bundle, raised, write_evidence
from refmoe.reports.documents import digest_of
from refmoe.reports.probe import read_bundle

ROOT = Path(__file__).parents[2]
BUNDLES = sorted((ROOT / "reports" / "probe").glob("*.json"))
K8 = "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32"
WGMMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16"

Document = dict[str, Any]
Damage = Callable[[Document], Any]


def test_committed_evidence_passes() -> None:
    assert list(evidence_refusals()) == []


@pytest.mark.skipif(not BUNDLES, reason="no bundle is committed in reports/probe")
@pytest.mark.parametrize("path", BUNDLES, ids=lambda path: path.stem)
def test_a_committed_bundle_gives_what_the_evidence_has_of_it(path: Path) -> None:
    assert list(bundle_refusals(read_bundle(path), read_evidence())) == []


def row(change: Damage) -> Damage:
    return lambda document: change(document["chips"][0]["instructions"][K8])


def twice(document: Document) -> None:
    document["chips"].append(document["chips"][0])


DAMAGE: dict[str, tuple[Damage, str, str]] = {
    "key": (lambda d: d.update(more=1), "document.schema", "no valid evidence: more: Extra inputs"),
    "word": (row(lambda r: r.update(verdict="GOOD")), "document.schema", "Input should be 'HOLDS'"),
    "time": (
        lambda d: d["chips"][0].update(created="2999-01-01T00:00:00+00:00"),
        "document.time",
        "which has not come yet",
    ),
    "chip": (lambda d: d["chips"][0].update(arch="sm_120a"), "document.chip", "which is sm_90a, and says sm_120a"),
    "twice": (twice, "evidence.rows", "is there twice"),
    "instruction": (
        lambda d: d["chips"][0]["instructions"].update(x=d["chips"][0]["instructions"][K8]),
        "evidence.rows",
        "x is no instruction that sm_90a is asked",
    ),
    "model": (row(lambda r: r.update(model="sm120")), "evidence.rows", "was held against the model sm120"),
    "no model": (row(lambda r: r.update(verdict="NO MODEL")), "evidence.rows", "says NO MODEL, and its model is sm90_"),
    "no parameters": (row(lambda r: r.update(parameters=None)), "evidence.rows", "says HOLDS, and holds no parameters"),
    "parameters": (
        row(lambda r: r["parameters"].update(align_bits=24)),
        "evidence.rows",
        "its parameters are not those of the model sm90_mma_k8",
    ),
    "questions": (row(lambda r: r.update(questions=3)), "evidence.rows", "says HOLDS after 3 questions"),
    "two cards": (row(lambda r: r.update(verdict="DIFFERS")), "evidence.rows", "contradict each other on"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_an_edit_of_the_evidence_is_refused_though_it_has_a_new_digest(name: str, tmp_path: Path) -> None:
    change, check, sentence = DAMAGE[name]
    document = read_evidence()
    change(document)
    path = sealed(tmp_path / "evidence.json", document)
    found = list(evidence_refusals(path))
    assert any(each.check == check and sentence in each.text for each in found), found


def test_the_gate_fails_for_evidence_that_was_edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = sealed(tmp_path / "a.json", parity())
    path = tmp_path / "evidence.json"
    path.write_text(json.dumps(read_evidence()).replace('"HOLDS"', '"DIFFERS"'))
    arguments = ["gate", str(report), "--no-baseline", "--quick"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    monkeypatch.setattr(evidence_refusals, "__defaults__", (path,))
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 1
    assert "evidence.json: edited after it was made" in found.stdout
    path.unlink()
    assert CliRunner().invoke(app, arguments).exit_code == 1


# --- with a bundle ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle() -> Document:
    box = CudaBox(ExecutorDriver((9, 0), "NVIDIA H200"))
    records = probe(box, chosen([K8], "sm_90a"))
    left_out = [("parity", "not wanted"), ("benchmarks", "not wanted")]
    made: Document = json.loads(json.dumps(bundle_of(box, records, left_out=left_out, seconds={"probes": 1.0})))
    return made


def test_a_bundle_beside_reports_has_to_give_the_evidence_again(
    bundle: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, path = tmp_path / "reports", tmp_path / "evidence.json"
    sealed(folder / "a.json", parity())
    held = sealed(folder / "probe" / "h200.json", bundle)
    arguments = ["gate", str(folder), "--no-baseline", "--quick"]
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 1
    assert "probe/h200.json: NVIDIA H200 is not among the chips that answered" in found.stdout

    write_evidence(raised({"schema_version": "1", "chips": []}, check_bundle(bundle)), path)
    monkeypatch.setattr(evidence_refusals, "__defaults__", (path,))
    monkeypatch.setattr(read_evidence, "__defaults__", (path,))
    assert CliRunner().invoke(app, arguments).exit_code == 0

    edited = read_evidence(path)
    edited["chips"][0]["gpu"] = "NVIDIA H100"
    edited["chips"][0]["instructions"][K8]["questions"] += 1
    write_evidence(edited, path)
    assert list(evidence_refusals(path, quick=True)) == [], "only the bundle shows it"
    found = CliRunner().invoke(app, [*arguments, "--json"])
    said = json.loads(found.stdout)
    assert said["checks"] == ["evidence.bundle"] * 2
    assert "says gpu 'NVIDIA H200', and the evidence 'NVIDIA H100'" in said["refusals"][0]
    assert f"what it answers of {K8} is not what the evidence has" in said["refusals"][1]

    damaged = copy.deepcopy(bundle)
    damaged["instructions"][0]["holds"] = False
    sealed(held, damaged)
    assert "it says holds False, and its answers give True" in CliRunner().invoke(app, arguments).stdout
    sealed(held, {**bundle, "schema_version": "0"})
    assert "a bundle of schema version 0; this refmoe reads version" in CliRunner().invoke(app, arguments).stdout
    assert digest_of(bundle) == bundle["digest"]
