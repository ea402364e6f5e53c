"""What the lanes of an instruction on textures or surfaces have in common: handles, and accesses to texels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.loads_and_stores import Load
from refmoe.ptx.engine.races import shadow_of
from refmoe.ptx.state.textures import Bound, SurfaceObject, TextureObject
from refmoe.ptx.text.syntax import Instruction

Array = Any
_WORDS = {TextureObject: "texture object", SurfaceObject: "surface object"}


def bound_objects(
    frame: Frame, instruction: Instruction, handles: Array, lanes: Array, kind: type[TextureObject | SurfaceObject]
) -> Iterator[tuple[Bound, Array]]:
    """Each object that `lanes` [n] name by their handles uint64 [n], and the positions of those that do.

    Raises:
        MisuseError: a handle of something else.
    """
    objects = frame.machine.launch.objects
    for handle in np.unique(handles).tolist():
        rows = np.flatnonzero(handles == handle)
        found = objects.get(handle)
        if found is None or not isinstance(found.object, kind):
            what = "a " + _WORDS[type(found.object)] if found is not None else "no texture or surface object"
            known = ", ".join(f"0x{each:X}" for each, held in objects.items() if isinstance(held.object, kind))
            message = f"0x{handle:X} is {what}; the launch has the {_WORDS[kind]}s {known or 'none'}"
            raise frame.machine.misuse(instruction, int(lanes[rows[0]]), message)
        yield found, rows


@dataclass(frozen=True, kw_only=True)
class TexelRead(Load):
    """A read through the texture cache, which a launch does not keep coherent with what it writes itself.

    CUDA Programming Guide, "Read/Write Coherency": a fetch or surface read of what was written in the same kernel call
    returns undefined data, whoever wrote. What a later instruction writes is an ordinary write after a read.
    """

    def texels(self, frame: Frame, bound: Bound, address: Array, lanes: Array) -> Array:
        """Elements [count, lanes] at addresses uint64 [n]."""
        self.refuse_written(frame, bound, address, lanes)
        elements: Array = self._read(frame, address, lanes)
        return elements

    def refuse_written(self, frame: Frame, bound: Bound, address: Array, lanes: Array) -> None:
        """Refuse what the launch wrote before."""
        region = bound.region
        if region.shadow is not None and address.size:
            index = (address - np.uint64(region.base)).astype(np.int64)
            shadow_of(region).texture_read(frame, self, region, index, lanes)
