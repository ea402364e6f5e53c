"""Code that pieces share: compiled once for all that compute the same, and right for each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.ptx_kernel import line_of, run

from refmoe import ptx
from refmoe.native import cache
from refmoe.ptx.native import batch

# Ends a block, so that what stands behind it is a block of its own.
CUT = "\nbar.sync 0;\n"
STORE = "st.global.u32 [%d2], %r3; ret;"


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: Callable[[], None]) -> list[int]:
    """Of each compilation since a test began: how many templates there were."""
    monkeypatch.setenv("REFMOE_CACHE_DIR", str(tmp_path))
    forget()
    really, counts = batch.compiled, []

    def counting(text: str) -> bytes:
        counts.append(text.count('define i64 @"piece_'))
        return really(text)

    monkeypatch.setattr(batch, "compiled", counting)
    return counts


def result(body: str, lanes: int = 4, **given: object) -> list[int]:
    out = np.zeros(lanes, np.uint32)
    run(body, out, block=(lanes, 1, 1), **given)  # type: ignore[arg-type]
    return out.tolist()


def test_a_changed_block_alone_is_compiled_again(compiled: list[int]) -> None:
    first = f"mov.u32 %r3, %r1; {CUT} mul.lo.u32 %r3, %r3, 3; {CUT} add.u32 %r3, %r3, 5; {CUT} {STORE}"
    assert result(first) == [5, 8, 11, 14]
    assert result(first.replace("%r3, 3", "%r3, 4")) == [5, 9, 13, 17]
    assert len(compiled) == 2
    assert compiled[1] == 1 < compiled[0]


def test_the_same_block_twice_is_compiled_once(compiled: list[int]) -> None:
    triple = f"mul.lo.u32 %r3, %r3, 3; {CUT}"
    assert result(f"mov.u32 %r3, %r1; {CUT} {triple} {STORE}") == [0, 3, 6, 9]
    assert result(f"mov.u32 %r3, %r1; {CUT} {triple * 3} {STORE}") == [0, 27, 54, 81]
    assert len(compiled) == 1


def test_other_names_are_no_other_code(compiled: list[int]) -> None:
    body = f"mov.u32 %r3, %r1; {CUT} mul.lo.u32 %r3, %r3, 3; {CUT} {STORE}"
    assert result(body) == [0, 3, 6, 9]
    assert result(body.replace("%r3", "%r9")) == [0, 3, 6, 9]
    assert len(compiled) == 1


def test_registers_are_found_by_the_kernel_s_own_table(compiled: list[int]) -> None:
    # The last blocks are one template, whose registers have other homes in each kernel.
    def body(first: str, second: str) -> str:
        return (
            f"mov.u32 %r10, 100; mov.u32 %r11, %r1; {CUT} sub.u32 %r3, {first}, {second}; {CUT} "
            f"add.u32 %r3, %r3, {first}; {STORE}"
        )

    assert result(body("%r10", "%r11")) == [200, 199, 198, 197]
    assert result(body("%r11", "%r10")) == [(2 * lane - 100) % 2**32 for lane in range(4)]
    assert len(compiled) == 1


# What a lane has of a number, or of the float32 that it is.
OF_NUMBERS: dict[str, Callable[[int, int], int]] = {
    "mad.lo.u32 %r3, %r1, {n}, 7;": lambda lane, n: lane * n + 7,
    "add.u32 %r3, %r1, {n};": lambda lane, n: lane + n,
    "mul.lo.u32 %r3, %r1, {n};": lambda lane, n: lane * n,
    "and.b32 %r3, %r1, {n}; xor.b32 %r3, %r3, {n};": lambda lane, n: (lane & n) ^ n,
    "setp.lt.s32 %p1, %r1, {n}; selp.u32 %r3, {n}, 5, %p1;": lambda lane, n: n if lane < n else 5,
    "min.s32 %r3, %r1, {n};": min,
    "cvt.u64.u32 %d3, %r1; mad.wide.u32 %d3, %r1, {n}, %d3; cvt.u32.u64 %r3, %d3;": lambda lane, n: lane * n + lane,
    "cvt.u64.u32 %d3, %r1; sub.s64 %d3, %d3, {n}; shr.u64 %d3, %d3, 20; cvt.u32.u64 %r3, %d3;": (
        lambda lane, n: (lane - n) % 2**64 >> 20
    ),
    "mov.b32 %r4, 0f{f}; mul.f32 %r4, %r4, 0f{f}; add.f32 %r3, %r4, 0f{f};": (
        lambda lane, n: int(np.float32(n * n + n).view(np.uint32))
    ),
}


@pytest.mark.parametrize("body", OF_NUMBERS, ids=[each.split()[0] for each in OF_NUMBERS])
def test_other_numbers_are_no_other_code(compiled: list[int], body: str) -> None:
    for number in (3, 6, 100, -5):
        bits = int(np.float32(number).view(np.uint32))
        found = result(f"{body.format(n=number, f=f'{bits:08X}')} {STORE}")
        assert found == [OF_NUMBERS[body](lane, number) % 2**32 for lane in range(4)], number
    assert len(compiled) == 1


def test_numbers_that_shorten_code_stay_in_it(compiled: list[int]) -> None:
    for number in (0, 1, 4, 8):
        assert result(f"mul.lo.u32 %r3, %r1, {number}; {STORE}") == [lane * number for lane in range(4)]
    assert len(compiled) == 4
    for number in (2, 9):
        assert result(f"shl.b32 %r3, %r1, {number}; {STORE}") == [lane << number for lane in range(4)]
    assert len(compiled) == 6


@pytest.mark.parametrize("written", ["v2.u32 [%d2+{n}], {{%r3, %r3}};", "u32 [%d2+{n}], %r3;"])
def test_other_offsets_are_no_other_code(compiled: list[int], written: str) -> None:
    for offset in (8, 16, 40):
        out, data = np.zeros(64, np.uint32), np.arange(100, 164, dtype=np.uint32)
        store = f"st.global.{written.format(n=offset)}"
        run(f"ld.global.u32 %r3, [%d1+{offset // 2}]; {store} ret;", out, data, block=(1, 1, 1))
        expected = np.zeros(64, np.uint32)
        expected[offset // 4 : offset // 4 + (2 if "v2" in written else 1)] = 100 + offset // 8
        assert out.tolist() == expected.tolist()
    assert len(compiled) == 1


def test_blocks_that_differ_in_whether_an_address_has_an_offset() -> None:
    for offset in (0, 8, 0):
        out = np.zeros(4, np.uint32)
        run(f"st.global.u32 [%d2{f'+{offset}' if offset else ''}], 7; ret;", out, block=(1, 1, 1))
        assert np.flatnonzero(out).tolist() == [offset // 4]


def test_variables_of_a_module_are_found_by_the_kernel_s_own_table() -> None:
    # In the second block `b` is the first variable of its template, and the second one of the entry.
    scope = ".global .u32 a = 40; .global .u32 b = 2;"
    body = f"ld.global.u32 %r3, [a]; {CUT} ld.global.u32 %r4, [b]; add.u32 %r3, %r3, %r4; {STORE}"
    assert result(body, module_scope=scope) == [42] * 4


def test_predefined_registers_are_found_by_the_kernel_s_own_table() -> None:
    body = "mov.u32 %r3, %ntid.y; {cut} mov.u32 %r4, %nctaid.x; mad.lo.u32 %r3, %r3, 10, %r4; {store}"
    expected = [10 * 1 + 1] * 4
    assert result(body.format(cut=CUT, store=STORE)) == expected
    swapped = body.replace("%ntid.y", "%nctaid.x", 1).replace("%r4, %nctaid.x", "%r4, %ntid.x")
    assert result(swapped.format(cut=CUT, store=STORE)) == [14] * 4


def test_a_chain_goes_on_in_its_own_kernel() -> None:
    # Both loops are chains of the same templates, in two kernels and twice in one.
    def loop(label: str, count: int) -> str:
        return f"""
            mov.u32 %r5, 0;
        {label}:
            add.u32 %r3, %r3, 1;
            add.u32 %r5, %r5, 1;
            setp.lt.u32 %p1, %r5, {count};
            @%p1 bra {label};
        """

    assert result(f"mov.u32 %r3, %r1; {loop('one', 5)} {loop('two', 7)} {STORE}") == [12, 13, 14, 15]
    assert result(f"mov.u32 %r3, %r1; {loop('one', 7)} {STORE}") == [7, 8, 9, 10]


def test_the_errors_of_a_shared_block_name_its_own_lines() -> None:
    store = "add.u64 %d5, %d2, 4096; st.global.u32 [%d5], %r3;"
    for fill in ("", "add.u32 %r3, %r3, 1;\n" * 5):
        body = f"mov.u32 %r3, %r1; {fill} {CUT} {store} ret;"
        with pytest.raises(ptx.MemoryFault, match="out of bounds") as caught:
            result(body)
        assert caught.value.line == line_of(body, "st.global.u32 [%d5]")


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_blocks_that_differ_in_how_far_a_variable_goes(order: list[int]) -> None:
    body = f"mov.u32 %r4, sh; {CUT} st.shared.u32 [%r4+8], %r1; {CUT} ld.shared.u32 %r3, [%r4+8]; {STORE}"
    wide, narrow = ".shared .align 4 .b8 sh[64];", ".shared .align 4 .b8 sh[8]; .shared .align 4 .b8 after[56];"
    for declarations in ([wide, narrow][number] for number in order):
        if declarations == wide:
            assert result(body, lanes=1, declarations=declarations) == [0]
        else:
            with pytest.raises(ptx.MemoryFault, match="sh"):
                result(body, lanes=1, declarations=declarations)


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_blocks_that_differ_in_whether_a_register_was_written(order: list[int]) -> None:
    body = f"{CUT} add.u32 %r3, %r9, 1; {STORE}"
    for written in ([True, False][number] for number in order):
        if written:
            assert result(f"mov.u32 %r9, 4; {body}") == [5] * 4
        else:
            with pytest.raises(ptx.PtxError, match="%r9"):
                result(body)


def _drop(folder: Path) -> None:
    """The batches alone: the files whose names other files hold."""
    names = {file.name for file in folder.iterdir()}
    batches = {name for name in names for held in names if cache.load(held) == name.encode()}
    assert batches
    for name in batches:
        (folder / name).unlink()


def _cut(folder: Path) -> None:
    for file in folder.iterdir():
        file.write_bytes(file.read_bytes()[:40])


@pytest.mark.parametrize("damage", [_drop, _cut], ids=["gone", "cut"])
def test_a_batch_that_is_lost_is_compiled_again(
    compiled: list[int], tmp_path: Path, forget: Callable[[], None], damage: Callable[[Path], None]
) -> None:
    body = f"mov.u32 %r3, %r1; {CUT} mul.lo.u32 %r3, %r3, 3; {CUT} {STORE}"
    assert result(body) == [0, 3, 6, 9]
    forget()
    assert result(body) == [0, 3, 6, 9]
    assert len(compiled) == 1
    forget()
    damage(tmp_path / "native")
    assert result(body) == [0, 3, 6, 9]
    assert len(compiled) == 2
    forget()
    assert result(body) == [0, 3, 6, 9]
    assert len(compiled) == 2
