"""The paths through a DeepSeek-V3 layer in NVFP4, as lists of steps.

A backend that takes NVFP4 weights takes them of such a layer too: `nvfp4` with NVFP4 tokens, `marlin` with BF16 tokens.
Beside its steps for other layers it then has DeepSeek's router and a shared expert.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from refmoe.errors import ArgumentError
from refmoe.formats import NVFP4
from refmoe.reference.backends import BACKENDS, choose_backend
from refmoe.reference.deepseek import nvfp4_path
from refmoe.reference.mma import AccumulationModel, Evidence
from refmoe.reference.moe.paths import PathStep, path_steps

_ROUTING = PathStep("routing", (), nvfp4_path.route)
_FINALIZE = PathStep("finalize", ("BF16 -> FP32", "FP32 -> BF16"), nvfp4_path.finalize)
_NVFP4_PRODUCT = ("NVFP4 x NVFP4 -> FP32", "FP32 -> BF16")
_BF16_PRODUCT = ("FP4 -> BF16", "BF16 x BF16 -> FP32", "FP32 -> BF16")

DEEPSEEK_NVFP4_PATHS: Mapping[str, tuple[PathStep, ...]] = MappingProxyType(
    {
        "nvfp4": (
            _ROUTING,
            PathStep("expand", ("BF16 -> NVFP4",), nvfp4_path.expand_nvfp4),
            PathStep("gemm1", _NVFP4_PRODUCT, nvfp4_path.gemm1_nvfp4),
            PathStep("activation", ("BF16 -> FP32", "FP32 -> BF16", "BF16 -> NVFP4"), nvfp4_path.activate_nvfp4),
            PathStep("gemm2", _NVFP4_PRODUCT, nvfp4_path.gemm2_nvfp4),
            # Its own tokens, beside those of the routed experts: nothing that a routed row goes through.
            PathStep("shared", (), nvfp4_path.shared_nvfp4),
            _FINALIZE,
        ),
        "marlin": (
            _ROUTING,
            PathStep("expand", (), nvfp4_path.expand_bf16),
            PathStep("gemm1", _BF16_PRODUCT, nvfp4_path.gemm1_bf16),
            PathStep("activation", ("BF16 -> FP32", "FP32 -> BF16"), nvfp4_path.activate_bf16),
            PathStep("gemm2", _BF16_PRODUCT, nvfp4_path.gemm2_bf16),
            PathStep("shared", (), nvfp4_path.shared_bf16),
            _FINALIZE,
        ),
    }
)
"""The steps by backend."""


def deepseek_nvfp4_steps(path: str, quantization: str = "separate", output: str = "bf16") -> tuple[PathStep, ...]:
    """The steps of a path through such a layer, in order.

    Args:
        path: a backend's name, in upper or lower case.
        quantization: as in `path_steps`.
        output: likewise.

    Raises:
        ArgumentError: as `path_steps`, or a backend that does not take NVFP4 weights.
    """
    path_steps(path, quantization, output)
    name = choose_backend(path).name
    if name not in DEEPSEEK_NVFP4_PATHS:
        taking = ", ".join(DEEPSEEK_NVFP4_PATHS)
        needed = f"{' or '.join(BACKENDS[name].weights)} weights, or one of the paths {taking}"
        raise ArgumentError("layer", f"{NVFP4.name} weights with {name}", needed)
    return DEEPSEEK_NVFP4_PATHS[name]


def evidence_with_bf16(routed: Evidence, model: AccumulationModel) -> Evidence:
    """What a layer rests on whose shared expert is BF16: as its routed experts, if both add up by one model.

    On `nvfp4` they do not: the shared expert's sums are those of another chip's `mma.sync` of BF16.
    """
    return routed if nvfp4_path.shared_model(model) is model else Evidence.EXTRAPOLATED
