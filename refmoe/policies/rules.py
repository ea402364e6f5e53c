"""Every way to quantize that can be told by name: modes x edges, and the whole policies of other systems.

Two names of one rule are one `PolicyRule`: nothing that they produce can differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError
from refmoe.formats import MX_FORMATS, as_mx_format
from refmoe.policies.blocks import KINDS, InputBlocks
from refmoe.policies.encode import encode_at
from refmoe.policy import EDGE_FORMATS, POLICIES, RELEASES, EdgePolicy, Policy, ScaleMode, as_policy
from refmoe.reference import quantize
from refmoe.reference.gguf.mxfp4 import scale_bytes
from refmoe.reference.quantize import undefined_blocks


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
        policy: the policy named "mode/edge", or a whole one whose rules are its own.
        aliases: whole policies that are this same rule.
        run: quantizes a chunk.
    """

    policy: Policy
    aliases: tuple[str, ...]
    run: Callable[[InputBlocks], QuantizedBlocks]

    @property
    def name(self) -> str:
        """The policy's."""
        return self.policy.name

    @property
    def names(self) -> tuple[str, ...]:
        """All its names."""
        return (self.name, *self.aliases)

    def __str__(self) -> str:
        return self.name + (f" (= {', '.join(self.aliases)})" if self.aliases else "")


@cache
def rules(format: str) -> tuple[PolicyRule, ...]:
    """Every distinct rule of a format: modes x edges first, then the policies that are neither.

    Raises:
        ArgumentError: an unknown format.
    """
    as_mx_format(format)
    whole = [policy for policy in (POLICIES | RELEASES).values() if format in policy.formats]
    edges = [edge for edge in EdgePolicy if format in EDGE_FORMATS[edge]]
    combined = [as_policy(f"{mode.value}/{edge.value}") for edge in edges for mode in ScaleMode]
    own = [policy for policy in whole if policy.edge is None]
    return (*(_mode_and_edge(policy, whole) for policy in combined), *map(_own_rule, own))


def default_rules(format: str) -> tuple[PolicyRule, ...]:
    """What is compared when nobody says what: every mode with the `exact` edge, then the other named policies.

    The rules of one release of torchao are left out: they part from torchao's policies on edge blocks alone.
    """
    chosen = [rule for rule in rules(format) if rule.policy.edge is EdgePolicy.EXACT]
    chosen += [rule for rule in rules(format) if (rule.aliases or rule.name in POLICIES) and rule not in chosen]
    return tuple(chosen)


def rule_named(name: str, format: str) -> PolicyRule:
    """The rule of a policy's text, see `refmoe.policy.as_policy`.

    Raises:
        ArgumentError: an unknown format, no such policy, or one that the format does not have.
    """
    found = rules(format)
    policy = as_policy(name, format, "policies")
    return next(rule for rule in found if policy.name in rule.names)


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


def _mode_and_edge(policy: Policy, whole: Sequence[Policy]) -> PolicyRule:
    def run(blocks: InputBlocks) -> QuantizedBlocks:
        return _run(blocks, ~undefined_blocks(blocks.has_nan, blocks.has_infinity, policy.edge), policy)

    def decides(other: Policy) -> tuple[object, ...]:
        return other.mode, other.edge, other.rounding

    return PolicyRule(policy, tuple(other.name for other in whole if decides(other) == decides(policy)), run)


def _own_rule(policy: Policy) -> PolicyRule:
    if policy.name in RELEASES:
        return _torchao_release(policy)

    def run(blocks: InputBlocks) -> QuantizedBlocks:
        finite = ~(blocks.has_nan | blocks.has_infinity)
        return _run(blocks, finite & (scale_bytes(blocks.amax) >= 0), policy)

    return PolicyRule(policy, (), run)


def _run(blocks: InputBlocks, defined: NDArray[np.bool_], policy: Policy) -> QuantizedBlocks:
    x = blocks.x
    if not defined.all():
        x = x.copy()
        x[~defined] = 0
    tensor = quantize(np.ascontiguousarray(x), blocks.format, policy=policy)
    return QuantizedBlocks(tensor.elements, tensor.scales[:, 0], defined)


def _torchao_release(policy: Policy) -> PolicyRule:
    """The edges of torchao 0.18.0's `to_mx` on a CPU, where they are not those of its policy.

    A scale byte of 0 is applied as 1 (RCEIL) or as 2^-126 (the other modes), the smallest normal FP32 number. An
    infinity is a number beyond all others: scale 254 (RCEIL) or that of its exponent field, and it saturates. A NaN
    makes its E4M3 block NaN (RCEIL), or itself alone, with its sign, while numbers become zeros. Left undefined, since
    the machine decides them: E2M1 blocks with a NaN, a NaN beside an infinity, and FP32 maxima just above a power of
    two times the largest element, which RCEIL's log2 in FP32 may round down.
    """
    mode, ordinary = policy.mode, as_policy(policy.mode.value)

    def run(blocks: InputBlocks) -> QuantizedBlocks:
        fmt = MX_FORMATS[blocks.format].element
        made = _run(blocks, ~(blocks.has_nan | blocks.has_infinity), ordinary)
        defined = ~(blocks.has_nan & (blocks.has_infinity | (fmt.nan_code is None)))
        if mode is ScaleMode.RCEIL and blocks.x.dtype == np.float32:
            above_max = int((fmt.max / 2**fmt.emax - 1) * (1 << 23))
            defined &= ~np.isin(blocks.amax & np.uint32(0x7FFFFF), (above_max + 1, above_max + 2))
        codes, scales = made.codes.copy(), made.scales.copy()
        scales[blocks.has_infinity] = 254 if mode is ScaleMode.RCEIL else 255 - fmt.emax
        scales[blocks.has_nan] = 255
        _mark_nans(blocks, codes, alone=mode is not ScaleMode.RCEIL)
        small = (scales == 0) & (blocks.kind != KINDS.index("zero"))
        other = defined & ~blocks.has_nan & (blocks.has_infinity | small)
        if other.any():
            values = InputBlocks(np.ascontiguousarray(blocks.x[other]), blocks.format).values()
            applied = np.where(scales[other] == 0, 127 if mode is ScaleMode.RCEIL else 1, scales[other])
            codes[other] = encode_at(values, applied, fmt)
        return QuantizedBlocks(codes, scales, defined)

    return PolicyRule(policy, (), run)


def _mark_nans(blocks: InputBlocks, codes: NDArray[np.uint8], alone: bool) -> None:
    """Write the E4M3 codes of blocks with a NaN: NaN throughout, or of the NaN `alone` and signed zeros beside it."""
    rows = blocks.has_nan
    if alone:
        sign = np.signbit(blocks.x[rows]).astype(np.uint8) << np.uint8(7)
        codes[rows] = np.where(np.isnan(blocks.x[rows].astype(np.float32)), 0x7F, 0).astype(np.uint8) | sign
    else:
        codes[rows] = 0x7F
