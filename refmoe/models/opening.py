"""Open a checkpoint: tell its format, check it whole, load nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from refmoe.errors import ArgumentError
from refmoe.models.checkpoint import GptOssCheckpoint
from refmoe.models.config import DeepSeekConfig, GptOssConfig
from refmoe.models.deepseek import DeepSeekCheckpoint, DeepSeekNVFP4Checkpoint
from refmoe.models.gguf.checkpoint import GgufCheckpoint
from refmoe.models.gpt_oss import GptOssFolder, GptOssNVFP4Folder
from refmoe.models.modelopt import excluded_modules, says_modelopt
from refmoe.models.tensor_file import CheckpointError, refuse_pickle
from refmoe.models.tensor_set import read_json

T = TypeVar("T")

AnyCheckpoint = GptOssCheckpoint | DeepSeekCheckpoint | DeepSeekNVFP4Checkpoint


def open_checkpoint(path: str | os.PathLike[str]) -> AnyCheckpoint:
    """Open a checkpoint and check it whole, without loading a weight.

    Opening reads config.json, the index and the header of every file, and holds all of it against the tables of
    `refmoe.models.schema`; of GGUF the header, held against `refmoe.models.gguf.names`.

    Args:
        path: the folder with config.json and the safetensors files, or a .gguf file (of a split one the first part).

    Returns:
        A GptOssCheckpoint, from Hugging Face or original names, from ModelOpt or from GGUF; a DeepSeekCheckpoint; or a
        DeepSeekNVFP4Checkpoint, if ModelOpt quantized it.

    Raises:
        CheckpointError: a pickle; a model of another kind; a file, shard or tensor that is missing, damaged, truncated,
            there twice, or of another dtype or shape than the configuration calls for; a .gguf file without the
            package gguf. It names file and tensor.
    """
    folder = Path(path)
    if folder.suffix == ".gguf" and folder.is_file():
        return GgufCheckpoint(folder)
    if not folder.is_dir():
        refuse_pickle(folder)
        needed = "the folder of a checkpoint, or a .gguf file"
        raise CheckpointError(folder, None, "a file" if folder.exists() else "nothing", needed)
    file = folder / "config.json"
    raw = read_json(file)
    kind = raw.get("model_type", "original" if "num_experts" in raw and "rope_ntk_alpha" in raw else None)
    if kind == "gpt_oss" and says_modelopt(folder, raw):
        return _read(file, lambda said: _gpt_oss_nvfp4(folder, said), raw)
    if kind == "gpt_oss":
        return GptOssFolder(folder, _read(file, GptOssConfig.from_huggingface, raw), original=False)
    if kind == "original":
        return GptOssFolder(folder, _read(file, GptOssConfig.from_original, raw), original=True)
    if kind == "deepseek_v3" and says_modelopt(folder, raw):
        return _read(file, lambda said: _nvfp4(folder, said), raw)
    if kind == "deepseek_v3":
        return DeepSeekCheckpoint(folder, _read(file, DeepSeekConfig.from_huggingface, raw))
    needed = "model_type gpt_oss or deepseek_v3, or the keys of gpt-oss's original configuration"
    raise CheckpointError(file, None, f"model_type {kind!r}", needed)


def _gpt_oss_nvfp4(folder: Path, raw: Mapping[str, Any]) -> GptOssNVFP4Folder:
    return GptOssNVFP4Folder(folder, GptOssConfig.sizes_of(raw), excluded_modules(folder, raw))


def _nvfp4(folder: Path, raw: Mapping[str, Any]) -> DeepSeekNVFP4Checkpoint:
    return DeepSeekNVFP4Checkpoint(folder, DeepSeekConfig.sizes_of(raw), excluded_modules(folder, raw))


def _read(file: Path, read: Callable[[Mapping[str, Any]], T], raw: Mapping[str, Any]) -> T:
    try:
        return read(raw)
    except CheckpointError:
        raise
    except ArgumentError as error:
        raise CheckpointError(file, None, f"{error.argument}: {error.found}", error.needed) from error
