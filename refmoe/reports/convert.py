"""A document of `refmoe policy convert`: what converting block FP8 to MXFP8 loses; see docs/guides/convert.md."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from refmoe.policies.convert import Conversion, ModeFigures, PowerOfTwoLoss
from refmoe.policies.convert_inputs import Source
from refmoe.reports.documents import Kind, PresentHash, digest_of
from refmoe.reports.environment import current_environment

SCHEMA_VERSION = "1"

#: What decides the figures.
_SOURCES = (
    *("formats.py", "policy.py", "draw.py"),
    *(f"reference/{name}.py" for name in ("block_fp8", "quantize", "dequantize", "fp32")),
    *("policies/convert.py", "policies/convert_inputs.py"),
)
_DIGITS = 6

#: The mode that converts power-of-two scales without loss.
LOSSLESS = "rceil"
#: The bound on all modes.
LEAST = "least"


def convert_document(
    found: Sequence[tuple[Source, Conversion]],
    losses: Sequence[PowerOfTwoLoss],
    *,
    command: str,
    seconds: float,
) -> dict[str, Any]:
    """Every figure as JSON values; errors to six digits, null where one is not defined.

    Args:
        found: tensors, each with what became of it; a tensor may occur once for each kind of scales.
        losses: of power-of-two scales, by mode.
        command: what the user typed.
        seconds: the time that it took.
    """
    document: dict[str, Any] = {
        "kind": CONVERT.name,
        "schema_version": SCHEMA_VERSION,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": command,
        "environment": current_environment(gpu=False).model_dump(mode="json"),
        "seconds": round(seconds, 1),
        "source_sha256": source_sha256(),
        "power_of_two": [dataclasses.asdict(loss) for loss in losses],
        "tensors": [tensor_entry(source, conversion) for source, conversion in found],
    }
    document["passed"] = not failures(document)
    return {**document, "digest": digest_of(document)}


def tensor_entry(source: Source, conversion: Conversion) -> dict[str, Any]:
    """The figures of one tensor."""
    data = source.x if source.x is not None else _codes(source)
    return {
        "name": source.name,
        "origin": source.origin,
        "layer": source.kind,
        "shape": list(conversion.shape),
        "data_sha256": hashlib.sha256(np.ascontiguousarray(data).tobytes()).hexdigest(),
        "block": conversion.block,
        "scales": conversion.scales,
        "tiles": conversion.tiles,
        "powers_of_two": conversion.powers_of_two,
        "block_error": _number(conversion.block_error),
        "modes": [_mode(figures, conversion.block_error) for figures in conversion.modes],
    }


def _codes(source: Source) -> Any:
    """The codes of a tensor that is in block FP8 already."""
    assert source.stored is not None
    return source.stored.codes


def source_sha256() -> str:
    """Of the Python sources that decide the figures, by name and content."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for name in _SOURCES:
        content = (root / name).read_bytes()
        digest.update(f"{name}\n{len(content)}\n".encode() + content)
    return digest.hexdigest()


def _mode(figures: ModeFigures, block_error: float) -> dict[str, Any]:
    converted = figures.converted.relative_l2
    return {
        "mode": figures.mode,
        "direct_error": _number(figures.direct.relative_l2),
        "converted_error": _number(converted),
        "conversion_error": _number(figures.conversion.relative_l2),
        "added": _number(converted / block_error if block_error else math.nan),
        "max_relative": _number(figures.max_relative),
        "elements": figures.elements,
        "codes_changed": figures.codes_changed,
        "values_changed": figures.values_changed,
        "flushed": figures.flushed,
        "saturated": figures.saturated,
        "poisoned_blocks": figures.poisoned,
    }


def _number(value: float) -> float | None:
    """Six digits; null for what JSON has no word for."""
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def failures(document: Mapping[str, Any]) -> list[str]:
    """What the derivation says must hold and does not, a sentence each."""
    sentences = [
        f"{each['mode']} must convert power-of-two scales exactly; {each['largest'] + each['smaller']} pairs change"
        for each in document["power_of_two"]
        if each["mode"] == LOSSLESS and each["largest"] + each["smaller"]
    ]
    for tensor in document["tensors"]:
        modes = {each["mode"]: each for each in tensor["modes"]}
        where = f"{tensor['name']}, {tensor['scales']} scales"
        lossless = modes.get(LOSSLESS)
        if lossless is not None and tensor["powers_of_two"] == tensor["tiles"] and lossless["values_changed"]:
            sentences.append(f"{where}: every scale is a power of two, and {LOSSLESS} changes values")
        if lossless is not None and lossless["saturated"]:
            sentences.append(f"{where}: {LOSSLESS} saturates elements")
        bound = modes.get(LEAST, {}).get("conversion_error")
        below = [
            name
            for name, each in modes.items()
            if bound is not None and each["conversion_error"] is not None and each["conversion_error"] < bound
        ]
        sentences += [f"{where}: {name} loses less than the least error of any scale" for name in below]
    return sentences


def _judge(document: Mapping[str, Any], present: PresentHash) -> list[str]:
    if not document["tensors"]:
        return [f"an empty document: it holds no tensor, so it shows nothing; {CONVERT.again}"]
    return failures(document) or ([] if document["passed"] else ["says itself that it did not pass"])


CONVERT = Kind(
    "convert",
    again="run `refmoe policy convert` again",
    keys=frozenset(("tensors", "power_of_two", "passed")),
    judge=_judge,
    version=SCHEMA_VERSION,
)
