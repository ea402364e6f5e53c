from __future__ import annotations

import numpy as np
import pytest

import refmoe
from refmoe.errors import ArgumentError
from refmoe.ptx import DeviceMemory, MemoryFault, Module

TEXT = """.version 9.0
.target sm_90a
.address_size 64
.const .align 4 .b8 taps[8];
.global .align 4 .u32 count = 5;
.visible .entry add(.param .u64 x) {
    .reg .b32 %r<5>; .reg .b64 %d<4>;
    ld.param.u64 %d1, [x]; ld.const.u32 %r1, [taps]; ld.const.u32 %r2, [taps+4];
    ld.global.u32 %r3, [count]; add.u32 %r3, %r3, 1; st.global.u32 [count], %r3;
    add.u32 %r1, %r1, %r2; add.u32 %r1, %r1, %r3; st.global.u32 [%d1], %r1;
    ret;
}
"""


def test_a_module_stands_in_the_place_of_its_text() -> None:
    module, x = Module.parse(TEXT), np.zeros(1, np.uint32)
    refmoe.run_ptx(module, block=1, args=[x])
    assert x[0] == 6
    # Without a memory every launch begins with the first values, and nothing is parsed twice.
    refmoe.run_ptx(module, "add", block=1, args=[x])
    assert x[0] == 6
    memory = DeviceMemory()
    for _ in range(2):
        refmoe.run_ptx(module, block=1, args=[x], memory=memory)
    assert x[0] == 7


def test_variables_are_set_and_come_back() -> None:
    x, count, taps = np.zeros(1, np.uint32), np.array([100], np.uint32), np.array([10, 20], np.uint32)
    refmoe.run_ptx(TEXT, block=1, args=[x], variables={"taps": taps, "cou": count})
    assert (x[0], count[0], taps.tolist()) == (131, 101, [10, 20])
    # The rest of a variable keeps its value, and numbers and bytes are taken as they are.
    refmoe.run_ptx(TEXT, block=1, args=[x], variables={"taps": np.uint32(7), "count": b"\1\0\0\0"})
    assert x[0] == 9


def test_a_read_only_array_is_only_read() -> None:
    x, count = np.zeros(1, np.uint32), np.array([100], np.uint32)
    count.flags.writeable = False
    refmoe.run_ptx(TEXT, block=1, args=[x], variables={"count": count})
    assert (x[0], count[0]) == (101, 100)


def test_a_launch_that_fails_leaves_the_array() -> None:
    count = np.array([100], np.uint32)
    with pytest.raises(MemoryFault):
        refmoe.run_ptx(TEXT, block=1, args=[None], variables={"count": count})
    assert count[0] == 100


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"t": np.uint32(1)}, "one variable of module.ptx, of taps, count"),
        ({"taps": np.zeros(3, np.uint32)}, "at most the 8 bytes that taps has"),
        ({"count": 3}, "found int 3; needed an array or bytes"),
        ({"count": [3]}, "found list"),
    ],
)
def test_what_does_not_fit_is_refused(variables: dict[str, object], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        refmoe.run_ptx(TEXT, block=1, args=[np.zeros(1, np.uint32)], variables=variables)
