"""The compiler that tests use: the same that the kernels are built with, wherever it was found."""

from __future__ import annotations

import shutil
from pathlib import Path

from refmoe.cuda.toolchain import ToolchainError, find_toolchain

__all__ = ["NVCC", "PTXAS"]


def _nvcc() -> Path | None:
    try:
        return find_toolchain().nvcc.resolve()
    except ToolchainError:
        return None


def _ptxas(nvcc: Path | None) -> Path | None:
    """Beside nvcc, or on PATH where nvcc is a wrapper script."""
    if nvcc and (nvcc.parent / "ptxas").is_file():
        return nvcc.parent / "ptxas"
    found = shutil.which("ptxas")
    return Path(found) if found else None


NVCC = _nvcc()
PTXAS = _ptxas(NVCC)
