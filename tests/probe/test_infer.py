"""Inference from answers alone, held against models that pose as hardware: each wrong one is named."""

from __future__ import annotations

import ast
import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.probe.poser import Poser
from support.selection.thinned import thinned

from refmoe.probe import infer as infer_module
from refmoe.probe.family import Parameters, differences
from refmoe.probe.infer import Contradiction, Found, Noise, asked_twice, infer
from refmoe.probe.instructions import BY_NAME, Instruction
from refmoe.probe.vectors import Batch, Vector

BF16 = BY_NAME["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"]
HALF = BY_NAME["mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16"]
TF32 = BY_NAME["mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32"]
FP8 = BY_NAME["mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32"]
QGMMA = BY_NAME["wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3"]
MIXED = BY_NAME["mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e2m1.f32.ue8m0"]
PLAIN4 = BY_NAME["mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e2m1.e2m1.f32"]
MXF4 = BY_NAME["mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0"]
NVF4 = BY_NAME["mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3"]

Blocks = tuple[tuple[tuple[int, ...], ...], ...]


def chain(k: int, length: int, group: int = 1) -> Blocks:
    """Blocks of neighbours, in order."""
    return tuple(
        tuple(tuple(range(at, at + group)) for at in range(start, start + length, group))
        for start in range(0, k, length)
    )


def picked(*blocks: Sequence[int]) -> Blocks:
    return tuple(tuple((k,) for k in block) for block in blocks)


_QUADS = [k for t in range(4) for k in (4 * t, 4 * t + 1, 16 + 4 * t, 17 + 4 * t)]
LOWERED = picked(sorted(_QUADS), sorted(k + 2 for k in _QUADS))

#: What each instruction computes, as NUMERICS has it.
RIGHT: dict[Instruction, dict[str, Any]] = {
    BF16: {"blocks": chain(16, 16)},
    HALF: {"blocks": chain(16, 16), "result_bits": 10, "rounding": "nearest even", "nan": 0x7FFF},
    TF32: {"blocks": chain(4, 4)},
    FP8: {"blocks": LOWERED, "joins": "last"},
    QGMMA: {"blocks": chain(32, 32), "align_bits": 13, "result_bits": 13},
    MIXED: {"blocks": chain(32, 32)},
    PLAIN4: {"blocks": chain(32, 32)},
    MXF4: {"blocks": chain(64, 64, 16), "align_bits": 35, "exponents": "scales"},
    NVF4: {"blocks": chain(64, 64, 16), "align_bits": 35, "exponents": "scales"},
}

#: Wrong in one respect, or in two.
WRONG: list[tuple[Instruction, dict[str, Any]]] = [
    (BF16, {"align_bits": 24}),
    (BF16, {"align_bits": 26}),
    (BF16, {"align_bits": 23}),
    (BF16, {"align_bits": 30}),
    (BF16, {"result_bits": 22}),
    (BF16, {"rounding": "nearest even"}),
    (BF16, {"rounding": "down"}),
    (BF16, {"rounding": "nearest away"}),
    (BF16, {"cut": "down"}),
    (BF16, {"cut": "nearest even"}),
    (BF16, {"blocks": chain(16, 8)}),
    (BF16, {"blocks": chain(16, 4)}),
    (BF16, {"blocks": tuple(reversed(chain(16, 8)))}),
    (BF16, {"blocks": picked(range(0, 16, 2), range(1, 16, 2))}),
    (BF16, {"zeros": "takes part"}),
    (BF16, {"floor": -60}),
    (BF16, {"floor": -110}),
    (BF16, {"floor": -124}),
    (BF16, {"floor": -125}),
    (BF16, {"floor": -126}),
    (BF16, {"floor": -132}),
    (BF16, {"floor": -134}),
    (BF16, {"floor": None}),
    (BF16, {"subnormal_a": "leading bit"}),
    (BF16, {"subnormal_b": "leading bit"}),
    (BF16, {"product": "leading bit"}),
    (BF16, {"zero_signs": "-++"}),
    (BF16, {"zero_signs": "++-"}),
    (BF16, {"zero_signs": "--+"}),
    (BF16, {"nan": 0x7FC00000}),
    (BF16, {"inputs": "flushed"}),
    (BF16, {"results": "flushed"}),
    (BF16, {"overflow": "largest"}),
    (BF16, {"align_bits": 24, "zeros": "takes part"}),
    (BF16, {"blocks": chain(16, 8), "rounding": "nearest even"}),
    (BF16, {"floor": -126, "inputs": "flushed"}),
    (HALF, {"rounding": "toward zero"}),
    (HALF, {"align_bits": 23}),
    (HALF, {"blocks": chain(16, 8)}),
    (HALF, {"overflow": "largest"}),
    (TF32, {"align_bits": 24}),
    (FP8, {"joins": "first"}),
    (FP8, {"blocks": chain(32, 16)}),
    (FP8, {"blocks": tuple(reversed(LOWERED))}),
    (FP8, {"last_rounding": "toward zero"}),
    (FP8, {"align_bits": 24}),
    (FP8, {"subnormal_a": "leading bit"}),
    (QGMMA, {"align_bits": 14, "result_bits": 13}),
    (QGMMA, {"result_bits": 23}),
    (QGMMA, {"align_bits": 25, "result_bits": 23}),
    (QGMMA, {"blocks": chain(32, 16)}),
    (QGMMA, {"zeros": "takes part"}),
    (MIXED, {"subnormal_b": "leading bit"}),
    (MIXED, {"floor": -126}),
    (MIXED, {"floor": -132}),
    (MIXED, {"align_bits": 26}),
    (MIXED, {"blocks": chain(32, 16)}),
    (PLAIN4, {"subnormal_a": "leading bit"}),
    (PLAIN4, {"subnormal_a": "leading bit", "subnormal_b": "leading bit"}),
    (PLAIN4, {"blocks": chain(32, 16)}),
    (PLAIN4, {"zeros": "takes part"}),
    (PLAIN4, {"product": "leading bit"}),
    (MXF4, {"blocks": chain(64, 32, 8)}),
    (MXF4, {"exponents": "products"}),
    (NVF4, {"align_bits": 25}),
    (NVF4, {"exponents": "products"}),
    (NVF4, {"subnormal_scale": "leading bit"}),
    (NVF4, {"blocks": chain(64, 64, 8)}),
    (NVF4, {"blocks": chain(64, 64, 1)}),
    (NVF4, {"rounding": "nearest even"}),
    (NVF4, {"align_bits": 34, "zero_signs": "-++"}),
]

#: Wrong in a respect that no member of the family has.
OUTSIDE: list[tuple[Instruction, dict[str, Any], str]] = [
    (BF16, {"oddity": "payload"}, "nan"),
    (BF16, {"oddity": "saturates_nan"}, "nan"),
    (BF16, {"oddity": "sticky"}, ""),
    (BF16, {"oddity": "flushes_a"}, ""),
    (BF16, {"oddity": "wide_c"}, ""),
    (BF16, {"oddity": "late_c"}, ""),
    (BF16, {"oddity": "pairwise"}, ""),
    (BF16, {"blocks": chain(16, 2)}, "order"),
    (BF16, {"blocks": chain(16, 1)}, "order"),
    (BF16, {"align_bits": 300}, ""),
    (MIXED, {"oddity": "loses_scale"}, ""),
    (NVF4, {"oddity": "loses_scale"}, ""),
    (MXF4, {"blocks": chain(64, 64, 32)}, "order"),
    (MXF4, {"zeros": "takes part"}, ""),
]


def poser(instruction: Instruction, **changes: Any) -> Poser:
    return Poser(instruction, **{**RIGHT[instruction], **changes})


def asked(instruction: Instruction, box: Poser) -> Found:
    return infer(instruction, lambda question, vectors: box.answers(vectors))


def named(found: Found, box: Poser) -> dict[str, tuple[Any, Any]]:
    """The parameters that are not the poser's; what cannot be seen may be left open."""
    wrong = {}
    for field in dataclasses.fields(Parameters):
        value, true = getattr(found.parameters, field.name), getattr(box, field.name)
        if field.name == "floor" and true is None:
            true = -149  # as low as FP32 shows
        if field.name == "last_rounding" and box.joins == "first":
            true = None
        if value != true and not (value is None and field.name in found.unseen):
            wrong[field.name] = value, true
    return wrong


def ids(case: Any) -> str:
    return case.name if isinstance(case, Instruction) else str(case)[:60]


@pytest.mark.parametrize("instruction", thinned(RIGHT, 2), ids=ids)
def test_the_right_parameters_are_found(instruction: Instruction) -> None:
    box = poser(instruction)
    assert {key: value for key, value in named(asked(instruction, box), box).items() if value[0] is not None} == {}


@pytest.mark.parametrize(("instruction", "changes"), thinned(WRONG, 24), ids=ids)
def test_a_wrong_model_is_told_apart_and_its_parameters_are_named(
    instruction: Instruction, changes: dict[str, Any]
) -> None:
    box = poser(instruction, **changes)
    found = asked(instruction, box)
    wrong = {key: value for key, value in named(found, box).items() if value[0] is not None}
    assert wrong == {}
    for name in changes:
        seen = getattr(found.parameters, name)
        assert seen is not None, f"{name} stays open: {found.unseen}"


@pytest.mark.parametrize(("instruction", "changes", "question"), thinned(OUTSIDE, 3), ids=ids)
def test_what_is_no_member_of_the_family_is_a_contradiction(
    instruction: Instruction, changes: dict[str, Any], question: str
) -> None:
    with pytest.raises(Contradiction, match="no model of the family fits: first contradiction") as caught:
        asked(instruction, poser(instruction, **changes))
    assert question in caught.value.question


def test_there_are_more_than_forty_wrong_models_and_no_two_are_alike() -> None:
    assert len({(each.name, str(changes)) for each, changes in WRONG}) == len(WRONG) > 40


@pytest.mark.parametrize("position", [0, 5, 39])
def test_one_flipped_bit_in_one_random_answer_is_a_contradiction(position: int) -> None:
    box = poser(BF16)

    def answer(question: str, vectors: Sequence[Vector]) -> list[int]:
        bits = box.answers(vectors)
        if question == "random":
            bits[position] ^= 1
        return bits

    with pytest.raises(Contradiction, match=f"'random': vector {position} "):
        infer(BF16, answer)


def test_a_box_whose_answers_differ_between_two_asks_is_told() -> None:
    box, rng = poser(BF16), random.Random(7)

    def answer(question: str, vectors: Sequence[Vector]) -> list[int]:
        bits = box.answers(vectors)
        if question == "F":
            bits[3] ^= rng.getrandbits(20)
        return bits

    with pytest.raises(Noise, match="'F' was asked twice, and vector 3 is answered"):
        infer(BF16, asked_twice(answer))
    steady = infer(BF16, asked_twice(lambda question, vectors: box.answers(vectors)))
    assert steady.parameters == asked(BF16, box).parameters


def test_a_box_that_forgets_an_answer_is_told() -> None:
    box = poser(BF16)
    with pytest.raises(Contradiction, match="answers to"):
        infer(BF16, lambda question, vectors: box.answers(vectors)[:-1])


def test_differences_name_the_parameter() -> None:
    found, claimed = (asked(BF16, poser(BF16, align_bits=bits)).parameters for bits in (24, 25))
    assert differences(found, claimed) == ["align_bits is 24, not 25"]
    assert differences(claimed, claimed) == []


def test_parameters_go_through_a_document() -> None:
    found = asked(FP8, poser(FP8)).parameters
    assert Parameters.of_document(found.document()) == found
    assert found.joins == "last"
    assert found.words().startswith("L 16, F 25, m 23, 2 blocks, C joins last")


def test_the_questions_follow_from_the_answers_alone() -> None:
    asked_first, asked_again = [], []
    for log in (asked_first, asked_again):
        box = poser(NVF4)

        def answer(question: str, vectors: Sequence[Vector], log: list[Any] = log, box: Poser = box) -> list[int]:
            log.append((question, Batch.of(vectors).sha256()))
            return box.answers(vectors)

        infer(NVF4, answer)
    assert asked_first == asked_again
    assert len({question for question, _ in asked_first}) == len(asked_first)


@pytest.mark.parametrize("name", ["infer", "family", "vectors", "instructions"])
def test_the_inference_imports_nothing_that_it_is_compared_with(name: str) -> None:
    path = Path(infer_module.__file__).with_name(f"{name}.py")
    nodes = ast.walk(ast.parse(path.read_text()))
    modules = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {module for module in modules if module.startswith("refmoe")} <= {
        "refmoe.chips",
        "refmoe.errors",
        "refmoe.probe.family",
        "refmoe.probe.instructions",
        "refmoe.probe.vectors",
    }
