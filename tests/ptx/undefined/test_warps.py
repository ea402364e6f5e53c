"""Undefined values in fragments: `ldmatrix`, `stmatrix`, `mma`, `wmma`, against the fragment layouts of the manual."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.ptx_kernel import run
from support.selection.thinned import thinned

from refmoe import ptx

TILE = ".shared .align 128 .b8 tile[2048];"
Array = np.ndarray[Any, Any]


def exactly(body: str, names: list[str], wanted: set[tuple[int, int]]) -> list[ptx.UndefinedError]:
    """Hold what is undefined of some registers against (lane, register) of those that should be.

    All that should be defined are stored, in one launch that has to be clean; the first and the last of those that
    should be undefined are stored by themselves.
    """
    kept = [sum(1 << lane for lane in range(32) if (lane, number) not in wanted) for number in range(len(names))]
    stores = "".join(
        f"mov.u32 %r62, {mask:#x}; shr.u32 %r62, %r62, %r1; and.b32 %r62, %r62, 1; setp.ne.u32 %p9, %r62, 0;"
        f"@%p9 st.global.u32 [%d2], {name};"
        for name, mask in zip(names, kept, strict=True)
    )
    run(body + stores + "ret;", np.zeros(64, np.uint32), declarations=TILE)
    errors = []
    for lane, number in sorted({min(wanted), max(wanted)}) if wanted else []:
        store = f"setp.eq.u32 %p9, %r1, {lane}; @%p9 st.global.u32 [%d2], {names[number]}; ret;"
        with pytest.raises(ptx.UndefinedError) as caught:
            run(body + store, np.zeros(64, np.uint32), declarations=TILE)
        assert caught.value.thread == (lane, 0, 0)
        errors.append(caught.value)
    return errors


def fragments(element: str, rows: int, k: int) -> tuple[Any, Any]:
    """(row, k) of each element of A and (k, column) of B by (lane, register): PTX ISA, "Matrix fragments"."""
    per = {"f16": 2, "bf16": 2, "tf32": 1, "e4m3": 4, "s8": 4, "f64": 1}[element]

    def of_a(lane: int, register: int) -> set[tuple[int, int]]:
        upper, half = register % (rows // 8), register // (rows // 8)
        return {(lane // 4 + 8 * upper, half * 4 * per + lane % 4 * per + each) for each in range(per)}

    def of_b(lane: int, register: int) -> set[tuple[int, int]]:
        return {(register * 4 * per + lane % 4 * per + each, lane // 4) for each in range(per)}

    return of_a, of_b


MMAS = {
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32": ("f16", 16, 16, 4, 2),
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32": ("tf32", 16, 8, 4, 2),
    "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32": ("e4m3", 16, 32, 4, 2),
    "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32": ("s8", 16, 32, 4, 2),
    "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32": ("s8", 8, 16, 1, 1),
}


@pytest.mark.parametrize("opcode", MMAS)
@pytest.mark.parametrize(
    ("operand", "register", "lane"), thinned([("a", 0, 5), ("a", -1, 30), ("b", 0, 9), ("b", -1, 3), ("c", 1, 17)], 3)
)
def test_a_product_is_undefined_in_the_rows_and_columns_of_what_is(
    opcode: str, operand: str, register: int, lane: int
) -> None:
    element, rows, k, a_count, b_count = MMAS[opcode]
    c_count = rows // 4
    count = {"a": a_count, "b": b_count, "c": c_count}[operand]
    register %= count
    of_a, of_b = fragments(element, rows, k)
    names = {
        "a": [f"%r{10 + each}" for each in range(a_count)],
        "b": [f"%r{20 + each}" for each in range(b_count)],
        "c": [f"%r{30 + each}" for each in range(c_count)],
        "d": [f"%r{40 + each}" for each in range(c_count)],
    }
    bad = names[operand][register]
    zeros = "".join(f"mov.u32 {name}, 0;" for part in "abc" for name in names[part] if name != bad)
    vectors = ", ".join("{" + ", ".join(names[part]) + "}" for part in "dabc")
    body = f"{zeros} setp.eq.u32 %p1, %r1, {lane}; @!%p1 mov.u32 {bad}, 0; {opcode} {vectors};"
    if operand == "c":
        cells = {(lane // 4 + 8 * (register // 2), 2 * (lane % 4) + register % 2)}
        expected = {(row, column) for row, column in cells}
    elif operand == "a":
        expected = {(row, column) for row, _ in of_a(lane, register) for column in range(8)}
    else:
        expected = {(row, column) for _, column in of_b(lane, register) for row in range(rows)}
    wanted = {
        (each, number)
        for each in range(32)
        for number in range(c_count)
        if (each // 4 + 8 * (number // 2), 2 * (each % 4) + number % 2) in expected
    }
    for error in exactly(body, names["d"], wanted):
        assert (error.origin_thread, error.register) == ((lane, 0, 0), bad)


SCALED = (
    "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3.f32.ue8m0 "
    "{%r40, %r41, %r42, %r43}, {%r10, %r10, %r10, %r10}, {%r10, %r10}, {%r10, %r10, %r10, %r10}, "
    "{%r11}, {%h1, %h2}, {%r12}, {%h3, %h4};"
)


@pytest.mark.parametrize(
    ("scale", "byte", "thread", "lane", "keeps", "rows"),
    [
        # A's scales come from two lanes of each quad: the others' may be anything.
        ("%r11", 0, 0, 9, 0xFFFFFFFF, {10}),
        ("%r11", 0, 0, 8, 0xFFFFFFFF, {2}),
        ("%r11", 0, 0, 10, 0xFFFFFFFF, set()),
        ("%r11", 0, 1, 10, 0xFFFFFFFF, {2}),
        ("%r11", 2, 0, 8, 0xFF0000, {2}),
        ("%r11", 2, 0, 8, 0xFF00FFFF, set()),
    ],
)
def test_scales_that_are_not_chosen_do_not_matter(
    scale: str, byte: int, thread: int, lane: int, keeps: int, rows: set[int]
) -> None:
    """`keeps`: the bits of the register of that lane that nobody wrote."""
    body = f"""
        mov.u32 %r10, 0; mov.u32 %r11, 0x7F7F7F7F; mov.u32 %r12, 0x7F7F7F7F;
        setp.eq.u32 %p1, %r1, {lane}; and.b32 %r21, %r20, {keeps:#x}; @%p1 or.b32 {scale}, {scale}, %r21;
        mov.u16 %h1, {byte}; mov.u16 %h2, {thread}; mov.u16 %h3, 0; mov.u16 %h4, 0;
        {SCALED}
    """
    body = body.replace("@%p1 or.b32 %r11, %r11, %r21", "@%p1 and.b32 %r11, %r11, %r22; @%p1 or.b32 %r11, %r11, %r21")
    body = body.replace("mov.u32 %r10, 0;", f"mov.u32 %r10, 0; mov.u32 %r22, {~keeps & 0xFFFFFFFF:#x};", 1)
    exactly(
        body,
        ["%r40", "%r42"],
        {(each, number) for each in range(32) for number in range(2) if each // 4 + 8 * number in rows},
    )


@pytest.mark.parametrize(
    ("transposed", "row", "cell"), thinned([("", 3, 5), (".trans", 3, 5), ("", 7, 0), (".trans", 0, 7)], 2)
)
def test_ldmatrix_brings_back_what_was_not_written(transposed: str, row: int, cell: int) -> None:
    """One cell of the second of four matrices has not been written: one half of one register of one lane."""
    at = 128 + 16 * row + 2 * cell
    body = f"""
        mov.u32 %r7, tile; shl.b32 %r8, %r1, 4; add.u32 %r7, %r7, %r8;
        mov.u32 %r9, 0; st.shared.v4.u32 [%r7], {{%r9, %r9, %r9, %r9}};
        bar.sync 0;
        mov.u32 %r5, tile; setp.eq.u32 %p1, %r1, 0; @%p1 st.shared.u16 [%r5+{at}], %h9;
        bar.sync 0;
        ldmatrix.sync.aligned.m8n8.x4{transposed}.shared.b16 {{%r20, %r21, %r22, %r23}}, [%r7];
        {{half}}
    """
    lane, high = (row * 4 + cell // 2, cell % 2) if not transposed else (cell * 4 + row // 2, row % 2)
    names = ["%r20", "%r21", "%r22", "%r23"]
    for half in (0, 1):
        kept = "".join(f"and.b32 {name}, {name}, {0xFFFF << 16 * half:#x};" for name in names)
        wanted = {(lane, 1)} if half == high else set()
        for error in exactly(body.replace("{half}", kept), names, wanted):
            assert (error.register, error.origin_thread) == ("%h9", (0, 0, 0))


@pytest.mark.parametrize("transposed", ["", ".trans"])
def test_stmatrix_stores_what_is_undefined(transposed: str) -> None:
    """Register 1 of lane 13 is undefined: two cells of the second matrix."""
    lane = 13
    body = f"""
        mov.u32 %r7, tile; shl.b32 %r8, %r1, 4; add.u32 %r7, %r7, %r8;
        mov.u32 %r20, 0; setp.eq.u32 %p1, %r1, {lane}; @!%p1 mov.u32 %r21, 0;
        stmatrix.sync.aligned.m8n8.x2{transposed}.shared.b16 [%r7], {{%r20, %r21}};
        bar.sync 0;
        mov.u32 %r9, 0;
        setp.lt.u32 %p2, %r1, 16;
        @%p2 ld.shared.v4.u32 {{%r10, %r11, %r12, %r13}}, [%r7];
        @!%p2 mov.u32 %r10, 0; @!%p2 mov.u32 %r11, 0; @!%p2 mov.u32 %r12, 0; @!%p2 mov.u32 %r13, 0;
    """
    g, t = lane // 4, lane % 4
    cells = {(8 + g, t)} if not transposed else {(8 + 2 * t, g // 2), (8 + 2 * t + 1, g // 2)}
    for error in exactly(body, ["%r10", "%r11", "%r12", "%r13"], cells):
        assert (error.origin_thread, error.register) == ((lane, 0, 0), "%r21")


def test_a_fragment_that_is_loaded_in_part() -> None:
    """`wmma.load` of a matrix of which one row was not written, and the other rows of the product are used."""
    body = """
        mov.u32 %r7, tile; shl.b32 %r8, %r1, 4; add.u32 %r7, %r7, %r8; mov.u32 %r9, 0;
        setp.ne.u32 %p1, %r1, 6;
        @%p1 st.shared.v4.u32 [%r7], {%r9, %r9, %r9, %r9};
        bar.sync 0;
        mov.u32 %r7, tile;
        wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {%r10, %r11, %r12, %r13, %r14, %r15, %r16, %r17}, [%r7], 16;
        {use}
        ret;
    """
    run(body.replace("{use}", ""), np.zeros(64, np.uint32), declarations=TILE)
    # Row 3, cells 0 to 7: the lanes of group 3.
    used = "setp.ge.u32 %p3, %r1, 12; setp.lt.and.u32 %p3, %r1, 16, %p3; @{}%p3 st.global.u32 [%d2], %r10;"
    run(body.replace("{use}", used.format("!")), np.zeros(64, np.uint32), declarations=TILE)
    with pytest.raises(ptx.MemoryFault, match="reaches an output byte"):
        run(body.replace("{use}", used.format("")), np.zeros(64, np.uint32), declarations=TILE)
