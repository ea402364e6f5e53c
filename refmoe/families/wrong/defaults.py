"""The defaults of the functions that cases call, written down a second time.

A case leaves out what has its default. If the function itself said what that is, a default that is wrong would be left
out where it is right, and given where it is wrong: no case would show it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

_FILL: Mapping[str, Any] = {"fill": 0}
_POLICY: Mapping[str, Any] = {"mode": "rceil", "edge": "exact"}
_RANK: Mapping[str, Any] = {"first_expert": 0, **_FILL}
_BIAS: Mapping[str, Any] = {"bias": None, **_RANK}
_OUT: Mapping[str, Any] = {"out_dtype": np.dtype(ml_dtypes.bfloat16)}
_SWIGLU: Mapping[str, Any] = {
    **{"variant": "gpt_oss", "swiglu_alpha": None, "swiglu_beta": None, "swiglu_limit": None},
    **_FILL,
}
_BLOCK_FP8: Mapping[str, Any] = {"policy": "deepgemm", "scales": "fp32", "layout": "k_major", **_FILL}
_PRODUCT: Mapping[str, Any] = {"tile": None, "stages": None, "alpha": None, "bias": None, "out_dtype": "bf16", **_FILL}
_DEEPSEEK_PRODUCT: Mapping[str, Any] = {
    **{"model": None, "scale_layout": "k_major", "tile_m": None, "ctas": 1, "out_dtype": "bf16", "blocks": None},
    **_FILL,
}
_DEEPSEEK_LAYER: Mapping[str, Any] = {"rules": None, "layout": "k_major", "model": None, **_FILL}

#: By module below refmoe.cuda and name. An enumeration's member is written as the word that stands for it.
DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "activation.swiglu_quantize": {**_SWIGLU, **_POLICY, "bias": None, "layout": "128x4"},
        "block_fp8.quantize_block_fp8": {"block": "1x128", **_BLOCK_FP8},
        "deepseek.activation.swiglu_block_fp8": _BLOCK_FP8,
        "deepseek.activation.swiglu_block_fp8_masked": _BLOCK_FP8,
        "deepseek.expand.expand_block_fp8": _BLOCK_FP8,
        "deepseek.finalize.finalize_shared": {"scale": 1.0, "order": "fp32", **_OUT, **_FILL},
        "deepseek.routing.route_grouped": {"rule": "deepseek", **_RANK},
        "deepseek.routing.try_route_grouped": {"rule": "deepseek", **_RANK},
        "deepseek_gemm.deepseek_gemm": _DEEPSEEK_PRODUCT,
        "deepseek_gemm.deepseek_gemm_masked": {"expected_m": None, **_DEEPSEEK_PRODUCT},
        "dp4a.dp4a_gemv": {"row_of_choice": None, "input_by_choice": False, "alpha": None, **_OUT, **_BIAS},
        "expand.expand": {**_POLICY, "layout": "128x4", "input_sf": None, "input_sf_layout": "linear", **_RANK},
        "expand.expand_as": {"encode_scale": None, "prescale": None, "layout": "128x4", **_RANK},
        "finalize.finalize": {"topk_ids": None, **_OUT, **_BIAS},
        "finalize_q8_1.finalize_q8_1": {"topk_ids": None, "quantizer": "llama_cpp_mmvq", **_BIAS},
        "gemm.choice.choose_tile": {"arch": "sm_120a", "min_latency": False},
        "gemm.kernel.grouped_gemm": _PRODUCT,
        "gemm.tile.check_tile": {"arch": "sm_120a", "stages": None, "cluster": (1, 1, 1)},
        "moe.arrays.layer_launches": _FILL,
        "moe.deepseek.deepseek_launches": _DEEPSEEK_LAYER,
        "moe.deepseek.deepseek_moe": _DEEPSEEK_LAYER,
        "moe.deepseek.DeepSeekArguments": {
            **dict.fromkeys(("logits", "correction_bias", "topk_ids", "topk_weights", "shared")),
            **{"groups": 1, "top_groups": 1, "scale": 1.0, "first_expert": 0},
        },
        "moe.deepseek.layer_arguments": {"first_expert": 0},
        "moe.fused.fused_moe": {
            **dict.fromkeys(("fc1_expert_biases", "fc2_expert_biases", "input_sf", "output", "device", "backend")),
            **dict.fromkeys(("swiglu_alpha", "swiglu_beta", "swiglu_limit")),
            **{"tp_size": 1, "tp_rank": 0, "ep_size": 1, "ep_rank": 0},
            **{"min_latency_mode": False, "quantize_in_expand": True, "use_mxfp8_act_scaling": True},
            **{"activation": "gpt_oss", "scale_mode": "rceil", "edge_policy": "exact"},
        },
        "moe.launches.LayerOptions": {
            **{"quantization": "fused", "dtype": "bf16", "variant": "gpt_oss"},
            **{**_POLICY, "input_sf_layout": "linear", "min_latency": False},
        },
        "moe.launches.LayerShape": {"first_expert": 0},
        "nvfp4.quantize_nvfp4": {"layout": "linear", **_FILL},
        "nvfp4_gemm.nvfp4_grouped_gemm": _PRODUCT,
        "q8_1.quantize_q8_1": {"variant": "llama_cpp_mmvq", **_FILL},
        "quantize.quantize_mxfp8": {**_POLICY, "layout": "linear", **_FILL},
        "routing.permute": _RANK,
        "routing.route": _BIAS,
        "routing.try_route": _BIAS,
        "swiglu_q8_1.swiglu_q8_1": {**_SWIGLU, "quantizer": "llama_cpp_mmvq"},
    }
)
