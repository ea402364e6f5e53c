"""Typical faults as hypotheses: bytes that no policy gives, but that some policy would give but for one mistake.

A fault of storage is undone on the bytes; a fault of arithmetic is done to a rule. Either way a hypothesis stands only
if rule and bytes then agree, or nearly so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.formats import E4M3, E8M0, MX_FORMATS
from refmoe.policies.blocks import KINDS, InputBlocks
from refmoe.policies.encode import Rounding, encode_at
from refmoe.policies.rules import PolicyRule, QuantizedBlocks
from refmoe.policies.score import GivenBytes, Score, score
from refmoe.reference.layout import SCALE_LAYOUTS, scale_buffer_size, unswizzle_scales

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
    given: GivenBytes, buffer: NDArray[np.uint8], layout: str, scores: Sequence[Score]
) -> tuple[Hypothesis, ...]:
    """The faults that explain the bytes, the best explanation first.

    Args:
        given: the bytes.
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
    for fault, changed in _storage_faults(given, buffer, layout):
        found += _weigh(fault, changed, rules, before)
    for fault, change in _arithmetic_faults(given):
        found += _weigh(fault, given, [_changed(rule, change) for rule in likely], before)
    return tuple(sorted(found, key=lambda each: (each.left, -each.blocks)))


def _weigh(fault: str, given: GivenBytes, rules: Sequence[PolicyRule], before: float) -> list[Hypothesis]:
    """The hypothesis that `fault` is the only one, if it explains enough."""
    sample = sorted(score(given.head(_SAMPLE), rules), key=lambda each: each.rank)
    if sample[0].differing > _WORTH_TELLING * before * sample[0].blocks:
        return []
    tied = [each.rule for each in sample if each.rank == sample[0].rank]
    whole = sorted(score(given, tied), key=lambda each: each.rank)
    best = whole[0]
    if not best.blocks or best.differing > _WORTH_TELLING * before * best.blocks:
        return []
    names = tuple(str(each.rule) for each in whole if each.rank == best.rank)
    return [Hypothesis(fault, names, best.differing, best.blocks)]


def _storage_faults(given: GivenBytes, buffer: NDArray[np.uint8], layout: str) -> Iterator[tuple[str, GivenBytes]]:
    if MX_FORMATS[given.format].codes_a_byte == 2:
        other = "gguf" if given.packing == "even-low" else "even-low"
        yield "the two nibbles of each byte are swapped", replace(given, swapped=True)
        yield f"the codes are packed in the order {other}, not {given.packing}", replace(given, packing=other)
        swapped = f"the codes are packed in the order {other} with their nibbles swapped"
        yield swapped, replace(given, packing=other, swapped=True)
    yield from _shifted(given)
    blocks = given.row_blocks
    rows = len(given.scales) // blocks
    for name in SCALE_LAYOUTS:
        if name != layout and scale_buffer_size(rows, blocks, name) == buffer.size:
            linear = unswizzle_scales(buffer, (rows, blocks), name).reshape(-1)
            yield f"the scales are in the layout {name}, not {layout}", replace(given, scales=linear)
    if layout == "linear" and min(rows, blocks) > 1:
        turned = np.ascontiguousarray(buffer.reshape(blocks, rows).T).reshape(-1)
        yield "the scales are transposed, K-block first", replace(given, scales=turned)


def _shifted(given: GivenBytes) -> Iterator[tuple[str, GivenBytes]]:
    blocks, count = given.row_blocks, len(given.scales)
    column = np.arange(count) % blocks
    for step, word in ((1, "previous"), (-1, "next")):
        if blocks > 1:
            scales = np.roll(given.scales.reshape(-1, blocks), -step, axis=1).reshape(-1)
            known = column != (blocks - 1 if step == 1 else 0)
            text = f"each block has the scale of the {word} block of its row"
            yield text, replace(given, scales=scales, compared=known)
        for distance, what in ((1, "block in memory"), (blocks, "row")):
            if distance < count and (what == "row" or blocks > 1):
                known = np.ones(count, np.bool_)
                known[slice(count - distance, None) if step == 1 else slice(distance)] = False
                scales = np.roll(given.scales, -step * distance)
                yield f"each block has the scale of the {word} {what}", replace(given, scales=scales, compared=known)


Change = Callable[[PolicyRule, InputBlocks], QuantizedBlocks]


def _arithmetic_faults(given: GivenBytes) -> Iterator[tuple[str, Change]]:
    for rounding in (Rounding.TOWARD_ZERO, Rounding.HALF_AWAY, Rounding.HALF_TOWARD_ZERO):
        yield f"elements are rounded {rounding.value}", partial(_rounded, rounding)
    for step, word in ((1, "above"), (-1, "below")):
        yield f"scale bytes are one {word} what the codes were made with", partial(_offset, step, False)
        yield f"scale bytes are one {word} the rule's, and the codes follow them", partial(_offset, step, True)
    if len(np.unique(given.scales)) == 1:
        byte = int(given.scales[0])
        yield f"every scale byte is 0x{byte:02X}: they were not written, or are ignored", partial(_constant, byte)
    yield "zeros have lost their sign", _without_zero_signs
    if MX_FORMATS[given.format].element is E4M3:
        yield "saturation is missing: what lies above 464 became NaN", _without_saturation
    if given.x.dtype == np.float32:
        for dtype, name in ((np.dtype(ml_dtypes.bfloat16), "BF16"), (np.dtype(np.float16), "FP16")):
            yield f"the input was rounded to {name} first", partial(_narrowed, dtype)


def _changed(rule: PolicyRule, change: Change) -> PolicyRule:
    return replace(rule, run=partial(change, rule))


def _numbers(blocks: InputBlocks, made: QuantizedBlocks) -> NDArray[np.bool_]:
    """bool [n]: the blocks of numbers that a rule defines, which a fault of arithmetic can change."""
    numbers: NDArray[np.bool_] = made.defined & (blocks.kind < KINDS.index("infinity"))
    return numbers


def _recoded(
    blocks: InputBlocks, made: QuantizedBlocks, scales: NDArray[np.uint8], rounding: Rounding
) -> QuantizedBlocks:
    """The codes of blocks of numbers anew, at `scales`."""
    numbers = _numbers(blocks, made)
    codes = made.codes.copy()
    codes[numbers] = encode_at(blocks.values()[numbers], scales[numbers], MX_FORMATS[blocks.format].element, rounding)
    return QuantizedBlocks(codes, scales, made.defined)


def _rounded(rounding: Rounding, rule: PolicyRule, blocks: InputBlocks) -> QuantizedBlocks:
    made = rule.run(blocks)
    return _recoded(blocks, made, made.scales, rounding)


def _offset(step: int, codes_follow: bool, rule: PolicyRule, blocks: InputBlocks) -> QuantizedBlocks:
    made = rule.run(blocks)
    moved = np.clip(made.scales.astype(np.int64) + step, 0, E8M0.max_code).astype(np.uint8)
    scales = np.where(_numbers(blocks, made), moved, made.scales)
    if codes_follow:
        return _recoded(blocks, made, scales, Rounding.NEAREST_EVEN)
    return replace(made, scales=scales)


def _constant(byte: int, rule: PolicyRule, blocks: InputBlocks) -> QuantizedBlocks:
    made = rule.run(blocks)
    return replace(made, scales=np.full_like(made.scales, byte))


def _without_zero_signs(rule: PolicyRule, blocks: InputBlocks) -> QuantizedBlocks:
    made = rule.run(blocks)
    sign = np.uint8(1 << (MX_FORMATS[blocks.format].element.bits - 1))
    return replace(made, codes=np.where(made.codes == sign, np.uint8(0), made.codes))


def _without_saturation(rule: PolicyRule, blocks: InputBlocks) -> QuantizedBlocks:
    made = rule.run(blocks)
    # 464 is half way from 448 to the 480 that E4M3 does not have, and 448 is the even one.
    beyond = np.abs(blocks.values()) > np.ldexp(464.0, made.scales.astype(np.int64) - E8M0.bias)[:, None]
    codes = np.where(beyond & _numbers(blocks, made)[:, None], made.codes | np.uint8(0x7F), made.codes)
    return QuantizedBlocks(codes, made.scales, made.defined)


def _narrowed(dtype: np.dtype[np.generic], rule: PolicyRule, blocks: InputBlocks) -> QuantizedBlocks:
    with np.errstate(over="ignore"):
        return rule.run(InputBlocks(blocks.x.astype(dtype), blocks.format))
