"""`refmoe run --watch` and `--profile`: what is said about the run of a kernel whose counts are known by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from refmoe.cli import app

#: Thread t of a block writes word t of `out` twice: first its number, then the word of `table` of that number.
TEXT = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry twice(.param .u64 .ptr table, .param .u64 .ptr out)
.reqntid 64
{
    .reg .b32 %r<6>; .reg .b64 %d<6>;
    ld.param.u64 %d1, [table]; ld.param.u64 %d2, [out];
    mov.u32 %r1, %tid.x; mul.wide.u32 %d3, %r1, 4; add.s64 %d1, %d1, %d3; add.s64 %d2, %d2, %d3;
    st.global.u32 [%d2], %r1;
    ld.global.u32 %r2, [%d1];
    st.global.u32 [%d2], %r2;
    ret;
}
"""
LINE = {line.strip(): number for number, line in enumerate(TEXT.splitlines(), 1)}
ARGUMENTS = ("--args", "in:t.npy out:o.npy:u32:64")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("k.ptx").write_text(TEXT)
    np.save("t.npy", np.arange(64, dtype=np.uint32) + 256)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["run", "k.ptx", *ARGUMENTS, *arguments])


@pytest.mark.parametrize("name", ["out", "1", "o.npy"])
def test_a_watched_word_is_written_twice_by_one_thread(name: str) -> None:
    found = run("--watch", f"{name}:20")
    assert found.exit_code == 0, found.output
    head, first, second = found.output.splitlines()[-3:]
    assert head == f"bytes 20..23 of {name}: written 2 times"
    where = "block (0, 0, 0) thread (5, 0, 0) writes bytes 20..23"
    assert first.endswith(
        f"{where}, then 05000000; line {LINE['st.global.u32 [%d2], %r1;']}: st.global.u32 [%d2], %r1;"
    )
    assert second.endswith(
        f"{where}, then 05010000; line {LINE['st.global.u32 [%d2], %r2;']}: st.global.u32 [%d2], %r2;"
    )


def test_bytes_and_sizes_of_a_watch() -> None:
    watch = json.loads(run("--watch", "out", "--json").output)["watch"]
    assert (watch["first"], watch["size"], len(watch["writes"])) == (0, 4, 2)
    watch = json.loads(run("--watch", "out:6:4", "--json").output)["watch"]
    assert [write["thread"][0] for write in watch["writes"]] == [1, 2, 1, 2]
    assert watch["writes"][-1]["value"] == "00000201"
    assert "bytes 4..4 of table: never written" in run("--watch", "table:4:1").output


def test_a_kernel_that_fails_still_says_who_wrote() -> None:
    found = run("--args", "null", "--watch", "out")
    assert found.exit_code == 2
    np.save("t.npy", np.arange(32, dtype=np.uint32))
    found = run("--watch", "out")
    assert found.exit_code == 1
    assert "MemoryFault" in found.output
    assert "bytes 0..3 of out: written" in found.output


@pytest.mark.parametrize(
    ("watch", "needed"),
    [
        ("in", "of an array: table, out"),
        ("2", "of an array: table, out"),
        ("out:256", "bytes of out, which has 256"),
        ("out:0:0", "bytes of out, which has 256"),
        ("out:x", "of an array"),
        ("out:0:4:4", "of an array"),
    ],
)
def test_bytes_that_no_array_has_are_wrong_usage(watch: str, needed: str) -> None:
    found = run("--watch", watch)
    assert found.exit_code == 2
    assert needed in found.output


def test_a_profile_is_printed_or_written() -> None:
    printed = run("--profile", "-")
    assert printed.exit_code == 0, printed.output
    # Ten instructions, two warps.
    assert "executed: 20 instructions by warps, 640 by lanes; 32.0 of 32 lanes" in printed.output
    assert "device memory: 6 accesses by warps touched 24 sectors of 32 bytes; the fewest are 24" in printed.output
    assert run("--profile", "p.json").exit_code == 0
    (kernel,) = json.loads(Path("p.json").read_text())["kernels"]
    assert kernel["instructions"] == {"warps": 20, "lanes": 640, "active_lanes": 32.0}
    first = Path("p.json").read_bytes()
    assert run("--profile", "p.json").exit_code == 0
    assert Path("p.json").read_bytes() == first
    assert (np.load("o.npy") == np.arange(64) + 256).all()


def test_a_profile_does_not_go_into_a_json_document() -> None:
    found = run("--profile", "-", "--json")
    assert found.exit_code == 2
    assert "--profile" in found.output
