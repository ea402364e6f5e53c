"""Bytes that nobody has told apart share what is known of them, and no byte has what was done to another one."""

from __future__ import annotations

import numpy as np
import pytest

from refmoe.ptx.engine.exact_races import ExactShadow

BYTES = 64


@pytest.mark.parametrize("seed", range(8))
def test_each_byte_has_what_was_done_to_it_and_nothing_else(seed: int) -> None:
    random = np.random.default_rng(seed)
    shadow, expected = ExactShadow(BYTES, 1), {byte: set() for byte in range(BYTES)}
    for number in range(200):
        width = int(2 ** random.integers(0, 5))
        begin = int(random.integers(0, BYTES // width)) * width
        found = shadow._places_of(begin, width)
        assert [byte for place in found for byte in range(place.begin, place.begin + place.width)] == list(
            range(begin, begin + width)
        )
        for place in found:
            (place.writes if number % 2 else place.reads)[number, 0, 0, 0, 0] = number
        for byte in range(begin, begin + width):
            expected[byte].add(number)
    for byte, numbers in expected.items():
        place = shadow._places[byte] if numbers else None
        held = set() if place is None else {*place.writes.values(), *place.reads.values()}
        assert held == numbers, byte


def test_a_word_that_is_used_as_a_word_is_one_place() -> None:
    shadow = ExactShadow(BYTES, 1)
    assert len(shadow._places_of(8, 4)) == len(shadow._places_of(8, 4)) == 1
    assert len(shadow._places_of(8, 8)) == 5
    assert [place.begin for place in shadow._places_of(10, 1)] == [10]
    assert [place.begin for place in shadow._places_of(8, 4)] == [8, 9, 10, 11]
