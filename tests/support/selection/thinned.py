"""Long lists of cases of one kind: some run always, all of them by `make slow`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

_Case = type(pytest.param())
_FAULTS = Path(__file__).parents[2] / "ptx" / "faults"


def thinned(cases: Iterable[Any], one_in: int, always: Collection[str] = ()) -> list[Any]:
    """The cases, of which every `one_in`-th runs always, the first among them, and the others with `-m slow` alone.

    Args:
        cases: as `pytest.mark.parametrize` takes them.
        one_in: how many there are for each that runs always.
        always: more that run always, by what stands for them in a node id, as `named_by_faults` gives them.
    """
    chosen = []
    for number, case in enumerate(cases):
        values = case.values if isinstance(case, _Case) else case if isinstance(case, tuple) else (case,)
        name = case.id if isinstance(case, _Case) else None
        runs = number % one_in == 0 or (name or "-".join(map(str, values))) in always
        chosen.append(pytest.param(*values, id=name, marks=[] if runs else [pytest.mark.slow]))
    return chosen


@cache
def named_by_faults(test: str) -> frozenset[str]:
    """The cases of a test, `file::function` below tests/ptx, that patches of tests/ptx/faults name."""
    lines = (line for path in _FAULTS.rglob("*.patch") for line in path.read_text(encoding="utf-8").splitlines())
    named = (line.removesuffix("]").partition("[") for line in lines if line.startswith(f"Test: tests/ptx/{test}["))
    return frozenset(case for _, _, case in named)
