"""Quantization policies as data: how a block's scale is chosen, and what happens where systems do not agree.

A whole policy is a scale mode, an edge policy and an element rounding. Modes decide the ordinary block; edges decide
the blocks that are all zero, too small to scale, or not finite. The two are independent.

A policy's text is MODE ("rceil", with the edge `exact`), MODE/EDGE ("even/flashinfer"), or the name of a whole policy
("ocp", "torchao_floor@0.18"). `as_policy` is the one place that reads it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

from refmoe.errors import ArgumentError, describe
from refmoe.formats import MX_FORMATS


class ScaleMode(enum.Enum):
    """How the power-of-two scale of a block follows from amax, the largest magnitude in it.

    `max` and `emax` are the largest element value and its exponent (E4M3: 448 and 8; E2M1: 6 and 2). The exponent is
    then clamped to what E8M0 has.
    """

    RCEIL = "rceil"
    """Smallest power of two >= amax / max. cuBLAS, TensorRT-LLM, FlashInfer, TransformerEngine, torchao RCEIL,
    triton_kernels (up), DeepGEMM. Nothing saturates; up to one binade of the element format is left unused."""
    FLOOR = "floor"
    """2^(floor(log2 amax) - emax). OCP MX v1.0 section 6.3, torchao's default, microxcaling. An element whose
    mantissa is above that of max (1.75 for E4M3) saturates: the block's maximum loses up to 12.5 %."""
    CEIL = "ceil"
    """2^(ceil(log2 amax) - emax). An option of torchao. Nothing saturates; wastes up to a binade more than RCEIL."""
    EVEN = "even"
    """Round amax to the element's mantissa width, half up, then FLOOR. AMD Quark, an option of torchao. The carry
    comes from mantissa 1.9375 (E4M3) or 1.75 (E2M1) up, so FP8 still saturates between 1.75 and 1.9375."""
    ROUND_LOG2 = "round_log2"
    """2^(rint(log2 amax) - emax). llama.cpp's CUDA MXFP4. The carry comes from mantissa sqrt(2) up, before max, so
    nothing saturates; decided exactly, as amax^2 > 2^(2k+1)."""
    FLOOR_RATIO = "floor_ratio"
    """Largest power of two <= amax / max. FlashInfer's trace reference, not its kernel. Every amax that is no
    exact max * 2^k saturates, by up to a factor of two: a wrong reference to test a kernel against."""


class EdgePolicy(enum.Enum):
    """What becomes of the blocks that no two systems treat alike."""

    EXACT = "exact"
    """refmoe's own. The scale byte is never flushed: byte 0 means 2^-127 and codes are exact against it. A NaN or an
    infinity poisons its block (scale 0xFF, every code NaN), so that no bad value disappears."""
    FLASHINFER = "flashinfer"
    """FlashInfer's CUDA kernels, built with fast math. A block whose scale byte is 0 is flushed to signed zeros, FP32
    subnormals of other blocks too. An infinity gives scale 254, itself +max (E4M3: 0x7E, E2M1: 7) whatever its sign,
    its block signed zeros. A NaN becomes +max and takes no part in amax; a block of NaNs has scale 255. Bad values turn
    finite."""
    TRANSFORMER_ENGINE = "transformer_engine"
    """TransformerEngine's MXFP8 cast. NaNs take no part in amax and become NaN codes under the scale of the rest;
    tiny blocks are exact against 2^-127. A block with an infinity is refused: its scale is 0xFE in every release,
    but its codes follow 2^-127 in some and 0 in others."""
    DEEPGEMM = "deepgemm"
    """DeepGEMM's per_token_cast_to_fp8 with UE8M0 scales: amax is at least float32(1e-4), so a zero block has scale
    105. A block with a NaN or an infinity is refused: its codes are whatever PyTorch's cast of that day gives."""
    LLAMA_CPP_CUDA = "llama_cpp_cuda"
    """llama.cpp's quantize_mmq_mxfp4. NaNs take no part in amax and become +max; an amax that is not above 0 (zeros,
    NaNs alone) gives scale 0; tiny blocks are exact against 2^-127. A block with an infinity is refused: its scale
    overflows an int."""


DEEPGEMM_FLOOR = 0x38D1B717
"""FP32 bits of float32(1e-4), below which no amax goes under `EdgePolicy.DEEPGEMM`."""

EDGE_FORMATS: Mapping[EdgePolicy, tuple[str, ...]] = MappingProxyType(
    {
        EdgePolicy.EXACT: tuple(MX_FORMATS),
        EdgePolicy.FLASHINFER: ("mxfp8", "mxfp4"),
        EdgePolicy.TRANSFORMER_ENGINE: ("mxfp8",),
        EdgePolicy.DEEPGEMM: ("mxfp8",),
        EdgePolicy.LLAMA_CPP_CUDA: ("mxfp4",),
    }
)
"""The MX formats that each edge policy is defined for: those that its system produces."""


class ElementRounding(enum.Enum):
    """How a scaled element becomes a code."""

    NEAREST_EVEN = "nearest_even"
    """Ties to the even code, as every GPU conversion instruction does."""
    NEAREST_TOWARD_ZERO = "nearest_toward_zero"
    """Ties to the smaller magnitude, zeros always positive: a search of the value table for the first nearest entry."""


@dataclass(frozen=True)
class Policy:
    """A whole policy under the name of the system that uses it.

    Attributes:
        name: name of the policy.
        mode: how the scale is chosen.
        edge: how edge blocks are treated; None if the system's rule for scales is its own altogether (gguf, see
            `refmoe.reference.gguf.mxfp4`).
        rounding: how elements are rounded.
        formats: the MX formats that the system produces with it.
    """

    name: str
    mode: ScaleMode
    edge: EdgePolicy | None = EdgePolicy.EXACT
    rounding: ElementRounding = ElementRounding.NEAREST_EVEN
    formats: tuple[str, ...] = ("mxfp8",)


POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("ocp", ScaleMode.FLOOR, formats=tuple(MX_FORMATS)),
        Policy("flashinfer", ScaleMode.RCEIL, EdgePolicy.FLASHINFER, formats=("mxfp8", "mxfp4")),
        Policy("transformer_engine", ScaleMode.RCEIL, EdgePolicy.TRANSFORMER_ENGINE),
        Policy("torchao_floor", ScaleMode.FLOOR, formats=("mxfp8", "mxfp4")),
        Policy("torchao_ceil", ScaleMode.CEIL, formats=("mxfp8", "mxfp4")),
        Policy("torchao_even", ScaleMode.EVEN, formats=("mxfp8", "mxfp4")),
        Policy("torchao_rceil", ScaleMode.RCEIL, formats=("mxfp8", "mxfp4")),
        Policy("deepgemm", ScaleMode.RCEIL, EdgePolicy.DEEPGEMM),
        Policy("llama_cpp_cuda", ScaleMode.ROUND_LOG2, EdgePolicy.LLAMA_CPP_CUDA, formats=("mxfp4",)),
        Policy("gguf", ScaleMode.FLOOR, None, ElementRounding.NEAREST_TOWARD_ZERO, ("mxfp4",)),
    )
}
"""Whole policies by name."""

TORCHAO_RELEASE = "0.18"
"""The release of torchao whose bits the policies `torchao_*@0.18` reproduce."""

RELEASES: dict[str, Policy] = {
    name: replace(policy, name=name, edge=None)
    for name, policy in ((f"{each.name}@{TORCHAO_RELEASE}", each) for each in POLICIES.values())
    if name.startswith("torchao_")
}
"""Whole policies of one release of a system, by name: where its edge blocks part from those of its policy above."""


_Member = TypeVar("_Member", ScaleMode, EdgePolicy)


def as_scale_mode(mode: ScaleMode | str) -> ScaleMode:
    """`mode` itself, or the member with that lower-case name.

    Raises:
        ArgumentError: there is no such mode.
    """
    return _member(ScaleMode, mode, "mode")


def as_edge_policy(edge: EdgePolicy | str) -> EdgePolicy:
    """`edge` itself, or the member with that lower-case name.

    Raises:
        ArgumentError: there is no such edge policy.
    """
    return _member(EdgePolicy, edge, "edge")


def as_policy(policy: Policy | str, format: str | None = None, argument: str = "policy") -> Policy:
    """`policy` itself, or the policy of a text: MODE, MODE/EDGE, or a name of `POLICIES` or `RELEASES`.

    Args:
        policy: a policy or its text. MODE alone means MODE/exact; the result is named "MODE/EDGE".
        format: an MX format that it has to produce; None for any.
        argument: what it is called in an error.

    Raises:
        ArgumentError: the text names no policy, or one that does not produce `format`.
    """
    if not isinstance(policy, Policy):
        named = _named(policy) if isinstance(policy, str) else None
        if named is None:
            raise ArgumentError(argument, describe(policy), policy_grammar(format))
        policy = named
    if format is not None and format not in policy.formats:
        alone = f"{policy.name} is of {' and '.join(policy.formats)} alone"
        raise ArgumentError(argument, f"{policy.name} for {format}", f"a policy of {format}: {alone}")
    return policy


def policy_grammar(format: str | None = None) -> str:
    """Every text that `as_policy` reads, in words; of an MX format, or of any."""
    modes = "|".join(mode.value for mode in ScaleMode)
    edges = "|".join(edge.value for edge, formats in EDGE_FORMATS.items() if format is None or format in formats)
    whole = (POLICIES | RELEASES).values()
    names = ", ".join(policy.name for policy in whole if format is None or format in policy.formats)
    return f"MODE or MODE/EDGE with modes {modes} and edges {edges}, or one of {names}"


def _named(text: str) -> Policy | None:
    if text in POLICIES or text in RELEASES:
        return (POLICIES | RELEASES)[text]
    mode, slash, edge = text.partition("/")
    modes, edges = {each.value: each for each in ScaleMode}, {each.value: each for each in EdgePolicy}
    chosen = edges.get(edge if slash else EdgePolicy.EXACT.value)
    if mode not in modes or chosen is None:
        return None
    return Policy(f"{mode}/{chosen.value}", modes[mode], chosen, formats=EDGE_FORMATS[chosen])


def _member(kind: type[_Member], value: object, argument: str) -> _Member:
    if isinstance(value, kind):
        return value
    for member in kind:
        if member.value == value:
            return member
    raise ArgumentError(argument, describe(value), f"one of {', '.join(member.value for member in kind)}")
