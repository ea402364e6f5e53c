"""Bulk copies in a cluster: into several blocks at once, and from the shared memory of one to that of another."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_bulk import FENCE, Tensor, dump, expect, run, wait

from refmoe import ptx

DONE = ".mbarrier::complete_tx::bytes"
SYNC = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
# %r9: rank; %p3: thread 0 of rank 0; out moves on by the bytes of a block.
RANK = """
    mov.u32 %r9, %cluster_ctarank; setp.eq.and.u32 %p3, %r9, 0, %p0;
    mul.wide.u32 %d5, %r9, 256; add.s64 %d0, %d0, %d5;
"""
MULTICAST = f"@%p3 cp.async.bulk.shared::cluster.global{DONE}.multicast::cluster [%r8], [%d3], 256, [%r7], {{mask}};"


def multicast(mask: str, blocks: int = 4, waits: str = wait(), before: str = SYNC, after: str = SYNC) -> np.ndarray:
    memory, out = ptx.DeviceMemory(), np.zeros((blocks, 256), np.uint8)
    source = np.random.default_rng(3).integers(0, 256, 256, np.uint8)
    address = memory.place(ptx.Buffer(source, "source", writable=False))
    waiting = f"and.b32 %r10, %r11, {mask}; setp.eq.u32 %p4, %r10, 0; @%p4 bra OVER;"
    body = f"""{RANK} mov.u32 %r10, 1; shl.b32 %r11, %r10, %r9; {expect(256)} {before} {MULTICAST.format(mask=mask)}
        {waiting} {waits} {dump(256)} OVER: {after}"""
    run(body, out, other=address, memory=memory, grid=blocks, cluster=blocks)
    assert {each.tobytes() for each in out if each.any()} <= {source.tobytes()}
    return out.any(axis=1)


@pytest.mark.parametrize("mask", [1, 2, 5, 15])
def test_a_copy_into_several_blocks(mask: int) -> None:
    assert multicast(str(mask)).tolist() == [bool(mask >> rank & 1) for rank in range(4)]


def test_every_block_waits_for_its_own_bytes() -> None:
    with pytest.raises((ptx.RaceError, ptx.MemoryFault), match=r"bulk copy|uninitialised"):
        multicast("15", waits="")


def test_a_barrier_that_is_not_known_to_the_others() -> None:
    with pytest.raises((ptx.RaceError, ptx.MisuseError, ptx.MemoryFault)):
        multicast("15", before="")


@pytest.mark.parametrize("mask", ["0", "16", "0x8001"])
def test_blocks_that_the_cluster_has_not(mask: str) -> None:
    with pytest.raises(ptx.MisuseError, match=f"a mask 0x{int(mask, 0):04X} of blocks in a cluster of 4"):
        multicast(mask)


def test_a_box_into_several_blocks() -> None:
    memory, out = ptx.DeviceMemory(), np.zeros((2, 256), np.uint8)
    matrix = np.random.default_rng(4).integers(0, 256, (32, 64), np.uint8)
    address = memory.place(ptx.Buffer(matrix, "matrix", writable=False))
    tensor = Tensor("u8", 8, (64, 32), (64,), (32, 8), (1, 1))
    opcode = f"cp.async.bulk.tensor.2d.shared::cluster.global.tile{DONE}.multicast::cluster"
    body = f"""{RANK} {expect(256)} {SYNC} @%p3 {opcode} [%r8], [%d1, {{%r2, %r3}}], [%r7], 3;
        {wait()} {dump(256)} {SYNC}"""
    run(body, out, tensor.encode(address), (16, 5), memory=memory, grid=2, cluster=2)
    assert (out.reshape(2, 8, 32) == matrix[5:13, 16:48]).all()


# From block to block

SEND = f"""@%p5 cp.async.bulk.shared::cluster.shared::cta{DONE} [%r30], [%r8], 256, [%r31];"""
# Rank 1 fills the first 256 bytes of its tile, and sends them behind the first 256 of rank 0.
PASS_ON = """
    {rank} {expect} setp.eq.and.u32 %p5, %r9, 1, %p0; setp.ne.u32 %p6, %r9, 1;
    @%p6 bra FILLED;
    shl.b32 %r20, %r1, 2; add.u32 %r21, %r8, %r20; add.u32 %r22, %r1, 7; st.shared.u32 [%r21], %r22;
FILLED:
    {fence} {first}
    add.u32 %r30, %r8, 256; mapa.shared::cluster.u32 %r30, %r30, 0; mapa.shared::cluster.u32 %r31, %r7, {to};
    {send}
    @!%p6 bra OVER;
    {wait}
    add.u32 %r8, %r8, 256; {dump}
OVER: {last}
"""


def passed_on(
    fence: str = FENCE, first: str = SYNC, last: str = SYNC, waits: str = wait(), send: str = SEND, to: int = 0
):
    out = np.zeros(256, np.uint8)
    body = PASS_ON.format(
        rank=RANK, expect=expect(256), fence=fence, first=first, last=last, wait=waits, dump=dump(256), send=send, to=to
    )
    run(body, out, grid=2, cluster=2)
    return out.view(np.uint32).tolist()


def test_shared_memory_to_that_of_another_block() -> None:
    assert passed_on() == [i + 7 for i in range(64)]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"fence": ""}, ptx.RaceError, "proxy"),
        (
            {"first": "bar.sync 0;"},
            ptx.MemoryFault,
            r"not started: .* of block \(0, 0, 0\), which may not have started",
        ),
        ({"waits": ""}, (ptx.RaceError, ptx.MemoryFault), "bulk copy|uninitialised"),
        ({"last": ""}, ptx.RaceError, "exit race on byte 0 .* by a bulk copy that completes on the mbarrier at byte"),
        ({"send": SEND + "@!%p6 exit;"}, ptx.MisuseError, "exits while its shared memory is read by a bulk copy"),
        ({"to": 1}, ptx.MisuseError, r"into shared memory of block \(0, 0, 0\), which completes on .* \(1, 0, 0\)"),
        ({"send": SEND + "@%p5 st.shared.u32 [%r8], 9;"}, ptx.RaceError, "read-write race"),
        ({"send": SEND.replace("[%r8]", "[%r30]")}, ptx.MisuseError, "out of shared memory of another block"),
    ],
    ids=["fence", "barrier", "wait", "exit", "exit-early", "beside", "overwritten", "source"],
)
def test_what_a_copy_between_blocks_needs(change, error, message: str) -> None:
    with pytest.raises(error, match=message):
        passed_on(**change)
