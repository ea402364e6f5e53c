"""Integer arithmetic of a warp's lanes. The specification is `refmoe.ptx.isa.integer`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from refmoe.ptx.isa.spelling import Spelling
from refmoe.ptx.ops.lanes import Lanes, Lowering, Value


def _add(spelling: Spelling) -> Lowering | None:
    if spelling.last not in ("u16", "u32", "u64", "s16", "s32", "s64") or spelling.opcode.count(".") != 1:
        return None

    def lower(lanes: Lanes, sources: Sequence[Value]) -> Sequence[Value]:
        return [lanes.build.add(sources[0], sources[1])]

    return lower


BUILDERS: Mapping[str, Callable[[Spelling], Lowering | None]] = {"add": _add}
