"""A vector is as many strong accesses as it has elements, each of which synchronises by itself.

(PTX ISA, "Vector Data Types" of the memory consistency model.)
"""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import text
from support.selection.thinned import thinned

from refmoe import ptx

SCHEDULES = range(17)
# Block 0 writes and signals; block 1 polls and reads. What they signal with begins at byte 16.
PASSED = """
    setp.ne.u32 %p1, %r60, 0;
    mov.u32 %r10, 1; mov.u32 %r11, 1; mov.u32 %r12, 1; mov.u32 %r13, 1; mov.u64 %d10, 1; mov.u64 %d11, 1;
    @%p1 bra reads;
    st.global.u32 [%d0], 42;
    {signal}
    ret;
reads:
    {poll}
    @%p2 bra reads;
    {behind}
    ld.global.u32 %r4, [%d0];
    st.global.u32 [%d0+4], %r4;
    ret;
"""
FIRST, SECOND = "setp.eq.u32 %p2, %r20, 0;", "setp.eq.u32 %p2, %r21, 0;"
STORE, STORE_2 = "st.release.gpu.global.u32 [%d0+16], 1;", "st.release.gpu.global.v2.u32 [%d0+16], {%r10, %r11};"
STORE_4 = "st.release.gpu.global.v4.u32 [%d0+16], {%r10, %r11, %r12, %r13};"
LOAD, LOAD_2 = "ld.acquire.gpu.global.u32 %r20, [%d0+16];", "ld.acquire.gpu.global.v2.u32 {%r20, %r21}, [%d0+16];"
LOAD_4 = "ld.acquire.gpu.global.v4.u32 {%r20, %r21, %r22, %r23}, [%d0+16];"
VOLATILE_2 = "ld.volatile.global.v2.u32 {%r20, %r21}, [%d0+16];"
RELAXED_2 = "ld.relaxed.gpu.global.v2.u32 {%r20, %r21}, [%d0+16];"
FENCED_2 = "fence.acq_rel.gpu; st.relaxed.gpu.global.v2.u32 [%d0+16], {%r10, %r11};"
FENCE = "fence.acq_rel.gpu;"


def passed(signal: str, poll: str, behind: str = "", schedule: int = 0) -> tuple[list[int], list[str | None]]:
    """What the launch leaves in the first words, and its warnings."""
    module = ptx.Module.parse(text(PASSED.format(signal=signal, poll=poll, behind=behind)))
    out = np.zeros(8, np.uint32)
    result = ptx.launch(
        module, "k", (2, 1, 1), (1, 1, 1), [out, None, 0], schedule=schedule, step_budget=20_000,
    )  # fmt: skip
    return out[:2].tolist(), [each.warning for each in result.warnings]


RIGHT = {
    "a scalar by a vector": (STORE, LOAD_2 + FIRST, ""),
    "the second element by a vector": (STORE.replace("+16", "+20"), LOAD_2 + SECOND, ""),
    "a vector by a scalar": (STORE_2, LOAD + FIRST, ""),
    "the second element of a vector by a scalar": (STORE_2, LOAD.replace("+16", "+20") + FIRST, ""),
    "a pair by four": (STORE_2, LOAD_4 + SECOND, ""),
    "four by the pair behind": (STORE_4, LOAD_2.replace("+16", "+24") + FIRST, ""),
    "four by four": (STORE_4, LOAD_4 + SECOND, ""),
    "a scalar by a volatile vector and a fence": (STORE, VOLATILE_2 + FIRST, FENCE),
    "a scalar by a relaxed vector and a fence": (STORE, RELAXED_2 + FIRST, FENCE),
    "a vector behind a fence by a scalar": (FENCED_2, LOAD + FIRST, ""),
    "an atomic by a vector": ("atom.release.gpu.global.add.u32 %r30, [%d0+16], 1;", LOAD_2 + FIRST, ""),
    "two words by a vector of two": (
        "st.release.gpu.global.u64 [%d0+24], 1;",
        "ld.acquire.gpu.global.v2.u64 {%d20, %d21}, [%d0+16]; setp.eq.u64 %p2, %d21, 0;",
        "",
    ),
    "an atomic of a vector by a scalar": (
        "atom.release.gpu.global.add.v2.f32 {%r30, %r31}, [%d0+16], {%r10, 0f3F800000};",
        LOAD.replace("+16", "+20") + FIRST,
        "",
    ),
    "a packed atomic by one of its halves": (
        "mov.u32 %r30, 0x3C003C00; red.release.gpu.global.add.noftz.f16x2 [%d0+16], %r30;",
        "ld.acquire.gpu.global.u16 %h1, [%d0+18]; setp.eq.u16 %p2, %h1, 0;",
        "",
    ),
    "a vector by an atomic": (STORE_2, "atom.acquire.gpu.global.add.u32 %r20, [%d0+20], 0;" + FIRST, ""),
}


@pytest.mark.parametrize("case", thinned(RIGHT, 3))
def test_each_element_synchronises(case: str) -> None:
    for schedule in SCHEDULES:
        assert passed(*RIGHT[case], schedule) == ([42, 42], [])


# Block 0 signals with element 0 what it wrote, and sets element 1 without a release: it orders nothing.
OTHER = "st.relaxed.gpu.global.u32 [%d0+20], 1; "
RACY = {
    "the other element by a scalar": (OTHER + STORE, LOAD.replace("+16", "+20") + FIRST, 0),
    "the pair behind by a vector": (
        STORE_2 + "st.relaxed.gpu.global.u32 [%d0+24], 1;", LOAD_2.replace("+16", "+24") + FIRST, 0,
    ),
    "a relaxed vector": (STORE_2.replace("release", "relaxed"), LOAD + FIRST, 0),
    # What is not of the same bytes, or out of reach, races itself.
    "a wide scalar by a vector": ("st.release.gpu.global.u64 [%d0+16], 1;", LOAD_2 + FIRST, 16),
    "a vector by a wide scalar": (
        STORE_2, "ld.acquire.gpu.global.u64 %d20, [%d0+16]; setp.eq.u64 %p2, %d20, 0;", 16,
    ),
    "a vector of a narrow scope": (STORE_2.replace("gpu", "cta"), LOAD + FIRST, 16),
}  # fmt: skip


@pytest.mark.parametrize(
    "case",
    thinned(RACY, 2),
)
def test_what_is_of_another_element_or_width_orders_nothing(case: str) -> None:
    signal, poll, byte = RACY[case]
    for schedule in SCHEDULES:
        with pytest.raises(ptx.RaceError, match=f"race on byte {byte} "):
            passed(signal, poll, schedule=schedule)


# Block 2 stores a vector that passes nothing on. Wherever it comes, who reads what block 0 stored comes behind it.
BESIDE = """
    mov.u32 %r10, 1; mov.u32 %r11, 1; mov.u32 %r12, 2;
    setp.eq.u32 %p1, %r60, 1;
    @%p1 bra reads;
    setp.eq.u32 %p1, %r60, 2;
    @%p1 bra beside;
    st.global.u32 [%d0], 42;
    {store}
    ret;
beside:
    st.relaxed.gpu.global.v2.u32 [%d0+16], {{%r12, %r12}};
    ret;
reads:
    mov.u32 %r30, 0;
again:
    {load}
    setp.eq.u32 %p2, {seen}, 1;
    @%p2 bra found;
    add.u32 %r30, %r30, 1;
    setp.lt.u32 %p3, %r30, 20;
    @%p3 bra again;
    ret;
found:
    {behind}
    ld.global.u32 %r4, [%d0];
    st.global.u32 [%d0+4], %r4;
    ret;
"""


@pytest.mark.parametrize(
    ("store", "load", "behind", "seen"),
    [
        (STORE_2, LOAD_2, "", "%r20"), (STORE_2, LOAD_2, "", "%r21"), (STORE_2, VOLATILE_2, FENCE, "%r21"),
        (STORE_2, LOAD.replace("+16", "+20"), "", "%r20"), (STORE.replace("+16", "+20"), LOAD_2, "", "%r21"),
    ],
)  # fmt: skip
def test_a_vector_stored_beside_takes_nothing_away(store: str, load: str, behind: str, seen: str) -> None:
    module = ptx.Module.parse(text(BESIDE.format(store=store, load=load, behind=behind, seen=seen)))
    found = set()
    for schedule in range(41):
        out = np.zeros(8, np.uint32)
        result = ptx.launch(module, "k", (3, 1, 1), (1, 1, 1), [out, None, 0], schedule=schedule, step_budget=20_000)
        assert not result.warnings
        found.add(int(out[1]))
    # Under some schedule the reader saw what block 0 stored, and under another one only what block 2 did.
    assert found == {0, 42}
