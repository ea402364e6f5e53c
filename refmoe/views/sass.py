"""What ptxas made of a kernel: tensor-core instructions, registers, spills, stages and shared memory.

Registers, spills and the stack are in ptxas's own report; instructions are read from the disassembly of the cubin.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from refmoe.chips import CHIPS
from refmoe.cuda.gemm.kernel import GemmShape, grouped_gemm_kernel, grouped_gemm_plan
from refmoe.cuda.gemm.tile import Tile, check_tile
from refmoe.cuda.toolchain import CSRC, Target, ToolchainError, build

if TYPE_CHECKING:
    from refmoe.museum.cutlass import Build

__all__ = ["Sass", "Usage", "cutlass_sass", "disassemble", "find_nvdisasm", "gemm_sass", "ptxas_usage", "read_sass"]

NVDISASM_PACKAGE = "nvidia-cuda-nvdisasm"
_SECTION = re.compile(r"^\s*\.section\s+\.text\.(\w+),.*$", re.MULTILINE)
# Without a predicate: /*0040*/ @P0 LDC R1, c[0x0][0x37c] ;
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:\{\s*)?(?:@!?\w+\s+)?(.+?)\s*[;}]", re.MULTILINE)
_LOCAL = ("LDL", "STL")


@dataclass(frozen=True)
class Usage:
    """What ptxas reports of an entry: registers of a thread; bytes of stack, spill stores and spill loads."""

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int


@dataclass(frozen=True)
class Sass:
    """One compiled kernel.

    Attributes:
        name: for people.
        arch: it was compiled for.
        entry: its name in the cubin.
        products: tensor-core instructions in its text, by spelling.
        instructions: all instructions in its text.
        local_instructions: loads and stores of local memory among them.
        usage: registers, stack and spills.
        stages: of its ring in shared memory.
        shared_bytes: of a block.
    """

    name: str
    arch: str
    entry: str
    products: Mapping[str, int]
    instructions: int
    local_instructions: int
    usage: Usage
    stages: int
    shared_bytes: int


def find_nvdisasm() -> Path:
    """nvdisasm of PATH, of the CUDA toolkit beside nvcc, or of the PyPI package.

    Raises:
        ToolchainError: there is none; the message says what to install.
    """
    found = shutil.which("nvdisasm")
    if found is not None:
        return Path(found)
    for folder in sys.path:
        for tool in sorted(Path(folder or ".").glob("nvidia/cu[0-9]*/bin/nvdisasm"), reverse=True):
            return tool
    raise ToolchainError(
        f"no nvdisasm on PATH and none from PyPI, so nothing can be disassembled: pip install {NVDISASM_PACKAGE}"
    )


def disassemble(cubin: Path) -> dict[str, tuple[str, ...]]:
    """By entry its instructions as nvdisasm spells them, without predicates.

    Raises:
        ToolchainError: there is no nvdisasm, or it cannot read the file.
    """
    tool = find_nvdisasm()
    run = subprocess.run([tool, "-c", cubin], capture_output=True, text=True)
    if run.returncode != 0:
        raise ToolchainError(f"{tool} cannot read {cubin}: {run.stderr.strip()}")
    parts = _SECTION.split(run.stdout)[1:]
    return {name: tuple(_INSTRUCTION.findall(body)) for name, body in zip(parts[::2], parts[1::2], strict=True)}


def ptxas_usage(log: str) -> dict[str, Usage]:
    """What `ptxas -v` said of each entry.

    Raises:
        ToolchainError: a report without these numbers.
    """
    parts = re.split(r"Compiling entry function '(\w+)' for '\w+'", log)
    return {name: _usage(name, text) for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def _usage(entry: str, text: str) -> Usage:
    registers = re.search(r"Used (\d+) registers", text)
    spills = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", text)
    if registers is None or spills is None:
        raise ToolchainError(f"ptxas reports neither registers nor spills of {entry}: {text.strip()[:200]!r}")
    return Usage(int(registers[1]), *(int(number) for number in spills.groups()))


def read_sass(cubin: Path, log: str, entry: str, *, name: str, arch: str, stages: int, shared_bytes: int) -> Sass:
    """What the cubin and the report of its compilation say of an entry.

    Raises:
        ToolchainError: no nvdisasm, or the entry is in neither.
    """
    texts, usages = disassemble(cubin), ptxas_usage(log)
    if entry not in texts or entry not in usages:
        raise ToolchainError(f"{cubin} or its report has no entry {entry}")
    opcodes = [text.split()[0] for text in texts[entry]]
    families = [opcode.split(".")[0] for opcode in opcodes]
    products = Counter(opcode for opcode, family in zip(opcodes, families, strict=True) if family.endswith("MMA"))
    local = sum(family in _LOCAL for family in families)
    return Sass(name, arch, entry, dict(products), len(opcodes), local, usages[entry], stages, shared_bytes)


def gemm_sass(tile: Tile, arch: str, *, out_dtype: str = "bf16", stages: int | None = None) -> Sass:
    """Our grouped GEMM in one tile, compiled if need be.

    Raises:
        TileRefused: the tile or the stages cannot be had.
        ToolchainError: no compiler or no disassembler.
    """
    depth = check_tile(tile, arch=arch, stages=stages)
    find_nvdisasm()  # before the compiler runs
    kernel = grouped_gemm_kernel(tile, out_dtype)
    target = Target(kernel.path(CSRC), arch, "cubin")
    cubin = build([target])[target]
    plan = grouped_gemm_plan(tile, out_dtype, depth, (), None, GemmShape(1, 1, tile.m, tile.k), multiprocessors=1)
    log = Path(f"{cubin}.log").read_text()
    name = f"refmoe {tile} {out_dtype}"
    return read_sass(
        cubin, log, kernel.entry, name=name, arch=arch, stages=depth, shared_bytes=plan.shared_bytes
    )  # fmt: skip


def cutlass_sass(build_: Build) -> Sass | None:
    """CUTLASS's grouped GEMM, if it is built; its cubin is made from its PTX then.

    Raises:
        CutlassMissing: no headers of CUTLASS, which name the build.
        ToolchainError: no compiler or no disassembler.
    """
    from refmoe.museum.cutlass import HostLibrary, cubin, find_built

    built = find_built(build_)
    if built is None:
        return None
    find_nvdisasm()
    found = HostLibrary(built.library, CHIPS[build_.arch]).description
    path = cubin(build_)
    log = path.with_suffix(".log").read_text()
    (entry,) = ptxas_usage(log)
    return read_sass(
        path,
        log,
        entry,
        name=f"CUTLASS {build_}",
        arch=build_.arch,
        stages=found.stages,
        shared_bytes=found.shared_bytes,
    )
