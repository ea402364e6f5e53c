"""Bundles: made on a driver, checked, merged; and damaged, each damage with a sentence of its own."""

from __future__ import annotations

import copy
import gzip
import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.damages.sound import copied, gpu
from support.probe.executor_driver import ExecutorDriver
from support.selection.thinned import thinned
from typer.testing import CliRunner

from refmoe.cli import app
from refmoe.errors import ArgumentError
from refmoe.evidence import read_evidence
from refmoe.probe import bundle
from refmoe.probe.bundle import bundle_of, chosen, probe, summary
from refmoe.probe.claims import word_of
from refmoe.probe.hosts import CudaBox, ExecutorBox
from refmoe.probe.instructions import BY_NAME
from refmoe.probe.merge import BadBundle, check_bundle, raised, write_evidence
from refmoe.probe.sentences import chips_sentence, table
from refmoe.reports.documents import digest_of
from refmoe.reports.html import page_text, read_source
from refmoe.reports.probe import MAX_BUNDLE_BYTES, read_bundle, verdict

K8 = "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32"
HALF = "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16"
K4 = "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32"
WGMMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16"
ALONE = [("parity", "not wanted"), ("benchmarks", "not wanted")]
ROOT = Path(__file__).parents[2]
EMPTY = {"schema_version": "1", "chips": []}

Document = dict[str, Any]


@cache
def made() -> Document:
    """A bundle of three instructions through the driver's path."""
    box = CudaBox(ExecutorDriver((9, 0), "NVIDIA H200"))
    records = probe(box, chosen([K8, HALF, K4], "sm_90a"))
    return json.loads(json.dumps(bundle_of(box, records, left_out=ALONE, seconds={"probes": 1.0})))


@cache
def whole() -> Document:
    """The same with a parity report and benchmarks, as an H200 made them."""
    benchmarks = json.loads((ROOT / "reports" / "bench" / "gpu.json").read_text())
    report, machine = copied(gpu()), benchmarks["environment"]
    report["environment"] = dict(machine)
    for case in report["cases"]:
        case["compiler"] = machine["nvcc"]
    document = {**copied(made()), "parity": sealed(report), "benchmarks": benchmarks}
    document["seconds"] = {"probes": 1.0, "parity": report["seconds"] + 1.0, "benchmarks": 2.5}
    document["environment"] |= {name: machine[name] for name in ("refmoe", "python", "numpy", "platform", "driver")}
    document["left_out"] = [each for each in document["left_out"] if each["name"] not in ("parity", "benchmarks")]
    return document


def sealed(document: Document) -> Document:
    """With the digest that its content has: whoever damages a bundle can do that too."""
    return {**document, "digest": digest_of(document)}


def record(document: Document, name: str = K8) -> Document:
    return next(each for each in document["instructions"] if each["name"] == name)


def load(path: Path) -> None:
    check_bundle(read_bundle(path))


def test_a_bundle_holds_and_is_merged(tmp_path: Path) -> None:
    path = tmp_path / "bundle.json"
    path.write_text(json.dumps(made()))
    checked = check_bundle(read_bundle(path))
    assert not checked.doubts
    assert [verdict(each) for each in made()["instructions"]] == ["HOLDS"] * 3
    evidence = raised(EMPTY, checked)
    (chip,) = evidence["chips"]
    assert chip["gpu"] == "NVIDIA H200"
    assert chip["instructions"].keys() == {K8, HALF, K4}
    # What was extrapolated is hardware-checked on that chip, and nowhere else.
    assert word_of(BY_NAME[K4], "sm_90a", EMPTY) == "extrapolated"
    assert word_of(BY_NAME[K4], "sm_90a", evidence) == "hardware-checked"
    assert word_of(BY_NAME[K4], "sm_80", evidence) == "extrapolated"
    assert "| NVIDIA H200 (sm_90a) | CUDA 13.0 | 3 | 3 | 0 |" in table(evidence)
    with pytest.raises(BadBundle, match="it was merged before"):
        raised(evidence, checked)


def test_a_page_shows_what_each_instruction_answered(tmp_path: Path) -> None:
    path = tmp_path / "bundle.json"
    path.write_text(json.dumps(made()))
    text = page_text([read_source(path)])
    assert "NVIDIA H200 (sm_90a): 3 HOLDS" in text
    assert "seconds of probes" in text
    assert "seconds of parity" not in text
    for each in made()["instructions"]:
        assert f"<code>{each['name']}</code>" in text
        assert f'<td class="number">{sum(len(asked["answers"]) // 8 for asked in each["asked"]):,}</td>' in text
    assert made()["left_out"][0]["reason"] in text

    wrong = copy.deepcopy(made())
    record(wrong).update(holds=False, differing=3)
    path.write_text(json.dumps(sealed(wrong)))
    assert f"<code>{K8}: " in page_text([read_source(path)]).split("</div>")[0], "the banner names it"


def test_pages_show_the_evidence() -> None:
    root = Path(__file__).parent.parent.parent
    evidence = read_evidence()
    assert table(evidence) in (root / "docs" / "guides" / "probe.md").read_text()
    assert chips_sentence(evidence) in (root / "README.md").read_text()
    after = chips_sentence(raised(EMPTY, check_bundle(made())))
    assert after.startswith("1 chip has answered `refmoe probe` (NVIDIA H200): of 3 instructions ")
    assert after.endswith("refmoe's model holds for 3, and differs for 0.")


def test_committed_evidence_holds_only_what_a_chip_could_have_answered() -> None:
    for chip in read_evidence()["chips"]:
        assert all(chip["arch"] in BY_NAME[name].targets for name in chip["instructions"])


def test_what_is_left_out_has_a_reason() -> None:
    reasons = {each["name"]: each["reason"] for each in made()["left_out"]}
    scaled = next(name for name in BY_NAME if "mxf4nvf4" in name)
    assert reasons[scaled] == "sm_90a does not have it: it needs sm_120a or sm_121a"
    assert "tcgen05.mma" in reasons


def wrong_chip(spoiled: Callable[[int, Any], None], names: list[str]) -> Document:
    box = CudaBox(ExecutorDriver((9, 0), "NVIDIA H200", spoiled))
    return json.loads(
        json.dumps(bundle_of(box, probe(box, chosen(names, box.target)), left_out=ALONE, seconds={"probes": 1.0}))
    )


def test_a_chip_that_computes_otherwise_is_contradicted_and_stays_so() -> None:
    def negates_zero(launch: int, array: Any) -> None:
        array[array == 0] = 0x80000000

    document = wrong_chip(negates_zero, [K8])
    assert verdict(record(document)) == "DIFFERS"
    checked = check_bundle(document)
    evidence = raised(EMPTY, checked)
    assert word_of(BY_NAME[K8], "sm_90a", evidence) == "contradicted"
    assert "DIFFERS" in summary(document)


def test_a_chip_that_answers_otherwise_the_second_time_is_unstable_and_holds_nothing() -> None:
    def noise(launch: int, array: Any) -> None:
        if launch == 7:
            array[:] ^= 1

    document = wrong_chip(noise, [K8])
    assert record(document)["status"] == "unstable"
    assert "two asks of the question" in record(document)["said"]
    check_bundle(document)
    assert verdict(record(document)) == "DIFFERS"


def test_a_bundle_of_the_executor_is_sound_and_raises_nothing() -> None:
    box = ExecutorBox("sm_120a")
    checked = check_bundle(
        json.loads(
            json.dumps(bundle_of(box, probe(box, chosen([K8], box.target)), left_out=ALONE, seconds={"probes": 1.0}))
        )
    )
    with pytest.raises(BadBundle, match="its answers are the executor's"):
        raised(EMPTY, checked)


def test_two_chips_of_one_name_that_differ_are_refused() -> None:
    evidence = raised(EMPTY, check_bundle(made()))
    evidence["chips"][0]["digest"] = "0" * 64
    evidence["chips"][0]["instructions"][K8]["parameters"]["align_bits"] = 24
    with pytest.raises(BadBundle, match=f"another bundle of NVIDIA H200, made .* gives other parameters of {K8}"):
        raised(evidence, check_bundle(made()))


def test_two_cards_of_one_architecture_that_contradict_each_other_are_refused_by_name() -> None:
    evidence = raised(EMPTY, check_bundle(made()))
    evidence["chips"][0] |= {"digest": "0" * 64, "gpu": "NVIDIA H100 80GB HBM3"}
    assert len(raised(evidence, check_bundle(made()))["chips"]) == 2
    evidence["chips"][0]["instructions"][K8]["parameters"]["align_bits"] = 24
    sentence = f"NVIDIA H100 80GB HBM3 and NVIDIA H200 are both sm_90a, and contradict each other on {K8}"
    with pytest.raises(BadBundle, match=sentence):
        raised(evidence, check_bundle(made()))
    evidence["chips"][0]["arch"] = "sm_80"
    assert len(raised(evidence, check_bundle(made()))["chips"]) == 2


def test_a_bundle_with_a_parity_report_and_benchmarks_is_sound() -> None:
    checked = check_bundle(sealed(copied(whole())))
    assert not checked.doubts
    # Sources of the test's report are made up, which is no fault of the bundle.
    assert all("changed since" in each for each in checked.findings)


def test_a_parity_report_of_a_gpu_without_torch_is_sound_and_one_without_a_driver_is_not(tmp_path: Path) -> None:
    document = copied(whole())
    document["parity"]["environment"]["torch"] = None
    document["parity"] = sealed(document["parity"])
    assert not check_bundle(sealed(document)).doubts
    document["parity"]["environment"]["driver"] = None
    document["parity"] = sealed(document["parity"])
    refused(document, "its environment names driver None, and the bundle's CUDA 13.0", tmp_path)


@pytest.mark.parametrize("verdicts", [["SKIPPED", "SKIPPED", "SKIPPED"], ["SKIPPED", "PASS", "SKIPPED"]])
def test_a_report_in_which_no_case_ran_is_left_out_with_the_reason(
    verdicts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = ["CuTe DSL is not installed", "this package has no PTX", "this package has no PTX"]
    report = {"cases": [{"verdict": v, "reason": r} for v, r in zip(verdicts, reasons, strict=True)]}

    def run(command: list[str], **given: Any) -> Any:
        Path(command[-1]).write_text(json.dumps(report))

    monkeypatch.setattr(bundle.subprocess, "run", run)
    found, reason = bundle.made_by_command(["parity"])
    assert (found, reason) == ((report, "") if "PASS" in verdicts else (None, "this package has no PTX"))


def test_the_last_lines_say_what_is_left_out_and_why() -> None:
    left_out = [("parity", "the driver is too old"), ("benchmarks", "not wanted")]
    said = summary(bundle_of(ExecutorBox("sm_80"), [], left_out=left_out, seconds={}))
    assert "without parity: the driver is too old\n" in said
    assert "without benchmarks" not in said


def test_bytes_that_differ_on_a_chip_are_told_and_refuse_nothing() -> None:
    document = copied(whole())
    case = document["parity"]["cases"][0]
    case |= {"verdict": "ERROR", "evidence": "none", "compared": 0, "reason": "the kernel did not end", "stage": None}
    case["differing"] = dict.fromkeys(case["differing"], 0)
    document["parity"] = sealed({**document["parity"], "summary": {"PASS": 1, "ERROR": 1}})
    checked = check_bundle(sealed(document))
    assert any("the kernel did not run to its end" in each for each in checked.findings)


# --- damage ---------------------------------------------------------------------------------------------------------


def with_record(change: Callable[[Document], Any]) -> Callable[[Document], Any]:
    return lambda document: change(record(document))


def flip(asked: Document, keys: tuple[str, ...]) -> None:
    for key in keys:
        asked[key] = ("0" if asked[key][0] != "0" else "1") + asked[key][1:]


def first(document: Document) -> Document:
    found: Document = record(document)["asked"][0]
    return found


def swap(each: Document) -> None:
    each["asked"][0], each["asked"][1] = each["asked"][1], each["asked"][0]


def widen(asked: Document) -> None:
    for key in ("answers", "again"):
        asked[key] = "f" + asked[key][1:]


def huge(path: Path, text: str) -> None:
    path.write_bytes(b"")
    os.truncate(path, MAX_BUNDLE_BYTES + 1)


def shorten(asked: Document) -> None:
    asked["answers"], asked["again"] = asked["answers"][8:], asked["again"][8:]


DAMAGE: dict[str, tuple[Callable[[Document], Any], str]] = {
    "version": (lambda d: d.update(schema_version="3"), "a bundle of schema version 3; this refmoe reads version 2"),
    "kind": (lambda d: d.update(kind="stress"), "is no bundle of `refmoe probe`: its kind is 'stress'"),
    "key": (lambda d: d.update(more=1), "no valid bundle: more: Extra inputs are not permitted"),
    "type": (lambda d: d.update(instructions={}), "no valid bundle: instructions: Input should be a valid list"),
    "time": (lambda d: d.update(created="2999-01-01T00:00:00+00:00"), "which has not come yet"),
    "chip sold as another": (lambda d: d.update(arch="sm_120a"), "which is sm_90a, and says sm_120a"),
    "no chip's name": (lambda d: d.update(gpu=" "), "needed the GPU's name"),
    "unknown chip": (lambda d: d.update(gpu="X", arch="sm_70"), "which is the arch of no chip that is known"),
    "nothing": (lambda d: d.update(instructions=[]), "it holds no instruction, so it says nothing"),
    "twice": (lambda d: d["instructions"].append(d["instructions"][0]), f"the instruction {K8} is there 2 times"),
    "unknown instruction": (with_record(lambda r: r.update(name="mma.x")), "there is no instruction mma.x"),
    "instruction of another chip": (
        lambda d: (d.update(gpu="X", arch="sm_80"), record(d).update(name=WGMMA)),
        f"{WGMMA} was answered by sm_80, which does not have it: it needs sm_90a",
    ),
    "odd digits": (lambda d: first(d).update(answers="123"), "String should match pattern"),
    "two runs": (lambda d: flip(first(d), ("again",)), "differ, and it says that it is inferred"),
    "two runs of other lengths": (
        lambda d: first(d).update(again=first(d)["again"][8:]),
        "have different numbers of answers",
    ),
    "an answer": (lambda d: flip(record(d)["asked"][-1], ("answers", "again")), "its answers are contradiction"),
    "fewer answers": (lambda d: shorten(first(d)), "answers to the"),
    "fewer questions": (with_record(lambda r: r["asked"].pop()), "its answers end before the question"),
    "more questions": (with_record(lambda r: r["asked"].append(r["asked"][0])), "that no inference asks for there"),
    "order": (with_record(swap), "stand where"),
    "operands": (lambda d: first(d).update(sha256="ab" * 32), "are others than this refmoe asks with"),
    "parameters": (
        with_record(lambda r: r["parameters"].update(align_bits=24)),
        "it claims align_bits 24, and its answers give 25",
    ),
    "a parameter that there is not": (
        with_record(lambda r: r["parameters"].update(speed=1)),
        "it claims speed 1, and its answers give None",
    ),
    "verdict": (with_record(lambda r: r.update(holds=False)), "it says holds False, and its answers give True"),
    "count": (with_record(lambda r: r.update(differing=3)), "it says differing 3, and its answers give 0"),
    "model": (with_record(lambda r: r.update(model="sm120")), "it says model 'sm120'"),
    "status": (
        with_record(lambda r: r.update(status="contradiction", said="x", parameters=None)),
        "it says that it is contradiction, and its answers are inferred: a model fits",
    ),
    "status without a sentence": (
        with_record(lambda r: r.update(status="unstable")),
        "its parameters or its sentence say otherwise",
    ),
    "unanswered with answers": (
        with_record(lambda r: r.update(status="unanswered", said="x", parameters=None)),
        "it says that it was not answered, and it holds answers",
    ),
    "unanswered that holds": (
        with_record(lambda r: r.update(status="unanswered", said="x", parameters=None, asked=[])),
        "it says that it was not answered, and whether the model holds",
    ),
    "wide answer": (
        lambda d: widen(record(d, HALF)["asked"][1]),
        "has more than the 16 bits of its accumulator",
    ),
    "driver of the past": (
        lambda d: d["environment"].update(driver="CUDA 1.0"),
        "its environment names driver CUDA 1.0, and refmoe needs cuda 12.0 or newer",
    ),
    "no driver": (lambda d: d["environment"].update(driver=None), "and its environment names no driver"),
    "a driver that is none": (lambda d: d["environment"].update(driver="535.1"), "environment.driver: String should"),
    "a Python to come": (lambda d: d["environment"].update(python="9.1"), "python 9.1 has not come yet"),
    "a refmoe to come": (lambda d: d["environment"].update(refmoe="99.0"), "made by refmoe 99.0, and this one"),
    "no platform": (lambda d: d["environment"].update(platform="abc"), "the platform 'abc', which is no system"),
    "nothing left out": (lambda d: d.update(left_out=[]), "is not there, and nothing says why"),
    "left out and there": (
        lambda d: d["left_out"].append({"name": K8, "reason": "not wanted"}),
        f"it says that it leaves out {K8}, which it holds or which there is not",
    ),
    "left out twice": (lambda d: d["left_out"].append(d["left_out"][0]), "it says 2 times that it leaves out"),
    "left out for another reason": (
        lambda d: d["left_out"][-1].update(reason="x"),
        "because 'x'; needed \"a sparse product is",
    ),
    "left out for none": (lambda d: d["left_out"][0].update(reason=" "), "it leaves out parity without a reason"),
    "no seconds": (lambda d: d["seconds"].update(probes=None), "it holds probes, and says that they took None seconds"),
    "seconds of no time": (lambda d: d["seconds"].update(probes=0.0), "it holds probes, and says that they took 0.0"),
    "seconds below zero": (lambda d: d["seconds"].update(probes=-1.0), "seconds.probes: Input should be greater"),
    "seconds of nothing": (
        lambda d: d["seconds"].update(parity=3.0),
        "it says that parity took 3 seconds, and holds none",
    ),
    "seconds of an age": (lambda d: d["seconds"].update(probes=1e12), "which began before there was any report"),
    "a part dropped": (lambda d: d["left_out"].pop(1), "benchmarks is not there, and nothing says why"),
}  # fmt: skip


@pytest.mark.parametrize("name", thinned(DAMAGE, 3))
def test_damage_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    change, sentence = DAMAGE[name]
    document = copy.deepcopy(made())
    change(document)
    refused(document, sentence, tmp_path)


def refused(document: Document, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "bundle.json"
    path.write_text(json.dumps(sealed(document)))
    result = CliRunner().invoke(app, ["probe", "--merge", str(path), "--check"])
    assert result.exit_code == 2
    assert sentence in result.output
    assert len(result.output.strip().splitlines()) == 1


def of(part: str, change: Callable[[Document], Any]) -> Callable[[Document], Any]:
    """A change of a report in the bundle, which is sealed again."""

    def damage(document: Document) -> None:
        change(document[part])
        document[part] = sealed(document[part])

    return damage


INSIDE: dict[str, tuple[Callable[[Document], Any], str]] = {
    "parity that is none": (
        lambda d: d.update(parity={"nonsense": 1}),
        "its parity report: JSON, but no refmoe report: it has no schema_version or no cases",
    ),
    "parity of a digest": (lambda d: d["parity"].update(seconds=1.5), "its parity report: edited after it was made"),
    "parity of a key": (of("parity", lambda p: p.update(more=1)), "its parity report: no valid report: more: Extra"),
    "parity of another chip": (
        of("parity", lambda p: p["cases"][0].update(arch="sm_120a")),
        "ran on cuda for sm_120a, and the bundle is of cuda, sm_90a",
    ),
    "parity of another GPU": (
        of("parity", lambda p: p["environment"].update(gpu="NVIDIA H100")),
        "its GPU is NVIDIA H100, and the bundle's NVIDIA H200",
    ),
    "parity of a hash": (of("parity", lambda p: p["cases"][0].update(seed=9)), "its parity report: "),
    "parity of a time": (of("parity", lambda p: p.update(created="2999-01-01T00:00:00+00:00")), "has not come yet"),
    "parity in no time": (lambda d: d["seconds"].update(parity=0.01), "seconds, and the whole command 0.01"),
    "benchmarks that are none": (lambda d: d.update(benchmarks={"nonsense": 1}), "needed 'bench' and 'gpu'"),
    "a time below zero": (
        of("benchmarks", lambda b: b["rows"][0].update(microseconds=-5.0)),
        "its benchmarks: gpu, rows, 0, microseconds: found -5.0; needed a time of zero or more",
    ),
    "benchmarks of a digest": (
        lambda d: d["benchmarks"]["rows"][0].update(microseconds=5.0),
        "its benchmarks: edited after it was made",
    ),
    "benchmarks of a driver": (
        of("benchmarks", lambda b: b["environment"].update(driver="CUDA 12.8")),
        "its environment names driver CUDA 12.8, and the bundle's CUDA 13.0",
    ),
    "benchmarks of another GPU": (
        of("benchmarks", lambda b: (b.update(gpu="NVIDIA H200 NVL"), b["environment"].update(gpu="NVIDIA H200 NVL"))),
        "of NVIDIA H200 NVL, sm_90a, and the bundle is of NVIDIA H200, sm_90a",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", INSIDE)
def test_damage_of_a_report_inside_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    change, sentence = INSIDE[name]
    document = copied(whole())
    change(document)
    refused(document, sentence, tmp_path)


def spoil_digest(path: Path, text: str) -> None:
    path.write_text(text.replace('"holds": true', '"holds": false', 1))


FILES: dict[str, tuple[Callable[[Path, str], Any], str]] = {
    "digest": (spoil_digest, "does not have the digest that it states"),
    "truncated": (lambda path, text: path.write_text(text[:-40]), "it ends in the middle"),
    "empty": (lambda path, text: path.write_text(""), "the file is empty"),
    "compressed": (lambda path, text: path.write_bytes(gzip.compress(text.encode())), "it is compressed by gzip"),
    "zip": (lambda path, text: path.write_bytes(b"PK\x03\x04" + bytes(99)), "it is compressed by zip"),
    "no UTF-8": (lambda path, text: path.write_bytes(text.encode().replace(b"H200", b"H\xff00")), "cannot be read"),
    "not a number": (lambda path, text: path.write_text(text.replace("null", "NaN", 1)), "JSON has no word"),
    "a key twice": (lambda path, text: path.write_text('{"kind": "x", ' + text[1:]), "has the key 'kind' twice"),
    "a list": (lambda path, text: path.write_text("[]"), "holds a list and no more"),
    "nested": (lambda path, text: path.write_text("[" * 200_000), "nested too deeply"),
    "a pipe": (lambda path, text: os.mkfifo(path), "a pipe, and no file"),
    "a folder": (lambda path, text: path.mkdir(), "a folder with the name of a report"),
    "absent": (lambda path, text: None, "No such file"),
    "a link to nothing": (lambda path, text: path.symlink_to(path.parent / "x"), "which is not there"),
    "huge": (huge, "no report is larger than"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_bundle_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    write, sentence = FILES[name]
    path = tmp_path / "bundle.json"
    write(path, json.dumps(made()))
    result = CliRunner().invoke(app, ["probe", "--merge", str(path), "--check"])
    assert result.exit_code == 2
    assert sentence in result.output
    assert len(result.output.strip().splitlines()) == 1


# --- the command ----------------------------------------------------------------------------------------------------


def test_merge_writes_the_evidence_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evidence, path = tmp_path / "evidence.json", tmp_path / "bundle.json"
    evidence.write_text(json.dumps(EMPTY))
    path.write_text(json.dumps(made()))
    monkeypatch.setattr(read_evidence, "__defaults__", (evidence,))
    monkeypatch.setattr(write_evidence, "__defaults__", (evidence,))
    assert CliRunner().invoke(app, ["probe", "--merge", str(path)]).exit_code == 0
    after = evidence.read_text()
    assert json.loads(after)["chips"][0]["gpu"] == "NVIDIA H200"
    refused = CliRunner().invoke(app, ["probe", "--merge", str(path)])
    assert refused.exit_code == 2
    assert "it was merged before" in refused.output
    assert evidence.read_text() == after


def test_check_shows_what_each_part_took(tmp_path: Path) -> None:
    path = tmp_path / "bundle.json"
    path.write_text(json.dumps(sealed(whole())))
    shown = CliRunner().invoke(app, ["probe", "--merge", str(path), "--check"])
    assert shown.exit_code == 0
    parity = whole()["seconds"]["parity"]
    assert f"took: probes 1.0 s, parity {parity:,.1f} s, benchmarks 2.5 s\n" in shown.stdout


def test_the_command_writes_a_bundle_that_merges(tmp_path: Path) -> None:
    path = tmp_path / "out" / "bundle.json"
    result = CliRunner().invoke(app, ["probe", "--arch", "sm_90a", "--instruction", K8, "--bundle", str(path)])
    assert result.exit_code == 0
    assert "1 HOLDS" in result.stdout
    assert "took: probes " in result.stdout
    load(path)
    assert os.listdir(path.parent) == ["bundle.json"]


def test_an_interrupted_command_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(ExecutorBox, "run", interrupted)
    path = tmp_path / "bundle.json"
    result = CliRunner().invoke(app, ["probe", "--instruction", K8, "--bundle", str(path)])
    assert result.exit_code == 130
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--device", "tpu"], "--device: found 'tpu'"),
        (["--arch", "sm_70"], "--arch: found 'sm_70'"),
        (["--instruction", "mma.x"], "a name that `refmoe probe --list` prints"),
        (["--arch", "sm_80", "--instruction", WGMMA], "needed a chip of sm_90a"),
        (["--only", "speed"], "--only: found 'speed'"),
        (["--check"], "--check: found without --merge"),
    ],
)
def test_wrong_usage_is_a_sentence(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(app, ["probe", *arguments])
    assert result.exit_code == 2
    assert sentence in result.output


def test_names_that_there_are_not_are_errors() -> None:
    with pytest.raises(ArgumentError, match="instruction: found str 'x'"):
        chosen(["x"], "sm_80")
