"""A module that is launched again and races again: what was tried for the first launch is not tried for the next."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from support.findings.bulk import BULK_ROWS
from support.findings.plain import ROWS
from support.ptx_kernel import text

from refmoe import ptx

ROW = {row.name: row for row in ROWS}
COLLECTIVES = [row for row in BULK_ROWS if row.warning == "warp-collective"]
# Threads of several warps write one value to `n` words, and then to the first word of `in`.
SAME = """
    mov.u32 %r3, 0;
again:
    mul.wide.u32 %d3, %r3, 4;
    add.s64 %d4, %d0, %d3;
    st.global.u32 [%d4], 7;
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p1, %r3, %r0;
    @%p1 bra again;
    setp.ne.u32 %p2, %r0, 3;
    @%p2 ret;
    st.global.u32 [%d1], 7;
    ret;
"""


@pytest.fixture
def edited(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The changed texts that are parsed; a text that is parsed twice is one module."""
    texts: list[str] = []
    change = ptx.Module.edited

    def counted(module: ptx.Module, source: str) -> ptx.Module:
        texts.append(source)
        return change(module, source)

    monkeypatch.setattr(ptx.Module, "parse", cache(ptx.Module.parse))
    monkeypatch.setattr(ptx.Module, "edited", counted)
    return texts


def same(n: int, **options: Any) -> list[ptx.RaceError]:
    out, first = np.zeros(8, np.uint32), np.zeros(1, np.uint32)
    module = ptx.Module.parse(text(SAME), name="test.ptx")
    return list(ptx.launch(module, "k", (1, 1, 1), (64, 1, 1), [out, first, n], **options).warnings)


def test_a_warning_is_tried_once(edited: list[str]) -> None:
    (first,) = same(2)
    tried = len(edited)
    assert tried > 0
    (second,) = same(4)
    assert len(edited) == tried
    assert first.finding is not None
    assert second.finding is not None
    # What the launch itself shows is its own.
    assert (first.finding.bytes, second.finding.bytes) == (2, 4)
    assert (first.finding.before, second.finding.before) == (False, True)
    assert (first.finding.remedy, first.finding.edited) == (second.finding.remedy, second.finding.edited)
    assert "tried: this launch is then without a fault" in str(first)
    assert "tried: an earlier launch, where they raced too, is then without a fault" in str(second)


def test_another_line_is_tried(edited: list[str]) -> None:
    same(2)
    tried = len(edited)
    known, new = same(3)
    assert known.finding is not None
    assert new.finding is not None
    assert (known.finding.before, new.finding.before) == (True, False)
    assert len(edited) > tried


def test_a_fault_is_tried_once(edited: list[str]) -> None:
    row = ROW["two warps in a loop"]
    findings = []
    for _ in range(2):
        with pytest.raises(ptx.RaceError) as caught:
            row.launch(row.text)
        findings.append((caught.value.finding, len(edited)))
    (first, tried), (second, then) = findings
    assert first is not None
    assert second is not None
    assert tried == then > 0
    assert second.before
    assert second.remedy == first.remedy
    # A module of its own knows nothing.
    with pytest.raises(ptx.RaceError) as caught:
        row.launch(row.text + "\n")
    assert caught.value.finding is not None
    assert not caught.value.finding.before


@pytest.mark.parametrize("row", COLLECTIVES, ids=str)
def test_what_a_collective_took_is_known_then(row: Any, edited: list[str]) -> None:
    (first,), (_, out) = row.launch(row.text)[0].warnings, row.launch(row.twin)
    tried = len(edited)
    result, again = row.launch(row.text)
    (second,) = result.warnings
    assert len(edited) == tried
    assert (first.warning, second.warning) == ("warp-collective", "warp-collective")
    assert (first.finding.before, second.finding.before) == (False, True)
    assert first.finding.remedy == second.finding.remedy
    assert again.tobytes() == out.tobytes()
    with pytest.raises(ptx.RaceError, match="an earlier launch"):
        row.launch(row.text, checks=ptx.Checks(strict=True))
