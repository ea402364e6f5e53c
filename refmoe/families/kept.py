"""Devices that stand in front of another one.

One keeps the buffers that a host function has it make, so that all of a layer can be compared. The other launches
kernels as a chain of them does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from refmoe.cuda.device import Device, LaunchRecord
    from refmoe.families.family import Case


class Kept:
    """Another device, and the buffers that kernels write on it.

    Attributes:
        outputs: by name the buffers that `output` has given.
        name, arch, multiprocessors, launches: the other device's.
    """

    def __init__(self, inner: Device, fill: int | None = None) -> None:
        """
        Args:
            inner: where launches run.
            fill: byte that buffers hold before the launches, in place of what the function asks for.
        """
        self.inner = inner
        self.fill = fill
        self.outputs: dict[str, Any] = {}
        self.name = inner.name
        self.arch: str = inner.arch
        self.multiprocessors: int = inner.multiprocessors
        self.launches: list[LaunchRecord] = inner.launches

    def upload(self, name: str, array: Any) -> Any:
        """See `refmoe.cuda.device.Device`."""
        return self.inner.upload(name, array)

    def output(self, name: str, shape: tuple[int, ...], fill: int, *, initialised: bool = False) -> Any:
        """See `refmoe.cuda.device.Device`; the buffer is kept."""
        chosen = fill if self.fill is None else self.fill
        self.outputs[name] = self.inner.output(name, shape, chosen, initialised=initialised)
        return self.outputs[name]

    def launch(self, plan: Any) -> None:
        """See `refmoe.cuda.device.Device`."""
        self.inner.launch(plan)

    def download(self, buffer: Any) -> Any:
        """See `refmoe.cuda.device.Device`."""
        return self.inner.download(buffer)


def chained(case: Case, device: Device, earlier: Iterable[str]) -> Any:
    """The device of a case. With the option `programmatic`, launches on it may start before what is in front has ended.

    Args:
        case: the case.
        device: where launches run.
        earlier: inputs that a kernel in front may still be writing when the launch starts.
    """
    return Chained(device, frozenset(earlier)) if case.programmatic else device


class Chained(Kept):
    """Another device, whose launches are programmatic: a kernel that touches too early what others write is found."""

    def __init__(self, inner: Device, earlier: frozenset[str]) -> None:
        """
        Args:
            inner: where launches run.
            earlier: inputs that a kernel in front may still be writing.
        """
        super().__init__(inner)
        self.earlier = earlier

    def upload(self, name: str, array: Any) -> Any:
        """See `refmoe.cuda.device.Device`; what a kernel in front writes counts as written by one on the executor."""
        if name not in self.earlier or self.name != "ptx":
            return self.inner.upload(name, array)
        own = np.ascontiguousarray(array).view(np.uint8)
        buffer = self.inner.output(name, own.shape, 0, initialised=True)
        buffer.array[...] = own
        return buffer

    def launch(self, plan: Any) -> None:
        """See `refmoe.cuda.device.Device`."""
        self.inner.launch(replace(plan, programmatic=True))
