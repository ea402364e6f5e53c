"""Grouped-query attention with sinks over a key-value cache, one query at a time in a stated order.

For a query at position p that sees the positions a..p (all of them, or the window):

    s[j] = fold(q * k[j]) * (1 / sqrt(D))       every product rounded, folding order over D
    m = max(s[a..p], sink);  e[j] = exp(s[j] - m);  e_sink = exp(sink - m)
    w[j] = e[j] / (fold(e) + e_sink)
    out = fold(w * v)                           folding order over j = a..p

exp is `refmoe.reference.exponential` in float32, NumPy's in float64. What a query sees alone decides its bits, so a
prompt gives the same ones whole, in pieces, or a token at a time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.models.dense import fold
from refmoe.reference.exponential import exponential

Array = NDArray[Any]

#: Queries whose exponentials are taken together, which saves calls and changes no bit.
QUERIES_A_CHUNK = 64


def attend(query: Array, keys: Array, values: Array, sinks: Array, window: int | None) -> Array:
    """Attention of the last queries of one sequence.

    Args:
        query: float32 or float64 [S, heads, D]; the last one stands at the position of the last key.
        keys: [P, KV, D] in the same dtype, P >= S. Head h uses key head h // (heads / KV).
        values: [P, KV, D], likewise.
        sinks: [heads], likewise.
        window: positions that a query sees, itself included; None for all.

    Returns:
        [S, heads, D] in the same dtype.
    """
    out = np.empty_like(query)
    exponent = exponential if query.dtype == np.float32 else np.exp
    before = len(keys) - len(query)
    for start in range(0, len(query), QUERIES_A_CHUNK):
        chunk = range(start, min(start + QUERIES_A_CHUNK, len(query)))
        seen = [slice(0 if window is None else max(0, before + q + 1 - window), before + q + 1) for q in chunk]
        scores = [_scores(query[q], keys[part], sinks) for q, part in zip(chunk, seen, strict=True)]
        powers = np.split(exponent(np.concatenate(scores)), np.cumsum([len(score) for score in scores])[:-1])
        for q, part, power in zip(chunk, seen, powers, strict=True):
            out[q] = _weighted(power, values[part])
    return out


def _scores(query: Array, keys: Array, sinks: Array) -> Array:
    """[n + 1, heads]: the score of every key and last the sink, less the largest of a head."""
    dim, kv_heads = query.shape[-1], keys.shape[1]
    grouped = query.reshape(kv_heads, -1, dim)
    scale = query.dtype.type(1 / math.sqrt(dim))
    scores = np.empty((len(keys) + 1, len(query)), query.dtype)
    by_group = scores.reshape(len(scores), kv_heads, -1)
    # One key head at a time: the products of a long context would not fit the memory otherwise.
    for head in range(kv_heads):
        by_group[:-1, head] = fold(keys[:, head, None] * grouped[head]) * scale
    scores[-1] = sinks
    scores -= scores.max(axis=0)
    return scores


def _weighted(powers: Array, values: Array) -> Array:
    """[heads, D]: the values weighted by the softmax whose exponentials are `powers` [n + 1, heads]."""
    seen, (kv_heads, dim) = powers[:-1], values.shape[1:]
    weights = (seen / (fold(seen.copy(), axis=0) + powers[-1])).reshape(len(seen), kv_heads, -1)
    out = np.empty((kv_heads, weights.shape[-1], dim), values.dtype)
    for head in range(kv_heads):
        out[head] = fold(weights[:, head, :, None] * values[:, head, None], axis=0)
    return out.reshape(-1, dim)
