"""What the host side of finalize into Q8_1 refuses and launches; that a token depends on no other."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.launch_recorder import Recorder
from support.toolchain import NVCC

from refmoe.cuda import open_device
from refmoe.cuda.finalize_q8_1 import finalize_q8_1
from refmoe.errors import ArgumentError
from refmoe.reference import build_permutation
from refmoe.reference.finalize_q8_1 import finalize_q8_1 as reference
from refmoe.reference.q8_1 import VARIANTS

BF16 = ml_dtypes.bfloat16
IDS = np.array([[0, 2], [1, 0], [2, 3]], np.int32)
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="no nvcc on this machine")


def arguments(ids: Any = IDS, width: int = 32) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "rows": rng.standard_normal((ids.size, width)).astype(np.float32),
        "unpermuted_to_permuted": build_permutation(ids, 4, 0).unpermuted_to_permuted,
        "weights": rng.random(ids.shape, np.float32),
        "topk_ids": ids,
        "bias": rng.standard_normal((4, width)).astype(BF16),
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": np.zeros((6, 32), np.float16)}, r"rows: found float16 \[6, 32\]; needed bfloat16 or float32"),
        (
            {"rows": np.zeros((6, 40), BF16), "bias": None, "topk_ids": None},
            "H = 40; needed H a positive multiple of 32",
        ),
        ({"rows": np.zeros((6, 0), BF16)}, "rows: found H = 0"),
        ({"rows": np.zeros((6, 64), BF16)[:, ::2]}, "rows: found strides"),
        ({"weights": np.zeros((3, 33), np.float32)}, r"weights: found float32 \[3, 33\]; .* k from 1 to 32"),
        ({"unpermuted_to_permuted": np.full(6, 6, np.int32)}, "unpermuted_to_permuted: found 6 at 0"),
        ({"topk_ids": None}, r"topk_ids: found None with a bias; needed int32 \[3, 2\]"),
        ({"bias": None}, r"topk_ids: found int32 \[3, 2\]; needed None without a bias"),
        ({"bias": np.zeros((3, 32), BF16)}, "topk_ids: found expert 3 of token 2"),
        ({"first_expert": -1}, "first_expert: found int -1"),
        ({"quantizer": "q8_0"}, "quantizer: found 'q8_0'; needed one of 'llama_cpp_mmvq', 'llama_cpp_mmq'"),
        ({"fill": 256}, "fill: found int 256"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    device = Recorder()
    with pytest.raises(ArgumentError, match=message):
        finalize_q8_1(device=device, **{**arguments(), **changes})
    assert device.launches == []


@pytest.mark.parametrize(("tokens", "width", "grid"), [(1, 2880, 6), (3, 512, 3), (3, 544, 6), (200, 32, 32)])
def test_a_cta_has_512_columns_of_a_token_and_a_thread_four(tokens: int, width: int, grid: int) -> None:
    """Up to 16 CTAs on each of the recorder's two multiprocessors."""
    device = Recorder()
    finalize_q8_1(device=device, **arguments(np.tile([[0, 2]], (tokens, 1)).astype(np.int32), width))
    (plan,) = device.launches
    assert (plan.grid, plan.block, plan.arguments[-1]) == (grid, 128, width // 4)
    assert plan.kernel.entry == "refmoe_finalize_q8_1_f32_llama_cpp_mmvq"


def test_no_tokens_launch_nothing() -> None:
    device = Recorder()
    assert finalize_q8_1(device=device, **arguments(np.zeros((0, 2), np.int32))).codes.shape == (0, 32)
    assert device.launches == []


@needs_nvcc
@pytest.mark.parametrize("rows", [BF16, np.float32])
@pytest.mark.parametrize("quantizer", VARIANTS)
def test_bytes_are_those_of_the_reference(rows: Any, quantizer: str) -> None:
    given = {**arguments(width=544), "quantizer": quantizer}
    given["rows"] = given["rows"].astype(rows)
    found, wanted = finalize_q8_1(device=open_device("ptx"), fill=0x7F, **given), reference(**given)
    for part in ("codes", "d", "s"):
        assert getattr(found, part).tobytes() == getattr(wanted, part).tobytes()


@needs_nvcc
def test_a_token_does_not_depend_on_its_batch() -> None:
    device, given = open_device("ptx"), arguments(width=544)
    together = finalize_q8_1(device=device, **given)
    for token, ids in enumerate(IDS):
        rows = given["rows"][given["unpermuted_to_permuted"].reshape(2, 3)[:, token]]
        alone = finalize_q8_1(
            rows, np.arange(2, dtype=np.int32), given["weights"][token : token + 1],
            device=device, topk_ids=ids[None], bias=given["bias"],
        )  # fmt: skip
        assert alone.codes[0].tobytes() == together.codes[token].tobytes()
        assert alone.d[0].tobytes() == together.d[token].tobytes()
