"""A watchpoint names every write of the watched bytes, and no other."""

from __future__ import annotations

import numpy as np
import pytest

from refmoe import ptx
from refmoe.cuda import PtxDevice, open_device, quantize_mxfp8
from refmoe.errors import ArgumentError

#: Every thread writes its number as a word; then, behind a barrier, one thread of each block writes a byte of word 5.
WORDS = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry words(.param .u64 out)
{
    .reg .pred %p<4>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mad.lo.u32 %r3, %r2, 64, %r1;
    mul.wide.u32 %rd2, %r3, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r3;
    bar.sync 0;
    setp.ne.u32 %p1, %r3, 33;
    @%p1 bra done;
    mov.u32 %r4, 255;
    st.global.u8 [%rd1+22], %r4;
done:
    ret;
}
"""
ADD = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry add(.param .u64 out)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    red.global.add.u32 [%rd1+8], %r1;
    ret;
}
"""
#: Thread 3 copies 32 bytes of shared memory to the buffer's byte 64.
BULK = """
.version 8.0
.target sm_90a
.address_size 64
.shared .align 16 .b8 tile[32];
.visible .entry bulk(.param .u64 out)
{
    .reg .pred %p<4>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    setp.ne.u32 %p1, %r1, 3;
    @%p1 bra done;
    st.shared.v4.u32 [tile], {%r1, %r1, %r1, %r1};
    st.shared.v4.u32 [tile+16], {%r1, %r1, %r1, %r1};
    fence.proxy.async.shared::cta;
    cp.async.bulk.global.shared::cta.bulk_group [%rd1+64], [tile], 32;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
done:
    ret;
}
"""
LINE = {text: number for number, text in enumerate(WORDS.splitlines(), 1)}


def _run(watch: ptx.Watch, text: str = WORDS, blocks: int = 2) -> np.ndarray:
    entry = {WORDS: "words", ADD: "add", BULK: "bulk"}[text]
    out = np.zeros(128, np.uint32)
    buffer = ptx.Buffer(out, name="out")
    module = ptx.Module.parse(text)
    ptx.launch(module, entry, (blocks, 1, 1), (64, 1, 1), [buffer], watch=watch)
    return out


def test_the_writer_of_one_word_is_named() -> None:
    watch = ptx.Watch("out", first=4 * 70, size=4)
    _run(watch)
    (write,) = watch.writes
    assert (write.block, write.thread) == ((1, 0, 0), (6, 0, 0))
    assert (write.offset, write.size, write.value) == (280, 4, np.uint32(70).tobytes())
    assert write.line == LINE["    st.global.u32 [%rd3], %r3;"]
    assert write.text == "st.global.u32 [%rd3], %r3;"


@pytest.mark.parametrize(("first", "size", "writers"), [(19, 1, [4]), (20, 1, [5]), (22, 1, [5, 33]), (19, 2, [4, 5])])
def test_only_writes_that_touch_a_watched_byte_count(first: int, size: int, writers: list[int]) -> None:
    watch = ptx.Watch("out", first, size)
    _run(watch)
    assert [write.thread[0] for write in watch.writes] == writers


def test_writes_come_in_order_with_what_each_left_behind() -> None:
    watch = ptx.Watch("out", first=20, size=4)
    out = _run(watch)
    word, byte = watch.writes
    assert word.step < byte.step
    assert (word.value, byte.value) == (bytes([5, 0, 0, 0]), bytes([5, 0, 255, 0]))
    assert byte.value == out[5].tobytes()
    assert (byte.offset, byte.size) == (22, 1)
    assert watch.text().count("st.global") == 2


def test_an_atomic_writes_once_a_lane() -> None:
    watch = ptx.Watch("out", first=8, size=4)
    out = _run(watch, ADD, blocks=1)
    assert sorted(write.thread[0] for write in watch.writes) == list(range(64))
    assert out[2] == sum(range(64))


def test_a_bulk_copy_is_its_threads() -> None:
    watch = ptx.Watch("out", first=80, size=4)
    out = _run(watch, BULK, blocks=1)
    assert [write.thread for write in watch.writes] == [(3, 0, 0)]
    assert watch.writes[0].value == out[20].tobytes() == bytes([3, 0, 0, 0])
    assert watch.writes[0].text.startswith("cp.async.bulk.global")


def test_nothing_written_is_said() -> None:
    watch = ptx.Watch("out", first=4 * 64)
    _run(watch, blocks=1)
    assert watch.writes == []
    assert watch.text() == "bytes 256..256 of out: no writes\n"


@pytest.mark.parametrize(("buffer", "first", "size"), [("in", 0, 1), ("out", 512, 1), ("out", -1, 1), ("out", 0, 0)])
def test_bytes_that_no_buffer_has_are_refused(buffer: str, first: int, size: int) -> None:
    with pytest.raises(ArgumentError, match="watch"):
        _run(ptx.Watch(buffer, first, size))


def test_a_device_hands_its_watch_to_launches() -> None:
    device = open_device("ptx", "sm_121a")
    assert isinstance(device, PtxDevice)
    device.watch = ptx.Watch("codes", first=3 * 64 + 17)
    made = quantize_mxfp8(np.ones((4, 64), np.float16), device=device, mode="rceil", edge="exact")
    (write,) = device.watch.writes
    assert write.value == made.codes[3, 17].tobytes()
    assert write.offset <= 3 * 64 + 17 < write.offset + write.size
    assert write.source is not None
    assert ".cu" in write.source
