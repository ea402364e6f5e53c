"""The launches of a case as the gate computes them, without a device."""

from __future__ import annotations

import pytest

from refmoe.chips import DEFAULT_ARCH
from refmoe.families import FAMILIES
from refmoe.families.family import Case
from refmoe.recomputed.launches import launches_of

#: The first case of each family whose inputs a kernel in front may still be writing.
CHAINED = {
    name: next(case for case in family.cases["default"]() if case.get("programmatic", 0))
    for name, family in FAMILIES.items()
    if any(option.name == "programmatic" for option in family.options)
}


def test_some_families_launch_chains() -> None:
    assert {"dp4a_gemv", "finalize", "q8_1_quantize"} <= CHAINED.keys()


@pytest.mark.parametrize("case", CHAINED.values(), ids=CHAINED.keys())
def test_a_chain_launches_what_the_kernel_alone_does(case: Case) -> None:
    inputs = case.family.inputs(case.data)
    assert launches_of(case, inputs, DEFAULT_ARCH, 132)
