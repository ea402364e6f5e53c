"""Runs as one JSON document, whose digest shows an edit. docs/guides/drift.md describes it."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.drift.growth import METHOD, Growth
from refmoe.drift.paths import DriftPath, steps_told
from refmoe.drift.run import DriftRun, PathComparison
from refmoe.models import DeepSeekNVFP4Checkpoint, GptOssCheckpoint
from refmoe.models.expert_stack import AnyDeepSeek
from refmoe.reference.mma import Evidence, as_model
from refmoe.reference.moe.deepseek_nvfp4 import deepseek_nvfp4_steps, evidence_with_bf16
from refmoe.reports.documents import digest_of
from refmoe.reports.drift import DRIFT, SCHEMA_VERSION, failures, source_sha256
from refmoe.reports.environment import current_environment

_DIGITS = 6
#: A cosine's distance from one is what is read.
_COSINE_DIGITS = 12
#: Larger checkpoints are named, not hashed.
_HASHED_BYTES = 1 << 28


def drift_document(
    runs: Sequence[DriftRun],
    paths: Sequence[DriftPath],
    checkpoint: GptOssCheckpoint | AnyDeepSeek,
    *,
    base: int,
    steps: int,
    seed: int,
    tiny: bool,
    command: str,
    seconds: float,
) -> dict[str, Any]:
    """Everything that was found, as JSON values; numbers to six digits, null where one is not defined.

    Args:
        runs: one for each point of the sweep.
        paths: as they were given to `run_drift`.
        checkpoint: the weights.
        base: index of the base.
        steps: decoded after the prompt.
        seed: of prompts and random weights.
        tiny: whether the checkpoint was written for this alone, from the seed.
        command: what the user typed.
        seconds: the time that it took.
    """
    document: dict[str, Any] = {
        "kind": DRIFT.name,
        "schema_version": SCHEMA_VERSION,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": command,
        "environment": current_environment(gpu=False).model_dump(mode="json"),
        "seconds": round(seconds, 1),
        "source_sha256": source_sha256(),
        "checkpoint": _checkpoint(checkpoint, tiny),
        "seed": seed,
        "steps": steps,
        "paths": [_path(path, checkpoint) for path in paths],
        "base": paths[base].name,
        "growth_method": METHOD,
        "runs": [_run(run) for run in runs],
        "dependent": dependent_sequences(runs),
    }
    document["passed"] = not failures(document)
    return {**document, "digest": digest_of(document)}


def document_text(value: Any, indent: str = "") -> str:
    """JSON to read and to diff: objects a key a line, lists of numbers on one line whatever their depth."""
    inner = indent + " "
    if isinstance(value, dict) and value:
        lines = [f"{inner}{json.dumps(key)}: {document_text(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return "[\n" + ",\n".join(inner + document_text(item, inner) for item in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(", ", ": "))


def dependent_sequences(runs: Iterable[DriftRun]) -> list[str]:
    """Sequences whose bits depend on the batch or on how many were in flight, a sentence each path and mode."""
    found = []
    for first, second in itertools.combinations(runs, 2):
        shared = min(len(first.prompts), len(second.prompts))
        if first.point.k != second.point.k or not np.array_equal(first.prompts[:shared], second.prompts[:shared]):
            continue
        for (path, mode), digests in first.bits.items():
            others = second.bits[path, mode]
            other = [index for index in range(shared) if digests[index] != others[index]]
            if other:
                bits = f"sequence {other[0]} has other bits with {second.point} than with {first.point}"
                found.append(f"{path}, {mode}: {bits}")
    return found


def _digest(files: Iterable[Path], root: Path) -> str:
    """SHA-256 of files by name and content."""
    digest = hashlib.sha256()
    for file in sorted(files):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(root).as_posix()}\n{len(content)}\n".encode() + content)
    return digest.hexdigest()


def _checkpoint(checkpoint: GptOssCheckpoint | AnyDeepSeek, tiny: bool) -> dict[str, Any]:
    files = checkpoint.files
    size = sum(file.stat().st_size for file in files)
    return {
        "name": "tiny, random" if tiny else checkpoint.path.name,
        "bytes": size,
        "sha256": _digest(files, files[0].parent) if size <= _HASHED_BYTES else None,
        "config": dataclasses.asdict(checkpoint.config),
    }


def _path(path: DriftPath, checkpoint: GptOssCheckpoint | AnyDeepSeek) -> dict[str, Any]:
    """What a path is, with the steps that it took and their evidence: in DeepSeek's layers in NVFP4 they are others."""
    facts = dict(path.facts)
    if isinstance(checkpoint, DeepSeekNVFP4Checkpoint) and "backend" in facts:
        facts |= steps_told(deepseek_nvfp4_steps(facts["backend"]))
        if checkpoint.shared_in_bf16:
            evidence = evidence_with_bf16(Evidence(facts["evidence"]), as_model(facts["model"]))
            facts["evidence"] = evidence.value
    return {"name": path.name, "arithmetic": path.arithmetic, **facts}


def _run(run: DriftRun) -> dict[str, Any]:
    return {
        "point": dataclasses.asdict(run.point),
        "prompts": run.prompts.tolist(),
        "tokens": run.tokens.tolist(),
        "comparisons": [_comparison(comparison) for comparison in run.comparisons],
        "bits": [{"path": path, "mode": mode, "sha256": list(digests)} for (path, mode), digests in run.bits.items()],
    }


def _comparison(comparison: PathComparison) -> dict[str, Any]:
    first, formats = comparison.first, comparison.formats
    return {
        "base": comparison.base,
        "path": comparison.path,
        "mode": comparison.mode,
        "must_equal": comparison.must_equal,
        "bytes_compared": comparison.bytes_compared,
        "bytes_differing": comparison.bytes_differing,
        "first_difference": None if first is None else {**vars(first), "index": list(first.index)},
        "formats_part": None
        if formats is None
        else {"stage": formats.stage, "base": list(formats.base), "path": list(formats.other)},
        "diverged": list(comparison.diverged),
        "growth": _growth(comparison.growth),
        "curves": {
            **{
                place: {
                    name: _numbers(values, _COSINE_DIGITS if name == "cosine" else _DIGITS)
                    for name, values in metrics.items()
                }
                for place, metrics in comparison.layers.items()
            },
            "logits": {name: _numbers(values, _DIGITS) for name, values in comparison.logits.items()},
        },
    }


def _growth(growth: Growth) -> dict[str, Any]:
    return {
        name: _number(value) if isinstance(value, float) else value
        for name, value in dataclasses.asdict(growth).items()
    }


def _numbers(values: NDArray[np.float64], digits: int) -> Any:
    if values.ndim == 1:
        return [_number(float(value), digits) for value in values]
    return [_numbers(part, digits) for part in values]


def _number(value: float, digits: int = _DIGITS) -> float | int | None:
    """That many digits; whole numbers without a point; null for what JSON has no word for."""
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded == int(rounded) and abs(rounded) < 1e15 else rounded
