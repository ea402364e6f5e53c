"""What a run of drift drew: its prompts and, unless it was given one, its checkpoint. Both follow from the seed."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from refmoe.draw import Draw
from refmoe.models import DeepSeekConfig, GptOssConfig, open_checkpoint, write_checkpoint

#: The name of a checkpoint that was written for the run alone.
TINY = "tiny, random"

#: Sizes of such a checkpoint by model: those of `refmoe.drift.inputs`.
TINY_GPT_OSS = GptOssConfig(
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

#: By `--weights` the sizes, and what the writer calls the format.
WRITTEN: Mapping[str, tuple[GptOssConfig | DeepSeekConfig, str]] = MappingProxyType(
    {
        "mxfp4": (TINY_GPT_OSS, "huggingface"),
        "nvfp4": (TINY_GPT_OSS, "nvfp4"),
        "block_fp8": (TINY_DEEPSEEK, "deepseek"),
        "deepseek-nvfp4": (TINY_DEEPSEEK, "deepseek-nvfp4"),
    }
)

#: What the command takes where it is not told.
_DEFAULTS = {"seed": "7", "steps": "64"}


def drawn_refusals(document: Mapping[str, Any]) -> Iterator[str]:
    """What of a document's seed, prompts and checkpoint was not drawn so, a sentence each."""
    try:
        words = [part for word in shlex.split(document["command"]) for part in word.split("=", 1)]
    except ValueError as error:
        yield f"made by {document['command']!r}, which is no command: {error}"
        return
    said = dict(itertools.pairwise(words))
    for key, default in _DEFAULTS.items():
        if said.get(f"--{key}", default) != str(document[key]):
            asked = said.get(f"--{key}", default)
            yield f"of {key} {document[key]}, and its command {document['command']!r} takes {asked}"
    yield from _prompts(document, said)
    yield from _checkpoint(document["checkpoint"], said, document["seed"])


def _prompts(document: Mapping[str, Any], said: Mapping[str, str]) -> Iterator[str]:
    vocabulary = document["checkpoint"]["config"]["vocab_size"]
    for run in document["runs"]:
        for number, tokens in enumerate(run["prompts"]):
            if "--prompt" in said:
                continue
            drawn = Draw("drift prompt", document["seed"], number).integers(vocabulary, (len(tokens),)).tolist()
            if tokens != drawn:
                text = f"its prompt {number} in the run of batch {run['point'].get('batch')}"
                yield f"{text} is not what the seed {document['seed']} draws, which begins with {drawn[:4]}"
        beyond = [token for row in (*run["prompts"], *run["tokens"]) for token in row if token >= vocabulary]
        if beyond:
            yield f"the token {beyond[0]}, and the checkpoint has {vocabulary:,}"


def _checkpoint(stated: Mapping[str, Any], said: Mapping[str, str], seed: int) -> Iterator[str]:
    if ("--checkpoint" in said) == (stated["name"] == TINY):
        word = "names one" if "--checkpoint" in said else "names none"
        yield f"of the checkpoint {stated['name']!r}, and its command {word}"
        return
    if stated["name"] != TINY:
        return
    weights = said.get("--weights", "mxfp4")
    if weights not in WRITTEN:
        yield f"of a random checkpoint of {weights!r}; needed one of {', '.join(WRITTEN)}"
        return
    for key, value in _written(weights, seed).items():
        if stated.get(key) != value:
            yield f"of a random checkpoint with {key} {stated.get(key)!r}; the seed {seed} makes {value!r}"


@functools.cache
def _written(weights: str, seed: int) -> Mapping[str, Any]:
    """What a document says of a random checkpoint."""
    config, form = WRITTEN[weights]
    digest, size = hashlib.sha256(), 0
    with tempfile.TemporaryDirectory() as folder:
        files = open_checkpoint(write_checkpoint(Path(folder) / "tiny", config, seed, form)).files
        for file in sorted(files):
            content = file.read_bytes()
            size += len(content)
            digest.update(f"{file.name}\n{len(content)}\n".encode() + content)
    return {"bytes": size, "sha256": digest.hexdigest(), "config": dataclasses.asdict(config)}
