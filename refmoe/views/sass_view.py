"""Compiled kernels side by side: a table for the terminal, a document for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from refmoe.views.sass import Sass

if TYPE_CHECKING:
    from refmoe.museum.cutlass import Build

__all__ = ["NotBuilt", "compare_sass", "sass_document", "sass_table"]

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
class NotBuilt:
    """A kernel that is not there to be read: its name, why, and the command that makes it, or None if none does."""

    name: str
    reason: str
    command: str | None


def compare_sass(tile: str, arch: str, stages: int | None = None) -> tuple[list[Sass], list[NotBuilt]]:
    """Our grouped GEMM in a tile, and each build of CUTLASS's in that tile; what is not built is named, not built.

    Raises:
        TileRefused: our kernel cannot have the tile or the stages.
        ArgumentError: no such tile.
        ToolchainError: no compiler or no disassembler.
    """
    from refmoe.cuda.gemm.tile import parse_tile
    from refmoe.museum.cutlass import Build, CutlassMissing
    from refmoe.museum.cutlass.builds import CUTLASS_ARCHITECTURES, SCHEDULES
    from refmoe.views.sass import cutlass_sass, gemm_sass

    asked = parse_tile(tile)
    kernels, absent = [gemm_sass(asked, arch, stages=stages)], []
    if arch not in CUTLASS_ARCHITECTURES:
        reason = f"its kernel is for {' and '.join(CUTLASS_ARCHITECTURES)}"
        return kernels, [NotBuilt(f"CUTLASS {asked} on {arch}", reason, None)]
    for swapped in (True, False):
        for schedule in SCHEDULES:
            build = Build(schedule, swapped, arch, asked)  # type: ignore[arg-type]
            try:
                found = cutlass_sass(build)
            except CutlassMissing as error:
                absent.append(NotBuilt(f"CUTLASS {build}", str(error), None))
                continue
            if found is None:
                absent.append(_not_built(build))
            else:
                kernels.append(found)
    return kernels, absent


def _not_built(build: Build) -> NotBuilt:
    from refmoe.museum.cutlass import find_headers, refused

    why = refused(build.tile, find_headers().release)
    if why is not None:
        return NotBuilt(f"CUTLASS {build}", why, None)
    command = "make cutlass" if build == type(build)() else "make cutlass CUTLASS_BUILDS=all"
    return NotBuilt(f"CUTLASS {build}", f"not built: {command}", command)


def sass_document(kernels: Sequence[Sass], absent: Sequence[NotBuilt]) -> dict[str, Any]:
    """JSON-able: `kernels`, each with the fields of `Sass`, ours first, and `not_built` with name, reason, command."""
    return {
        "kernels": [{**asdict(kernel), "usage": asdict(kernel.usage)} for kernel in kernels],
        "not_built": [asdict(entry) for entry in absent],
    }


def sass_table(kernels: Sequence[Sass]) -> Table:
    """A column for each kernel, ours first."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(kernels[0].arch, no_wrap=True)
    for kernel in kernels:
        name = kernel.name.replace(f"-{kernel.arch}", "").replace("-", " ")
        table.add_column(name.replace(" ", "\n"), justify="right", no_wrap=True)
    for opcode in dict.fromkeys(opcode for kernel in kernels for opcode in kernel.products):
        table.add_row(opcode, *(f"{kernel.products.get(opcode, 0):,}" for kernel in kernels))
    for field, words in _ROWS.items():
        table.add_row(words, *(f"{_figure(kernel, field):,}" for kernel in kernels))
    return table


def _figure(kernel: Sass, field: str) -> int:
    source = kernel if hasattr(kernel, field) else kernel.usage
    return int(getattr(source, field))
