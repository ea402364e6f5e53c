"""Arguments of cuTensorMapEncodeTiled and its sibling of im2col: taken ones, and each requirement broken alone."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["BAD", "BAD_IMAGES", "BASE", "BYTES", "GOOD", "IMAGES", "Map"]


@dataclass(frozen=True)
class Map:
    """Arguments of cuTensorMapEncodeTiled, enumerations by number."""

    data_type: int = 0
    address: int = 1 << 41
    dims: tuple[int, ...] = (256, 100)
    strides: tuple[int, ...] = (256,)
    box: tuple[int, ...] = (128, 64)
    steps: tuple[int, ...] = (1, 1)
    interleave: int = 0
    swizzle: int = 3
    promotion: int = 2
    fill: int = 0
    rank: int | None = None
    alignment: int = 64

    def encode(self, function: Callable[..., int]) -> tuple[int, bytes]:
        """(CUresult, the 128 bytes) of a function with the arguments of cuTensorMapEncodeTiled."""
        room = ctypes.create_string_buffer(b"\xee" * 320, 320)
        start = -(-ctypes.addressof(room) // 64) * 64 + self.alignment % 64
        wide, narrow = ctypes.c_uint64, ctypes.c_uint32
        status = function(
            ctypes.c_void_p(start), self.data_type, len(self.dims) if self.rank is None else self.rank,
            ctypes.c_void_p(self.address), (wide * 8)(*self.dims), (wide * 8)(*self.strides), (narrow * 8)(*self.box),
            (narrow * 8)(*self.steps), self.interleave, self.swizzle, self.promotion, self.fill,
        )  # fmt: skip
        return status, ctypes.string_at(start, 128)


BYTES = Map()
FP4 = Map(14, dims=(256, 100), strides=(128,))
SCALES = Map(1, dims=(256, 2, 3), strides=(512, 1024), box=(256, 1, 1), steps=(1, 1, 1), swizzle=0)
OUTPUT = Map(9, dims=(2880, 7), strides=(5760,), box=(64, 32), fill=1)
FIVE = Map(
    7, dims=(9, 8, 7, 6, 5), strides=(48, 384, 2688, 16128), box=(4, 8, 1, 2, 5), steps=(1, 2, 1, 1, 8), swizzle=1
)
FP6 = Map(15, dims=(128, 8, 4), strides=(96, 768), box=(128, 2, 2), steps=(1, 1, 1))
INTERLEAVED = Map(0, dims=(64, 8, 4), strides=(64, 512), box=(32, 2, 2), steps=(2, 1, 1), interleave=2, swizzle=1)
GOOD = {"bytes": BYTES, "fp4": FP4, "scales": SCALES, "output": OUTPUT, "five": FIVE, "interleaved": INTERLEAVED}


# (what is changed, what the complaint names): each requirement of the driver's documentation, broken alone.
BAD: dict[str, tuple[Map, dict[str, Any], str]] = {
    "map alignment": (BYTES, {"alignment": 32}, "tensorMap"),
    "no rank": (BYTES, {"rank": 0}, "tensorRank = 0"),
    "rank 6": (BYTES, {"rank": 6}, "tensorRank = 6"),
    "rank 2 interleaved": (BYTES, {"interleave": 1}, "tensorRank = 2"),
    "data type": (BYTES, {"data_type": 16}, "tensorDataType"),
    "address 16": (BYTES, {"address": (1 << 41) + 8}, "globalAddress"),
    "address 32": (FP4, {"address": (1 << 41) + 16}, "globalAddress"),
    "address 32 interleaved": (INTERLEAVED, {"address": (1 << 41) + 16}, "globalAddress"),
    "no extent": (BYTES, {"dims": (256, 0)}, "globalDim[1] = 0"),
    "extent": (BYTES, {"dims": (256, 1 << 32)}, "globalDim[1]"),
    "fp4 extent": (FP4, {"dims": (192, 100)}, "globalDim[0] = 192"),
    "fp4 odd extent": (Map(13, dims=(255, 2), strides=(128,), box=(64, 2)), {}, "globalDim[0] = 255"),
    "stride 16": (BYTES, {"strides": (264,)}, "globalStrides[0] = 264"),
    "stride 32": (FP4, {"strides": (144,)}, "globalStrides[0] = 144"),
    "stride 2^40": (BYTES, {"strides": (1 << 40,)}, "globalStrides[0]"),
    "no box": (SCALES, {"box": (256, 0, 1)}, "boxDim[1] = 0"),
    "box": (BYTES, {"box": (128, 257)}, "boxDim[1] = 257"),
    "box row": (BYTES, {"box": (24, 1)}, "boxDim[0] in bytes = 24"),
    "fp4 box": (FP4, {"box": (64, 64)}, "boxDim[0] = 64"),
    "swizzle 128": (BYTES, {"box": (256, 1)}, "boxDim[0] in bytes = 256"),
    "swizzle 32": (BYTES, {"swizzle": 1, "box": (64, 1)}, "at most 32"),
    "no step": (BYTES, {"steps": (1, 0)}, "elementStrides[1] = 0"),
    "step": (BYTES, {"steps": (1, 9)}, "elementStrides[1] = 9"),
    "first step interleaved": (INTERLEAVED, {"steps": (9, 1, 1)}, "elementStrides[0] = 9"),
    "interleave": (INTERLEAVED, {"interleave": 3}, "interleave"),
    "interleave 32B": (INTERLEAVED, {"swizzle": 2}, "swizzle = 2"),
    "fp4 swizzle": (FP4, {"swizzle": 2}, "boxDim[0] in bytes = 128"),
    "fp4 atom": (FP4, {"swizzle": 6}, "swizzle = 6"),
    "fp6 interleaved": (FP6, {"interleave": 1}, "interleave = 1"),
    "promotion": (BYTES, {"promotion": 4}, "l2Promotion"),
    "fill": (BYTES, {"fill": 2}, "oobFill"),
    "fill of integers": (BYTES, {"fill": 1}, "oobFill = 1"),
}  # fmt: skip

# Of `encode_tensor_map_im2col`.
BASE = 5 << 40
IMAGES: dict[str, Any] = {
    "address": BASE, "data_type": "u8", "dims": (64, 9, 7, 2), "strides": (64, 576, 4032), "lower_corner": (-1, -2),
    "upper_corner": (1, 2), "channels_per_pixel": 64, "pixels_per_column": 1024, "swizzle": "64B",
}  # fmt: skip
# Changes, the argument that is refused, and what the sentence says is needed.
BAD_IMAGES: list[tuple[dict[str, Any], str, str]] = [
    ({"data_type": "u4"}, "data_type", "u8 or"),
    ({"dims": (64, 9)}, "dims", "3 to 5"),
    ({"dims": (1,) * 6}, "dims", "3 to 5"),
    ({"dims": (64, 0, 7, 2)}, "dims[1]", "1 to 2"),
    ({"address": BASE + 8}, "address", "a multiple of 16"),
    ({"interleave": "32B", "swizzle": "32B", "address": BASE + 16}, "address", "a multiple of 32"),
    ({"strides": (64, 576)}, "strides", "3 for 4 dimensions"),
    ({"strides": (64, 584, 4032)}, "strides[1]", "a multiple of 16"),
    ({"strides": (64, 576, 1 << 40)}, "strides[2]", "below 2^40"),
    ({"lower_corner": (-1,)}, "lower_corner", "2 for 4 dimensions"),
    ({"upper_corner": (1, 2, 0)}, "upper_corner", "2 for 4 dimensions"),
    ({"lower_corner": (-129, 0)}, "lower_corner[0]", "-128 to 127 for 4 dimensions"),
    ({"upper_corner": (0, 128)}, "upper_corner[1]", "-128 to 127 for 4 dimensions"),
    # The bounding box has no positions.
    ({"upper_corner": (-10, 0)}, "upper_corner[0]", "at least 1 position"),
    ({"lower_corner": (0, 9)}, "upper_corner[1]", "at least 1 position"),
    ({"channels_per_pixel": 0}, "channels_per_pixel", "1 to 256"),
    ({"channels_per_pixel": 257, "swizzle": "none"}, "channels_per_pixel", "1 to 256"),
    ({"channels_per_pixel": 80}, "channels_per_pixel", "at most 64"),
    ({"pixels_per_column": 0}, "pixels_per_column", "1 to 1024"),
    ({"pixels_per_column": 1025}, "pixels_per_column", "1 to 1024"),
    ({"element_strides": (1, 1, 1)}, "element_strides", "4 for 4 dimensions"),
    ({"element_strides": (1, 9, 1, 1)}, "element_strides[1]", "1 to 8"),
    ({"element_strides": (1, 1, 0, 1)}, "element_strides[2]", "1 to 8"),
    ({"swizzle": "96B"}, "swizzle", "none or"),
    ({"interleave": "32B"}, "swizzle", "32B with interleave 32B"),
    ({"interleave": "8B"}, "interleave", "none or"),
    ({"l2_promotion": "512B"}, "l2_promotion", "none or"),
    ({"fill": "nan"}, "fill", "zeros for u8"),
    ({"data_type": "u4_align16", "swizzle": "none"}, "dims[0]", "a multiple of 128"),
    ({"data_type": "u4_align16", "dims": (128, 9, 7, 2), "swizzle": "none"}, "channels_per_pixel", "128 for u4"),
    (
        {"data_type": "u4_align16", "dims": (128, 9, 7, 2), "channels_per_pixel": 128, "swizzle": "128B_atom_64B"},
        "swizzle",
        "none or 128B or 128B_atom_32B",
    ),
    ({"data_type": "u4_align8", "dims": (63, 9, 7, 2)}, "dims[0]", "a multiple of 2"),
]
