"""What each accumulation model rests on: an assumption, until a chip answered `refmoe probe`.

`evidence.json`, beside this file, holds the answers of every chip; `refmoe probe --merge` adds to it. Every word of
evidence follows from it: those of `refmoe.reference.mma.MODELS`, of launches, of reports, and of the pages.
"""

from __future__ import annotations

import enum
import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from refmoe.chips import TARGETS, ChipSums, Mma, compute_capability

PATH = Path(__file__).parent / "evidence.json"
"""The one place where chips that answered are kept."""


class Evidence(str, enum.Enum):
    """What the claim rests on that an instruction computes what its model says; the text is what reports hold.

    The first claims most, and the last least.
    """

    DEFINITION = "definition"
    """No hardware is claimed: the model is arithmetic that is defined by itself."""
    HARDWARE = "hardware-checked"
    """A chip answered `refmoe probe`, and every answer equals the model's, bit for bit."""
    PUBLISHED = "published"
    """A published model of the chip, not checked by us on one."""
    EXTRAPOLATED = "extrapolated"
    """A published model of a related instruction or operand format. A chip may answer otherwise."""
    CONTRADICTED = "contradicted"
    """A chip answered otherwise than the model."""


REASONS: Mapping[Evidence, str] = MappingProxyType(
    {
        Evidence.DEFINITION: "it is arithmetic that is defined by itself",
        Evidence.HARDWARE: "a chip's answers to `refmoe probe` are those of the model, bit for bit",
        Evidence.PUBLISHED: "others published it, and none of its chips has answered `refmoe probe` yet",
        Evidence.EXTRAPOLATED: "it is taken over from other instructions, and none of its chips has answered yet",
        Evidence.CONTRADICTED: "a chip answered `refmoe probe` otherwise than the model",
    }
)
"""Why a model has that word, behind a colon; "it" is the model."""


def weakest(words: Iterable[Evidence]) -> Evidence:
    """The word that claims least; there must be one."""
    return max(words, key=list(Evidence).index)


_FP8 = ("e4m3", "e5m2")
_NARROW = (*_FP8, "e2m1")
_SYNC = "mma.sync.aligned.m16n8k{k}.row.col{kind}.{d}.{a}.{b}.{d}{scale}"
_WGMMA = "wgmma.mma_async.sync.aligned.m64n8k{k}.{d}.{a}.{b}"
_MX1, _MX2, _MX4 = (f".block_scale.scale_vec::{each}X" for each in (1, 2, 4))


def opcodes(mma: Mma, a: str, b: str, accumulator: str = "f32") -> tuple[str, ...]:
    """The names that `refmoe probe` has for an instruction with operands of two formats; none if it asks no such one.

    Args:
        mma: the instruction, as `refmoe.chips` tells them apart.
        a: PTX's name of the format of A.
        b: of B.
        accumulator: "f32" or "f16", that of C and D.
    """
    fields = {"a": a, "b": b, "d": accumulator}
    same, eight, narrow = a == b, {a, b} <= set(_FP8), {a, b} <= set(_NARROW)
    single = accumulator == "f32"
    plain = {
        Mma.SYNC_BF16: (16, ("f16", "bf16")),
        Mma.SYNC_K8: (8, ("f16", "bf16", "tf32")),
        Mma.SYNC_K4: (4, ("tf32",)),
    }
    if mma in plain:
        k, formats = plain[mma]
        there = same and a in formats and (single or (mma is Mma.SYNC_BF16 and a == "f16"))
        return (_SYNC.format(k=k, kind="", scale="", **fields),) if there else ()
    if mma in (Mma.WGMMA_BF16, Mma.WGMMA_FP8):
        wide = same and a in ("f16", "bf16", "tf32") and (single or a == "f16")
        there = eight if mma is Mma.WGMMA_FP8 else wide
        k = 32 if mma is Mma.WGMMA_FP8 else 8 if a == "tf32" else 16
        return (_WGMMA.format(k=k, **fields),) if there else ()
    forms: Mapping[Mma, tuple[bool, int, tuple[str, ...], str]] = {
        Mma.SYNC_FP8: (eight, 32, ("",), ""),
        Mma.SYNC_F8F6F4: (narrow, 32, (".kind::f8f6f4",), ""),
        Mma.SYNC_MX: (narrow, 32, (f".kind::mxf8f6f4{_MX1}",), ".ue8m0"),
        Mma.SYNC_MXF4: (a == b == "e2m1", 64, (f".kind::mxf4{_MX2}", f".kind::mxf4nvf4{_MX2}"), ".ue8m0"),
        Mma.SYNC_NVF4: (a == b == "e2m1", 64, (f".kind::mxf4nvf4{_MX4}",), ".ue4m3"),
    }
    there, k, kinds, scale = forms.get(mma, (False, 0, (), ""))
    return tuple(_SYNC.format(k=k, kind=kind, scale=scale, **fields) for kind in kinds) if there and single else ()


def read_evidence(path: Path = PATH) -> dict[str, Any]:
    """The chips that answered, as `refmoe probe --merge` wrote them."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@functools.cache
def committed() -> Mapping[str, Any]:
    """The chips of `evidence.json`, read once."""
    return MappingProxyType(read_evidence())


def instruction_word(
    opcode: str, target: str, model: str, assumed: Evidence, evidence: Mapping[str, Any] | None = None
) -> Evidence:
    """What a model rests on for one instruction of one target.

    Args:
        opcode: its name in bundles.
        target: the PTX target, "sm_90a" or "sm_90".
        model: the model's name; answers that were held against another one do not count.
        assumed: what it rests on while no chip of the target has answered.
        evidence: the chips that answered; those of `evidence.json` if left out.
    """
    capability = compute_capability(target)
    verdicts = {
        row["verdict"]
        for chip in (committed() if evidence is None else evidence)["chips"]
        if compute_capability(chip["arch"]) == capability
        and (row := chip["instructions"].get(opcode)) is not None
        and row["model"] == model
    }
    if "DIFFERS" in verdicts:
        return Evidence.CONTRADICTED
    return Evidence.HARDWARE if "HOLDS" in verdicts else assumed


def target_word(
    target: str,
    mma: Mma,
    formats: tuple[str, str],
    assumed: Evidence,
    *,
    accumulator: str = "f32",
    evidence: Mapping[str, Any] | None = None,
) -> Evidence:
    """What the model that `refmoe.chips` names for an instruction of a target rests on there.

    A model of another chip is extrapolated, until this one answers. Where one entry of that table stands for several
    instructions, the word is the weakest of theirs.

    Args:
        target: the PTX target.
        mma: the instruction.
        formats: of A and of B.
        assumed: what the model rests on for them without any answer, on a chip that it was made for.
        accumulator: "f32" or "f16".
        evidence: as in `instruction_word`.
    """
    capability = compute_capability(target)
    had = next((each.sums for each in TARGETS.values() if each.compute_capability == capability), {})
    sums = had.get(mma, ChipSums(own=False))
    model = sums.model if accumulator == "f32" else sums.half
    assumed = assumed if sums.own else Evidence.EXTRAPOLATED
    words = [instruction_word(name, target, model, assumed, evidence) for name in opcodes(mma, *formats, accumulator)]
    return weakest(words) if words else assumed


def model_word(
    model: str, formats: tuple[str, str], assumed: Evidence, evidence: Mapping[str, Any] | None = None
) -> Evidence:
    """What a model rests on, whatever the chip: on those that it was made for, the best that one of them answered.

    One that contradicts it outweighs all others.

    Args:
        model: its name.
        formats: of A and of B.
        assumed: what it rests on while no chip has answered.
        evidence: as in `instruction_word`.
    """
    words = []
    for target in TARGETS.values():
        asked = [
            (mma, accumulator)
            for mma, sums in target.sums.items()
            for accumulator, name in (("f32", sums.model), ("f16", sums.half))
            if sums.own and name == model and opcodes(mma, *formats, accumulator)
        ]
        if asked:
            words.append(
                weakest(
                    target_word(target.arch, mma, formats, assumed, accumulator=accumulator, evidence=evidence)
                    for mma, accumulator in asked
                )
            )
    if Evidence.CONTRADICTED in words:
        return Evidence.CONTRADICTED
    return Evidence.HARDWARE if Evidence.HARDWARE in words else assumed
