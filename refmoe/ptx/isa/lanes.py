"""Registers seen as signed numbers or as packed parts: views, never copies of a whole register."""

from __future__ import annotations

import numpy as np

from refmoe.ptx.isa.operation import Array, Function

UNSIGNED: dict[int, type[np.unsignedinteger]] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED: dict[int, type[np.signedinteger]] = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}


def signed(x: Array) -> Array:
    """The same bits as two's complement integers."""
    return x.view(SIGNED[x.dtype.itemsize * 8])


def packed(function: Function, part_bits: int = 16) -> Function:
    """Lift a function on `part_bits`-bit registers to registers twice as wide that hold two of them."""
    part = UNSIGNED[part_bits]
    whole = UNSIGNED[2 * part_bits]

    def lifted(*sources: Array) -> Array:
        return np.ascontiguousarray(function(*(_parts(x, part) for x in sources))).view(whole)[..., 0]

    return lifted


def _parts(x: Array, part: type[np.unsignedinteger]) -> Array:
    # A trailing axis holds the parts, lowest first; a scalar register broadcasts over the lanes of the others.
    return np.ascontiguousarray(np.asarray(x)[..., None]).view(part)


def spread(result: Array, *sources: Array) -> Array:
    """A result that happened not to depend on the sources with lanes, over those lanes."""
    if np.ndim(result):
        return result
    shape = np.broadcast_shapes(*map(np.shape, sources))
    return np.full(shape, result) if shape else result
