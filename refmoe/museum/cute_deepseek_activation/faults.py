"""Faults of SwiGLU with requantization in CuTe DSL."""

from __future__ import annotations

from refmoe.museum.cute_faults import CuteFault
from refmoe.museum.edits import Edit, literally

_FAMILY = "cute_deepseek_activation"
_ZEROS = f"{_FAMILY}:bf16:m5k384e6:zeros:rows=masked:scales=ue8m0:poison=0x7F:seed7@ptx"
_MASKED = f"{_FAMILY}:bf16:m5k384e6:fingerprint:rows=masked:scales=ue8m0:poison=0x7F:seed7@ptx"
_UNUSED = f"{_FAMILY}:bf16:m9k256e9:fingerprint:layout=mn_major:routing=empty-experts:poison=0x7F:seed7@ptx"
_DECODE = f"{_FAMILY}:bf16:m8k2048e256:gaussian:layout=mn_major:seed7@ptx"


_LOOPING = f"{_FAMILY}:bf16:m40k128e2:fingerprint:layout=mn_major:multiprocessors=1:seed7@ptx"
_ROUNDED_UP = f"{_FAMILY}:f32:m6k640e5:exponents:rows=masked:policy=exact:scales=ue8m0:layout=mn_major:seed7@ptx"
_EXPONENTS = f"{_FAMILY}:f32:m7k384e3:exponents:policy=exact:layout=mn_major:seed7@ptx"


def _exact(fill: str) -> str:
    return f"{_FAMILY}:f32:m7k384e3:{fill}:policy=exact:seed7@ptx"


#: Every fault, in the order in which it is shown.
FAULTS = (
    CuteFault(
        "cute-floor-dropped", "amax has no floor at 1e-4", "scale", _ZEROS, "arithmetic.py",
        literally("largest = max_u32(amax, Uint32(DEEPGEMM_FLOOR_BITS))", "largest = max_u32(amax, Uint32(0))"),
    ),
    CuteFault(
        "cute-least-scale-dropped", "scales of the policy exact may be subnormal", "scale", _exact("tiny"),
        "arithmetic.py", literally("bits = max_u32(bits, Uint32(LEAST_SCALE_BITS))", "bits = max_u32(bits, Uint32(1))"),
    ),
    CuteFault(
        "cute-sigmoid-approximate", "the reciprocal of the sigmoid is approximate", "approximation", _exact("gaussian"),
        "arithmetic.py", literally("rcp.rn.f32 {$w0}", "rcp.approx.f32 {$w0}"),
    ),
    CuteFault(
        "cute-gate-and-up-swapped", "the ups go through the sigmoid", "operand", _DECODE, "activation.py",
        literally("swiglu(gates[i], ups[i])", "swiglu(ups[i], gates[i])"),
    ),
    CuteFault(
        "cute-scale-by-reciprocal", "amax is multiplied by 1/448 instead of divided by 448", "rounding",
        _exact("gaussian"), "arithmetic.py",
        literally('binary("div.rn", from_bits(largest), Float32(E4M3_MAX))',
                  'binary("mul.rn", from_bits(largest), Float32(1 / E4M3_MAX))'),
    ),
    CuteFault(
        "cute-amax-with-sign", "a negative number counts as larger than any positive", "amax", _DECODE, "activation.py",
        literally("as_bits(values[i]) & Uint32(MAGNITUDE)", "as_bits(values[i])"),
    ),
    CuteFault(
        "cute-amax-of-half-a-tile", "the largest is that of four lanes of eight", "amax", _DECODE, "activation.py",
        literally("for step in cutlass.range_constexpr(3)", "for step in cutlass.range_constexpr(2)"),
    ),
    CuteFault(
        "cute-scale-rounded-down", "a scale in UE8M0 is rounded down to a power of two", "rounding", _MASKED,
        "arithmetic.py", literally("(bits + Uint32((1 << MANTISSA_BITS) - 1)) >>", "bits >>"),
    ),
    CuteFault(
        "cute-ln2-in-one-part", "the second part of ln 2 is left out", "constant", _exact("sigmoid-edges"),
        "arithmetic.py", literally('fromhex("-0x1.05c610p-29")', "fromhex(\"0x0p0\")"),
    ),
    CuteFault(
        "cute-exponential-clamped-early", "the exponential overflows to no infinity", "constant",
        _exact("sigmoid-edges"), "arithmetic.py", literally("NEGLIGIBLE, INFINITE = -64.0, 89.0",
                                                            "NEGLIGIBLE, INFINITE = -64.0, 88.0"),
    ),
    CuteFault(
        "cute-row-behind-the-last", "one row is computed that is not in use", "predicate", _UNUSED, "activation.py",
        literally("while row < used:", "while row <= used:"),
    ),
    CuteFault(
        "cute-rows-of-first-expert", "every batch has as many rows in use as the first", "stride off by one expert",
        _MASKED, "activation.py", literally("used = groups[batch]", "used = groups[0]"),
    ),
    CuteFault(
        "cute-sign-of-zero-lost", "a result of -0 becomes +0", "signed zero", _exact("zeros"), "activation.py",
        literally("values[i] = swiglu(gates[i], ups[i])",
                  'values[i] = binary("add.rn", swiglu(gates[i], ups[i]), Float32(0.0))'),
    ),
    CuteFault(
        "cute-product-in-another-order", "the sigmoid is multiplied by the up first", "rounding", _exact("gaussian"),
        "arithmetic.py",
        literally('binary("mul.rn", binary("mul.rn", gate, sigmoid), up)',
                  'binary("mul.rn", gate, binary("mul.rn", sigmoid, up))'),
    ),
    CuteFault(
        "cute-infinity-scaled", "an Inf does not poison its tile", "special value", _exact("specials"), "arithmetic.py",
        literally("if amax >= Uint32(INFINITY_BITS)", "if amax > Uint32(INFINITY_BITS)"),
    ),
    CuteFault(
        "cute-coefficient-an-ulp-off", "a coefficient of the exponential has another last bit", "constant",
        _EXPONENTS, "arithmetic.py", literally('"0x1.555858p-5"', '"0x1.55585ap-5"'),
    ),
    CuteFault(
        "cute-scale-rounded-up-late", "a scale in UE8M0 that is an ulp above a power of two is rounded down to it",
        "off by one", _ROUNDED_UP, "arithmetic.py",
        literally("bits + Uint32((1 << MANTISSA_BITS) - 1)", "bits + Uint32((1 << MANTISSA_BITS) - 2)"),
    ),
    CuteFault(
        "cute-code-from-product-cut", "the product that a code is made of is rounded toward zero", "rounding",
        _exact("near-ties"), "activation.py",
        literally('binary("mul.rn", values[i], inverse)', 'binary("mul.rz", values[i], inverse)'),
    ),
    CuteFault(
        "cute-one-row-of-a-cta", "a CTA takes one row, however many there are", "loop", _LOOPING, "activation.py",
        literally("            row += ctas\n", "            row = used\n"),
    ),
    CuteFault(
        "cute-rows-in-13-bits", "of the rows in use 13 bits count", "row count",
        f"{_FAMILY}:bf16:m8200k128e2:fingerprint:layout=mn_major:seed7@ptx", "activation.py",
        literally("Int32(groups[cute.size(groups) - 1])", "Int32(groups[cute.size(groups) - 1]) & 0x1FFF"),
    ),
    CuteFault(
        "cute-sixth-round-left-out", "the sixth round of a row is left out", "loop",
        f"{_FAMILY}:bf16:m2k12416e2:fingerprint:seed7@ptx", "activation.py",
        literally("lane += THREADS", "lane += THREADS if lane < 4 * THREADS else 2 * THREADS"),
    ),
    CuteFault(
        "cute-ptx-codes-swapped", "two neighbouring codes are swapped", "operand", _DECODE, "",
        Edit(r"(cvt\.rn\.satfinite\.e4m3x2\.f32\s+%rs\d+, )(%r\d+), (%r\d+);", r"\1\3, \2;", 1, 8),
    ),
)  # fmt: skip
