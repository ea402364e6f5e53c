"""Cases of finalize: what their inputs hold, what is refused, what a mismatch says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refmoe.catalog import parse_case
from refmoe.errors import ArgumentError
from refmoe.families.finalize import TokenSums


def inputs(text: str) -> Any:
    case = parse_case(text)
    return case.family.inputs(case)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("finalize:bf16:m4k32e8t2:cancelling:seed1@ptx", "t of at least 3 for the fill cancelling"),
        ("finalize:bf16:m4k32e8t2:gaussian:layout=128x4:seed1@ptx", "option: found 'layout=128x4'"),
    ],
)
def test_what_means_nothing_is_refused(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        parse_case(text)


def test_rows_of_no_choice_hold_a_nan() -> None:
    given = inputs("finalize:bf16:m9k32e4t3:gaussian:first_expert=4:ranks=3:seed7@ptx")
    used = (given["unpermuted_to_permuted"] >= 0).sum()
    assert 0 < used < 27
    assert np.isnan(given["rows"][used:].astype(np.float32)).all()
    assert not np.isnan(given["rows"][:used].astype(np.float32)).any()


def test_what_a_mismatch_says() -> None:
    ids = np.array([[4, 9], [7, 2]], np.int32)
    where, tail = TokenSums("out", "bf16", 8, np.array([1, -1, 0, 2], np.int32), ids).describe(9, 0x3F80, 0x3F81)
    assert where == "token 1 column 1: kernel 0x3F80 (1) reference 0x3F81 (1.0078125), 1 ulp"
    assert tail == "; token 1: choice 0 from nowhere of expert 7, choice 1 from row 2 of expert 2"
