from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from support.selection.thinned import thinned

from refmoe.errors import ArgumentError
from refmoe.formats import BF16, E2M1, E4M3, E5M2, E8M0, FORMATS, FP16, FP32, TF32, UE4M3, Format

ML_DTYPES = {
    E4M3: (ml_dtypes.float8_e4m3fn, np.uint8),
    E5M2: (ml_dtypes.float8_e5m2, np.uint8),
    E2M1: (ml_dtypes.float4_e2m1fn, np.uint8),
    E8M0: (ml_dtypes.float8_e8m0fnu, np.uint8),
    BF16: (ml_dtypes.bfloat16, np.uint16),
    FP16: (np.float16, np.uint16),
}
NARROW = [fmt for fmt in FORMATS.values() if fmt.bits <= 16]


def same_bits(values: np.ndarray, wanted: np.ndarray) -> None:
    # All NaNs are one value here; everything else, the sign of zero included, by its bits.
    nan = np.isnan(values)
    np.testing.assert_array_equal(nan, np.isnan(wanted))
    np.testing.assert_array_equal(values[~nan].view(np.uint64), wanted[~nan].view(np.uint64))


@pytest.mark.parametrize("fmt", ML_DTYPES, ids=lambda fmt: fmt.name)
def test_every_code_has_the_value_that_ml_dtypes_gives_it(fmt: Format) -> None:
    dtype, unsigned = ML_DTYPES[fmt]
    codes = np.arange(1 << fmt.bits, dtype=np.uint32).astype(unsigned)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        same_bits(fmt.values(), codes.view(dtype).astype(np.float64))


@pytest.mark.parametrize(
    ("fmt", "name"),
    [
        (E4M3, "format_info_ocp_e4m3"),
        (E5M2, "format_info_ocp_e5m2"),
        (E2M1, "format_info_ocp_e2m1"),
        (E8M0, "format_info_ocp_e8m0"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_every_code_and_limit_is_gfloats(fmt: Format, name: str) -> None:
    formats = pytest.importorskip("gfloat.formats")
    from gfloat import decode_float

    info = getattr(formats, name)
    same_bits(fmt.values(), np.array([decode_float(info, code).fval for code in range(1 << fmt.bits)]))
    assert fmt.max == Fraction(info.max)
    assert fmt.emax == info.emax
    assert fmt.min == Fraction(info.smallest)


@pytest.mark.parametrize("fmt", [FP32, TF32], ids=lambda fmt: fmt.name)
def test_wide_formats_on_random_and_extreme_codes(fmt: Format) -> None:
    random = np.random.default_rng(0).integers(0, 1 << 32, 2000, dtype=np.uint32)
    extreme = np.array([0, 1, 0x1FFF, 0x2000, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000], np.uint32)
    codes = np.concatenate([random, extreme, extreme | np.uint32(1 << 31)])
    # TF32's low 13 bits are read by nobody.
    with np.errstate(invalid="ignore"):  # signalling NaNs
        values = (codes & np.uint32(0xFFFFE000) if fmt is TF32 else codes).view(np.float32).astype(np.float64)
    for code, value in zip(codes.tolist(), values, strict=True):
        assert fmt.is_negative(code) == bool(np.signbit(value))
        if np.isfinite(value):
            assert fmt.decode(code) == Fraction(float(value))
        else:
            assert fmt.is_infinite(code) == bool(np.isinf(value))
            assert fmt.is_nan(code) == bool(np.isnan(value))


@pytest.mark.parametrize("fmt", thinned(NARROW, 2), ids=lambda fmt: fmt.name)
def test_encode_undoes_decode(fmt: Format) -> None:
    for code in range(1 << fmt.bits):
        if fmt.is_nan(code) or fmt.is_infinite(code):
            with pytest.raises(ArgumentError, match="code"):
                fmt.decode(code)
            continue
        value = fmt.decode(code)
        # -0 and the ignored sign of UE4M3 are the two things that a value does not remember.
        expected = code & 0x7F if fmt is UE4M3 else (code if value else 0)
        assert fmt.encode(value) == expected


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
def test_encode_refuses_what_the_format_lacks(fmt: Format) -> None:
    half_a_step = fmt.min / 2 if fmt.subnormals else 3 * fmt.min_normal / 2
    for value in (half_a_step, fmt.max * 2, Fraction(1, 3)):
        with pytest.raises(ArgumentError, match=fmt.name):
            fmt.encode(value)
    if not fmt.signed:
        with pytest.raises(ArgumentError, match=fmt.name):
            fmt.encode(-1)


def test_limits_are_those_of_the_standards() -> None:
    assert (E4M3.max, E4M3.max_code, E4M3.emax, E4M3.min) == (448, 0x7E, 8, Fraction(1, 512))
    assert (E5M2.max, E5M2.max_code, E5M2.emax, E5M2.min) == (57344, 0x7B, 15, Fraction(1, 65536))
    assert (E2M1.max, E2M1.max_code, E2M1.emax, E2M1.min) == (6, 7, 2, Fraction(1, 2))
    assert (E8M0.max, E8M0.max_code, E8M0.min) == (Fraction(2) ** 127, 0xFE, Fraction(1, 2**127))
    assert (E8M0.encode(1), E8M0.nan_code, E4M3.nan_code) == (0x7F, 0xFF, 0x7F)
    for fmt in FORMATS.values():
        assert fmt.nan_code is None or fmt.is_nan(fmt.nan_code)
        assert fmt.infinity_code is None or fmt.is_infinite(fmt.infinity_code)


def test_what_a_code_cannot_be() -> None:
    with pytest.raises(ArgumentError, match=r"code: found int 16; needed an integer in 0\.\.15"):
        E2M1.decode(16)
    with pytest.raises(ArgumentError, match="at most 16 bits"):
        FP32.values()


def test_value_tables_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        E4M3.values()[0] = 1
