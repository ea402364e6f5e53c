"""The kernels that the benchmark of first launches writes: right by NumPy, of the size asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refmoe.bench import first_launch
from refmoe.errors import RefmoeError


@pytest.mark.parametrize("lines", [60, 200, 611])
def test_the_kernel_has_so_many_lines_and_gives_what_numpy_gives(lines: int) -> None:
    text, _, expected = first_launch.kernel(lines)
    assert lines <= len(text.splitlines()) < lines + 16
    assert len(np.unique(expected)) > 32
    first_launch.launch(lines)


def test_another_result_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_launch.Writer, "result", property(lambda self: self.value))
    with pytest.raises(RefmoeError, match="the kernel of 60 lines gives another result than NumPy"):
        first_launch.launch(60)


def test_rows_and_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    def child(lines: int, folder: Any) -> first_launch.Took:
        return {"small": {"seconds": 1.0, "cpu_seconds": 1.0}, "kernel": {"seconds": lines / 1000, "cpu_seconds": 2.0}}

    monkeypatch.setattr(first_launch, "_in_child", child)
    found = first_launch.run(sizes=(60, 3000, 20000))
    assert [row["first_s"] for row in found["rows"]] == [0.06, 3.0, 20.0]
    assert found["reached"] == {"first_3000_s": True, "first_20000_s": False}
    assert not found["all_reached"]
    assert found["fresh_s"] == 1.0


def test_a_process_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("REFMOE_NATIVE_CACHE_MIB", "none")
    with pytest.raises(RefmoeError, match=r"bench first_launch: 60 lines: .*REFMOE_NATIVE_CACHE_MIB"):
        first_launch._in_child(60, tmp_path)
