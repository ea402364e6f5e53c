"""Tensor maps: the format, the driver's rules, edits inside a kernel, and maps that are stale."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from support.bulk.tensor_map_cases import BAD_IMAGES, BASE, IMAGES
from support.ptx_bulk import Tensor, dump, expect, load, loaded, run, wait

from refmoe import ptx
from refmoe.errors import ArgumentError
from refmoe.ptx.state.tensormap import decode_tensor_map, replace_field

GOOD: dict[str, Any] = {
    "address": BASE, "data_type": "u8", "dims": (256, 8), "strides": (256,), "box": (128, 4), "swizzle": "128B",
}  # fmt: skip


def test_the_format() -> None:
    content = ptx.encode_tensor_map(
        BASE + 64, "bf16", (100, 7, 3), (208, 1600), (64, 5, 2), (1, 2, 3), swizzle="128B", l2_promotion="256B",
        fill="nan",
    )  # fmt: skip
    assert content[:8] == b"refmoeTM"
    assert len(content) == 128
    assert struct.unpack_from("<Q", content, 8) == (BASE + 64,)
    assert struct.unpack_from("<4Q", content, 16) == (208, 1600, 0, 0)
    assert struct.unpack_from("<5I", content, 48) == (100, 7, 3, 1, 1)
    assert struct.unpack_from("<5I", content, 68) == (64, 5, 2, 1, 1)
    assert struct.unpack_from("<5I", content, 88) == (1, 2, 3, 1, 1)
    # BFLOAT16, rank 3, no interleave, swizzle 128B, promotion 256B, NaN.
    assert list(content[108:]) == [9, 3, 0, 3, 3, 1, *[0] * 14]
    assert decode_tensor_map(content).encode() == content


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"address": BASE + 8}, "address"),
        ({"address": 0}, "address"),
        ({"data_type": "u4"}, "data_type"),
        ({"dims": ()}, "dims"),
        ({"dims": (1,) * 6}, "dims"),
        ({"dims": (256, 0)}, "dims[1]"),
        ({"dims": (256, 1 << 32)}, "dims[1]"),
        ({"strides": (264,)}, "strides[0]"),
        ({"strides": (1 << 40,)}, "strides[0]"),
        ({"strides": (256, 256)}, "strides"),
        ({"box": (128,)}, "box"),
        ({"box": (128, 257)}, "box[1]"),
        ({"box": (128, 0)}, "box[1]"),
        ({"box": (24, 4)}, "box[0]"),
        ({"box": (256, 4)}, "box[0]"),
        ({"box": (64, 4), "swizzle": "32B"}, "box[0]"),
        ({"element_strides": (1, 9)}, "element_strides[1]"),
        ({"element_strides": (1, 0)}, "element_strides[1]"),
        ({"element_strides": (1,)}, "element_strides"),
        ({"swizzle": "96B"}, "swizzle"),
        ({"interleave": "16B"}, "interleave"),
        ({"fill": "nan"}, "fill"),
        ({"l2_promotion": "512B"}, "l2_promotion"),
        # 16 FP4 codes to 16 bytes: everything is wider.
        ({"data_type": "u4_align16", "address": BASE + 16}, "address"),
        ({"data_type": "u4_align16", "strides": (144,)}, "strides[0]"),
        ({"data_type": "u4_align16", "dims": (192, 8)}, "dims[0]"),
        ({"data_type": "u4_align16", "box": (64, 4)}, "box[0]"),
        ({"data_type": "u4_align16", "swizzle": "64B"}, "box[0]"),
        ({"data_type": "u4_align16", "swizzle": "128B_atom_64B"}, "swizzle"),
        ({"data_type": "u4_align8", "dims": (255, 8)}, "dims[0]"),
    ],
)
def test_what_the_driver_refuses(change: dict[str, Any], argument: str) -> None:
    ptx.encode_tensor_map(**GOOD)
    with pytest.raises(ArgumentError) as caught:
        ptx.encode_tensor_map(**{**GOOD, **change})
    assert caught.value.argument == argument


def test_the_format_of_im2col() -> None:
    content = ptx.encode_tensor_map_im2col(**IMAGES, element_strides=(1, 2, 3, 1))
    assert struct.unpack_from("<5I", content, 48) == (64, 9, 7, 2, 1)
    assert struct.unpack_from("<5I", content, 68) == (64, 1024, 1, 1, 1)
    assert struct.unpack_from("<5I", content, 88) == (1, 2, 3, 1, 1)
    # U8, rank 4, no interleave, swizzle 64B, no promotion, zeros, im2col.
    assert list(content[108:116]) == [0, 4, 0, 2, 0, 0, 1, 0]
    assert struct.unpack_from("<3h3h", content, 116) == (-1, -2, 0, 1, 2, 0)
    assert decode_tensor_map(content).encode() == content


@pytest.mark.parametrize(("change", "argument", "needed"), BAD_IMAGES)
def test_what_the_driver_refuses_of_im2col(change: dict[str, Any], argument: str, needed: str) -> None:
    ptx.encode_tensor_map_im2col(**IMAGES)
    with pytest.raises(ArgumentError) as caught:
        ptx.encode_tensor_map_im2col(**{**IMAGES, **change})
    assert caught.value.argument == argument
    assert needed in str(caught.value)


@pytest.mark.parametrize(("rank", "limit"), [(3, 1 << 15), (4, 1 << 7), (5, 1 << 4)])
def test_corners_are_narrower_the_more_of_them_there_are(rank: int, limit: int) -> None:
    images = {
        "address": BASE, "data_type": "u8", "dims": (16,) * rank, "strides": [16**i for i in range(1, rank)],
        "channels_per_pixel": 16, "pixels_per_column": 1,
    }  # fmt: skip
    lowest, highest = (-limit,) * (rank - 2), (limit - 1,) * (rank - 2)
    found = decode_tensor_map(ptx.encode_tensor_map_im2col(lower_corner=lowest, upper_corner=highest, **images))
    assert found.lower[: rank - 2] == lowest
    assert found.upper[: rank - 2] == highest
    for lower, upper in (((-limit - 1, *lowest[1:]), highest), (lowest, (*highest[1:], limit))):
        with pytest.raises(ArgumentError, match=f"-{limit} to {limit - 1} for {rank} dimensions"):
            ptx.encode_tensor_map_im2col(lower_corner=lower, upper_corner=upper, **images)


def test_only_tiled_maps_are_edited() -> None:
    with pytest.raises(ValueError, match=r"tensormap.replace.tile of a tensor map of mode im2col"):
        replace_field(decode_tensor_map(ptx.encode_tensor_map_im2col(**IMAGES)), "rank", 0, 3)


def test_bytes_that_are_no_tensor_map() -> None:
    good = ptx.encode_tensor_map(**GOOD)
    with pytest.raises(ValueError, match=r"bytes 00 00 00 00 00 00 00 00 ... are no tensor map"):
        decode_tensor_map(bytes(128))
    wrong = ((108, 16, "data type 16"), (109, 6, "rank 6"), (109, 0, "rank 0"), (111, 7, "swizzle 7"),
        (114, 2, "mode 2"), (115, 1, "a tail"), (120, 1, "a tail"), (127, 1, "a tail"))  # fmt: skip
    for at, value, message in wrong:
        with pytest.raises(ValueError, match=message):
            decode_tensor_map(good[:at] + bytes([value]) + good[at + 1 :])


@pytest.mark.parametrize(
    ("field", "ordinal", "value", "name", "found"),
    [
        ("global_address", 0, BASE + 4096, "address", BASE + 4096),
        ("rank", 0, 4, "rank", 5),
        ("box_dim", 4, 7, "box", (128, 4, 1, 1, 7)),
        ("global_dim", 1, 99, "dims", (256, 99, 1, 1, 1)),
        ("global_stride", 3, 1 << 36, "strides", (256, 0, 0, 1 << 36)),
        ("element_stride", 2, 3, "steps", (1, 1, 3, 1, 1)),
        ("elemtype", 0, 8, "data_type", "f32_ftz"),
        ("elemtype", 0, 10, "data_type", "bf16"),
        ("elemtype", 0, 14, "data_type", "u4_align16"),
        ("interleave_layout", 0, 2, "interleave", 2),
        ("swizzle_mode", 0, 1, "swizzle", 1),
        ("fill_mode", 0, 1, "fill", 1),
    ],
)
def test_fields_are_replaced(field: str, ordinal: int, value: int, name: str, found: Any) -> None:
    before = decode_tensor_map(ptx.encode_tensor_map(**GOOD))
    after = replace_field(before, field, ordinal, value)
    assert getattr(after, name) == found
    others = {key: value for key, value in vars(before).items() if key != name}
    assert others == {key: value for key, value in vars(after).items() if key != name}


@pytest.mark.parametrize(
    ("field", "ordinal", "value"),
    [("rank", 0, 5), ("global_stride", 4, 16), ("box_dim", 5, 1), ("elemtype", 0, 16), ("swizzle_mode", 0, 4)],
)
def test_fields_that_do_not_exist(field: str, ordinal: int, value: int) -> None:
    with pytest.raises(ValueError, match=r"ordinal|a new"):
        replace_field(decode_tensor_map(ptx.encode_tensor_map(**GOOD)), field, ordinal, value)


# Inside a kernel: `other` is a place for a map in global memory, the tile's second half one in shared memory.

TENSOR = Tensor("u8", 8, (64, 16), (64,), (64, 4), (1, 1))
TO_SHARED = "add.u32 %r9, %r8, 8192;" + "".join(
    f"@%p0 ld.param.v2.b64 {{%d20, %d21}}, [map+{i}]; @%p0 st.shared.v2.b64 [%r9+{i}], {{%d20, %d21}};"
    for i in range(0, 128, 16)
)
EDIT = """
    add.u64 %d5, %d6, 128;
    @%p0 tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r9], %d5;
    @%p0 tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r9], 1, 6;
    @%p0 tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%r9], 0, 80;
"""
COPY = "@%p1 tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d3], [%r9], 128;"
ACQUIRE = "@%p1 fence.proxy.tensormap::generic.acquire.gpu [%d3], 128;"
USE = "mov.u64 %d1, %d3;" + expect(256) + load(2) + wait() + dump(256)
MEET = "@%p1 bar.warp.sync -1;"
WIDE = ("global_address", "global_stride")


def edited(body: str, threads: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """(out, content) of a kernel that edits a map."""
    content = np.random.default_rng(0).integers(0, 256, 2048, dtype=np.uint8)
    memory = ptx.DeviceMemory()
    address = memory.place(ptx.Buffer(content, "tensor", writable=False))
    maps = memory.place(ptx.Buffer(np.zeros(256, np.uint8), "maps"))
    out = np.zeros(4096, np.uint8)
    start = "ld.param.u64 %d6, [map+8];"
    run(start + body, out, TENSOR.encode(address), (0, 4), other=maps, memory=memory, threads=threads)
    return out[:256], content


def test_an_edited_map() -> None:
    out, content = edited(TO_SHARED + EDIT + MEET + COPY + ACQUIRE + USE)
    after = Tensor("u8", 8, (64, 6), (80,), (64, 4), (1, 1))
    expected = loaded(after, content.tobytes()[128:], (0, 4))
    np.testing.assert_array_equal(out, [expected[1024 + i] for i in range(256)])


FIELDS = (
    ("global_address", "%d5"), ("rank", "1"), ("box_dim", "0, 64"), ("box_dim", "1, 4"), ("global_dim", "0, 64"),
    ("global_dim", "1, 6"), ("global_stride", "0, 80"), ("element_stride", "0, 1"), ("element_stride", "1, 1"),
    ("elemtype", "0"), ("interleave_layout", "0"), ("swizzle_mode", "0"), ("fill_mode", "0"),
)  # fmt: skip
FROM_NOTHING = """
    add.u32 %r9, %r8, 8192; shl.b32 %r10, %r1, 2; add.u32 %r10, %r10, %r9; @%p1 st.shared.b32 [%r10], 0;
    @%p1 bar.warp.sync -1; add.u64 %d5, %d6, 128; cvt.u64.u32 %d7, %r9;
""" + "".join(
    f"@%p0 tensormap.replace.tile.{field}.shared::cta.b1024.b{64 if field in WIDE else 32} [%d7], {value};"
    for field, value in FIELDS
)


def test_a_map_that_is_made_of_nothing() -> None:
    # Triton's kernels set all fields of 128 zeros.
    out, content = edited(FROM_NOTHING + MEET + COPY + ACQUIRE + USE)
    after = Tensor("u8", 8, (64, 6), (80,), (64, 4), (1, 1))
    expected = loaded(after, content.tobytes()[128:], (0, 4))
    np.testing.assert_array_equal(out, [expected[1024 + i] for i in range(256)])


def test_a_map_of_which_a_field_is_missing() -> None:
    with pytest.raises(ptx.MisuseError, match="a box of"):
        edited(FROM_NOTHING.replace("tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%d7], 1, 4;", "bra N; N:")
               + MEET + COPY + ACQUIRE + USE)  # fmt: skip
    with pytest.raises(ptx.MisuseError, match="are no tensor map"):
        edited(FROM_NOTHING.replace("st.shared.b32 [%r10], 0", "st.shared.b32 [%r10], 1") + MEET + COPY)


def test_an_edited_map_of_another_warp() -> None:
    # Warp 0 edits, warp 1 uses: it acquires after the barrier.
    other = USE.replace("@%p0", "@%p3")
    body = "setp.eq.u32 %p3, %r1, 32;" + TO_SHARED + EDIT + MEET + COPY + "bar.sync 0;"
    edited(body + "fence.proxy.tensormap::generic.acquire.gpu [%d3], 128;" + other)
    with pytest.raises(ptx.MisuseError, match=r"a stale tensor map.*its own warp has not acquired it since"):
        edited(body + ACQUIRE + other)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        # No acquire, one of another map, and one from before.
        (TO_SHARED + EDIT + MEET + COPY + USE, "has not acquired it since"),
        (TO_SHARED + EDIT + MEET + COPY + ACQUIRE.replace("[%d3]", "[%d3+128]") + USE, "has not acquired it since"),
        (TO_SHARED + EDIT + MEET + ACQUIRE + COPY + USE, "has not acquired it since"),
        # A second edit.
        (TO_SHARED + EDIT + MEET + COPY + ACQUIRE + EDIT + MEET + COPY + USE, "has not acquired it since"),
        (
            TO_SHARED + EDIT + MEET + COPY
            + "@%p0 tensormap.replace.tile.global_dim.global.b1024.b32 [%d3], 1, 9;" + ACQUIRE + USE,
            "nobody has released it",
        ),
    ],
)  # fmt: skip
def test_stale_maps(body: str, message: str) -> None:
    with pytest.raises(ptx.MisuseError, match=f"a stale tensor map: that at byte 0 of maps .*{message}"):
        edited(body)


def test_a_map_that_was_fresh_is_stale_again() -> None:
    # The same bytes a second time: thread 0 goes by them again, as it did before.
    first = "mov.u64 %d1, %d3;" + expect(256) + load(2) + wait()
    again = expect(256) + load(2) + wait(1, 1)
    body = TO_SHARED + EDIT + MEET + COPY + ACQUIRE + first + MEET
    edited(body + again)
    edited(body + COPY + ACQUIRE + again)
    with pytest.raises(ptx.MisuseError, match=r"a stale tensor map.*its own warp has not acquired it since"):
        edited(body + COPY + again)


def test_a_map_is_looked_at_anew_by_another_address_or_after_an_edit() -> None:
    other = Tensor("u8", 8, (64, 6), (80,), (64, 4), (1, 1))
    use = expect(256) + load(2)
    # The first copy's bytes are overwritten by those of a second one, which goes by an edited map.
    start = TO_SHARED + MEET + COPY + ACQUIRE + "mov.u64 %d1, %d3;" + use + wait() + MEET
    out, content = edited(start + EDIT + MEET + COPY + ACQUIRE + use + wait(1, 1) + dump(256))
    expected = loaded(other, content.tobytes()[128:], (0, 4))
    np.testing.assert_array_equal(out, [expected[1024 + i] for i in range(256)])


def test_an_edit_in_global_memory() -> None:
    edit = "@%p0 tensormap.replace.tile.global_dim.global.b1024.b32 [%d3], 1, 6;"
    release = "@%p0 fence.proxy.tensormap::generic.release.gpu;"
    out, content = edited(TO_SHARED + MEET + COPY + edit + release + ACQUIRE + USE)
    expected = loaded(Tensor("u8", 8, (64, 6), (64,), (64, 4), (1, 1)), content.tobytes(), (0, 4))
    np.testing.assert_array_equal(out, [expected[1024 + i] for i in range(256)])


def test_the_warp_meets_before_it_copies_the_map() -> None:
    # Thread 33 edits; without a barrier its edit may come after the copy.
    edit = "setp.eq.u32 %p3, %r1, 5;" + EDIT.replace("@%p0", "@%p3")
    with pytest.raises(ptx.RaceError):
        edited(TO_SHARED + MEET + edit + COPY + ACQUIRE + USE)
    edited(TO_SHARED + MEET + edit + MEET + COPY + ACQUIRE + USE)


def test_maps_that_are_none() -> None:
    # Nothing was put into the place for a map.
    with pytest.raises(ptx.MisuseError, match=r"at 0x30000000000: bytes 00 .* are no tensor map"):
        edited("mov.u64 %d1, %d3;" + expect(256) + load(2) + wait())
    fill = "".join(f"@%p0 st.shared.v2.b64 [%r9+{i}], {{%d3, %d3}};" for i in range(0, 128, 16))
    with pytest.raises(ptx.MisuseError, match="are no tensor map"):
        edited("add.u32 %r9, %r8, 8192;" + fill + EDIT)
    with pytest.raises(ptx.MisuseError, match="a tensor map in shared memory"):
        edited(TO_SHARED + "cvt.u64.u32 %d1, %r9; cvta.shared.u64 %d1, %d1;" + expect(256) + load(2) + wait())
    with pytest.raises(ptx.MisuseError, match="a tensor map of rank 2 and 3 coordinates"):
        edited(expect(256) + load(3) + wait())
    with pytest.raises(ptx.MemoryFault, match="misaligned"):
        edited("add.u64 %d1, %d3, 32;" + expect(256) + load(2) + wait())


def test_an_acquire_reads_nothing() -> None:
    # CUTLASS's warps that store nothing acquire a null pointer.
    edited("mov.u64 %d9, 0; fence.proxy.tensormap::generic.acquire.gpu [%d9], 128;" + expect(256) + load(2) + wait())


@pytest.mark.parametrize(
    "line",
    [
        "prefetch.tensormap [%d1];",
        "prefetch.param.tensormap [map];",
        "fence.proxy.tensormap::generic.release.cta;",
        "fence.proxy.tensormap::generic.acquire.sys [%d1], 128;",
        "cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%d1, {%r2, %r3}];",
    ],
)
def test_lines_that_change_nothing(line: str) -> None:
    edited(line)


@pytest.mark.parametrize(
    "line",
    [
        "tensormap.replace.tile.global_address.shared::cta.b1024.b32 [%r9], %r1;",
        "tensormap.replace.tile.swizzle_atomicity.shared::cta.b1024.b32 [%r9], 1;",
        "tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r9], %r1, %r1;",
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d3], [%r9], 64;",
        "fence.proxy.tensormap::generic.acquire.gpu [%d3], 64;",
        "fence.proxy.nothing;",
        "cp.async.bulk.tensor.2d.shared::cta.global.im2col.mbarrier::complete_tx::bytes [%r8], [%d1, {%r2}], [%r7];",
        "cp.async.bulk.tensor.3d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r8], [%d1, {%r2, %r3}], [%r7];",
    ],
)
def test_other_spellings_are_unknown(line: str) -> None:
    with pytest.raises(ptx.UnknownOpcode):
        edited(line)


# DeviceMemory


def test_memory_has_addresses_before_the_launch() -> None:
    memory = ptx.DeviceMemory()
    first, second = np.zeros(16, np.uint8), np.zeros(16, np.uint8)
    one = memory.place(ptx.Buffer(first, "first"))
    two = memory.place(ptx.Buffer(second, "second", writable=False))
    assert one != two
    assert one % 256 == 0
    assert memory.place(ptx.Buffer(first, "again")) == one
    # An argument that lies in the memory is the same buffer.
    run("@%p0 st.global.u32 [%d0], 5; @%p0 ld.global.u32 %r20, [%d3]; @%p0 st.global.u32 [%d0+4], %r20;",
        ptx.Buffer(first, "out"), other=one, memory=memory)  # fmt: skip
    assert first.view(np.uint32).tolist() == [5, 5, 0, 0]
    with pytest.raises(ptx.MemoryFault, match=r"read only: global write .* of second"):
        run("@%p0 st.global.u32 [%d3], 5;", np.zeros(4, np.uint8), other=two, memory=memory)


def test_memory_refuses_what_no_buffer_may_be() -> None:
    memory = ptx.DeviceMemory()
    array = np.zeros((8, 8), np.uint8)
    memory.place(ptx.Buffer(array, "whole"))
    for buffer, message in (
        (ptx.Buffer(array[1:], "part"), "overlaps that of whole"),
        (ptx.Buffer(np.zeros((8, 8), np.uint8)[:, :4], "column"), "not C-contiguous"),
        (ptx.Buffer(np.frombuffer(bytes(16), np.uint8), "frozen"), "read-only"),
        (ptx.Buffer(np.zeros(4, np.uint8), "mask", initialised=np.ones(3, bool)), "initialised is"),
    ):
        with pytest.raises(ArgumentError, match=message):
            memory.place(buffer)
    with pytest.raises(ptx.ArgumentMismatch, match="overlaps that of whole"):
        run("", ptx.Buffer(array.reshape(-1)[8:], "argument"), memory=memory)


def test_memory_stays_as_it_was_after_a_fault() -> None:
    memory, array = ptx.DeviceMemory(), np.zeros(16, np.uint8)
    address = memory.place(ptx.Buffer(array, "array"))
    with pytest.raises(ptx.Trap):
        run("@%p0 st.global.u32 [%d3], 5; trap;", np.zeros(4, np.uint8), other=address, memory=memory)
    assert not array.any()
