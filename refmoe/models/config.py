"""What a checkpoint's config.json says, for gpt-oss in both of its forms and for DeepSeek-V3.

Sources: config.json and original/config.json of openai/gpt-oss-20b and -120b; config.json of deepseek-ai/DeepSeek-V3.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from refmoe.errors import ArgumentError, describe
from refmoe.formats import MX_BLOCK

_WINDOWED, _FULL = "sliding_attention", "full_attention"
_INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True)
class GptOssConfig:
    """Sizes and constants of a gpt-oss model; the defaults are those of gpt-oss-20b.

    Attributes:
        num_hidden_layers: transformer blocks. Even ones see a sliding window, odd ones everything.
        num_local_experts: experts a layer, E.
        num_experts_per_tok: experts a token, k.
        vocab_size: tokens, V.
        hidden_size: width of the residual stream, H; a multiple of 32.
        intermediate_size: width inside an expert, I; a multiple of 32.
        num_attention_heads: query heads.
        num_key_value_heads: key and value heads; each serves the same number of query heads.
        head_dim: width of a head, even.
        sliding_window: positions that a query of a windowed layer sees, itself included.
        rms_norm_eps: added to the mean square; the original configuration does not carry it (1e-5).
        swiglu_limit: where gate and up are clamped.
        rope_theta: base of the rotary frequencies.
        rope_factor: by which YaRN stretches the context; 1 turns YaRN off.
        rope_beta_fast: rotations in the initial context above which a frequency keeps its value.
        rope_beta_slow: rotations below which a frequency is divided by the factor.
        initial_context_length: positions before stretching.
    """

    num_hidden_layers: int = 24
    num_local_experts: int = 32
    num_experts_per_tok: int = 4
    vocab_size: int = 201088
    hidden_size: int = 2880
    intermediate_size: int = 2880
    num_attention_heads: int = 64
    num_key_value_heads: int = 8
    head_dim: int = 64
    sliding_window: int = 128
    rms_norm_eps: float = 1e-5
    swiglu_limit: float = 7.0
    rope_theta: float = 150000.0
    rope_factor: float = 32.0
    rope_beta_fast: float = 32.0
    rope_beta_slow: float = 1.0
    initial_context_length: int = 4096

    def __post_init__(self) -> None:
        """Refuse sizes that no gpt-oss model can have."""
        _check_numbers(self)
        for name in ("hidden_size", "intermediate_size"):
            _check_multiple(name, getattr(self, name), MX_BLOCK)
        _check_multiple("num_attention_heads", self.num_attention_heads, self.num_key_value_heads)
        _check_multiple("head_dim", self.head_dim, 2)
        _check_at_most("num_experts_per_tok", self.num_experts_per_tok, self.num_local_experts)
        if self.rope_factor < 1:
            raise ArgumentError("rope_factor", str(self.rope_factor), "at least 1")
        if self.rope_theta <= 1:
            raise ArgumentError("rope_theta", str(self.rope_theta), "above 1")

    @property
    def layer_types(self) -> list[str]:
        """ "sliding_attention" or "full_attention" for each layer."""
        return [_FULL if layer % 2 else _WINDOWED for layer in range(self.num_hidden_layers)]

    @property
    def qkv_rows(self) -> tuple[int, int, int]:
        """Rows of the query, key and value projections."""
        heads, kv_heads = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        return heads, kv_heads, kv_heads

    def window(self, layer: int) -> int | None:
        """Positions that a query of `layer` sees, itself included; None for all."""
        return None if layer % 2 else self.sliding_window

    def to_huggingface(self, quantization: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The config.json of the Hugging Face form; `quantization` is its `quantization_config`, None for MXFP4's."""
        same = {name: getattr(self, name) for name in _SAME_IN_HUGGINGFACE}
        return {
            "architectures": ["GptOssForCausalLM"],
            "model_type": "gpt_oss",
            **same,
            "attention_bias": True,
            "attention_dropout": 0.0,
            "experts_per_token": self.num_experts_per_tok,
            "hidden_act": "silu",
            "initial_context_length": self.initial_context_length,
            "layer_types": self.layer_types,
            "max_position_embeddings": int(self.initial_context_length * self.rope_factor),
            "rope_scaling": {
                "beta_fast": self.rope_beta_fast,
                "beta_slow": self.rope_beta_slow,
                "factor": self.rope_factor,
                "original_max_position_embeddings": self.initial_context_length,
                "rope_type": "yarn",
                "truncate": False,
            },
            "rope_theta": self.rope_theta,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "quantization_config": dict(_MXFP4_CONFIG if quantization is None else quantization),
        }

    def to_original(self) -> dict[str, Any]:
        """The config.json of the original form. It has no place for `rms_norm_eps`.

        Raises:
            ArgumentError: `rms_norm_eps` is not 1e-5, which the original code has built in.
        """
        if self.rms_norm_eps != _ORIGINAL_EPS:
            raise ArgumentError("rms_norm_eps", str(self.rms_norm_eps), f"{_ORIGINAL_EPS} in the original form")
        return {theirs: getattr(self, ours) for ours, theirs in _ORIGINAL_NAMES.items()}

    @classmethod
    def from_huggingface(cls, config: Mapping[str, Any]) -> GptOssConfig:
        """Read the Hugging Face form, with `rope_scaling` and `rope_theta` or with `rope_parameters`.

        Raises:
            ArgumentError: a key is missing, the weights are not MXFP4, or as `sizes_of`.
        """
        method = _object(config, "quantization_config").get("quant_method")
        if method != _MXFP4_CONFIG["quant_method"]:
            raise ArgumentError(
                "quantization_config.quant_method", describe(method), repr(_MXFP4_CONFIG["quant_method"])
            )
        return cls.sizes_of(config)

    @classmethod
    def sizes_of(cls, config: Mapping[str, Any]) -> GptOssConfig:
        """Read all of the Hugging Face form but how the weights are quantized.

        Raises:
            ArgumentError: a key is missing or says something that this decoder does not compute.
        """
        rope = dict(_object(config, "rope_parameters" if config.get("rope_parameters") else "rope_scaling"))
        rope.setdefault("rope_theta", config.get("rope_theta"))
        # A missing "truncate" means true in transformers.
        for name, value, needed in (
            ("rope_scaling.rope_type", rope.get("rope_type"), "yarn"),
            ("rope_scaling.truncate", rope.get("truncate", True), False),
            ("rope_scaling.attention_factor", rope.get("attention_factor"), None),
            ("rope_scaling.mscale", rope.get("mscale"), None),
            ("attention_bias", config.get("attention_bias", True), True),
            ("tie_word_embeddings", config.get("tie_word_embeddings", False), False),
            ("swiglu_alpha", config.get("swiglu_alpha", 1.702), 1.702),
        ):
            if value != needed:
                raise ArgumentError(name, describe(value), repr(needed))
        made = cls(
            **{name: _value(config, name) for name in _SAME_IN_HUGGINGFACE},
            rope_theta=_value(rope, "rope_theta"),
            rope_factor=_value(rope, "factor"),
            rope_beta_fast=_value(rope, "beta_fast"),
            rope_beta_slow=_value(rope, "beta_slow"),
            initial_context_length=_value(rope, "original_max_position_embeddings"),
        )
        if config.get("layer_types", made.layer_types) != made.layer_types:
            raise ArgumentError("layer_types", describe(config["layer_types"]), "sliding and full attention in turn")
        return made

    @classmethod
    def from_original(cls, config: Mapping[str, Any]) -> GptOssConfig:
        """Read the original form.

        Raises:
            ArgumentError: a key is missing or of the wrong type.
        """
        return cls(**{ours: _value(config, theirs) for ours, theirs in _ORIGINAL_NAMES.items()})


_MXFP4_CONFIG: Mapping[str, Any] = {
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
    "quant_method": "mxfp4",
}

#: Everything but the rotation, for which Hugging Face has an object of its own.
_SAME_IN_HUGGINGFACE = tuple(
    field.name for field in fields(GptOssConfig) if not field.name.startswith(("rope_", "initial_context"))
)

_ORIGINAL_EPS = 1e-5
_RENAMED = {
    "num_local_experts": "num_experts",
    "num_experts_per_tok": "experts_per_token",
    "rope_factor": "rope_scaling_factor",
    "rope_beta_slow": "rope_ntk_alpha",
    "rope_beta_fast": "rope_ntk_beta",
}
#: The original form's names of all that it carries, by ours.
_ORIGINAL_NAMES = {
    field.name: _RENAMED.get(field.name, field.name) for field in fields(GptOssConfig) if field.name != "rms_norm_eps"
}


@dataclass(frozen=True)
class DeepSeekConfig:
    """Sizes of a DeepSeek-V3 model; the defaults are those of DeepSeek-V3 and R1. The names are config.json's.

    Attributes:
        num_hidden_layers: transformer blocks.
        first_k_dense_replace: the first blocks, whose feed-forward part is one dense network.
        vocab_size: tokens.
        hidden_size: width of the residual stream.
        intermediate_size: width of the dense feed-forward networks.
        moe_intermediate_size: width inside an expert.
        n_routed_experts: experts a layer.
        n_shared_experts: experts that every token goes to, stored as one network of that many times the width.
        num_experts_per_tok: routed experts a token.
        n_group: groups of routed experts.
        topk_group: groups that a token's experts may come from.
        routed_scaling_factor: on the normalised weights.
        num_attention_heads: heads.
        q_lora_rank: width of the compressed queries.
        kv_lora_rank: width of the compressed keys and values.
        qk_nope_head_dim: width of a head without position.
        qk_rope_head_dim: width of a head's rotated part.
        v_head_dim: width of a head's values.
    """

    num_hidden_layers: int = 61
    first_k_dense_replace: int = 3
    vocab_size: int = 129280
    hidden_size: int = 7168
    intermediate_size: int = 18432
    moe_intermediate_size: int = 2048
    n_routed_experts: int = 256
    n_shared_experts: int = 1
    num_experts_per_tok: int = 8
    n_group: int = 8
    topk_group: int = 4
    routed_scaling_factor: float = 2.5
    num_attention_heads: int = 128
    q_lora_rank: int = 1536
    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 128
    qk_rope_head_dim: int = 64
    v_head_dim: int = 128

    def __post_init__(self) -> None:
        """Refuse sizes that do not belong together."""
        _check_numbers(self, may_be_zero=("first_k_dense_replace",))
        _check_multiple("n_routed_experts", self.n_routed_experts, self.n_group)
        _check_at_most("first_k_dense_replace", self.first_k_dense_replace, self.num_hidden_layers)
        _check_at_most("num_experts_per_tok", self.num_experts_per_tok, self.n_routed_experts)
        _check_at_most("topk_group", self.topk_group, self.n_group)

    def to_huggingface(self, quantization: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The config.json; `quantization` is its `quantization_config`, None for DeepSeek's own."""
        return {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "hidden_act": "silu",
            **_SIGMOID_ROUTING,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "quantization_config": dict(quantization or dict(_BLOCK_FP8, activation_scheme="dynamic")),
        }

    @classmethod
    def from_huggingface(cls, config: Mapping[str, Any]) -> DeepSeekConfig:
        """Read the config.json.

        Raises:
            ArgumentError: a key is missing, the weights are not FP8 with a scale for 128 x 128 of them, or tokens are
                routed by another rule.
        """
        quantization = _object(config, "quantization_config")
        for key, needed in _BLOCK_FP8.items():
            if quantization.get(key) != needed:
                raise ArgumentError(f"quantization_config.{key}", describe(quantization.get(key)), repr(needed))
        return cls.sizes_of(config)

    @classmethod
    def sizes_of(cls, config: Mapping[str, Any]) -> DeepSeekConfig:
        """Read all of the config.json but how the weights are quantized.

        Raises:
            ArgumentError: a key is missing, or tokens are routed by another rule.
        """
        for key, needed in _SIGMOID_ROUTING.items():
            if config.get(key, needed) != needed:
                raise ArgumentError(key, describe(config[key]), repr(needed))
        return cls(**{field.name: _value(config, field.name) for field in fields(cls)})


_BLOCK_FP8: dict[str, Any] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
_SIGMOID_ROUTING: dict[str, Any] = {"norm_topk_prob": True, "scoring_func": "sigmoid", "topk_method": "noaux_tc"}


def _value(config: Mapping[str, Any], key: str) -> Any:
    if config.get(key) is None:
        raise ArgumentError(key, "no such key", "a value in config.json")
    return config[key]


def _object(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = _value(config, key)
    if not isinstance(value, Mapping):
        raise ArgumentError(key, describe(value), "a JSON object")
    return value


def _check_numbers(config: object, may_be_zero: Iterable[str] = ()) -> None:
    for field in fields(config):  # type: ignore[arg-type]
        value = getattr(config, field.name)
        integer = field.type == "int"
        right = isinstance(value, int if integer else (int, float)) and not isinstance(value, bool)
        limit = _INT32_MAX if integer else sys.float_info.max
        if not right or not 0 <= value <= limit or (value == 0 and field.name not in may_be_zero):
            raise ArgumentError(field.name, describe(value), f"a positive {'integer' if integer else 'number'}")


def _check_multiple(name: str, value: int, unit: int) -> None:
    if value % unit:
        raise ArgumentError(name, str(value), f"a multiple of {unit}")


def _check_at_most(name: str, value: int, limit: int) -> None:
    if value > limit:
        raise ArgumentError(name, str(value), f"at most {limit}")
