"""Which blocks run: some of a grid, all together in a cooperative launch, and no more than are resident."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.ptx_kernel import compile_cuda, line_of, text

from refmoe import ptx
from refmoe.chips import CHIPS
from refmoe.ptx.engine.order.by_cta import ByCta
from refmoe.ptx.grid import Grid
from refmoe.ptx.residency import Residency, chip_of, residency

# Every thread adds 1 to its block's word, and thread 0 writes the grid's size and the block's place into it.
MARK = """
    mov.u32 %r3, %ctaid.y; mov.u32 %r4, %ctaid.z; mov.u32 %r5, %nctaid.x; mov.u32 %r6, %nctaid.y;
    mad.lo.u32 %r7, %r4, %r6, %r3; mad.lo.u32 %r7, %r7, %r5, %r60;
    mul.wide.u32 %d3, %r7, 4; add.s64 %d3, %d3, %d0;
    red.global.add.u32 [%d3], 1; ret;
"""


def marked(blocks, grid=(3, 4, 2), **options) -> list[tuple[int, int, int]]:
    """The blocks that ran, x first; each must have run once."""
    out = np.zeros(grid[::-1], np.uint32)
    module = ptx.Module.parse(text(MARK))
    ptx.launch(module, "k", grid, (32, 1, 1), [out, None, 0], blocks=blocks, **options)
    assert set(np.unique(out).tolist()) <= {0, 32}
    return [(int(x), int(y), int(z)) for z, y, x in np.argwhere(out)]


def test_blocks_that_are_named_run_and_no_others() -> None:
    assert marked([(1, 2, 0), (0, 0, 1), (2, 3, 1)]) == [(1, 2, 0), (0, 0, 1), (2, 3, 1)]
    assert marked([2, (0, 1, 0)]) == [(2, 0, 0), (0, 1, 0)]
    assert marked(range(1, 3)) == [(1, 0, 0), (2, 0, 0)]
    assert marked(np.arange(2)) == [(0, 0, 0), (1, 0, 0)]
    assert len(marked(None)) == 24
    assert marked(range(90, 1000, 300), grid=(1000, 1, 1)) == [(90, 0, 0), (390, 0, 0), (690, 0, 0), (990, 0, 0)]


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([(3, 0, 0)], r"blocks: \(3, 0, 0\) is outside the grid \(3, 4, 2\)"),
        ([(0, 0, -1)], r"\(0, 0, -1\) is outside the grid"),
        ([0, 3], r"\(3, 0, 0\) is outside"),
        ([1, (1, 0, 0)], r"\(1, 0, 0\) is given twice"),
        ([], "none is given"),
        ([(1, 2)], r"a number or \(x, y, z\) needed"),
        ([(1.5, 0, 0)], r"a number or \(x, y, z\) needed"),
    ],
)
def test_blocks_that_do_not_exist(blocks, message: str) -> None:
    with pytest.raises(ptx.ArgumentMismatch, match=message):
        marked(blocks)


@pytest.mark.parametrize(
    ("grid", "block", "message"),
    [
        # A chip takes the first two (perlin and shuffle of HeCBench): warps count whole, 8 threads or 32.
        ((3840, 2160, 1), (16, 16, 1), r"too large for the executor: 2123366400 threads.* at most 134217728"),
        ((1 << 24, 1, 1), (8, 1, 1), r"too large for the executor: 536870912 threads.* at most 134217728"),
        ((1, 65536, 1), (1, 1, 1), r"at most \(2147483647, 65535, 65535\) blocks"),
        ((1 << 31, 1, 1), (1, 1, 1), r"at most \(2147483647, 65535, 65535\) blocks"),
    ],
)
def test_a_grid_that_is_too_large_is_told_the_limit(grid, block, message: str) -> None:
    module = ptx.Module.parse(text(MARK))
    with pytest.raises(ptx.ArgumentMismatch, match=message):
        ptx.launch(module, "k", grid, block, [np.zeros(1, np.uint32), None, 0])


def test_numbers_and_indices_are_inverse() -> None:
    for size, cluster in (((3, 4, 2), (1, 1, 1)), ((4, 6, 2), (2, 3, 1)), ((8, 1, 2), (2, 1, 2))):
        grid = Grid(size, cluster)
        indices = [grid.index(number) for number in range(grid.count)]
        assert len(set(indices)) == grid.count
        assert [grid.number(index) for index in indices] == list(range(grid.count))
        for first in range(0, grid.count, grid.cluster_blocks):
            inside = np.array(indices[first : first + grid.cluster_blocks])
            assert tuple(np.ptp(inside, axis=0) + 1) == cluster
            assert inside[0].tolist() == (inside[0] // cluster * cluster).tolist()


# Cooperative launches

SUMS = r"""
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void k(const int* in, int* partial, int* out, int rounds) {
    auto grid = cg::this_grid();
    for (int round = 0; round < rounds; ++round) {
        int sum = in[grid.thread_rank()] + round;
        sum = __reduce_add_sync(~0u, sum);
        if (threadIdx.x == 0) partial[blockIdx.x] = sum;
        grid.sync();
        if (grid.thread_rank() < gridDim.x)
            out[grid.thread_rank()] += partial[gridDim.x - 1 - grid.thread_rank()];
        grid.sync();
    }
}
extern "C" __global__ void valid(int* out) { *out = cg::this_grid().is_valid(); }
"""


def sums(module: ptx.Module, blocks: int, **options) -> np.ndarray:
    source = np.random.default_rng(1).integers(0, 99, (blocks, 32)).astype(np.int32)
    out = np.zeros(blocks, np.int32)
    ptx.launch(module, "k", (blocks, 1, 1), (32, 1, 1), [source, np.zeros_like(out), out, 3], **options)
    np.testing.assert_array_equal(out[::-1], 3 * source.sum(axis=1) + 32 * 3)
    return out


@pytest.mark.parametrize("at_once", [24576, 64])
def test_the_barrier_of_a_grid(tmp_path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr("refmoe.ptx.launcher.LANES_AT_ONCE", at_once)
    module = compile_cuda(SUMS, tmp_path)
    sums(module, 5, cooperative=True)
    out = np.zeros(1, np.int32)
    ptx.launch(module, "valid", (1, 1, 1), (1, 1, 1), [out], cooperative=True)
    assert out[0] == 1
    ptx.launch(module, "valid", (1, 1, 1), (1, 1, 1), [out])
    assert out[0] == 0


def test_where_the_barrier_of_a_grid_is() -> None:
    """At %envreg1 and %envreg2, in the second word; a launch that is not cooperative has a null pointer there."""
    body = """
        mov.u32 %r3, %envreg2; mov.u32 %r4, %envreg1; mov.b64 %d3, {%r3, %r4}; setp.eq.u64 %p1, %d3, 0;
        mov.u32 %r20, 99; @!%p1 ld.volatile.u32 %r20, [%d3+4]; st.global.u32 [%d2], %r20; ret;
    """
    module, out = ptx.Module.parse(text(body)), np.ones(64, np.uint32)
    for cooperative, expected in ((True, 0), (False, 99)):
        ptx.launch(module, "k", (2, 1, 1), (32, 1, 1), [out, None, 0], cooperative=cooperative)
        assert set(out.tolist()) == {expected}


def test_a_launch_that_is_not_cooperative_traps(tmp_path) -> None:
    with pytest.raises(ptx.Trap):
        sums(compile_cuda(SUMS, tmp_path), 5)


def test_a_grid_without_its_barrier_races(tmp_path) -> None:
    module = compile_cuda(SUMS.replace("        grid.sync();\n        if", "        if"), tmp_path)
    with pytest.raises((ptx.RaceError, ptx.MemoryFault)):
        sums(module, 5, cooperative=True)


def test_a_cooperative_launch_has_to_fit() -> None:
    # 24 blocks of one warp share a multiprocessor of an sm_120a.
    assert len(marked(None, grid=(48, 1, 1), cooperative=True, multiprocessors=2)) == 48
    with pytest.raises(ptx.CooperativeLaunchTooLarge, match=r"of 49 blocks; resident can be 48 \(2 multip") as caught:
        marked(None, grid=(49, 1, 1), cooperative=True, multiprocessors=2)
    assert (caught.value.blocks, caught.value.resident) == (49, 48)
    with pytest.raises(ptx.ArgumentMismatch, match="a cooperative launch runs all blocks"):
        marked([0], cooperative=True)
    with pytest.raises(ptx.ArgumentMismatch, match="multiprocessors 0: at least 1 needed"):
        marked(None, multiprocessors=0)


# Residency

# Block b waits until word b of `in` is not 0; then it sets the word of the block behind it, or before it.
CHAIN = """
    mul.wide.u32 %d3, %r60, 4; add.s64 %d3, %d3, %d1;
    setp.ne.u32 %p1, %r1, 0; @%p1 bra DONE;
POLL: ld.acquire.gpu.global.u32 %r3, [%d3];
    setp.eq.u32 %p2, %r3, 0; @%p2 bra POLL;
    setp.eq.u32 %p3, %r60, {last}; @%p3 bra DONE;
    st.release.gpu.global.u32 [%d3+{step}], 1;
DONE: ret;
"""


def chain(size: int, forwards: bool, first: int | None = None, threads: int = 32, **options) -> np.ndarray:
    flags = np.zeros(size, np.uint32)
    flags[(0 if forwards else size - 1) if first is None else first] = 1
    body = CHAIN.format(last=size - 1 if forwards else 0, step=4 if forwards else -4)
    module = ptx.Module.parse(text(body), name="chain.ptx")
    out = np.zeros(1, np.uint32)
    ptx.launch(module, "k", (size, 1, 1), (threads, 1, 1), [out, flags, 0], **options)
    return flags


@pytest.mark.parametrize("at_once", [24576, 32])
def test_blocks_may_wait_for_earlier_ones(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr("refmoe.ptx.launcher.LANES_AT_ONCE", at_once)
    assert chain(100, forwards=True, multiprocessors=1).all()


@pytest.mark.parametrize("at_once", [24576, 384])
def test_blocks_may_wait_for_later_ones_that_are_resident(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    # Four blocks of 384 threads share a multiprocessor of an sm_120a.
    monkeypatch.setattr("refmoe.ptx.launcher.LANES_AT_ONCE", at_once)
    assert chain(4, forwards=False, threads=384, multiprocessors=1).all()
    with pytest.raises(ptx.CoResidencyError, match="4 blocks poll") as caught:
        chain(6, forwards=False, threads=384, multiprocessors=1)
    assert (caught.value.resident, caught.value.waiting) == (4, 2)


def test_waiting_for_a_block_that_cannot_start() -> None:
    with pytest.raises(ptx.CoResidencyError, match="needs co-residency, not launched cooperatively") as caught:
        chain(26, forwards=False, multiprocessors=1)
    error = caught.value
    assert error.blocks == tuple((x, 0, 0) for x in range(24))
    assert (error.resident, error.waiting) == (24, 2)
    poll = "ld.acquire.gpu.global.u32"
    assert error.text.startswith(poll)
    assert error.line == line_of(CHAIN.format(last=0, step=-4), poll)
    assert f"24 blocks poll at chain.ptx:{error.line}" in error.message
    assert "(0, 0, 0), (1, 0, 0), (2, 0, 0), ... and (23, 0, 0)" in error.message
    # On a larger chip all of them are resident.
    assert chain(26, forwards=False, multiprocessors=2).all()


def test_a_slot_is_free_once_its_block_has_ended() -> None:
    """Those that end at once make room: the last block starts, and frees the first."""
    body = """
        setp.ne.u32 %p1, %r60, 0; @%p1 bra LAST;
    POLL: ld.acquire.gpu.global.u32 %r3, [%d1];
        setp.eq.u32 %p2, %r3, 0; @%p2 bra POLL;
        ret;
    LAST: setp.ne.u32 %p1, %r60, 99; @%p1 exit;
        st.release.gpu.global.u32 [%d1], 1; ret;
    """
    flag = np.zeros(1, np.uint32)
    module = ptx.Module.parse(text(body))
    ptx.launch(module, "k", (100, 1, 1), (32, 1, 1), [np.zeros(1, np.uint32), flag, 0], multiprocessors=1)
    assert flag[0] == 1


def test_waiting_for_nobody_is_a_deadlock_at_any_size() -> None:
    for blocks in (8, 60):
        with pytest.raises(ptx.Deadlock, match="lanes poll memory that nothing will change"):
            chain(blocks, forwards=True, first=blocks // 2, multiprocessors=1)


def test_some_blocks_count_alone() -> None:
    """Of a grid that does not fit, a choice may."""
    with pytest.raises(ptx.CoResidencyError):
        chain(40, forwards=False, multiprocessors=1)
    assert chain(40, forwards=False, multiprocessors=1, blocks=range(20, 40)).tolist() == [0] * 19 + [1] * 21


def test_chips_of_targets() -> None:
    assert [chip_of(target).arch for target in ("sm_90a", "sm_90", "sm_100a", "sm_100f", "sm_120a", "sm_121")] == [
        "sm_90a", "sm_90a", "sm_100a", "sm_100a", "sm_120a", "sm_121a",
    ]  # fmt: skip
    # PTX for an older target, or for one that the table lacks, runs on newer chips: the smallest is a GB10.
    assert {chip_of(target).arch for target in ("sm_80", "sm_103a", "sm_130")} == {"sm_121a"}


@pytest.mark.parametrize(
    ("warps", "shared", "registers", "blocks"),
    [
        (1, 0, None, 32), (2, 0, None, 32), (3, 0, None, 21), (32, 0, None, 2),
        (1, 7 * 1024, None, 28), (1, 113 * 1024, None, 2), (1, 114 * 1024, None, 1), (1, 227 * 1024, None, 1),
        (8, 0, 32, 8), (8, 0, 33, 6), (8, 0, 128, 2), (8, 0, 255, 1),
    ],
)  # fmt: skip
def test_what_a_multiprocessor_of_an_h200_has_room_for(warps, shared, registers, blocks) -> None:
    assert residency(CHIPS["sm_90a"], warps, shared, registers, 132) == Residency(132, blocks)


def test_registers_count_where_the_kernel_states_them() -> None:
    flags = np.zeros(3, np.uint32)
    flags[2] = 1
    body = CHAIN.format(last=0, step=-4)
    module = ptx.Module.parse(text(body, directives=".maxnreg 128"))
    arguments = [np.zeros(1, np.uint32), flags, 0]
    with pytest.raises(ptx.CoResidencyError) as caught:
        ptx.launch(module, "k", (3, 1, 1), (256, 1, 1), arguments, multiprocessors=1)
    assert caught.value.resident == 2


@pytest.mark.parametrize("most", [31, 32, 1100, 1 << 21])
def test_versions_of_what_ctas_have(most: int) -> None:
    rng, versions = random.Random(most), [(ByCta(), dict[int, int]())]
    for value in range(300):
        held, wanted = rng.choice(versions[-3:])
        cta = rng.choice([rng.randrange(most), most - 1, 0, rng.choice([0, *wanted])])
        versions.append((held.having(cta, value), {**wanted, cta: value}))
    asked = {0, 1, 31, 32, 33, 1023, 1024, 1 << 25, *(cta for _, wanted in versions for cta in wanted)}
    for held, wanted in versions:
        assert bool(held) == bool(wanted)
        assert {cta: held.get(cta) for cta in asked} == {cta: wanted.get(cta) for cta in asked}
