"""cvt between the integer and floating-point register types. The packed narrow formats are in `convert_narrow`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from refmoe.ptx.isa import convert_narrow, exact64
from refmoe.ptx.isa.floating import rectify, saturate
from refmoe.ptx.isa.floats import BF16, F16, F32, F64, FLOATS, Float, canonical, decode, flush, is_nan, kind_of
from refmoe.ptx.isa.lanes import SIGNED, UNSIGNED, signed
from refmoe.ptx.isa.operation import Array, Function, Operation
from refmoe.ptx.isa.rounding import ROUNDINGS, add_to_odd, encode
from refmoe.ptx.isa.spelling import Spelling

_INTEGERS = ("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64")
_TO_INTEGRAL: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


def _bounds(type_name: str) -> tuple[int, int]:
    """Smallest and largest value of an integer type."""
    bits = int(type_name[1:])
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if type_name[0] == "s" else (0, (1 << bits) - 1)


# --- integer to integer ---------------------------------------------------------------------------------------------


def _integer_to_integer(to: str, of: str, sat: bool) -> Function:
    """Extend by the source's signedness, or truncate; .sat clamps to the destination's range."""
    bits, from_bits = int(to[1:]), int(of[1:])
    extended = (SIGNED if of[0] == "s" else UNSIGNED)[max(bits, from_bits)]
    own = (SIGNED if of[0] == "s" else UNSIGNED)[from_bits]
    low, high = max(_bounds(to)[0], _bounds(of)[0]), min(_bounds(to)[1], _bounds(of)[1])

    def function(a: Array) -> Array:
        a = a.view(own)
        if sat:
            # Both bounds lie in the source's range, so the clamp needs no wider type.
            a = np.clip(a, own(low), own(high))
        return a.astype(extended).astype(UNSIGNED[bits])

    return function


# --- integer to float -----------------------------------------------------------------------------------------------


def _integer_to_float(to: Float, of: str, rounding: str) -> Function:
    is_signed, from_bits = of[0] == "s", int(of[1:])

    def function(a: Array) -> Array:
        value = signed(a) if is_signed else a
        if from_bits < 64:
            return encode(value.astype(np.float64), to, rounding)  # exact in float64
        if to is F64 and rounding == "rn":
            return value.astype(np.float64).view(np.uint64)
        # Two halves, each exact in float64.
        high = (value >> 32).astype(np.float64) * 4294967296.0
        low = (a & np.uint64(0xFFFFFFFF)).astype(np.float64)
        if to is F64:
            return exact64.function("add", rounding)(high.view(np.uint64), low.view(np.uint64))
        return encode(add_to_odd(high, low), to, rounding)

    return function


# --- float to integer -----------------------------------------------------------------------------------------------


def _float_to_integer(to: str, of: Float, rounding: str) -> Function:
    """Round to an integral value, clamp to the range (with or without .sat).

    NaN gives 0 if neither side has 64 bits, else only the top bit of the destination (PTX ISA, cvt; seen on an H200 for
    every pair of types).
    """
    bits = int(to[1:])
    low, high = _bounds(to)
    integral = _TO_INTEGRAL[rounding]
    of_nan = 0 if of is not F64 and bits < 64 else 1 << (bits - 1)
    wide = np.int64 if to[0] == "s" else np.uint64
    # The first value past the range is a power of two, exact in float64, which the largest integer is not.
    above = float(high + 1)

    def function(a: Array) -> Array:
        value = integral(decode(a, of))
        inside = (value >= low) & (value < above)
        result = np.where(inside, value, 0.0).astype(wide).astype(UNSIGNED[bits])
        if inside.all():
            return result
        result = np.where(value >= above, UNSIGNED[bits](high), result)
        result = np.where(value < low, UNSIGNED[bits](low & ((1 << bits) - 1)), result)
        return np.where(np.isnan(value), UNSIGNED[bits](of_nan), result)

    return function


# --- float to float -------------------------------------------------------------------------------------------------


def _float_to_bf16(a: Array) -> Array:
    """f32 to bf16 to nearest even, on bits."""
    rounded = ((a + (0x7FFF + ((a >> 16) & 1))) >> 16).astype(np.uint16)
    nan = (a & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan, np.uint16(BF16.nan), rounded) if nan.any() else rounded


def _keeps_nan(to: Float, of: Float) -> bool:
    """Whether NaN keeps its sign and the top of its payload (H200): if one side is f64. Else it is the result's own."""
    return F64 in (to, of)


def _carry_nan(a: Array, to: Float, of: Float) -> Array:
    """NaN of one format as a quiet NaN of another: sign and fraction moved, what does not fit cut off."""
    word = UNSIGNED[max(to.bits, of.bits)]
    a = a.astype(word)
    fraction = a & word((1 << of.mantissa) - 1)
    up = to.mantissa - of.mantissa
    moved = fraction << up if up > 0 else fraction >> -up
    sign = (a >> (of.bits - 1)) << (to.bits - 1)
    return (sign | moved | word(to.infinity | to.quiet)).astype(to.word)


def _float_to_float(to: Float, of: Float, rounding: str) -> Function:
    if rounding in _TO_INTEGRAL:
        integral = _TO_INTEGRAL[rounding]
        convert: Function = lambda a: encode(integral(decode(a, of)), to)  # noqa: E731
    elif to is of:
        # A move in f32 and f64, in SASS as well; the halves give their own NaN (H200).
        return (lambda a: a) if to in (F32, F64) else lambda a: canonical(a, of)
    elif to is BF16 and of is F32 and rounding == "rn":
        return _float_to_bf16
    elif to is F32 and of is BF16:
        return lambda a: a.astype(np.uint32) << 16  # a shift in SASS as well: NaN, signalling or not, keeps its bits
    else:
        convert = lambda a: encode(decode(a, of), to, rounding or "rn")  # noqa: E731
    if not _keeps_nan(to, of):
        return convert

    def function(a: Array) -> Array:
        result, nan = convert(a), is_nan(a, of)
        return np.where(nan, _carry_nan(a, to, of), result) if nan.any() else result

    return function


def _satfinite(format: Float) -> Function:
    """Infinities become the largest number of their sign: what overflowed, and what was infinite."""
    magnitude, sign = format.word(format.sign - 1), format.word(format.sign)
    infinity, largest = format.word(format.infinity), format.word(format.infinity - 1)

    def function(x: Array) -> Array:
        return np.where((x & magnitude) == infinity, (x & sign) | largest, x)

    return function


def _to_half(spelling: Spelling, rounding: str) -> Operation | None:
    """cvt.{rn,rz}{.relu}{.satfinite}.{f16,bf16,f16x2,bf16x2}.f32; None if it is another kind of cvt."""
    if rounding not in ("rn", "rz"):
        return None
    relu = spelling.flag("relu")
    satfinite = spelling.flag("satfinite")
    relu = relu or spelling.flag("relu")
    to_name = spelling.take("f16x2", "bf16x2") or (spelling.need("f16", "bf16") if relu or satfinite else "")
    if not to_name:
        return None
    spelling.type("f32")
    to = FLOATS[to_name.removesuffix("x2")]
    convert = _float_to_float(to, F32, rounding)
    finite = _satfinite(to)

    def function(a: Array) -> Array:
        result = convert(a)
        if satfinite:
            result = finite(result)
        return rectify(result, to) if relu else result

    if to_name == to.name:
        return Operation(spelling.opcode, function, ("b32",), ("b16",))

    def pair(a: Array, b: Array) -> Array:
        return (function(a).astype(np.uint32) << 16) | function(b)

    return Operation(spelling.opcode, pair, ("b32", "b32"), ("b32",))


def _by_random_bits(spelling: Spelling) -> Operation:
    """cvt.rs{.relu}{.satfinite}.{f16x2,bf16x2}.f32 d, a, b, bits: away from zero where a sum carries.

    The sum is that of what is cut off and of bits: a takes the upper 16 of them and b the lower, f16 13 (PTX ISA, cvt,
    ".rs"). Not said is how they are added where more than 13 are cut off, at subnormal f16, and what overflows gives.
    """
    relu = spelling.flag("relu")
    satfinite = spelling.flag("satfinite")
    relu = relu or spelling.flag("relu")
    to = FLOATS[spelling.need("f16x2", "bf16x2").removesuffix("x2")]
    spelling.type("f32")
    cut = F32.mantissa - to.mantissa
    low = np.uint32((1 << cut) - 1)
    clamp = _satfinite(to)

    def one(a: Array, bits: Array) -> Array:
        magnitude = (a & np.uint32(F32.sign - 1)) + (bits & low) & ~low
        carried = np.where(is_nan(a, F32), a, (a & np.uint32(F32.sign)) | magnitude)
        result = _float_to_float(to, F32, "rz")(carried)
        if satfinite:
            result = clamp(result)
        return rectify(result, to) if relu else result

    def function(a: Array, b: Array, bits: Array) -> Array:
        return (one(a, bits >> 16).astype(np.uint32) << 16) | one(b, bits & 0xFFFF)

    def said(a: Array) -> Array:
        magnitude = a & np.uint32(F32.sign - 1)
        largest = np.uint32(0x477FE000 if to is F16 else 0x7F7F0000)
        least = np.uint32(0x38800000 if to is F16 else 0)
        return is_nan(a, F32) | (magnitude == 0) | ((magnitude >= least) & (magnitude <= largest))

    return Operation(spelling.opcode, function, ("b32",) * 3, ("b32",), exact_when=lambda a, b, bits: said(a) & said(b))


def _to_tf32(spelling: Spelling, rounding: str) -> Operation:
    """cvt.{rna,rn,rz}{.satfinite}{.relu}.tf32.f32: 10 fraction bits in a b32, the low 13 bits zero.

    NaN gives 0x7FFFE000 with rn and rz (H200). With rna, which ptxas makes of integer instructions, its fraction is cut
    like any other, so a small one leaves an infinity, and .satfinite takes one more unit off (H200 and SASS).
    """
    relu = rounding != "rna" and spelling.flag("relu")
    satfinite = spelling.flag("satfinite")
    relu = relu or (rounding != "rna" and spelling.flag("relu"))
    spelling.need("tf32")
    spelling.type("f32")
    low = np.uint32(0x1FFF)

    def function(a: Array) -> Array:
        nan = is_nan(a, F32)
        if rounding == "rn":
            result = (a + (0xFFF + ((a >> 13) & 1))) & ~low
        elif rounding == "rna":
            result = np.where(nan, a, a + 0x1000) & ~low
        else:
            result = a & ~low
        if satfinite:
            result = np.where((result & 0x7FFFFFFF) >= 0x7F800000, result - 0x2000, result)
        if rounding != "rna":
            result = np.where(nan, np.uint32(0x7FFFE000), result)
        return np.where(signed(result) < 0, np.uint32(0), result) if relu else result

    # No GPU at hand has .satfinite with these roundings.
    unknown = satfinite and rounding != "rna"
    return Operation(
        spelling.opcode, function, ("b32",), ("b32",), exact_when=(lambda a: ~is_nan(a, F32)) if unknown else None
    )


# --- cvt ------------------------------------------------------------------------------------------------------------


def _cvt(spelling: Spelling) -> Operation:
    if spelling.last in convert_narrow.TYPES or spelling.has(*convert_narrow.TYPES):
        return convert_narrow.cvt(spelling)
    if spelling.flag("pack"):
        return _pack(spelling)
    if spelling.flag("rs"):
        return _by_random_bits(spelling)
    rounding = spelling.take(*_TO_INTEGRAL, *ROUNDINGS, "rna")
    if spelling.has("tf32") and rounding in ("rna", "rn", "rz"):
        return _to_tf32(spelling, rounding)
    half = _to_half(spelling, rounding)
    if half:
        return half
    ftz = spelling.flag("ftz")
    sat = spelling.flag("sat")
    to = spelling.need(*_INTEGERS, *FLOATS)
    of = spelling.type(*_INTEGERS, *FLOATS)
    function = _scalar(to, of, rounding, sat)
    if function is None or (ftz and "f32" not in (to, of)):
        raise spelling.unknown()
    if ftz:
        function = _flushed(function, to, of, rounding)
    return Operation(spelling.opcode, function, (kind_of(of),), (kind_of(to),), sign_extend=to[0] == "s")


def _can_saturate(to: str, of: str) -> bool:
    """.sat is allowed where the source's range exceeds the destination's, and never with bf16."""
    if to in _INTEGERS and of in _INTEGERS:
        return _bounds(of)[0] < _bounds(to)[0] or _bounds(of)[1] > _bounds(to)[1]
    return "bf16" not in (to, of)


def _scalar(to: str, of: str, rounding: str, sat: bool) -> Function | None:
    """The conversion, or None where the modifiers are not ones that the pair of types takes."""
    if sat and not _can_saturate(to, of):
        return None
    if to in _INTEGERS and of in _INTEGERS:
        return None if rounding else _integer_to_integer(to, of, sat)
    if to in _INTEGERS:
        return _float_to_integer(to, FLOATS[of], rounding) if rounding in _TO_INTEGRAL else None
    target = FLOATS[to]
    if of in _INTEGERS:
        function = _integer_to_float(target, of, rounding) if rounding in ROUNDINGS else None
    else:
        source = FLOATS[of]
        narrowing = target.mantissa < source.mantissa or (target is not source and target.bits == source.bits)
        if rounding in _TO_INTEGRAL:
            needed = target is source
        elif narrowing:
            needed = rounding in ROUNDINGS
        else:
            # From bf16 a rounding may be written although nothing is rounded.
            needed = rounding == "" or (of == "bf16" and target is not source)
        function = _float_to_float(target, source, rounding) if needed else None
    if function is None or not sat:
        return function
    return lambda a: saturate(function(a), target)


def _flushed(function: Function, to: str, of: str, rounding: str) -> Function:
    """.ftz: subnormal f32 inputs and results become zeros of their sign, NaN the canonical one."""
    if to == "f16":
        # SASS drops this .ftz: a subnormal still rounds away from zero with .rm and .rp (H200).
        return function
    if (to, of) == ("f32", "f64"):
        return lambda a: function(np.where(_tiny_double(a, rounding), a & np.uint64(F64.sign), a))

    def flushed(a: Array) -> Array:
        result = function(canonical(flush(a, F32), F32) if of == "f32" else a)
        return canonical(flush(result, F32), F32) if to == "f32" else result

    return flushed


def _tiny_double(a: Array, rounding: str) -> Array:
    """Lanes of doubles that .ftz turns to zero on the way to f32: those tiny after rounding.

    Rounding to nearest reaches the least normal number from half a unit of 24 bits below it; rounding away from zero
    from just above the last number of 24 bits below it (H200: 0x380FFFFFE0000000 with .rp gives 0).
    """
    x = a.view(np.float64)
    away = np.signbit(x) if rounding == "rm" else ~np.signbit(x) if rounding == "rp" else np.False_
    least = 2.0**-126
    reached = least * (1 - 2.0**-25) if rounding == "rn" else least
    return np.where(away, np.abs(x) <= least * (1 - 2.0**-24), np.abs(x) < reached)


# --- cvt.pack -------------------------------------------------------------------------------------------------------


def _pack(spelling: Spelling) -> Operation:
    """cvt.pack.sat.type.s32{.b32}: c moved up (if there is one), then a, then b, both clamped to the type."""
    spelling.need("sat")
    to = spelling.need("u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2")
    spelling.need("s32")
    size = int(to[1:])
    if size < 16:
        spelling.need("b32")
    spelling.end()
    low, high = _bounds(to)
    mask = np.uint32((1 << size) - 1)

    def clamp(x: Array) -> Array:
        return np.clip(signed(x), np.int32(low), np.int32(high)).view(np.uint32) & mask

    def function(a: Array, b: Array, *c: Array) -> Array:
        pair = (clamp(a) << size) | clamp(b)
        return pair | (c[0] << (2 * size)) if c else pair

    return Operation(spelling.opcode, function, ("b32",) * (2 if size == 16 else 3), ("b32",))


BUILDERS: Mapping[str, Callable[[Spelling], Operation]] = {"cvt": _cvt}
