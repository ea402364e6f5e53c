"""What this process holds of the cache of machine code."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakValueDictionary

import pytest

from refmoe.ptx.native import batch


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes this process hold nothing, as a new one does."""

    def forget() -> None:
        monkeypatch.setattr(batch, "_BATCHES", WeakValueDictionary())
        monkeypatch.setattr(batch, "_OF", WeakValueDictionary())

    return forget
