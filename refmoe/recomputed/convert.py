"""The figures of `refmoe policy convert`: its built-in tensors ship with the package or follow from a seed."""

from __future__ import annotations

import dataclasses
import functools
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from refmoe.policies.convert import compare_conversion, power_of_two_losses
from refmoe.policies.convert_inputs import built_in_sources
from refmoe.recomputed.values import partings
from refmoe.reports.checks import GateRefusal, first_and_count
from refmoe.reports.convert import CONVERT, tensor_entry


def refusals(document: Mapping[str, Any]) -> Iterator[GateRefusal]:
    """Tensors that are missing or beyond those that the command converts, and figures that are not theirs.

    Of a user's file the figures are not computed anew: it may lie elsewhere.
    """
    yield from first_and_count("convert.recomputed", _wrong(document))


def _wrong(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    try:
        words = shlex.split(document["command"])
    except ValueError as error:
        yield f"its command {document['command']!r}", f"is no command: {error}"
        return
    if words[:3] != ["refmoe", "policy", "convert"]:
        yield f"its command {document['command']!r}", "converts nothing; needed refmoe policy convert"
        return
    yield from partings(document["power_of_two"], losses(), "power_of_two")
    given = any(word.partition("=")[0] == "--input" for word in words)
    origins = {tensor["origin"] for tensor in document["tensors"]}
    if given:
        if origins != {"file"}:
            yield "its tensors", f"are {', '.join(sorted(origins - {'file'}))}, and its command names files"
        return
    wanted = {(entry["name"], entry["scales"]): entry for entry in built_in()}
    held = {(entry["name"], entry["scales"]): entry for entry in document["tensors"]}
    for name, scales in wanted.keys() - held.keys():
        yield f"{name}, {scales} scales", f"is missing, and the command converts it; {CONVERT.again}"
    for name, scales in held.keys() - wanted.keys():
        yield f"{name}, {scales} scales", "is none of the tensors that the command converts"
    for key in (key for key in wanted if key in held):
        asked = [mode["mode"] for mode in held[key]["modes"]]
        entry = {**wanted[key], "modes": [mode for mode in wanted[key]["modes"] if mode["mode"] in asked]}
        yield from partings(held[key], entry, f"{key[0]}, {key[1]} scales")


@functools.cache
def losses() -> list[dict[str, Any]]:
    """What a document has of power-of-two scales."""
    return [dataclasses.asdict(loss) for loss in power_of_two_losses()]


@functools.cache
def built_in() -> list[dict[str, Any]]:
    """What a document has of the tensors that are converted where no file is named."""
    return [
        tensor_entry(source, compare_conversion(source.x, block=source.block, scales=scales))
        for source in built_in_sources()
        for scales in ("fp32", "ue8m0")
    ]
