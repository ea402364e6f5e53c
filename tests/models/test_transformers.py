"""The decoder against transformers' GptOssForCausalLM, both in float64, on a checkpoint that transformers itself loads.

transformers reads the folder that `write_checkpoint` made and dequantizes its MXFP4 to BF16 (`Mxfp4Config(dequantize=
True)` needs no kernels), which also holds our format against an independent reader. Its code asks for float32 in
RMSNorm and RoPE; here every such request is widened to float64, and nothing else of it is changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.checkpoints import TINY, open_as
from support.selection.thinned import thinned

from refmoe.models import Decoder, GptOssCheckpoint, GptOssConfig, write_checkpoint

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SEQUENCES, PROMPT, STEPS = 2, 40, 8


@contextmanager
def widened() -> Iterator[None]:
    """Every float32 that code asks torch for by name is a float64."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "float32", torch.float64)
        patch.setattr(torch, "float", torch.float64)
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # matrices this small only wait for other threads
        try:
            yield
        finally:
            torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), TINY, 3, shards=2)


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    loaded = transformers.GptOssForCausalLM.from_pretrained(
        folder,
        quantization_config=transformers.Mxfp4Config(dequantize=True),
        attn_implementation="eager",
        experts_implementation="eager",  # the default computes in BF16 whatever the model's dtype is
    )
    with widened():
        loaded = loaded.double().eval()
        rotary = type(loaded.model.rotary_emb)(loaded.config)
        assert rotary.inv_freq.dtype == torch.float64
        loaded.model.rotary_emb = rotary
    return loaded


@pytest.fixture(scope="module")
def tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(0, TINY.vocab_size, (SEQUENCES, PROMPT + STEPS))


@pytest.fixture(scope="module")
def expected(model: Any, tokens: np.ndarray) -> np.ndarray:
    """Logits [B, PROMPT + STEPS, V] of the whole sequences at once."""
    with torch.no_grad(), widened():
        logits = model(torch.tensor(tokens)).logits
    assert logits.dtype == torch.float64
    return np.asarray(logits.numpy())


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest relative L2 distance of a row of logits."""
    return float((np.linalg.norm(ours - theirs, axis=-1) / np.linalg.norm(theirs, axis=-1)).max())


def decoded(folder: Path, tokens: np.ndarray, change: Callable[[GptOssConfig], GptOssConfig]) -> np.ndarray:
    """Our logits [B, 1 + STEPS, V]: of the prompt's last position, then of each cached step."""
    checkpoint = open_as(GptOssCheckpoint, folder)
    checkpoint.config = change(checkpoint.config)
    decoder = Decoder(checkpoint, dtype=np.float64)
    state = decoder.new_state(SEQUENCES)
    steps = [decoder.prefill(tokens[:, :PROMPT], state)]
    steps += [decoder.step(tokens[:, PROMPT + step], state) for step in range(STEPS)]
    return np.stack([step.logits for step in steps], axis=1)


def test_transformers_reads_our_weights(folder: Path, model: Any) -> None:
    checkpoint = open_as(GptOssCheckpoint, folder)
    parameters = dict(model.named_parameters())
    for layer in checkpoint.layers:
        ours, experts = checkpoint.moe_layer(layer), f"model.layers.{layer}.mlp.experts."
        for name, weights in (("gate_up_proj", ours.gate_up), ("down_proj", ours.down)):
            theirs = parameters.pop(experts + name).detach().numpy()
            assert np.array_equal(theirs, weights.dequantize().swapaxes(1, 2))
    for name, value in parameters.items():
        theirs = value.detach().numpy().astype(ml_dtypes.bfloat16)
        assert theirs.tobytes() == checkpoint.tensor(name).tobytes()


def test_prefill_and_cached_decode(folder: Path, tokens: np.ndarray, expected: np.ndarray) -> None:
    """Three windows deep, in the three regimes of YaRN."""
    assert 2 * TINY.sliding_window < PROMPT
    ours = decoded(folder, tokens, lambda config: config)
    assert distance(ours, expected[:, PROMPT - 1 :]) < 1e-10


def test_their_cached_decode(folder: Path, model: Any, tokens: np.ndarray) -> None:
    """Token by token through their cache as well."""
    ours = decoded(folder, tokens, lambda config: config)
    with torch.no_grad(), widened():
        result = model(torch.tensor(tokens[:, :PROMPT]), use_cache=True)
        theirs = [result.logits[:, -1].numpy()]
        for step in range(STEPS):
            token = torch.tensor(tokens[:, PROMPT + step, None])
            result = model(token, past_key_values=result.past_key_values, use_cache=True)
            theirs.append(result.logits[:, -1].numpy())
    assert distance(ours, np.stack(theirs, axis=1)) < 1e-10


@pytest.mark.parametrize(
    "change",
    thinned(
        [
            {"sliding_window": 17},
            {"rope_factor": 31.0},
            {"rope_factor": 1.0},
            {"rope_beta_fast": 31.0},
            {"rope_beta_slow": 1.5},
            {"rope_theta": 149999.0},
            {"initial_context_length": 255},
            {"rms_norm_eps": 2e-5},
            {"num_experts_per_tok": 3},
            {"swiglu_limit": 1.0},
        ],
        3,
    ),
)
def test_the_comparison_sees_every_part(
    folder: Path, tokens: np.ndarray, expected: np.ndarray, change: dict[str, Any]
) -> None:
    """A configuration that is off by little is further away than any rounding."""
    ours = decoded(folder, tokens, lambda config: dataclasses.replace(config, **change))
    assert distance(ours, expected[:, PROMPT - 1 :]) > 1e-7
