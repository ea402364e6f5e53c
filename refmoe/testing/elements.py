"""The stage of an array of any element type: place, value and distance of elements that differ.

[5, 421]  block (5, 13) lane 5: kernel 0x6F (120) reference 0x70 (128), 1 ulp; 3 of 23040 differ
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.formats import MX_BLOCK
from refmoe.verify.compare import MismatchMap

#: Lines of a drawn map, at most.
_LINES = 12

#: Element types that only block formats have: their columns are told by K-block and lane too.
_BLOCK_ELEMENTS = ("float8_e4m3fn", "float8_e5m2")


def as_patterns(array: NDArray[Any]) -> NDArray[Any]:
    """The bit patterns of a contiguous array: unsigned integers of the elements' size, bytes in a row for wider ones.

    A complex number becomes its two halves, an element of 16 bytes its bytes, on one more axis.
    """
    size = array.dtype.itemsize
    if array.dtype.kind == "c":
        return as_patterns(np.stack([array.real, array.imag], axis=-1))
    if size in (1, 2, 4, 8):
        return array.view(f"u{size}")
    return np.frombuffer(array.tobytes(), np.uint8).reshape(*array.shape, size)


@dataclass(frozen=True, eq=False)
class Elements:
    """An array of any shape, as the bit patterns of elements of `dtype`; see `refmoe.families.stages.Stage`.

    Attributes:
        name: what the array is.
        shape: its shape.
        dtype: type of its elements.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `refmoe.families.stages.Stage`."""
        if self.dtype.kind not in "biuf" and not self._is_float:
            return f"kernel 0x{kernel:X} reference 0x{reference:X}", ""
        values = f"kernel {self._text(kernel)} reference {self._text(reference)}{self._distance(kernel, reference)}"
        place = self._place(index)
        return (f"{place}: {values}" if place else values), ""

    @property
    def _is_float(self) -> bool:
        return self.dtype.kind == "f" or hasattr(ml_dtypes, self.dtype.name)

    def _place(self, index: int) -> str:
        if self.dtype.name not in _BLOCK_ELEMENTS or not self.shape or self.shape[-1] % MX_BLOCK:
            return ""
        row, column = divmod(index, self.shape[-1])
        block, lane = divmod(column, MX_BLOCK)
        return f"block ({row}, {block}) lane {lane}"

    def _value(self, pattern: int) -> Any:
        return np.array([pattern], f"u{self.dtype.itemsize}").view(self.dtype)[0]

    def _text(self, pattern: int) -> str:
        value, digits = self._value(pattern), 2 * self.dtype.itemsize
        shown = f"{float(value):.17g}" if self.dtype.itemsize == 8 else f"{float(value):.9g}"
        text = shown.replace("nan", "NaN") if self._is_float else str(value)
        return f"0x{pattern:0{digits}X} ({text})"

    def _distance(self, first: int, second: int) -> str:
        """Representable values between the two; of integers, the difference."""
        if not self._is_float:
            return f", {int(self._value(first)) - int(self._value(second)):+d}"
        if self.dtype.name == "float8_e8m0fnu":
            return "" if 0xFF in (first, second) else f", {first - second:+d} in the exponent"
        nans = [bool(np.isnan(float(self._value(pattern)))) for pattern in (first, second)]
        if all(nans):
            return ", another NaN"
        if any(nans):
            return ""
        sign = 1 << 8 * self.dtype.itemsize - 1
        left, right = (-(bits - sign) if bits & sign else bits for bits in (first, second))
        return f", {abs(left - right):,} ulp" if left != right else ", the sign of zero"


def mismatch_text(first: str | None, maps: Sequence[MismatchMap]) -> str:
    """The first difference and a map of each stage that differs."""
    lines = [f"MISMATCH {first}"]
    for found in maps:
        lines += [f"{found.stage} {line}" if line.startswith("map") else line for line in map_lines(found)]
    return "\n".join(lines)


def map_lines(found: MismatchMap) -> Iterator[str]:
    """The map drawn in at most 12 lines: '.' where nothing differs, else 1 to 9, 9 for the fullest cell.

    What has one row or fits one cell is not drawn: the count says it already.
    """
    counts = np.array(found.counts)
    if counts.size < 2 or found.rows < 2:
        return
    merged = -(-counts.shape[0] // _LINES)
    starts = np.arange(0, counts.shape[0], merged)
    lines = np.add.reduceat(counts, starts, axis=0)
    most = lines.max()
    # The fullest cell stands for all: what a cell holds in elements depends on the stage.
    yield (
        f"map: {found.row_axis}s {found.rows} down, {found.column_axis}s {found.columns} across, "
        f"{found.row_step * merged} x {found.column_step} a cell; "
        f"9 = {most} {'element differs' if most == 1 else 'elements differ'}"
    )
    width = len(str(found.rows))
    for start, line in zip(starts, lines, strict=True):
        cells = "".join("." if count == 0 else str(max(1, int(count) * 9 // int(most))) for count in line)
        yield f"  {int(start) * found.row_step:>{width}} {cells}"
