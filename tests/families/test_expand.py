"""Cases of expand: what ready input holds, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from refmoe.catalog import parse_case
from refmoe.errors import ArgumentError

READY = "expand:mxfp8:m9k416e8t2:bytes:input_sf={}:seed7@ptx"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("expand:bf16:m4k64e8t2:gaussian:out=f32:seed1@ptx", "option: found 'out=f32'"),
        ("expand:fp16:m4k64e8t2:bytes:seed1@ptx", "dtype mxfp8 with it: it is raw codes and scales"),
        ("expand:bf16:m4k64e8t2:gaussian:input_sf=128x4:seed1@ptx", "dtype mxfp8 with it: other input has no scales"),
    ],
)
def test_what_means_nothing_is_refused(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        parse_case(text)


def test_bytes_are_every_byte_and_the_same_in_every_layout_of_their_scales() -> None:
    linear, swizzled, absent = (
        case.family.inputs(case) for case in (parse_case(READY.format(word)) for word in ("linear", "128x4", "none"))
    )
    assert set(np.unique(linear["x"]).tolist()) == set(range(256))
    assert linear["x"].tobytes() == swizzled["x"].tobytes() == absent["x"].tobytes()
    assert absent["input_sf"] is None
    # Rows and columns that no token has hold NaN, so that a kernel which reads them shows it.
    padding = swizzled["input_sf"].size - linear["input_sf"].size
    assert np.count_nonzero(swizzled["input_sf"] == 0xFF) >= padding - 9 * 3  # padding columns of real rows are zeros


def test_scales_without_input_sf_are_zero_and_codes_are_copied() -> None:
    case = parse_case(READY.format("none"))
    inputs = case.family.inputs(case)
    expected = case.family.expect(case, inputs)
    used = int(inputs["offsets"][-1])
    tokens = inputs["permuted_to_unpermuted"][:used] % case.shape.m
    assert np.array_equal(expected.outputs["codes"][:used], inputs["x"][tokens])
    assert not expected.stages[1].linear(expected.outputs["scales"]).any()  # type: ignore[attr-defined]
    assert expected.doubt is None
