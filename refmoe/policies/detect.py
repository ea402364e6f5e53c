"""Which policy made these bytes?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.formats import MX_BLOCK, MX_FORMATS, MXFP4, as_mx_format
from refmoe.policies.blocks import KINDS, checked_input, input_blocks, kind_counts
from refmoe.policies.compare import input_summary
from refmoe.policies.hypotheses import Hypothesis, find_faults
from refmoe.policies.rules import PolicyRule, rules
from refmoe.policies.score import DifferingByte, GivenBytes, Score, score
from refmoe.policies.witness import Witness, find_witness
from refmoe.reference.layout import SCALE_LAYOUTS, layout_named, scale_buffer_size, unswizzle_scales

Bytes = NDArray[np.uint8]

_PACKINGS = ("even-low", "gguf")
_GGUF_BLOCK = 1 + MXFP4.block_bytes
#: How many rules are shown when none fits.
_NEAREST = 3


@dataclass(frozen=True)
class Ambiguity:
    """Two rules that this data cannot tell apart.

    Attributes:
        first, second: the rules.
        witness: a block that would tell them apart; None if a short catalogue has none.
    """

    first: PolicyRule
    second: PolicyRule
    witness: Witness | None


@dataclass(frozen=True)
class Detection:
    """What made the bytes.

    Attributes:
        format: "mxfp8" or "mxfp4".
        shape: (M, K), leading dimensions joined.
        kinds: blocks of each kind.
        matches: the rules that give every byte of every block that they define, those that define most blocks first.
        ambiguities: the first match against each other one.
        nearest: without a match, the rules that come nearest.
        ordinary: without a match, the rules that give every byte of the blocks that are no edge blocks: not all zero,
            not tiny, all finite. Small blocks are no edge blocks: only DeepGEMM's floor is told on them.
        hypotheses: without a match, faults that would explain the bytes.
    """

    format: str
    shape: tuple[int, int]
    kinds: Mapping[str, int]
    matches: tuple[Score, ...]
    ambiguities: tuple[Ambiguity, ...]
    nearest: tuple[Score, ...]
    ordinary: tuple[PolicyRule, ...]
    hypotheses: tuple[Hypothesis, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Every name of every rule that gives the bytes."""
        return tuple(name for match in self.matches for name in match.rule.names)

    @property
    def verdict(self) -> str:
        """ "exact", "exact where defined" (blocks are left that no matching rule defines), or "none"."""
        if not self.matches:
            return "none"
        return "exact" if self.matches[0].undefined == 0 else "exact where defined"


def detect_policy(
    x: NDArray[np.generic],
    codes: Bytes,
    scales: Bytes,
    format: str | None = None,
    *,
    layout: str = "linear",
    packing: str = "even-low",
) -> Detection:
    """Name every rule that makes exactly these bytes of this input, or the nearest and what might have gone wrong.

    Args:
        x: BF16 (ml_dtypes.bfloat16), FP16 or FP32 [..., K], C-contiguous, K a multiple of 32; may be memory-mapped.
        codes: uint8, any shape: x.size bytes for "mxfp8", half as many for "mxfp4".
        scales: uint8, any shape: the buffer of [M, K/32] scales in `layout`, M the leading dimensions of `x` joined.
        format: "mxfp8" or "mxfp4"; follows from the size of `codes` if left out.
        layout: of the scales: "linear", "128x4" or "8x4". Padding is not looked at.
        packing: of FP4 codes: "even-low", or "gguf" (element i of a block with i + 16).

    Raises:
        ArgumentError: what `x` cannot be; codes or scales that are no contiguous uint8 or not of that size; an unknown
            format, layout or packing; a packing for "mxfp8".
    """
    rows = checked_input(x)
    width = x.shape[-1]
    chosen = _checked_codes(codes, rows, format)
    if packing not in _PACKINGS:
        raise ArgumentError("packing", describe(packing), " or ".join(_PACKINGS))
    if MX_FORMATS[chosen].codes_a_byte == 1 and packing != "even-low":
        raise ArgumentError("packing", f"{packing} for {chosen}", "mxfp4: FP8 codes are not packed")
    linear = _checked_scales(scales, len(rows) * MX_BLOCK // width, width // MX_BLOCK, layout)
    given = GivenBytes(rows, codes.reshape(len(rows), -1), linear, chosen, width, packing)

    counts = sum(kind_counts(blocks.kind) for _, blocks in input_blocks(rows, chosen))
    kinds = dict(zip(KINDS, np.asarray(counts).tolist(), strict=True))
    scores = score(given, rules(chosen))
    # A whole policy is the likelier answer than a mode and an edge that nobody is known to combine.
    exact = [each for each in scores if each.exact]
    matches = tuple(sorted(exact, key=lambda each: (each.undefined, not each.rule.aliases)))
    nearest = () if matches else tuple(sorted(scores, key=lambda each: each.rank)[:_NEAREST])
    return Detection(
        chosen,
        (len(rows) * MX_BLOCK // width, width),
        kinds,
        matches,
        _ambiguities([match.rule for match in matches], x.dtype, chosen),
        nearest,
        () if matches or not kinds["ordinary"] else tuple(each.rule for each in scores if not each.differing_inside),
        () if matches else find_faults(given, scales.reshape(-1), layout, scores),
    )


def split_gguf_blocks(blocks: Bytes) -> tuple[Bytes, Bytes]:
    """The packed codes [n, 16], in the order "gguf", and the scales [n] of GGUF's MXFP4 blocks of 17 bytes.

    Args:
        blocks: uint8, any shape, contiguous: a scale byte and 16 bytes of codes for each block.

    Raises:
        ArgumentError: no contiguous uint8, or no whole number of blocks.
    """
    _check_bytes("blocks", blocks)
    if blocks.size % _GGUF_BLOCK:
        raise ArgumentError("blocks", f"{blocks.size} bytes", f"a multiple of {_GGUF_BLOCK}: GGUF's MXFP4 blocks")
    split = blocks.reshape(-1, _GGUF_BLOCK)
    return np.ascontiguousarray(split[:, 1:]), np.ascontiguousarray(split[:, 0])


def _ambiguities(matches: Sequence[PolicyRule], dtype: np.dtype[np.generic], format: str) -> tuple[Ambiguity, ...]:
    return tuple(Ambiguity(matches[0], other, find_witness(matches[0], other, dtype, format)) for other in matches[1:])


def _check_bytes(argument: str, value: object) -> None:
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8:
        raise ArgumentError(argument, describe(value), "a uint8 array")
    if not value.flags.c_contiguous:
        raise ArgumentError(argument, f"{describe(value)} that is not contiguous", "a C-contiguous array")


def _checked_codes(codes: Bytes, rows: NDArray[np.generic], format: str | None) -> str:
    """The format, checked against the number of bytes or concluded from it."""
    _check_bytes("codes", codes)
    sizes = {mx.name: rows.size // mx.codes_a_byte for mx in MX_FORMATS.values()}
    if format is None:
        for name, size in sizes.items():
            if codes.size == size:
                return name
        needed = " or ".join(f"{size} ({name})" for name, size in sizes.items())
        raise ArgumentError("codes", f"{codes.size} bytes", f"{needed} for {rows.size} elements")
    if codes.size != sizes[as_mx_format(format).name]:
        raise ArgumentError("codes", f"{codes.size} bytes", f"{sizes[format]} for {rows.size} elements of {format}")
    return format


def _checked_scales(scales: Bytes, rows: int, blocks: int, layout: str) -> Bytes:
    """The scales [n] of a buffer in `layout`."""
    _check_bytes("scales", scales)
    layout_named(layout)
    size = scale_buffer_size(rows, blocks, layout)
    if scales.size != size:
        others = [name for name in SCALE_LAYOUTS if scale_buffer_size(rows, blocks, name) == scales.size]
        fits = f", which is the size of {' and of '.join(others)}" if others else ""
        needed = f"{size} for {rows} x {blocks} scales in the layout {layout}"
        raise ArgumentError("scales", f"{scales.size} bytes{fits}", needed)
    return unswizzle_scales(scales.reshape(-1), (rows, blocks), layout).reshape(-1)


def detection_document(detection: Detection, source: str) -> dict[str, Any]:
    """Everything that was found as JSON values."""
    return {
        "input": source,
        "shape": list(detection.shape),
        "format": detection.format,
        "blocks": dict(detection.kinds),
        "verdict": detection.verdict,
        "names": list(detection.names),
        "matches": [_score_document(match) for match in detection.matches],
        "not_told_apart": [
            {
                "policies": [ambiguity.first.name, ambiguity.second.name],
                "block": witness.description if witness else None,
                "gives": [witness.first, witness.second] if witness else None,
            }
            for ambiguity in detection.ambiguities
            for witness in [ambiguity.witness]
        ],
        "nearest": [_score_document(score) for score in detection.nearest],
        "ordinary_blocks_exact": [rule.name for rule in detection.ordinary],
        "hypotheses": [
            {"fault": each.fault, "policies": list(each.names), "blocks_left": each.left, "blocks": each.blocks}
            for each in detection.hypotheses
        ],
    }


def detection_view(detection: Detection, source: str) -> str:
    """The verdict first, then what it rests on."""
    lines = [f"{source}: {input_summary(detection.format, detection.shape, detection.kinds)}"]
    lines += _matched(detection) if detection.matches else _unmatched(detection)
    return "\n".join(lines)


def _matched(detection: Detection) -> list[str]:
    undefined = detection.matches[0].undefined
    but = f" but those of {undefined} blocks that it leaves undefined" if undefined else ""
    lines = [f"{detection.verdict.upper()}: every byte{but} is what this gives"]
    for match in detection.matches:
        rest = f"; {match.undefined} blocks are undefined by it" if match.undefined > undefined else ""
        lines.append(f"  {match.rule}{rest}")
    if detection.ambiguities:
        first = detection.ambiguities[0].first.name
        lines.append(f"This data cannot tell them apart. Blocks that can, {first} against")
    for ambiguity in detection.ambiguities:
        witness = ambiguity.witness
        if witness is None:
            lines.append(f"  {ambiguity.second.name}: none known")
        else:
            lines.append(f"  {ambiguity.second.name}: {witness.description}")
            lines.append(f"      {witness.first} | {witness.second}")
    return lines


def _unmatched(detection: Detection) -> list[str]:
    lines = ["MISMATCH: no policy gives these bytes. The nearest"]
    for near in detection.nearest:
        kinds = ", ".join(f"{count:,} {name}" for name, count in near.by_kind.items())
        undefined = f", {near.undefined:,} more are undefined" if near.undefined else ""
        lines.append(
            f"  {near.rule}: {near.differing:,} of {near.blocks:,} blocks differ ({kinds}){undefined}; "
            f"{_percent(near.scales, near.blocks)} of scale bytes, "
            f"{_percent(near.codes, near.blocks * MX_BLOCK)} of codes"
        )
    nearest = detection.nearest[0]
    lines += [f"    {byte.text}" for byte in (nearest.first_scale, nearest.first_code) if byte]
    if detection.ordinary:
        names = ", ".join(map(str, detection.ordinary))
        lines.append(
            f"On every block but the edges (all zero, tiny, not finite) every byte is what this gives: {names}"
        )
    if detection.hypotheses:
        lines.append("It would be explained by")
    for each in detection.hypotheses:
        left = f"all but {each.left:,} of {each.blocks:,} blocks" if each.left else f"all {each.blocks:,} blocks"
        lines.append(f"  {each.fault} ({left}), with {', '.join(each.names)}")
    return lines


def _score_document(score: Score) -> dict[str, Any]:
    return {
        "policy": score.rule.name,
        "aliases": list(score.rule.aliases),
        "blocks": score.blocks,
        "undefined_blocks": score.undefined,
        "differing_blocks": score.differing,
        "differing_by_kind": dict(score.by_kind),
        "differing_scales": score.scales,
        "differing_codes": score.codes,
        "first_scale": _byte_document(score.first_scale),
        "first_code": _byte_document(score.first_code),
    }


def _byte_document(byte: DifferingByte | None) -> dict[str, Any] | None:
    return None if byte is None else dict(vars(byte))


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3g} %" if whole else "0 %"
