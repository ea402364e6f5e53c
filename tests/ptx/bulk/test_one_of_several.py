"""Several copies that one thread issued of the same bytes, of which only some are waited for.

What is known of a copy under way is its thread. Two of one thread are still two: to wait for one says nothing of
the other. Each test has a form that waits for all, which is right, and forms that do not, which race.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from support.ptx_bulk import FENCE, Tensor, fill, run
from support.ptx_bulk import store as boxed

import refmoe
from refmoe import ptx

# %d0, %d1, %d2: three buffers of words; %r1: thread, %r3: the first of four barriers, %r4: the tile, whose words are 1.
TEXT = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c)
{{
    .reg .pred %p<16>; .reg .b32 %r<32>; .reg .b64 %d<32>;
    .shared .align 128 .b8 tile[512];
    .shared .align 8 .b8 bar[32];
    ld.param.u64 %d0, [a]; ld.param.u64 %d1, [b]; ld.param.u64 %d2, [c];
    mov.u32 %r1, %tid.x; mov.u32 %r3, bar; mov.u32 %r4, tile;
    setp.eq.u32 %p0, %r1, 0; setp.eq.u32 %p1, %r1, 32; setp.lt.u32 %p2, %r1, 2;
    @%p0 mbarrier.init.shared::cta.b64 [%r3], 1; @%p0 mbarrier.init.shared::cta.b64 [%r3+8], 1;
    @%p0 mbarrier.init.shared::cta.b64 [%r3+16], 1; @%p0 mbarrier.init.shared::cta.b64 [%r3+24], 1;
    @%p0 fence.mbarrier_init.release.cluster;
    mad.lo.u32 %r5, %r1, 4, %r4; st.shared.u32 [%r5], 1; st.shared.u32 [%r5+256], 1;
    fence.proxy.async.shared::cta;
    bar.sync 0;
{body}
END:
    ret;
}}
"""
COMMIT, DONE, READ = (
    "@%p0 cp.async.bulk.commit_group;",
    "@%p0 cp.async.bulk.wait_group 0;",
    "@%p0 cp.async.bulk.wait_group.read 0;",
)
# A word of the tile that is read reaches an output, so that a race on it is a fault.
RESULT = "@%p0 ld.shared.u32 %r6, [%r4+{at}]; @%p0 st.global.u32 [%d1], %r6;"


def expect(barrier: int, count: int = 128) -> str:
    return f"@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3+{8 * barrier}], {count};"


def load(to: int, source: str, barrier: int) -> str:
    """Thread 0 loads 128 bytes of global memory into the tile."""
    copy = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    return f"{expect(barrier)} @%p0 {copy} [%r4+{to}], [{source}], 128, [%r3+{8 * barrier}];"


def copy_in_shared_memory(to: int, source: int, barrier: int) -> str:
    copy = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    return f"{expect(barrier)} @%p0 {copy} [%r4+{to}], [%r4+{source}], 128, [%r3+{8 * barrier}];"


def combine_in_shared_memory(source: int, barrier: int, guard: str = "@%p0") -> str:
    """A thread adds 128 bytes of the tile to those from byte 128 on."""
    copy = "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32"
    return f"{guard} {copy} [%r4+128], [%r4+{source}], 128, [%r3+{8 * barrier}];"


def combine(at: int) -> str:
    """Thread 0 adds 128 bytes of the tile to global memory from byte `at` on, in a group."""
    return f"@%p0 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d0+{at}], [%r4], 128; {COMMIT}"


def store(register: str) -> str:
    """Thread 0 stores 128 bytes of the tile, in a group."""
    return f"@%p0 cp.async.bulk.global.shared::cta.bulk_group [{register}], [%r4], 128; {COMMIT}"


def copy_16(to: int, at: int = 0, width: int = 16) -> str:
    """Thread 0 copies bytes of global memory by `cp.async`, in a group."""
    level = "cg" if width == 16 else "ca"
    return f"@%p0 cp.async.{level}.shared.global [%r4+{to}], [%d0+{at}], {width}; cp.async.commit_group;"


def wait(barriers: Sequence[int], label: str, parity: int = 0) -> str:
    """All threads wait for phases."""
    return "".join(
        f"{label}{each}: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r3+{8 * each}], {parity}; "
        f"@!%p9 bra {label}{each};"
        for each in barriers
    )


def suspected(tile: str, barriers: str, first: int) -> str:
    """Reads of byte 256 that arrive at two barriers before it is written: one record cannot tell, so that all are kept.

    `first`: byte of the first of both barriers. %p2: threads 0 and 1; %p3: thread 32.
    """
    arrive = "mbarrier.arrive.shared::cta.b64 _,"
    return f"""@%p2 ld.shared.u32 %r9, [{tile}+256]; setp.eq.u32 %p6, %r1, 1;
        @%p0 {arrive} [{barriers}+{first}]; @%p6 {arrive} [{barriers}+{first + 8}];
    S0: mbarrier.try_wait.parity.shared::cta.b64 %p9, [{barriers}+{first}], 0; @!%p9 bra S0;
    S1: mbarrier.try_wait.parity.shared::cta.b64 %p9, [{barriers}+{first + 8}], 0; @!%p9 bra S1;
        @%p3 st.shared.u32 [{tile}+256], 3; bar.sync 0;
    """


def launch(body: str, schedules: int | None = None) -> list[np.ndarray]:
    buffers = [np.ones(128, np.uint32) for _ in range(3)]
    refmoe.run_ptx(TEXT.format(body=body), grid=1, block=64, args=buffers, schedules=schedules)
    return buffers


def judge(body: str, right: bool) -> None:
    """A right body is clean whatever the schedule; in a wrong one the race is found with and without schedules."""
    if right:
        launch(body, schedules=4)
        return
    for schedules in (None, 4):
        with pytest.raises(ptx.RaceError, match="race"):
            launch(body, schedules)


SOME = pytest.mark.parametrize("waited", [(0,), (1,), (0, 1)], ids=["the first", "the second", "both"])
WHO = pytest.mark.parametrize("who", ["@%p0", "@%p1"], ids=["its thread", "another"])


@SOME
@WHO
@pytest.mark.parametrize("other", ["%d0", "%d0+64"], ids=["all", "a part"])
def test_loads_of_one_source(other: str, who: str, waited: tuple[int, ...]) -> None:
    issued = load(0, "%d0", 0) + load(128, other, 1)
    body = issued + wait(waited, "W") + f"{who} st.global.u32 [%d0+64], 7;" + wait((0, 1), "E")
    judge(body, waited == (0, 1))


@pytest.mark.parametrize("missing", [None, 0, 1, 2, 3])
def test_four_loads_of_one_source(missing: int | None) -> None:
    issued = "".join(load(128 * number, "%d0", number) for number in range(4))
    waited = [number for number in range(4) if number != missing]
    body = issued + wait(waited, "W") + "@%p0 st.global.u32 [%d0+64], 7;" + wait(range(4), "E")
    judge(body, missing is None)


@SOME
@pytest.mark.parametrize("writer", [0, 1])
def test_loads_of_two_lanes_by_one_instruction(writer: int, waited: tuple[int, ...]) -> None:
    body = (
        "shl.b32 %r10, %r1, 7; add.u32 %r10, %r10, %r4; shl.b32 %r11, %r1, 3; add.u32 %r11, %r11, %r3;"
        "@%p2 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 128;"
        "@%p2 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10], [%d0], 128, [%r11];"
        + wait(waited, "W")
        + f"setp.eq.u32 %p5, %r1, {writer}; @%p5 st.global.u32 [%d0+64], 7;"
        + wait((0, 1), "E")
    )
    judge(body, waited == (0, 1))


@SOME
def test_copies_out_of_shared_memory(waited: tuple[int, ...]) -> None:
    issued = copy_in_shared_memory(128, 0, 0) + copy_in_shared_memory(256, 0, 1)
    judge(issued + wait(waited, "W") + "@%p0 st.shared.u32 [%r4+64], 7;" + wait((0, 1), "E"), waited == (0, 1))


def test_what_has_landed_beside_what_is_under_way() -> None:
    # Thread 32 knows the end of the first copy alone, though the second one landed before.
    issued = copy_in_shared_memory(128, 0, 0) + copy_in_shared_memory(256, 0, 1)
    first = "@!%p0 bra OTHER;" + wait((1,), "W") + "st.relaxed.gpu.global.u32 [%d1], 7; bra END; OTHER: @!%p1 bra END;"
    poll = "POLL: ld.relaxed.gpu.global.u32 %r9, [%d1]; setp.ne.u32 %p5, %r9, 7; @%p5 bra POLL;"
    judge(issued + first + poll + wait((0,), "E") + "st.shared.u32 [%r4+64], 7;", False)


@SOME
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("how", [READ, DONE], ids=["read", "complete"])
def test_a_copy_that_a_barrier_counts_and_one_of_a_group(how: str, first: int, waited: tuple[int, ...]) -> None:
    copies, waits = (copy_in_shared_memory(128, 0, 0), store("%d0")), (wait((0,), "W"), how)
    body = copies[first] + copies[1 - first] + "".join(waits[number] for number in waited)
    judge(body + "@%p0 st.shared.u32 [%r4+64], 7;" + wait((0,), "E") + DONE, waited == (0, 1))


@pytest.mark.parametrize("left", [0, 1, 2])
@pytest.mark.parametrize("count", [2, 5])
def test_stores_of_one_source(count: int, left: int) -> None:
    issued = "".join(store(f"%d{number % 3}+{128 * (number // 3)}") for number in range(count))
    waits = f"@%p0 cp.async.bulk.wait_group.read {left};"
    judge(issued + waits + "@%p0 st.shared.u32 [%r4+64], 7;" + DONE, left == 0)


USES = {
    "load": "{0} ld.global.u32 %r6, [%d0+64]; {0} st.global.u32 [%d1], %r6;",
    "store": "{0} st.global.u32 [%d0+64], 7;",
    "red": "{0} red.global.add.u32 [%d0+64], 1;",
}


@WHO
@pytest.mark.parametrize("use", list(USES))
@pytest.mark.parametrize(
    ("at", "left", "right"),
    [(0, 0, True), (0, 1, False), (0, 2, False), (32, 1, False), (128, 2, True), (128, 3, False)],
)
def test_groups_that_combine(at: int, left: int, right: bool, use: str, who: str) -> None:
    # Of three groups the second one is of other bytes, of some of them, or of the same.
    issued = combine(0) + combine(at) + (combine(0) if at < 128 else combine(at))
    body = issued + f"@%p0 cp.async.bulk.wait_group {left}; bar.sync 0;" + USES[use].format(who) + DONE
    judge(body, right)


@pytest.mark.parametrize("use", list(USES))
def test_only_the_one_in_the_middle_is_of_other_bytes(use: str) -> None:
    issued = combine(0) + combine(256) + combine(0)
    judge(issued + "@%p0 cp.async.bulk.wait_group 1;" + USES[use].format("@%p0") + DONE, False)


@pytest.mark.parametrize("waits_for_both", [False, True])
def test_two_phases_of_a_barrier_count_copies_that_combine(waits_for_both: bool) -> None:
    result = RESULT.format(at=192)
    issued = expect(0) + combine_in_shared_memory(0, 0) + combine_in_shared_memory(256, 0)
    body = issued + wait((0,), "W") + "bar.sync 0;" + ("" if waits_for_both else result) + expect(0)
    judge(body + wait((0,), "E", 1) + (result if waits_for_both else ""), waits_for_both)


@SOME
@WHO
def test_two_barriers_count_copies_that_combine(who: str, waited: tuple[int, ...]) -> None:
    issued = (
        expect(0) + expect(1) + "bar.sync 0;" + combine_in_shared_memory(0, 0) + combine_in_shared_memory(256, 1, who)
    )
    judge(issued + wait(waited, "W") + RESULT.format(at=192) + wait((0, 1), "E"), waited == (0, 1))


@WHO
@pytest.mark.parametrize(("count", "left"), [(2, 0), (2, 1), (2, 2), (3, 0), (3, 1), (3, 2)])
def test_cp_async_of_one_source(count: int, left: int, who: str) -> None:
    issued = "".join(copy_16(16 * number) for number in range(count))
    written = f"cp.async.wait_group {left}; bar.sync 0; {who} st.global.u32 [%d0+4], 7; cp.async.wait_group 0;"
    results = "".join(f"@%p0 ld.shared.u32 %r{6 + n}, [%r4+{16 * n + 4}];" for n in range(count))
    total = "add.u32 %r6, %r6, %r7;" + ("add.u32 %r6, %r6, %r8;" if count == 3 else "")
    judge(issued + written + results + total + "@%p0 st.global.u32 [%d1], %r6;", left == 0)


@pytest.mark.parametrize("left", [0, 1])
def test_cp_async_of_a_part_of_what_another_reads(left: int) -> None:
    body = copy_16(0) + copy_16(64, 4, 4) + f"cp.async.wait_group {left}; @%p0 st.global.u32 [%d0+4], 7;"
    judge(body + "cp.async.wait_group 0;" + RESULT.format(at=64), left == 0)


def test_a_copy_behind_one_that_is_complete() -> None:
    # The first one's end is the second one's business no more.
    body = load(0, "%d0", 0) + wait((0,), "W") + load(128, "%d0", 1) + wait((1,), "W") + "@%p0 st.global.u32 [%d0], 7;"
    judge(body, True)


def test_a_thousand_additions_of_one_source() -> None:
    """Nothing grows with their number."""
    adds = f"""mov.u32 %r10, 0;
    NEXT: {combine(0)} add.u32 %r10, %r10, 1; setp.lt.u32 %p5, %r10, 1000; @%p5 bra NEXT;"""
    assert launch(adds + DONE)[0][:33].tolist() == [1001] * 32 + [1]


@pytest.mark.parametrize("missing", [None, 0, 1, 2, 3])
def test_loads_of_four_lanes_by_one_instruction(missing: int | None) -> None:
    waited = [number for number in range(4) if number != missing]
    body = (
        "setp.lt.u32 %p2, %r1, 4; shl.b32 %r10, %r1, 7; add.u32 %r10, %r10, %r4; shl.b32 %r11, %r1, 3;"
        "add.u32 %r11, %r11, %r3; @%p2 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 128;"
        "@%p2 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10], [%d0], 128, [%r11];"
        + wait(waited, "W")
        + "@%p1 st.global.u32 [%d0+64], 7;"
        + wait(range(4), "E")
    )
    judge(body, missing is None)


@pytest.mark.parametrize("left", [0, 1])
def test_a_part_of_a_box_that_is_not_in_the_tensor(left: int) -> None:
    """The end of a copy is no end of what it did not read: of four rows of its box two lie outside the tensor."""
    tensor = Tensor("u8", 8, (64, 2), (64,), (32, 4), (1, 1))
    memory = ptx.DeviceMemory()
    target, source = ptx.Buffer(np.zeros(256, np.uint8), "target"), ptx.Buffer(np.ones(512, np.uint8), "source")
    address = memory.place(target)
    body = (
        fill(512)
        + "@%p0 mbarrier.init.shared::cta.b64 [%r7+8], 1; @%p0 mbarrier.init.shared::cta.b64 [%r7+16], 1;"
        + FENCE
        + "bar.sync 0; setp.lt.u32 %p2, %r1, 2; setp.eq.u32 %p3, %r1, 32;"
        + suspected("%r8", "%r7", 8)
        + boxed(2)
        + COMMIT
        + f"@%p0 cp.async.bulk.global.shared::cta.bulk_group [%d0+128], [%r8], 128; {COMMIT}"
        + f"@%p0 cp.async.bulk.wait_group.read {left}; @%p0 st.shared.u8 [%r8+96], 9; {DONE}"
    )
    arguments = {"tensor_map": tensor.encode(address), "coordinates": (0, 0), "memory": memory}
    if left:
        with pytest.raises(ptx.RaceError, match="read-write race on byte 96"):
            run(body, source, **arguments)
    else:
        run(body, source, **arguments)


def test_a_copy_behind_a_store_that_a_barrier_counts() -> None:
    body = (
        "setp.eq.u32 %p3, %r1, 32;"
        + suspected("%r4", "%r3", 16)
        + "mapa.shared::cluster.u32 %r12, %r4, 0; mapa.shared::cluster.u32 %r13, %r3, 0;"
        + expect(0, 4)
        + "@%p0 st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r12], 5, [%r13];"
        + wait((0,), "W")
        + "bar.sync 0;"
        + copy_16(0)
        + "cp.async.wait_group 0; bar.sync 0;"
        + RESULT.format(at=0)
    )
    launch(body)


def test_a_copy_of_what_a_non_coherent_load_reads() -> None:
    # PTX ISA, `ld.global.nc`: nothing orders what it reads before a write of the same grid.
    load_ = "@%p0 ld.global.nc.u32 %r14, [%d0]; @%p0 st.global.u32 [%d2], %r14;"
    copied = copy_16(0, 0, 4) + "cp.async.wait_group 0;"
    for body in (load_, load_ + copied, copied + load_):
        judge(body + "bar.sync 0; @%p1 st.global.u32 [%d0], 7;", False)
