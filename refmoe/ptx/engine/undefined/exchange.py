"""Undefined values that go between the lanes of a warp: `shfl`, `vote`, `match`, `redux`; and products of matrices.

All take and give vectors over all lanes of the machine, those that do not act included, where nothing is undefined.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from refmoe.ptx.engine.undefined.rules import upward

Array = Any
_LANES, _QUADS, _QUAD = 32, 8, 4


def _by_warp(values: Array) -> Array:
    return values.reshape(-1, _LANES)


def _first_open(open_: Array, origins: Array) -> Array:
    """int64 [lanes]: of each warp the origin of its first lane that is open, bool [lanes]."""
    lanes = np.argmax(_by_warp(open_), axis=1)
    return np.repeat(_by_warp(origins)[np.arange(len(lanes)), lanes], _LANES)


def _bits(values: Array) -> Array:
    """bool [lanes] to uint32 [lanes], bit i for lane i of the warp."""
    return np.repeat(np.packbits(values, bitorder="little").view(np.uint32), _LANES)


def ballot(predicate: Array, mask: Array, origins: Array, taking_part: Array) -> tuple[Array, Array]:
    """(mask uint32, origins) of `vote.ballot`: each lane's predicate is a bit."""
    open_ = mask & taking_part
    return _bits(open_), _first_open(open_, origins)


def vote(mode: str, predicate: Array, mask: Array, origins: Array, taking_part: Array) -> tuple[Array, Array]:
    """(mask bool, origins) of `vote.all`, `.any` and `.uni`: known where what is known decides."""
    open_ = mask & taking_part
    yes = _by_warp(predicate & ~mask & taking_part).any(axis=1)
    no = _by_warp(~predicate & ~mask & taking_part).any(axis=1)
    decided = {"all": no, "any": yes, "uni": yes & no}[mode]
    found = _by_warp(open_).any(axis=1) & ~decided
    return np.repeat(found, _LANES), _first_open(open_, origins)


def match(mask: Array, origins: Array, taking_part: Array) -> tuple[Array, Array]:
    """(bool, origins): whether all of both results of `match` is undefined."""
    open_ = (mask != 0) & taking_part
    return np.repeat(_by_warp(open_).any(axis=1), _LANES), _first_open(open_, origins)


def redux(operation: str, values: Array, mask: Array, origins: Array, taking_part: Array) -> tuple[Array, Array]:
    """(mask uint32, origins) of `redux.sync`; a known 0 defines a bit of `and`, a known 1 one of `or`."""
    part = np.where(taking_part, mask, np.uint32(0))
    together = np.repeat(np.bitwise_or.reduce(_by_warp(part), axis=1), _LANES)
    if operation in ("and", "or"):
        known = (values if operation == "or" else ~values) & ~mask
        absorbed = np.bitwise_or.reduce(_by_warp(np.where(taking_part, known, np.uint32(0))), axis=1)
        together = together & ~np.repeat(absorbed, _LANES)
    elif operation == "add":
        together = upward(together)
    elif operation != "xor":
        together = np.where(together != 0, np.uint32(0xFFFFFFFF), np.uint32(0))
    return together, _first_open(part != 0, origins)


def product(
    rows: int,
    a: list[Array],
    b: list[Array],
    c: list[Array],
    a_scales: Array | None,
    b_scales: Array | None,
) -> list[Array]:
    """What is undefined of D = A B + C, `mma` of M `rows` and N 8: an element, if one of its row, column or C's is.

    With g = lane / 4 and t = lane % 4, register i of A holds row g + 8 (i % 2) for M = 16 and row g for M = 8; every
    register of B holds column g; register i of C, which has as many as there are elements of a lane, row g + 8 (i / 2)
    and column 2t + i % 2 (PTX ISA, "Matrix fragments for mma.m16n8k16" and its neighbours).

    Args:
        rows: M.
        a: of each register bool [lanes], whether it is undefined.
        b: likewise.
        c: likewise, one for each element.
        a_scales: bool [warps, M], whether a scale of a row is; None without scales.
        b_scales: bool [warps, 8], likewise of a column.

    Returns:
        Of each element of D that a lane has bool [lanes].
    """
    halves = rows // _QUADS

    def by_group(registers: list[Array]) -> Array:
        """bool [warps, 8]: something that the lanes of a group hold."""
        held = reduce(np.bitwise_or, registers)
        found: Array = held.reshape(-1, _QUADS, _QUAD).any(axis=2)
        return found

    of_rows = np.concatenate([by_group(a[half::halves]) for half in range(halves)], axis=1)
    of_columns = by_group(b)
    if a_scales is not None:
        of_rows = of_rows | a_scales
    if b_scales is not None:
        of_columns = of_columns | b_scales
    lane = np.arange(_LANES)
    g, t = lane // _QUAD, lane % _QUAD
    result = []
    for number, own in enumerate(c):
        row, column = g + _QUADS * (number // 2), 2 * t + number % 2
        result.append((of_rows[:, row] | of_columns[:, column]).reshape(-1) | own)
    return result
