"""`malloc`, `free`, `new` and `delete` in device code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.ptx_kernel import compile_cuda, text

from refmoe import ptx

DECLARED = """
.extern .func (.param .b64 result) malloc (.param .b64 size);
.extern .func (.param .b64 result) __nv_aligned_device_malloc (.param .b64 size, .param .b64 alignment);
.extern .func free (.param .b64 address);
"""
FREE_ALONE = ".extern .func free (.param .b64 address);"
MALLOC = """{{ .param .b64 size; .param .b64 result; st.param.b64 [size], {size};
    call.uni (result), malloc, (size); ld.param.b64 {to}, [result]; }}"""
FREE = "{{ .param .b64 address; st.param.b64 [address], {of}; call.uni free, (address); }}"


def malloc(size: int, to: str = "%d5") -> str:
    return MALLOC.format(size=size, to=to)


def free(of: str = "%d5") -> str:
    return FREE.format(of=of)


FREED = malloc(8) + "st.global.u64 [%d5], 1;" + free()


def run(body: str, out: np.ndarray, block: int = 1, **options: Any) -> ptx.LaunchResult:
    module = ptx.Module.parse(text(body + "ret;", module_scope=DECLARED), name="heap.ptx")
    return ptx.launch(module, "k", (1, 1, 1), (block, 1, 1), [out, None, 0], **options)


def test_new_and_delete(tmp_path: Path) -> None:
    source = """
    struct Shape { __device__ virtual ~Shape() {} __device__ virtual int area() const = 0; };
    struct Square : Shape { int a; __device__ Square(int a) : a(a) {} __device__ int area() const { return a * a; } };
    struct Box : Shape {
        int a, b;
        __device__ Box(int a, int b) : a(a), b(b) {}
        __device__ int area() const { return a * b; }
    };
    extern "C" __global__ void k(int* out) {
        int i = threadIdx.x;
        Shape* shape = i % 2 ? (Shape*) new Square(i) : (Shape*) new Box(i, 3);
        int* all = (int*) malloc((i + 1) * sizeof(int));
        for (int n = 0; n <= i; n++) all[n] = shape->area() + n;
        int sum = 0;
        for (int n = 0; n <= i; n++) sum += all[n];
        out[i] = sum;
        free(all);
        delete shape;
    }
    """
    out = np.zeros(64, np.int32)
    i = np.arange(64)
    module = compile_cuda(source, tmp_path)
    ptx.launch(module, "k", (1, 1, 1), (64, 1, 1), [out], schedules=4)
    assert (out == np.where(i % 2, i * i, 3 * i) * (i + 1) + i * (i + 1) // 2).all()


def test_allocations_do_not_overlap() -> None:
    body = "mul.wide.u32 %d7, %r1, 16; add.s64 %d7, %d7, %d0;" + malloc(20) + malloc(40, "%d6")
    body += "st.global.u64 [%d7], %d5; st.global.u64 [%d7+8], %d6;"
    out = np.zeros(64, np.uint64)
    run(body, out, 32)
    begin, size = out, np.tile([20, 40], 32)
    order = np.argsort(begin)
    assert (begin[order][1:] >= begin[order][:-1] + size[order][:-1]).all()
    assert (begin % 16 == 0).all()


def test_an_alignment() -> None:
    body = """{ .param .b64 size; .param .b64 alignment; .param .b64 result;
        st.param.b64 [size], 24; st.param.b64 [alignment], 256;
        call.uni (result), __nv_aligned_device_malloc, (size, alignment); ld.param.b64 %d5, [result]; }
        mul.wide.u32 %d7, %r1, 8; add.s64 %d7, %d7, %d0; st.global.u64 [%d7], %d5;"""
    out = np.zeros(4, np.uint64)
    run(body, out, 4)
    assert (out % 256 == 0).all()
    assert len(set(out.tolist())) == 4


@pytest.mark.parametrize(
    ("first", "second", "granted"),
    [
        (8 << 20, 1, [True, False]),
        ((8 << 20) + 1, 1, [False, True]),
        (4 << 20, 4 << 20, [True, True]),
        (0, 1, [False, True]),
    ],
)
def test_eight_mebibytes_may_be_allocated_at_once(first: int, second: int, granted: list[bool]) -> None:
    body = malloc(first) + malloc(second, "%d6") + "st.global.u64 [%d0], %d5; st.global.u64 [%d0+8], %d6;"
    out = np.zeros(2, np.uint64)
    run(body, out)
    assert (out != 0).tolist() == granted


def test_what_was_freed_may_be_allocated_again() -> None:
    out = np.zeros(1, np.uint64)
    run(malloc(8 << 20) + free() + malloc(8 << 20) + "st.global.u64 [%d0], %d5;", out)
    assert out[0] != 0


def test_more_than_there_are_addresses_for_is_refused() -> None:
    body = "mov.u32 %r5, 0; AGAIN:" + malloc(1 << 20) + free() + "add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 80;"
    with pytest.raises(ptx.UnknownOpcode, match="more than 64 MiB in all") as caught:
        run(body + "@%p1 bra AGAIN;", np.zeros(1, np.uint64))
    assert "malloc" in caught.value.text


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (malloc(8) + "ld.global.u32 %r5, [%d5]; st.global.u32 [%d0], %r5;", "uninitialised"),
        (malloc(8) + "st.global.u64 [%d5], 1; ld.global.u32 %r5, [%d5+8]; st.global.u32 [%d0], %r5;", "uninitialised"),
        (malloc(8) + "ld.global.u32 %r5, [%d5+-16]; st.global.u32 [%d0], %r5;", "uninitialised"),
        (FREED + "ld.global.u32 %r5, [%d5]; st.global.u32 [%d0], %r5;", "uninitialised"),
        (malloc(9 << 20) + "st.global.u64 [%d5], 1;", "unmapped"),
    ],
    ids=["before it is written", "behind its end", "in front of it", "after free", "a null pointer"],
)  # fmt: skip
def test_wrong_accesses(body: str, kind: str) -> None:
    with pytest.raises(ptx.PtxError) as caught:
        run(body, np.zeros(2, np.uint32), checks=ptx.Checks(strict=True))
    assert isinstance(caught.value, ptx.MemoryFault)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (malloc(8) + free() + free(), "which was freed before"),
        (malloc(8) + "add.s64 %d5, %d5, 16;" + free(), "where no allocation of malloc begins"),
        (malloc(8) + "add.s64 %d5, %d5, 4;" + free(), "where no allocation of malloc begins"),
        (free("%d0"), "where no allocation of malloc begins"),
    ],
)
def test_wrong_frees(body: str, message: str) -> None:
    with pytest.raises(ptx.MisuseError, match=message) as caught:
        run(body, np.zeros(2, np.uint32))
    assert caught.value.thread == (0, 0, 0)


def test_a_null_pointer_may_be_freed_and_lanes_that_are_off_free_nothing() -> None:
    body = malloc(8) + "setp.eq.u32 %p1, %r1, 3; @%p1 bra DONE;" + free() + "DONE: mov.u64 %d5, 0;" + free()
    run(body, np.zeros(1, np.uint32), 4)


def test_threads_that_share_an_allocation_need_an_order() -> None:
    body = """.shared .u64 place; setp.ne.u32 %p1, %r1, 0; @%p1 bra WAIT;""" + malloc(8)
    body += "st.global.u32 [%d5], 7; st.shared.u64 [place], %d5; WAIT: bar.sync 0; ld.shared.u64 %d6, [place];"
    body += "ld.global.u32 %r5, [%d6]; st.global.u32 [%d2], %r5;"
    out = np.zeros(64, np.uint32)
    run(body, out, 64)
    assert (out == 7).all()
    racing = body + "st.global.u32 [%d6], %r5;"
    with pytest.raises(ptx.RaceError, match="the heap of malloc"):
        run(racing, out, 64)


def test_the_heap_lives_on_in_a_memory() -> None:
    module = ptx.Module.parse(text(malloc(64) + "st.global.u64 [%d5], 5; st.global.u64 [%d0], %d5; ret;", DECLARED))
    body = "ld.global.u64 %d5, [%d1]; ld.global.u64 %d6, [%d5]; st.global.u64 [%d0], %d6;"
    other = ptx.Module.parse(text(body + free() + "ret;", FREE_ALONE))
    memory = ptx.DeviceMemory()
    held, out = memory.allocate(8, "held"), memory.allocate(8, "out")
    one = ((1, 1, 1), (1, 1, 1))
    ptx.launch(module, "k", *one, [held, None, 0], memory=memory, schedules=2)
    ptx.launch(other, "k", *one, [out, held, 0], memory=memory)
    assert memory.read(out, 8).view(np.uint64)[0] == 5
    with pytest.raises(ptx.MemoryFault, match="the heap of malloc"):
        ptx.launch(other, "k", *one, [out, held, 0], memory=memory, checks=ptx.Checks(strict=True))


def test_schedules_may_give_other_addresses() -> None:
    # Two warps allocate, in another order under another schedule, and keep their number there.
    body = malloc(4) + "st.global.u32 [%d5], %r1; ld.global.u32 %r5, [%d5]; st.global.u32 [%d2], %r5;"
    module = ptx.Module.parse(text(body + "ret;", DECLARED))
    memory = ptx.DeviceMemory()
    out = memory.allocate(256, "out")
    shape = ((1, 1, 1), (64, 1, 1))
    assert ptx.launch(module, "k", *shape, [out, None, 0], memory=memory, schedules=4).schedules == 4
    assert (memory.read(out, 256).view(np.uint32) == np.arange(64)).all()
    telling = ptx.Module.parse(text(malloc(4) + "cvt.u32.u64 %r5, %d5; st.global.u32 [%d2], %r5; ret;", DECLARED))
    with pytest.raises(ptx.ScheduleError):
        ptx.launch(telling, "k", *shape, [out, None, 0], memory=memory, schedules=4)


def test_a_launch_that_fails_allocates_nothing() -> None:
    module = ptx.Module.parse(text(malloc(6 << 20) + "st.global.u64 [%d0], %d5; ret;", DECLARED))
    failing = ptx.Module.parse(text(malloc(6 << 20) + "trap; ret;", DECLARED))
    memory = ptx.DeviceMemory()
    out = memory.allocate(8, "out")
    one = ((1, 1, 1), (1, 1, 1))
    with pytest.raises(ptx.Trap):
        ptx.launch(failing, "k", *one, [out, None, 0], memory=memory)
    ptx.launch(module, "k", *one, [out, None, 0], memory=memory)
    assert memory.read(out, 8).view(np.uint64)[0] != 0


@pytest.mark.parametrize(("address", "named"), [(0, None), (8, "where no allocation of malloc begins")])
def test_a_module_that_only_frees(address: int, named: str | None) -> None:
    module = ptx.Module.parse(text(f"mov.u64 %d5, {address};{free()} ret;", FREE_ALONE), name="heap.ptx")
    arguments = [np.zeros(1, np.uint64), None, 0]
    if named is None:
        ptx.launch(module, "k", (1, 1, 1), (1, 1, 1), arguments)
    else:
        with pytest.raises(ptx.MisuseError, match=named):
            ptx.launch(module, "k", (1, 1, 1), (1, 1, 1), arguments)
