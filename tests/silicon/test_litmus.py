"""Litmus programs on a GPU: the host's part on the executor, where the same kernels run, and the document's gate."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.litmus.notation import program
from typer.testing import CliRunner

from refmoe.cli import app
from refmoe.cuda.device import DeviceUnavailable
from refmoe.cuda.toolchain import ToolchainError, find_toolchain
from refmoe.litmus.axioms import judge
from refmoe.litmus.generate import judged
from refmoe.litmus.stressed import stressed_text
from refmoe.reports import litmus as report
from refmoe.reports.documents import digest_of, read_document
from refmoe.reports.gate import KINDS
from refmoe.silicon import litmus
from refmoe.silicon.conformance import assembled

MESSAGE = "0.0.0: st.weak x 7; st.release.gpu y 1 | 1.0.0: until ld.acquire.gpu r0 y == 1; ld.weak r1 x"
#: A block of several warps, clusters, bytes, and a copy.
PROGRAMS = [
    (MESSAGE, 1),
    (MESSAGE.replace("1.0.0", "0.1.0"), 1),
    (MESSAGE.replace("1.0.0", "3.0.5"), 2),
    ("[x=5] 0.0.0: st.relaxed.gpu y+3 9 :1; copy a x 4; commit; waitgroup 0; ld.weak r0 a | 1.0.0: ld.weak r0 x :8", 1),
    ("0.0.0: st.weak a 3; bar.sync 1 2 | 0.1.0: bar.sync 1 2; ld.weak r0 a; st.weak x r0 :8", 1),
]


@pytest.mark.parametrize(("text", "cluster"), PROGRAMS)
def test_every_instance_leaves_behind_its_outcome(text: str, cluster: int) -> None:
    found = program(text, cluster=cluster)
    host = litmus.ExecutorHost(3)
    module = host.load(stressed_text([found]))
    counts = litmus.outcomes_of(host, module, found, "litmus_0", 6, 1)
    assert counts.total() == 6
    assert set(counts) == judge(found).outcomes


def test_no_two_launches_deal_their_blocks_alike() -> None:
    found = program(MESSAGE)
    orders = set()
    coming = litmus.launches(found, "litmus_0", 50, 0)
    for _ in range(20):
        launch = next(coming)
        order = [(place * launch.multiplier + launch.offset) % 100 for place in range(100)]
        assert sorted(order) == list(range(100))
        orders.add(tuple(order))
    assert len(orders) == 20
    # Some blocks only stress.
    assert launch.grid == 113


class Strange(litmus.ExecutorHost):
    """A chip that now and then shows what PTX does not allow: the flag, and not the data."""

    shown = False

    def _run(self, module: Any, launch: litmus.Launch, memory: Any, results: Any) -> None:
        super()._run(module, launch, memory, results)
        if not self.shown:
            results[1, 1] = 0
        self.shown = True


def test_what_ptx_does_not_allow_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = program(MESSAGE)
    monkeypatch.setattr(litmus, "judged", lambda count, seed: [(found, judge(found))])
    monkeypatch.setattr(report, "RUNS", 6)
    monkeypatch.setattr(report, "PROGRAMS", 1)
    good, bad = (litmus.run(1, 0, 6, host) for host in (litmus.ExecutorHost(), Strange()))
    assert (good["outside"], bad["outside"]) == (0, 1)
    assert bad["rows"][0]["outside"] == [[1, 0, 7, 1, 1]]
    assert "OUTSIDE test / test: [1, 0, 7, 1], 1 times" in litmus.summary(bad)
    judged_ = [KINDS["litmus"].check(Path("litmus.json"), each, lambda _: "") for each in (good, bad)]
    assert judged_[0] == []
    assert "1 programs left behind what PTX does not allow on the executor: test / test" in judged_[1][0].text


def test_what_the_gate_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    one = program(MESSAGE)
    monkeypatch.setattr(litmus, "judged", lambda count, seed: [(one, judge(one))])
    document = litmus.run(1, 0, 6, litmus.ExecutorHost())
    few = KINDS["litmus"].check(Path("a.json"), document, lambda _: "")
    assert any("it holds 1 programs; needed 100" in each.text for each in few)
    monkeypatch.setattr(report, "PROGRAMS", 1)

    def refused(**changes: Any) -> str:
        changed = {**document, **changes}
        found = KINDS["litmus"].check(Path("a.json"), {**changed, "digest": digest_of(changed)}, lambda _: "")
        return "; ".join(refusal.text for refusal in found)

    assert "needed 1,000,000 runs of every program" in refused()
    assert "the litmus programs changed" in refused(litmus_sha256="0" * 64)
    assert "it holds no program" in refused(rows=[])
    (edited,) = KINDS["litmus"].check(Path("a.json"), {**document, "seed": 1}, lambda _: "")
    assert "edited after it was made" in edited.text


def test_a_program_with_a_race_does_not_run() -> None:
    document = litmus.run(12, 4, 4, litmus.ExecutorHost(2))
    free = [one for one, verdict in judged(12, 4) if not verdict.racy and not verdict.open]
    assert document["programs"] == len(free) < 12
    assert [row["program"] for row in document["rows"]] == [one.key.splitlines() for one in free]
    assert document["outside"] == 0


def test_rows_are_counted() -> None:
    rows = np.array([[1, 2], [3, 4], [1, 2]], np.uint8)
    different, counts = litmus._counted(rows)
    assert Counter({tuple(row): count for row, count in zip(different.tolist(), counts.tolist(), strict=True)}) == {
        (1, 2): 2, (3, 4): 1
    }  # fmt: skip


def test_ptxas_takes_every_kernel() -> None:
    free = [one for one, _ in judged(60, 3)]
    try:
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(str(error))
    assert assembled(stressed_text(free), "sm_90a")


def test_without_a_gpu_the_command_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def absent(self: object) -> None:
        raise DeviceUnavailable("torch sees no CUDA device")

    monkeypatch.setattr(litmus.GpuHost, "__init__", absent)
    result = CliRunner().invoke(app, ["litmus", "--device", "cuda"])
    assert result.exit_code == 3
    assert result.stdout == "SKIPPED torch sees no CUDA device\n"
    assert CliRunner().invoke(app, ["litmus", "--device", "tpu"]).exit_code == 2
    monkeypatch.undo()
    monkeypatch.setattr(litmus, "GpuHost", lambda: litmus.ExecutorHost(2))
    path = tmp_path / "litmus.json"
    arguments = ["litmus", "--device", "cuda", "--programs", "4", "--runs", "2", "--report", str(path)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert read_document(path)["kind"] == "litmus"
    assert json.loads(path.read_text())["programs"] > 0
