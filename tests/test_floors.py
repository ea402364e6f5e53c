"""No module imports itself by way of others. `make lint` holds the floors; this holds what its contracts cannot see.

A folder's `__init__` is a module here like any other, and so is the face of the package, `refmoe` itself.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

grimp = pytest.importorskip("grimp")

ROOT = Path(__file__).parent.parent
#: The top floor: what may import the face.
TOP = ("refmoe.cli", "refmoe.pytest_plugin")


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """What each module imports; imports inside functions and for types alone count."""
    graph = grimp.build_graph("refmoe", exclude_type_checking_imports=False, cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """The largest sets of modules each of which imports all the others, directly or not."""
    reached: dict[str, set[str]] = {}
    for module, found in imports.items():
        reached[module], ahead = set(), list(found)
        while ahead:
            if (imported := ahead.pop()) not in reached[module]:
                reached[module].add(imported)
                ahead += imports[imported]
    around = {module: {other for other in found if module in reached[other]} for module, found in reached.items()}
    return [circle for module, circle in around.items() if circle and module == min(circle)]


def test_a_circle_is_found_whole() -> None:
    imports = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert circles(imports) == [{"a", "b", "c"}, {"d", "e"}]


def test_no_module_imports_itself_by_way_of_others(imports: dict[str, set[str]]) -> None:
    assert [sorted(circle) for circle in circles(imports)] == []


def test_only_the_top_floor_imports_the_face(imports: dict[str, set[str]]) -> None:
    below = [module for module, imported in imports.items() if "refmoe" in imported and not module.startswith(TOP)]
    assert sorted(below) == []


#: What counts as a source, of any language.
SOURCES = {".py", ".cu", ".cuh", ".cpp", ".h", ".js", ".css", ".html"}
#: Folders that may hold more sources, with their number and the reason.
LARGER = {
    "refmoe/cuda/csrc": (43, "a kernel includes its headers from beside it, and reports name both by these paths"),
}


def _sources() -> list[Path]:
    found = (path for part in ("refmoe", "tests", "tools") for path in (ROOT / part).rglob("*"))
    return [path.relative_to(ROOT) for path in found if path.suffix in SOURCES]


def crowded(sources: list[Path]) -> dict[str, int]:
    """How many sources each folder has that has more than 24, or more than are excepted."""
    counts = Counter(str(path.parent) for path in sources)
    return {folder: count for folder, count in counts.items() if count > LARGER.get(folder, (24, ""))[0]}


def test_no_folder_has_more_than_24_sources() -> None:
    assert crowded(_sources()) == {}


def test_a_crowded_folder_is_found() -> None:
    csrc = [Path("refmoe/cuda/csrc", f"{number}.cuh") for number in range(44)]
    many = [Path("refmoe/ptx", f"{number}.py") for number in range(25)]
    assert crowded([*csrc, *many]) == {"refmoe/cuda/csrc": 44, "refmoe/ptx": 25}
    assert crowded([*csrc[1:], *many[1:]]) == {}


def test_an_excepted_folder_needs_its_exception() -> None:
    counts = Counter(str(path.parent) for path in _sources())
    assert {folder: counts[folder] for folder in LARGER} == {folder: count for folder, (count, _) in LARGER.items()}


def test_no_source_has_more_than_700_lines() -> None:
    lines = {str(path): len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in _sources()}
    assert {path: count for path, count in lines.items() if count > 700} == {}
