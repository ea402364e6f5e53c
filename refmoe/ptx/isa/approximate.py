"""The approximate instructions: ex2, lg2, rcp, rsqrt, sqrt, sin, cos, tanh, div.approx and div.full.

Those of FP64 are in `seeds64`.

The result is the double-precision estimate rounded to nearest. `exact_when` names the lanes in which hardware is known
to give just that: the corner cases of the manual's tables, and arguments measured exhaustively on an SM90 GPU (all
2^32 inputs of ex2.approx.f32 and rcp.approx.f32).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from refmoe.ptx.isa import seeds64
from refmoe.ptx.isa.floating import exact_quotient, lift
from refmoe.ptx.isa.floats import F32, FLOATS, Float, decode, flush
from refmoe.ptx.isa.operation import Array, Function, Operation, kind
from refmoe.ptx.isa.rounding import encode
from refmoe.ptx.isa.spelling import Spelling

_ESTIMATES: dict[str, Callable[[Array], Array]] = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "rcp": lambda x: 1.0 / x,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


def _special(x: Array) -> Array:
    """Zeros, infinities and NaN: every instruction's table gives their results."""
    return (x == 0) | ~np.isfinite(x)


def _exact_ex2(x: Array, ftz: bool) -> Array:
    integer = np.rint(x) == x
    exact = integer & (x >= -126) & (x <= 127)
    if ftz:
        return exact | (x <= -127)  # all flushed to zero
    # At exactly -127 hardware gives 0x3fffff, one unit too small.
    return exact | (integer & (x >= -149) & (x <= -128)) | ((np.abs(x) < 2.0**-126) & np.isfinite(x))


def _exact_rcp(x: Array, ftz: bool) -> Array:
    # 448, the largest E4M3 number, is a divisor of quantization kernels; its reciprocal was measured too.
    return (np.frexp(np.abs(x))[0] == 0.5) | (x == 448.0)


def _nowhere(*x: Array) -> Array:
    """Nothing is known of the bits of estimates of halves and of quotients."""
    return np.zeros(np.broadcast_shapes(*map(np.shape, x)), np.bool_)


def _negative(x: Array, ftz: bool) -> Array:
    return x < 0  # NaN


_EXACT: dict[str, Callable[[Array, bool], Array]] = {
    "ex2": _exact_ex2,
    "rcp": _exact_rcp,
    "lg2": _negative,
    "sqrt": _negative,
    "rsqrt": _negative,
}


def _unary(spelling: Spelling) -> Operation:
    name = spelling.mnemonic
    if not spelling.flag("approx"):
        if name in ("rcp", "sqrt"):
            return exact_quotient(spelling)
        raise spelling.unknown()
    ftz = spelling.flag("ftz")
    halves: tuple[str, ...] = ()
    if name == "ex2":
        halves = ("bf16", "bf16x2") if ftz else ("f16", "f16x2")
    elif name == "tanh" and not ftz:
        halves = ("f16", "f16x2", "bf16", "bf16x2")
    if name in ("rcp", "rsqrt") and spelling.last == "f64" and (ftz or name == "rsqrt"):
        return seeds64.estimate(spelling, name, ftz)
    type_name = spelling.type(*halves, *(() if name == "tanh" and ftz else ("f32",)))
    format = FLOATS[type_name.removesuffix("x2")]
    function = _rounded_estimate(_ESTIMATES[name], format, ftz)
    if format is not F32:
        function, bits = lift(function, type_name)
        return Operation(spelling.opcode, function, (kind(bits),), (kind(bits),), exact_when=_nowhere)
    known = _EXACT.get(name)

    def exact_when(a: Array) -> Array:
        x = decode(flush(a, F32) if ftz else a, F32)
        return _special(x) | known(x, ftz) if known else _special(x)

    return Operation(spelling.opcode, function, ("b32",), ("b32",), exact_when=exact_when)


def _rounded_estimate(estimate: Callable[..., Array], format: Float, ftz: bool) -> Function:
    def function(*x: Array) -> Array:
        if ftz:
            x = tuple(flush(v, format) for v in x)
        result = encode(estimate(*(decode(v, format) for v in x)), format)
        return flush(result, format) if ftz else result

    return function


def _div(spelling: Spelling) -> Operation:
    """div.approx (division by multiplying with the reciprocal), div.full (2 ulp in the full range), or div.rnd."""
    if not spelling.take("approx", "full"):
        return exact_quotient(spelling)
    ftz = spelling.flag("ftz")
    spelling.type("f32")
    function = _rounded_estimate(np.divide, F32, ftz)
    return Operation(spelling.opcode, function, ("b32", "b32"), ("b32",), exact_when=_nowhere)


BUILDERS: Mapping[str, Callable[[Spelling], Operation]] = {**dict.fromkeys(_ESTIMATES, _unary), "div": _div}
