"""Names, dtypes and shapes of every tensor of a checkpoint, as data.

Sources: the published checkpoints openai/gpt-oss-20b (459 tensors), its `original` folder (363), and
deepseek-ai/DeepSeek-V3. For NVFP4 see `refmoe.models.modelopt`, for GGUF `refmoe.models.gguf.names`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from refmoe.errors import ArgumentError
from refmoe.formats import MXFP4, NVFP4
from refmoe.models.config import DeepSeekConfig, GptOssConfig

SCALE_BLOCK = 128
"""Rows and columns of a DeepSeek weight that share a scale."""


@dataclass(frozen=True)
class TensorSpec:
    """What a tensor has to be.

    Attributes:
        dtype: safetensors' name of its dtype, or ggml's of its type.
        shape: its dimensions.
        also: other dtypes that it may have; the writer takes `dtype`.
    """

    dtype: str
    shape: tuple[int, ...]
    also: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """As errors say it, "BF16 [8, 96]"."""
        return f"{' or '.join((self.dtype, *self.also))} {list(self.shape)}"


Tensors = dict[str, TensorSpec]

Linear = Callable[[str, int, int], Tensors]
"""The tensors of a linear layer without bias: name, rows, columns."""


def huggingface_tensors(config: GptOssConfig) -> Tensors:
    """The tensors of gpt-oss under their Hugging Face names."""
    heads, kv_heads, _ = config.qkv_rows
    width, experts = config.hidden_size, config.num_local_experts
    tensors = _outer(config)
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        tensors |= {
            f"{prefix}input_layernorm.weight": _bf16(width),
            f"{prefix}self_attn.sinks": _bf16(config.num_attention_heads),
            **_linear(f"{prefix}self_attn.q_proj", heads, width),
            **_linear(f"{prefix}self_attn.k_proj", kv_heads, width),
            **_linear(f"{prefix}self_attn.v_proj", kv_heads, width),
            **_linear(f"{prefix}self_attn.o_proj", width, heads),
            f"{prefix}post_attention_layernorm.weight": _bf16(width),
            **_linear(f"{prefix}mlp.router", experts, width),
            **_experts(f"{prefix}mlp.experts.", config),
        }
    return tensors


def gpt_oss_nvfp4_tensors(config: GptOssConfig) -> Tensors:
    """The tensors of gpt-oss as ModelOpt stores it: those of Hugging Face, but experts in NVFP4, K before N."""
    experts, of_experts = config.num_local_experts, ".mlp.experts."
    tensors = {name: spec for name, spec in huggingface_tensors(config).items() if of_experts not in name}
    for layer in range(config.num_hidden_layers):
        for matrix, rows, columns in _expert_matrices(config):
            name = f"model.layers.{layer}{of_experts}{matrix}"
            tensors |= {
                name: TensorSpec("U8", (experts, columns // NVFP4.codes_a_byte, rows)),
                f"{name}_weight_scale": TensorSpec("F8_E4M3", (experts, columns // NVFP4.block, rows)),
                f"{name}_weight_scale_2": TensorSpec("F32", ()),
                f"{name}_input_scale": TensorSpec("F32", ()),
                f"{name}_bias": _bf16(experts, rows),
            }
    return tensors


def original_tensors(config: GptOssConfig) -> Tensors:
    """The tensors of gpt-oss under OpenAI's names."""
    tensors = {}
    for name, parts in original_parts(config).items():
        first, rows = next(iter(parts.values())), sum(part.shape[0] for part in parts.values())
        tensors[name] = TensorSpec(first.dtype, (rows, *first.shape[1:]))
    return tensors


def original_parts(config: GptOssConfig) -> dict[str, Tensors]:
    """By OpenAI's name the Hugging Face tensors whose rows it holds: q, k and v one after another, elsewhere one."""
    parts: dict[str, Tensors] = {}
    for name, spec in huggingface_tensors(config).items():
        if name.startswith("model.layers."):
            layer, rest = name.removeprefix("model.layers.").split(".", 1)
            original = f"block.{layer}.{_ORIGINAL_NAMES[rest]}"
        else:
            original = _ORIGINAL_NAMES[name]
        parts.setdefault(original, {})[name] = spec
    return parts


_ORIGINAL_NAMES = {
    "model.embed_tokens.weight": "embedding.weight",
    "model.norm.weight": "norm.scale",
    "lm_head.weight": "unembedding.weight",
    "input_layernorm.weight": "attn.norm.scale",
    "self_attn.sinks": "attn.sinks",
    **{f"self_attn.{part}_proj.{kind}": f"attn.qkv.{kind}" for part in "qkv" for kind in ("weight", "bias")},
    "self_attn.o_proj.weight": "attn.out.weight",
    "self_attn.o_proj.bias": "attn.out.bias",
    "post_attention_layernorm.weight": "mlp.norm.scale",
    "mlp.router.weight": "mlp.gate.weight",
    "mlp.router.bias": "mlp.gate.bias",
    "mlp.experts.gate_up_proj_blocks": "mlp.mlp1_weight.blocks",
    "mlp.experts.gate_up_proj_scales": "mlp.mlp1_weight.scales",
    "mlp.experts.gate_up_proj_bias": "mlp.mlp1_bias",
    "mlp.experts.down_proj_blocks": "mlp.mlp2_weight.blocks",
    "mlp.experts.down_proj_scales": "mlp.mlp2_weight.scales",
    "mlp.experts.down_proj_bias": "mlp.mlp2_bias",
}
"""OpenAI's names, within a layer for what is within a layer, by Hugging Face's."""


def deepseek_tensors(config: DeepSeekConfig) -> Tensors:
    """The tensors of DeepSeek-V3, without the layers for multi-token prediction that the published one ends with."""
    return _deepseek(config, _block_scaled)


def deepseek_nvfp4_tensors(config: DeepSeekConfig, quantizes: Callable[[str], bool]) -> Tensors:
    """Those of DeepSeek-V3 as ModelOpt stores it.

    Args:
        config: the sizes.
        quantizes: whether the linear layer of some name is NVFP4; one that is not is BF16.

    Raises:
        ArgumentError: a layer in NVFP4 whose columns are no multiple of 16.
    """

    def linear(name: str, rows: int, columns: int) -> Tensors:
        return _nvfp4(name, rows, columns) if quantizes(name) else {f"{name}.weight": _bf16(rows, columns)}

    tensors = _deepseek(config, linear)
    return tensors | linear("lm_head", config.vocab_size, config.hidden_size)


def _deepseek(config: DeepSeekConfig, linear: Linear) -> Tensors:
    width = config.hidden_size
    tensors = _outer(config)
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        tensors |= {
            f"{prefix}input_layernorm.weight": _bf16(width),
            f"{prefix}post_attention_layernorm.weight": _bf16(width),
            **_latent_attention(f"{prefix}self_attn.", config, linear),
        }
        if layer < config.first_k_dense_replace:
            tensors |= _feed_forward(f"{prefix}mlp.", config.intermediate_size, width, linear)
            continue
        shared = config.n_shared_experts * config.moe_intermediate_size
        tensors |= {
            f"{prefix}mlp.gate.weight": _bf16(config.n_routed_experts, width),
            # DeepSeek's own code stored it in the model's dtype before it asked for FP32.
            f"{prefix}mlp.gate.e_score_correction_bias": TensorSpec("F32", (config.n_routed_experts,), also=("BF16",)),
            **_feed_forward(f"{prefix}mlp.shared_experts.", shared, width, linear),
        }
        for expert in range(config.n_routed_experts):
            tensors |= _feed_forward(f"{prefix}mlp.experts.{expert}.", config.moe_intermediate_size, width, linear)
    return tensors


def _outer(config: GptOssConfig | DeepSeekConfig) -> Tensors:
    """What is before and behind the layers."""
    return {
        "model.embed_tokens.weight": _bf16(config.vocab_size, config.hidden_size),
        "model.norm.weight": _bf16(config.hidden_size),
        "lm_head.weight": _bf16(config.vocab_size, config.hidden_size),
    }


def _bf16(*shape: int) -> TensorSpec:
    return TensorSpec("BF16", shape)


def _linear(name: str, rows: int, columns: int) -> Tensors:
    return {f"{name}.weight": _bf16(rows, columns), f"{name}.bias": _bf16(rows)}


def _experts(prefix: str, config: GptOssConfig) -> Tensors:
    """MXFP4 weights, a block of 32 in 16 bytes, even element in the low nibble; gate rows even, up rows odd."""
    tensors, experts = {}, config.num_local_experts
    for name, rows, columns in _expert_matrices(config):
        blocks = columns // MXFP4.block
        tensors[f"{prefix}{name}_blocks"] = TensorSpec("U8", (experts, rows, blocks, MXFP4.block_bytes))
        tensors[f"{prefix}{name}_scales"] = TensorSpec("U8", (experts, rows, blocks))
        tensors[f"{prefix}{name}_bias"] = _bf16(experts, rows)
    return tensors


def _expert_matrices(config: GptOssConfig) -> tuple[tuple[str, int, int], ...]:
    """Both matrices of an expert of gpt-oss: name, rows, columns."""
    width, inner = config.hidden_size, config.intermediate_size
    return ("gate_up_proj", 2 * inner, width), ("down_proj", width, inner)


def _block_scaled(name: str, rows: int, columns: int) -> Tensors:
    scales = (-(-rows // SCALE_BLOCK), -(-columns // SCALE_BLOCK))
    return {
        f"{name}.weight": TensorSpec("F8_E4M3", (rows, columns)),
        f"{name}.weight_scale_inv": TensorSpec("F32", scales),
    }


def _nvfp4(name: str, rows: int, columns: int) -> Tensors:
    if columns % NVFP4.block:
        raise ArgumentError(name, f"{columns} columns", f"a multiple of {NVFP4.block} for NVFP4")
    return {
        f"{name}.weight": TensorSpec("U8", (rows, columns // NVFP4.codes_a_byte)),
        f"{name}.weight_scale": TensorSpec("F8_E4M3", (rows, columns // NVFP4.block)),
        f"{name}.weight_scale_2": TensorSpec("F32", ()),
        f"{name}.input_scale": TensorSpec("F32", ()),
    }


def _feed_forward(prefix: str, inner: int, width: int, linear: Linear) -> Tensors:
    return {
        **linear(f"{prefix}gate_proj", inner, width),
        **linear(f"{prefix}up_proj", inner, width),
        **linear(f"{prefix}down_proj", width, inner),
    }


def _latent_attention(prefix: str, config: DeepSeekConfig, linear: Linear) -> Tensors:
    heads, width = config.num_attention_heads, config.hidden_size
    query = heads * (config.qk_nope_head_dim + config.qk_rope_head_dim)
    return {
        f"{prefix}q_a_layernorm.weight": _bf16(config.q_lora_rank),
        f"{prefix}kv_a_layernorm.weight": _bf16(config.kv_lora_rank),
        **linear(f"{prefix}q_a_proj", config.q_lora_rank, width),
        **linear(f"{prefix}q_b_proj", query, config.q_lora_rank),
        **linear(f"{prefix}kv_a_proj_with_mqa", config.kv_lora_rank + config.qk_rope_head_dim, width),
        **linear(f"{prefix}kv_b_proj", heads * (config.qk_nope_head_dim + config.v_head_dim), config.kv_lora_rank),
        **linear(f"{prefix}o_proj", width, heads * config.v_head_dim),
    }
