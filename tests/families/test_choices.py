"""Where a case's tokens go."""

from __future__ import annotations

import pytest

from refmoe.catalog import list_cases
from refmoe.families.choices import expert_ids
from refmoe.families.family import Case


@pytest.mark.parametrize("case", list_cases("quick", ["expand"], arch="sm_120a"), ids=str)
def test_routings_give_every_token_different_experts_that_exist(case: Case) -> None:
    ids = expert_ids(case)
    assert ids.dtype.name == "int32"
    assert ids.shape == (case.shape.m, case.shape.t)
    assert ids.min() >= 0
    if case.routing != "padded":  # the rows that pad a batch go to no rank
        assert ids.max() < case.shape.e * case.ranks
    assert all(len(set(row)) == case.shape.t for row in ids.tolist())
    local = [expert - case.first_expert for expert in ids.ravel().tolist()]
    rows = [local.count(expert) for expert in range(case.shape.e)]
    if case.routing == "all-one-token":
        assert rows == [1] * case.shape.e
    if case.routing == "empty-experts":
        assert rows[0] == rows[-1] == 0 < max(rows)
    if case.routing == "elsewhere":
        assert max(rows) == 0
    if case.routing == "same-experts":
        assert sorted(rows)[-case.shape.t :] == [case.shape.m] * case.shape.t
