"""Policies side by side on the same activations: where they differ, and what each costs.

One pass over the input in chunks: nothing of the size of the tensor is made.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError
from refmoe.formats import E8M0, MX_BLOCK, MX_FORMATS, Format, as_mx_format
from refmoe.policies.blocks import BLOCKS_A_CHUNK, KINDS, Blocks, checked_input
from refmoe.policies.elements import signed_values
from refmoe.policies.rules import Quantized, Rule, default_rules, rules_named
from refmoe.policy import as_policy

__all__ = ["MANTISSA_BINS", "Difference", "PolicyComparison", "PolicyFigures", "compare_policies", "input_blocks"]

#: Bins of the mantissa of amax, the width of BF16's.
MANTISSA_BINS = 128


@dataclass(frozen=True)
class Difference:
    """How far two policies are apart, on the blocks that both define.

    Attributes:
        scales: scale bytes that differ.
        codes: codes that differ.
        blocks: scale bytes that were compared; 32 times as many codes were.
    """

    scales: int
    codes: int
    blocks: int

    @property
    def scale_share(self) -> float:
        """Share of the scale bytes that differ."""
        return self.scales / self.blocks if self.blocks else 0.0

    @property
    def code_share(self) -> float:
        """Share of the codes that differ."""
        return self.codes / (self.blocks * MX_BLOCK) if self.blocks else 0.0


@dataclass(frozen=True)
class PolicyFigures:
    """What one policy makes of the activations. Errors are of elements that are finite before and after.

    Attributes:
        rule: the policy.
        from_base: how far it is from the base policy.
        relative_l2: sqrt(sum (q - x)^2 / sum x^2); NaN if every x is 0.
        max_error: the largest |q - x|.
        max_error_at: (row, column) of its first occurrence.
        saturated: elements beyond the largest value that their block's scale gives.
        underflowed: elements other than 0 whose code is a zero.
        poisoned: blocks whose scale byte is 0xFF.
        nan_codes: elements whose code is a NaN.
        undefined: blocks that the policy leaves undefined; they count nowhere else.
        scale_bytes: distinct scale bytes.
        offsets: float64 [MANTISSA_BINS], the mean of scale byte - (exponent field of amax - emax) by mantissa of
            amax; NaN in a bin without blocks.
    """

    rule: Rule
    from_base: Difference
    relative_l2: float
    max_error: float
    max_error_at: tuple[int, int]
    saturated: int
    underflowed: int
    poisoned: int
    nan_codes: int
    undefined: int
    scale_bytes: int
    offsets: NDArray[np.float64]


@dataclass(frozen=True)
class PolicyComparison:
    """Policies side by side.

    Attributes:
        format: "mxfp8" or "mxfp4".
        shape: (M, K), leading dimensions joined.
        base: the policy that `from_base` is counted from.
        figures: one entry a policy, in the order asked for.
        pairs: the difference of every pair of policies, by their names in that order.
        kinds: blocks of each kind.
        mantissas: int64 [MANTISSA_BINS], blocks by mantissa of amax, of those whose scale byte is far from 0 and 0xFF.
    """

    format: str
    shape: tuple[int, int]
    base: Rule
    figures: tuple[PolicyFigures, ...]
    pairs: Mapping[tuple[str, str], Difference]
    kinds: Mapping[str, int]
    mantissas: NDArray[np.int64]

    def between(self, first: str, second: str) -> Difference:
        """The difference of two policies, whatever their order; of one and itself, none.

        Raises:
            KeyError: a policy that was not compared.
        """
        if first == second:
            own = next(figures for figures in self.figures if figures.rule.name == first)
            return Difference(0, 0, math.prod(self.shape) // MX_BLOCK - own.undefined)
        return self.pairs[(first, second) if (first, second) in self.pairs else (second, first)]


def compare_policies(
    x: NDArray[np.generic], format: str = "mxfp8", *, policies: Sequence[str] | None = None, base: str | None = None
) -> PolicyComparison:
    """Quantize by several policies and say where they differ and what each costs.

    Args:
        x: BF16 (ml_dtypes.bfloat16), FP16 or FP32 [..., K], C-contiguous, K a multiple of 32; may be memory-mapped.
        format: "mxfp8" or "mxfp4".
        policies: names: "mode/edge", a mode (edge `exact`), or a whole policy of `refmoe.policy.POLICIES`. Without
            them, every mode with `exact`, and every whole policy that is another rule.
        base: the policy that differences are counted from; the first one if left out.

    Raises:
        ArgumentError: what `x` cannot be; an unknown format or policy; a policy that the format does not have; the
            same rule twice; a base that is not among the policies.
    """
    rows = checked_input(x)
    as_mx_format(format)
    chosen = default_rules(format) if policies is None else rules_named(policies, format)
    if not chosen:
        raise ArgumentError("policies", "none", "at least one")
    base_index = 0 if base is None else _base_index(chosen, base)
    width = x.shape[-1]
    tallies = [_Tally(rule, MX_FORMATS[format].element, width) for rule in chosen]
    pairs = {pair: [0, 0, 0] for pair in itertools.combinations(range(len(chosen)), 2)}
    kinds = np.zeros(len(KINDS), np.int64)
    mantissas = np.zeros(MANTISSA_BINS, np.int64)
    for start, blocks in input_blocks(rows, format):
        kinds += np.bincount(blocks.kind, minlength=len(KINDS))
        bins = _Bins(blocks)
        mantissas += bins.count
        made = [rule.run(blocks) for rule in chosen]
        values = blocks.values()
        for tally, quantized in zip(tallies, made, strict=True):
            tally.add(start, values, bins, quantized)
        for (first, second), counts in pairs.items():
            _count(counts, made[first], made[second])
    differences = {pair: Difference(*counts) for pair, counts in pairs.items()}
    whole = Difference(0, 0, len(rows) - tallies[base_index].undefined)
    figures = tuple(
        tally.figures(whole if i == base_index else differences[min(i, base_index), max(i, base_index)])
        for i, tally in enumerate(tallies)
    )
    named = {(chosen[i].name, chosen[j].name): difference for (i, j), difference in differences.items()}
    shape = (x.size // width, width)
    counted = {name: int(count) for name, count in zip(KINDS, kinds, strict=True)}
    return PolicyComparison(
        format, shape, chosen[base_index], figures, MappingProxyType(named), MappingProxyType(counted), mantissas
    )


def input_blocks(rows: NDArray[np.generic], format: str) -> Iterator[tuple[int, Blocks]]:
    """The input [n, 32] in chunks, each with the number of its first block."""
    for start in range(0, len(rows), BLOCKS_A_CHUNK):
        yield start, Blocks(np.ascontiguousarray(rows[start : start + BLOCKS_A_CHUNK]), format)


def _base_index(chosen: Sequence[Rule], base: str) -> int:
    named = as_policy(base, argument="base").name
    for index, rule in enumerate(chosen):
        if named in rule.names:
            return index
    raise ArgumentError("base", repr(base), f"one of the policies compared: {', '.join(rule.name for rule in chosen)}")


def _count(counts: list[int], first: Quantized, second: Quantized) -> None:
    """Add one chunk to [scales, codes, blocks]."""
    both = first.defined & second.defined
    codes = first.codes != second.codes
    if not both.all():
        codes &= both[:, None]
    counts[0] += int(np.count_nonzero((first.scales != second.scales) & both))
    counts[1] += int(np.count_nonzero(codes))
    counts[2] += int(np.count_nonzero(both))


class _Bins:
    """Blocks of a chunk by mantissa of amax, of those kinds on which a scale is decided by nothing else."""

    def __init__(self, blocks: Blocks) -> None:
        self.plain = blocks.kind <= KINDS.index("small")
        self.index = (blocks.amax[self.plain] & np.uint32(0x7FFFFF)).astype(np.int64) * MANTISSA_BINS >> 23
        self.field = (blocks.amax[self.plain] >> np.uint32(23)).astype(np.int64)
        self.count = np.bincount(self.index, minlength=MANTISSA_BINS)


@dataclass
class _Tally:
    """The sums behind a `PolicyFigures`."""

    rule: Rule
    element: Format
    width: int
    squared_error: list[float] = field(default_factory=list)
    squared_input: list[float] = field(default_factory=list)
    max_error: float = 0.0
    max_error_at: tuple[int, int] = (0, 0)
    saturated: int = 0
    underflowed: int = 0
    poisoned: int = 0
    nan_codes: int = 0
    undefined: int = 0
    seen: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(256, np.bool_))
    offsets: NDArray[np.float64] = field(default_factory=lambda: np.zeros(MANTISSA_BINS))
    offset_blocks: NDArray[np.int64] = field(default_factory=lambda: np.zeros(MANTISSA_BINS, np.int64))

    def add(self, start: int, x: NDArray[np.float64], bins: _Bins, made: Quantized) -> None:
        """Take in a chunk whose first block is number `start`."""
        defined = made.defined[:, None]
        sign = np.uint8(1 << (self.element.bits - 1))
        magnitude = made.codes & (sign - np.uint8(1))
        nan = (magnitude > self.element.max_code) & defined
        poisoned = (made.scales == E8M0.nan_code) & made.defined
        self.undefined += int((~made.defined).sum())
        self.poisoned += int(poisoned.sum())
        self.nan_codes += int(nan.sum())
        self.seen[made.scales[made.defined]] = True

        # Not finite, undefined or poisoned: nothing that an error could be measured of.
        whole = np.isfinite(x) & defined & ~nan & ~poisoned[:, None]
        if not whole.all():
            x = np.where(whole, x, 0.0)
        # A power of two, so the products are exact.
        unit = np.ldexp(1.0, made.scales.astype(np.int64) - E8M0.bias)[:, None]
        self.saturated += int(np.count_nonzero((np.abs(x) > float(self.element.max) * unit) & whole))
        self.underflowed += int(np.count_nonzero((magnitude == 0) & (x != 0) & whole))
        error = np.take(signed_values(self.element), made.codes)
        error *= unit
        error -= x
        np.abs(error, out=error)
        error[~whole] = 0.0
        # NumPy adds pairwise inside a chunk; the sums of chunks are added exactly.
        self.squared_error.append(float((error * error).sum()))
        self.squared_input.append(float((x * x).sum()))
        worst = int(error.argmax())
        if error.reshape(-1)[worst] > self.max_error:
            self.max_error = float(error.reshape(-1)[worst])
            self.max_error_at = divmod(start * MX_BLOCK + worst, self.width)

        usable = made.defined[bins.plain]
        offset = made.scales[bins.plain].astype(np.int64) - (bins.field - self.element.emax)
        self.offsets += np.bincount(bins.index[usable], offset[usable], minlength=MANTISSA_BINS)
        self.offset_blocks += np.bincount(bins.index[usable], minlength=MANTISSA_BINS)

    def figures(self, from_base: Difference) -> PolicyFigures:
        """The result."""
        norm = math.fsum(self.squared_input)
        blocks = self.offset_blocks
        return PolicyFigures(
            rule=self.rule,
            from_base=from_base,
            relative_l2=math.sqrt(math.fsum(self.squared_error) / norm) if norm else math.nan,
            max_error=self.max_error,
            max_error_at=self.max_error_at,
            saturated=self.saturated,
            underflowed=self.underflowed,
            poisoned=self.poisoned,
            nan_codes=self.nan_codes,
            undefined=self.undefined,
            scale_bytes=int(self.seen.sum()),
            offsets=np.where(blocks > 0, self.offsets / np.maximum(blocks, 1), math.nan),
        )
