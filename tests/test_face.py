"""The face: what `import refmoe` offers, what it costs, what it prints, and that its examples run."""

from __future__ import annotations

import doctest
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refmoe
from refmoe.cuda.toolchain import ToolchainError, find_toolchain
from refmoe.errors import ArgumentError
from refmoe.families import FAMILIES
from refmoe.formats import FORMATS, MX_FORMATS
from refmoe.policy import EDGE_FORMATS, POLICIES, RELEASES, ScaleMode
from refmoe.ptx import ArgumentMismatch, Buffer, Checks, MemoryFault
from refmoe.reference import quantize_mxfp8
from refmoe.verify.verdict import Result, Verdict

HEAVY = ("numpy", "ml_dtypes", "torch", "pydantic", "typer", "rich", "matplotlib", "jinja2", "pytest", "refmoe.errors")

CASE = "mxfp8_quantize:bf16:m4k416:tiny:seed7@ptx"

#: Every thread adds one to its number; `reset` leaves a zero.
PTX = """
.version 8.7
.target sm_90a
.address_size 64
.visible .entry bump(.param .u64 numbers, .param .u32 count) .reqntid 4
{
    .reg .pred %p;
    .reg .b32 %r<4>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [numbers];
    ld.param.u32 %r3, [count];
    mov.u32 %r1, %tid.x;
    setp.ge.u32 %p, %r1, %r3;
    @%p ret;
    mad.wide.u32 %rd2, %r1, 4, %rd1;
    ld.global.u32 %r2, [%rd2];
    add.u32 %r2, %r2, 1;
    st.global.u32 [%rd2], %r2;
    ret;
}
"""
RESET = """
.visible .entry reset(.param .u64 numbers)
{
    .reg .b64 %rd1;
    ld.param.u64 %rd1, [numbers];
    st.global.u32 [%rd1], 0;
    ret;
}
"""


def needs_compiler() -> None:
    try:
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(str(error))


def test_importing_it_loads_nothing_heavy() -> None:
    code = "import json, sys, refmoe; dir(refmoe), refmoe.__version__; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert not set(HEAVY) & set(loaded)
    assert [name for name in loaded if name.startswith("refmoe")] == ["refmoe", "refmoe.version"]


def test_every_name_is_there_and_documented_and_none_needs_torch() -> None:
    code = "import sys, refmoe\nfor name in refmoe.__all__:\n    assert getattr(refmoe, name).__doc__, name\n"
    code += "assert not {'torch', 'typer', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)  # a fresh process, which has imported nothing else
    for name in refmoe.__all__:
        assert name in dir(refmoe)
        assert getattr(refmoe, name) is getattr(refmoe, name)
        assert name == "__version__" or f"    {name}" in str(refmoe.__doc__) or f", {name} " in str(refmoe.__doc__)


def test_documented_rooms_need_no_import_of_their_own() -> None:
    """README's "Any PTX" begins with `refmoe.ptx.Module.parse`, after nothing but `import refmoe`."""
    shown = [
        "ptx.Module.parse",
        "ptx.Buffer",
        "cuda.fused_moe",
        "models.Decoder",
        "drift.run_drift",
        "reference.expand",
    ]
    root = Path(__file__).parent.parent
    for page in (root / "README.md", *sorted((root / "docs").rglob("*.md"))):
        shown += re.findall(r"(?<![\w/.])refmoe\.((?:ptx|cuda|models|drift|reference)\.[\w.]+)\(", page.read_text())
    # A child for each name knows of refmoe what its parent does: `import refmoe` and the room itself, by which every
    # name of it begins. What is not refmoe's is imported once.
    code = (
        "import operator, os, sys, ml_dtypes, llvmlite.binding, refmoe\n"
        "def forked():\n"
        "    if not (child := os.fork()):\n"
        "        return True\n"
        "    assert os.waitpid(child, 0)[1] == 0, name\n"
        "for room in dict.fromkeys(name.partition('.')[0] for name in sys.argv[1:]):\n"
        "    name = room\n"
        "    if forked():\n"
        "        inside = getattr(refmoe, room)\n"
        "        for name in sys.argv[1:]:\n"
        "            if name.startswith(room + '.') and forked():\n"
        "                operator.attrgetter(name.partition('.')[2])(inside)\n"
        "                break\n"
        "        sys.exit()\n"
    )
    subprocess.run([sys.executable, "-c", code, *dict.fromkeys(shown)], check=True)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'refmoe' has no attribute 'quantise'"):
        refmoe.quantise  # noqa: B018
    namespace: dict[str, Any] = {}
    exec("from refmoe import *", namespace)
    assert set(refmoe.__all__) <= set(namespace)


@pytest.mark.parametrize("name", ["quantize", "dequantize", "check", "repro", "run_ptx"])
def test_the_examples_run(name: str) -> None:
    if name == "repro":
        needs_compiler()
    function = getattr(refmoe, name)
    tests = doctest.DocTestFinder(recurse=False).find(function, name, globs={})
    assert sum(len(test.examples) for test in tests) > 0
    runner = doctest.DocTestRunner(verbose=False)
    said: list[str] = []
    for test in tests:
        runner.run(test, out=said.append)
    assert runner.failures == 0, "".join(said)
    assert inspect.getdoc(function)


# What the modules print


def test_formats_print_every_format() -> None:
    text = str(refmoe.formats)
    assert text == repr(refmoe.formats)
    for name in FORMATS:
        (line,) = (line for line in text.splitlines() if line.startswith(f"{name} "))
        assert str(FORMATS[name].bits) in line.split()
    for name, mx in MX_FORMATS.items():
        (line,) = (line for line in text.splitlines() if line.startswith(f"{name} "))
        assert {mx.element.name, mx.scale.name, str(mx.block)} <= set(line.split())
    assert "448" in next(line for line in text.splitlines() if line.startswith("e4m3"))


def test_policies_print_every_policy_mode_and_edge() -> None:
    text = str(refmoe.policies)
    words = set(text.replace(",", " ").split())
    assert {*POLICIES, *RELEASES} <= words
    assert {each.value for each in (*ScaleMode, *EDGE_FORMATS)} <= words
    (line,) = (line for line in text.splitlines() if line.startswith("  policy  ocp"))
    assert line.split() == ["policy", "ocp", "floor/exact", "mxfp8,", "mxfp4"]
    assert "rceil/exact" in text  # the default
    assert refmoe.policies.POLICIES is POLICIES


def test_families_print_options_with_defaults_and_fills() -> None:
    text = str(refmoe.families)
    for name, family in FAMILIES.items():
        assert f"{name}: {family.about}" in text
        for option in family.options:
            assert f"{option.name}={option.write(option.default)}" in text
        for fill in family.fills:
            assert fill in text
    assert max(map(len, text.splitlines())) <= 120
    one = str(refmoe.families.FAMILIES["expand"])
    assert "mode=rceil   (rceil | floor)" in one
    assert "sizes    m k e t" in one.splitlines()[2]
    assert refmoe.families["expand"] is FAMILIES["expand"]
    assert refmoe.families["gemm"] is FAMILIES["sm12x_gemm"]
    with pytest.raises(ArgumentError, match="family: found str 'expend'; needed one of mxfp8_quantize"):
        refmoe.families["expend"]
    with pytest.raises(TypeError, match=r"module 'refmoe.formats' is not subscriptable"):
        refmoe.formats["e4m3"]
    assert "catches" in one


# What the functions do


def test_dequantize_takes_back_what_quantize_made_and_refuses_the_rest() -> None:
    x = np.linspace(-3, 3, 128, dtype=np.float32).reshape(2, 64)
    for format, policy in (("mxfp8", "ocp"), ("mxfp4", "gguf")):
        tensor = refmoe.quantize(x, format, policy=policy)
        assert isinstance(tensor, refmoe.MXTensor)
        assert np.array_equal(refmoe.dequantize(tensor), tensor.dequantize())
    default, own = refmoe.quantize(x, "mxfp8"), quantize_mxfp8(x)
    assert (default.codes.tobytes(), default.scales.tobytes()) == (own.codes.tobytes(), own.scales.tobytes())
    with pytest.raises(ArgumentError, match=r"tensor: found .*; needed an MXTensor"):
        refmoe.dequantize(x)  # type: ignore[arg-type]


def test_repro_runs_a_case_and_says_what_came_of_it() -> None:
    needs_compiler()
    result = refmoe.repro(CASE)
    assert isinstance(result, Result)
    assert result.verdict is Verdict.PASS
    assert result.launches
    assert str(result) == repr(result) == f"PASS {CASE}\nrepro: refmoe repro '{CASE}'"
    assert refmoe.repro(result.case).id == CASE
    with pytest.raises(ArgumentError, match="case: found int 7; needed a repro string, or a case"):
        refmoe.repro(7)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="case family: found 'gemm3'"):
        refmoe.repro(CASE.replace("mxfp8_quantize", "gemm3"))


def test_a_mismatch_prints_its_place_and_its_repro_line() -> None:
    def wrong(x: np.ndarray) -> Any:
        tensor = refmoe.quantize(x, "mxfp8")
        tensor.codes[2, 70] ^= 1
        return tensor.codes, tensor.scales

    (result,) = refmoe.check(wrong, "quantize", arrays="numpy", cases=[CASE]).results
    first, second = str(result).splitlines()
    assert first.startswith("MISMATCH ")
    assert "codes[2, 70]  block (2, 2) lane 6: kernel 0x" in first
    assert second.startswith("repro: refmoe.check(wrong, 'mxfp8_quantize', arrays='numpy', cases=['mxfp8_quantize:")


def test_run_ptx_on_plain_arrays() -> None:
    numbers = np.arange(4, dtype=np.uint32)
    result = refmoe.run_ptx(PTX, args=[numbers, 3])  # block: what .reqntid says
    assert numbers.tolist() == [1, 2, 3, 3]
    assert result.lane_instructions > 0
    refmoe.run_ptx(PTX + RESET, "reset", grid=(1, 1), block=1, args=[numbers])
    assert numbers.tolist() == [0, 2, 3, 3]


def test_run_ptx_takes_a_part_of_a_name() -> None:
    text = (PTX + RESET).replace("bump", "_ZN4vllm15rms_norm_kernelI6__halfEEvPT_")
    text += text[text.index(".visible") :].replace("6__half", "f").replace("reset", "reset2")
    numbers = np.arange(4, dtype=np.uint32)
    refmoe.run_ptx(text, "rms_norm*half", args=[numbers, 3])
    assert numbers.tolist() == [1, 2, 3, 3]
    refmoe.run_ptx(text, "reset", grid=1, block=1, args=[numbers])  # a whole name, though a part of another
    assert numbers[0] == 0
    with pytest.raises(ArgumentMismatch, match=r"'rms_norm' is a part of the entries _ZN4vllm15.*; name one"):
        refmoe.run_ptx(text, "rms_norm", args=[numbers, 3])
    with pytest.raises(ArgumentMismatch, match=r"no entry 'rms.norm'"):
        refmoe.run_ptx(text, "rms.norm", args=[numbers, 3])


def test_a_message_names_some_of_many_entries() -> None:
    text = PTX + "".join(RESET.replace("reset", f"reset{number}") for number in range(10))
    with pytest.raises(ArgumentMismatch, match=r"bump, reset0, .*reset6, and 3 more; name one"):
        refmoe.run_ptx(text, args=[])


def test_run_ptx_refuses_what_does_not_fit_and_leaves_arrays_alone_after_a_fault() -> None:
    numbers = np.arange(4, dtype=np.uint32)
    with pytest.raises(ArgumentMismatch, match="has the entries bump, reset; name one"):
        refmoe.run_ptx(PTX + RESET, args=[numbers, 3])
    with pytest.raises(ArgumentMismatch, match="no entry 'dump'; it has bump"):
        refmoe.run_ptx(PTX, "dump", args=[numbers, 3])
    with pytest.raises(ArgumentMismatch, match=r"no block was given, and reset has no \.reqntid"):
        refmoe.run_ptx(PTX + RESET, "reset", args=[numbers])
    with pytest.raises(ArgumentMismatch, match="bump has 2 parameters; 1 arguments given"):
        refmoe.run_ptx(PTX, args=[numbers])
    with pytest.raises(ArgumentMismatch, match=r"grid .*: three positive sizes needed"):
        refmoe.run_ptx(PTX, grid=0, args=[numbers, 3])
    with pytest.raises(ArgumentError, match="found str 'no PTX'; needed the text of a PTX module"):
        refmoe.run_ptx("no PTX")
    with pytest.raises(MemoryFault, match="out of bounds"):
        refmoe.run_ptx(PTX, args=[numbers[:2].copy(), 4])
    with pytest.raises(MemoryFault, match="uninitialised"):
        refmoe.run_ptx(PTX, args=[Buffer(numbers, initialised=False), 4])
    readonly = numbers.copy()
    readonly.setflags(write=False)
    with pytest.raises(MemoryFault):
        refmoe.run_ptx(PTX, args=[readonly, 4])
    assert numbers.tolist() == [0, 1, 2, 3]
    refmoe.run_ptx(PTX, args=[numbers, 4], checks=Checks(races=False), shared=16)
    assert numbers.tolist() == [1, 2, 3, 4]
