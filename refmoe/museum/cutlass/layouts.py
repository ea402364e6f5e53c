"""Where CUTLASS puts scales and fragments, asked of its own headers by a host program: no GPU, no nvcc run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import numpy.typing as npt

from refmoe.cuda.toolchain import cache_directory, find_toolchain, include_directory
from refmoe.formats import MX_BLOCK
from refmoe.museum.cutlass.cache import alone, checked_run, intact, placed, sha256
from refmoe.museum.cutlass.headers import find_headers
from refmoe.reference.layout import checked_count

SOURCE = Path(__file__).parent / "csrc" / "layouts.cpp"
FLAGS = ("-std=c++17", "-O0", "-w")  # -w: the headers use types that newer toolkits deprecate

Int64Array = npt.NDArray[np.int64]


def scale_layouts(m: int, n: int, k: int, batches: int = 1) -> tuple[Int64Array, Int64Array]:
    """Byte offsets of the scales of A [m, k] and B [n, k], from `Sm1xxBlockScaledConfig<32>`.

    Returns:
        int64 [batches, m, k / 32] and int64 [batches, n, k / 32].

    Raises:
        ArgumentError: an extent that is no positive integer.
        CutlassMissing: no headers of CUTLASS.
        ToolchainError: no toolkit, or the program does not compile.
    """
    sizes = [checked_count(name, value, least=1) for name, value in zip("mnkl", (m, n, k, batches), strict=True)]
    found: dict[str, Int64Array] = {}
    for name, table in _run("scales", *map(str, sizes)).items():
        offsets = np.full((batches, m if name == "sfa" else n, k // MX_BLOCK), -1, np.int64)
        row, block, batch, offset = table.T
        offsets[batch, row, block] = offset
        found[name] = offsets
    return found["sfa"], found["sfb"]


def fragment_layouts() -> dict[str, Int64Array]:
    """Which element of each operand of the m16n8k32 instruction each lane holds in each of its values.

    Returns:
        By "A", "B", "C", "SFA", "SFB": int64 [32 lanes, values, (row, column)]. Rows of B and SFB are columns of the
        product, the columns of A and B are k, and a scale stands in column 0.

    Raises:
        CutlassMissing: no headers of CUTLASS.
        ToolchainError: no toolkit, or the program does not compile.
    """
    found: dict[str, Int64Array] = {}
    for name, table in _run("fragments").items():
        lane, value, row, column = table.T
        places = np.full((lane.max() + 1, value.max() + 1, 2), -1, np.int64)
        places[lane, value] = np.stack([row, column], axis=1)
        found[name] = places
    return found


def layout_program() -> Path:
    """The program, compiled with g++ if it is not in the cache.

    Raises:
        CutlassMissing: no headers of CUTLASS.
        ToolchainError: no toolkit, or the program does not compile.
    """
    headers, toolchain = find_headers(), find_toolchain()
    key = sha256(SOURCE.read_text(), *FLAGS, headers.sha256, toolchain.build_id)
    directory = cache_directory().absolute() / "cutlass" / f"layouts.{key[:16]}"
    program = directory / "layouts"
    if intact(program):
        return program
    cuda = include_directory(toolchain)
    includes = [f"-I{path}" for path in (*headers.include_directories, cuda, cuda / "cccl")]

    def compile_(scratch: Path) -> dict[str, Path]:
        checked_run(["g++", *FLAGS, *includes, str(SOURCE), "-o", str(scratch / "layouts")], scratch, "g++")
        return {"layouts": program}

    with alone(directory):
        placed(directory, compile_)
    return program


def _run(*arguments: str) -> dict[str, Int64Array]:
    """The four numbers of each line that the program prints, by the name in front of them."""
    text = subprocess.run([layout_program(), *arguments], capture_output=True, text=True, check=True).stdout
    lines: dict[str, list[list[int]]] = {}
    for line in text.splitlines():
        name, *numbers = line.split()
        lines.setdefault(name, []).append([int(number) for number in numbers])
    return {name: np.array(table, np.int64) for name, table in lines.items()}
