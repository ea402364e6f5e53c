"""The stream of random bits that every repro string's data comes from."""

from __future__ import annotations

from refmoe.draw import Draw


def test_the_random_stream_is_philox_and_its_words_never_change() -> None:
    # A repro string of today must make the same data in any later NumPy: these words are part of the contract.
    assert [hex(word) for word in Draw("gaussian", 7).words(2).tolist()] == FIRST_WORDS
    assert Draw("a").integers(6, (8,)).tolist() == FIRST_DICE


FIRST_WORDS = ["0x22acaf236fd6945a", "0x80e4717da3afeabf"]
FIRST_DICE = [3, 0, 4, 1, 1, 0, 2, 5]
