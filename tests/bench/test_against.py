"""The executor beside that of another checkout: what is recorded, what is replayed, and the verdict."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from refmoe.bench import against as bench
from refmoe.bench.against import Recorded
from refmoe.cli import app
from refmoe.errors import ArgumentError, RefmoeError
from refmoe.ptx import Buffer
from refmoe.reports.bench import BENCH, targets_of

ROOT = Path(__file__).resolve().parents[2]
# out[t] = in[t] + t, where the address of `in` lies in a struct, and that of `out` in memory.
POINTERS = """.version 8.7
.target sm_120a
.address_size 64
.visible .entry pointers(.param .align 8 .b8 given[16]) {
    .reg .b32 %r<4>; .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [given]; ld.param.u64 %rd2, [given+8];
    ld.global.u64 %rd3, [%rd2];
    mov.u32 %r1, %tid.x; mul.wide.u32 %rd4, %r1, 4;
    add.u64 %rd1, %rd1, %rd4; add.u64 %rd3, %rd3, %rd4;
    ld.global.u32 %r2, [%rd1]; add.u32 %r2, %r2, %r1; st.global.u32 [%rd3], %r2;
    ret;
}
"""
ADD = """.version 8.7
.target sm_120a
.address_size 64
.visible .entry one_more(.param .u64 x, .param .u32 by) {
    .reg .b32 %r<4>; .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [x]; ld.param.u32 %r1, [by];
    mov.u32 %r2, %tid.x; mul.wide.u32 %rd2, %r2, 4; add.u64 %rd1, %rd1, %rd2;
    ld.global.u32 %r3, [%rd1]; add.u32 %r3, %r3, %r1; st.global.u32 [%rd1], %r3;
    ret;
}
"""


def pointers() -> Recorded:
    first = 1 << 41  # behind the parameters, as `DeviceMemory` places buffers
    second, third = first + (1 << 40), first + (2 << 40)
    memory = {
        first: Buffer(np.arange(32, dtype=np.uint32), "in", writable=False),
        second: Buffer(np.zeros(32, np.uint32), "out", initialised=np.zeros(32, np.bool_)),
        third: Buffer(np.array([second], np.uint64), "pointers", writable=False),
    }
    given = first.to_bytes(8, "little") + third.to_bytes(8, "little")
    options = {"lowest_leader": True, "a_later_one": True}
    return Recorded(POINTERS, "pointers", (1, 1, 1), (32, 1, 1), 0, [given], memory, options)


def one_more(by: int = 1) -> Recorded:
    arguments = [Buffer(np.arange(32, dtype=np.uint32), "x"), by]
    return Recorded(ADD, "one_more", (1, 1, 1), (32, 1, 1), 0, arguments)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches that take no time."""
    monkeypatch.setattr(bench, "_quantize", one_more)
    monkeypatch.setattr(bench, "_gemm", lambda offsets: one_more(len(offsets)))
    monkeypatch.setattr(bench, "_cutlass", pointers)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("least", [1e-9, 1e9])
def test_the_verdict_is_that_of_the_targets(least: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench, "TARGETS", {"quantize": 1e-9, "CUTLASS's GEMM": least})
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, ["bench", "executor", "--against", str(ROOT), "--report", "against.json"])
    assert found.exit_code == int(least > 1), found.output
    document = json.loads(Path("against.json").read_text())
    assert (document["name"], document["against"]) == ("against", ROOT.name)
    assert document["all_reached"] == document["reached"] == (least < 1)
    assert list(document["comparisons"]) == ["quantize", "gemm, one row", "gemm, eight rows", "CUTLASS's GEMM"]
    compared = document["comparisons"]["CUTLASS's GEMM"]
    assert list(compared["medians_s"]) == ["refmoe", f"checkout {ROOT.name}"]
    assert compared["lane_instructions"] == 32 * 11
    # The gate reads it, and names what was missed.
    assert list(BENCH.check(Path("against.json"), document, lambda family: "")) == []
    assert [target.reached for target in targets_of(document)] == [True, least < 1]


def test_the_targets_are_those_of_the_executor() -> None:
    assert bench.TARGETS == {"quantize": 8.0, "CUTLASS's GEMM": 5.0}


def test_a_folder_without_an_executor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="without refmoe/ptx"):
        bench.run(tmp_path)


@pytest.mark.usefixtures("small")
def test_other_bytes_are_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(range(100))
    monkeypatch.setattr(bench._Contender, "run", lambda self, launch: {"sha256": next(answers)})
    with pytest.raises(RefmoeError, match="quantize leaves other bytes in refmoe and in checkout"):
        bench.run(ROOT)


def replayed(launches: dict[str, Recorded], folder: Path, *names: str) -> Any:
    """What `replay` answers, a document for each name, and what it complains of."""
    bench._record(launches, folder / "launches.npz")
    source = (ROOT / "refmoe" / "bench" / "replay.py").read_text()
    ran = subprocess.run(
        [sys.executable, "-c", source, str(folder / "launches.npz")],
        cwd=ROOT, input="".join(f"{name}\n" for name in names), capture_output=True, text=True,
    )  # fmt: skip
    return [json.loads(line) for line in ran.stdout.splitlines()[1:]], ran.stderr


def test_each_replay_begins_with_the_recorded_bytes(tmp_path: Path) -> None:
    found, said = replayed({"add": one_more(), "pointers": pointers()}, tmp_path, "add", "pointers", "add", "pointers")
    assert not said
    assert [each["sha256"] for each in found[:2]] == [each["sha256"] for each in found[2:]]
    assert found[0]["sha256"] != found[1]["sha256"]


def test_memory_at_another_address_is_an_error(tmp_path: Path) -> None:
    recorded = pointers()
    moved = dict(zip((address + 64 for address in recorded.memory), recorded.memory.values(), strict=True))
    _, said = replayed({"pointers": Recorded(**{**vars(recorded), "memory": moved})}, tmp_path, "pointers")
    assert "in is placed at 0x20000000000, and was recorded at 0x20000000040" in said
