"""Arrays as arguments: errors name dtypes and shape as the documentation does, "int32 [T, k]"."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe


def checked_array(argument: str, value: object, shape: tuple[int | str, ...], *dtypes: npt.DTypeLike) -> NDArray[Any]:
    """`value`, or an `ArgumentError` if it is no array of that shape, where words are any size, and of a dtype."""
    named = [np.dtype(dtype) for dtype in dtypes]
    if (
        not isinstance(value, np.ndarray)
        or value.dtype not in named
        or value.ndim != len(shape)
        or any(isinstance(size, int) and size != n for n, size in zip(value.shape, shape, strict=True))
    ):
        needed = f"{' or '.join(map(str, named))} [{', '.join(map(str, shape))}]"
        raise ArgumentError(argument, describe(value), needed)
    return value


def check_optional(argument: str, value: object, shape: tuple[int | str, ...], *dtypes: npt.DTypeLike) -> None:
    """Refuse what `checked_array` refuses, but for None."""
    if value is not None:
        checked_array(argument, value, shape, *dtypes)


def checked_output(out_dtype: npt.DTypeLike, dtypes: Collection[np.dtype[Any]], needed: str) -> np.dtype[Any]:
    """`out_dtype` as a dtype, or an `ArgumentError` if it is none of `dtypes`, which are `needed` in words."""
    try:
        dtype = np.dtype(out_dtype)
    except TypeError:
        dtype = np.dtype(object)
    if out_dtype is None or dtype not in dtypes:
        raise ArgumentError("out_dtype", describe(out_dtype), needed)
    return dtype
