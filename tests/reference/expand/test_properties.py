"""What must hold of the expand step whatever the data: permutations of tokens and experts, neighbours, padding."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refmoe.reference.expand import Expanded, expand
from refmoe.reference.layout import GROUPED_LAYOUTS, expert_scale_rows, grouped_scale_rows

LAYOUTS = list(GROUPED_LAYOUTS)
WIDTH = 160


def rows_of(result: Expanded, experts: int, layout: str) -> tuple[np.ndarray, np.ndarray]:
    """Codes and padded scales [rows in use, 8] of the permuted rows, read back by address."""
    used = int(result.offsets[-1])
    columns = -(-WIDTH // 128) * 4
    row, block = np.meshgrid(expert_scale_rows(result.offsets), np.arange(columns), indexing="ij")
    return result.codes[:used], result.scales[GROUPED_LAYOUTS[layout].offset(row, block, columns)]


problems = st.fixed_dictionaries(
    {
        "tokens": st.integers(1, 40),
        "experts": st.integers(1, 9),
        "k": st.integers(1, 4),
        "layout": st.sampled_from(LAYOUTS),
        "seed": st.integers(0, 2**32 - 1),
    }
)


def make(tokens: int, experts: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((tokens, WIDTH)) * np.exp2(rng.integers(-9, 9, (tokens, 1)))).astype(ml_dtypes.bfloat16)
    ids = np.argsort(rng.random((tokens, experts)), axis=1)[:, : min(k, experts)].astype(np.int32)
    return x, ids, rng


@given(problem=problems)
def test_the_maps_are_inverse_and_rows_are_stable(problem: dict) -> None:
    layout = problem.pop("layout")
    x, ids, _ = make(**problem)
    experts, (tokens, k) = problem["experts"], ids.shape
    result = expand(x, ids, experts, layout=layout)
    forward, back = result.permuted_to_unpermuted, result.unpermuted_to_permuted
    assert forward[back].tolist() == list(range(tokens * k))
    assert result.offsets[0] == 0
    assert result.offsets[-1] == tokens * k
    for expert in range(experts):
        mine = forward[result.offsets[expert] : result.offsets[expert + 1]]
        assert (np.diff(mine) > 0).all(), "ascending unpermuted index: the order is stable"
        assert (ids[mine % tokens, mine // tokens] == expert).all()


@given(problem=problems)
def test_a_row_depends_on_its_token_alone(problem: dict) -> None:
    layout = problem.pop("layout")
    x, ids, _ = make(**problem)
    experts, tokens = problem["experts"], len(x)
    result = expand(x, ids, experts, layout=layout)
    codes, scales = rows_of(result, experts, layout)
    for token in (0, tokens - 1):
        alone = expand(x[token : token + 1], ids[token : token + 1, :1], experts, layout=layout)
        one_code, one_scale = rows_of(alone, experts, layout)
        mine = np.flatnonzero(result.permuted_to_unpermuted % tokens == token)
        assert mine.size == ids.shape[1]
        assert codes[mine].tobytes() == one_code.tobytes() * mine.size
        assert scales[mine].tobytes() == one_scale.tobytes() * mine.size


@given(problem=problems)
def test_permuting_tokens_permutes_rows(problem: dict) -> None:
    layout = problem.pop("layout")
    x, ids, rng = make(**problem)
    experts, tokens = problem["experts"], len(x)
    order = rng.permutation(tokens)
    before = expand(x, ids, experts, layout=layout)
    after = expand(x[order], ids[order], experts, layout=layout)
    assert after.offsets.tolist() == before.offsets.tolist()
    # Choice k_rank of token t is choice k_rank of the token at t's new place.
    rank = np.arange(ids.size) // tokens
    new = after.unpermuted_to_permuted
    old = before.unpermuted_to_permuted[order[np.arange(ids.size) % tokens] + rank * tokens]
    for of_after, of_before in zip(rows_of(after, experts, layout), rows_of(before, experts, layout), strict=True):
        assert of_after[new].tobytes() == of_before[old].tobytes()


@given(problem=problems)
def test_relabelling_experts_moves_whole_groups(problem: dict) -> None:
    layout = problem.pop("layout")
    x, ids, rng = make(**problem)
    experts = problem["experts"]
    label = rng.permutation(experts).astype(np.int32)
    before = expand(x, ids, experts, layout=layout)
    after = expand(x, label[ids], experts, layout=layout)
    for expert in range(experts):
        old = slice(*before.offsets[expert : expert + 2])
        new = slice(*after.offsets[label[expert] : label[expert] + 2])
        assert before.permuted_to_unpermuted[old].tolist() == after.permuted_to_unpermuted[new].tolist()
        for of_after, of_before in zip(rows_of(after, experts, layout), rows_of(before, experts, layout), strict=True):
            assert of_after[new].tobytes() == of_before[old].tobytes()


@given(problem=problems, ranks=st.integers(1, 4))
def test_ranks_together_do_all_the_work(problem: dict, ranks: int) -> None:
    layout = problem.pop("layout")
    x, ids, _ = make(**problem)
    experts = problem["experts"]
    whole = expand(x, ids, experts, layout=layout)
    codes, scales, sources = [], [], []
    for first in range(0, experts, ranks):
        owned = min(ranks, experts - first)
        part = expand(x, ids, owned, layout=layout, first_expert=first)
        used = int(part.offsets[-1])
        assert (part.permuted_to_unpermuted[used:] == -1).all()
        assert (part.unpermuted_to_permuted >= 0).sum() == used
        part_codes, part_scales = rows_of(part, owned, layout)
        codes.append(part_codes)
        scales.append(part_scales)
        sources.append(part.permuted_to_unpermuted[:used])
    # The ranks' rows end to end are the rows of the rank that owns all experts.
    assert np.concatenate(sources).tolist() == whole.permuted_to_unpermuted.tolist()
    whole_codes, whole_scales = rows_of(whole, experts, layout)
    assert np.concatenate(codes).tobytes() == whole_codes.tobytes()
    assert np.concatenate(scales).tobytes() == whole_scales.tobytes()


@given(problem=problems, first=st.integers(0, 5))
def test_what_is_not_a_row_holds_the_fill(problem: dict, first: int) -> None:
    layout = problem.pop("layout")
    x, ids, _ = make(**problem)
    experts = problem["experts"]
    results = {fill: expand(x, ids, experts, layout=layout, first_expert=first, fill=fill) for fill in (0xFF, 0x7F, 0)}
    used, columns = int(results[0].offsets[-1]), -(-WIDTH // 128) * 4
    written = np.zeros((grouped_scale_rows(ids.size, experts), columns), bool)
    written[expert_scale_rows(results[0].offsets)] = True
    row, block = np.mgrid[: written.shape[0], :columns]
    offset = GROUPED_LAYOUTS[layout].offset(row, block, columns)
    for fill, result in results.items():
        scales = result.scales[offset]
        assert (scales[~written] == fill).all()
        assert (result.codes[used:] == fill).all()
        # Poison in the padding changes nothing that is real, and padded columns of real rows are 0x00.
        assert scales[written].tobytes() == results[0].scales[offset][written].tobytes()
        assert not scales[written].reshape(-1, columns)[:, WIDTH // 32 :].any()
        assert result.codes[:used].tobytes() == results[0].codes[:used].tobytes()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_empty_experts_shift_nobody(layout: str) -> None:
    x, ids, _ = make(20, 4, 2, 7)
    dense = expand(x, ids, 4, layout=layout)
    sparse = expand(x, ids * 3 + 1, 12, layout=layout)
    assert np.diff(sparse.offsets)[1::3].tolist() == np.diff(dense.offsets).tolist()
    assert not np.delete(np.diff(sparse.offsets), np.s_[1::3]).any()
    assert sparse.codes.tobytes() == dense.codes.tobytes()
    assert sparse.permuted_to_unpermuted.tolist() == dense.permuted_to_unpermuted.tolist()
    assert rows_of(sparse, 12, layout)[1].tobytes() == rows_of(dense, 4, layout)[1].tobytes()


def test_strided_choices_and_inputs_left_alone() -> None:
    x, ids, _ = make(8, 4, 2, 11)
    before = (x.tobytes(), ids.tobytes())
    result = expand(x, ids, 4)
    assert expand(x, np.repeat(ids, 2, axis=1)[:, ::2], 4).codes.tobytes() == result.codes.tobytes()
    result.codes[:] = 0
    result.scales[:] = 0
    assert (x.tobytes(), ids.tobytes()) == before


def test_ready_codes_are_copied_not_shared() -> None:
    codes = np.arange(64, dtype=np.uint8).reshape(1, 64)
    result = expand(codes, np.array([[0]], np.int32), 1)
    result.codes[:] = 0
    assert codes[0, 1] == 1
