from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from refmoe.cli import app

# Each thread scales one number by a constant, and counts itself; the blocks that run together are seen in %nclusterid.
TEXT = """.version 9.0
.target sm_90a
.address_size 64
.const .align 4 .b8 _Zfactors[16];
.global .align 4 .u32 counted = 3;
.global .align 4 .u32 counted_twice;
.visible .entry scale(.param .u64 x) {
    .reg .b32 %r<6>; .reg .f32 %f<3>; .reg .b64 %d<6>;
    ld.param.u64 %d1, [x];
    mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4; add.s64 %d1, %d1, %d2;
    mov.u64 %d3, _Zfactors; add.s64 %d3, %d3, %d2;
    ld.global.f32 %f1, [%d1]; ld.const.f32 %f2, [%d3]; mul.rn.f32 %f1, %f1, %f2;
    st.global.f32 [%d1], %f1;
    atom.global.add.u32 %r2, [counted], 1; atom.global.add.u32 %r2, [counted_twice], 2;
    ret;
}
.visible .entry shape(.param .u64 x) {
    .reg .b32 %r<6>; .reg .b64 %d<6>;
    ld.param.u64 %d1, [x];
    mov.u32 %r1, %ctaid.x; mul.wide.u32 %d2, %r1, 8; add.s64 %d1, %d1, %d2;
    mov.u32 %r2, %nclusterid.x; mov.u32 %r3, %envreg1;
    st.global.u32 [%d1], %r2; st.global.u32 [%d1+4], %r3;
    ret;
}
"""
# All blocks wait for the last of 64.
WAIT = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry wait(.param .u64 flag) {
    .reg .pred %p<2>; .reg .b32 %r<3>; .reg .b64 %d<2>;
    ld.param.u64 %d1, [flag];
    mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 63;
    @%p1 st.release.gpu.global.u32 [%d1], %r1;
SPIN:
    ld.acquire.gpu.global.u32 %r2, [%d1];
    setp.eq.u32 %p1, %r2, 0;
    @%p1 bra SPIN;
    ret;
}
"""
SCALE = ("--entry", "scale", "--block", "4", "--args", "inout:x.npy:y.npy")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    Path("k.ptx").write_text(TEXT)
    np.save("x.npy", np.arange(1, 5, dtype=np.float32))
    np.save("factors.npy", np.array([2, 3, 5, 7], np.float32))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["run", "k.ptx", *arguments])


def test_constants_are_set_and_device_variables_come_back() -> None:
    found = run(*SCALE, "--variable", "factors=in:factors.npy", "--variable", "counted=out:n.npy:u32:1")
    assert found.exit_code == 0, found.output
    assert np.load("y.npy").tolist() == [2, 6, 15, 28]
    assert np.load("n.npy").tolist() == [7]
    assert "n.npy  uint32 1" in found.output


def test_a_number_a_struct_and_both_ways() -> None:
    np.save("n.npy", np.array([10], np.uint32))
    Path("two.bin").write_bytes(np.array([0.5, 4], np.float32).tobytes())
    settings = ["counted=inout:n.npy", "twice=u32:100", "_Zfactors=bytes:two.bin"]
    found = run(*SCALE, *[part for each in settings for part in ("--variable", each)], "--json")
    assert found.exit_code == 0, found.output
    # What is not given stays as it was: zero.
    assert np.load("y.npy").tolist() == [0.5, 8, 0, 0]
    assert np.load("n.npy").tolist() == [14]
    assert {each["file"] for each in json.loads(found.output)["outputs"]} == {"y.npy", "n.npy"}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("count=u32:1", ["'count'", "one variable of k.ptx, of counted, counted_twice"]),
        ("taps=u32:1", ["'taps'", "of _Zfactors, counted, counted_twice"]),
        ("counted=in:factors.npy", ["counted: 16 bytes in float32 [4]", "at most the 4 bytes that counted has"]),
        ("counted=out:n.npy:u32:2", ["at most the 4 bytes that counted has"]),
        ("counted=factors.npy", ["needed NAME=ARGUMENT with an argument of in:, inout:, out:, bytes: or TYPE:VALUE"]),
        ("counted=in:absent.npy", ["--variable: found", "absent.npy"]),
        ("counted=u32:-1", ["u32: and an integer from 0 to 4294967295"]),
        ("counted", ["needed NAME=ARGUMENT"]),
    ],
)
def test_what_does_not_fit_is_wrong_usage(setting: str, words: list[str]) -> None:
    found = run(*SCALE, "--variable", setting)
    assert found.exit_code == 2
    assert all(each in found.output for each in ["refmoe: --variable: ", *words]), found.output
    assert not Path("y.npy").exists()


def test_one_variable_twice_is_wrong_usage() -> None:
    found = run(*SCALE, "--variable", "counted=u32:1", "--variable", "counted=u32:2")
    assert (found.exit_code, "two of counted" in found.output) == (2, True)


def test_the_list_names_variables() -> None:
    found = run("--list")
    assert "_Zfactors  __constant__ variable of 16 bytes" in found.output
    assert "counted_twice  __device__ variable of 4 bytes" in found.output
    listed = json.loads(run("--list", "--json").output)["variables"]
    assert {"name": "counted", "space": "global", "bytes": 4} in listed


def test_clusters_and_cooperative_launches() -> None:
    words = ("--entry", "shape", "--grid", "4", "--block", "1", "--args", "out:s.npy:u32:4x2")
    assert run(*words).exit_code == 0
    assert np.load("s.npy").tolist() == [[4, 0]] * 4
    found = run(*words, "--cluster", "2", "--cooperative")
    assert found.exit_code == 0, found.output
    of_clusters = np.load("s.npy")
    assert of_clusters[:, 0].tolist() == [2] * 4
    # The workspace of a cooperative launch has an address.
    assert len(set(of_clusters[:, 1].tolist())) == 1
    assert run(*words, "--cluster", "3").exit_code == 2
    assert run(*words, "--cluster", "x").exit_code == 2


def test_some_blocks_of_a_grid() -> None:
    words = ("--entry", "shape", "--grid", "4", "--block", "1", "--args", "out:s.npy:u32:4x2")
    found = run(*words, "--blocks", "1-2", "--json")
    assert found.exit_code == 0, found.output
    (output,) = json.loads(found.output)["outputs"]
    assert (output["unwritten"], np.load("s.npy")[1:3].tolist()) == (4, [[4, 0]] * 2)
    assert run(*words, "--blocks", "0", "--blocks", "3,0,0").exit_code == 0
    assert np.load("s.npy")[[0, 3]].tolist() == [[4, 0]] * 2


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        (("3-1",), "A-B, the first x and the last"),
        (("1-",), "A-B, the first x and the last"),
        (("-1",), "A-B, the first x and the last"),
        (("x",), "a block as 17 or 2,0,1"),
        (("0,0,0,0",), "a block as 17 or 2,0,1"),
        (("4",), "outside the grid"),
        (("2-1000000000000",), "outside the grid"),
        (("0,1",), "outside the grid"),
        (("1", "0-2"), "is given twice"),
    ],
)
def test_blocks_that_there_are_not(blocks: tuple[str, ...], said: str) -> None:
    words = ("--entry", "shape", "--grid", "4", "--block", "1", "--args", "out:s.npy:u32:4x2")
    found = run(*words, *(f"--blocks={each}" for each in blocks))
    assert found.exit_code == 2
    assert said in " ".join(found.output.split())


def test_multiprocessors_say_which_blocks_are_resident() -> None:
    Path("k.ptx").write_text(WAIT)
    np.save("flag.npy", np.zeros(1, np.uint32))
    words = ("--grid", "64", "--block", "1", "--args", "inout:flag.npy:set.npy")
    assert run(*words).exit_code == 0
    assert np.load("set.npy").tolist() == [63]
    assert run(*words, "--multiprocessors", "2").exit_code == 0
    found = run(*words, "--multiprocessors", "1", "--json")
    assert found.exit_code == 1, found.output
    assert json.loads(found.output)["fault"]["kind"] == "CoResidencyError"
    assert run(*words, "--multiprocessors", "0").exit_code == 2


@pytest.mark.parametrize(
    ("instruction", "said"),
    [
        ("div.u32 %r2, %r1, 0;", "div.u32, line 7: a division by zero, which PTX leaves open: all ones"),
        ("rcp.approx.f32 %f1, 0f40400000;", "rcp.approx.f32, line 7: the chip's last bits may differ"),
        ("add.f64 %e1, 0d7FF0000000000000, 0dFFF0000000000000;", "add.f64, line 7: a NaN: the chip's may have other"),
        ("bfe.u64 %d2, %d1, 300, 400;", "bfe.u64, line 7: operands of which PTX leaves the result open"),
    ],
)
def test_what_is_left_open_is_named(instruction: str, said: str) -> None:
    registers = ".reg .b32 %r<3>; .reg .f32 %f<2>; .reg .b64 %d<3>; .reg .f64 %e<2>; mov.u32 %r1, 5; mov.u64 %d1, 7;"
    head = ".version 9.0\n.target sm_90a\n.address_size 64\n"
    Path("k.ptx").write_text(f"{head}.visible .entry open()\n{{\n{registers}\n{instruction}\nret;\n}}\n")
    found = run("--block", "1")
    assert found.exit_code == 0, found.output
    assert said in found.output


def test_the_command_of_a_finding_has_every_setting() -> None:
    # Each block writes its number to one place: which one stays depends on the schedule.
    store = "st.global.u32 [%d1], %r2; st.global.u32 [%d1+4], %r3;"
    assert store in TEXT
    Path("k.ptx").write_text(TEXT.replace(store, "st.relaxed.gpu.global.u32 [counted], %r1;"))
    words = ("--variable", "counted=inout:n.npy", "--cooperative", "--cluster", "1", "--multiprocessors", "7")
    np.save("n.npy", np.zeros(1, np.uint32))
    found = run("--entry", "shape", "--grid", "2", "--block", "1", "--args", "null", *words, "--schedules", "8")
    assert found.exit_code == 1, found.output
    (repro,) = (line for line in found.output.splitlines() if line.startswith("repro:"))
    assert "--variable counted=inout:n.npy --cooperative --cluster 1,1,1 --multiprocessors 7" in repro
    found = run(
        "--entry",
        "shape",
        "--grid",
        "4",
        "--block",
        "1",
        "--args",
        "null",
        *words[:2],
        "--blocks",
        "1-2",
        "--schedules",
        "8",
    )
    (repro,) = (line for line in found.output.splitlines() if line.startswith("repro:"))
    assert "--blocks 1-2" in repro
