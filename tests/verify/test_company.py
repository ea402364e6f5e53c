from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support.verify import CASE

from refmoe.families.family import Case, Expectation, Inputs, Outputs
from refmoe.verify.kernel import Kernel, Place
from refmoe.verify.plant import Company, find_company

CASES = tuple(CASE.having(seed=seed) for seed in range(5))


@dataclass
class WrongOn(Kernel):
    """A kernel that gives what is expected, but for some seeds."""

    seeds: frozenset[int] = frozenset()

    def run(self, case: Case, inputs: Inputs, expected: Expectation, place: Place) -> Outputs:
        outputs = {name: array.copy() for name, array in expected.outputs.items()}
        if case.seed in self.seeds:
            next(iter(outputs.values())).reshape(-1)[0] ^= 1
        return outputs


@dataclass(frozen=True)
class FaultOf:
    """A fault that shows for some seeds."""

    seeds: frozenset[int]
    name: str = "a-fault"
    fault: str = "what is wrong"
    kind: str = "a class"
    case: str = field(default=str(CASES[3]))

    def plant(self, scratch: Path) -> Sequence[Kernel]:
        return [WrongOn(CASE.family, seeds=self.seeds)]

    def cases(self) -> Sequence[Case]:
        return CASES


def company(*seeds: int, most: int = 2) -> Company:
    (found,) = find_company([FaultOf(frozenset(seeds))], most=most)
    return found


def test_the_known_case_runs_first_and_the_run_ends_with_the_last_that_is_asked_for() -> None:
    found = company(1, 3, 4)
    assert found.cases == (str(CASES[3]), str(CASES[1]))
    assert (found.ran, found.whole, found.alone) == (3, False, False)


def test_all_cases_run_if_more_are_asked_for_than_catch_it() -> None:
    found = company(0, 3, most=5)
    assert found.cases == (str(CASES[3]), str(CASES[0]))
    assert (found.ran, found.whole, found.alone) == (5, True, False)


def test_a_fault_that_one_case_catches_or_none_is_alone() -> None:
    assert company(2).alone
    assert company(2).cases == (str(CASES[2]),)
    assert company().alone
    assert company().cases == ()


def test_one_that_the_last_case_gives_company_is_not_alone() -> None:
    found = company(3, 4)
    assert (found.ran, found.whole, found.alone) == (5, True, False)
