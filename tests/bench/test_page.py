"""The page of benchmark results: made from reports alone, and checked against them."""

from __future__ import annotations

import json
import re
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.selection.thinned import thinned

from refmoe.bench.page import GPU_TARGETS, PAGE, PICTURES, page_text, read_reports, target_ratio, whole_rows
from refmoe.bench.page.pictures import draw
from refmoe.errors import ArgumentError
from refmoe.reports.documents import digest_of

ROOT = Path(__file__).parent.parent.parent
BENCH = ROOT / "reports" / "bench"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with the page, its pictures and its reports."""
    shutil.copytree(BENCH, tmp_path / "reports" / "bench")
    (tmp_path / "docs").mkdir()
    for name in (PAGE, *PICTURES):
        shutil.copy(ROOT / "docs" / name, tmp_path / "docs" / name)
    return tmp_path


@pytest.fixture(scope="module")
def command() -> Callable[..., int]:
    main: Callable[..., int] = runpy.run_path(str(ROOT / "tools" / "benchmarks.py"))["main"]
    return main


def _change_time(root: Path) -> None:
    path = root / "reports" / "bench" / "gpu.json"
    document = json.loads(path.read_text())
    document["rows"][1]["microseconds"] = 123.45
    document["digest"] = digest_of(document)
    path.write_text(json.dumps(document))


def test_the_committed_page_is_that_of_the_committed_reports(command: Callable[..., int]) -> None:
    assert command(["--check"]) == 0


def test_a_changed_report_makes_the_page_stale_until_it_is_written_again(
    copy: Path, command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["--check"], copy) == 0
    _change_time(copy)
    assert command(["--check"], copy) == 1
    assert "run `make benchmarks`" in capsys.readouterr().out
    assert command([], copy) == 0
    assert "123.45" in (copy / "docs" / PAGE).read_text()
    assert command(["--check"], copy) == 0


def test_an_edited_page_or_a_lost_picture_fails_the_check(copy: Path, command: Callable[..., int]) -> None:
    page = copy / "docs" / PAGE
    text = page.read_text()
    page.write_text(text.replace("| 1.00 |", "| 0.90 |", 1))
    assert command(["--check"], copy) == 1
    page.write_text(text)
    (copy / "docs" / "bench_gpu.png").unlink()
    assert command(["--check"], copy) == 1


def test_damaged_or_missing_reports_are_refused(copy: Path, command: Callable[..., int]) -> None:
    folder = copy / "reports" / "bench"
    (folder / "tiles.json").unlink()
    with pytest.raises(ArgumentError, match="without tiles; needed a report of each: refmoe bench NAME"):
        read_reports(folder)
    (folder / "gpu.json").write_text("[]")
    with pytest.raises(ArgumentError, match="no JSON object"):
        read_reports(folder)
    assert command(["--check"], copy) == 1


def test_targets_are_ratios_of_rows_of_one_report() -> None:
    rows = [
        {"name": "fused expand 8192 x 2880 bf16", "microseconds": 30.0, "ratio_to_floor": 1.1},
        {"name": "quantize, then expand 8192 x 2880", "microseconds": 60.0, "ratio_to_floor": 1.7},
    ]
    assert target_ratio(GPU_TARGETS[0], rows) == 1.1
    assert target_ratio(GPU_TARGETS[1], rows) == 0.5
    assert target_ratio(GPU_TARGETS[2], rows) is None


def test_a_missed_target_is_called_missed_and_an_unmeasured_one_is_said_to_be() -> None:
    reports = read_reports(BENCH)
    lines = page_text(reports).splitlines()
    for target in GPU_TARGETS:
        (line,) = (each for each in lines if each.startswith(f"| {target.what} |"))
        ratio = target_ratio(target, reports["gpu"]["rows"])
        word = "not measured" if ratio is None else "reached" if ratio <= target.most else "**missed**"
        assert line.endswith(f"| {word} |")
    gpu = {**reports["gpu"], "rows": [{**row, "ratio_to_floor": 1.0} for row in reports["gpu"]["rows"]]}
    assert "| 1.000 | at most 1.17 | reached |" in page_text({**reports, "gpu": gpu})


def test_missed_targets_of_all_benchmarks_are_listed() -> None:
    reports = read_reports(BENCH)
    quantize = json.loads(json.dumps(reports["quantize"]))
    name, compared = next(iter(quantize["comparisons"].items()))
    compared.update(ratio=1.5, target=4.0, reached=False)
    races = {
        "rows": [{"kernel": "gemm", "factor": 2.5}, {"kernel": "routing", "factor": 3.5}],
        "targets": {"factor": 3.0},
        "reached": {"gemm": True, "routing": False},
    }
    text = page_text({**reports, "quantize": quantize, "races": races})
    missed = text.partition("## Targets that were missed")[2].partition("\n## ")[0]
    assert f"- `quantize`, {name}, ratio: 1.5, at least 4\n" in missed
    assert "- `races`, factor of routing: 3.5, at most 3\n" in missed
    assert "of gemm" not in missed
    assert "| `races` | factor of gemm | 2.5 | at most 3 | reached |" in text
    # Nothing is listed where nothing was missed.
    gpu = {**reports["gpu"], "rows": []}
    assert "## Targets that were missed\n\nNone.\n" in page_text({"gpu": gpu, "tiles": reports["tiles"]})


def test_launches_of_a_layer_are_no_rows_of_their_own() -> None:
    gpu = read_reports(BENCH)["gpu"]
    whole = [row["name"] for row in whole_rows(gpu)]
    assert "layer, DP4A, M = 1" in whole
    assert "fused expand 8192 x 2880 bf16, top-4, 128x4" in whole
    parts = [row["name"] for row in gpu["rows"] if row["name"] not in whole]
    assert "layer, DP4A, M = 1: gemm1" in parts
    assert all(each.startswith("layer, DP4A, M = ") for each in parts)


def test_the_page_says_what_nobody_measured() -> None:
    text = page_text(read_reports(BENCH))
    assert "Tokens per second on an SM12x chip" in text
    assert "a model, not a measurement" in text


@pytest.mark.parametrize("name", thinned(PICTURES, 2))
def test_a_picture_is_the_same_for_the_same_report(name: str, tmp_path: Path) -> None:
    document = read_reports(BENCH)[PICTURES[name]]
    first = draw(name, document, tmp_path).read_bytes()
    assert first.startswith(b"\x89PNG")
    assert draw(name, document, tmp_path).read_bytes() == first
    first_drawn = next(row for row in document["rows"] if row.get("ratio_to_floor") != 1.0)
    changed_row = {**first_drawn, "ratio_to_floor": 9.0, "tensor_share": 0.9}
    changed = {**document, "rows": [changed_row if row is first_drawn else row for row in document["rows"]]}
    assert draw(name, changed, tmp_path).read_bytes() != first


def test_kernels_of_deepseek_are_beside_other_people_s() -> None:
    page = page_text(read_reports(BENCH))
    gemm, routing = (json.loads((BENCH / f"deepseek_{name}.json").read_text()) for name in ("gemm", "routing"))
    for row in gemm["rows"]:
        assert f"| {row['problem']} | {row['contender']} | {row['microseconds']:,.0f} |" in page
    for target in gemm["targets"]:
        assert f"| {target['name']} | {target['ratio']:.3f} | at least {target['target']:g} |" in page
    assert f"{routing['weights_with_other_bits']:,} differ" in page
    alone = {name: report for name, report in read_reports(BENCH).items() if not name.startswith(("deepseek", "sweep"))}
    assert "DeepGEMM" not in page_text(alone)


def test_a_sweep_shows_each_operation_at_each_number_of_tokens() -> None:
    report = json.loads((BENCH / "sweep.json").read_text())
    page = page_text(read_reports(BENCH))
    for row in report["rows"]:
        if row["of"] == "refmoe" and not row["operation"].startswith("GEMM"):
            assert f"| {row['microseconds']:.2f} |" in page, row["name"]
    quantize = {row["of"]: row for row in report["rows"] if (row["operation"], row["tokens"]) == ("quantize", 4096)}
    assert f"| {quantize['torch.compile']['microseconds'] / quantize['refmoe']['microseconds']:.2f} |" in page
    differing = {"codes of route, a": [3, 40], "scales of route, a": [0, 2]}
    changed = page_text({**read_reports(BENCH), "sweep": {**report, "absent": ["DeepGEMM"], "differing": differing}})
    assert "DeepGEMM could not run on this machine." in changed
    said = "Compared at the most tokens: codes, scales; 42 bytes. 3 are others of the codes of route, a."
    assert said in " ".join(changed.split())


def test_the_counters_say_why_each_missed_target_was_missed() -> None:
    reports = read_reports(BENCH)
    page = page_text(reports)
    rows = reports["gpu"]["rows"]
    missed = [target for target in GPU_TARGETS if (target_ratio(target, rows) or 0) > target.most]
    for target in missed:
        (name,) = [row["name"] for row in rows if re.match(target.row, row["name"])][:1]
        # A layer is several launches, which are named with their times.
        assert (f"- {name}: its launches" if name.startswith("layer") else f"- {name} (`refmoe_") in page, name
    assert "Kernels that missed a target" not in page_text(
        {name: each for name, each in reports.items() if name != "counters"}
    )


def test_a_whole_layer_of_deepseek_is_there_launch_by_launch() -> None:
    layer = json.loads((BENCH / "deepseek.json").read_text())
    assert layer["sizes"] == {
        **{"tokens": 1, "hidden": 7168, "intermediate": 2048, "experts": 256},
        **{"top_k": 8, "groups": 8, "top_groups": 4},
    }
    assert layer["all_reached"]
    page = page_text(read_reports(BENCH))
    for row in layer["rows"]:
        assert f"| {row['stage']} | `{row['entry']}` | {row['seconds']:.1f} | {row['bytes']:,} |" in page
    compared = sum(row["bytes"] for row in layer["rows"])
    assert f"of {compared:,} bytes 0 differ" in page.replace("\n", " ")
