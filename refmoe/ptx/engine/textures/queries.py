"""`txq`, `suq` and `istypep`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.textures.objects import bound_objects
from refmoe.ptx.state.textures import FACES, Bound, SurfaceObject, TextureObject
from refmoe.ptx.text.syntax import Instruction

Array = Any
TEXTURE_QUERIES = ("width", "height", "depth", "array_size", "num_mipmap_levels", "num_samples", "normalized_coords")
SURFACE_QUERIES = ("width", "height", "depth", "array_size")


@dataclass(frozen=True)
class Query:
    """What an object says of itself.

    Attributes:
        instruction: for messages.
        kind: of object.
        what: of `TEXTURE_QUERIES` or `SURFACE_QUERIES`.
    """

    instruction: Instruction
    kind: type[TextureObject | SurfaceObject]
    what: str

    def __call__(self, frame: Frame, handle: Array, guard: Array | None) -> Array:
        """Uint32 [n]."""
        where, lanes, handles = frame.select(handle, guard)
        found = np.zeros(len(lanes), np.uint32)
        for bound, rows in bound_objects(frame, self.instruction, handles, lanes, self.kind):
            found[rows] = self._value(bound)
        result = np.zeros(frame.count, np.uint32)
        result[slice(None) if where is None else where] = found
        return result

    def _value(self, bound: Bound) -> int:
        texels = bound.texels
        if self.what in ("width", "height", "depth"):
            return int(getattr(texels, self.what))
        if self.what == "array_size":
            return texels.layers // FACES if texels.kind.startswith("cubemap") else texels.layers
        if self.what == "normalized_coords":
            return int(isinstance(bound.object, TextureObject) and bound.object.normalized_coords)
        return 1


@dataclass(frozen=True)
class IsType:
    """`istypep`: whether handles are those of a kind of object; None for samplers, which are none here."""

    kind: type[TextureObject | SurfaceObject] | None

    def __call__(self, frame: Frame, handle: Array) -> Array:
        """Bool [n], or one for all."""
        objects = frame.machine.launch.objects
        fitting = [
            number for number, held in objects.items() if self.kind is not None and isinstance(held.object, self.kind)
        ]
        return np.isin(np.asarray(handle, np.uint64), np.array(fitting, np.uint64))
