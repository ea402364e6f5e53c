"""`printf` and `assert` in device code."""

from __future__ import annotations

import ctypes
import io
import struct
from typing import Any

import numpy as np
import pytest
from support.ptx_kernel import compile_cuda, text

from refmoe import ptx
from refmoe.ptx.engine.driver.device_print import formatted


class Values:
    """Arguments by value: numbers, and bytes for strings."""

    def __init__(self, *values: Any) -> None:
        self.values = list(values)

    def take(self, size: int) -> bytes:
        value = self.values.pop(0)
        if isinstance(value, float):
            return struct.pack("<d", value)
        return (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")

    def string(self) -> bytes:
        value = self.values.pop(0)
        assert isinstance(value, bytes)
        return value


NUMBERS = (0, 1, -1, 42, -12345, 2**31 - 1, -(2**31))
FLOATS = (0.0, -0.0, 1.0, -1.5, 3.14159, 1e-7, 123456789.0, 1e300, 2.5, 5e-324, 1.9999999, float("inf"), -float("inf"))
FLAGS = ("", "-", "+", " ", "#", "0", "-+", "+0", "#0", "- #")
WIDTHS = ("", "1", "12", ".0", ".3", "12.4", "9.", "3.20")


def c(spelling: str, value: Any) -> bytes:
    """What the C library prints."""
    room = ctypes.create_string_buffer(4096)
    kind = ctypes.c_double if isinstance(value, float) else ctypes.c_longlong if "ll" in spelling else ctypes.c_int
    given = value if isinstance(value, bytes) else kind(value)
    ctypes.CDLL(None).snprintf(room, 4096, spelling.encode(), given)
    return room.value


@pytest.mark.parametrize("kind", ["d", "i", "u", "o", "x", "X", "hd", "hhu", "hhd", "hx", "lld", "llx", "llo"])
def test_integers_as_the_c_library_prints_them(kind: str) -> None:
    for flags in FLAGS:
        for width in WIDTHS:
            spelling = f"<%{flags}{width}{kind}>"
            for value in NUMBERS:
                assert formatted(spelling.encode(), Values(value)) == c(spelling, value), (spelling, value)


@pytest.mark.parametrize("kind", list("fFeEgGaA"))
def test_floats_as_the_c_library_prints_them(kind: str) -> None:
    for flags in FLAGS:
        for width in WIDTHS:
            spelling = f"<%{flags}{width}{kind}>"
            for value in FLOATS:
                assert formatted(spelling.encode(), Values(value)) == c(spelling, value), (spelling, value)


def test_strings_and_characters_as_the_c_library_prints_them() -> None:
    for flags in ("", "-"):
        for width in ("", "1", "12", ".0", ".3", "12.4"):
            spelling = f"<%{flags}{width}s>"
            assert formatted(spelling.encode(), Values(b"warp")) == c(spelling, b"warp")
        for width in ("", "1", "12"):
            assert formatted(f"<%{flags}{width}c>".encode(), Values(65)) == c(f"<%{flags}{width}c>", 65)


def test_widths_that_are_arguments() -> None:
    assert (
        formatted(b"[%*d|%-*d|%.*f|%*.*f]", Values(5, 42, 4, 7, 2, 1.2345, 8, 3, 2.5)) == b"[   42|7   |1.23|   2.500]"
    )
    assert formatted(b"[%*d|%.*f] 100%% %y", Values(-4, 7, -1, 0.5)) == b"[7   |0.500000] 100% %y"


PRINT = """
#include <cstdio>
extern "C" __global__ void k(int* out, const float* in, int n) {
    int t = threadIdx.x;
    if (t == 1) { out[0] = printf("nothing\\n"); return; }
    const char* word = t & 1 ? "odd" : "even";
    out[t] = printf("block %d lane %2d: %.3f %lld %s%c\\n", blockIdx.x, t, in[t], (long long)t << 40, word, '!');
}
"""


def test_a_kernel_prints_lane_by_lane(tmp_path) -> None:
    out, source, printed = np.zeros(4, np.int32), np.float32([0.5, 1.25, -2, 3]), io.StringIO()
    ptx.launch(compile_cuda(PRINT, tmp_path), "k", (2, 1, 1), (4, 1, 1), [out, source, 0],
               checks=ptx.Checks(races=False), stdout=printed)  # fmt: skip
    lines = printed.getvalue().splitlines()
    expected = ["nothing"] * 2 + [
        f"block {block} lane {t:2d}: {source[t]:.3f} {t << 40} {'odd' if t & 1 else 'even'}!"
        for block in range(2)
        for t in (0, 2, 3)
    ]
    assert sorted(lines) == sorted(expected)
    assert [line for line in lines if line != "nothing"] == expected[2:]
    assert out.tolist() == [6, 0, 6, 6]


def test_what_was_printed_before_a_failure_is_there(tmp_path, capsys) -> None:
    source = """
    #include <cstdio>
    extern "C" __global__ void k(int* out) {
        printf("before %d\\n", threadIdx.x);
        __syncthreads();
        out[threadIdx.x + 1000] = 1;
    }
    """
    with pytest.raises(ptx.MemoryFault):
        ptx.launch(compile_cuda(source, tmp_path), "k", (1, 1, 1), (2, 1, 1), [np.zeros(4, np.int32)])
    assert capsys.readouterr().out == "before 0\nbefore 1\n"


ASSERT = """
#undef NDEBUG
#include <cassert>
extern "C" __global__ void k(int* out, int n) {
    assert(threadIdx.x < n && "too many threads");
    out[threadIdx.x] = 1;
}
"""


def test_an_assertion_of_the_device(tmp_path) -> None:
    module, out = compile_cuda(ASSERT, tmp_path), np.zeros(8, np.int32)
    ptx.launch(module, "k", (1, 1, 1), (8, 1, 1), [out, 8])
    assert (out == 1).all()
    with pytest.raises(ptx.AssertionFailed) as caught:
        ptx.launch(module, "k", (1, 1, 1), (8, 1, 1), [out, 5])
    error = caught.value
    assert error.expression == 'threadIdx.x < n && "too many threads"'
    assert (error.file.endswith("kernel.cu"), error.file_line, error.function) == (True, 5, "void k(int *, int)")
    assert (error.block, error.thread) == ((0, 0, 0), (5, 0, 0))
    assert "assertion `threadIdx.x < n" in str(error)


FORMAT = """.global .align 1 .b8 format[4] = {37, 100, 10, 0};
.extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);"""
BODY = """
    .local .align 8 .b8 values[8];
    {{ .param .b64 f; .param .b64 a; .param .b32 r;
    {setup}
    st.local.u32 [values], %r1;
    cvta.global.u64 %d4, %d3; st.param.b64 [f], %d4;
    mov.u64 %d5, values; cvta.local.u64 %d6, %d5; st.param.b64 [a], %d6;
    setp.lt.u32 %p1, %r1, 2;
    mov.u32 %r3, 77;
    st.param.b32 [r], %r3;
    @%p1 call.uni (r), vprintf, (f, a);
    ld.param.b32 %r3, [r]; }}
    st.global.u32 [%d2], %r3;
    ret;
"""


def printed(setup: str) -> tuple[np.ndarray[Any, Any], str]:
    out, sink = np.zeros(4, np.uint32), io.StringIO()
    module = ptx.Module.parse(text(BODY.format(setup=setup), module_scope=FORMAT))
    ptx.launch(module, "k", (1, 1, 1), (4, 1, 1), [out, None, 0], stdout=sink)
    return out, sink.getvalue()


def test_a_guarded_call_prints_where_its_guard_is_on() -> None:
    out, said = printed("mov.u64 %d3, format;")
    assert (out.tolist(), said) == ([1, 1, 77, 77], "0\n1\n")


def test_a_null_format_prints_nothing() -> None:
    out, said = printed("mov.u64 %d3, 0;")
    assert (out.tolist(), said) == ([0xFFFFFFFF] * 2 + [77, 77], "")


def test_a_format_that_does_not_end_is_out_of_bounds() -> None:
    with pytest.raises(ptx.MemoryFault, match="out of bounds"):
        printed("mov.u64 %d3, format; add.u64 %d3, %d3, 4;")
