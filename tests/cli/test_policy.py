"""`refmoe policy compare` and `refmoe policy detect` as a user types them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.policy_data import gaussian, real
from typer.testing import CliRunner, Result

from refmoe.cli import app
from refmoe.policies import compare_policies
from refmoe.policies.inputs import read_input
from refmoe.reference import quantize, quantize_mxfp8, swizzle_scales


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refmoe(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["policy", *arguments])


def save_fp8(path: str, tensors: dict[str, tuple[str, np.ndarray]]) -> None:
    """A safetensors file by hand: the library's NumPy side knows no FP8."""
    header, data = {}, b""
    for name, (dtype, array) in tensors.items():
        end = len(data) + array.size
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), end]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.mark.parametrize("command", ["compare", "detect"])
def test_help_has_examples_and_json(command: str) -> None:
    found = refmoe(command, "--help")
    assert found.exit_code == 0
    assert f"refmoe policy {command}" in found.output
    assert "--json" in found.output


def test_compare_prints_what_python_returns() -> None:
    found = refmoe("compare", "real", "--policies", "rceil,floor,flashinfer", "--picture", "p.svg", "--json")
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    assert document["input"] == "real"
    assert document["shape"] == [256, 384]
    assert document["blocks"]["ordinary"] == 3072
    figures = compare_policies(real(), policies=["rceil", "floor", "flashinfer"]).figures
    assert [entry["relative_l2"] for entry in document["policies"]] == [each.relative_l2 for each in figures]
    assert document["policies"][1]["scale_share"] == figures[1].from_base.scale_share == 567 / 3072
    assert document["pairs"][0]["policies"] == ["rceil/exact", "floor/exact"]
    assert Path("p.svg").read_text().startswith("<?xml")

    text = refmoe("compare", "real", "--policies", "rceil,floor,flashinfer").output
    assert "real: [256, 384] to mxfp8; blocks: 3,072 ordinary" in text
    assert "the same bytes here: rceil/exact, rceil/flashinfer" in text
    assert "18.46" in text


def test_a_fill_by_name_is_the_one_that_parity_draws() -> None:
    document = json.loads(refmoe("compare", "tiny:fp16:m4k64:seed3", "--json").stdout)
    assert document["input"] == "tiny:fp16:m4k64:seed3"
    assert document["shape"] == [4, 64]
    assert json.loads(refmoe("compare", "specials", "--json").stdout)["input"] == "specials:bf16:m256k2880:seed7"
    assert read_input("exhaustive-max").x.size // 32 >= 65536


def test_zeros_give_valid_json() -> None:
    np.save("z.npy", np.zeros((2, 32), np.float16))
    document = json.loads(refmoe("compare", "z.npy", "--json").stdout)
    assert document["policies"][0]["relative_l2"] is None


def test_detect_reads_files_of_every_kind() -> None:
    x = gaussian(16, 416)
    made = quantize_mxfp8(x, mode="even")
    np.save("x.npy", x)
    save_file({"x": x, "other": x[:1].copy()}, "x.safetensors")
    np.save("c.npy", made.codes)
    made.codes.tofile("c.bin")
    save_fp8("q.safetensors", {"c": ("F8_E4M3", made.codes), "s": ("F8_E8M0", made.scales)})
    np.save("s.npy", made.scales)
    swizzle_scales(made.scales).tofile("s128.bin")
    for source, codes, scales, layout in (
        ("x.npy", "c.npy", "s.npy", "linear"),
        ("x.safetensors:x", "c.bin", "s128.bin", "128x4"),
        ("x.npy", "q.safetensors:c", "q.safetensors:s", "linear"),
    ):
        found = refmoe("detect", "--input", source, "--codes", codes, "--scales", scales, "--layout", layout, "--json")
        assert found.exit_code == 0, found.output
        document = json.loads(found.stdout)
        assert (document["verdict"], document["format"]) == ("exact", "mxfp8")
        assert document["names"][:2] == ["even/exact", "torchao_even"]
        assert document["not_told_apart"][0]["policies"] == ["even/exact", "even/flashinfer"]
        assert document["not_told_apart"][0]["block"] == "2^-120 and 31 times 0"
    text = refmoe("detect", "--input", "x.npy", "--codes", "c.npy", "--scales", "s.npy").output
    assert "EXACT: every byte is what this gives\n  even/exact (= torchao_even)\n" in text


def test_detect_reads_gguf_blocks() -> None:
    gguf = pytest.importorskip("gguf")
    np.save("x.npy", gaussian(4, 64, np.float32))
    blocks = gguf.quants.quantize(gaussian(4, 64, np.float32), gguf.GGMLQuantizationType.MXFP4)
    blocks.tofile("blocks.bin")
    found = refmoe("detect", "--input", "x.npy", "--gguf", "blocks.bin")
    assert found.exit_code == 0
    assert "EXACT: every byte is what this gives\n  gguf\n" in found.output


def test_detect_names_the_nearest_its_first_difference_and_the_fault() -> None:
    x = gaussian(16, 416)
    made = quantize(x, "mxfp4", policy="torchao_ceil")
    np.save("x.npy", x)
    np.save("c.npy", made.codes >> 4 | made.codes << 4)
    np.save("s.npy", made.scales)
    found = refmoe("detect", "--input", "x.npy", "--codes", "c.npy", "--scales", "s.npy", "--format", "mxfp4")
    assert found.exit_code == 1
    assert (
        "MISMATCH: no policy gives these bytes. The nearest\n  ceil/exact (= torchao_ceil): 208 of 208" in found.output
    )
    assert "    codes[0, 0]  block (0, 0) lane 0: found 0x" in found.output
    assert "the two nibbles of each byte are swapped (all 208 blocks), with ceil/exact (= torchao_ceil)" in found.output


def usage_error(*arguments: str) -> str:
    found = refmoe(*arguments)
    assert found.exit_code == 2, found.output
    assert found.stderr.count("\n") == 1
    return found.stderr


def test_bad_input_is_one_sentence() -> None:
    save_file({"a": gaussian(), "b": np.zeros((2, 32), np.int32)}, "x.safetensors")
    Path("cut.safetensors").write_bytes(Path("x.safetensors").read_bytes()[:-9])
    Path("x.npy").write_bytes(b"\x93NUMPY and then nothing")
    np.save("objects.npy", np.array([{}], object), allow_pickle=True)
    Path("text.npy").write_text("1 2 3")
    np.save("wide.npy", np.zeros((2, 32)))
    Path("x.bin").write_bytes(b"")
    for source, words in {
        "absent.npy": "no file or fill 'absent.npy'",
        "x.safetensors": "found 2 tensors in x.safetensors; needed FILE:TENSOR with one of: a, b",
        "x.safetensors:c": "no tensor 'c' in x.safetensors",
        "x.safetensors:b": "x: found int32 [2, 32]; needed",
        "cut.safetensors": "cut.safetensors, which cannot be read",
        "x.npy": "x.npy, which cannot be read",
        "objects.npy": "objects.npy, which cannot be read",
        "text.npy": "text.npy, which cannot be read: no .npy file, or one of Python objects; needed",
        "wide.npy": "x: found float64 [2, 32]",
        "wide.npy:a": "a .npy file holds one array",
        "x.bin": "the file x.bin",
        "gaussian:m4k33": "k33 in 'gaussian:m4k33'; needed a k that is a multiple of 32",
        "gaussian:m0k32": "1 to 2147483648 elements",
        "gaussian:f32": "found 'f32' in 'gaussian:f32'; needed FILL[:bf16|fp16][:mMkK][:seedN]",
    }.items():
        assert words in usage_error("compare", source)
    assert "ends in .png or .svg" in usage_error("compare", "real", "--picture", "p.pdf")
    Path("folder.png").mkdir()
    assert "cannot write folder.png" in usage_error("compare", "real", "--picture", "folder.png")
    assert "gguf is of mxfp4 alone" in usage_error("compare", "real", "--policies", "rceil,gguf")
    assert "no file 'c.npy'" in usage_error("detect", "--input", "real", "--codes", "c.npy", "--scales", "s.npy")
    assert "codes: found float64 in wide.npy; needed uint8" in usage_error(
        "detect", "--input", "real", "--codes", "wide.npy", "--scales", "wide.npy"
    )
    assert "needed --codes and --scales, or --gguf" in usage_error("detect", "--input", "real", "--codes", "c.npy")
    both: tuple[Any, ...] = ("detect", "--input", "real", "--gguf", "x.bin", "--codes", "x.bin", "--scales", "x.bin")
    assert "needed --codes and --scales, or --gguf" in usage_error(*both)
    assert "its blocks say both" in usage_error("detect", "--input", "real", "--gguf", "x.bin", "--format", "mxfp8")
    assert "found 0 bytes; needed 49152 for 98304 elements of mxfp4" in usage_error(
        "detect", "--input", "real", "--gguf", "x.bin"
    )


def test_bytes_whose_size_is_of_no_format_are_refused() -> None:
    np.save("c.npy", np.zeros(5, np.uint8))
    text = usage_error("detect", "--input", "real", "--codes", "c.npy", "--scales", "c.npy")
    assert "codes: found 5 bytes; needed 98304 (mxfp8) or 49152 (mxfp4) for 98304 elements" in text
