"""Loads, stores, address spaces, and what the memory checks refuse, at the very byte."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import compile_cuda, line_of, run, text
from support.ptx_ways import Way, ways
from support.selection.thinned import thinned

from refmoe import ptx

# Native code leaves the first access of a buffer to Python where races are looked for, else it does it itself.
both_ways = pytest.mark.parametrize("checks", [ptx.Checks(), ptx.Checks(races=False)], ids=["python", "native"])
# The same, where the read of a byte that nobody wrote is an error, used or not.
both_strict_ways = pytest.mark.parametrize(
    "checks", [ptx.Checks(strict=True), ptx.Checks(races=False, strict=True)], ids=["python", "native"]
)


def _launch(body: str, args, block=(32, 1, 1), **options):
    module = ptx.Module.parse(text(body), name="test.ptx")
    return ptx.launch(module, "k", (1, 1, 1), block, args, **options)


ACCESS = """
    cvt.s64.s32 %d4, %r0;
    add.s64 %d3, {base}, %d4;
    setp.ne.u32 %p1, %r1, 13;
    @%p1 bra END;
    {instruction}
END:
    ret;
"""
LOAD = ACCESS.format(base="%d1", instruction="ld.global.u8 %r5, [%d3];")
STORE = ACCESS.format(base="%d1", instruction="st.global.u8 [%d3], %r1;")


@both_ways
@pytest.mark.parametrize("body", [LOAD, STORE])
@pytest.mark.parametrize("offset", [-1, 10, 11, -4096, 1 << 30])
def test_one_byte_outside(body: str, offset: int, checks: ptx.Checks) -> None:
    source = ptx.Buffer(np.zeros(10, np.uint8), "source")
    with pytest.raises(ptx.MemoryFault) as caught:
        _launch(body, [np.zeros(64, np.uint8), source, offset], checks=checks)
    fault = caught.value
    assert (fault.kind, fault.buffer, fault.offset, fault.size) == ("out of bounds", "source", offset, 1)
    assert (fault.block, fault.thread) == ((0, 0, 0), (13, 0, 0))
    assert fault.line == line_of(body, "%r5, [" if body is LOAD else "[%d3], %r1")
    assert "source" in str(fault)


@both_ways
@pytest.mark.parametrize("body", [LOAD, STORE])
@pytest.mark.parametrize("offset", [0, 9])
def test_first_and_last_byte(body: str, offset: int, checks: ptx.Checks) -> None:
    source = np.zeros(10, np.uint8)
    _launch(body, [np.zeros(64, np.uint8), source, offset], checks=checks)
    assert source[offset] == (13 if body is STORE else 0)


@both_ways
def test_a_wide_access_that_ends_outside(checks: ptx.Checks) -> None:
    body = "ld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%d1+16]; ret;"
    _launch(body, [np.zeros(4, np.uint8), np.zeros(32, np.uint8), 0], checks=checks)
    with pytest.raises(ptx.MemoryFault, match="out of bounds") as caught:
        _launch(body, [np.zeros(4, np.uint8), np.zeros(31, np.uint8), 0], checks=checks)
    assert caught.value.offset == 16


def test_null_pointer() -> None:
    with pytest.raises(ptx.MemoryFault, match="unmapped") as caught:
        _launch(LOAD, [np.zeros(4, np.uint8), None, 8])
    assert (caught.value.address, caught.value.buffer) == (8, None)


def test_one_lane_outside_among_lanes_of_two_buffers() -> None:
    # Even lanes use one buffer, odd lanes another; one odd lane leaves its own.
    body = """
        and.b32 %r3, %r1, 1;
        setp.eq.u32 %p1, %r3, 1;
        selp.b64 %d3, %d1, %d0, %p1;
        cvt.u64.u32 %d4, %r1;
        add.s64 %d3, %d3, %d4;
        ld.global.u8 %r4, [%d3];
        ret;
    """
    _launch(body, [ptx.Buffer(np.zeros(31, np.uint8), "even"), ptx.Buffer(np.zeros(32, np.uint8), "odd"), 0])
    with pytest.raises(ptx.MemoryFault) as caught:
        _launch(body, [ptx.Buffer(np.zeros(31, np.uint8), "even"), ptx.Buffer(np.zeros(31, np.uint8), "odd"), 0])
    assert (caught.value.buffer, caught.value.offset, caught.value.thread) == ("odd", 31, (31, 0, 0))


@both_ways
@pytest.mark.parametrize(
    ("instruction", "width"),
    thinned(
        [
            ("ld.global.v2.u16 {%h1, %h2}, [%d3];", 4),
            ("ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%d3];", 16),
            ("ld.global.v8.b32 {%r5, %r6, %r7, %r8, %r9, %r10, %r11, %r12}, [%d3];", 32),
            ("st.global.v2.u64 [%d3], {%d4, %d4};", 16),
            ("st.global.u16 [%d3], 7;", 2),
            ("atom.global.add.u32 %r5, [%d3], 1;", 4),
        ],
        3,
    ),
)
def test_misaligned(instruction: str, width: int, checks: ptx.Checks) -> None:
    body = ACCESS.format(base="%d1", instruction=instruction)
    _launch(body, [np.zeros(4, np.uint8), np.zeros(128, np.uint8), width])
    for offset in {1, width // 2, width + width // 2}:
        with pytest.raises(ptx.MemoryFault, match="misaligned") as caught:
            _launch(body, [np.zeros(4, np.uint8), np.zeros(128, np.uint8), offset], checks=checks)
        assert caught.value.offset == offset


@both_strict_ways
def test_uninitialised_buffer_byte_for_byte(checks: ptx.Checks) -> None:
    mask = np.ones(16, bool)
    mask[6] = False
    body = ACCESS.format(base="%d1", instruction="ld.global.u32 %r5, [%d3];")
    for offset in (0, 8, 12):
        _launch(
            body,
            [np.zeros(4, np.uint8), ptx.Buffer(np.zeros(16, np.uint8), "s", initialised=mask), offset],
            checks=checks,
        )
    with pytest.raises(ptx.MemoryFault) as caught:
        _launch(
            body, [np.zeros(4, np.uint8), ptx.Buffer(np.zeros(16, np.uint8), "s", initialised=mask), 4], checks=checks
        )
    assert (caught.value.kind, caught.value.offset) == ("uninitialised", 6)


def test_a_store_initialises_its_bytes_only() -> None:
    body = """
        setp.ne.u32 %p1, %r1, 0;
        @%p1 bra END;
        st.global.u16 [%d1], 7;
        ld.global.u16 %h1, [%d1];
        ld.global.u{bits} %r3, [%d1];
    END: ret;
    """
    buffer = ptx.Buffer(np.zeros(16, np.uint8), "s", initialised=False)
    _launch(body.replace("{bits}", "8"), [np.zeros(4, np.uint8), buffer, 0])
    with pytest.raises(ptx.MemoryFault, match="uninitialised") as caught:
        _launch(body.replace("{bits}", "32"), [np.zeros(4, np.uint8), buffer, 0], checks=ptx.Checks(strict=True))
    assert caught.value.offset == 2


@both_strict_ways
@pytest.mark.parametrize("byte", range(16))
def test_every_byte_of_a_vector_must_be_initialised(byte: int, checks: ptx.Checks) -> None:
    mask = np.ones(16, bool)
    mask[byte] = False
    buffer = ptx.Buffer(np.zeros(16, np.uint8), "s", initialised=mask)
    with pytest.raises(ptx.MemoryFault) as caught:
        _launch("ld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%d1]; ret;", [np.zeros(4, np.uint8), buffer, 0], checks=checks)
    assert (caught.value.kind, caught.value.offset) == ("uninitialised", byte)


@both_strict_ways
def test_uninitialised_shared_and_local(checks: ptx.Checks) -> None:
    for space in ("shared", "local"):
        declaration = f".{space} .align 4 .b8 mine[256];"
        body = f"""
            mov.u64 %d3, mine;
            mul.wide.u32 %d4, %r1, 4;
            add.s64 %d4, %d3, %d4;
            setp.eq.u32 %p1, %r1, 5;
            @%p1 bra READ;
            st.{space}.u32 [%d4], %r1;
        READ:
            ld.{space}.u32 %r3, [%d4];
            ret;
        """
        with pytest.raises(ptx.MemoryFault, match="uninitialised") as caught:
            run(body, np.zeros(32, np.uint32), declarations=declaration, checks=checks)
        assert (caught.value.space, caught.value.offset, caught.value.thread) == (space, 20, (5, 0, 0))


@both_ways
def test_shared_memory_is_bounded_by_its_size(checks: ptx.Checks) -> None:
    declaration = ".shared .align 4 .b8 mine[64];"
    body = "st.shared.u8 [mine+{offset}], %r1; ret;"
    run(body.format(offset=63), np.zeros(1, np.uint32), block=(1, 1, 1), declarations=declaration, checks=checks)
    for offset in (64, -1):
        with pytest.raises(ptx.MemoryFault, match="out of bounds") as caught:
            run(
                body.format(offset=offset),
                np.zeros(1, np.uint32),
                block=(1, 1, 1),
                declarations=declaration,
                checks=checks,
            )
        assert (caught.value.space, caught.value.offset) == ("shared", offset)


@both_ways
def test_write_to_a_read_only_buffer(checks: ptx.Checks) -> None:
    source = ptx.Buffer(np.zeros(16, np.uint8), "weights", writable=False)
    with pytest.raises(ptx.MemoryFault, match="read only") as caught:
        _launch(STORE, [np.zeros(4, np.uint8), source, 0], checks=checks)
    assert caught.value.buffer == "weights"


def test_arrays_are_written_only_when_the_launch_ends_well() -> None:
    body = """
        st.global.u32 [%d2], %r1;
        setp.eq.u32 %p1, %r1, %r0;
        @%p1 trap;
        ret;
    """
    out = np.full(32, 7, np.uint32)
    with pytest.raises(ptx.Trap):
        run(body, out, n=3)
    assert (out == 7).all()
    run(body, out, n=99)
    np.testing.assert_array_equal(out, np.arange(32))


def test_keyboard_interrupt_leaves_arrays_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from refmoe.ptx.engine.machine import Machine

    def interrupted(self, alive):
        raise KeyboardInterrupt

    monkeypatch.setattr(Machine, "leave", interrupted)
    out = np.full(32, 7, np.uint32)
    with pytest.raises(KeyboardInterrupt):
        run("st.global.u32 [%d2], %r1; ret;", out)
    assert (out == 7).all()


def test_same_array_twice_is_one_buffer_and_overlaps_are_refused() -> None:
    body = """
        mul.wide.u32 %d3, %r1, 4; add.s64 %d3, %d3, %d1;
        ld.global.u32 %r3, [%d3];
        add.u32 %r3, %r3, 1;
        st.global.u32 [%d2], %r3;
        ret;
    """
    both = np.arange(40, dtype=np.uint32)
    run(body, both, both)
    np.testing.assert_array_equal(both, np.r_[np.arange(32) + 1, np.arange(32, 40)])
    with pytest.raises(ptx.ArgumentMismatch, match="overlaps"):
        run(body, both[:32], both[8:])


def test_widening_and_narrowing() -> None:
    body = """
        mul.wide.u32 %d4, %r1, 0;
        add.s64 %d3, %d1, %d4;
        ld.global.s8 %h1, [%d3];
        ld.global.s8 %r3, [%d3];
        ld.global.u8 %r4, [%d3];
        ld.global.s16 %d5, [%d3];
        ld.global.s32 %d6, [%d3];
        cvt.u32.u16 %r5, %h1;
        st.global.u32 [%d0], %r5;
        st.global.u32 [%d0+4], %r3;
        st.global.u32 [%d0+8], %r4;
        st.global.u64 [%d0+16], %d5;
        st.global.u64 [%d0+24], %d6;
        st.global.u8 [%d0+32], %d6;
        ret;
    """
    out = np.zeros(9, np.uint32)
    run(body, out, np.array([0x8180FFFE], np.uint32), block=(1, 1, 1))
    assert out.tolist() == [0xFFFE, 0xFFFFFFFE, 0xFE, 0, 0xFFFFFFFE, 0xFFFFFFFF, 0x8180FFFE, 0xFFFFFFFF, 0xFE]


def test_vector_accesses_and_sinks() -> None:
    body = """
        mul.wide.u32 %d3, %r1, 32;
        add.s64 %d4, %d3, %d1; add.s64 %d5, %d3, %d0;
        ld.global.v8.b32 {%r3, _, %r5, %r6, %r7, %r8, %r9, %r10}, [%d4];
        ld.global.v2.b32 {_, %r4}, [%d4];
        st.global.v4.b32 [%d5], {%r10, %r9, %r8, %r7};
        st.global.v4.b32 [%d5+16], {%r6, %r5, %r4, %r3};
        ret;
    """
    source = np.random.default_rng(2).integers(0, 1 << 32, (16, 8), dtype=np.uint32)
    out = np.zeros((16, 8), np.uint32)
    run(body, out, source, block=(16, 1, 1))
    np.testing.assert_array_equal(out, source[:, ::-1])


def test_packing_and_unpacking_moves() -> None:
    body = """
        mov.b32 {%h1, %h2}, %r0;
        mov.b32 %r3, {%h2, %h1};
        mov.b64 %d3, {%r3, %r0};
        mov.b64 {%r4, %r5}, %d3;
        mov.b64 {%h3, %h4, %h5, %h6}, %d3;
        mov.b64 %d4, {%h6, %h5, %h4, %h3};
        mov.b64 {_, %r6}, %d4;
        st.global.v4.u32 [%d0], {%r3, %r4, %r5, %r6};
        st.global.u64 [%d0+16], %d4;
        ret;
    """
    out = np.zeros(6, np.uint32)
    run(body, out, n=0x12345678, block=(1, 1, 1))
    # Vector elements go from the low bits up: %d3 = 0x12345678_56781234, %d4 its halves in reverse.
    assert out[:4].tolist() == [0x56781234, 0x56781234, 0x12345678, 0x12345678]
    assert int(out[4:].view(np.uint64)[0]) == 0x1234_5678_5678_1234


def test_constants_globals_and_relocations() -> None:
    scope = """
        .const .align 4 .u32 table[4] = {10, 20, 0x1E, 40};
        .global .align 4 .s32 counter = -5;
        .global .align 8 .u64 pointer[2] = {table, generic(counter)};
        .global .align 4 .f32 half[2] = {0.5, 0f3F000000};
    """
    body = """
        mov.u64 %d3, table;
        mul.wide.u32 %d4, %r1, 4;
        add.s64 %d4, %d3, %d4;
        ld.const.u32 %r3, [%d4];
        ld.global.s32 %r4, [counter];
        ld.global.u64 %d5, [pointer+8];
        ld.u32 %r5, [%d5];
        ld.global.u64 %d6, [pointer];
        ld.const.u32 %r6, [%d6+4];
        ld.global.u32 %r7, [half];
        ld.global.u32 %r8, [half+4];
        setp.eq.u32 %p1, %r7, %r8;
        selp.u32 %r9, 1, 0, %p1;
        add.u32 %r10, %r3, %r4;
        add.u32 %r10, %r10, %r5;
        mad.lo.u32 %r10, %r6, 1000, %r10;
        mad.lo.u32 %r10, %r9, 100000, %r10;
        st.global.u32 [%d2], %r10;
        ret;
    """
    out = np.zeros(4, np.uint32)
    run(body, out, block=(4, 1, 1), module_scope=scope)
    assert out.tolist() == [120000 + v - 10 for v in (10, 20, 30, 40)]
    with pytest.raises(ptx.MemoryFault, match="out of bounds") as caught:
        run(body, np.zeros(5, np.uint32), block=(5, 1, 1), module_scope=scope)
    assert (caught.value.buffer, caught.value.offset) == ("table", 16)


def test_dynamic_and_static_shared_memory() -> None:
    body = """
        mov.u32 %r3, dynamic; mov.u32 %r4, fixed;
        shl.b32 %r5, %r1, 2;
        add.u32 %r6, %r3, %r5; add.u32 %r7, %r4, %r5;
        st.shared.u32 [%r6], %r1;
        add.u32 %r8, %r1, 100;
        st.shared.u32 [%r7], %r8;
        bar.sync 0;
        ld.shared.u32 %r9, [%r6]; ld.shared.u32 %r10, [%r7];
        mov.u32 %r11, %dynamic_smem_size;
        add.u32 %r9, %r9, %r10; mad.lo.u32 %r9, %r11, 1000, %r9;
        st.global.u32 [%d2], %r9;
        ret;
    """
    scopes = {
        "module_scope": ".extern .shared .align 16 .b8 dynamic[];",
        "declarations": ".shared .align 4 .b8 fixed[128];",
    }
    out = np.zeros(96, np.uint32)
    run(body, out, grid=(3, 1, 1), shared_bytes=128, **scopes)
    t = np.tile(np.arange(32), 3)
    np.testing.assert_array_equal(out, 2 * t + 100 + 128000)
    with pytest.raises(ptx.MemoryFault, match="out of bounds") as caught:
        run(body, out, grid=(3, 1, 1), shared_bytes=127, **scopes)
    assert "launch gives" not in str(caught.value)
    said = r"; dynamic is dynamic shared memory \(extern __shared__\), of which the launch gives 0 bytes: say how many"
    with pytest.raises(ptx.MemoryFault, match=said):
        run(body, out, grid=(3, 1, 1), **scopes)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            "cudaMalloc",
            "cudaMalloc in device code is of the CUDA runtime, and the executor has the runtime of no device",
        ),
        ("elsewhere", "elsewhere has no body in this module, and the executor links no other one"),
    ],
)
def test_a_function_that_is_not_here_is_named(function: str, said: str) -> None:
    body = f"""
    {{
        .param .b64 size; .param .b64 made;
        mov.u64 %d3, 16;
        st.param.b64 [size], %d3;
        call.uni (made), {function}, (size);
        ld.param.b64 %d4, [made];
        st.global.u32 [%d2], %r1;
    }}
        ret;
    """
    declared = f".extern .func (.param .b64 r) {function} (.param .b64 n);"
    with pytest.raises(ptx.UnknownOpcode, match=said):
        run(body, np.zeros(32, np.uint32), module_scope=declared)


def test_generic_addresses_of_three_spaces_in_one_load() -> None:
    body = """
        mov.u64 %d3, sh; cvta.shared.u64 %d4, %d3;
        mov.u64 %d5, lo; cvta.local.u64 %d6, %d5;
        mov.u32 %r3, 11; mov.u32 %r4, 22;
        setp.eq.u32 %p5, %r1, 0;
        @%p5 st.shared.u32 [sh], %r3;
        bar.sync 0;
        st.local.u32 [lo], %r4;
        rem.u32 %r5, %r1, 3;
        setp.eq.u32 %p1, %r5, 0;
        selp.b64 %d7, %d4, %d6, %p1;
        setp.eq.u32 %p3, %r5, 2;
        selp.b64 %d7, %d1, %d7, %p3;
        ld.u32 %r6, [%d7];
        isspacep.shared %p4, %d7; selp.u32 %r7, 100, 0, %p4;
        isspacep.local %p4, %d7;  selp.u32 %r8, 200, 0, %p4;
        isspacep.global %p4, %d7; selp.u32 %r9, 300, 0, %p4;
        add.u32 %r6, %r6, %r7; add.u32 %r6, %r6, %r8; add.u32 %r6, %r6, %r9;
        st.global.u32 [%d2], %r6;
        ret;
    """
    out = np.zeros(32, np.uint32)
    declarations = ".shared .align 4 .b8 sh[4]; .local .align 4 .b8 lo[4];"
    run(body, out, np.array([33], np.uint32), declarations=declarations)
    np.testing.assert_array_equal(out, np.array([111, 222, 333])[np.arange(32) % 3])


@pytest.mark.parametrize("space", ["global", "shared", "local", "const", "param", "param::entry"])
def test_each_address_lies_in_one_space(space: str) -> None:
    body = f"""
        mov.u64 %d3, sh; cvta.shared.u64 %d3, %d3; isspacep.{space} %p1, %d3; selp.u32 %r3, 1, 0, %p1;
        mov.u64 %d3, lo; cvta.local.u64 %d3, %d3; isspacep.{space} %p1, %d3; selp.u32 %r4, 2, 0, %p1;
        mov.u64 %d3, co; cvta.const.u64 %d3, %d3; isspacep.{space} %p1, %d3; selp.u32 %r5, 4, 0, %p1;
        mov.b64 %d3, n; cvta.param.u64 %d3, %d3; isspacep.{space} %p1, %d3; selp.u32 %r6, 8, 0, %p1;
        isspacep.{space} %p1, %d0; selp.u32 %r7, 16, 0, %p1;
        add.u32 %r3, %r3, %r4; add.u32 %r3, %r3, %r5; add.u32 %r3, %r3, %r6; add.u32 %r3, %r3, %r7;
        st.global.u32 [%d2], %r3;
        ret;
    """
    out = np.zeros(32, np.uint32)
    declarations = ".shared .align 4 .b8 sh[4]; .local .align 4 .b8 lo[4];"
    run(body, out, declarations=declarations, module_scope=".const .b32 co;")
    wanted = {"shared": 1, "local": 2, "const": 4, "param": 8, "param::entry": 8, "global": 16}
    assert (out == wanted[space]).all()


LOCAL = """
extern "C" __global__ void k(int* out, const int* in, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    int a[16];
    for (int i = 0; i < 16; ++i) a[i] = in[i] * (t + 1);
    for (int i = 0; i < n; ++i) { int s = a[(i * 7 + t) & 15]; a[s & 15] += i; }
    int r = 0;
    for (int i = 0; i < 16; ++i) r = r * 31 + a[i];
    out[t] = r;
}
"""


def test_local_arrays_of_the_real_compiler(tmp_path) -> None:
    module = compile_cuda(LOCAL, tmp_path)
    n, lanes = 20, 70
    source = np.random.default_rng(3).integers(0, 100, 16).astype(np.int32)
    out = np.zeros(lanes, np.int32)
    ptx.launch(module, "k", (2, 1, 1), (35, 1, 1), [out, source, n])
    for t in range(lanes):
        a = [int(v) * (t + 1) for v in source]
        for i in range(n):
            s = a[(i * 7 + t) & 15]
            a[s & 15] += i
        r = 0
        for value in a:
            r = (r * 31 + value) & 0xFFFFFFFF
        assert int(out[t]) & 0xFFFFFFFF == r


def test_struct_parameter_read_through_a_register() -> None:
    source = """.version 9.0
.target sm_120a
.address_size 64
.visible .entry k(.param .u64 out, .param .align 8 .b8 table[24])
{
    .reg .b32 %r<8>; .reg .b64 %d<8>;
    ld.param.u64 %d0, [out];
    mov.u32 %r1, %tid.x;
    mov.b64 %d1, table;
    mul.wide.u32 %d2, %r1, 4;
    add.s64 %d3, %d1, %d2;
    ld.param.u32 %r2, [%d3+4];
    add.s64 %d4, %d0, %d2;
    st.global.u32 [%d4], %r2;
    ret;
}
"""
    module = ptx.Module.parse(source)
    out = np.zeros(5, np.uint32)
    table = np.arange(6, dtype=np.uint32) * 11
    ptx.launch(module, "k", (1, 1, 1), (5, 1, 1), [out, table.tobytes()])
    np.testing.assert_array_equal(out, table[1:])
    with pytest.raises(ptx.MemoryFault, match="out of bounds"):
        ptx.launch(module, "k", (1, 1, 1), (6, 1, 1), [np.zeros(6, np.uint32), table.tobytes()])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([1, None, 0], "pointer"),
        ([np.zeros(4), None, np.zeros(4)], "a buffer for a parameter of 4 bytes"),
        ([np.zeros(4), None, None], "None for a parameter of 4 bytes"),
        ([np.zeros(4), None, 1 << 32], "does not fit"),
        ([np.zeros(4), None, 1.5], r"float 1.5 for a \.u32"),
        ([np.zeros(4), None], "3 parameters; 2 arguments"),
        ([np.zeros((4, 4))[:, :2], None, 0], "not C-contiguous"),
    ],
)
def test_arguments_that_do_not_fit(args, message: str) -> None:
    with pytest.raises(ptx.ArgumentMismatch, match=message):
        _launch("ret;", args)


@pytest.mark.parametrize(
    ("grid", "block", "message"),
    [
        ((1, 1), (32, 1, 1), "three positive sizes"),
        ((0, 1, 1), (32, 1, 1), "three positive sizes"),
        ((1, 1, 1), (1025, 1, 1), "at most 1024"),
        ((1, 65536, 1), (1, 1, 1), "at most .*65535"),
        ((1, 1, 1), (129, 1, 1), r"\.maxntid"),
    ],
)
def test_launches_that_do_not_fit(grid, block, message: str) -> None:
    module = ptx.Module.parse(text("ret;", directives=".maxntid 128, 1, 1"))
    with pytest.raises(ptx.ArgumentMismatch, match=message):
        ptx.launch(module, "k", grid, block, [np.zeros(1, np.uint8), None, 0])
    with pytest.raises(ptx.ArgumentMismatch, match="shared memory"):
        ptx.launch(module, "k", (1, 1, 1), (32, 1, 1), [np.zeros(1, np.uint8), None, 0], shared_bytes=101_377)


def test_numbers_past_float32() -> None:
    module = ptx.Module.parse(".version 9.0\n.target sm_120a\n.visible .entry k(.param .f32 x) { ret; }")
    ptx.launch(module, "k", (1, 1, 1), (1, 1, 1), [float("inf")])
    with pytest.raises(ptx.ArgumentMismatch, match=r"1e\+39 does not fit \.f32"):
        ptx.launch(module, "k", (1, 1, 1), (1, 1, 1), [1e39])
    # A literal is rounded, as the assembler does.
    out = np.zeros(1, np.uint32)
    run("ld.global.u32 %r3, [x]; st.global.u32 [%d0], %r3; ret;", out, module_scope=".global .f32 x = 1e39;")
    assert out[0] == 0x7F800000


def test_signed_results_in_wider_registers_are_extended() -> None:
    # %r1 - 2 as 8 and as 16 bits, in registers of 32 and of 64.
    body = """
        sub.s32 %r3, %r1, 2;
        cvt.s8.s32 %r4, %r3;
        cvt.u8.s32 %r5, %r3;
        cvt.s16.s32 %r6, %r3;
        cvt.s32.s32 %d4, %r3;
        shr.u64 %d4, %d4, 32;
        cvt.u32.u64 %r7, %d4;
        mul.wide.u32 %d3, %r1, 16; add.s64 %d3, %d3, %d0;
        st.global.v4.u32 [%d3], {%r4, %r5, %r6, %r7};
        ret;
    """
    out = np.zeros((4, 4), np.uint32)
    run(body, out, block=(4, 1, 1))
    ones = 0xFFFFFFFF
    assert out.tolist() == [[ones - 1, 0xFE, ones - 1, ones], [ones, 0xFF, ones, ones], [0, 0, 0, 0], [1, 1, 1, 0]]


def test_an_offset_is_added_in_the_width_of_its_register() -> None:
    body = """
        mov.u32 %r3, sh; sub.u32 %r4, 16, %r3; neg.s32 %r4, %r4;
        mov.u32 %r5, 77; st.shared.u32 [%r4+16], %r5;
        sub.u32 %r6, %r3, 2000; ld.shared.u32 %r7, [%r6+2000];
        st.global.u32 [%d2], %r7;
        ret;
    """
    out = np.zeros(1, np.uint32)
    run(body, out, block=(1, 1, 1), declarations=".shared .align 4 .b8 sh[4];")
    assert out.tolist() == [77]


@pytest.mark.parametrize("space", ["shared", "local"])
def test_generic_addresses_and_back(space: str) -> None:
    body = f"""
        mov.u64 %d3, mine; cvta.{space}.u64 %d4, %d3;
        st.u32 [%d4], %r1;
        cvta.to.{space}.u64 %d5, %d4;
        ld.{space}.u32 %r3, [%d5];
        sub.u64 %d6, %d5, %d3; cvt.u32.u64 %r4, %d6;
        add.u32 %r3, %r3, %r4; add.u32 %r3, %r3, 5;
        st.global.u32 [%d2], %r3;
        ret;
    """
    out = np.zeros(1, np.uint32)
    run(body, out, block=(1, 1, 1), declarations=f".{space} .align 4 .b8 mine[4];")
    assert out.tolist() == [5]


# A pointer to the thread's own local memory, handed on through shared memory by thread {giver}.
HANDED_ON = """
    mov.u64 %d3, lo; cvta.local.u64 %d4, %d3; st.local.u32 [%d3 + 4], %r2;
    setp.eq.u32 %p1, %r1, {giver}; @%p1 st.shared.u64 [given], %d4;
    bar.sync 0;
    ld.shared.u64 %d5, [given];
    {use}
    st.global.u32 [%d2], %r4;
    ret;
"""


@pytest.mark.parametrize(
    "use",
    [
        "ld.u32 %r4, [%d5 + 4];",
        "st.u32 [%d5 + 4], 9; mov.u32 %r4, 0;",
        "cvta.to.local.u64 %d6, %d5; cvta.local.u64 %d6, %d6; ld.u32 %r4, [%d6 + 4];",
    ],
)
@pytest.mark.parametrize("giver", [0, 3, 40])
@ways
def test_local_memory_of_another_thread(way: Way, giver: int, use: str) -> None:
    declarations = ".shared .align 8 .b8 given[8]; .local .align 8 .b8 lo[16];"
    module = ptx.Module.parse(text(HANDED_ON.format(giver=giver, use=use), declarations=declarations), "test.ptx")
    with pytest.raises(ptx.MemoryFault, match="of local memory") as caught:
        ptx.launch(module, "k", (2, 1, 1), (64, 1, 1), [np.zeros(128, np.uint32), None, 0], profile=way)
    fault = caught.value
    assert (fault.kind, fault.offset, fault.block) == ("another thread's", 4, (0, 0, 0))
    assert f"of local memory (16 bytes) of block (0, 0, 0) thread ({giver}, 0, 0), block" in str(fault)
    assert fault.thread != (giver, 0, 0)
    # Each thread may use its own, wherever the pointer has been.
    own = HANDED_ON.format(giver=giver, use="ld.u32 %r4, [%d5 + 4];").replace("[given]", "[%r20]")
    own = f"mov.u32 %r20, given; mad.lo.u32 %r20, %r1, 8, %r20; {own.replace('@%p1 st', 'st')}"
    declarations = declarations.replace("given[8]", "given[512]")
    module, out = ptx.Module.parse(text(own, declarations=declarations), "test.ptx"), np.zeros(128, np.uint32)
    ptx.launch(module, "k", (2, 1, 1), (64, 1, 1), [out, None, 0], profile=way)
    np.testing.assert_array_equal(out, np.arange(128))
