"""A Triton kernel on block-scaled operands, and its PTX without a GPU. Needs the package `triton`.

`python tests/support/triton_dot_scaled.py` writes tests/data/triton_*.ptx.
"""

from __future__ import annotations

import os
from pathlib import Path

# Line tables would name this machine's paths; the fusion of products and sums is Triton's default up to 3.9.
os.environ.update(TRITON_DISABLE_LINE_INFO="1", TRITON_DEFAULT_FP_FUSION="1")

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TRITON_VERSION = "3.9.0"
BLOCK = {"BM": 64, "BN": 32, "BK": 128}
FORMATS = [("e4m3", "e4m3"), ("e4m3", "e2m1")]


@triton.jit
def dot_scaled(
    a, a_scales, b, b_scales, c, M, N, K,
    A: tl.constexpr, B: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """c [M, N] = a [M, K] b [N, K]^T with a scale for every 32 of K; two e2m1 codes a byte, the first one low."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    per_a: tl.constexpr = 2 if A == "e2m1" else 1
    per_b: tl.constexpr = 2 if B == "e2m1" else 1
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        at_a = k // per_a + tl.arange(0, BK // per_a)
        at_b = k // per_b + tl.arange(0, BK // per_b)
        at_scale = k // 32 + tl.arange(0, BK // 32)
        x = tl.load(a + rows[:, None] * (K // per_a) + at_a[None, :], mask=rows[:, None] < M, other=0)
        y = tl.load(b + columns[None, :] * (K // per_b) + at_b[:, None], mask=columns[None, :] < N, other=0)
        x_scale = tl.load(a_scales + rows[:, None] * (K // 32) + at_scale[None, :], mask=rows[:, None] < M, other=0)
        y_scale = tl.load(
            b_scales + columns[:, None] * (K // 32) + at_scale[None, :], mask=columns[:, None] < N, other=0
        )
        total = tl.dot_scaled(x, x_scale, A, y, y_scale, B, total)
    tl.store(c + rows[:, None] * N + columns[None, :], total, mask=(rows[:, None] < M) & (columns[None, :] < N))


def compile_ptx(a_format: str, b_format: str) -> str:
    """PTX for sm_120a, with the version that made it on top."""
    pointers = ("a", "a_scales", "b", "b_scales")
    signature = {**dict.fromkeys(pointers, "*u8"), "c": "*fp32", **dict.fromkeys("MNK", "i32")}
    constants = {"A": a_format, "B": b_format, **BLOCK}
    # Pointers are 16-byte aligned, and K is a multiple of 16.
    aligned = {(i,): [["tt.divisibility", 16]] for i in (0, 1, 2, 3, 4, 7)}
    source = ASTSource(dot_scaled, {**signature, **dict.fromkeys(constants, "constexpr")}, constants, aligned)
    options = {"num_warps": 4, "num_stages": 2}
    compiled = triton.compile(source, target=GPUTarget("cuda", 120, 32), options=options)
    head = f"// Triton {triton.__version__}: tests/support/triton_dot_scaled.py, {a_format} x {b_format}\n"
    head += f"// {compiled.metadata.shared} bytes of dynamic shared memory\n"
    return head + compiled.asm["ptx"]


if __name__ == "__main__":
    for pair in FORMATS:
        path = Path(__file__).parent.parent / "data" / f"triton_{pair[0]}_{pair[1]}.ptx"
        path.write_text(compile_ptx(*pair))
        print(path)
