"""The kernel that docs/guides/cute.md shows, as it stands there; and what the guide says of it with a fault."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import refmoe.cute
from refmoe.ptx import MemoryFault, RaceError

try:
    refmoe.cute.check_package()
except refmoe.cute.CuteMissing as missing:
    pytest.skip(str(missing), allow_module_level=True)

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "cute.md").read_text(encoding="utf-8")
(SHOWN,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


def run(text: str, folder: Path) -> ModuleType:
    """What is shown as a file of its own, run."""
    path = folder / "shown.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("shown", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_guides_kernel_runs(tmp_path: Path) -> None:
    shown = run(SHOWN, tmp_path)
    assert shown.largest.tobytes() == shown.x.max(axis=1).tobytes()


def test_without_its_barrier_it_races(tmp_path: Path) -> None:
    assert SHOWN.count("    cute.arch.barrier()\n") == 1
    with pytest.raises(RaceError, match=r"ld\.shared") as caught:
        run(SHOWN.replace("    cute.arch.barrier()\n", ""), tmp_path)
    assert "st.shared" in str(caught.value)


def test_with_a_row_too_many_it_is_out_of_bounds(tmp_path: Path) -> None:
    rows = "grid=[cute.size(x, mode=[0]), 1, 1]"
    assert SHOWN.count(rows) == 1
    with pytest.raises(MemoryFault, match="out of bounds: global read"):
        run(SHOWN.replace(rows, "grid=[cute.size(x, mode=[0]) + 1, 1, 1]"), tmp_path)
