"""Where arrays lie: whoever hands arrays to native code asks that ten thousand times a second."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

Array = Any
# Of NumPy's C interface: an array's object goes on with the address of its elements.
_FIELD = object.__basicsize__
_PLACE = ctypes.c_size_t.from_address


def _slow(array: Array) -> int:
    return int(array.ctypes.data)


def _fast(array: Array) -> int:
    """What `array.ctypes.data` is, in an eighth of the time: that one makes two objects first."""
    return _PLACE(id(array) + _FIELD).value


def _agree() -> bool:
    """Whether this interpreter's arrays are laid out so."""
    some = np.arange(8)
    return all(_fast(each) == _slow(each) for each in (some, some[3:], some[::-1], some.reshape(2, 4)[1]))


address = _fast if _agree() else _slow
"""`address(array)`: of the first element."""
