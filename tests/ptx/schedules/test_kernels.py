"""Kernels whose result depends on the schedule are found, and their neighbours, which are right, are clean."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from support.cuda_schedules import KERNELS, Kernel
from support.ptx_kernel import compile_cuda

from refmoe import ptx

SCHEDULES = 16


def launch(kernel: Kernel, folder: Path, **options: object) -> tuple[ptx.LaunchResult, list[np.ndarray]]:
    arrays = kernel.args()
    result = ptx.launch(
        compile_cuda(kernel.source, folder), "k", (kernel.grid, 1, 1), (kernel.block, 1, 1), arrays,
        checks=kernel.checks, step_budget=20000, stdout=io.StringIO(), **options,
    )  # fmt: skip
    return result, arrays


@pytest.mark.parametrize("name", [name for name, kernel in KERNELS.items() if kernel.right])
def test_a_right_kernel_is_clean(name: str, tmp_path: Path) -> None:
    result, arrays = launch(KERNELS[name], tmp_path, schedules=SCHEDULES)
    assert result.schedules == SCHEDULES
    if not name.startswith("printf"):
        np.testing.assert_array_equal(arrays[0], KERNELS[name].expected)


@pytest.mark.parametrize("name", [name for name, kernel in KERNELS.items() if not kernel.right])
def test_a_wrong_kernel_is_found(name: str, tmp_path: Path) -> None:
    with pytest.raises(ptx.ScheduleError) as caught:
        launch(KERNELS[name], tmp_path, schedules=SCHEDULES)
    error = caught.value
    # Its own order alone shows nothing, and the two that differ show it again.
    launch(KERNELS[name], tmp_path)
    with pytest.raises(ptx.ScheduleError) as again:
        launch(KERNELS[name], tmp_path, schedules=error.schedules)
    assert str(again.value) == str(error)
    one, other = error.schedules
    assert str(error).endswith(f"; repro: schedules={'2' if (one, other) == (0, 1) else f'{one},{other}'}")


def test_the_guide_shows_a_finding(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "guides" / "schedules.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```cpp\n(.*?)```", page, re.DOTALL)
    module = compile_cuda(f'extern "C" {source}', tmp_path)
    values = np.full(128, 0.7, np.float32)
    values[0] = 1 << 24
    with pytest.raises(ptx.ScheduleError) as caught:
        ptx.launch(
            module, "total", (4, 1, 1), (32, 1, 1), [ptx.Buffer(np.zeros(1, np.float32), "sum.npy"), values],
            schedules=16,
        )  # fmt: skip
    words = " ".join(page.split())
    for said in str(caught.value).split("; "):
        assert said.split(", line ")[0] in words
