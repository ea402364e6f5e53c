"""`refmoe policy convert` as a user types it, and its document in the gate and on the page."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner, Result

from refmoe import catalog
from refmoe.cli import app
from refmoe.policies.convert import MODES, compare_conversion
from refmoe.reference.block_fp8 import BlockFP8Tensor, quantize_block_fp8
from refmoe.reports.documents import digest_of
from refmoe.reports.gate import check_reports
from refmoe.reports.html import page_text, read_source

DOWN = "model.layers.3.mlp.experts.0.down_proj.weight"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refmoe(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["policy", *arguments])


def weights() -> np.ndarray:
    return np.random.default_rng(4).standard_normal((160, 256)).astype(ml_dtypes.bfloat16)


def save_block_fp8(path: str, tensor: BlockFP8Tensor, name: str = DOWN, *, scales: bool = True) -> None:
    """As DeepSeek's checkpoints have it, by hand: the library's NumPy side knows no FP8."""
    parts = [(name, "F8_E4M3", tensor.codes)]
    parts += [(f"{name}_scale_inv", "F32", tensor.scales)] if scales else []
    header: dict[str, Any] = {}
    data = b""
    for each, dtype, array in parts:
        raw = np.ascontiguousarray(array).tobytes()
        header[each] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_help_has_examples_and_json() -> None:
    found = refmoe("convert", "--help")
    assert found.exit_code == 0
    assert "refmoe policy convert" in found.output
    assert "--json" in found.output


@pytest.mark.parametrize("word", ["convert", "--convert"])
def test_a_users_weight_has_the_figures_that_python_returns(word: str) -> None:
    save_file({DOWN: weights()}, "model.safetensors")
    found = refmoe(word, "--input", f"model.safetensors:{DOWN}", "--json", "--picture", "p.svg")
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    assert document["command"] == f"refmoe policy convert --input model.safetensors:{DOWN}"
    assert [(each["layer"], each["block"], each["scales"]) for each in document["tensors"]] == [
        ("ffn down", "128x128", "fp32"),
        ("ffn down", "128x128", "ue8m0"),
    ]
    wanted = compare_conversion(weights(), block="128x128")
    first = document["tensors"][0]
    assert first["block_error"] == float(f"{wanted.block_error:.6g}")
    assert [each["mode"] for each in first["modes"]] == list(MODES)
    assert first["modes"][0]["values_changed"] == wanted.mode("rceil").values_changed
    assert Path("p.svg").stat().st_size > 1000


def test_a_weight_of_a_deepseek_checkpoint_is_read_with_its_scales() -> None:
    tensor = quantize_block_fp8(weights(), block="128x128")
    save_block_fp8("fp8.safetensors", tensor)
    for text in (f"fp8.safetensors:{DOWN}", "fp8.safetensors"):
        found = refmoe("convert", "--input", text, "--json")
        assert found.exit_code == 0, found.output
        (entry,) = json.loads(found.stdout)["tensors"]
        assert (entry["scales"], entry["block"], entry["block_error"]) == ("stored", "128x128", None)
        wanted = compare_conversion(None, tensor).mode("rceil").conversion.relative_l2
        assert entry["modes"][0]["conversion_error"] == float(f"{wanted:.6g}")
        assert entry["modes"][0]["converted_error"] is None


def test_text_says_what_is_exact() -> None:
    save_file({"hidden": weights()}, "h.safetensors")
    found = refmoe("convert", "--input", "h.safetensors:hidden", "--modes", "rceil,floor")
    assert found.exit_code == 0
    assert "h.safetensors:hidden (activations): [160, 256], 1x128, fp32 scales" in found.output
    assert "scales that are powers of two, rceil: exact" in found.output
    assert "floor: the largest saturates in 952 of 8,127 pairs" in found.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--input", "absent.safetensors"), "no file or fill 'absent.safetensors'"),
        (("--block", "1x128"), "--block: found 1x128 without --input"),
        (("--input", "b.safetensors:codes"), "needed codes_scale_inv in the same file"),
        (("--input", "a.npy", "--modes", "best"), "modes: found str 'best'"),
        (("--input", "a.npy", "--block", "1x32"), "block: found str '1x32'; needed 1x128 or 128x128"),
        (("--input", "a.npy", "--picture", "p.gif"), "--picture: found p.gif"),
        (("--input", "narrow.npy"), "K: found 40; needed a multiple of 32"),
        (("--input", "flat.npy"), "needed bfloat16, float16 or float32"),
        (("--input", "fp8.safetensors", "--picture", "p.png"), "--picture: found nothing to draw"),
        (("--input", "fp8.safetensors", "--block", "1x128"), "128x128: the tensor is in block FP8 already"),
    ],
)
def test_what_is_wrong_ends_with_a_sentence(arguments: tuple[str, ...], message: str) -> None:
    tensor = quantize_block_fp8(weights(), block="128x128")
    save_block_fp8("b.safetensors", tensor, "codes", scales=False)
    save_block_fp8("fp8.safetensors", tensor)
    np.save("a.npy", weights().astype(np.float32))
    np.save("narrow.npy", np.ones((2, 40), np.float32))
    np.save("flat.npy", np.ones(64, np.float32))
    found = refmoe("convert", *arguments)
    assert found.exit_code == 2
    assert message in found.output
    assert len(found.output.strip().splitlines()) == 1


def report(path: Path) -> dict[str, Any]:
    save_file({DOWN: weights()}, "model.safetensors")
    assert refmoe("convert", "--input", "model.safetensors", "--report", str(path)).exit_code == 0
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def sealed(document: dict[str, Any]) -> str:
    return json.dumps({**document, "digest": digest_of(document)})


def test_the_gate_takes_the_document_and_refuses_one_whose_statements_do_not_hold(tmp_path: Path) -> None:
    path = tmp_path / "convert.json"
    document = report(path)
    assert list(check_reports([path], None, catalog).refusals) == []

    rceil = document["tensors"][1]["modes"][0]
    assert (document["tensors"][1]["scales"], rceil["mode"], rceil["values_changed"]) == ("ue8m0", "rceil", 0)
    rceil["values_changed"] = 3
    path.write_text(json.dumps(document))
    assert "edited" in check_reports([path], None, catalog).refusals[0]
    path.write_text(sealed(document))
    sentence = check_reports([path], None, catalog).refusals[0]
    assert (
        f"model.safetensors:{DOWN}, ue8m0 scales: every scale is a power of two, and rceil changes values" in sentence
    )
    assert "FAIL" in page_text([read_source(path)])

    rceil["values_changed"] = 0
    document["tensors"][0]["modes"][1]["conversion_error"] = 0.001
    path.write_text(sealed(document))
    sentence = check_reports([path], None, catalog).refusals[0]
    assert "floor loses less than the least error of any scale" in sentence

    path.write_text(sealed({**document, "tensors": []}))
    assert "empty" in check_reports([path], None, catalog).refusals[0]


def test_the_page_shows_every_tensor_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "convert.json"
    report(path)
    text = page_text([read_source(path)])
    assert "block FP8 to MXFP8, 2 tensors; by rceil the error grows 1." in text
    assert text.count("128x128, ue8m0") == text.count("128x128, fp32") == len(MODES)
    assert "Where scales are powers of two already" in text


def test_the_committed_report_passes_and_the_page_shows_it() -> None:
    path = Path(__file__).resolve().parents[2] / "reports" / "convert.json"
    assert list(check_reports([path], None, catalog).refusals) == []
    assert "all-MiniLM-L6-v2 layer2.attention.query.weight" in page_text([read_source(path)])
