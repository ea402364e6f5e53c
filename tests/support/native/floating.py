"""Floating-point instructions as native code against their NumPy functions: operands, and the comparison."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from support.ptx_isa import FORMATS, Ieee, float_corners, float_rows, pack, power, real, unpack

from refmoe.native.compiler import Native, compiled
from refmoe.ptx import isa
from refmoe.ptx.ops.evaluate import _module, _padded
from refmoe.ptx.ops.lanes import BITS, LANES, Lowering
from refmoe.ptx.ops.table import lowering
from refmoe.silicon.opcodes import known_opcodes

FLOATS = ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2", "f32x2")


@cache
def spellings() -> dict[str, isa.Operation]:
    """The instructions of a floating-point type."""
    return {opcode: found for opcode, found in known_opcodes().items() if opcode.split(".")[-1] in FLOATS}


def formats(opcode: str, operation: isa.Operation) -> list[Ieee]:
    """The format of each source: the wide one, but for operands of 16 bits beside one of 32."""
    own = [part.removesuffix("x2") for part in opcode.split(".") if part in FLOATS]
    mixed = len(own) == 2
    return [FORMATS[own[mixed and kind == "b16"]] for kind in operation.sources]


def corners(f: Ieee) -> list[int]:
    """Those of `float_corners`, and alternating bits."""
    return [*float_corners(f), (1 << f.bits) // 3, (1 << f.bits) // 3 * 2]


@cache
def _hard_rows(f: Ieee, arity: int) -> list[tuple[int, ...]]:
    """Results next to the ends of the range, to ties and to zero."""
    rng = np.random.default_rng(arity)
    ends = [power(1 - f.bias), power(1 - f.bias - f.fraction), power(f.bias + 1), Fraction(1)]
    mask = (1 << f.bits) - 1

    def near(value: Fraction) -> int:
        return (pack(real(value < 0, value), f) + int(rng.integers(-2, 3))) & mask

    def draw() -> int:
        """A number whose exponent may be anything, and half of whose bits are often zeros."""
        fraction = int(rng.integers(1 << f.fraction))
        if rng.integers(2):
            fraction &= -1 << f.fraction // 2
        return int(rng.integers(2)) * f.sign | int(rng.integers(1, 2 * f.bias)) << f.fraction | fraction

    def value_of(bits: int) -> Fraction:
        value = unpack(bits, f).value
        return Fraction(1) if value is None or value == 0 else value

    rows: list[tuple[int, ...]] = []
    for _ in range(150):
        a, b, end = draw(), draw(), ends[int(rng.integers(len(ends)))]
        x, y = value_of(a), value_of(b)
        if arity == 1:
            rows.append((near(x * x),))
            continue
        # Products, quotients and sums.
        pairs = [
            (a, near(end / x)),
            (near(end * y), b),
            (near(x * y), b),
            (a, near(-x)),
            (a, near(x * power(-f.fraction - 1))),
        ]
        if arity == 2:
            rows += pairs
            continue
        product, least = x * value_of(pairs[0][1]), int(rng.integers(4)) | int(rng.integers(2)) * f.sign
        rows += [(*pairs[0], 0), (*pairs[0], least), (*pairs[0], near(-product)), (*pairs[0], near(product / 3))]
        rows += [(a, b, near(-x * y)), (a, b, near(x * y * power(int(rng.integers(-110, 110)))))]
        # Half a unit past a number, and something far below or above.
        one = f.bias << f.fraction
        tie = (one | int(rng.integers(1 << f.fraction)) & ~1, one | 1 << f.fraction - 1)
        rows += [(*tie, least), (*tie, near(power(-2 * f.fraction))), (*tie, draw())]
    return rows


@cache
def rows(f: Ieee, arity: int) -> list[tuple[int, ...]]:
    """Corners crossed, random ones, and those of hard results."""
    return [*float_rows(f, arity, arity), *((x,) * arity for x in corners(f)), *_hard_rows(f, arity)]


def operands(opcode: str, operation: isa.Operation) -> list[np.ndarray]:
    """An array for each source."""
    return _operands(tuple(f.name for f in formats(opcode, operation)), opcode.endswith("x2"))


@cache
def _operands(names: tuple[str, ...], packed: bool) -> list[np.ndarray]:
    own = [FORMATS[name] for name in names]
    wide = own[-1]
    columns = [list(column) for column in zip(*rows(wide, len(own)), strict=True)]
    for position, f in enumerate(own):
        if f is not wide:
            narrow = [x for x, *_ in rows(f, 2)]
            columns[position] = [narrow[(7 * position + i) % len(narrow)] for i in range(len(columns[position]))]
    arrays = [np.array(column, isa.DTYPES[f"b{f.bits}"]) for column, f in zip(columns, own, strict=True)]
    if packed:
        # Each row beside another one.
        arrays = [np.stack([x, np.roll(x, 11)], -1).view(isa.DTYPES[f"b{2 * wide.bits}"])[:, 0] for x in arrays]
    return arrays


def differences(opcode: str, found: Any, expected: Any, sources: list[np.ndarray]) -> list[str]:
    """Lanes in which two arrays of results differ."""
    where = np.flatnonzero(found != np.broadcast_to(expected, found.shape))
    return [
        f"{opcode}({', '.join(hex(int(x[i])) for x in sources)}): {int(found[i]):#x} for {int(expected[i]):#x}"
        for i in where[:8]
    ]


def native_differences(
    opcode: str, operation: isa.Operation, sources: list[np.ndarray], *constants: dict[int, int]
) -> list[str]:
    """Lanes in which the native form of an instruction is not its NumPy function.

    Each of `constants` gives, by number of the source, the bits of those that are known when the code is compiled.
    """
    lower = lowering(opcode)
    assert lower is not None
    found = run(lower, operation, operation.destinations[0], sources, constants or ({},))
    wrong = []
    for result, known in zip(found, constants or ({},), strict=True):
        fixed = [np.full_like(x, known[i]) if i in known else x for i, x in enumerate(sources)]
        with np.errstate(all="ignore"):
            wrong += differences(f"{opcode} {known}", result, operation.function(*fixed), fixed)
    return wrong


def claimed(lower: Lowering, operation: isa.Operation, sources: list[np.ndarray]) -> np.ndarray:
    """What the native form of `exact_when` says of sources."""
    return run(lower, operation, "pred", sources, [{}])[0]


def run(
    lower: Lowering,
    operation: isa.Operation,
    result: str,
    sources: list[np.ndarray],
    variants: Sequence[dict[int, int]],
) -> list[np.ndarray]:
    """Like `evaluate`, but several results in one module, each with sources of its own as constants."""

    def lowered(lanes: Any, values: Sequence[Any]) -> list[Any]:
        results = []
        for known in variants:
            mixed = [
                lanes.constant(known[i], BITS[k]) if i in known else values[i] for i, k in enumerate(operation.sources)
            ]
            results += lower(lanes, mixed)
        return results

    native = Native(compiled(_module(lowered, list(operation.sources), [result] * len(variants), {})))
    warps = -(-sources[0].size // LANES)
    held = [_padded(x, warps * LANES) for x in sources]
    made = [_padded(np.zeros(0, isa.DTYPES[result]), warps * LANES) for _ in variants]
    pointers = np.array([x.ctypes.data for x in (*held, *made)], np.uint64)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(native.address("run"))
    call(pointers.ctypes.data, warps)
    return [x[: sources[0].size] for x in made]
