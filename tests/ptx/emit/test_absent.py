"""What PTX has and the executor has not: the message of the lane that reaches it says why, and where."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import line_of, run

from refmoe import ptx

# Each is taken by ptxas, for the target.
ABSENT = [
    ("sm_100a", "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3], 32;", "tensor memory"),
    ("sm_100a", "multimem.red.global.add.f32 [%d3], %r3;", "several GPUs"),
    (
        "sm_100a",
        "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.s32.s8.s8.s32 {%r10, %r11, %r12, %r13},"
        " {%r3, %r4, %r5, %r6}, {%r3, %r4, %r5, %r6}, {%r10, %r11, %r12, %r13}, %r8, 0x0;",
        "sparse products are here by wgmma alone",
    ),
    (
        "sm_100a",
        "mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f16 {%r4, %r5, %r6, %r7}, {%r3, %r8}, {%r9, %r10},"
        " {%r4, %r5, %r6, %r7};",
        "Volta",
    ),
    (
        "sm_100a",
        "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%r4, %r5}, {%r6, %r7}, {%r8}, {%r4, %r5};",
        "no model here says how products of these types and this shape add up",
    ),
    (
        "sm_120a",
        "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e3m2.e4m3.f32 {%r3, %r4, %r5, %r6},"
        " {%r7, %r8, %r9, %r10}, {%r11, %r12}, {%r3, %r4, %r5, %r6};",
        "no model here says how products of these types and this shape add up",
    ),
    ("sm_100a", "cvt.rs.satfinite.e4m3x4.f32 %r3, {%r4, %r5, %r6, %r7}, %r8;", "not four"),
    ("sm_100a", "st.async.mmio.release.sys.global.u32 [%d3], %r3;", "shared memory of the cluster alone"),
    ("sm_100a", "cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%d3], [%r3], %r4, %h3;", "by a mask"),
    (
        "sm_100a",
        "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes"
        " [%r3], [%d3, {%r4, %r5, %r6, %r7, %r8}], [%r9];",
        "rows by their numbers",
    ),
    (
        "sm_100a",
        "cp.async.bulk.tensor.3d.shared::cta.global.im2col::w.mbarrier::complete_tx::bytes"
        " [%r3], [%d3, {%r4, %r5, %r6}], [%r9], {%h3, %h4};",
        "along the width alone",
    ),
    (
        "sm_100a",
        "cp.async.bulk.tensor.1d.shared::cta.global.tile.mbarrier::complete_tx::bytes.cta_group::1"
        " [%r3], [%d3, {%r4}], [%r9];",
        "pairs of blocks",
    ),
]


@pytest.mark.parametrize(("target", "instruction", "reason"), ABSENT, ids=[each[1].split()[0] for each in ABSENT])
def test_the_message_says_why(target: str, instruction: str, reason: str) -> None:
    body = f"setp.eq.u32 %p1, %r1, 9; @!%p1 bra DONE; {instruction} DONE: ret;"
    with pytest.raises(ptx.UnknownOpcode, match=reason) as caught:
        run(body, np.zeros(32, np.uint32), target=target)
    opcode = instruction.split()[0]
    line = line_of(body, opcode, target=target)
    assert (caught.value.opcode, caught.value.line, caught.value.thread) == (opcode, line, (9, 0, 0))
    assert f"cannot execute {opcode} (" in str(caught.value)
    assert f"test.ptx:{line}" in str(caught.value)


@pytest.mark.parametrize("opcode", ["add.rn.s32", "multimemory.red", "st.async.shared::cluster.b32", "cvt.rs.f32.f32"])
def test_what_ptx_has_not_either_is_unknown(opcode: str) -> None:
    with pytest.raises(ptx.UnknownOpcode, match=f"unknown opcode {opcode};"):
        run(f"{opcode} %r3, %r4, %r5; ret;", np.zeros(1, np.uint32))
