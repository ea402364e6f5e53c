"""Typical faults as hypotheses: bytes that no policy gives, but that some policy would give but for one mistake.

A fault of storage is undone on the bytes; a fault of arithmetic is done to a rule. Either way a hypothesis stands only
if rule and bytes then agree, or nearly so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.formats import E4M3, E8M0, MX_FORMATS
from refmoe.policies.blocks import KINDS, Blocks
from refmoe.policies.elements import Rounding, encode_at
from refmoe.policies.evidence import Evidence, Score, score
from refmoe.policies.rules import Quantized, Rule
from refmoe.reference.layout import SCALE_LAYOUTS, scale_buffer_size, unswizzle_scales

__all__ = ["Hypothesis", "find_faults"]

#: A hypothesis that leaves more than this share of the differing blocks unexplained is not worth a line.
_WORTH_TELLING = 0.1

#: Blocks on which every fault meets every rule; only the pairs that are best there meet all blocks.
_SAMPLE = 1 << 11


@dataclass(frozen=True)
class Hypothesis:
    """A fault that would explain the bytes.

    Attributes:
        fault: the fault, as a sentence about the bytes.
        names: the rules that give the bytes but for it.
        left: blocks that still differ.
        blocks: blocks compared; a shift leaves out those whose scale is not in the bytes.
    """

    fault: str
    names: tuple[str, ...]
    left: int
    blocks: int


def find_faults(
    evidence: Evidence, buffer: NDArray[np.uint8], layout: str, scores: Sequence[Score]
) -> tuple[Hypothesis, ...]:
    """The faults that explain the bytes, the best explanation first.

    Args:
        evidence: the bytes.
        buffer: the scales as they were given, in `layout`.
        layout: the layout that they were said to be in.
        scores: how well each rule explains the bytes as they are.
    """
    ranked = sorted(scores, key=lambda each: each.rank)
    before = ranked[0].differing / max(ranked[0].blocks, 1)
    rules = [each.rule for each in ranked]
    # Arithmetic may go wrong under any scale mode, so each mode stands for itself, and the nearest for its edge.
    likely = list(dict.fromkeys([rule for rule in rules if rule.name.endswith("/exact")] + rules[:3]))
    found = []
    for fault, changed in _storage_faults(evidence, buffer, layout):
        found += _weigh(fault, changed, rules, before)
    for fault, change in _arithmetic_faults(evidence):
        found += _weigh(fault, evidence, [_changed(rule, change) for rule in likely], before)
    return tuple(sorted(found, key=lambda each: (each.left, -each.blocks)))


def _weigh(fault: str, evidence: Evidence, rules: Sequence[Rule], before: float) -> list[Hypothesis]:
    """The hypothesis that `fault` is the only one, if it explains enough."""
    sample = sorted(score(evidence.head(_SAMPLE), rules), key=lambda each: each.rank)
    if sample[0].differing > _WORTH_TELLING * before * sample[0].blocks:
        return []
    tied = [each.rule for each in sample if each.rank == sample[0].rank]
    whole = sorted(score(evidence, tied), key=lambda each: each.rank)
    best = whole[0]
    if not best.blocks or best.differing > _WORTH_TELLING * before * best.blocks:
        return []
    names = tuple(str(each.rule) for each in whole if each.rank == best.rank)
    return [Hypothesis(fault, names, best.differing, best.blocks)]


def _storage_faults(evidence: Evidence, buffer: NDArray[np.uint8], layout: str) -> Iterator[tuple[str, Evidence]]:
    if MX_FORMATS[evidence.format].codes_a_byte == 2:
        other = "gguf" if evidence.packing == "even-low" else "even-low"
        yield "the two nibbles of each byte are swapped", replace(evidence, swapped=True)
        yield f"the codes are packed in the order {other}, not {evidence.packing}", replace(evidence, packing=other)
        swapped = f"the codes are packed in the order {other} with their nibbles swapped"
        yield swapped, replace(evidence, packing=other, swapped=True)
    yield from _shifted(evidence)
    blocks = evidence.row_blocks
    rows = len(evidence.scales) // blocks
    for name in SCALE_LAYOUTS:
        if name != layout and scale_buffer_size(rows, blocks, name) == buffer.size:
            linear = unswizzle_scales(buffer, (rows, blocks), name).reshape(-1)
            yield f"the scales are in the layout {name}, not {layout}", replace(evidence, scales=linear)
    if layout == "linear" and min(rows, blocks) > 1:
        turned = np.ascontiguousarray(buffer.reshape(blocks, rows).T).reshape(-1)
        yield "the scales are transposed, K-block first", replace(evidence, scales=turned)


def _shifted(evidence: Evidence) -> Iterator[tuple[str, Evidence]]:
    blocks, count = evidence.row_blocks, len(evidence.scales)
    column = np.arange(count) % blocks
    for step, word in ((1, "previous"), (-1, "next")):
        if blocks > 1:
            scales = np.roll(evidence.scales.reshape(-1, blocks), -step, axis=1).reshape(-1)
            known = column != (blocks - 1 if step == 1 else 0)
            text = f"each block has the scale of the {word} block of its row"
            yield text, replace(evidence, scales=scales, compared=known)
        for distance, what in ((1, "block in memory"), (blocks, "row")):
            if distance < count and (what == "row" or blocks > 1):
                known = np.ones(count, np.bool_)
                known[slice(count - distance, None) if step == 1 else slice(distance)] = False
                scales = np.roll(evidence.scales, -step * distance)
                yield f"each block has the scale of the {word} {what}", replace(evidence, scales=scales, compared=known)


Change = Callable[[Rule, Blocks], Quantized]


def _arithmetic_faults(evidence: Evidence) -> Iterator[tuple[str, Change]]:
    for rounding in (Rounding.TOWARD_ZERO, Rounding.HALF_AWAY, Rounding.HALF_TOWARD_ZERO):
        yield f"elements are rounded {rounding.value}", _with_rounding(rounding)
    for step, word in ((1, "above"), (-1, "below")):
        yield f"scale bytes are one {word} what the codes were made with", _with_offset(step, codes_follow=False)
        yield f"scale bytes are one {word} the rule's, and the codes follow them", _with_offset(step, codes_follow=True)
    if len(np.unique(evidence.scales)) == 1:
        byte = int(evidence.scales[0])
        yield f"every scale byte is 0x{byte:02X}: they were not written, or are ignored", _with_constant(byte)
    yield "zeros have lost their sign", _without_zero_signs
    if MX_FORMATS[evidence.format].element is E4M3:
        yield "saturation is missing: what lies above 464 became NaN", _without_saturation
    if evidence.x.dtype == np.float32:
        for dtype, name in ((np.dtype(ml_dtypes.bfloat16), "BF16"), (np.dtype(np.float16), "FP16")):
            yield f"the input was rounded to {name} first", _with_input(dtype)


def _changed(rule: Rule, change: Change) -> Rule:
    return replace(rule, run=lambda blocks: change(rule, blocks))


def _numbers(blocks: Blocks, made: Quantized) -> NDArray[np.bool_]:
    """bool [n]: the blocks of numbers that a rule defines, which a fault of arithmetic can change."""
    numbers: NDArray[np.bool_] = made.defined & (blocks.kind < KINDS.index("infinity"))
    return numbers


def _recoded(blocks: Blocks, made: Quantized, scales: NDArray[np.uint8], rounding: Rounding) -> Quantized:
    """The codes of blocks of numbers anew, at `scales`."""
    numbers = _numbers(blocks, made)
    codes = made.codes.copy()
    codes[numbers] = encode_at(blocks.values()[numbers], scales[numbers], MX_FORMATS[blocks.format].element, rounding)
    return Quantized(codes, scales, made.defined)


def _with_rounding(rounding: Rounding) -> Change:
    def change(rule: Rule, blocks: Blocks) -> Quantized:
        made = rule.run(blocks)
        return _recoded(blocks, made, made.scales, rounding)

    return change


def _with_offset(step: int, codes_follow: bool) -> Change:
    def change(rule: Rule, blocks: Blocks) -> Quantized:
        made = rule.run(blocks)
        moved = np.clip(made.scales.astype(np.int64) + step, 0, E8M0.max_code).astype(np.uint8)
        scales = np.where(_numbers(blocks, made), moved, made.scales)
        if codes_follow:
            return _recoded(blocks, made, scales, Rounding.NEAREST_EVEN)
        return Quantized(made.codes, scales, made.defined)

    return change


def _with_constant(byte: int) -> Change:
    def change(rule: Rule, blocks: Blocks) -> Quantized:
        made = rule.run(blocks)
        return Quantized(made.codes, np.full_like(made.scales, byte), made.defined)

    return change


def _without_zero_signs(rule: Rule, blocks: Blocks) -> Quantized:
    made = rule.run(blocks)
    sign = np.uint8(1 << (MX_FORMATS[blocks.format].element.bits - 1))
    return Quantized(np.where(made.codes == sign, np.uint8(0), made.codes), made.scales, made.defined)


def _without_saturation(rule: Rule, blocks: Blocks) -> Quantized:
    made = rule.run(blocks)
    # 464 is half way from 448 to the 480 that E4M3 does not have, and 448 is the even one.
    beyond = np.abs(blocks.values()) > np.ldexp(464.0, made.scales.astype(np.int64) - E8M0.bias)[:, None]
    codes = np.where(beyond & _numbers(blocks, made)[:, None], made.codes | np.uint8(0x7F), made.codes)
    return Quantized(codes, made.scales, made.defined)


def _with_input(dtype: np.dtype[np.generic]) -> Change:
    def change(rule: Rule, blocks: Blocks) -> Quantized:
        with np.errstate(over="ignore"):
            return rule.run(Blocks(blocks.x.astype(dtype), blocks.format))

    return change
