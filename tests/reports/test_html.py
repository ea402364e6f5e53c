"""The HTML page: what a reader must find on it, and what must never be lost."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.verify import CASE, ENVIRONMENT, result, stand_in, write_document
from typer.testing import CliRunner

from refmoe import catalog
from refmoe.catalog import source_sha256
from refmoe.cli import app
from refmoe.reports.documents import ReportError, digest_of
from refmoe.reports.gate import KINDS, check_reports
from refmoe.reports.html import MAX_BYTES, page_of, page_text, read_source
from refmoe.reports.html.curves import curves_svg
from refmoe.reports.html.heatmap import extent_text, heatmap_svg, key_text
from refmoe.reports.html.page import SECTIONS
from refmoe.reports.html.section import Limits
from refmoe.reports.mutation import GROUPS, figures, grouped
from refmoe.reports.parity import MismatchMapRecord, make_report
from refmoe.silicon import conformance
from refmoe.verify import kernel
from refmoe.verify.compare import MismatchMap, mismatch_map
from refmoe.verify.verdict import Result, Verdict

ROOT = Path(__file__).parent.parent.parent
GPU = replace(CASE, device="cuda")
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """The page's text and attributes; fails where tags do not close as they opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.tags: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open
        self.text = " ".join("".join(self.words).split())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.words.append(" ")
        for name, value in attributes:
            assert not name.startswith("on"), "no script is needed to read a page"
            if name in ("href", "src"):
                self.links.append(str(value))
            if name == "id":
                self.ids.add(str(value))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        # HTML closes <p> and <li> by itself; this page does not rely on it.
        assert self.open.pop() == tag
        self.words.append(" ")

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)


def page(results: list[Result], **arguments: Any) -> Page:
    return Page(
        page_of(make_report(results, command="refmoe parity", environment=ENVIRONMENT, seconds=2.5), **arguments)
    )


def a_map(rows: int = 5, columns: int = 416, places: tuple[int, ...] = (7, 500)) -> MismatchMap:
    return mismatch_map("codes", None, (rows, columns), np.array(places, np.int64))


def record(**changes: Any) -> MismatchMapRecord:
    from dataclasses import asdict

    return MismatchMapRecord.model_validate({**asdict(a_map()), **changes})


def test_the_verdict_stands_first_and_the_reason_below_it() -> None:
    bad = result(CASE.on("ptx", "sm_121a"), Verdict.MISMATCH, first_mismatch="codes[5, 421] differs", maps=(a_map(),))
    found = page([result(), bad])
    assert found.text.startswith(
        "FAIL: refmoe report refmoe report FAIL 1 of 2 cases fail: 1 MISMATCH MISMATCH expand: codes[5, 421] differs"
    )
    assert bad.repro in found.text
    assert "bit-exact on ptx" not in found.text
    assert "codes: 2 differ, all within rows 0–1 of 5 and columns 7–84 of 416" in found.text


def test_a_passing_page_says_so_and_what_it_rests_on() -> None:
    found = page([result(), result(GPU, Verdict.UNSUPPORTED, reason="no", evidence="none", expected=True)])
    assert "PASS 1 of 2 cases pass, 1 UNSUPPORTED" in found.text
    assert "bit-exact on ptx: the PTX that the compiler made" in found.text
    assert "Failing cases" not in found.text


def test_nothing_ran_is_no_pass() -> None:
    assert "NOTHING RAN" in page([result(verdict=Verdict.SKIPPED, reason="no nvcc", evidence="none")]).text


def test_a_report_of_sources_that_changed_is_stale_and_not_green(tmp_path: Path) -> None:
    path = write_document(tmp_path / "a.json", [result(GPU, source_sha256="0" * 64)])
    text = Page(page_text([read_source(path)], source_sha256)).text
    assert "STALE 1 of 1 cases pass; the sources of expand changed since" in text
    assert "CHANGED" in text
    path = write_document(tmp_path / "b.json", [result(GPU)])
    assert "PASS 1 of 1 cases pass" in Page(page_text([read_source(path)], source_sha256)).text


def test_a_surviving_mutant_fails_the_page(tmp_path: Path) -> None:
    mutant = {"name": "01-x", "fault": "FLOOR.", "kind": "k", "caught": False, "case": None, "verdict": None}
    path = write_document(tmp_path / "a.json", [result()], mutants=[{**mutant, "finding": None, "cases": 9}])
    text = Page(page_text([read_source(path)])).text
    assert "FAIL 1 of 1 cases pass; 0 of 1 planted faults caught not caught: 01-x: FLOOR." in text
    assert "SURVIVED" in text


def test_the_page_asks_nothing_of_a_network_and_runs_no_script() -> None:
    bad = result(verdict=Verdict.MISMATCH, first_mismatch="x", maps=(a_map(),))
    text = page_of(make_report([bad], command="x", environment=ENVIRONMENT, seconds=1.0))
    found = Page(text)
    assert found.links
    assert all(link.startswith(("data:image/png;base64,", "#")) for link in found.links)
    assert not {"script", "link", "iframe", "object"} & set(found.tags)
    assert "http" not in re.sub(r"data:image/png;base64,[A-Za-z0-9+/=]+", "", text.replace("http-equiv", ""))
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text


def test_what_a_case_says_cannot_become_markup() -> None:
    evil = '<script>alert(1)</script> & "quotes" \x00\x1b[31m'
    text = page_of(
        make_report(
            [result(verdict=Verdict.ERROR, reason=evil)], command=evil[:40], environment=ENVIRONMENT, seconds=1.0
        )
    )
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]", text)
    text.encode("utf-8")


def many(count: int, **fields: Any) -> Iterator[Result]:
    one = result(CASE, Verdict.MISMATCH, **fields)
    for seed in range(count):
        case = replace(CASE, seed=seed)
        yield replace(one, case=case, id=str(case), repro=f"refmoe repro '{case}'")


def test_every_failing_case_is_on_the_page_or_counted_there() -> None:
    limits = Limits()
    total = limits.cards + limits.failing + 70
    # So many that their messages make the page larger than it may be: it then shows fewer, and says so.
    for message in ("m", "m" * 3000):
        text = page(list(many(total, first_mismatch=message))).text
        shown = set(re.findall(r"refmoe repro '([^']+)'", text))
        (hidden,) = re.findall(r"([\d,]+) more failing cases are in the JSON report: ([\d,]+) expand MISMATCH", text)
        assert hidden[0] == hidden[1]
        assert len(shown) + int(hidden[0].replace(",", "")) == total


@pytest.mark.slow
def test_the_page_stays_below_its_size_whatever_the_report_holds() -> None:
    full = mismatch_map("codes", None, (4096, 4096), np.arange(0, 4096 * 4096, 3))
    results = list(many(4500, first_mismatch="&" * 5000, maps=(full, full)))
    text = page_of(make_report(results, command="x", environment=ENVIRONMENT, seconds=1.0))
    assert len(text.encode()) < MAX_BYTES
    assert "more failing cases are in the JSON report" in text
    assert "more characters" in text


def test_each_kernel_gets_a_card_before_any_gets_a_second() -> None:
    limits = Limits()
    late = result(GPU, Verdict.ERROR, reason="late fault", arch="sm_90a")
    text = page([*many(limits.cards + 20, first_mismatch="m"), late]).text
    assert text.index("late fault") < text.index("more failing cases")


def test_other_documents_are_shown_beside_reports(tmp_path: Path) -> None:
    write_document(tmp_path / "a.json", [result()])
    same = conformance.Outcome("add.u32", 8, 0, 0, 0, ())
    made = conformance.document_of([same], [], gpu="a GPU", arch="sm_90a")
    (tmp_path / "conformance.json").write_text(json.dumps(made))
    committed = sorted((ROOT / "reports" / "bench").glob("*.json"))
    paths = [tmp_path / "a.json", tmp_path / "conformance.json", *committed]
    found = Page(page_text([read_source(path) for path in paths]))
    for path in paths:
        assert path.name in found.text
    assert "0 differ where exactness is claimed" in found.text
    assert {link[1:] for link in found.links if link.startswith("#")} <= found.ids


def test_every_kind_of_document_has_a_section() -> None:
    assert set(KINDS) | {"baseline", "probe"} == set(SECTIONS)


def test_a_litmus_program_outside_of_what_ptx_allows_stands_first(tmp_path: Path) -> None:
    made = json.loads((ROOT / "reports" / "litmus.json").read_text())
    path = tmp_path / "litmus.json"

    def shown() -> str:
        path.write_text(json.dumps({**made, "digest": digest_of(made)}))
        return Page(page_text([read_source(path)])).text

    good = shown()
    assert f"PASS {made['programs']:,} programs on an {made['gpu']}, {made['runs']:,} runs: 0 left behind" in good
    runs = sum(row["runs"] for row in made["rows"] if row["shape"] == "MP")
    assert f"allowed MP {sum(row['shape'] == 'MP' for row in made['rows'])} {runs:,}" in good

    last = made["rows"][-1]
    last["outside"], made["outside"] = [[7, 1, 5]], 1
    bad = shown()
    assert "1 left behind what PTX does not allow" in bad
    assert f"{last['shape']} / {last['cause']}: 7 1 5 FAIL" in bad, "the banner names it"
    assert f"OUTSIDE {last['shape']} {last['cause']} {last['runs']:,}" in bad


def test_survivors_of_mutation_stand_first_with_their_reason(tmp_path: Path) -> None:
    outcomes = ["caught"] * 3 + ["timed out", "equivalent", "does not build", "survived"]
    mutants = [
        {
            "id": f"cuda:quantize:guard:{number}", "floor": "cuda", "kernel": "quantize", "operator": "guard",
            "outcome": outcome, "case": str(CASE) if outcome == "caught" else None,
            "check": {"caught": "bytes", "equivalent": "SASS"}.get(outcome), "cases": 3,
        }
        for number, outcome in enumerate(outcomes)
    ]  # fmt: skip
    made = {
        "kind": "mutation", "seconds": 1.5, "passed": False, "sample": {"of": 1234, "tried": 7, "seed": 5},
        "summary": figures(mutants, {}), "mutants": mutants,
        **{group: grouped(mutants, group[:-1], {}) for group in GROUPS},
        "survivors": [{"id": mutants[-1]["id"], "cases": 3, "verdict": "open", "reason": "nobody has looked yet"}],
        "every_value": [],
    }  # fmt: skip
    path = tmp_path / "mutation.json"
    path.write_text(json.dumps({**made, "digest": digest_of(made)}))
    text = Page(page_text([read_source(path)])).text
    assert "FAIL 4 of 7 mutants caught, 1 survived, 1 are equivalent, 0 more by an argument in words, 1 do" in text
    assert "80.0 % of the mutants that can be caught are; needed 98.0 %" in text
    assert "open cuda:quantize:guard:6 3 nobody has looked yet" in text
    columns = "mutants does not build same code proven by machine tried on every value argued equivalent caught"
    assert f"By kernel floor kernel {columns}" in text
    assert f"caught cuda:quantize:guard:0 cuda quantize guard {CASE} bytes 3" in text


def test_a_baseline_is_counted_by_family_and_device() -> None:
    path = ROOT / "reports" / "baseline.json"
    cases = json.loads(path.read_text())["cases"]
    here = sum(case.startswith("expand:") and case.endswith("@cuda") for case in cases)
    text = Page(page_text([read_source(path)])).text
    assert f"{len(cases):,} cases must go on passing" in text
    assert f"expand cuda {here:,}" in text


def test_the_banner_speaks_for_all_documents(tmp_path: Path) -> None:
    good = write_document(tmp_path / "good.json", [result(), result(GPU)])
    bad = write_document(tmp_path / "bad.json", [result(verdict=Verdict.ERROR, reason="x")])
    worse = write_document(tmp_path / "worse.json", [result(verdict=Verdict.MISMATCH, first_mismatch="codes[1]  y")])
    skipped = write_document(tmp_path / "skipped.json", [result(verdict=Verdict.SKIPPED, reason="no nvcc")])
    bench = ROOT / "reports" / "bench" / "races.json"

    def banner(*paths: Path) -> str:
        text = Page(page_text([read_source(path) for path in paths])).text
        return text.removeprefix(text.partition(": ")[0]).removeprefix(": refmoe report refmoe report ")

    assert banner(good, bad, worse, bench).startswith(
        "FAIL 4 documents: 2 FAIL, 1 PASS, 1 MEASURED; 2 of 4 cases fail: 1 MISMATCH, 1 ERROR "
        "bad.json: ERROR expand: x worse.json: MISMATCH expand: codes[1], y FAIL bad.json 1 of 1 cases fail"
    )
    assert banner(good, skipped).startswith(
        "NOTHING RAN 2 documents: 1 NOTHING RAN, 1 PASS; 2 of 3 cases pass, 1 SKIPPED "
    )
    assert banner(good, good, bench).startswith(
        "PASS 3 documents: 2 PASS, 1 MEASURED; 4 of 4 cases pass PASS good.json"
    )


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"kind": "diary"}', "of kind 'diary'; a page shows parity, stress"),
        ('{"kind": "stress", "digest": "0"}', "edited after it was made"),
        ('{"kind": "stress", "digest": "0", "seconds": NaN}', "no JSON, so no report: it holds NaN"),
        ("words", "no JSON"),
    ],
)
def test_what_no_page_can_show_is_refused(tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(ReportError, match=sentence):
        read_source(tmp_path / "a.json")


def test_a_document_that_lacks_what_its_kind_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"kind": "stress", "passed": true}')
    with pytest.raises(ReportError, match="says it is of kind stress, but lacks or spoils 'reruns'"):
        page_text([read_source(tmp_path / "a.json")])


def test_a_map_is_drawn_where_it_differs() -> None:
    import base64
    import io

    from matplotlib.image import imread

    drawn = str(heatmap_svg(record()))
    (data,) = re.findall(r"base64,([A-Za-z0-9+/=]+)", drawn)
    pixels = imread(io.BytesIO(base64.b64decode(data)), format="png")
    assert (pixels[..., 3] > 0).tolist() == (np.array(record().counts) > 0).tolist()


def test_tiles_begin_anew_at_every_expert() -> None:
    counts = [[1] * 64] * 60
    found = record(
        row_axis="token", column_axis="weight row", rows=60, columns=256, row_step=1, column_step=4,
        counts=counts, expert_rows=[0, 10, 10, 40], tile=[16, 128],
    )  # fmt: skip
    drawn = str(heatmap_svg(found))
    height = float(re.findall(r'class="ground" width="\d+" height="(\d+)"', drawn)[0])
    tiles = [float(y) * 60 / height for y in re.findall(r'class="tile" d="M0 ([\d.]+)H', drawn)]
    experts = [float(y) * 60 / height for y in re.findall(r'class="expert" d="M0 ([\d.]+)H', drawn)]
    assert np.round(tiles).tolist() == [26, 56]
    assert np.round(experts).tolist() == [10, 40]
    assert len(re.findall(r'class="tile" d="M[\d.]+ 0V', drawn)) == 1
    assert "a tile is 16 tokens x 128 weight rows" in key_text(found)
    assert extent_text(found).startswith("codes: 3,840 differ")


def test_curves_have_gaps_zeros_and_a_line_each() -> None:
    drawn = str(curves_svg("t", {"same": [0.0, 0.0, 0.0], "part <b>": [0.5, None, 1e-3, 2e-3], "none": [None]}))
    assert drawn.count('class="curve"') == 3 + 2
    assert drawn.count('class="dot"') == 1
    assert "<b>" not in drawn
    assert "exactly 0" in drawn


def refmoe(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_report_writes_page_markdown_and_junit(tmp_path: Path) -> None:
    from xml.etree import ElementTree

    bad = result(GPU, Verdict.MISMATCH, first_mismatch="differs")
    paths = [write_document(tmp_path / name, [one]) for name, one in (("a.json", result()), ("b.json", bad))]
    outputs = {name: tmp_path / "out" / name for name in ("page.html", "x.md", "x.xml")}
    found = refmoe(
        "report", *paths, "--html", outputs["page.html"], "--markdown", outputs["x.md"], "--junit", outputs["x.xml"]
    )
    assert found.exit_code == 0
    assert found.output.count("written: ") == 3
    assert bad.repro in Page(outputs["page.html"].read_text()).text
    assert bad.repro in outputs["x.md"].read_text()
    root = ElementTree.fromstring(outputs["x.xml"].read_text().split("\n", 1)[1])
    assert len(root.findall(".//testcase")) == 2
    assert bad.repro in str(root.find(".//failure").text)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a.json"], "needed --html PATH"),
        (["absent.json", "--html", "x.html"], "found no file absent.json; needed a report"),
        (["bench.json", "--junit", "x.xml"], "found no parity report"),
    ],
)
def test_wrong_use_of_report_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_document(tmp_path / "a.json", [result()])
    (tmp_path / "bench.json").write_text('{"kind": "bench", "name": "x", "rows": [{"name": "numpy"}]}')
    found = refmoe("report", *arguments)
    assert (found.exit_code, words in found.output) == (2, True), found.output


def test_parity_writes_the_page_of_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_code_wrong(case: Any, outputs: Any) -> None:
        outputs["codes"][1, 33] ^= 1

    stand_in(monkeypatch, one_code_wrong)
    kernel._problem.cache_clear()
    found = refmoe("parity", "--case", str(CASE), "--html", tmp_path / "x.html", "--report", tmp_path / "x.json")
    kernel._problem.cache_clear()
    assert found.exit_code == 1
    (mapped,) = json.loads((tmp_path / "x.json").read_text())["cases"][0]["maps"]
    assert (mapped["first_row"], mapped["first_column"], mapped["last_column"]) == (1, 1, 1)
    assert "codes: 1 differ, all within row 1 of 8 and K-block 1 of 13" in Page((tmp_path / "x.html").read_text()).text


@pytest.fixture(scope="module")
def drift(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of three paths, decoded."""
    path = tmp_path_factory.mktemp("drift") / "drift.json"
    paths = "cutlass:separate,cutlass:fused,marlin"
    assert (
        refmoe("drift", "--steps", "2", "--mode", "teacher-forced", "--paths", paths, "--report", path).exit_code == 0
    )
    return path


def test_drift_is_shown_with_curves_and_where_bits_part(drift: Path) -> None:
    text = page_text([read_source(drift)])
    found = Page(text)
    assert "PASS cutlass:fused = cutlass:separate: " in found.text
    assert "bytes, 0 differ" in found.text
    assert "step 0, layer 0" in found.text
    # Two pictures, each with a curve and a key of the two paths beside the base.
    assert text.count('class="curve"') == 2 * (2 + 2)


def test_paths_that_must_be_equal_and_are_not_fail_page_and_gate(drift: Path, tmp_path: Path) -> None:
    document = json.loads(drift.read_text())
    assert list(check_reports([drift], None, catalog).refusals) == []
    exact = next(one for one in document["runs"][0]["comparisons"] if one["must_equal"])
    other = next(one for one in document["runs"][0]["comparisons"] if not one["must_equal"])
    exact |= {"bytes_differing": 3, "first_difference": other["first_difference"]}
    path = tmp_path / "drift.json"
    path.write_text(json.dumps(document))
    assert "edited" in check_reports([path], None, catalog).refusals[0]
    path.write_text(json.dumps({**document, "digest": digest_of(document)}))
    sentence = check_reports([path], None, catalog).refusals[0]
    assert "3 bytes differ and none may" in sentence
    assert "FAIL 1 of what must be equal is not" in Page(page_text([read_source(path)])).text
