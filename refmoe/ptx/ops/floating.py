"""Not yet written. The specification is `refmoe.ptx.isa.floating`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from refmoe.ptx.isa.spelling import Spelling
from refmoe.ptx.ops.lanes import Lowering

BUILDERS: Mapping[str, Callable[[Spelling], Lowering | None]] = {}
