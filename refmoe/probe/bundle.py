"""Probe a chip, and put everything that it answered into one file that its owner can send."""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from refmoe.errors import ArgumentError, RefmoeError, describe
from refmoe.probe.claims import model_answers, model_of
from refmoe.probe.family import Parameters
from refmoe.probe.hosts import Box, Unanswered, ask_twice
from refmoe.probe.infer import Contradiction, infer
from refmoe.probe.instructions import BY_NAME, INSTRUCTIONS, NOT_PROBED, Instruction, of_target
from refmoe.probe.vectors import Batch, Vector
from refmoe.reports.documents import digest_of
from refmoe.reports.probe import VERSION, verdict
from refmoe.version import __version__

PARTS = ("probes", "parity", "benchmarks")
"""What a bundle may hold; `probes` are always wanted by a merge."""
_SECONDS = 45  # of the parity suite and of the benchmarks, each: with the probes that stays below two minutes

#: Why something is left out that nobody asked for.
_NOT_WANTED = "not wanted"

Progress = Callable[[Iterable[Any]], Iterable[Any]]


def chosen(names: Sequence[str] | None, target: str) -> tuple[Instruction, ...]:
    """The instructions that are named, or all that the chip has.

    Raises:
        ArgumentError: there is none of that name, or the chip does not have it; the message says which chips do.
    """
    if names is None:
        return of_target(target)
    for name in names:
        if name not in BY_NAME:
            raise ArgumentError("instruction", describe(name), "a name that `refmoe probe --list` prints")
        if target not in BY_NAME[name].targets:
            found = f"{name} on {target}, which does not have it"
            raise ArgumentError("instruction", found, f"a chip of {', '.join(BY_NAME[name].targets)}")
    return tuple(BY_NAME[name] for name in dict.fromkeys(names))


class Unstable(RefmoeError):
    """Two answers to one question differ."""


def probe(box: Box, instructions: Sequence[Instruction], progress: Progress = iter) -> list[dict[str, Any]]:
    """The records of some instructions on a chip, as `InstructionRecord` has them."""
    return [probe_one(box, each) for each in progress(instructions)]


def probe_one(box: Box, instruction: Instruction) -> dict[str, Any]:
    """Ask a chip everything about one instruction, and hold what follows against refmoe's model."""
    asked: list[dict[str, Any]] = []
    every: list[Vector] = []

    def answer(question: str, vectors: Sequence[Vector]) -> list[int]:
        one, two = ask_twice(box, instruction, vectors)
        every.extend(vectors)
        asked.append(
            {"question": question, "sha256": Batch.of(vectors).sha256(), "answers": _hex(one), "again": _hex(two)}
        )
        if one != two:
            raise Unstable(unstable_text(question))
        return one

    status, said, parameters = "inferred", None, None
    try:
        parameters = infer(instruction, answer).parameters.document()
    except Contradiction as error:
        status, said = "contradiction", str(error)
    except Unstable as error:
        status, said = "unstable", str(error)
    except Unanswered as error:
        status, said = "unanswered", str(error)
    bits = [word for each in asked for word in words_of(each["answers"])]
    return {
        "name": instruction.name,
        "status": status,
        "said": said,
        "parameters": parameters,
        **held(instruction, box.target, every, bits, status),
        "asked": asked,
    }


def held(
    instruction: Instruction, target: str, vectors: Sequence[Vector], bits: Sequence[int], status: str
) -> dict[str, Any]:
    """The keys of a record that say what refmoe's model makes of the answers."""
    model = model_of(instruction, target)
    if model is None or status == "unanswered" or not vectors:
        return {"model": None if model is None else model.name, "differing": None, "holds": None}
    wanted = model_answers(instruction, target, vectors)
    differing = sum(x != y for x, y in zip(wanted, bits, strict=True))
    return {"model": model.name, "differing": differing, "holds": differing == 0 and status == "inferred"}


def unstable_text(question: str) -> str:
    """What is said of an instruction that does not give the same answer twice."""
    return (
        f"two asks of the question {question!r} gave different answers: the chip, its memory or its driver is not sound"
    )


def bundle_of(
    box: Box,
    records: list[dict[str, Any]],
    *,
    parity: dict[str, Any] | None = None,
    benchmarks: dict[str, Any] | None = None,
    left_out: Sequence[tuple[str, str]] = (),
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    """The document of a bundle.

    Args:
        box: the chip.
        records: what it answered.
        parity: the report of its parity suite.
        benchmarks: that of its benchmarks.
        left_out: parts that are not there, each with the reason.
        seconds: what each part took that is there.
    """
    absent = left_out_of(box.target, {record["name"] for record in records})
    document: dict[str, Any] = {
        "kind": "probe",
        "schema_version": VERSION,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": box.name,
        "gpu": box.chip,
        "arch": box.target,
        "environment": {
            "refmoe": __version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "platform": f"{platform.system()} {platform.machine()}",
            "driver": box.driver,
            "cuda_bindings": _installed("cuda-bindings"),
        },
        "instructions": records,
        "left_out": [{"name": n, "reason": r} for n, r in [*left_out, *absent.items()]],
        # To the hundredth, as far as a clock of a run says anything.
        "seconds": {part: round(seconds[part], 2) if part in seconds else None for part in PARTS},
        "parity": parity,
        "benchmarks": benchmarks,
    }
    return {**document, "digest": digest_of(document)}


def left_out_of(target: str, asked: Collection[str]) -> dict[str, str]:
    """The instructions that were not asked, each with its reason: those of other chips, not wanted, never probed."""
    absent = {each.name: _reason(each, target) for each in INSTRUCTIONS if each.name not in asked}
    return {**absent, **NOT_PROBED}


def made_by_command(arguments: Sequence[str]) -> tuple[dict[str, Any] | None, str]:
    """The JSON document of a command of refmoe, or None and why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "refmoe", *arguments, "--report", str(report)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            return None, f"`refmoe {' '.join(arguments)}` took longer than {_SECONDS} seconds"
        if not report.is_file():
            lines = (done.stderr or done.stdout).strip().splitlines()
            return None, f"`refmoe {' '.join(arguments)}` made no report: {lines[-1] if lines else done.returncode}"
        document: dict[str, Any] = json.loads(report.read_text())
        return (None, reason) if (reason := _why_nothing_ran(document)) else (document, "")


def _why_nothing_ran(document: Mapping[str, Any]) -> str:
    """What the cases of a parity report say, if none of them ran: no PTX, an old driver, a chip without kernels."""
    cases = document.get("cases", [])
    if not cases or any(case["verdict"] != "SKIPPED" for case in cases):
        return ""
    # Some lack a package of their own, and most the same as all others.
    reasons = [str(case["reason"]) for case in cases]
    return max(reasons, key=reasons.count)


def summary(document: dict[str, Any]) -> str:
    """What a bundle holds, in lines: a line an instruction, and the totals."""
    lines = []
    for record in document["instructions"]:
        lines.append(f"{verdict(record):<10} {record['name']}: {_conclusion(record)}")
    verdicts = [verdict(record) for record in document["instructions"]]
    counts = ", ".join(f"{verdicts.count(word)} {word}" for word in dict.fromkeys(verdicts))
    vectors = sum(len(each["answers"]) // 8 for record in document["instructions"] for each in record["asked"])
    lines.append(f"{document['gpu']} ({document['arch']}): {counts or 'no instruction'}; {vectors:,} questions")
    took = [f"{part} {seconds:,.1f} s" for part, seconds in document["seconds"].items() if seconds is not None]
    lines.append(f"took: {', '.join(took)}")
    reasons = {each["name"]: each["reason"] for each in document["left_out"]}
    lines += [f"without {part}: {reasons[part]}" for part in PARTS if reasons.get(part, _NOT_WANTED) != _NOT_WANTED]
    if document["device"] == "ptx":
        lines.append(
            "These are answers of the executor, which computes by refmoe's models: they say nothing of a chip."
        )
    return "\n".join(lines) + "\n"


def _conclusion(record: dict[str, Any]) -> str:
    if record["parameters"] is None:
        return str(record["said"])
    words = Parameters.of_document(record["parameters"]).words()
    if record["holds"] is False:
        words += f"; {record['differing']:,} answers are not those of {record['model']}"
    return words


def _reason(instruction: Instruction, target: str) -> str:
    if target in instruction.targets:
        return _NOT_WANTED
    return f"{target} does not have it: it needs {' or '.join(instruction.targets)}"


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _hex(bits: Sequence[int]) -> str:
    return "".join(f"{word:08x}" for word in bits)


def words_of(text: str) -> list[int]:
    """Answers from their digits."""
    return [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
