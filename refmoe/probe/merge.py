"""Check a bundle that somebody sent, and let its chip speak for the words of evidence.

Nothing that a bundle claims is taken over: every parameter is inferred again from its raw answers, and every answer is
held against refmoe's model again. Chips that answered are kept in one file, `refmoe/evidence.json`, from which all
words follow: see `refmoe.evidence`.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refmoe.chips import TARGETS
from refmoe.errors import RefmoeError
from refmoe.evidence import PATH
from refmoe.files import write_atomic
from refmoe.probe.bundle import held, unstable_text, words_of
from refmoe.probe.family import Parameters
from refmoe.probe.infer import Contradiction, infer
from refmoe.probe.instructions import BY_NAME, Instruction
from refmoe.probe.parts import check_parts
from refmoe.probe.vectors import Batch, Vector
from refmoe.reports.documents import digest_of
from refmoe.reports.probe import verdict


class BadBundle(RefmoeError):
    """A bundle that contradicts itself or what is known; the message says where, in a sentence."""


@dataclass(frozen=True)
class Checked:
    """A bundle that is sound.

    Attributes:
        document: the bundle.
        doubts: what is not plausible although nothing contradicts it; it raises no word until somebody has looked.
        findings: what its parity report says of the kernels, where it is not that all is well; no word depends on it.
    """

    document: Mapping[str, Any]
    doubts: tuple[str, ...]
    findings: tuple[str, ...] = ()


def check_bundle(document: Mapping[str, Any]) -> Checked:
    """Hold a bundle of valid form against itself.

    Raises:
        BadBundle: it contradicts itself.
    """
    target = document["arch"]
    if target not in TARGETS:
        raise BadBundle(f"its chip is {target}, and probed are {', '.join(TARGETS)}")
    if not document["instructions"]:
        raise BadBundle("it holds no instruction, so it says nothing")
    counts = Counter(record["name"] for record in document["instructions"])
    for name, count in counts.items():
        if count > 1:
            raise BadBundle(f"the instruction {name} is there {count} times")
        if name not in BY_NAME:
            raise BadBundle(f"there is no instruction {name}")
        if target not in BY_NAME[name].targets:
            needed = " or ".join(BY_NAME[name].targets)
            raise BadBundle(f"{name} was answered by {target}, which does not have it: it needs {needed}")
    for record in document["instructions"]:
        _check_record(BY_NAME[record["name"]], target, record)
    wrong, findings = check_parts(document)
    if wrong:
        raise BadBundle(wrong[0])
    return Checked(document, tuple(_doubts(document)), tuple(findings))


def _check_record(instruction: Instruction, target: str, record: Mapping[str, Any]) -> None:
    """What an instruction's answers give again has to be what is claimed of them."""
    name, status = record["name"], record["status"]
    for each in record["asked"]:
        if len(each["answers"]) != len(each["again"]):
            raise BadBundle(f"{name}: the two asks of {each['question']!r} have different numbers of answers")
        if each["answers"] != each["again"] and status != "unstable":
            raise BadBundle(f"{name}: the two asks of {each['question']!r} differ, and it says that it is {status}")
    if (status == "inferred") != (record["parameters"] is not None) or (status == "inferred") != (
        record["said"] is None
    ):
        raise BadBundle(f"{name}: it says that it is {status}, and its parameters or its sentence say otherwise")
    if status == "unanswered":
        if record["asked"]:
            raise BadBundle(f"{name}: it says that it was not answered, and it holds answers")
        if record["holds"] is not None or record["differing"] is not None:
            raise BadBundle(f"{name}: it says that it was not answered, and whether the model holds")
        return
    replay = _Replay(instruction, record["asked"])
    outcome, said, parameters = "inferred", None, None
    try:
        parameters = infer(instruction, replay).parameters
    except Contradiction as error:
        outcome, said = "contradiction", str(error)
    except _Differs as error:
        outcome, said = "unstable", str(error)
    if outcome != status:
        raise BadBundle(f"{name}: it says that it is {status}, and its answers are {outcome}: {said or 'a model fits'}")
    if said != record["said"]:
        raise BadBundle(f"{name}: it says {record['said']!r}, and its answers say {said!r}")
    if replay.place != len(record["asked"]):
        extra = record["asked"][replay.place]["question"]
        raise BadBundle(f"{name}: it holds answers on {extra!r} that no inference asks for there")
    if parameters is not None:
        _check_parameters(name, parameters, record["parameters"])
    again = held(instruction, target, replay.vectors, replay.bits, status)
    for key, value in again.items():
        if record[key] != value:
            raise BadBundle(f"{name}: it says {key} {record[key]!r}, and its answers give {value!r}")


def _check_parameters(name: str, found: Parameters, claimed: Mapping[str, Any]) -> None:
    # Through JSON, in which tuples are lists.
    wanted = json.loads(json.dumps(found.document()))
    for key in sorted(wanted.keys() | claimed.keys()):
        if key not in claimed or key not in wanted or claimed[key] != wanted[key]:
            text = f"it claims {key} {claimed.get(key)!r}, and its answers give {wanted.get(key)!r}"
            raise BadBundle(f"{name}: {text}")


class _Differs(Exception):
    """Two asks of one question differ."""


class _Replay:
    """The answers of a bundle, as a black box: the same questions in the same order, or it is refused."""

    def __init__(self, instruction: Instruction, asked: Sequence[Mapping[str, Any]]) -> None:
        self.instruction, self.asked, self.place = instruction, asked, 0
        self.vectors: list[Vector] = []
        self.bits: list[int] = []

    def __call__(self, question: str, vectors: Sequence[Vector]) -> list[int]:
        name = self.instruction.name
        if self.place == len(self.asked):
            raise BadBundle(f"{name}: its answers end before the question {question!r}")
        record = self.asked[self.place]
        self.place += 1
        if record["question"] != question:
            raise BadBundle(f"{name}: answers on {record['question']!r} stand where {question!r} is asked")
        if record["sha256"] != Batch.of(vectors).sha256():
            raise BadBundle(f"{name}: the operands of {question!r} are others than this refmoe asks with")
        bits = words_of(record["answers"])
        if len(bits) != len(vectors):
            raise BadBundle(f"{name}: {len(bits)} answers to the {len(vectors)} vectors of {question!r}")
        if self.instruction.accumulator == "f16" and any(word >> 16 for word in bits):
            raise BadBundle(f"{name}: an answer to {question!r} has more than the 16 bits of its accumulator")
        self.vectors += vectors
        self.bits += bits
        if record["answers"] != record["again"]:
            raise _Differs(unstable_text(question))
        return bits


def _doubts(document: Mapping[str, Any]) -> Iterator[str]:
    """What of a chip would be new enough to look at twice."""
    found: dict[tuple[str, int, str], tuple[str, int]] = {}
    for record in document["instructions"]:
        if record["parameters"] is None:
            continue
        instruction = BY_NAME[record["name"]]
        bits = record["parameters"]["align_bits"]
        # 16-bit types share their multipliers: on every chip that is known they are aligned alike.
        if instruction.a in ("bf16", "f16") and instruction.accumulator == "f32":
            kind = (instruction.name.split(".")[0], instruction.k, instruction.accumulator)
            other = found.setdefault(kind, (record["name"], bits))
            if other[1] != bits:
                yield f"{record['name']} has F {bits}, and {other[0]} has F {other[1]}; on known chips they are equal"
        if not 8 <= bits <= 40:
            yield f"{record['name']} has F {bits}; known chips have 13 to 35"


def raised(evidence: Mapping[str, Any], checked: Checked) -> dict[str, Any]:
    """The evidence with a chip's answers in it.

    Raises:
        BadBundle: the bundle is the executor's, is there already, is doubtful, or contradicts another of the same chip.
    """
    document = checked.document
    if document["device"] != "cuda":
        raise BadBundle(
            "its answers are the executor's, which computes by refmoe's models: they are no evidence of a chip"
        )
    if checked.doubts:
        raise BadBundle(f"it is not plausible, and raises no word before somebody has looked: {checked.doubts[0]}")
    chips = list(evidence["chips"])
    if any(chip["digest"] == document["digest"] for chip in chips):
        raise BadBundle("it was merged before")
    found = chip_of(checked)
    for chip in chips:
        check_same(chip, found)
    return {**evidence, "chips": [*chips, found]}


def chip_of(checked: Checked) -> dict[str, Any]:
    """What the evidence keeps of a bundle."""
    document = checked.document
    rows = {
        record["name"]: {
            "verdict": verdict(record),
            "parameters": copy.deepcopy(record["parameters"]),
            "model": record["model"],
            "questions": sum(len(each["answers"]) // 8 for each in record["asked"]),
        }
        for record in document["instructions"]
        if record["status"] != "unanswered"
    }
    return {
        "gpu": document["gpu"],
        "arch": document["arch"],
        "driver": document["environment"]["driver"],
        "created": document["created"],
        "digest": document["digest"],
        "instructions": rows,
    }


def check_same(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """What a chip answered has to be what another of its architecture answered before.

    Raises:
        BadBundle: it is not; both are named.
    """
    if old["arch"] != new["arch"]:
        return
    for name in sorted(old["instructions"].keys() & new["instructions"].keys()):
        one, other = old["instructions"][name], new["instructions"][name]
        if one["parameters"] == other["parameters"] and one["verdict"] == other["verdict"]:
            continue
        if old["gpu"] == new["gpu"]:
            text = f"another bundle of {old['gpu']}, made {old['created']}, gives other parameters of {name}"
        else:
            text = f"{old['gpu']} and {new['gpu']} are both {old['arch']}, and contradict each other on {name}"
        raise BadBundle(f"{text}; the driver was {old['driver']}, and is {new['driver']}")


def write_evidence(evidence: Mapping[str, Any], path: Path = PATH) -> None:
    """Replace the file in one step; it gets the digest of its content."""
    document = {**evidence, "digest": digest_of(evidence)}
    write_atomic(path, json.dumps(document, indent=1, sort_keys=True) + "\n")
