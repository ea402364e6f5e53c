"""Members of the family against answers that an H200 gave: what the probe has to find there, and what it cannot find.

The recorded operands are random, not the probe's questions, so no parameter is inferred from them. They exclude: the
right member gives every recorded answer, and each of its neighbours is contradicted by one, but for those listed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from probe.test_infer import LOWERED, chain
from support.probe.poser import Poser
from support.selection.thinned import thinned

from refmoe.probe.family import Member, Parameters
from refmoe.probe.infer import infer
from refmoe.probe.instructions import BY_NAME, Instruction
from refmoe.probe.vectors import Vector

DATA = Path(__file__).parent.parent / "data" / "h200_mma_vectors.npz"
MMA, WGMMA = "mma.sync.aligned.m16n8k{}.row.col.f32.{}.{}.f32", "wgmma.mma_async.sync.aligned.m64n8k{}.f32.{}.{}"

#: Key of the recording, opcode, elements of K, types of A and of B, and what differs from F 25 and m 23 in one block.
RECORDED: list[tuple[str, str, int, str, str, dict[str, Any]]] = [
    ("mma_bf16_k16", MMA, 16, "bf16", "bf16", {}),
    ("mma_f16_k16", MMA, 16, "f16", "f16", {}),
    ("mma_bf16_k8", MMA, 8, "bf16", "bf16", {}),
    ("mma_f16_k8", MMA, 8, "f16", "f16", {}),
    ("mma_tf32_k8", MMA, 8, "tf32", "tf32", {}),
    *(
        (f"mma_{name}_k32", MMA, 32, a, b, {"blocks": LOWERED, "joins": "last"})
        for name, a, b in (("e4m3", "e4m3", "e4m3"), ("e5m2", "e5m2", "e5m2"), ("e4m3_e5m2", "e4m3", "e5m2"))
    ),
    ("wg_bf16", WGMMA, 16, "bf16", "bf16", {}),
    ("wg_f16", WGMMA, 16, "f16", "f16", {}),
    ("wg_tf32", WGMMA, 8, "tf32", "tf32", {}),
    *(
        (f"wg_{name}", WGMMA, 32, a, b, {"align_bits": 13, "result_bits": 13})
        for name, a, b in (
            ("e4m3", "e4m3", "e4m3"),
            ("e5m2", "e5m2", "e5m2"),
            ("e4m3_e5m2", "e4m3", "e5m2"),
            ("e5m2_e4m3", "e5m2", "e4m3"),
        )
    ),
]

#: What a chip could do otherwise, of all parameters.
NEIGHBOURS: list[dict[str, Any]] = [
    {"align_bits": -1},
    {"align_bits": +1},
    {"result_bits": -1},
    {"result_bits": +1},
    {"rounding": "nearest even"},
    {"rounding": "down"},
    {"cut": "nearest even"},
    {"cut": "down"},
    {"zeros": "takes part"},
    {"floor": -126},
    {"floor": -132},
    {"floor": -134},
    {"floor": None},
    {"subnormal_a": "leading bit"},
    {"subnormal_b": "leading bit"},
    {"product": "leading bit"},
    {"zero_signs": "-++"},
    {"zero_signs": "++-"},
    {"nan": 0x7FC00000},
    {"inputs": "flushed"},
    {"results": "flushed"},
    {"overflow": "largest"},
    {"last_rounding": "toward zero"},
    {"joins": "other"},
    {"blocks": "halved"},
]


def right(entry: tuple[str, str, int, str, str, dict[str, Any]]) -> tuple[Instruction, Parameters]:
    _, opcode, k, a, b, changes = entry
    unpacked = changes.get("joins") == "last"
    values: dict[str, Any] = {
        "blocks": chain(k, k),
        "joins": "first",
        "align_bits": 25,
        "result_bits": 23,
        "cut": "toward zero",
        "rounding": "toward zero",
        "nan": 0x7FFFFFFF,
        "zero_signs": "+++",
        "zeros": "takes no part",
        "floor": -133,
        "product": "factors",
        # Widened to FP16, a subnormal E4M3 is a normal number.
        "subnormal_a": "leading bit" if unpacked and a == "e4m3" else "emin",
        "subnormal_b": "leading bit" if unpacked and b == "e4m3" else "emin",
        "inputs": "kept",
        "results": "kept",
        "overflow": "infinity",
        "last_rounding": "nearest even",
    }
    return BY_NAME[opcode.format(k, a, b)], Parameters(**{**values, **changes})


def neighbours(parameters: Parameters) -> Iterator[tuple[str, Parameters]]:
    for change in NEIGHBOURS:
        ((name, value),) = change.items()
        if name in ("align_bits", "result_bits"):
            value += getattr(parameters, name)
        if name == "joins":
            value = "first" if parameters.joins == "last" else "last"
        if name == "blocks":
            value = tuple(
                half for block in parameters.blocks for half in (block[: len(block) // 2], block[len(block) // 2 :])
            )
        if name.startswith("subnormal"):
            value = "emin" if getattr(parameters, name) == "leading bit" else "leading bit"
        if name == "result_bits" and value > 23:
            continue
        if name == "last_rounding" and parameters.joins == "first":
            continue
        yield f"{name} {value if name != 'blocks' else 'halved'}", dataclasses.replace(parameters, **{name: value})


@cache
def recording(key: str, instruction: Instruction) -> tuple[list[list[Vector]], list[int]]:
    """The chain of vectors of each recorded output, and its bits."""
    with np.load(DATA) as file:
        a, b, c, d = (file[f"{key}/{name}"] for name in "abcd")
    chains, bits = [], []
    for n, row, column in np.ndindex(*d.shape):
        steps = [Vector(instruction, a[n, s, row].tolist(), b[n, s, column].tolist()) for s in range(a.shape[1])]
        steps[0].c = int(c[n, row, column])
        chains.append(steps)
        bits.append(int(d[n, row, column]))
    return chains, bits


def contradicted(instruction: Instruction, parameters: Parameters, keys: list[str]) -> str | None:
    """The first recorded answer that a member does not give, or None."""
    member = Member(instruction, parameters)
    for key in keys:
        for number, (steps, found) in enumerate(zip(*recording(key, instruction), strict=True)):
            acc = steps[0].c
            for step in steps:
                step.c, kept = acc, step.c
                acc = member.answer(step)
                step.c = kept
            if acc != found:
                return f"{key} {number}: recorded {found:#x}, and the member gives {acc:#x}"
    return None


def keys_of(key: str) -> list[str]:
    with np.load(DATA) as file:
        return [each for each in (key, f"{key}_x4") if f"{each}/a" in file.files]


@pytest.mark.parametrize("entry", thinned(map(pytest.param, RECORDED), 8), ids=lambda entry: entry[0])
def test_the_right_member_gives_every_recorded_answer(entry: Any) -> None:
    instruction, parameters = right(entry)
    assert contradicted(instruction, parameters, keys_of(entry[0])) is None


_SHORT = {"floor -126", "floor -132", "floor -134", "floor None", "overflow largest"}
_LOWERED = _SHORT | {"zero_signs -++", "zero_signs ++-", "inputs flushed"}
_QGMMA = _SHORT | {"zero_signs -++", "inputs flushed", "results flushed"}
#: The neighbours that give every recorded answer too: what the recordings leave to the probe's own questions.
LEFT_OPEN: dict[str, set[str]] = {
    "mma_bf16_k16": {"floor -132", "floor -134"},
    "mma_f16_k16": _SHORT | {"subnormal_b leading bit"},
    "mma_bf16_k8": {"floor -132", "subnormal_b leading bit"},
    "mma_f16_k8": _SHORT,
    "mma_tf32_k8": {"subnormal_b leading bit"},
    "mma_e4m3_k32": _LOWERED | {"zeros takes part", "subnormal_a emin", "subnormal_b emin"},
    "mma_e5m2_k32": _LOWERED | {"subnormal_a leading bit", "subnormal_b leading bit"},
    "mma_e4m3_e5m2_k32": _LOWERED | {"subnormal_a emin", "subnormal_b leading bit"},
    "wg_bf16": {"floor -134", "subnormal_a leading bit", "subnormal_b leading bit"},
    "wg_f16": _SHORT | {"subnormal_b leading bit", "zero_signs ++-"},
    "wg_tf32": {"floor -132", "floor -134", "floor None", "subnormal_a leading bit", "subnormal_b leading bit"},
    "wg_e4m3": _QGMMA | {"subnormal_a leading bit", "subnormal_b leading bit"},
    "wg_e5m2": _QGMMA | {"subnormal_b leading bit"},
    "wg_e4m3_e5m2": _QGMMA | {"subnormal_b leading bit"},
    "wg_e5m2_e4m3": _QGMMA | {"subnormal_a leading bit", "subnormal_b leading bit"},
}


@pytest.mark.slow
@pytest.mark.parametrize("entry", RECORDED, ids=lambda entry: entry[0])
def test_recorded_answers_exclude_all_neighbours_but_those_listed(entry: Any) -> None:
    instruction, parameters = right(entry)
    keys = keys_of(entry[0])
    left = {name for name, other in neighbours(parameters) if contradicted(instruction, other, keys) is None}
    assert left == LEFT_OPEN[entry[0]]


@pytest.mark.parametrize("key", ["mma_bf16_k8", "mma_e5m2_k32", "wg_e4m3"])
def test_a_box_of_the_right_parameters_is_found_to_have_those(key: str) -> None:
    """The questions tell apart what the recordings leave open: subnormals and floors, where the formats show them."""
    instruction, parameters = right(next(entry for entry in RECORDED if entry[0] == key))
    values = {field.name: getattr(parameters, field.name) for field in dataclasses.fields(Parameters)}
    box = Poser(instruction, **{name: value for name, value in values.items() if value is not None})
    found = infer(instruction, lambda question, vectors: box.answers(vectors))
    for name, value in values.items():
        seen = getattr(found.parameters, name)
        assert seen == value or (seen is None and (name in found.unseen or name == "last_rounding")), name
