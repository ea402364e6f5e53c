"""MXFP4 in every mode and by every policy, against the scalar specification."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest
from support.mx_blocks import BOUNDARY_MANTISSAS, INPUTS, adversarial_blocks, build, differing_blocks, fast, specified
from support.selection.thinned import thinned

from refmoe.errors import ArgumentError
from refmoe.formats import BF16, E2M1, E8M0, FP32
from refmoe.policy import EDGE_FORMATS, POLICIES, EdgePolicy, ScaleMode
from refmoe.reference import quantize, quantize_mxfp4, unpack_fp4
from refmoe.reference.scalar import decode, encode, quantize_block, scale_byte
from refmoe.reference.scalar.gguf import float32_log2, quantize_block_gguf

FAST_GGUF = sys.modules["refmoe.reference.gguf.mxfp4"]
MODES = list(ScaleMode)
EDGES = [edge for edge, formats in EDGE_FORMATS.items() if "mxfp4" in formats]
FP4_POLICIES = [name for name, policy in POLICIES.items() if "mxfp4" in policy.formats]


def specified_by_policy(bits: np.ndarray, dtype: str, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which blocks [n, 32] the policy defines, and their codes and scales, by the specification."""
    policy = POLICIES[name]
    if policy.edge is not None:
        return specified(bits, dtype, E2M1, policy.mode, policy.edge)
    source = INPUTS[dtype][0]
    defined, blocks = [], []
    for row in bits:
        try:
            blocks.append(quantize_block_gguf([decode(int(code), source) for code in row]))
            defined.append(True)
        except ArgumentError:
            defined.append(False)
    codes = np.array([block.codes for block in blocks], np.uint8)
    return np.array(defined), codes, np.array([block.scale for block in blocks], np.uint8)


@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: edge.value)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("dtype", thinned(INPUTS, 3))
def test_every_mode_and_edge_on_adversarial_blocks(dtype: str, mode: ScaleMode, edge: EdgePolicy) -> None:
    assert differing_blocks(adversarial_blocks(dtype), dtype, E2M1, mode, edge) == 0


@pytest.mark.parametrize("dtype", INPUTS)
@pytest.mark.parametrize("name", thinned(FP4_POLICIES, 3))
def test_every_policy_on_adversarial_blocks(name: str, dtype: str) -> None:
    """And every block that a policy leaves undefined is refused by itself."""
    bits = adversarial_blocks(dtype)
    defined, codes, scales = specified_by_policy(bits, dtype, name)
    assert defined.sum() > 80
    tensor = quantize(np.ascontiguousarray(bits[defined]).view(INPUTS[dtype][1]), "mxfp4", policy=name)
    np.testing.assert_array_equal(unpack_fp4(tensor.codes), codes)
    np.testing.assert_array_equal(tensor.scales[:, 0], scales)
    for row in bits[~defined]:
        with pytest.raises(ArgumentError, match=r"x: found .* in block 0 of 32 elements"):
            quantize(np.ascontiguousarray(row[None]).view(INPUTS[dtype][1]), "mxfp4", policy=name)


def test_the_policies_of_fp4_are_these() -> None:
    torchao = [f"torchao_{mode}" for mode in ("floor", "ceil", "even", "rceil")]
    assert sorted(FP4_POLICIES) == sorted(["ocp", "flashinfer", *torchao, "llama_cpp_cuda", "gguf"])


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_every_scale_byte_that_a_mode_reaches(mode: ScaleMode) -> None:
    """Every exponent of FP32 with every boundary mantissa as the maximum; sqrt(2), 1.5 (6/4) and 1.75 among them."""
    exponents = np.arange(-127, 128)[:, None]
    amax = build(FP32, 0, exponents, np.array(BOUNDARY_MANTISSAS)[None, :]).reshape(-1)
    x = np.zeros((amax.size, 32), np.uint32)
    x[:, 7] = amax
    scales = quantize_mxfp4(x.view(np.float32), mode=mode).scales[:, 0]
    wanted = [scale_byte(FP32.decode(int(bits)), E2M1, mode) for bits in amax]
    np.testing.assert_array_equal(scales, np.array(wanted, np.uint8))
    assert max(wanted) == (252 if mode in (ScaleMode.FLOOR, ScaleMode.FLOOR_RATIO) else 253)
    assert min(wanted) == 0


# Every seventh value, which has all last bits, and all of them by `make slow`.
@pytest.mark.parametrize("step", thinned([7, 1], 2))
@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: edge.value)
def test_all_65536_bf16_values_as_block_maximum(edge: EdgePolicy, step: int) -> None:
    """Both signs, NaN and infinities included, as the one value of a block of zeros."""
    bits = np.arange(0, 1 << 16, step, dtype=np.uint32).astype(np.uint16)
    if edge is EdgePolicy.LLAMA_CPP_CUDA:
        bits = bits[(bits & 0x7FFF) != BF16.infinity_code]
    x = np.zeros((bits.size, 32), np.uint16)
    x[:, 0] = bits
    codes, scales = fast(x, "bf16", E2M1, ScaleMode.ROUND_LOG2, edge)
    zero = decode(0, BF16)
    blocks = [quantize_block([decode(int(code), BF16), zero], E2M1, ScaleMode.ROUND_LOG2, edge) for code in bits]
    np.testing.assert_array_equal(scales, np.array([block.scale for block in blocks], np.uint8))
    np.testing.assert_array_equal(codes[:, :2], np.array([block.codes for block in blocks], np.uint8))
    assert (codes[:, 2:] == codes[:, 1:2]).all()


@pytest.mark.parametrize("scale", thinned([0, 1, 2, 9, 10, 11, 12, 127, 252], 3))
def test_every_bf16_value_as_element(scale: int) -> None:
    """FLOOR gives `scale` to every maximum in [4, 8) * 2^(scale - 127): one in front of 31 values up to the last."""
    anchor = BF16.encode(E8M0.decode(scale) * 4)
    limit = anchor + 0x7F
    values = np.concatenate([np.arange(limit + 1), 0x8000 + np.arange(limit + 1)]).astype(np.uint16)
    rows = np.resize(values, (-(-values.size // 31), 31))
    x = np.concatenate([np.full((len(rows), 1), anchor, np.uint16), rows], axis=1)
    codes, scales = fast(x, "bf16", E2M1, ScaleMode.FLOOR, EdgePolicy.EXACT)
    assert (scales == scale).all()
    factor = 1 / E8M0.decode(scale)
    wanted = [encode(decode(int(code), BF16).times(factor), E2M1) for code in values]
    np.testing.assert_array_equal(codes[:, 1:].reshape(-1)[: values.size], np.array(wanted, np.uint8))


def one_value(value: float, place: int = 3) -> np.ndarray:
    x = np.linspace(-2, 2, 32, dtype=np.float32)
    x[place] = value
    return x


@pytest.mark.parametrize(
    ("edge", "value", "scale", "code"),
    [
        ("exact", np.nan, 0xFF, 0),
        ("exact", -np.inf, 0xFF, 0),
        ("flashinfer", np.nan, 126, 7),
        ("flashinfer", -np.inf, 254, 7),
        ("llama_cpp_cuda", np.nan, 126, 7),
    ],
)
def test_a_bad_value_under_each_edge(edge: str, value: float, scale: int, code: int) -> None:
    """FP4 has no NaN: under `exact` only the scale can say it; the others make it +6, whatever its sign."""
    tensor = quantize_mxfp4(one_value(value), edge=edge)
    assert tensor.scales[0] == scale
    assert unpack_fp4(tensor.codes)[3] == code


def test_nans_alone_have_scale_255_in_flashinfer_and_0_in_llama_cpp() -> None:
    x = np.full(32, np.nan, np.float32)
    for edge, scale in (("exact", 255), ("flashinfer", 255), ("llama_cpp_cuda", 0)):
        assert quantize_mxfp4(x, edge=edge).scales.tolist() == [scale]


def test_tiny_blocks_are_exact_or_flushed() -> None:
    """amax 2^-125 has scale 0 under RCEIL: flashinfer flushes it to signed zeros, the others have 4 * 2^-127."""
    x = np.array([2.0**-125, -(2.0**-125)] * 16, np.float32)
    for edge, codes in (("exact", [6, 14]), ("llama_cpp_cuda", [6, 14]), ("flashinfer", [0, 8])):
        tensor = quantize_mxfp4(x, edge=edge)
        assert tensor.scales.tolist() == [0]
        assert unpack_fp4(tensor.codes)[:2].tolist() == codes


def gguf_boundaries() -> list[int]:
    """FP32 bits on both sides of the first mantissa whose float32 log2 is the next integer, in every binade."""
    first = FAST_GGUF._first_carries()
    bits = []
    for field in range(1, 255):
        for mantissa in range(int(first[field]) - 1, min(int(first[field]) + 2, 1 << 23)):
            bits.append(field << 23 | mantissa)
    return bits


def test_gguf_scales_at_every_boundary_of_the_float32_logarithm() -> None:
    bits = gguf_boundaries()
    wanted = np.array([float32_log2(FP32.decode(code)).__floor__() + 125 for code in bits])
    x = np.zeros((len(bits), 32), np.uint32)
    x[:, 0] = bits
    defined = wanted >= 0
    assert (~defined).any()
    scales = quantize(x[defined].view(np.float32), "mxfp4", policy="gguf").scales[:, 0]
    np.testing.assert_array_equal(scales, wanted[defined])
    # Far from 1 float32 has no room for the logarithms of the last 44 mantissas, near it for all but one or none; a
    # positive power of two (16 at field 142) has half the gap below it that a negative one (-16 at 110) has.
    late = (1 << 23) - FAST_GGUF._first_carries()[[2, 110, 126, 130, 142, 254]].astype(int)
    assert late.tolist() == [44, 11, 0, 1, 5, 44]


def test_gguf_under_the_largest_scale_has_nothing_above_3() -> None:
    """amax just below 2^128 gets scale 253, under which 4 and 6 are infinite: 4 * 2^126 becomes 3 * 2^126."""
    bits = np.zeros((1, 32), np.uint32)
    bits[0, :4] = [0x7F7FFFFF, 0xFF7FFFFF, 0x7F7FFFD4, 0x7EC00000]
    tensor = quantize(bits.view(np.float32), "mxfp4", policy="gguf")
    assert tensor.scales.tolist() == [[253]]
    assert unpack_fp4(tensor.codes)[0, :4].tolist() == [5, 13, 5, 3]
    assert quantize_block_gguf([decode(int(code), FP32) for code in bits[0]]).codes[:4] == (5, 13, 5, 3)


def test_gguf_is_the_package_at_those_boundaries() -> None:
    gguf = pytest.importorskip("gguf")
    from gguf.quants import quantize as gguf_quantize

    bits = np.array([code for code in gguf_boundaries() if code >> 23 > 3], np.uint32)
    x = np.zeros((bits.size, 32), np.uint32)
    x[:, 0] = bits
    with np.errstate(all="ignore"):
        theirs = gguf_quantize(x.view(np.float32), gguf.GGMLQuantizationType.MXFP4)
    ours = quantize(x.view(np.float32), "mxfp4", policy="gguf")
    np.testing.assert_array_equal(theirs[:, 0], ours.scales[:, 0])
    np.testing.assert_array_equal(unpack_fp4(np.ascontiguousarray(theirs[:, 1:]), order="gguf"), unpack_fp4(ours.codes))


def test_gguf_ties_go_toward_zero_and_no_zero_is_negative() -> None:
    values = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5.0, -0.0]
    codes = unpack_fp4(quantize(np.array(values * 2, np.float32), "mxfp4", policy="gguf").codes)
    assert codes[:16].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0, 9, 10, 11, 12, 13, 14, 0]
    exact = unpack_fp4(quantize(np.array(values * 2, np.float32), "mxfp4", policy="ocp").codes)
    assert exact[:16].tolist() == [0, 2, 2, 4, 4, 6, 6, 7, 8, 10, 10, 12, 12, 14, 14, 8]


@pytest.mark.parametrize(
    ("policy", "value", "words"),
    [
        ("gguf", np.nan, "a NaN or an infinity in block 5"),
        ("gguf", np.inf, "a NaN or an infinity in block 5"),
        ("llama_cpp_cuda", -np.inf, "an infinity in block 5"),
    ],
)
def test_undefined_blocks_are_refused_by_number(policy: str, value: float, words: str) -> None:
    x = np.ones((4, 64), np.float32)
    x[2, 40] = value
    with pytest.raises(ArgumentError, match=words):
        quantize(x, "mxfp4", policy=policy)


def test_gguf_refuses_a_scale_below_zero() -> None:
    x = np.zeros((3, 32), np.float32)
    x[1, 0] = 2.0**-125
    assert quantize(x, "mxfp4", policy="gguf").scales.reshape(-1).tolist() == [0, 0, 0]
    x[1, 0] = 2.0**-126
    with pytest.raises(ArgumentError, match=r"below 2\^-125 in block 1 of 32 elements"):
        quantize(x, "mxfp4", policy="gguf")


@pytest.mark.parametrize("shape", [(0, 64), (4, 0), (2, 0, 32), (2, 3, 64)])
def test_gguf_keeps_any_shape(shape: tuple[int, ...]) -> None:
    for dtype in (np.float32, np.float16, INPUTS["bf16"][1]):
        tensor = quantize(np.ones(shape, dtype), "mxfp4", policy="gguf")
        assert tensor.shape == shape
        assert tensor.format == "mxfp4"
    with pytest.raises(ArgumentError, match="multiple of 32"):
        quantize(np.ones((2, 33), np.float32), "mxfp4", policy="gguf")


def _late(original: np.ndarray) -> np.ndarray:
    return original + np.uint32(1)


def _early(original: np.ndarray) -> np.ndarray:
    return original - np.uint32(1)


@pytest.mark.parametrize("shift", [_late, _early])
def test_a_carry_one_mantissa_off_is_caught(
    shift: Callable[[np.ndarray], np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = shift(FAST_GGUF._first_carries())
    bits = [code for code in gguf_boundaries() if code >> 23 > 3]
    x = np.zeros((len(bits), 32), np.uint32)
    x[:, 0] = bits
    right = quantize(x.view(np.float32), "mxfp4", policy="gguf").scales
    monkeypatch.setattr(FAST_GGUF, "_first_carries", lambda: moved)
    assert (quantize(x.view(np.float32), "mxfp4", policy="gguf").scales != right).sum() > 200


def test_an_fp8_policy_is_no_fp4_policy() -> None:
    for name in ("transformer_engine", "deepgemm"):
        with pytest.raises(ArgumentError, match=f"format: found mxfp4 with policy {name}"):
            quantize(np.ones(32, np.float32), "mxfp4", policy=name)
