"""DP4A where a warp takes four rows and a lane four blocks of each: no K of a model that is known lies there."""

from __future__ import annotations

from itertools import product

import pytest

from refmoe.chips import DEFAULT_ARCH
from refmoe.cuda.dp4a import FOUR_ROWS_BYTES, dp4a_gemv_kernel
from refmoe.families.case import Shape
from refmoe.families.dp4a import DP4A_GEMV
from refmoe.verify.kernel import Kernel
from refmoe.verify.runner import run_case
from refmoe.verify.verdict import Verdict

#: The longest K whose 16 rows a CTA takes, and one whose fourth blocks are those of a few lanes alone.
LONGEST, SHORT = 3840, 3104
FILLS = ("gaussian", "all-codes", "scale-bytes", "signed-d", "held", "subnormal")


@pytest.mark.parametrize(("dtype", "m", "k", "fill"), list(product(("f32", "bf16"), (1, 5), (SHORT, LONGEST), FILLS)))
def test_a_lane_has_four_blocks_of_four_rows(dtype: str, m: int, k: int, fill: str) -> None:
    given = DP4A_GEMV.case(fill, Shape(m, k, n=21, e=4, t=2), dtype=dtype, map="permuted")
    result = run_case(Kernel(DP4A_GEMV), given.on("ptx", DEFAULT_ARCH))
    assert result.verdict is Verdict.PASS, result


def test_the_longest_is_the_longest() -> None:
    assert 16 * (LONGEST // 2 + LONGEST // 32) <= FOUR_ROWS_BYTES < 16 * (LONGEST // 2 + LONGEST // 32 + 17)
    assert dp4a_gemv_kernel(4, "f32", 4) != dp4a_gemv_kernel(5, "f32", 4)
