from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refmoe.cuda.toolchain import CSRC
from refmoe.verify.patches import PatchError, apply_patch, parse_patch
from refmoe.verify.plant import MUTANTS, load_patches

BEFORE = "".join(f"line {number}\n" for number in range(1, 21))


def patch_of(before: str, after: str, name: str = "a.cuh") -> str:
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{name}", f"b/{name}", n=2)
    return "".join(lines)


def applied(folder: Path, before: str, patch: str) -> str:
    (folder / "a.cuh").write_text(before)
    apply_patch(parse_patch(patch)[1], folder)
    return (folder / "a.cuh").read_text()


@given(
    st.lists(st.integers(0, 10**6), min_size=8, max_size=30, unique=True),
    st.lists(st.tuples(st.integers(0, 29), st.booleans()), min_size=1, max_size=4),
)
def test_a_diff_of_distinct_lines_makes_one_text_the_other(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int], edits: list[tuple[int, bool]]
) -> None:
    before = [f"{number}\n" for number in numbers]
    after = list(before)
    for place, add in edits:
        at = place % len(after)
        if add:
            after.insert(at, f"new {place} {len(after)}\n")
        else:
            after[at] = f"changed {place}\n"
    patch = patch_of("".join(before), "".join(after))
    folder = tmp_path_factory.mktemp("patch")
    assert applied(folder, "".join(before), patch) == "".join(after)


def test_edits_elsewhere_do_not_outdate_a_patch(tmp_path: Path) -> None:
    patch = patch_of(BEFORE, BEFORE.replace("line 12\n", "line twelve\n"))
    moved = "added in front\n" * 5 + BEFORE
    assert applied(tmp_path, moved, patch) == moved.replace("line 12\n", "line twelve\n")


@pytest.mark.parametrize("changed", ["line 10\n", "line 12\n", "line 14\n"])
def test_a_changed_context_line_refuses_and_changes_nothing(tmp_path: Path, changed: str) -> None:
    patch = patch_of(BEFORE, BEFORE.replace("line 12\n", "line twelve\n").replace("line 2\n", "line two\n"))
    other = BEFORE.replace(changed, changed.strip() + " \n")
    with pytest.raises(PatchError, match="fits nowhere"):
        applied(tmp_path, other, patch)
    assert (tmp_path / "a.cuh").read_text() == other


def test_of_several_places_the_stated_one_is_taken(tmp_path: Path) -> None:
    before = "a\nb\nc\nd\ne\n" * 3
    lines = before.splitlines(True)
    after = "".join([*lines[:7], "C\n", *lines[8:]])
    assert applied(tmp_path, before, patch_of(before, after)) == after
    with pytest.raises(PatchError, match="fits at 3 places"):
        applied(tmp_path, "x\n" + before, patch_of(before, after))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "without a change"),
        ("only words\n", "without a change"),
        ("--- a/a.cuh\nline\n", "where '--- file' and"),
        ("--- a/a.cuh\n+++ b/a.cuh\n", "no hunk"),
        ("--- a/a.cuh\n+++ b/a.cuh\n@@ nonsense @@\n", "no hunk header"),
        ("--- a/a.cuh\n+++ b/a.cuh\n@@ -1,2 +1,2 @@\n line 1\n", "does not have the lines"),
        ("--- a/a.cuh\n+++ b/a.cuh\n@@ -1,1 +1,1 @@\n line 1\n+more\n", "where '--- file' and"),
        ("--- a/a.cuh\n+++ b/a.cuh\n@@ -1,2 +1,1 @@\n line 1\n*line 2\n", "does not have the lines"),
    ],
)
def test_malformed_patches_are_refused(text: str, found: str) -> None:
    with pytest.raises(PatchError, match=found):
        parse_patch(text)


@pytest.mark.parametrize("name", ["none.cuh", "../a.cuh", "/etc/passwd"])
def test_files_outside_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "csrc"
    folder.mkdir()
    (tmp_path / "a.cuh").write_text(BEFORE)
    patch = patch_of(BEFORE, BEFORE.replace("line 2\n", "line two\n"), name)
    with pytest.raises(PatchError, match="no such file"):
        apply_patch(parse_patch(patch)[1], folder)
    assert (tmp_path / "a.cuh").read_text() == BEFORE


@pytest.mark.parametrize("path", sorted(MUTANTS.rglob("*.patch")), ids=lambda path: path.stem)
def test_every_mutant_fits_the_kernels_and_changes_them(tmp_path: Path, path: Path) -> None:
    patches = parse_patch(path.read_text())[1]
    sources = [CSRC / patch.file for patch in patches]
    for file in sources:
        (tmp_path / file.name).write_bytes(file.read_bytes())
    apply_patch(patches, tmp_path)
    assert any(file.read_bytes() != (tmp_path / file.name).read_bytes() for file in sources)


def test_mutants_are_many_and_each_says_what_it_breaks() -> None:
    mutants = load_patches()
    assert len(mutants) >= 292
    assert len({(mutant.patches[0].file, mutant.fault) for mutant in mutants}) == len(mutants)
    assert all(mutant.fault.endswith(".") and mutant.kind for mutant in mutants)


def test_a_mutant_without_a_fault_line_is_refused(tmp_path: Path) -> None:
    (tmp_path / "01-x.patch").write_text(patch_of(BEFORE, BEFORE.replace("line 2\n", "line two\n")))
    with pytest.raises(PatchError, match=r"01-x.patch: needs the lines 'Fault"):
        load_patches(tmp_path)
