"""Accumulation models as data: how an instruction adds up its products, and how well that is known.

The fused block that every truncating model is made of: L products and the accumulator C. An operand is s * 2^e with e
at least its format's emin, subnormals left unnormalised; a product has the exponent ea + eb, plus the two scale
exponents; C is an FP32 operand. E is the largest exponent of the nonzero products and the nonzero C, and at least
`floor`. Every term is truncated toward zero to a multiple of 2^(E - F), the sum is exact, and the result is truncated
toward zero to m fraction bits, with gradual underflow at 2^-126 and overflow to infinity from 2^128. Where C and the
result are FP16 instead, C has an exponent of at least -14 and the sum is rounded once, to nearest even. Blocks are
chained through C, k ascending; the order inside a block does not matter. NaN, infinity times zero and infinity minus
infinity give 0x7FFFFFFF, and a zero result is always +0.

The grouped block, of E2M1 with UE4M3 or E8M0 scales: each group's products are summed exactly, s, and its term is
s * s0 * s1 * 2^(e0 + e1). s0, s1 are the significands of its two scales and e0, e1 their exponents: of UE4M3 at least
-6, subnormals left unnormalised, sign bits ignored; of E8M0 the significand is 1. The term's exponent is e0 + e1, from
the scales alone, and takes part in E unless the term is zero. Terms and C are then aligned, added and truncated as in
the fused block. A scale of 32 elements belongs to two groups of 16.

Sources: the SM90 rows were fitted to and checked against H200 silicon; the SM100 and SM120 rows are
those of MMA-Sim (Chen et al., 2025) with the zero rule and the floor of SM90 taken over; in `sm120_nvf4` and
`sm120_mxf4`, which are otherwise as published, those two rules are extrapolated (with their F the floor takes nothing
from any FP32). Silicon
vectors of every hardware-checked pair are in the tests, but for `sm90_mma_f16acc`: of that the shipped vectors hold
nothing; 7,680,000 outputs of an H200 were compared when it was fitted, and 0 differed.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from refmoe.errors import ArgumentError, describe
from refmoe.evidence import Evidence, model_word
from refmoe.formats import BF16, E2M1, E4M3, E5M2, FP16, FP32, MXFP4, NVFP4, TF32, Format, MXFormat

ELEMENT_FORMATS: Mapping[str, Format] = MappingProxyType(
    {"e4m3": E4M3, "e5m2": E5M2, "e2m1": E2M1, "bf16": BF16, "f16": FP16, "tf32": TF32}
)
"""Operand formats by the name that PTX gives them."""


class Kind(enum.Enum):
    """What is done with the products."""

    EXACT = "exact"
    """The exact sum of C and all products, rounded once to nearest, ties to even."""
    FMA = "fma"
    """acc = fma(a, b, acc) in FP32, rounded to nearest, k ascending; the product is exact, its scales included."""
    FUSED = "fused"
    """Chained fused blocks, see the module."""
    UNPACKED = "unpacked"
    """FP8 widened to FP16: chained FP16 blocks from 0 over each 32 of K, then one FP32 addition to C, to nearest."""
    GROUPED = "grouped"
    """Chained grouped blocks, see the module."""


@dataclass(frozen=True)
class Pair:
    """A pair of operand formats that a model has.

    Attributes:
        block: L, the products of one fused block; K has to be a multiple of `AccumulationModel.instruction_k`.
        evidence: what the model rests on for this pair; see `answered`.
        assumed: what it rests on while no chip has answered.
    """

    block: int
    evidence: Evidence
    assumed: Evidence

    @property
    def words(self) -> frozenset[str]:
        """What a report may say that it rests on: what it rests on now, or did before a chip bore that out."""
        known = {self.evidence} if self.evidence is Evidence.CONTRADICTED else {self.evidence, self.assumed}
        return frozenset(word.value for word in known)


@dataclass(frozen=True)
class AccumulationModel:
    """How one instruction, or one definition, accumulates.

    Attributes:
        name: as on the command line.
        instruction: what computes like this.
        kind: what is done with the products.
        pairs: the operand formats, (a, b), that it has.
        align_bits: F, terms are truncated to multiples of 2^(E - F); None where nothing is aligned.
        result_bits: m, fraction bits of the result.
        accumulator: the format of C and of the result, FP32 or FP16; its range is theirs.
        to_nearest: whether a block's sum is rounded to nearest even, and not truncated, to the result.
        floor: the least E.
        scaled: whether E8M0 scales, one for every 32 of K, may be given.
        passes: of an UNPACKED model, the elements of K that each fused block takes, out of 32.
        group: of a GROUPED model, the elements of K that are summed exactly before anything is aligned.
        scaling: of a GROUPED model, what a scale means and how many elements share it; its scales must be given.
    """

    name: str
    instruction: str
    kind: Kind
    pairs: Mapping[tuple[str, str], Pair]
    align_bits: int | None = None
    result_bits: int = 23
    accumulator: Format = FP32
    to_nearest: bool = False
    floor: int = -133
    scaled: bool = False
    passes: tuple[tuple[int, ...], ...] = ()
    group: int | None = None
    scaling: MXFormat | None = None

    def pair(self, a_format: str, b_format: str) -> Pair:
        """What the model says of a pair of operand formats.

        Raises:
            ArgumentError: it does not have that pair.
        """
        for argument, name in (("a_format", a_format), ("b_format", b_format)):
            if name not in ELEMENT_FORMATS:
                raise ArgumentError(argument, describe(name), f"one of {', '.join(ELEMENT_FORMATS)}")
        if (a_format, b_format) not in self.pairs:
            had = ", ".join(f"{a} x {b}" for a, b in self.pairs)
            raise ArgumentError("a_format, b_format", f"{a_format} x {b_format}", f"a pair that {self.name} has: {had}")
        return self.pairs[a_format, b_format]

    @property
    def words(self) -> frozenset[str]:
        """What a report may say that the model rests on, for any of its pairs."""
        return frozenset(word for pair in self.pairs.values() for word in pair.words)

    def instruction_k(self, a_format: str, b_format: str) -> int:
        """What K has to be a multiple of: the elements of K that one instruction, or one definition, takes."""
        return 32 if self.kind is Kind.UNPACKED else self.pair(a_format, b_format).block


_FP8 = ("e4m3", "e5m2")
_NARROW = ("e4m3", "e5m2", "e2m1")
_GROUP = 16  # elements of K that an m16n8k64 instruction sums exactly, whatever shares a scale


def _pairs(a: tuple[str, ...], b: tuple[str, ...], block: int, assumed: Evidence) -> dict[tuple[str, str], Pair]:
    return {(x, y): Pair(block, assumed, assumed) for x in a for y in b}


def _same(formats: tuple[str, ...], block: int, assumed: Evidence) -> dict[tuple[str, str], Pair]:
    return {(x, x): Pair(block, assumed, assumed) for x in formats}


def answered(model: AccumulationModel) -> AccumulationModel:
    """The model with the evidence of its pairs as the chips have it that answered `refmoe probe`."""
    pairs = {
        formats: replace(pair, evidence=model_word(model.name, formats, pair.assumed))
        for formats, pair in model.pairs.items()
    }
    return replace(model, pairs=pairs)


def _models() -> dict[str, AccumulationModel]:
    everything = tuple(ELEMENT_FORMATS)
    definition = _pairs(everything, everything, 1, Evidence.DEFINITION)
    # mma.sync m16n8k32 of FP8 as ptxas lowers it: widened to FP16, thread t of a quad holds these elements of K.
    first = tuple(k for t in range(4) for k in (4 * t, 4 * t + 1, 16 + 4 * t, 17 + 4 * t))
    second = tuple(k + 2 for k in first)
    models = (
        AccumulationModel("exact", "none: the exact sum, rounded once", Kind.EXACT, definition, scaled=True),
        AccumulationModel("fp32", "none: a chain of FP32 FMAs, k ascending", Kind.FMA, definition, scaled=True),
        AccumulationModel(
            "sm120",
            "SM120 and SM121 mma.sync kind::f8f6f4 and kind::mxf8f6f4.block_scale, m16n8k32",
            Kind.FUSED,
            _pairs(_NARROW, _NARROW, 32, Evidence.EXTRAPOLATED) | _same(("e4m3",), 32, Evidence.PUBLISHED),
            align_bits=25,
            scaled=True,
        ),
        AccumulationModel(
            "sm120_nvf4",
            "SM120 and SM121 mma.sync kind::mxf4nvf4.block_scale of E2M1 with UE4M3 scales, scale_vec::4X, m16n8k64",
            Kind.GROUPED,
            _same(("e2m1",), 64, Evidence.PUBLISHED),
            align_bits=35,
            group=_GROUP,
            scaling=NVFP4,
        ),
        AccumulationModel(
            "sm120_mxf4",
            "SM120 and SM121 mma.sync kind::mxf4 and kind::mxf4nvf4 of E2M1 with E8M0 scales, scale_vec::2X, m16n8k64",
            Kind.GROUPED,
            _same(("e2m1",), 64, Evidence.PUBLISHED),
            align_bits=35,
            group=_GROUP,
            scaling=MXFP4,
        ),
        AccumulationModel(
            "sm100",
            "SM100 tcgen05.mma kind::f8f6f4 and kind::mxf8f6f4",
            Kind.FUSED,
            _pairs(_NARROW, _NARROW, 32, Evidence.PUBLISHED),
            align_bits=25,
            scaled=True,
        ),
        AccumulationModel(
            "sm90_wgmma_fp8",
            "SM90 wgmma of FP8, FP32 accumulators",
            Kind.FUSED,
            _pairs(_FP8, _FP8, 32, Evidence.EXTRAPOLATED),
            align_bits=13,
            result_bits=13,
        ),
        AccumulationModel(
            "sm90_mma",
            "SM90 mma.sync m16n8k16 of BF16 and FP16, FP32 accumulators",
            Kind.FUSED,
            _same(("bf16", "f16"), 16, Evidence.EXTRAPOLATED),
            align_bits=25,
        ),
        AccumulationModel(
            "sm90_mma_f16acc",
            "SM90 mma.sync m16n8k16 of FP16, FP16 accumulators",
            Kind.FUSED,
            _same(("f16",), 16, Evidence.EXTRAPOLATED),
            align_bits=25,
            result_bits=10,
            accumulator=FP16,
            to_nearest=True,
        ),
        AccumulationModel(
            "sm90_wgmma",
            "SM90 wgmma of BF16, FP16 and TF32, FP32 accumulators",
            Kind.FUSED,
            _same(("bf16", "f16"), 16, Evidence.EXTRAPOLATED) | _same(("tf32",), 8, Evidence.EXTRAPOLATED),
            align_bits=25,
        ),
        AccumulationModel(
            "sm90_mma_k8",
            "SM90 mma.sync m16n8k8 of BF16, FP16 and TF32, FP32 accumulators",
            Kind.FUSED,
            _same(("bf16", "f16", "tf32"), 8, Evidence.EXTRAPOLATED),
            align_bits=25,
        ),
        AccumulationModel(
            "sm90_mma_k4",
            "SM90 mma.sync m16n8k4 of TF32, FP32 accumulators",
            Kind.FUSED,
            _same(("tf32",), 4, Evidence.EXTRAPOLATED),
            align_bits=25,
        ),
        AccumulationModel(
            "sm90_mma_fp8",
            "SM90 mma.sync m16n8k32 of FP8: no instruction of its own, ptxas lowers it to FP16",
            Kind.UNPACKED,
            _pairs(_FP8, _FP8, 16, Evidence.EXTRAPOLATED),
            align_bits=25,
            passes=(first, second),
        ),
    )
    return {model.name: answered(model) for model in models}


MODELS: Mapping[str, AccumulationModel] = MappingProxyType(_models())
"""Every model by its name."""


def as_model(model: AccumulationModel | str) -> AccumulationModel:
    """The model of that name; a model is returned as it is.

    Raises:
        ArgumentError: there is no model of that name.
    """
    if isinstance(model, AccumulationModel):
        return model
    if not isinstance(model, str) or model not in MODELS:
        raise ArgumentError("model", describe(model), f"one of {', '.join(MODELS)}")
    return MODELS[model]
