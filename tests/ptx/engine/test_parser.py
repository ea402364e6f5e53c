"""What the parser reads, and what it refuses with a line."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from support.ptx_kernel import line_of, run, text

from refmoe import ptx
from refmoe.ptx.program.inline import inline_calls
from refmoe.ptx.text.parser import parse
from refmoe.ptx.text.syntax import (
    Address,
    Group,
    Immediate,
    Instruction,
    Not,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
    mapped,
    parts,
)


@pytest.mark.parametrize(
    ("literal", "bits"),
    [
        ("0", 0),
        ("42", 42),
        ("-1", 0xFFFFFFFF),
        ("-2147483648", 0x80000000),
        ("4294967295", 0xFFFFFFFF),
        ("0x1F", 31),
        ("0xFFFFFFFFU", 0xFFFFFFFF),
        ("017", 15),
        ("0b1011", 11),
        ("12U", 12),
        ("0f3F800000", 0x3F800000),
        ("-0f3F800000", 0xBF800000),
        ("0F3f800000", 0x3F800000),
        ("~5", 0xFFFFFFFA),
        ("WARP_SZ", 32),
    ],
)
def test_immediates(literal: str, bits: int) -> None:
    out = np.zeros(1, np.uint32)
    run(f"mov.b32 %r3, {literal}; st.global.b32 [%d0], %r3; ret;", out, block=(1, 1, 1))
    assert int(out[0]) == bits


@pytest.mark.parametrize(
    ("literal", "bits"),
    [("0d3FF0000000000000", 0x3FF0000000000000), ("-1", (1 << 64) - 1), ("1.5", 0x3FF8000000000000)],
)
def test_wide_immediates(literal: str, bits: int) -> None:
    out = np.zeros(1, np.uint64)
    run(
        f"mov.f64 %d3, {literal}; st.global.b64 [%d0], %d3; ret;".replace("f64 %d3, -", "b64 %d3, -"),
        out,
        block=(1, 1, 1),
    )
    assert int(out[0]) == bits


# What ptxas 13.0 makes of each as the first value of a variable of 64 bits.
EXPRESSIONS = [
    ("1 + 2", 3), ("(3 + 4) * 2", 14), ("1 + 2 * 3", 7), ("1 << 2 + 1", 8), ("(1 << 4) + 2", 18), ("5 - 3 - 1", 1),
    ("!0", 1), ("!5", 0), ("!5U - 1", -1), ("1 ? 2 : 3", 2), ("0 ? 1 : 2 ? 3 : 4", 3), ("2 > 1 ? 5 : 6", 5),
    ("5 == 5", 1), ("1 != 2", 1), ("1 < 2 < 3", 1), ("3 > 2 == 1", 1), ("1 & 3 == 3", 1), ("6 ^ 3 & 1 | 8", 15),
    ("5 && 2", 1), ("0 || 0", 0), ("-7 / 2", -3), ("7 / -2", -3), ("-7 % 4", 1), ("7 % -2", 7), ("2 * 3 / 4", 1),
    ("(.s64) -1", -1), ("(.u64) -1 >> 60", 15), ("-1 >> 60U", -1), ("(.s64) (-1U) / 2", 0), ("-1 / 2U", (1 << 63) - 1),
    ("-1 < 1U", 0), ("-2 < 1", 1), ("(-2 & -1) < 1", 1), ("~0 >> 63", 1), ("(-1) >> 63", -1), ("1 << 64", 1),
    ("1 << -1", 1 << 63), ("1 ? -1 : 2U", -1), ("0x8000000000000000 >> 4", 1 << 59), ("~5U", -6), ("1U - 2", -1),
    ("-(5U) / 2", 0x7FFFFFFFFFFFFFFD), ("0x7fffffffffffffff + 1 >> 63", -1), ("- -3", 3), ("+(3)", 3),
    ("0b11 & ~1", 2), ("017 + 1", 16), ("WARP_SZ * 2", 64), ("1.5 < 2.5", 1), ("1.0 == 1.0 + 0.0", 1),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "value"), EXPRESSIONS)
def test_constant_expressions(expression: str, value: int) -> None:
    out = np.zeros(4, np.uint64)
    body = f"""
        mov.u64 %d3, {expression};
        st.global.u64 [%d0], %d3;
        ld.global.u64 %d4, [held];
        st.global.u64 [%d0 + 4 * 2], %d4;
        add.u64 %d5, %d4, ({expression});
        st.global.u64 [%d0 + (1 << 4)], %d5;
        ret;
    """
    run(body, out, block=(1, 1, 1), module_scope=f".global .u64 held = {expression};")
    bits = value & (1 << 64) - 1
    assert out.tolist() == [bits, bits, 2 * bits & (1 << 64) - 1, 0]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1.0 / 3.0", 1 / 3),
        ("1.0 + 2.0 * 3.0", 7.0),
        ("-(1.5)", -1.5),
        ("(1.0)", 1.0),
        ("1.0 - 0d3FF0000000000000", 0.0),
    ],
)
def test_constant_expressions_of_doubles(expression: str, value: float) -> None:
    out, single = np.zeros(1, np.float64), np.zeros(1, np.float32)
    run(f"mov.f64 %d3, {expression}; st.global.f64 [%d0], %d3; ret;", out, block=(1, 1, 1))
    run(f"mov.f32 %r3, {expression}; st.global.f32 [%d0], %r3; ret;", single, block=(1, 1, 1))
    assert (out[0], single[0]) == (value, np.float32(value))


def test_offsets_are_constant_expressions() -> None:
    out = np.zeros(8, np.uint32)
    body = """
        st.global.u32 [%d0 + 28 + -4], 1;
        st.global.u32 [%d0 + (4 * 2)], 2;
        mov.u64 %d3, table + 4 * 2;
        ld.global.u32 %r3, [%d3];
        st.global.u32 [%d0 + 4], %r3;
        ld.global.u32 %r4, [table + (1 ? 4 : 0)];
        st.global.u32 [%d0], %r4;
        ret;
    """
    run(body, out, block=(1, 1, 1), module_scope=".global .u32 table[3] = { 5, 3 + 4, 9 };")
    assert out.tolist() == [7, 9, 2, 0, 0, 0, 1, 0]


def test_first_values_that_are_addresses() -> None:
    # ptxas takes each of these forms; a mask selects one byte of an address.
    out = np.zeros(6, np.uint64)
    masks = ", ".join(f"0x{0xFF << 8 * byte:x}(generic(table) + 4)" for byte in range(8))
    variables = f"""
        .global .align 8 .u32 table[2][2] = {{ {{ 1 }}, {{ 3, 4 }} }};
        .global .u64 held[4] = {{ table, table + 4 * 2, generic(table) + 8, 255(table) }};
        .global .align 8 .u8 bytes[8] = {{ {masks} }};
    """
    body = "mov.u64 %d4, table; st.global.u64 [%d0], %d4;" + "".join(
        f"ld.global.u64 %d3, [{name}]; st.global.u64 [%d0 + {8 * place}], %d3;"
        for place, name in enumerate(("held", "held + 8", "held + 16", "bytes", "table + 8"), 1)
    )
    run(body + "ret;", out, block=(1, 1, 1), module_scope=variables)
    table = int(out[0])
    assert out.tolist() == [table, table, table + 8, table + 8, table + 4, 3 | 4 << 32]


def test_decimal_literal_of_a_float32_instruction() -> None:
    out = np.zeros(1, np.uint32)
    run(
        "mov.f32 %r3, 2.5; add.rn.f32 %r3, %r3, 0d3FF0000000000000; st.global.b32 [%d0], %r3; ret;",
        out,
        block=(1, 1, 1),
    )
    assert out.view(np.float32)[0] == 3.5


def test_labels_and_registers_of_inline_assembly_repeat() -> None:
    block = """
        {
            .reg .pred p; .reg .b32 t<2>;
            setp.lt.u32 p, %r1, SIZE;
            mov.u32 t0, 1;
            @p bra SKIP;
            mov.u32 t0, 2;
        SKIP:
            add.u32 %r3, %r3, t0;
        }
    """
    body = f"""
        mov.u32 %r3, 0;
        {block.replace("SIZE", "4")}
        {block.replace("SIZE", "8")}
        st.global.u32 [%d2], %r3;
        ret;
    """
    out = np.zeros(16, np.uint32)
    run(body, out, block=(16, 1, 1))
    t = np.arange(16)
    np.testing.assert_array_equal(out, np.where(t < 4, 1, 2) + np.where(t < 8, 1, 2))


def test_an_inner_register_hides_an_outer_one() -> None:
    body = """
        mov.u32 %r3, 5;
        { .reg .b32 %r<4>; mov.u32 %r3, 9; }
        st.global.u32 [%d0], %r3;
        ret;
    """
    out = np.zeros(1, np.uint32)
    run(body, out, block=(1, 1, 1))
    assert out[0] == 5


@pytest.mark.parametrize("inner", [".reg .u32 %r5;", ".reg .u32 %r<6>;"])
@pytest.mark.parametrize("outer", [".reg .u32 %x;", ".reg .u32 x<3>;"])
def test_a_register_alone_and_one_of_a_family_are_two(inner: str, outer: str) -> None:
    # Outside %r5 is one of a family and %x or x1 may be alone; inside it is the other way round.
    name = "%x" if "%x" in outer else "x1"
    swapped = ".reg .u32 %x;" if "%x" in outer else ".reg .u32 x1;"
    out = np.zeros(2, np.uint32)
    body = f"""
        mov.u32 %r5, 1; mov.u32 {name}, 2;
        {{ {inner} {swapped} mov.u32 %r5, 7; mov.u32 {name}, 8; }}
        st.global.u32 [%d0], %r5; st.global.u32 [%d0 + 4], {name}; ret;
    """
    run(body, out, block=(1, 1, 1), declarations=outer)
    assert out.tolist() == [1, 2]
    out[:] = 0
    run(body.replace(inner, "INNER").replace(swapped, outer).replace("INNER", inner), out, block=(1, 1, 1),
        declarations=swapped)  # fmt: skip
    assert out.tolist() == [1, 2]


def test_comments_pragmas_and_debug_sections() -> None:
    body = """
        // a comment with { and ;
        /* one of
           several lines */ mov.u32 %r3, 1;
        .pragma "nounroll";
        .loc 1 7 3
        st.global.u32 [%d0], %r3; ret;
    """
    source = text(body) + '.file 1 "kernel.cu"\n.section .debug_str\n{\n$info:\n.b8 95\n.b8 90\n}\n'
    module = ptx.Module.parse(source)
    out = np.zeros(1, np.uint32)
    ptx.launch(module, "k", (1, 1, 1), (1, 1, 1), [out, None, 0])
    assert out[0] == 1
    with pytest.raises(ptx.MemoryFault) as caught:
        ptx.launch(module, "k", (1, 1, 1), (1, 1, 1), [np.zeros(0, np.uint32), None, 0])
    assert caught.value.source == "kernel.cu:7"
    assert "kernel.cu:7" in str(caught.value)


def test_negative_address_offsets() -> None:
    out = np.zeros(4, np.uint32)
    body = (
        "add.s64 %d3, %d0, 12; st.global.u32 [%d3+-8], 7; st.global.u32 [%d3 + -4], 8; st.global.u32 [%d3-12], 6; ret;"
    )
    run(body, out, block=(1, 1, 1))
    assert out.tolist() == [6, 7, 8, 0]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("mov.u32 %q7, 1;\nret;", "%q7|unknown"),
        ("bra NOWHERE;\nret;", "no label NOWHERE"),
        (".shared .b32 s; bra s;\nret;", "no label s"),
        ("bra;\nret;", "not the operands of bra"),
        ("A: bra A, A;\nret;", "not the operands of bra"),
        ("mov.u32 %r1, 08;\nret;", "unexpected '08"),
        ("A: A: ret;", "label A is defined twice"),
        (".reg .b32 x; .reg .b32 x; ret;", "register x is declared twice"),
        (".reg .b256 x; ret;", "registers of type .b256"),
        (".reg .v3 .b32 x; ret;", "registers of type .v3"),
        (".reg .v2 .pred x; ret;", "registers of type .pred"),
        ("mov.u32 %r1 %r2; ret;", "expected ',' or ';'"),
        ("@%r1 mov.u32 %r1, %r2; ret;", "a guard must be a predicate"),
        ("mov.u32 %r1, `; ret;", "unexpected '`"),
        ("mov.u32 %r99, 1; ret;", "%r99|no register"),
    ],
)
def test_text_that_is_no_ptx(body: str, message: str) -> None:
    with pytest.raises(ptx.PtxError, match=message) as caught:
        run(body, np.zeros(1, np.uint32))
    assert isinstance(caught.value, ptx.ParseError | ptx.UnknownOpcode)
    assert caught.value.line == line_of(body, body.split("\n")[0].split(";")[0])


UNKNOWN = [
    "frobnicate.u32 %r3, %r1;",
    "mma.sync.aligned.m16n8k9.row.col.f32.tf32.tf32.f32 {%r3}, {%r2}, {%r3}, {%r4};",
    "wmma.load.a.sync.aligned.m16n16k8.row.f16 {%r3, %r4}, [%d1], 16;",
    "ld.texture.u32 %r3, [%d1];",
    "st.const.u32 [%d1], %r1;",
    "atom.global.min.f32 %r3, [%d1], %r1;",
    "shfl.sync.around.b32 %r3, %r1, 1, 31, -1;",
    "vote.sync.none.pred %p3, %p4, -1;",
    "mbarrier.try_wait.forever.shared.b64 %p3, [%r1], %d1;",
    "mov.u32 %r3, %nothing;",
    "bar.sync.nowhere 0;",
    "ret.early;",
    "cvta.shared.u32 %r3, %r1;",
    "redux.sync.add.f32 %r3, %r1, -1;",
    "call.uni nowhere, ();",
    "call %d1, ();",
]


@pytest.mark.parametrize("instruction", UNKNOWN)
def test_an_unknown_opcode_is_an_error_of_the_lanes_that_reach_it(instruction: str) -> None:
    opcode = instruction.split()[0].rstrip(";")
    out = np.zeros(32, np.uint32)
    # Behind ret no lane comes, and where its guard is off nothing happens.
    run(f"st.global.u32 [%d2], 7;\nret;\n{instruction}\nret;", out)
    assert (out == 7).all()
    body = f"mov.u32 %r3, 5;\nsetp.gt.u32 %p1, %r1, 40;\n@%p1 {instruction}\nst.global.u32 [%d2], %r3;\nret;"
    run(body, out)
    assert (out == 5).all()
    body = f"setp.eq.u32 %p1, %r1, 9;\n@%p1 {instruction}\nret;"
    with pytest.raises(ptx.UnknownOpcode) as caught:
        run(body, out)
    assert caught.value.line == line_of(body, instruction)
    assert (caught.value.opcode, caught.value.thread) == (opcode, (9, 0, 0))
    said = str(caught.value)
    assert f"thread (9, 0, 0): unknown opcode {opcode};" in said or f"(9, 0, 0): cannot execute {opcode} (" in said
    assert (out == 5).all()


def test_an_unknown_branch_is_refused_where_it_would_be_taken() -> None:
    out = np.zeros(32, np.uint32)
    body = "setp.ge.u32 %p1, %r1, {};\n@%p1 bra.far OUT;\nst.global.u32 [%d2], 3;\nOUT:\nret;"
    run(body.format(32), out)
    assert (out == 3).all()
    with pytest.raises(ptx.UnknownOpcode) as caught:
        run(body.format(30), out)
    assert (caught.value.opcode, caught.value.thread) == ("bra.far", (30, 0, 0))


MISFITS = [
    ("ld.global.b128 %d3, [%d1];", "2 elements needed"),
    ("bar.warp.sync;", "wrong number of operands"),
    ("atom.global.add.u32 %r3, [%d1];", "wrong number of operands"),
    ("atom.global.cas.b32 %r3, [%d1], %r1;", "wrong number of operands"),
    ("mov.b32 {%r3, %r4}, %r1;", "elements of 16 bits needed"),
    ("mov.b64 %d3, {%r1, %r1, %r1};", "2 or 4 elements needed, not 3"),
    ("mov.b32 %r3, {%h1, %h1, %h1};", "2 or 4 elements needed, not 3"),
    ("mov.b64 %d3, {};", "2 or 4 elements needed, not 0"),
    ("mov.b64 {%r3, %r3, %r3}, %d1;", "2 or 4 elements needed, not 3"),
    ("mov.u32 %r3, 1.0;", "a floating-point constant where .u32 needs an integer"),
    ("mov.f32 %r3, 1;", "an integer constant where .f32 needs a floating-point one"),
    ("fma.rn.f64 %d3, %d3, %d3, 2;", "an integer constant where .f64 needs"),
    ("shfl.sync.idx.b32 %r3, %r1, 0, 31, %d1;", "a member mask must be"),
]
NO_PTX = [
    ("mov.u32 %r3 %r1;", "expected ',' or ';', found '%r1'"),
    ("mov.u32 %r3, [%r1;", "expected"),
    ("mov.u32 %r3, #5;", "unexpected '#5;'"),
    ("mov.u32 %r3, 1 / 0;", "divides by zero"),
    ("mov.u32 %r3, 1 + 2.0;", "an integer and a floating-point number"),
    ("bra NOWHERE;", "no label NOWHERE"),
    ("brx.idx %r1, NOWHERE;", "no label NOWHERE"),
    ("bra;", "not the operands of bra"),
]


@pytest.mark.parametrize(("instruction", "reason"), [*MISFITS, *NO_PTX])
def test_a_malformed_instruction_is_an_error_of_the_lanes_that_reach_it(instruction: str, reason: str) -> None:
    out = np.zeros(32, np.uint32)
    run(f"st.global.u32 [%d2], 7;\nret;\n{instruction}\nret;", out)
    assert (out == 7).all()
    run(f"setp.gt.u32 %p1, %r1, 40;\n@%p1 {instruction}\nst.global.u32 [%d2], 5;\nret;", out)
    assert (out == 5).all()
    body = f"setp.eq.u32 %p1, %r1, 9;\n@%p1 {instruction}\nret;"
    with pytest.raises(ptx.UnknownOpcode if (instruction, reason) in MISFITS else ptx.ParseError) as caught:
        run(body, out)
    assert (caught.value.line, caught.value.thread) == (line_of(body, instruction), (9, 0, 0))
    said = str(caught.value)
    assert any(each in said for each in reason.split("|")), said
    assert said.endswith(f"test.ptx:{caught.value.line}: @%p1 {instruction}")


def test_a_statement_without_an_end_is_no_function() -> None:
    with pytest.raises(ptx.ParseError, match="expected ',' or ';', found '}'") as caught:
        run("ret;\nmov.u32 %r3, %r1", np.zeros(1, np.uint32))
    assert caught.value.thread is None


def test_contraction_is_refused_or_reported() -> None:
    body = "mul.f32 %r3, %r4, %r5;\nadd.f32 %r3, %r3, %r5;\nmul.rn.f32 %r3, %r4, %r5;\nret;"
    result = run(body, np.zeros(1, np.uint32), block=(1, 1, 1))
    first = line_of(body, "mul.f32")
    assert result.contraction_possible == (first, first + 1)
    with pytest.raises(ptx.Contraction) as caught:
        ptx.Module.parse(text(body), strict=True).compile("k")
    assert (caught.value.opcode, caught.value.line) == ("mul.f32", first)
    ptx.Module.parse(text("mul.rn.f32 %r3, %r4, %r5;\nret;"), strict=True).compile("k")


def test_approximate_instructions_are_reported_where_they_are_not_exact() -> None:
    # rcp.approx is exact on powers of two; a lane whose guard is off does not count.
    body = """
        setp.lt.u32 %p1, %r1, %r0;
        cvt.rn.f32.u32 %r3, %r1;
        @%p1 bra POWERS;
        mov.b32 %r3, 0f40800000;
    POWERS:
        rcp.approx.f32 %r4, %r3;
        ret;
    """
    assert run(body, np.zeros(1, np.uint32), n=0).approximate == ()
    assert run(body, np.zeros(1, np.uint32), n=4).approximate == (("rcp.approx.f32", line_of(body, "rcp.approx")),)


def test_an_approximate_instruction_is_not_reported_for_lanes_whose_guard_is_off() -> None:
    body = """
        setp.eq.u32 %p1, %r1, %r0;
        cvt.rn.f32.u32 %r3, %r1;
        @%p1 rcp.approx.f32 %r4, %r3;
        ret;
    """
    assert run(body, np.zeros(1, np.uint32), n=4).approximate == ()
    assert run(body, np.zeros(1, np.uint32), n=5).approximate == (("rcp.approx.f32", line_of(body, "rcp.approx")),)


def test_errors_survive_pickling() -> None:
    with pytest.raises(ptx.MemoryFault) as caught:
        run("ld.global.u32 %r3, [%d1]; ret;", np.zeros(1, np.uint32))
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is ptx.MemoryFault
    assert (str(copy), copy.line, copy.thread) == (str(caught.value), caught.value.line, (0, 0, 0))


def test_no_such_entry() -> None:
    with pytest.raises(ptx.ArgumentMismatch, match="no entry 'x'; it has k"):
        ptx.Module.parse(text("ret;")).compile("x")


def test_carry_flag_across_instructions() -> None:
    body = """
        mov.u32 %r3, 0xFFFFFFFF;
        add.cc.u32 %r4, %r3, %r1;
        addc.u32 %r5, 0, 0;
        st.global.u32 [%d2], %r5;
        ret;
    """
    out = np.zeros(4, np.uint32)
    run(body, out, block=(4, 1, 1))
    assert out.tolist() == [0, 1, 1, 1]


def test_a_body_is_read_when_its_entry_is_asked_for() -> None:
    # A table in braces, comments and strings with braces in them; a kernel that nobody runs may hold anything.
    source = """
.version 9.0
.target sm_120a
.address_size 64
.global .align 4 .u32 table[2] = { 3, 4 };
// a brace in a comment {
.file 1 "a } brace.cu"
.visible .entry broken() { /* } */ what is this? }
.visible .entry k(.param .u64 out)
.maxntid 32, 1, 1
{
    .reg .b32 %r<2>;
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [out];
    {
        ld.global.u32 %r1, [table+4];
        .loc 1 12 0
        st.global.u32 [%d1], %r1;
    }
    ret;
}
"""
    module = ptx.Module.parse(source, name="two.ptx")
    assert module.entries == ("broken", "k")
    out = np.zeros(1, np.uint32)
    ptx.launch(module, "k", (1, 1, 1), (1, 1, 1), [out])
    assert out[0] == 4
    for _ in range(2):  # asked again, the same error
        with pytest.raises(ptx.ParseError, match=r"two\.ptx:8: ") as caught:
            module.compile("broken")
        assert caught.value.line == 8
    with pytest.raises(ptx.ParseError, match="unexpected end of the text"):
        ptx.Module.parse(source.rpartition("}")[0])


ONE = ".visible .entry k(.param .u64 out)"
STORE = "{ .reg .b64 %d; ld.param.u64 %d, [out]; st.global.b32 [%d], VALUE; ret; }"


@pytest.mark.parametrize(
    "before",
    [
        f"{ONE}\n//=====\n",
        f"{ONE} /* sum = */ ",
        f"// see the .section below\n{ONE}",
        f"/* a .section {{ .b8 1 }} of nothing */ {ONE}",
        f'{ONE}\n.pragma "used_bytes_mask .section";\n',
    ],
)
def test_what_comments_and_strings_say_begins_and_ends_nothing(before: str) -> None:
    module = ptx.Module.parse(f".version 9.0\n.target sm_120a\n.address_size 64\n{before}{STORE.replace('VALUE', '7')}")
    out = np.zeros(1, np.uint32)
    ptx.launch(module, "k", (1, 1, 1), (1, 1, 1), [out])
    assert out[0] == 7


@pytest.mark.parametrize("gap", [" ", "\n", " /* x */ ", " // = {\n", "/* { */ /*=*/" + 100 * " "])
def test_the_braces_of_a_first_value_are_no_body(gap: str) -> None:
    body = "mov.u64 %d3, a; ld.global.b32 %r3, [%d3+4]; st.global.b32 [%d0], %r3; ret;"
    out = np.zeros(1, np.uint32)
    run(body, out, block=(1, 1, 1), module_scope=f".global .u32 a[2] = {gap}{{1, 2}};")
    assert out[0] == 2


def test_a_section_in_the_path_of_a_file_is_part_of_the_path() -> None:
    body = ".loc 1 7 3\n st.global.u32 [%d0], %r0; ret;"
    source = text(body) + '.file 1 "a .section {} of b.cu"\n.section .debug_str\n{\n.b8 95\n}\n'
    with pytest.raises(ptx.MemoryFault) as caught:
        ptx.launch(ptx.Module.parse(source), "k", (1, 1, 1), (1, 1, 1), [np.zeros(0, np.uint32), None, 0])
    assert caught.value.source == "a .section {} of b.cu:7"


KERNEL_CALLS_F = " .loc 1 7 3\n .loc 2 5 1, function_name f, inlined_at 1 7 3\n"
F_CALLS_G = " .loc 2 4 9, function_name g + 8, inlined_at 2 5 1\n"
AGAIN = KERNEL_CALLS_F.replace("1 7 3", "1 8 3")
SOMETHING = " mov.u32 %r0, 0;\n"


@pytest.mark.parametrize(("before", "callers"), [
    # A compiler tells of each function on the way before it tells of the innermost one.
    (KERNEL_CALLS_F, ["b.cu:7"]),
    (KERNEL_CALLS_F + F_CALLS_G, ["c.h:5", "b.cu:7"]),
    (KERNEL_CALLS_F.replace("2 5 1", "2 6 1") + ".loc 2 5 1, function_name e, inlined_at 2 6 1\n" + F_CALLS_G,
     ["c.h:5", "c.h:6", "b.cu:7"]),
    # It says so once; then the last directive stands alone.
    (KERNEL_CALLS_F + F_CALLS_G + SOMETHING + ".loc 1 9 1\n" + SOMETHING + F_CALLS_G, ["c.h:5", "b.cu:7"]),
    # f is called once more, from elsewhere: told on the way, and not told.
    (KERNEL_CALLS_F + F_CALLS_G + SOMETHING + AGAIN + F_CALLS_G, ["c.h:5", "b.cu:8"]),
    (KERNEL_CALLS_F + F_CALLS_G + SOMETHING + AGAIN + F_CALLS_G + SOMETHING + F_CALLS_G, ["c.h:5"]),
    # What is in doubt is further out. The places up to there are not told: the last would look like the kernel's.
    (KERNEL_CALLS_F + F_CALLS_G + AGAIN + ".loc 2 3 1, function_name h, inlined_at 2 4 9\n" + F_CALLS_G + SOMETHING
     + ".loc 2 3 1, function_name h, inlined_at 2 4 9\n", ["c.h:4"]),
    # Nothing is known of a place, or it is inlined into itself.
    (F_CALLS_G, ["c.h:5"]),
    (" .loc 2 5 1, function_name f, inlined_at 2 4 9\n" + F_CALLS_G, ["c.h:5", "c.h:4"]),
])  # fmt: skip
def test_the_callers_of_an_inlined_function_are_known_as_far_as_the_text_says(before: str, callers: list[str]) -> None:
    source = text(before + " st.global.u32 [%d0], %r0; ret;") + '.file 1 "b.cu"\n.file 2 "c.h"\n'
    with pytest.raises(ptx.MemoryFault) as caught:
        ptx.launch(ptx.Module.parse(source), "k", (1, 1, 1), (1, 1, 1), [np.zeros(0, np.uint32), None, 0])
    assert list(caught.value.callers) == callers
    place = "c.h:3" if "2 3 1" in before else "c.h:4" if F_CALLS_G in before else "c.h:5"
    inlined = f"inlined at {callers[0]}" + (f", called from {callers[-1]}" if len(callers) > 1 else "")
    assert f"({place}, {inlined})" in caught.value.message


def test_a_place_without_a_line_has_no_callers() -> None:
    source = text(".loc 2 0 0, function_name f, inlined_at 1 7 3\n st.global.u32 [%d0], %r0; ret;")
    module = ptx.Module.parse(source + '.file 1 "b.cu"\n.file 2 "c.h"\n')
    with pytest.raises(ptx.MemoryFault) as caught:
        ptx.launch(module, "k", (1, 1, 1), (1, 1, 1), [np.zeros(0, np.uint32), None, 0])
    assert (caught.value.source, caught.value.callers) == (None, ())


def test_what_is_inlined_in_one_function_says_nothing_of_the_next() -> None:
    first = text(KERNEL_CALLS_F + F_CALLS_G + " ret;").replace(".entry k(", ".entry first(")
    second = text(AGAIN + F_CALLS_G + SOMETHING + F_CALLS_G + " st.global.u32 [%d0], %r0; ret;")
    body = second[second.index(".visible") :]
    module = ptx.Module.parse(f'{first}\n{body}.file 1 "b.cu"\n.file 2 "c.h"\n')
    with pytest.raises(ptx.MemoryFault) as caught:
        ptx.launch(module, "k", (1, 1, 1), (1, 1, 1), [np.zeros(0, np.uint32), None, 0])
    assert caught.value.callers == ("c.h:5", "b.cu:8")


def test_everything_inside_an_operand_is_renamed_where_a_call_is_inlined() -> None:
    callee = """.func f(.param .b64 map)
{
    .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %d<2>;
    ld.param.u64 %d1, [map];
    cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%d1, {%r1, %r2}];
    shfl.sync.idx.b32 %r3|%p1, %r1, 0, 31, %r2;
    ret;
}
"""
    body = "{ .param .b64 p; st.param.b64 [p], %d1; call f, (p); } ret;"
    module = parse(text(body, module_scope=callee), "test.ptx")
    entry = module.function("k")
    assert entry is not None
    inlined = inline_calls(entry, module).body or ()
    found = {
        part.name
        for each in inlined
        if isinstance(each, Instruction) and each.opcode.startswith(("cp.", "shfl."))
        for operand in each.operands
        for part in parts(operand)
        if isinstance(part, Register)
    }
    assert found
    assert {name for name in found if not name.startswith("call#1:f:")} == set()


def test_a_change_reaches_every_register_and_symbol_of_an_operand() -> None:
    r, s, one = Register("r", "b32"), Symbol("s", 4), Immediate(1)
    places = Address(r, 4, (r, s, one)), Address(s)
    operand = Group((Vector((r, Pair(r, Sink()))), Not(r), *places, Special("%tid.x"), one))
    renamed = mapped(operand, lambda each: replace(each, name="f:" + each.name))
    before = [replace(each, name="f:" + each.name) for each in parts(operand) if isinstance(each, Register | Symbol)]
    assert [each for each in parts(renamed) if isinstance(each, Register | Symbol)] == before
    assert mapped(operand, lambda each: each) == operand
