"""cvt between integers and floating-point numbers. The specification is `refmoe.ptx.isa.convert`.

LLVM's conversions between integers and FP32 or FP64 round to nearest, once, on every processor, and so do its roundings
to an integral number (calls of libm on an x86 without SSE4.1). All else is integer arithmetic: see `formats`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from llvmlite import ir

from refmoe.ptx.isa import convert as specification
from refmoe.ptx.isa.spelling import Spelling
from refmoe.ptx.ops import convert_narrow
from refmoe.ptx.ops.formats import (
    BF16,
    F16,
    F32,
    F64,
    TF32,
    BitFormat,
    away,
    canonical,
    flushed,
    is_nan,
    rounded,
    widened,
)
from refmoe.ptx.ops.lanes import LANES, LaneBuilder, Lowering, Value, vector
from refmoe.ptx.ops.words import Word, every

_FLOATS = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64}
_BITS = {F16: 16, BF16: 16, F32: 32, F64: 64}
_TYPES = {F32: ir.VectorType(ir.FloatType(), LANES), F64: ir.VectorType(ir.DoubleType(), LANES)}
# To an integral number: to nearest even, toward zero, toward -Inf, toward +Inf.
_INTEGRAL = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
_ROUNDINGS = ("rn", "rz", "rm", "rp", "rna")

# From the word of one source to that of the result.
_Step = Callable[[Word], Word]


def _bounds(type_name: str) -> tuple[int, int]:
    """Smallest and largest value of an integer type."""
    bits = int(type_name[1:])
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if type_name[0] == "s" else (0, (1 << bits) - 1)


def _integer_to_integer(x: Word, to: str, of: str, sat: bool) -> Word:
    """Extended by the source's sign, or cut off; .sat clamps first, to bounds that the source's type can hold."""
    if sat:
        low, high = max(_bounds(to)[0], _bounds(of)[0]), min(_bounds(to)[1], _bounds(of)[1])
        x = x.signed_at_least(low).signed_at_most(high) if of[0] == "s" else x.at_most(high)
    return x.resized(int(to[1:]), signed=of[0] == "s")


def _integer_to_float(x: Word, to: BitFormat, of: str, rounding: str) -> Word:
    bits = int(of[1:])
    direct = to if to in _TYPES else F32 if bits <= 16 else F64
    exact = bits <= direct.mantissa
    build = x.lanes.build
    convert = build.sitofp if of[0] == "s" else build.uitofp
    if exact or (to is direct and rounding == "rn"):
        number = x.from_float(convert(x.value, _TYPES[direct]))
        return number if to is direct else rounded(number, direct, to, rounding).resized(_BITS[to])
    if to is F64:
        return _long_to_double(x, of[0] == "s", rounding)
    if bits == 64:
        x = _to_odd(x, of[0] == "s")
    number = x.from_float(convert(x.resized(64, of[0] == "s").value, _TYPES[F64]))
    return rounded(number, F64, to, rounding).resized(_BITS[to])


def _to_odd(x: Word, signed: bool) -> Word:
    """Integers of 64 bits as ones that FP64 holds, to be rounded to at most 24 places.

    From 2^53 on, either way from zero, bit 11 stands for all bits below it too. Results and the midpoints between them
    are multiples of 2^29 there, so that the number stays on its side of each.
    """
    low = 0x7FF
    marked = (x | ((x & low) + low)) & ~low
    outside = (x + (1 << 53)) >> 54 if signed else x >> 53
    return outside.equals(0).choose(x, marked)


def _long_to_double(x: Word, signed: bool, rounding: str) -> Word:
    """64 bits to double precision by a directed rounding: the sum of two halves, each exact, and its error."""
    build = x.lanes.build
    convert = build.sitofp if signed else build.uitofp
    upper = convert((x & ~0xFFFFFFFF).value, _TYPES[F64])
    lower = build.uitofp((x & 0xFFFFFFFF).value, _TYPES[F64])
    total = build.fadd(upper, lower)
    # Exact (Dekker): the upper half is 0 or no smaller than the lower.
    error = x.from_float(build.fsub(lower, build.fsub(total, upper)))
    bits = x.from_float(total)
    inexact = (error << 1 > 0).resized(64)
    negative = bits >> 63
    short = negative ^ (error >> 63)
    # A step on the bits leads away from zero: up to one for the direction, less one where the sum already is too large.
    return bits + (inexact & away(rounding, negative)) - (inexact & short)


def _float_to_integer(x: Word, to: str, of: BitFormat, rounding: str) -> Word:
    """Clamped to the range, with or without .sat; NaN gives 0, or the top bit if one side has 64 bits.

    The conversion is undefined outside the range, and `llvm.fptosi.sat` becomes one lane after another on x86.
    """
    bits, signed = int(to[1:]), to[0] == "s"
    source = F64 if of is F64 else F32
    x = x if of is source else widened(x.resized(32), of, F32)
    build, number = x.lanes.build, x.as_float()
    if rounding != "rzi":  # the conversion itself cuts off
        number = x.lanes.intrinsic(_INTEGRAL[rounding], number)
    past = (source.bias + bits - signed) << source.mantissa
    above, least = (every(x.lanes, each, x.bits).as_float() for each in (past, (source.sign | past) if signed else 0))
    fits = build.and_(build.fcmp_ordered(">=", number, least), build.fcmp_ordered("<", number, above))
    inside = build.select(fits, number, every(x.lanes, 0, x.bits).as_float())
    result = x.of((build.fptosi if signed else build.fptoui)(inside, vector(bits)))
    low, high = (every(x.lanes, each, bits) for each in _bounds(to))
    limit = x.of(build.fcmp_ordered("<", number, least)).choose(low, high)
    limit = is_nan(x, source).choose(1 << (bits - 1) if of is F64 or bits == 64 else 0, limit)
    return x.of(fits).choose(result, limit)


def _integral(x: Word, format: BitFormat, rounding: str) -> Word:
    """To an integral number of the same format; in F32 for the halves, which hold what becomes of their numbers."""
    wide = x if format in _TYPES else widened(x.resized(32), format, F32)
    found = x.from_float(x.lanes.intrinsic(_INTEGRAL[rounding], wide.as_float()))
    if format is F64:
        return is_nan(x, F64).choose(x | F64.quiet, found)
    found = is_nan(wide, F32).choose(F32.nan, found)
    return found if format is F32 else rounded(found, F32, format, "rz").resized(16)


def _float_to_float(x: Word, to: BitFormat, of: BitFormat, rounding: str, flush: bool = False) -> Word:
    if rounding in _INTEGRAL:
        return _integral(x, to, rounding)
    if to is of:
        # A move of F32 and F64 leaves NaN alone.
        return x if to in _TYPES else canonical(x, to)
    if to in _TYPES and to.mantissa > of.mantissa:
        return widened(x.resized(_BITS[to]), of, to)
    if of not in _TYPES:  # the halves are numbers of F32
        x, of = widened(x.resized(32), of, F32), F32
    return rounded(x, of, to, rounding, flush=flush).resized(_BITS[to])


def _saturated(x: Word, format: BitFormat) -> Word:
    """Clamped to [+0, 1]; NaN and -0 become +0. The bits of what is not negative are in numeric order."""
    one = format.bias << format.mantissa
    return x.signed_above(format.infinity).choose(0, x.signed_at_least(0).signed_at_most(one))


def _scalar(to: str, of: str, modifiers: set[str]) -> _Step:
    """cvt{.rounding}{.ftz}{.sat}.to.of"""
    rounding = next((each for each in (*_INTEGRAL, *_ROUNDINGS) if each in modifiers), "")
    source, target = _FLOATS.get(of), _FLOATS.get(to)
    sat = "sat" in modifiers
    # Hardware drops .ftz on the way to f16. Between f32 and f64 it asks what is tiny after rounding.
    flush = "ftz" in modifiers and to != "f16"

    def convert(x: Word) -> Word:
        if flush and of == "f32":
            x = canonical(flushed(x, F32), F32)
        if target is None:
            return _float_to_integer(x, to, source, rounding) if source else _integer_to_integer(x, to, of, sat)
        if source is None:
            x = _integer_to_float(x, target, of, rounding)
        else:
            x = _float_to_float(x, target, source, rounding, flush)
            if flush and to == "f32" and of != "f64":
                x = canonical(flushed(x, F32), F32)
        return _saturated(x, target) if sat else x

    return convert


def _to_half(to: str, modifiers: set[str]) -> _Step:
    """cvt.{rn,rz}{.relu}{.satfinite}.{f16,bf16}.f32"""
    rounding = "rn" if "rn" in modifiers else "rz"

    def convert(x: Word) -> Word:
        result = rounded(x, F32, _FLOATS[to], rounding, satfinite="satfinite" in modifiers).resized(16)
        return result.signed_at_least(0) if "relu" in modifiers else result

    return convert


def _to_tf32(modifiers: set[str]) -> _Step:
    """cvt.{rna,rn,rz}{.satfinite}{.relu}.tf32.f32: the upper 19 bits of 32.

    With .rna the fraction of NaN is cut off like that of a number, what is left may be infinity, and .satfinite takes
    one more unit from it.
    """
    rounding = next(each for each in ("rna", "rn", "rz") if each in modifiers)
    satfinite, low = "satfinite" in modifiers, F32.mantissa - TF32.mantissa

    def convert(x: Word) -> Word:
        result = rounded(x, F32, TF32, rounding, satfinite=satfinite) << low
        if rounding == "rna":
            cut = (x & (-1 << low)) - (satfinite << low)
            result = is_nan(x, F32).choose(cut, result)
        return result.signed_at_least(0) if "relu" in modifiers else result

    return convert


def _each(step: _Step) -> Lowering:
    """The lowering of an instruction with one source."""
    return lambda lanes, sources: [step(Word(lanes, sources[0])).value]


def _pair(step: _Step) -> Lowering:
    """The lowering of an instruction that packs the results of two sources, the first one in the upper half."""

    def lower(lanes: LaneBuilder, sources: Sequence[Value]) -> Sequence[Value]:
        upper, lower = (step(Word(lanes, source)).value for source in sources)
        return [lanes.joined(lower, upper)]

    return lower


def _pack(to: str) -> Lowering:
    """cvt.pack.sat.to.s32{.b32}: the third source moved up (if there is one), the first, the second, clamped."""
    size = int(to[1:])
    low, high = _bounds(to)

    def lower(lanes: LaneBuilder, sources: Sequence[Value]) -> Sequence[Value]:
        first, second, *rest = (Word(lanes, source) for source in sources)
        upper, lower = (x.signed_at_least(low).signed_at_most(high) & ((1 << size) - 1) for x in (first, second))
        pair = (upper << size) | lower
        return [(pair | (rest[0] << (2 * size)) if rest else pair).value]

    return lower


def _cvt(spelling: Spelling) -> Lowering | None:
    specification.BUILDERS["cvt"](Spelling(spelling.opcode))  # refuses what is no spelling
    *modifiers, to, of = spelling.opcode.split(".")[1:]
    given = set(modifiers)
    if "pack" in given:
        return _pack(modifiers[-1] if of == "b32" else to)
    if to in convert_narrow.TYPES or of in convert_narrow.TYPES:
        return convert_narrow.cvt(to, of, given)
    if to == "tf32":
        return _each(_to_tf32(given))
    if to.endswith("x2"):
        return _pair(_to_half(to.removesuffix("x2"), given))
    if given & {"relu", "satfinite"}:
        return _each(_to_half(to, given))
    return _each(_scalar(to, of, given))


BUILDERS: Mapping[str, Callable[[Spelling], Lowering | None]] = {"cvt": _cvt}
