"""A document of `refmoe policy convert`: what converting block FP8 to MXFP8 loses; see docs/guides/convert.md."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from refmoe.policies.convert import LEAST, MODES, Conversion, ModeFigures, PowerOfTwoLoss
from refmoe.policies.convert_inputs import Source
from refmoe.reports.checks import GateRefusal, first_and_count
from refmoe.reports.documents import (
    Count,
    Kind,
    Model,
    PresentHash,
    Seconds,
    Sha256,
    digest_of,
    is_sha256,
    passed_refusals,
)
from refmoe.reports.environment import Environment, run_facts
from refmoe.verify.source import python_sha256

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
        **run_facts(command=command, seconds=seconds),
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
    """Of the Python sources that decide the figures, without comments and docstrings."""
    return python_sha256(_SOURCES)


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


class LossRecord(Model):
    """What a mode makes of power-of-two scales."""

    mode: str
    pairs: Count
    largest: Count
    smaller: Count


class ModeRecord(Model):
    """What a mode makes of one tensor."""

    mode: str
    direct_error: Seconds | None
    converted_error: Seconds | None
    conversion_error: Seconds | None
    added: Seconds | None
    max_relative: Seconds | None
    elements: Count
    codes_changed: Count
    values_changed: Count
    flushed: Count
    saturated: Count
    poisoned_blocks: Count


class TensorRecord(Model):
    """One tensor under one kind of scales."""

    name: str
    origin: str
    layer: str
    shape: list[Count]
    data_sha256: Sha256
    block: str
    scales: str
    tiles: Count
    powers_of_two: Count
    block_error: Seconds | None
    modes: list[ModeRecord]


class ConvertDocument(Model):
    """The keys of a document."""

    kind: Literal["convert"]
    schema_version: Literal["1"]
    created: str
    command: str
    environment: Environment
    seconds: Seconds
    source_sha256: Sha256
    power_of_two: list[LossRecord]
    tensors: list[TensorRecord]
    passed: bool
    digest: Sha256


def failures(document: Mapping[str, Any]) -> list[str]:
    """What the derivation says must hold and does not, a sentence each."""
    sentences = [
        f"{each['mode']} must convert power-of-two scales exactly; {each['largest'] + each['smaller']} pairs change"
        for each in document["power_of_two"]
        if each["mode"] == LOSSLESS and each["largest"] + each["smaller"]
    ]
    for tensor in document["tensors"]:
        modes = {each["mode"]: each for each in tensor["modes"]}
        where = _where(tensor)
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


def _where(tensor: Mapping[str, Any]) -> str:
    return f"{tensor['name']}, {tensor['scales']} scales"


def _judge(document: Mapping[str, Any], present: PresentHash) -> Iterator[GateRefusal]:
    if not document["tensors"]:
        text = f"an empty document: it holds no tensor, so it shows nothing; {CONVERT.again}"
        yield GateRefusal("convert.tensors", text)
        return
    found = failures(document)
    yield from (GateRefusal("convert.loss", sentence) for sentence in found)
    yield from passed_refusals(document, bool(found), "nothing was lost")
    if document["source_sha256"] != source_sha256():
        text = f"the Python sources that decide its figures changed since they were computed; {CONVERT.again}"
        yield GateRefusal("stale.figures", text)
    if not document["command"].startswith("refmoe policy convert") or not document["seconds"]:
        text = f"made by {document['command']!r} in {document['seconds']:g} s; needed refmoe policy convert, and a time"
        yield GateRefusal("convert.tensors", text)
    counts = {each["pairs"] for each in document["power_of_two"]}
    if len(counts) > 1:
        yield GateRefusal(
            "convert.counts", f"power-of-two scales of {sorted(counts)} pairs; each mode has the same ones"
        )
    for tensor in document["tensors"]:
        if not is_sha256(tensor["data_sha256"]) or not tensor["origin"].strip():
            text = (
                f"{_where(tensor)}: of the origin {tensor['origin']!r}, with the hash {tensor['data_sha256'][:16]}..."
            )
            yield GateRefusal("convert.tensors", text)
    yield from _modes(document)
    for tensor in document["tensors"]:
        yield from first_and_count("convert.counts", ((_where(tensor), wrong) for wrong in _counts(tensor)))


def _modes(document: Mapping[str, Any]) -> Iterator[GateRefusal]:
    """Whether every tensor, and every table, has every mode once."""
    known = [mode for mode in MODES if mode != LEAST]
    losses = [each["mode"] for each in document["power_of_two"]]
    if sorted(losses) != sorted(known):
        text = f"power-of-two scales under {', '.join(losses) or 'no mode'}; needed each of {', '.join(known)} once"
        yield GateRefusal("convert.tensors", text)
    for each in document["power_of_two"]:
        if each["largest"] + each["smaller"] > each["pairs"] or not each["pairs"]:
            text = f"{each['mode']}: {each['largest']} and {each['smaller']} of {each['pairs']} pairs change"
            yield GateRefusal("convert.counts", text)
    for tensor in document["tensors"]:
        modes = [each["mode"] for each in tensor["modes"]]
        if sorted(modes) != sorted(MODES):
            text = f"{_where(tensor)}: modes {', '.join(modes) or 'none'}; needed each of {', '.join(MODES)} once"
            yield GateRefusal("convert.tensors", text)
    keys = ("name", "origin", "scales", "block")
    held = Counter(tuple(tensor[key] for key in keys) for tensor in document["tensors"])
    for (name, _, scales, _), count in held.items():
        if count > 1:
            yield GateRefusal("convert.tensors", f"{name}, {scales} scales, is there {count} times")


def _counts(tensor: Mapping[str, Any]) -> Iterator[str]:
    """Counts that do not fit the tensor's size, and ratios that are not those of the errors."""
    elements = math.prod(tensor["shape"])
    high, wide = (int(size) for size in tensor["block"].split("x"))
    rows, columns = math.prod(tensor["shape"][:-1]), tensor["shape"][-1]
    tiles = -(-rows // high) * -(-columns // wide)
    if tensor["tiles"] != tiles:
        yield f"{tensor['tiles']} tiles, and {tensor['shape']} has {tiles} of {tensor['block']}"
    if tensor["powers_of_two"] > tensor["tiles"]:
        yield f"{tensor['powers_of_two']} scales of {tensor['tiles']} are powers of two"
    for each in tensor["modes"]:
        if each["elements"] != elements:
            yield f"{each['mode']} counts {each['elements']:,} elements of {elements:,}"
        for name in ("codes_changed", "values_changed", "flushed", "saturated"):
            if each[name] > elements:
                yield f"{each['mode']}: {name} {each[name]:,} of {elements:,} elements"
        if each["flushed"] > each["values_changed"] or each["saturated"] > each["values_changed"]:
            yield f"{each['mode']} flushes or saturates elements that it does not change"
        if each["conversion_error"] is not None and bool(each["conversion_error"]) != bool(each["values_changed"]):
            changed = f"{each['values_changed']:,} values"
            yield f"{each['mode']} changes {changed}, with an error of {each['conversion_error']}"
        if tensor["block_error"] and each["converted_error"] is not None and each["added"] is not None:
            ratio = each["converted_error"] / tensor["block_error"]
            # Both errors, and the ratio, were rounded to six digits.
            if abs(ratio - each["added"]) > 3e-5 * ratio:
                yield f"{each['mode']}: added {each['added']}, and its errors have the ratio {ratio:.6g}"


CONVERT = Kind(
    "convert", again="run `refmoe policy convert` again", judge=_judge, model=ConvertDocument, version=SCHEMA_VERSION
)
