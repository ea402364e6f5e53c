"""What NVIDIA's ModelOpt says of a checkpoint that it quantized to NVFP4.

It says it in hf_quant_config.json, and newer versions in config.json's `quantization_config` too:

    hf_quant_config.json    producer, quantization: quant_algo, group_size, kv_cache_quant_algo, exclude_modules
    quantization_config     quant_method "modelopt", quant_algo, ignore, config_groups with bits and group_size

A linear layer NAME that no wildcard of `exclude_modules` matches is then four tensors:

    NAME.weight             U8 [N, K/2]         E2M1 codes, the even element in the low nibble
    NAME.weight_scale       F8_E4M3 [N, K/16]   a scale for 16 elements
    NAME.weight_scale_2     F32 []              value = code * weight_scale * weight_scale_2
    NAME.input_scale        F32 []              the same of the layer's input, from calibration

gpt-oss's experts are no linear layers but two tensors a layer, NAME = model.layers.N.mlp.experts.gate_up_proj and
down_proj, transposed as their BF16 form is, with one factor for all experts of a layer:

    NAME                    U8 [E, K/2, N]
    NAME_weight_scale       F8_E4M3 [E, K/16, N]
    NAME_weight_scale_2     F32 []
    NAME_input_scale        F32 []

Sources: modelopt/torch/export/convert_hf_config.py of NVIDIA/Model-Optimizer; hf_quant_config.json of
nvidia/DeepSeek-R1-NVFP4; vllm/model_executor/layers/quantization/modelopt.py. For gpt-oss: Model-Optimizer's
`maybe_transpose_expert_weight_dimensions` (modelopt/torch/export/quant_utils.py); TensorRT-LLM's weight loading mode
FUSED_GATE_UP_PROJ, which transposes back; the names in the index of mmangkad/gpt-oss-120b-nvfp4, as a test of SGLang
lists them. No published weight was read.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.formats import NVFP4
from refmoe.models.config import DeepSeekConfig, GptOssConfig
from refmoe.models.tensor_file import CheckpointError
from refmoe.models.tensor_set import read_json
from refmoe.reference.nvfp4 import NVFP4Tensor
from refmoe.reference.tensor import NVFP4Experts

FILE = "hf_quant_config.json"
METHOD, ALGORITHM = "modelopt", "NVFP4"


@dataclass(frozen=True, eq=False)
class NVFP4Linear:
    """A linear layer that ModelOpt quantized.

    Attributes:
        weight: codes and scales are views of the file.
        input_scale: FP32, the global decode scale that calibration found for the layer's input.
    """

    weight: NVFP4Tensor
    input_scale: np.float32

    @property
    def shape(self) -> tuple[int, ...]:
        """[N, K]."""
        return self.weight.shape


def says_modelopt(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether a folder with this config.json says that ModelOpt quantized it."""
    quantization = config.get("quantization_config")
    named = isinstance(quantization, Mapping) and quantization.get("quant_method") == METHOD
    return named or (folder / FILE).exists()


def excluded_modules(folder: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    """The wildcards of modules that are not quantized, sorted, from either file or from both.

    Raises:
        CheckpointError: a file that is no JSON, another algorithm than NVFP4, other groups than 16, wildcards that are
            no list of strings, or two files that contradict each other.
    """
    found: dict[Path, tuple[str, ...]] = {}
    if (folder / FILE).exists():
        found[folder / FILE] = _of_own_file(folder / FILE)
    if config.get("quantization_config") is not None:
        found[folder / "config.json"] = _of_config(folder / "config.json", config["quantization_config"])
    if len(set(found.values())) > 1:
        mine, theirs = found.values()
        odd = sorted(set(mine) ^ set(theirs))[0]
        raise CheckpointError(folder / FILE, None, f"{odd!r} excluded in one file alone", "what config.json excludes")
    return next(iter(found.values()))


def quantizes(excluded: tuple[str, ...]) -> Callable[[str], bool]:
    """Whether a module of some name is quantized: no wildcard of `excluded` matches it whole.

    `*`, `?` and `[...]` are those of a shell; a dot is a letter like any other.
    """
    names = {pattern for pattern in excluded if not re.search(r"[*?\[]", pattern)}
    # Most of a list are plain names, and a model has tens of thousands of modules.
    wild = [fnmatch.translate(pattern) for pattern in excluded if pattern not in names]
    matches = re.compile("|".join(wild)).match if wild else lambda module: None
    return lambda module: module not in names and matches(module) is None


def own_file(excluded: tuple[str, ...]) -> dict[str, Any]:
    """hf_quant_config.json."""
    quantization = {
        "quant_algo": ALGORITHM,
        "kv_cache_quant_algo": None,
        "group_size": NVFP4.block,
        "exclude_modules": list(excluded),
    }
    return {"producer": {"name": "modelopt", "version": "0.0.0+refmoe"}, "quantization": quantization}


def quantization_config(excluded: tuple[str, ...]) -> dict[str, Any]:
    """config.json's `quantization_config`."""
    four_bits = {"dynamic": False, "num_bits": NVFP4.element.bits, "type": "float", "group_size": NVFP4.block}
    group = {"input_activations": four_bits, "weights": dict(four_bits), "targets": ["Linear"]}
    return {
        "config_groups": {"group_0": group},
        "ignore": list(excluded),
        "quant_algo": ALGORITHM,
        "producer": own_file(excluded)["producer"],
        "quant_method": METHOD,
    }


def deepseek_excluded(config: DeepSeekConfig) -> tuple[str, ...]:
    """What nvidia/DeepSeek-R1-NVFP4 leaves in BF16: attention, routers, norms, embedding and head."""
    parts = ("input_layernorm", "mlp.gate", "post_attention_layernorm", "self_attn*")
    layers = [f"model.layers.{layer}.{part}" for layer in range(config.num_hidden_layers) for part in parts]
    return tuple(sorted(["lm_head", "model.embed_tokens", "model.norm", *layers]))


def gpt_oss_excluded(config: GptOssConfig) -> tuple[str, ...]:
    """What a gpt-oss whose experts alone are quantized leaves in BF16, in the way of DeepSeek's list."""
    parts = ("input_layernorm", "mlp.router", "post_attention_layernorm", "self_attn*")
    layers = [f"model.layers.{layer}.{part}" for layer in range(config.num_hidden_layers) for part in parts]
    return tuple(sorted(["lm_head", "model.embed_tokens", "model.norm", *layers]))


def _of_own_file(path: Path) -> tuple[str, ...]:
    said = read_json(path).get("quantization")
    if not isinstance(said, Mapping):
        raise CheckpointError(path, None, "no quantization", "an object with quant_algo, group_size, exclude_modules")
    _needs(path, "quantization.quant_algo", said.get("quant_algo"), ALGORITHM)
    _needs(path, "quantization.group_size", said.get("group_size"), NVFP4.block)
    return _wildcards(path, "quantization.exclude_modules", said.get("exclude_modules"))


def _of_config(path: Path, said: object) -> tuple[str, ...]:
    if not isinstance(said, Mapping):
        raise CheckpointError(path, None, f"quantization_config: {describe(said)}", "a JSON object")
    for key, needed in (("quant_method", METHOD), ("quant_algo", ALGORITHM)):
        _needs(path, f"quantization_config.{key}", said.get(key), needed)
    groups = said.get("config_groups", {})
    for name, group in groups.items() if isinstance(groups, Mapping) else [("", groups)]:
        weights = group.get("weights") if isinstance(group, Mapping) else None
        where = f"quantization_config.config_groups.{name}.weights"
        if not isinstance(weights, Mapping):
            raise CheckpointError(path, None, f"{where}: {describe(weights)}", "a JSON object")
        wanted: dict[str, object] = {"num_bits": NVFP4.element.bits, "type": "float", "group_size": NVFP4.block}
        for key, value in wanted.items():
            _needs(path, f"{where}.{key}", weights.get(key), value)
    return _wildcards(path, "quantization_config.ignore", said.get("ignore"))


def _needs(path: Path, key: str, value: object, needed: object) -> None:
    if type(value) is not type(needed) or value != needed:
        raise CheckpointError(path, None, f"{key}: {describe(value)}", repr(needed))


def _wildcards(path: Path, key: str, value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(pattern, str) for pattern in value):
        raise CheckpointError(path, None, f"{key}: {describe(value)}", "a list of names with wildcards")
    return tuple(sorted(set(value)))


def checked_nvfp4(path: Path, name: str, linear: Callable[[str], Any]) -> NVFP4Linear:
    """The layer `name`, whose tensors `linear` gives.

    Raises:
        CheckpointError: a scale of the whole tensor that is not above 0 and finite, or a negative block scale.
    """
    scales = linear(f"{name}.weight_scale")
    _refuse_negative(path, f"{name}.weight_scale", scales)
    weight_scale, input_scale = (_factor(path, f"{name}.{each}", linear) for each in ("weight_scale_2", "input_scale"))
    try:
        tensor = NVFP4Tensor(linear(f"{name}.weight"), scales, weight_scale)
    except ArgumentError as error:  # the schema has checked all that a header says
        raise CheckpointError(path, f"{name}.weight", error.found, error.needed) from error
    return NVFP4Linear(tensor, input_scale)


def checked_experts(path: Path, name: str, tensor: Callable[[str], Any]) -> NVFP4Experts:
    """The experts' matrix `name` of gpt-oss, whose tensors `tensor` gives. Codes and scales are copies, N before K.

    Raises:
        CheckpointError: as `checked_nvfp4`, or a factor without a finite reciprocal.
    """
    scales = tensor(f"{name}_weight_scale")
    _refuse_negative(path, f"{name}_weight_scale", scales)
    weight_scale, input_scale = (
        np.full(len(scales), _factor(path, f"{name}_{each}", tensor)) for each in ("weight_scale_2", "input_scale")
    )
    codes, scales = (np.ascontiguousarray(each.swapaxes(1, 2)) for each in (tensor(name), scales))
    try:
        return NVFP4Experts(codes, scales, weight_scale, input_scale)
    except ArgumentError as error:  # the schema has checked all that a header says
        raise CheckpointError(path, name, error.found, error.needed) from error


def _factor(path: Path, name: str, tensor: Callable[[str], Any]) -> np.float32:
    """A number for a whole tensor."""
    factor: np.float32 = np.float32(tensor(name)[()])
    if not 0 < factor < np.inf:
        raise CheckpointError(path, name, f"{factor}", "a number above 0, finite")
    return factor


def _refuse_negative(path: Path, name: str, scales: NDArray[np.uint8]) -> None:
    """Refuse negative block scales: the hardware's UE4M3 ignores the sign bit and readers of E4M3 do not."""
    # Minus zero (0x80) and both NaNs mean the same with the sign bit and without.
    negative = (scales > 0x80) & (scales < 0xFF)
    if negative.any():
        index = tuple(np.argwhere(negative)[0].tolist())
        found = f"the negative scale 0x{int(scales[index]):02X} at {list(index)}"
        raise CheckpointError(path, name, found, "scales of at least 0")
