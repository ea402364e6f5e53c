"""The MoE backends that servers know for MXFP4 weights, as data: where they run, what they compute, how it adds up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from refmoe.errors import ArgumentError, describe
from refmoe.reference.mma import MODELS, Evidence

__all__ = ["ARCHITECTURES", "BACKENDS", "Accumulation", "Backend", "choose_backend", "default_backend"]

ARCHITECTURES = ("sm_90a", "sm_100a", "sm_120a", "sm_121a")

_DEFAULTS = {"sm_90a": "triton", "sm_100a": "trtllm_mxfp8", "sm_120a": "cutlass", "sm_121a": "cutlass"}


@dataclass(frozen=True)
class Accumulation:
    """How a backend's GEMMs add up on one architecture.

    Attributes:
        instruction: the tensor-core instruction that it uses there.
        model: the name in `MODELS` that stands for it.
        evidence: what that rests on; EXTRAPOLATED where the model is another instruction's, no model of this one being
            published.
    """

    instruction: str
    model: str
    evidence: Evidence


@dataclass(frozen=True)
class Backend:
    """One backend.

    Attributes:
        name: in lower case.
        computes: formats and order of its steps, in a sentence.
        activations: "mxfp8" or "bf16", what its GEMMs take beside the MXFP4 weights.
        accumulation: by architecture; the first is the one that is assumed if none is named.
    """

    name: str
    computes: str
    activations: str
    accumulation: Mapping[str, Accumulation]

    @property
    def architectures(self) -> tuple[str, ...]:
        """Those that it serves."""
        return tuple(self.accumulation)


def _mxfp8(model: str, instruction: str) -> Accumulation:
    return Accumulation(instruction, model, MODELS[model].pair("e2m1", "e4m3").evidence)


def _bf16(model: str, instruction: str, own: bool = False) -> Accumulation:
    """`own`: the model was made of this very instruction on this very architecture."""
    evidence = MODELS[model].pair("bf16", "bf16").evidence if own else Evidence.EXTRAPOLATED
    return Accumulation(instruction, model, evidence)


def _backends() -> dict[str, Backend]:
    block_scaled = "mma.sync kind::mxf8f6f4.block_scale m16n8k32"
    block_scaled_100 = "tcgen05.mma kind::mxf8f6f4.block_scale"
    half = "mma.sync m16n8k16 BF16"
    half_100 = "tcgen05.mma kind::f16"
    to_bf16 = "weights to BF16, BF16 x BF16, the activation rounded to BF16"
    backends = (
        Backend(
            "cutlass",
            "tokens to MXFP8 on their own, inside expand, or by the caller; MXFP8 x MXFP4; the activation to MXFP8",
            "mxfp8",
            {
                "sm_120a": _mxfp8("sm120", block_scaled),
                "sm_121a": _mxfp8("sm120", block_scaled),
                "sm_100a": _mxfp8("sm100", block_scaled_100),
            },
        ),
        Backend(
            "marlin",
            f"{to_bf16}; along K one chain, ascending",
            "bf16",
            {
                "sm_90a": _bf16("sm90_mma", half, own=True),
                "sm_100a": _bf16("sm90_mma", half),
                "sm_120a": _bf16("sm90_mma", half),
                "sm_121a": _bf16("sm90_mma", half),
            },
        ),
        Backend(
            "triton",
            to_bf16,
            "bf16",
            {"sm_90a": _bf16("sm90_wgmma", "wgmma BF16", own=True), "sm_100a": _bf16("sm90_wgmma", half_100)},
        ),
        Backend("trtllm", to_bf16, "bf16", {"sm_100a": _bf16("sm90_wgmma", half_100)}),
        Backend(
            "trtllm_mxfp8",
            "tokens to MXFP8 on their own; MXFP8 x MXFP4; the activation to MXFP8",
            "mxfp8",
            {"sm_100a": _mxfp8("sm100", block_scaled_100)},
        ),
    )
    return {backend.name: backend for backend in backends}


BACKENDS: Mapping[str, Backend] = MappingProxyType(_backends())
"""Every backend by its name."""


def default_backend(arch: str) -> Backend:
    """What refmoe takes on an architecture: MXFP8 CUTLASS on SM12x, TRTLLM_MXFP8 on SM100, TRITON on SM90.

    Raises:
        ArgumentError: an unknown architecture.
    """
    return BACKENDS[_DEFAULTS[_checked(arch)]]


def choose_backend(name: str, arch: str | None = None) -> Backend:
    """The backend of that name, in upper or lower case; without `arch`, wherever it may run.

    Raises:
        ArgumentError: an unknown name or architecture, or a backend that does not serve it; the message lists those
            that do.
    """
    if not isinstance(name, str) or name.lower() not in BACKENDS:
        raise ArgumentError("backend", describe(name), f"one of {', '.join(BACKENDS)}")
    backend = BACKENDS[name.lower()]
    if arch is not None and _checked(arch) not in backend.architectures:
        serving = ", ".join(other.name for other in BACKENDS.values() if arch in other.architectures)
        found = f"{backend.name}, which serves {', '.join(backend.architectures)}"
        raise ArgumentError("backend", found, f"one that serves {arch}: {serving}")
    return backend


def _checked(arch: object) -> str:
    if not isinstance(arch, str) or arch not in ARCHITECTURES:
        raise ArgumentError("arch", describe(arch), f"one of {', '.join(ARCHITECTURES)}")
    return arch
