"""What CUDA programmers write: found if something is missing, clean under several schedules if it is mended."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.findings.patterns import FILES, PATTERNS, Pattern
from support.selection.thinned import thinned

SCHEDULES = 8


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Where each file is compiled."""
    return {file: tmp_path_factory.mktemp(file) for file in FILES}


@pytest.mark.parametrize("pattern", thinned(PATTERNS, 5), ids=str)
def test_the_racy_form_is_found(pattern: Pattern, folders: dict[str, Path]) -> None:
    assert pattern.launch(folders[pattern.file], "racy", SCHEDULES) == pattern.finds


@pytest.mark.parametrize("pattern", thinned(PATTERNS, 8), ids=str)
def test_the_mended_form_is_clean(pattern: Pattern, folders: dict[str, Path]) -> None:
    assert pattern.launch(folders[pattern.file], "mended", SCHEDULES) == ""


@pytest.mark.parametrize("pattern", [each for each in PATTERNS if each.file == "many"], ids=str)
def test_so_many_are_found_in_the_order_of_the_default_schedule(pattern: Pattern, folders: dict[str, Path]) -> None:
    assert pattern.launch(folders[pattern.file], "racy", 1) == pattern.finds


def test_a_barrier_of_the_grid_is_clean_under_many_schedules(folders: dict[str, Path]) -> None:
    (pattern,) = [each for each in PATTERNS if each.name == "gridbar"]
    assert pattern.launch(folders[pattern.file], "mended", 26) == ""
