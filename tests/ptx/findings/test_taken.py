"""The accesses that a witness took down, found again: held against a search through all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from refmoe import ptx
from refmoe.ptx.engine.order.taken import Sought, TakenAccesses
from refmoe.ptx.state.records import PENDING
from refmoe.ptx.text.syntax import Instruction

LINES = 12
OPCODES = ("st.shared.u32", "ld.shared.u32", "atom.shared.add.u32", "cp.async.bulk.shared", "st.async.b32")


def instruction(line: int) -> Instruction:
    return Instruction(OPCODES[line % len(OPCODES)], (), None, False, line, None, (), "")


@dataclass
class Access:
    """One access of one thread, as it was taken down."""

    line: int
    step: int
    begin: int
    width: int
    thread: int
    writes: bool
    reads: bool


def searched(accesses: list[Access], sought: Sought) -> int | None:
    """The line of the access that is sought, by looking at each from the last to the first."""
    best, found = (False, False, -1), None
    for each in reversed(accesses):
        copies = OPCODES[each.line % len(OPCODES)].startswith(("cp.async.bulk", "st.async"))
        same = copies if sought.thread is None else each.thread == sought.thread
        late = each.step > sought.step and sought.step != PENDING
        if late or not same or not each.begin <= sought.byte < each.begin + each.width:
            continue
        rank = (each.step == sought.step, each.writes if sought.writes else each.reads, each.step)
        if rank > best:
            best, found = rank, each.line
    return found


@pytest.mark.parametrize("seed", range(6))
def test_every_search_finds_what_a_search_through_all_finds(seed: int) -> None:
    random = np.random.default_rng(seed)
    taken, accesses, step, hits = TakenAccesses(1 << 20), [], 0, 0
    for _ in range(60):
        for _ in range(int(random.integers(1, 4))):
            step += int(random.integers(0, 2))
            line, width = int(random.integers(LINES)), int(2 ** random.integers(0, 5))
            writes = bool(random.integers(2))
            reads = not writes or bool(random.integers(2))
            count = int(random.integers(1, 9))
            begin, threads = random.integers(0, 24, count) * width, random.integers(0, 5, count)
            taken.add(instruction(line), step, begin, width, threads, writes, reads)
            accesses += [
                Access(line, step, int(b), width, int(t), writes, reads) for b, t in zip(begin, threads, strict=True)
            ]
        for _ in range(4):
            thread = None if random.random() < 0.2 else int(random.integers(0, 6))
            when = PENDING if random.random() < 0.2 else int(random.integers(0, step + 2))
            sought = Sought(int(random.integers(0, 100)), thread, when, bool(random.integers(2)))
            found, expected = taken.find(sought), searched(accesses, sought)
            assert (None if found is None else found.line) == expected, sought
            hits += found is not None
    assert hits > 40


def test_the_oldest_are_forgotten() -> None:
    taken = TakenAccesses(8)
    for line in range(6):
        taken.add(instruction(line), line, np.arange(4) * 4, 4, np.arange(4), True, False)
    sought = Sought(0, 0, 0, True)
    assert taken.find(sought) is None
    assert taken.find(replace(sought, step=4)) == instruction(4)
    assert taken.find(replace(sought, step=PENDING)) == instruction(5)


def test_the_arrays_may_change_behind_it() -> None:
    taken, begin, threads = TakenAccesses(8), np.zeros(1, np.int64), np.zeros(1, np.int64)
    taken.add(instruction(1), 1, begin, 4, threads, True, False)
    begin[0] = threads[0] = 9
    assert taken.find(Sought(0, 0, 1, True)) == instruction(1)


def test_a_tile_that_every_thread_reads_is_explained_though_all_of_it_is_hit() -> None:
    # 256 threads read 64 words each, 8 times: 16,384 accesses behind each of 2,048 races.
    lines = "\n".join(f"ld.shared.u32 %r5, [tile+{4 * word}]; add.u32 %r3, %r3, %r5;" for word in range(64))
    text = f"""
.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out)
{{
    .reg .pred %p<2>;
    .reg .b32 %r<9>;
    .reg .b64 %d<4>;
    .shared .align 4 .b8 tile[1024];
    ld.param.u64 %d0, [out];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, tile;
    shl.b32 %r4, %r1, 2;
    add.u32 %r2, %r2, %r4;
    mov.u32 %r3, 0;
    mov.u32 %r6, 0;
again:
    add.u32 %r7, %r1, %r6;
    st.shared.u32 [%r2], %r7;
    bar.sync 0;
{lines}
    add.u32 %r6, %r6, 1;
    setp.lt.u32 %p1, %r6, 8;
    @%p1 bra again;
    cvt.u64.u32 %d1, %r4;
    add.u64 %d0, %d0, %d1;
    st.global.u32 [%d0], %r3;
    ret;
}}
"""
    with pytest.raises(ptx.RaceError) as caught:
        ptx.launch(ptx.Module.parse(text), "k", (1, 1, 1), (256, 1, 1), [np.zeros(256, np.uint32)])
    found = caught.value.finding
    assert found is not None
    assert found.earlier is not None
    assert found.earlier.text.startswith("ld.shared.u32")
    assert found.clean
    assert "__syncthreads()" in found.remedy
