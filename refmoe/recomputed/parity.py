"""The inputs and the launches of the small cases of a parity report: both follow from the case alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from refmoe.catalog import parse_case
from refmoe.chips import CHIPS
from refmoe.errors import ArgumentError
from refmoe.families import FAMILIES
from refmoe.families.family import Case
from refmoe.recomputed.launches import launches_of
from refmoe.reports.checks import GateRefusal, first_and_count
from refmoe.verify.runner import input_sha256

#: Elements of the largest case that is made again: of all cases it would take minutes.
LARGEST = 1 << 16


def refusals(document: Mapping[str, Any]) -> Iterator[GateRefusal]:
    """Inputs of another hash, and launches of another kernel, grid or block."""
    yield from first_and_count("case.recomputed", _wrong(document))


def _wrong(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    gpu = document["environment"]["gpu"]
    for record in document["cases"]:
        if record["verdict"] != "PASS" or record.get("kernel"):
            continue
        try:
            case = parse_case(record["id"])
        except ArgumentError:
            continue  # said already
        # What lies before the rows of a case needs a device that keeps addresses.
        if case.get("file") or "_before=" in record["id"] or size_of(case) > LARGEST:
            continue
        name = f"case {record['id']}"
        inputs, plans = made(record["id"], record["arch"])
        if record["input_sha256"] != inputs:
            yield name, "its inputs are said to have another hash than those that its fill and seed make"
        if record["family"] not in FAMILIES:
            continue
        grids = record["device"] == "ptx" or _enabled(gpu) or bool(case.get("multiprocessors", 0))
        ours, theirs = ([_words(each, grids) for each in launches] for launches in (record["launches"], plans))
        if ours != theirs:
            said, found = (", ".join(each) or "nothing" for each in (record["launches"], plans))
            yield name, f"is said to launch {said}, and launches {found}"


@functools.lru_cache(maxsize=1 << 16)
def made(case_id: str, arch: str) -> tuple[str, tuple[str, ...]]:
    """The hash of a case's inputs and its launches, as a report writes both."""
    case = parse_case(case_id)
    chip = next(chip for chip in CHIPS.values() if chip.arch == arch)
    inputs = case.family.inputs(case.data)
    if case.family.name not in FAMILIES:
        return input_sha256(inputs), ()  # what an exhibit launches, its own host code decides
    multiprocessors = int(case.get("multiprocessors", 0)) or chip.multiprocessors
    return input_sha256(inputs), launches_of(case, inputs, arch, multiprocessors)


def size_of(case: Case) -> int:
    """Elements of a case's operands, about."""
    shape = case.shape
    return max(shape.m, 1) * max(shape.k, 1) + math.prod(max(each, 1) for each in (shape.n, shape.k, shape.e))


def _enabled(gpu: str | None) -> bool:
    """Whether a GPU has as many multiprocessors as its chip in the table: a grid may depend on them."""
    names = {chip.products[0].name.split()[0] for chip in CHIPS.values()}
    return gpu is not None and bool(names & set(gpu.split()))


def _words(launch: str, grids: bool) -> Sequence[str]:
    words = launch.split(" ")
    return words if grids else (words[0], words[-1])
