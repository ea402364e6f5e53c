"""Kernels whose result depends on the schedule are found, and their neighbours, which are right, are clean."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from support.ptx_kernel import compile_cuda, text
from support.schedules.cuda import KERNELS, Kernel
from support.selection.thinned import thinned

from refmoe import ptx
from refmoe.ptx.engine.order.clocks import Clocks

SCHEDULES = 16


def launch(kernel: Kernel, folder: Path, **options: object) -> tuple[ptx.LaunchResult, list[np.ndarray]]:
    arrays = kernel.args()
    result = ptx.launch(
        compile_cuda(kernel.source, folder), "k", (kernel.grid, 1, 1), (kernel.block, 1, 1), arrays,
        checks=kernel.checks, step_budget=20000, stdout=io.StringIO(), **options,
    )  # fmt: skip
    return result, arrays


@pytest.mark.parametrize("name", thinned((name for name, kernel in KERNELS.items() if kernel.right), 4))
def test_a_right_kernel_is_clean(name: str, tmp_path: Path) -> None:
    result, arrays = launch(KERNELS[name], tmp_path, schedules=SCHEDULES)
    assert result.schedules == SCHEDULES
    if not name.startswith("printf"):
        np.testing.assert_array_equal(arrays[0], KERNELS[name].expected)


WRONG = [name for name, kernel in KERNELS.items() if not kernel.right]


@pytest.mark.parametrize("name", thinned(WRONG, 4))
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


def test_one_record_is_asked_for_as_many_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choices of strong accesses ask for one record at a time: the answer is that for arrays of them."""
    asked = set[bool]()
    one = Clocks.knows

    def both(self: Clocks, lane: int, record: int) -> bool:
        found = bool(one(self, lane, record))
        assert found == bool(self.known(np.array([lane]), np.array([record]))[0])
        asked.add(found)
        return found

    monkeypatch.setattr(Clocks, "knows", both)
    # A chain of blocks, each of which waits for the one before it behind a fence, and all of them count.
    body = """
        mov.u32 %r3, %ctaid.x; mul.wide.u32 %d3, %r3, 4; add.s64 %d3, %d3, %d0; setp.eq.u32 %p1, %r3, 0; @%p1 bra GO;
    WAIT: ld.relaxed.gpu.global.u32 %r4, [%d3+-4]; setp.eq.u32 %p2, %r4, 0; @%p2 bra WAIT; fence.sc.gpu;
    GO: fence.acq_rel.gpu; atom.relaxed.gpu.global.add.u32 %r5, [%d0+64], 1; fence.sc.gpu; bar.sync 0;
        setp.eq.u32 %p3, %r1, 0; @%p3 st.relaxed.gpu.global.u32 [%d3], 1; ret;
    """
    out = np.zeros(17, np.uint32)
    module = ptx.Module.parse(text(body))
    ptx.launch(module, "k", (3, 1, 1), (32, 1, 1), [out, None, 0], schedules="0,1,2")
    assert out[[0, 1, 2, 16]].tolist() == [1, 1, 1, 96]
    assert asked == {True, False}
