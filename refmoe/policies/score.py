"""How well a rule explains given bytes: the blocks, scales and codes that differ, and the first ones in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from refmoe.formats import MX_BLOCK, MX_FORMATS
from refmoe.numbers_as_text import bits_text, number_text
from refmoe.policies.blocks import INSIDE, KINDS, InputBlocks, input_blocks, kind_counts
from refmoe.policies.rules import PolicyRule, QuantizedBlocks
from refmoe.reference.layout import unpack_fp4


@dataclass(frozen=True, eq=False)
class GivenBytes:
    """An input and the bytes that some system made of it.

    Attributes:
        x: BF16, FP16 or FP32 [n, 32].
        codes: uint8 [n, 32] for "mxfp8", packed uint8 [n, 16] for "mxfp4".
        scales: uint8 [n], linear.
        format: "mxfp8" or "mxfp4".
        width: K, elements of a row.
        packing: order of FP4 codes in a block of 16 bytes, "even-low" or "gguf".
        swapped: the two nibbles of each byte are exchanged.
        compared: bool [n], blocks to look at; None for all.
    """

    x: NDArray[np.generic]
    codes: NDArray[np.uint8]
    scales: NDArray[np.uint8]
    format: str
    width: int
    packing: str = "even-low"
    swapped: bool = False
    compared: NDArray[np.bool_] | None = None

    @property
    def row_blocks(self) -> int:
        """Blocks of a row."""
        return self.width // MX_BLOCK

    def head(self, blocks: int) -> GivenBytes:
        """The first so many blocks of it."""
        part = slice(blocks)
        compared = None if self.compared is None else self.compared[part]
        return replace(self, x=self.x[part], codes=self.codes[part], scales=self.scales[part], compared=compared)

    def chunks(self) -> Iterator[tuple[int, InputBlocks, QuantizedBlocks]]:
        """Number of the first block, input, and the bytes, one code a byte; `defined` are the blocks to look at."""
        for start, blocks in input_blocks(self.x, self.format):
            part = slice(start, start + len(blocks.x))
            compared = np.ones(len(blocks.x), np.bool_) if self.compared is None else self.compared[part]
            yield start, blocks, QuantizedBlocks(self._unpacked(self.codes[part]), self.scales[part], compared)

    def _unpacked(self, codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if MX_FORMATS[self.format].codes_a_byte == 1:
            return codes
        if self.swapped:
            codes = (codes >> np.uint8(4)) | (codes << np.uint8(4))
        return unpack_fp4(codes, order=self.packing)


@dataclass(frozen=True)
class DifferingByte:
    """One difference.

    Attributes:
        row, block: of the block.
        lane: of the element in it; None if it is the block's scale.
        found, expected: the bytes; a code is one nibble for FP4.
        text: the difference in words.
    """

    row: int
    block: int
    lane: int | None
    found: int
    expected: int
    text: str


@dataclass(eq=False)
class Score:
    """How well a rule explains the bytes that were added.

    Attributes:
        rule: the rule.
        blocks: blocks compared: those that the rule defines.
        undefined: blocks that it leaves undefined.
        differing: blocks in which any byte differs.
        scales: scale bytes that differ.
        codes: codes that differ.
        kinds: int64, differing blocks of each of `KINDS`.
        first_scale: the first scale byte that differs.
        first_code: the first code that differs.
    """

    rule: PolicyRule
    blocks: int = 0
    undefined: int = 0
    differing: int = 0
    scales: int = 0
    codes: int = 0
    kinds: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(KINDS), np.int64))
    first_scale: DifferingByte | None = None
    first_code: DifferingByte | None = None

    @property
    def exact(self) -> bool:
        """Every byte of every block that the rule defines is equal, and there is such a block."""
        return self.differing == 0 and self.blocks > 0

    @property
    def by_kind(self) -> dict[str, int]:
        """Differing blocks by kind of block, kinds without any left out."""
        return {name: int(count) for name, count in zip(KINDS, self.kinds, strict=True) if count}

    @property
    def differing_inside(self) -> int:
        """Differing blocks that are no edge blocks: ordinary and small ones."""
        return sum(self.by_kind.get(name, 0) for name in INSIDE)

    @property
    def rank(self) -> tuple[int, float]:
        """Smaller is nearer: blocks that are not explained, then the share of scales and that of codes together."""
        return self.differing + self.undefined, self.scales + self.codes / MX_BLOCK

    def add(self, given: GivenBytes, start: int, blocks: InputBlocks, found: QuantizedBlocks) -> None:
        """Compare one chunk of the bytes, whose first block is number `start`."""
        made = self.rule.run(blocks)
        compared = found.defined & made.defined
        scales = (made.scales != found.scales) & compared
        codes = made.codes != found.codes
        if not compared.all():
            codes &= compared[:, None]
        self.blocks += int(np.count_nonzero(compared))
        self.undefined += int(np.count_nonzero(found.defined & ~made.defined))
        if not (scales.any() or codes.any()):
            return
        differing = scales | codes.any(axis=1)
        self.differing += int(np.count_nonzero(differing))
        self.scales += int(np.count_nonzero(scales))
        self.codes += int(np.count_nonzero(codes))
        self.kinds += kind_counts(blocks.kind[differing])
        if self.first_scale is None and scales.any():
            self.first_scale = _differing_scale(given, start, int(scales.argmax()), found, made)
        if self.first_code is None and codes.any():
            self.first_code = _differing_code(given, start, int(codes.argmax()), found, made)


def score(given: GivenBytes, rules: Sequence[PolicyRule]) -> list[Score]:
    """How well each of the rules explains the bytes, in one pass over them."""
    scores = [Score(rule) for rule in rules]
    for chunk in given.chunks():
        for each in scores:
            each.add(given, *chunk)
    return scores


def _differing_scale(
    given: GivenBytes, start: int, index: int, found: QuantizedBlocks, made: QuantizedBlocks
) -> DifferingByte:
    row, block = divmod(start + index, given.row_blocks)
    ours, theirs = int(made.scales[index]), int(found.scales[index])
    scale = MX_FORMATS[given.format].scale
    values = f"found {number_text(theirs, scale)} expected {number_text(ours, scale)}"
    return DifferingByte(row, block, None, theirs, ours, f"scales  block ({row}, {block}): {values}")


def _differing_code(
    given: GivenBytes, start: int, index: int, found: QuantizedBlocks, made: QuantizedBlocks
) -> DifferingByte:
    local, lane = divmod(index, MX_BLOCK)
    row, block = divmod(start + local, given.row_blocks)
    ours, theirs = int(made.codes[local, lane]), int(found.codes[local, lane])
    mx = MX_FORMATS[given.format]
    where = f"codes[{row}, {block * MX_BLOCK + lane}]  block ({row}, {block}) lane {lane}"
    values = f"found {number_text(theirs, mx.element)} expected {number_text(ours, mx.element)}"
    text = f"{where}: {values}, scale {bits_text(int(found.scales[local]), mx.scale)}"
    return DifferingByte(row, block, lane, theirs, ours, text)
