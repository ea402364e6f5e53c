"""The DP4A reference: equal to the specification, its order of summation, what it refuses."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.selection.thinned import thinned

from refmoe.errors import ArgumentError
from refmoe.families.case import Shape
from refmoe.families.dp4a import DP4A_GEMV
from refmoe.reference import fp32
from refmoe.reference.dp4a import DOUBLED, dp4a_gemv, halved_scales, warps_per_row
from refmoe.reference.layout import pack_fp4, unpack_fp4
from refmoe.reference.q8_1 import Q8Tensor
from refmoe.reference.scalar.dp4a import dot
from refmoe.reference.tensor import MXTensor


def problem(fill: str, m: int, k: int, **options: Any) -> tuple[Q8Tensor, MXTensor, dict[str, Any]]:
    given = DP4A_GEMV.inputs(DP4A_GEMV.case(fill, Shape(m, k, 3, 2, 2), seed=3, **options))
    q8 = Q8Tensor(given["codes"], given["d"], np.zeros_like(given["d"]))
    return q8, MXTensor(given["weights"], given["weight_scales"], "mxfp4"), given


@pytest.mark.parametrize(("m", "k"), [(1, 4512), (5, 2304)])  # past a round of the threads, with 4 warps and with 2
@pytest.mark.parametrize("fill", thinned(DP4A_GEMV.fills, 4))
def test_every_fill_is_as_specified(fill: str, m: int, k: int) -> None:
    q8, weights, given = problem(fill, m, k, alpha="distinct", bias="distinct")
    ids, alpha, bias = given["topk_ids"], given["alpha"], given["bias"]
    out = dp4a_gemv(q8, weights, ids, alpha=alpha, bias=bias, out_dtype=np.float32)
    for token, rank, n in ((0, 0, 0), (m - 1, 1, 1)):
        expert = ids[token, rank]
        wanted = dot(
            q8.codes[token].tolist(),
            q8.d.view(np.uint16)[token].tolist(),
            unpack_fp4(weights.codes[expert, n]).tolist(),
            weights.scales[expert, n].tolist(),
            m,
            int(alpha.view(np.uint32)[expert]),
            int(fp32.fp32_bits(bias)[expert, n]),
        )
        assert int(out.view(np.uint32)[token + rank * m, n]) == wanted


def test_every_halved_scale() -> None:
    halves = halved_scales(np.arange(256, dtype=np.uint8))
    assert halves.view(np.uint32)[[0, 1, 2, 255]].tolist() == [0x00200000, 0x00400000, 0x00800000, 0x7FFFFFFF]
    assert (halves[:255].astype(np.float64) == 2.0 ** (np.arange(255) - 128)).all()


def test_every_fp4_code_doubled() -> None:
    codes = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    assert (2 * codes == DOUBLED).all()


def test_warps_follow_llama_cpp() -> None:
    assert [warps_per_row(tokens) for tokens in (1, 4, 5, 8, 9)] == [4, 4, 2, 2, 1]


def blocks_of_one(terms: list[float]) -> tuple[Q8Tensor, MXTensor]:
    """A row whose blocks have these terms: one code of 1 in each, weights of 1, and d."""
    codes = np.zeros((1, 32 * len(terms)), np.int8)
    codes[0, ::32] = 1
    weights = MXTensor(
        pack_fp4(np.full((1, 1, codes.shape[1]), 2, np.uint8)), np.full((1, 1, len(terms)), 127, np.uint8), "mxfp4"
    )
    return Q8Tensor(codes, np.array([terms], np.float16), np.zeros((1, len(terms)), np.float16)), weights


@pytest.mark.parametrize(
    ("places", "total"),
    [
        ((0, 128, 1), 2.0**-14),  # one thread adds blocks 0 and 128 first: they cancel
        ((0, 32, 1), 2.0**-14),  # warps 0 and 1 of lane 0, before lane 1
        ((0, 16, 1), 2.0**-14),  # lanes 0 and 16, before 1
        ((0, 1, 16), 0.0),  # lane 16 is added to lane 0 first, and lost
        ((0, 1, 128), 0.0),
    ],
)
def test_the_order_of_the_sum(places: tuple[int, int, int], total: float) -> None:
    terms = [0.0] * 130
    for place, value in zip(places, (32768.0, -32768.0, 2.0**-14), strict=True):
        terms[place] = value
    q8, weights = blocks_of_one(terms)
    assert dp4a_gemv(q8, weights, np.zeros((1, 1), np.int32), out_dtype=np.float32)[0, 0] == total


def test_rows_by_map_and_rows_of_other_ranks() -> None:
    q8, weights, _ = problem("gaussian", 2, 64)
    ids = np.array([[4, 0], [5, 3]], np.int32)
    plain = dp4a_gemv(q8, weights, ids, first_expert=3, fill=0xFF)
    assert (plain.view(np.uint16)[2] == 0xFFFF).all()  # token 0, rank 1: expert 0 is elsewhere
    rows = np.array([1, 2, -1, 0], np.int32)
    mapped = dp4a_gemv(q8, weights, ids, first_expert=3, row_of_choice=rows, fill=0xFF)
    assert mapped[[1, 2, 0]].tobytes() == plain[[0, 1, 3]].tobytes()
    assert (mapped.view(np.uint16)[3] == 0xFFFF).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topk_ids": np.zeros((2, 1))}, r"topk_ids: found float64 \[2, 1\]"),
        ({"topk_ids": np.zeros((3, 1), np.int32)}, r"activations: found int8 \[2, 64\]; needed Q8_1 \[3, 64\]"),
        ({"row_of_choice": np.zeros(3, np.int32)}, r"row_of_choice: found int32 \[3\]; needed int32 \[2\]"),
        ({"row_of_choice": np.array([0, 2], np.int32)}, "row_of_choice: found 2 at 1"),
        ({"weights": 0}, "weights: found int 0; needed an MXTensor of mxfp4"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    q8, weights, _ = problem("gaussian", 2, 64)
    given = {"activations": q8, "weights": weights, "topk_ids": np.zeros((2, 1), np.int32), **changes}
    with pytest.raises(ArgumentError, match=message):
        dp4a_gemv(**given)
