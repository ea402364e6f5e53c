"""Several launches over one memory: allocations, module variables, and what is known of both from launch to launch."""

from __future__ import annotations

import numpy as np
import pytest

from refmoe import ptx
from refmoe.errors import ArgumentError

TEXT = """.version 9.0
.target sm_90a
.address_size 64
.global .align 4 .u32 count = 5;
.global .align 8 .u64 where = generic(table);
.global .align 4 .u32 table[4] = {10, 20, 30, 40};
.const .align 4 .u32 factor[2] = {1, 2};
.visible .entry step(.param .u64 .ptr .global out) {
    .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<2>;
    ld.param.u64 %d0, [out];
    mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, 4; add.s64 %d1, %d0, %d1;
    ld.const.u32 %r2, [factor+4];
    mul.lo.u32 %r3, %r1, %r2;
    st.global.u32 [%d1], %r3;
    atom.global.add.u32 %r4, [count], 1;
    ret;
}
.visible .entry double(.param .u64 .ptr .global out, .param .u32 wanted) {
    .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<2>;
    ld.param.u64 %d0, [out]; ld.param.u32 %r5, [wanted];
    mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, 4; add.s64 %d1, %d0, %d1;
    ld.global.u32 %r2, [%d1];
    add.u32 %r2, %r2, %r2;
    st.global.u32 [%d1], %r2;
    st.global.u32 [table], %r2;
    setp.eq.u32 %p1, %r1, %r5;
    @%p1 trap;
    ret;
}
.visible .entry follow(.param .u64 .ptr .global out) {
    .reg .b32 %r<9>; .reg .b64 %d<9>;
    ld.param.u64 %d0, [out];
    ld.global.u64 %d1, [where]; ld.u32 %r1, [%d1+4]; st.global.u32 [%d0], %r1;
    ret;
}
.visible .entry spoil(.param .u64 .ptr .global out) {
    .reg .b64 %d<9>;
    mov.u64 %d1, factor; cvta.const.u64 %d1, %d1; st.u32 [%d1], 7;
    ret;
}
"""


def module() -> ptx.Module:
    return ptx.Module.parse(TEXT, name="several.ptx")


def words(memory: ptx.DeviceMemory, address: int, count: int) -> list[int]:
    return memory.read(address, 4 * count).view(np.uint32).tolist()


def step(memory: ptx.DeviceMemory, code: ptx.Module, address: int, threads: int = 32) -> None:
    ptx.launch(code, "step", (1, 1, 1), (threads, 1, 1), [address], memory=memory)


def test_an_allocation_carries_results_and_what_was_written() -> None:
    memory, code = ptx.DeviceMemory(), module()
    address = memory.allocate(4 * 32, "numbers")
    assert not memory.written(address, 128).any()
    with pytest.raises(ptx.MemoryFault, match="uninitialised: global read of 4 bytes at byte 0 of numbers"):
        ptx.launch(code, "double", (1, 1, 1), (32, 1, 1), [address, 99], memory=memory)
    step(memory, code, address, threads=16)
    assert memory.written(address, 128).tolist() == [True] * 64 + [False] * 64
    assert words(memory, address, 16) == [2 * i for i in range(16)]
    ptx.launch(code, "double", (1, 1, 1), (1, 1, 1), [address + 60, 99], memory=memory)
    assert words(memory, address, 16) == [2 * i for i in range(15)] + [60]
    with pytest.raises(ptx.MemoryFault, match="byte 64 of numbers"):
        ptx.launch(code, "double", (1, 1, 1), (1, 1, 1), [address + 64, 99], memory=memory)


def test_variables_keep_their_values() -> None:
    memory, code = ptx.DeviceMemory(), module()
    address, count = memory.allocate(128), memory.variable(code, "count")
    assert words(memory, count, 1) == [5]
    step(memory, code, address)
    assert words(memory, count, 1) == [37]
    memory.write(count, np.array([1], np.uint32))
    step(memory, code, address)
    assert words(memory, count, 1) == [33]
    assert memory.variable(code, "count") == count


def test_without_a_memory_every_launch_begins_anew() -> None:
    code, out = module(), np.zeros(1, np.uint32)
    for _ in range(2):
        ptx.launch(code, "follow", (1, 1, 1), (1, 1, 1), [out])
        assert out[0] == 20
        ptx.launch(code, "double", (1, 1, 1), (1, 1, 1), [out, 99])


def test_variables_of_two_modules_are_apart() -> None:
    memory, one, other = ptx.DeviceMemory(), module(), module()
    address = memory.allocate(128)
    step(memory, one, address)
    assert words(memory, memory.variable(other, "count"), 1) == [5]
    assert words(memory, memory.variable(one, "count"), 1) == [37]


def test_constants_are_set_by_the_host_alone() -> None:
    memory, code = ptx.DeviceMemory(), module()
    address = memory.allocate(128)
    memory.write(memory.variable(code, "factor") + 4, np.array([9], np.uint32))
    step(memory, code, address)
    assert words(memory, address, 3) == [0, 9, 18]
    with pytest.raises(ptx.MemoryFault, match=r"read only: .* of factor"):
        ptx.launch(code, "spoil", (1, 1, 1), (1, 1, 1), [address], memory=memory)


def test_a_variable_that_holds_an_address_follows_the_other() -> None:
    memory, code = ptx.DeviceMemory(), module()
    address = memory.allocate(4)
    table = memory.variable(code, "table")
    assert int(memory.read(memory.variable(code, "where"), 8).view(np.uint64)[0]) == table
    memory.write(table + 4, np.array([77], np.uint32))
    ptx.launch(code, "follow", (1, 1, 1), (1, 1, 1), [address], memory=memory)
    assert words(memory, address, 1) == [77]


def test_a_launch_that_fails_leaves_everything() -> None:
    memory, code = ptx.DeviceMemory(), module()
    address, table = memory.allocate(128), memory.variable(code, "table")
    step(memory, code, address, threads=8)
    before = memory.read(address, 128).tobytes(), memory.written(address, 128).tolist(), words(memory, table, 4)
    with pytest.raises(ptx.Trap):
        ptx.launch(code, "double", (1, 1, 1), (1, 1, 1), [address + 4, 0], memory=memory)
    after = memory.read(address, 128).tobytes(), memory.written(address, 128).tolist(), words(memory, table, 4)
    assert after == before
    ptx.launch(code, "double", (1, 1, 1), (1, 1, 1), [address + 4, 99], memory=memory)
    assert words(memory, address, 2) == [0, 4]
    assert words(memory, table, 1) == [4]


def test_a_freed_allocation_is_named() -> None:
    memory, code = ptx.DeviceMemory(), module()
    address = memory.allocate(128, "scratch")
    memory.free(address)
    with pytest.raises(ptx.MemoryFault, match=r"out of bounds: .* of scratch \(freed\) \(0 bytes\)"):
        step(memory, code, address)
    assert memory.allocate(128) != address
    with pytest.raises(ArgumentError, match="an allocation that is not freed"):
        memory.free(address)
    with pytest.raises(ArgumentError, match="an allocation that is not freed"):
        memory.free(memory.variable(code, "count"))


def test_arrays_and_allocations_lie_side_by_side() -> None:
    memory, code = ptx.DeviceMemory(), module()
    array = np.zeros(32, np.uint32)
    placed = memory.place(ptx.Buffer(array, "array"))
    step(memory, code, memory.allocate(128))
    step(memory, code, placed)
    assert array.tolist() == [2 * i for i in range(32)]
    memory.write(placed + 8, np.array([5], np.uint32))
    assert array[2] == 5
    # An array that is no part of the memory comes behind it.
    other = np.zeros(32, np.uint32)
    ptx.launch(code, "step", (1, 1, 1), (32, 1, 1), [other], memory=memory)
    assert (other == 2 * np.arange(32)).all()
    assert words(memory, memory.variable(code, "count"), 1) == [5 + 96]


def test_elements_written_in_part_are_not_initialised() -> None:
    memory = ptx.DeviceMemory()
    mask = np.zeros(4, bool)
    address = memory.place(ptx.Buffer(np.zeros(4, np.uint32), "array", initialised=mask))
    memory.write(address + 2, bytes(8))
    assert mask.tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    ("size", "found"), [(0, "0 bytes"), (-4, "-4 bytes"), (1 << 40, f"{1 << 40} bytes")], ids=["none", "less", "window"]
)
def test_sizes_that_no_allocation_has(size: int, found: str) -> None:
    with pytest.raises(ArgumentError, match=found):
        ptx.DeviceMemory().allocate(size)


def test_ranges_outside_every_buffer() -> None:
    memory, code = ptx.DeviceMemory(), module()
    address = memory.allocate(16, "small")
    with pytest.raises(ArgumentError, match=r"9 bytes from byte 8 of small; needed a range inside its 16 bytes"):
        memory.read(address + 8, 9)
    with pytest.raises(ArgumentError, match="one in a buffer of this memory"):
        memory.write(0, b"1")
    with pytest.raises(ArgumentError, match="one in a buffer of this memory"):
        memory.written(address + (1 << 41), 1)
    with pytest.raises(ArgumentError, match=r"a variable of several\.ptx, which has count, where, table, factor"):
        memory.variable(code, "missing")


def test_a_number_is_no_pointer_without_a_memory() -> None:
    with pytest.raises(ptx.ArgumentMismatch, match="for a pointer"):
        ptx.launch(module(), "step", (1, 1, 1), (32, 1, 1), [1 << 41])
