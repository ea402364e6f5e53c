"""The definition of every result: bit-exact references in NumPy."""

from __future__ import annotations

from refmoe.reference.activation import QuantizedRows, swiglu, swiglu_quantize
from refmoe.reference.backends import BACKENDS, choose_backend
from refmoe.reference.deepseek.layer import BlockFP8Expert, DeepSeekMoELayer, DeepSeekRules
from refmoe.reference.deepseek.nvfp4_layer import BF16Expert, DeepSeekNVFP4Layer, NVFP4Expert
from refmoe.reference.deepseek.routing import route_sigmoid_grouped_topk
from refmoe.reference.dequantize import dequantize_mxfp4, dequantize_mxfp8
from refmoe.reference.expand import Expanded, ExpandedAs, Permutation, build_permutation, expand, expand_as
from refmoe.reference.finalize import finalize
from refmoe.reference.gemm import dense_gemm, grouped_gemm, plain_fp8
from refmoe.reference.gguf.q8_0 import Q8_0Tensor
from refmoe.reference.layout import (
    expert_base_rows,
    expert_scale_rows,
    grouped_scale_rows,
    pack_fp4,
    scale_buffer_size,
    swizzle_scales,
    swizzle_weight_scales,
    unpack_fp4,
    unswizzle_scales,
)
from refmoe.reference.mma import tensor_core_mma
from refmoe.reference.moe import (
    Enclosure,
    MoELayer,
    MoEStages,
    layer_bound,
    layer_enclosure,
    moe_float64,
    moe_layer,
    path_steps,
)
from refmoe.reference.moe.masked import MaskedOperand, masked_operand
from refmoe.reference.nvfp4 import NVFP4Tensor, dequantize_nvfp4, nvfp4_encode_scale, quantize_nvfp4
from refmoe.reference.quantize import quantize, quantize_mxfp4, quantize_mxfp8
from refmoe.reference.routing import route_softmax_topk, router_logits
from refmoe.reference.tensor import MXTensor, dequantize

__all__ = [
    "BACKENDS",
    "BF16Expert",
    "BlockFP8Expert",
    "DeepSeekMoELayer",
    "DeepSeekNVFP4Layer",
    "DeepSeekRules",
    "Enclosure",
    "Expanded",
    "ExpandedAs",
    "MXTensor",
    "MaskedOperand",
    "MoELayer",
    "MoEStages",
    "NVFP4Expert",
    "NVFP4Tensor",
    "Permutation",
    "Q8_0Tensor",
    "QuantizedRows",
    "build_permutation",
    "choose_backend",
    "dense_gemm",
    "dequantize",
    "dequantize_mxfp4",
    "dequantize_mxfp8",
    "dequantize_nvfp4",
    "expand",
    "expand_as",
    "expert_base_rows",
    "expert_scale_rows",
    "finalize",
    "grouped_gemm",
    "grouped_scale_rows",
    "layer_bound",
    "layer_enclosure",
    "masked_operand",
    "moe_float64",
    "moe_layer",
    "nvfp4_encode_scale",
    "pack_fp4",
    "path_steps",
    "plain_fp8",
    "quantize",
    "quantize_mxfp4",
    "quantize_mxfp8",
    "quantize_nvfp4",
    "route_sigmoid_grouped_topk",
    "route_softmax_topk",
    "router_logits",
    "scale_buffer_size",
    "swiglu",
    "swiglu_quantize",
    "swizzle_scales",
    "swizzle_weight_scales",
    "tensor_core_mma",
    "unpack_fp4",
    "unswizzle_scales",
]
