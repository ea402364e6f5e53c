"""A problem of the family `deepseek_gemm`: which rows are whose, which part of the output is asked for, and its words.

A *window* is a rectangle of the output: 256 columns, or 128 where there is an odd number of those, by at most 128 rows
of one expert. Of a problem of a model's true size a case asks for some windows alone, the corners of every expert's
output among them. The executor runs the CTAs whose *tiles* hold a part of a window. A tile may be higher than a window:
what its CTA writes beside the windows is not compared, and what is written beside the tiles must not be written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.case import Option, refused
from refmoe.families.family import Case
from refmoe.families.gemm.stages import BoundInterval
from refmoe.families.stages import Plane, matrix_plane
from refmoe.families.wrong import ARRAY, BYTE, Change, huge
from refmoe.numbers_as_text import VALUE_DTYPES, bits_text, compared_text
from refmoe.reference.deepseek_gemm import BLOCK

#: Rows of a window.
WINDOW_ROWS = BLOCK

_UNIFORM = "uniform"
ROWS = Option(
    "rows",
    _UNIFORM,
    pattern=rf"{_UNIFORM}|\d{{1,5}}(-\d{{1,5}}){{0,15}}",
    needed=f"{_UNIFORM}, or how many rows the experts have in turn, such as 0-1-7",
)


class Window(NamedTuple):
    """Rows `row` to `row_stop` of the output, all of one expert, by the columns `column` to `column_stop`."""

    expert: int
    row: int
    row_stop: int
    column: int
    column_stop: int

    @property
    def place(self) -> tuple[slice, slice]:
        """Where it lies in the output [rows, N]."""
        return slice(self.row, self.row_stop), slice(self.column, self.column_stop)


@dataclass(frozen=True)
class ExpertRows:
    """The rows of each expert.

    Attributes:
        first: the first row of each expert in the output, rows of a batch numbered through.
        counts: how many it has.
    """

    first: tuple[int, ...]
    counts: tuple[int, ...]

    def of_row(self, row: int) -> int | None:
        """The expert of a row; None for a row of no expert."""
        for expert, (first, count) in enumerate(zip(self.first, self.counts, strict=True)):
            if first <= row < first + count:
                return expert
        return None

    def used(self, rows: int) -> NDArray[np.bool_]:
        """Which of `rows` rows are an expert's, bool [rows]."""
        mask = np.zeros(rows, bool)
        for first, count in zip(self.first, self.counts, strict=True):
            mask[first : first + count] = True
        return mask


def output_rows(case: Case) -> int:
    """Rows of the output: m, or m for each expert of a batch."""
    return case.shape.m * (case.shape.e if case.grouping == "masked" else 1)


def expert_rows(case: Case) -> ExpertRows:
    """The rows of the experts of a case.

    Raises:
        ArgumentError: more rows than the case has.
    """
    m, experts = case.shape.m, case.shape.e
    masked = case.grouping == "masked"
    if case.rows != _UNIFORM:
        counts = [int(each) for each in np.resize([int(word) for word in case.rows.split("-")], experts)]
    elif masked:
        counts = Draw("deepseek-rows", case.seed).integers(m + 1, (experts,)).tolist()
    else:
        # An eighth of the rows belongs to no expert.
        drawn = Draw("deepseek-rows", case.seed).integers(experts, (m - m // 8,))
        counts = np.bincount(drawn, minlength=experts).tolist()
    most = max(counts) if masked else sum(counts)
    if most > m:
        raise refused("rows", f"{case.rows} for {experts} experts: {most} rows", f"at most the {m} of the shape")
    first = [expert * m if masked else sum(counts[:expert]) for expert in range(experts)]
    return ExpertRows(tuple(first), tuple(counts))


def windows(case: Case, rows: ExpertRows) -> list[Window]:
    """The windows that a case asks for: `case.sample` of every expert, or all of them if that is 0."""
    return [window for expert in range(case.shape.e) for window in _windows(case, rows, expert)]


def _windows(case: Case, rows: ExpertRows, expert: int) -> Iterator[Window]:
    width = 2 * BLOCK if case.shape.n % (2 * BLOCK) == 0 else BLOCK
    down, across = -(-rows.counts[expert] // WINDOW_ROWS), case.shape.n // width
    chosen = list(range(down * across))
    if 0 < case.sample < down * across:
        # The corners of the output first, and first of all the last of its rows and columns.
        corners = dict.fromkeys((down * across - 1, 0, across - 1, (down - 1) * across))
        keys = Draw("deepseek-windows", case.seed, expert).words(down * across)
        order = [*corners, *(int(each) for each in np.argsort(keys, kind="stable") if each not in corners)]
        chosen = sorted(order[: case.sample])
    first, stop = rows.first[expert], rows.first[expert] + rows.counts[expert]
    for each in chosen:
        row, column = first + each // across * WINDOW_ROWS, each % across * width
        yield Window(expert, row, min(row + WINDOW_ROWS, stop), column, column + width)


def window_tiles(asked: Sequence[Window], rows: ExpertRows, tile_m: int, tile_n: int) -> list[Window]:
    """The tiles of a kernel that hold a part of a window, each once, to the last row of its expert.

    Args:
        asked: the windows.
        rows: of the experts.
        tile_m: tokens of a tile.
        tile_n: weight rows of a tile.
    """
    found: dict[Window, None] = {}
    for window in asked:
        first = rows.first[window.expert]
        stop, top = first + rows.counts[window.expert], window.row - (window.row - first) % tile_m
        for row in range(top, window.row_stop, tile_m):
            for column in range(window.column, window.column_stop, tile_n):
                found[Window(window.expert, row, min(row + tile_m, stop), column, column + tile_n)] = None
    return list(found)


@dataclass(frozen=True, eq=False)
class GroupedOutputs:
    """Outputs [rows, N], or of a batch [E, R, N], as bit patterns.

    Attributes:
        name: of the stage.
        dtype: "bf16" or "f32".
        n: weight rows of an expert.
        rows: which rows are whose.
        poison: the byte that places hold which must not be written.
        asked: bool [rows, N], the places that the case asks for.
        interval: where FP32 outputs must lie, float64 [rows, N], or None.
    """

    name: str
    dtype: str
    n: int
    rows: ExpertRows
    poison: int
    asked: NDArray[np.bool_]
    interval: BoundInterval | None = None

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `refmoe.families.stages.Stage`."""
        row, column = divmod(index, self.n)
        if not self.asked[row, column]:
            whose = "belongs to no expert" if self.rows.of_row(row) is None else f"is outside the windows at {column}"
            where = f"row {row} {whose} and must not be written"
            return f"{where}: kernel {bits_text(kernel, self.dtype)} instead of the poison 0x{self.poison:02X}", ""
        return f"{self._place(row, column)}: {compared_text(kernel, reference, self.dtype)}", ""

    def plane(self, shape: tuple[int, ...]) -> Plane:
        """Tokens by weight rows; see `refmoe.families.stages.HasPlane`."""
        return matrix_plane(shape, "token", "weight row")

    def outside(self, kernel: NDArray[Any]) -> str | None:
        """A sentence on the outputs that lie outside the interval; None if none does.

        Args:
            kernel: bit patterns of the output.
        """
        if self.interval is None:
            return None
        with np.errstate(invalid="ignore"):  # signalling NaNs may be among what a wrong kernel gives
            values = kernel.view(VALUE_DTYPES[self.dtype]).reshape(-1, self.n).astype(np.float64)
        promised = self.asked & np.isfinite(self.interval.bound)
        low, high = self.interval.low, self.interval.high
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
        expert = self.rows.of_row(row)
        assert expert is not None
        return f"row {row - self.rows.first[expert]} of expert {expert}, weight row {column}"


# --- calls that are refused -----------------------------------------------------------------------------------------


def _of_one(tokens: int, weight_rows: int) -> Change:
    """So many tokens and weight rows of one expert, of one block of K."""
    return lambda given: {
        "tokens": huge((tokens, 128), given["tokens"]),
        "token_scales": huge((tokens, 1), given["token_scales"]),
        "weights": huge((1, weight_rows, 128), given["weights"]),
        "weight_scales": huge((1, weight_rows // 128, 1), given["weight_scales"]),
        "m_indptr": given["m_indptr"][:2].copy(),
    }


#: Damages that only this family has.
CHANGES: Mapping[str, Change] = {
    # Rows that int32 counts, and not those of one more tile; tiles that it counts, and not twice.
    "tokens-most_rows": _of_one((1 << 31) - 64, 128),
    "tokens-most_tiles": _of_one(12_000, 1 << 27),
    "weights-many_rows": lambda given: {
        "weights": huge((1, 1 << 31, 128), given["weights"]),
        "weight_scales": huge((1, 1 << 24, 1), given["weight_scales"]),
        "tokens": given["tokens"][:, :128].copy(),
        "m_indptr": given["m_indptr"][:2].copy(),
    },
    "token_scales-many": lambda given: {
        "token_scales": huge((given["tokens"].shape[0], 1 << 30), given["token_scales"])
    },
    "ctas-of_narrow_tile": lambda given: {"ctas": 2},
}
#: And what is wrong with the arguments of both groupings.
WRONG_PRODUCTS: Mapping[str, str] = {
    "token_scales": f"{ARRAY} scalar short narrow",
    "weight_scales": f"{ARRAY} short narrow",
    **dict.fromkeys(("model", "scale_layout", "out_dtype"), "word"),
    "tile_m": "number text",
    "ctas": "zero number of_narrow_tile",
    "fill": BYTE,
}
WEIGHTS = f"{ARRAY} flat no_rows no_middle no_columns narrow"
