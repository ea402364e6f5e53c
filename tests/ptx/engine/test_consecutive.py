"""Whole warps that access consecutive places: what is written, recorded and refused is as for any other places."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import text
from support.ptx_ways import Way, ways
from support.selection.thinned import thinned

from refmoe import ptx
from refmoe.ptx.state.pages import PAGE

LAX = ptx.Checks(uninitialised=False)
STRICT = ptx.Checks(strict=True)


@ways
@pytest.mark.parametrize("begin", thinned([0, PAGE - 64, PAGE - 512, 2 * PAGE - 16], 3))
@pytest.mark.parametrize("words", [1, 2, 4])
def test_consecutive_stores_are_put_back(words: int, begin: int, way: Way) -> None:
    size = 4 * words
    vector = f".v{words}" if words > 1 else ""
    values = "{" + ", ".join(f"%r{10 + each}" for each in range(words)) + "}" if words > 1 else "%r10"
    made = " ".join(f"mad.lo.u32 %r{10 + each}, %r1, {words}, {each + 1};" for each in range(words))
    body = f"""
        mul.wide.u32 %d3, %r1, {size}; add.s64 %d3, %d3, %d0; {made}
        st.global{vector}.u32 [%d3 + {begin}], {values};
        bar.warp.sync -1;
        ld.global{vector}.u32 {values}, [%d3 + {begin}];
        st.global{vector}.u32 [%d3 + {begin + 4 * PAGE}], {values};
        {{then}}
        ret;
    """
    room = np.zeros(8 * PAGE // 4 + 16, np.uint32)
    out = room[-room.ctypes.data % 64 // 4 :][: 8 * PAGE // 4]
    out[:] = 1000000
    for then in ("trap;", ""):
        module = ptx.Module.parse(text(body.replace("{then}", then)), name="test.ptx")
        if then:
            with pytest.raises(ptx.Trap):
                ptx.launch(module, "k", (1, 1, 1), (32, 1, 1), [out, None, 0], profile=way)
            assert (out == 1000000).all()
        else:
            ptx.launch(module, "k", (1, 1, 1), (32, 1, 1), [out, None, 0], profile=way)
    wanted = np.full(8 * PAGE // 4, 1000000)
    for first in (begin // 4, begin // 4 + PAGE):
        wanted[first : first + 32 * words] = np.arange(1, 32 * words + 1)
    np.testing.assert_array_equal(out, wanted)


@ways
@pytest.mark.parametrize("kinds", [("st", "ld"), ("ld", "st"), ("st", "st"), ("ld", "ld")], ids="-".join)
@pytest.mark.parametrize("begin", [128, PAGE - 64])
@pytest.mark.parametrize("whole", [True, False], ids=["warp", "lane"])
def test_consecutive_accesses_race(whole: bool, begin: int, kinds: tuple[str, str], way: Way) -> None:
    # Block 0 accesses 32 words, block 1 the same ones, or its lane 3 the twentieth of them.
    first, second = ({"st": "st.global.u32 [%d3], %r3;", "ld": "ld.global.u32 %r3, [%d3];"}[kind] for kind in kinds)
    one = f"setp.ne.u32 %p1, %r1, 3; @%p1 ret; add.s64 %d3, %d0, {begin + 80};"
    body = f"""
        mov.u32 %r3, %r2;
        mul.wide.u32 %d3, %r1, 4; add.s64 %d3, %d3, %d0; add.s64 %d3, %d3, {begin};
        setp.ne.u32 %p1, %r60, 0;
        @%p1 bra SECOND;
        {first}
        ret;
    SECOND:
        {"" if whole else one}
        {second}
        ret;
    """
    module = ptx.Module.parse(text(body), name="test.ptx")

    def launch() -> None:
        ptx.launch(module, "k", (2, 1, 1), (32, 1, 1), [np.zeros(PAGE, np.uint32), None, 0], profile=way)

    if kinds == ("ld", "ld"):
        launch()
        return
    with pytest.raises(ptx.RaceError) as caught:
        launch()
    lanes = (0, 0) if whole else (3, 20)
    assert (caught.value.thread, caught.value.other_thread) == tuple((lane, 0, 0) for lane in lanes)
    assert caught.value.offset == begin + 4 * lanes[1]


@ways
@pytest.mark.parametrize("begin", [0, PAGE - 64])
def test_consecutive_stores_initialise(begin: int, way: Way) -> None:
    body = f"""
        mul.wide.u32 %d3, %r1, 8; add.s64 %d3, %d3, %d0; add.s64 %d3, %d3, {begin};
        st.global.v2.u32 [%d3], {{%r1, 5}};
        ld.global.v2.u32 {{%r3, %r4}}, [%d3];
        add.u32 %r3, %r3, %r4;
        st.global.u32 [%d3], %r3;
        ret;
    """
    out, mask = np.zeros(4 * PAGE, np.uint8), np.zeros(4 * PAGE, bool)
    buffer = ptx.Buffer(out, "out", mask)
    module = ptx.Module.parse(text(body), name="test.ptx")
    ptx.launch(module, "k", (1, 1, 1), (32, 1, 1), [buffer, None, 0], checks=STRICT, profile=way)
    assert out[begin : begin + 256].view(np.uint32)[::2].tolist() == list(range(5, 37))
    assert np.flatnonzero(mask).tolist() == list(range(begin, begin + 256))
    # Of the words behind, the last one was not written.
    body = f"mul.wide.u32 %d3, %r1, 4; add.s64 %d3, %d3, %d0; ld.global.u32 %r3, [%d3 + {begin + 132}]; ret;"
    module = ptx.Module.parse(text(body), name="test.ptx")
    with pytest.raises(ptx.MemoryFault, match="uninitialised") as caught:
        ptx.launch(module, "k", (1, 1, 1), (32, 1, 1), [buffer, None, 0], checks=STRICT, profile=way)
    assert caught.value.thread == (31, 0, 0)


@ways
@pytest.mark.parametrize("words", [1, 2])
def test_consecutive_loads_of_poison(words: int, way: Way) -> None:
    kind, values = ("u32", "%r3") if words == 1 else ("v2.u32", "{%r3, %r4}")
    body = f"""
        mov.u32 %r4, 0;
        mul.wide.u32 %d3, %r1, {4 * words}; add.s64 %d3, %d3, %d1;
        ld.global.{kind} {values}, [%d3];
        sub.u32 %r3, %r3, %r4;
        st.global.u32 [%d2], %r3;
        ret;
    """
    module, out = ptx.Module.parse(text(body), name="test.ptx"), np.full(32, 99, np.uint32)
    held = ptx.Buffer(np.arange(PAGE, dtype=np.uint32), "held", initialised=False)
    ptx.launch(module, "k", (1, 1, 1), (32, 1, 1), [out, held, 0], checks=LAX, profile=way)
    assert out.tolist() == [0xCDCDCDCD if words == 1 else 0] * 32
