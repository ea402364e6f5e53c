"""What the expand step refuses, and the argument that each refusal names."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from refmoe.errors import ArgumentError
from refmoe.reference.expand import build_permutation, expand
from refmoe.reference.layout import grouped_scale_rows

X = np.zeros((2, 64), ml_dtypes.bfloat16)
CODES = np.zeros((2, 64), np.uint8)
SF = np.zeros((2, 2), np.uint8)
IDS = np.array([[0, 1], [2, 3]], np.int32)


def huge(dtype: type, *shape: int) -> np.ndarray:
    """An array of that shape which takes no memory."""
    return np.broadcast_to(np.zeros((1,) * len(shape), dtype), shape)


REFUSED = [
    ("x", lambda: expand(X.astype(np.float32), IDS, 4)),
    ("x", lambda: expand(X.astype(np.float64), IDS, 4)),
    ("x", lambda: expand(CODES.view(np.int8), IDS, 4)),
    ("x", lambda: expand(X.tolist(), IDS, 4)),
    ("x", lambda: expand(X[0], IDS, 4)),
    ("x", lambda: expand(X[None], IDS, 4)),
    ("x", lambda: expand(X[:1], IDS, 4)),
    ("x", lambda: expand(X[:, :33], IDS, 4)),
    ("x", lambda: expand(CODES[:, :31], IDS, 4)),
    ("x", lambda: expand(np.asfortranarray(X), IDS, 4)),
    ("x", lambda: expand(np.asfortranarray(CODES), IDS, 4)),
    ("x", lambda: expand(huge(np.uint8, 1, 2**31), IDS[:1], 128)),
    ("topk_ids", lambda: expand(X, IDS.astype(np.int64), 4)),
    ("topk_ids", lambda: expand(X, IDS.tolist(), 4)),
    ("topk_ids", lambda: expand(X, IDS[0], 4)),
    ("topk_ids", lambda: expand(X, IDS[:, :0], 4)),
    ("topk_ids", lambda: expand(X, np.array([[0, 0], [1, 2]], np.int32), 4)),
    ("topk_ids", lambda: expand(X, np.array([[0, 1], [-1, -1]], np.int32), 4)),
    ("topk_ids", lambda: expand(X, np.array([[0, 1, 0], [1, 2, 3]], np.int32), 4)),
    ("topk_ids", lambda: expand(X, np.array([[0, 1, 2, 3, 0], [0, 1, 2, 3, 1]], np.int32), 4)),
    ("topk_ids", lambda: build_permutation(huge(np.int32, 2**31, 1), 1)),
    ("topk_ids", lambda: build_permutation(huge(np.int32, 2**31 - 254, 1), 1)),
    ("num_experts", lambda: expand(X, IDS, 0)),
    ("num_experts", lambda: expand(X, IDS, -1)),
    ("num_experts", lambda: expand(X, IDS, 4.0)),
    ("first_expert", lambda: expand(X, IDS, 4, first_expert=-1)),
    ("first_expert", lambda: expand(X, IDS, 4, first_expert=2**31 - 3)),
    ("mode", lambda: expand(X, IDS, 4, mode="up")),
    ("edge", lambda: expand(X, IDS, 4, edge="trtllm")),
    ("mode", lambda: expand(CODES, IDS, 4, mode="up")),
    ("edge", lambda: expand(CODES, IDS, 4, edge="trtllm")),
    ("layout", lambda: expand(X, IDS, 4, layout="4x128")),
    ("fill", lambda: expand(X, IDS, 4, fill=256)),
    ("input_sf", lambda: expand(X, IDS, 4, input_sf=SF)),
    ("input_sf", lambda: expand(CODES, IDS, 4, input_sf=SF.astype(np.float32))),
    ("input_sf", lambda: expand(CODES, IDS, 4, input_sf=SF.tolist())),
    ("input_sf", lambda: expand(CODES, IDS, 4, input_sf=SF[:1])),
    ("input_sf", lambda: expand(CODES, IDS, 4, input_sf=SF.reshape(-1))),
    ("input_sf", lambda: expand(CODES, IDS, 4, input_sf=SF, input_sf_layout="128x4")),
    ("input_sf", lambda: expand(CODES, IDS, 4, input_sf=np.zeros(511, np.uint8), input_sf_layout="128x4")),
    ("input_sf_layout", lambda: expand(CODES, IDS, 4, input_sf=np.zeros(32, np.uint8), input_sf_layout="8x4")),
    ("input_sf_layout", lambda: expand(CODES, IDS, 4, input_sf_layout="swizzled")),
]


@pytest.mark.parametrize(("argument", "call"), REFUSED)
def test_refusal_names_the_argument(argument: str, call) -> None:
    with pytest.raises(ArgumentError) as caught:
        call()
    assert caught.value.argument == argument


def test_the_message_says_what_was_found_and_what_is_needed() -> None:
    with pytest.raises(ArgumentError) as caught:
        expand(X, np.array([[0, 1], [3, 3]], np.int32), 4)
    assert str(caught.value) == "topk_ids: found expert 3 twice in token 1; needed 2 different experts in each token"
    with pytest.raises(ArgumentError) as caught:
        expand(CODES, IDS, 4, input_sf=SF[:1])
    assert (
        str(caught.value)
        == "input_sf: found uint8 [1, 2]; needed uint8 [2, 2], the scales of 2 tokens in linear layout"
    )


def test_the_largest_number_of_rows_is_one_less_than_refused() -> None:
    # align128(rows + 127) must stay below 2**31: the boundary of the refusal above, without the memory of a success.
    assert grouped_scale_rows(2**31 - 255, 1) == 2**31 - 128


def test_a_token_may_choose_more_experts_than_this_rank_owns() -> None:
    result = expand(X, IDS, 1, first_expert=2)
    assert result.offsets.tolist() == [0, 1]
