"""What a command of drift is about: a checkpoint, prompts, and the points of a sweep."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.drift.run import Point
from refmoe.errors import ArgumentError
from refmoe.models import (
    DeepSeekConfig,
    GptOssCheckpoint,
    GptOssConfig,
    open_checkpoint,
    write_checkpoint,
)
from refmoe.models.expert_stack import AnyDeepSeek

#: Small enough for minutes on a laptop; a prompt and a few steps outgrow the window of the even layers.
TINY = GptOssConfig(
    num_hidden_layers=4,
    num_local_experts=8,
    num_experts_per_tok=2,
    vocab_size=256,
    hidden_size=64,
    intermediate_size=64,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    sliding_window=16,
    initial_context_length=256,
)

#: Likewise of DeepSeek-V3: a router over groups, and a shared expert.
TINY_DEEPSEEK = DeepSeekConfig(
    num_hidden_layers=5,
    first_k_dense_replace=1,
    vocab_size=256,
    hidden_size=128,
    intermediate_size=128,
    moe_intermediate_size=128,
    n_routed_experts=8,
    num_experts_per_tok=2,
    n_group=4,
    topk_group=2,
    num_attention_heads=2,
    q_lora_rank=48,
    kv_lora_rank=32,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=16,
)

#: What the writer calls a checkpoint, by the format of its experts; those of DeepSeek-V3 in NVFP4 by the model too.
_FORMATS = {"mxfp4": "huggingface", "nvfp4": "nvfp4", "block_fp8": "deepseek", "deepseek-nvfp4": "deepseek-nvfp4"}
WEIGHTS = tuple(_FORMATS)

SWEPT = ("batch", "prompt", "k", "in-flight")


@contextlib.contextmanager
def open_or_write(path: Path | None, seed: int, weights: str = "mxfp4") -> Iterator[GptOssCheckpoint | AnyDeepSeek]:
    """The checkpoint in that folder or .gguf file; for None a random one of `TINY`'s or `TINY_DEEPSEEK`'s sizes,
    which is gone afterwards.

    Args:
        path: the folder or file.
        seed: of a random checkpoint.
        weights: the format of its experts, "mxfp4" or "nvfp4"; "block_fp8" and "deepseek-nvfp4" are DeepSeek-V3.

    Raises:
        CheckpointError: it cannot be read.
    """
    with contextlib.ExitStack() as stack:
        if path is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="refmoe-drift-"))
            config = TINY_DEEPSEEK if _FORMATS[weights].startswith("deepseek") else TINY
            path = write_checkpoint(Path(folder) / "tiny", config, seed, _FORMATS[weights])
        yield open_checkpoint(path)


def draw_prompts(vocabulary: int, batch: int, length: int, seed: int) -> NDArray[np.int64]:
    """Random tokens [batch, length]; a sequence's are the same in every batch, and begin alike at every length."""
    return np.stack([Draw("drift prompt", seed, b).integers(vocabulary, (length,)) for b in range(batch)])


def parse_prompts(text: str) -> NDArray[np.int64]:
    """Tokens as typed: numbers with commas, sequences of one length with semicolons, "3,1,4;1,5,9".

    Raises:
        ArgumentError: something else.
    """
    try:
        rows = [[int(word) for word in part.split(",")] for part in text.split(";")]
    except ValueError:
        raise ArgumentError("prompt", repr(text), 'token numbers, "3,1,4" or for two sequences "3,1,4;1,5,9"') from None
    lengths = sorted({len(row) for row in rows})
    if len(lengths) > 1:
        raise ArgumentError("prompt", f"sequences of {lengths[0]} and {lengths[-1]} tokens", "one length")
    return np.array(rows, np.int64)


def parse_sweeps(texts: Sequence[str]) -> dict[str, list[int]]:
    """Sweeps as typed, "batch=1,4": values by name.

    Raises:
        ArgumentError: an unknown or repeated name, or values that are no positive integers.
    """
    found: dict[str, list[int]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        needed = f"NAME=N,N,... with NAME one of {', '.join(SWEPT)}, each once"
        if name not in SWEPT or name in found:
            raise ArgumentError("sweep", repr(text), needed)
        words = [word.strip() for word in values.split(",")]
        if not all(word.isdecimal() and int(word) > 0 for word in words) or len(set(words)) < len(words):
            raise ArgumentError("sweep", repr(text), f"{needed}, and different positive integers")
        found[name] = [int(word) for word in words]
    return found


def sweep_points(sweeps: Mapping[str, Sequence[int]], batch: int, prompt: int) -> list[Point]:
    """Every combination of the swept values; without sweeps one point.

    Raises:
        ArgumentError: more in flight than a batch has.
    """
    points = []
    for values in itertools.product(*sweeps.values()):
        given: dict[str, Any] = dict(zip(sweeps, values, strict=True))
        sequences = given.get("batch", batch)
        point = Point(sequences, given.get("prompt", prompt), given.get("k"), given.get("in-flight", sequences))
        if point.in_flight > point.batch:
            found = f"{point.in_flight} in flight of a batch of {point.batch}"
            raise ArgumentError("sweep", found, "at most the batch")
        points.append(point)
    return points
