"""What each CTA of a grid has, in versions that share what they have in common.

A counter that a million CTAs have raised passes on what each of them released. Each of these atomics makes a version of
its own, because who read the counter before learns nothing of later ones. A version is a tree of 32 branches a level,
of which a change copies one path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_SHIFT = 5
_BRANCHES = 1 << _SHIFT
_EMPTY: tuple[Any, ...] = (None,) * _BRANCHES


@dataclass(frozen=True, slots=True)
class ByCta(Generic[T]):
    """An immutable map from numbers of CTAs, from 0 on; `ByCta()` is empty.

    Attributes:
        root: the tree; None while it is empty.
        levels: of it.
    """

    root: tuple[Any, ...] | None = None
    levels: int = 1

    def __bool__(self) -> bool:
        return self.root is not None

    def get(self, cta: int) -> T | None:
        """What a CTA has, or None."""
        node: Any = self.root
        if cta >> _SHIFT * self.levels:
            return None
        for level in range(self.levels - 1, -1, -1):
            if node is None:
                return None
            node = node[cta >> _SHIFT * level & _BRANCHES - 1]
        found: T | None = node
        return found

    def having(self, cta: int, value: T) -> ByCta[T]:
        """The same with another value for one CTA."""
        root, levels = self.root, self.levels
        while cta >> _SHIFT * levels:
            root, levels = None if root is None else (root, *_EMPTY[1:]), levels + 1
        return ByCta(_having(root, cta, value, levels - 1), levels)


def _having(node: tuple[Any, ...] | None, cta: int, value: Any, level: int) -> tuple[Any, ...]:
    held, branch = _EMPTY if node is None else node, cta >> _SHIFT * level & _BRANCHES - 1
    made = value if level == 0 else _having(held[branch], cta, value, level - 1)
    return (*held[:branch], made, *held[branch + 1 :])
