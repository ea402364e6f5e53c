"""Floating-point arithmetic: add, sub, mul, fma, div, rcp, sqrt, abs, neg, copysign, min, max.

Every function here is built from four parts: what the exact result is (`_FAITHFUL`), how it is rounded (`rounding`),
what happens to subnormals (.ftz), and where the result is clamped (.sat, .relu).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from refmoe.ptx.isa import exact64
from refmoe.ptx.isa.floats import BF16, F32, F64, FLOATS, Float, canonical, decode, flush, is_nan, quieted
from refmoe.ptx.isa.lanes import packed, signed
from refmoe.ptx.isa.operation import Array, Function, Operation, kind
from refmoe.ptx.isa.rounding import ROUNDINGS, add_to_odd, encode
from refmoe.ptx.isa.spelling import Spelling


def _sum(a: Array, b: Array, rounding: str) -> Array:
    total = add_to_odd(a, b)
    if rounding != "rm":
        return total
    # An exact zero is -0 toward -Inf, unless both terms are +0.
    return np.where((total == 0) & (np.signbit(a) | np.signbit(b)), -0.0, total)


# Faithful results in float64 of operands with at most 24 significant bits: products are exact, and quotients and roots
# to nearest can be rounded again (see `rounding`).
_FAITHFUL: dict[str, Callable[..., Array]] = {
    "add": _sum,
    "sub": lambda a, b, rounding: _sum(a, -b, rounding),
    "mul": lambda a, b, rounding: a * b,
    "fma": lambda a, b, c, rounding: _sum(a * b, c, rounding),
    "div": lambda a, b, rounding: a / b,
    "sqrt": lambda a, rounding: np.sqrt(a),
}


#: The NaN of 16 bits that tensor copies load outside a tensor (seen on an H200).
OUT_OF_BOUNDS = 0x7FF7


def _fma_nearest(a: Array, b: Array, c: Array) -> Array:
    """fma.rn.f32: the float64 sum of the exact product is right unless it looks like a tie of float32."""
    x, y, z = (decode(v, F32) for v in (a, b, c))
    product = x * y
    total = product + z
    # A sum next to a tie may have been rounded onto it; where float32 is subnormal, ties lie at other bits.
    tie = (total.view(np.uint64) & 0x1FFFFFFF) == 0x10000000
    tiny = (np.abs(total) < 2.0**-126) & (total != 0)
    if tie.any() or tiny.any():
        total = add_to_odd(product, z)
    return encode(total, F32)


def rounded(name: str, format: Float, rounding: str) -> Function:
    """The correctly rounded operation `name` on bit patterns of `format`."""
    real = format.real
    if format in (F32, F64) and rounding == "rn" and name in exact64.NATIVE:
        native = exact64.NATIVE[name]
        return lambda *x: canonical(native(*(v.view(real) for v in x)).view(format.word), format)
    if format is F64:
        return exact64.function(name, rounding)
    if name == "fma" and format is F32 and rounding == "rn":
        return _fma_nearest
    faithful = _FAITHFUL[name]
    return lambda *x: encode(faithful(*(decode(v, format) for v in x), rounding), format, rounding)


def saturate(bits: Array, format: Float) -> Array:
    """Clamp to [+0, 1]; NaN becomes +0, and so does -0 (.sat)."""
    clamped = np.clip(signed(bits), 0, format.one).view(format.word)
    nan = is_nan(bits, format)
    return np.where(nan, format.word(0), clamped) if nan.any() else clamped


def rectify(bits: Array, format: Float) -> Array:
    """Negative numbers and -0 become +0; NaN is the format's own (.relu)."""
    return canonical(np.where((signed(bits) < 0) & ~is_nan(bits, format), format.word(0), bits), format)


def _compose(
    function: Function, format: Float, ftz: bool, clamp: Function | None, tiny: Function | None = None
) -> Function:
    """Flush the inputs, compute, flush the output, clamp."""
    if not ftz and clamp is None:
        return function

    def composed(*x: Array) -> Array:
        if ftz:
            x = tuple(flush(v, format) for v in x)
        result = function(*x)
        if ftz:
            result = flush(result, format)
            if tiny is not None:
                result = np.where(tiny(result, *x), result & format.word(format.sign), result)
        return clamp(result, format) if clamp else result

    return composed


def _tiny(name: str, format: Float, rounding: str, result: Array, *x: Array) -> Array:
    """Lanes whose result reaches the least normal number only because precision is lost below it: .ftz flushes them.

    They are tiny after rounding: rounded to the format's precision with an exponent that may go lower, they stay below
    the least normal number (H200, mul.ftz.f16: 0x0400 * 0xBBFF, 2^-25 below it, gives 0x8000, but 0xBBFE * 0x8401,
    2^-34 below it, gives 0x0400; no difference in f16, f16x2 and f32, every rounding, over thousands of such results;
    f32x2, which it lacks, is taken for two f32). Sums and square roots of normal numbers are never such results.

    Args:
        name: "mul", "div" or "fma".
        format: F16 or F32.
        rounding: one of `ROUNDINGS`.
        result: of the operation on `x`, rounded to the format.
        x: the operands, flushed.
    """
    least = format.word(1 << format.mantissa)
    magnitude = format.word(format.sign - 1)
    reached = (result & magnitude) == least
    if not reached.any():
        return reached
    # The least normal number moved up to 1: rounding no longer meets the format's end.
    exact = _FAITHFUL[name](*(decode(v, format) for v in x), rounding) / decode(least, format)
    return reached & ((encode(exact, format, rounding) & magnitude) < format.one)


def lift(function: Function, type_name: str) -> tuple[Function, int]:
    """The function on registers of a type, packed or not, and their width."""
    bits = FLOATS[type_name.removesuffix("x2")].bits
    return (packed(function, bits), 2 * bits) if type_name.endswith("x2") else (function, bits)


def _finish(spelling: Spelling, type_name: str, function: Function, sources: int, contractible: bool) -> Operation:
    """An operation whose operands all have one type."""
    function, bits = lift(function, type_name)
    operation = Operation(spelling.opcode, function, (kind(bits),) * sources, (kind(bits),), contractible=contractible)
    if type_name != "f64":
        return operation
    # The manual does not say which NaN a double-precision instruction makes.
    return replace(operation, exact_when=lambda *x: ~np.isnan(function(*x).view(np.float64)))


def _add_sub_mul(spelling: Spelling) -> Operation:
    """{add,sub,mul}{.rnd}{.ftz}{.sat}: f32 and f64 in every rounding; f32x2 without .sat; halves to nearest only."""
    rounding = spelling.take(*ROUNDINGS)
    ftz = spelling.flag("ftz")
    sat = spelling.flag("sat")
    type_name = spelling.need("f32", "f64", "f16", "f16x2", "bf16", "bf16x2", "f32x2")
    wide_sum = type_name == "f32" and spelling.mnemonic != "mul" and not ftz
    narrow_type = spelling.take("f16", "bf16") if wide_sum else ""
    spelling.end()
    format = FLOATS[type_name.removesuffix("x2")]
    narrow = format.bits == 16
    if (narrow and rounding not in ("", "rn")) or (ftz and type_name not in ("f32", "f32x2", "f16", "f16x2")):
        raise spelling.unknown()
    if sat and type_name not in ("f32", "f16", "f16x2"):
        raise spelling.unknown()
    tiny = partial(_tiny, "mul", format, rounding or "rn") if ftz and spelling.mnemonic == "mul" else None
    compute = rounded(spelling.mnemonic, format, rounding or "rn")
    function = _compose(compute, format, ftz, saturate if sat else None, tiny)
    operation = _finish(spelling, type_name, function, 2, contractible=not rounding)
    return _widening(operation, narrow_type, 1) if narrow_type else operation


def _widening(operation: Operation, narrow_type: str, count: int) -> Operation:
    """The FP32 operation whose first `count` sources are of a type of 16 bits: every value of it is one of FP32."""
    narrow = FLOATS[narrow_type]

    def widen(bits: Array) -> Array:
        return (
            bits.astype(np.uint32) << 16 if narrow is BF16 else bits.view(np.float16).astype(np.float32).view(np.uint32)
        )

    def function(*x: Array) -> Array:
        return operation.function(*(widen(v) for v in x[:count]), *x[count:])

    return replace(operation, function=function, sources=("b16",) * count + operation.sources[count:])


def _fma(spelling: Spelling) -> Operation:
    """fma.rnd{.ftz}{.sat|.relu}; `mad` in floating point is the same instruction."""
    if spelling.mnemonic == "fma" and spelling.has("oob"):
        return _fma_out_of_bounds(spelling)
    rounding = spelling.need(*ROUNDINGS)
    ftz = spelling.flag("ftz")
    clamp = spelling.take("sat", "relu")
    fused_only = ("f16", "f16x2", "bf16", "bf16x2", "f32x2") if spelling.mnemonic == "fma" else ()
    type_name = spelling.need("f32", "f64", *fused_only)
    wide = type_name == "f32" and spelling.mnemonic == "fma" and not ftz and clamp != "relu"
    narrow_type = spelling.take("f16", "bf16") if wide else ""
    spelling.end()
    format = FLOATS[type_name.removesuffix("x2")]
    if format.bits == 16:
        allowed = rounding == "rn" and not (type_name[0] == "b" and (ftz or clamp == "sat"))
    else:
        allowed = clamp != "relu" and not (clamp and type_name != "f32") and not (ftz and format is F64)
    if not allowed:
        raise spelling.unknown()
    clamps: dict[str, Function | None] = {"sat": saturate, "relu": rectify, "": None}
    tiny = partial(_tiny, "fma", format, rounding) if ftz else None
    function = _compose(rounded("fma", format, rounding), format, ftz, clamps[clamp], tiny)
    operation = _finish(spelling, type_name, function, 3, contractible=False)
    return _widening(operation, narrow_type, 2) if narrow_type else operation


def _fma_out_of_bounds(spelling: Spelling) -> Operation:
    """fma.rn.oob{.relu|.sat}: +0 where a factor is what a tensor copy loads outside its tensor, each half for itself.

    That is one NaN. The manual says "either of the operands"; whether an addend of that kind counts is open.
    """
    spelling.need("rn")
    spelling.need("oob")
    clamp = spelling.take("sat", "relu")
    type_name = spelling.type("f16", "f16x2", *(() if clamp == "sat" else ("bf16", "bf16x2")))
    format = FLOATS[type_name.removesuffix("x2")]
    clamps: dict[str, Function | None] = {"sat": saturate, "relu": rectify, "": None}
    plain = _compose(rounded("fma", format, "rn"), format, False, clamps[clamp])
    outside = format.word(OUT_OF_BOUNDS)

    def function(a: Array, b: Array, c: Array) -> Array:
        return np.where((a == outside) | (b == outside), format.word(0), plain(a, b, c))

    def exact(a: Array, b: Array, c: Array) -> Array:
        halves = (c & 0xFFFF, c >> 16) if type_name.endswith("x2") else (c,)
        open_ = np.zeros_like(c, dtype=np.bool_)
        for half in halves:
            open_ = open_ | (half == OUT_OF_BOUNDS)
        return ~open_

    return replace(_finish(spelling, type_name, function, 3, contractible=False), exact_when=exact)


def exact_quotient(spelling: Spelling) -> Operation:
    """{div,rcp,sqrt}.rnd{.ftz}.{f32,f64}."""
    rounding = spelling.need(*ROUNDINGS)
    ftz = spelling.flag("ftz")
    type_name = spelling.type(*(("f32",) if ftz else ("f32", "f64")))
    format = FLOATS[type_name]
    if spelling.mnemonic == "sqrt":
        root = _compose(rounded("sqrt", format, rounding), format, ftz, None)
        return _finish(spelling, type_name, root, 1, contractible=False)
    tiny = partial(_tiny, "div", format, rounding) if ftz else None
    divide = _compose(rounded("div", format, rounding), format, ftz, None, tiny)
    if spelling.mnemonic == "div":
        return _finish(spelling, type_name, divide, 2, contractible=False)
    one = format.word(format.one)
    return _finish(spelling, type_name, partial(divide, one), 1, contractible=False)


def _sign_operation(change: Callable[[Array, Array], Array]) -> Callable[[Spelling], Operation]:
    """abs and neg: the sign bit of numbers changes.

    NaN gives the format's own; f64 keeps its sign and payload and makes it quiet (H200; the manual leaves all but f64
    open, and lets f64 pass through unchanged).
    """

    def build(spelling: Spelling) -> Operation:
        ftz = spelling.flag("ftz")
        type_name = spelling.type("f32", "f16", "f16x2", *(() if ftz else ("f64", "bf16", "bf16x2")))
        format = FLOATS[type_name.removesuffix("x2")]
        sign = format.word(format.sign)

        def function(x: Array) -> Array:
            result = change(x, sign)
            if format is F64:
                return np.where(is_nan(x, F64), quieted(x, F64), result)
            return canonical(result, format)

        function, bits = lift(_compose(function, format, ftz, None), type_name)
        return Operation(spelling.opcode, function, (kind(bits),), (kind(bits),))

    return build


def _copysign(spelling: Spelling) -> Operation:
    """copysign d, a, b: b with the sign of a."""
    format = FLOATS[spelling.type("f32", "f64")]
    sign, rest = format.word(format.sign), format.word(format.sign - 1)
    return Operation(
        spelling.opcode, lambda a, b: (a & sign) | (b & rest), (kind(format.bits),) * 2, (kind(format.bits),)
    )


def _ordered(x: Array, format: Float) -> Array:
    """Bit patterns as integers in numeric order, -0 below +0. Its own inverse on signed integers."""
    s = signed(x)
    return s ^ ((s >> (format.bits - 1)) & s.dtype.type(format.sign - 1))


def _extremum(pick: np.ufunc) -> Callable[[Spelling], Operation]:
    def build(spelling: Spelling) -> Operation:
        ftz = spelling.flag("ftz")
        nan_wins = spelling.flag("NaN")
        xor_sign = spelling.flag("xorsign")
        if xor_sign:
            spelling.need("abs")
        type_name = spelling.type("f32", "f64", "f16", "f16x2", "bf16", "bf16x2")
        if (type_name == "f64" and (ftz or nan_wins or xor_sign)) or (type_name[0] == "b" and ftz):
            raise spelling.unknown()
        format = FLOATS[type_name.removesuffix("x2")]
        own_nan, infinity = format.word(format.nan), format.word(format.infinity)
        magnitude, sign = format.word(format.sign - 1), format.word(format.sign)

        def function(a: Array, b: Array) -> Array:
            largest = np.maximum(a, b)
            if largest.max(initial=0) <= infinity:
                # No sign and no NaN anywhere, as after abs: bit patterns are in numeric order.
                return largest if pick is np.maximum else np.minimum(a, b)
            signs = (a ^ b) & sign
            if xor_sign:
                a, b = a & magnitude, b & magnitude
            picked = pick(_ordered(a, format), _ordered(b, format))
            result = _ordered(picked.view(format.word), format).view(format.word)
            if xor_sign:
                result = result | signs
            a_nan, b_nan = is_nan(a, format), is_nan(b, format)
            either = a_nan | b_nan
            if not either.any():
                return result
            if nan_wins:
                return np.where(either, own_nan, result)
            other = np.where(a_nan, b, a) | (signs if xor_sign else format.word(0))
            return np.where(a_nan & b_nan, own_nan, np.where(either, other, result))

        return _finish(spelling, type_name, _compose(function, format, ftz, None), 2, contractible=False)

    return build


def extremum_of_three(spelling: Spelling) -> Operation:
    """{min,max}{.ftz}{.NaN}{.abs}.f32 d, a, b, c (PTX ISA 8.8): of two, and of that and the third.

    With .abs the magnitudes of all three are compared, so that the result has no sign.
    """
    name = spelling.mnemonic
    ftz = spelling.flag("ftz")
    nan_wins = spelling.flag("NaN")
    magnitudes = spelling.flag("abs")
    spelling.type("f32")
    two = BUILDERS[name](Spelling(f"{name}{'.ftz' * ftz}{'.NaN' * nan_wins}.f32")).function
    magnitude = F32.word(F32.sign - 1)

    def function(a: Array, b: Array, c: Array) -> Array:
        if magnitudes:
            a, b, c = a & magnitude, b & magnitude, c & magnitude
        return two(two(a, b), c)

    return Operation(spelling.opcode, function, ("b32",) * 3, ("b32",))


BUILDERS: Mapping[str, Callable[[Spelling], Operation]] = {
    "abs": _sign_operation(lambda x, sign: x & ~sign),
    "add": _add_sub_mul,
    "copysign": _copysign,
    "fma": _fma,
    "mad": _fma,
    "max": _extremum(np.maximum),
    "min": _extremum(np.minimum),
    "mul": _add_sub_mul,
    "neg": _sign_operation(lambda x, sign: x ^ sign),
    "sub": _add_sub_mul,
}
