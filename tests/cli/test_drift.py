"""`refmoe drift` as a user types it: its text, its document, its picture, and what the gate says to the document."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from refmoe import catalog
from refmoe.cli import app
from refmoe.drift import drift_path, run_drift
from refmoe.drift.document import document_text
from refmoe.drift.inputs import draw_prompts, open_or_write
from refmoe.drift.paths import DEFAULT_PATHS
from refmoe.drift.picture import draw_drift
from refmoe.drift.run import MODES
from refmoe.errors import ArgumentError
from refmoe.models import GptOssConfig, write_checkpoint
from refmoe.reports.documents import digest_of
from refmoe.reports.drift import DRIFT
from refmoe.reports.gate import check_reports

COMMITTED = Path(__file__).parent.parent.parent / "reports" / "drift.json"
SMALL = ("--steps", "2", "--batch", "1", "--prompt-length", "2")


def refmoe(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["drift", *arguments])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """A sweep of three paths, one of them the formula, with everything it can write."""
    folder = tmp_path_factory.mktemp("drift")
    result = refmoe(
        *("--paths", "cutlass:fused,cutlass,formula", "--steps", "9", "--prompt-length", "2"),
        *("--sweep", "in-flight=1,2", "--mode", "teacher-forced"),
        *("--report", str(folder / "drift.json"), "--plot", str(folder / "drift.svg")),
    )
    return result, folder


def document_of(made: tuple[Result, Path]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((made[1] / "drift.json").read_text())
    return document


def test_help_has_examples_and_json() -> None:
    found = refmoe("--help")
    assert found.exit_code == 0
    assert "refmoe drift" in found.output
    assert "--json" in found.output


def test_the_text(made: tuple[Result, Path]) -> None:
    assert made[0].exit_code == 0, made[0].output
    text = made[0].output
    assert "base cutlass:fused" in text
    assert "batch 2, prompt 2, 1 in flight" in text
    assert "cutlass:separate, teacher-forced: all " in text
    assert "formula, teacher-forced: does the error grow? " in text
    assert "bits part at step 0, layer 0, finalize.out[0, 0]: base 0x" in text
    assert "EXACT: cutlass:separate = cutlass:fused: " in text
    assert " bytes of 9 steps compared, 0 differ" in text


def test_the_document(made: tuple[Result, Path]) -> None:
    document = document_of(made)
    assert (document["kind"], document["schema_version"], document["passed"]) == ("drift", "1", True)
    assert document["digest"] == digest_of(document)
    assert document["command"].startswith("refmoe drift --paths cutlass:fused,cutlass,formula --steps 9 --mode teacher")
    assert "--sweep in-flight=1,2" in document["command"]
    assert document["dependent"] == []
    assert document["checkpoint"]["sha256"] is not None
    assert [run["point"]["in_flight"] for run in document["runs"]] == [1, 2]
    exact, formula = document["runs"][0]["comparisons"]
    assert (exact["must_equal"], exact["bytes_differing"], exact["first_difference"]) == (True, 0, None)
    # The formula says nothing of its steps, so bits part where its output is.
    assert formula["first_difference"]["stage"] == "finalize"
    assert np.array(formula["curves"]["hidden"]["relative_l2"]).shape == (2, 10, 4)
    assert np.array(formula["curves"]["logits"]["divergence"]).shape == (2, 10)
    assert formula["curves"]["routing"]["rerouted"][0][0] == [None] * 4
    assert formula["growth"]["steps"] == 9
    assert document["runs"][0]["bits"] == document["runs"][1]["bits"]


def test_the_same_figures_come_again(made: tuple[Result, Path]) -> None:
    """The first steps of the document, from its own seed and prompts."""
    document = document_of(made)
    with open_or_write(None, document["seed"]) as checkpoint:
        paths = [drift_path(path["name"]) for path in document["paths"]]
        run = run_drift(
            checkpoint, paths, np.array(document["runs"][0]["prompts"]), steps=2, modes=MODES[:1], in_flight=1
        )
    _same_beginning(document, run)


def test_the_committed_document_is_what_the_sources_compute() -> None:
    """Its first steps, by its own paths, prompts and seed; integers only, since a sum may round otherwise elsewhere."""
    document = json.loads(COMMITTED.read_text())
    assert DRIFT.check(COMMITTED, document, str) == []
    assert document["steps"] == 64
    assert [path["name"] for path in document["paths"]] == list(DEFAULT_PATHS)
    with open_or_write(None, document["seed"]) as checkpoint:
        names = [path["name"] for path in document["paths"]]
        paths = [drift_path(name) for name in names]
        prompts = np.array(document["runs"][0]["prompts"])
        assert prompts.tolist() == draw_prompts(256, len(prompts), prompts.shape[1], document["seed"]).tolist()
        run = run_drift(checkpoint, paths, prompts, base=names.index(document["base"]), steps=3)
    _same_beginning(document, run)


def _same_beginning(document: dict[str, Any], run: Any) -> None:
    steps = run.tokens.shape[1]
    assert [row[:steps] for row in document["runs"][0]["tokens"]] == run.tokens.tolist()
    for theirs, ours in zip(document["runs"][0]["comparisons"], run.comparisons, strict=True):
        assert (theirs["path"], theirs["mode"]) == (ours.path, ours.mode)
        for place in ("moe", "hidden"):
            for name in ("max_ulp", "differing"):
                beginning = np.array(theirs["curves"][place][name])[:, : steps + 1]
                assert beginning.tolist() == ours.layers[place][name].tolist()
        first = theirs["first_difference"]
        assert (first and first["text"]) == (ours.first and ours.first.text)


def test_the_picture(made: tuple[Result, Path], tmp_path: Path) -> None:
    svg = (made[1] / "drift.svg").read_text()
    assert svg.startswith("<?xml")
    document = document_of(made)
    draw_drift(document, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == svg
    document["runs"] = document["runs"][:1]
    assert draw_drift(document, tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ArgumentError, match=r"ends in \.png or \.svg"):
        draw_drift(document, tmp_path / "a.pdf")


def test_nothing_but_zeros_can_be_drawn(tmp_path: Path) -> None:
    plot = str(tmp_path / "zeros.png")
    found = refmoe("--paths", "cutlass,cutlass:fused", *SMALL, "--mode", "free-running", "--plot", plot, "--json")
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    assert document["runs"][0]["comparisons"][0]["mode"] == "free-running"
    assert (tmp_path / "zeros.png").stat().st_size > 10_000


def test_a_picture_that_cannot_be_written_costs_no_report(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    report, plot = tmp_path / "drift.json", tmp_path / "file" / "drift.png"
    found = refmoe(
        "--paths", "cutlass,marlin", *SMALL, "--mode", "teacher-forced", "--report", str(report), "--plot", str(plot)
    )
    assert found.exit_code == 2
    assert f"--plot: cannot write {plot}" in found.stderr
    assert DRIFT.check(report, json.loads(report.read_text()), str) == []


def test_the_gate(made: tuple[Result, Path], tmp_path: Path) -> None:
    path, document = tmp_path / "drift.json", document_of(made)

    def refusals(changed: dict[str, Any], *, signed: bool = True) -> list[str]:
        if signed:
            changed["digest"] = digest_of(changed)
        path.write_text(document_text(changed))
        return [
            refusal.removeprefix(f"{path}: ")
            for refusal in check_reports([path], None, catalog).refusals
            if not refusal.startswith("no report in")
        ]

    assert refusals(document) == []
    assert refusals({**document, "steps": 63}, signed=False) == ["edited after it was made; run `refmoe drift` again"]
    assert refusals({**document, "schema_version": "2"}) == [
        "a document of kind drift of schema version 2; this refmoe reads version 1"
    ]
    assert "an empty document" in refusals({**document, "runs": []})[0]
    assert "has no runs" in refusals({key: value for key, value in document.items() if key != "runs"})[0]
    assert refusals({**document, "passed": False}) == [
        "says itself that it did not pass, and all that must be equal is"
    ]
    assert refusals({**document, "dependent": ["marlin: sequence 0 ..."]})[0] == "marlin: sequence 0 ..."
    exact = document["runs"][0]["comparisons"][0]
    exact["bytes_differing"] = 3
    assert refusals(document)[0].startswith("cutlass:separate and cutlass:fused, teacher-forced: 3 bytes differ")
    exact["bytes_differing"] = exact["bytes_compared"] = 0
    assert refusals(document)[0].endswith("must be equal, but nothing was compared")


def test_an_unequal_pair_is_exit_status_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a fault in the fused path's expand: the last code of every row is flipped."""
    import dataclasses

    from refmoe.reference.moe import paths

    sound = paths.expand

    def broken(x: np.ndarray, *arguments: Any, input_sf: Any = None, **options: Any) -> Any:
        rows = sound(x, *arguments, input_sf=input_sf, **options)
        if input_sf is not None:
            return rows
        codes = rows.codes.copy()
        codes[:, -1] ^= 0x80
        return dataclasses.replace(rows, codes=codes)

    monkeypatch.setattr(paths, "expand", broken)
    report = tmp_path / "drift.json"
    found = refmoe("--paths", "cutlass,cutlass:fused", *SMALL, "--report", str(report))
    assert found.exit_code == 1
    assert "FAILED cutlass:fused and cutlass:separate, teacher-forced: " in found.output
    assert "bytes differ and none may: step 0, layer 0, expand.codes[0, 63]: " in found.output
    assert json.loads(report.read_text())["passed"] is False


def test_a_checkpoint_and_a_prompt_of_one_s_own(tmp_path: Path) -> None:
    config = GptOssConfig(
        num_hidden_layers=1,
        num_local_experts=2,
        num_experts_per_tok=1,
        vocab_size=16,
        hidden_size=32,
        intermediate_size=32,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
    )
    folder = write_checkpoint(tmp_path / "own", config, 1, "original")
    options = ("--checkpoint", str(folder), "--prompt", "3,1;4,1", "--steps", "1", "--policies", "floor,flashinfer")
    found = refmoe(*options, "--json")
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    assert document["runs"][0]["prompts"] == [[3, 1], [4, 1]]
    assert document["checkpoint"]["name"] == "own"
    assert [path["name"] for path in document["paths"]] == [
        "cutlass:separate",
        "cutlass:separate:floor",
        "cutlass:separate:rceil/flashinfer",
    ]
    assert document["runs"][0]["comparisons"][0]["growth"]["steps"] == 1


@pytest.mark.slow
def test_what_an_output_in_q8_1_costs_is_what_its_page_says() -> None:
    page = " ".join((COMMITTED.parents[1] / "docs" / "families" / "integer_moe.md").read_text().split())
    said = re.search(r"`refmoe drift ([^`]*)`.* error of (0\.\d{4}), and (0\.\d{4}) with an output in BF16", page)
    assert said is not None
    found = refmoe(*said[1].split(), "--json")
    assert found.exit_code == 0, found.output
    medians = {
        one["path"]: f"{np.median(np.array(one['curves']['hidden']['relative_l2'])[..., -1]):.4f}"
        for one in json.loads(found.stdout)["runs"][0]["comparisons"]
    }
    assert medians == {"llama_cpp:q8_1": said[2], "llama_cpp": said[3]}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--mode", "forced"), "--mode: found 'forced'; needed one of teacher-forced, free-running, both"),
        (("--plot", "a.pdf"), "needed a name that ends in .png or .svg"),
        (("--paths", "cutlas,marlin"), "paths: found 'cutlas'"),
        (("--sweep", "depth=1"), "sweep: found 'depth=1'"),
        (("--prompt", "1,2", "--batch", "2"), "--prompt: found with a batch or a prompt length"),
        (("--prompt", "1,256", "--steps", "1"), "tokens: found token 256; needed 0 to 255"),
        (("--sweep", "k=9", "--steps", "1"), "k: found 9; needed 1 to 8"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], sentence: str) -> None:
    found = refmoe(*arguments)
    assert found.exit_code == 2
    assert sentence in found.output


def test_a_folder_that_is_no_checkpoint(tmp_path: Path) -> None:
    found = refmoe("--checkpoint", str(tmp_path))
    assert found.exit_code == 2
    assert "config.json" in found.output
