"""The reference of SwiGLU into Q8_1: equal to the specification; what it refuses."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.selection.thinned import thinned

from refmoe.errors import ArgumentError
from refmoe.families.case import Shape
from refmoe.families.fills.sigmoid_gates import STEPS
from refmoe.families.fills.tied_gates import SIGMOID_TIES
from refmoe.families.swiglu_q8_1 import SWIGLU_Q8_1
from refmoe.reference import fp32
from refmoe.reference.q8_1 import VARIANTS
from refmoe.reference.scalar.swiglu_q8_1 import swiglu_blocks
from refmoe.reference.swiglu_q8_1 import swiglu_q8_1

FILLS = [(fill, dtype) for fill in SWIGLU_Q8_1.fills for dtype in ("f32", "bf16")]
# Its ties are of FP32 alone.
FILLS.remove((SIGMOID_TIES, "bf16"))
FILLS.remove((STEPS, "bf16"))


@pytest.mark.parametrize("variant", ["gpt_oss", "silu"])
@pytest.mark.parametrize(("fill", "dtype"), thinned(FILLS, 3))
def test_every_fill_is_as_specified(fill: str, variant: str, dtype: str) -> None:
    given = SWIGLU_Q8_1.inputs(SWIGLU_Q8_1.case(fill, Shape(2, 64, 2), dtype, 3, variant=variant))
    quantizer = VARIANTS[dtype == "f32"]
    found = swiglu_q8_1(given["gate_up"], given["offsets"], variant=variant, quantizer=quantizer)
    shape = (int(value) for value in np.array([1.702, 1, 7], np.float32).view(np.uint32))
    wanted = swiglu_blocks(fp32.fp32_bits(given["gate_up"])[1].tolist(), variant, quantizer, *shape)
    assert found.codes[1].tolist() == [code for block in wanted for code in block.codes]
    assert found.d.view(np.uint16)[1].tolist() == [block.d for block in wanted]
    assert found.s.view(np.uint16)[1].tolist() == [block.s for block in wanted]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gate_up": np.zeros((2, 96), ml_dtypes.bfloat16)}, "needed .* I a multiple of 32"),
        ({"offsets": np.array([0, 3])}, "offsets: found 3 rows in use; needed at most the 2 rows"),
        ({"alpha": np.zeros(2, np.float32)}, r"alpha: found float32 \[2\]; needed float32 \[1\]"),
        ({"quantizer": "q8_0"}, "variant: found str 'q8_0'"),
        ({"variant": "relu"}, "variant: found str 'relu'"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    given = {"gate_up": np.zeros((2, 64), ml_dtypes.bfloat16), "offsets": np.array([0, 2]), **changes}
    with pytest.raises(ArgumentError, match=message):
        swiglu_q8_1(**given)
