"""A driver that captures launches on streams as graphs, replays these, and has events that tell a clock of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cuda.bindings import driver as bindings
from support.probe.kernel_driver import KernelDriver, Status

__all__ = ["GraphDriver", "Status"]


class GraphDriver(KernelDriver):
    """A driver whose clock goes on by what a launch costs, in microseconds, when it is carried out.

    Attributes:
        calls: the names of the functions that were called, in order.
        events: the microseconds at which each event was recorded.
        graphs: the launches of each executable graph, None once it is destroyed.
        order: the graphs in the order in which they were launched.
        clock: microseconds.

    Args:
        cost: microseconds of a launch by the name of its entry.
        executes: whether launches outside of graphs are carried out on the executor.
    """

    CUstream_flags = bindings.CUstream_flags
    CUevent_flags = bindings.CUevent_flags
    CUstreamCaptureMode = bindings.CUstreamCaptureMode

    def __init__(self, cost: Callable[[str], float] = lambda entry: 1.0, *, executes: bool = True) -> None:
        super().__init__()
        self.cost, self.executes = cost, executes
        self.calls: list[str] = []
        self.streams = 0
        self.capturing: dict[int, list[str]] = {}
        self.captured: dict[str, list[str]] = {}
        self.graphs: list[list[str] | None] = []
        self.order: list[int] = []
        self.events: list[float | None] = []
        self.clock = 0.0

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu"):
            self.calls.append(name)
        return super().__getattribute__(name)

    def cuMemcpyDtoD(self, target: int, source: int, size: int) -> tuple[Any, ...]:
        for base, array in self.memory.items():
            if base <= target < base + array.nbytes:
                begin, start = target - base, source - base
                assert 0 <= start <= start + size <= begin <= begin + size <= array.nbytes, "within one memory"
                array[begin : begin + size] = array[start : start + size]
                return (Status.CUDA_SUCCESS,)
        raise AssertionError("a copy to no memory")

    def cuStreamCreate(self, flags: Any) -> tuple[Any, ...]:
        # One that did not wait for the legacy stream would launch before its buffers are filled.
        assert flags == bindings.CUstream_flags.CU_STREAM_DEFAULT
        self.streams += 1
        return Status.CUDA_SUCCESS, bindings.CUstream(self.streams)

    def cuStreamBeginCapture(self, stream: Any, mode: Any) -> tuple[Any, ...]:
        if int(stream) == 0:
            return (Status.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,)
        self.capturing[int(stream)] = []
        return (Status.CUDA_SUCCESS,)

    def cuStreamEndCapture(self, stream: Any) -> tuple[Any, ...]:
        graph = f"graph {len(self.captured)}"
        self.captured[graph] = self.capturing.pop(int(stream))
        return Status.CUDA_SUCCESS, graph

    def cuGraphInstantiate(self, graph: str, flags: int) -> tuple[Any, ...]:
        self.graphs.append(self.captured[graph])
        return Status.CUDA_SUCCESS, len(self.graphs) - 1

    def cuGraphDestroy(self, graph: str) -> tuple[Any, ...]:
        del self.captured[graph]
        return (Status.CUDA_SUCCESS,)

    def cuGraphExecDestroy(self, executable: int) -> tuple[Any, ...]:
        assert self.graphs[executable] is not None
        self.graphs[executable] = None
        return (Status.CUDA_SUCCESS,)

    def cuGraphLaunch(self, executable: int, stream: Any) -> tuple[Any, ...]:
        assert int(stream) > 0
        launches = self.graphs[executable]
        assert launches is not None
        self.order.append(executable)
        self.clock += sum(map(self.cost, launches))
        return (Status.CUDA_SUCCESS,)

    def cuEventCreate(self, flags: Any) -> tuple[Any, ...]:
        assert flags == bindings.CUevent_flags.CU_EVENT_DEFAULT  # others have no time
        self.events.append(None)
        return Status.CUDA_SUCCESS, len(self.events) - 1

    def cuEventDestroy(self, event: int) -> tuple[Any, ...]:
        self.events[event] = None
        return (Status.CUDA_SUCCESS,)

    def cuEventRecord(self, event: int, stream: Any) -> tuple[Any, ...]:
        assert int(stream) > 0
        self.events[event] = self.clock
        return (Status.CUDA_SUCCESS,)

    def cuEventSynchronize(self, event: int) -> tuple[Any, ...]:
        return (Status.CUDA_SUCCESS,)

    def cuEventElapsedTime(self, start: int, end: int) -> tuple[Any, ...]:
        first, last = self.events[start], self.events[end]
        assert first is not None
        assert last is not None
        return Status.CUDA_SUCCESS, (last - first) / 1e3

    def cuLaunchKernelEx(self, config: Any, function: Any, arguments: Any, extra: int) -> tuple[Any, ...]:
        _, entry = function
        if int(config.hStream) in self.capturing:
            self.capturing[int(config.hStream)].append(entry)
            return (Status.CUDA_SUCCESS,)
        self.clock += self.cost(entry)
        return super().cuLaunchKernelEx(config, function, arguments, extra) if self.executes else (Status.CUDA_SUCCESS,)
