"""cvt to and from pairs of numbers of 8, 6 or 4 bits, and of scales. The specification is `isa.convert_narrow`."""

from __future__ import annotations

from collections.abc import Sequence

from refmoe.ptx.ops.formats import BF16, E2M1, E2M3, E3M2, E4M3, E5M2, F16, F32, BitFormat, finite, is_nan, rounded
from refmoe.ptx.ops.lanes import LaneBuilder, Lowering, Value
from refmoe.ptx.ops.words import Word

# By PTX's name of a pair; the scale, an exponent alone, is none of these formats.
_FORMATS = {"e4m3x2": E4M3, "e5m2x2": E5M2, "e3m2x2": E3M2, "e2m3x2": E2M3, "e2m1x2": E2M1}
_SCALE = "ue8m0x2"
_LARGEST_SCALE, _SCALE_NAN = 0xFE, 0xFF

TYPES = (*_FORMATS, _SCALE)


def _field(type_name: str) -> int:
    """Bits that an element takes in its pair."""
    return 4 if type_name == "e2m1x2" else 8


def _elements(of: str, sources: Sequence[Word]) -> tuple[BitFormat, Word, Word]:
    """The format of the sources' elements, and the upper and the lower one in words of 32 bits.

    BF16 is the upper half of F32 and taken as that.
    """
    if of == "f32":
        return F32, sources[0], sources[1]
    pair = sources[0]
    if of == "bf16x2":
        return F32, pair & 0xFFFF0000, pair << 16
    return F16, pair >> 16, pair & 0xFFFF


def _encoded(x: Word, of: BitFormat, to: BitFormat, relu: bool) -> Word:
    """To nearest even, and no further than the largest number."""
    code = rounded(x, of, to, "rn", satfinite=True)
    # NaN has no sign here, so that it stays.
    return ((code & to.sign) > 0).choose(0, code) if relu else code


def _decoded(code: Word, of: BitFormat, to: BitFormat, relu: bool) -> Word:
    """A code in a word of 32 bits, what lies above it ignored, as a number of F16 or BF16: exact."""
    magnitude, sign = code & (of.sign - 1), code & of.sign
    if of.bias == to.bias:
        number = magnitude << (to.mantissa - of.mantissa)
    else:
        number = finite(magnitude, of, F32)
        # No number but 0 lies below the least normal one of `to`.
        rebias = (F32.bias - to.bias) << F32.mantissa
        number = number.less(rebias) >> (F32.mantissa - to.mantissa)
    if of is E5M2:
        number = (magnitude >= of.infinity).choose(to.infinity, number)
    place = to.exponent + to.mantissa - of.exponent - of.mantissa
    number = (sign > 0).choose(0, number) if relu else number | (sign << place)
    return is_nan(code, of).choose(to.nan, number) if of.specials else number


def _scale_encoded(x: Word, rounding: str, satfinite: bool) -> Word:
    """The exponent of F32, its sign ignored: toward zero, or up to a power of two; no code lies below 2^-127."""
    magnitude = x & (F32.sign - 1)
    code = magnitude
    if rounding == "rp":
        # Up to 2^-127, which is a fraction of one half without an exponent, the code is 0.
        code = (magnitude > F32.quiet).choose(magnitude + ((1 << F32.mantissa) - 1), 0)
    code = code >> F32.mantissa
    if satfinite:
        code = code.at_most(_LARGEST_SCALE)
    return is_nan(x, F32).choose(_SCALE_NAN, code)


def _scale_decoded(code: Word) -> Word:
    """2^(code - 127) in BF16: the code is its exponent, but 2^-127 is a subnormal number."""
    number = code.equals(0).choose(BF16.quiet, code << BF16.mantissa)
    return code.equals(_SCALE_NAN).choose(BF16.nan, number)


def cvt(to: str, of: str, modifiers: set[str]) -> Lowering:
    """The lowering of cvt to or from a packed narrow type. The first source, or the upper half, is the upper element.

    Args:
        to: the destination's type, "e4m3x2".
        of: that of the sources, "f32", "f16x2" or "bf16x2"; or narrow, and `to` one of these pairs.
        modifiers: "rn", "rz" or "rp", and "satfinite" and "relu".
    """
    relu, satfinite = "relu" in modifiers, "satfinite" in modifiers
    encoding = to in TYPES
    field = _field(to if encoding else of)
    narrow = _FORMATS.get(to if encoding else of)

    def encode(x: Word, source: BitFormat) -> Word:
        if narrow is None:
            return _scale_encoded(x, "rp" if "rp" in modifiers else "rz", satfinite)
        return _encoded(x, source, narrow, relu)

    def decode(code: Word) -> Word:
        return _scale_decoded(code) if narrow is None else _decoded(code, narrow, F16 if to == "f16x2" else BF16, relu)

    def lower(lanes: LaneBuilder, sources: Sequence[Value]) -> Sequence[Value]:
        words = [Word(lanes, source) for source in sources]
        if encoding:
            source, upper, lower = _elements(of, words)
            codes = (encode(upper, source) << field) | encode(lower, source)
            return [codes.resized(2 * field).value]
        pair = words[0].resized(32)
        return [((decode(pair >> field) << 16) | decode(pair & ((1 << field) - 1))).value]

    return lower
