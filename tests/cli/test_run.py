from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from refmoe.cli import app
from refmoe.cli.kernel_arguments import read_arguments

DATA = Path(__file__).parent.parent / "data"
# y[i] = a x[i] + y[i] for i < n, as nvcc writes it without our flags; and a second kernel that copies a word.
TEXT = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry saxpy(.param .f32 a, .param .u64 .ptr x, .param .u64 .ptr y, .param .u32 n) {
    .reg .pred %p<2>; .reg .b32 %r<6>; .reg .f32 %f<5>; .reg .b64 %d<6>;
    ld.param.f32 %f1, [a]; ld.param.u64 %d1, [x]; ld.param.u64 %d2, [y]; ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.u32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 ret;
    mul.wide.u32 %d3, %r5, 4; add.s64 %d4, %d1, %d3; add.s64 %d5, %d2, %d3;
    ld.global.f32 %f2, [%d4]; ld.global.f32 %f3, [%d5];
    mul.f32 %f4, %f1, %f2;
    add.f32 %f4, %f4, %f3;
    st.global.f32 [%d5], %f4;
    ret;
}
.visible .entry copy(.param .u64 from, .param .u64 to, .param .align 8 .b8 s[16])
.reqntid 4
{
    .reg .b32 %r<6>; .reg .b64 %d<6>;
    ld.param.u64 %d1, [from]; ld.param.u64 %d2, [to]; ld.param.u32 %r3, [s+4];
    mov.u32 %r1, %tid.x; mul.wide.u32 %d3, %r1, 4; add.s64 %d1, %d1, %d3; add.s64 %d2, %d2, %d3;
    ld.global.u32 %r2, [%d1];
    add.u32 %r2, %r2, %r3;
    st.global.u32 [%d2], %r2;
    ret;
}
"""
SAXPY = ("--entry", "saxpy", "--grid", "2", "--block", "32")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    Path("k.ptx").write_text(TEXT)
    np.save("x.npy", np.arange(50, dtype=np.float32))
    np.save("big-endian.npy", np.arange(50, dtype=">f4"))
    Path("folder").mkdir()
    np.save("y.npy", np.full(50, 0.5, np.float32))


def run(*arguments: str | Path, input: str | None = None) -> Result:
    return CliRunner().invoke(app, ["run", *map(str, arguments)], input=input)


def test_in_out_and_numbers() -> None:
    found = run("k.ptx", *SAXPY, "--args", "f32:2 in:x.npy", "--args", "inout:y.npy:z.npy u32:50")
    assert found.exit_code == 0, found.output
    assert (np.load("z.npy") == np.arange(50, dtype=np.float32) * 2 + 0.5).all()
    assert (np.load("y.npy") == 0.5).all()
    # What compilers may fuse is said, with its lines.
    lines = [n for n, line in enumerate(TEXT.splitlines(), 1) if "mul.f32" in line or "add.f32" in line]
    assert f"2 lines that ptxas may fuse with others: {lines[0]}, {lines[1]}" in found.output
    assert "z.npy  float32 50" in found.output


def test_inout_replaces_its_file() -> None:
    assert run("k.ptx", *SAXPY, "--args", "f32:-1 in:x.npy inout:y.npy u32:0x10").exit_code == 0
    expected = np.full(50, 0.5, np.float32)
    expected[:16] -= np.arange(16)
    assert (np.load("y.npy") == expected).all()


def test_fresh_arrays_are_poison() -> None:
    words = ["in:i.npy", "out:deep/o.npy:u32:2x4", "bytes:s.bin"]
    np.save("i.npy", np.arange(4, dtype=np.int32))
    Path("s.bin").write_bytes(bytes([0] * 4 + [7, 0, 0, 0] + [0] * 8))
    found = run("k.ptx", "--entry", "co", "--args", " ".join(words), "--json")
    assert found.exit_code == 0, found.output
    out = np.load("deep/o.npy")
    assert out.tolist() == [[7, 8, 9, 10], [0xCDCDCDCD] * 4]
    document = json.loads(found.output)
    assert document["outputs"] == [{"file": "deep/o.npy", "dtype": "uint32", "shape": [2, 4], "unwritten": 4}]
    assert (document["entry"], document["block"], document["grid"]) == ("copy", [4, 1, 1], [1, 1, 1])
    assert document["checks"] == ["bounds", "uninitialised", "alignment", "races", "undefined"]
    assert document["result"]["lane_instructions"] > 0
    assert document["fault"] is None
    # Reading what nobody wrote is a fault, unless it was filled, and one array may stand for two.
    fault = run("k.ptx", "--entry", "copy", "--args", "scratch:u32:4 same:0 bytes:s.bin")
    assert fault.exit_code == 1
    assert "uninitialised" in fault.output
    assert run("k.ptx", "--entry", "copy", "--args", "out:f.npy:u32:4:fill=1 same:0 bytes:s.bin").exit_code == 0
    assert np.load("f.npy").tolist() == [0x01010101 + 7] * 4


def test_a_fault_says_where_and_writes_nothing() -> None:
    before = Path("y.npy").read_bytes()
    found = run("k.ptx", *SAXPY, "--args", "f32:2 in:x.npy inout:y.npy u32:64 ")
    assert found.exit_code == 1
    assert "out of bounds" in found.output
    assert "block (1, 0, 0) thread (18, 0, 0)" in found.output
    line = next(n for n, text in enumerate(TEXT.splitlines(), 1) if "ld.global.f32 %f2" in text)
    assert f"> {line:6} |" in found.output
    assert "no output was written" in found.output
    assert Path("y.npy").read_bytes() == before
    document = json.loads(run("k.ptx", *SAXPY, "--json", "--args", "f32:2 in:x.npy inout:y.npy u32:64").output)
    assert document["fault"]["kind"] == "MemoryFault"
    assert (document["fault"]["line"], document["fault"]["thread"]) == (line, [18, 0, 0])


def test_a_check_can_be_left_out() -> None:
    words = "f32:2 in:x.npy out:o.npy:f32:50 u32:50"
    assert run("k.ptx", *SAXPY, "--args", words).exit_code == 1
    found = run("k.ptx", *SAXPY, "--args", words, "--no-check", "uninitialised")
    assert found.exit_code == 0
    assert "bounds, alignment, races" in found.output


def test_list() -> None:
    found = run("k.ptx", "--list")
    assert found.exit_code == 0
    assert "saxpy  (sm_90a)" in found.output
    assert "copy  (sm_90a) .reqntid 4" in found.output
    entries = json.loads(run("k.ptx", "--list", "--json").output)["entries"]
    assert [entry["entry"] for entry in entries] == ["saxpy", "copy"]
    assert [p["bytes"] for p in entries[1]["parameters"]] == [8, 8, 16]
    assert [p["pointer"] for p in entries[0]["parameters"]] == [False, True, True, False]


@pytest.mark.parametrize("name", ["k.cu", "k.cuh", "k.cpp"])
def test_cuda_goes_through_a_compiler_first(name: str) -> None:
    Path(name).write_text("__global__ void k() {}")
    found = run(name)
    assert found.exit_code == 2
    assert f"{name}: found CUDA C++; needed PTX, for example of nvcc -ptx -lineinfo" in found.output


def test_standard_input_and_broken_text() -> None:
    assert run("-", "--list", input=TEXT).exit_code == 0
    # A list needs no bodies, which take long to read.
    broken = TEXT.replace("ret;\n}", "ret\n}")
    assert run("-", "--list", input=broken).exit_code == 0
    found = run("-", *SAXPY, "--args", "f32:2 in:x.npy inout:y.npy u32:50", input=broken)
    assert found.exit_code == 1
    assert "ParseError: -:" in found.output
    unknown = run("-", *SAXPY, "--args", "f32:2 in:x.npy inout:y.npy u32:50", input=TEXT.replace("mul.f32", "mul.f31"))
    assert unknown.exit_code == 1
    assert "UnknownOpcode" in unknown.output


def test_a_kernel_of_triton() -> None:
    rng = np.random.default_rng(0)
    for name, shape in (("a", (3, 128)), ("b", (5, 128)), ("sa", (3, 4)), ("sb", (5, 4))):
        np.save(f"{name}.npy", rng.integers(0, 120, shape, np.uint8))
    words = "in:a.npy in:sa.npy in:b.npy in:sb.npy out:c.npy:f32:3x5 i32:3 i32:5 i32:128 null null"
    found = run(DATA / "triton_e4m3_e4m3.ptx", "--shared", "12544", "--args", words, "--trace", "t.txt")
    assert found.exit_code == 0, found.output
    assert "model sm120, published" in found.output
    assert np.load("c.npy").shape == (3, 5)
    assert Path("t.txt").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.ptx"], "none.ptx"),
        (["k.ptx", "--block", "4"], "--entry: found nothing; needed one of saxpy, copy"),
        (["k.ptx", "--entry", "p"], "--entry: found 'p'; needed one of saxpy, copy"),
        (["k.ptx", "--entry", "saxpy"], "saxpy has no .reqntid"),
        (["k.ptx", *SAXPY[:2], "--block", "0"], "--block: found '0'"),
        (["k.ptx", *SAXPY[:2], "--block", "8", "--grid", "1,2,3,4"], "--grid: found '1,2,3,4'"),
        (["k.ptx", *SAXPY], "saxpy has 4 parameters; 0 arguments given"),
        (["k.ptx", *SAXPY, "--args", "i32:2 in:x.npy inout:y.npy u32:50"], "'i32:2' for parameter 0 (a)"),
        (["k.ptx", *SAXPY, "--args", "f32:2 u64:5 inout:y.npy u32:50"], "needed an array or null"),
        (["k.ptx", *SAXPY, "--args", "f32:2 in:x.npy inout:y.npy u64:50"], "needed a .u32 of 4 bytes"),
        (["k.ptx", *SAXPY, "--args", "f32:2 in:x.npy inout:y.npy f32:50"], "needed a .u32 of 4 bytes"),
        (["k.ptx", *SAXPY, "--args", "f32:2 in:no.npy"], "no.npy"),
        (["k.ptx", *SAXPY, "--args", "f32:2 in:k.ptx"], "needed a .npy file"),
        (["k.ptx", *SAXPY, "--args", "u32:-1"], "an integer from 0 to 4294967295"),
        (["k.ptx", *SAXPY, "--args", "f32:two"], "f32: and a number"),
        (["k.ptx", *SAXPY, "--args", "f16:1e6"], "a number of at most 65504"),
        (["k.ptx", *SAXPY, "--args", "'f32:2"], "No closing quotation"),
        (["k.ptx", *SAXPY, "--args", "in:big-endian.npy"], "found 'in:big-endian.npy': >f4; needed little-endian"),
        (["k.ptx", *SAXPY, "--args", "out:folder:f32:4"], "folder; needed a file"),
        (["k.ptx", *SAXPY, "--trace", "folder"], "--trace: found the folder folder; needed a file"),
        (["k.ptx", *SAXPY, "--trace", "-", "--json"], "--trace: found - with --json"),
        (["k.ptx", *SAXPY, "--trace", "t.txt", "--trace-block", "0,0"], "--trace-block: found '0,0'"),
        (["k.ptx", *SAXPY, "--step-budget", "0"], "'--step-budget'"),
        (["k.ptx", *SAXPY, "--args", "out:o.npy:f33:4"], "TYPE:SHAPE with a TYPE of u8"),
        (["k.ptx", *SAXPY, "--args", "out:o.npy:f32:4x-4"], "TYPE:SHAPE"),
        (["k.ptx", *SAXPY, "--args", "out:o.npy:f32:4:fill=256"], "a byte from 0 to 255"),
        (["k.ptx", *SAXPY, "--args", "out:o.npy:f32:4 out:o.npy:f32:4"], "two outputs into"),
        (["k.ptx", *SAXPY, "--args", "same:0"], "the number of an array in front of it"),
        (["k.ptx", *SAXPY, "--args", "x.npy"], "needed in:FILE, inout:FILE"),
        (["k.ptx", *SAXPY, "--no-check", "everything"], "--no-check: found 'everything'"),
        (["k.ptx", *SAXPY, "--shared", "-4", "--args", "f32:2 in:x.npy inout:y.npy u32:5"], "shared memory"),
    ],
)
def test_usage_errors(arguments: list[str], words: str) -> None:
    found = run(*arguments)
    assert found.exit_code == 2, found.output
    assert words in " ".join(found.output.split())
    assert "Traceback" not in found.output


def test_numbers_are_their_bytes() -> None:
    words = ["i8:-1", "u16:0xFFFF", "i64:-2", "f16:1.5", "f32:nan", "f64:-inf", "null"]
    values = [argument.value for argument in read_arguments(words)]
    assert values[:4] == [b"\xff", b"\xff\xff", (-2).to_bytes(8, "little", signed=True), b"\x00\x3e"]
    assert np.isnan(np.frombuffer(values[4], np.float32)[0])
    assert np.frombuffer(values[5], np.float64)[0] == -np.inf
    assert values[6] is None


SLOTS = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry slots(.param .u64 .ptr out, .param .u64 .ptr count) {
    .reg .b32 %r<4>; .reg .b64 %d<4>;
    ld.param.u64 %d1, [out]; ld.param.u64 %d2, [count];
    mov.u32 %r1, %ctaid.x;
    atom.global.add.u32 %r2, [%d2], 1;
    mul.wide.u32 %d3, %r2, 4; add.s64 %d3, %d3, %d1;
    st.global.u32 [%d3], %r1;
    ret;
}
"""
SLOTS_ARGUMENTS = ("slots.ptx", "--grid", 4, "--block", 1, "--args", "out:out.npy:u32:4 scratch:u32:1:fill=0")


def test_a_result_that_depends_on_the_schedule() -> None:
    Path("slots.ptx").write_text(SLOTS)
    assert run(*SLOTS_ARGUMENTS).exit_code == 0
    assert np.load("out.npy").tolist() == [0, 1, 2, 3]
    Path("out.npy").unlink()
    failed = run(*SLOTS_ARGUMENTS, "--schedules", 16, "--no-check", "alignment")
    assert failed.exit_code == 1
    assert failed.output.startswith("ScheduleError: the result depends on the schedule: byte 0 of out.npy: schedule=0 ")
    repro = failed.output.splitlines()[-2].removeprefix("repro: ")
    assert failed.output.splitlines()[-1] == "no output was written"
    assert not Path("out.npy").exists()
    # The line that it prints shows the same again.
    program, command, *words = shlex.split(repro)
    assert (program, command, words[-2:]) == ("refmoe", "run", ["--schedules", "2"])
    assert run(*words).output == failed.output
    assert run(*words[:-1], "schedule=1").exit_code == 0
    assert np.load("out.npy").tolist() == [3, 2, 1, 0]


def test_schedules_in_the_document() -> None:
    x = ("--args", "f32:2 in:x.npy inout:y.npy:z.npy i32:50")
    clean = run("k.ptx", *SAXPY, *x, "--schedules", 3)
    assert "  schedules      the same bytes under 3 schedules\n" in clean.output
    wide = run("k.ptx", "--entry", "saxpy", "--grid", "9", "--block", "32", *x, "--schedules", 2)
    assert "under 2 schedules; no read came late, as it may with up to 8 warps\n" in wide.output
    assert "schedules " not in run("k.ptx", *SAXPY, *x).output
    document = json.loads(run("k.ptx", *SAXPY, *x, "--schedules", 3, "--json").output)
    assert document["result"]["schedules"] == 3
    Path("slots.ptx").write_text(SLOTS)
    fault = json.loads(run(*SLOTS_ARGUMENTS, "--schedules", "0,1", "--json").output)["fault"]
    assert fault["kind"] == "ScheduleError"
    assert fault["repro"].endswith(" --schedules 2")


@pytest.mark.parametrize("text", ["0", "x", "0,0", "-1", "schedule=", "1.5"])
def test_what_are_no_schedules(text: str) -> None:
    failed = run("k.ptx", *SAXPY, "--args", "f32:2 in:x.npy inout:y.npy i32:50", f"--schedules={text}")
    assert failed.exit_code == 2
    assert "--schedules: found" in failed.output or "--schedules" in failed.output
