"""Planted faults are named: made here element by element, apart from the code that recognises them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.policy_data import gaussian, real
from support.selection.thinned import thinned

from refmoe.formats import E2M1, E4M3
from refmoe.policies import Detection, detect_policy
from refmoe.policies.inputs import read_input
from refmoe.reference import pack_fp4, quantize, quantize_mxfp4, quantize_mxfp8, swizzle_scales, unpack_fp4


def explained(found: Detection, fault: str, name: str, missing: int = 0) -> None:
    assert found.verdict == "none"
    best = found.hypotheses[0]
    assert best.fault == fault
    assert best.left == 0
    assert best.blocks == found.shape[0] * found.shape[1] // 32 - missing
    assert any(names.split(" ")[0] == name for names in best.names)


def rounded(
    x: np.ndarray, scales: np.ndarray, fmt: object, choose: Callable[[float, float, float], bool]
) -> np.ndarray:
    """Codes at the given scales, one at a time; `choose(value, below, above)` says whether to take the one above."""
    values = [float(fmt.decode(code)) for code in range(fmt.max_code + 1)]
    codes = np.zeros(x.size, np.uint8)
    for index, number in enumerate(x.astype(np.float64).reshape(-1)):
        value = abs(number) * 2.0 ** (127 - int(scales.reshape(-1)[index // 32]))
        code = max(c for c, below in enumerate(values) if below <= value)
        if code < fmt.max_code and choose(value, values[code], values[code + 1]):
            code += 1
        codes[index] = code | (np.signbit(number) << (fmt.bits - 1))
    return codes.reshape(x.shape)


@pytest.mark.parametrize("mode", ["rceil", "even"])
def test_nibbles_swapped(mode: str) -> None:
    x = gaussian()
    made = quantize_mxfp4(x, mode=mode)
    found = detect_policy(x, made.codes >> 4 | made.codes << 4, made.scales)
    explained(found, "the two nibbles of each byte are swapped", f"{mode}/exact")
    assert found.nearest[0].rule.policy.mode.value == mode


def test_the_other_packing() -> None:
    x = gaussian()
    made = quantize(x, "mxfp4", policy="llama_cpp_cuda")
    gguf = pack_fp4(unpack_fp4(made.codes), order="gguf")
    explained(
        detect_policy(x, gguf, made.scales),
        "the codes are packed in the order gguf, not even-low",
        "round_log2/llama_cpp_cuda",
    )
    explained(
        detect_policy(x, gguf >> 4 | gguf << 4, made.scales),
        "the codes are packed in the order gguf with their nibbles swapped",
        "round_log2/llama_cpp_cuda",
    )


SHIFTS = [
    (1, None, "the previous block in memory", 1),
    (-1, None, "the next block in memory", 1),
    (1, 1, "the previous block of its row", 16),
    (-1, 1, "the next block of its row", 16),
    (1, 0, "the previous row", 13),
    (-1, 0, "the next row", 13),
]


@pytest.mark.parametrize(("step", "axis", "words", "missing"), SHIFTS)
def test_scales_shifted(step: int, axis: int | None, words: str, missing: int) -> None:
    x = read_input("fingerprint:m16k416").x
    made = quantize_mxfp8(x, mode="floor")
    scales = np.roll(made.scales, step, axis=axis)
    explained(detect_policy(x, made.codes, scales), f"each block has the scale of {words}", "floor/exact", missing)


@pytest.mark.parametrize("written", thinned(["linear", "128x4", "8x4"], 3))
@pytest.mark.parametrize("claimed", ["linear", "128x4", "8x4"])
def test_the_wrong_layout(written: str, claimed: str) -> None:
    """Of 128 rows and a multiple of 4 blocks, where every layout has the same size."""
    x = read_input("fingerprint:m128k256").x
    made = quantize_mxfp8(x, mode="rceil")
    found = detect_policy(x, made.codes, swizzle_scales(made.scales, written), layout=claimed)
    if written == claimed:
        assert found.verdict == "exact"
    else:
        explained(found, f"the scales are in the layout {written}, not {claimed}", "rceil/exact")


def test_scales_transposed() -> None:
    x = read_input("fingerprint:m16k416").x
    made = quantize_mxfp8(x)
    found = detect_policy(x, made.codes, np.ascontiguousarray(made.scales.T))
    explained(found, "the scales are transposed, K-block first", "rceil/exact")


@pytest.mark.parametrize("format", ["mxfp8", "mxfp4"])
@pytest.mark.parametrize(("step", "word"), thinned([(1, "above"), (-1, "below")], 2))
def test_scales_off_by_one(step: int, word: str, format: str) -> None:
    x = real()[:4].copy()
    made = quantize(x, format, policy="torchao_even")
    scales = (made.scales.astype(np.int64) + step).astype(np.uint8)
    found = detect_policy(x, made.codes, scales)
    explained(found, f"scale bytes are one {word} what the codes were made with", "even/exact")

    fmt = E4M3 if format == "mxfp8" else E2M1
    # Half way between an odd code and the even one above it.
    ties_up = {float(fmt.decode(code) + fmt.decode(code + 1)) / 2 for code in range(1, fmt.max_code, 2)}
    codes = rounded(x, scales, fmt, lambda value, below, above: value - below > above - value or value in ties_up)
    follows = detect_policy(x, codes if format == "mxfp8" else pack_fp4(codes), scales)
    explained(follows, f"scale bytes are one {word} the rule's, and the codes follow them", "even/exact")


ROUNDINGS = [
    ("toward zero", lambda value, below, above: False),
    ("to nearest, ties away from zero", lambda value, below, above: value - below >= above - value),
    ("to nearest, ties toward zero", lambda value, below, above: value - below > above - value),
]


@pytest.mark.parametrize(("words", "choose"), ROUNDINGS)
@pytest.mark.parametrize("format", ["mxfp8", "mxfp4"])
def test_another_rounding(format: str, words: str, choose: Callable[[float, float, float], bool]) -> None:
    """On ties in either direction: without them rounding halves one way or the other gives the same bytes."""
    x = np.concatenate([read_input("rne-ties:m4k416:seed1").x, gaussian(4)])
    made = quantize(x, format, policy="ocp")
    codes = rounded(x, made.scales, E4M3 if format == "mxfp8" else E2M1, choose)
    found = detect_policy(x, codes if format == "mxfp8" else pack_fp4(codes), made.scales)
    explained(found, f"elements are rounded {words}", "floor/exact")
    assert found.nearest[0].rule.policy.mode.value == "floor"
    assert found.nearest[0].scales == 0


def test_scales_not_written() -> None:
    x = gaussian()
    made = quantize_mxfp8(x, mode="ceil")
    found = detect_policy(x, made.codes, np.full_like(made.scales, 0x7F))
    explained(found, "every scale byte is 0x7F: they were not written, or are ignored", "ceil/exact")


@pytest.mark.parametrize("format", ["mxfp8", "mxfp4"])
def test_the_sign_of_zero_lost(format: str) -> None:
    x = gaussian()
    x[::2, ::3] = -0.0
    made = quantize(x, format, policy="torchao_rceil")
    codes = made.codes if format == "mxfp8" else unpack_fp4(made.codes)
    minus_zero = 0x80 if format == "mxfp8" else 8
    codes = np.where(codes == minus_zero, 0, codes).astype(np.uint8)
    found = detect_policy(x, codes if format == "mxfp8" else pack_fp4(codes), made.scales)
    explained(found, "zeros have lost their sign", "rceil/exact")


def test_saturation_missing() -> None:
    """What ml_dtypes' cast does above 464."""
    import ml_dtypes

    x = read_input("saturation:m16k416").x
    made = quantize_mxfp8(x, mode="floor")
    scaled = np.ldexp(x.astype(np.float64), 127 - np.repeat(made.scales, 32, axis=1).astype(np.int64))
    codes = scaled.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    assert ((codes & 0x7F) == 0x7F).any()
    found = detect_policy(x, codes, made.scales)
    explained(found, "saturation is missing: what lies above 464 became NaN", "floor/exact")


def test_noise_is_no_fault_of_any_kind() -> None:
    random = np.random.default_rng(3)
    x = gaussian()
    found = detect_policy(
        x, random.integers(0, 256, x.shape, dtype=np.uint8), random.integers(110, 130, (8, 13), dtype=np.uint8)
    )
    assert found.verdict == "none"
    assert found.hypotheses == ()
    assert found.ordinary == ()
    assert len(found.nearest) == 3
