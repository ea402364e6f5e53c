"""PTX of the Triton kernels of `refmoe bench sweep` without a GPU. Needs the package `triton`.

`python tests/support/sweep/triton_ptx.py` writes tests/data/triton_sweep_*.ptx.
"""

from __future__ import annotations

import os
from pathlib import Path

# Line tables would name this machine's paths; the fusion of products and sums is Triton's default up to 3.9.
os.environ.update(TRITON_DISABLE_LINE_INFO="1", TRITON_DEFAULT_FP_FUSION="1")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from refmoe.bench.sweep.peers.triton import kernels

TRITON_VERSION = "3.9.0"
KERNELS = {
    "quantize": kernels.quantize_kernel,
    "gpt_oss": kernels.gpt_oss_kernel,
    "silu": kernels.silu_kernel,
}


def compile_ptx(name: str) -> str:
    """PTX for sm_90a with few blocks a program, with the version that made it on top."""
    kernel = KERNELS[name]
    rows, codes, scales, *numbers = (each for each in kernel.arg_names if each not in ("BLOCKS", "WIDTH"))
    signature = {rows: "*bf16", codes: "*fp8e4nv", scales: "*u8", **dict.fromkeys(numbers, "i32")}
    constants = {"BLOCKS": kernels.FEW_BLOCKS, "WIDTH": kernels.MX_BLOCK}
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(3)}
    source = ASTSource(kernel, {**signature, **dict.fromkeys(constants, "constexpr")}, constants, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    head = f"// Triton {triton.__version__}: tests/support/sweep/triton_ptx.py, {name}\n"
    head += f"// {compiled.metadata.shared} bytes of dynamic shared memory\n"
    return head + compiled.asm["ptx"]


if __name__ == "__main__":
    for each in KERNELS:
        path = Path(__file__).parent.parent.parent / "data" / f"triton_sweep_{each}.ptx"
        path.write_text(compile_ptx(each))
        print(path)
