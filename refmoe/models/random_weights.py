"""Random weights that behave like trained ones, the same for a seed on every machine.

Projections keep the size of their input (standard deviation about 1/sqrt(K)), MXFP4 codes are uniform over all sixteen
with three neighbouring scale bytes a tensor, norms are near 1, and logits spread enough that a softmax of them has a
clear favourite. Every value is made of integers (`Draw`), IEEE products and one conversion.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.formats import E4M3, MXFP4, NVFP4, UE4M3
from refmoe.models.schema import SCALE_BLOCK, TensorSpec
from refmoe.models.tensor_file import DTYPES

Array = NDArray[Any]

#: Standard deviation of `Draw.normal`.
_NORMAL_STD = 2 / math.sqrt(3)
#: Exponent fields of the E4M3 codes that are drawn: normal numbers of five binades.
_E4M3_FIELDS = range(1, 6)
_E4M3_MANTISSAS = 8
#: About the factor that a whole NVFP4 tensor has; block scales make up the rest.
_NVFP4_FACTOR = 2.0**-11
#: About that of tokens, whose magnitudes then reach 448 * 6 / 256, about 10.
_NVFP4_TOKENS = 2.0**-8

_DRAWN_E4M3 = E4M3.values()[_E4M3_FIELDS.start * _E4M3_MANTISSAS : _E4M3_FIELDS.stop * _E4M3_MANTISSAS]
_E2M1_RMS, _E4M3_RMS = (math.sqrt(float(np.mean(values**2))) for values in (MXFP4.element.values(), _DRAWN_E4M3))

#: Standard deviation by the end of a name; elsewhere 1/sqrt(K).
_DEVIATIONS = {
    "embed_tokens.weight": 1.0,
    "sinks": 1.0,
    "norm.weight": 0.1,
    "bias": 0.1,
}


def random_tensor(name: str, spec: TensorSpec, seed: int) -> Array:
    """A random tensor of this dtype and shape, drawn from the seed and its Hugging Face name; FP8 codes are uint8."""
    draw = Draw("checkpoint", seed, name)
    if (nvfp4 := _drawn_nvfp4(name, spec, seed)) is not None:
        return nvfp4
    if spec.dtype == "F8_E4M3":
        magnitude = draw.integers(len(_E4M3_FIELDS) * _E4M3_MANTISSAS, spec.shape)
        magnitude += _E4M3_FIELDS.start * _E4M3_MANTISSAS
        return (magnitude | draw.integers(2, spec.shape) << 7).astype(np.uint8)
    if name.endswith("_blocks"):
        size = math.prod(spec.shape)
        return draw.words(-(-size // 8)).view(np.uint8)[:size].reshape(spec.shape)
    if name.endswith("_scales"):
        middle = 127 - round(math.log2(_E2M1_RMS * math.sqrt(MXFP4.block * spec.shape[-1])))
        return (draw.integers(3, spec.shape) + middle - 1).astype(np.uint8)
    if name.endswith("_scale_inv"):
        # 0.75 to 1.25 times what brings the codes to 1/sqrt(K).
        scale = 1 / (_E4M3_RMS * math.sqrt(SCALE_BLOCK * spec.shape[-1]))
        return ((draw.integers(65, spec.shape) + 96) / 128 * scale).astype(np.float32)
    offset = 1 if name.endswith("norm.weight") else 0
    return (offset + draw.normal(spec.shape) / _NORMAL_STD * _deviation(name, spec)).astype(DTYPES[spec.dtype])


def _drawn_nvfp4(name: str, spec: TensorSpec, seed: int) -> Array | None:
    """A tensor of an NVFP4 layer: codes of all sixteen, three neighbouring scale bytes, two factors; else None."""
    # Servers multiply gate and up of an expert in one GEMM, and ModelOpt gives both the same two factors.
    draw = Draw("checkpoint", seed, name.replace("up_proj.", "gate_proj.") if spec.shape == () else name)
    if name.endswith(("weight_scale_2", "input_scale")):
        # 0.75 to 1.25 times a power of two.
        steps, factor = 1 << 17, _NVFP4_TOKENS if name.endswith("input_scale") else _NVFP4_FACTOR
        return np.asarray((draw.integers(steps // 2, (1,))[0] / steps + 0.75) * factor, np.float32)
    if name.endswith("weight_scale"):
        # gpt-oss's experts have K before N.
        blocks = spec.shape[-2] if name.endswith("_weight_scale") else spec.shape[-1]
        wanted = 1 / (_E2M1_RMS * math.sqrt(NVFP4.block * blocks) * _NVFP4_FACTOR)
        middle = int(np.searchsorted(UE4M3.values()[: UE4M3.max_code], wanted))
        return (draw.integers(3, spec.shape) + middle - 1).astype(np.uint8)
    if spec.dtype == "U8" and name.endswith((".weight", "_proj")):
        size = math.prod(spec.shape)
        return draw.words(-(-size // 8)).view(np.uint8)[:size].reshape(spec.shape)
    return None


def _deviation(name: str, spec: TensorSpec) -> float:
    for ending, deviation in _DEVIATIONS.items():
        if name.endswith(ending):
            return deviation
    return (2.0 if name == "lm_head.weight" else 1.0) / math.sqrt(spec.shape[-1])
