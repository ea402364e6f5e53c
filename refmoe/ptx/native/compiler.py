"""The compiler of `refmoe.native`, by the name that the executor knows it."""

from __future__ import annotations

from refmoe.native.compiler import Native

__all__ = ["Native"]
