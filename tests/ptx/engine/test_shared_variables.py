"""Which shared variable an address was made from, and that accesses stay in it."""

from __future__ import annotations

import numpy as np
import pytest

from refmoe import ptx

_KERNEL = """
.version 8.8
.target sm_90
.address_size 64
.visible .entry k(.param .u64 out, .param .u32 index)
{{
    .reg .b32 %r<9>;
    .reg .b64 %d<9>;
    .reg .pred %p<3>;
    .shared .align 16 .b8 a[16];
    .shared .align 16 .b8 b[16];
    .shared .align 8 .b8 c[4];
    .shared .align 8 .b8 d[8];
    ld.param.u64 %d1, [out];
    ld.param.u32 %r1, [index];
    mov.u32 %r2, a;
    mov.u32 %r3, b;
    st.shared.v4.u32 [%r2], {{%r1, %r1, %r1, %r1}};
    st.shared.v4.u32 [%r3], {{%r1, %r1, %r1, %r1}};
    {text}
    st.global.u32 [%d1], %r8;
    ret;
}}
"""
_ACCESSES = {
    "load": "add.s32 %r4, %r2, %r1; ld.shared.u32 %r8, [%r4];",
    "symbol": "mov.u32 %r4, a; mad.lo.s32 %r4, %r1, 1, %r4; ld.shared.u32 %r8, [%r4];",
    "generic": "cvt.u64.u32 %d2, %r2; cvta.shared.u64 %d2, %d2; cvt.u64.u32 %d3, %r1; add.s64 %d2, %d2, %d3; "
    "ld.u32 %r8, [%d2];",
    "store": "add.s32 %r4, %r2, %r1; st.shared.u32 [%r4], 7; mov.u32 %r8, 1;",
    "strong": "add.s32 %r4, %r2, %r1; ld.relaxed.cta.shared.u32 %r8, [%r4];",
    "atomic": "add.s32 %r4, %r2, %r1; atom.shared.add.u32 %r8, [%r4], 1;",
    "from memory": "ld.shared.u32 %r5, [%r3]; add.s32 %r4, %r2, %r5; ld.shared.u32 %r8, [%r4];",
}
# More bytes than the variable has, from its first one on.
_WIDER = {
    "load": "mov.u32 %r4, c; ld.shared.v2.u32 {%r8, %r5}, [%r4];",
    "strong": "mov.u32 %r4, c; ld.relaxed.cta.shared.u64 %d2, [%r4]; cvt.u32.u64 %r8, %d2;",
    "store": "mov.u32 %r4, c; st.shared.u64 [%r4], %d1; mov.u32 %r8, 1;",
    "atomic": "mov.u32 %r4, c; atom.shared.exch.b64 %d2, [%r4], %d1; mov.u32 %r8, 1;",
}
# Of two variables, masked, or a difference: nothing is known.
_UNKNOWN = {
    "choice": "setp.eq.u32 %p1, %r1, 99; selp.b32 %r4, %r3, %r2, %p1; add.s32 %r4, %r4, %r1; ld.shared.u32 %r8, [%r4];",
    "choice of the second": "setp.eq.u32 %p1, %r1, 99; selp.b32 %r4, %r3, %r2, %p1; ld.shared.u32 %r8, [%r4];",
    "masked": "add.s32 %r4, %r2, %r1; and.b32 %r4, %r4, -4; ld.shared.u32 %r8, [%r4];",
    "difference": "sub.s32 %r4, %r3, %r2; add.s32 %r4, %r4, %r2; ld.shared.u32 %r8, [%r4];",
    "two differences": "sub.s32 %r4, %r3, %r2; sub.s32 %r5, %r3, %r4; ld.shared.u32 %r8, [%r5];",
}


def _launch(text: str, index: int) -> None:
    module = ptx.Module.parse(_KERNEL.format(text=text))
    ptx.launch(module, "k", (1, 1, 1), (1, 1, 1), [np.zeros(1, np.uint32), index])


@pytest.mark.parametrize("form", _ACCESSES)
def test_an_access_of_the_next_variable_is_out_of_bounds(form: str) -> None:
    _launch(_ACCESSES[form], 12)
    with pytest.raises(ptx.MemoryFault, match=r"of the shared variable a of 16 bytes") as caught:
        _launch(_ACCESSES[form], 16)
    assert caught.value.kind == "out of bounds"


@pytest.mark.parametrize("form", _WIDER)
def test_an_access_wider_than_its_variable_is_out_of_bounds(form: str) -> None:
    with pytest.raises(ptx.MemoryFault, match=r"byte 0 of the shared variable c of 4 bytes"):
        _launch(_WIDER[form], 0)


@pytest.mark.parametrize("form", _UNKNOWN)
def test_an_address_of_no_one_variable_is_not_bounded(form: str) -> None:
    _launch(_UNKNOWN[form], 16)


def test_without_bounds_the_access_is_done() -> None:
    module = ptx.Module.parse(_KERNEL.format(text=_ACCESSES["load"]))
    out = np.zeros(1, np.uint32)
    ptx.launch(module, "k", (1, 1, 1), (1, 1, 1), [out, 16], checks=ptx.Checks(bounds=False))
    assert out[0] == 16
