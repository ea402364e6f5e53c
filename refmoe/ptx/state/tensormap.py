"""Tensor maps: what `cp.async.bulk.tensor` knows of a tensor in global memory, its box, and its place in shared memory.

The 128 bytes of a tensor map are opaque, so they have a format of our own (little endian):

      0  "refmoeTM"             48  u32 global_dim[5]        108  u8 data_type        112  u8 l2_promotion
      8  u64 global_address     68  u32 box_dim[5]           109  u8 rank             113  u8 oob_fill
     16  u64 global_stride[4]   88  u32 element_stride[5]    110  u8 interleave       114  u8 mode, 0
                             116  s16 lower_corner[3]      111  u8 swizzle          122  s16 upper_corner[3]

Dimension 0 is the innermost; `global_stride[i]` is the distance in bytes of neighbours along dimension i + 1.
Enumerations are numbered as those of the driver. The rules of `encode_tensor_map` are those of cuTensorMapEncodeTiled
(CUDA driver API), those of `encode_tensor_map_im2col` are those of cuTensorMapEncodeIm2col; the values that
`tensormap.replace` takes are numbered as in the PTX ISA.

A map of mode im2col has no box. It has channels per pixel and pixels per column, which lie in `box_dim[0]` and
`box_dim[1]`, and the corners of a bounding box. They go from W to D, as CUTLASS hands them to the driver, whose page
says "{D, H, W}".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from refmoe.errors import ArgumentError

MAP_BYTES = 128
_MAGIC = b"refmoeTM"
_FORMAT = struct.Struct("<8s Q 4Q 5I 5I 5I 8B 3h 3h")
_RANKS = 5

# Names of CUtensorMapDataType in its order, and bits of an element in global memory.
DATA_TYPES: dict[str, int] = {
    "u8": 8, "u16": 16, "u32": 32, "s32": 32, "u64": 64, "s64": 64, "f16": 16, "f32": 32, "f64": 64, "bf16": 16,
    "f32_ftz": 32, "tf32": 32, "tf32_ftz": 32, "u4_align8": 4, "u4_align16": 4, "u6_align16": 6,
}  # fmt: skip
_TYPE_NAMES = tuple(DATA_TYPES)
_PADDED = ("u4_align16", "u6_align16")
_SWIZZLES = ("none", "32B", "64B", "128B", "128B_atom_32B", "128B_atom_32B_flip_8B", "128B_atom_64B")
_SPANS = (None, 32, 64, 128, 128, 128, 128)
_INTERLEAVES = ("none", "16B", "32B")
_PROMOTIONS = ("none", "64B", "128B", "256B")
_FILLS = ("zeros", "nan")
MODES = ("tiled", "im2col")
_NO_CORNER = (0, 0, 0)
# Of a corner along W, H and D, by rank: from -limit to limit - 1.
_CORNERS = {3: 1 << 15, 4: 1 << 7, 5: 1 << 4}
_MOST_CHANNELS, _MOST_PIXELS = 256, 1024
# PTX ISA, "tensormap.replace", `.elemtype`: its own order of the types.
_REPLACED_TYPES = (
    "u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f32_ftz", "f64", "bf16", "tf32", "tf32_ftz", "u4_align8",
    "u4_align16", "u6_align16",
)  # fmt: skip
# By field of `tensormap.replace`: the attribute, and how many values there are, 0 where any number is one.
_REPLACED = {
    "box_dim": ("box", 0), "global_dim": ("dims", 0), "global_stride": ("strides", 0), "element_stride": ("steps", 0),
    "global_address": ("address", 0), "rank": ("rank", _RANKS), "elemtype": ("data_type", len(_REPLACED_TYPES)),
    "interleave_layout": ("interleave", len(_INTERLEAVES)), "swizzle_mode": ("swizzle", 4),
    "fill_mode": ("fill", len(_FILLS)),
}  # fmt: skip


@dataclass(frozen=True)
class TensorMap:
    """A decoded tensor map. Dimensions beyond `rank` may hold anything.

    Attributes:
        address: of element (0, ..., 0) in global memory.
        strides: bytes, of dimensions 1 to 4.
        dims: elements along each of five dimensions.
        box: elements that a copy spans along each dimension.
        steps: element strides: a copy takes every `steps[i]`-th element along dimension i.
        data_type: a key of `DATA_TYPES`.
        rank: dimensions, 1 to 5.
        interleave, swizzle, l2_promotion, fill: numbers of the driver's enumerations.
        mode: of `MODES`. The box of an im2col map is (channels per pixel, pixels per column, 1, 1, 1).
        lower, upper: of an im2col map, the corners of its bounding box along W, H and D: its first position, and its
            last one less the last position of the tensor.
    """

    address: int
    strides: tuple[int, ...]
    dims: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    data_type: str
    rank: int
    interleave: int
    swizzle: int
    l2_promotion: int
    fill: int
    mode: str = MODES[0]
    lower: tuple[int, ...] = _NO_CORNER
    upper: tuple[int, ...] = _NO_CORNER

    @property
    def bits(self) -> int:
        """Of an element in global memory."""
        return DATA_TYPES[self.data_type]

    def encode(self) -> bytes:
        """The 128 bytes."""
        return _FORMAT.pack(
            _MAGIC, self.address, *self.strides, *self.dims, *self.box, *self.steps,
            _TYPE_NAMES.index(self.data_type), self.rank, self.interleave, self.swizzle, self.l2_promotion, self.fill,
            MODES.index(self.mode), 0, *self.lower, *self.upper,
        )  # fmt: skip


@lru_cache(maxsize=4096)
def decode_tensor_map(content: bytes) -> TensorMap:
    """The tensor map that 128 bytes hold.

    Raises:
        ValueError: they are no tensor map; the message says what was found.
    """
    magic, address, *numbers = _FORMAT.unpack(content)
    if magic != _MAGIC:
        raise ValueError(f"bytes {magic.hex(' ')} ... are no tensor map, which begins with {_MAGIC!r}")
    strides, dims, box, steps = numbers[:4], numbers[4:9], numbers[9:14], numbers[14:19]
    kind, rank, interleave, swizzle, promotion, fill, mode, rest = numbers[19:27]
    lower, upper = tuple(numbers[27:30]), tuple(numbers[30:])
    for name, value, names in (
        ("data type", kind, _TYPE_NAMES), ("interleave", interleave, _INTERLEAVES), ("swizzle", swizzle, _SWIZZLES),
        ("L2 promotion", promotion, _PROMOTIONS), ("fill", fill, _FILLS),
        ("mode", mode, MODES),
    ):  # fmt: skip
        if value >= len(names):
            raise ValueError(f"a tensor map with {name} {value}, not 0 to {len(names) - 1}")
    if not 1 <= rank <= _RANKS:
        raise ValueError(f"a tensor map of rank {rank}")
    if rest or (MODES[mode] == "tiled" and (any(lower) or any(upper))):
        raise ValueError("a tensor map with a tail")
    return TensorMap(
        address, tuple(strides), tuple(dims), tuple(box), tuple(steps), _TYPE_NAMES[kind], rank, interleave, swizzle,
        promotion, fill, MODES[mode], lower, upper,
    )  # fmt: skip


def encode_tensor_map(
    address: int,
    data_type: str,
    dims: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    element_strides: Sequence[int] | None = None,
    *,
    swizzle: str = "none",
    interleave: str = "none",
    l2_promotion: str = "none",
    fill: str = "zeros",
) -> bytes:
    """The 128 bytes of a tiled tensor map, for a kernel parameter or for a buffer.

    Args:
        address: of the tensor, from `DeviceMemory.place`.
        data_type: a key of `DATA_TYPES`; `"u4_align16"` unpacks 16 FP4 codes to 8 bytes and 8 bytes of padding.
        dims: elements along each dimension, innermost first; FP4 codes count one each.
        strides: bytes, of each dimension but the innermost.
        box: elements that a copy spans along each dimension.
        element_strides: every how many elements one is copied; all of them by default.
        swizzle: `"none" "32B" "64B" "128B"` or an atom variant of the last.
        interleave: `"none" "16B" "32B"`.
        l2_promotion: `"none" "64B" "128B" "256B"`, without effect here.
        fill: `"zeros"` or `"nan"`.

    Raises:
        ArgumentError: what cuTensorMapEncodeTiled refuses.
    """
    rank, steps = _ranked(data_type, dims, strides, element_strides, 1)
    _count("box", box, rank, rank)
    numbers = _choices(interleave=interleave, swizzle=swizzle, l2_promotion=l2_promotion, fill=fill)
    result = TensorMap(
        address, _padded(strides, 4, 0), _padded(dims, 5, 1), _padded(box, 5, 1), _padded(steps, 5, 1), data_type, rank,
        *numbers,
    )  # fmt: skip
    _check_tensor(result)
    for i in range(rank):
        if not 1 <= result.box[i] <= 256:
            raise ArgumentError(f"box[{i}]", str(result.box[i]), "1 to 256")
    if data_type in _PADDED and result.box[0] != 128:
        raise ArgumentError("box[0]", str(result.box[0]), f"128 for {data_type}")
    if not result.interleave:
        if result.box[0] * result.bits % 128:
            what = f"{result.box[0]} elements of {result.bits} bits"
            raise ArgumentError("box[0]", what, "a multiple of 16 bytes")
        _check_span(result, "box[0]")
    _check_layout(result)
    return result.encode()


def encode_tensor_map_im2col(
    address: int,
    data_type: str,
    dims: Sequence[int],
    strides: Sequence[int],
    lower_corner: Sequence[int],
    upper_corner: Sequence[int],
    channels_per_pixel: int,
    pixels_per_column: int,
    element_strides: Sequence[int] | None = None,
    *,
    swizzle: str = "none",
    interleave: str = "none",
    l2_promotion: str = "none",
    fill: str = "zeros",
) -> bytes:
    """The 128 bytes of an im2col tensor map, for copies with `.im2col` and `.im2col_no_offs`.

    Args:
        address: of the tensor, from `DeviceMemory.place`.
        data_type: a key of `DATA_TYPES`.
        dims: of a tensor of images: C and W, then H and D if it has them, then N.
        strides: bytes, of each dimension but the innermost.
        lower_corner: the first position of the bounding box along W, H and D, as many as there are: minus the padding
            of a convolution.
        upper_corner: its last position less the last one of the tensor: for a convolution the padding less what the
            filter reaches.
        channels_per_pixel: elements along C of each pixel.
        pixels_per_column: pixels that a copy walks over.
        element_strides: steps of that walk along W, H and D, in elements; 1 by default. The first one is ignored.
        swizzle: `"none" "32B" "64B" "128B"` or an atom variant of the last.
        interleave: `"none" "16B" "32B"`.
        l2_promotion: `"none" "64B" "128B" "256B"`, without effect here.
        fill: `"zeros"` or `"nan"`.

    Raises:
        ArgumentError: what cuTensorMapEncodeIm2col refuses.
    """
    rank, steps = _ranked(data_type, dims, strides, element_strides, 3)
    _count("lower_corner", lower_corner, rank - 2, rank)
    _count("upper_corner", upper_corner, rank - 2, rank)
    limit = _CORNERS[rank]
    for name, corner in (("lower_corner", lower_corner), ("upper_corner", upper_corner)):
        for i, value in enumerate(corner):
            if not -limit <= value < limit:
                raise ArgumentError(f"{name}[{i}]", str(value), f"-{limit} to {limit - 1} for {rank} dimensions")
    for name, value, most in (
        ("channels_per_pixel", channels_per_pixel, _MOST_CHANNELS),
        ("pixels_per_column", pixels_per_column, _MOST_PIXELS),
    ):
        if not 1 <= value <= most:
            raise ArgumentError(name, str(value), f"1 to {most}")
    numbers = _choices(interleave=interleave, swizzle=swizzle, l2_promotion=l2_promotion, fill=fill)
    result = TensorMap(
        address, _padded(strides, 4, 0), _padded(dims, 5, 1), (channels_per_pixel, pixels_per_column, 1, 1, 1),
        _padded(steps, 5, 1), data_type, rank, *numbers, "im2col", _padded(lower_corner, 3, 0),
        _padded(upper_corner, 3, 0),
    )  # fmt: skip
    _check_tensor(result)
    for i in range(rank - 2):
        size = result.dims[i + 1] + result.upper[i] - result.lower[i]
        if size < 1:
            what = f"{result.upper[i]}, a bounding box of {size} positions along dimension {i + 1}"
            raise ArgumentError(f"upper_corner[{i}]", what, "at least 1 position")
    if data_type in _PADDED and channels_per_pixel != 128:
        raise ArgumentError("channels_per_pixel", str(channels_per_pixel), f"128 for {data_type}")
    if not result.interleave:
        _check_span(result, "channels_per_pixel")
    _check_layout(result)
    return result.encode()


def edited_tensor_map(content: bytes) -> TensorMap:
    """The same of a map that `tensormap.replace` edits: Triton's kernels begin with 128 zeros and set every field.

    Raises:
        ValueError: they are neither zeros nor a tensor map.
    """
    if not any(content):
        return TensorMap(0, (0,) * 4, (0,) * 5, (0,) * 5, (0,) * 5, _TYPE_NAMES[0], 1, 0, 0, 0, 0)
    return decode_tensor_map(content)


@lru_cache(maxsize=4096)
def replaced_bytes(content: bytes, field: str, ordinal: int, value: int) -> bytes:
    """The bytes of a map after `tensormap.replace.tile.<field>`: mostly all blocks edit a copy of one map.

    Raises:
        ValueError: see `edited_tensor_map` and `replace_field`.
    """
    return replace_field(edited_tensor_map(content), field, ordinal, value).encode()


def _ranked(
    data_type: str, dims: Sequence[int], strides: Sequence[int], element_strides: Sequence[int] | None, least: int
) -> tuple[int, Sequence[int]]:
    """The rank, at least `least`, and the element strides of a tensor, as many as there have to be."""
    if data_type not in DATA_TYPES:
        raise ArgumentError("data_type", repr(data_type), " or ".join(DATA_TYPES))
    rank = len(dims)
    if not least <= rank <= _RANKS:
        raise ArgumentError("dims", f"{rank} dimensions", f"{least} to {_RANKS}")
    steps = [1] * rank if element_strides is None else element_strides
    _count("strides", strides, rank - 1, rank)
    _count("element_strides", steps, rank, rank)
    return rank, steps


def _count(name: str, sizes: Sequence[int], count: int, rank: int) -> None:
    if len(sizes) != count:
        raise ArgumentError(name, f"{len(sizes)} numbers", f"{count} for {rank} dimensions")


def _choices(*, interleave: str, swizzle: str, l2_promotion: str, fill: str) -> tuple[int, int, int, int]:
    """Numbers of the driver's enumerations."""
    return (
        _choice("interleave", interleave, _INTERLEAVES),
        _choice("swizzle", swizzle, _SWIZZLES),
        _choice("l2_promotion", l2_promotion, _PROMOTIONS),
        _choice("fill", fill, _FILLS),
    )


def _choice(name: str, value: str, names: tuple[str, ...]) -> int:
    if value not in names:
        raise ArgumentError(name, repr(value), " or ".join(names))
    return names.index(value)


def _padded(values: Sequence[int], size: int, fill: int) -> tuple[int, ...]:
    return (*(int(v) for v in values), *[fill] * (size - len(values)))


def _check_tensor(found: TensorMap) -> None:
    """What holds of the tensor and its element strides, whatever is copied of it."""
    rank, padded = found.rank, found.data_type in _PADDED
    wide = padded or _INTERLEAVES[found.interleave] == "32B"
    multiple = 32 if wide else 16
    if found.address <= 0 or found.address % multiple or found.address >> 64:
        raise ArgumentError("address", f"0x{found.address:X}", f"a multiple of {multiple}")
    for i in range(rank - 1):
        if not 0 < found.strides[i] < 1 << 40 or found.strides[i] % multiple:
            raise ArgumentError(f"strides[{i}]", str(found.strides[i]), f"a multiple of {multiple} below 2^40")
    for i in range(rank):
        # The driver also takes 2^32, which has no room here.
        if not 1 <= found.dims[i] < 1 << 32:
            raise ArgumentError(f"dims[{i}]", str(found.dims[i]), "1 to 2^32 - 1")
        if not 1 <= found.steps[i] <= 8:
            raise ArgumentError(f"element_strides[{i}]", str(found.steps[i]), "1 to 8")
    if padded and found.dims[0] % 128:
        raise ArgumentError("dims[0]", str(found.dims[0]), f"a multiple of 128 for {found.data_type}")
    if found.data_type == "u4_align8" and found.dims[0] % 2:
        raise ArgumentError("dims[0]", str(found.dims[0]), "a multiple of 2 for u4_align8")


def _check_layout(found: TensorMap) -> None:
    """What holds of interleave, swizzle and fill."""
    if found.interleave and found.rank < 3:
        raise ArgumentError("interleave", _INTERLEAVES[found.interleave], f"none for {found.rank} dimensions")
    if _INTERLEAVES[found.interleave] == "32B" and _SWIZZLES[found.swizzle] != "32B":
        raise ArgumentError("swizzle", _SWIZZLES[found.swizzle], "32B with interleave 32B")
    if found.data_type in _PADDED:
        allowed = ("none", "128B", "128B_atom_32B", *(("128B_atom_64B",) if found.data_type == "u6_align16" else ()))
        if _SWIZZLES[found.swizzle] not in allowed or found.interleave:
            raise ArgumentError("swizzle", _SWIZZLES[found.swizzle], f"{' or '.join(allowed)} for {found.data_type}")
    if found.fill and found.data_type not in ("f16", "f32", "f64", "bf16", "f32_ftz", "tf32", "tf32_ftz"):
        raise ArgumentError("fill", "nan", f"zeros for {found.data_type}")


def _check_span(found: TensorMap, name: str) -> None:
    """A row in shared memory is at most as wide as the swizzle; `name` is the argument that says how wide it is."""
    span = _SPANS[found.swizzle]
    in_shared = 128 if found.data_type in _PADDED else -(-found.box[0] * found.bits // 8)
    if span is not None and in_shared > span:
        raise ArgumentError(name, f"{in_shared} bytes", f"at most {span} with swizzle {_SWIZZLES[found.swizzle]}")


def replace_field(found: TensorMap, field: str, ordinal: int, value: int) -> TensorMap:
    """`found` after `tensormap.replace.tile.<field>` with an ordinal and a new value.

    Raises:
        ValueError: a map that is not tiled, or an ordinal or a value that the field does not have.
    """
    if found.mode != "tiled":
        raise ValueError(f"tensormap.replace.tile of a tensor map of mode {found.mode}; only a tiled one can be edited")
    name, count = _REPLACED[field]
    new: Any = value
    if name in ("box", "dims", "strides", "steps"):
        old = getattr(found, name)
        if not 0 <= ordinal < len(old):
            raise ValueError(f"ordinal {ordinal}, not 0 to {len(old) - 1}")
        new = (*old[:ordinal], value, *old[ordinal + 1 :])
    elif count and not 0 <= value < count:
        raise ValueError(f"a new {field} of {value}, not 0 to {count - 1}")
    elif field == "rank":
        # PTX ISA: the rank minus one.
        new = value + 1
    elif field == "elemtype":
        new = _REPLACED_TYPES[value]
    return replace(found, **{name: new})


@dataclass
class MapHistory:
    """Of one launch. A time is (step, number of the event): one step may hold several events.

    Attributes:
        edited: time of the last edit of the map at an address by an instruction for that.
        released: that of its last release.
        fenced: by warp of the grid, the time of its last release of everything it wrote.
        acquired: by (warp of the grid, address), the time of the last acquire.
        events: how many there were.
    """

    edited: dict[int, tuple[int, int]] = field(default_factory=dict)
    released: dict[int, tuple[int, int]] = field(default_factory=dict)
    fenced: dict[int, tuple[int, int]] = field(default_factory=dict)
    acquired: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    events: int = 0

    def time(self, step: int) -> tuple[int, int]:
        """Now, in step `step` of the launch."""
        self.events += 1
        return step, self.events
