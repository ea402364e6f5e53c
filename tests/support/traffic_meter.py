"""A device that counts which bytes of each buffer a launch touches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refmoe import ptx
from refmoe.chips import CHIPS
from refmoe.cuda.device import PtxDevice
from refmoe.ptx import launcher
from refmoe.ptx.engine.races import RaceShadow
from refmoe.ptx.native.context import Row

__all__ = ["Meter", "meter"]


class Meter(PtxDevice):
    """Runs plans on the executor; `touched` has, for each launch, bytes read and written by buffer."""

    touched: list[tuple[dict[str, int], dict[str, int]]]

    def upload(self, name: str, array: Any) -> Any:
        # What watches for races sees every access of a buffer, but only of one that may be written.
        return ptx.Buffer(array.view(np.uint8).copy(), name=name, initialised=True, writable=True)

    def launch(self, plan: Any) -> None:
        before = len(_SHADOWS)
        # To watchers a buffer that may be written looks like one that a launch in front still writes.
        super().launch(replace(plan, programmatic=False))
        reads: dict[str, int] = {}
        writes: dict[str, int] = {}
        for shadow in _SHADOWS[before:]:
            for name, mask in shadow.masks_read.items():
                reads[name] = int(mask.sum())
            for name, mask in shadow.masks_written.items():
                writes[name] = int(mask.sum())
        self.touched.append((reads, writes))


_SHADOWS: list[_CountingShadow] = []


class _CountingShadow(RaceShadow):
    """Keeps for its region which bytes were read and which were written."""

    def __init__(self, size: int, readers: int) -> None:
        super().__init__(size, readers)
        self.masks_read: dict[str, Any] = {}
        self.masks_written: dict[str, Any] = {}
        _SHADOWS.append(self)

    def enter(self, row: Any) -> None:
        # Native code leaves what it takes for out of bounds to Python, so that all accesses are seen here.
        super().enter(row)
        row[Row.SIZE] = 0

    def _mark(self, masks: dict[str, Any], access: Any, region: Any, index: Any) -> None:
        mask = masks.setdefault(region.name, np.zeros(region.data.size, bool))
        mask[(np.unique(index)[:, None] + np.arange(access.width)).ravel()] = True

    def read(self, frame: Any, access: Any, region: Any, index: Any, lanes: Any, asynchronous: bool = False) -> None:
        self._mark(self.masks_read, access, region, index)
        super().read(frame, access, region, index, lanes, asynchronous)

    def before_write(self, frame: Any, access: Any, region: Any, index: Any, lanes: Any, words: Any) -> None:
        self._mark(self.masks_written, access, region, index)
        super().before_write(frame, access, region, index, lanes, words)


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Meter:
    """A meter for sm_120a."""
    monkeypatch.setattr(launcher, "RaceShadow", _CountingShadow)
    device = Meter("sm_120a", CHIPS["sm_120a"].multiprocessors)
    device.touched = []
    return device
