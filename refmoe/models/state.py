"""What a decoder remembers of the sequences in flight: their keys and values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass
class State:
    """Key-value caches of sequences of one length that are decoded together.

    A cache is never written in place: appending makes a new array, so `copy` is cheap and a copy's future is its own.

    Attributes:
        sequences: how many, B.
        length: positions that have been decoded.
        keys: for every layer [B, positions, key-value heads, D], after rotation; BF16, or float64 in a float64 decoder.
            A windowed layer keeps only what the next query can still see.
        values: likewise.
    """

    sequences: int
    length: int = 0
    keys: list[Array] = field(default_factory=list)
    values: list[Array] = field(default_factory=list)

    def copy(self) -> State:
        """A state that goes its own way from here."""
        return State(self.sequences, self.length, list(self.keys), list(self.values))

    def append(self, layer: int, keys: Array, values: Array, window: int | None) -> tuple[Array, Array]:
        """Add the positions of one layer and return the caches that their queries see.

        Args:
            layer: its number.
            keys: [B, S, key-value heads, D], in the dtype of the caches.
            values: likewise.
            window: positions that a query of the layer sees, itself included; None for all.

        Returns:
            Keys and values [B, P, key-value heads, D], the last S of P positions the new ones.
        """
        seen = [np.concatenate(pair, axis=1) for pair in ((self.keys[layer], keys), (self.values[layer], values))]
        # The next query is one of the positions that its window counts.
        kept = slice(None) if window is None else slice(max(0, seen[0].shape[1] - (window - 1)), None)
        self.keys[layer], self.values[layer] = (array[:, kept].copy() if window else array for array in seen)
        return seen[0], seen[1]
