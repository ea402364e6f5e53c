"""Cases of the activation: what their fills promise, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refmoe.catalog import parse_case
from refmoe.errors import ArgumentError
from refmoe.reference.activation import swiglu


def inputs(text: str) -> Any:
    case = parse_case(text)
    return case.family.inputs(case)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("activation:bf16:m4k32e2:gaussian:variant=gelu:seed1@ptx", "variant: found 'gelu'; needed one of gpt_oss"),
        ("activation:bf16:m4k32e2:gaussian:variant=silu:params=distinct:seed1@ptx", "params: .* silu has none"),
        ("activation:bf16:m4k32e2:midpoints:seed1@ptx", "fill: found 'midpoints'; needed params=distinct"),
    ],
)
def test_what_means_nothing_is_refused(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        parse_case(text)


def test_midpoints_lie_within_a_unit_of_halfway_between_two_codes() -> None:
    given = inputs("activation:bf16:m64k32e64:midpoints:params=distinct:routing=all-one-token:seed7@ptx")
    values = swiglu(given["gate_up"], alpha=given["alpha"], beta=given["beta"], limit=given["limit"])
    beyond = (values.view(np.uint32) & 0xFFFFF).astype(np.int64) - 0x80000  # bits that E4M3 cuts off, less one half
    assert (np.abs(beyond) <= 1).all()
    assert np.unique(beyond).size == 3  # on either side, and exactly halfway


def test_clamps_are_met_exactly_and_by_one_unit_on_either_side() -> None:
    given = inputs("activation:bf16:m12k160e6:clamps:params=distinct:routing=all-one-token:ranks=2:seed7@ptx")
    values = given["gate_up"].astype(np.float32)
    for limit in (7.0, 0.5, 5.5, 3.0):
        near = values[np.abs(np.abs(values) - limit) < limit / 64]
        assert np.unique(np.abs(near)).size == 3
