"""Every way to quantize that can be told by name: modes x edges, and the whole policies of other systems.

Two names of one rule are one `PolicyRule`: nothing that they produce can differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.policies.blocks import KINDS, InputBlocks
from refmoe.policies.encode import ELEMENTS, encode_at
from refmoe.policy import EDGE_FORMATS, POLICIES, EdgePolicy, ElementRounding, Policy, ScaleMode
from refmoe.reference import quantize, quantize_mxfp4, quantize_mxfp8, unpack_fp4
from refmoe.reference.gguf import scale_bytes
from refmoe.reference.tensor import MXTensor

__all__ = ["FORMATS", "PolicyRule", "QuantizedBlocks", "checked_format", "default_rules", "rule_named", "rules"]

FORMATS = ("mxfp8", "mxfp4")

#: The release whose bits the rules `torchao_*@0.18` reproduce.
TORCHAO_RELEASE = "0.18"


@dataclass(frozen=True, eq=False)
class QuantizedBlocks:
    """What a rule makes of a chunk.

    Attributes:
        codes: uint8 [n, 32], one code a byte.
        scales: uint8 [n].
        defined: bool [n]; what the other two hold where it is False means nothing.
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.uint8]
    defined: NDArray[np.bool_]


@dataclass(frozen=True)
class PolicyRule:
    """One way to quantize.

    Attributes:
        name: "mode/edge", or the name of a policy whose rules are its own.
        aliases: whole policies that are this same rule.
        mode: how the scale is chosen on ordinary blocks.
        run: quantizes a chunk.
    """

    name: str
    aliases: tuple[str, ...]
    mode: ScaleMode
    run: Callable[[InputBlocks], QuantizedBlocks]

    @property
    def names(self) -> tuple[str, ...]:
        """All its names."""
        return (self.name, *self.aliases)

    def __str__(self) -> str:
        return self.name + (f" (= {', '.join(self.aliases)})" if self.aliases else "")


def checked_format(format: object) -> str:
    """`format`, or an `ArgumentError` if it is neither "mxfp8" nor "mxfp4"."""
    if not isinstance(format, str) or format not in FORMATS:
        raise ArgumentError("format", describe(format), "mxfp8 or mxfp4")
    return format


@cache
def rules(format: str) -> tuple[PolicyRule, ...]:
    """Every distinct rule of a format: modes x edges first, then the policies that are neither.

    Raises:
        ArgumentError: an unknown format.
    """
    checked_format(format)
    edges = [edge for edge in EdgePolicy if format in EDGE_FORMATS[edge]]
    found = [_mode_and_edge(mode, edge, format) for edge in edges for mode in ScaleMode]
    found += [_own_rule(policy) for policy in POLICIES.values() if policy.edge is None and format in policy.formats]
    torchao = [
        policy for policy in POLICIES.values() if policy.name.startswith("torchao_") and format in policy.formats
    ]
    return (*found, *(_torchao_release(policy) for policy in torchao))


def default_rules(format: str) -> tuple[PolicyRule, ...]:
    """What is compared when nobody says what: every mode with the `exact` edge, then the other named policies.

    The rules of one release of torchao are left out: they part from torchao's policies on edge blocks alone.
    """
    chosen = [rule for rule in rules(format) if rule.name.endswith("/exact")]
    chosen += [rule for rule in rules(format) if (rule.aliases or "/" not in rule.name) and rule not in chosen]
    return tuple(rule for rule in chosen if not rule.name.endswith(f"@{TORCHAO_RELEASE}"))


def rule_named(name: str, format: str) -> PolicyRule:
    """The rule with that name: "mode/edge", a mode (with the edge `exact`), or a policy.

    Raises:
        ArgumentError: no such rule, or one that the format does not have.
    """
    for rule in rules(checked_format(format)):
        if name in rule.names or f"{name}/exact" == rule.name:
            return rule
    other = next(known for known in FORMATS if known != format)
    if any(name in rule.names for rule in rules(other)):
        raise ArgumentError("policies", f"{name} for {format}", f"a policy of {format}: {name} is of {other} alone")
    modes = "|".join(mode.value for mode in ScaleMode)
    edges = "|".join(edge.value for edge in EdgePolicy if format in EDGE_FORMATS[edge])
    whole = ", ".join(alias for rule in rules(format) for alias in rule.aliases or (rule.name,) if "/" not in alias)
    raise ArgumentError(
        "policies", describe(name), f"MODE or MODE/EDGE with modes {modes} and edges {edges}, or {whole}"
    )


def rules_named(names: Sequence[str], format: str) -> tuple[PolicyRule, ...]:
    """The rules with those names, each once.

    Raises:
        ArgumentError: as `rule_named`; or two names of the same rule, which nothing can tell apart.
    """
    found: dict[PolicyRule, str] = {}
    for name in names:
        rule = rule_named(name, format)
        if rule in found:
            raise ArgumentError("policies", f"{found[rule]} and {name}", f"different policies: both are {rule}")
        found[rule] = name
    return tuple(found)


def _mode_and_edge(mode: ScaleMode, edge: EdgePolicy, format: str) -> PolicyRule:
    function = quantize_mxfp8 if format == "mxfp8" else quantize_mxfp4

    def run(blocks: InputBlocks) -> QuantizedBlocks:
        return _run(blocks, _defined(blocks, edge), lambda x: function(x, mode=mode, edge=edge))

    aliases = tuple(
        policy.name
        for policy in POLICIES.values()
        if (policy.mode, policy.edge, policy.rounding) == (mode, edge, ElementRounding.NEAREST_EVEN)
        and format in policy.formats
    )
    return PolicyRule(f"{mode.value}/{edge.value}", aliases, mode, run)


def _own_rule(policy: Policy) -> PolicyRule:
    def run(blocks: InputBlocks) -> QuantizedBlocks:
        finite = ~(blocks.has_nan | blocks.has_infinity)
        defined = finite & (scale_bytes(blocks.amax) >= 0)
        return _run(blocks, defined, lambda x: quantize(x, blocks.format, policy=policy))

    return PolicyRule(policy.name, (), policy.mode, run)


def _defined(blocks: InputBlocks, edge: EdgePolicy) -> NDArray[np.bool_]:
    """The blocks that `edge` defines; the rest is what the quantizer refuses."""
    undefined = np.zeros(len(blocks.x), np.bool_)
    if edge in (EdgePolicy.TRANSFORMER_ENGINE, EdgePolicy.LLAMA_CPP_CUDA, EdgePolicy.DEEPGEMM):
        undefined |= blocks.has_infinity
    if edge is EdgePolicy.DEEPGEMM:
        undefined |= blocks.has_nan
    return ~undefined


def _run(
    blocks: InputBlocks, defined: NDArray[np.bool_], function: Callable[[NDArray[np.generic]], MXTensor]
) -> QuantizedBlocks:
    x = blocks.x
    if not defined.all():
        x = x.copy()
        x[~defined] = 0
    tensor = function(np.ascontiguousarray(x))
    codes = tensor.codes if blocks.format == "mxfp8" else unpack_fp4(tensor.codes)
    return QuantizedBlocks(codes, tensor.scales[:, 0], defined)


def _torchao_release(policy: Policy) -> PolicyRule:
    """The edges of torchao 0.18.0's `to_mx` on a CPU, where they are not those of its policy.

    A scale byte of 0 is applied as 1 (RCEIL) or as 2^-126 (the other modes), the smallest normal FP32 number. An
    infinity is a number beyond all others: scale 254 (RCEIL) or that of its exponent field, and it saturates. A NaN
    makes its E4M3 block NaN (RCEIL), or itself alone, with its sign, while numbers become zeros. Left undefined, since
    the machine decides them: E2M1 blocks with a NaN, a NaN beside an infinity, and FP32 maxima just above a power of
    two times the largest element, which RCEIL's log2 in FP32 may round down.
    """
    mode = policy.mode

    def run(blocks: InputBlocks) -> QuantizedBlocks:
        fmt = ELEMENTS[blocks.format]
        function = quantize_mxfp8 if blocks.format == "mxfp8" else quantize_mxfp4
        made = _run(blocks, ~(blocks.has_nan | blocks.has_infinity), lambda x: function(x, mode=mode))
        defined = ~(blocks.has_nan & (blocks.has_infinity | (fmt.nan_code is None)))
        if mode is ScaleMode.RCEIL and blocks.x.dtype == np.float32:
            above_max = int((fmt.max / 2**fmt.emax - 1) * (1 << 23))
            defined &= ~np.isin(blocks.amax & np.uint32(0x7FFFFF), (above_max + 1, above_max + 2))
        codes, scales = made.codes.copy(), made.scales.copy()
        scales[blocks.has_infinity] = 254 if mode is ScaleMode.RCEIL else 255 - fmt.emax
        scales[blocks.has_nan] = 255
        _mark_nans(blocks, codes, alone=mode is not ScaleMode.RCEIL)
        other = (
            defined & ~blocks.has_nan & (blocks.has_infinity | ((scales == 0) & (blocks.kind != KINDS.index("zero"))))
        )
        if other.any():
            values = InputBlocks(np.ascontiguousarray(blocks.x[other]), blocks.format).values()
            applied = np.where(scales[other] == 0, 127 if mode is ScaleMode.RCEIL else 1, scales[other])
            codes[other] = encode_at(values, applied, fmt)
        return QuantizedBlocks(codes, scales, defined)

    return PolicyRule(f"{policy.name}@{TORCHAO_RELEASE}", (), mode, run)


def _mark_nans(blocks: InputBlocks, codes: NDArray[np.uint8], alone: bool) -> None:
    """Write the E4M3 codes of blocks with a NaN: NaN throughout, or of the NaN `alone` and signed zeros beside it."""
    rows = blocks.has_nan
    if alone:
        sign = np.signbit(blocks.x[rows]).astype(np.uint8) << np.uint8(7)
        codes[rows] = np.where(np.isnan(blocks.x[rows].astype(np.float32)), 0x7F, 0).astype(np.uint8) | sign
    else:
        codes[rows] = 0x7F
