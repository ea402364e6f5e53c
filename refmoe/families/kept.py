"""A device that keeps the buffers which a host function has it make, so that all of a layer can be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refmoe.cuda.device import Device, LaunchRecord


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
