"""FP32 arithmetic of SwiGLU and of block scales; every operation names its rounding, so that no compiler fuses any.

The exponential is the written sequence of operations that `refmoe.reference.exponential` defines.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Uint32

LOG2E = float.fromhex("0x1.715476p+0")
MAGIC = float.fromhex("0x1.8p+23")
LN2_HIGH, LN2_LOW = float.fromhex("0x1.62e430p-1"), float.fromhex("-0x1.05c610p-29")
#: Of exp(r), from the highest power of r down; the last two are 1.
POLYNOMIAL = tuple(
    map(float.fromhex, ("0x1.6ac74cp-10", "0x1.123de0p-7", "0x1.555858p-5", "0x1.55548cp-3", "0x1.fffffcp-2", "1", "1"))
)
#: 1 + exp(x) is 1 up to the first, and Inf from the second on.
NEGLIGIBLE, INFINITE = -64.0, 89.0
MANTISSA_BITS, BIAS = 23, 127

INFINITY_BITS, NAN_BITS, MAGNITUDE = 0x7F800000, 0x7FFFFFFF, 0x7FFFFFFF
E4M3_MAX = 448.0
#: FP32(1e-4), below which DeepGEMM holds no tile's amax, and 2^-126, the least scale of the policy exact.
DEEPGEMM_FLOOR_BITS, LEAST_SCALE_BITS = 0x38D1B717, 0x00800000
#: Exponents that scales in UE8M0 are clamped to.
LEAST_FIELD, LARGEST_FIELD = 1, 254


@cute.jit
def binary(instruction: cutlass.Constexpr, a: Float32, b: Float32) -> Float32:
    """An instruction with two operands, such as "mul.rn"."""
    text = instruction + ".f32 {$w0}, {$r0}, {$r1};"
    return cute.arch.inline_ptx(text, write_only_types=[Float32], read_only_args=[a, b])


@cute.jit
def fma_rn(a: Float32, b: Float32, c: Float32) -> Float32:
    """a * b + c rounded once."""
    text = "fma.rn.f32 {$w0}, {$r0}, {$r1}, {$r2};"
    return cute.arch.inline_ptx(text, write_only_types=[Float32], read_only_args=[a, b, c])


@cute.jit
def rcp_rn(a: Float32) -> Float32:
    """1 / a rounded to nearest."""
    return cute.arch.inline_ptx("rcp.rn.f32 {$w0}, {$r0};", write_only_types=[Float32], read_only_args=[a])


@cute.jit
def as_bits(a: Float32) -> Uint32:
    """The bits of a number."""
    return cute.arch.inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[Uint32], read_only_args=[a])


@cute.jit
def from_bits(bits: Uint32) -> Float32:
    """The number of these bits."""
    return cute.arch.inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[Float32], read_only_args=[bits])


@cute.jit
def max_u32(a: Uint32, b: Uint32) -> Uint32:
    """The larger."""
    text = "max.u32 {$w0}, {$r0}, {$r1};"
    return cute.arch.inline_ptx(text, write_only_types=[Uint32], read_only_args=[a, b])


@cute.jit
def min_u32(a: Uint32, b: Uint32) -> Uint32:
    """The smaller."""
    text = "min.u32 {$w0}, {$r0}, {$r1};"
    return cute.arch.inline_ptx(text, write_only_types=[Uint32], read_only_args=[a, b])


@cute.jit
def one_plus_exponential(x: Float32) -> Float32:
    """RN(1 + exp(x)), of which exp(x) is 2p * 2^(n - 1) exactly: one FMA rounds the sum. A NaN stays one."""
    x = binary("max.NaN", binary("min.NaN", x, Float32(INFINITE)), Float32(NEGLIGIBLE))
    shifted = fma_rn(x, Float32(LOG2E), Float32(MAGIC))  # its last bits are n
    n = binary("add.rn", shifted, Float32(-MAGIC))
    r = fma_rn(n, Float32(-LN2_LOW), fma_rn(n, Float32(-LN2_HIGH), x))
    p = Float32(2 * POLYNOMIAL[0])
    for coefficient in cutlass.range_constexpr(1, len(POLYNOMIAL)):
        p = fma_rn(p, r, Float32(2 * POLYNOMIAL[coefficient]))
    # Of n - 1 the last nine bits count, and the magic number's end in nine zeros.
    factor = from_bits(((as_bits(shifted) - Uint32(1)) << MANTISSA_BITS) + Uint32(BIAS << MANTISSA_BITS))
    return fma_rn(p, factor, Float32(1.0))


@cute.jit
def swiglu(gate: Float32, up: Float32) -> Float32:
    """(g * RN(1 / RN(1 + exp(-g)))) * u."""
    sigmoid = rcp_rn(one_plus_exponential(-gate))
    return binary("mul.rn", binary("mul.rn", gate, sigmoid), up)


@cute.jit
def tile_scale(amax: Uint32, exact: cutlass.Constexpr, power_of_two: cutlass.Constexpr) -> Float32:
    """The scale of a tile whose largest magnitude has these bits; see `refmoe.reference.block_fp8`.

    Args:
        amax: as integers, NaN ranks above Inf above every number.
        exact: of the policies, else it is DeepGEMM's.
        power_of_two: whether it is rounded up to one.
    """
    largest = amax
    if cutlass.const_expr(not exact):
        largest = max_u32(amax, Uint32(DEEPGEMM_FLOOR_BITS))
    bits = as_bits(binary("div.rn", from_bits(largest), Float32(E4M3_MAX)))
    if cutlass.const_expr(exact):
        bits = max_u32(bits, Uint32(LEAST_SCALE_BITS))
    if cutlass.const_expr(power_of_two):
        field = (bits + Uint32((1 << MANTISSA_BITS) - 1)) >> MANTISSA_BITS
        bits = min_u32(max_u32(field, Uint32(LEAST_FIELD)), Uint32(LARGEST_FIELD)) << MANTISSA_BITS
    if cutlass.const_expr(exact):
        if amax >= Uint32(INFINITY_BITS):
            bits = Uint32(NAN_BITS)
    return from_bits(bits)
