"""The driver's own cuTensorMapEncodeTiled on the cases of the stand-in: it takes and refuses the same ones."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import pytest
from support.tensor_map_cases import BAD, GOOD

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def driver() -> ctypes.CDLL:
    try:
        found = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        pytest.skip(str(error))
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if found.cuInit(0) or found.cuDeviceGet(ctypes.byref(device), 0):
        pytest.skip("no CUDA device")
    assert found.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert found.cuCtxSetCurrent(context) == 0
    return found


# What driver 580 takes although its documentation forbids it. The stand-in goes by the documentation.
LENIENT = {"map alignment", "interleave 32B"}
# Taken as documented; the executor's format has no room for an extent of 2^32.
NO_ROOM = {"extent"}
PACKED = {"fp4"}  # a data type of Blackwell: Hopper's driver refuses it whatever the other arguments


@pytest.mark.parametrize("name", GOOD)
def test_the_driver_takes_what_the_standin_takes(driver: ctypes.CDLL, name: str) -> None:
    if name in PACKED and compute_capability(driver) < 10:
        pytest.skip("unpacking FP4 needs compute capability 10")
    assert GOOD[name].encode(driver.cuTensorMapEncodeTiled)[0] == 0


@pytest.mark.parametrize("name", sorted(BAD.keys() - LENIENT - NO_ROOM))
def test_the_driver_refuses_what_the_standin_refuses(driver: ctypes.CDLL, name: str) -> None:
    base, change, _ = BAD[name]
    assert replace(base, **change).encode(driver.cuTensorMapEncodeTiled)[0] == 1  # CUDA_ERROR_INVALID_VALUE


@pytest.mark.parametrize("change", [{"address": 0}, {"strides": (0,)}], ids=str)
def test_the_driver_takes_the_placeholders_of_cutlass(driver: ctypes.CDLL, change: dict[str, Any]) -> None:
    """The maps that CUTLASS's host code makes before the kernel fills them in."""
    assert replace(GOOD["bytes"], **change).encode(driver.cuTensorMapEncodeTiled)[0] == 0


def compute_capability(driver: ctypes.CDLL) -> int:
    major = ctypes.c_int()
    assert driver.cuDeviceGetAttribute(ctypes.byref(major), 75, 0) == 0
    return major.value
