"""The pages of docs/, held against the code: family pages, paths, names, links, repro strings, code that is shown."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from refmoe.catalog import all_families, parse_case
from refmoe.errors import ArgumentError
from refmoe.families import FAMILIES
from refmoe.families.choices import ROUTINGS
from refmoe.families.family import Family
from refmoe.verify.plant import MUTANTS, load_patches

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def rows(text: str) -> Iterator[list[str]]:
    """The cells of every table row; a bar inside a cell is written with a backslash."""
    for line in text.splitlines():
        if line.startswith("|") and not line.startswith("|--"):
            yield [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def section(text: str, heading: str) -> list[list[str]]:
    """The rows of the first table behind a heading or a line, without the table's head."""
    table = text.split(f"\n{heading}\n", 1)[1].lstrip("\n")
    table = table[table.index("|") :].split("\n\n", 1)[0]
    return list(rows(table))[1:]


def code(text: str) -> str:
    return text.strip("`")


# --- the site ---------------------------------------------------------------------------------------------------------


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    def pages(entry: Any) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        else:
            for part in entry.values() if isinstance(entry, dict) else entry:
                yield from pages(part)

    navigation = list(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(navigation) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "index.md").read_text()
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - {"index.md"}
    assert {page for page in pages if f"({page})" not in index} == set()


def test_docs_have_three_parts() -> None:
    assert {path.name for path in DOCS.iterdir() if path.is_dir()} == {"guides", "families", "internals"}


# --- family pages ---------------------------------------------------------------------------------------------------

#: The families by the name of their page, as docs/index.md has them.
FAMILY_PAGES = {
    match[1]: FAMILIES[match[2]]
    for match in re.finditer(r"\(families/(\w+)\.md\) \| `(\w+)`", (DOCS / "index.md").read_text())
}
each_family = pytest.mark.parametrize(("name", "family"), FAMILY_PAGES.items(), ids=FAMILY_PAGES)


def page_of(name: str) -> str:
    return (DOCS / "families" / f"{name}.md").read_text()


def test_every_family_has_a_page() -> None:
    assert list(FAMILY_PAGES.values()) == list(FAMILIES.values())
    assert {path.stem for path in (DOCS / "families").glob("*.md")} == set(FAMILY_PAGES)


def test_the_lists_of_families_are_made_of_them() -> None:
    command = [sys.executable, str(ROOT / "tools" / "families.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@each_family
def test_a_family_page_has_the_options(name: str, family: Family) -> None:
    shown = {
        code(option): (code(default), values) for option, default, values, _ in section(page_of(name), "## Options")
    }
    assert list(shown) == [option.name for option in family.options]
    for option in family.options:
        default, values = shown[option.name]
        assert default == option.write(option.default)
        if option.words:
            assert tuple(map(code, values.split())) == option.words


@each_family
def test_a_family_page_has_the_routings(name: str, family: Family) -> None:
    if "routing" in [option.name for option in family.options]:
        (shown,) = re.findall(r"\| routing \| the tokens \|\n(.*?)\n\n", page_of(name), re.DOTALL)
        assert {code(each): about.replace("`", "") for each, about in rows(shown)} == ROUTINGS


@each_family
def test_a_family_page_has_the_fills(name: str, family: Family) -> None:
    shown = {code(fill): catches for fill, _, catches in section(page_of(name), "## Fills")}
    assert shown == {fill.name: fill.catches for fill in family.fills.values()}


@each_family
def test_a_family_page_has_the_contract(name: str, family: Family) -> None:
    page, contract = page_of(name), family.contract
    inputs, outputs = section(page, "Inputs:"), section(page, "Outputs:")
    assert tuple(code(row[0]) for row in inputs) == contract.inputs
    assert [code(row[0]) for row in outputs] == list(contract.outputs)
    for row in outputs:
        element = contract.outputs[code(row[0])]
        if element.startswith("float"):
            assert element in row[1]
    features = re.search(r"Only some cases have (.*?)\.", page)
    assert tuple(re.findall(r"`(\w+)`", features[1] if features else "")) == contract.features
    settings = re.search(r"also take the settings (.*?) \(", page)
    assert settings is not None
    assert re.findall(r"`(\w+)`", settings[1]) == list(contract.settings)


@each_family
def test_a_family_page_has_dtypes_and_sizes(name: str, family: Family) -> None:
    line = re.search(r"The dtype of a case is (.*)\. Its shape has these sizes: (.*)", page_of(name))
    assert line is not None
    assert tuple(dict.fromkeys(re.findall(r"`(\w+)`", line[1]))) == family.dtypes
    assert "".join(re.findall(r"`(\w)`", line[2])) == family.sizes


@each_family
def test_a_family_page_has_the_planted_faults(name: str, family: Family) -> None:
    page, folder = page_of(name), MUTANTS / name
    patches = load_patches(folder) if folder.is_dir() else []
    shown = {code(row[0]): row[1:] for row in section(page, "## Planted faults")} if patches else {}
    assert shown == {patch.name: [patch.fault, patch.kind] for patch in patches}


@each_family
def test_a_family_page_names_its_sources(name: str, family: Family) -> None:
    shown = {code(row[0]) for row in section(page_of(name), "## Files")}
    if len(family.sources) == 1:
        assert f"refmoe/cuda/csrc/{family.sources[0]}.cu" in shown


def test_the_testing_guide_has_every_contract() -> None:
    page = (DOCS / "guides" / "testing.md").read_text()
    shown = {
        re.findall(r"`(\w+)`", row[0])[0]: [cell.strip("`").split() for cell in row[1:]]
        for row in rows(page)
        if "families/" in row[0]
    }
    assert shown == {
        family.name: [list(family.contract.inputs), list(family.contract.settings), list(family.contract.outputs)]
        for family in FAMILIES.values()
    }


# --- what pages name ------------------------------------------------------------------------------------------------


@each_page
def test_paths_on_a_page_are_there(page: Path) -> None:
    named = re.findall(r"`((?:refmoe|tests|docs|tools|reports|notebooks)/[\w./-]*)`", page.read_text())
    assert [path for path in named if "NAME" not in path and not (ROOT / path).exists()] == []


@each_page
def test_links_on_a_page_lead_somewhere(page: Path) -> None:
    for target, _, anchor in (link.partition("#") for link in re.findall(r"\]\(([^)]+)\)", page.read_text())):
        if target.startswith("http"):
            continue
        path = page.parent / target if target else page
        assert path.exists(), target
        headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in [
            re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings
        ]


@each_page
def test_repro_strings_on_a_page_are_cases(page: Path) -> None:
    names = "|".join(all_families())
    for text in re.findall(rf"\b((?:{names}):[\w.:=-]+@(?:ptx|cuda|host)(?:\.\w+)?)", page.read_text()):
        if "..." not in text:
            case = text.replace("@host", "@ptx")
            assert str(parse_case(case)) == case


@each_page
def test_names_on_a_page_are_there(page: Path) -> None:
    for name in dict.fromkeys(re.findall(r"(?<![\w./])refmoe(?:\.\w+)+", page.read_text())):
        if not name.endswith((".json", ".yml", ".md")):
            assert resolved(name), name


def resolved(name: str) -> bool:
    """Whether a dotted name is a module or something in one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError as error:
            if error.name is not None and not error.name.startswith("refmoe"):
                return True  # a package that is not installed here
            continue
        for part in parts[count:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return isinstance(found, ModuleType) or found is not None
    return False


def test_the_architecture_has_every_room() -> None:
    page = (DOCS / "internals" / "architecture.md").read_text()
    named = {word for _, rooms, _ in section(page, "## The floors") for word in re.findall(r"`(\w+)`", rooms)}
    rooms = {
        path.stem
        for path in (ROOT / "refmoe").iterdir()
        if path.suffix in ("", ".py") and not path.name.startswith("__")
    }
    assert rooms <= named


def test_the_changelog_names_what_is_there_now() -> None:
    moved = section(
        (ROOT / "CHANGELOG.md").read_text(),
        "place. Repro strings and reports are read as before. Import paths changed:",
    )
    for _, now in moved:
        for name in re.findall(r"`(refmoe[\w.]+)`", now):
            assert resolved(name), name


#: In front of the table of what a chain saves.
CHAIN = (
    "**What it saves.** `refmoe flow --path llama_cpp --quantization ready --output q8_1`, one token of gpt-oss-120b:"
)

# --- the code that pages show ---------------------------------------------------------------------------------------


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def test_the_testing_guide_shows_kernels_that_pass(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    checked, registered, refusing = blocks(DOCS / "guides" / "testing.md")[:3]
    names: dict[str, Any] = {}
    exec(checked, names)
    assert re.fullmatch(r"\d+ PASS\n", capsys.readouterr().out)
    exec(registered, names)
    assert names["my_quantize"].policy == "rceil/exact, scales linear"
    exec(refusing, names)
    (case,) = names["narrow_quantize"].cases()[:1]
    assert names["narrow_quantize"].refused(case.having(shape=type(case.shape)(1, 8224))) == "K above 8192"


def test_the_ptx_guide_shows_a_launch() -> None:
    from refmoe.ptx import MemoryFault

    shown, _, _ = blocks(DOCS / "guides" / "ptx.md")
    exec(shown, {})
    assert "x, y, 100]" in shown
    with pytest.raises(MemoryFault, match=r"ld\.global"):
        exec(shown.replace("x, y, 100]", "x, y, 101]"), {})


def test_the_ptx_guide_shows_several_launches() -> None:
    launched, several, _ = blocks(DOCS / "guides" / "ptx.md")
    names: dict[str, Any] = {}
    exec(launched, names)
    exec(several, names)
    written = names["memory"].read(names["y"], 400).view("f4")
    assert set(written.tolist()) == {7.0}


def test_the_guide_on_textures_shows_a_launch() -> None:
    (shown,) = blocks(DOCS / "guides" / "textures.md")
    names: dict[str, Any] = {}
    exec(shown, names)
    assert names["result"][3, 7] == 62.0


def test_the_ptx_guide_shows_a_debugger(capsys: pytest.CaptureFixture[str]) -> None:
    launched, _, debugged = blocks(DOCS / "guides" / "ptx.md")
    names: dict[str, Any] = {}
    exec(launched, names)
    exec(debugged, names)
    said = capsys.readouterr().out
    # Four blocks of one warp each, the last of which has lanes beyond the end.
    assert said.count(" here, line ") == 4
    assert said.count(" ready, line ") == 1


def test_the_guide_on_checkpoints_shows_one_that_opens(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed")
    (shown,) = blocks(DOCS / "guides" / "checkpoints.md")
    exec(shown, {})
    assert capsys.readouterr().out == "(64, 64) (8, 128, 64) 0\n"


def test_the_page_of_layers_in_a_chain_shows_what_staying_in_q8_1_costs(capsys: pytest.CaptureFixture[str]) -> None:
    page = DOCS / "families" / "integer_moe.md"
    (shown,) = blocks(page)
    (printed,) = re.findall(r"```\n(one layer.*?)```", page.read_text(), re.DOTALL)
    exec(shown, {"__name__": "shown"})
    assert capsys.readouterr().out == printed


def test_the_pages_figures_of_a_chain_are_those_of_flow() -> None:
    from refmoe.views.flow import flow

    converting = flow("llama_cpp", "gpt-oss-120b", 1)
    staying = flow("llama_cpp", "gpt-oss-120b", 1, quantization="ready", output="q8_1")
    table = {row[0]: row[1:] for row in section(page_of("integer_moe"), CHAIN)}
    assert table["launches"] == [str(each.launches) for each in (converting, staying)]
    assert table["conversions in a layer"] == [str(len(each.conversions)) for each in (converting, staying)]
    assert table["bytes"] == [f"{each.bytes:,}" for each in (converting, staying)]


def test_readme_shows_a_kernel_that_equals_its_reference() -> None:
    (shown,) = [block for block in blocks(ROOT / "README.md") if "open_device" in block]
    exec(shown, {})


def test_a_family_can_be_named_as_the_guide_says() -> None:
    from refmoe.families import family_called

    assert family_called("quantize").name == "mxfp8_quantize"
    assert family_called("gemm").name == "sm12x_gemm"
    with pytest.raises(ArgumentError):
        family_called("pack")


def test_a_rank_is_a_process_and_never_the_number_of_a_choice() -> None:
    """Planted faults aside, whose sentences are those of their patches."""
    for page in PAGES:
        text = page.read_text().split("## Planted faults")[0]
        for wrong in (
            r"rank \* T",
            r"rank = 0",
            r"order of (?:its|their) ranks?\b",
            r"rank of the choice",
            r"token \d+ rank",
        ):
            assert not re.search(wrong, text), f"{page.name}: {wrong}"


def test_the_index_says_what_every_borrowed_word_means() -> None:
    words = [name for row in section((DOCS / "index.md").read_text(), "## Words") for name in row[0].split(", ")]
    assert {"rank", "choice", "ulp", "CTA", "warp", "lane", "decode", "prefill", "binade"} <= set(words)
    assert len(words) == len(set(words))


def test_no_option_is_said_to_lose_nothing() -> None:
    """Rounding loses; RCEIL only cuts nothing off."""
    assert not [page for page in PAGES if "that loses nothing" in page.read_text()]


@pytest.mark.slow
def test_help_of_the_tools_runs_nothing() -> None:
    pictures = {path: path.stat().st_mtime_ns for path in DOCS.glob("*.png")}
    for tool in ("families.py", "pictures.py", "readme.py"):
        command = [sys.executable, str(ROOT / "tools" / tool), "--help"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
        assert done.returncode == 0
        assert "usage: " in done.stdout
        assert f"tools/{tool}" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in DOCS.glob("*.png")} == pictures


def test_readme_says_how_long_its_first_commands_take() -> None:
    text = " ".join((ROOT / "README.md").read_text().split())
    assert re.search(r"two cores `make parity` takes about \d+ seconds and `make test` about \d+ minutes", text)
