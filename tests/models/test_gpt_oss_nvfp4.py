"""gpt-oss in NVFP4 as ModelOpt stores it: names, orders and factors, what is refused, and decoding."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import TINY, open_as, overwrite, read_header, refusal, rename_tensor

from refmoe.models import CheckpointError, Decoder, GptOssCheckpoint, write_checkpoint
from refmoe.models.gpt_oss import GptOssNVFP4Folder
from refmoe.reference import moe_layer, unpack_fp4
from refmoe.reference.moe.layer import MoELayer
from refmoe.reference.scalar.nvfp4 import Block, dequantize_block
from refmoe.reference.tensor import NVFP4Experts

UP, DOWN = (f"model.layers.2.mlp.experts.{name}" for name in ("gate_up_proj", "down_proj"))
opened = partial(open_as, GptOssNVFP4Folder)
H, INNER, E = TINY.hidden_size, TINY.intermediate_size, TINY.num_local_experts


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("nvfp4") / "gpt-oss", TINY, 3, "nvfp4")


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    return Path(shutil.copytree(written, tmp_path / "copy"))


def test_names_types_and_shapes_are_written_out(written: Path) -> None:
    """Since reader and writer share one table. K comes before N; scalars have no dimension."""
    header, _ = read_header(written / "model.safetensors")
    found = {name: (spec["dtype"], spec["shape"]) for name, spec in header.items() if name.startswith((UP, DOWN))}
    assert found == {
        UP: ("U8", [E, H // 2, 2 * INNER]),
        f"{UP}_weight_scale": ("F8_E4M3", [E, H // 16, 2 * INNER]),
        f"{UP}_weight_scale_2": ("F32", []),
        f"{UP}_input_scale": ("F32", []),
        f"{UP}_bias": ("BF16", [E, 2 * INNER]),
        DOWN: ("U8", [E, INNER // 2, H]),
        f"{DOWN}_weight_scale": ("F8_E4M3", [E, INNER // 16, H]),
        f"{DOWN}_weight_scale_2": ("F32", []),
        f"{DOWN}_input_scale": ("F32", []),
        f"{DOWN}_bias": ("BF16", [E, H]),
    }
    assert not any(name.endswith(("_blocks", "_scales")) for name in header)
    said = json.loads((written / "hf_quant_config.json").read_text())["quantization"]
    assert (said["quant_algo"], said["group_size"]) == ("NVFP4", 16)
    assert "model.layers.0.self_attn*" in said["exclude_modules"]


def test_an_expert_is_its_bytes_transposed(written: Path) -> None:
    """Codes, scales and factors by hand from the file, and one row's values by the specification."""
    header, data = read_header(written / "model.safetensors")

    def raw(name: str, dtype: Any) -> np.ndarray:
        begin, end = header[name]["data_offsets"]
        return np.frombuffer(data[begin:end], dtype).reshape(header[name]["shape"])

    layer = opened(written).moe_layer(2)
    assert isinstance(layer.gate_up, NVFP4Experts)
    assert layer.gate_up.shape == (E, 2 * INNER, H)
    codes, scales = raw(UP, np.uint8), raw(f"{UP}_weight_scale", np.uint8)
    for expert, row in ((0, 0), (5, 3), (E - 1, 2 * INNER - 1)):
        assert layer.gate_up.codes[expert, row].tolist() == codes[expert, :, row].tolist()
        assert layer.gate_up.scales[expert, row].tolist() == scales[expert, :, row].tolist()
    factor, tokens = (raw(f"{UP}_{name}", np.float32)[()] for name in ("weight_scale_2", "input_scale"))
    assert layer.gate_up.global_decode_scales.tolist() == [factor] * E
    assert layer.gate_up.input_scales.tolist() == [tokens] * E
    elements = unpack_fp4(layer.gate_up.codes[5])[3, 16:32]
    wanted = dequantize_block(Block(int(scales[5, 1, 3]), tuple(elements.tolist())), int(factor.view(np.uint32)))
    assert layer.gate_up.part(5).dequantize()[3, 16:32].view(np.uint32).tolist() == wanted
    # Scales have mantissas, so that an exponent alone would not do.
    assert len(np.unique(scales & 7)) > 1


def test_all_but_the_experts_is_that_of_the_other_formats(written: Path, tmp_path: Path) -> None:
    other = open_as(GptOssCheckpoint, write_checkpoint(tmp_path / "mxfp4", TINY, 3))
    one = opened(written)
    assert (one.config, one.weights, other.weights) == (other.config, "nvfp4", "mxfp4")
    assert one.embedding.tobytes() == other.embedding.tobytes()  # type: ignore[union-attr]
    mine, theirs = one.moe_layer(1), other.moe_layer(1)
    for name in ("gate_up_bias", "down_bias", "router_weight", "router_bias"):
        assert getattr(mine, name).tobytes() == getattr(theirs, name).tobytes()


def test_it_is_decoded_in_nvfp4_and_by_the_formula(written: Path) -> None:
    """Near each other: tokens of E2M1 have about two significant bits."""
    checkpoint, tokens = opened(written), np.array([[3, 1, 4, 1, 5]])

    def path(layer: int, x: np.ndarray, weights: MoELayer) -> np.ndarray:
        return moe_layer(x, weights, path="nvfp4")

    logits = []
    for moe in (None, path):
        decoder = Decoder(checkpoint, moe=moe)
        logits.append(decoder.prefill(tokens, decoder.new_state(1)).logits)
    distance = np.linalg.norm(logits[1] - logits[0]) / np.linalg.norm(logits[0])
    assert 0 < distance < 0.7


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda said: said["exclude_modules"].remove("lm_head"), "lm_head, which no wildcard excludes"),
        (
            lambda said: said["exclude_modules"].remove("model.layers.1.self_attn*"),
            "model.layers.1.self_attn.q_proj, which no wildcard excludes",
        ),
        (
            lambda said: said["exclude_modules"].append("model.layers.3.mlp*"),
            "model.layers.3.mlp.experts, which a wildcard excludes",
        ),
        (lambda said: said.update(quant_algo="FP8"), "quantization.quant_algo: str 'FP8'"),
    ],
)
def test_what_else_may_be_quantized_is_refused(
    folder: Path, change: Callable[[dict[str, Any]], object], found: str
) -> None:
    for name, key in (("hf_quant_config.json", "quantization"), ("config.json", "quantization_config")):
        content = json.loads((folder / name).read_text())
        if key == "quantization_config":
            del content[key]
        else:
            change(content[key])
        (folder / name).write_text(json.dumps(content))
    assert found in refusal(folder).found


def test_a_missing_tensor_is_named(folder: Path) -> None:
    rename_tensor(folder / "model.safetensors", f"{DOWN}_input_scale")
    assert refusal(folder).tensor == f"{DOWN}_input_scale"


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        (f"{UP}_weight_scale_2", np.float32(0).tobytes(), "0.0"),
        (f"{DOWN}_input_scale", np.float32(np.nan).tobytes(), "nan"),
        (f"{UP}_weight_scale", bytes([0xB8]), "the negative scale 0xB8 at [0, 0, 0]"),
    ],
)
def test_factors_and_scales_that_are_none(folder: Path, name: str, content: bytes, found: str) -> None:
    overwrite(folder / "model.safetensors", name, content)
    checkpoint = opened(folder)
    checkpoint.moe_layer(1)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.moe_layer(2)
    assert (caught.value.tensor, caught.value.found) == (name, found)
