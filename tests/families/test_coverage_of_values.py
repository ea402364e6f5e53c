"""The default level has the cases and values that bite: each is asked for in the data of the cases themselves.

A property is asked of inputs and expectations, not of names, so a case cannot vanish, nor its data change, unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from refmoe.chips import CHIPS
from refmoe.cuda.gemm.tile import TILES
from refmoe.cuda.launch import CTAS_PER_MULTIPROCESSOR
from refmoe.families import FAMILIES
from refmoe.families.family import Case, Expectation, Inputs

#: Elements of data that are made for a question; larger cases are asked by their shape alone.
_SMALL = 300_000
_LEAST_NORMAL = 2.0**-126
_LARGEST_BF16 = float(np.uint32(0x7F7F0000).view(np.float32))

Question = Callable[[Inputs, Expectation], bool]


@cache
def default_level(name: str) -> tuple[Case, ...]:
    return tuple(case for case in FAMILIES[name].level("default") if not case.refusal)


def size(case: Case) -> int:
    shape = case.shape
    return max(shape.m * max(shape.t, 1) * max(shape.k, shape.e), shape.e * shape.n * shape.k)


@lru_cache(maxsize=64)
def problem(case: Case) -> tuple[Inputs, Expectation]:
    inputs = case.family.inputs(case)
    return inputs, case.family.expect(case, inputs)


def asked(name: str, question: Question, **options: Any) -> bool:
    """Whether some case has the property. Options and fields, each a value or several, say where to look."""
    return any(question(*problem(case.data)) for case in chosen(name, **options))


def chosen(name: str, **options: Any) -> Iterator[Case]:
    for case in default_level(name):
        if size(case) <= _SMALL and all(
            getattr(case, option) in (values if isinstance(values, tuple) else (values,))
            for option, values in options.items()
        ):
            yield case


def floats(array: NDArray[Any]) -> NDArray[np.float32]:
    return np.asarray(array, np.float32)


def subnormal(array: NDArray[Any]) -> NDArray[np.bool_]:
    magnitudes = np.abs(floats(array))
    return np.asarray((magnitudes > 0) & (magnitudes < _LEAST_NORMAL))


def negative_zero(array: NDArray[Any]) -> NDArray[np.bool_]:
    values = floats(array)
    return np.asarray((values == 0) & np.signbit(values))


def outputs(expected: Expectation, stage: str = "out") -> NDArray[np.float32]:
    bits = expected.outputs[stage]
    return (bits.astype(np.uint32) << 16 if bits.dtype == np.uint16 else bits.astype(np.uint32)).view(np.float32)


# --- values ---------------------------------------------------------------------------------------------------------

GEMMS = ("sm12x_gemm", "sm12x_nvfp4_gemm", "dp4a_gemv")
ALPHAS: dict[str, Callable[[NDArray[np.float32]], NDArray[np.bool_]]] = {
    "zero": lambda alpha: (alpha == 0) & ~np.signbit(alpha),
    "-0": negative_zero,
    "negative": lambda alpha: alpha < 0,
    "subnormal": subnormal,
    "huge": lambda alpha: np.abs(alpha) >= 2.0**127,
}


@pytest.mark.parametrize("name", GEMMS)
@pytest.mark.parametrize("kind", ALPHAS)
def test_a_factor_of_every_kind(name: str, kind: str) -> None:
    assert asked(name, lambda inputs, _: bool(ALPHAS[kind](inputs["alpha"]).any()), alpha="edges")


@pytest.mark.parametrize("name", GEMMS)
@pytest.mark.parametrize("bias", ["none", "tiny"])
def test_results_of_either_zero_with_and_without_a_bias(name: str, bias: str) -> None:
    def both(_: Inputs, expected: Expectation) -> bool:
        values = outputs(expected)
        return bool(negative_zero(values).any() and ((values == 0) & ~np.signbit(values)).any())

    assert asked(name, both, alpha="edges", bias=bias, fill="zero-rows")


@pytest.mark.parametrize("name", GEMMS)
def test_results_that_are_subnormal(name: str) -> None:
    assert asked(name, lambda _, expected: bool(subnormal(outputs(expected)).any()), dtype="f32", alpha="edges")


@pytest.mark.parametrize("name", GEMMS)
def test_sums_on_both_sides_of_the_largest_bf16_number(name: str) -> None:
    def around(_: Inputs, expected: Expectation) -> bool:
        values = np.abs(outputs(expected))
        return bool((values == _LARGEST_BF16).any() and (values == np.inf).any())

    assert asked(name, around, dtype="bf16", fill="overflow")
    # In FP32 those that BF16 rounds to Inf are numbers, and others are none.
    assert asked(
        name,
        lambda _, expected: bool(
            ((np.abs(outputs(expected)) > _LARGEST_BF16) & np.isfinite(outputs(expected))).any()
            and np.isinf(outputs(expected)).any()
        ),
        dtype="f32",
        fill="overflow",
    )


def test_every_e8m0_byte_meets_every_code_of_the_gemm() -> None:
    weights, tokens = set(), set()
    for case in chosen("sm12x_gemm", fill="scale-bytes"):
        inputs, _ = problem(case.data)
        low, high = inputs["weights"] & 15, inputs["weights"] >> 4
        codes = np.stack([low, high], axis=-1).reshape(*low.shape[:-1], -1)
        scales = np.repeat(inputs["weight_scales"], 32, axis=-1)
        weights |= set(np.unique(scales.astype(np.int64) * 16 + codes).tolist())
        scales = np.repeat(inputs["token_scales"], 32, axis=-1)
        tokens |= set(np.unique(scales.astype(np.int64) * 256 + inputs["tokens"]).tolist())
    assert len(weights) == 256 * 16
    assert len(tokens) == 256 * 254  # of the codes two are NaN


SUMS = ("finalize", "finalize_q8_1", "deepseek_finalize")
WEIGHTS: dict[str, Callable[[NDArray[np.float32]], NDArray[np.bool_]]] = {
    "zero": lambda weights: weights == 0,
    "-0": negative_zero,
    "negative": lambda weights: weights < 0,
    "NaN": lambda weights: np.isnan(weights),
    "infinite": lambda weights: np.isinf(weights),
    "subnormal": subnormal,
}


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("kind", WEIGHTS)
def test_a_weight_of_every_kind(name: str, kind: str) -> None:
    assert asked(name, lambda inputs, _: bool(WEIGHTS[kind](inputs["weights"]).any()), fill="weights")


@pytest.mark.parametrize("name", SUMS)
def test_a_weight_of_zero_meets_infinity(name: str) -> None:
    def meets(inputs: Inputs, _: Expectation) -> bool:
        tokens, choices = inputs["weights"].shape
        rows = inputs["unpermuted_to_permuted"].reshape(choices, tokens).T
        infinite = np.asarray(np.isinf(floats(inputs["rows"])).any(axis=1))
        return bool(((inputs["weights"] == 0) & (rows >= 0) & infinite[rows]).any())

    assert asked(name, meets, fill="weights")


@pytest.mark.parametrize("name", SUMS)
def test_columns_of_negative_zeros_alone(name: str) -> None:
    def alone(inputs: Inputs, _: Expectation) -> bool:
        return bool(negative_zero(inputs["rows"]).all(axis=0).any())

    assert asked(name, alone, fill="zeros")


@pytest.mark.parametrize("name", ["finalize", "deepseek_finalize"])
def test_sums_that_are_subnormal_or_overflow_bf16(name: str) -> None:
    assert asked(name, lambda _, expected: bool(subnormal(outputs(expected)).any()), fill="subnormal", out="f32")

    def around(_: Inputs, expected: Expectation) -> bool:
        values = np.abs(outputs(expected))
        return bool((values == _LARGEST_BF16).any() and (values == np.inf).any())

    assert asked(name, around, fill="overflow", out="bf16")


@pytest.mark.parametrize("name", ["finalize", "finalize_q8_1"])
def test_a_bias_of_zeros_and_of_subnormal_numbers(name: str) -> None:
    def tiny(inputs: Inputs, _: Expectation) -> bool:
        bias = inputs["bias"]
        return bool(negative_zero(bias).any() and (floats(bias) == 0).any() and subnormal(bias).any())

    assert asked(name, tiny, bias="tiny")


GATES = ("activation", "swiglu_q8_1")


@pytest.mark.parametrize("name", GATES)
def test_factors_and_clamps_at_the_edges(name: str) -> None:
    def edges(inputs: Inputs, _: Expectation) -> bool:
        alpha, beta, limit = inputs["alpha"], inputs["beta"], inputs["limit"]
        seven = np.float32(7)
        return bool(
            (alpha == 0).any()
            and negative_zero(alpha).any()
            and (alpha < 0).any()
            and subnormal(alpha).any()
            and (beta == 0).any()
            and subnormal(beta).any()
            and subnormal(limit).any()
            and (limit == np.nextafter(seven, np.float32(8))).any()
            and (limit == np.nextafter(seven, np.float32(0))).any()
        )

    assert asked(name, edges, params="edges")


@pytest.mark.parametrize("name", GATES)
def test_gates_and_ups_of_either_zero(name: str) -> None:
    def zeros(inputs: Inputs, _: Expectation) -> bool:
        values = floats(inputs["gate_up"])
        sides = values[:, 0::2], values[:, 1::2]
        return all(negative_zero(side).any() and ((side == 0) & ~np.signbit(side)).any() for side in sides)

    assert asked(name, zeros, fill="zeros", variant="gpt_oss")


def test_a_clamp_s_last_bit_decides_codes() -> None:
    from refmoe.reference.activation import swiglu_quantize

    (case,) = chosen("activation", fill="clamp-midpoints")
    inputs, expected = problem(case.data)
    names = ("alpha", "beta", "limit")
    given = {name: inputs[name] for name in names}
    rounded = (given["limit"].view(np.uint32) & 0xFFFF0000).view(np.float32)
    moved = swiglu_quantize(inputs["gate_up"], inputs["offsets"], **{**given, "limit": rounded}, fill=case.poison)
    assert (moved.codes != expected.outputs["codes"]).any()


def test_router_biases_of_every_kind() -> None:
    def tiny(inputs: Inputs, _: Expectation) -> bool:
        bias = inputs["bias"]
        return bool((bias == 0).any() and negative_zero(bias).any() and subnormal(bias).any())

    assert asked("routing", tiny, bias="tiny", fill="signed-zeros")
    assert asked("routing", lambda inputs, _: bool(np.isneginf(inputs["bias"]).any()), bias="never")
    assert asked("routing", lambda inputs, _: bool(np.isposinf(inputs["bias"]).any()), bias="infinite")
    assert asked("deepseek_routing", lambda inputs, _: bool(np.isposinf(inputs["bias"]).any()), fill="infinite")
    assert asked("deepseek_routing", tiny, fill="bias-alone")
    assert asked("deepseek_routing", lambda inputs, _: bool(np.isneginf(inputs["bias"]).any()), fill="never")


@pytest.mark.parametrize("name", ["routing", "deepseek_routing"])
def test_logits_that_are_nan_and_equal_ones_over_more_than_a_warp(name: str) -> None:
    assert asked(name, lambda inputs, _: bool(np.isnan(floats(inputs["logits"])).any()), fill="refused")

    def equal(inputs: Inputs, _: Expectation) -> bool:
        logits = floats(inputs["logits"])
        return bool((np.sort(logits, axis=1)[:, :33] == logits.min(axis=1, keepdims=True)).all(axis=1).any())

    assert asked(name, equal, fill="equal")


# --- sizes ----------------------------------------------------------------------------------------------------------

#: The largest grid of kernels that take rows, on any chip.
LARGEST_GRID = CTAS_PER_MULTIPROCESSOR * max(chip.multiprocessors for chip in CHIPS.values())
#: By family the rows of its tile.
ROW_TILES = {
    "mxfp8_quantize": (8, 128),
    "nvfp4_quantize": (128,),
    "block_fp8_quantize": (128,),
    "expand": (128,),
    "activation": (128,),
    "deepseek_gemm": (8, 128),
    "moe": (128,),
}


@pytest.mark.parametrize("name", ROW_TILES)
def test_rows_that_are_whole_tiles_and_one_more_and_less(name: str) -> None:
    counts = set()
    for case in default_level(name):
        counts.add(case.shape.m)
        rows = case.get("rows")
        if isinstance(rows, str):
            counts |= {int(each) for each in rows.split("-") if each.isdigit()}
    for tile in ROW_TILES[name]:
        assert {tile - 1, tile, tile + 1} <= counts


@pytest.mark.parametrize("name", ["sm12x_gemm", "sm12x_nvfp4_gemm"])
def test_tokens_that_are_whole_tiles_and_one_more_and_less(name: str) -> None:
    found = {
        (case.tile, case.shape.m) for case in default_level(name) if case.get("routing") == "same-experts" and case.tile
    }
    whole = [tile for tile in {tile for tile, _ in found} if {int(tile.split("x")[1]) + step for step in (-1, 0, 1)}
             <= {rows for of, rows in found if of == tile}]  # fmt: skip
    assert len(whole) >= (3 if name == "sm12x_gemm" else 1)
    assert {str(tile) for tile in TILES} >= set(whole) if name == "sm12x_gemm" else whole


EXPERTS = ("expand", "sm12x_gemm", "sm12x_nvfp4_gemm", "deepseek_gemm", "routing", "deepseek_routing", "moe",
           "integer_moe", "deepseek_moe")  # fmt: skip


@pytest.mark.parametrize("name", EXPERTS)
def test_experts_of_models_and_numbers_that_are_no_power_of_two(name: str) -> None:
    counts = {case.shape.e * int(case.get("ranks", 1)) for case in default_level(name)}
    assert max(counts) >= 256
    assert any(count > 64 and count & (count - 1) for count in counts)


@pytest.mark.parametrize(
    "name",
    ["expand", "sm12x_gemm", "sm12x_nvfp4_gemm", "deepseek_gemm", "activation", "swiglu_q8_1", "finalize",
     "finalize_q8_1", "routing", "deepseek_routing"],
)  # fmt: skip
def test_more_experts_than_a_byte_counts(name: str) -> None:
    assert any(case.shape.e * int(case.get("ranks", 1)) > 256 for case in default_level(name))


def test_as_many_experts_and_choices_as_there_may_be() -> None:
    assert max(case.shape.e * case.ranks for case in default_level("routing") if case.dtype != "ids") == 1024
    assert max(case.shape.e * case.ranks for case in default_level("deepseek_routing")) == 512
    assert max(case.shape.m * case.shape.t for case in default_level("dp4a_gemv")) == 256


#: By family the columns that a CTA takes at once.
ROUND = {
    "mxfp8_quantize": 8192,
    "nvfp4_quantize": 8192,
    "block_fp8_quantize": 8192,
    "expand": 8192,
    "activation": 8192,
    "deepseek_expand": 8192,
    "deepseek_activation": 8192,
    "deepseek_finalize": 4096,
    "swiglu_q8_1": 512,
    "finalize_q8_1": 512,
}


@pytest.mark.parametrize("name", ROUND)
def test_rows_wider_than_a_cta_and_more_of_them_than_ctas(name: str) -> None:
    assert any(
        case.shape.k > ROUND[name]
        and case.shape.m * -(-case.shape.k // ROUND[name]) > CTAS_PER_MULTIPROCESSOR * case.multiprocessors > 0
        for case in default_level(name)
    )


@pytest.mark.parametrize("name", ["finalize", "deepseek_finalize"])
def test_rows_of_whole_pieces_but_of_no_whole_block(name: str) -> None:
    assert {8, 24} <= {case.shape.k % 32 for case in default_level(name)}


@pytest.mark.parametrize("name", ["expand", "sm12x_gemm", "routing", "activation", "finalize", "deepseek_finalize"])
def test_one_expert_has_all_rows(name: str) -> None:
    assert any(
        case.routing == "same-experts" and case.shape.t <= 1 and case.shape.e > 1 and case.shape.m > 1
        for case in default_level(name)
    )


@pytest.mark.parametrize(
    "name",
    ["mxfp8_quantize", "nvfp4_quantize", "block_fp8_quantize", "expand", "routing", "activation", "swiglu_q8_1",
     "finalize", "finalize_q8_1", "deepseek_finalize"],
)  # fmt: skip
def test_more_than_65536_rows(name: str) -> None:
    assert any(case.shape.m * max(case.shape.t, 1) > 1 << 16 for case in default_level(name))


@pytest.mark.parametrize("name", ["mxfp8_quantize", "nvfp4_quantize", "expand", "activation"])
def test_more_rows_of_swizzled_scales_than_the_grid_has_blocks(name: str) -> None:
    assert any(
        case.layout == "128x4" and case.shape.m * max(case.shape.t, 1) > LARGEST_GRID for case in default_level(name)
    )


#: By family how many 16-byte pieces, elements or bytes one row, or expert, has in the buffer whose index is longest.
FAR = {
    "mxfp8_quantize": lambda case: case.rows_before * (case.shape.k // 16),
    "nvfp4_quantize": lambda case: case.rows_before * (case.shape.k // 16),
    "block_fp8_quantize": lambda case: case.rows_before * (case.shape.k // 16),
    "expand": lambda case: case.rows_before * (case.shape.k // 16),
    "activation": lambda case: case.rows_before * (case.shape.k // 16),
    "finalize": lambda case: case.rows_before * case.shape.k,
    "deepseek_expand": lambda case: case.rows_before * (case.shape.k // 16),
    "deepseek_finalize": lambda case: case.rows_before * case.shape.k,
    "deepseek_gemm": lambda case: min(
        max(each.rows_before * each.shape.k for each in default_level("deepseek_gemm")),
        max(each.experts_before * each.shape.n * each.shape.k for each in default_level("deepseek_gemm")),
    ),
    "sm12x_gemm": lambda case: case.experts_before * case.shape.n * case.shape.k // 2,
    "sm12x_nvfp4_gemm": lambda case: case.rows_before * case.shape.n,
    "dp4a_gemv": lambda case: case.experts_before * case.shape.n * case.shape.k // 2,
}


@pytest.mark.parametrize("name", FAR)
def test_an_index_past_2_to_the_31(name: str) -> None:
    assert any(FAR[name](case) >= 1 << 31 for case in default_level(name))


#: Families whose kernels are told the id of this rank's first expert.
_RANKED = [
    name for name, family in FAMILIES.items() if family.contract and "first_expert" in family.contract.settings.values()
]


@pytest.mark.parametrize("name", _RANKED)
def test_the_first_of_several_ranks_and_another(name: str) -> None:
    first = {case.first_expert == 0 for case in default_level(name) if int(case.get("ranks", 1)) > 1}
    assert first == {True, False}, "the first of several ranks begins where a whole layer does"


def test_the_first_of_several_ranks_takes_every_way_to_maps() -> None:
    """A CTA alone and a CTA an expert, of choices that are made and of given ones."""
    first = [case for case in default_level("routing") if case.ranks > 1 and case.first_expert == 0]
    made = {case.shape.m > 16 for case in first if case.dtype != "ids"}
    given = {case.shape.m * case.shape.t > 64 for case in first if case.dtype == "ids"}
    assert made == given == {True, False}


@pytest.mark.parametrize("name", ["mxfp8_quantize", "nvfp4_quantize", "expand", "sm12x_gemm", "dp4a_gemv"])
def test_the_k_of_models(name: str) -> None:
    assert {2880, 7168} <= {case.shape.k for case in default_level(name)}


# --- options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["moe", "integer_moe", "deepseek_moe"])
def test_every_value_of_every_option_of_a_layer(name: str) -> None:
    family, cases = FAMILIES[name], default_level(name)
    for option in family.options:
        found = {case.get(option.name) for case in cases}
        if option.name == "poison":
            continue  # of a layer always 0x7F: of 0xFF the bytes of -1 consist
        if option.name == "wrong":
            assert len({case.get(option.name) for case in family.wrong_calls()}) > 10
            continue  # a call that has to be refused belongs to no level
        if not option.words:
            assert len(found) > 1, option.name
        elif option.name == "routing":
            assert len(found) >= 4
        elif option.name == "input_sf":
            assert {"linear", "128x4"} <= found
        else:
            # TensorRT-LLM's rules on SM100 are for a kernel of the user's; refmoe has none of that chip.
            assert set(option.words) - found <= {"sm100", "trtllm"}, option.name
    assert {case.dtype for case in cases} == set(family.dtypes)
