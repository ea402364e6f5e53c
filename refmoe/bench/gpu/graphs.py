"""CUDA graphs that the GPU bench times: torch's where torch is, else the driver's own."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

from refmoe.cuda.device import CudaDevice
from refmoe.driver import DriverDevice
from refmoe.errors import RefmoeError


class Graphs(Protocol):
    """Captures launches as graphs, replays these and times them by events."""

    def settle(self) -> None:
        """Wait for all that was launched.

        Raises:
            RefmoeError: some of it failed; what the driver says.
        """

    def captured(self, enqueue: Callable[[], object]) -> Any:
        """A graph of what `enqueue` launches; it is launched when the graph is replayed, and not before."""

    def replay(self, graph: Any) -> None:
        """Launch a graph without waiting for it."""

    def microseconds(self, graph: Any) -> float:
        """Launch a graph and wait for it; how long it took on the GPU."""


def graphs_of(device: CudaDevice) -> Graphs:
    """The graphs that capture what a device launches."""
    return DriverGraphs(device) if isinstance(device, DriverDevice) else TorchGraphs(device.torch)


class TorchGraphs:
    """Of what is put on torch's current stream."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def settle(self) -> None:
        """Wait for all that was launched."""
        try:
            self._torch.cuda.synchronize()
        except RuntimeError as error:
            raise RefmoeError(str(error)) from error

    def captured(self, enqueue: Callable[[], object]) -> Any:
        """A graph of what `enqueue` puts on torch's current stream."""
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph):
            # Results live until the graph is whole. Otherwise each call would write where the one before it wrote, and
            # find that in the L2 cache.
            made = enqueue()
        del made
        return graph

    def replay(self, graph: Any) -> None:
        """Launch a graph."""
        graph.replay()

    def microseconds(self, graph: Any) -> float:
        """Launch a graph and time it."""
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        self._torch.cuda.synchronize()
        return float(start.elapsed_time(end)) * 1e3


class DriverGraphs:
    """Of what a device launches that has the driver alone; it must not launch on the legacy stream."""

    def __init__(self, device: DriverDevice) -> None:
        self._device = device
        flags = device.driver.CUevent_flags.CU_EVENT_DEFAULT
        self._start, self._end = (device.call("cuEventCreate", flags) for _ in range(2))
        for event in (self._start, self._end):
            weakref.finalize(self, device.driver.cuEventDestroy, event).atexit = False

    def settle(self) -> None:
        """Wait for all that was launched."""
        self._device.call("cuCtxSynchronize")

    def captured(self, enqueue: Callable[[], object]) -> Any:
        """A graph of what `enqueue` puts on the device's stream."""
        device = self._device
        # Python may free memory at any time, which a stricter mode forbids during a capture.
        mode = device.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        device.call("cuStreamBeginCapture", device.stream, mode)
        try:
            enqueue()
        except BaseException:
            device.driver.cuStreamEndCapture(device.stream)
            raise
        return _DriverGraph(device, device.call("cuStreamEndCapture", device.stream))

    def replay(self, graph: Any) -> None:
        """Launch a graph."""
        self._device.call("cuGraphLaunch", graph.executable, self._device.stream)

    def microseconds(self, graph: Any) -> float:
        """Launch a graph and time it."""
        self._device.call("cuEventRecord", self._start, self._device.stream)
        self.replay(graph)
        self._device.call("cuEventRecord", self._end, self._device.stream)
        self._device.call("cuEventSynchronize", self._end)
        return float(self._device.call("cuEventElapsedTime", self._start, self._end)) * 1e3


class _DriverGraph:
    """A graph that can be launched, destroyed with this object.

    Attributes:
        executable: as the driver launches it.
    """

    def __init__(self, device: DriverDevice, graph: Any) -> None:
        try:
            self.executable = device.call("cuGraphInstantiate", graph, 0)
        finally:
            device.driver.cuGraphDestroy(graph)
        weakref.finalize(self, device.driver.cuGraphExecDestroy, self.executable).atexit = False
