"""Policies side by side on the same activations: where they differ, and what each costs.

One pass over the input in chunks: nothing of the size of the tensor is made.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from refmoe.errors import ArgumentError
from refmoe.formats import E8M0, MX_BLOCK, MX_FORMATS, Format, as_mx_format
from refmoe.policies.blocks import KINDS, InputBlocks, checked_input, input_blocks, kind_counts
from refmoe.policies.encode import signed_values
from refmoe.policies.rules import PolicyRule, QuantizedBlocks, default_rules, rules_named
from refmoe.policy import as_policy
from refmoe.tables import plain_table

#: Bins of the mantissa of amax, the width of BF16's.
MANTISSA_BINS = 128


@dataclass
class PolicyDifference:
    """How far two policies are apart, on the blocks that both define.

    Attributes:
        scales: scale bytes that differ.
        codes: codes that differ.
        blocks: scale bytes that were compared; 32 times as many codes were.
    """

    scales: int = 0
    codes: int = 0
    blocks: int = 0

    @property
    def scale_share(self) -> float:
        """Share of the scale bytes that differ."""
        return self.scales / self.blocks if self.blocks else 0.0

    @property
    def code_share(self) -> float:
        """Share of the codes that differ."""
        return self.codes / (self.blocks * MX_BLOCK) if self.blocks else 0.0

    def add(self, first: QuantizedBlocks, second: QuantizedBlocks) -> None:
        """Take in what the two policies make of a chunk."""
        both = first.defined & second.defined
        codes = first.codes != second.codes
        if not both.all():
            codes &= both[:, None]
        self.scales += int(np.count_nonzero((first.scales != second.scales) & both))
        self.codes += int(np.count_nonzero(codes))
        self.blocks += int(np.count_nonzero(both))


class _MantissaBins:
    """Blocks of a chunk by mantissa of amax, of those kinds on which a scale is decided by nothing else."""

    def __init__(self, blocks: InputBlocks) -> None:
        self.plain = blocks.kind <= KINDS.index("small")
        self.index = (blocks.amax[self.plain] & np.uint32(0x7FFFFF)).astype(np.int64) * MANTISSA_BINS >> 23
        self.field = (blocks.amax[self.plain] >> np.uint32(23)).astype(np.int64)
        self.count = np.bincount(self.index, minlength=MANTISSA_BINS)


@dataclass(eq=False)
class PolicyFigures:
    """What one policy makes of the activations that were added. Errors are of elements finite before and after.

    Attributes:
        rule: the policy.
        element: the format of the codes.
        width: K, elements of a row.
        from_base: how far it is from the base policy.
        max_error: the largest |q - x|.
        max_error_at: (row, column) of its first occurrence.
        saturated: elements beyond the largest value that their block's scale gives.
        underflowed: elements other than 0 whose code is a zero.
        poisoned: blocks whose scale byte is 0xFF.
        nan_codes: elements whose code is a NaN.
        undefined: blocks that the policy leaves undefined; they count nowhere else.
    """

    rule: PolicyRule
    element: Format
    width: int
    from_base: PolicyDifference = field(default_factory=PolicyDifference)
    max_error: float = 0.0
    max_error_at: tuple[int, int] = (0, 0)
    saturated: int = 0
    underflowed: int = 0
    poisoned: int = 0
    nan_codes: int = 0
    undefined: int = 0
    _squared_error: list[float] = field(default_factory=list)
    _squared_input: list[float] = field(default_factory=list)
    _seen: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(256, np.bool_))
    _offsets: NDArray[np.float64] = field(default_factory=lambda: np.zeros(MANTISSA_BINS))
    _offset_blocks: NDArray[np.int64] = field(default_factory=lambda: np.zeros(MANTISSA_BINS, np.int64))

    @property
    def relative_l2(self) -> float:
        """sqrt(sum (q - x)^2 / sum x^2); NaN if every x is 0."""
        norm = math.fsum(self._squared_input)
        return math.sqrt(math.fsum(self._squared_error) / norm) if norm else math.nan

    @property
    def scale_bytes(self) -> int:
        """Distinct scale bytes."""
        return int(self._seen.sum())

    @property
    def offsets(self) -> NDArray[np.float64]:
        """float64 [MANTISSA_BINS], the mean of scale byte - (exponent field of amax - emax) by mantissa of amax.

        NaN in a bin without blocks.
        """
        blocks = self._offset_blocks
        return np.where(blocks > 0, self._offsets / np.maximum(blocks, 1), math.nan)

    def add(self, start: int, x: NDArray[np.float64], bins: _MantissaBins, made: QuantizedBlocks) -> None:
        """Take in a chunk whose first block is number `start`."""
        defined = made.defined[:, None]
        sign = np.uint8(1 << (self.element.bits - 1))
        magnitude = made.codes & (sign - np.uint8(1))
        nan = (magnitude > self.element.max_code) & defined
        poisoned = (made.scales == E8M0.nan_code) & made.defined
        self.undefined += int((~made.defined).sum())
        self.poisoned += int(poisoned.sum())
        self.nan_codes += int(nan.sum())
        self._seen[made.scales[made.defined]] = True

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
        self._squared_error.append(float((error * error).sum()))
        self._squared_input.append(float((x * x).sum()))
        worst = int(error.argmax())
        if error.reshape(-1)[worst] > self.max_error:
            self.max_error = float(error.reshape(-1)[worst])
            self.max_error_at = divmod(start * MX_BLOCK + worst, self.width)

        usable = made.defined[bins.plain]
        offset = made.scales[bins.plain].astype(np.int64) - (bins.field - self.element.emax)
        self._offsets += np.bincount(bins.index[usable], offset[usable], minlength=MANTISSA_BINS)
        self._offset_blocks += np.bincount(bins.index[usable], minlength=MANTISSA_BINS)


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
    base: PolicyRule
    figures: tuple[PolicyFigures, ...]
    pairs: Mapping[tuple[str, str], PolicyDifference]
    kinds: Mapping[str, int]
    mantissas: NDArray[np.int64]

    def between(self, first: str, second: str) -> PolicyDifference:
        """The difference of two policies, whatever their order; of one and itself, none.

        Raises:
            KeyError: a policy that was not compared.
        """
        if first == second:
            own = next(figures for figures in self.figures if figures.rule.name == first)
            return PolicyDifference(0, 0, math.prod(self.shape) // MX_BLOCK - own.undefined)
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
    figures = [PolicyFigures(rule, MX_FORMATS[format].element, width) for rule in chosen]
    pairs = {pair: PolicyDifference() for pair in itertools.combinations(range(len(chosen)), 2)}
    kinds = np.zeros(len(KINDS), np.int64)
    mantissas = np.zeros(MANTISSA_BINS, np.int64)
    for start, blocks in input_blocks(rows, format):
        kinds += kind_counts(blocks.kind)
        bins = _MantissaBins(blocks)
        mantissas += bins.count
        made = [rule.run(blocks) for rule in chosen]
        values = blocks.values()
        for each, quantized in zip(figures, made, strict=True):
            each.add(start, values, bins, quantized)
        for (first, second), difference in pairs.items():
            difference.add(made[first], made[second])
    comparison = PolicyComparison(
        format,
        (x.size // width, width),
        chosen[base_index],
        tuple(figures),
        {(chosen[i].name, chosen[j].name): difference for (i, j), difference in pairs.items()},
        dict(zip(KINDS, kinds.tolist(), strict=True)),
        mantissas,
    )
    for each in figures:
        each.from_base = comparison.between(comparison.base.name, each.rule.name)
    return comparison


def _base_index(chosen: Sequence[PolicyRule], base: str) -> int:
    named = as_policy(base, argument="base").name
    for index, rule in enumerate(chosen):
        if named in rule.names:
            return index
    raise ArgumentError("base", repr(base), f"one of the policies compared: {', '.join(rule.name for rule in chosen)}")


def comparison_document(comparison: PolicyComparison, source: str) -> dict[str, Any]:
    """Every figure of a comparison as JSON values; shares as fractions of 1."""
    return {
        "input": source,
        "shape": list(comparison.shape),
        "format": comparison.format,
        "blocks": dict(comparison.kinds),
        "base": comparison.base.name,
        "policies": [_figures_document(figures) for figures in comparison.figures],
        "pairs": [
            {"policies": list(pair), **_shares(difference), "blocks": difference.blocks}
            for pair, difference in comparison.pairs.items()
        ],
    }


def comparison_view(comparison: PolicyComparison, source: str) -> RenderableType:
    """What was compared, a table of figures, and a matrix of what differs."""
    parts: list[RenderableType] = [
        Text(f"{source}: {input_summary(comparison.format, comparison.shape, comparison.kinds)}\n"),
        _figures_table(comparison),
    ]
    groups = same_bytes(comparison)
    for group in groups:
        if len(group) > 1:
            parts.append(Text(f"\nthe same bytes here: {', '.join(group)}"))
    if len(groups) > 1:
        parts.append(Text("\ndiffer, %: scale bytes above the diagonal, codes below\n"))
        parts.append(_matrix(comparison, [group[0] for group in groups]))
    aliases = [str(figures.rule) for figures in comparison.figures if figures.rule.aliases]
    if aliases:
        parts.append(Text(f"\n{'; '.join(aliases)}"))
    return Group(*parts)


def same_bytes(comparison: PolicyComparison) -> list[list[str]]:
    """The names of the policies, those together that gave the same bytes wherever both are defined."""
    groups: list[list[str]] = []
    for figures in comparison.figures:
        name = figures.rule.name
        for group in groups:
            apart = [comparison.between(name, other) for other in group]
            if not any(each.scales or each.codes for each in apart):
                group.append(name)
                break
        else:
            groups.append([name])
    return groups


def input_summary(format: str, shape: tuple[int, int], kinds: Mapping[str, int]) -> str:
    """The input of a comparison or a detection, in words."""
    counts = ", ".join(f"{count:,} {name}" for name, count in kinds.items() if count)
    return f"[{shape[0]}, {shape[1]}] to {format}; blocks: {counts}"


def _figures_table(comparison: PolicyComparison) -> Table:
    errors = (">relative L2", ">max error", ">saturated", ">to zero", ">0xFF", ">NaN", ">undefined", ">scale bytes")
    table = plain_table("policy", ">scales %", ">codes %", *errors, wrap=True)
    for figures in comparison.figures:
        shares = [f"{100 * share:.2f}" for share in _shares(figures.from_base).values()]
        table.add_row(
            figures.rule.name,
            *(["base", "base"] if figures.rule is comparison.base else shares),
            f"{figures.relative_l2:.5f}",
            f"{figures.max_error:.4g}",
            f"{figures.saturated:,}",
            f"{figures.underflowed:,}",
            f"{figures.poisoned:,}",
            f"{figures.nan_codes:,}",
            f"{figures.undefined:,}",
            str(figures.scale_bytes),
        )
    return table


def _matrix(comparison: PolicyComparison, names: list[str]) -> Table:
    short = [name.removesuffix("/exact") for name in names]
    table = plain_table("", *(f">{name}" for name in short), wrap=True)
    for row, first in enumerate(names):
        cells = []
        for column, second in enumerate(names):
            difference = comparison.between(first, second)
            share = difference.scale_share if column > row else difference.code_share
            cells.append("-" if row == column else f"{100 * share:.2f}")
        table.add_row(short[row], *cells)
    return table


def _figures_document(figures: PolicyFigures) -> dict[str, Any]:
    return {
        "policy": figures.rule.name,
        "aliases": list(figures.rule.aliases),
        **_shares(figures.from_base),
        # JSON has no NaN.
        "relative_l2": None if math.isnan(figures.relative_l2) else figures.relative_l2,
        "max_error": figures.max_error,
        "max_error_at": list(figures.max_error_at),
        "saturated": figures.saturated,
        "underflowed": figures.underflowed,
        "poisoned_blocks": figures.poisoned,
        "nan_codes": figures.nan_codes,
        "undefined_blocks": figures.undefined,
        "scale_bytes": figures.scale_bytes,
    }


def _shares(difference: PolicyDifference) -> dict[str, float]:
    return {"scale_share": difference.scale_share, "code_share": difference.code_share}
