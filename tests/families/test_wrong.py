"""Calls that host code has to refuse: every one is, and another kernel is not asked."""

from __future__ import annotations

import pytest

from refmoe.errors import ArgumentError
from refmoe.families import FAMILIES
from refmoe.families.family import LEVELS, Family
from refmoe.families.wrong import is_wrong
from refmoe.verify.kernel import Kernel
from refmoe.verify.runner import run_case
from refmoe.verify.verdict import Verdict


@pytest.mark.parametrize("family", FAMILIES.values(), ids=str)
def test_every_wrong_call_is_refused_by_the_name_of_its_argument(family: Family) -> None:
    listed = [case.on("ptx", family.leading_arch) for case in family.wrong_calls()]
    assert listed
    for case in listed:
        found = run_case(Kernel(family), case)
        if found.verdict is Verdict.SKIPPED:
            pytest.skip(str(found.reason))
        assert found.verdict is Verdict.UNSUPPORTED, f"{case}: {found.reason}"
        assert found.expected, f"{case}: {found.reason}"
        assert not found.launches


def test_levels_have_no_wrong_calls_which_are_for_our_own_host_code_alone() -> None:
    assert not any(is_wrong(case) for family in FAMILIES.values() for case in family.level(LEVELS[-2]))


def test_a_damage_that_there_is_not_is_refused() -> None:
    case = next(iter(FAMILIES["mxfp8_quantize"].level("quick")))
    with pytest.raises(ArgumentError, match="wrong"):
        case.having(wrong="x-nonesuch")
