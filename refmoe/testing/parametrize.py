"""A test for every case of a kernel's contract."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from refmoe.errors import ArgumentError, describe
from refmoe.families.case import Case, parse_case
from refmoe.families.suites import LEVELS, SUITES
from refmoe.testing.check import case_text
from refmoe.testing.contract import CONTRACTS, Kernel

__all__ = ["refmoe_cases"]


def refmoe_cases(
    of: Kernel | str,
    *,
    level: str = "quick",
    dtypes: tuple[str, ...] | None = None,
    cases: Sequence[str] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a test once for each case: a decorator; the test takes the fixture `refmoe_case` and calls its `check()`.

    The ids are repro strings. The tests have the mark `refmoe`.

    Args:
        of: a registered kernel: the family's cases under its contract. Or the name of a family: the family's own
            cases, for `refmoe_case.check(kernel)`; those outside the kernel's contract are skipped.
        level: "quick", "default" or "full"; see `refmoe parity --help`.
        dtypes: only cases of these.
        cases: these repro strings instead of a level.

    Raises:
        ArgumentError: an unknown family, level, dtype or case; or no case at all.
    """
    import pytest

    if not isinstance(of, Kernel) and (not isinstance(of, str) or of not in CONTRACTS):
        raise ArgumentError("of", describe(of), f"a registered kernel, or one of {', '.join(CONTRACTS)}")
    place = of.place if isinstance(of, Kernel) else "host"
    chosen = _given(of, cases) if cases is not None else _listed(of, level, dtypes)
    if not chosen:
        raise ArgumentError("cases", "none", "at least one case")
    parameters = [pytest.param((of, case), id=case_text(case, place)) for case in chosen]
    parametrize = pytest.mark.parametrize("refmoe_case", parameters, indirect=True)

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        decorated: Callable[..., Any] = pytest.mark.refmoe(parametrize(test))
        return decorated

    return decorate


def _listed(of: Kernel | str, level: str, dtypes: tuple[str, ...] | None) -> list[Case]:
    if isinstance(of, Kernel):
        return of.cases(level, dtypes)
    if level not in LEVELS:
        raise ArgumentError("level", describe(level), "one of " + ", ".join(LEVELS))
    return list(dict.fromkeys(case for case in SUITES[of](level) if dtypes is None or case.dtype in dtypes))


def _given(of: Kernel | str, texts: Sequence[str]) -> list[Case]:
    """The cases of repro strings, as another machine's test ids or a report have them."""
    family = of.family if isinstance(of, Kernel) else of
    chosen = []
    for text in texts:
        case = parse_case(re.sub("@host$", "@ptx", re.sub("^.*?::[^/]*/", "", text)))
        if case.family != family:
            raise ArgumentError("cases", text, f"cases of {family}")
        chosen.append(case)
    return list(dict.fromkeys(chosen))
