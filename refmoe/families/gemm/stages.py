"""The stage of a GEMM's output: words for its elements, and its error bound.

out[5, 421]  token 1 of expert 2, weight row 421: kernel 0x4131A000 (11.1015625) reference 0x4131A001 (...), 1 ulp
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.families.stages import Plane, matrix_plane
from refmoe.numbers_as_text import VALUE_DTYPES, bits_text, compared_text


@dataclass(frozen=True, eq=False)
class BoundInterval:
    """Where each output must lie.

    Attributes:
        low, high: the output's type [T, N]; -inf and inf where nothing is promised.
        exact: float64 [T, N], the exact sums, before alpha and bias.
        bound: float64 [T, N], how far from them a sum may be.
    """

    low: NDArray[Any]
    high: NDArray[Any]
    exact: NDArray[np.float64]
    bound: NDArray[np.float64]

    def relative_width(self) -> NDArray[np.float64]:
        """Bound over |exact sum|, of the sums for which anything is promised and that are not zero."""
        told = np.isfinite(self.bound) & np.isfinite(self.exact) & (self.exact != 0)
        return np.asarray(self.bound[told] / np.abs(self.exact[told]))


@dataclass(frozen=True, eq=False)
class Products:
    """Outputs [T, N] of a grouped GEMM, rows in expert order, as bit patterns.

    Attributes:
        name: of the stage.
        dtype: "bf16" or "f32".
        n: weight rows of an expert.
        offsets: int64 [E+1], first row of each expert; rows from offsets[E] on are not written.
        poison: the byte that those hold.
        interval: where outputs must lie, or None.
    """

    name: str
    dtype: str
    n: int
    offsets: NDArray[np.int64]
    poison: int
    interval: BoundInterval | None = None

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `refmoe.families.stages.Stage`."""
        row, column = divmod(index, self.n)
        if row >= self.offsets[-1]:
            where = f"row {row} belongs to no expert of this rank and must not be written"
            return f"{where}: kernel {bits_text(kernel, self.dtype)} instead of the poison 0x{self.poison:02X}", ""
        return f"{self._place(row, column)}: {compared_text(kernel, reference, self.dtype)}", ""

    def plane(self, shape: tuple[int, ...]) -> Plane:
        """Tokens in expert order by weight rows; see `refmoe.families.stages.HasPlane`."""
        plane = matrix_plane(shape, "token", "weight row")
        return replace(plane, expert_rows=tuple(self.offsets[:-1].tolist()), tiled=True)

    def outside(self, kernel: NDArray[Any]) -> str | None:
        """A sentence on the outputs that lie outside the interval; None if none does.

        Args:
            kernel: bit patterns [T, N].
        """
        if self.interval is None:
            return None
        used = int(self.offsets[-1])
        with np.errstate(invalid="ignore"):  # signalling NaNs may be among what a wrong kernel gives
            values = kernel.view(VALUE_DTYPES[self.dtype])[:used].astype(np.float64)
        low, high = (end[:used].astype(np.float64) for end in (self.interval.low, self.interval.high))
        promised = np.isfinite(self.interval.bound[:used]) & np.isfinite(self.interval.exact[:used])
        inside = (low <= values) & (values <= high) | ~promised
        if inside.all():
            return None
        row, column = (int(axis) for axis in np.argwhere(~inside)[0])
        span = f"[{float(low[row, column])!r}, {float(high[row, column])!r}]"
        return (
            f"{self.name}[{row}, {column}]  {self._place(row, column)}: {float(values[row, column])!r} is outside "
            f"{span}, the error bound of the exact sum; {int((~inside).sum())} of {inside.size} are"
        )

    def _place(self, row: int, column: int) -> str:
        expert = int(np.searchsorted(self.offsets, row, side="right")) - 1
        return f"token {row - int(self.offsets[expert])} of expert {expert}, weight row {column}"
