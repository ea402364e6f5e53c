"""Policies side by side: every figure against a slow computation in exact rationals."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from support.mx_blocks import adversarial_blocks
from support.policy_data import ELEMENT, adversarial, gaussian, real, slow
from support.selection.thinned import thinned

from refmoe.errors import ArgumentError
from refmoe.formats import BF16, E8M0
from refmoe.policies import compare_policies
from refmoe.policies.compare import same_bytes
from refmoe.policies.inputs import read_input
from refmoe.reference.scalar import decode
from refmoe.reference.scalar.numbers import NumberKind

SLOW_POLICIES = {
    "mxfp8": ("rceil/exact", "floor/exact", "even/flashinfer", "rceil/transformer_engine", "rceil/deepgemm"),
    "mxfp4": ("rceil/exact", "ceil/flashinfer", "round_log2/llama_cpp_cuda", "gguf"),
}


@pytest.mark.parametrize(
    ("format", "name"), thinned([(f, name) for f, names in SLOW_POLICIES.items() for name in names], 3)
)
def test_the_figures_of_a_policy_against_exact_rationals(format: str, name: str) -> None:
    fmt = ELEMENT[format]
    defined, codes, scales = slow("bf16", format, name)
    squared_error = squared_input = Fraction(0)
    worst = (Fraction(0), 0)
    saturated = underflowed = nan_codes = counted = 0
    for index in np.flatnonzero(defined):
        for lane, (bits, code) in enumerate(zip(adversarial_blocks("bf16")[index], codes[index], strict=True)):
            nan_codes += fmt.is_nan(int(code))
            number = decode(int(bits), BF16)
            if number.kind is not NumberKind.FINITE or scales[index] == 255 or fmt.is_nan(int(code)):
                continue
            x = -number.magnitude if number.negative else number.magnitude
            unit = E8M0.decode(int(scales[index]))
            error = abs(fmt.decode(int(code)) * unit - x)
            squared_error, squared_input = squared_error + error**2, squared_input + x**2
            saturated += abs(x) > fmt.max * unit
            underflowed += x != 0 and fmt.decode(int(code)) == 0
            counted += 1
            if error > worst[0]:
                worst = (error, index * 32 + lane)

    comparison = compare_policies(adversarial(), format, policies=[name])
    (figures,) = comparison.figures
    assert (figures.saturated, figures.underflowed, figures.nan_codes) == (saturated, underflowed, nan_codes)
    assert figures.undefined == (~defined).sum()
    assert figures.poisoned == (scales[defined] == 255).sum()
    assert figures.scale_bytes == len(set(scales[defined].tolist()))
    # A difference of two float64 numbers is rounded once.
    assert figures.max_error == float(worst[0])
    assert figures.max_error_at == divmod(worst[1], 32)
    # Of non-negative terms, each within 2^-52, and at most as many roundings again in each sum; a root halves that.
    expected = math.sqrt(squared_error / squared_input)
    assert abs(figures.relative_l2 - expected) <= expected * (counted + 6) * 2.0**-52


@pytest.mark.parametrize("format", ["mxfp8", "mxfp4"])
def test_what_differs_between_two_policies_is_counted_where_both_are_defined(format: str) -> None:
    names = SLOW_POLICIES[format]
    comparison = compare_policies(adversarial(), format, policies=names, base=names[1])
    assert comparison.base.name == names[1]
    for first, second in itertools.product(names, repeat=2):
        one, other = slow("bf16", format, first), slow("bf16", format, second)
        both = one[0] & other[0]
        difference = comparison.between(first, second)
        assert difference.blocks == both.sum()
        assert difference.scales == (one[2] != other[2])[both].sum()
        assert difference.codes == (one[1] != other[1])[both].sum()
        assert difference.scale_share == difference.scales / both.sum()
        assert difference.code_share == difference.codes / (32 * both.sum())
        if second == names[1]:
            assert comparison.figures[names.index(first)].from_base == difference


def share_of_scales_that_differ() -> float:
    """Of FLOOR and RCEIL on standard normal blocks in BF16: an amax with a mantissa above 1.75, by its distribution.

    BF16 rounds to nearest: what is above 1.75 after it is above 1.75 + 2^-8 before (a tie goes to 1.75, which is
    even), and what stays below 2 is below 2 - 2^-8.
    """

    def below(bound: float) -> float:
        return math.erf(bound / math.sqrt(2)) ** 32

    return sum(below(2.0**k * (2 - 2.0**-8)) - below(2.0**k * (1.75 + 2.0**-8)) for k in range(-8, 6))


@pytest.mark.parametrize("seed", range(3))
def test_the_published_figures_of_floor_and_rceil(seed: int) -> None:
    """16.5 % of scale bytes differ on randn; relative L2 0.0293 against 0.0267.

    The distribution gives 16.370 % on BF16 (16.900 % on FP32); of 65,536 blocks, one case in three strays from it by
    more than 0.14 %. Measured with seeds 0, 1 and 2: 16.254, 16.548 and 16.333 %; relative L2 0.02929 to 0.02935
    against 0.02661 to 0.02667.
    """
    x = gaussian(2048, 1024, seed=seed)
    comparison = compare_policies(x, policies=["rceil", "floor"])
    rceil, floor = comparison.figures
    share, blocks = share_of_scales_that_differ(), x.size // 32
    spread = math.sqrt(share * (1 - share) / blocks)
    assert abs(floor.from_base.scale_share - share) < 4 * spread
    assert abs(floor.from_base.scale_share - 0.165) < 0.0005 + 4 * spread
    assert floor.from_base.blocks == blocks
    assert round(floor.relative_l2, 4) in (0.0292, 0.0293, 0.0294)
    assert round(rceil.relative_l2, 4) in (0.0266, 0.0267)
    assert rceil.saturated == 0
    assert floor.saturated > 0


def test_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    from refmoe.policies import blocks

    x = read_input("specials:m64k416").x
    whole = compare_policies(x)
    monkeypatch.setattr(blocks, "BLOCKS_A_CHUNK", 97)
    parts = compare_policies(x)
    assert parts.kinds == whole.kinds
    assert parts.pairs == whole.pairs
    np.testing.assert_array_equal(parts.mantissas, whole.mantissas)
    for one, other in zip(parts.figures, whole.figures, strict=True):
        np.testing.assert_array_equal(one.offsets, other.offsets)
        for name in ("saturated", "underflowed", "poisoned", "nan_codes", "undefined", "max_error", "max_error_at"):
            assert getattr(one, name) == getattr(other, name)


def test_the_scale_decision_turns_at_the_boundary_of_each_mode() -> None:
    """In bins of 1/128: RCEIL above 1.75, EVEN from 1.9375, ROUND_LOG2 from sqrt(2), CEIL above 1."""
    x = read_input("boundary-mantissas:m256k2880").x
    comparison = compare_policies(x, policies=["rceil", "floor", "ceil", "even", "round_log2", "floor_ratio"])
    turns = {}
    for figures in comparison.figures:
        assert not np.isnan(figures.offsets).any()
        low = figures.offsets[0]
        changed = np.flatnonzero(figures.offsets != low)
        turns[figures.rule.policy.mode.value] = (int(low), int(changed[0]) if changed.size else None)
        assert (figures.offsets[changed] == low + 1).all()
    assert turns == {
        "rceil": (0, 97),
        "floor": (0, None),
        "ceil": (0, 1),
        "even": (0, 120),
        "round_log2": (0, 54),
        "floor_ratio": (-1, 96),
    }


def test_by_default_all_modes_and_whole_policies_are_compared_each_once() -> None:
    names = [figures.rule.name for figures in compare_policies(gaussian()).figures]
    modes = ["rceil", "floor", "ceil", "even", "round_log2", "floor_ratio"]
    assert names == [f"{mode}/exact" for mode in modes] + [
        "rceil/flashinfer",
        "rceil/transformer_engine",
        "rceil/deepgemm",
    ]
    names = [figures.rule.name for figures in compare_policies(gaussian(), "mxfp4").figures]
    assert names[6:] == ["rceil/flashinfer", "round_log2/llama_cpp_cuda", "gguf"]


def test_policies_with_the_same_bytes_are_grouped() -> None:
    groups = same_bytes(compare_policies(real()))
    assert groups[0] == ["rceil/exact", "rceil/flashinfer", "rceil/transformer_engine", "rceil/deepgemm"]
    assert [len(group) for group in groups] == [4, 1, 1, 1, 1, 1]


def test_an_input_of_zeros_has_no_relative_error() -> None:
    figures = compare_policies(np.zeros((2, 64), np.float32), policies=["ocp"]).figures[0]
    assert math.isnan(figures.relative_l2)
    assert (figures.max_error, figures.scale_bytes, figures.underflowed) == (0.0, 1, 0)


REFUSALS = [
    ({"policies": ["ocp", "floor"]}, r"found ocp and floor; needed different policies: both are floor/exact"),
    ({"policies": ["gguf"]}, "gguf for mxfp8; needed a policy of mxfp8: gguf is of mxfp4 alone"),
    ({"policies": ["deepgemm"], "format": "mxfp4"}, "deepgemm is of mxfp8 alone"),
    ({"policies": ["rceil/llama_cpp_cuda"]}, "rceil/llama_cpp_cuda is of mxfp4 alone"),
    ({"policies": ["stochastic"]}, "policies: found str 'stochastic'; needed MODE or MODE/EDGE"),
    ({"policies": []}, "policies: found none"),
    ({"base": "gguf"}, "base: found 'gguf'; needed one of the policies compared"),
    ({"format": "nvfp4"}, "format: found str 'nvfp4'; needed mxfp8 or mxfp4"),
    ({"x": np.zeros((2, 33), np.float32)}, "a last dimension that is a multiple of 32"),
]


@pytest.mark.parametrize(("change", "message"), REFUSALS)
def test_what_cannot_be_is_refused(change: dict, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        compare_policies(**{"x": gaussian(), **change})


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_picture_is_the_same_each_time(tmp_path: Path, suffix: str) -> None:
    from refmoe.policies.compare_picture import draw_comparison

    comparison = compare_policies(gaussian(), "mxfp4")
    first = draw_comparison(comparison, "gaussian", tmp_path / f"a.{suffix}").read_bytes()
    assert first == draw_comparison(comparison, "gaussian", tmp_path / f"b.{suffix}").read_bytes()
    assert first.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
    with pytest.raises(ArgumentError, match=r"ends in \.png or \.svg"):
        draw_comparison(comparison, "gaussian", tmp_path / "a.gif")


def test_sources_are_memory_mapped_and_bf16_is_read_from_raw_elements(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", gaussian())
    read = read_input(str(tmp_path / "x.npy")).x
    assert isinstance(read, np.memmap)
    assert read.dtype == np.dtype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(read.view(np.uint16), gaussian().view(np.uint16))
