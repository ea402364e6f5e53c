"""Long lists of cases of one kind: some run always, all of them by `make slow`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

_Case = type(pytest.param())


def thinned(cases: Iterable[Any], one_in: int) -> list[Any]:
    """The cases, of which every `one_in`-th runs always, the first among them, and the others with `-m slow` alone.

    Args:
        cases: as `pytest.mark.parametrize` takes them.
        one_in: how many there are for each that runs always.
    """
    chosen = []
    for number, case in enumerate(cases):
        values = case.values if isinstance(case, _Case) else case if isinstance(case, tuple) else (case,)
        name = case.id if isinstance(case, _Case) else None
        chosen.append(pytest.param(*values, id=name, marks=[pytest.mark.slow] if number % one_in else []))
    return chosen
