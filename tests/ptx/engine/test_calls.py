"""Functions with register parameters, calls through pointers, and calls that stay refused."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import compile_cuda, line_of, run, text

from refmoe import ptx

THREADS = np.arange(32, dtype=np.uint32)


def test_parameters_in_registers() -> None:
    callee = """
    .func (.reg .b32 sum, .reg .pred big) add3 (.reg .b32 a, .reg .b64 b, .reg .b32 c)
    {
        .reg .b32 low;
        cvt.u32.u64 low, b;
        add.u32 sum, a, low;
        add.u32 sum, sum, c;
        setp.gt.u32 big, sum, 120;
        @big ret;
        add.u32 sum, sum, 1000;
        ret;
    }
    """
    body = """
        cvt.u64.u32 %d3, %r1;
        call (%r3, %p1), add3, (%r1, %d3, 100);
        call (%r4, _), add3, (%r3, 5, %laneid);
        @%p1 add.u32 %r4, %r4, 7;
        st.global.u32 [%d2], %r4;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out, module_scope=callee)
    first = 2 * THREADS + 100
    big = first > 120
    first = np.where(big, first, first + 1000)
    second = first + 5 + THREADS
    second = np.where(second > 120, second, second + 1000)
    np.testing.assert_array_equal(out, np.where(big, second + 7, second))


def test_registers_given_for_param_variables_and_the_other_way() -> None:
    callee = """
    .func (.param .b32 result) twice (.param .b32 value)
    {
        .reg .b32 x;
        ld.param.u32 x, [value];
        shl.b32 x, x, 1;
        st.param.b32 [result], x;
        ret;
    }
    .func (.reg .b32 result) thrice (.reg .b32 value)
    {
        mul.lo.u32 result, value, 3;
        ret;
    }
    """
    body = """
        { .param .b32 x; .param .b32 y;
        call (%r3), twice, (%r1);
        call (%r4), twice, (21);
        st.param.b32 [x], %r3;
        call (y), thrice, (x);
        ld.param.b32 %r5, [y]; }
        add.u32 %r5, %r5, %r4;
        st.global.u32 [%d2], %r5;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out, module_scope=callee)
    np.testing.assert_array_equal(out, 6 * THREADS + 42)


@pytest.mark.parametrize(("guard", "called"), [("@%p1", range(8)), ("@!%p1", range(8, 32))])
def test_the_result_of_a_guarded_call(guard: str, called: range) -> None:
    callee = ".func (.reg .b32 r) seven (.reg .b32 a) { mov.u32 r, 7; ret; }"
    body = f"""
        setp.lt.u32 %p1, %r1, 8; mov.u32 %r3, 1;
        {guard} call (%r3), seven, (%r1);
        st.global.u32 [%d2], %r3;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out, module_scope=callee)
    np.testing.assert_array_equal(out, np.where(np.isin(THREADS, called), 7, 1))


OPERATIONS = """
.func (.param .b32 r) plus (.param .b32 a, .param .b32 b)
{
    .reg .b32 %r<4>;
    ld.param.u32 %r1, [a]; ld.param.u32 %r2, [b]; add.u32 %r3, %r1, %r2; st.param.b32 [r], %r3; ret;
}
.func (.param .b32 r) times (.param .b32 a, .param .b32 b)
{
    .reg .b32 %r<4>;
    ld.param.u32 %r1, [a]; ld.param.u32 %r2, [b]; mul.lo.u32 %r3, %r1, %r2; st.param.b32 [r], %r3; ret;
}
.func (.param .b32 r) negated (.param .b32 a)
{
    .reg .b32 %r<4>;
    ld.param.u32 %r1, [a]; neg.s32 %r3, %r1; st.param.b32 [r], %r3; ret;
}
.global .align 8 .u64 table[3] = {plus, times, negated};
"""
CALL = """
    {{ .param .b32 a; .param .b32 b; .param .b32 r;
    st.param.b32 [a], %r1; st.param.b32 [b], 5; st.param.b32 [r], 1;
    prototype : .callprototype (.param .b32 _) _ (.param .b32 _, .param .b32 _);
    {guard} call (r), %d4, (a, b), prototype;
    ld.param.b32 %r5, [r]; }}
"""


def test_a_call_through_a_table_of_functions() -> None:
    body = f"""
        and.b32 %r3, %r1, 1;
        mul.wide.u32 %d3, %r3, 8;
        mov.u64 %d4, table;
        add.u64 %d4, %d4, %d3;
        ld.global.u64 %d4, [%d4];
        {CALL.format(guard="")}
        st.global.u32 [%d2], %r5;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out, module_scope=OPERATIONS)
    np.testing.assert_array_equal(out, np.where(THREADS % 2, THREADS * 5, THREADS + 5))


def test_a_call_of_a_function_whose_address_a_move_takes() -> None:
    body = f"""
        setp.lt.u32 %p1, %r1, 9;
        mov.u64 %d5, times; mov.u64 %d6, plus;
        selp.b64 %d4, %d5, %d6, %p1;
        targets: .calltargets times, plus;
        {CALL.format(guard="").replace("b), prototype", "b), targets")}
        st.global.u32 [%d2], %r5;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out, module_scope=OPERATIONS)
    np.testing.assert_array_equal(out, np.where(THREADS < 9, THREADS * 5, THREADS + 5))


def test_an_address_of_no_function_is_an_error_where_it_is_called() -> None:
    body = f"""
        mov.u64 %d4, times;
        setp.eq.u32 %p1, %r1, 3;
        @%p1 add.u64 %d4, %d4, 8;
        {CALL.format(guard="")}
        st.global.u32 [%d2], %r5;
        ret;
    """
    out = np.zeros(32, np.uint32)
    with pytest.raises(ptx.UnknownOpcode, match="no known function's") as caught:
        run(body, out, module_scope=OPERATIONS)
    assert caught.value.thread == (3, 0, 0)
    assert caught.value.line == line_of(body, "call (r)", module_scope=OPERATIONS)
    run(body.replace("%r1, 3", "%r1, 99"), out, module_scope=OPERATIONS)
    np.testing.assert_array_equal(out, THREADS * 5)


def test_a_function_of_another_shape_is_not_called() -> None:
    body = f"mov.u64 %d4, negated; {CALL.format(guard='')} ret;"
    with pytest.raises(ptx.UnknownOpcode, match="no known function's"):
        run(body, np.zeros(32, np.uint32), module_scope=OPERATIONS)
    # Nothing is called where the guard is off.
    run("setp.gt.u32 %p2, %r1, 99; mov.u64 %d4, negated;" + CALL.format(guard="@%p2") + "ret;",
        np.zeros(32, np.uint32), module_scope=OPERATIONS)  # fmt: skip


def test_recursion_is_followed_to_a_depth() -> None:
    callee = """
    .func (.reg .b32 r) down (.reg .b32 a)
    {
        .reg .pred p; .reg .b32 b;
        mov.u32 r, 1;
        setp.eq.u32 p, a, 0;
        @p ret;
        sub.u32 b, a, 1;
        call (r), down, (b);
        add.u32 r, r, a;
        ret;
    }
    """
    out = np.zeros(32, np.uint32)
    run("add.u32 %r3, %r1, 33; call (%r3), down, (%r3); st.global.u32 [%d2], %r3; ret;", out, module_scope=callee)
    depth = np.arange(33, 65)
    assert out.tolist() == (1 + depth * (depth + 1) // 2).tolist()
    with pytest.raises(
        ptx.UnknownOpcode, match=r"cannot execute call \(a recursive call of down, .* follows 64"
    ) as caught:
        run("add.u32 %r3, %r1, 60; call (%r3), down, (%r3); ret;", out, module_scope=callee)
    assert caught.value.thread == (5, 0, 0)


def test_functions_that_call_themselves_twice_or_by_way_of_others() -> None:
    twice = """
    .func (.param .b32 r) fib (.param .b32 n)
    {
        .reg .pred p; .reg .b32 b<6>; .param .b32 a; .param .b32 s;
        ld.param.u32 b0, [n];
        setp.lt.u32 p, b0, 2;
        @p bra OUT;
        sub.u32 b1, b0, 1;
        st.param.b32 [a], b1; call (s), fib, (a); ld.param.b32 b2, [s];
        sub.u32 b1, b0, 2;
        st.param.b32 [a], b1; call (s), fib, (a); ld.param.b32 b3, [s];
        add.u32 b0, b2, b3;
    OUT:
        st.param.b32 [r], b0;
        ret;
    }
    """
    out = np.zeros(8, np.uint32)
    call = ".param .b32 a; .param .b32 s; st.param.b32 [a], %r1; call (s), fib, (a); ld.param.b32 %r3, [s];"
    run(f"{call} st.global.u32 [%d2], %r3; ret;", out, block=(8, 1, 1), module_scope=twice)
    assert out.tolist() == [0, 1, 1, 2, 3, 5, 8, 13]
    parity = """
    .func (.reg .b32 r) odd (.reg .b32 a);
    .func (.reg .b32 r) even (.reg .b32 a)
    { .reg .pred p; mov.u32 r, 1; setp.eq.u32 p, a, 0; @p ret; sub.u32 a, a, 1; call (r), odd, (a); ret; }
    .func (.reg .b32 r) odd (.reg .b32 a)
    { .reg .pred p; mov.u32 r, 0; setp.eq.u32 p, a, 0; @p ret; sub.u32 a, a, 1; call (r), even, (a); ret; }
    """
    run("call (%r3), even, (%r1); st.global.u32 [%d2], %r3; ret;", out, block=(8, 1, 1), module_scope=parity)
    assert out.tolist() == [1, 0] * 4


@pytest.mark.parametrize(
    ("operands", "said"), [("(%r3), seven, (%r1, %r1)", "does not fit seven"), ("(%r3), 5, (%r1)", "no call of a")]
)
def test_a_call_that_does_not_fit_is_refused_where_it_is_reached(operands: str, said: str) -> None:
    callee = ".func (.reg .b32 r) seven (.reg .b32 a) { mov.u32 r, 7; ret; }"
    run(f"ret; call {operands}; ret;", np.zeros(1, np.uint32), module_scope=callee)
    with pytest.raises(ptx.UnknownOpcode, match=rf"cannot execute call \(a call .*{said}|cannot execute call \({said}"):
        run(f"call {operands}; ret;", np.zeros(1, np.uint32), module_scope=callee)


VIRTUAL = """
struct Shape { __device__ virtual int area(int x) = 0; };
struct Square : Shape { __device__ int area(int x) override { return x * x; } };
struct Line : Shape { int k; __device__ Line(int k) : k(k) {} __device__ int area(int x) override { return x + k; } };
extern "C" __global__ void k(int* out, const int* in, int n) {
    Square square; Line line(n);
    Shape* shape = in[threadIdx.x] ? (Shape*)&square : (Shape*)&line;
    out[threadIdx.x] = shape->area(threadIdx.x);
}
"""


def test_virtual_functions(tmp_path) -> None:
    out, which = np.zeros(32, np.int32), (THREADS % 3 == 0).astype(np.int32)
    ptx.launch(compile_cuda(VIRTUAL, tmp_path), "k", (1, 1, 1), (32, 1, 1), [out, which, 100])
    np.testing.assert_array_equal(out, np.where(which, THREADS * THREADS, THREADS + 100))


def test_parameters_in_vector_registers() -> None:
    callee = """
    .func (.reg .v2 .u32 pair) turned (.reg .v4 .u16 four, .reg .u32 more)
    {
        .reg .u32 x, y;
        cvt.u32.u16 x, four.x;
        cvt.u32.u16 y, four.w;
        add.u32 pair.x, y, more;
        mov.u32 pair.y, x;
        ret;
    }
    """
    body = """
        cvt.u16.u32 %h1, %r1;
        mov.v4.u16 four, {%h1, 7, 8, 9};
        call (pair), turned, (four, 100);
        mov.b64 %d4, pair;
        cvt.u32.u64 %r3, %d4;
        shr.u64 %d4, %d4, 32;
        cvt.u32.u64 %r4, %d4;
        mad.lo.u32 %r3, %r4, 1000, %r3;
        st.global.u32 [%d2], %r3;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out, module_scope=callee, declarations=".reg .v4 .u16 four; .reg .v2 .u32 pair;")
    np.testing.assert_array_equal(out, 109 + THREADS * 1000)


def test_variables_of_a_function_outlive_its_calls() -> None:
    callee = """
    .global .u32 hits = 50;
    .func (.reg .u32 result) count ()
    {
        .global .u32 hits = 3;
        .shared .u32 calls[4];
        .local .u32 own;
        .reg .u32 x;
        ld.global.u32 x, [hits];
        add.u32 x, x, 1;
        st.global.u32 [hits], x;
        st.shared.u32 [calls+4], x;
        st.local.u32 [own], x;
        ld.shared.u32 result, [calls+4];
        ret;
    }
    """
    body = """
        call (%r3), count, ();
        call (%r4), count, ();
        ld.global.u32 %r5, [hits];
        st.global.v4.u32 [%d0], {%r3, %r4, %r5, %r0};
        ret;
    """
    out = np.zeros(4, np.uint32)
    run(body, out, n=9, block=(1, 1, 1), module_scope=callee)
    assert out.tolist() == [4, 5, 50, 9]


def test_a_stack_is_every_calls_own() -> None:
    callee = """
    .func (.reg .u32 result) first (.reg .u32 set)
    {
        .local .u32 own;
        .reg .pred p;
        setp.eq.u32 p, set, 0;
        @!p st.local.u32 [own], 5;
        ld.local.u32 result, [own];
        ret;
    }
    """
    body = "call (%r3), first, (1); call (%r4), first, (0); st.global.u32 [%d2], %r4; ret;"
    with pytest.raises(ptx.MemoryFault, match="uninitialised"):
        run(body, np.zeros(32, np.uint32), module_scope=callee)


def test_variables_of_a_function_live_as_long_as_the_memory() -> None:
    body = """
        .global .u32 hits = 3;
        ld.global.u32 %r3, [hits];
        add.u32 %r3, %r3, 1;
        st.global.u32 [hits], %r3;
        st.global.u32 [%d0], %r3;
        ret;
    """
    other = text("ret;").replace("entry k(", "entry other(").split(".address_size 64")[1].replace("ret;", body, 1)
    module = ptx.Module.parse(text(body, module_scope=other + ".global .u32 hits = 90;"))
    memory, out = ptx.DeviceMemory(), np.zeros(1, np.uint32)
    found = []
    for entry in ("k", "k", "other", "k"):
        ptx.launch(module, entry, (1, 1, 1), (1, 1, 1), [out, out, 0], memory=memory)
        found.append(int(out[0]))
    assert found == [4, 5, 4, 6]


# `make` stores an address where `use` finds it. Neither names what the other does.
KEPT = """
.global .align 8 .u64 functions[2] = {plus, times};
.global .align 8 .u64 kept[2];
.visible .entry make()
{
    .reg .b64 %d<8>;
    STORED
    st.global.u64 [kept], %d4;
    ret;
}
"""
TABLE = "ld.global.u64 %d4, [functions+8];"
MOVE = "mov.b64 %d4, times;"


@pytest.mark.parametrize("stored", [TABLE, MOVE])
def test_an_address_that_another_kernel_stored(stored: str) -> None:
    scope = OPERATIONS.split(".global")[0] + KEPT.replace("STORED", stored)
    scope = scope.replace("{plus, times}", "{plus, plus}") if stored is MOVE else scope
    body = f"ld.global.u64 %d4, [kept]; {CALL.format(guard='')} st.global.u32 [%d2], %r5; ret;"
    module, memory = ptx.Module.parse(text(body, module_scope=scope), name="test.ptx"), ptx.DeviceMemory()
    out = np.zeros(32, np.uint32)
    ptx.launch(module, "make", (1, 1, 1), (1, 1, 1), [], memory=memory)
    ptx.launch(module, "k", (1, 1, 1), (32, 1, 1), [out, None, 0], memory=memory)
    np.testing.assert_array_equal(out, THREADS * 5)


def test_recursion_is_as_deep_beside_functions_of_other_kernels() -> None:
    # `deep` calls itself through a pointer. With the functions of the tables each level would have 14 bodies.
    deep = """
    .func (.param .b32 r) deep (.param .b32 a, .param .b32 b);
    .func (.param .b32 r) deep (.param .b32 a, .param .b32 b)
    {
        .reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %d<8>;
        ld.param.u32 %r1, [a]; mov.u32 %r5, 0;
        setp.eq.u32 %p1, %r1, 0;
        @%p1 bra done;
        sub.u32 %r1, %r1, 1;
        mov.u64 %d4, deep;
        CALL
        add.u32 %r5, %r5, 1;
    done:
        st.param.b32 [r], %r5; ret;
    }
    """.replace("CALL", CALL.format(guard=""))
    names = [f"plus{number}" for number in range(12)]
    plus = OPERATIONS[: OPERATIONS.index(".func (.param .b32 r) times")]
    more = "".join(plus.replace("plus", name) for name in names)
    more += f".global .align 8 .u64 more[12] = {{{', '.join(names)}}};"
    body = f"mov.u64 %d4, deep; {CALL.format(guard='')} st.global.u32 [%d2], %r5; ret;"
    out = np.zeros(32, np.uint32)
    run(body, out, module_scope=OPERATIONS + more + deep)
    np.testing.assert_array_equal(out, THREADS)
