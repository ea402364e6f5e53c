"""A GPU that computes nothing, for the host code of benchmarks: tensors are on the CPU, and a launch takes 10 us."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

MICROSECONDS = 10


class _Cuda:
    """`torch.cuda`, as far as `refmoe.bench.gpu.timing` and a rehearsal use it."""

    def __init__(self) -> None:
        self.enqueued = 0
        self.replayed = 0

    def synchronize(self) -> None:
        pass

    def CUDAGraph(self) -> Any:
        graph = SimpleNamespace(launches=0)
        graph.replay = lambda: setattr(self, "replayed", graph.launches)
        return graph

    @contextmanager
    def graph(self, graph: Any) -> Any:
        before = self.enqueued
        yield
        graph.launches = self.enqueued - before

    def Event(self, enable_timing: bool) -> Any:
        return SimpleNamespace(
            record=lambda: None, elapsed_time=lambda other: max(self.replayed, 1) * MICROSECONDS / 1e3
        )


class IdleTorch:
    """torch whose device "cuda" is the CPU, and which compiles nothing."""

    def __init__(self, torch: Any) -> None:
        self._torch, self.cuda = torch, _Cuda()
        self._dynamo = SimpleNamespace(reset=lambda: None)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._torch, name)
        if name not in ("full", "empty", "zeros", "zeros_like", "rand", "randn", "randint", "arange", "Generator"):
            return found
        return lambda *given, **more: found(*given, **{**more, "device": "cpu"})

    def compile(self, function: Any) -> Any:
        return function


class IdleGpu:
    """Stands in for a `CudaDevice`."""

    arch, gpu_name, multiprocessors = "sm_90a", "an idle GPU", 132

    def __init__(self, torch: Any) -> None:
        self.torch = IdleTorch(torch)

    def upload(self, name: str, array: Any) -> Any:
        return self.torch.from_numpy(np.array(array.view(np.uint8)))

    def output(self, name: str, shape: tuple[int, ...], fill: int, *, initialised: bool = False) -> Any:
        return self.torch.full(shape, fill, dtype=self.torch.uint8)

    def enqueue(self, plan: Any) -> None:
        self.torch.cuda.enqueued += 1
