"""`cp.reduce.async.bulk`: every operation and type, in global memory, in tensors, in shared memory of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from support.ptx_bulk import COMMIT, FENCE, Tensor, box_bytes, fill, memory_of, run, size_of, stored
from support.selection.thinned import thinned

from refmoe import ptx
from refmoe.ptx.engine.exact_races import ExactShadow

DONE = "mbarrier::complete_tx::bytes"
WAIT = "@%p0 cp.async.bulk.wait_group 0;"
BYTES = 256
INTEGERS = {
    "u32": (32, False),
    "s32": (32, True),
    "u64": (64, False),
    "s64": (64, True),
    "b32": (32, False),
    "b64": (64, False),
}
SIZES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, **{name: bits // 8 for name, (bits, _) in INTEGERS.items()}}
# PTX ISA, "cp.reduce.async.bulk".
GLOBAL = {
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "bf16"),
    "min": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "max": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
}
CLUSTER = {
    "add": ("u32", "s32", "u64"),
    **dict.fromkeys(("min", "max"), ("u32", "s32")),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    **dict.fromkeys(("and", "or", "xor"), ("b32",)),
}
EVERY = [(operation, name) for operation, names in GLOBAL.items() for name in names]


def spelled(operation: str, name: str) -> str:
    return f"{operation}.noftz.{name}" if operation == "add" and name in ("f16", "bf16") else f"{operation}.{name}"


# Elements, one at a time


def number(name: str, bits: int) -> int:
    width, signed = INTEGERS[name]
    return bits - (1 << width) if signed and bits >> width - 1 else bits


def value_of(name: str, bits: int) -> float:
    if name == "bf16":
        return float(np.uint32(bits << 16).view(np.float32))
    return float(
        np.array(bits, f"u{SIZES[name]}").view({"f16": np.float16, "f32": np.float32, "f64": np.float64}[name])
    )


def nearest(name: str, total: Fraction) -> int:
    """The bits of the nearest number, ties to even; sums here stay in range."""
    if total == 0:
        return 0
    fraction, least, bias, width = {
        "f16": (10, -14, 15, 16), "bf16": (7, -126, 127, 16), "f32": (23, -126, 127, 32), "f64": (52, -1022, 1023, 64),
    }[name]  # fmt: skip
    size = abs(total)
    exponent = max(next(e for e in range(1100, -1200, -1) if Fraction(2) ** e <= size), least)
    units = size / Fraction(2) ** (exponent - fraction)
    whole = units.numerator // units.denominator
    rest = units - whole
    whole += rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1)
    code = whole if exponent == least and whole < 1 << fraction else whole + ((exponent + bias - 1) << fraction)
    return code | (total < 0) << width - 1


def combined(operation: str, name: str, there: int, brought: int) -> int:
    if name in INTEGERS:
        width, _ = INTEGERS[name]
        x, y = number(name, there), number(name, brought)
        made: dict[str, Callable[[], int]] = {
            "add": lambda: x + y,
            "min": lambda: min(x, y),
            "max": lambda: max(x, y),
            "inc": lambda: 0 if x >= y else x + 1,
            "dec": lambda: y if x == 0 or x > y else x - 1,
            "and": lambda: x & y,
            "or": lambda: x | y,
            "xor": lambda: x ^ y,
        }
        return made[operation]() & (1 << width) - 1
    x, y = value_of(name, there), value_of(name, brought)
    if operation == "add":
        return nearest(name, Fraction(x) + Fraction(y))
    return there if (x < y) == (operation == "min") and x != y else brought


def drawn(rng: np.random.Generator, name: str, operation: str, count: int) -> np.ndarray:
    """Bits of elements: any integers, small limits for inc and dec, and floats of a size without zeros."""
    dtype = np.dtype(f"u{SIZES[name]}")
    if name in INTEGERS:
        found = rng.integers(0, 256, (count, dtype.itemsize)).astype(np.uint8).view(dtype)[:, 0]
        return found % 4 if operation in ("inc", "dec") else found
    if name == "bf16":
        return (
            rng.integers(120, 135, count) << 7 | rng.integers(0, 128, count) | rng.integers(0, 2, count) << 15
        ).astype(dtype)
    values = rng.standard_normal(count) * np.exp2(rng.integers(-5, 6, count))
    return values.astype({"f16": np.float16, "f32": np.float32, "f64": np.float64}[name]).view(dtype)


def reduce(operation: str, name: str, size: int = BYTES, guard: str = "@%p0") -> str:
    return (
        f"{guard} cp.reduce.async.bulk.global.shared::cta.bulk_group.{spelled(operation, name)} [%d3], [%r8], {size};"
    )


def launch(
    body: str, tile: np.ndarray, there: np.ndarray | ptx.Buffer, grid: int = 1, checks: ptx.Checks | None = None
) -> np.ndarray:
    """What lies at the destination after a body that begins with the tile filled."""
    memory = ptx.DeviceMemory()
    buffer = there if isinstance(there, ptx.Buffer) else ptx.Buffer(there, "sums")
    address = memory.place(buffer)
    source = ptx.Buffer(tile.view(np.uint8).copy(), "tile", writable=False)
    run(fill(BYTES) + FENCE + "bar.sync 0;" + body, source, other=address, memory=memory, grid=grid, checks=checks)
    return there if isinstance(there, np.ndarray) else np.asarray(there.array)


@pytest.mark.parametrize(("operation", "name"), thinned(EVERY, 3))
def test_in_global_memory(operation: str, name: str) -> None:
    rng = np.random.default_rng(len(operation) + 7 * len(name))
    count = BYTES // SIZES[name]
    tile, there = (drawn(rng, name, operation, count) for _ in range(2))
    expected = [combined(operation, name, int(x), int(y)) for x, y in zip(there, tile, strict=True)]
    found = launch(reduce(operation, name) + COMMIT + WAIT, tile, there.copy())
    assert found.tolist() == expected


def test_copies_that_meet_all_count() -> None:
    # Every thread of every block brings its block's tile.
    tile, there = np.arange(64, dtype=np.uint32), np.full(64, 1000, np.uint32)
    body = reduce("add", "u32", guard="") + "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
    found = launch(body, tile, there, grid=3)
    np.testing.assert_array_equal(found, 1000 + 3 * 64 * tile)


def test_sums_of_small_numbers_are_flushed_as_those_of_red_are() -> None:
    tile, there = np.full(64, 0x00000001, np.uint32), np.full(64, 0x80000005, np.uint32)
    found = launch(reduce("add", "f32") + COMMIT + WAIT, tile, there.copy())
    assert set(found.tolist()) == {0}
    for name, pair in (("f16", 0x0001_0001), ("bf16", 0x0001_0001)):
        found = launch(reduce("add", name) + COMMIT + WAIT, np.full(64, pair, np.uint32), np.full(64, pair, np.uint32))
        assert set(found.tolist()) == {0x0002_0002}


@pytest.mark.parametrize("operation", ["min", "max"])
def test_no_number_loses_to_one(operation: str) -> None:
    tile, there = np.full(128, 0x7FFF, np.uint16), np.full(128, 0x3C00, np.uint16)
    assert set(launch(reduce(operation, "f16") + COMMIT + WAIT, tile, there.copy()).tolist()) == {0x3C00}
    assert set(launch(reduce(operation, "f16") + COMMIT + WAIT, there, tile.copy()).tolist()) == {0x3C00}


# Tensors

SHAPES = {
    "f32": Tensor("f32", 32, (40, 11), (160,), (16, 4), (1, 1)),
    "u32": Tensor("u32", 32, (64, 24), (256,), (32, 8), (1, 1), "128B"),
    "s64": Tensor("s64", 64, (16, 6, 3), (128, 768), (8, 2, 2), (1, 1, 1), "64B"),
    "bf16": Tensor("bf16", 16, (64, 12), (128,), (32, 3), (1, 1)),
    "f16": Tensor("f16", 16, (128,), (), (64,), (1,)),
}


@pytest.mark.parametrize(
    ("name", "operation"),
    thinned(
        [
            ("f32", "add"),
            ("u32", "add"),
            ("u32", "xor"),
            ("s64", "min"),
            ("s64", "or"),
            ("bf16", "add"),
            ("f16", "max"),
        ],
        3,
    ),
)
@pytest.mark.parametrize("start", [(0, 0, 0), (8, 1, 1), (16, 9, 2)])
def test_in_tensors(name: str, operation: str, start: tuple[int, ...]) -> None:
    tensor, rng = SHAPES[name], np.random.default_rng(5)
    rank, start = len(tensor.dims), start[: len(tensor.dims)]
    dtype = np.dtype(f"u{SIZES[name]}")
    before = drawn(rng, name, operation, size_of(tensor) // SIZES[name])
    tile = drawn(rng, name, operation, box_bytes(tensor) // SIZES[name])
    # Where a store would write, and what.
    marks = stored(tensor, bytes(before.nbytes), b"\xff" * tile.nbytes, start)
    written = np.frombuffer(stored(tensor, before.tobytes(), tile.tobytes(), start), dtype)
    logical = f"b{name[1:]}" if operation in ("and", "or", "xor") else name
    expected = [
        combined(operation, logical, int(x), int(y)) if on else int(x)
        for x, y, on in zip(before, written, np.frombuffer(marks, dtype), strict=True)
    ]
    target, memory = before.copy(), ptx.DeviceMemory()
    address = memory.place(ptx.Buffer(target, "target"))
    at = ", ".join(f"%r{2 + i}" for i in range(rank))
    body = fill(tile.nbytes) + FENCE + "bar.sync 0;"
    opcode = f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{operation}.tile.bulk_group"
    body += f"@%p0 {opcode} [%d1, {{{at}}}], [%r8];"
    run(
        body + COMMIT + WAIT,
        ptx.Buffer(tile.view(np.uint8), "tile", writable=False),
        tensor.encode(address),
        start,
        memory=memory,
    )
    assert target.tolist() == expected


def test_tensors_have_no_operation_that_their_type_has_not() -> None:
    tensor = Tensor("u16", 16, (64,), (), (64,), (1,))
    memory = ptx.DeviceMemory()
    address = memory.place(ptx.Buffer(np.zeros(64, np.uint16), "target"))
    body = (
        fill(128)
        + FENCE
        + "bar.sync 0; @%p0 cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.bulk_group [%d1, {%r2}], [%r8];"
    )
    with pytest.raises(ptx.MisuseError, match="a reduction add in a tensor of u16, which there is not"):
        run(body, memory_of(128), tensor.encode(address), (0,), memory=memory)


# Between blocks

SYNC = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"


def send(
    operation: str, name: str, ready: str = SYNC, waits: bool = True, blocks: int = 3, after: str = SYNC
) -> np.ndarray:
    """What lies in rank 0's tile when every rank has brought its own to its second half, uint32 [64]."""
    out = np.zeros(64, np.uint32)
    opcode = f"cp.reduce.async.bulk.shared::cluster.shared::cta.{DONE}.{operation}.{name}"
    body = f"""
        mov.u32 %r9, %cluster_ctarank; setp.eq.u32 %p4, %r9, 0; setp.ne.u32 %p6, %r9, 0;
        shl.b32 %r20, %r1, 2; add.u32 %r21, %r8, %r20; mad.lo.u32 %r22, %r9, 1000, %r1; st.shared.u32 [%r21], %r22;
        add.u32 %r23, %r1, 5; st.shared.u32 [%r21+256], %r23;
        setp.eq.and.u32 %p3, %r9, 0, %p0; @%p3 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r7], {256 * blocks};
        {FENCE} {ready}
        add.u32 %r30, %r8, 256; mapa.shared::cluster.u32 %r30, %r30, 0; mapa.shared::cluster.u32 %r31, %r7, 0;
        @%p0 {opcode} [%r30], [%r8], 256, [%r31];
        @%p6 bra OVER;
        """
    if waits:
        body += "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r7], 0; @!%p2 bra WAIT;"
    body += "ld.shared.u32 %r24, [%r21+256]; cvt.u64.u32 %d10, %r20; add.u64 %d10, %d10, %d0;"
    body += f"st.global.u32 [%d10], %r24; OVER: {after}"
    run(body, out, grid=blocks, cluster=blocks)
    return out


@pytest.mark.parametrize(("operation", "name"), [(o, n) for o, names in CLUSTER.items() for n in names])
def test_in_shared_memory_of_a_cluster(operation: str, name: str) -> None:
    thread = np.arange(64, dtype=np.uint32)
    dtype = np.dtype(f"u{SIZES[name]}")
    expected = (thread + 5).view(dtype)
    for rank in range(3):
        brought = (1000 * rank + thread).view(dtype)
        expected = np.array(
            [combined(operation, name, int(x), int(y)) for x, y in zip(expected, brought, strict=True)], dtype
        )
    np.testing.assert_array_equal(send(operation, name), expected.view(np.uint32))


def test_bytes_brought_to_another_block_are_waited_for() -> None:
    with pytest.raises(ptx.RaceError, match="a bulk copy that completes on the mbarrier"):
        send("add", "u32", waits=False)
    with pytest.raises(ptx.PtxError):
        send("add", "u32", ready="bar.sync 0;")


# Races, and what cannot be combined


def test_copies_that_combine_do_not_race_but_stores_with_them_do() -> None:
    tile, there = np.ones(64, np.uint32), np.zeros(64, np.uint32)
    # By a thread that brings nothing.
    over = "setp.eq.u32 %p8, %r1, 40; @%p8 st.global.u32 [%d3+8], 0;"
    with pytest.raises(ptx.RaceError, match="write-write race on byte 8 of sums"):
        launch(reduce("add", "u32") + COMMIT + WAIT + over, tile, there, grid=2)
    plain = "@%p8 cp.async.bulk.global.shared::cta.bulk_group [%d3], [%r8], 256;"
    choose = "mov.u32 %r40, %ctaid.x; setp.eq.and.u32 %p8, %r40, 1, %p0; setp.eq.and.u32 %p9, %r40, 0, %p0;"
    with pytest.raises(ptx.RaceError, match="write-write race on byte 0 of sums"):
        launch(choose + reduce("add", "u32", guard="@%p9") + plain + COMMIT + WAIT, tile, there, grid=2)


@pytest.mark.parametrize("atomic", [0, 1], ids=["the atomic first", "the copy first"])
@pytest.mark.parametrize(("name", "add", "kind"), [
    ("u32", "add.u32", "write-write"),
    ("f16", "add.noftz.f16x2", "write-write"),
    ("u32", "add.u64", "write-write"),
    ("u64", "add.u32", "write-write"),
])  # fmt: skip
def test_atomics_of_another_proxy_race_with_copies(name: str, add: str, kind: str, atomic: int) -> None:
    # Atomics excuse each other if they are of the very same bytes and by one proxy ("Morally strong operations").
    body = f"""
        mov.u32 %r40, %ctaid.x; setp.ne.and.u32 %p8, %r40, {atomic}, %p0; setp.eq.and.u32 %p9, %r40, {atomic}, %p0;
        mov.u32 %r45, 0; mov.u64 %d5, 0;
        @%p9 red.relaxed.gpu.global.{add} [%d3+8], {"%d5" if add == "add.u64" else "%r45"};
        {reduce("add", name, guard="@%p8")} {COMMIT} {WAIT}
    """
    with pytest.raises(ptx.RaceError, match=f"{kind} race on byte 8 of sums"):
        launch(body, np.zeros(64, np.uint32), np.zeros(64, np.uint32), grid=2)


@pytest.mark.parametrize(
    ("first", "second", "races"), [("u32", "u32", False), ("f32", "u32", False), ("u32", "u64", True)]
)
def test_copies_race_with_those_of_other_elements(first: str, second: str, races: bool) -> None:
    choose = "mov.u32 %r40, %ctaid.x; setp.eq.and.u32 %p8, %r40, 1, %p0; setp.eq.and.u32 %p9, %r40, 0, %p0;"
    body = choose + reduce("add", first, guard="@%p8") + reduce("add", second, guard="@%p9") + COMMIT + WAIT
    tile, there = np.zeros(64, np.uint32), np.zeros(64, np.uint32)
    if not races:
        launch(body, tile, there, grid=2)
        return
    with pytest.raises(ptx.RaceError, match="write-write race on byte 0 of sums"):
        launch(body, tile, there, grid=2)


#: Block 0 combines, and block 1 comes after it. What it copies needs a proxy fence on the way, if it does not combine.
HANDED_ON = """
    setp.eq.and.u32 %p8, %r40, 0, %p0; setp.eq.and.u32 %p9, %r40, 1, %p0; mov.u32 %r45, 1;
    {first}
    @%p8 st.release.gpu.global.u32 [%d3+256], %r45;
    @!%p9 bra END;
    AGAIN: ld.acquire.gpu.global.u32 %r46, [%d3+256]; setp.ne.u32 %p7, %r46, 1; @%p7 bra AGAIN;
    {fence} {copy}
    END:
"""


@pytest.mark.parametrize("fence", ["", "fence.proxy.async;"])
@pytest.mark.parametrize("combines", [False, True])
def test_a_copy_over_what_another_block_combined(combines: bool, fence: str) -> None:
    first = reduce("add", "u32", guard="@%p8") + COMMIT + WAIT
    copy = reduce("add", "u32") if combines else "cp.async.bulk.global.shared::cta.bulk_group [%d3], [%r8], 256;"
    body = "mov.u32 %r40, %ctaid.x;" + HANDED_ON.format(first=first, fence=fence, copy=copy) + COMMIT + WAIT
    tile, there = np.ones(64, np.uint32), np.zeros(68, np.uint32)
    if fence or combines:
        launch(body, tile, there, grid=2)
        assert there[:64].tolist() == [2 if combines else 1] * 64
        return
    with pytest.raises(ptx.RaceError, match="proxy race on byte 0 of sums"):
        launch(body, tile, there, grid=2)


@pytest.mark.parametrize("fence", ["", "fence.proxy.async;"])
def test_a_copy_over_what_several_blocks_combined(fence: str) -> None:
    # Blocks 0 and 2 combine beside one another, and block 1 waits for both.
    body = f"""
        mov.u32 %r40, %ctaid.x; setp.ne.and.u32 %p8, %r40, 1, %p0; setp.eq.and.u32 %p9, %r40, 1, %p0;
        {reduce("add", "u32", guard="@%p8")} {COMMIT} {WAIT}
        @%p8 red.release.gpu.global.add.u32 [%d3+256], 1;
        @!%p9 bra END;
        AGAIN: ld.acquire.gpu.global.u32 %r46, [%d3+256]; setp.ne.u32 %p7, %r46, 2; @%p7 bra AGAIN;
        {fence} cp.async.bulk.global.shared::cta.bulk_group [%d3], [%r8], 256;
        END: {COMMIT} {WAIT}
    """
    tile, there = np.ones(64, np.uint32), np.zeros(68, np.uint32)
    if fence:
        launch(body, tile, there, grid=3)
        assert there[:64].tolist() == [1] * 64
        return
    with pytest.raises(ptx.RaceError, match="proxy race on byte 0 of sums"):
        launch(body, tile, there, grid=3)


def test_copies_that_combine_in_another_width_than_one_before_them() -> None:
    # Elements of 64 bits, and behind them, in order, elements of 32 bits by both blocks.
    first = reduce("add", "u64", guard="@%p8") + COMMIT + WAIT
    body = "mov.u32 %r40, %ctaid.x;" + HANDED_ON.format(first=first, fence="", copy="") + "bar.sync 0;"
    there = np.zeros(68, np.uint32)
    launch(body + reduce("add", "u32") + COMMIT + WAIT, np.ones(64, np.uint32), there, grid=2)
    assert there[:64].tolist() == [3] * 64


# The last block to come reads the sums of all: it draws the last ticket, which lies behind them.
LAST = """
    {release} @%p0 atom.relaxed.gpu.global.add.u32 %r40, [%d3+256], 1; {acquire}
    mov.u32 %r41, %nctaid.x; sub.u32 %r41, %r41, 1; setp.eq.and.u32 %p8, %r40, %r41, %p0;
    @%p8 ld.global.u32 %r42, [%d3]; @%p8 st.global.u32 [%d3+264], %r42;
"""
ACQ_REL = "fence.acq_rel.gpu;"


@pytest.mark.parametrize("alone", [0, 1, 2])
@pytest.mark.parametrize("after", ["ld.global.u32 %r40, [%d3+8];", "st.global.u32 [%d3+8], 7;"])
@pytest.mark.parametrize("other", ["", "red.relaxed.gpu.global.add.u32 [%d3+8], 1;"])
def test_whoever_combines_knows_only_of_its_own(other: str, after: str, alone: int) -> None:
    # Each waits for its own copy; then one of them takes the sum for complete.
    mine = f"mov.u32 %r40, %ctaid.x; setp.eq.and.u32 %p8, %r40, {alone}, %p0; @%p8 {after}"
    body = reduce("add", "u32") + COMMIT + WAIT + (f"@%p0 {other}" if other else "") + mine
    with pytest.raises(ptx.RaceError, match="race on byte 8 of sums") as caught:
        launch(body, np.ones(64, np.uint32), np.zeros(64, np.uint32), 3)
    assert caught.value.block != caught.value.other_block


@pytest.mark.parametrize("grid", [2, 3, 70])
def test_the_last_block_comes_after_all_that_combined(grid: int) -> None:
    there, ones = np.zeros(68, np.uint32), np.ones(64, np.uint32)
    combining = reduce("add", "u32") + COMMIT
    launch(combining + WAIT + LAST.format(release=ACQ_REL, acquire=ACQ_REL), ones, there, grid)
    assert there.tolist() == [grid] * 65 + [0, grid, 0]
    wrong = [combining + WAIT + LAST.format(release=each, acquire=other) for each, other in (("", ""), ("", ACQ_REL))]
    wrong.append(combining + WAIT + LAST.format(release=ACQ_REL, acquire=""))
    # A copy that nobody waited for is none of those that are ordered.
    wrong.append(combining + LAST.format(release=ACQ_REL, acquire=ACQ_REL))
    for body in wrong:
        with pytest.raises(ptx.RaceError, match="write-read race on byte 0 of sums"):
            launch(body, ones, np.zeros(68, np.uint32), grid, ptx.Checks(strict=True))


def test_complete_copies_are_in_order_at_the_first_look(monkeypatch: pytest.MonkeyPatch) -> None:
    # A second run, in which every access is kept, would find them in order, too, and take long.
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the launch runs again")

    monkeypatch.setattr(ExactShadow, "__init__", refuse)
    there = np.zeros(68, np.uint32)
    body = reduce("add", "u32") + COMMIT + WAIT + LAST.format(release=ACQ_REL, acquire=ACQ_REL)
    launch(body, np.ones(64, np.uint32), there, 3)
    assert there[:64].tolist() == [3] * 64


def test_one_complete_copy_says_nothing_of_the_others() -> None:
    # Block 0 hands on that it has issued its copy, and block 1 waits for its own.
    some = "mov.u32 %r40, %ctaid.x; setp.ne.and.u32 %p9, %r40, 0, %p0; @%p9 cp.async.bulk.wait_group 0;"
    body = reduce("add", "u32") + COMMIT + some + LAST.format(release=ACQ_REL, acquire=ACQ_REL)
    with pytest.raises(ptx.RaceError, match="write-read race on byte 0 of sums") as caught:
        launch(body, np.ones(64, np.uint32), np.zeros(68, np.uint32), 2)
    assert (caught.value.block, caught.value.other_block) == ((1, 0, 0), (0, 0, 0))


def test_sums_are_not_read_before_they_are_complete() -> None:
    read = "@%p0 ld.global.u32 %r40, [%d3];"
    with pytest.raises(ptx.RaceError, match="write-read race on byte 0 of sums"):
        launch(
            reduce("add", "u32") + COMMIT + "@%p0 cp.async.bulk.wait_group.read 0;" + read,
            np.ones(64, np.uint32),
            np.zeros(64, np.uint32),
        )
    launch(reduce("add", "u32") + COMMIT + WAIT + read, np.ones(64, np.uint32), np.zeros(64, np.uint32))


def test_what_nobody_wrote_is_not_added_to() -> None:
    with pytest.raises(ptx.MemoryFault, match="uninitialised"):
        launch(
            reduce("add", "u32") + COMMIT + WAIT,
            np.ones(64, np.uint32),
            ptx.Buffer(np.zeros(64, np.uint32), "sums", initialised=False),
        )


@pytest.mark.parametrize(
    "tail",
    ["add.s64", "add.b32", "min.f32", "inc.u64", "and.u32", "add.noftz.f32", "add.f16", "min.noftz.f16", "exch.b32"],
)
def test_spellings_that_ptx_does_not_have(tail: str) -> None:
    body = f"@%p0 cp.reduce.async.bulk.global.shared::cta.bulk_group.{tail} [%d3], [%r8], 256;"
    with pytest.raises(ptx.UnknownOpcode, match=f"unknown opcode cp.reduce.async.bulk.*{tail}"):
        launch(body, np.ones(64, np.uint32), np.zeros(64, np.uint32))


@pytest.mark.parametrize("tail", ["add.s64", "add.f32", "min.u64", "xor.b64"])
def test_shared_memory_has_fewer_types(tail: str) -> None:
    body = f"@%p0 cp.reduce.async.bulk.shared::cluster.shared::cta.{DONE}.{tail} [%r8], [%r8], 256, [%r7];"
    with pytest.raises(ptx.UnknownOpcode, match=tail):
        launch(body, np.ones(64, np.uint32), np.zeros(64, np.uint32))
