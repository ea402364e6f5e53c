"""What ptxas made of kernels, side by side: tensor-core instructions, registers, spills, stages and shared memory.

Registers, spills and the stack are in ptxas's own report; instructions are read from the disassembly of the cubin.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from refmoe.chips import CHIPS
from refmoe.cuda.gemm.grouped import GemmShape
from refmoe.cuda.gemm.kernel import GEMM
from refmoe.cuda.gemm.tile import Tile, check_tile, parse_tile
from refmoe.cuda.toolchain import CSRC, Target, ToolchainError, build
from refmoe.museum import cutlass
from refmoe.museum.cutlass.builds import CUTLASS_ARCHITECTURES, SCHEDULES
from refmoe.tables import plain_table

NVDISASM_PACKAGE = "nvidia-cuda-nvdisasm"
_SECTION = re.compile(r"^\s*\.section\s+\.text\.(\w+),.*$", re.MULTILINE)
# Without a predicate: /*0040*/ @P0 LDC R1, c[0x0][0x37c] ;
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:\{\s*)?(?:@!?\w+\s+)?(.+?)\s*[;}]", re.MULTILINE)
_LOCAL = ("LDL", "STL")
#: What our kernel writes where it is compared.
_OUT_DTYPE = "bf16"
#: Figures of a kernel, in the words of the table.
_ROWS: Mapping[str, str] = {
    "instructions": "instructions",
    "registers": "registers a thread",
    "stack_bytes": "stack, bytes a thread",
    "spill_store_bytes": "spill stores, bytes",
    "spill_load_bytes": "spill loads, bytes",
    "local_instructions": "local-memory instructions",
    "stages": "stages",
    "shared_bytes": "shared memory a block, bytes",
}


@dataclass(frozen=True)
class PtxasReport:
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
    usage: PtxasReport
    stages: int
    shared_bytes: int


@dataclass(frozen=True)
class NotBuilt:
    """A kernel that is not there to be read: its name, why, and the command that makes it, or None if none does."""

    name: str
    reason: str
    command: str | None


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
    missing = "no nvdisasm on PATH and none from PyPI, so nothing can be disassembled"
    raise ToolchainError(f"{missing}: pip install {NVDISASM_PACKAGE}")


def disassemble(cubin: Path) -> dict[str, tuple[str, ...]]:
    """By entry its instructions as nvdisasm spells them, without predicates.

    Raises:
        ToolchainError: there is no nvdisasm, or it cannot read the file.
    """
    return {name: tuple(_INSTRUCTION.findall(body)) for name, body in disassembly(cubin).items()}


def disassembly(cubin: Path) -> dict[str, str]:
    """By entry its text as `nvdisasm -c` prints it: labels, and instructions with their predicates.

    Raises:
        ToolchainError: there is no nvdisasm, or it cannot read the file.
    """
    tool = find_nvdisasm()
    run = subprocess.run([tool, "-c", cubin], capture_output=True, text=True)
    if run.returncode != 0:
        raise ToolchainError(f"{tool} cannot read {cubin}: {run.stderr.strip()}")
    parts = _SECTION.split(run.stdout)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def ptxas_reports(log: str) -> dict[str, PtxasReport]:
    """What `ptxas -v` said of each entry.

    Raises:
        ToolchainError: a report without these numbers.
    """
    parts = re.split(r"Compiling entry function '(\w+)' for '\w+'", log)
    return {name: _usage(name, text) for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def _usage(entry: str, text: str) -> PtxasReport:
    registers = re.search(r"Used (\d+) registers", text)
    spills = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", text)
    if registers is None or spills is None:
        raise ToolchainError(f"ptxas reports neither registers nor spills of {entry}: {text.strip()[:200]!r}")
    return PtxasReport(int(registers[1]), *(int(number) for number in spills.groups()))


def read_sass(
    cubin: Path, log: Path, entry: str | None, *, name: str, arch: str, stages: int, shared_bytes: int
) -> Sass:
    """What the cubin and the report of its compilation say of an entry; None for the only one.

    Raises:
        ToolchainError: no nvdisasm, or the entry is in neither.
    """
    texts, usages = disassemble(cubin), ptxas_reports(log.read_text())
    if entry is None:
        (entry,) = usages
    if entry not in texts or entry not in usages:
        raise ToolchainError(f"{cubin} or its report has no entry {entry}")
    opcodes = [text.split()[0] for text in texts[entry]]
    families = [opcode.split(".")[0] for opcode in opcodes]
    products = Counter(opcode for opcode, family in zip(opcodes, families, strict=True) if family.endswith("MMA"))
    local = sum(family in _LOCAL for family in families)
    return Sass(name, arch, entry, dict(products), len(opcodes), local, usages[entry], stages, shared_bytes)


def gemm_sass(tile: Tile, arch: str, *, stages: int | None = None) -> Sass:
    """Our grouped GEMM in one tile, compiled if need be.

    Raises:
        TileRefused: the tile or the stages cannot be had.
        ToolchainError: no compiler or no disassembler.
    """
    depth = check_tile(tile, arch=arch, stages=stages)
    find_nvdisasm()  # before the compiler runs
    kernel = GEMM.kernel(tile, _OUT_DTYPE)
    target = Target(kernel.path(CSRC), arch, "cubin")
    cubin = build([target])[target]
    plan = GEMM.plan(tile, _OUT_DTYPE, depth, (), None, GemmShape(1, 1, tile.m, tile.k), multiprocessors=1)
    name = f"refmoe {tile} {_OUT_DTYPE}"
    return read_sass(
        cubin, Path(f"{cubin}.log"), kernel.entry, name=name, arch=arch, stages=depth, shared_bytes=plan.shared_bytes
    )  # fmt: skip


def cutlass_sass(asked: cutlass.Build) -> Sass | NotBuilt:
    """CUTLASS's grouped GEMM, whose cubin is made from its PTX; or why it is not there.

    Raises:
        ToolchainError: no compiler or no disassembler.
    """
    try:
        built = cutlass.find_built(asked)
        if built is None:
            return not_built(asked)
    except cutlass.CutlassMissing as error:
        return NotBuilt(f"CUTLASS {asked}", str(error), None)
    find_nvdisasm()
    found = cutlass.HostLibrary(built.library, CHIPS[asked.arch]).description
    path = cutlass.cubin(asked)
    return read_sass(
        path, path.with_suffix(".log"), None, name=f"CUTLASS {asked}", arch=asked.arch, stages=found.stages,
        shared_bytes=found.shared_bytes,
    )  # fmt: skip


def compare_sass(tile: str, arch: str, stages: int | None = None) -> tuple[list[Sass], list[NotBuilt]]:
    """Our grouped GEMM in a tile, and each build of CUTLASS's in that tile; what is not built is named, not built.

    Raises:
        TileRefused: our kernel cannot have the tile or the stages.
        ArgumentError: no such tile.
        ToolchainError: no compiler or no disassembler.
    """
    asked = parse_tile(tile)
    kernels, absent = [gemm_sass(asked, arch, stages=stages)], []
    if arch not in CUTLASS_ARCHITECTURES:
        reason = f"its kernel is for {' and '.join(CUTLASS_ARCHITECTURES)}"
        return kernels, [NotBuilt(f"CUTLASS {asked} on {arch}", reason, None)]
    for candidate in cutlass_builds(asked, arch):
        found = cutlass_sass(candidate)
        if isinstance(found, NotBuilt):
            absent.append(found)
        else:
            kernels.append(found)
    return kernels, absent


def cutlass_builds(tile: Tile, arch: str) -> Iterator[cutlass.Build]:
    """The builds of CUTLASS's grouped GEMM in a tile, the default one first."""
    for swapped in (True, False):
        for schedule in SCHEDULES:
            yield cutlass.Build(schedule, swapped, arch, tile)  # type: ignore[arg-type]


def not_built(build: cutlass.Build) -> NotBuilt:
    """A build of CUTLASS's kernel that is not there: its release refuses the tile, or nobody has made it.

    Raises:
        CutlassMissing: no headers of CUTLASS, whose release decides.
    """
    reason, command = cutlass.refused(build.tile, cutlass.find_headers().release), None
    if reason is None:
        command = "make cutlass" if build == cutlass.Build() else "make cutlass CUTLASS_BUILDS=all"
        reason = f"not built: {command}"
    return NotBuilt(f"CUTLASS {build}", reason, command)


def sass_document(kernels: Sequence[Sass], absent: Sequence[NotBuilt]) -> dict[str, Any]:
    """JSON-able: `kernels`, each with the fields of `Sass`, ours first, and `not_built` with name, reason, command."""
    return {"kernels": [asdict(kernel) for kernel in kernels], "not_built": [asdict(entry) for entry in absent]}


def sass_table(kernels: Sequence[Sass]) -> Table:
    """A column for each kernel, ours first."""
    names = [kernel.name.replace(f"-{kernel.arch}", "").replace("-", " ") for kernel in kernels]
    table = plain_table(kernels[0].arch, *(f">{name}".replace(" ", "\n") for name in names))
    for opcode in dict.fromkeys(opcode for kernel in kernels for opcode in kernel.products):
        table.add_row(opcode, *(f"{kernel.products.get(opcode, 0):,}" for kernel in kernels))
    figures = [{**vars(kernel), **vars(kernel.usage)} for kernel in kernels]
    for field, words in _ROWS.items():
        table.add_row(words, *(f"{figure[field]:,}" for figure in figures))
    return table
