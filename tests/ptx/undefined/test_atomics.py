"""Undefined values that atomics write, under schedules in which it is chosen which write an atomic reads."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import text

from refmoe import ptx

TWICE = "ld.relaxed.gpu.global.u32 %r3, [%d0]; st.global.u32 [%d0+64], %r3; ret;"
WRITES = {
    "exch": "atom.relaxed.gpu.global.exch.b32 %r2, [%d0], %r9;",
    "red": "red.relaxed.gpu.global.add.u32 [%d0], %r9;",
    "cas": "atom.relaxed.gpu.global.cas.b32 %r2, [%d0], 0, %r9;",
}


def launch(module: ptx.Module, blocks: int, schedule: int) -> int:
    """The first word that is left behind."""
    memory = np.zeros(32, np.uint32)
    arguments = [memory, np.zeros(1, np.uint32), 0]
    ptx.launch(module, "k", (blocks, 1, 1), (1, 1, 1), arguments, schedule=ptx.Schedule(schedule))
    return int(memory[0])


@pytest.mark.parametrize("schedule", range(4))
@pytest.mark.parametrize("write", WRITES)
def test_what_an_atomic_writes_stays_undefined(write: str, schedule: int) -> None:
    module = ptx.Module.parse(text(f"{WRITES[write]} {TWICE}"), "undefined")
    with pytest.raises(ptx.UndefinedError):
        launch(module, 1, schedule)


#: Of two blocks one stores 3; the other overwrites it with what is undefined, and then, if it has found the 3, with 4.
OVERWRITTEN = """
    mov.u32 %r1, %ctaid.x; setp.ne.u32 %p1, %r1, 0; @%p1 bra other;
    st.relaxed.gpu.global.u32 [%d0], 3; ret;
other:
    atom.relaxed.gpu.global.exch.b32 %r2, [%d0], %r9; setp.ne.u32 %p2, %r2, 3; @%p2 bra end;
    st.relaxed.gpu.global.u32 [%d0], 4;
end:
    ret;
"""


def test_what_an_atomic_puts_under_a_later_write_is_not_in_memory() -> None:
    module, found = ptx.Module.parse(text(OVERWRITTEN), "under"), set()
    for number in range(40):
        found.add(launch(module, 2, number))
    assert found == {3, 4}
