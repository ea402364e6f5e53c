"""Textures and surfaces in a launch: how they are passed, what is refused, and what of memory is checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.textures.kernels import HEADER, fetch, places, run

from refmoe import ptx
from refmoe.errors import ArgumentError

FETCH = "tex.2d.v4.f32.f32 {%r10, %r11, %r12, %r13}, [%d0, {%f0, %f1}];"
STORE = "sust.b.2d.b32.trap [%d0, {%r1, %r2}], {%r0};"
ORIGIN = places([[0, 0]])


def image(**more: Any) -> ptx.CudaArray:
    return ptx.CudaArray(np.zeros((4, 8), np.float32), name="image", **more)


# Arguments


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ptx.CudaArray(np.zeros((4, 8), np.float64)), "float64"),
        (lambda: ptx.CudaArray(np.zeros((4, 8, 3), np.float32), channels=3), "1, 2 or 4"),
        (lambda: ptx.CudaArray(np.zeros((4, 8, 3), np.float32), channels=4), "a last axis of 4"),
        (lambda: ptx.CudaArray(np.zeros((4, 8), np.float32), "3d"), "3 axes for 3d"),
        (lambda: ptx.CudaArray(np.zeros((4, 8), np.float32).T), "C-contiguous"),
        (lambda: ptx.CudaArray(np.zeros((0, 8), np.float32)), "not empty"),
        (lambda: ptx.CudaArray(np.zeros((4, 8), np.float32), "4d"), "one of 1d, 2d"),
        (lambda: ptx.CudaArray(np.zeros((5, 4, 4), np.float32), "cubemap"), "six of them"),
        (lambda: ptx.CudaArray(np.zeros((12, 4, 4), np.float32), "cubemap"), "six of them"),
        (lambda: ptx.CudaArray(np.zeros((6, 4, 5), np.float32), "cubemap"), "square faces"),
        (lambda: ptx.TextureObject(np.zeros(4)), "a CudaArray, a LinearMemory"),
        (lambda: ptx.TextureObject(image(), address_mode="repeat"), "wrap, clamp, mirror, border"),
        (lambda: ptx.TextureObject(image(), filter_mode="cubic"), "point or linear"),
        (lambda: ptx.TextureObject(image(), read_mode="normalized_float"), "integers of 8 or 16 bits"),
        (lambda: ptx.TextureObject(image(), border_color=(1, 2)), "four numbers"),
        (lambda: ptx.TextureObject(ptx.CudaArray(np.zeros((4, 8), np.uint8)), filter_mode="linear"), "floating-point"),
        (lambda: ptx.TextureObject(ptx.LinearMemory(np.zeros(4, np.float32)), filter_mode="linear"), "point filtering"),
        (lambda: ptx.TextureObject(ptx.CudaArray(np.zeros((6, 4, 4), np.float32), "cubemap")), "a direction"),
        (lambda: ptx.LinearMemory(np.zeros(4, np.float32), width=5), "20 for linear of 5"),
        (lambda: ptx.LinearMemory(1 << 41, width=5), "and a dtype"),
        (lambda: ptx.Pitch2D(np.zeros(32, np.float32), 8, 4, 28), "at least 32"),
        (lambda: ptx.Pitch2D(np.zeros(32, np.float32), 8, 5), "160 for pitch2d of 8 x 5"),
        (lambda: ptx.SurfaceObject(ptx.LinearMemory(np.zeros(4, np.float32))), "a CudaArray"),
    ],
)  # fmt: skip
def test_what_no_object_can_be(make: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


POINTER = f"{HEADER}.visible .entry k(.param .u64 .ptr .global .align 4 out, .param .f32 x) {{ ret; }}"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([ptx.TextureObject(image()), 1.0], "a TextureObject for a pointer"),
        ([None, ptx.TextureObject(image())], "a TextureObject for a .f32 of 4 bytes"),
        ([image(), 1.0], "a CudaArray; a TextureObject or a SurfaceObject over it needed"),
    ],
)
def test_objects_go_where_handles_go(args: list[Any], message: str) -> None:
    with pytest.raises(ptx.ArgumentMismatch, match=message):
        ptx.launch(ptx.Module.parse(POINTER), "k", (1, 1, 1), (1, 1, 1), args)


def test_surfaces_write_only_what_is_writable() -> None:
    data = np.zeros((4, 8), np.float32)
    data.flags.writeable = False
    with pytest.raises(ptx.ArgumentMismatch, match="read-only"):
        run(STORE, ptx.SurfaceObject(ptx.CudaArray(data)), ORIGIN)
    with pytest.raises(ArgumentError, match="read-only"):
        ptx.DeviceMemory().create_object(ptx.SurfaceObject(ptx.CudaArray(data)))
    assert fetch(ptx.TextureObject(ptx.CudaArray(data)), [[0, 0]])[0, 0] == 0


QUERY, SURFACE_QUERY = "txq.width.b32 %r10, [%d0];", "suq.width.b32 %r10, [%d0];"
# The handle is no parameter that only such instructions take.
HIDDEN = "add.u64 %d0, %d0, 0;"


@pytest.mark.parametrize("handle", [77, (1 << 59) | 1])
@pytest.mark.parametrize("instruction", [FETCH, STORE, QUERY, SURFACE_QUERY])
def test_a_number_is_no_handle(instruction: str, handle: int) -> None:
    with pytest.raises(ptx.ArgumentMismatch, match=rf"argument 0 \(handle\) of k: 0x{handle:X} is no texture or"):
        run(instruction, handle, ORIGIN)
    with pytest.raises(ptx.MisuseError, match=rf"0x{handle:X} is no texture or surface object; .* objects none"):
        run(HIDDEN + instruction, handle, ORIGIN)


@pytest.mark.parametrize("instruction", [FETCH, STORE])
def test_a_null_handle_is_for_lanes_that_come_to_no_fetch(instruction: str) -> None:
    run("setp.eq.u32 %p0, %r0, 9; @%p0 " + instruction, 0, ORIGIN)
    with pytest.raises(ptx.MisuseError, match="0x0 is no texture or surface object"):
        run(instruction, 0, ORIGIN)


def test_each_instruction_has_its_kind_of_object() -> None:
    with pytest.raises(ptx.ArgumentMismatch, match="a surface object; a texture object needed"):
        run(FETCH, ptx.SurfaceObject(image()), ORIGIN)
    with pytest.raises(ptx.ArgumentMismatch, match="a texture object; a surface object needed"):
        run(STORE, ptx.TextureObject(image()), ORIGIN)
    with pytest.raises(ptx.MisuseError, match="is a surface object"):
        run(HIDDEN + FETCH, ptx.SurfaceObject(image()), ORIGIN)
    with pytest.raises(ptx.MisuseError, match="is a texture object"):
        run(HIDDEN + STORE, ptx.TextureObject(image()), ORIGIN)


def test_a_surface_has_texels_of_a_width_that_the_kernel_accesses() -> None:
    wide = STORE.replace("b32", "v2.b32").replace("{%r0}", "{%r0, %r0}")
    with pytest.raises(ptx.ArgumentMismatch, match=r"a surface over 2d of 8 x 4 .*; the kernel accesses 8 bytes"):
        run(wide, ptx.SurfaceObject(image()), ORIGIN)
    # Which of two accesses a lane comes to is not known before.
    run("setp.eq.u32 %p0, %r0, 9; @%p0 " + wide + STORE, ptx.SurfaceObject(image()), ORIGIN)
    with pytest.raises(ptx.MisuseError, match="an access of 8 bytes"):
        run(wide + STORE, ptx.SurfaceObject(image()), ORIGIN)


def test_handles_are_no_addresses() -> None:
    with pytest.raises(ptx.MemoryFault, match="unmapped"):
        run("ld.global.u32 %r10, [%d0];", ptx.TextureObject(image()), ORIGIN)


@pytest.mark.parametrize(
    ("instruction", "handle", "message"),
    [
        ("tex.3d.v4.f32.f32 {%r10, %r11, %r12, %r13}, [%d0, {%f0, %f1, %f2, %f2}];", ptx.TextureObject(image()),
         "a .3d fetch from a texture over 2d"),
        ("tex.2d.v4.u32.f32 {%r10, %r11, %r12, %r13}, [%d0, {%f0, %f1}];", ptx.TextureObject(image()),
         "a fetch of .u32 from a texture that gives floating-point numbers"),
        (FETCH, ptx.TextureObject(ptx.CudaArray(np.zeros((4, 8), np.uint8))),
         "a fetch of .f32 from a texture that gives uint8"),
        ("tex.2d.v4.f32.s32 {%r10, %r11, %r12, %r13}, [%d0, {%r1, %r2}];",
         ptx.TextureObject(image(), normalized_coords=True), "integer coordinates"),
        ("tex.1d.v4.f32.f32 {%r10, %r11, %r12, %r13}, [%d0, {%f0}];",
         ptx.TextureObject(ptx.LinearMemory(np.zeros(4, np.float32))), "tex1Dfetch alone"),
        ("tld4.g.2d.v4.f32.f32 {%r10, %r11, %r12, %r13}, [%d0, {%f0, %f1}];", ptx.TextureObject(image()),
         "component 1 of texels with 1"),
        ("sust.b.3d.b32.trap [%d0, {%r1, %r2, %r3, %r3}], {%r0};", ptx.SurfaceObject(image()),
         "a .3d access to a surface over 2d"),
    ],
)  # fmt: skip
def test_what_does_not_fit_an_object(instruction: str, handle: Any, message: str) -> None:
    with pytest.raises(ptx.MisuseError, match=message):
        run(instruction, handle, ORIGIN)


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        ("tex.2d.v4.f32.f32 {%r10, %r11, %r12, %r13}, [%d0, %d1, {%f0, %f1}];", "without a sampler"),
        ("tex.2d.v4.f32.f32 {%r10, %r11, %r12, %r13}, [%d0, {%f0, %f1}], {%r1, %r2};", "offsets"),
        ("tex.2d.v4.f32.f32 {%r10, %r11, %r12, %r13}, [%r0, {%f0, %f1}];", "a register of 64 bits"),
        ("tex.2d.v4.f32.f32 {%r10, %r11, %r12}, [%d0, {%f0, %f1}];", "4 elements needed"),
        ("tex.2d.v2.f16x2.f32 {%r10, %r11}, [%d0, {%f0, %f1}];", "32 bits an element"),
        ("tex.2dms.v4.f32.s32 {%r10, %r11, %r12, %r13}, [%d0, {%r1, %r2, %r3, %r3}];", "with samples"),
        ("txq.channel_order.b32 %r10, [%d0];", "only sizes"),
        ("sured.p.min.2d.b32.trap [%d0, {%r1, %r2}], %r0;", "whose sign"),
    ],
)
def test_what_is_not_here_says_so(instruction: str, message: str) -> None:
    with pytest.raises(ptx.UnknownOpcode, match=message):
        run(HIDDEN + instruction, ptx.TextureObject(image()), ORIGIN)


# Memory that lives on


def test_handles_in_a_device_memory() -> None:
    memory = ptx.DeviceMemory()
    data = np.arange(32, dtype=np.float32).reshape(4, 8)
    address = memory.place(ptx.Buffer(data.reshape(-1)))
    rows = memory.create_object(ptx.TextureObject(ptx.Pitch2D(address, 8, 4, dtype=np.float32)))
    last = memory.create_object(ptx.TextureObject(ptx.LinearMemory(address + 96, dtype=np.float32, width=8)))
    assert rows != last
    found = run(FETCH, rows, places([[3, 2], [7, 3]]), memory=memory)
    assert found[:, 0].view(np.float32).tolist() == [19.0, 31.0]
    found = run(
        "tex.1d.v4.f32.s32 {%r10, %r11, %r12, %r13}, [%d0, {%r1}];",
        last,
        places([[1], [8]], 0, np.int32),
        memory=memory,
    )
    assert found[:, 0].view(np.float32).tolist() == [25.0, 0.0]
    memory.destroy_object(rows)
    with pytest.raises(ptx.MisuseError, match=rf"the texture objects 0x{last:X}"):
        run(HIDDEN + FETCH, rows, ORIGIN, memory=memory)
    with pytest.raises(ArgumentError, match="not destroyed"):
        memory.destroy_object(rows)
    assert memory.create_object(ptx.TextureObject(image())) != rows
    with pytest.raises(ArgumentError, match="a range inside"):
        memory.create_object(ptx.TextureObject(ptx.LinearMemory(address, dtype=np.float32, width=33)))


def test_an_address_needs_memory_of_the_launch() -> None:
    texture = ptx.TextureObject(ptx.LinearMemory(9 << 40, dtype=np.float32, width=8))
    with pytest.raises(ptx.ArgumentMismatch, match="no such memory"):
        run(FETCH, texture, ORIGIN)


def test_the_next_launch_sees_what_a_surface_wrote() -> None:
    array = image(initialised=np.zeros((4, 8), bool))
    where = places([[4, 1], [8, 1]], 0, np.int32)
    run("mov.b32 %r10, 0f40400000; sust.b.2d.b32.trap [%d0, {%r1, %r2}], {%r10};", ptx.SurfaceObject(array), where)
    assert isinstance(array.initialised, np.ndarray)
    assert np.argwhere(array.initialised).tolist() == [[1, 1], [1, 2]]
    assert fetch(ptx.TextureObject(array), [[1, 1]])[0, 0] == 0x40400000
    with pytest.raises(ptx.MemoryFault, match="uninitialised: texture read of 4 bytes at byte 44 of image"):
        fetch(ptx.TextureObject(array), [[3, 1]])


# Checks


def test_a_filter_needs_every_texel_that_it_weighs() -> None:
    written = np.ones((4, 8), bool)
    written[1, 2] = False
    texture = ptx.TextureObject(image(initialised=written), filter_mode="linear")
    fetch(texture, [[2.5, 0.5], [2.5, 2.5], [1.5, 1.5]])
    with pytest.raises(ptx.MemoryFault, match="byte 40 of image"):
        fetch(texture, [[1.6, 1.0]])


def test_surface_reads_need_written_texels() -> None:
    surface = ptx.SurfaceObject(image(initialised=False))
    with pytest.raises(ptx.MemoryFault, match="uninitialised: surface read of 4 bytes at byte 36 of image"):
        run("suld.b.2d.b32.trap {%r10}, [%d0, {%r1, %r2}];", surface, places([[4, 1]], 0, np.int32))


def test_undefined_coordinates_are_found() -> None:
    with pytest.raises(ptx.UndefinedError, match="an operand of tex"):
        run(FETCH.replace("%f1", "%f3"), ptx.TextureObject(image()), ORIGIN)


def test_undefined_values_are_not_stored() -> None:
    with pytest.raises(ptx.UndefinedError, match="an operand of sust"):
        run(STORE.replace("%r0", "%r14"), ptx.SurfaceObject(image()), ORIGIN)


def test_two_stores_to_one_texel_race() -> None:
    with pytest.raises(ptx.RaceError) as caught:
        run(STORE, ptx.SurfaceObject(image()), places([[4, 1]] * 40, 0, np.int32))
    assert caught.value.kind == "write-write"
    assert (caught.value.buffer, caught.value.offset) == ("image", 36)


def test_a_barrier_orders_two_stores() -> None:
    data = np.zeros((4, 8), np.uint32)
    first = "setp.eq.u32 %p0, %r0, 0; setp.eq.u32 %p1, %r0, 33;"
    stores = f"@%p0 {STORE} bar.sync 0; @%p1 {STORE}"
    run(first + stores, ptx.SurfaceObject(ptx.CudaArray(data)), places([[4, 1]] * 40, 0, np.int32))
    assert data[1, 1] == 33


TWO = f"""{HEADER}
.visible .entry k(.param .u64 written, .param .u64 read, .param .u64 out) {{
    .reg .b32 %r<9>;
    .reg .b64 %d<5>;
    .reg .pred %p;
    ld.param.u64 %d0, [written];
    ld.param.u64 %d1, [read];
    ld.param.u64 %d2, [out];
    mov.u32 %r0, %tid.x;
    shl.b32 %r1, %r0, 2;
    cvt.u64.u32 %d3, %r1;
    add.u64 %d2, %d2, %d3;
    add.u64 %d4, %d0, %d3;
    @WRITE
    bar.sync 0;
    @READ
    st.global.u32 [%d2], %r2;
    ret;
}}
"""
SURFACE_WRITE = "sust.b.1d.b32.trap [%d0, {%r1}], {%r0};"
SURFACE_READ = "suld.b.1d.b32.trap {%r2}, [%d1, {%r1}];"
TEXTURE_READ = "tex.1d.v4.u32.s32 {%r2, %r3, %r4, %r5}, [%d1, {%r0}];"
SHIFTED_READ = "xor.b32 %r6, %r0, 32; tex.1d.v4.u32.s32 {%r2, %r3, %r4, %r5}, [%d1, {%r6}];"


def two(write: str, read: str, args: list[Any]) -> np.ndarray[Any, Any]:
    out = np.zeros(64, np.uint32)
    text = TWO.replace("@WRITE", write).replace("@READ", read)
    ptx.launch(ptx.Module.parse(text), "k", (1, 1, 1), (64, 1, 1), [*args, out])
    return out


@pytest.mark.parametrize("read", [SURFACE_READ, TEXTURE_READ, SHIFTED_READ])
@pytest.mark.parametrize("write", [SURFACE_WRITE, "st.global.u32 [%d4], %r0;", "red.global.add.u32 [%d4], 1;",
                                   "sured.b.add.1d.u32.trap [%d0, {%r1}], 1;"])  # fmt: skip
def test_what_a_launch_wrote_is_not_read_through_the_texture_cache(write: str, read: str) -> None:
    """A barrier does not help; the thread's own write is no better."""
    data = np.zeros(64, np.uint32)
    array = ptx.CudaArray(data, "1d", name="image")
    target = data if "global" in write else ptx.SurfaceObject(array)
    source = ptx.SurfaceObject(array) if "suld" in read else ptx.TextureObject(array)
    if "global" in write and "suld" not in read:
        source = ptx.TextureObject(ptx.LinearMemory(data))
    with pytest.raises(ptx.RaceError, match="through the texture cache") as caught:
        two(write, read, [target, source])
    assert caught.value.kind == "texture"
    assert "textures-and-surfaces" in str(caught.value)
    assert not data.any()


def test_other_texels_may_be_written() -> None:
    data = np.arange(128, dtype=np.uint32)
    array = ptx.CudaArray(data, "1d")
    write = "add.u32 %r7, %r1, 256; sust.b.1d.b32.trap [%d0, {%r7}], {%r0};"
    assert two(write, TEXTURE_READ, [ptx.SurfaceObject(array), ptx.TextureObject(array)]).tolist() == list(range(64))
    assert data[64:].tolist() == list(range(64))


def test_a_read_texel_may_be_written_behind_a_barrier() -> None:
    data = np.arange(64, dtype=np.uint32)
    array = ptx.CudaArray(data, "1d")
    objects = [ptx.SurfaceObject(array), ptx.TextureObject(array)]
    two(SHIFTED_READ, SURFACE_WRITE.replace("%r0}", "%r2}"), objects)
    assert data.tolist() == [*range(32, 64), *range(32)]
    with pytest.raises(ptx.RaceError, match="writes after a read"):
        two(SHIFTED_READ + SURFACE_WRITE, "", objects)


def test_schedules_agree() -> None:
    data = np.arange(64, dtype=np.uint32)
    array = ptx.CudaArray(data, "1d")
    text = TWO.replace("@WRITE", SHIFTED_READ).replace("@READ", SURFACE_WRITE.replace("%r0}", "%r2}"))
    module, out = ptx.Module.parse(text), np.zeros(64, np.uint32)
    args = [ptx.SurfaceObject(array), ptx.TextureObject(array), out]
    result = ptx.launch(module, "k", (1, 1, 1), (64, 1, 1), args, schedules=4)
    assert result.schedules == 4
    assert data.tolist() == [*range(32, 64), *range(32)]


def test_a_launch_that_fails_leaves_the_array() -> None:
    data = np.zeros((64, 64), np.uint32)
    where = places([[0, 0], [4, 0], [256, 0]], 0, np.int32)
    where[:2, 2] = 1
    text = "setp.eq.u32 %p0, %r3, 1; @%p0 " + STORE + STORE
    with pytest.raises(ptx.MemoryFault, match="x 256, y 0"):
        run(text, ptx.SurfaceObject(ptx.CudaArray(data)), where)
    assert not data.any()
