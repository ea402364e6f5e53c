"""gpt-oss in GGUF: the same model as in its other formats, values as gguf's own, files that contradict themselves."""

from __future__ import annotations

import dataclasses
import json
import shutil
import struct
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import SMALLEST, TINY, open_as, outcomes_of_damage, refusal
from typer.testing import CliRunner

from refmoe.cli import app
from refmoe.errors import ArgumentError
from refmoe.formats import E2M1, FP32
from refmoe.models import (
    CheckpointError,
    Decoder,
    GgufCheckpoint,
    GptOssCheckpoint,
    GptOssConfig,
    open_checkpoint,
    write_checkpoint,
)
from refmoe.models.gguf.file import GgufFile
from refmoe.models.gguf.names import gguf_tensors, metadata_of
from refmoe.reference.fp32 import BF16
from refmoe.reference.gguf.q8_0 import Q8_0Tensor
from refmoe.reference.scalar.q8_0 import dequantize_block

gguf = pytest.importorskip("gguf", reason="gguf is not installed")

#: Widths that are multiples of 32 everywhere, as Q8_0 needs them.
SMALL = dataclasses.replace(TINY, num_hidden_layers=2, num_local_experts=4, vocab_size=64)
TOKENS = np.array([[1, 60, 3, 4, 5], [7, 8, 9, 2, 1]])


opened = partial(open_as, GgufCheckpoint)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    write_checkpoint(folder / "huggingface", SMALL, 3)
    write_checkpoint(folder / "model.gguf", SMALL, 3, "gguf")
    write_checkpoint(folder / "q8_0.gguf", SMALL, 3, "gguf-q8_0")
    return folder


def test_names_types_and_shapes_are_written_out() -> None:
    """Since reader and writer share one table."""
    assert {name: (spec.dtype, spec.shape) for name, spec in gguf_tensors(SMALLEST).items()} == {
        "token_embd.weight": ("BF16", (4, 32)),
        "output_norm.weight": ("F32", (32,)),
        "output.weight": ("BF16", (4, 32)),
        "blk.0.attn_norm.weight": ("F32", (32,)),
        "blk.0.attn_q.weight": ("BF16", (8, 32)),
        "blk.0.attn_q.bias": ("F32", (8,)),
        "blk.0.attn_k.weight": ("BF16", (4, 32)),
        "blk.0.attn_k.bias": ("F32", (4,)),
        "blk.0.attn_v.weight": ("BF16", (4, 32)),
        "blk.0.attn_v.bias": ("F32", (4,)),
        "blk.0.attn_output.weight": ("BF16", (32, 8)),
        "blk.0.attn_output.bias": ("F32", (32,)),
        "blk.0.attn_sinks.weight": ("F32", (2,)),
        "blk.0.post_attention_norm.weight": ("F32", (32,)),
        "blk.0.ffn_gate_inp.weight": ("F32", (2, 32)),
        "blk.0.ffn_gate_inp.bias": ("F32", (2,)),
        "blk.0.ffn_gate_exps.weight": ("MXFP4", (2, 64, 32)),
        "blk.0.ffn_gate_exps.bias": ("F32", (2, 64)),
        "blk.0.ffn_up_exps.weight": ("MXFP4", (2, 64, 32)),
        "blk.0.ffn_up_exps.bias": ("F32", (2, 64)),
        "blk.0.ffn_down_exps.weight": ("MXFP4", (2, 32, 64)),
        "blk.0.ffn_down_exps.bias": ("F32", (2, 32)),
    }


def test_the_real_models_have_as_many_tensors_as_llama_cpp_counts() -> None:
    """In its logs: 459 tensors of gpt-oss-20b; of gpt-oss-120b 433 in F32, 146 in BF16, 108 in MXFP4."""
    assert len(gguf_tensors(GptOssConfig())) == 459
    large = gguf_tensors(GptOssConfig(num_hidden_layers=36, num_local_experts=128)).values()
    counts = {kind: sum(spec.dtype == kind for spec in large) for kind in ("F32", "BF16", "MXFP4")}
    assert counts == {"F32": 433, "BF16": 146, "MXFP4": 108}


def test_names_and_keys_are_those_of_the_package() -> None:
    """Every tensor of its architecture but none else, and each key of the metadata spelled as it spells it."""
    arch = gguf.MODEL_ARCH.GPT_OSS
    assert gguf.MODEL_ARCH_NAMES[arch] == "gpt-oss"
    known = {gguf.TENSOR_NAMES[kind].format(bid=0) for kind in gguf.MODEL_TENSORS[arch]}
    assert {name.rsplit(".", 1)[0] for name in gguf_tensors(dataclasses.replace(SMALL, num_hidden_layers=1))} == known
    llm, attention, rope = gguf.Keys.LLM, gguf.Keys.Attention, gguf.Keys.Rope
    keys = [llm.BLOCK_COUNT, llm.CONTEXT_LENGTH, llm.EMBEDDING_LENGTH, llm.FEED_FORWARD_LENGTH, llm.EXPERT_COUNT]
    keys += [llm.EXPERT_USED_COUNT, llm.EXPERT_FEED_FORWARD_LENGTH, attention.HEAD_COUNT, attention.HEAD_COUNT_KV]
    keys += [attention.KEY_LENGTH, attention.VALUE_LENGTH, attention.SLIDING_WINDOW, attention.LAYERNORM_RMS_EPS]
    keys += [rope.FREQ_BASE, rope.SCALING_TYPE, rope.SCALING_FACTOR, rope.SCALING_ORIG_CTX_LEN]
    assert metadata_of(SMALL).keys() == {key.format(arch="gpt-oss") for key in keys}


def test_it_is_the_model_of_the_other_formats(folder: Path) -> None:
    ours, theirs = opened(folder / "model.gguf"), open_as(GptOssCheckpoint, folder / "huggingface")
    assert ours.config == theirs.config == SMALL
    assert ours.layers == theirs.layers
    for layer in ours.layers:
        a, b = ours.moe_layer(layer), theirs.moe_layer(layer)
        for part in ("gate_up", "down"):
            assert getattr(a, part).codes.tobytes() == getattr(b, part).codes.tobytes()
            assert getattr(a, part).scales.tobytes() == getattr(b, part).scales.tobytes()
        for part in ("gate_up_bias", "down_bias", "router_weight", "router_bias"):
            assert getattr(a, part).dtype == getattr(b, part).dtype
            assert getattr(a, part).tobytes() == getattr(b, part).tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_it_decodes_to_the_same_bits(folder: Path, dtype: Any) -> None:
    logits = []
    for checkpoint in (opened(folder / "model.gguf"), open_as(GptOssCheckpoint, folder / "huggingface")):
        decoder = Decoder(checkpoint, dtype=dtype)
        logits.append(decoder.prefill(TOKENS, decoder.new_state(2)).logits)
    assert logits[0].tobytes() == logits[1].tobytes()


def test_dense_matrices_in_q8_0_decode_as_their_values_do(folder: Path) -> None:
    """The model with the same values in F32: Q8_0's are exact there."""
    ours = opened(folder / "q8_0.gguf")
    assert isinstance(ours.unembedding, Q8_0Tensor)

    class Widened(GgufCheckpoint):
        def _dense(self, name: str) -> Any:
            weight = super()._dense(name)
            return weight.dequantize() if isinstance(weight, Q8_0Tensor) else weight

    runs = []
    for checkpoint in (ours, Widened(folder / "q8_0.gguf"), open_as(GptOssCheckpoint, folder / "huggingface")):
        decoder = Decoder(checkpoint)
        runs.append(decoder.prefill(TOKENS, decoder.new_state(2)).logits)
    assert runs[0].tobytes() == runs[1].tobytes()
    distance = np.linalg.norm(runs[0] - runs[2]) / np.linalg.norm(runs[2])
    assert 0 < distance < 0.05


def test_dense_tensors_are_views_and_an_expert_is_what_the_layer_has(folder: Path) -> None:
    for name in ("model.gguf", "q8_0.gguf"):
        checkpoint = opened(folder / name)
        weights = checkpoint.attention(1)
        for linear in (weights.q, weights.k, weights.v, weights.out):
            raw = linear.weight.blocks if isinstance(linear.weight, Q8_0Tensor) else linear.weight
            assert not raw.flags.owndata
            assert not raw.flags.writeable
        assert np.shares_memory(weights.norm, checkpoint.tensor("blk.1.attn_norm.weight"))
        layer = checkpoint.moe_layer(1)
        for number in range(SMALL.num_local_experts):
            expert = checkpoint.expert(1, number)
            assert expert.gate.codes.tobytes() == layer.gate_up.codes[number, 0::2].tobytes()
            assert expert.up.scales.tobytes() == layer.gate_up.scales[number, 1::2].tobytes()
            assert expert.down.dequantize().tobytes() == layer.down.dequantize()[number].tobytes()
            assert layer.gate_up_bias is not None
            assert expert.up_bias.astype(BF16).tobytes() == layer.gate_up_bias[number, 1::2].tobytes()
        checkpoint.release()
        assert checkpoint.expert(1, 3).gate.codes.tobytes() == layer.gate_up.codes[3, 0::2].tobytes()


def test_no_such_layer_expert_or_tensor(folder: Path) -> None:
    checkpoint = opened(folder / "model.gguf")
    with pytest.raises(ArgumentError, match="layer: found 2; needed 0 to 1"):
        checkpoint.moe_layer(2)
    with pytest.raises(ArgumentError, match="expert: found 4; needed 0 to 3"):
        checkpoint.expert(0, 4)
    with pytest.raises(CheckpointError, match=r"tensor output\.bias: found no such tensor"):
        checkpoint.tensor("output.bias")
    assert checkpoint.files == [folder / "model.gguf"]
    assert "blk.1.ffn_up_exps.weight" in checkpoint.names()


def rewritten(source: Path, target: Path, change: Callable[[GgufFile, bytearray], None]) -> Path:
    """A copy whose bytes were changed where the header says that something lies."""
    content = bytearray(source.read_bytes())
    change(GgufFile(source), content)
    target.write_bytes(content)
    return target


def test_every_scale_and_byte_of_mxfp4_is_gguf_s_but_for_two_that_are_declared(folder: Path, tmp_path: Path) -> None:
    """gguf keeps its table in int8, where -0 is 0, and has no NaN scale: it reads 255 as 2^128."""
    name, rows = "blk.0.ffn_gate_exps.weight", []
    for first in range(0, 256, 16):
        # 64 rows of 3 blocks an expert: 192 of the scales at a time, with 16 of the bytes.
        rows.append((first, np.arange(first, first + 16, dtype=np.uint8)))
    for start in (0, 64):
        for _, packed in rows:
            blocks = np.empty((64, 3, 17), np.uint8)
            blocks[..., 0] = (np.arange(192) + start).astype(np.uint8).reshape(64, 3)
            blocks[..., 1:] = packed

            def put(file: GgufFile, content: bytearray, blocks: Any = blocks) -> None:
                begin = file.tensors[name].start
                content[begin : begin + blocks.size] = blocks.tobytes()

            expert = opened(rewritten(folder / "model.gguf", tmp_path / "x.gguf", put)).expert(0, 0)
            ours = expert.gate.dequantize().view(np.uint32)
            with np.errstate(over="ignore"):
                theirs = gguf.dequantize(blocks.reshape(64, -1), gguf.GGMLQuantizationType.MXFP4).view(np.uint32)
            scales = np.repeat(blocks[..., 0], 32, axis=1)
            codes = np.concatenate([blocks[..., 1:] & 15, blocks[..., 1:] >> 4], axis=-1).reshape(64, 96)
            declared = (codes == 8) | (scales == 255)
            np.testing.assert_array_equal(ours != theirs, declared)
            assert (ours[scales == 255] == 0x7FC00000).all()
            assert (ours[(codes == 8) & (scales != 255)] == 0x80000000).all()
            _check_mxfp4(ours[::7], codes[::7], scales[::7])


def _check_mxfp4(ours: np.ndarray, codes: np.ndarray, scales: np.ndarray) -> None:
    """Against the definition in exact rationals, value by value."""
    for bits, code, scale in zip(ours.flat, codes.flat, scales.flat, strict=True):
        if scale == 255:
            continue
        exact = E2M1.decode(int(code)) * Fraction(2) ** (int(scale) - 127)
        if abs(exact) >= Fraction(2) ** 128:
            assert int(bits) & 0x7FFFFFFF == 0x7F800000
        else:
            assert FP32.decode(int(bits)) == exact
        assert int(bits) >> 31 == int(code) >> 3


def test_a_q8_0_matrix_is_gguf_s_and_the_specification_s(folder: Path) -> None:
    checkpoint = opened(folder / "q8_0.gguf")
    raw = checkpoint.tensor("blk.1.attn_k.weight")
    weight = checkpoint.attention(1).k.weight
    assert isinstance(weight, Q8_0Tensor)
    values = weight.dequantize()
    theirs = gguf.dequantize(raw.reshape(len(raw), -1), gguf.GGMLQuantizationType.Q8_0)
    assert values.tobytes() == theirs.tobytes()
    expected = [[dequantize_block(block.tobytes()) for block in row] for row in raw]
    np.testing.assert_array_equal(values.view(np.uint32), np.array(expected, np.uint32).reshape(values.shape))


def test_a_router_that_was_never_bf16_is_refused(folder: Path, tmp_path: Path) -> None:
    name = "blk.1.ffn_gate_inp.weight"

    def put(file: GgufFile, content: bytearray) -> None:
        begin = file.tensors[name].start + 4 * (96 + 5)
        content[begin : begin + 4] = struct.pack("<f", 0.1)

    checkpoint = opened(rewritten(folder / "model.gguf", tmp_path / "x.gguf", put))
    checkpoint.moe_layer(0)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.moe_layer(1)
    assert (caught.value.tensor, "at [1, 5], which is no BF16 number" in caught.value.found) == (name, True)


def made(path: Path, change: dict[str, Any], drop: str = "", types: dict[str, Any] | None = None) -> Path:
    """A file of SMALL's, by gguf's writer, with other metadata and tensors; a value of None leaves a key out."""
    writer = gguf.GGUFWriter(path, change.pop("general.architecture", "gpt-oss"))
    for key, value in {**metadata_of(SMALL), **{f"gpt-oss.{key}": value for key, value in change.items()}}.items():
        if value is not None:
            kind = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, bool: writer.add_bool}
            kind[type(value)](key, value)
    for name, spec in gguf_tensors(SMALL).items():
        kind, shape = (types or {}).get(name, (spec.dtype, spec.shape))
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
        content = np.zeros((*shape[:-1], shape[-1] // block * size), np.uint8)
        if name != drop:
            writer.add_tensor(name, content, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"general.architecture": "llama"}, "general.architecture 'llama'"),
        ({"block_count": None}, "no gpt-oss.block_count in the metadata"),
        ({"block_count": (1 << 31) - 1}, "num_hidden_layers 2147483647 over 41 tensors"),
        ({"block_count": 3}, "no such tensor among 41, and 18 more are missing"),
        ({"expert_count": 8}, "F32 [4, 96]"),
        ({"embedding_length": 100}, "hidden_size: 100"),
        ({"embedding_length": 96.0}, "hidden_size: float 96.0"),
        ({"expert_used_count": 5}, "num_experts_per_tok: 5"),
        ({"attention.value_length": 32}, "gpt-oss.attention.value_length 32"),
        ({"attention.head_count_kv": True}, "num_key_value_heads: bool True"),
        ({"feed_forward_length": 32}, "gpt-oss.feed_forward_length 32"),
        ({"rope.scaling.type": "linear"}, "gpt-oss.rope.scaling.type 'linear'"),
        ({"rope.scaling.type": None}, "no gpt-oss.rope.scaling.type in the metadata"),
        ({"rope.scaling.yarn_beta_fast": 64.0}, "gpt-oss.rope.scaling.yarn_beta_fast 64.0"),
        ({"rope.freq_base": "150000"}, "gpt-oss.rope.freq_base: str '150000'"),
        ({"rope.freq_base": float("nan")}, "rope_theta: float nan"),
        ({"attention.layer_norm_rms_epsilon": 0.0}, "rms_norm_eps: float 0.0"),
        ({"vocab_size": 65}, "gpt-oss.vocab_size 65"),
    ],
)
def test_metadata_that_is_not_gpt_oss(tmp_path: Path, change: dict[str, Any], found: str) -> None:
    path = made(tmp_path / "x.gguf", dict(change))
    error = refusal(path)
    assert (error.found, error.file) == (found, path)


def test_tensors_of_other_types_and_shapes(tmp_path: Path) -> None:
    path, experts = tmp_path / "x.gguf", "blk.1.ffn_up_exps.weight"
    assert open_checkpoint(made(path, {}, types={"output.weight": ("F16", (64, 96))})).tensor("output.weight").size
    for kind, shape in (("Q8_0", (4, 64, 96)), ("MXFP4", (4, 96, 64)), ("BF16", (4, 64, 96))):
        error = refusal(made(path, {}, types={experts: (kind, shape)}))
        assert (error.tensor, error.found) == (experts, f"{kind} {list(shape)}")
        assert error.needed == "MXFP4 [4, 64, 96], by the metadata"
    assert refusal(made(path, {}, drop="token_embd.weight")).tensor == "token_embd.weight"
    error = refusal(made(path, {}, types={"output.weight": ("Q4_0", (64, 96))}))
    assert error.found == "Q4_0 [64, 96]"
    assert "needed BF16 or Q8_0 or F16 or F32" in str(error)


def test_any_damage_to_the_header_of_a_model_is_refused_in_words(folder: Path, tmp_path: Path) -> None:
    """Anywhere before the data: opened, or refused by our own error."""
    path = Path(shutil.copy(folder / "model.gguf", tmp_path))
    reach = min(info.start for info in GgufFile(path).tensors.values())
    assert outcomes_of_damage(path, path, reach, 300) == {"opened", "refused"}


def test_what_gguf_has_no_place_for_is_not_written(tmp_path: Path) -> None:
    for change, name in (({"swiglu_limit": 5.0}, "swiglu_limit"), ({"rope_beta_fast": 16.0}, "rope_beta_fast")):
        with pytest.raises(ArgumentError, match=f"{name}: found .* in GGUF, which does not store it"):
            write_checkpoint(tmp_path / "x.gguf", dataclasses.replace(SMALL, **change), 0, "gguf")
    odd = dataclasses.replace(SMALL, num_attention_heads=2, num_key_value_heads=1, head_dim=8)
    with pytest.raises(ArgumentError, match=r"attn_output\.weight .* multiple of 32 for Q8_0"):
        write_checkpoint(tmp_path / "x.gguf", odd, 0, "gguf-q8_0")
    with pytest.raises(ArgumentError, match="shards: found int 2; needed 1"):
        write_checkpoint(tmp_path / "x.gguf", SMALL, 0, "gguf", shards=2)
    assert not list(tmp_path.iterdir())


def test_a_seed_decides_every_byte(tmp_path: Path) -> None:
    one, other, third = (write_checkpoint(tmp_path / f"{n}.gguf", SMALL, n // 2, "gguf") for n in (0, 1, 2))
    assert one.read_bytes() == other.read_bytes() != third.read_bytes()


def test_the_command_line_takes_a_file(folder: Path) -> None:
    """`refmoe drift` decodes it and `refmoe flow` plans a layer of its sizes."""
    small = ("--steps", "1", "--batch", "1", "--prompt-length", "2", "--mode", "teacher-forced", "--json")
    outputs = []
    for name in ("model.gguf", "huggingface"):
        arguments = ["drift", "--checkpoint", str(folder / name), "--paths", "cutlass:fused,marlin", *small]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        outputs.append(json.loads(result.stdout))
    assert outputs[0]["checkpoint"]["name"] == "model.gguf"
    assert outputs[0]["checkpoint"]["bytes"] == (folder / "model.gguf").stat().st_size
    assert outputs[0]["runs"] == outputs[1]["runs"]
    result = CliRunner().invoke(app, ["flow", "--model", str(folder / "model.gguf"), "--m", "2", "--json"])
    assert result.exit_code == 0, result.output
    sizes = {"name": "model.gguf", "hidden": 96, "intermediate": 64, "experts": 4, "top_k": 4, "layers": 2}
    sizes["weights"] = "mxfp4"
    assert json.loads(result.stdout)["model"] == sizes
    result = CliRunner().invoke(app, ["flow", "--model", "gpt-oss-7b"])
    assert result.exit_code == 2
    assert "or a checkpoint of gpt-oss" in result.output
