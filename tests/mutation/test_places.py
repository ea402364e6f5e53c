"""What a grid's tiles, an array's ends and lanes that raise one number tell of a mutant; near misses, and host code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refmoe.cuda import block_fp8, finalize_q8_1, swiglu_q8_1
from refmoe.cuda.arguments import INT32_MAX
from refmoe.cuda.launch import Entry, LaunchPlan
from refmoe.errors import ArgumentError
from refmoe.mutation import trial
from refmoe.mutation.proofs import bounds
from refmoe.mutation.proofs.bounds import MOST_TILES, HostBounds, within_bounds
from refmoe.mutation.proofs.equality import same_kernel
from refmoe.mutation.proofs.unread import without_unread
from refmoe.ptx import Buffer
from tests.mutation.test_proofs import result, small

#: The number of a CTA, beside a parameter divided by 32 and rounded up.
TILES = (
    "ld.param.u32 %r9, [kernel_param_2]", "add.s32 %r3, %r9, 31", "shr.s32 %r4, %r3, 31", "shr.u32 %r5, %r4, 27",
    "add.s32 %r6, %r3, %r5", "shr.s32 %r3, %r6, 5", "mov.u32 %r1, %ctaid.x",
)  # fmt: skip
LEFT = ("div.s32 %r5, %r1, %r3", "mul.lo.s32 %r6, %r5, %r3", "sub.s32 %r7, %r1, %r6")


def bounded(monkeypatch: pytest.MonkeyPatch, known: HostBounds) -> None:
    monkeypatch.setattr(bounds, "BOUNDS", {"kernel": known})


def leaves(relation: str, *, tiles: tuple[str, ...] = TILES, between: tuple[str, ...] = ()) -> str:
    """A kernel whose CTAs leave if their number is in a relation to that of tiles, or else store it."""
    text = small(*tiles, *between, f"setp.{relation}.s32 %p1, %r1, %r3", "@%p1 bra END", "st.global.u32 [%rd2], %r1")
    return text.replace("\tret;", "END:\n\tret;")


@pytest.mark.parametrize(
    ("known", "proven"),
    [
        (HostBounds({2: 1 << 20}, tiles={2: 32}), True),
        (HostBounds({2: 1 << 20}), False),
        (HostBounds({2: 1 << 20}, tiles={2: 64}), False),
        (HostBounds({2: 1 << 20}, tiles={2: 1}), False),
        (HostBounds({2: 1 << 20}, tiles={2: 32, 1: 2}), False),
        (HostBounds({2: INT32_MAX}, tiles={2: 32}), False),  # what is added may go beyond 32 bits
    ],
)
def test_no_cta_is_the_first_one_past_the_tiles(
    monkeypatch: pytest.MonkeyPatch, known: HostBounds, proven: bool
) -> None:
    bounded(monkeypatch, known)
    assert (same_kernel(leaves("ge"), leaves("gt")) is not None) is proven
    assert same_kernel(leaves("ge"), leaves("lt")) is None
    assert same_kernel(leaves("ge"), leaves("ne")) is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("%r9, 31", "%r9, 30"),  # rounded down but for some
        ("%r9, 31", "%r9, 32"),
        ("%r6, 5", "%r6, 6"),
        ("add.s32 %r6, %r3, %r5", "add.s32 %r6, %r3, %r1"),
        ("%ctaid.x", "%tid.x"),
        ("kernel_param_2", "kernel_param_1"),
    ],
)
def test_another_number_is_not_that_of_tiles(monkeypatch: pytest.MonkeyPatch, before: str, after: str) -> None:
    bounded(monkeypatch, HostBounds({2: 1 << 20}, tiles={2: 32}))
    tiles = tuple(each.replace(before, after) for each in TILES)
    assert tiles != TILES
    assert same_kernel(leaves("ge", tiles=tiles), leaves("gt", tiles=tiles)) is None


def test_a_number_that_went_on_may_be_that_of_the_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded(monkeypatch, HostBounds({2: 1 << 20}, tiles={2: 32}))
    step = ("add.s32 %r1, %r1, 1",)
    assert same_kernel(leaves("ge", between=step), leaves("gt", between=step)) is None


def remainder(kind: str, *left: str) -> str:
    return small(*TILES, *left, f"shr.{kind}32 %r8, %r7, 3", "st.global.u32 [%rd2], %r8")


@pytest.mark.parametrize(
    ("left", "proven"),
    [
        (LEFT, True),
        ((*LEFT[:2], "shl.b32 %r2, %r1, 4", "shl.b32 %r6, %r6, 4", "sub.s32 %r7, %r2, %r6"), True),
        ((*LEFT[:2], "shl.b32 %r2, %r1, 4", "shl.b32 %r6, %r6, 3", "sub.s32 %r7, %r2, %r6"), False),
        ((LEFT[0], "mul.lo.s32 %r6, %r5, %r9", LEFT[2]), False),  # of another divisor
        ((LEFT[0].replace("%r1,", "%r9,"), *LEFT[1:]), False),  # of another number
        ((*LEFT[:2], "sub.s32 %r7, %r6, %r1"), False),
        ((LEFT[0].replace("%r3", "%r9"), LEFT[1].replace("%r3", "%r9"), LEFT[2]), False),  # by what may be 0
        ((*LEFT, "add.s32 %r7, %r7, -1"), False),
    ],
)
def test_what_a_division_leaves_is_not_negative(
    monkeypatch: pytest.MonkeyPatch, left: tuple[str, ...], proven: bool
) -> None:
    bounded(monkeypatch, HostBounds({2: 1 << 20}, tiles={2: 32}))
    assert (same_kernel(remainder("s", *left), remainder("u", *left)) is not None) is proven


#: A word that nothing is known of, and a place that is so many numbers behind the first one of an array.
LOADED = ("mov.u32 %r7, %tid.x", "mul.wide.u32 %rd3, %r7, 4", "add.s64 %rd4, %rd1, %rd3", "ld.global.u32 %r1, [%rd4]")


def placed(kind: str, access: str = "st.global.u32 [%rd5], %r7", *more: str) -> str:
    lines = (f"mul.wide.{kind}32 %rd4, %r1, 4", "add.s64 %rd5, %rd2, %rd4")
    return small(*LOADED, *lines, *more, access)


@pytest.mark.parametrize(
    ("access", "more", "proven"),
    [
        ("st.global.u32 [%rd5], %r7", (), True),
        ("st.global.v2.u32 [%rd5], {%r7, %r7}", (), True),
        ("st.global.u32 [%rd5+3], %r7", (), True),
        ("st.global.u32 [%rd5+4], %r7", (), False),  # of -1, too
        ("st.global.u32 [%rd5], %r7", ("add.s64 %rd5, %rd5, %rd3",), False),
        ("st.global.u32 [%rd5], %r7", ("sub.s64 %rd5, %rd2, %rd4",), False),
        ("st.global.u64 [%rd2], %rd4", (), False),  # a number, and no place
        ("st.shared.u32 [%rd4], %r7", (), False),
    ],
)
def test_a_number_that_a_place_is_behind_the_first_one_is_not_negative(
    access: str, more: tuple[str, ...], proven: bool
) -> None:
    assert (same_kernel(placed("s", access, *more), placed("u", access, *more)) is not None) is proven


def test_a_place_behind_another_number_is_another_place() -> None:
    assert same_kernel(placed("s"), placed("s").replace("%r1, 4", "%r1, 8")) is None
    assert same_kernel(placed("s"), placed("s").replace("%rd4, %r1, 4", "%rd4, %r7, 4")) is None
    assert same_kernel(placed("s"), placed("u").replace("mul.wide.u32 %rd4, %r1", "mul.wide.u32 %rd4, %r7")) is None


def product(cut: bool, number: str = "%r9") -> str:
    wide = ("mul.lo.s32 %r4, %r8, %r3", "cvt.s64.s32 %rd4, %r4") if cut else ("mul.wide.s32 %rd4, %r8, %r3",)
    lines = ("ld.param.u32 %r9, [kernel_param_2]", "mov.u32 %r8, %ctaid.x", f"add.s32 %r3, {number}, 0")
    return small(*LOADED, *lines, *wide, "shl.b64 %rd4, %rd4, 2", "add.s64 %rd5, %rd2, %rd4", "st.global.u32 [%rd5], 1")


def test_a_product_that_is_within_an_array_fits_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    small_grid = {"most": {2: 1 << 30}, "grid": 1 << 16}
    bounded(monkeypatch, HostBounds(**small_grid, sizes={1: 4 * INT32_MAX}))  # type: ignore[arg-type]
    assert same_kernel(product(False), product(True)) is not None
    assert same_kernel(product(False, "%r1"), product(True, "%r1")) is not None
    bounded(monkeypatch, HostBounds(**small_grid, sizes={1: 4 * INT32_MAX + 5}))  # type: ignore[arg-type]
    assert same_kernel(product(False), product(True)) is None
    bounded(monkeypatch, HostBounds(**small_grid, sizes={0: 4 * INT32_MAX}))  # type: ignore[arg-type]
    assert same_kernel(product(False), product(True)) is None


# --- what nobody reads -----------------------------------------------------------------------------------------------

EXCHANGE = "shfl.sync.bfly.b32 %r2|%p2, %r1, 1, 31, MASK"
STORE = ("add.s64 %rd5, %rd2, %rd3", "st.global.u32 [%rd5], %r2")


def exchanges(*more: str, mask: str = "-1") -> str:
    return small(*LOADED, *more, EXCHANGE.replace("MASK", mask), *STORE)


def test_an_exchange_that_nobody_reads_waits_for_lanes_that_wait_anyway() -> None:
    unread = "shfl.sync.up.b32 %r4|%p3, %r1, 32, 0, -1"
    assert result(exchanges(), 5) == result(exchanges(unread), 5)
    assert same_kernel(exchanges(), exchanges(unread)) is not None
    assert same_kernel(exchanges(unread), exchanges()) is not None


@pytest.mark.parametrize(
    "more",
    [
        ("shfl.sync.up.b32 %r4|%p3, %r1, 32, 0, 255",),  # other lanes
        ("shfl.sync.up.b32 %r1|%p3, %r1, 1, 0, -1",),
        ("shfl.sync.up.b32 %r4|%p3, %r1, 1, 0, -1", "@%p3 add.s32 %r1, %r1, 1"),
        ("setp.eq.s32 %p3, %r7, 0", "@%p3 shfl.sync.up.b32 %r4|%p4, %r1, 1, 0, -1"),
    ],
)
def test_an_exchange_that_is_read_or_of_other_lanes_is_seen(more: tuple[str, ...]) -> None:
    assert same_kernel(exchanges(), exchanges(*more)) is None


def test_an_exchange_stays_where_no_other_one_waits_for_its_lanes() -> None:
    alone = small(*LOADED, "shfl.sync.up.b32 %r4|%p3, %r1, 1, 0, -1", "st.global.u32 [%rd4], %r1")
    assert without_unread(alone) == alone
    both = small(*LOADED, *["shfl.sync.up.b32 %r4|%p3, %r1, 1, 0, -1"] * 2)
    assert without_unread(both) == both
    mask = ("mov.u32 %r8, -1", "shfl.sync.up.b32 %r4|%p3, %r1, 1, 0, %r8", "mov.u32 %r8, 255")
    renewed = exchanges(*mask, mask="%r8")
    assert without_unread(renewed) == renewed
    kept = exchanges(*mask[:2], mask="%r8")
    assert "%r4|%p3" not in without_unread(kept)
    # The first exchange has the mask that it then overwrites.
    behind = small(
        *LOADED, "mov.u32 %r8, -1", "shfl.sync.bfly.b32 %r8|%p2, %r1, 1, 31, %r8",
        "shfl.sync.up.b32 %r4|%p3, %r1, 1, 0, %r8", *STORE, "st.global.u32 [%rd5+4], %r8",
    )  # fmt: skip
    assert without_unread(behind) == behind


# --- several lanes that do what one does -----------------------------------------------------------------------------


def raises(guard: str, *, opcode: str = "atom.global.max.u32 %r6", value: str = "%r5", more: str = "") -> str:
    lines = ["mov.u32 %r7, %tid.x", "and.b32 %r4, %r7, 31", "shr.u32 %r5, %r7, 5", f"setp.ne.s32 %p1, {guard}"]
    text = small(*lines, "@%p1 bra END", f"{opcode}, [%rd2], {value}")
    return text.replace("\tret;", f"END:\n\t{more}ret;")


def test_lanes_that_raise_a_number_to_one_value_do_what_one_lane_does() -> None:
    one, every = raises("%r4, 0"), raises("%r4, %r4")
    assert result(one, 5) == result(every, 5)
    assert same_kernel(one, every) is not None
    assert same_kernel(one, raises("%r4, 7")) is not None
    assert same_kernel(one, raises("%r4, 32")) is None  # nobody
    assert same_kernel(one, raises("%r7, 0")) is None  # of the first warp alone


@pytest.mark.parametrize(
    "changed",
    [
        {"opcode": "atom.global.add.u32 %r6"},
        {"opcode": "atom.global.xor.b32 %r6"},
        {"opcode": "atom.global.exch.b32 %r6"},
        {"opcode": "atom.acq_rel.gpu.global.max.u32 %r6"},
        {"value": "%r7"},  # each lane its own
        {"more": "st.global.u32 [%rd2+4], %r6;\n\t"},  # what was there is read
        {"more": "ld.global.u32 %r9, [%rd2];\n\tst.global.u32 [%rd2+512], %r9;\n\t"},
        {"more": "st.global.u32 [%rd2], 3;\n\t"},
    ],
)
def test_what_several_lanes_do_more_than_one_is_seen(changed: dict[str, str]) -> None:
    assert same_kernel(raises("%r4, 0", **changed), raises("%r4, %r4", **changed)) is None


def chosen(*lines: str) -> str:
    return small(*LOADED, "add.s64 %rd5, %rd2, %rd3", "and.b32 %r4, %r7, 31", *lines, "st.global.u32 [%rd5], %r3")


def test_a_choice_of_two_values_where_they_are_equal_is_either() -> None:
    equal = "setp.eq.s32 %p1, %r4, 0"
    plain = chosen("mov.u32 %r3, %r4")
    for same in ("selp.b32 %r3, 0, %r4, %p1", "selp.b32 %r3, %r4, 0, %p1"):
        other = chosen(equal, same)
        kept = plain if same.startswith("selp.b32 %r3, 0") else chosen("mov.u32 %r3, 0")
        assert result(kept, 5) == result(other, 5)
        assert same_kernel(kept, other) is not None
    both = ("setp.gt.s32 %p2, %r1, 9", "and.pred %p3, %p1, %p2", "selp.b32 %r2, %r4, 7, %p2")
    assert same_kernel(chosen(equal, *both, "mov.u32 %r3, %r2"), chosen(equal, *both, "selp.b32 %r3, 0, %r2, %p3"))
    for other in ("selp.b32 %r3, 1, %r4, %p1", "selp.b32 %r3, 0, %r1, %p1"):
        assert same_kernel(plain, chosen(equal, other)) is None
    assert same_kernel(plain, chosen("setp.lt.s32 %p1, %r4, 1", "selp.b32 %r3, 0, %r1, %p1")) is None
    wrong = (equal, *both[:2], "selp.b32 %r2, 7, %r4, %p2")
    assert same_kernel(chosen(*wrong, "mov.u32 %r3, %r2"), chosen(*wrong, "selp.b32 %r3, 0, %r2, %p3")) is None


# --- what host code holds launches to --------------------------------------------------------------------------------


def tile_plan(rows: int, k: int, multiprocessors: int) -> LaunchPlan:
    kernel = block_fp8.block_fp8_kernel("128x128", "bf16", "deepgemm", "fp32")
    return block_fp8.block_fp8_plan(
        kernel, None, None, None, block="128x128", rows=rows, k=k, layout="k_major", multiprocessors=multiprocessors
    )


def activation_plan(rows: int, width: int, multiprocessors: int) -> LaunchPlan:
    offsets = Buffer(np.zeros(16, np.uint8), writable=False)
    kernel = swiglu_q8_1.swiglu_q8_1_kernel("silu", "f32", "llama_cpp_mmq")
    return swiglu_q8_1.swiglu_q8_1_plan(
        kernel, None, offsets, (None, None, None), None, None, None,
        rows=rows, width=width, experts=1, multiprocessors=multiprocessors,
    )  # fmt: skip


def sum_plan(tokens: int, width: int, multiprocessors: int) -> LaunchPlan:
    rows = Buffer(np.zeros(16, np.uint8), writable=False)
    kernel = finalize_q8_1.finalize_q8_1_kernel("bf16", "llama_cpp_mmq")
    return finalize_q8_1.finalize_q8_1_plan(
        kernel, None, rows, None, None, None, None, None, None,
        tokens=tokens, top_k=1, width=width, first_expert=0, multiprocessors=multiprocessors,
    )  # fmt: skip


def slices_of(rows: int, columns: int) -> Callable[[int, int], int]:
    return lambda height, width: -(-height // rows) * -(-width // columns)


@pytest.mark.parametrize(
    ("plan", "tiles", "sizes"),
    [
        (tile_plan, slices_of(128, 128), [(1, 32), (129, 160), (300, 4096), (1 << 30, 8192)]),
        (activation_plan, slices_of(1, 512), [(1, 32), (7, 544), (1, 1 << 30), (1 << 25, 32)]),
        (sum_plan, slices_of(1, 512), [(1, 32), (7, 544), (1, 1 << 30), (1 << 26, 32)]),
    ],
)
def test_a_grid_has_no_more_ctas_than_tiles(
    plan: Callable[[int, int, int], LaunchPlan], tiles: Callable[[int, int], int], sizes: list[tuple[int, int]]
) -> None:
    for size in sizes:
        for multiprocessors in (1, 132, 1 << 28):
            made = plan(*size, multiprocessors)
            assert within_bounds(made.kernel.entry, made.grid, made.arguments), size
        assert made.grid == tiles(*size) <= MOST_TILES
        assert not within_bounds(made.kernel.entry, made.grid + 1, made.arguments)


def test_host_code_refuses_more_tiles_than_are_taken_for_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: Any = None
    # Tiles of 128x128: one more than half of what 32 bits count.
    monkeypatch.setattr(block_fp8, "check_matrix", lambda name, array: (128 << 15, 128 << 15))
    x = np.zeros((1, 32), np.float32)
    with pytest.raises(ArgumentError, match="tiles, counted twice"):
        block_fp8.quantize_block_fp8(x, device=nothing, block="128x128")
    monkeypatch.setattr(swiglu_q8_1, "check_array", lambda *given: None)
    rows = np.broadcast_to(np.float32(0), (1 << 25, 64))
    with pytest.raises(ArgumentError, match="elements"):
        swiglu_q8_1.swiglu_q8_1(rows, np.array([0, 1]), device=nothing, variant="silu")
    monkeypatch.setattr(finalize_q8_1, "check_sums", lambda *given: (1 << 26, 1, 32))
    with pytest.raises(ArgumentError, match="elements of the output"):
        finalize_q8_1.finalize_q8_1(nothing, nothing, nothing, device=nothing)
    assert INT32_MAX + 1 == (1 << 26) * 32


def test_arrays_are_held_against_the_bytes_that_they_have_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded(monkeypatch, HostBounds({}, sizes={1: 16}))
    array = Buffer(np.zeros(16, np.uint8), writable=True)
    larger = Buffer(np.zeros(17, np.uint8), writable=True)
    assert within_bounds("kernel", 1, [larger, array])
    assert within_bounds("kernel", 1, [larger, None])
    assert not within_bounds("kernel", 1, [array, larger])
    assert not within_bounds("kernel", 1, [array, 5])


def test_a_launch_with_a_number_of_tiles_that_is_none_is_not_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded(monkeypatch, HostBounds({}, tiles={0: 4}))
    assert within_bounds("kernel", 3, [9])
    assert not within_bounds("kernel", 4, [9])
    assert not within_bounds("kernel", 1, [None])
    assert not within_bounds("kernel", 1, [-9])
    assert not within_bounds("kernel", 1, [INT32_MAX * 4])


# --- hints -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("constexpr int kCtas = warp_rows == 2 ? 6 : 4;", True),
        ("constexpr int kWarps = 4;        // of a CTA", True),
        ("    return kWarps == 4 ? 6 : 4;", False),
        ("constexpr int ctas(int rows) { return rows; }", False),
        ("const int kWarps = 4;", False),
    ],
)
def test_only_a_constant_may_be_a_hint(line: str, expected: bool) -> None:
    assert bool(trial._CONSTANT.match(line)) is expected


def test_a_constant_that_only_hints_is_of_no_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's texts without hints decide; a stand-in of the compiler here tells what it was asked."""
    asked: list[bool] = []

    differs = False

    def compiled(tree: Path, source: str, arch: str, *, hints: bool) -> dict[str, str]:
        asked.append(hints)
        return {"entry": "other" if differs and tree != trial.CSRC else "text"}

    text = "constexpr int kCtas = 4;\n"
    made = object.__new__(trial._Trial)
    made.most = None
    made.site = trial.Site("cuda", "dp4a", "dp4a.cu", "constant", 1, 23, "6", "4", 22)
    monkeypatch.setattr(trial, "compiled_entries", compiled)
    monkeypatch.setattr(trial, "changed_tree", lambda file, text, tree: tree)
    for differs, outcome in ((False, "equivalent"), (True, None)):  # noqa: B007 - `compiled` reads it
        found = made.same_but_for_hints(text, [("dp4a", "entry", "sm_120a")])
        assert found.get("outcome") == outcome
    assert set(asked) == {False}
    assert Entry("dp4a", "entry").source == made.site.kernel
