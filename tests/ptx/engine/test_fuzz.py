"""Random structured programs, compiled once for the executor and once for the host: results must be equal."""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess

import numpy as np
import pytest
from support.ptx_kernel import compile_cuda
from support.selection.thinned import thinned

from refmoe import ptx

PROGRAMS = 4
LANES = 200


class _Program:
    """A function of unsigned values with nested loops, branches, switches, early exits and a small array."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.loops = 0

    def value(self, depth: int = 0) -> str:
        choice = self.random.random()
        if depth > 2 or choice < 0.35:
            names = [
                "a",
                "b",
                "c",
                "t",
                f"m[{self.random.choice('abct')} & 7]",
                f"in[{self.random.choice('abc')} & 63]",
            ]
            return self.random.choice([*names, f"{self.random.randrange(1 << 32)}u", f"{self.random.randrange(20)}u"])
        left, right = self.value(depth + 1), self.value(depth + 1)
        operator = self.random.choice(["+", "-", "*", "^", "&", "|", ">>", "<<", "<", "==", "?", "/", "%"])
        if operator in (">>", "<<"):
            return f"({left} {operator} ({right} & 31u))"
        if operator in ("/", "%"):
            return f"({left} {operator} (({right} & 15u) + 1u))"
        if operator == "?":
            return f"({left} & 1u ? {right} : {self.value(depth + 1)})"
        if operator in ("<", "=="):
            return f"(unsigned)({left} {operator} {right})"
        return f"({left} {operator} {right})"

    def block(self, depth: int, in_loop: bool) -> str:
        return " ".join(self.statement(depth, in_loop) for _ in range(self.random.randrange(1, 4)))

    def statement(self, depth: int, in_loop: bool) -> str:
        choice = self.random.random()
        if depth > 3 or choice < 0.4:
            target = self.random.choice(["a", "b", "c", "m[a & 7]", "m[b & 7]"])
            return f"{target} {self.random.choice(['=', '+=', '^='])} {self.value()};"
        if choice < 0.6:
            text = f"if ({self.value()} & 1u) {{ {self.block(depth + 1, in_loop)} }}"
            return text + (f" else {{ {self.block(depth + 1, in_loop)} }}" if self.random.random() < 0.5 else "")
        if choice < 0.8:
            self.loops += 1
            i = f"i{self.loops}"
            bound = f"({self.value()} % {self.random.randrange(2, 9)}u)"
            return f"for (unsigned {i} = 0; {i} < {bound} && {i} < 9u; ++{i}) {{ {self.block(depth + 1, True)} }}"
        if choice < 0.88:
            cases = " ".join(
                f"case {n}: {self.block(depth + 1, in_loop)} {self.random.choice(['break;', ''])}" for n in range(5)
            )
            return f"switch ({self.value()} % 7u) {{ {cases} default: {self.block(depth + 1, in_loop)} }}"
        if in_loop and choice < 0.95:
            return f"if ({self.value()} & 1u) {self.random.choice(['break', 'continue'])};"
        return f"if (({self.value()} & 15u) == 3u) return a ^ b;"

    def text(self, name: str) -> str:
        body = " ".join(self.statement(0, False) for _ in range(6))
        return (
            f"FUNCTION unsigned {name}(unsigned t, const unsigned* in) {{ "
            f"unsigned a = in[t & 63], b = t * 2654435761u, c = 7u, m[8] = {{1, 2, 3, 4, 5, 6, 7, 8}}; "
            f"{body} return a + b * 3u + c * 5u + m[0] + m[t & 7] * 7u; }}"
        )


@pytest.mark.parametrize("first", thinned(range(0, 8 * PROGRAMS, PROGRAMS), 8))
def test_random_programs(first: int, tmp_path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ on PATH")
    functions = "\n".join(_Program(seed).text(f"f{seed}") for seed in range(first, first + PROGRAMS))
    host = '#define FUNCTION extern "C"\n' + functions
    (tmp_path / "host.cpp").write_text(host)
    library = tmp_path / "host.so"
    subprocess.run(
        [compiler, "-O1", "-w", "-shared", "-fPIC", str(tmp_path / "host.cpp"), "-o", str(library)], check=True
    )
    entries = "\n".join(
        f'extern "C" __global__ void k{n}(unsigned* out, const unsigned* in, unsigned n) {{ '
        f"unsigned t = blockIdx.x * blockDim.x + threadIdx.x; if (t < n) out[t] = f{n}(t, in); }}"
        for n in range(first, first + PROGRAMS)
    )
    module = compile_cuda("#define FUNCTION __device__\n" + functions + "\n" + entries, tmp_path)
    native = ctypes.CDLL(str(library))
    source = np.random.default_rng(6).integers(0, 1 << 32, 64, dtype=np.uint32)
    pointer = source.ctypes.data_as(ctypes.c_void_p)
    for number in range(first, first + PROGRAMS):
        function = getattr(native, f"f{number}")
        function.restype = ctypes.c_uint32
        expected = [function(ctypes.c_uint32(t), pointer) for t in range(LANES)]
        out = np.zeros(LANES, np.uint32)
        ptx.launch(module, f"k{number}", (5, 1, 1), (48, 1, 1), [out, source, LANES], step_budget=200_000)
        assert out.tolist() == expected, f"program {number}"
