"""The compiler that tests use: the same that the kernels are built with, wherever it was found."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from refmoe.cuda import toolchain
from refmoe.cuda.toolchain import CSRC, Target, ToolchainError, build, find_toolchain
from refmoe.ptx import Module

__all__ = ["NVCC", "PTXAS", "executable", "hide_nvcc", "spills_of"]


def spills_of(log: str, arch: str) -> Iterator[tuple[str, list[int]]]:
    """Of what `ptxas -v` says: the entries, each with its bytes of stack, stores and loads."""
    parts = re.split(rf"Compiling entry function '(\w+)' for '{arch}'", log)
    for entry, text in zip(parts[1::2], parts[2::2], strict=True):
        found = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", text)
        assert found, entry
        yield entry, [int(each) for each in found.groups()]


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


def executable(text: str, headers: tuple[str, ...], folder: Path) -> Module:
    """A CUDA text that includes some of the kernels' headers, compiled for the executor."""
    for header in headers:
        (folder / header).write_text((CSRC / header).read_text())
    source = folder / "kernel.cu"
    source.write_text(text)
    target = Target(source, "sm_120a", "ptx")
    return Module.parse(build([target])[target].read_text(), name="kernel.ptx", strict=True)


def hide_nvcc(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make of this machine one without nvcc, and without what it compiled before.

    Args:
        monkeypatch: undoes it.
        folder: without programs; compiled files are kept below it.
    """
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(toolchain, "_pypi_nvcc", lambda: None)
    monkeypatch.setenv("REFMOE_CACHE_DIR", str(folder / "cache"))
