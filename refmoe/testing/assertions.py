"""Two assertions: the same bytes, or within a bound that was derived. There is no third with a tolerance."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.families.stages import Stage
from refmoe.reference.mma import within_bound
from refmoe.testing.arrays import describe_array, to_numpy
from refmoe.testing.elements import Elements, as_patterns, mismatch_text
from refmoe.verify.compare import compare


def assert_bit_exact(actual: object, expected: object, *, what: str = "result", stage: Stage | None = None) -> None:
    """Assert that two arrays have the same shape, the same element type and the same bytes.

    -0 is not 0 here, and two NaN are the same only if their bits are.

    Args:
        actual: what the kernel made: an array of NumPy, torch (CPU or GPU) or JAX, or one with `__dlpack__`.
        expected: what it should be; likewise, not necessarily of the same framework.
        what: what the arrays are, for the message.
        stage: words for the elements, for example `refmoe.families.stages.Codes`; its name is
            said instead of `what`. Without one they are told by index.

    Raises:
        AssertionError: a difference: the first one, how many there are, and a map of where they lie.
        refmoe.errors.ArgumentError: one of the two is no array.
    """
    __tracebackhide__ = True
    ours, theirs = to_numpy(actual, "actual"), to_numpy(expected, "expected")
    name = stage.name if stage is not None else what
    if ours.shape != theirs.shape:
        raise AssertionError(f"{name}: the shapes differ: kernel {list(ours.shape)} reference {list(theirs.shape)}")
    if ours.dtype != theirs.dtype:
        raise AssertionError(f"{name}: the element types differ: kernel {ours.dtype} reference {theirs.dtype}")
    left, right = as_patterns(ours), as_patterns(theirs)
    words = stage if stage is not None else Elements(name, left.shape, ours.dtype)
    comparison = compare([words], {name: left}, {name: right})
    if comparison.stage is not None:
        raise AssertionError(mismatch_text(comparison.first_mismatch, comparison.maps))


def assert_within_bound(actual: object, exact: object, bound: object, *, what: str = "result") -> None:
    """Assert that every element lies within its own error bound of the exact value: |actual - exact| <= bound.

    For results whose bits nobody can promise, such as sums in an order of the kernel's own. The bound is derived, not
    chosen: `refmoe.testing.gemm_bound` does it for grouped GEMMs. Where it is infinite nothing is promised.

    Args:
        actual: what the kernel made, real numbers of any type and framework.
        exact: float64, the exact values, to within 2^-52 of themselves; of `actual`'s shape.
        bound: float64, how far each element may be from its exact value; of `actual`'s shape.
        what: what the arrays are, for the message.

    Raises:
        AssertionError: an element outside; the one furthest out, in bounds, and how many there are.
        refmoe.errors.ArgumentError: a bound that is no such array, or that is NaN, negative, or so wide that zeros
            would pass for more than half of the elements: it could not find anything.
    """
    __tracebackhide__ = True
    values, centre = to_numpy(actual, "actual"), to_numpy(exact, "exact")
    if centre.dtype != np.float64:
        raise ArgumentError("exact", describe_array(centre), "float64, computed apart from the kernel")
    if values.shape != centre.shape:
        raise AssertionError(f"{what}: the shapes differ: kernel {list(values.shape)} exact {list(centre.shape)}")
    if values.dtype.kind == "c":
        raise ArgumentError("actual", describe_array(values), "real numbers")
    width = _checked_bound(bound, centre)
    inside = within_bound(values, centre, width)
    if inside.all():
        return
    found = values.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        times = np.where(inside, 0.0, np.abs(found - centre) / width)
    worst = int(np.argmax(np.where(np.isnan(times), np.inf, times)))
    first = int(np.flatnonzero(~inside)[0])
    lines = [f"OUT_OF_BOUND {_outside(what, first, found, centre, width)}; {int((~inside).sum())} of {inside.size} are"]
    if worst != first:
        lines.append(f"furthest out: {_outside(what, worst, found, centre, width)}")
    raise AssertionError("\n".join(lines))


def _outside(
    what: str, index: int, found: NDArray[np.float64], exact: NDArray[np.float64], bound: NDArray[np.float64]
) -> str:
    position = ", ".join(str(int(axis)) for axis in np.unravel_index(index, found.shape))
    value, centre, width = (float(side.reshape(-1)[index]) for side in (found, exact, bound))
    error = abs(value - centre)
    times = f", {error / width:.3g} times the bound" if width > 0 and np.isfinite(error) else ""
    return f"{what}[{position}]  kernel {value:.9g}, exact {centre:.9g}: {error:.3g} apart, bound {width:.3g}{times}"


def _checked_bound(bound: object, exact: NDArray[np.float64]) -> NDArray[np.float64]:
    if bound is None:
        raise ArgumentError("bound", "None", "float64 of the result's shape, derived: see refmoe.testing.gemm_bound")
    if isinstance(bound, (int, float, np.generic)):
        needed = "an array, one derived bound an element: one number for all is a tolerance"
        raise ArgumentError("bound", describe(bound), needed)
    width: NDArray[Any] = to_numpy(bound, "bound")
    if width.dtype != np.float64 or width.shape != exact.shape:
        raise ArgumentError("bound", describe_array(width), f"float64 {list(exact.shape)}")
    for wrong, text in ((np.isnan(width), "a NaN"), (width < 0, "a negative number")):
        if wrong.any():
            place = [int(axis) for axis in np.argwhere(wrong)[0]]
            raise ArgumentError("bound", f"{text} at {place}", "numbers of at least 0; infinity where none is known")
    told = (exact != 0) & np.isfinite(exact)
    vacuous = told & (width >= np.abs(exact))
    if width.size and 2 * np.count_nonzero(vacuous) > np.count_nonzero(told):
        found = f"{np.count_nonzero(vacuous)} of {np.count_nonzero(told)} elements for which 0 would be within it"
        raise ArgumentError("bound", found, "a bound below |exact| for half of them at least: this one is vacuous")
    if width.size and np.isinf(width).all():
        raise ArgumentError("bound", "infinity throughout", "a bound for some element: this one is vacuous")
    return width
