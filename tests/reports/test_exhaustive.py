"""A document of every pair: what contradicts itself is refused, although its digest is right."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refmoe.catalog import source_sha256
from refmoe.exhaustive import pieces
from refmoe.exhaustive.blockwise import launches_of
from refmoe.exhaustive.run import document_of
from refmoe.reports.documents import digest_of
from refmoe.reports.exhaustive import EXHAUSTIVE, LAUNCHES, PIECES, SUBJECTS, all_pairs, failures, summary

COMMAND = "refmoe parity --level exhaustive"
PAIRS = all_pairs("bf16", "exact")
ROW = {
    "subject": "expand.8x4", "dtype": "bf16", "mode": "rceil", "edge": "exact",
    "entry": "refmoe_expand_bf16_rceil_exact_8x4", "pieces": 16, "pairs": PAIRS, "blocks": PAIRS // 31 + 9999,
    "bytes": 3 * PAIRS, "differing": 0, "first": None,
}  # fmt: skip
PROOF = {
    "entry": ROW["entry"], "launches": list(LAUNCHES["expand"]), "instructions": 300, "predicates": 24, "forced": 1,
    "bytes": 220_212, "shapes": {"codes": 1, "scales": 1}, "maximum": "max.u16x2", "refusals": [],
}  # fmt: skip


@pytest.fixture
def document() -> dict[str, Any]:
    rows, proofs = copy.deepcopy([ROW]), copy.deepcopy([PROOF])
    return document_of(rows, proofs, device="ptx", arch="sm_120a", command=COMMAND, seconds=1.0)


def judged(document: dict[str, Any]) -> list[str]:
    document["digest"] = digest_of(document)
    return [refusal.text for refusal in EXHAUSTIVE.check(Path("exhaustive.json"), document, source_sha256)]


def test_an_honest_document_passes(document: dict[str, Any]) -> None:
    assert judged(document) == []
    assert document["passed"]


def test_differing_bytes_and_refused_proofs_fail(document: dict[str, Any]) -> None:
    row = {**ROW, "differing": 3, "first": {"output": "codes"}}
    proof = {
        **PROOF,
        "refusals": ["line 3: a byte of codes depends on element 0 of the block 1 to the right of its own"],
    }
    failed = document_of([row], [proof], device="ptx", arch="sm_120a", command=COMMAND, seconds=1.0)
    assert not failed["passed"]
    assert [sentence.split(":")[0] for sentence in failures(failed)] == ["expand.8x4", f"{ROW['entry']} is not proven"]
    assert judged(failed) == [f"exhaustive.json: {sentence}" for sentence in failures(failed)]


def sums(document: dict[str, Any]) -> None:
    document["summary"] = summary(document["rows"], document["proofs"])


def change(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def apply(document: dict[str, Any]) -> None:
        document["rows"][0][key] = value
        sums(document)

    return apply


def no_rows(document: dict[str, Any]) -> None:
    document["rows"] = []
    sums(document)


def twice(document: dict[str, Any]) -> None:
    document["rows"] *= 2
    sums(document)


def no_proof(document: dict[str, Any]) -> None:
    document["proofs"] = []
    sums(document)


def empty_proof(document: dict[str, Any]) -> None:
    document["proofs"][0]["bytes"] = 0
    sums(document)


@pytest.mark.parametrize(
    ("tamper", "words"),
    [
        (no_rows, "no rows"),
        (twice, "is there 2 times"),
        (no_proof, "no proof of its entry"),
        (empty_proof, "proven over no byte"),
        (change("pairs", PAIRS - 1), "there are 1,082,065,406"),
        (change("blocks", 5), "too few for its pairs"),
        (change("bytes", 0), "of codes alone"),
        (change("differing", -1), "-1 differing bytes of"),
        (change("differing", 2), "first difference says otherwise"),
        (change("first", {"output": "codes"}), "first difference says otherwise"),
        (change("pieces", 0), "has no piece"),
        (change("entry", None), "is of the entry None"),
        (change("subject", "expand.16x4"), "is of no subject"),
        (change("mode", "best"), "is of no policy"),
        (change("edge", "soft"), "is of no policy"),
        (change("dtype", "f64"), "dtype: Input should be 'bf16' or 'fp16'"),
        (change("entry", "refmoe_expand_fp16_rceil_exact_8x4"), "needed that of bf16_rceil_exact_8x4"),
        (change("blocks", 10**30), "more than its"),
        (change("pieces", 10**12), "pieces; the sweep cuts it into 16"),
        (change("pieces", 1), "has 1 pieces; the sweep cuts it into 16"),
        (
            lambda document: document["proofs"][0].update(bytes=100_000),
            "over 100,000 bytes; its launches have 218,144 codes",
        ),
        (lambda document: document.update(command="refmoe parity"), "needed one with --level exhaustive"),
        (lambda document: document.update(command="refmoe parity --level quick"), "needed one with --level exhaustive"),
        (
            lambda document: (document.update(device="cuda"), document["environment"].update(gpu="NVIDIA H200")),
            "ran on NVIDIA H200, which is sm_90a, and says sm_120a",
        ),
        (change("pieces", 1.5), "pieces: Input should be a valid integer"),
        (change("differing", False), "differing: Input should be a valid integer"),
        (lambda document: document["proofs"][0].update(instructions=0), "no instruction, or no output"),
        (lambda document: document["proofs"][0].update(shapes={}), "no instruction, or no output"),
        (lambda document: document["proofs"][0]["shapes"].update(codes=17), "codes 17, scales 1; needed one of each"),
        (lambda document: document["proofs"][0].update(shapes={"codes": 1}), "codes 1, scales 0; needed one of each"),
        (lambda document: document["proofs"][0].update(forced=10**9), "instructions forced"),
        (lambda document: document["proofs"][0].update(maximum="guess"), "makes its amax by 'guess'"),
        (lambda document: document.update(arch="sm_1"), "arch: Input should be"),
        (lambda document: document.update(device="cuda"), "swept on cuda, and its environment names None"),
        (lambda document: document.update(command="echo"), "needed refmoe parity"),
        (lambda document: document.update(command="refmoe parity --device cuda"), "its command asks for cuda"),
        (lambda document: document.update(command="refmoe parity --arch=sm_90a"), "its command asks for sm_90a"),
        (
            lambda document: document["proofs"][0].update(launches=["trust me"]),
            "beyond those of a proof the launch 'tr",
        ),
        (lambda document: document["proofs"][0]["launches"].pop(), "lacks the launch '1 x 416, top 12 of 8"),
        (lambda document: document["proofs"][0]["launches"].append("131 x 32, grid 64"), "the launch '131 x 32, grid"),
        (lambda document: document.update(seconds=0.0), "swept in no time"),
        (lambda document: document.update(environment={}), "environment.refmoe: Field required"),
        (lambda document: document.update(note=1), "note: Extra inputs"),
        (lambda document: document["summary"].update(bytes=7), "not the sum"),
        (lambda document: document.update(passed=False), "did not pass"),
        (lambda document: document["source_sha256"].update(expand="0" * 64), "the source of expand changed"),
        (lambda document: document.update(source_sha256={}), "of which source of expand"),
        (lambda document: document.update(swept_sha256="0" * 64), "what is expected, or its sweep, changed"),
        (lambda document: document.update(proof_sha256="0" * 64), "the proof changed"),
        (lambda document: document.update(schema_version="0"), "schema version 0"),
        (lambda document: document.pop("proofs"), "has no proofs"),
    ],
)
def test_a_contradiction_is_refused(
    tamper: Callable[[dict[str, Any]], None], words: str, document: dict[str, Any]
) -> None:
    tamper(document)
    refusals = judged(document)
    assert any(words in sentence for sentence in refusals), refusals


def test_the_subjects_of_a_document_are_those_of_the_sweep() -> None:
    assert frozenset(pieces.SUBJECTS) == SUBJECTS
    assert pieces.RANGES == PIECES


@pytest.mark.parametrize("name", ["mxfp8_quantize.linear", "expand.8x4"])
def test_the_launches_of_a_proof_are_those_that_it_follows(name: str) -> None:
    subject = pieces.SUBJECTS[name]
    kernel = subject.entry("bf16", "rceil", "exact")
    assert kernel is not None
    assert tuple(each.name for each in launches_of(subject, kernel)) == LAUNCHES[subject.family]
