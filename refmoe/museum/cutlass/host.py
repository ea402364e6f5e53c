"""The host code of CUTLASS, called with ctypes: what it wants to know of each group, and the launch that it makes."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from refmoe.chips import Chip
from refmoe.errors import RefmoeError
from refmoe.museum.cutlass.builds import Built

UInt8Array = npt.NDArray[np.uint8]

#: What the stand-in answers to cudaDriverGetVersion: 1000 * major + 10 * minor.
DRIVER_VERSION = 13000

#: The arrays that describe the groups, in the order of refmoe_cutlass_group.
GROUP_ARRAYS = ("problems", "stride_a", "stride_b", "stride_d", "layout_sfa", "layout_sfb")


class CutlassHostError(RefmoeError):
    """The host code of CUTLASS, or the runtime under it, refused; the message says what."""


@dataclass(frozen=True)
class Description:
    """What the kernel is.

    Attributes:
        release: of CUTLASS: 100 * major + 10 * minor + patch.
        stages: of its ring in shared memory.
        shared_bytes: dynamic shared memory of a CTA.
        threads: of a CTA.
        parameter_bytes: of its one parameter.
        problems, stride_a, stride_b, stride_d, layout_sfa, layout_sfb: bytes of one group in the array of that name.
    """

    release: int
    stages: int
    shared_bytes: int
    threads: int
    parameter_bytes: int
    problems: int
    stride_a: int
    stride_b: int
    stride_d: int
    layout_sfa: int
    layout_sfb: int


@dataclass(frozen=True)
class Operands:
    """Device addresses for one run; every array has one entry a group, and 0 is a null pointer.

    A and B are weights and tokens, swapped, or tokens and weights. `host_problems` is an address on the host: with it
    CUTLASS checks the shapes, without it, as in servers, only the kernel sees them.
    """

    groups: int
    problems: int
    host_problems: int
    ptr_a: int
    stride_a: int
    ptr_b: int
    stride_b: int
    ptr_sfa: int
    layout_sfa: int
    ptr_sfb: int
    layout_sfb: int
    ptr_d: int
    stride_d: int
    ptr_alpha: int
    workspace: int


@dataclass(frozen=True)
class CutlassLaunch:
    """The launch that the host code made: the PTX entry, grid, block, shared memory, and its parameter's bytes."""

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    parameters: bytes


def describe_built(built: Built) -> Description:
    """Stages, shared memory, threads and sizes of a kernel, as its host code states them."""
    return HostLibrary(built.library, None).description


class _Chip(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int32) for name in ("multiprocessors", "shared_bytes", "major", "minor", "driver_version")
    ]


class _Launch(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_int32 * 3), ("block", ctypes.c_int32 * 3), ("shared_bytes", ctypes.c_uint64)]


class HostLibrary:
    """One build's host code, with the stand-in runtime or the real one.

    Args:
        path: the shared library.
        chip: what the stand-in answers about the chip; None for a library with the real runtime.
        multiprocessors: how many it says the chip has; None for those of `chip`.
    """

    def __init__(self, path: Path, chip: Chip | None, multiprocessors: int | None = None) -> None:
        self.chip = chip
        self.multiprocessors = multiprocessors
        self._library = _load(path)
        found = (ctypes.c_int32 * len(Description.__dataclass_fields__))()
        self._library.refmoe_cutlass_describe(ctypes.byref(found))
        self.description = Description(*found)

    def groups(self, features: int, rows: npt.NDArray[np.int64], k: int) -> Mapping[str, UInt8Array]:
        """The bytes of the arrays that describe the groups: weights [features, k], tokens [rows[g], k] of each group g.

        Returns:
            uint8 [groups, bytes of one] by name, `GROUP_ARRAYS`.
        """
        arrays = {name: np.zeros((rows.size, getattr(self.description, name)), np.uint8) for name in GROUP_ARRAYS}
        addresses = [ctypes.c_void_p(arrays[name].ctypes.data) for name in GROUP_ARRAYS]
        for group, count in enumerate(rows):
            self._library.refmoe_cutlass_group(group, features, int(count), k, *addresses)
        return arrays

    def workspace_bytes(self, operands: Operands) -> int:
        """Device memory that the kernel wants for itself."""
        self._reset()
        size = int(self._library.refmoe_cutlass_workspace(_array(operands)))
        self._check("get_workspace_size")
        return size

    def refusal(self, operands: Operands) -> str | None:
        """Why CUTLASS's can_implement refuses the problem, or None; it sees shapes only through `host_problems`."""
        self._reset()
        status = self._library.refmoe_cutlass_can_implement(_array(operands))
        self._check("can_implement")
        return self._status(status) if status else None

    def record(self, operands: Operands) -> CutlassLaunch:
        """Run the host code on the stand-in runtime, and return the launch that it made.

        Raises:
            CutlassHostError: CUTLASS or the runtime refused; a tensor map that the driver would refuse, say.
        """
        self._reset()
        self._run(operands, None)
        launches = self._library.refmoe_standin_launches()
        if launches != 1:
            raise CutlassHostError(f"CUTLASS made {launches} launches; needed 1")
        launch = _Launch()
        self._library.refmoe_standin_launch(ctypes.byref(launch))
        parameters = ctypes.string_at(self._library.refmoe_standin_parameters(), self.description.parameter_bytes)
        entry = self._library.refmoe_standin_entry().decode()
        return CutlassLaunch(entry, tuple(launch.grid), tuple(launch.block), launch.shared_bytes, parameters)

    def run(self, operands: Operands, stream: int) -> None:
        """Run the kernel on the GPU, on a stream of the real runtime.

        Raises:
            CutlassHostError: CUTLASS or the runtime refused.
        """
        self._run(operands, ctypes.c_void_p(stream))

    def _run(self, operands: Operands, stream: ctypes.c_void_p | None) -> None:
        status = self._library.refmoe_cutlass_run(_array(operands), stream)
        self._check("run")
        if status:
            raise CutlassHostError(f"CUTLASS: {self._status(status)}")

    def _reset(self) -> None:
        if self.chip is not None:
            multiprocessors = self.multiprocessors or self.chip.multiprocessors
            chip = _Chip(multiprocessors, self.chip.shared_bytes, *self.chip.compute_capability, DRIVER_VERSION)
            parameters = ctypes.c_uint64(self.description.parameter_bytes)
            self._library.refmoe_standin_reset(ctypes.byref(chip), parameters)

    def _check(self, what: str) -> None:
        if self.chip is not None and (complaint := self._library.refmoe_standin_complaint().decode()):
            raise CutlassHostError(f"{what}: {complaint}")

    def _status(self, status: int) -> str:
        text: str = self._library.refmoe_cutlass_status(status).decode()
        return text


def _array(operands: Operands) -> ctypes.Array[ctypes.c_uint64]:
    values = astuple(operands)
    return (ctypes.c_uint64 * len(values))(*values)


@lru_cache(maxsize=16)
def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    library.refmoe_cutlass_workspace.restype = ctypes.c_uint64
    library.refmoe_cutlass_status.restype = ctypes.c_char_p
    if hasattr(library, "refmoe_standin_reset"):
        for name in ("refmoe_standin_complaint", "refmoe_standin_entry"):
            getattr(library, name).restype = ctypes.c_char_p
        library.refmoe_standin_parameters.restype = ctypes.c_void_p
    return library
