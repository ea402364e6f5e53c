"""The functions of the CUDA driver that the probe's host side calls, carried out on the executor."""

from __future__ import annotations

import ctypes
import enum
from types import SimpleNamespace
from typing import Any

import numpy as np

from refmoe import ptx


class Status(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_PTX = 218
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222
    CUDA_ERROR_LAUNCH_FAILED = 719
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900


class ExecutorDriver:
    """A driver with one GPU. `spoil(launch, array)` may change what a launch wrote, to pose as another chip."""

    CUresult = Status
    CUdevice_attribute: Any = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=0, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=1
    )

    def __init__(self, capability: tuple[int, int], name: str, spoil: Any = None, gpus: int = 1) -> None:
        self.capability, self.gpu, self.spoil, self.gpus = capability, name, spoil, gpus
        self.memory: dict[int, np.ndarray] = {}
        self.launches = 0

    def cuInit(self, flags: int) -> tuple[Any, ...]:
        return (Status.CUDA_SUCCESS,)

    def cuDeviceGetCount(self) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, self.gpus

    def cuDeviceGet(self, ordinal: int) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, ordinal

    def cuDeviceGetAttribute(self, attribute: Any, device: int) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, self.capability[attribute]

    def cuDeviceGetName(self, length: int, device: int) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, self.gpu.encode().ljust(length, b"\0")

    def cuDriverGetVersion(self) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, 13000

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, "context"

    def cuCtxSetCurrent(self, context: str) -> tuple[Any, ...]:
        return (Status.CUDA_SUCCESS,)

    def cuModuleLoadData(self, image: bytes) -> tuple[Any, ...]:
        assert image.endswith(b"\0"), "the driver reads PTX up to a zero byte"
        return Status.CUDA_SUCCESS, ptx.Module.parse(image[:-1].decode())

    def cuModuleGetFunction(self, module: Any, name: bytes) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, (module, name.decode())

    def cuMemAlloc(self, size: int) -> tuple[Any, ...]:
        assert size > 0, "the driver gives no empty memory"
        array = np.zeros(size, np.uint8)
        self.memory[array.ctypes.data] = array
        return Status.CUDA_SUCCESS, array.ctypes.data

    def cuMemFree(self, place: int) -> tuple[Any, ...]:
        del self.memory[int(place)]
        return (Status.CUDA_SUCCESS,)

    def cuMemcpyHtoD(self, place: int, source: int, size: int) -> tuple[Any, ...]:
        self.memory[int(place)][:size] = np.frombuffer(ctypes.string_at(source, size), np.uint8)
        return (Status.CUDA_SUCCESS,)

    def cuMemcpyDtoH(self, target: int, place: int, size: int) -> tuple[Any, ...]:
        ctypes.memmove(target, int(place), size)
        return (Status.CUDA_SUCCESS,)

    def cuLaunchKernel(self, function: Any, *given: Any) -> tuple[Any, ...]:
        *shape, _shared, _stream, (values, types), _extra = given
        assert len(values) == len(types)
        module, entry = function
        arrays = [self.memory[value] for value in values]
        grid, block = tuple(shape[:3]), tuple(shape[3:])
        try:
            ptx.launch(module, entry, grid=grid, block=block, args=arrays, checks=ptx.Checks(races=False))
        except ptx.PtxError:
            return (Status.CUDA_ERROR_LAUNCH_FAILED,)
        if self.spoil is not None:
            self.spoil(self.launches, arrays[-1].view(np.uint32))
        self.launches += 1
        return (Status.CUDA_SUCCESS,)

    def cuCtxSynchronize(self) -> tuple[Any, ...]:
        return (Status.CUDA_SUCCESS,)

    def cuGetErrorString(self, status: Status) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, status.name.encode()
