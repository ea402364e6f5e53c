"""What this process holds of the cache of machine code."""

from __future__ import annotations

from weakref import WeakValueDictionary

import pytest

from refmoe.ptx.native import batch


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing, as in a new process."""
    monkeypatch.setattr(batch, "_BATCHES", WeakValueDictionary())
    monkeypatch.setattr(batch, "_OF", WeakValueDictionary())
