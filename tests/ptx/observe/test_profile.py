"""A profile counts what kernels do whose counts, conflicts and sectors are known by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from refmoe import ptx
from refmoe.ptx.observe.kernel_profile import bank_conflicts, sectors
from refmoe.ptx.program.liveness import most_live

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"

#: Each lane touches word STRIDE * lane of shared memory, and then of device memory.
STRIDED = """
.shared .align 16 .b8 tile[8192];
.visible .entry strided(.param .u64 out)
{
    .reg .b32 %r<8>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    mul.lo.u32 %r2, %r1, STRIDE;
    shl.b32 %r2, %r2, 2;
    mov.u32 %r3, tile;
    add.u32 %r3, %r3, %r2;
    st.shared.u32 [%r3], %r1;
    ld.shared.u32 %r4, [%r3];
    cvt.u64.u32 %rd2, %r2;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r4;
    ret;
}
"""
#: Lanes below 8 of each warp add 1 to their number, in a loop of as many rounds as the number of the block.
DIVERGENT = """
.visible .entry divergent(.param .u64 out)
{
    .reg .pred %p<4>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<8>;
    .loc 1 3 0
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    and.b32 %r3, %r1, 31;
    setp.ge.u32 %p1, %r3, 8;
    @%p1 bra done;
    .loc 1 5 0
loop:
    add.u32 %r1, %r1, 1;
    .loc 1 4 0
    sub.u32 %r2, %r2, 1;
    setp.ne.s32 %p2, %r2, 0;
    @%p2 bra loop;
done:
    .loc 1 8 0
    mul.wide.u32 %rd2, %r3, 4;
    ret;
}
.file 1 "kernel.cu"
"""


def profiled(text: str, *args: Any, grid: int = 1, block: int = 32, **options: Any) -> ptx.KernelProfile:
    profile = ptx.Profile()
    module = ptx.Module.parse(HEAD + text)
    (entry,) = module.entries
    result = ptx.launch(module, entry, (grid, 1, 1), (block, 1, 1), args, profile=profile, **options)
    plain = ptx.launch(ptx.Module.parse(HEAD + text), entry, (grid, 1, 1), (block, 1, 1), args, **options)
    (kernel,) = profile.kernels
    # What the launch itself counts is the same, seen or not.
    assert kernel.executed.lanes == result.lane_instructions == plain.lane_instructions
    return kernel


def only(rows: dict[Any, Any], part: str) -> Any:
    (row,) = [row for instruction, row in rows.items() if instruction.text.startswith(part)]
    return row


@pytest.mark.parametrize(
    ("stride", "degree", "touched"),
    [(0, 1, 1), (1, 1, 4), (2, 2, 8), (3, 1, 12), (8, 8, 32), (32, 32, 32), (33, 1, 32)],
)
def test_words_at_a_stride(stride: int, degree: int, touched: int) -> None:
    out = np.zeros(32 * 33 + 1, np.uint32)
    # Lanes that all write one word race; the last one wins here.
    checks = ptx.Checks(races=False)
    kernel = profiled(STRIDED.replace("STRIDE", str(stride)), ptx.Buffer(out), grid=2, block=32, checks=checks)
    for part in ("st.shared", "ld.shared"):
        row = only(kernel.shared, part)
        assert (row.accesses, row.lanes, row.fewest) == (2, 64, 2)
        assert (row.wavefronts, row.degrees, row.worst) == (2 * degree, {degree: 2}, degree)
    row = only(kernel.device, "st.global")
    assert (row.accesses, row.lanes, row.sectors) == (2, 64, 2 * touched)
    assert row.fewest == (2 if stride == 0 else 8)
    assert (out[: 32 * stride : stride or 1] == np.arange(32)[: 32 * stride]).all()


@pytest.mark.parametrize(
    ("width", "stride", "degrees"),
    [
        # 16 lanes at a time read 32 words: each bank once.
        (8, 8, [1, 1]),
        # Every other pair of words: 16 lanes meet on 16 banks.
        (8, 16, [2, 2]),
        (8, 0, [1, 1]),
        # 8 lanes at a time read 32 words.
        (16, 16, [1, 1, 1, 1]),
        (16, 32, [2, 2, 2, 2]),
        (16, 128, [8, 8, 8, 8]),
        # Rows of 128 bytes and 16 of padding: what ldmatrix likes.
        (16, 144, [1, 1, 1, 1]),
        # Four lanes share a word of bytes.
        (1, 1, [1]),
        (2, 2, [1]),
        (2, 128, [32]),
    ],
)
def test_wide_and_narrow_accesses_in_their_phases(width: int, stride: int, degrees: list[int]) -> None:
    lanes = np.arange(32)
    warps, found = bank_conflicts(lanes * stride, lanes, width)
    assert (warps == 0).all()
    assert found.tolist() == degrees


def test_phases_without_a_lane_take_no_wavefront() -> None:
    lanes = np.array([32 + 9, 32 + 10, 64])
    warps, found = bank_conflicts(np.array([0, 128, 0]), lanes, 16)
    assert (warps.tolist(), found.tolist()) == ([1, 2], [2, 1])


def test_sectors_of_each_warp_by_itself() -> None:
    lanes = np.arange(64)
    assert sectors((lanes * 4).astype(np.uint64), lanes, 4) == (8, 8)
    # Four bytes off: one sector more for each warp.
    assert sectors((lanes * 4 + 4).astype(np.uint64), lanes, 4) == (10, 8)
    assert sectors(np.zeros(64, np.uint64), lanes, 4) == (2, 2)
    assert sectors((lanes * 16).astype(np.uint64), lanes, 16) == (32, 32)
    # Not aligned, as the check of alignment can be turned off for: both sectors.
    assert sectors(np.array([30], np.uint64), np.array([0]), 4) == (2, 1)


def test_a_branch_and_a_loop() -> None:
    text = DIVERGENT.replace("mov.u32 %r2, %ctaid.x;", "mov.u32 %r2, 5;")
    kernel = profiled(text, None, grid=3, block=64)
    line = {text.strip(): number for number, text in enumerate((HEAD + DIVERGENT).splitlines(), 1)}
    rows = kernel.by_line()
    # Six warps; a quarter of each goes round five times.
    before, inside, after = (
        rows[line[text]] for text in ("and.b32 %r3, %r1, 31;", "sub.u32 %r2, %r2, 1;", "mul.wide.u32 %rd2, %r3, 4;")
    )
    assert (before.warps, before.lanes, before.active) == (6, 192, 32.0)
    assert (inside.warps, inside.lanes, inside.active) == (30, 240, 8.0)
    # Those that jumped over the loop waited for the others.
    assert (after.warps, after.lanes) == (6, 192)
    sources = kernel.by_source()
    assert list(sources) == ["kernel.cu:3", "kernel.cu:4", "kernel.cu:5", "kernel.cu:8"]
    assert (sources["kernel.cu:4"].warps, sources["kernel.cu:4"].lanes) == (90, 720)
    assert (sources["kernel.cu:5"].warps, sources["kernel.cu:5"].lanes) == (30, 240)
    opcodes = kernel.by_opcode()
    assert (opcodes["bra"].warps, opcodes["bra"].lanes) == (36, 432)
    assert opcodes["sub.u32"].warps == 30
    assert kernel.executed.warps == 6 * 6 + 30 * 4 + 6 * 2


def test_rounds_that_differ_from_block_to_block() -> None:
    text = DIVERGENT.replace("mov.u32 %r2, %ctaid.x;", "mov.u32 %r2, %ctaid.x;\n    add.u32 %r2, %r2, 1;")
    kernel = profiled(text, None, grid=4, block=32)
    # 1 + 2 + 3 + 4 rounds of one warp each.
    assert kernel.by_opcode()["sub.u32"].warps == 10
    assert kernel.by_opcode()["sub.u32"].lanes == 80


GUARDED = """
.visible .entry guarded(.param .u64 out)
{
    .reg .pred %p<4>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p1, %r1, 4;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd2, %rd1, %rd2;
    @%p1 st.global.u32 [%rd2], %r1;
    red.global.add.u32 [%rd1], 1;
    @%p1 ret;
    ret;
}
"""


def test_a_guard_turns_off_accesses_but_not_the_instruction() -> None:
    profile = ptx.Profile()
    module = ptx.Module.parse(HEAD + GUARDED)
    out = np.zeros(32, np.uint32)
    ptx.launch(module, "guarded", (1, 1, 1), (32, 1, 1), [out], checks=ptx.Checks(races=False), profile=profile)
    (kernel,) = profile.kernels
    opcodes = kernel.by_opcode()
    assert opcodes["st.global.u32"].lanes == 32
    # `@%p1 ret` counts once, for all lanes that come to it, and `ret` for those that are left.
    assert (opcodes["ret"].warps, opcodes["ret"].lanes) == (2, 32 + 28)
    assert "bra" not in opcodes
    store, add = only(kernel.device, "@%p1 st"), only(kernel.device, "red")
    assert (store.accesses, store.lanes, store.sectors, store.fewest) == (1, 4, 1, 1)
    assert (add.accesses, add.lanes, add.sectors, add.fewest) == (1, 32, 1, 1)


GENERIC = """
.shared .align 16 .b8 tile[4096];
.visible .entry generic(.param .u64 out)
{
    .local .align 8 .b8 own[8];
    .reg .pred %p<4>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 8;
    cvta.shared.u64 %rd3, tile;
    setp.lt.u32 %p1, %r1, 16;
    selp.b64 %rd4, %rd3, %rd1, %p1;
    add.s64 %rd4, %rd4, %rd2;
    st.u32 [%rd4], %r1;
    st.local.u32 [own], %r1;
    ret;
}
"""


def test_generic_addresses_are_counted_where_they_lie() -> None:
    kernel = profiled(GENERIC, ptx.Buffer(np.zeros(64, np.uint32)))
    shared, device = only(kernel.shared, "st.u32"), only(kernel.device, "st.u32")
    # 16 lanes on every other word: 31 words apart at most, no bank twice.
    assert (shared.lanes, shared.wavefronts, shared.fewest) == (16, 1, 1)
    # Words 32, 34, ..., 62 of the buffer: 128 bytes, of which every other word.
    assert (device.lanes, device.sectors, device.fewest) == (16, 4, 2)
    local = only(kernel.local, "st.local")
    assert (local.accesses, local.lanes) == (1, 32)


MATRICES = """
.shared .align 16 .b8 tile[4608];
.visible .entry matrices(.param .u64 from)
{
    .reg .b32 %r<16>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [from];
    mov.u32 %r1, %tid.x;
    mul.lo.u32 %r2, %r1, PITCH;
    mov.u32 %r3, tile;
    add.u32 %r3, %r3, %r2;
    mul.wide.u32 %rd2, %r1, 16;
    add.s64 %rd2, %rd1, %rd2;
    cp.async.cg.shared.global [%r3], [%rd2], 16;
    cp.async.wait_all;
    bar.sync 0;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4, %r5, %r6, %r7}, [%r3];
    ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r4}, [%r3];
    ret;
}
"""


@pytest.mark.parametrize(("pitch", "degree"), [(16, 1), (128, 8), (144, 1), (64, 4)])
def test_matrices_and_copies(pitch: int, degree: int) -> None:
    kernel = profiled(MATRICES.replace("PITCH", str(pitch)), np.zeros(128, np.uint32))
    for part, phases in (
        ("ldmatrix.sync.aligned.m8n8.x4", 4),
        ("ldmatrix.sync.aligned.m8n8.x1", 1),
        ("cp.async.cg", 4),
    ):
        row = only(kernel.shared, part)
        assert (row.accesses, row.wavefronts, row.fewest, row.worst) == (1, phases * degree, phases, degree)
    row = only(kernel.device, "cp.async.cg")
    assert (row.sectors, row.fewest) == (16, 16)


LIVE = """
.visible .entry live(.param .u64 out)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, 1;
    mov.u32 %r2, 2;
again:
    add.u32 %r3, %r1, %r2;
    add.u32 %r1, %r3, %r3;
    setp.lt.u32 %p1, %r1, 100;
    @%p1 bra again;
    cvt.u64.u32 %rd2, %r1;
    add.s64 %rd3, %rd1, %rd2;
    mov.u32 %r5, 7;
    ret;
}
"""


def test_registers_that_are_live_at_once() -> None:
    module = ptx.Module.parse(HEAD + LIVE)
    live = most_live(module.compile("live").program)
    # In front of `cvt` and in the loop: %rd1 (two), %r2, which the next round needs, and %r1 or %r3; at `add.s64`
    # %rd1, %rd2 die and %rd3 comes. At `cvt`: %rd1 and %rd2; four as well, but later.
    first = next(n for n, text in enumerate((HEAD + LIVE).splitlines(), 1) if "mov.u32 %r2, 2;" in text)
    assert (live.registers, live.predicates, live.text) == (4, 1, "mov.u32 %r2, 2;")
    assert live.line == first


def test_two_launches_add_up_and_the_text_says_what_counts_most() -> None:
    profile, out = ptx.Profile(), np.zeros(32 * 33, np.uint32)
    module = ptx.Module.parse(HEAD + STRIDED.replace("STRIDE", "32"))
    for _ in range(2):
        ptx.launch(module, "strided", (1, 1, 1), (32, 1, 1), [out], profile=profile)
    (kernel,) = profile.kernels
    assert (kernel.launches, kernel.executed.warps) == (2, 24)
    text = profile.text(top=3)
    assert "profile of strided, 1x1x1 blocks of 32x1x1 threads, 2 launches" in text
    assert "4 accesses by warps took 128 wavefronts; without bank conflicts 4" in text
    assert "2 x 32" in text
    assert "2 accesses by warps touched 64 sectors of 32 bytes; the fewest are 8" in text
    assert "and 9 more" in text
    document = json.loads(profile.json())
    assert document == profile.to_dict()
    (row, _) = document["kernels"][0]["shared"]
    assert row["text"] == "st.shared.u32 [%r3], %r1;"
    assert (row["wavefronts"], row["degrees"]) == (64, {"32": 2})


def test_a_launch_that_fails_leaves_what_came_before() -> None:
    profile = ptx.Profile()
    module = ptx.Module.parse(HEAD + STRIDED.replace("STRIDE", "1"))
    with pytest.raises(ptx.MemoryFault):
        ptx.launch(module, "strided", (1, 1, 1), (32, 1, 1), [np.zeros(1, np.uint32)], profile=profile)
    (kernel,) = profile.kernels
    assert only(kernel.shared, "ld.shared").accesses == 1
    assert not kernel.device
