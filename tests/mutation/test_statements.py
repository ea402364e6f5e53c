"""Host code whose smallest or largest integers have their arguments in another order; and near misses."""

from __future__ import annotations

import pytest

from refmoe.mutation.proofs.statements import same_module

MODULE = """from refmoe.cuda.arguments import INT32_MAX, check_rows
LEAST = 4
FLOAT = 1.0


def plan(rows: int, scale: float, array, other: int):
    tokens, width = array.shape
    other = scale
    found = CALL
    return found, width
"""


@pytest.mark.parametrize(
    ("call", "after"),
    [
        ("max(tokens, 1)", "max(1, tokens)"),
        ("min(rows, LEAST * tokens, 7)", "min(7, rows, LEAST * tokens)"),
        ("min(rows + 1, INT32_MAX)", "min(INT32_MAX, rows + 1)"),
    ],
)
def test_integers_may_stand_in_any_order(call: str, after: str) -> None:
    assert same_module(MODULE.replace("CALL", call), MODULE.replace("CALL", after)) is not None


@pytest.mark.parametrize(
    ("call", "after"),
    [
        ("max(tokens, 1)", "min(1, tokens)"),
        ("max(tokens, 1)", "max(2, tokens)"),
        ("max(scale, 1)", "max(1, scale)"),  # of 1 and 1.0 the first; of a NaN and 1 the first, too
        ("max(other, 1)", "max(1, other)"),  # no integer any more
        ("max(FLOAT, 1)", "max(1, FLOAT)"),
        ("max(array, 1)", "max(1, array)"),
        ("max(check_rows(rows), rows)", "max(rows, check_rows(rows))"),  # what a call does
        ("max(rows, 1, key=abs)", "max(1, rows, key=abs)"),
        ("min(rows / 2, 1)", "min(1, rows / 2)"),
        ("divmod(rows, 2)", "divmod(2, rows)"),
    ],
)
def test_anything_else_is_told_apart(call: str, after: str) -> None:
    assert same_module(MODULE.replace("CALL", call), MODULE.replace("CALL", after)) is None


def test_a_name_of_another_meaning_is_told_apart() -> None:
    module = MODULE.replace("LEAST = 4", "LEAST = 4\nmax = sorted")
    assert same_module(module.replace("CALL", "max(rows, 1)"), module.replace("CALL", "max(1, rows)")) is None
    module = MODULE.replace("    other = scale", "    LEAST = scale")
    assert same_module(module.replace("CALL", "min(rows, LEAST)"), module.replace("CALL", "min(LEAST, rows)")) is None


ZIP = """SIZES = (1, 2)


def plan(rows: int, tokens: int, others):
    codes = [each + 1 for each in (rows, tokens)]
    scales = [each + 2 for each in (rows, tokens)]
    CHANGED
    return [each for each in zip(FIRST, codes, scales, strict=True)]
"""


@pytest.mark.parametrize(
    ("first", "changed", "proven"),
    [
        ("(rows, tokens)", "pass", True),
        ("(rows, tokens)", "rows = codes[0]", True),
        ("(rows, tokens, 1)", "pass", False),
        ("others", "pass", False),
        ("(rows, *others)", "pass", False),
        ("(rows, tokens)", "codes.append(1)", False),
        ("(rows, tokens)", "others.extend(codes)", False),  # handed on to what may keep it
        ("(rows, tokens)", "codes = others", False),
        ("(rows, tokens)", "scales += others", False),
        ("(rows, tokens)", "zip = others", False),
        ("[each for each in (rows, tokens) if each]", "pass", False),
    ],
)
def test_a_zip_of_sequences_of_one_length_leaves_nothing_over(first: str, changed: str, proven: bool) -> None:
    text = ZIP.replace("FIRST", first).replace("CHANGED", changed)
    assert (same_module(text, text.replace("strict=True", "strict=False")) is not None) is proven
    assert same_module(text, text.replace("each + 2", "each + 3")) is None


KEYS = """from refmoe.formats import Q8_1

BYTES = 2


def sizes(stage: str, elements: int) -> dict[str, int]:
    halves = elements // Q8_1.block * BYTES
    MORE
    return {f"{stage}_codes": elements, f"{stage}_d": halves}


def outputs():
    return CALL
"""


@pytest.mark.parametrize(
    ("more", "call", "proven"),
    [
        ("pass", "tuple(sizes('a', 0))", False),  # a function of anything but names and what it returns
        ("other = elements - 3", "tuple(sizes('a', 0))", True),
        ("other = stage", "tuple(sizes('a', 0))", True),
        ("other = 3 // elements", "tuple(sizes('a', 0))", False),
        ("other = list(range(elements))", "tuple(sizes('a', 0))", False),
        ("elements = 3", "tuple(sizes('a', 0))", False),
        ("stage = elements", "tuple(sizes('a', 0))", False),
        ("other = 1", "list(sizes('a', 0))", False),
        ("other = 1", "sizes('a', 0)", False),
        ("other = 1", "tuple(sizes('a', 0).items())", False),
        ("other = 1", "tuple(sizes(elements=0, stage='a'))", False),
    ],
)
def test_keys_do_not_depend_on_a_number(more: str, call: str, proven: bool) -> None:
    text = KEYS.replace("MORE", more).replace("CALL", call)
    assert (same_module(text, text.replace("0)", "1)").replace("=0", "=1")) is not None) is proven
    assert same_module(text, text.replace("'a'", "'b'")) is None
    assert same_module(text, text.replace("elements //", "stage //")) is None


def test_another_tuple_is_told_apart() -> None:
    text = KEYS.replace("MORE", "other = 1").replace("CALL", "tuple(sizes('a', 0))")
    assert same_module(text, text.replace("0)", "1)")) is not None
    for change in ("tuple = dict", "sizes = print"):
        other = text.replace("BYTES = 2", f"BYTES = 2\n{change}")
        assert same_module(other, other.replace("0)", "1)")) is None
    keyed = text.replace('f"{stage}_d"', 'f"{stage}_{elements}"')
    assert same_module(keyed, keyed.replace("0)", "1)")) is None


WORD = """import numpy as np


def refused(word: int) -> int | None:
    return BODY


def outcome(array):
    return refused(int(array.view(np.uint32)[0]))
"""


@pytest.mark.parametrize(
    ("body", "proven"),
    [
        ("None if word == 0 else ~word & 0xFFFFFFFF", True),
        ("None if word != 0 else (word + 7) * 3 & 0xFFFF", True),
        ("~word & 0x1FFFFFFFF", False),
        ("None if word == 1 << 31 else ~word & 0xFFFFFFFF", False),
        ("None if word > 0 else ~word & 0xFFFFFFFF", False),
        ("word >> 1 & 0xFFFFFFFF", False),
        ("word // 2 & 0xFFFFFFFF", False),
        ("None if word else word & 0xFFFFFFFF", False),
        ("word", False),
        ("print(word & 0xFF)", False),
    ],
)
def test_a_word_whose_sign_nobody_sees(body: str, proven: bool) -> None:
    text = WORD.replace("BODY", body)
    assert (same_module(text, text.replace("uint32", "int32")) is not None) is proven
    assert same_module(text, text.replace("uint32", "uint16")) is None
    assert same_module(text, text.replace("[0]", "[1]")) is None
    other = text.replace("int(array", "abs(array")
    assert same_module(other, other.replace("uint32", "int32")) is None
