"""The comparison with the specification must fail for each fault that a quantizer can have: each is planted here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from support.mx_blocks import adversarial_blocks, differing_blocks, specified
from support.selection.thinned import thinned

from refmoe.formats import E4M3, Format
from refmoe.policy import EdgePolicy, ScaleMode

# The package exports a function of the module's name.
FAST = sys.modules["refmoe.reference.quantize"]
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _fresh_tables() -> Iterator[None]:
    table = FAST._code_table
    table.cache_clear()
    yield
    table.cache_clear()


def floor_for_rceil(patch: Patch) -> None:
    patch.setattr(FAST, "_first_carry", lambda fmt, mode: 1 << 23)


def carry_one_mantissa_late(patch: Patch) -> None:
    original = FAST._first_carry
    patch.setattr(FAST, "_first_carry", lambda fmt, mode: original(fmt, mode) + 1)


def carry_one_mantissa_early(patch: Patch) -> None:
    original = FAST._first_carry
    patch.setattr(FAST, "_first_carry", lambda fmt, mode: original(fmt, mode) - 1)


def scale_one_too_large(patch: Patch) -> None:
    original = FAST._exponent_offset
    patch.setattr(FAST, "_exponent_offset", lambda fmt, mode: original(fmt, mode) - 1)


def _patched_encode(patch: Patch, rounding: Callable[[np.ndarray], np.ndarray]) -> None:
    def encode(magnitude: np.ndarray, fmt: Format) -> np.ndarray:
        exponent = np.frexp(np.maximum(magnitude, float(fmt.min_normal)))[1] - 1
        steps = rounding(np.ldexp(magnitude, fmt.mantissa_bits - exponent)).astype(np.int64)
        return np.minimum(((exponent - fmt.emin) << fmt.mantissa_bits) + steps, fmt.max_code).astype(np.uint8)

    patch.setattr(FAST, "_encode", encode)


def round_toward_zero(patch: Patch) -> None:
    _patched_encode(patch, np.floor)


def ties_away_from_zero(patch: Patch) -> None:
    _patched_encode(patch, lambda steps: np.floor(steps + 0.5))


def saturation_missing(patch: Patch) -> None:
    original = FAST._encode

    def encode(magnitude: np.ndarray, fmt: Format) -> np.ndarray:
        return np.where(magnitude > 464, np.uint8(0x7F), original(magnitude, fmt))

    patch.setattr(FAST, "_encode", encode)


def subnormal_codes_flushed(patch: Patch) -> None:
    original = FAST._encode

    def encode(magnitude: np.ndarray, fmt: Format) -> np.ndarray:
        return np.where(magnitude < float(fmt.min_normal), np.uint8(0), original(magnitude, fmt))

    patch.setattr(FAST, "_encode", encode)


def last_element_not_in_amax(patch: Patch) -> None:
    original = FAST._amax
    patch.setattr(FAST, "_amax", lambda magnitudes: original(np.where(np.arange(32) < 31, magnitudes, 0)))


def nan_and_infinity_dropped(patch: Patch) -> None:
    patch.setattr(FAST, "_INFINITY", 0xFFFFFFFF)


def sign_of_zero_dropped(patch: Patch) -> None:
    original = FAST._code_table

    def table(fmt: Format, offset: int) -> np.ndarray:
        codes = original(fmt, offset).copy()
        codes[codes == 0x80] = 0
        return codes

    table.cache_clear = lambda: None  # type: ignore[attr-defined]
    patch.setattr(FAST, "_code_table", table)


def rounded_to_bf16_first(patch: Patch) -> None:
    patch.setattr(FAST, "_round_to_odd", lambda wide: ((wide.astype(np.uint64) + 0x8000) >> 16).astype(np.uint16))


def rare_blocks_of(edge: EdgePolicy) -> Callable[[Patch], None]:
    def plant(patch: Patch) -> None:
        original = FAST._rare_blocks
        patch.setattr(FAST, "_rare_blocks", lambda bits, n, fmt, mode, _: original(bits, n, fmt, mode, edge))

    plant.__name__ = f"rare_blocks_of_{edge.value}"
    return plant


E, F = EdgePolicy.EXACT, EdgePolicy.FLASHINFER
R, L = ScaleMode.RCEIL, ScaleMode.FLOOR
CAUGHT_BY = [
    (floor_for_rceil, "bf16", R, E),
    (carry_one_mantissa_late, "fp32", R, E),
    (carry_one_mantissa_early, "fp32", R, E),
    (carry_one_mantissa_late, "fp32", ScaleMode.ROUND_LOG2, E),
    (carry_one_mantissa_early, "fp32", ScaleMode.EVEN, E),
    (scale_one_too_large, "bf16", R, E),
    (round_toward_zero, "bf16", R, E),
    (ties_away_from_zero, "bf16", R, E),
    (saturation_missing, "bf16", L, E),
    (subnormal_codes_flushed, "fp16", R, E),
    (last_element_not_in_amax, "bf16", R, E),
    (nan_and_infinity_dropped, "bf16", R, E),
    (sign_of_zero_dropped, "bf16", R, E),
    (rounded_to_bf16_first, "fp32", R, E),
    (rare_blocks_of(F), "bf16", R, E),
    (rare_blocks_of(E), "bf16", R, F),
    (rare_blocks_of(E), "bf16", R, EdgePolicy.TRANSFORMER_ENGINE),
]


@pytest.mark.parametrize(
    ("plant", "dtype", "mode", "edge"),
    thinned(CAUGHT_BY, 3),
    ids=[f"{plant.__name__}-{dtype}-{mode.value}-{edge.value}" for plant, dtype, mode, edge in CAUGHT_BY],
)
def test_planted_fault_is_caught(
    plant: Callable[[Patch], None], dtype: str, mode: ScaleMode, edge: EdgePolicy, monkeypatch: Patch
) -> None:
    bits = adversarial_blocks(dtype)
    wanted = specified(bits, dtype, E4M3, mode, edge)
    assert differing_blocks(bits, dtype, E4M3, mode, edge, lambda *_: wanted) == 0
    FAST._code_table.cache_clear()
    plant(monkeypatch)
    assert differing_blocks(bits, dtype, E4M3, mode, edge, lambda *_: wanted) > 0
