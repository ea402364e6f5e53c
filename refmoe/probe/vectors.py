"""Operands of questions: one dot product each, put together from exact powers of two and small significands."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from refmoe.probe.instructions import CODECS, Codec, Instruction

_ONE = {"ue8m0": 127, "ue4m3": 0x38, "": 0}


class Unreachable(Exception):
    """The formats of an instruction have no operands for this question."""


@dataclass
class Vector:
    """One question's operands: a row of A, a column of B, C, and the scales of the row and of the column.

    Attributes:
        instruction: what they are for.
        a, b: codes by element of K.
        c: the bits of C.
        a_scales, b_scales: bytes, one for each block of scales.
    """

    instruction: Instruction
    a: list[int] = field(default_factory=list)
    b: list[int] = field(default_factory=list)
    c: int = 0
    a_scales: list[int] = field(default_factory=list)
    b_scales: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.a = self.a or [0] * self.instruction.k
        self.b = self.b or [0] * self.instruction.k
        one = _ONE[self.instruction.scale]
        self.a_scales = self.a_scales or [one] * self.instruction.scales
        self.b_scales = self.b_scales or [one] * self.instruction.scales

    def put(self, k: int, significand: int, exponent: int) -> Vector:
        """Make the product at `k` significand * 2^exponent.

        Raises:
            Unreachable: no two codes have that product.
        """
        found = factors(self.instruction.a, self.instruction.b, significand, exponent)
        if found is None:
            raise Unreachable(f"no product {significand} * 2^{exponent}")
        self.a[k], self.b[k] = found
        return self

    def codes(self, k: int, a: int, b: int) -> Vector:
        """Give the codes at `k`."""
        self.a[k], self.b[k] = a, b
        return self

    def add(self, significand: int, exponent: int) -> Vector:
        """Make C significand * 2^exponent.

        Raises:
            Unreachable: C has no such number.
        """
        code = CODECS[self.instruction.accumulator].code(significand, exponent)
        if code is None:
            raise Unreachable(f"no C of {significand} * 2^{exponent}")
        self.c = code
        return self

    def shift(self, exponent: int, block: int | None = None) -> Vector:
        """Multiply all products, or those of one block of scales, by 2^exponent.

        Raises:
            Unreachable: there are no such scales.
        """
        if exponent == 0:
            return self
        low, high = {"ue8m0": (-127, 127), "ue4m3": (-6, 8), "": (0, 0)}[self.instruction.scale]
        first = max(low, min(high, exponent // 2))
        second = exponent - first
        if not low <= second <= high:
            raise Unreachable(f"no scales of 2^{exponent}")
        for scales, part in ((self.a_scales, first), (self.b_scales, second)):
            byte = part + 127 if self.instruction.scale == "ue8m0" else (part + 7) << 3
            for index in range(len(scales)) if block is None else (block,):
                scales[index] = byte
        return self


@cache
def factors(a: str, b: str, significand: int, exponent: int) -> tuple[int, int] | None:
    """Codes of `a` and `b` whose product is significand * 2^exponent; normal numbers where there are any."""
    x, y = CODECS[a], CODECS[b]
    while significand and significand % 2 == 0:
        significand, exponent = significand // 2, exponent + 1
    lead = abs(significand).bit_length() - 1
    choices = sorted(range(y.emin - y.fraction_bits, y.emax + 1), key=lambda e: (e < y.emin, abs(e)))
    for normal in (True, False):
        for second in choices:
            first = exponent - second
            if normal and (second < y.emin or first + lead < x.emin):
                continue
            codes = x.code(significand, first), y.code(1, second)
            if codes[0] is not None and codes[1] is not None:
                return codes[0], codes[1]
    return None


def reach(instruction: Instruction) -> tuple[int, int]:
    """The exponents of the smallest and of the largest power of two that a product can be, scales of 1."""
    x, y = CODECS[instruction.a], CODECS[instruction.b]
    return x.emin - x.fraction_bits + y.emin - y.fraction_bits, x.emax + y.emax


@dataclass(frozen=True)
class Batch:
    """Vectors as arrays.

    Attributes:
        a, b: uint32 [n, K], codes.
        c: uint32 [n], bits.
        a_scales, b_scales: uint8 [n, blocks of scales].
    """

    a: NDArray[np.uint32]
    b: NDArray[np.uint32]
    c: NDArray[np.uint32]
    a_scales: NDArray[np.uint8]
    b_scales: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.c)

    @classmethod
    def of(cls, vectors: Sequence[Vector]) -> Batch:
        """The arrays of some vectors, at least one."""
        return cls(
            np.array([each.a for each in vectors], np.uint32),
            np.array([each.b for each in vectors], np.uint32),
            np.array([each.c for each in vectors], np.uint32),
            np.array([each.a_scales for each in vectors], np.uint8),
            np.array([each.b_scales for each in vectors], np.uint8),
        )

    def sha256(self) -> str:
        """A hash of all operands."""
        digest = hashlib.sha256()
        for array in (self.a, self.b, self.c, self.a_scales, self.b_scales):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def mixture(instruction: Instruction, count: int, seed: int) -> list[Vector]:
    """Random vectors of five kinds in turn: near one, wide, seven of ten zero, cancelling, any code at all."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        kind = ("near", "wide", "sparse", "cancelling", "any")[number % 5]
        vector = Vector(instruction)
        vector.a = _codes(rng, CODECS[instruction.a], kind, instruction.k)
        vector.b = _codes(rng, CODECS[instruction.b], kind, instruction.k)
        if kind == "cancelling":
            half = instruction.k // 2
            vector.b[half:] = vector.b[:half]
            vector.a[half:] = [code ^ CODECS[instruction.a].sign for code in vector.a[:half]]
        vector.c = _codes(rng, CODECS[instruction.accumulator], kind, 1)[0]
        if instruction.scale:
            width = {"ue8m0": (3, 127, 127), "ue4m3": (4, 0x38, 0)}[instruction.scale]
            for scales in (vector.a_scales, vector.b_scales):
                spread = rng.integers(-width[0], width[0] + 1, len(scales)) * (1 if kind != "wide" else 4)
                scales[:] = [int(max(0, width[1] + each)) for each in spread]
        found.append(vector)
    return found


def _codes(rng: np.random.Generator, codec: Codec, kind: str, count: int) -> list[int]:
    top = (1 << codec.exponent_bits) - 1
    finite = top - 1 if codec.top == "ieee" else top
    reach = {"near": 2, "sparse": 3, "cancelling": 3, "wide": 20}.get(kind, top)
    low, high = max(0, codec.bias - reach), min(finite, codec.bias + reach)
    if kind == "any":
        low, high = 0, (top if _may_be_special(rng) else finite)
    fields = rng.integers(low, high + 1, count)
    codes = (fields << codec.fraction_bits) | rng.integers(0, 1 << codec.fraction_bits, count)
    if codec.top == "nan" and kind != "any":
        codes = np.minimum(codes, (1 << (codec.exponent_bits + codec.fraction_bits)) - 2)
    if kind == "sparse":
        codes = np.where(rng.random(count) < 0.7, 0, codes)
    signs = rng.integers(0, 2, count)
    return [(int(code) << codec.low) | (codec.sign if sign else 0) for code, sign in zip(codes, signs, strict=True)]


def _may_be_special(rng: np.random.Generator) -> bool:
    """Whether a row of any codes may hold infinities and NaNs: one of four."""
    return bool(rng.integers(0, 4) == 0)
