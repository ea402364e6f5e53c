"""ldmatrix and stmatrix against the manual's words: which cell of which matrix is in which half of which register."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import line_of, run

from refmoe import ptx

CELLS = ".shared .align 16 .b8 cell[2048];"
# 128 rows of 16 bytes, each cell of 16 bits different from all others.
ROWS = np.arange(128 * 8, dtype=np.uint16).reshape(128, 8)
# Shared memory from the input, 64 bytes a lane; then %r5: the address of a row that is not in order, row 5 i % 128.
FILL = """
    mov.u32 %r3, cell; mad.lo.u32 %r4, %r1, 64, %r3;
    mul.wide.u32 %d3, %r1, 64; add.s64 %d3, %d3, %d1;
    ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%d3]; st.shared.v4.u32 [%r4], {%r10, %r11, %r12, %r13};
    ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%d3+16]; st.shared.v4.u32 [%r4+16], {%r10, %r11, %r12, %r13};
    ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%d3+32]; st.shared.v4.u32 [%r4+32], {%r10, %r11, %r12, %r13};
    ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%d3+48]; st.shared.v4.u32 [%r4+48], {%r10, %r11, %r12, %r13};
    bar.sync 0;
    mul.lo.u32 %r6, %r1, 5; rem.u32 %r6, %r6, 128; mad.lo.u32 %r5, %r6, 16, %r3;
"""
# Each lane writes the first word of its own: from now on accesses of four bytes are remembered, without which native
# code leaves the words of a row to Python.
WORDS = "mov.u32 %r3, cell; mad.lo.u32 %r4, %r1, 64, %r3; st.shared.u32 [%r4], %r1;"
VECTOR = {1: "{%r20}", 2: "{%r20, %r21}", 4: "{%r20, %r21, %r22, %r23}"}


def save(count: int) -> str:
    lines = [f"mul.wide.u32 %d4, %r1, {4 * count}; add.s64 %d4, %d4, %d0;"]
    lines += [f"st.global.u32 [%d4+{4 * i}], %r{20 + i};" for i in range(count)]
    return "".join(lines) + "ret;"


def row_of(lane: int) -> int:
    return 5 * lane % 128


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("space", [".shared", ".shared::cta", ""])
@pytest.mark.parametrize("space_first", [False, True])
@pytest.mark.parametrize("before", ["", WORDS], ids=["python", "native"])
def test_ldmatrix(count: int, trans: str, space: str, space_first: bool, before: str) -> None:
    generic = "" if space else "cvt.u64.u32 %d5, %r5; cvta.shared.u64 %d5, %d5;"
    address = "%r5" if space else "%d5"
    body = before + FILL + generic
    parts = space + trans if space_first else trans + space
    body += f"ldmatrix.sync.aligned.m8n8.x{count}{parts}.b16 {VECTOR[count]}, [{address}];" + save(count)
    out = np.zeros((32, count), np.uint32)
    run(body, out.reshape(-1), ROWS, declarations=CELLS)
    for lane in range(32):
        for matrix in range(count):
            # Row r of the matrix is where lane 8 * matrix + r points.
            cells = [ROWS[row_of(8 * matrix + r)] for r in range(8)]
            first, second = 2 * (lane % 4), 2 * (lane % 4) + 1
            if trans:
                low, high = cells[first][lane // 4], cells[second][lane // 4]
            else:
                low, high = cells[lane // 4][first], cells[lane // 4][second]
            assert out[lane, matrix] == int(low) | int(high) << 16


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_stmatrix_writes_what_ldmatrix_reads(count: int, trans: str) -> None:
    body = (
        FILL
        + f"""
        ldmatrix.sync.aligned.m8n8.x{count}.shared.b16 {VECTOR[count]}, [%r5];
        bar.warp.sync -1;
        mad.lo.u32 %r7, %r1, 16, %r3;
        stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r7], {VECTOR[count]};
        bar.warp.sync -1;
        ld.shared.v4.u32 {{%r20, %r21, %r22, %r23}}, [%r7];
    """
        + save(4)
    )
    out = np.zeros((32, 4), np.uint32)
    run(body, out.reshape(-1), ROWS, declarations=CELLS)
    found = out.view(np.uint16).reshape(4, 8, 8)
    for matrix in range(4):
        stored = np.stack([ROWS[row_of(8 * matrix + r)] for r in range(8)])
        # Beyond the last matrix memory is as it was.
        expected = (stored.T if trans else stored) if matrix < count else ROWS[8 * matrix : 8 * matrix + 8]
        np.testing.assert_array_equal(found[matrix], expected)


def test_two_warps_in_different_branches() -> None:
    # Half of the lanes of the launch run the instruction: as a part of all (dense) or packed (compact).
    for threads in (64, 256):
        fill = "mov.u32 %r3, cell; mad.lo.u32 %r4, %r1, 4, %r3; st.shared.u32 [%r4], %r1; bar.sync 0;"
        body = (
            fill
            + """
            mov.u32 %r20, 0; setp.ge.u32 %p1, %r1, 32; and.b32 %r6, %r1, 7; mad.lo.u32 %r5, %r6, 16, %r3;
            @%p1 bra OUT;
            ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r20}, [%r5];
        OUT: st.global.u32 [%d2], %r20; ret;
        """
        )
        out = np.zeros(threads, np.uint32)
        run(body, out, block=(threads, 1, 1), declarations=CELLS)
        assert out.tolist() == list(range(32)) + [0] * (threads - 32)


def test_lanes_gather_before_they_load() -> None:
    # The lanes of the warp come by two ways.
    body = (
        FILL
        + """
        setp.lt.u32 %p1, %r1, 7; @%p1 bra LEFT;
        add.u32 %r5, %r5, 0; bra BOTH;
    LEFT: xor.b32 %r5, %r5, 0;
    BOTH: ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r20}, [%r5];
    """
        + save(1)
    )
    out = np.zeros(32, np.uint32)
    run(body, out, ROWS, declarations=CELLS)
    assert out[0] == int(ROWS[0, 0]) | int(ROWS[0, 1]) << 16


@pytest.mark.parametrize("threads", [16, 40])
def test_a_warp_that_is_not_whole(threads: int) -> None:
    fill = "mov.u32 %r3, cell; mad.lo.u32 %r4, %r1, 4, %r3; st.shared.u32 [%r4], %r1; bar.warp.sync -1;"
    body = fill + "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r20}, [cell]; ret;"
    with pytest.raises(ptx.WarpError, match=f"{threads % 32} lanes of its warp take part, 32 must"):
        run(body, np.zeros(1, np.uint32), block=(threads, 1, 1), declarations=CELLS)


def test_rows_are_checked() -> None:
    # Lane 9 gives the address of a row of the second matrix.
    body = (
        FILL
        + """
        setp.eq.u32 %p1, %r1, 9; {spoil}
        ldmatrix.sync.aligned.m8n8.x{count}.shared.b16 {vector}, [%r5];
    """
        + save(1)
    )
    for spoil, kind in (("@%p1 add.u32 %r5, %r5, 8;", "misaligned"), ("@%p1 mov.u32 %r5, 4096;", "out of bounds")):
        with pytest.raises(ptx.MemoryFault) as caught:
            run(_filled(body, spoil, 2), np.zeros(32, np.uint32), ROWS, declarations=CELLS)
        fault = caught.value
        assert (fault.kind, fault.thread) == (kind, (9, 0, 0))
        assert fault.line == line_of(_filled(body, spoil, 2), "ldmatrix", declarations=CELLS)
        # With one matrix the address of lane 9 is not used.
        run(_filled(body, spoil, 1), np.zeros(32, np.uint32), ROWS, declarations=CELLS)


def _filled(body: str, spoil: str, count: int) -> str:
    return body.replace("{spoil}", spoil).replace("{count}", str(count)).replace("{vector}", VECTOR[count])


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_who_passes_an_address_does_not_get_the_data(trans: str) -> None:
    # Each lane passes the address of the row that it wrote; all lanes get parts of it, so the warp must have met.
    body = "mov.u32 %r3, cell; mad.lo.u32 %r4, %r1, 16, %r3; st.shared.v4.u32 [%r4], {%r1, %r1, %r1, %r1}; {sync}"
    body += f"ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {VECTOR[4]}, [%r4];" + save(4)
    run(body.replace("{sync}", "bar.warp.sync -1;"), np.zeros(128, np.uint32), declarations=CELLS)
    with pytest.raises(ptx.RaceError) as caught:
        run(body.replace("{sync}", ""), np.zeros(128, np.uint32), declarations=CELLS)
    assert (caught.value.kind, caught.value.line) == ("write-read", line_of(body, "ldmatrix", declarations=CELLS))


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_the_writers_of_stmatrix_are_those_who_hold_the_data(trans: str) -> None:
    # Each lane reads the row whose address it passed: other lanes wrote it.
    body = "mov.u32 %r3, cell; mad.lo.u32 %r4, %r1, 16, %r3; mov.u32 %r20, %r1; mov.u32 %r21, 1; mov.u32 %r22, 2;"
    body += f"mov.u32 %r23, 3; stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%r4], {VECTOR[4]}; {{sync}}"
    body += "ld.shared.v4.u32 {%r20, %r21, %r22, %r23}, [%r4];" + save(4)
    run(body.replace("{sync}", "bar.warp.sync -1;"), np.zeros(128, np.uint32), declarations=CELLS)
    with pytest.raises(ptx.RaceError, match="write-read"):
        run(body.replace("{sync}", ""), np.zeros(128, np.uint32), declarations=CELLS)


@pytest.mark.parametrize(
    "instruction",
    [
        "ldmatrix.sync.aligned.m8n8.x3.shared.b16 {%r20, %r21, %r22}, [cell];",
        "ldmatrix.sync.aligned.m8n16.x1.trans.shared.b8x16.b4x16_p64 {%r20}, [cell];",
        "ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.b16 {%r20}, [cell];",
        "ldmatrix.sync.aligned.m8n8.b16.shared.x1 {%r20}, [cell];",
        "ldmatrix.sync.aligned.m16n16.x1.shared.b8 {%r20, %r21}, [cell];",
        "ldmatrix.sync.aligned.m16n16.x4.trans.shared.b8 {%r20, %r21, %r22, %r23}, [cell];",
        "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b16 {%r20, %r21}, [cell];",
        "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r20}, [cell];",
        "ldmatrix.sync.aligned.m8n8.x1.shared.b8x16.b4x16_p64 {%r20}, [cell];",
        "stmatrix.sync.aligned.m16n8.x1.shared.b8 [cell], {%r20};",
        "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r20}, [cell];",
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 %r20, [cell];",
        "ldmatrix.sync.aligned.m8n8.x1.trans.shared.trans.b16 {%r20}, [cell];",
        "ldmatrix.aligned.m8n8.x1.shared.b16 {%r20}, [cell];",
        "stmatrix.sync.aligned.m8n8.x1.shared.b8 [cell], {%r20};",
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%d3}, [cell];",
    ],
)
def test_other_spellings_are_unknown(instruction: str) -> None:
    with pytest.raises(ptx.UnknownOpcode):
        run(instruction + "ret;", np.zeros(1, np.uint32), declarations=CELLS)


PACKED = {"b4x16_p64": 4, "b6x16_p32": 6}


def element(row: np.ndarray, bits: int, index: int) -> int:
    """Element `index` of a packed row of bytes, the first one in the lowest bits."""
    return int.from_bytes(row.tobytes(), "little") >> bits * index & (1 << bits) - 1


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("packing", PACKED)
@pytest.mark.parametrize("before", ["", WORDS], ids=["python", "native"])
def test_ldmatrix_unpacks(count: int, packing: str, before: str) -> None:
    """PTX ISA, ldmatrix .m8n16: lane i gets elements 4 (i % 4) .. + 3 of row i / 4, a byte each."""
    bits = PACKED[packing]
    rows = np.random.default_rng(count).integers(0, 256, (128, 16), np.uint8)
    load = f"ldmatrix.sync.aligned.m8n16.x{count}.shared.b8x16.{packing} {VECTOR[count]}, [%r5];"
    body = before + FILL + load + save(count)
    out = np.zeros((32, count), np.uint32)
    run(body, out.reshape(-1), rows, declarations=CELLS)
    for lane in range(32):
        for matrix in range(count):
            row = rows[row_of(8 * matrix + lane // 4)]
            expected = [element(row, bits, 4 * (lane % 4) + i) for i in range(4)]
            assert out[lane, matrix].tobytes() == bytes(expected)


def element_of(row: np.ndarray, packing: str, index: int) -> int:
    """Element `index` of a row as ldmatrix gives it."""
    return int(row[index]) if packing == "b8" else element(row, PACKED[packing.removeprefix("b8x16.")], index)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("packing", ["b8", *(f"b8x16.{each}" for each in PACKED)])
@pytest.mark.parametrize("before", ["", WORDS], ids=["python", "native"])
def test_ldmatrix_transposes_bytes(count: int, packing: str, before: str) -> None:
    """Rows are k and columns n: the registers of a matrix are the B of mma.m16n8k16 for its columns 0-7 and 8-15."""
    rows = np.random.default_rng(count).integers(0, 256, (128, 16), np.uint8)
    load = f"ldmatrix.sync.aligned.m16n16.x{count}.trans.shared.{packing} {VECTOR[2 * count]}, [%r5];"
    out = np.zeros((32, 2 * count), np.uint32)
    run(before + FILL + load + save(2 * count), out.reshape(-1), rows, declarations=CELLS, target="sm_120a")
    for lane in range(32):
        for register in range(2 * count):
            column = lane // 4 + 8 * (register % 2)
            of_rows = [rows[row_of(16 * (register // 2) + 4 * (lane % 4) + i)] for i in range(4)]
            assert out[lane, register].tobytes() == bytes(element_of(row, packing, column) for row in of_rows)


@pytest.mark.parametrize("packing", ["b8", *(f"b8x16.{each}" for each in PACKED)])
def test_who_reads_which_word_of_a_transposed_row(packing: str) -> None:
    # A lane writes just those words of row `lane / 4 * 4 + i` that hold the elements that it gets. Nothing orders the
    # lanes, and yet there is no race but on words that several lanes share, whose first lane is taken to read them.
    bits = {"b8": 8, "b8x16.b4x16_p64": 4, "b8x16.b6x16_p32": 6}[packing]
    load = f"ldmatrix.sync.aligned.m16n16.x2.trans.shared.{packing} {VECTOR[4]}, [%r5];"
    words = 16 * bits // 32
    text = "mov.u32 %r3, cell; mad.lo.u32 %r5, %r1, 16, %r3; and.b32 %r6, %r1, 3; shr.u32 %r7, %r1, 2;"
    for word in range(words):
        # The lanes of group g, that get column g, write the word whose first element has this number.
        group = word * 32 // bits % 8
        text += f"setp.ne.u32 %p1, %r7, {group}; @%p1 bra NEXT{word};"
        for row in range(4):
            for matrix in range(2):
                place = 16 * (16 * matrix + row) + 4 * word
                text += f"mad.lo.u32 %r8, %r6, 64, %r3; st.shared.u32 [%r8+{place}], %r1;"
        text += f"NEXT{word}: bar.warp.sync -1;" if word < words - 1 else f"NEXT{word}:"
    # Between the last stores and the load nothing orders lanes: whoever else read a word would race with its writer.
    run(text + load + save(4), np.zeros(128, np.uint32), declarations=CELLS)
    other = text.replace(f"setp.ne.u32 %p1, %r7, {(words - 1) * 32 // bits % 8};", "setp.ne.u32 %p1, %r7, 1;")
    assert other != text
    with pytest.raises(ptx.RaceError, match="write-read"):
        run(other + load + save(4), np.zeros(128, np.uint32), declarations=CELLS)


# Lane i writes the first or the last part of row i, %r5.
ROW = "mov.u32 %r3, cell; mad.lo.u32 %r5, %r1, 16, %r3; mov.u32 %r20, %r1;"


@pytest.mark.parametrize(
    ("packing", "written", "kind"),
    [
        ("b4x16_p64", "st.shared.v2.u32 [%r5], {%r20, %r20};", None),
        ("b4x16_p64", "st.shared.v2.u32 [%r5+8], {%r20, %r20};", "uninitialised"),
        ("b4x16_p64", "st.shared.u32 [%r5], %r20; st.shared.v2.u32 [%r5+8], {%r20, %r20};", "uninitialised"),
        ("b6x16_p32", "st.shared.v2.u32 [%r5], {%r20, %r20}; st.shared.u32 [%r5+8], %r20;", None),
        ("b6x16_p32", "st.shared.v2.u32 [%r5], {%r20, %r20}; st.shared.u32 [%r5+12], %r20;", "uninitialised"),
        ("b4x16_p64", "st.shared.v2.u32 [%r5], {%r20, %r20}; add.u32 %r5, %r5, 8;", "misaligned"),
        ("b6x16_p32", "add.u32 %r5, %r5, 2048;", "out of bounds"),
    ],
)
def test_padding_is_not_read(packing: str, written: str, kind: str | None) -> None:
    load = f"ldmatrix.sync.aligned.m8n16.x4.shared.b8x16.{packing} {VECTOR[4]}, [%r5];"
    body = ROW + written + "bar.warp.sync -1;" + load + save(4)
    out = np.zeros(128, np.uint32)
    if kind is None:
        run(body, out, declarations=CELLS)
        return
    with pytest.raises(ptx.MemoryFault) as caught:
        run(body, out, declarations=CELLS)
    assert (caught.value.kind, caught.value.thread) == (kind, (0, 0, 0))


def test_a_packed_row_races_with_its_writer_but_its_padding_does_not() -> None:
    load = f"ldmatrix.sync.aligned.m8n16.x4.shared.b8x16.b4x16_p64 {VECTOR[4]}, [%r5];"
    fill = ROW + "st.shared.v2.u32 [%r5], {%r20, %r20}; bar.warp.sync -1;"
    run(fill + "st.shared.v2.u32 [%r5+8], {%r20, %r20};" + load + save(4), np.zeros(128, np.uint32), declarations=CELLS)
    body = fill + "st.shared.v2.u32 [%r5], {%r20, %r20};" + load + save(4)
    with pytest.raises(ptx.RaceError):
        run(body, np.zeros(128, np.uint32), declarations=CELLS)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix_of_bytes(count: int) -> None:
    """Register j of a lane is a fragment of a 16 x 8 matrix as mma writes it; row c of memory is its column c."""
    body = ROW + "".join(
        f"mul.wide.u32 %d3, %r1, 16; add.s64 %d3, %d3, %d1; ld.global.u32 %r{20 + i}, [%d3+{4 * i}];"
        for i in range(count)
    )
    body += f"stmatrix.sync.aligned.m16n8.x{count}.trans.shared.b8 [%r5], {VECTOR[count]}; bar.warp.sync -1;"
    # Rows beyond the last matrix are not written.
    body += f"setp.ge.u32 %p1, %r1, {8 * count}; @%p1 ret; ld.shared.v4.u32 {{%r20, %r21, %r22, %r23}}, [%r5];" + save(
        4
    )
    held = np.random.default_rng(count).integers(0, 256, (32, 4, 4), np.uint8)
    out = np.zeros((32, 16), np.uint8)
    run(body, out.view(np.uint32).reshape(-1), held.view(np.uint32).reshape(-1), declarations=CELLS)
    for matrix in range(count):
        for lane in range(32):
            for i in range(4):
                row, column = lane // 4 + 8 * (i // 2), 2 * (lane % 4) + i % 2
                assert out[8 * matrix + column, row] == held[lane, matrix, i]


def test_a_destination_that_nobody_reads() -> None:
    body = FILL + "mov.u32 %r20, 7; ldmatrix.sync.aligned.m8n8.x2.shared.b16 {_, %r21}, [%r5];" + save(2)
    out = np.zeros((32, 2), np.uint32)
    run(body, out.reshape(-1), ROWS, declarations=CELLS)
    assert set(out[:, 0].tolist()) == {7}
    assert out[0, 1] == int(ROWS[row_of(8), 0]) | int(ROWS[row_of(8), 1]) << 16


@pytest.mark.parametrize("spelling", ["x1.m8n8.shared", "x1.shared.m8n8", "shared.m8n8.x1", "m8n8.x1.shared"])
def test_modifiers_in_any_order(spelling: str) -> None:
    body = FILL + f"ldmatrix.sync.aligned.{spelling}.b16 {{%r20}}, [%r5];" + save(1)
    out = np.zeros(32, np.uint32)
    run(body, out, ROWS, declarations=CELLS)
    assert out[0] == int(ROWS[0, 0]) | int(ROWS[0, 1]) << 16
