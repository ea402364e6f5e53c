"""Cases of q8_1_quantize: what their inputs hold, what a mismatch says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refmoe.catalog import parse_case
from refmoe.families import family_called
from refmoe.families.q8_1 import BlockHalves, Int8Codes
from refmoe.reference.q8_1 import quantize_q8_1


def tensor_of(text: str) -> Any:
    case = parse_case(text)
    return quantize_q8_1(case.family.inputs(case)["x"])


def test_an_operation_names_its_family() -> None:
    assert family_called("q8_1").name == "q8_1_quantize"
    assert family_called("quantize").name == "mxfp8_quantize"


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_maxima_reach_every_kind_of_fp16_scale(dtype: str) -> None:
    d = tensor_of(f"q8_1_quantize:{dtype}:m32k736:maxima:seed7@ptx").d.view(np.uint16)
    assert {0x0000, 0x7C00} <= set(d.ravel().tolist())
    assert ((d > 0) & (d < 0x0400)).any()


def test_subnormal_maxima_wrap_codes() -> None:
    case = parse_case("q8_1_quantize:f32:m5k416:subnormal:seed7@ptx")
    x = case.family.inputs(case)["x"]
    codes = quantize_q8_1(x).codes
    assert ((codes < 0) & (x > 0)).any()
    assert ((codes > 0) & (x < 0)).any()


def test_what_a_mismatch_says() -> None:
    d = np.array([[1, 2], [0.5, 4]], np.float16)
    where, tail = Int8Codes("codes", d).describe(64 + 33, 0xFF, 3)
    assert (where, tail) == ("block (1, 1) lane 1: kernel -1 reference 3, d 0x4400 (4)", "")
    where, _ = BlockHalves("s", 2).describe(3, 0x3C00, 0x3C01)
    assert where == "block (1, 1): kernel 0x3C00 (1) reference 0x3C01 (1.00097656), 1 ulp"
