"""Programs whose outcomes tell in which order lanes and branches ran."""

from __future__ import annotations

# Two branches of a warp write one word.
BRANCHES = """
    setp.lt.u32 %p1, %r1, 16;
    @%p1 bra ONE;
    st.volatile.global.u32 [%d0], 2;
    bra END;
ONE: st.volatile.global.u32 [%d0], 1;
END: ret;
"""

# All lanes poll for what one of them writes inside of the same loop.
POLL = """
L:
    setp.eq.u32 %p1, %r1, {producer};
    @%p1 st.relaxed.gpu.global.u32 [%d1], 1;
    ld.relaxed.gpu.global.u32 %r5, [%d1];
    setp.eq.u32 %p2, %r5, 0;
    @%p2 bra L;
    st.global.u32 [%d2], %r5;
    ret;
"""
