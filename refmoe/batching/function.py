"""The certificate of a function or a registered kernel of somebody's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.batching.prove import Certificate, Difference, certify
from refmoe.batching.subject import SIZES, Arrays, Call, Subject
from refmoe.errors import ArgumentError, describe
from refmoe.testing.arrays import from_numpy, to_numpy
from refmoe.testing.kernel import UserKernel

__all__ = ["Certificate", "Difference", "invariant"]

#: What neighbours are made of where only the user's tokens are known.
_KINDS = ("random", "zeros", "special", "huge", "copies")


def invariant(
    function: Callable[..., Any],
    tokens: NDArray[Any] | Mapping[str, NDArray[Any]],
    *,
    sizes: Sequence[int] = SIZES,
    ways: Sequence[Mapping[str, Any]] = ({},),
    result: Callable[[Any, int], Any] | None = None,
    kinds: Sequence[str] = _KINDS,
    seed: int = 7,
) -> Certificate:
    """Whether a token's result bytes depend on the batch that it is in.

    >>> import numpy as np
    >>> import refmoe
    >>> tokens = np.random.default_rng(7).standard_normal((64, 96)).astype(np.float32)
    >>> refmoe.invariant(lambda x: x * 2, tokens).invariant
    True
    >>> print(refmoe.invariant(lambda x: x / np.abs(x).max(), tokens).difference.array)
    out

    Every token among the first few is taken alone, and then put first, in the middle and last into batches of every
    size, among other tokens, zeros, NaN and infinities, huge values, and copies of itself.

    Args:
        function: takes arrays whose first axis counts tokens, and returns an array, a tuple or a mapping of arrays
            whose first axis counts them too. Or a kernel that `refmoe.testing.kernel` registered, which is given the
            arrays that it is registered for.
        tokens: the tokens to draw from, [N, ...]; or several arrays by the names of the function's parameters.
        sizes: of the batches.
        ways: further keyword arguments, one set for each way that must give the same bytes, such as
            `({"tile": 8}, {"tile": 64})`; the first is the usual one.
        result: `result(returned, position)` gives what belongs to the token at a position, where the first axis of
            what is returned does not count tokens.
        kinds: of neighbours, some of random, zeros, special, huge, copies. Arrays of integers keep values of `tokens`.
        seed: of the choice of neighbours.

    Returns:
        A certificate: true if no byte differs; printed, what was tried, or the first pair that differs.

    Raises:
        ArgumentError: no tokens, an unknown kind, or results without a token's part.
    """
    pool = dict(tokens) if isinstance(tokens, Mapping) else {"": tokens}
    counts = {len(array) for array in pool.values() if isinstance(array, np.ndarray) and array.ndim}
    if len(counts) != 1 or not min(counts) or not all(isinstance(array, np.ndarray) for array in pool.values()):
        found = ", ".join(map(describe, pool.values())) or "none"
        raise ArgumentError("tokens", found, "NumPy arrays with as many tokens each, at least one")
    if unknown := [kind for kind in kinds if kind not in _KINDS]:
        raise ArgumentError("kinds", unknown[0], f"some of {', '.join(_KINDS)}")
    if not sizes or min(sizes) < 1 or not ways:
        raise ArgumentError("sizes", f"{list(sizes)} in {len(ways)} ways", "at least one size above 0, and one way")
    name = getattr(function, "label", getattr(function, "__name__", type(function).__name__)).strip("<>")
    numbered = tuple(str(number) for number in range(len(ways)))
    run = partial(_run, function, ways, result)
    rests_on = "as the function ran here"
    subject = Subject(f"function/{name}", partial(_draw, pool), run, rests_on, numbered, max(sizes), tuple(kinds))
    probes = min(3, counts.pop())
    calls = [
        Call(subject.name, _PROBE, size, position, kind, way, seed + probe)
        for way in numbered
        for size in sorted(set(sizes))
        for kind in (kinds if size > 1 else ("copies",))
        for number, position in enumerate(sorted({0, size // 2, size - 1}))
        for probe in [number % probes]
    ]
    return certify(subject, seed=seed, calls=calls)


_PROBE = "random"


def _draw(pool: Arrays, kind: str, seed: int, tokens: int) -> Arrays:
    """Tokens of the pool; of arrays of numbers, zeros, specials or huge values in their place."""
    count = len(next(iter(pool.values())))
    generator = np.random.default_rng(seed)
    chosen = generator.integers(0, count, tokens)
    return {name: _of_kind(array[chosen], kind, generator) for name, array in pool.items()}


def _of_kind(array: NDArray[Any], kind: str, generator: np.random.Generator) -> NDArray[Any]:
    # The types of ml_dtypes are no subtypes of NumPy's numbers; what has a NaN is one of numbers.
    floating = array.dtype.kind == "f" or (array.dtype.kind == "V" and array.dtype.itemsize <= 4)
    if kind == "random" or not floating:
        return array
    if kind == "zeros":
        return np.zeros_like(array)
    values = np.array(array)
    if kind == "huge":
        with np.errstate(over="ignore"):
            values[...] = np.where(generator.integers(0, 2, array.shape) == 0, 1.0, -1.0) * _largest(array.dtype)
        return values
    place = generator.integers(0, 3, array.shape)
    for number, special in enumerate((np.nan, np.inf, -np.inf)):
        values[place == number] = special
    return values


def _largest(dtype: Any) -> float:
    import ml_dtypes

    finfo: Any = ml_dtypes.finfo if dtype.kind == "V" else np.finfo
    return float(finfo(dtype).max)


def _run(
    function: Callable[..., Any],
    ways: Sequence[Mapping[str, Any]],
    result: Callable[[Any, int], Any] | None,
    batch: Arrays,
    way: str,
) -> Arrays:
    tokens = len(next(iter(batch.values())))
    given: dict[str, Any] = {name: np.array(array) for name, array in batch.items()}
    if isinstance(function, UserKernel):
        given = {name: from_numpy(array, function.arrays, function.device) for name, array in given.items()}
    settings = ways[int(way)]
    returned = function(given[""], **settings) if "" in given else function(**given, **settings)
    if result is not None:
        parts = [np.asarray(_numpy(result(returned, position))) for position in range(tokens)]
        return {"result": np.stack(parts)}
    if isinstance(returned, Mapping):
        return {name: _numpy(array) for name, array in returned.items()}
    if isinstance(returned, (tuple, list)):
        return {f"out[{number}]": _numpy(array) for number, array in enumerate(returned)}
    return {"out": _numpy(returned)}


def _numpy(array: Any) -> NDArray[Any]:
    return array if isinstance(array, np.ndarray) else to_numpy(array)
