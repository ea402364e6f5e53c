"""Kernels of other packages under their contracts, ready for `refmoe_cases`.

Each is a function that makes a `UserKernel`; where the package or the GPU is missing, its cases are SKIPPED with the
reason.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata, util
from typing import Any

from refmoe.errors import ArgumentError, describe
from refmoe.policy import TORCHAO_RELEASE
from refmoe.testing.kernel import UserKernel, kernel

_TORCHAO_MODES = ("floor", "ceil", "even", "rceil")
_FLASHINFER_LAYOUTS = {"128x4": "layout_128x4", "8x4": "layout_8x4", "linear": "layout_linear"}


def torchao_to_mx(mode: str = "floor", *, policy: str | None = None) -> UserKernel:
    """torchao's `to_mx` to E4M3, on the CPU: `to_mx(x, torch.float8_e4m3fn, 32, ScaleCalculationMode)`.

    It is held to the policy of the release that its bits were taken from, "torchao_floor@0.18" and its like: that is
    torchao's mode with the edges of 0.18, where a scale byte of 0 is applied as 1 (RCEIL) or 2^-126, and an infinity is
    a large number that saturates. These are differences of policy from `exact`, named and counted in the report, and no
    tolerance. It takes BF16: 0.18 refuses FP16. Its scales are linear.

    Args:
        mode: "floor", torchao's default, "ceil", "even" or "rceil".
        policy: another policy to hold it to, such as "floor/exact": each difference is then a MISMATCH.

    Raises:
        ArgumentError: an unknown mode or policy.
    """
    if mode not in _TORCHAO_MODES:
        raise ArgumentError("mode", describe(mode), "one of " + ", ".join(_TORCHAO_MODES))

    def to_mx(x: Any) -> tuple[Any, Any]:
        import torch
        from torchao.prototype.mx_formats.config import ScaleCalculationMode
        from torchao.prototype.mx_formats.mx_tensor import to_mx as convert

        scales, codes = convert(x, torch.float8_e4m3fn, 32, ScaleCalculationMode[mode.upper()])
        return codes, scales

    def missing() -> str | None:
        absent = _absent("torch", "torchao")
        if absent is None and policy is None and not metadata.version("torchao").startswith(f"{TORCHAO_RELEASE}."):
            return f"torchao {metadata.version('torchao')} is here; the policy is that of {TORCHAO_RELEASE}"
        return absent

    return _registered(
        to_mx,
        name=f"torchao_to_mx_{mode}",
        policy=policy or f"torchao_{mode}@{TORCHAO_RELEASE}",
        layout="linear",
        dtypes=("bf16",),
        missing=missing,
        package="torchao",
    )


def flashinfer_mxfp8_quantize(layout: str = "128x4") -> UserKernel:
    """FlashInfer's `mxfp8_quantize` with its CUDA backend, on the GPU: RCEIL with FlashInfer's own edges.

    `mxfp8_quantize(input [M, K], sf_swizzle_layout=...)` returns codes as float8_e4m3fn [M, K], K padded to a multiple
    of 32, and scales as uint8 1-D, whole atoms of the layout.

    Args:
        layout: of the scales, "128x4", "8x4" or "linear".

    Raises:
        ArgumentError: an unknown layout.
    """
    if layout not in _FLASHINFER_LAYOUTS:
        raise ArgumentError("layout", describe(layout), "one of " + ", ".join(_FLASHINFER_LAYOUTS))

    def mxfp8_quantize(x: Any) -> tuple[Any, Any]:
        import flashinfer

        swizzle = getattr(flashinfer.SfLayout, _FLASHINFER_LAYOUTS[layout])
        codes, scales = flashinfer.mxfp8_quantize(x, sf_swizzle_layout=swizzle, backend="cuda")
        return codes, scales

    def missing() -> str | None:
        absent = _absent("torch", "flashinfer")
        if absent is not None:
            return absent
        import torch

        return None if torch.cuda.is_available() else "FlashInfer needs a GPU, and torch finds none"

    return _registered(
        mxfp8_quantize,
        name=f"flashinfer_mxfp8_quantize_{layout}",
        policy="flashinfer",
        layout=layout,
        dtypes=("bf16", "fp16"),
        missing=missing,
        package="flashinfer-python",
        device="cuda",
    )


def _registered(function: Callable[..., Any], *, package: str, **contract: Any) -> UserKernel:
    try:
        made_of = f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        made_of = f"{package}, not installed"
    return kernel("mxfp8_quantize", made_of=made_of, **contract)(function)


def _absent(*packages: str) -> str | None:
    """The first package that is not here, in a sentence."""
    lacking = [package for package in packages if util.find_spec(package) is None]
    return f"the package {lacking[0]} is not installed" if lacking else None
