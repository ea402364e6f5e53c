"""Break the executor on purpose: every patch below `faults` plants one fault, which the tests that it names must find.

A patch begins with `Fault:`, what is wrong, `Class:`, its folder, and for each test that finds it `Test:`, its node id.
The fault is planted in a copy of the package, and another process runs the tests there. On the sound copy they pass.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from refmoe.verify.patches import FilePatch, apply_patch, parse_patch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CLASSES = (
    "compiled", "findings", "instructions", "memory", "scheduler", "schedules", "textures", "undefined", "warpgroups",
)  # fmt: skip
# Seconds, for a fault that lets a test run for ever; the tests themselves take a few, and all of them minutes.
LIMIT, LIMIT_OF_ALL = 300, 1800


@dataclass(frozen=True)
class Fault:
    """A planted fault: its file, its header and its change."""

    path: Path
    header: dict[str, list[str]]
    patches: tuple[FilePatch, ...]

    @classmethod
    def read(cls, path: Path) -> Fault:
        text, patches = parse_patch(path.read_text(encoding="utf-8"))
        header: dict[str, list[str]] = {}
        for line in filter(None, text.splitlines()):
            name, _, value = line.partition(": ")
            header.setdefault(name, []).append(value)
        return cls(path, header, tuple(patches))

    def __str__(self) -> str:
        return f"{self.path.parent.name}/{self.path.stem}"

    @property
    def sentence(self) -> str:
        return self.header["Fault"][0]

    @property
    def tests(self) -> list[str]:
        return self.header["Test"]


FAULTS = [Fault.read(path) for path in sorted((HERE / "faults").rglob("*.patch"))]
every_fault = pytest.mark.parametrize("fault", FAULTS, ids=str)


@pytest.mark.parametrize("name", CLASSES)
def test_the_patches_of_a_class_are_well_formed(name: str, tmp_path: Path) -> None:
    for fault in (fault for fault in FAULTS if fault.path.parent.name == name):
        header = {key: len(values) for key, values in fault.header.items() if key != "Test"}
        assert header == {"Fault": 1, "Class": 1}, fault
        assert fault.header["Class"] == [name], fault
        assert fault.sentence.endswith("."), fault
        assert fault.tests, fault
        for test in fault.tests:
            file, _, function = test.partition("::")
            assert f"def {function.partition('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8"), fault
        for patch in fault.patches:
            assert patch.file.startswith(("refmoe/ptx/", "refmoe/native/")), fault
            (tmp_path / patch.file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / patch.file, tmp_path / patch.file)
        apply_patch(list(fault.patches), tmp_path)


def test_every_class_has_its_share_of_faults() -> None:
    shares = Counter(fault.path.parent.name for fault in FAULTS)
    assert sorted(shares) == list(CLASSES)
    assert min(shares.values()) >= 15
    assert len({fault.sentence for fault in FAULTS}) == len(FAULTS)


@dataclass(frozen=True)
class Copy:
    """The package and its tests in a folder of their own."""

    folder: Path

    def run(
        self, tests: list[str], cache: Path, limit: int = LIMIT, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run tests of the copy in a process of their own."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHONDONTWRITE"))}
        own |= {"PYTHONPATH": str(self.folder), "REFMOE_CACHE_DIR": str(cache)}
        # Plugins cost more than the tests, and refmoe's own would import the package that is installed.
        own |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment}
        # Whatever is named runs, also if it is one of those that are slow.
        command = [sys.executable, "-m", "pytest", "-m", "", "-x", "-q", "--tb=short", "-p", "no:cacheprovider", *tests]
        return subprocess.run(command, cwd=self.folder, env=own, capture_output=True, text=True, timeout=limit)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """A sound copy, on which all named tests pass."""
    folder = tmp_path_factory.mktemp("sound")
    for name in ("refmoe", "tests"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "pyproject.toml", folder)
    made = Copy(folder)
    named = sorted({test for fault in FAULTS for test in fault.tests})
    result = made.run(named, tmp_path_factory.mktemp("cache"), LIMIT_OF_ALL)
    assert result.returncode == 0, f"a named test fails without a fault:\n{result.stdout}{result.stderr}"
    return made


@pytest.mark.slow
@every_fault
def test_the_fault_is_caught(fault: Fault, copy: Copy, tmp_path: Path) -> None:
    sound = {patch.file: (copy.folder / patch.file).read_bytes() for patch in fault.patches}
    times = {file: (copy.folder / file).stat().st_mtime_ns for file in sound}
    try:
        apply_patch(list(fault.patches), copy.folder)
        for test in fault.tests:
            # Bytecode is told apart by the second in which its source was written: that of faults is not kept.
            result = copy.run([test], tmp_path / "cache", PYTHONDONTWRITEBYTECODE="1")
            said = f"{fault}: {fault.sentence}\n{test}\n{result.stdout[-3000:]}{result.stderr[-3000:]}"
            assert result.returncode != 0, f"SURVIVED {said}"
            assert result.returncode == 1, f"not run to its end: {said}"
    finally:
        for file, content in sound.items():
            (copy.folder / file).write_bytes(content)
            os.utime(copy.folder / file, ns=(times[file], times[file]))
