"""Operands for the tests of the accumulation models, and the specification laid over whole matrices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from refmoe.formats import FP32
from refmoe.reference.mma import ELEMENT_FORMATS, MODELS, AccumulationModel, Kind, tensor_core_mma
from refmoe.reference.scalar.mma import accumulate

# The models whose C is FP32 and whose products are aligned one by one. test_reference_mma_f16acc has the one with FP16
# accumulators, test_reference_mma_nvf4 the one that aligns groups.
CASES = [
    (name, a, b)
    for name, model in MODELS.items()
    for a, b in model.pairs
    if model.align_bits is not None and model.accumulator is FP32 and model.kind is not Kind.GROUPED
]
DEFINED = [
    (name, a, b)
    for name in ("exact", "fp32")
    for a, b in (("e4m3", "e2m1"), ("e5m2", "e5m2"), ("bf16", "bf16"), ("f16", "tf32"))
]


@dataclass(frozen=True)
class Product:
    """The arguments of one product."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    a_format: str
    b_format: str
    a_scales: np.ndarray | None = None
    b_scales: np.ndarray | None = None

    @property
    def options(self):
        names = ("a_format", "b_format", "a_scales", "b_scales")
        return {name: getattr(self, name) for name in names}

    def fast(self, model: AccumulationModel | str) -> np.ndarray:
        return tensor_core_mma(self.a, self.b, self.c, model=model, **self.options).view(np.uint32)

    def slow(self, model: AccumulationModel | str) -> np.ndarray:
        model = MODELS[model] if isinstance(model, str) else model
        c_bits = self.c.view(np.uint32).tolist()
        out = np.empty(self.c.shape, np.uint32)
        for m, a in enumerate(self.a.tolist()):
            for n, b in enumerate(self.b.tolist()):
                out[m, n] = accumulate(
                    a,
                    b,
                    c_bits[m][n],
                    model,
                    self.a_format,
                    self.b_format,
                    None if self.a_scales is None else self.a_scales[m].tolist(),
                    None if self.b_scales is None else self.b_scales[n].tolist(),
                )
        return out

    def of(self, **changes) -> Product:
        return replace(self, **changes)


@cache
def values_of(name: str) -> np.ndarray:
    """The value of every code; of TF32 the codes shifted right by their unused bits."""
    fmt = ELEMENT_FORMATS[name]
    if fmt.bits <= 16:
        return fmt.values()
    codes = np.arange(1 << (fmt.bits - fmt.unused_low_bits), dtype=np.uint32) << fmt.unused_low_bits
    with np.errstate(invalid="ignore"):
        return codes.view(np.float32).astype(np.float64)


def code_dtype(name: str) -> str:
    return f"u{max(8, ELEMENT_FORMATS[name].bits) // 8}"


def every_code(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Any code, special ones with their share."""
    return rng.integers(0, 1 << ELEMENT_FORMATS[name].bits, shape, dtype=np.uint64).astype(code_dtype(name))


def finite_codes(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Any code of a number; exponents, and so subnormals, are equally likely."""
    finite = np.flatnonzero(np.isfinite(values_of(name)))
    return (rng.choice(finite, shape) << ELEMENT_FORMATS[name].unused_low_bits).astype(code_dtype(name))


def near_codes(rng: np.random.Generator, name: str, shape: tuple[int, ...], spread: int) -> np.ndarray:
    """Codes of numbers with magnitudes around 1, over 2 * spread binades, a fifth of them zeros."""
    values = values_of(name)
    near = np.flatnonzero((np.abs(values) <= 2.0**spread) & (np.abs(values) >= 2.0**-spread))
    codes = np.where(rng.random(shape) < 0.2, 0, rng.choice(near, shape))
    return (codes << ELEMENT_FORMATS[name].unused_low_bits).astype(code_dtype(name))


def accumulators(rng: np.random.Generator, shape: tuple[int, ...], low: int, high: int) -> np.ndarray:
    """FP32 of either sign with exponents from `low` to `high`, a tenth of them zeros of either sign."""
    c = (rng.uniform(1, 2, shape) * np.exp2(rng.integers(low, high + 1, shape))).astype(np.float32)
    c[rng.random(shape) < 0.1] = 0
    return np.where(rng.random(shape) < 0.5, -c, c)
