"""The driver's own encoders of tensor maps on the cases of ours: they take and refuse the same ones."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import pytest
from support.bulk.tensor_map_cases import BAD, BAD_IMAGES, GOOD, IMAGES

from refmoe.ptx.state.tensormap import DATA_TYPES

pytestmark = pytest.mark.gpu
SWIZZLES = ("none", "32B", "64B", "128B", "128B_atom_32B", "128B_atom_32B_flip_8B", "128B_atom_64B")


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


def encode_images(driver: ctypes.CDLL, images: dict[str, Any]) -> int:
    """The CUresult of cuTensorMapEncodeIm2col with the arguments of `encode_tensor_map_im2col`."""
    wide, narrow, signed = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int
    room = ctypes.create_string_buffer(256)
    rank = len(images["dims"])
    lists = [(wide * 8)(*images[name]) for name in ("dims", "strides")]
    lists += [(signed * 8)(*images[name]) for name in ("lower_corner", "upper_corner")]
    status: int = driver.cuTensorMapEncodeIm2col(
        ctypes.c_void_p(-(-ctypes.addressof(room) // 64) * 64),
        list(DATA_TYPES).index(images["data_type"]),
        rank,
        ctypes.c_void_p(images["address"]),
        *lists,
        images["channels_per_pixel"],
        images["pixels_per_column"],
        (narrow * 8)(*images.get("element_strides", (1,) * rank)),
        ("none", "16B", "32B").index(images.get("interleave", "none")),
        SWIZZLES.index(images["swizzle"]),
        0,
        ("zeros", "nan").index(images.get("fill", "zeros")),
    )
    return status


def test_the_driver_takes_images(driver: ctypes.CDLL) -> None:
    assert encode_images(driver, IMAGES) == 0
    assert encode_images(driver, {**IMAGES, "element_strides": (1, 2, 3, 1)}) == 0


# What a number of an enumeration or the length of a list has no wrong value for.
ONLY_OURS = ("strides", "lower_corner", "upper_corner", "element_strides", "data_type", "l2_promotion")
#: The driver's page asks for the swizzle 32B with it. The driver of CUDA 13.0 takes images without.
PAGE_ALONE = {"interleave": "32B"}


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        (change, argument)
        for change, argument, needed in BAD_IMAGES
        if argument not in ONLY_OURS and "none or" not in needed and change != PAGE_ALONE
    ],
    ids=str,
)
def test_the_driver_refuses_images(driver: ctypes.CDLL, change: dict[str, Any], argument: str) -> None:
    assert encode_images(driver, {**IMAGES, **change}) == 1  # CUDA_ERROR_INVALID_VALUE


def compute_capability(driver: ctypes.CDLL) -> int:
    major = ctypes.c_int()
    assert driver.cuDeviceGetAttribute(ctypes.byref(major), 75, 0) == 0
    return major.value
