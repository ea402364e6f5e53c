"""Many lanes at few words: one scan gives what turns give, one lane after another."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.ptx_kernel import run

from refmoe.ptx import isa
from refmoe.ptx.engine import atomics
from refmoe.ptx.native.turns import TurnByTurn, together
from refmoe.ptx.state.in_turn import ContendedWords, scan_of

BITWISE = [(operation, kind) for operation in ("and", "or", "xor", "exch") for kind in ("b32", "b64")]
SIGNED = [(operation, kind) for operation in ("min", "max") for kind in ("u32", "s32", "u64", "s64")]
COUNTERS = [("inc", "u32"), ("dec", "u32")]
INTEGERS = [("add", "u32"), ("add", "s32"), ("add", "u64"), *BITWISE, *SIGNED, *COUNTERS]
HALVES = ("f16", "bf16", "f16x2", "bf16x2")
ROUNDING = [("add", kind) for kind in ("f32", "f64", *HALVES)]
ROUNDING += [(operation, kind) for operation in ("min", "max") for kind in HALVES]
SWAPS = [("cas", kind) for kind in ("b16", "b32", "b64")]
THREADS, WORDS = 96, 3
# `in` has the first words and then the lanes' operands; `out` has what the lanes find, and then the words.
BODY = """
    .shared .align 8 .b8 words[24];
    mul.wide.u32 %d3, %r1, {size};
    add.s64 %d4, %d1, %d3;
    add.s64 %d5, %d0, %d3;
    ld.global{word} {own}, [%d4+{operands}];
    rem.u32 %r3, %r1, 3;
    mul.wide.u32 %d6, %r3, {size};
    mov.u64 %d7, {words};
    add.s64 %d7, %d7, %d6;
    setp.ge.u32 %p1, %r1, 3;
    @%p1 bra filled;
    ld.global{word} {old}, [%d4];
    st.{space}{word} [%d7], {old};
filled:
    bar.sync 0;
    atom.{space}.{operation}.{kind} {old}, [%d7], {own};
    st.global{word} [%d5], {old};
    bar.sync 0;
    @%p1 ret;
    ld.{space}{word} {old}, [%d7];
    st.global{word} [%d5+{behind}], {old};
    ret;
"""


def values(kind: str, count: int) -> np.ndarray:
    """Any bits, those of both signs and of the largest numbers among them."""
    bits = int(kind[1:])
    chosen = np.array([0, 1, 2**bits - 1, 2 ** (bits - 1), 2 ** (bits - 1) - 1], f"u{bits // 8}")
    rng = np.random.default_rng(bits)
    drawn = rng.integers(0, 2**bits, count, dtype=f"u{bits // 8}")
    return np.where(rng.random(count) < 0.3, rng.choice(chosen, count), drawn)


def in_turns(operation: str, kind: str, first: np.ndarray, operands: np.ndarray) -> Iterator[tuple[int, int]]:
    """(what each lane finds, what it leaves), one lane after another."""
    function, words = isa.resolve_atomic(operation, kind), first.copy()
    for lane, operand in enumerate(operands):
        found = words[lane % WORDS : lane % WORDS + 1].copy()
        words[lane % WORDS : lane % WORDS + 1] = function(found, operand[None])
        yield int(found[0]), int(words[lane % WORDS])


@pytest.mark.parametrize(("operation", "kind"), INTEGERS)
def test_a_scan_is_many_turns(operation: str, kind: str) -> None:
    first, operands = values(kind, WORDS), values(kind, THREADS)
    expected = list(in_turns(operation, kind, first, operands))
    scan = scan_of(operation, kind)
    assert scan is not None
    words = ContendedWords(np.arange(THREADS) % WORDS, lambda places: first[places])
    assert words.are_few
    found, changed = words.scan(scan, operands)
    assert found.tolist() == [before for before, _ in expected]
    assert words.held.tolist() == [after for _, after in expected[-WORDS:]]
    assert changed


@pytest.mark.parametrize("bound", [0, 1, 7, 95, 2**31, 2**32 - 1])
@pytest.mark.parametrize("first", [0, 1, 6, 7, 8, 2**31, 2**32 - 2, 2**32 - 1])
@pytest.mark.parametrize("operation", ["inc", "dec"])
def test_a_counter_with_one_bound_for_all(operation: str, first: int, bound: int) -> None:
    held, operands = np.full(WORDS, first, np.uint32), np.full(THREADS, bound, np.uint32)
    expected = list(in_turns(operation, "u32", held, operands))
    scan = scan_of(operation, "u32")
    assert scan is not None
    words = ContendedWords(np.arange(THREADS) % WORDS, lambda places: held[places])
    found, changed = words.scan(scan, operands)
    assert found.tolist() == [before for before, _ in expected]
    assert words.held.tolist() == [after for _, after in expected[-WORDS:]]
    assert changed == any(before != after for before, after in expected)


def test_a_scan_that_changes_nothing() -> None:
    scan = scan_of("or", "b32")
    assert scan is not None
    words = ContendedWords(np.zeros(8, np.int64), lambda places: np.full(len(places), 7, np.uint32))
    assert not words.scan(scan, np.full(8, 3, np.uint32))[1]


@pytest.mark.parametrize(
    ("operation", "kind"),
    [("add", "f32"), ("add", "f16x2"), ("cas", "b32"), ("min", "f16")],
)
def test_what_has_no_scan(operation: str, kind: str) -> None:
    # Floating point rounds after each turn, and a comparison needs what the turn before left: these are native turns.
    assert isinstance(together(operation, kind), TurnByTurn)
    assert scan_of(operation, kind) is None


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize(("operation", "kind"), INTEGERS)
def test_lanes_at_three_words(operation: str, kind: str, space: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomics, "turns_of", None)
    first, operands = values(kind, WORDS), values(kind, THREADS)
    expected = list(in_turns(operation, kind, first, operands))
    size = first.itemsize
    own, old = ("%r4", "%r5") if size == 4 else ("%d8", "%d9")
    body = BODY.format(
        size=size, own=own, old=old, word=f".b{8 * size}", operands=WORDS * size, behind=THREADS * size, space=space,
        operation=operation, kind=kind, words="words" if space == "shared" else "many",
    )  # fmt: skip
    out = np.zeros(THREADS + WORDS, first.dtype)
    source, scope = np.concatenate([first, operands]), ".global .align 8 .b8 many[24];"
    run(body, out, source, block=(THREADS, 1, 1), module_scope=scope)
    assert out[:THREADS].tolist() == [before for before, _ in expected]
    assert out[THREADS:].tolist() == [after for _, after in expected[-WORDS:]]


def test_sums_of_floats_round_after_each_turn() -> None:
    # 2^24 + 1 is 2^24: in turns every 1 is lost, in any other order some are not.
    out = np.full(1, 2.0**24, np.float32)
    body = "atom.global.add.f32 %f1, [%d0], 0f3F800000; ret;"
    run(body, out, block=(64, 1, 1), declarations=".reg .f32 %f<2>;")
    assert out.tolist() == [2.0**24]


def floats(kind: str, count: int) -> np.ndarray:
    """Bits of numbers that lose some when they are added, and of those that are no ordinary numbers."""
    size = {"f64": 8, "f16": 2, "bf16": 2}.get(kind, 4)
    rng = np.random.default_rng(len(kind))
    bits = rng.integers(0, 2 ** (8 * size), count, dtype=f"u{size}")
    near = {"f32": 0x3F800000, "f64": 0x3FF0000000000000, "f16": 0x3C00, "bf16": 0x3F80}.get(kind, 0x3C003F80)
    bits = np.where(rng.random(count) < 0.7, near ^ bits >> np.array(bits.itemsize * 4, bits.dtype), bits)
    # Subnormals, infinities and NaN of all kinds are among what is all ones in front.
    return np.where(rng.random(count) < 0.2, bits & np.array(2 ** (8 * size - 4) - 1, bits.dtype), bits)


@pytest.mark.parametrize(("operation", "kind"), [*ROUNDING, *SWAPS])
def test_turns_are_those_of_the_instruction(operation: str, kind: str) -> None:
    for flush in (False, True) if (operation, kind) == ("add", "f32") else (False,):
        function, turns = isa.resolve_atomic(operation, kind, flush), together(operation, kind, 1, flush)
        assert turns is not None
        operands = [floats(kind, 500)] if operation != "cas" else [values(kind, 500) & 3, values(kind, 500) & 3]
        held, expected = operands[0][:1] ^ operands[0][1:2], []
        with np.errstate(all="ignore"):
            for turn in range(500):
                expected.append(int(held[0]))
                held = function(held, *(each[turn : turn + 1] for each in operands))
        found = turns(expected[0], *operands)
        assert found.tolist() == [*expected, int(held[0])]
        assert turns(expected[0], *(each[:0] for each in operands)).tolist() == expected[:1]


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("tiny", [False, True])
@pytest.mark.parametrize(("operation", "kind"), [("add", "f32"), ("add", "f64"), ("add", "noftz.bf16x2")])
def test_lanes_that_round_at_three_words(
    operation: str, kind: str, tiny: bool, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomics, "turns_of", None)
    bare = kind.rpartition(".")[2]
    first, operands = floats(bare, WORDS), floats(bare, THREADS)
    if tiny:
        # Subnormals, whose sums stay below the least normal number.
        first, operands = first & 0xFFF, operands & 0xFFF
    # PTX ISA, "atom": sums of f32 flush subnormals in global memory alone.
    function = isa.resolve_atomic(operation, bare, bare == "f32" and space == "global")
    words, found = first.copy(), []
    with np.errstate(all="ignore"):
        for lane, operand in enumerate(operands):
            place = slice(lane % WORDS, lane % WORDS + 1)
            found.append(int(words[lane % WORDS]))
            words[place] = function(words[place], operand[None])
    size = first.itemsize
    own, old = ("%r4", "%r5") if size == 4 else ("%d8", "%d9")
    body = BODY.format(
        size=size, own=own, old=old, word=f".b{8 * size}", operands=WORDS * size, behind=THREADS * size, space=space,
        operation=operation, kind=kind, words="words" if space == "shared" else "many",
    )  # fmt: skip
    out = np.zeros(THREADS + WORDS, first.dtype)
    source, scope = np.concatenate([first, operands]), ".global .align 8 .b8 many[24];"
    run(body, out, source, block=(THREADS, 1, 1), module_scope=scope)
    assert out[:THREADS].tolist() == found
    assert out[THREADS:].tolist() == words.tolist()


@pytest.mark.parametrize("space", ["global", "shared"])
def test_lanes_that_swap_at_three_words(space: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each lane puts its number there, but every fourth compares with what is not there.
    monkeypatch.setattr(atomics, "turns_of", None)
    words, found, compared = [900, 901, 902], [], []
    first = np.array(words, np.uint32)
    for lane in range(THREADS):
        found.append(words[lane % WORDS])
        compared.append(words[lane % WORDS] if lane % 4 < 3 else 1000)
        words[lane % WORDS] = lane if lane % 4 < 3 else words[lane % WORDS]
    body = BODY.format(
        size=4, own="%r4", old="%r5", word=".b32", operands=WORDS * 4, behind=THREADS * 4, space=space,
        operation="cas", kind="b32", words="words" if space == "shared" else "many",
    ).replace("[%d7], %r4;", "[%d7], %r4, %r1;")  # fmt: skip
    out = np.zeros(THREADS + WORDS, np.uint32)
    run(
        body, out, np.concatenate([first, np.array(compared, np.uint32)]), block=(THREADS, 1, 1),
        module_scope=".global .align 8 .b8 many[24];",
    )  # fmt: skip
    assert out[:THREADS].tolist() == found
    assert out[THREADS:].tolist() == words


def test_swaps_of_128_bits_compare_both_halves() -> None:
    # All lanes compare with (0, 1), of which one half is there.
    body = """
        .reg .b128 %q<4>;
        mov.u64 %d3, 0; mov.u64 %d4, 1; cvt.u64.u32 %d5, %r1; add.u64 %d5, %d5, 7;
        mov.b128 %q1, {%d3, %d4}; mov.b128 %q2, {%d5, %d5};
        atom.global.cas.b128 %q3, [%d0], %q1, %q2;
        ret;
    """
    room = np.zeros(6, np.uint64)
    aligned = room[room.ctypes.data % 16 // 8 :][:2]
    run(body, aligned, block=(32, 1, 1))
    assert aligned.tolist() == [0, 0]
