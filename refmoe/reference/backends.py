"""The MoE backends that servers know for MXFP4 weights, as data: where they run, what they compute, how it adds up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from refmoe.chips import CHIPS, Mma
from refmoe.errors import ArgumentError, describe
from refmoe.reference.mma import MODELS, Evidence


@dataclass(frozen=True)
class Accumulation:
    """How a backend's GEMMs add up on one architecture.

    Attributes:
        instruction: the tensor-core instruction that it uses there, or "dp4a".
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
        activations: "mxfp8", "bf16" or "q8_1", what its GEMMs take beside the MXFP4 weights.
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


@dataclass(frozen=True)
class _Sums:
    """How an instruction sums: the model that stands for it, by the formats whose evidence counts.

    `seen_on` names the chips that the evidence is of; elsewhere the model is EXTRAPOLATED.
    """

    model: str
    formats: tuple[str, str]
    seen_on: tuple[str, ...] = ()

    def on(self, arch: str, instruction: Mma) -> Accumulation:
        evidence = MODELS[self.model].pair(*self.formats).evidence if arch in self.seen_on else Evidence.EXTRAPOLATED
        return Accumulation(instruction.value, self.model, evidence)


_MX, _BF16 = ("e2m1", "e4m3"), ("bf16", "bf16")

#: tcgen05's BF16 products have no model of their own.
_SUMS: Mapping[Mma, _Sums] = MappingProxyType(
    {
        Mma.SYNC_MX: _Sums("sm120", _MX, ("sm_120a", "sm_121a")),
        Mma.TCGEN05_MX: _Sums("sm100", _MX, ("sm_100a",)),
        Mma.SYNC_BF16: _Sums("sm90_mma", _BF16, ("sm_90a",)),
        Mma.WGMMA_BF16: _Sums("sm90_wgmma", _BF16, ("sm_90a",)),
        Mma.TCGEN05_F16: _Sums("sm90_wgmma", _BF16),
    }
)


def _backend(name: str, computes: str, activations: str, *instructions: Mma) -> Backend:
    """A backend serves the chips that have one of its instructions."""
    serves = [(arch, one) for one in instructions for arch, chip in CHIPS.items() if one in chip.instructions]
    return Backend(name, computes, activations, {arch: _SUMS[one].on(arch, one) for arch, one in serves})


def _integer_backend(name: str, computes: str) -> Backend:
    """A backend of `dp4a` runs everywhere: a block's sum is an exact int32, by the definition of the instruction."""
    adds = Accumulation("dp4a", "exact", Evidence.DEFINITION)
    return Backend(name, computes, "q8_1", dict.fromkeys(CHIPS, adds))


_TO_BF16 = "weights to BF16, BF16 x BF16, the activation rounded to BF16"

_ALL = (
    _backend(
        "cutlass",
        "tokens to MXFP8 on their own, inside expand, or by the caller; MXFP8 x MXFP4; the activation to MXFP8",
        "mxfp8",
        *(Mma.SYNC_MX, Mma.TCGEN05_MX),
    ),
    _backend("marlin", f"{_TO_BF16}; along K one chain, ascending", "bf16", Mma.SYNC_BF16),
    _backend("triton", _TO_BF16, "bf16", Mma.WGMMA_BF16, Mma.TCGEN05_F16),
    _backend("trtllm", _TO_BF16, "bf16", Mma.TCGEN05_F16),
    _backend(
        "trtllm_mxfp8",
        "tokens to MXFP8 on their own; MXFP8 x MXFP4; the activation to MXFP8",
        "mxfp8",
        Mma.TCGEN05_MX,
    ),
    _integer_backend("dp4a", "tokens to Q8_1; int8 x doubled FP4; BF16 between the products; the activation to Q8_1"),
    _integer_backend("llama_cpp", "as dp4a, but FP32 between the products: activations leave Q8_1 only to be summed"),
)

BACKENDS: Mapping[str, Backend] = MappingProxyType({backend.name: backend for backend in _ALL})
"""Every backend by its name."""

_PREFERRED = ("trtllm_mxfp8", "cutlass", "triton")


def default_backend(arch: str) -> Backend:
    """What refmoe takes on an architecture: MXFP8 CUTLASS on SM12x, TRTLLM_MXFP8 on SM100, TRITON on SM90.

    Raises:
        ArgumentError: an unknown architecture.
    """
    known = _checked(arch)
    return next(BACKENDS[name] for name in _PREFERRED if known in BACKENDS[name].architectures)


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
    if not isinstance(arch, str) or arch not in CHIPS:
        raise ArgumentError("arch", describe(arch), f"one of {', '.join(CHIPS)}")
    return arch
