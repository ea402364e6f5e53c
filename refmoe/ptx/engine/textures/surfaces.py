"""`suld`, `sust` and `sured`.

PTX ISA: x of `.b` is in bytes, of `.p` in texels. Coordinates are integers; outside of the surface `.trap` is a fault,
`.clamp` takes the nearest texel, `.zero` reads 0 and drops what is written. An access of other bytes than those of a
whole texel is refused, which PTX does not ask for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx import isa
from refmoe.ptx.engine.atomics import Atomic
from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.loads_and_stores import Access, Store
from refmoe.ptx.engine.textures.fetch import GEOMETRIES
from refmoe.ptx.engine.textures.objects import TexelRead, bound_objects
from refmoe.ptx.state.records import GRID
from refmoe.ptx.state.textures import Bound, SurfaceObject
from refmoe.ptx.text.syntax import Instruction

Array = Any
_KINDS = {
    "1d": ("1d",), "2d": ("2d",), "3d": ("3d",), "a1d": ("1d_layered",),
    "a2d": ("2d_layered", "cubemap", "cubemap_layered"),
}  # fmt: skip
CLAMPS = ("trap", "clamp", "zero")
#: By operation of `sured`, the types of `.b`; those of `.p` are these with 32 bits.
REDUCTIONS = {
    "add": ("u32", "s32", "u64"), "min": ("u32", "s32", "u64", "s64"), "max": ("u32", "s32", "u64", "s64"),
    "and": ("b32",), "or": ("b32",),
}  # fmt: skip


@dataclass(frozen=True)
class Places:
    """Where lanes access a surface.

    Attributes:
        access: that of each lane, for messages.
        geometry: a key of `refmoe.ptx.engine.textures.fetch.GEOMETRIES`.
        clamp: of `CLAMPS`.
        in_bytes: whether x is in bytes.
        elements: of a texel that the instruction is for, by `np.dtype.kind`; empty for any.
    """

    access: Access
    geometry: str
    clamp: str
    in_bytes: bool
    elements: str = ""

    def find(
        self, frame: Frame, handle: Array, coordinates: tuple[Array, ...], guard: Array | None
    ) -> tuple[Array, Array, list[tuple[Bound, Array]]]:
        """(addresses uint64 [n] of a frame's vectors, which of them are accessed, the acting lanes of each surface)."""
        where, lanes, handles = frame.select(handle, guard)
        given = [np.array(frame.acting(where, each)).view(np.int32).astype(np.int64) for each in coordinates]
        address, inside = np.zeros(len(lanes), np.uint64), np.zeros(len(lanes), bool)
        found = []
        for bound, rows in bound_objects(frame, self.access.instruction, handles, lanes, SurfaceObject):
            self._check(frame, bound, int(lanes[rows[0]]))
            address[rows], inside[rows] = self._place(frame, bound, [each[rows] for each in given], lanes[rows])
            found.append((bound, rows[inside[rows]]))
        wide, acts = np.zeros(frame.count, np.uint64), np.zeros(frame.count, bool)
        chosen = slice(None) if where is None else where
        wide[chosen], acts[chosen] = address, inside
        return wide, acts, found

    def _check(self, frame: Frame, bound: Bound, lane: int) -> None:
        texels, access = bound.texels, self.access
        what = ""
        if texels.kind not in _KINDS[self.geometry]:
            what = f"a .{self.geometry} access to a surface over {texels}"
        elif texels.texel_bytes != access.width:
            what = f"an access of {access.width} bytes to a surface over {texels}"
        elif self.elements and (texels.dtype.kind not in self.elements or texels.dtype.itemsize != access.size):
            what = f"an access that does not convert to a surface of {texels.dtype}"
        if what:
            raise frame.machine.misuse(access.instruction, lane, what)

    def _place(self, frame: Frame, bound: Bound, given: list[Array], lanes: Array) -> tuple[Array, Array]:
        """(addresses, which are inside or were brought there)."""
        texels = bound.texels
        names = GEOMETRIES[self.geometry]
        held = dict(zip(names, given, strict=False))
        scale = texels.texel_bytes if self.in_bytes else 1
        x, odd = held["x"] // scale, held["x"] % scale
        zero = np.zeros_like(x)
        along = {"x": x, "y": held.get("y", zero), "z": held.get("z", zero), "l": held.get("l", zero)}
        sizes = {"x": texels.width, "y": texels.height, "z": texels.depth, "l": texels.layers}
        inside = np.logical_and.reduce([(along[axis] >= 0) & (along[axis] < sizes[axis]) for axis in sizes])
        if odd.any() and (inside & (odd != 0)).any():
            bad = int(np.argmax(inside & (odd != 0)))
            self._fault(frame, bound, "misaligned", lanes[bad], {axis: int(held[axis][bad]) for axis in names[:3]}, "")
        if self.clamp == "trap" and not inside.all():
            bad = int(np.argmin(inside))
            coordinates = {axis: int(held[axis][bad]) for axis in names}
            self._fault(frame, bound, "out of bounds", lanes[bad], coordinates, " (.trap)")
        if self.clamp == "clamp":
            along = {axis: np.clip(along[axis], 0, sizes[axis] - 1) for axis in sizes}
            inside = np.ones_like(inside)
        offset = texels.offset(along["l"], along["z"], along["y"], along["x"])
        return np.uint64(bound.base) + np.where(inside, offset, 0).astype(np.uint64), inside

    def _fault(self, frame: Frame, bound: Bound, kind: str, lane: int, coordinates: dict[str, int], how: str) -> None:
        texels = bound.texels
        sizes = {"x": 1, "y": texels.pitch, "z": texels.pitch * texels.height}
        sizes["l"] = sizes["z"] * texels.depth
        sizes["x"] = 1 if self.in_bytes else texels.texel_bytes
        offset = sum(sizes[axis] * value for axis, value in coordinates.items())
        at = ", ".join(f"{'layer' if axis == 'l' else axis} {value}" for axis, value in coordinates.items())
        unit = " (x in bytes)" if self.in_bytes else ""
        self.access._fault(
            frame, kind, lane, bound.base + offset, bound.region, offset, f", at {at}{unit} of {texels}{how}"
        )


@dataclass(frozen=True)
class SurfaceLoad:
    """`suld.b`."""

    places: Places
    read: TexelRead

    def __call__(
        self, frame: Frame, handle: Array, coordinates: tuple[Array, ...], guard: Array | None
    ) -> tuple[Array, ...]:
        """The values of the destination registers."""
        address, acts, found = self.places.find(frame, handle, coordinates, guard)
        chosen, lanes = _acting(frame, address, guard)
        for bound, rows in found:
            self.read.refuse_written(frame, bound, chosen[rows], lanes[rows])
        return self.read(frame, address, acts)


@dataclass(frozen=True)
class SurfaceStore:
    """`sust.b` and `sust.p`."""

    places: Places
    write: Store

    def __call__(
        self, frame: Frame, handle: Array, coordinates: tuple[Array, ...], guard: Array | None,
        values: tuple[Array, ...],
    ) -> None:  # fmt: skip
        """Write `values`, one for each element."""
        address, acts, _ = self.places.find(frame, handle, coordinates, guard)
        self.write(frame, address, acts, values)


@dataclass(frozen=True)
class SurfaceReduction:
    """`sured.b` and `sured.p`."""

    places: Places
    reduction: Atomic

    def __call__(
        self, frame: Frame, handle: Array, coordinates: tuple[Array, ...], guard: Array | None, value: Array
    ) -> None:
        """Combine one value a lane with a texel."""
        address, acts, _ = self.places.find(frame, handle, coordinates, guard)
        self.reduction(frame, address, acts, ((value,),))


def reduction(instruction: Instruction, operation: str, kind: str) -> Atomic:
    """The access of a `sured`, atomic in the grid."""
    size = int(kind[1:]) // 8
    function = isa.resolve_atomic(operation, kind)
    return Atomic(
        instruction, "surface", size, 1, strength=GRID, observes=False, function=function, global_function=function,
        dtype=np.dtype(f"u{size}"),
    )  # fmt: skip


def _acting(frame: Frame, address: Array, guard: Array | None) -> tuple[Array, Array]:
    """(addresses, lanes) of those that act."""
    _, lanes, chosen = frame.select(address, guard)
    return chosen, lanes
