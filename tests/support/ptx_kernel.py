"""Small PTX kernels for the engine's tests: a body between fixed declarations."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from refmoe import ptx
from refmoe.cuda.toolchain import Target, ToolchainError, build, find_toolchain

# %d0: out, %d1: in, %r0: n, %r1: thread in block, %r2: thread in grid, %d2: &out[%r2] (32-bit elements)
PRELUDE = """
    ld.param.u64 %d0, [out];
    ld.param.u64 %d1, [in];
    ld.param.u32 %r0, [n];
    mov.u32 %r1, %tid.x;
    mov.u32 %r60, %ctaid.x;
    mov.u32 %r61, %ntid.x;
    mad.lo.s32 %r2, %r60, %r61, %r1;
    mul.wide.u32 %d2, %r2, 4;
    add.s64 %d2, %d2, %d0;
"""


def text(
    body: str, module_scope: str = "", declarations: str = "", directives: str = "", target: str = "sm_120a"
) -> str:
    return f""".version 9.0
.target {target}
.address_size 64
{module_scope}
.visible .entry k(.param .u64 .ptr .align 4 out, .param .u64 .ptr in, .param .u32 n)
{directives}
{{
    .reg .pred %p<32>;
    .reg .b16 %h<32>;
    .reg .b32 %r<64>;
    .reg .b64 %d<64>;
    {declarations}
{PRELUDE}
{body}
}}
"""


def line_of(body: str, fragment: str, **scopes: str) -> int:
    """Line of the text at which `fragment` stands."""
    lines = text(body, **scopes).splitlines()
    return next(number for number, line in enumerate(lines, 1) if fragment in line)


def run(
    body: str,
    out: Any,
    source: Any = None,
    n: int = 0,
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (32, 1, 1),
    shared_bytes: int = 0,
    checks: ptx.Checks | None = None,
    step_budget: int | None = 20000,
    **scopes: str,
) -> ptx.LaunchResult:
    """Launch a body; `out` is written."""
    module = ptx.Module.parse(text(body, **scopes), name="test.ptx")
    return ptx.launch(module, "k", grid, block, [out, source, n], shared_bytes, checks, step_budget)


@cache
def cuda_ptx(source: str, folder: Path, arch: str) -> str:
    """What the real compiler makes of CUDA C++, with the flags of the kernels, and kept where they are."""
    try:
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(str(error))
    file = folder / "kernel.cu"
    file.write_text(source)
    target = Target(file, arch, "ptx")
    return build([target])[target].read_text()


def compile_cuda(source: str, folder: Path, arch: str = "sm_120a") -> ptx.Module:
    """CUDA C++ through the real compiler."""
    return ptx.Module.parse(cuda_ptx(source, folder, arch), name="kernel.ptx")
