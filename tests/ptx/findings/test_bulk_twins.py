"""What is said of a bulk copy that every lane of a warp issues."""

from __future__ import annotations

import numpy as np

import refmoe

TEXT = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 a)
{
    .reg .b32 %r<4>; .reg .b64 %d<2>;
    .shared .align 128 .b8 tile[128];
    ld.param.u64 %d0, [a];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, tile;
    mad.lo.u32 %r3, %r1, 4, %r2;
    st.shared.u32 [%r3], %r1;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r2], 128;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
    ret;
}
"""


def test_one_lane_is_to_be_elected() -> None:
    tile = np.zeros(32, np.uint32)
    (warning,) = refmoe.run_ptx(TEXT, block=32, args=[tile]).warnings
    assert warning.finding is not None
    assert warning.finding.missing == "the choice of one lane: each of several issues this copy"
    assert str(warning.finding.remedy).startswith("elect.sync")
    assert not warning.finding.tried
