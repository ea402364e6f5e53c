"""Memory that a thread takes while it runs: `alloca`, `stacksave`, `stackrestore`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.ptx_kernel import compile_cuda, run

from refmoe import ptx

FUNCTION = """
.func (.reg .b32 sum) f(.reg .b32 value)
{
    .reg .b64 %a<4>;
    mov.u64 %a0, 4000;
    alloca.u64 %a0, %a0;
    st.local.u32 [%a0+3996], value;
    ld.local.u32 sum, [%a0+3996];
    ret;
}
"""


def test_a_function_gives_back_what_it_took() -> None:
    body = """
        mov.u32 %r3, 0;
        mov.u32 %r4, 0;
    AGAIN:
        call (%r5), f, (%r3);
        add.u32 %r4, %r4, %r5;
        add.u32 %r3, %r3, 1;
        setp.lt.u32 %p1, %r3, 20;
        @%p1 bra AGAIN;
        st.global.u32 [%d2], %r4;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out, module_scope=FUNCTION)
    assert (out == 190).all()


def test_pieces_do_not_overlap_and_are_aligned() -> None:
    # Odd lanes take the second piece. A size may be the register that gets the address.
    body = """
        and.b32 %r3, %r1, 1;
        setp.eq.u32 %p1, %r3, 1;
        mov.u64 %d3, 5;
        alloca.u64 %d3, %d3, 1;
        st.local.u8 [%d3], 1;
        mov.u64 %d4, 64;
        @%p1 alloca.u64 %d4, 64, 128;
        alloca.u64 %d5, 4, 4;
        st.local.u8 [%d3+4], 2;
        st.local.u32 [%d5], %r1;
        and.b64 %d6, %d4, 127;
        cvt.u32.u64 %r4, %d6;
        cvta.local.u64 %d5, %d5;
        ld.u32 %r5, [%d5];
        ld.local.u8 %r6, [%d3+4];
        mad.lo.u32 %r4, %r4, 1000, %r5;
        mad.lo.u32 %r4, %r6, 100, %r4;
        st.global.u32 [%d2], %r4;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out)
    lanes = np.arange(32)
    np.testing.assert_array_equal(out, 200 + lanes + np.where(lanes % 2 == 1, 0, 64000))


@pytest.mark.parametrize("restores", [True, False])
def test_what_is_given_back_is_there_again(restores: bool) -> None:
    body = f"""
        mov.u32 %r3, 0;
    AGAIN:
        stacksave.u64 %d3;
        alloca.u64 %d4, 4096, 16;
        {"stackrestore.u64 %d3;" if restores else ""}
        add.u32 %r3, %r3, 1;
        setp.lt.u32 %p1, %r3, 9;
        @%p1 bra AGAIN;
        st.global.u32 [%d2], %r3;
        ret;
    """
    out = np.zeros(32, np.uint32)
    if restores:
        run(body, out)
        assert (out == 9).all()
    else:
        with pytest.raises(ptx.Trap, match="alloca"):
            run(body, out)


def test_what_nobody_wrote_is_uninitialised() -> None:
    body = "alloca.u64 %d4, 16, 16; ld.local.u32 %r3, [%d4]; st.global.u32 [%d2], %r3; ret;"
    with pytest.raises(ptx.MemoryFault, match="uninitialised"):
        run(body, np.zeros(32, np.uint32))


@pytest.mark.parametrize("wrong", ["alloca.u64 %d4, 16, 3;", "alloca.u64 %d4;", "stacksave.u64 %d4, %d5;"])
def test_other_forms_are_refused(wrong: str) -> None:
    with pytest.raises(ptx.UnknownOpcode):
        run(f"{wrong} ret;", np.zeros(32, np.uint32))


def test_alloca_of_cuda(tmp_path: Path) -> None:
    source = """
    extern "C" __global__ void k(int* out, const int* in, int n) {
        int* held = (int*)alloca(n * sizeof(int));
        for (int i = 0; i < n; ++i) held[i] = in[i] * threadIdx.x;
        int sum = 0;
        for (int i = 0; i < n; ++i) sum = sum * 3 + held[n - 1 - i];
        out[threadIdx.x] = sum;
    }
    """
    out, held = np.zeros(32, np.int32), np.arange(10, dtype=np.int32)
    ptx.launch(compile_cuda(source, tmp_path), "k", (1, 1, 1), (32, 1, 1), [out, held, 10])
    one = 0
    for each in reversed(held.tolist()):
        one = one * 3 + each
    np.testing.assert_array_equal(out, one * np.arange(32))
