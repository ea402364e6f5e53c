"""What one instruction does to a range of memory: `st.bulk` writes zeros, `discard` what nobody knows."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import run

from refmoe import ptx

CELLS = ".shared .align 16 .b8 cells[512];"
EACH = "mov.u32 %r3, cells; shl.b32 %r4, %r1, 2; add.u32 %r3, %r3, %r4;"
FIRST = "setp.eq.u32 %p1, %r1, 0;"
CLEAR = "mov.u64 %d3, cells; @%p1 st.bulk.weak.shared::cta [%d3], 128, 0;"
SHOW = "ld.shared.u32 %r5, [%r3]; st.global.u32 [%d2], %r5;"


def ranged(body: str, **more: object) -> np.ndarray:
    """What 64 lanes see in their cells, which hold 9 before."""
    out = np.full(64, 5, np.uint32)
    start = EACH + FIRST + "st.shared.u32 [%r3], 9;"
    run(start + body, out, block=(64, 1, 1), declarations=CELLS, **more)  # type: ignore[arg-type]
    return out


@pytest.mark.parametrize(
    "clear",
    [
        CLEAR,
        "mov.u64 %d3, cells; @%p1 st.bulk.shared::cta [%d3], 128, 0;",
        "mov.u64 %d3, cells; cvta.shared.u64 %d3, %d3; @%p1 st.bulk [%d3], 128, 0;",
        "mov.u64 %d3, cells; mov.u64 %d4, 128; @%p1 st.bulk.weak.shared::cta [%d3], %d4, 0;",
        # Four lanes, a part each.
        "mov.u64 %d3, cells; mul.wide.u32 %d4, %r1, 32; add.u64 %d3, %d3, %d4; setp.lt.u32 %p2, %r1, 4;"
        "@%p2 st.bulk.weak.shared::cta [%d3], 32, 0;",
    ],
)
def test_zeros(clear: str) -> None:
    assert ranged("bar.sync 0;" + clear + "bar.sync 0;" + SHOW).tolist() == [0] * 32 + [9] * 32


def test_sizes_of_their_own() -> None:
    # Lane 0 clears 8 bytes, lane 1 the 24 behind.
    body = """bar.sync 0; mov.u64 %d3, cells; mul.wide.u32 %d4, %r1, 8; add.u64 %d3, %d3, %d4; shl.b64 %d4, %d4, 1;
        add.u64 %d4, %d4, 8; setp.lt.u32 %p2, %r1, 2; @%p2 st.bulk.weak.shared::cta [%d3], %d4, 0; bar.sync 0;"""
    assert ranged(body + SHOW).tolist() == [0] * 8 + [9] * 56


def test_zeros_initialise() -> None:
    out = np.full(64, 5, np.uint32)
    body = EACH + FIRST + CLEAR.replace("128", "256") + "bar.sync 0;" + SHOW
    run(body, out, block=(64, 1, 1), declarations=CELLS)
    assert not out.any()


@pytest.mark.parametrize(
    ("clear", "error", "message"),
    [
        (CLEAR.replace("cells;", "cells+504;"), ptx.MemoryFault, "out of bounds"),
        (CLEAR.replace("cells;", "cells+4;"), ptx.MemoryFault, "misaligned"),
        (CLEAR.replace("128", "12"), ptx.MisuseError, "writes 12 bytes, no multiple of 8"),
        (CLEAR.replace(", 0;", ", 1;"), ptx.UnknownOpcode, "an initial value of 0"),
        (CLEAR.replace(".weak", ".relaxed"), ptx.UnknownOpcode, "unknown opcode"),
    ],
)
def test_what_is_refused(clear: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ranged("bar.sync 0;" + clear)


@pytest.mark.parametrize("body", [CLEAR + "bar.sync 0;" + SHOW, "bar.sync 0;" + CLEAR + SHOW])
def test_zeros_race(body: str) -> None:
    with pytest.raises(ptx.RaceError):
        ranged(body)


# Discarded lines


def discarded(body: str, size: int = 64) -> np.ndarray:
    """What becomes of 5s of which thread 0 of 64 discards the first 128 bytes."""
    out = np.full(size, 5, np.uint32)
    run(FIRST + "@%p1 discard.global.L2 [%d0], 128;" + body, out, block=(64, 1, 1))
    return out


def test_bytes_that_are_written_anew() -> None:
    assert discarded("bar.sync 0; st.global.u32 [%d2], %r1;").tolist() == list(range(64))
    # Those of the next line stay.
    assert (
        discarded("bar.sync 0; setp.lt.u32 %p2, %r1, 32; @%p2 st.global.u32 [%d2], 7;").tolist() == [7] * 32 + [5] * 32
    )


@pytest.mark.parametrize("body", ["@%p1 ld.global.u32 %r3, [%d0+124];", "bar.sync 0; ld.global.u32 %r3, [%d0];"])
def test_bytes_that_nobody_wrote_since(body: str) -> None:
    with pytest.raises(ptx.MemoryFault, match="uninitialised"):
        discarded(body + "@%p1 st.global.u32 [%d0+128], %r3;")


def test_a_discard_is_a_write() -> None:
    with pytest.raises(ptx.RaceError, match="write-write race"):
        discarded("st.global.u32 [%d2], 5;")
    # Whichever comes first.
    with pytest.raises(ptx.RaceError, match="read-write race"):
        run("ld.global.u32 %r3, [%d2];" + FIRST + "@%p1 discard.L2 [%d0], 128;", np.full(64, 5, np.uint32))


@pytest.mark.parametrize(
    ("address", "message"), [("%d0+4", "misaligned"), ("%d0+256", "out of bounds"), ("%d0+64", "misaligned")]
)
def test_a_whole_line_is_discarded(address: str, message: str) -> None:
    with pytest.raises(ptx.MemoryFault, match=message):
        run(FIRST + f"@%p1 discard.L2 [{address}], 128;", np.full(64, 5, np.uint32))
