"""The decoder: equal to its scalar specification, and blind to everything but a sequence's own tokens."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support import decoder_specification
from support.checkpoints import TINY, TINY_DEEPSEEK, open_as
from support.selection.thinned import thinned

from refmoe.errors import ArgumentError
from refmoe.models import Decoder, GptOssCheckpoint, GptOssConfig, Step, open_checkpoint, write_checkpoint
from refmoe.models.dense import fold, project
from refmoe.models.rope import inverse_frequencies
from refmoe.reference.moe.layer import MoELayer
from refmoe.reference.moe.pipeline import moe_layer

BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [np.float32, np.float64]

#: Odd widths everywhere that they are allowed, so that folding meets odd lengths.
SMALL = GptOssConfig(
    num_hidden_layers=2,
    num_local_experts=2,
    num_experts_per_tok=1,
    vocab_size=7,
    hidden_size=32,
    intermediate_size=32,
    num_attention_heads=6,
    num_key_value_heads=3,
    head_dim=6,
    sliding_window=3,
    initial_context_length=256,
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> GptOssCheckpoint:
    return open_as(GptOssCheckpoint, write_checkpoint(tmp_path_factory.mktemp("tiny"), TINY, 3))


@pytest.fixture(scope="module")
def tokens() -> np.ndarray:
    """Three sequences, much longer than the window."""
    return np.random.default_rng(5).integers(0, TINY.vocab_size, (3, 40))


def halved(layer: int, x: np.ndarray, weights: MoELayer) -> np.ndarray:
    """A mixture of experts that is exact and has nothing to do with batches."""
    return (x.astype(np.float32) * np.float32(0.5 + layer)).astype(BF16)


def all_bytes(step: Step) -> list[bytes]:
    arrays = [step.logits]
    for layer in step.layers:
        arrays += [layer.entered, layer.left, *layer.stages.values()]
    return [np.ascontiguousarray(array).tobytes() for array in arrays]


def one_sequence(step: Step, index: int) -> list[bytes]:
    """The bytes of one sequence of a batch."""
    part = slice(index, index + 1)
    layers = tuple(
        dataclasses.replace(
            layer,
            entered=layer.entered[part],
            left=layer.left[part],
            stages={name: array[part] for name, array in layer.stages.items()},
        )
        for layer in step.layers
    )
    return all_bytes(Step(step.logits[part], layers))


def test_bits_are_those_of_the_scalar_specification(tmp_path: Path) -> None:
    checkpoint = open_as(GptOssCheckpoint, write_checkpoint(tmp_path, SMALL, 11))
    weights = {name: checkpoint.tensor(name).astype(np.float32) for name in checkpoint.names()}
    prompt = [3, 1, 4, 1, 5, 2, 6]

    def scalar_halved(layer: int, x: list[np.float32]) -> list[np.float32]:
        return [decoder_specification.to_bf16(value * np.float32(0.5 + layer)) for value in x]

    logits, entered = decoder_specification.decode(SMALL, weights, prompt, scalar_halved)
    decoder = Decoder(checkpoint, moe=halved)
    step = decoder.prefill(np.array([prompt]), decoder.new_state(1))
    for ours, theirs in zip(step.layers, entered, strict=True):
        assert ours.entered[0].astype(np.float32).tobytes() == np.array(theirs, np.float32).tobytes()
    assert step.logits.dtype == np.float32
    assert step.logits[0].tobytes() == np.array(logits, np.float32).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("moe", thinned([None, halved], 2))
def test_a_sequence_does_not_see_its_neighbours(
    tiny: GptOssCheckpoint, tokens: np.ndarray, dtype: Any, moe: Any
) -> None:
    decoder = Decoder(tiny, moe=moe, dtype=dtype)
    together = decoder.new_state(3)
    prompt = decoder.prefill(tokens[:, :20], together, stages=True)
    steps = [decoder.step(tokens[:, p], together, stages=True) for p in range(20, 24)]
    for b in range(3):
        alone = decoder.new_state(1)
        assert all_bytes(decoder.prefill(tokens[b : b + 1, :20], alone, stages=True)) == one_sequence(prompt, b)
        for p, step in enumerate(steps, 20):
            assert all_bytes(decoder.step(tokens[b : b + 1, p], alone, stages=True)) == one_sequence(step, b)


def test_nor_through_a_real_path(tiny: GptOssCheckpoint, tokens: np.ndarray) -> None:
    decoder = Decoder(tiny, moe=lambda layer, x, weights: moe_layer(x, weights))
    together, alone = decoder.new_state(3), decoder.new_state(1)
    batch, single = decoder.prefill(tokens[:, :6], together), decoder.prefill(tokens[1:2, :6], alone)
    assert all_bytes(single) == one_sequence(batch, 1)
    assert all_bytes(decoder.step(tokens[1:2, 6], alone)) == one_sequence(decoder.step(tokens[:, 6], together), 1)


@pytest.mark.parametrize("dtype", thinned(DTYPES, 4))
@pytest.mark.parametrize("cuts", [[39], [1, 2, 3], [16], [17, 33], list(range(1, 40))])
def test_a_prompt_in_pieces_gives_the_same_bits(
    tiny: GptOssCheckpoint, tokens: np.ndarray, dtype: Any, cuts: list[int]
) -> None:
    """Cuts before, at and beyond the window; the last one decodes token by token."""
    decoder = Decoder(tiny, moe=halved, dtype=dtype)
    whole, pieces = decoder.new_state(3), decoder.new_state(3)
    expected = decoder.prefill(tokens, whole)
    parts = [decoder.prefill(part, pieces) for part in np.split(tokens, cuts, axis=1)]
    assert parts[-1].logits.tobytes() == expected.logits.tobytes()
    for layer in tiny.layers:
        joined = np.concatenate([part.layers[layer].entered for part in parts], axis=1)
        assert joined.tobytes() == expected.layers[layer].entered.tobytes()
        assert pieces.keys[layer].tobytes() == whole.keys[layer].tobytes()
        assert pieces.values[layer].tobytes() == whole.values[layer].tobytes()


def test_threads_and_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 100)).astype(np.float32)
    weight = rng.standard_normal((333, 100)).astype(BF16)
    expected = project(x, weight)
    for chunk in (1, 100, 1000, 1 << 20):
        monkeypatch.setattr("refmoe.models.dense._PRODUCTS_A_CHUNK", chunk)
        assert project(x, weight).tobytes() == expected.tobytes()
        assert project(x[3:4], weight).tobytes() == expected[3:4].tobytes()


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 7, 45, 64, 90])
def test_folding_order(count: int) -> None:
    terms = np.random.default_rng(count).standard_normal((4, count)).astype(np.float32) * 1e4
    expected = np.array([decoder_specification.fold(list(row)) for row in terms])
    assert fold(terms.copy()).tobytes() == expected.tobytes()
    assert np.ascontiguousarray(fold(terms.T.copy(), axis=0)).tobytes() == expected.tobytes()


def test_copies_of_a_state_part_ways(tiny: GptOssCheckpoint, tokens: np.ndarray) -> None:
    decoder = Decoder(tiny, moe=halved)
    state = decoder.new_state(3)
    decoder.prefill(tokens[:, :8], state)
    copy = state.copy()
    expected = decoder.step(tokens[:, 8], copy)
    decoder.step(tokens[:, 9], state)
    again = decoder.new_state(3)
    decoder.prefill(tokens[:, :8], again)
    assert all_bytes(decoder.step(tokens[:, 8], again)) == all_bytes(expected)
    assert (state.length, copy.length) == (9, 9)
    assert state.keys[1].tobytes() != copy.keys[1].tobytes()


def test_a_windowed_cache_keeps_what_the_next_query_sees(tiny: GptOssCheckpoint, tokens: np.ndarray) -> None:
    decoder = Decoder(tiny, moe=halved)
    state = decoder.new_state(3)
    decoder.prefill(tokens, state)
    assert [keys.shape for keys in state.keys] == [(3, 15, 2, 16), (3, 40, 2, 16)] * 2


def test_what_comes_out(tiny: GptOssCheckpoint, tokens: np.ndarray) -> None:
    decoder = Decoder(tiny, moe=halved)
    step = decoder.prefill(tokens, decoder.new_state(3), stages=True)
    layer = step.layers[2]
    assert {name: array.shape[2:] for name, array in layer.stages.items()} == {
        "attention_norm": (96,),
        "q": (8, 16),
        "k": (2, 16),
        "v": (2, 16),
        "attention": (8, 16),
        "attention_out": (96,),
        "attention_residual": (96,),
        "residual": (96,),
    }
    assert {array.dtype for array in (*layer.stages.values(), layer.entered, layer.left)} == {BF16}
    assert layer.left.tobytes() == halved(2, layer.entered, tiny.moe_layer(2)).tobytes()
    assert step.layers[0].stages["residual"].shape == (3, 40, 96)
    assert decoder.prefill(tokens, decoder.new_state(3)).layers[0].stages == {}


def test_logits_are_not_degenerate(tiny: GptOssCheckpoint) -> None:
    """Many tokens compete, one leads, and it depends on what was said before."""
    decoder = Decoder(tiny)
    state = decoder.new_state(32)
    step = decoder.prefill(np.random.default_rng(1).integers(0, 256, (32, 4)), state)
    share = np.exp(step.logits - step.logits.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    entropy = -(share * np.log(share)).sum(axis=1)
    assert np.isfinite(step.logits).all()
    assert (entropy > 1).all()
    assert (entropy < np.log(256) - 0.5).all()
    assert len(np.unique(step.logits.argmax(axis=1))) > 16


def test_float32_rounds_what_float64_keeps(tiny: GptOssCheckpoint, tokens: np.ndarray) -> None:
    exact, rounded = (Decoder(tiny, dtype=dtype) for dtype in (np.float64, np.float32))
    one, other = (decoder.prefill(tokens, decoder.new_state(3)).logits for decoder in (exact, rounded))
    assert one.dtype == np.float64
    distance = np.linalg.norm(one - other) / np.linalg.norm(one)
    assert 1e-4 < distance < 0.1


def test_yarn_keeps_blends_and_slows() -> None:
    angles, concentration = inverse_frequencies(TINY)
    plain, one = inverse_frequencies(dataclasses.replace(TINY, rope_factor=1))
    assert one == 1
    assert concentration == 0.1 * np.log(32) + 1
    ratio = angles / plain
    assert ratio[0] == 1
    assert 1 / 32 < ratio[2] < ratio[1] < 1
    assert (ratio[3:] == 1 / 32).all()


@pytest.mark.parametrize(
    ("tokens", "sentence"),
    [
        (np.zeros((2, 4), int), "tokens: found int64 [2, 4]; needed integers [3, S] with S at least 1"),
        (np.zeros((3, 0), int), "tokens: found int64 [3, 0]; needed integers [3, S] with S at least 1"),
        (np.zeros((3, 4)), "tokens: found float64 [3, 4]; needed integers [3, S] with S at least 1"),
        ([[1], [2], [3]], "tokens: found list"),
        (np.full((3, 2), 256), "tokens: found token 256; needed 0 to 255"),
        (np.full((3, 2), -1), "tokens: found token -1; needed 0 to 255"),
    ],
)
def test_tokens_that_are_refused(tiny: GptOssCheckpoint, tokens: Any, sentence: str) -> None:
    decoder = Decoder(tiny, moe=halved)
    state = decoder.new_state(3)
    with pytest.raises(ArgumentError) as caught:
        decoder.prefill(tokens, state)
    assert str(caught.value).startswith(sentence)
    assert state.length == 0


def test_refusals(tiny: GptOssCheckpoint, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="checkpoint: found DeepSeekCheckpoint"):
        Decoder(open_checkpoint(write_checkpoint(tmp_path, TINY_DEEPSEEK, 0, "deepseek")))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="dtype: found"):
        Decoder(tiny, dtype=np.float16)  # type: ignore[arg-type]
    decoder = Decoder(tiny, moe=halved)
    with pytest.raises(ArgumentError, match="sequences: found int 0"):
        decoder.new_state(0)
    with pytest.raises(
        ArgumentError, match=r"state: found 4 caches, the first float64 \[1, 0, 2, 16\]; needed 4 of bf"
    ):
        decoder.prefill(np.zeros((1, 1), int), Decoder(tiny, dtype=np.float64).new_state(1))
    other = Decoder(open_as(GptOssCheckpoint, write_checkpoint(tmp_path / "small", SMALL, 0)), moe=halved)
    with pytest.raises(ArgumentError, match=r"state: found 2 caches, .*; needed 4 of bfloat16 \[1, positions, 2, 16\]"):
        decoder.prefill(np.zeros((1, 1), int), other.new_state(1))
    with pytest.raises(ArgumentError, match=r"tokens: found int64 \[1, 1\]; needed integers \[1\]"):
        decoder.step(np.zeros((1, 1), int), decoder.new_state(1))


def test_a_path_that_breaks_its_contract_leaves_the_state(tiny: GptOssCheckpoint) -> None:
    decoder = Decoder(tiny, moe=lambda layer, x, weights: x.astype(np.float32))
    state = decoder.new_state(1)
    with pytest.raises(ArgumentError, match=r"moe: found float32 \[1, 96\] from layer 0; needed bfloat16 \[1, 96\]"):
        decoder.step(np.zeros(1, int), state)
    assert state.length == 0
    assert state.keys[0].shape[1] == 0
