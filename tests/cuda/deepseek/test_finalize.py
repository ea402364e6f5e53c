"""What the host side of finalize with a shared expert refuses and launches; that a token depends on no other."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.launch_recorder import Recorder
from support.toolchain import NVCC

from refmoe.cuda import open_device
from refmoe.cuda.deepseek.finalize import finalize_shared
from refmoe.errors import ArgumentError
from refmoe.reference.deepseek.finalize import finalize_shared as reference

BF16 = ml_dtypes.bfloat16
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="no nvcc on this machine")


def arguments(tokens: int = 3, top_k: int = 2, width: int = 32) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "rows": rng.standard_normal((tokens * top_k, width)).astype(BF16),
        "unpermuted_to_permuted": rng.permutation(tokens * top_k).astype(np.int32),
        "weights": rng.random((tokens, top_k), np.float32),
        "shared": rng.standard_normal((tokens, width)).astype(BF16),
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": np.zeros((6, 12), BF16)}, "rows: found H = 12; needed H a positive multiple of 8"),
        ({"rows": np.zeros((6, 32), np.float16)}, r"rows: found float16 \[6, 32\]"),
        ({"shared": np.zeros((3, 32), np.float32)}, r"shared: found float32 \[3, 32\]; needed bfloat16 \[3, 32\]"),
        ({"shared": np.zeros((2, 32), BF16)}, r"shared: found bfloat16 \[2, 32\]; needed bfloat16 \[3, 32\]"),
        ({"shared": np.zeros((3, 64), BF16)[:, ::2]}, "shared: found strides"),
        ({"scale": float("inf")}, "scale: found float inf; needed a finite number"),
        ({"order": "first"}, "order: found 'first'; needed one of 'fp32', 'bf16'"),
        ({"out_dtype": np.float16}, "out_dtype: found .*float16.*; needed ml_dtypes.bfloat16 or float32"),
        ({"fill": 256}, "fill: found int 256"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    device = Recorder()
    with pytest.raises(ArgumentError, match=message):
        finalize_shared(device=device, **{**arguments(), **changes})
    assert device.launches == []


def test_a_token_is_a_cta_and_eight_columns_a_thread() -> None:
    device = Recorder()
    finalize_shared(device=device, order="bf16", scale=2.5, **arguments(4, 8, 7168))
    (plan,) = device.launches
    assert plan.kernel.entry == "refmoe_deepseek_finalize_bf16_bf16_bf16"
    assert (plan.grid, plan.block, plan.arguments[-4:]) == (4, 512, (4, 8, 7168, 0x40200000))


@needs_nvcc
def test_a_token_depends_on_no_other() -> None:
    device, given = open_device("ptx"), arguments(9, 4, 64)
    whole = finalize_shared(device=device, **given)
    assert whole.tobytes() == reference(**given).tobytes()
    for token in range(9):
        rows = given["rows"][given["unpermuted_to_permuted"].reshape(4, 9)[:, token]]
        alone = finalize_shared(
            np.ascontiguousarray(rows), np.arange(4, dtype=np.int32), given["weights"][token : token + 1],
            given["shared"][token : token + 1], device=device,
        )  # fmt: skip
        assert alone.tobytes() == whole[token].tobytes()
