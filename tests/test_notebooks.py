"""Notebooks are as they should be kept: no outputs, no traces of the machine, valid. `make notebooks` executes them."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
#: What names a machine or its user; examples of paths in text are relative.
LOCAL = re.compile(r"(?:/home/|/root/|/Users/|/work/|/tmp/|/mnt/|[A-Z]:\\\\Users)")


def _read(path: Path) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def _source(cell: dict[str, Any]) -> str:
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def test_all_five_are_there() -> None:
    assert [path.name[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
class TestNotebook:
    def test_nothing_of_a_run_is_kept(self, path: Path) -> None:
        for number, cell in enumerate(_read(path)["cells"]):
            if cell["cell_type"] == "code":
                assert cell["outputs"] == [], f"cell {number} has outputs"
                assert cell["execution_count"] is None, f"cell {number} has an execution count"
            assert cell["metadata"] == {}, f"cell {number} has metadata"

    def test_nothing_names_a_machine(self, path: Path) -> None:
        assert LOCAL.findall(path.read_text(encoding="utf-8")) == []

    def test_kernel_is_plain_python(self, path: Path) -> None:
        metadata = _read(path)["metadata"]
        assert metadata["kernelspec"] == {"display_name": "Python 3", "language": "python", "name": "python3"}
        assert metadata["language_info"] == {"name": "python"}

    def test_format_is_valid(self, path: Path) -> None:
        notebook = _read(path)
        assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
        identifiers = [cell["id"] for cell in notebook["cells"]]
        assert len(set(identifiers)) == len(identifiers)
        assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", identifier) for identifier in identifiers)
        assert {cell["cell_type"] for cell in notebook["cells"]} <= {"code", "markdown"}

    def test_schema_is_jupyters(self, path: Path) -> None:
        nbformat = pytest.importorskip("nbformat", reason="nbformat comes with `make notebooks`")
        nbformat.validate(nbformat.read(path, as_version=nbformat.NO_CONVERT))

    def test_it_begins_with_its_number_and_says_what_results_rest_on(self, path: Path) -> None:
        first = _read(path)["cells"][0]
        assert first["cell_type"] == "markdown"
        assert _source(first).startswith(f"# {int(path.name[:2])}. ")
        text = "".join(_source(cell) for cell in _read(path)["cells"])
        assert "sm120" not in text or "extrapolated" in text

    def test_code_parses_and_imports_only_what_the_package_needs(self, path: Path) -> None:
        allowed = {"refmoe", "numpy", "ml_dtypes", "matplotlib", "IPython", "pathlib", "re", "tempfile"}
        for cell in _read(path)["cells"]:
            if cell["cell_type"] == "code":
                for node in ast.walk(ast.parse(_source(cell))):
                    if isinstance(node, ast.Import):
                        assert {alias.name.split(".")[0] for alias in node.names} <= allowed
                    elif isinstance(node, ast.ImportFrom):
                        assert (node.module or "").split(".")[0] in allowed
