"""`tex` and `tld4`.

Which texels are read says `refmoe.ptx.engine.textures.coordinates`, and how they are filtered
`refmoe.ptx.engine.textures.filtering`. Texels whose weight is 0 are not read. Extrapolated are: that a component which
the texels do not have is 0, and the fourth 1; that layers beyond the last one are the last one; that `tex1Dfetch`
outside of its memory gives 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.textures.coordinates import Axis, face
from refmoe.ptx.engine.textures.filtering import filtered_floats, filtered_fractions, weights_of
from refmoe.ptx.engine.textures.objects import TexelRead, bound_objects
from refmoe.ptx.state.textures import FACES, Bound, TextureObject
from refmoe.ptx.text.syntax import Instruction

Array = Any
#: By geometry: what its coordinates are, in order: a layer, or x, y, z.
GEOMETRIES = {"1d": "x", "2d": "xy", "3d": "xyz", "a1d": "lx", "a2d": "lxy", "cube": "xyz", "acube": "lxyz"}
#: By geometry: the kinds of memory that it reads.
_KINDS = {
    "1d": ("1d", "linear"), "2d": ("2d", "pitch2d"), "3d": ("3d",), "a1d": ("1d_layered",), "a2d": ("2d_layered",),
    "cube": ("cubemap",), "acube": ("cubemap_layered",),
}  # fmt: skip
# Of the four texels around a point, as steps along (x, y): counter-clockwise from the lower left (PTX ISA, "tld4").
_AROUND = ((0, 1), (1, 1), (1, 0), (0, 0))


@dataclass(frozen=True)
class _Place:
    """Where lanes read: their layers and their coordinates along x, y and z, float64 [n] each."""

    layer: Array
    along: tuple[Array, ...]
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class Fetch:
    """A fetch from the only level of a texture.

    Attributes:
        instruction: for messages.
        geometry: a key of `GEOMETRIES`.
        floats: whether it gives floating-point numbers.
        integers: whether its coordinates are integers.
        component: of `tld4`, which one it gathers; None for `tex`.
    """

    instruction: Instruction
    geometry: str
    floats: bool
    integers: bool
    component: int | None = None

    def __call__(
        self, frame: Frame, handle: Array, coordinates: tuple[Array, ...], guard: Array | None
    ) -> tuple[Array, Array, Array, Array]:
        """Four registers, uint32 [n] each."""
        where, lanes, handles = frame.select(handle, guard)
        given = [np.array(frame.acting(where, each)).view(np.uint32) for each in coordinates]
        found = np.zeros((4, len(lanes)), np.uint32)
        for bound, rows in bound_objects(frame, self.instruction, handles, lanes, TextureObject):
            self._check(frame, bound, int(lanes[rows[0]]))
            found[:, rows] = self._fetch(frame, bound, [each[rows] for each in given], lanes[rows])
        results = np.zeros((4, frame.count), np.uint32)
        results[:, slice(None) if where is None else where] = found
        return results[0], results[1], results[2], results[3]

    def _check(self, frame: Frame, bound: Bound, lane: int) -> None:
        texture, texels = bound.object, bound.texels
        assert isinstance(texture, TextureObject)
        what = ""
        if texels.kind not in _KINDS[self.geometry]:
            what = f"a .{self.geometry} fetch from a texture over {texels}"
        elif texture.gives_floats != self.floats:
            gives = "floating-point numbers" if texture.gives_floats else f"{texels.dtype}"
            what = f"a fetch of .{self.instruction.opcode.split('.')[-2]} from a texture that gives {gives}"
        elif self.integers and texture.normalized_coords:
            what = "integer coordinates for a texture with normalized ones"
        elif texels.kind == "linear" and not self.integers:
            what = "floating-point coordinates for a texture over linear memory, which tex1Dfetch alone reads"
        elif self.component is not None and self.component >= texels.channels:
            what = f"component {self.component} of texels with {texels.channels}"
        if what:
            raise frame.machine.misuse(self.instruction, lane, what)

    def _fetch(self, frame: Frame, bound: Bound, given: list[Array], lanes: Array) -> Array:
        """Four components uint32 [4, n]."""
        place, texture = self._place(bound, given), bound.object
        assert isinstance(texture, TextureObject)
        if self.component is not None:
            return self._gather(frame, bound, place, lanes)
        if texture.filter_mode == "point" or self.integers:
            found = [axis.nearest(x) for axis, x in zip(place.axes, place.along, strict=True)]
            texels = [texel for texel, _ in found]
            inside = np.logical_and.reduce([within for _, within in found])
            return self._texels(frame, bound, place.layer, texels, inside, lanes)
        return self._filtered(frame, bound, place, lanes)

    def _place(self, bound: Bound, given: list[Array]) -> _Place:
        texture, texels = bound.object, bound.texels
        assert isinstance(texture, TextureObject)
        names = GEOMETRIES[self.geometry]
        held = dict(zip(names, given, strict=False))
        layer = np.zeros(len(given[0]), np.int64)
        if "l" in held:
            layer = held["l"].astype(np.int64)
        numbers = [held[name].view(np.int32 if self.integers else np.float32) for name in names if name != "l"]
        along = tuple(each.astype(np.float64) for each in numbers)
        sizes, normalized = (texels.width, texels.height, texels.depth), texture.normalized_coords
        axes = tuple(
            Axis(size, mode, normalized) for size, mode, _ in zip(sizes, texture.address_mode, along, strict=False)
        )
        if texels.kind == "linear":
            axes = (Axis(texels.width, "border"),)
        if self.geometry.endswith("cube"):
            number, *on_face = face(np.stack(along))
            layer = np.minimum(layer, texels.layers // FACES - 1) * FACES + number
            return _Place(layer, tuple(on_face), (Axis(texels.width, "clamp", True),) * 2)
        return _Place(np.minimum(layer, texels.layers - 1), along, axes)

    def _texels(
        self, frame: Frame, bound: Bound, layer: Array, along: list[Array], inside: Array, lanes: Array
    ) -> Array:
        """Texels uint32 [4, n] as registers hold them; those outside are the border's colour."""
        texture, texels = bound.object, bound.texels
        assert isinstance(texture, TextureObject)
        elements = self._elements(frame, bound, layer, along, inside, lanes)
        found = np.zeros((4, len(lanes)), np.uint32)
        found[: texels.channels, inside] = self._registers(elements, texture)
        one = np.ones(1, np.float32).view(np.uint32)[0] if self.floats else np.uint32(1)
        if texels.channels < 4:
            found[3] = one
        if not inside.all():
            colour = np.array(texture.border_color if texels.kind != "linear" else (0, 0, 0, 0), np.float64)
            held = colour.astype(np.float32).view(np.uint32) if self.floats else colour.astype(np.int64)
            found[: texels.channels, ~inside] = held.astype(np.uint32)[: texels.channels, None]
        return found

    def _registers(self, elements: Array, texture: TextureObject) -> Array:
        """Elements [m, n] as 32 bits: extended, or FP32."""
        if not self.floats:
            return elements.astype(np.int64).astype(np.uint32)
        if elements.dtype.kind == "f":
            # Without a conversion FP32 keeps what a NaN carries.
            return (elements if elements.dtype == np.float32 else elements.astype(np.float32)).view(np.uint32)
        most = np.float32(np.iinfo(elements.dtype).max)
        return np.maximum(elements.astype(np.float32) / most, np.float32(-1)).view(np.uint32)

    def _filtered(self, frame: Frame, bound: Bound, place: _Place, lanes: Array) -> Array:
        texture, texels = bound.object, bound.texels
        assert isinstance(texture, TextureObject)
        pairs = [axis.pair(x) for axis, x in zip(place.axes, place.along, strict=True)]
        weights = weights_of(tuple(part for _, part in pairs))
        held = np.zeros((len(weights), texels.channels, len(lanes)))
        for number, (steps, each) in enumerate(weights.items()):
            rows = np.flatnonzero(each)
            found = [
                axis.texel(lower[rows] + step) for axis, (lower, _), step in zip(place.axes, pairs, steps, strict=True)
            ]
            inside = np.logical_and.reduce([within for _, within in found])
            along = [texel for texel, _ in found]
            held[number][:, rows] = self._numbers(frame, bound, place.layer[rows], along, inside, lanes[rows])
        result = np.zeros((4, len(lanes)), np.uint32)
        result[3] = np.float32(1).view(np.uint32)
        if texels.dtype.kind == "f":
            result[: texels.channels] = filtered_floats(held, weights, texels.dtype.str[1:])
        else:
            result[: texels.channels] = filtered_fractions(held, weights, texels.dtype)
        return result

    def _numbers(
        self, frame: Frame, bound: Bound, layer: Array, along: list[Array], inside: Array, lanes: Array
    ) -> Array:
        """Texels float64 [channels, n] as they are stored; those outside are the border's colour."""
        texture, texels = bound.object, bound.texels
        assert isinstance(texture, TextureObject)
        elements = self._elements(frame, bound, layer, along, inside, lanes)
        found = np.zeros((texels.channels, len(lanes)))
        found[:, inside] = elements
        # Of integers the colour is a fraction.
        most = 1.0 if texels.dtype.kind == "f" else float(np.iinfo(texels.dtype).max)
        found[:, ~inside] = np.array(texture.border_color, np.float64)[: texels.channels, None] * most
        return found

    def _elements(
        self, frame: Frame, bound: Bound, layer: Array, along: list[Array], inside: Array, lanes: Array
    ) -> Array:
        """The elements [channels, m] of those texels that are inside."""
        texels = bound.texels
        x, y, z = (*along, np.zeros_like(layer), np.zeros_like(layer))[:3]
        address = np.uint64(bound.base) + texels.offset(layer, z, y, x).astype(np.uint64)
        read = TexelRead(self.instruction, "texture", texels.dtype.itemsize, texels.channels, signed=False, dtypes=())
        return read.texels(frame, bound, address[inside], lanes[inside]).view(texels.dtype)

    def _gather(self, frame: Frame, bound: Bound, place: _Place, lanes: Array) -> Array:
        """One component of the four texels that linear filtering would read."""
        assert self.component is not None
        lower = [axis.lower(x) for axis, x in zip(place.axes, place.along, strict=True)]
        found = np.zeros((4, len(lanes)), np.uint32)
        for position, steps in enumerate(_AROUND):
            texels = [axis.texel(each + step) for axis, each, step in zip(place.axes, lower, steps, strict=True)]
            inside = np.logical_and.reduce([within for _, within in texels])
            along = [texel for texel, _ in texels]
            found[position] = self._texels(frame, bound, place.layer, along, inside, lanes)[self.component]
        return found
