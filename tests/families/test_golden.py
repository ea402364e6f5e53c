"""The committed reports as a golden test: their case strings, their refusals and their inputs are what they were."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from refmoe.catalog import all_families, kernel_of, parse_case
from refmoe.cuda import PtxDevice
from refmoe.families.activation import LONELY, MIXED, NAN_LANES
from refmoe.families.family import Case
from refmoe.verify.kernel import Devices
from refmoe.verify.runner import input_sha256

REPORTS = Path(__file__).resolve().parents[2] / "reports"
NAMES = ("ptx", "gpu", "cutlass")


@cache
def parsed(name: str) -> list[tuple[Case, dict[str, Any]]]:
    """Every record with its case: to parse one takes longer than what a test asks of it."""
    return [(parse_case(record["id"]), record) for record in records(name)]


@cache
def records(name: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads((REPORTS / f"{name}.json").read_text())["cases"]
    return listed


@pytest.mark.parametrize("name", NAMES)
def test_every_id_parses_and_prints_byte_for_byte(name: str) -> None:
    assert len(records(name)) > 100
    for case, record in parsed(name):
        assert str(case) == record["id"]
        assert f"refmoe repro '{case}'" == record["repro"]
        assert (case.family.name, case.seed, case.device) == (record["family"], record["seed"], record["device"])


def test_every_id_of_the_baseline_parses_and_prints_byte_for_byte() -> None:
    ids = json.loads((REPORTS / "baseline.json").read_text())["cases"]
    assert len(ids) > 5000
    assert [str(parse_case(text)) for text in ids] == ids


@pytest.mark.parametrize("name", NAMES)
def test_every_refusal_is_one_that_the_case_lists_expect_and_no_other_case_is_listed_so(name: str) -> None:
    devices = Devices()
    for case, record in parsed(name):
        expected = kernel_of(case, devices).due_refusal(case, PtxDevice(record["arch"], 1))
        if record["verdict"] == "UNSUPPORTED":
            assert expected is not None, record["id"]
            assert expected in record["reason"]
        elif record["verdict"] != "SKIPPED":
            assert expected is None, record["id"]


def traits(case: Case) -> list[tuple[str, ...]]:
    """What the data of a case shows: dtype with fill, and every option that has not its default."""
    chosen = [(option, case.get(option.name)) for option in case.family.options if not option.launch]
    special = [(option.name, str(value) if option.words else "") for option, value in chosen if value != option.default]
    return [(case.family.name, *trait) for trait in [(case.dtype, case.fill), *special]]


def size(case: Case) -> int:
    shape = case.shape
    return shape.rows * max(shape.k, 1) + max(shape.n, 1) * max(shape.k, 1) * shape.e


@cache
def sample() -> dict[tuple[str, ...], tuple[Case, str]]:
    """The smallest case with rows that shows a trait, and the hash of its inputs, for all traits."""
    smallest: dict[tuple[str, ...], tuple[Case, str]] = {}
    for case, record in (each for name in NAMES for each in parsed(name) if each[1]["input_sha256"]):
        for trait in traits(case) if case.shape.m else ():
            if trait not in smallest or size(case) < size(smallest[trait][0]):
                smallest[trait] = (case, record["input_sha256"])
    return smallest


def test_the_sample_holds_every_fill_and_every_word_of_every_option() -> None:
    for name, family in all_families().items():
        # Reports hold no activations of a user.
        fills = {trait[2] for trait in sample() if trait[0] == name and trait[1] in family.dtypes}
        wanted = set(family.fills) - {"activations"}
        if family.base and name != "cutlass_gemm":
            # Of these kernels of the museum the reports hold the default level.
            assert fills <= wanted
        elif name == "swiglu_q8_1":
            # It takes activation's fills, and leaves those of single lanes to activation.
            assert wanted - fills <= {LONELY, MIXED, NAN_LANES}
        else:
            assert fills == wanted
        data = {(option.name, word) for option in family.options if not option.launch for word in option.words[1:]}
        # Of some family: no list has them all. TensorRT-LLM's rules on SM100 are for a kernel of the user's alone.
        assert data - {trait[1:] for trait in sample()} <= {("model", "sm100"), ("policy", "trtllm")}


@pytest.mark.parametrize("name", all_families())
def test_the_inputs_of_a_family_s_cases_have_not_changed(name: str) -> None:
    listed = [(case, sha256) for case, sha256 in dict.fromkeys(sample().values()) if case.family.name == name]
    assert [str(case) for case, sha256 in listed if input_sha256(case.family.inputs(case)) != sha256] == []
