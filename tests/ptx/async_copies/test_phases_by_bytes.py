"""Bytes of one instruction may complete one phase of a barrier and begin the next, in pieces of 64 of a warp.

`test_gpu.py` holds the same against a GPU.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import text
from support.selection.thinned import thinned

from refmoe import ptx

# 64 lanes add 1 to a word each of the other block, or all to one; its barrier expects {first} bytes, then the rest.
BODY = """
    mov.u32 %r3, words; mov.u32 %r4, barrier; shl.b32 %r5, %r1, {shift}; and.b32 %r5, %r5, 255; add.u32 %r5, %r5, %r3;
    st.shared.u32 [%r5], 1;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra READY;
    mbarrier.init.shared.b64 [%r4], 1;
    mbarrier.arrive.expect_tx.shared.b64 %d5, [%r4], {first};
READY:
    barrier.cluster.arrive; barrier.cluster.wait;
    mov.u32 %r6, %cluster_ctarank; xor.b32 %r6, %r6, 1;
    mapa.shared::cluster.u32 %r7, %r5, %r6; mapa.shared::cluster.u32 %r8, %r4, %r6;
    red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r7], 1, [%r8];
FIRST:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r4], 0;
    @!%p2 bra FIRST;
    bar.sync 0;
    @!%p1 mbarrier.arrive.expect_tx.shared.b64 %d5, [%r4], {second};
SECOND:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r4], 1;
    @!%p2 bra SECOND;
    ld.shared.u32 %r9, [%r5]; st.global.u32 [%d2], %r9;
    barrier.cluster.arrive; barrier.cluster.wait;
    ret;
"""
DECLARED = ".shared .align 8 .b64 barrier; .shared .align 64 .b8 words[256];"
IN_A_ROW, ONE_WORD = 2, 8


def launch(first: int, schedule: int, shift: int = IN_A_ROW) -> list[int]:
    body = BODY.format(first=first, second=256 - first, shift=shift)
    module, out = ptx.Module.parse(text(body, declarations=DECLARED, target="sm_90a")), np.zeros(128, np.uint32)
    ptx.launch(
        module, "k", (2, 1, 1), (64, 1, 1), [out, None, 0], step_budget=20_000, schedule=schedule, cluster=(2, 1, 1)
    )
    return out.tolist()


@pytest.mark.parametrize("schedule", [0, 1, 3, 7])
@pytest.mark.parametrize("first", thinned([64, 128, 192], 3))
def test_bytes_beyond_a_phase_are_of_the_next_one(first: int, schedule: int) -> None:
    assert launch(first, schedule) == [2] * 128


# Under schedule 3 some lanes of a warp run before the others.
@pytest.mark.parametrize("schedule", [0, 1, 7])
@pytest.mark.parametrize("first", [4, 100, 124, 252])
def test_a_phase_that_would_end_inside_of_a_piece_does_not_end(first: int, schedule: int) -> None:
    with pytest.raises(ptx.Deadlock, match="phase 0"):
        launch(first, schedule)


@pytest.mark.parametrize("first", thinned([4, 100, 124, 252], 2))
def test_bytes_of_one_place_come_one_after_another(first: int) -> None:
    for schedule in (0, 1, 3, 7):
        assert launch(first, schedule, ONE_WORD) == [65] * 128
