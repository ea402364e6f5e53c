"""Bulk tensor copies in im2col mode against the positions of a convolution's filter, element by element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.bulk.im2col import (
    DONE,
    OFFSETS,
    WAITED,
    Images,
    any_images,
    brought,
    load,
    packed,
    pixels,
    store,
    tile,
    written,
)
from support.ptx_bulk import COMMIT, FENCE, dump, expect, fill, memory_of, run, wait
from support.selection.thinned import thinned

from refmoe import ptx

# As in the manual's first example: 9 x 14 pixels, one of which around each image is out of reach of a 3 x 3 filter.
PLAIN = Images("bf16", 16, (64, 9, 14, 64), (128, 1152, 16128), (-1, -1), (-1, -1), 8, 64, (1, 1))


def load_column(
    images: Images, start: Sequence[int], offsets: Sequence[int] = (), spelling: str = "shared::cluster.global.im2col"
) -> np.ndarray:
    """Run a load and compare every byte of the tile."""
    source = memory_of(images.size)
    memory = ptx.DeviceMemory()
    address = memory.place(ptx.Buffer(source, "source", writable=False))
    out = np.zeros(images.bytes, np.uint8)
    body = OFFSETS + expect(images.bytes) + load(images.rank, spelling) + wait() + dump(images.bytes)
    run(
        body, ptx.Buffer(out, "out", initialised=False), images.encode(address), start, other=packed(offsets),
        memory=memory,
    )  # fmt: skip
    expected = tile(images, brought(images, source.tobytes(), start, offsets))
    np.testing.assert_array_equal(out, np.frombuffer(expected, np.uint8))
    return out


def store_column(images: Images, start: Sequence[int]) -> None:
    """Run a store and compare every byte of the tensor."""
    before, content = memory_of(images.size, 1), memory_of(images.bytes, 2)
    target = before.copy()
    memory = ptx.DeviceMemory()
    address = memory.place(ptx.Buffer(target, "target"))
    laid = np.frombuffer(tile(images, content.tobytes()), np.uint8).copy()
    body = fill(content.size) + FENCE + "bar.sync 0;" + store(images.rank) + COMMIT + WAITED
    run(body, ptx.Buffer(laid, "tile", writable=False), images.encode(address), start, memory=memory)
    assert target.tobytes() == written(images, before.tobytes(), content.tobytes(), start)


@pytest.mark.parametrize("rank", thinned([3, 4, 5], 3))
def test_any_load(rank: int) -> None:
    rng = np.random.default_rng(rank)
    for _ in range(60):
        images, start = any_images(rng, rank)
        offsets = [int(rng.integers(0, 5)) for _ in range(rank - 2)]
        load_column(images, start, offsets)


@pytest.mark.parametrize("rank", thinned([4, 3, 5], 3))
def test_any_store(rank: int) -> None:
    rng = np.random.default_rng(10 + rank)
    for _ in range(30):
        images, start = any_images(rng, rank, storing=True)
        store_column(images, start)


def test_the_walk_of_the_manuals_first_example() -> None:
    # Box: -1 to 7 along W, -1 to 12 along H.
    found = pixels(PLAIN, (0, 4, 7, 7), (0, 0))
    assert found[:6] == [(4, 7, 7), (5, 7, 7), (6, 7, 7), (7, 7, 7), (-1, 8, 7), (0, 8, 7)]
    # Behind the last position of image 7 comes the first one of image 8.
    assert found[4 + 5 * 9 - 1 : 4 + 5 * 9 + 2] == [(7, 12, 7), (-1, -1, 8), (0, -1, 8)]
    load_column(PLAIN, (0, 4, 7, 7))
    # The manual's second example: the same pixels, as the last element of the filter sees them from its first one.
    load_column(replace(PLAIN, lower=(0, 0), upper=(-2, -2)), (8, 4, 7, 7), (2, 2))


def test_the_walk_of_the_manuals_example_with_strides() -> None:
    images = Images("u8", 8, (64, 8, 14, 64), (64, 512, 7168), (-1, -1), (-1, -1), 16, 32, (2, 2))
    found = pixels(images, (0, 5, 7, 7), (1, 1))
    assert found[:6] == [(6, 8, 7), (0, 10, 7), (2, 10, 7), (4, 10, 7), (6, 10, 7), (0, 12, 7)]
    load_column(images, (0, 5, 7, 7), (1, 1))


def test_the_longest_column() -> None:
    images = Images("u8", 8, (16, 30, 3), (16, 480), (-4,), (4,), 16, 1024, (1,))
    load_column(images, (0, -4, 0), (3,))


def test_the_first_element_stride_is_ignored() -> None:
    source = memory_of(PLAIN.size)
    memory = ptx.DeviceMemory()
    address = memory.place(ptx.Buffer(source, "source", writable=False))
    content = ptx.encode_tensor_map_im2col(
        address, "bf16", PLAIN.dims, PLAIN.strides, PLAIN.lower, PLAIN.upper, 8, 64, (3, 1, 1, 1)
    )
    out = np.zeros(1024, np.uint8)
    run(OFFSETS + expect(1024) + load(4) + wait() + dump(1024), out, content, (0, 4, 7, 7), memory=memory)
    assert out.tobytes() == brought(PLAIN, source.tobytes(), (0, 4, 7, 7))


def test_a_walk_between_the_steps_is_only_refused_where_it_comes_to_the_corner() -> None:
    images = Images("u8", 8, (16, 9, 4), (16, 144), (-1,), (1,), 16, 3, (2,))
    source = memory_of(images.size)
    memory = ptx.DeviceMemory()
    address = memory.place(ptx.Buffer(source, "source", writable=False))
    out, body = np.zeros(48, np.uint8), OFFSETS + expect(48) + load(3) + wait() + dump(48)
    run(body, out, images.encode(address), (0, 4, 1), memory=memory)
    assert (out.reshape(3, 16) == source.reshape(-1, 16)[[13, 15, 17]]).all()
    message = r"coordinate 6 along W, not a multiple of the element stride 2 from the lower corner -1"
    with pytest.raises(ptx.MisuseError, match=message):
        run(body, out, images.encode(address), (0, 6, 1), memory=memory)


@pytest.mark.parametrize("swizzle", ["none", "128B"])
@pytest.mark.parametrize("start", [(0, -1, 0), (128, 2, 1), (-128, 0, 0)])
def test_fp4_takes_sixteen_bytes_for_eight(swizzle: str, start: tuple[int, ...]) -> None:
    # 128 codes are 64 bytes, of which each 8 get 8 bytes of padding behind them.
    codes = Images("u4_align16", 4, (256, 5, 2), (128, 640), (-1,), (0,), 128, 10, (1,), swizzle)
    source = memory_of(1280)
    as_bytes = replace(codes, data_type="u8", bits=8, dims=(128, 5, 2), channels=64, swizzle="none")
    data = brought(as_bytes, source.tobytes(), (start[0] // 2, *start[1:]), (1,))
    spread = b"".join(data[i : i + 8] + bytes([0xCD]) * 8 for i in range(0, len(data), 8))
    memory = ptx.DeviceMemory()
    address = memory.place(ptx.Buffer(source, "source", writable=False))
    out = np.zeros(1280, np.uint8)
    body = OFFSETS + expect(640) + load(3) + wait() + dump(1280)
    checks = ptx.Checks(uninitialised=False)
    run(body, out, codes.encode(address), start, other=1, memory=memory, checks=checks)
    assert out.tobytes() == tile(codes, spread)


@pytest.mark.parametrize("spelling", ["shared::cta.global.im2col", "shared::cluster.global.im2col"])
def test_spellings(spelling: str) -> None:
    load_column(PLAIN, (0, 4, 7, 7), (1, 2), spelling)


def test_a_convolution() -> None:
    # 3 x 3 filters that take every other position, with a dilation of 2 along W: all columns make an im2col matrix.
    rng = np.random.default_rng(5)
    channels, padding, dilation, strides = 8, (2, 1), (2, 1), (2, 2)
    x = rng.integers(-4, 5, (2, 6, 7, channels)).astype(np.float32)
    filters = rng.integers(-3, 4, (3, 3, channels, 5)).astype(np.float32)
    upper = tuple(p - 2 * d for p, d in zip(padding, dilation, strict=True))
    lower = tuple(-p for p in padding)
    out_w, out_h = ((size + 2 * p - 2 * d - 1) // 2 + 1 for size, p, d in zip((7, 6), padding, dilation, strict=True))
    images = Images("f32", 32, (channels, 7, 6, 2), (32, 224, 1344), lower, upper, channels, 2 * out_w * out_h, strides)
    memory = ptx.DeviceMemory()
    address = memory.place(ptx.Buffer(x, "x", writable=False))
    total = np.zeros((2 * out_h * out_w, 5), np.float32)
    body = OFFSETS + expect(images.bytes) + load(4) + wait() + dump(images.bytes)
    for s in range(3):
        for r in range(3):
            column = np.zeros((images.pixels, channels), np.float32)
            run(body, column, images.encode(address), (0, *lower, 0), packed((s * 2, r)), memory=memory)
            total += column @ filters[r, s]
    padded = np.pad(x, ((0, 0), (1, 1), (2, 2), (0, 0)))
    for n, p, q in np.ndindex(2, out_h, out_w):
        window = padded[n, 2 * p : 2 * p + 3, 2 * q : 2 * q + 5 : 2]
        assert (np.einsum("rsc,rsck->k", window, filters) == total[(n * out_h + p) * out_w + q]).all()


# Of order, proxies and transactions


def test_bytes_outside_count_in_the_transaction() -> None:
    # Nothing lies in the tensor, and all is owed: with a byte more the phase never ends.
    images = replace(PLAIN, pixels=4)
    load_column(images, (0, 0, 0, 64))
    address, body = 1 << 45, OFFSETS + load(4) + wait() + dump(64)
    with pytest.raises(ptx.Deadlock):
        run(expect(80) + body, np.zeros(64, np.uint8), images.encode(address), (0, 0, 0, 64))


def test_a_column_that_nobody_waited_for() -> None:
    memory = ptx.DeviceMemory()
    address = memory.place(ptx.Buffer(memory_of(PLAIN.size), "source"))
    with pytest.raises((ptx.RaceError, ptx.MemoryFault), match=r"bulk copy|uninitialised"):
        run(OFFSETS + expect(1024) + load(4) + dump(1024) + wait(), np.zeros(1024, np.uint8), PLAIN.encode(address),
            (0, 0, 0, 0), memory=memory)  # fmt: skip


INNER = Images("u8", 8, (64, 8, 4), (64, 512), (1,), (-1,), 64, 10, (1,))


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (fill(640) + "bar.sync 0;" + store(3) + COMMIT + WAITED, ptx.RaceError, "proxy race"),
        (fill(640) + FENCE + "bar.sync 0;" + store(3) + COMMIT, ptx.MisuseError, "exits without having waited"),
        (store(3) + COMMIT + WAITED, ptx.MemoryFault, "uninitialised"),
        (
            fill(640) + FENCE + "bar.sync 0;" + store(3) + COMMIT + "@%p0 ld.global.u8 %r20, [%d3+64];" + WAITED,
            ptx.RaceError,
            "race",
        ),
    ],
    ids=["fence", "exit", "empty", "read too early"],
)  # fmt: skip
def test_what_a_store_needs(body: str, error: Any, message: str) -> None:
    memory = ptx.DeviceMemory()
    address = memory.place(ptx.Buffer(memory_of(INNER.size), "target"))
    with pytest.raises(error, match=message):
        run(body, memory_of(640), INNER.encode(address), (0, 1, 0), other=address, memory=memory)


def test_only_the_column_must_lie_in_the_buffer() -> None:
    # Six pixels of the first image and four of the second one.
    memory = ptx.DeviceMemory()
    whole, short = ptx.Buffer(memory_of(512 + 5 * 64), "whole"), ptx.Buffer(memory_of(512 + 5 * 64 - 16), "short")
    body = OFFSETS + expect(640) + load(3) + wait()
    run(body, np.zeros(16, np.uint8), INNER.encode(memory.place(whole)), (0, 1, 0), memory=memory)
    with pytest.raises(ptx.MemoryFault, match=r"out of bounds: global read .* at byte 816 of short \(816 bytes\)"):
        run(body, np.zeros(16, np.uint8), INNER.encode(memory.place(short)), (0, 1, 0), memory=memory)


def test_a_column_into_several_blocks() -> None:
    memory, out = ptx.DeviceMemory(), np.zeros((2, 1024), np.uint8)
    source = memory_of(PLAIN.size)
    address = memory.place(ptx.Buffer(source, "source", writable=False))
    sync = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    body = f"""{OFFSETS} mov.u32 %r9, %cluster_ctarank; setp.eq.and.u32 %p3, %r9, 0, %p0;
        mul.wide.u32 %d5, %r9, 1024; add.s64 %d0, %d0, %d5; mov.b16 %h3, 3; {expect(1024)} {sync}
        {load(4, multicast=".multicast::cluster", mask=", %h3").replace("%p0", "%p3")} {wait()} {dump(1024)} {sync}"""
    run(body, out, PLAIN.encode(address), (8, 4, 7, 7), other=packed((2, 1)), memory=memory, grid=2, cluster=2)
    expected = brought(PLAIN, source.tobytes(), (8, 4, 7, 7), (2, 1))
    assert [each.tobytes() for each in out] == [expected, expected]


@pytest.mark.parametrize(("operation", "function"), [("add", np.add), ("max", np.maximum), ("xor", np.bitwise_xor)])
def test_reductions(operation: str, function: Any) -> None:
    images = Images("u32", 32, (16, 5, 6, 3), (64, 320, 1920), (1, 0), (-1, -2), 16, 20, (1, 1))
    before, content = memory_of(images.size, 1), memory_of(images.bytes, 2)
    target, memory = before.copy(), ptx.DeviceMemory()
    address = memory.place(ptx.Buffer(target, "target"))
    reduce = store(4, "cp.reduce.async.bulk", f".{operation}")
    body = fill(images.bytes) + FENCE + "bar.sync 0;" + reduce + COMMIT + WAITED
    run(body, content, images.encode(address), (0, 2, 2, 1), memory=memory)
    hit = np.frombuffer(written(images, bytes(images.size), b"\xff" * images.bytes, (0, 2, 2, 1)), np.uint32) != 0
    there = np.frombuffer(written(images, before.tobytes(), content.tobytes(), (0, 2, 2, 1)), np.uint32)
    old = before.view(np.uint32)
    # Three of the 20 pixels lie behind the last image.
    assert hit.sum() == 17 * 16
    np.testing.assert_array_equal(target.view(np.uint32), np.where(hit, function(old, there), old))


# What is refused


@pytest.mark.parametrize(
    ("change", "start", "offsets", "message"),
    [
        ({}, (0, 8, 0, 0), (), "coordinate 8 along W, outside the bounding box from -1 to 7"),
        ({}, (0, -2, 0, 0), (), "coordinate -2 along W, outside"),
        ({}, (0, 0, 13, 0), (), "coordinate 13 along H, outside the bounding box from -1 to 12"),
        ({}, (4, 0, 0, 0), (), "coordinate 4 of dimension 0, .* a multiple of 8"),
        ({}, (0, 0, 0, 0), (256, 0), "an im2col offset of 256 along W; 0 to 255 are allowed for rank 4"),
        ({}, (0, 0, 0, 0), (0, 300), "an im2col offset of 300 along H"),
        ({"channels": 4}, (0, 0, 0, 0), (), "4 channels of 16 bits per pixel, no multiple of 16 bytes"),
        ({"swizzle": "32B"}, (0, 0, 0, 0), (), "narrower than, which is not modelled, its swizzle span of 32"),
        ({"swizzle": "128B_atom_32B"}, (0, 0, 0, 0), (), "swizzle 4, which is not modelled"),
        ({"data_type": "tf32", "bits": 32}, (0, 0, 0, 0), (), "tf32"),
    ],
)
def test_loads_that_are_refused(change: dict[str, Any], start: Any, offsets: Any, message: str) -> None:
    memory = ptx.DeviceMemory()
    address = memory.place(ptx.Buffer(memory_of(PLAIN.size), "source"))
    content = replace(PLAIN, **change).encode(address)
    with pytest.raises(ptx.MisuseError, match=message):
        run(OFFSETS + load(4), np.zeros(16, np.uint8), content, start, other=packed(offsets), memory=memory)


def test_an_element_stride_between_images_is_refused() -> None:
    content = ptx.encode_tensor_map_im2col(4096, "u8", (16, 4, 4), (16, 64), (0,), (0,), 16, 4, (1, 1, 2))
    with pytest.raises(ptx.MisuseError, match="an element stride of 2 along N"):
        run(OFFSETS + load(3), np.zeros(16, np.uint8), content)


@pytest.mark.parametrize(
    ("change", "start", "message"),
    [
        ({}, (0, 1, -1), "a store at coordinate -1 of dimension 2"),
        ({"lower": (-1,)}, (0, 1, 0), r"a store through .* with corners \(-1,\) and \(-1,\)"),
        ({"upper": (1,)}, (0, 1, 0), "its bounding box must stay within the tensor"),
        ({"steps": (2,)}, (0, 1, 0), "a store through a tensor map with padding or element strides"),
        ({"dims": (56, 8, 4)}, (0, 1, 0), "a tensor of 56 bytes along dimension 0, no multiple of 16"),
    ],
)
def test_stores_that_are_refused(change: dict[str, Any], start: Any, message: str) -> None:
    body = fill(640) + FENCE + "bar.sync 0;" + store(3) + COMMIT + WAITED
    with pytest.raises(ptx.MisuseError, match=message):
        run(body, memory_of(640), replace(INNER, **change).encode(4096), start)


TILED = ptx.encode_tensor_map(4096, "u8", (64, 8, 4), (64, 512), (64, 2, 2))
WRONG = {
    "an im2col load": (OFFSETS + load(3), TILED, "mode tiled, by which no copy of mode im2col goes"),
    "an im2col store": (store(3), TILED, "mode tiled, by which no copy of mode im2col goes"),
    "an im2col reduction": (store(3, "cp.reduce.async.bulk", ".add"), TILED, "mode tiled"),
    "an im2col prefetch": (
        OFFSETS + "@%p0 cp.async.bulk.prefetch.tensor.3d.L2.global.im2col [%d1, {%r2, %r3, %r4}], {%h0};", TILED,
        "mode tiled, by which no copy of mode im2col goes",
    ),
    "a tiled load": (
        f"@%p0 cp.async.bulk.tensor.3d.shared::cta.global.{DONE} [%r8], [%d1, {{%r2, %r3, %r4}}], [%r7];",
        INNER.encode(4096), "mode im2col, by which no copy of mode tiled goes",
    ),
    "a tiled store": (
        "@%p0 cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%d1, {%r2, %r3, %r4}], [%r8];",
        INNER.encode(4096), "mode im2col, by which no copy of mode tiled goes",
    ),
    "a tiled prefetch": (
        "@%p0 cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%d1, {%r2, %r3, %r4}];", INNER.encode(4096),
        "mode im2col, by which no copy of mode tiled goes",
    ),
    "another rank": (OFFSETS + load(4), INNER.encode(4096), "a tensor map of rank 3 and 4 coordinates"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_maps_of_another_mode(name: str) -> None:
    body, content, message = WRONG[name]
    with pytest.raises(ptx.MisuseError, match=message):
        run(body, np.zeros(16, np.uint8), content)


def test_a_prefetch_changes_nothing() -> None:
    prefetch = "@%p0 cp.async.bulk.prefetch.tensor.3d.L2.global.im2col{0} [%d1, {{%r2, %r3, %r4}}], {{%h0}}{1};"
    body = OFFSETS + prefetch.format("", "") + prefetch.format(".L2::cache_hint", ", %d3")
    run(body, np.zeros(16, np.uint8), INNER.encode(4096), (0, 1, 0))


@pytest.mark.parametrize(
    "line",
    [
        f"cp.async.bulk.tensor.2d.shared::cta.global.im2col.{DONE} [%r8], [%d1, {{%r2, %r3}}], [%r7], {{%h0}};",
        f"cp.async.bulk.tensor.3d.shared::cta.global.im2col_no_offs.{DONE} [%r8], [%d1, {{%r2, %r3, %r4}}], [%r7];",
        f"cp.async.bulk.tensor.3d.shared::cta.global.im2col::w.{DONE} [%r8], [%d1, {{%r2, %r3, %r4}}], [%r7],"
        " {%h0, %h1};",
        f"cp.async.bulk.tensor.3d.shared::cta.global.im2col::w::128.{DONE} [%r8], [%d1, {{%r2, %r3, %r4}}], [%r7],"
        " {%h0, %h1};",
        "cp.async.bulk.tensor.3d.global.shared::cta.im2col.bulk_group [%d1, {%r2, %r3, %r4}], [%r8];",
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.im2col_no_offs.bulk_group [%d1, {%r2, %r3}], [%r8];",
        "cp.async.bulk.prefetch.tensor.3d.L2.global.im2col::w [%d1, {%r2, %r3, %r4}], {%h0, %h1};",
    ],
)
def test_other_spellings_are_unknown(line: str) -> None:
    with pytest.raises(ptx.UnknownOpcode):
        run(OFFSETS + line, np.zeros(16, np.uint8), INNER.encode(4096))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (load(3).replace("{%h0}", "{%h0, %h1}"), "1 im2col offsets needed for 3 dimensions"),
        (load(3).replace("{%h0}", "%h0"), "1 im2col offsets needed"),
        (load(3).replace(", {%h0}", ""), "4 operands needed"),
        (load(4).replace("{%r2, %r3, %r4, %r5}", "{%r2, %r3, %r4}"), "a tensor map with 4 coordinates needed"),
    ],
)
def test_operands_that_do_not_fit(line: str, message: str) -> None:
    with pytest.raises(ptx.UnknownOpcode, match=message):
        run(OFFSETS + line, np.zeros(16, np.uint8), INNER.encode(4096))
