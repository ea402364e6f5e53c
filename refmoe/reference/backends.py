"""The MoE backends that servers know for FP4 and FP8 weights: where they run, what they take, how it adds up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from refmoe.chips import CHIPS, Chip, Mma
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
        activations: "mxfp8", "nvfp4", "bf16", "q8_1" or "block_fp8", what its GEMMs take beside the weights.
        accumulation: by architecture; the first is the one that is assumed if none is named.
        weights: the formats of weights that it takes, "mxfp4", "nvfp4" and "block_fp8".
    """

    name: str
    activations: str
    accumulation: Mapping[str, Accumulation]
    weights: tuple[str, ...] = ("mxfp4",)

    @property
    def architectures(self) -> tuple[str, ...]:
        """Those that it serves."""
        return tuple(self.accumulation)


#: The formats of an instruction's operands whose evidence counts.
_FORMATS: Mapping[Mma, tuple[str, str]] = MappingProxyType(
    {
        Mma.SYNC_MX: ("e2m1", "e4m3"),
        Mma.SYNC_NVF4: ("e2m1", "e2m1"),
        Mma.TCGEN05_MX: ("e2m1", "e4m3"),
        **dict.fromkeys((Mma.SYNC_BF16, Mma.WGMMA_BF16, Mma.TCGEN05_F16), ("bf16", "bf16")),
        **dict.fromkeys((Mma.WGMMA_FP8, Mma.TCGEN05_F8F6F4, Mma.SYNC_F8F6F4, Mma.SYNC_FP8), ("e4m3", "e4m3")),
    }
)
_BOTH = ("mxfp4", "nvfp4")


def _accumulation(chip: Chip, mma: Mma) -> Accumulation:
    sums = chip.sums[mma]
    evidence = MODELS[sums.model].pair(*_FORMATS[mma]).evidence if sums.own else Evidence.EXTRAPOLATED
    return Accumulation(mma.value, sums.model, evidence)


def _backend(name: str, activations: str, *instructions: Mma, weights: tuple[str, ...] = ("mxfp4",)) -> Backend:
    """A backend serves the chips that have one of its instructions, by the first of them, and whose sums are known."""
    serves: dict[str, Accumulation] = {}
    for mma in instructions:
        for arch, chip in CHIPS.items():
            if mma in chip.sums and chip.sums[mma].model:
                serves.setdefault(arch, _accumulation(chip, mma))
    return Backend(name, activations, serves, weights)


def _integer_backend(name: str) -> Backend:
    """A backend of `dp4a` runs everywhere: a block's sum is an exact int32, by the definition of the instruction."""
    return Backend(name, "q8_1", dict.fromkeys(CHIPS, Accumulation("dp4a", "exact", Evidence.DEFINITION)))


_ALL = (
    # Tokens are quantized on their own, inside expand, or by the caller.
    _backend("cutlass", "mxfp8", Mma.SYNC_MX, Mma.TCGEN05_MX),
    # Along K one chain, ascending. The global scale of NVFP4 weights is applied to the sums.
    _backend("marlin", "bf16", Mma.SYNC_BF16, weights=_BOTH),
    _backend("triton", "bf16", Mma.WGMMA_BF16, Mma.TCGEN05_F16),
    _backend("trtllm", "bf16", Mma.TCGEN05_F16),
    # Tokens are quantized on their own.
    _backend("trtllm_mxfp8", "mxfp8", Mma.TCGEN05_MX),
    # BF16 between the products, and FP32 between them.
    _integer_backend("dp4a"),
    _integer_backend("llama_cpp"),
    # CUTLASS with NVFP4 on both sides; MXFP4 weights are NVFP4 weights too, see `refmoe.reference.tensor`.
    _backend("nvfp4", "nvfp4", Mma.SYNC_NVF4, weights=_BOTH),
    # DeepSeek-V3 in block FP8, with its router and its shared expert: products of E4M3 on both sides, promoted to FP32
    # after every 128 of K. DeepGEMM's instruction on SM90, and those that other chips have.
    _backend(
        "deepseek_fp8",
        "block_fp8",
        *(Mma.WGMMA_FP8, Mma.TCGEN05_F8F6F4, Mma.SYNC_F8F6F4, Mma.SYNC_FP8),
        weights=("block_fp8",),
    ),
)

BACKENDS: Mapping[str, Backend] = MappingProxyType({backend.name: backend for backend in _ALL})
"""Every backend by its name."""


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
