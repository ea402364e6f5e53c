"""Small random checkpoints in exactly the formats of the real ones, the same bytes for a seed on every machine."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.files import write_atomic
from refmoe.models import modelopt
from refmoe.models.config import DeepSeekConfig, GptOssConfig
from refmoe.models.gguf.writer import write_gguf
from refmoe.models.random_weights import random_tensor
from refmoe.models.schema import (
    TensorSpec,
    deepseek_nvfp4_tensors,
    deepseek_tensors,
    gpt_oss_nvfp4_tensors,
    huggingface_tensors,
    original_parts,
    original_tensors,
)
from refmoe.models.tensor_file import DTYPES
from refmoe.models.tensor_set import INDEX

FORMATS = ("huggingface", "original", "gguf", "gguf-q8_0", "deepseek", "deepseek-nvfp4", "nvfp4")
_MODELOPT = ("nvfp4", "deepseek-nvfp4")
_GGUF_DENSE = {"gguf": "BF16", "gguf-q8_0": "Q8_0"}

Array = NDArray[Any]


def write_checkpoint(
    path: str | os.PathLike[str],
    config: GptOssConfig | DeepSeekConfig,
    seed: int,
    format: str = "huggingface",
    *,
    shards: int = 1,
    excluded: Sequence[str] = (),
) -> Path:
    """Write a random checkpoint that `open_checkpoint` and the model's own code read.

    The same config and seed give the same weights in all formats of gpt-oss, but that "gguf-q8_0" quantizes dense
    matrices and "nvfp4" has experts of its own.

    Args:
        path: the folder, made if it is not there, or the .gguf file; files of the same names are replaced.
        config: the sizes.
        seed: what the weights are drawn from.
        format: "huggingface", "original", "gguf" or "gguf-q8_0" for gpt-oss, or "nvfp4" as ModelOpt has it; for
            DeepSeek-V3 "deepseek", or "deepseek-nvfp4" as ModelOpt has it.
        shards: files that the tensors are spread over; more than one come with an index. GGUF takes one.
        excluded: of "deepseek-nvfp4" wildcards of modules that are BF16 too, such as "*.mlp.shared_experts*".

    Returns:
        What `open_checkpoint` takes: the folder, or the file.

    Raises:
        ArgumentError: an unknown format, a config of another model, fewer tensors than shards, or GGUF without the
            package gguf.
        OSError: a file cannot be written.
    """
    left_out = _excluded(config, format, excluded)
    if format in _GGUF_DENSE:
        return _write_gguf(Path(path), config, seed, format, shards)
    folder, tensors, described = Path(path), _tensors(config, format, left_out), _config_json(config, format, left_out)
    parts = original_parts(config) if isinstance(config, GptOssConfig) and format == "original" else {}
    if type(shards) is not int or not 1 <= shards <= len(tensors):
        raise ArgumentError("shards", describe(shards), f"1 to {len(tensors)}, the number of tensors")
    where = {name: _shard_name(index * shards // len(tensors), shards, format) for index, name in enumerate(tensors)}
    for shard in dict.fromkeys(where.values()):
        held = {name: spec for name, spec in tensors.items() if where[name] == shard}
        drawn = {
            name: [random_tensor(*part, seed) for part in parts.get(name, {name: spec}).items()]
            for name, spec in held.items()
        }
        values = {name: rows[0] if len(rows) == 1 else np.concatenate(rows) for name, rows in drawn.items()}
        write_atomic(folder / shard, _serialized(values, tensors))
    if shards > 1:
        total = sum(math.prod(spec.shape) * DTYPES[spec.dtype].itemsize for spec in tensors.values())
        write_atomic(folder / INDEX, _json({"metadata": {"total_size": total}, "weight_map": where}))
    if format == "original":
        write_atomic(folder / "dtypes.json", _json({name: _original_dtype(name) for name in tensors}))
    if format in _MODELOPT:
        write_atomic(folder / modelopt.FILE, _json(modelopt.own_file(left_out)))
    write_atomic(folder / "config.json", _json(described))
    return folder


def _write_gguf(path: Path, config: GptOssConfig | DeepSeekConfig, seed: int, format: str, shards: int) -> Path:
    if not isinstance(config, GptOssConfig):
        raise ArgumentError("config", f"a {type(config).__name__} for the format {format}", "a GptOssConfig")
    if path.suffix != ".gguf":
        raise ArgumentError("path", str(path), "a name that ends in .gguf for this format")
    if shards != 1:
        raise ArgumentError("shards", describe(shards), "1 for this format")
    return write_gguf(path, config, seed, dense=_GGUF_DENSE[format])


def _tensors(config: GptOssConfig | DeepSeekConfig, format: str, excluded: tuple[str, ...]) -> Mapping[str, TensorSpec]:
    if format not in FORMATS:
        raise ArgumentError("format", describe(format), f"one of {', '.join(FORMATS)}")
    of_deepseek = format.startswith("deepseek")
    if isinstance(config, GptOssConfig) and not of_deepseek:
        of = {"huggingface": huggingface_tensors, "original": original_tensors, "nvfp4": gpt_oss_nvfp4_tensors}
        return of[format](config)
    if isinstance(config, DeepSeekConfig) and of_deepseek:
        if format == "deepseek":
            return deepseek_tensors(config)
        return deepseek_nvfp4_tensors(config, modelopt.quantizes(excluded))
    needed = "DeepSeekConfig" if of_deepseek else "GptOssConfig"
    raise ArgumentError("config", f"a {type(config).__name__} for the format {format}", f"a {needed}")


def _config_json(config: GptOssConfig | DeepSeekConfig, format: str, excluded: tuple[str, ...]) -> dict[str, Any]:
    if isinstance(config, GptOssConfig) and format == "original":
        return config.to_original()
    if format in _MODELOPT:
        return config.to_huggingface(modelopt.quantization_config(excluded))
    return config.to_huggingface()


def _excluded(config: GptOssConfig | DeepSeekConfig, format: str, more: Sequence[str]) -> tuple[str, ...]:
    """The modules that ModelOpt leaves in BF16, and those that the caller wants to be."""
    if isinstance(config, GptOssConfig):
        usual = modelopt.gpt_oss_excluded(config)
    else:
        usual = modelopt.deepseek_excluded(config)
    if more and format != "deepseek-nvfp4":
        raise ArgumentError("excluded", f"{list(more)} with the format {format}", "none, or the format deepseek-nvfp4")
    return tuple(sorted({*usual, *more}))


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"


def _shard_name(index: int, shards: int, format: str) -> str:
    if shards == 1:
        return "model.safetensors"
    # OpenAI's own files have two dashes.
    dash = "--" if format == "original" else "-"
    return f"model{dash}{index + 1:05d}-of-{shards:05d}.safetensors"


def _original_dtype(name: str) -> str:
    return {"blocks": "FP4", "scales": "UE8"}.get(name.rpartition(".")[2], "BF16")


def _serialized(values: Mapping[str, Array], tensors: Mapping[str, TensorSpec]) -> bytes:
    from safetensors.numpy import save

    # The library takes the dtype of an array, and codes are uint8 everywhere else.
    typed = {
        name: value.view(ml_dtypes.float8_e4m3fn) if tensors[name].dtype == "F8_E4M3" else value
        for name, value in values.items()
    }
    return bytes(save(typed, metadata={"format": "pt"}))
