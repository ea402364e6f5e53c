"""What refmoe's own models say of an instruction: the side that answers are held against, after an inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from refmoe.chips import TARGETS
from refmoe.evidence import Evidence, instruction_word
from refmoe.probe.instructions import CODECS, Instruction
from refmoe.probe.vectors import Batch, Vector
from refmoe.reference.mma import MODELS, AccumulationModel, tensor_core_mma
from refmoe.reference.mma.half import HALF_MODELS

_HALF_NAN = 0x7FFF


def model_of(instruction: Instruction, target: str) -> AccumulationModel | None:
    """refmoe's model of an instruction on a chip; None where it has none."""
    name = instruction.model.get(target)
    if name is None or name in MODELS:
        return None if name is None else MODELS[name]
    return next(model for model in HALF_MODELS.values() if model.name == name)


def word_of(instruction: Instruction, target: str, evidence: Mapping[str, Any] | None = None) -> str | None:
    """What the model of an instruction rests on; None where there is no model.

    It is "contradicted" where a chip of the target does not give every answer of the model. A chip of the same target
    that gave every answer of the model makes it hardware-checked.

    Args:
        instruction: the instruction.
        target: the PTX target.
        evidence: the chips that answered; those of `refmoe/evidence.json` if left out.
    """
    model = model_of(instruction, target)
    if model is None:
        return None
    own = TARGETS[target].sums[instruction.kind].own
    assumed = model.pair(instruction.a, instruction.b).assumed if own else Evidence.EXTRAPOLATED
    return instruction_word(instruction.name, target, model.name, assumed, evidence).value


def model_answers(instruction: Instruction, target: str, vectors: Sequence[Vector]) -> list[int]:
    """D's bits by the model, which must be there."""
    model = model_of(instruction, target)
    assert model is not None
    batch = Batch.of(vectors)
    half = instruction.accumulator == "f16"
    c = batch.c.astype(np.uint16).view(np.float16).astype(np.float32) if half else batch.c.view(np.float32)
    a, b = (
        codes.astype(f"uint{max(8, CODECS[name].bits)}")[:, None]
        for codes, name in ((batch.a, instruction.a), (batch.b, instruction.b))
    )
    scales = [
        np.ascontiguousarray(each)[:, None] if instruction.scale else None for each in (batch.a_scales, batch.b_scales)
    ]
    d = tensor_core_mma(
        a,
        b,
        np.ascontiguousarray(c)[:, None, None],
        model=model,
        a_format=instruction.a,
        b_format=instruction.b,
        a_scales=scales[0],
        b_scales=scales[1],
    )[:, 0, 0]
    if not half:
        return [int(bits) for bits in d.view(np.uint32)]
    with np.errstate(over="ignore"):
        short = d.astype(np.float16).view(np.uint16).astype(np.uint32)
    short[np.isnan(d)] = _HALF_NAN
    return [int(bits) for bits in short]
