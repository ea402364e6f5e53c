from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.selection.thinned import thinned
from support.verify import CASE, result, stand_in, write_document
from typer.testing import CliRunner, Result

from refmoe.catalog import list_cases
from refmoe.cli import app
from refmoe.cuda import ToolchainError
from refmoe.errors import ArgumentError
from refmoe.reports.parity import read_report, schema_text
from refmoe.verify import kernel
from refmoe.verify.kernel import Devices
from refmoe.verify.verdict import Verdict

COMMANDS = ("parity", "repro", "run", "gate", "report", "doctor", "layout", "bench")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    kernel._problem.cache_clear()
    yield
    kernel._problem.cache_clear()


def refmoe(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def equal(case: Any, outputs: Any) -> None:
    pass


def one_code_wrong(case: Any, outputs: Any) -> None:
    outputs["codes"][1, 33] ^= 1


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example_and_json(command: str) -> None:
    found = refmoe(command, "--help")
    assert found.exit_code == 0
    assert "Example" in found.output
    assert f"refmoe {command}" in found.output
    assert "--json" in found.output


def test_help_and_version_import_nothing_heavy() -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom refmoe.cli import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "assert CliRunner().invoke(app, ['--version']).output.strip()\n"
        "print(sorted({'torch', 'matplotlib', 'pydantic', 'refmoe.verify'} & set(sys.modules)))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["parity", "--level", "huge"], "level: found 'huge'; needed one of quick, default, full"),
        (["parity", "--suite", "gemm"], "finalize, finalize_q8_1, moe, integer_moe, deepseek_routing"),
        (["parity", "--device", "tpu"], "case device: found 'tpu'; needed one of ptx, cuda"),
        (["parity", "--arch", "sm_80"], "case arch: found 'sm_80'"),
        (["parity", "--case", "nonsense"], "case device: found no '@'"),
        (["parity", "--case", str(CASE), "--arch", "sm_80"], "case arch: found 'sm_80'"),
        (["parity", "--case", str(CASE), "--suite", "moe"], "suite: found moe with --case"),
        (["parity", "--activations", "none.safetensors"], "activations: found no file at none.safetensors"),
        (["repro", "expand:bf16:m4k33e8t2:real:seed7@ptx"], "case shape: found 'm4k33e8t2'"),
        (["gate", "nowhere"], "refmoe: found no file or folder nowhere; needed a report"),
        (["gate", ".", "--baseline", "none.json"], "--baseline: found no file none.json"),
        (["layout", "9x9"], "layout: found str '9x9'"),
        (["layout", "128x4", "--offsets", "a,b"], "offsets: found 'a,b'"),
        (
            ["tiles", "--tile", "128x8x512", "--cluster", "2"],
            "cluster: found str '2'; needed three positive integers with x between them, such as 1x1x1",
        ),
        (["report", "none.json", "--html", "x.html"], "refmoe: found no file none.json; needed a report\n"),
        (["run", "none.ptx"], "none.ptx: cannot be read: No such file or directory\n"),
        (["bench", "everything"], "found 'everything'; needed one of quantize"),
        (["frobnicate"], "No such command"),
        (["parity", "--levle", "quick"], "No such option"),
    ],
)
def test_usage_errors_exit_with_2_and_one_sentence(arguments: list[str], words: str) -> None:
    found = refmoe(*arguments)
    assert found.exit_code == 2
    assert words in found.output
    assert "Traceback" not in found.output


@pytest.mark.parametrize("content", thinned(["edited", "", "[1", "{}"], 4))
def test_a_file_that_is_no_report_is_an_error_for_report_and_gate_alike(content: str, tmp_path: Path) -> None:
    path = write_document(tmp_path / "a.json", [result()])
    path.write_text(path.read_text().replace("bit-exact", "bit-exakt") if content == "edited" else content)
    for arguments in (["report", "a.json", "--html", "a.html"], ["gate", "a.json"]):
        command = [sys.executable, "-m", "refmoe", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 1
        assert sum("a.json: " in line for line in (done.stdout + done.stderr).splitlines()) == 1
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "a.html").exists()


def test_parity_passes_and_writes_everything_that_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch, equal)
    files = {name: tmp_path / "deep" / f"r.{name}" for name in ("json", "xml", "md")}
    found = refmoe(
        *("parity", "--level", "quick", "--arch", "sm_120a", "--suite", "expand", "--report", files["json"]),
        *("--junit", files["xml"], "--markdown", files["md"]),
    )
    assert found.exit_code == 0
    report = read_report(files["json"])
    assert report.summary == {"PASS": len(report.cases)}
    assert {case.family for case in report.cases} == {"expand"}
    assert f"{len(report.cases)} PASS" in found.output
    assert "bit-exact on ptx" in found.output
    assert len(ElementTree.parse(files["xml"]).findall(".//testcase")) == len(report.cases)
    assert files["md"].read_text().startswith("# refmoe parity")


def test_a_whole_level_is_reported_without_being_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, equal)
    assert refmoe("parity", "--level", "quick", "--arch", "sm_120a", "--suite", "expand").exit_code == 0
    assert read_report(Path("out/parity-ptx.json")).summary.keys() == {"PASS"}


def test_single_cases_do_not_overwrite_that_report(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, equal)
    assert refmoe("parity", "--case", str(CASE)).exit_code == 0
    assert not Path("out").exists()


def test_an_arch_is_of_cases_that_name_none(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, equal)
    named = CASE.on("ptx", "sm_121a")
    refmoe("parity", "--case", str(CASE), "--case", str(named), "--arch", "sm_90a", "--report", "made.json")
    assert [record.arch for record in read_report(Path("made.json")).cases] == ["sm_90a", "sm_121a"]


def test_a_mismatch_prints_place_and_repro_line_and_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, one_code_wrong)
    found = refmoe("parity", "--case", str(CASE))
    assert found.exit_code == 1
    lines = found.output.splitlines()
    at = next(
        number for number, line in enumerate(lines) if line.startswith("MISMATCH codes[1, 33]  block (1, 1) lane 1")
    )
    assert lines[at + 1] == f"repro: refmoe repro '{CASE}'"


def test_json_is_the_report_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, one_code_wrong)
    found = refmoe("repro", str(CASE), "--json")
    assert found.exit_code == 1
    document = json.loads(found.stdout)
    assert document["cases"][0]["verdict"] == "MISMATCH"


def test_repro_shows_a_pass_too(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, equal)
    found = refmoe("repro", str(CASE))
    assert found.exit_code == 0
    assert f"PASS {CASE}" in found.output


def test_no_case_run_exits_with_3_and_says_why_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from refmoe.cuda import DeviceUnavailable

    def get(self: Devices, case: Any) -> Any:
        raise DeviceUnavailable("torch sees no CUDA device")

    monkeypatch.setattr(Devices, "get", get)
    found = refmoe("parity", "--device", "cuda", "--level", "quick")
    assert found.exit_code == 3
    assert found.output.count("SKIPPED torch sees no CUDA device") == 1
    # Its report is written where there is none, and replaces none.
    written = Path("out/parity-cuda.json")
    assert set(json.loads(written.read_text())["summary"]) == {"SKIPPED"}
    written.write_text("the report of an earlier run")
    for more, stream in ((), "output"), (("--json", "--markdown", "new.md"), "stderr"):
        found = refmoe("parity", "--device", "cuda", "--level", "quick", *more)
        assert found.exit_code == 3
        assert "left as it was: out/parity-cuda.json, because no case ran" in getattr(found, stream)
        assert written.read_text() == "the report of an earlier run"
    assert Path("new.md").exists()


def test_an_expected_refusal_says_which_case_and_that_the_list_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(case: Any, outputs: Any) -> None:
        if case.refusal:
            raise ArgumentError("tile", "it", case.refusal)

    stand_in(monkeypatch, refuse)
    listed = [
        case
        for case in list_cases("default", ["sm12x_gemm"], arch="sm_121a")
        if case.refusal and case.get("wrong") == "none"
    ]
    monkeypatch.setattr("refmoe.catalog.list_cases", lambda *asked: [*listed, CASE])
    found = refmoe("parity", "--suite", "sm12x_gemm")
    assert found.exit_code == 0
    lines = found.output.splitlines()
    assert lines[0] == f"{listed[0]}: UNSUPPORTED, as the case list says: tile: found it; needed {listed[0].refusal}"
    assert [line.partition(": UNSUPPORTED")[0] for line in lines[: len(listed)]] == [str(case) for case in listed]
    (last,) = (line for line in lines if line.startswith("1 PASS"))
    assert last.startswith(f"1 PASS, {len(listed)} UNSUPPORTED as the case list says in ")


def test_an_interrupt_says_what_ran_and_leaves_no_half_report(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def change(case: Any, outputs: Any) -> None:
        if len(ran) == 5:
            raise KeyboardInterrupt
        ran.append(case)

    stand_in(monkeypatch, change)
    Path("old.json").write_text("the report of an earlier run")
    found = refmoe("parity", "--level", "quick", "--arch", "sm_120a", "--report", "old.json")
    assert found.exit_code == 130
    listed = len(list_cases("quick", arch="sm_120a"))
    assert f"interrupted: 5 of {listed} cases ran, 5 passed; what passed is in old.json." in found.output
    assert Path("old.json").read_text() == "the report of an earlier run"
    assert [path.suffix for path in sorted(Path().iterdir())] == [".json", ".partial"]


def test_an_interrupted_repro_writes_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(case: Any, outputs: Any) -> None:
        raise KeyboardInterrupt

    stand_in(monkeypatch, change)
    found = refmoe("repro", CASE, "--trace", "trace.json")
    assert found.exit_code == 130
    assert "interrupted: 0 of 1 cases ran" in found.output
    assert "trace:" not in found.output
    assert not Path("trace.json").exists()


def test_doctor_needs_neither_cutlass_nor_nvdisasm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REFMOE_CUTLASS_DIR", str(tmp_path))
    monkeypatch.setattr("refmoe.views.sass.find_nvdisasm", _no_nvdisasm)
    findings = {finding["name"]: finding for finding in json.loads(refmoe("doctor", "--json").output)["findings"]}
    for name, words in (("CUTLASS headers", "REFMOE_CUTLASS_DIR"), ("nvdisasm", "pip install")):
        assert not findings[name]["good"]
        assert not findings[name]["needed"]
        assert words in findings[name]["text"]


def _no_nvdisasm() -> Path:
    raise ToolchainError("no nvdisasm: pip install it")


def test_a_file_that_cannot_be_written_is_named_as_it_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    report = write_document(tmp_path / "good.json", [result()])
    found = subprocess.run(
        [sys.executable, "-m", "refmoe", "gate", str(report), "--baseline", "file/b.json", "--write-baseline"],
        capture_output=True,
        text=True,
    )
    assert found.returncode == 1
    assert found.stderr in ("refmoe: file/b.json: Not a directory\n", "refmoe: file/b.json: File exists\n")


def test_a_users_activations_become_the_cases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch, equal)
    rows = np.random.default_rng(1).standard_normal((5, 64)) * [[1], [2], [4], [8], [16]]
    save_file({"h": rows.astype(np.float16)}, tmp_path / "x.safetensors")
    found = refmoe("parity", "--activations", "x.safetensors:h", "--report", "r.json")
    assert found.exit_code == 0
    cases = read_report(Path("r.json")).cases
    assert len(cases) == 8
    again = refmoe(*cases[0].repro.replace("'", "").split()[1:])
    assert again.exit_code == 0


def test_constant_activations_are_mistrusted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch, equal)
    save_file({"h": np.ones((5, 64), np.float16)}, tmp_path / "x.safetensors")
    found = refmoe("parity", "--activations", "x.safetensors")
    assert found.exit_code == 1
    assert "MISTRUSTED 1 distinct scale bytes" in found.output


def test_gate_passes_refuses_and_renews_its_baseline(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    write_document(reports / "a.json", [result(), result(CASE.on("ptx", "sm_90a"))])
    without = refmoe("gate")
    assert without.exit_code == 1
    assert "GATE no baseline: found no reports/baseline.json, so nobody would see that a case is gone" in without.output
    assert refmoe("gate", "--no-baseline").exit_code == 0
    written = refmoe("gate", "reports", "--write-baseline")
    assert written.exit_code == 0
    assert "2 cases" in written.output
    assert refmoe("gate").exit_code == 0
    write_document(reports / "a.json", [result()])
    refused = refmoe("gate", "--json")
    assert refused.exit_code == 1
    assert "is gone" in json.loads(refused.output)["refusals"][0]
    assert refmoe("gate", "reports", "--write-baseline").exit_code == 0
    assert refmoe("gate").exit_code == 0


def test_a_bad_report_never_becomes_the_baseline(tmp_path: Path) -> None:
    write_document(tmp_path / "reports" / "a.json", [result(verdict=Verdict.MISMATCH)])
    assert refmoe("gate", "reports", "--write-baseline").exit_code == 1
    assert not (tmp_path / "reports" / "baseline.json").exists()


def test_the_schema_is_printed() -> None:
    assert refmoe("gate", "--schema").output == schema_text()


def test_doctor_lists_what_was_looked_for() -> None:
    found = refmoe("doctor", "--json")
    document = json.loads(found.output)
    names = {finding["name"] for finding in document["findings"]}
    assert {"python", "numpy", "llvmlite", "nvcc", "g++", "ninja", "CUTLASS headers", "nvdisasm", "GPU"} <= names
    assert {"distributed", "DeepGEMM headers", "CuTe DSL"} <= names
    assert found.exit_code == (0 if document["ptx"] else 1)


def test_doctor_fails_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from refmoe.cuda import toolchain

    monkeypatch.setattr(toolchain, "_places", lambda: [("PATH", None, "no nvcc on PATH")])
    found = refmoe("doctor")
    assert found.exit_code == 1
    assert "no usable nvcc (PATH: no nvcc on PATH)" in found.output
    assert "cannot run" in found.output


def test_parity_without_a_compiler_exits_with_3_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from refmoe.cuda import toolchain

    monkeypatch.setattr(toolchain, "_places", lambda: [("PATH", None, "no nvcc on PATH")])
    found = refmoe("parity", "--level", "quick")
    assert found.exit_code == 3
    assert "SKIPPED no usable nvcc" in found.output
    assert "pip install" in found.output


def test_layout_as_text_picture_and_numbers(tmp_path: Path) -> None:
    text = refmoe("layout", "8x4", "--rows", "9", "--blocks", "5", "--picture", "p.svg")
    assert text.exit_code == 0
    assert (tmp_path / "p.svg").read_text().lstrip().startswith("<?xml")
    document = json.loads(refmoe("layout", "128x4", "--rows", "33", "--blocks", "5", "--json").output)
    assert document["bytes"] == 128 * 8
    assert (document["offset"][0][:5], document["offset"][1][0], document["offset"][32][0]) == (
        [0, 1, 2, 3, 512],
        16,
        4,
    )
    grouped = json.loads(
        refmoe("layout", "128x4", "--rows", "2", "--blocks", "4", "--offsets", "0,1,2", "--json").output
    )
    assert [row[0] for row in grouped["offset"]] == [0, 512]


def test_bench_prints_a_table_and_writes_its_document(monkeypatch: pytest.MonkeyPatch) -> None:
    import types

    rows = [{"name": "numpy", "milliseconds": 1.5, "bytes": 4096}, {"name": "other", "milliseconds": 15.0}]
    module = types.SimpleNamespace(run=lambda: {"kind": "bench", "name": "quantize", "rows": rows})
    monkeypatch.setitem(sys.modules, "refmoe.bench.quantize", module)  # type: ignore[arg-type]
    found = refmoe("bench", "quantize", "--report", "b.json")
    assert found.exit_code == 0
    assert "numpy" in found.output
    assert "4,096" in found.output
    assert json.loads(Path("b.json").read_text())["rows"] == rows
    assert json.loads(refmoe("bench", "quantize", "--json").output)["kind"] == "bench"


def test_a_report_that_cannot_be_written_costs_no_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch, equal)
    (tmp_path / "folder").mkdir()
    found = refmoe("parity", "--case", str(CASE), "--report", "folder", "--junit", "a.xml")
    assert found.exit_code == 1
    assert "1 PASS" in found.output
    assert Path("a.xml").is_file()
    assert str(found.exception) == "cannot write folder: Is a directory"


def test_one_reason_for_all_cases_is_printed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from refmoe.cuda import ToolchainError

    def full_disk(case: Any, outputs: Any) -> None:
        raise ToolchainError("nvcc failed:\nNo space left on device")

    stand_in(monkeypatch, full_disk)
    found = refmoe("parity", "--case", str(CASE), "--case", str(CASE.on("ptx", "sm_90a")))
    assert found.exit_code == 1
    assert found.output.count("ERROR ToolchainError: nvcc failed:") == 2
    assert found.output.count("No space left") == 1
    assert found.output.count("repro: ") == 2
    assert "bit-exact" not in found.output  # nothing was proven


def test_doctor_writes_to_the_cache_to_see_whether_it_can(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("REFMOE_CACHE_DIR", str(tmp_path / "file"))
    findings = {finding["name"]: finding for finding in json.loads(refmoe("doctor", "--json").output)["findings"]}
    assert not findings["kernel cache"]["good"]
    assert "Not a directory" in findings["kernel cache"]["text"]
