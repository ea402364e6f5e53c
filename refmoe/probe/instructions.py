"""The tensor-core instructions that are probed, and the formats of their operands, as PTX has them.

The codecs here are written for the probe and share nothing with `refmoe.formats`: an inference that decodes answers
with the code of the model would not be independent of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from refmoe.chips import TARGETS, Mma


@dataclass(frozen=True)
class Codec:
    """A binary floating-point format.

    Attributes:
        exponent_bits: of a code.
        fraction_bits: of a code.
        bias: of the exponent.
        top: what the largest exponent field means: "ieee" (infinity, NaN), "nan" (one NaN, the rest numbers), "number".
        low: bits of a code below the fraction, which are ignored.
        signed: whether a code has a sign bit.
    """

    exponent_bits: int
    fraction_bits: int
    bias: int
    top: str
    low: int = 0
    signed: bool = True

    @property
    def emin(self) -> int:
        """The exponent of subnormals and of the least normal number."""
        return 1 - self.bias

    @property
    def emax(self) -> int:
        """The largest exponent of a power of two that is a number."""
        return (1 << self.exponent_bits) - 1 - self.bias - (self.top == "ieee")

    @property
    def sign(self) -> int:
        """The sign bit."""
        return 1 << (self.exponent_bits + self.fraction_bits + self.low) if self.signed else 0

    @property
    def bits(self) -> int:
        """Of a code."""
        return self.signed + self.exponent_bits + self.fraction_bits + self.low

    def infinity(self) -> int | None:
        """The code of infinity, or None."""
        return ((1 << self.exponent_bits) - 1) << (self.fraction_bits + self.low) if self.top == "ieee" else None

    def nan(self) -> int | None:
        """A code of NaN, or None."""
        if self.top == "number":
            return None
        ones = (1 << (self.exponent_bits + self.fraction_bits)) - 1
        return ones << self.low

    def code(self, significand: int, exponent: int) -> int | None:
        """The code of significand * 2^exponent, or None if it is no number of the format."""
        negative, size = significand < 0, abs(significand)
        if size == 0:
            return 0
        lead = size.bit_length() - 1 + exponent
        unit = max(lead, self.emin) - self.fraction_bits
        shift = exponent - unit
        if shift < 0 and size & ((1 << -shift) - 1):
            return None
        whole = size << shift if shift >= 0 else size >> -shift
        if lead > self.emax:
            return None
        field = lead + self.bias if lead >= self.emin else 0
        code = (field << self.fraction_bits) | (whole & ((1 << self.fraction_bits) - 1))
        if self.top == "nan" and code == (1 << (self.exponent_bits + self.fraction_bits)) - 1:
            return None
        if negative and not self.signed:
            return None
        return (code << self.low) | (self.sign if negative else 0)

    def decode(self, code: int) -> tuple[str, int, int, int]:
        """(kind, sign 0 or 1, significand, exponent): a number is significand * 2^(exponent - fraction_bits).

        `kind` is "number", "infinity" or "nan". The exponent is at least `emin`; subnormals have leading zeros.
        """
        sign = int(bool(code & self.sign))
        body = (code & ~self.sign) >> self.low
        body &= (1 << (self.exponent_bits + self.fraction_bits)) - 1
        field, fraction = body >> self.fraction_bits, body & ((1 << self.fraction_bits) - 1)
        if self.top == "ieee" and field == (1 << self.exponent_bits) - 1:
            return ("nan" if fraction else "infinity"), sign, 0, 0
        if self.top == "nan" and body == (1 << (self.exponent_bits + self.fraction_bits)) - 1:
            return "nan", sign, 0, 0
        lead = (1 << self.fraction_bits) if field else 0
        return "number", sign, lead | fraction, max(field, 1) - self.bias


CODECS: Mapping[str, Codec] = MappingProxyType(
    {
        "e2m1": Codec(2, 1, 1, "number"),
        "e4m3": Codec(4, 3, 7, "nan"),
        "e5m2": Codec(5, 2, 15, "ieee"),
        "f16": Codec(5, 10, 15, "ieee"),
        "bf16": Codec(8, 7, 127, "ieee"),
        "tf32": Codec(8, 10, 127, "ieee", low=13),
        "f32": Codec(8, 23, 127, "ieee"),
        "ue4m3": Codec(4, 3, 7, "nan", signed=False),
    }
)
"""Formats by PTX's name. A scale of UE8M0 is 2^(byte - 127), and 0xFF is NaN; it has no codec."""


@dataclass(frozen=True)
class Instruction:
    """One instruction with its types.

    Attributes:
        name: its opcode, which is its name in bundles.
        k: the elements of K that it takes.
        a, b: the formats of its operands.
        accumulator: of C and D, "f32" or "f16".
        kind: what it is in the table of chips.
        targets: the PTX targets that have it.
        model: the name of refmoe's model, for each target; see `refmoe.probe.claims`. Nothing else looks at it.
        scale: the format of its block scales, "ue8m0" or "ue4m3"; empty if it has none.
        scale_block: elements of K that share a scale; 0 without scales.
    """

    name: str
    k: int
    a: str
    b: str
    accumulator: str
    kind: Mma
    targets: tuple[str, ...]
    model: Mapping[str, str] = field(hash=False)
    scale: str = ""
    scale_block: int = 0

    @property
    def warpgroup(self) -> bool:
        """Whether it is `wgmma`."""
        return self.name.startswith("wgmma")

    @property
    def packed(self) -> bool:
        """Whether a byte holds two elements."""
        return "mxf4" in self.name

    @property
    def scales(self) -> int:
        """Block scales of a row."""
        return self.k // self.scale_block if self.scale_block else 0


_FP8 = ("e4m3", "e5m2")
# Of each scale_vec: the format of the scales, and the elements that share one.
_SCALES = {"1X": ("ue8m0", 32), "2X": ("ue8m0", 32), "4X": ("ue4m3", 16)}


def _build() -> tuple[Instruction, ...]:
    made: list[Instruction] = []

    def add(kind: Mma, name: str, k: int, a: str, b: str, d: str, extra: str = "") -> None:
        scale, block = _SCALES[extra.rsplit("::", 1)[-1]] if extra.endswith("X") else ("", 0)
        had = {arch: target.sums[kind] for arch, target in TARGETS.items() if kind in target.sums}
        models = {arch: sums.model if d == "f32" else sums.half for arch, sums in had.items()}
        known = {arch: model for arch, model in models.items() if model}
        name = f"{name}{'.' + scale if scale else ''}"
        made.append(Instruction(name, k, a, b, d, kind, tuple(had), known, scale, block))

    def mma(kind: Mma, k: int, a: str, b: str, d: str = "f32", extra: str = "") -> None:
        add(kind, f"mma.sync.aligned.m16n8k{k}.row.col{extra}.{d}.{a}.{b}.{d}", k, a, b, d, extra)

    for fmt in ("f16", "bf16"):
        mma(Mma.SYNC_BF16, 16, fmt, fmt)
    mma(Mma.SYNC_BF16, 16, "f16", "f16", "f16")
    for fmt in ("f16", "bf16", "tf32"):
        mma(Mma.SYNC_K8, 8, fmt, fmt)
    mma(Mma.SYNC_K4, 4, "tf32", "tf32")
    for a in _FP8:
        for b in _FP8:
            mma(Mma.SYNC_FP8, 32, a, b)
    narrow = (*_FP8, "e2m1")
    mixed = ((Mma.SYNC_F8F6F4, ".kind::f8f6f4"), (Mma.SYNC_MX, ".kind::mxf8f6f4.block_scale.scale_vec::1X"))
    for kind, extra in mixed:
        for a in narrow:
            for b in narrow:
                mma(kind, 32, a, b, extra=extra)
    mma(Mma.SYNC_MXF4, 64, "e2m1", "e2m1", extra=".kind::mxf4.block_scale.scale_vec::2X")
    mma(Mma.SYNC_MXF4, 64, "e2m1", "e2m1", extra=".kind::mxf4nvf4.block_scale.scale_vec::2X")
    mma(Mma.SYNC_NVF4, 64, "e2m1", "e2m1", extra=".kind::mxf4nvf4.block_scale.scale_vec::4X")
    eight = [(Mma.WGMMA_FP8, a, b, 32) for a in _FP8 for b in _FP8]
    single = [(Mma.WGMMA_BF16, "f16", "f16", 16), (Mma.WGMMA_BF16, "bf16", "bf16", 16)]
    single += [(Mma.WGMMA_BF16, "tf32", "tf32", 8), *eight]
    for d, groups in (("f32", single), ("f16", [single[0], *eight])):
        for kind, a, b, k in groups:
            add(kind, f"wgmma.mma_async.sync.aligned.m64n8k{k}.{d}.{a}.{b}", k, a, b, d)
    return tuple(made)


INSTRUCTIONS: tuple[Instruction, ...] = _build()
"""Every instruction that is probed."""

NOT_PROBED: Mapping[str, str] = MappingProxyType(
    {
        "tcgen05.mma": "sm_100a and sm_103a have it; it works on tensor memory, for which there is no probe kernel yet",
        "mma.sync of e3m2, e2m3": "refmoe has no model of these formats to hold the answers against",
        "mma.sync.sp, wgmma.sp": "a sparse product is its dense neighbour's, with half of the elements of A left out",
    }
)
"""Instructions that chips have and the probe leaves out, with the reason."""


BY_NAME: Mapping[str, Instruction] = MappingProxyType({each.name: each for each in INSTRUCTIONS})
"""The same by name."""


def of_target(target: str) -> tuple[Instruction, ...]:
    """The instructions that a target has."""
    return tuple(each for each in INSTRUCTIONS if target in each.targets)
