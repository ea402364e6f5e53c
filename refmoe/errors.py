"""The error that refuses a bad argument, in one sentence that says what was found and what is needed."""

from __future__ import annotations

from typing import Any

import numpy as np

#: What is said where a GPU is asked for and the driver's library is not there.
NO_DRIVER = "this machine has no NVIDIA driver: libcuda.so.1 is not found"


class RefmoeError(Exception):
    """Base class of the errors that refmoe raises on purpose."""


class ArgumentError(RefmoeError, ValueError):
    """A function was called with an argument that it does not define.

    Attributes:
        argument: name of the argument as in the function's signature.
        found: what was passed, in words.
        needed: what would have been accepted, in words.
    """

    def __init__(self, argument: str, found: str, needed: str) -> None:
        super().__init__(f"{argument}: found {found}; needed {needed}")
        self.argument = argument
        self.found = found
        self.needed = needed

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle by their message alone, which would lose the three parts between worker processes.
        return type(self), (self.argument, self.found, self.needed)


def describe(value: object) -> str:
    """A short description of `value` for an error message: dtype and shape of an array, else type and value."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    kind = type(value)
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if isinstance(shape, tuple) and dtype is not None and not isinstance(value, np.generic):
        # An array of another library: its values say less than whose it is.
        library = kind.__module__.partition(".")[0]
        return f"{library}.{kind.__name__} {str(dtype).rpartition('.')[2]} {list(shape)}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
