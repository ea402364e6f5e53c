"""Divergence and reconvergence, loops, switches, calls, and who waits for whom."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import compile_cuda, line_of, run

from refmoe import ptx
from refmoe.ptx import launcher


@pytest.mark.parametrize("fence", ["", "membar.cta;"], ids=["native branch", "branch in Python"])
def test_loops_with_different_trip_counts(fence: str) -> None:
    # Lane t adds 1 + 2 + ... + t: every lane leaves the loop at another time.
    body = f"""
        mov.u32 %r3, 0; mov.u32 %r4, 0;
    LOOP:
        setp.ge.u32 %p1, %r4, %r1;
        {fence}
        @%p1 bra DONE;
        add.u32 %r4, %r4, 1;
        add.u32 %r3, %r3, %r4;
        bra LOOP;
    DONE:
        st.global.u32 [%d2], %r3;
        ret;
    """
    out = np.zeros(96, np.uint32)
    run(body, out, block=(96, 1, 1))
    t = np.arange(96)
    np.testing.assert_array_equal(out, t * (t + 1) // 2)


def test_lanes_meet_again_after_a_loop() -> None:
    # The block behind the loop must run once for all lanes of a warp, not once for each trip count.
    body = """
        mov.u32 %r4, 0;
    LOOP:
        add.u32 %r4, %r4, 1;
        setp.le.u32 %p1, %r4, %r1;
        @%p1 bra LOOP;
        activemask.b32 %r5;
        st.global.u32 [%d2], %r5;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out)
    assert (out == 0xFFFFFFFF).all()


@pytest.mark.parametrize("leave", ["@%p1 bra DONE;", "@!%p1 bra BODY; bra DONE;"])
def test_lanes_meet_again_after_a_loop_of_two_blocks(leave: str) -> None:
    body = f"""
        mov.u32 %r4, 0;
    HEAD:
        setp.ge.u32 %p1, %r4, %r1;
        {leave}
    BODY:
        add.u32 %r4, %r4, 1;
        bra HEAD;
    DONE:
        activemask.b32 %r5;
        st.global.u32 [%d2], %r5;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out)
    assert (out == 0xFFFFFFFF).all()


def test_cold_block_behind_ret_meets_again() -> None:
    # nvcc lays unlikely code behind ret: its position in the text says nothing about its priority.
    body = """
        and.b32 %r3, %r1, 1;
        setp.eq.u32 %p1, %r3, 1;
        mov.u32 %r4, 10;
        @%p1 bra COLD;
    BACK:
        activemask.b32 %r5;
        setp.eq.u32 %p2, %r5, 0xFFFFFFFF;
        selp.u32 %r6, 1000, 0, %p2;
        add.u32 %r4, %r4, %r6;
        st.global.u32 [%d2], %r4;
        ret;
    COLD:
        mov.u32 %r4, 20;
        bra BACK;
    """
    out = np.zeros(32, np.uint32)
    run(body, out)
    np.testing.assert_array_equal(out, np.where(np.arange(32) % 2, 1020, 1010))


CONTROL = """
extern "C" __global__ void k(int* out, const int* in, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    int a = in[t], r = 0;
    for (int i = 0; i < a; ++i) {
        if (i == 7) continue;
        if (i > 12) break;
        for (int j = i; j < a; j += 3) {
            if ((i ^ j) & 1) r += j; else r -= i;
            if (r > 100) goto out;
        }
    }
out:
    switch (a % 9) {
        case 0: r += 1; break;
        case 1: r ^= 0x55;
        case 2: r *= 3; break;
        case 3: r -= t; break;
        case 4: r = -r; break;
        case 5: r <<= 2; break;
        case 6: r |= 1 << 20; break;
        case 7: r = a; break;
    }
    out[t] = r;
}
"""


def _control(a: int, t: int) -> int:
    r = 0

    def loops() -> int:
        nonlocal r
        for i in range(a):
            if i == 7:
                continue
            if i > 12:
                break
            for j in range(i, a, 3):
                r = r + j if (i ^ j) & 1 else r - i
                if r > 100:
                    return r
        return r

    loops()
    case = a % 9
    if case == 0:
        r += 1
    elif case in (1, 2):
        r = (r ^ 0x55 if case == 1 else r) * 3
    elif case == 3:
        r -= t
    elif case == 4:
        r = -r
    elif case == 5:
        r <<= 2
    elif case == 6:
        r |= 1 << 20
    elif case == 7:
        r = a
    return r


def test_nested_control_flow_of_the_real_compiler(tmp_path) -> None:
    module = compile_cuda(CONTROL, tmp_path)
    n = 300
    a = np.random.default_rng(1).integers(0, 40, n).astype(np.int32)
    out = np.zeros(n, np.int32)
    ptx.launch(module, "k", (3, 1, 1), (128, 1, 1), [out, a, n])
    np.testing.assert_array_equal(out, [_control(int(v), t) for t, v in enumerate(a)])


def test_indexed_branch() -> None:
    body = """
        and.b32 %r3, %r1, 3;
        T: .branchtargets A, B, C, A;
        brx.idx %r3, T;
    A:  mov.u32 %r4, 100; bra END;
    B:  mov.u32 %r4, 200; bra END;
    C:  mov.u32 %r4, 300;
    END: st.global.u32 [%d2], %r4;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out)
    np.testing.assert_array_equal(out, np.array([100, 200, 300, 100])[np.arange(32) % 4])


def test_indexed_branch_beyond_its_table() -> None:
    body = "T: .branchtargets A, A; brx.idx %r1, T; A: ret;"
    with pytest.raises(ptx.WarpError, match="branch index 2 beyond") as caught:
        run(body, np.zeros(32, np.uint32))
    assert caught.value.thread == (2, 0, 0)


CALLS = """
__device__ __noinline__ float scale(float x, int t) { if (t & 1) return x; return x * 2.0f; }
__device__ __noinline__ float twice(float x, int t) { return scale(x, t) + scale(x, t + 1); }
extern "C" __global__ void k(float* out, const float* in, int n) {
    int t = threadIdx.x;
    if (t < n) out[t] = twice(in[t], t);
}
"""


def test_direct_calls(tmp_path) -> None:
    module = compile_cuda(CALLS, tmp_path)
    x = np.arange(40, dtype=np.float32)
    out = np.zeros(40, np.float32)
    ptx.launch(module, "k", (1, 1, 1), (64, 1, 1), [out, x, 40])
    assert (out == x * 3).all()


@pytest.mark.parametrize(("guard", "called"), [("@%p1", range(8)), ("@!%p1", range(8, 32))])
def test_a_guarded_call_runs_where_its_guard_is_on(guard: str, called: range) -> None:
    callee = """
        .func store(.param .b64 address) {
            .reg .b64 %a;
            ld.param.b64 %a, [address];
            st.u32 [%a], 9;
            ret;
        }
    """
    body = f"""
        setp.lt.u32 %p1, %r1, 8;
        {{ .param .b64 a; st.param.b64 [a], %d2; {guard} call.uni store, (a); }}
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out, module_scope=callee)
    assert np.flatnonzero(out).tolist() == list(called)


SPIN = """
    mov.u32 %r3, 0;
    setp.eq.u32 %p1, %r1, {writer};
    @%p1 bra WRITER;
WAIT:
    ld.relaxed.gpu.global.u32 %r4, [%d1];
    setp.eq.u32 %p2, %r4, 0;
    @%p2 bra WAIT;
    st.global.u32 [%d2], %r4;
    ret;
WRITER:
    mov.u32 %r5, 7;
    st.relaxed.gpu.global.u32 [%d1], %r5;
    st.global.u32 [%d2], %r5;
    ret;
"""


@pytest.mark.parametrize("writer", [0, 5, 31, 40, 63])
def test_spinning_lanes_do_not_starve_the_one_they_wait_for(writer: int) -> None:
    # The spinning place comes before the writer's in scheduling order, in the same warp and in another.
    out = np.zeros(64, np.uint32)
    run(SPIN.format(writer=writer), out, np.zeros(1, np.uint32), block=(64, 1, 1))
    assert (out == 7).all()


def test_spin_lock_between_all_lanes() -> None:
    # A lock taken by every lane in turn; without fairness the lane that holds it never runs again.
    body = """
    TRY:
        atom.global.cas.b32 %r3, [%d1], 0, 1;
        setp.ne.u32 %p1, %r3, 0;
        @%p1 bra TRY;
        ld.volatile.global.u32 %r4, [%d0];
        add.u32 %r4, %r4, 1;
        st.volatile.global.u32 [%d0], %r4;
        membar.gl;
        atom.global.exch.b32 %r5, [%d1], 0;
        ret;
    """
    out = np.zeros(1, np.uint32)
    run(body, out, np.zeros(1, np.uint32), block=(64, 1, 1), grid=(2, 1, 1))
    assert out[0] == 128


def test_a_cta_waits_for_one_that_starts_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "LANES_AT_ONCE", 32)
    body = """
        setp.eq.u32 %p1, %r60, 3;
        @%p1 bra WRITER;
    WAIT:
        ld.volatile.global.u32 %r4, [%d1];
        setp.eq.u32 %p2, %r4, 0;
        @%p2 bra WAIT;
        bra END;
    WRITER:
        mov.u32 %r4, 9;
        st.volatile.global.u32 [%d1], %r4;
    END:
        st.global.u32 [%d2], %r4;
        ret;
    """
    out = np.zeros(128, np.uint32)
    run(body, out, np.zeros(1, np.uint32), grid=(4, 1, 1), step_budget=None)
    assert (out == 9).all()


def test_polling_that_nothing_will_end_is_a_deadlock() -> None:
    body = """
    WAIT:
        ld.volatile.global.u32 %r4, [%d1];
        setp.eq.u32 %p2, %r4, 0;
        @%p2 bra WAIT;
        ret;
    """
    with pytest.raises(ptx.Deadlock, match="poll memory that nothing will change"):
        run(body, np.zeros(32, np.uint32), np.zeros(1, np.uint32), step_budget=None)


def test_a_polling_loop_that_gives_up_is_no_deadlock() -> None:
    body = """
        mov.u32 %r3, 0;
    WAIT:
        ld.volatile.global.u32 %r4, [%d1];
        add.u32 %r3, %r3, 1;
        setp.lt.u32 %p2, %r3, 3000;
        @%p2 bra WAIT;
        st.global.u32 [%d2], %r3;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out, np.zeros(1, np.uint32), step_budget=None)
    assert (out == 3000).all()


def test_step_budget() -> None:
    with pytest.raises(ptx.StepBudgetExceeded, match="more than 50 steps"):
        run("L: add.u32 %r3, %r1, 1; bra L;", np.zeros(32, np.uint32), step_budget=50)


def test_trap_names_the_lane() -> None:
    body = "setp.eq.u32 %p1, %r1, 9;\n@%p1 trap;\nret;"
    with pytest.raises(ptx.Trap) as caught:
        run(body, np.zeros(32, np.uint32))
    assert (caught.value.thread, caught.value.line) == ((9, 0, 0), line_of(body, "trap"))


def test_guarded_exit_and_ret() -> None:
    body = """
        setp.lt.u32 %p1, %r1, 8;
        @%p1 exit;
        setp.gt.u32 %p1, %r1, 20;
        @%p1 ret;
        mov.u32 %r3, 1;
        st.global.u32 [%d2], %r3;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out)
    t = np.arange(32)
    np.testing.assert_array_equal(out, (t >= 8) & (t <= 20))


def test_guards_keep_the_old_value() -> None:
    body = """
        setp.lt.u32 %p1, %r1, 16;
        mov.u32 %r3, 1;
        @%p1 mov.u32 %r3, 2;
        @!%p1 add.u32 %r3, %r3, 5;
        st.global.u32 [%d2], %r3;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out)
    np.testing.assert_array_equal(out, np.where(np.arange(32) < 16, 2, 6))


def test_accesses_are_done_where_their_guard_is_on() -> None:
    body = """
        setp.lt.u32 %p1, %r1, 10;
        selp.b64 %d3, %d2, 0, %p1;
        mov.u32 %r3, 5;
        @%p1 ld.global.u32 %r3, [%d3];
        add.u32 %r3, %r3, 1;
        @!%p1 st.global.u32 [%d2], %r3;
        @%p1 st.global.u32 [%d3], %r3;
        ret;
    """
    out = np.arange(100, 132, dtype=np.uint32)
    run(body, out)
    assert out.tolist() == [*range(101, 111), *[6] * 22]


def test_a_guard_that_its_own_instruction_overwrites() -> None:
    body = """
        setp.lt.u32 %p1, %r1, 16;
        setp.gt.u32 %p2, %r1, 99;
        @%p1 setp.gt.u32 %p1|%p2, %r1, 99;
        selp.u32 %r3, 1, 0, %p1;
        selp.u32 %r4, 2, 0, %p2;
        add.u32 %r3, %r3, %r4;
        st.global.u32 [%d2], %r3;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out)
    np.testing.assert_array_equal(out, np.where(np.arange(32) < 16, 2, 0))


def test_a_uniform_register_written_by_some_lanes() -> None:
    # %r3 is one scalar for all lanes until lanes 0-15 alone overwrite it.
    body = """
        mov.u32 %r3, 1;
        setp.lt.u32 %p1, %r1, 16;
        @!%p1 bra SKIP;
        mov.u32 %r3, 2;
    SKIP:
        st.global.u32 [%d2], %r3;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out)
    np.testing.assert_array_equal(out, np.where(np.arange(32) < 16, 2, 1))


def test_a_uniform_result_of_a_selection_is_kept_by_lanes_that_skip_a_write() -> None:
    # NumPy turns a choice between scalars into a 0-d array; it must count as defined, whatever it holds.
    body = """
        setp.eq.u32 %p2, %r0, 5;
        selp.u32 %r3, 7, 8, %p2;
        setp.lt.u32 %p1, %r1, 16;
        @!%p1 bra SKIP;
        mov.u32 %r3, 2;
    SKIP:
        st.global.u32 [%d2], %r3;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out, n=5)
    np.testing.assert_array_equal(out, np.where(np.arange(32) < 16, 2, 7))


def test_copying_an_undefined_register_leaves_other_lanes_alone() -> None:
    # Lanes 16-31 copy a register that nobody wrote; lanes 0-15 keep the zero that they were given.
    body = """
        mov.u32 %r3, 0;
        setp.lt.u32 %p1, %r1, 16;
        @%p1 bra SKIP;
        mov.u32 %r3, %r40;
    SKIP:
        setp.lt.u32 %p2, %r1, 8;
        @%p2 bra END;
        mov.u32 %r3, 5;
    END:
        st.global.u32 [%d2], %r3;
        ret;
    """
    out = np.full(32, 9, np.uint32)
    run(body, out)
    np.testing.assert_array_equal(out, np.where(np.arange(32) < 8, 0, 5))


@pytest.mark.parametrize("active", [1, 5, 40, 64])
def test_dense_and_compact_frames_agree(active: int) -> None:
    # Few active lanes are gathered, many are masked: same results.
    body = """
        setp.ge.u32 %p1, %r1, %r0;
        mov.u32 %r4, 3;
        @%p1 bra SKIP;
        ld.global.u32 %r3, [%d1];
        mul.lo.u32 %r4, %r3, %r1;
        add.u32 %r4, %r4, %r3;
    SKIP:
        st.global.u32 [%d2], %r4;
        ret;
    """
    out = np.zeros(64, np.uint32)
    run(body, out, np.array([11], np.uint32), n=active, block=(64, 1, 1))
    t = np.arange(64)
    np.testing.assert_array_equal(out, np.where(t < active, 11 * t + 11, 3))


@pytest.mark.parametrize("at_once", [1, 64, 200, 100000])
def test_results_do_not_depend_on_the_chunk(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "LANES_AT_ONCE", at_once)
    body = """
        mov.u32 %r3, %nctaid.x;
        mad.lo.u32 %r4, %r60, 1000, %r1;
        mad.lo.u32 %r4, %r3, 100000, %r4;
        st.global.u32 [%d2], %r4;
        ret;
    """
    out = np.zeros(7 * 48, np.uint32)
    result = run(body, out, grid=(7, 1, 1), block=(48, 1, 1))
    cta, t = np.divmod(np.arange(7 * 48), 48)
    np.testing.assert_array_equal(out, 700000 + cta * 1000 + t)
    assert result.lane_instructions == 7 * 48 * 14


@pytest.mark.parametrize(("grid", "block"), [((5, 1, 1), (33, 1, 1)), ((2, 3, 1), (4, 5, 1)), ((3, 2, 2), (3, 4, 5))])
def test_special_registers_in_three_dimensions(grid, block) -> None:
    body = """
        mov.u32 %r3, %tid.x; mov.u32 %r4, %tid.y; mov.u32 %r5, %tid.z;
        mov.u32 %r6, %ctaid.x; mov.u32 %r7, %ctaid.y; mov.u32 %r8, %ctaid.z;
        mov.u32 %r9, %ntid.x; mov.u32 %r10, %ntid.y; mov.u32 %r11, %ntid.z;
        mov.u32 %r12, %nctaid.x; mov.u32 %r13, %nctaid.y;
        mad.lo.u32 %r14, %r5, %r10, %r4;  mad.lo.u32 %r14, %r14, %r9, %r3;
        mad.lo.u32 %r15, %r8, %r13, %r7;  mad.lo.u32 %r15, %r15, %r12, %r6;
        mul.lo.u32 %r16, %r9, %r10;       mul.lo.u32 %r16, %r16, %r11;
        mad.lo.u32 %r17, %r15, %r16, %r14;
        mul.wide.u32 %d3, %r17, 4; add.s64 %d3, %d3, %d0;
        mov.u32 %r18, %laneid; mov.u32 %r19, %warpid;
        mad.lo.u32 %r20, %r19, 32, %r18;
        mad.lo.u32 %r20, %r15, 1000, %r20;
        st.global.u32 [%d3], %r20;
        ret;
    """
    threads, ctas = int(np.prod(block)), int(np.prod(grid))
    out = np.full(ctas * threads, 99, np.uint32)
    run(body, out, grid=grid, block=block)
    cta, t = np.divmod(np.arange(ctas * threads), threads)
    np.testing.assert_array_equal(out, cta * 1000 + t)


def test_lane_masks() -> None:
    body = """
        mov.u32 %r3, %lanemask_lt; mov.u32 %r4, %lanemask_le; mov.u32 %r5, %lanemask_eq;
        mov.u32 %r6, %lanemask_ge; mov.u32 %r7, %lanemask_gt;
        popc.b32 %r3, %r3; popc.b32 %r4, %r4; popc.b32 %r5, %r5; popc.b32 %r6, %r6; popc.b32 %r7, %r7;
        mad.lo.u32 %r8, %r3, 100, %r4; mad.lo.u32 %r8, %r8, 10, %r5; mad.lo.u32 %r8, %r8, 100, %r6;
        mad.lo.u32 %r8, %r8, 100, %r7;
        st.global.u32 [%d2], %r8;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out)
    expected = [((((t * 100 + t + 1) * 10 + 1) * 100) + 32 - t) * 100 + 31 - t for t in range(32)]
    np.testing.assert_array_equal(out, np.array(expected, np.uint64).astype(np.uint32))
