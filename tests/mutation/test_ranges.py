"""Ranges of values where paths meet, and what host code holds launches to."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from refmoe.cuda.arguments import INT32_MAX, MAX_GRID
from refmoe.cuda.launch import Entry, LaunchPlan, MatrixMap
from refmoe.mutation.proofs import bounds
from refmoe.mutation.proofs.bounds import BOUNDS, HostBounds, arrays_apart, within_bounds
from refmoe.mutation.proofs.equality import same_kernel
from refmoe.mutation.proofs.program import sound
from refmoe.ptx import Buffer
from tests.mutation.test_proofs import small

#: A counter that goes on in steps while it is below a bound.
WALK = """mov.u32 %r1, START; bra HEAD; HEAD: shr.u32 %r2, %r1, 1; mul.wide.u32 %rd3, %r2, 4; add.s64 %rd4, %rd2, %rd3;
st.global.u32 [%rd4], %r1; add.s32 %r1, %r1, STEP; setp.lt.s32 %p1, %r1, BOUND; @%p1 bra HEAD"""


def walk(start: str, step: str, bound: str) -> str:
    body = WALK.replace("START", start).replace("STEP", step).replace("BOUND", bound).replace("\n", " ")
    lines = ["ld.param.u32 %r9, [kernel_param_2]", *(each.strip() for each in body.split(";"))]
    return re.sub(r"\tHEAD: ", "HEAD:\n\t", small(*lines))


def signed(text: str) -> str:
    return text.replace("shr.u32 %r2", "shr.s32 %r2")


@pytest.mark.parametrize(
    ("start", "step", "bound", "proven"),
    [
        ("0", "3", "20", True),
        ("5", "3", "2147483000", True),
        ("%tid.x", "32", "200", True),
        ("-1", "3", "20", False),
        ("0", "3", "2147483647", False),  # two rounds more, and it is negative
        ("0", "-3", "20", False),
        ("0", "%r9", "20", False),  # 19 and 2^31 - 1
        ("%r9", "3", "20", False),
        ("0", "%r9", "%r9", False),
    ],
)
def test_a_counter_below_a_bound_is_never_negative(start: str, step: str, bound: str, proven: bool) -> None:
    text = walk(start, step, bound)
    assert (same_kernel(text, signed(text)) is not None) is proven


def test_an_entry_that_loads_what_the_other_one_has_as_a_constant_is_another_one() -> None:
    text = walk("%r5", "3", "20").replace("mov.u32 %r1, %r5;", "mov.u32 %r5, 7;\n\tmov.u32 %r1, %r5;")
    assert same_kernel(text, signed(text)) is not None
    assert same_kernel(text, text.replace("mov.u32 %r5, 7;", "ld.global.u32 %r5, [%rd2];")) is None


def test_what_a_branch_never_leads_to_may_be_anything() -> None:
    body = (
        "mov.u32 %r1, %tid.x", "setp.gt.u32 %p1, %r1, 63", "@%p1 bra NEVER", "st.global.u32 [%rd2], 1", "bra END",
    )  # fmt: skip
    text = small(*body).replace("\tret;", "NEVER:\n\tbar.sync 0;\n\tst.global.u32 [%rd2], 7;\nEND:\n\tret;")
    other = text.replace("[%rd2], 7", "[%rd2], 8")
    assert same_kernel(text, other) is not None
    assert same_kernel(text.replace("%r1, 63", "%r1, 62"), other.replace("%r1, 63", "%r1, 62")) is None
    assert same_kernel(text, other.replace("%r1, 63", "%r1, 62")) is None


def test_what_a_path_never_wrote_is_not_what_another_wrote() -> None:
    """The first round of the loop stores a register that its end writes, which is not what it then stores."""
    body = ("mov.u32 %r3, 0", "bra HEAD")
    text = small(*body).replace(
        "\tret;",
        "HEAD:\n\tst.global.u32 [%rd2], %r4;\n\tadd.s32 %r4, %r3, 1;\n\tadd.s32 %r3, %r3, 1;\n"
        "\tsetp.lt.s32 %p1, %r3, 3;\n\t@%p1 bra HEAD;\n\tret;",
    )
    assert same_kernel(text, text) is not None
    assert same_kernel(text, text.replace("[%rd2], %r4", "[%rd2], %r3")) is None


@pytest.mark.parametrize(
    ("grid", "tokens", "pieces", "expected"),
    [
        (MAX_GRID, INT32_MAX - MAX_GRID, 180, True),
        (MAX_GRID + 1, 3, 180, False),
        (3, INT32_MAX - MAX_GRID + 1, 180, False),
        (3, 3, 1 << 29, False),
    ],
)
def test_launches_are_held_against_the_bounds(grid: int, tokens: int, pieces: int, expected: bool) -> None:
    arguments = (None,) * 4 + (tokens, pieces, 3)
    assert within_bounds("refmoe_nvfp4_quantize_bf16_128x4", grid, arguments) is expected
    assert within_bounds("somebody_elses", grid, arguments)


def test_a_bound_is_used_and_only_of_its_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    text = walk("0", "64", "%r9")
    assert same_kernel(text, signed(text)) is None
    monkeypatch.setattr(bounds, "BOUNDS", {"kernel": HostBounds({2: INT32_MAX - 64})})
    assert same_kernel(text, signed(text)) is not None
    monkeypatch.setattr(bounds, "BOUNDS", {"kernel": HostBounds({2: INT32_MAX - 62})})
    assert same_kernel(text, signed(text)) is None


def test_every_bound_is_of_entries_that_there_are() -> None:
    from refmoe.mutation.reach import ROOT

    found = [path for pattern in ("*.py", "*.cu") for path in (ROOT / "cuda").rglob(pattern)]
    sources = "\n".join(path.read_text() for path in found)
    for start in BOUNDS:
        assert re.sub(r"_(bf16|fp16|f32|1x128|128x128)(_floor|_rceil)?_?$|_$", "", start) in sources, start


@pytest.mark.parametrize(("kind", "expected"), [("f32", True), ("u32", False)])
def test_only_what_an_entry_takes_as_an_integer_has_to_be_one(kind: str, expected: bool) -> None:
    text = small("st.global.u32 [%rd2], 1").replace(".u32 kernel_param_2", f".{kind} kernel_param_2")
    arguments: tuple[Any, ...] = (None, None, -5)
    assert sound(LaunchPlan(Entry("kernel", "kernel"), 1, 64, arguments), text) is expected


def test_the_bits_of_a_float_are_any_word_and_no_number() -> None:
    text = small("ld.param.u32 %r1, [kernel_param_2]", "shr.u32 %r2, %r1, 1", "st.global.u32 [%rd2], %r2")
    assert same_kernel(text, signed(text)) is not None
    others = text.replace("kernel_param_2", "kernel_param_8").replace(
        ".entry kernel", ".entry refmoe_deepseek_finalize_x"
    )
    assert same_kernel(others, signed(others)) is None
    nothing = (None,) * 5
    plan = LaunchPlan(Entry("kernel", "refmoe_deepseek_finalize_x"), 1, 64, (*nothing, 3, 3, 96, -5))
    parameters = "".join(f".param .u64 p{place},\n" for place in range(5))
    parameters += "".join(f".param .u32 p{place},\n" for place in range(5, 9))
    assert sound(plan, parameters)
    assert not sound(LaunchPlan(plan.kernel, 1, 64, (*nothing, 3, 3, -96, 5)), parameters)


@pytest.mark.parametrize(
    ("offsets", "expected"), [([0, 5, 2**31 - 1], True), ([0, -1, 5], False), ([0, 5, 2**31], False)]
)
def test_an_array_that_host_code_checks_is_held_against_what_is_said_of_it(offsets: list[int], expected: bool) -> None:
    array = Buffer(np.array(offsets, np.int64).view(np.uint8), writable=False)
    arguments = [array, array, *[0] * 6, 1, 0, 16]
    assert within_bounds("refmoe_swiglu_q8_1_silu_f32_llama_cpp_mmq", 1, arguments) is expected
    # A number of lanes that is no multiple of eight, and what is no array.
    assert not within_bounds("refmoe_swiglu_q8_1_silu_f32_llama_cpp_mmq", 1, [*arguments[:-1], 12])
    assert not within_bounds("refmoe_swiglu_q8_1_silu_f32_llama_cpp_mmq", 1, [array, None, *arguments[2:]])


def test_arrays_that_share_bytes_are_told_apart() -> None:
    data = np.zeros(64, np.uint8)
    one, other = Buffer(data[:32], writable=True), Buffer(data[32:], writable=False)
    assert arrays_apart([one, other, 5, None])
    assert not arrays_apart([one, 5, one])
    assert not arrays_apart([Buffer(data[:33], writable=True), other])
    assert not arrays_apart([MatrixMap(one, "u8", 4, 8, (4, 8)), one])
    assert arrays_apart([other, other])
