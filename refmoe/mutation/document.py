"""What a sweep found, as the document that `refmoe.reports.mutation` reads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from refmoe.cuda.toolchain import find_toolchain
from refmoe.errors import ArgumentError
from refmoe.mutation import cuda, host
from refmoe.mutation.reach import HOST
from refmoe.mutation.site import Site
from refmoe.mutation.trial import Tried
from refmoe.reports.documents import digest_of
from refmoe.reports.environment import run_facts
from refmoe.reports.mutation import EVERY_VALUE, MUTATION, SCHEMA_VERSION, VERDICTS, failures, figures, grouped
from refmoe.verify.source import file_sha256
from refmoe.verify.sweep import Ledger, in_order

#: Why mutants live, by their ids: written by hand, after somebody has looked.
REASONS = Path(__file__).parent / "reasons.json"

#: What proves a mutant equivalent by machine.
_PROVER = Path(__file__).parent / "proofs"

_OPEN = {"verdict": "open", "reason": "nobody has looked yet"}


def read_reasons(path: Path = REASONS) -> dict[str, dict[str, str]]:
    """The reasons of survivors by mutant id: a verdict and a sentence.

    Raises:
        ArgumentError: one without them, or with a verdict that there is not.
    """
    reasons: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))
    for name, each in reasons.items():
        if each.keys() != {"verdict", "reason"} or each["verdict"] not in VERDICTS or not each["reason"].strip():
            raise ArgumentError("reasons", f"{each} for {name} in {path}", f"a reason and one of {', '.join(VERDICTS)}")
    return reasons


def open_ledger(path: Path) -> Ledger:
    """The outcomes at `path`, of the present kernels, host code, compiler and prover.

    Another case can make a survivor one that is caught, and nothing else. So cases do not count. What the prover takes
    for equivalent is never tried on a case, so the prover counts.

    Raises:
        ArgumentError: the file is of other sources, or no such file.
        OSError: it cannot be read or written.
    """
    digest = hashlib.sha256()
    for each in sorted(each for each in HOST.rglob("*") if each.suffix in (".py", ".cu", ".cuh")):
        digest.update(each.relative_to(HOST).as_posix().encode() + b"\0" + each.read_bytes())
    prover = hashlib.sha256(b"\0".join(each.read_bytes() for each in sorted(_PROVER.glob("*.py")))).hexdigest()
    return Ledger(path, {"of": "mutants", "sources": digest.hexdigest(), "prover": prover, "compiler": _compiler()})


def outcomes_of(sites: Iterable[Site], ledger: Ledger) -> list[Tried]:
    """The outcomes that there are of mutants, in the order of the mutants.

    Raises:
        ArgumentError: the ledger has something else for one.
    """
    found = in_order((site.id for site in sites), ledger)
    try:
        return [Tried(**{**document, "runs": tuple(document.get("runs", ()))}) for document in found.values()]
    except TypeError as error:
        raise ArgumentError("partial", f"{ledger.path}, with a result that is no outcome", "a sweep's file") from error


def _compiler() -> str:
    return find_toolchain().build_id.splitlines()[-1]


def mutation_document(
    tried: Sequence[Tried],
    *,
    of: int,
    seed: int,
    command: str,
    seconds: float,
    reasons: Mapping[str, Mapping[str, str]],
) -> dict[str, Any]:
    """The document of a sweep.

    Args:
        tried: outcomes, in the order of the mutants.
        of: how many mutants there are.
        seed: of the sample.
        command: what the user typed.
        seconds: wall-clock time.
        reasons: of survivors, by id.
    """
    mutants = [
        {
            "id": each.id,
            "floor": each.floor,
            "kernel": each.kernel,
            "operator": each.operator,
            "outcome": each.outcome,
            "case": each.case,
            "check": each.check,
            "cases": each.cases,
        }
        for each in tried
    ]
    document: dict[str, Any] = {
        "kind": MUTATION.name,
        "schema_version": SCHEMA_VERSION,
        **run_facts(command=command, seconds=seconds),
        "level": "default",
        "source_sha256": {name: file_sha256(name) for name in _files()},
        "compiler": _compiler(),
        "sample": {"of": of, "tried": len(tried), "seed": seed},
        "summary": figures(mutants, reasons),
        "operators": grouped(mutants, "operator", reasons),
        "kernels": grouped(mutants, "kernel", reasons),
        "survivors": [
            {"id": each.id, "cases": each.cases, **reasons.get(each.id, _OPEN)}
            for each in tried
            if each.outcome == "survived"
        ],
        "every_value": [
            {"id": each.id, "runs": [dict(run) for run in each.runs]} for each in tried if each.check == EVERY_VALUE
        ],
        "mutants": mutants,
    }
    document["passed"] = not failures(document)
    return {**document, "digest": digest_of(document)}


def _files() -> list[str]:
    """The files that are mutated, by their paths below refmoe/cuda."""
    return sorted([*(f"csrc/{name}" for name in cuda.files()), *host.files()])
