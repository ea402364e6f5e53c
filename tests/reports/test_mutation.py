from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.selection.thinned import thinned

from refmoe import catalog
from refmoe.errors import ArgumentError
from refmoe.mutation import cuda, host
from refmoe.mutation.document import mutation_document, read_reasons
from refmoe.mutation.site import Site
from refmoe.mutation.trial import Tried
from refmoe.reports.documents import digest_of
from refmoe.reports.gate import check_reports
from refmoe.reports.mutation import BAR, _catches, _place, figures

Document = dict[str, Any]
COMMITTED = Path(__file__).parents[2] / "reports" / "mutation.json"


def tried(number: int, outcome: str = "caught", kernel: str = "quantize") -> Tried:
    caught = outcome in ("caught", "timed out")
    check = {"caught": "bytes", "timed out": "time", "equivalent": "SASS"}.get(outcome)
    case = "mxfp8_quantize:bf16:m1k32:gaussian:seed7@ptx" if caught else None
    name = f"cuda:{kernel}:guard:{kernel}.cu:{number}:1:a -> b"
    return Tried(name, "cuda", kernel, "guard", outcome, case, check, None, 3, 9, 0.5)  # type: ignore[arg-type]


def document(*more: Tried, caught: int = 100, reasons: dict[str, dict[str, str]] | None = None) -> Document:
    found = [*(tried(number) for number in range(caught)), *more]
    command = f"refmoe mutate --sample {len(found)}"
    return mutation_document(found, of=1000, seed=7, command=command, seconds=1.0, reasons=reasons or {})


def refusals(tmp_path: Path, made: Document) -> list[str]:
    path = tmp_path / "mutation.json"
    path.write_text(json.dumps(made))
    found = check_reports([path], None, catalog).refusals
    return [sentence.removeprefix(f"{path}: ") for sentence in found]


def test_a_document_above_the_bar_passes_the_gate(tmp_path: Path) -> None:
    others = [tried(200, "timed out"), tried(201, "equivalent"), tried(202, "does not build"), tried(203, "survived")]
    made = document(*others)
    assert refusals(tmp_path, made) == []
    assert made["summary"] == {
        "mutants": 104,
        "does_not_build": 1,
        "same_code": 1,
        "proven_by_machine": 0,
        "tried_on_every_value": 0,
        "argued_equivalent": 0,
        "caught": 100,
        "timed_out": 1,
        "survived": 1,
        "share": round(101 / 102, 4),
        "share_unargued": round(101 / 102, 4),
    }
    assert made["survivors"] == [{"id": others[3].id, "cases": 3, "verdict": "open", "reason": "nobody has looked yet"}]


def test_counts_are_by_operator_and_by_kernel() -> None:
    made = document(tried(1, "survived", "routing"), caught=2)
    assert [(row["kernel"], row["mutants"], row["share"]) for row in made["kernels"]] == [
        ("quantize", 2, 1.0),
        ("routing", 1, 0.0),
    ]
    assert [(row["operator"], row["mutants"]) for row in made["operators"]] == [("guard", 3)]


def test_one_below_the_bar_is_refused_with_both_figures(tmp_path: Path) -> None:
    made = document(*(tried(300 + number, "survived") for number in range(3)), caught=97)
    assert made["summary"]["share"] < BAR
    assert refusals(tmp_path, made) == ["97.0 % of the mutants that can be caught are; needed 98.0 %"]


def test_a_survivor_that_is_argued_to_be_equivalent_counts_as_no_fault(tmp_path: Path) -> None:
    lived = [tried(300 + number, "survived") for number in range(3)]
    proven = {each.id: {"verdict": "equivalent", "reason": "the value is never negative"} for each in lived}
    made = document(*lived, caught=97, reasons=proven)
    assert (made["summary"]["share"], made["summary"]["share_unargued"]) == (1.0, 0.97)
    assert (made["summary"]["proven_by_machine"], made["summary"]["argued_equivalent"]) == (0, 3)
    assert refusals(tmp_path, made) == []
    unseen = {each.id: {"verdict": "no case", "reason": "a check of the caller's arguments"} for each in lived}
    assert document(*lived, caught=97, reasons=unseen)["summary"]["share"] < BAR


def first(made: Document) -> Document:
    mutant: Document = made["mutants"][0]
    return mutant


def set_summary(made: Document) -> None:
    made["summary"]["caught"] += 1


def set_share(made: Document) -> None:
    made["operators"][0]["share"] = 1.0


def drop_survivor(made: Document) -> None:
    made["survivors"] = []


DAMAGE: list[tuple[Callable[[Document], Any], str]] = [
    (set_summary, "its summary is not the sum"),
    (set_share, "its counts by operators are not those"),
    (lambda made: made["kernels"].pop(), "its counts by kernels are not those"),
    (drop_survivor, "1 mutants survived, and the list of survivors has 0"),
    (lambda made: made["survivors"][0].update(reason=" "), "has no reason"),
    (lambda made: made["survivors"][0].update(verdict="fine"), "has the verdict 'fine'"),
    (lambda made: made["mutants"].append(dict(first(made))), "is listed 2 times"),
    (lambda made: first(made).update(outcome="probably caught"), "has the outcome 'probably caught'"),
    (lambda made: first(made).update(case=None), "is caught by no case"),
    (lambda made: first(made).update(check=None), "is caught by no case, or by no check"),
    (lambda made: first(made).update(cases=0), "after 0 cases"),
    (lambda made: made["mutants"][-1].update(case="a case"), "is survived and names the case"),
    (lambda made: first(made).update(outcome="equivalent", case=None), "is equivalent by 'bytes'"),
    (lambda made: made["sample"].update(tried=3), "says that 3 mutants were tried"),
    (lambda made: made["sample"].update(of=5), "mutants were tried"),
    (lambda made: made.update(passed=not made["passed"]), "against its own figures"),
    (lambda made: made["source_sha256"].update({"csrc/quantize.cu": "0" * 64}), "csrc/quantize.cu changed"),
    (lambda made: made["source_sha256"].update({"gone.py": "0" * 64}), "gone.py changed"),
    (lambda made: made.pop("survivors"), "has no survivors"),
    (lambda made: made.update(source_sha256={}), "does not say of which csrc/activation.cu it is"),
    (lambda made: made.update(mutants=made["mutants"][:1]), "it has 1 mutants; needed 100"),
    (lambda made: made.update(command="echo"), "needed refmoe mutate"),
    (lambda made: made.update(compiler=""), "compiler: String should match"),
    (lambda made: made.update(seconds=-1.0), "seconds: Input should be greater"),
    (lambda made: made.update(seconds=0.0), "tried in no time"),
    (lambda made: made.update(approved=True), "approved: Extra inputs"),
    (lambda made: made.update(passed=1), "passed: Input should be a valid boolean"),
    (lambda made: made["sample"].update(seed="x"), "sample.seed: Input should be a valid integer"),
    (lambda made: first(made).update(id="hello"), "hello is said to be of cuda, quantize, guard"),
    (lambda made: first(made).update(kernel="gemm"), "is said to be of cuda, gemm, guard"),
    (lambda made: first(made).update(floor="roof"), "floor: Input should be 'cuda', 'ptx' or 'host'"),
    (lambda made: first(made).update(case="x"), "is caught by 'x', which is no case"),
    (lambda made: first(made).update(cases=True), "cases: Input should be a valid integer"),
    (lambda made: made["mutants"][-1].update(cases=-3), "cases: Input should be greater"),
    (lambda made: made["survivors"][0].update(cases=99), "passed 99 cases, and its mutant 3"),
    (lambda made: made["survivors"][0].update(verdict="equivalent", reason="."), "said to be equivalent by '.'"),
    (
        lambda made: [each.update(outcome="equivalent", case=None, check="PTX") for each in made["mutants"][:90]],
        "90 mutants are equivalent, more than are caught",
    ),
    (lambda made: made.update(schema_version="0"), "schema version 0"),
    (lambda made: first(made).update(check="banana"), "is caught by 'banana', which is the word of no check"),
    (lambda made: first(made).update(outcome="timed out", check="bytes"), "timed out, by the check 'bytes'"),
    (lambda made: made["mutants"][-1].update(check="bytes"), "is survived, and the check 'bytes' found it"),
    (lambda made: made.update(command="refmoe mutate"), "tried 101 of 1,000 mutants, and 'refmoe mutate' tries 200"),
    (lambda made: made.update(command="refmoe mutate --sample=0"), "--sample=0' tries 1,000"),
    (lambda made: made.update(command="refmoe mutate --sample"), "does not say how many mutants it draws"),
    (lambda made: first(made).update(id="cuda:quantize:guard:gone.cu:1:1:a -> b"), "is of the file gone.cu"),
    (lambda made: first(made).update(id="cuda:quantize:guard:quantize.cu:1:1:zebra -> b"), "replaces 'zebra'"),
    (lambda made: first(made).update(id="cuda:quantize:guard:quantize.cu"), "does not name its file, line, column"),
]


RUN = {
    "inputs": 1 << 17,
    "domain": [
        {"made_by": "max.f32", "width": 32, "mask": "0x7fff0000", "beside": ["0x7fffffff"]},
        {"made_by": "setp.lt.s32", "width": 1, "mask": "0x1", "beside": []},
    ],
    "where": ["setp.le.f32(v0, 0x45800000)"],
    "steps": 12,
}


def tried_on_every_value(number: int) -> Tried:
    return replace(tried(number, "equivalent"), check="every value", runs=(RUN,))


def test_runs_over_every_value_are_listed_and_count_as_equivalent(tmp_path: Path) -> None:
    one = tried_on_every_value(600)
    made = document(one)
    assert refusals(tmp_path, made) == []
    assert made["every_value"] == [{"id": one.id, "runs": [RUN]}]
    counts = [made["summary"][key] for key in ("tried_on_every_value", "proven_by_machine", "same_code", "survived")]
    assert counts == [1, 0, 0, 0]
    assert made["summary"]["share_unargued"] == 1.0


def first_run(made: Document) -> Document:
    run: Document = made["every_value"][0]["runs"][0]
    return run


def drop_runs(made: Document) -> None:
    made["every_value"] = []


RUN_DAMAGE: list[tuple[Callable[[Document], Any], str]] = [
    (drop_runs, "1 mutants were tried on every value, and the list of runs has 0"),
    (lambda made: made["every_value"][0].update(runs=[]), "was tried on every value in no run"),
    (lambda made: first_run(made).update(inputs=1 << 16), "65,536 values of 17 bits"),
    (lambda made: first_run(made).update(domain=[]), "131,072 values of 0 bits"),
    (lambda made: first_run(made).update(steps=0), "in no step"),
    (lambda made: first_run(made)["domain"][0].update(width=16), "the word '0x7fff0000' of 16 bits"),
    (lambda made: first_run(made)["domain"][0].update(mask="all"), "the word 'all' of 32 bits"),
    (lambda made: first_run(made)["domain"][0].update(beside=["0x10000"]), "0x10000 twice"),
    (lambda made: made["mutants"][-1].update(check="proof"), "0 mutants were tried on every value"),
    (lambda made: made["mutants"][-1].update(floor="host"), "on the floor host, and was tried on every value"),
    (lambda made: made["summary"].update(tried_on_every_value=2), "its summary is not the sum"),
]


@pytest.mark.parametrize(("damage", "said"), RUN_DAMAGE, ids=[said for _, said in RUN_DAMAGE])
def test_runs_against_themselves_are_refused(tmp_path: Path, damage: Callable[[Document], Any], said: str) -> None:
    made = json.loads(json.dumps(document(tried_on_every_value(600))))
    damage(made)
    made["digest"] = digest_of(made)
    assert any(said in sentence for sentence in refusals(tmp_path, made))


@pytest.mark.parametrize(("damage", "said"), thinned(DAMAGE, 3), ids=[said for _, said in DAMAGE])
def test_a_document_against_itself_is_refused_even_with_a_right_digest(
    tmp_path: Path, damage: Callable[[Document], Any], said: str
) -> None:
    made = document(tried(500, "survived"))
    damage(made)
    made["digest"] = digest_of(made)
    assert any(said in sentence for sentence in refusals(tmp_path, made))


def test_an_edited_document_is_refused(tmp_path: Path) -> None:
    made = document()
    made["seconds"] = 2.0
    assert refusals(tmp_path, made) == ["edited after it was made; run `refmoe mutate --sample N --report FILE` again"]


def test_without_a_mutant_that_can_be_caught_there_is_no_share() -> None:
    assert figures([], {})["share"] is None
    assert not document(caught=0)["passed"]


def test_reasons_name_mutants_that_there_are_and_have_a_verdict() -> None:
    sites: dict[str, Site] = {site.id: site for file in cuda.files() for site in cuda.sites(file)}
    sites |= {site.id: site for file in host.files() for site in host.sites(file)}
    unknown = [name for name in read_reasons() if not name.startswith("ptx:") and name not in sites]
    assert not unknown, "a line has moved: `refmoe mutate --list` has the ids of today"


def test_a_reason_without_a_sentence_or_with_a_verdict_of_its_own_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "reasons.json"
    for damaged in ({"verdict": "equivalent", "reason": ""}, {"verdict": "sure", "reason": "x"}, {"reason": "x"}):
        path.write_text(json.dumps({"an id": damaged}))
        with pytest.raises(ArgumentError, match="reasons"):
            read_reasons(path)


def test_words_of_checks_are_known() -> None:
    """Those of a committed report of planted faults, and those that a trial makes itself."""
    committed = json.loads((Path(__file__).parents[2] / "reports/ptx.json").read_text())
    assert [each["check"] for each in committed["mutants"] if not _catches(each["check"])] == []
    assert all(map(_catches, ("exception", "refusal", "bytes", "another thread's", "ValueError")))


def test_a_mutant_of_every_file_is_at_a_place_that_there_is() -> None:
    for site in (*next_sites(cuda), *next_sites(host)):
        of = {"id": site.id, "floor": site.floor, "kernel": site.kernel, "operator": site.operator}
        assert list(_place(of)) == []


def next_sites(module: Any) -> list[Site]:
    """Some mutants of each file."""
    return [site for file in module.files() for site in list(module.sites(file))[::40]]


def test_no_reason_is_of_a_mutant_that_was_caught() -> None:
    """A reason says why a mutant lives; once a case catches it the reason is false."""
    outcomes = {each["id"]: each["outcome"] for each in json.loads(COMMITTED.read_text(encoding="utf-8"))["mutants"]}
    assert {name for name in read_reasons() if outcomes.get(name) in ("caught", "timed out")} == set()
