"""Bytes of asynchronous stores held against a GPU's: `pytest -m gpu tests/ptx/async_copies/test_gpu.py`.

A phase expects some of the bytes that 64 lanes bring to the other block, and the next one the rest. The kernel looks a
number of times whether each has ended, so that it comes to its end where a phase never does.
"""

from __future__ import annotations

import numpy as np
import pytest

from refmoe import ptx
from refmoe.cuda.device import CudaDevice, DeviceUnavailable, open_device

_LANES, _LAUNCHES = 64, 20
_TEXT = """
.version 8.3
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out, .param .u32 first) .explicitcluster .reqnctapercluster 2, 1, 1 .maxntid 64 {{
    .reg .pred %p<4>;
    .reg .b32 %r<16>;
    .reg .b64 %d<8>;
    .shared .align 64 .b8 words[256];
    .shared .align 8 .b64 barrier;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, words;
    mov.u32 %r3, barrier;
    shl.b32 %r4, %r1, {shift};
    and.b32 %r4, %r4, 255;
    add.u32 %r4, %r4, %r2;
    st.shared.u32 [%r4], 0;
    ld.param.u32 %r5, [first];
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra READY;
    mbarrier.init.shared.b64 [%r3], 1;
    mbarrier.arrive.expect_tx.shared.b64 %d3, [%r3], %r5;
READY:
    barrier.cluster.arrive; barrier.cluster.wait;
    mov.u32 %r6, %cluster_ctarank;
    xor.b32 %r7, %r6, 1;
    mapa.shared::cluster.u32 %r8, %r4, %r7;
    mapa.shared::cluster.u32 %r9, %r3, %r7;
    {brings} [%r8], 1, [%r9];
    @%p1 bra END;
    mov.u32 %r10, 0;
    mov.u32 %r11, 0;
FIRST:
    mbarrier.test_wait.parity.shared.b64 %p2, [%r3], 0;
    @%p2 bra ENDED;
    add.u32 %r10, %r10, 1;
    setp.lt.u32 %p3, %r10, {tries};
    @%p3 bra FIRST;
    bra TELL;
ENDED:
    mov.u32 %r11, 1;
    sub.u32 %r12, {bytes}, %r5;
    mbarrier.arrive.expect_tx.shared.b64 %d3, [%r3], %r12;
    mov.u32 %r10, 0;
SECOND:
    mbarrier.test_wait.parity.shared.b64 %p2, [%r3], 1;
    @%p2 bra BOTH;
    add.u32 %r10, %r10, 1;
    setp.lt.u32 %p3, %r10, {tries};
    @%p3 bra SECOND;
    bra TELL;
BOTH:
    mov.u32 %r11, 2;
TELL:
    ld.param.u64 %d1, [out];
    mul.wide.u32 %d2, %r6, 4;
    add.u64 %d1, %d1, %d2;
    st.global.u32 [%d1], %r11;
END:
    barrier.cluster.arrive; barrier.cluster.wait;
    ret;
}}
"""
_OPCODES = {
    "st.async": "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32",
    "red.async": "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32",
}
#: By where the lanes' words lie: how a lane's number is shifted for its place, and what a phase that ends may expect.
_PLACES = {"in a row": (2, 64), "at one place": (8, 4)}


def _source(brings: str, shift: int, tries: int) -> str:
    return _TEXT.format(brings=brings, shift=shift, tries=tries, bytes=4 * _LANES)


def _executed(source: str, first: int) -> list[int]:
    """By block how many phases ended."""
    out = np.zeros(2, np.uint32)
    ptx.launch(
        ptx.Module.parse(source), "k", (2, 1, 1), (_LANES, 1, 1), [out, first], checks=ptx.Checks(races=False)
    )  # fmt: skip
    return [int(value) for value in out]


@pytest.mark.parametrize("place", _PLACES)
@pytest.mark.parametrize("opcode", _OPCODES)
def test_phases_end_where_a_piece_does(opcode: str, place: str) -> None:
    shift, piece = _PLACES[place]
    source = _source(_OPCODES[opcode], shift, 4)
    for first in (4, 60, 64, 124, 128, 252, 256):
        # The last phase of none expects nothing, so that its one arrival ends it.
        assert _executed(source, first) == [2 if first % piece == 0 else 0] * 2, first


@pytest.mark.gpu
@pytest.mark.parametrize("place", _PLACES)
@pytest.mark.parametrize("opcode", _OPCODES)
def test_a_gpu_ends_the_same_phases(opcode: str, place: str) -> None:
    try:
        device = open_device("cuda")
    except DeviceUnavailable as error:
        pytest.skip(str(error))
    assert isinstance(device, CudaDevice)
    shift, _ = _PLACES[place]
    source = _source(_OPCODES[opcode], shift, 100_000)
    module = device.call("cuModuleLoadData", source.encode() + b"\0")
    function, stream = device.call("cuModuleGetFunction", module, b"k"), device.torch.cuda.current_stream()
    ours = _source(_OPCODES[opcode], shift, 4)
    for first in range(4, 4 * _LANES + 1, 4):
        seen = set()
        for _ in range(_LAUNCHES):
            out = device.torch.full((2,), 9, dtype=device.torch.int32, device="cuda")
            values = [np.array([out.data_ptr()], np.uint64), np.array([first], np.uint32)]
            addresses = np.array([value.ctypes.data for value in values], np.uint64)
            device.call(
                "cuLaunchKernel", function, 2, 1, 1, _LANES, 1, 1, 0, stream.cuda_stream, addresses.ctypes.data, 0
            )  # fmt: skip
            stream.synchronize()
            seen.update(out.cpu().tolist())
        expected = set(_executed(ours, first))
        # Bytes that two warps bring to one place come together now and then.
        assert seen == expected if place == "in a row" else expected <= seen, (first, seen)
