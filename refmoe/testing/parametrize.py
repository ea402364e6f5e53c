"""A test for every case of a kernel's contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from refmoe.errors import ArgumentError, describe
from refmoe.families import FAMILIES, family_called
from refmoe.families.case import one_of
from refmoe.families.family import LEVELS, Case
from refmoe.testing.cases import cases_of
from refmoe.testing.kernel import UserKernel


def refmoe_cases(
    of: UserKernel | str,
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

    if not isinstance(of, (UserKernel, str)):
        raise ArgumentError("of", describe(of), f"a registered kernel, or {one_of(FAMILIES)}")
    family = of.family if isinstance(of, UserKernel) else family_called(of)
    if isinstance(dtypes, str):
        raise ArgumentError("dtypes", describe(dtypes), f"a tuple of some of {', '.join(family.dtypes)}")
    if level not in LEVELS:
        raise ArgumentError("level", describe(level), one_of(LEVELS))
    if cases is not None:
        chosen = cases_of(family.name, cases)
    elif isinstance(of, UserKernel):
        chosen = of.cases(level, dtypes)
    else:
        chosen = list(dict.fromkeys(case for case in family.level(level) if dtypes is None or case.dtype in dtypes))
    if not chosen:
        raise ArgumentError("cases", "none", "at least one case")
    parameters = [pytest.param((of, case), id=_id(of, case)) for case in chosen]
    parametrize = pytest.mark.parametrize("refmoe_case", parameters, indirect=True)

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        decorated: Callable[..., Any] = pytest.mark.refmoe(parametrize(test))
        return decorated

    return decorate


def _id(of: UserKernel | str, case: Case) -> str:
    return of.case_text(case) if isinstance(of, UserKernel) else f"{str(case).rpartition('@')[0]}@host"
