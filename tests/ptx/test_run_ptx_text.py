"""What run_ptx says of a text that is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import refmoe
from refmoe.errors import ArgumentError
from refmoe.ptx import Module, ParseError

EMPTY = ".version 8.7\n.target sm_90a\n.address_size 64\n.visible .entry empty() { ret; }\n"
NEEDED = "needed the text of a PTX module, or a refmoe.ptx.Module"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("k.ptx", f"text: found str 'k.ptx'; {NEEDED}; the text of a file is pathlib.Path('k.ptx').read_text()"),
        (Path("k.ptx"), f"{NEEDED}; the text of a file is pathlib.Path('k.ptx').read_text()"),
        (EMPTY.encode(), f"{NEEDED}"),
        ("", f"text: found str ''; {NEEDED}"),
        ("a kernel\nin words", f"text: found str 'a kernel\\nin words'; {NEEDED}"),
        (None, f"text: found NoneType None; {NEEDED}"),
    ],
)
def test_a_path_or_no_ptx_gets_a_sentence_that_says_what_is_taken(given: Any, sentence: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        refmoe.run_ptx(given, block=1)
    assert sentence in str(raised.value)
    assert ("read_text" in str(raised.value)) == ("read_text" in sentence)


def test_ptx_with_a_mistake_is_told_with_its_line() -> None:
    with pytest.raises(ParseError, match=r"module.ptx:4"):
        refmoe.run_ptx(EMPTY.replace(".visible", ".invisible"), block=1)
    refmoe.run_ptx(EMPTY, block=1)
    refmoe.run_ptx(Module.parse(EMPTY), block=1)
