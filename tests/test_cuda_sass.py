"""What ptxas made of the grouped GEMM, read twice: in its own report, and in the disassembly of what it wrote."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from refmoe.cuda import toolchain
from refmoe.cuda.gemm import GEMM_KERNELS, grouped_gemm_kernel
from refmoe.cuda.tile import TILES, Tile
from refmoe.cuda.toolchain import CSRC, Target, build


def _nvdisasm() -> str | None:
    """On PATH, or where the PyPI package of the test extra puts it."""
    found = (tool for folder in sys.path for tool in sorted(Path(folder or ".").glob("nvidia/cu[0-9]*/bin/nvdisasm")))
    return shutil.which("nvdisasm") or next(map(str, found), None)


pytestmark = pytest.mark.skipif(
    all(candidate.problem for candidate in toolchain.candidates()), reason="no usable nvcc on this machine"
)
needs_nvdisasm = pytest.mark.skipif(_nvdisasm() is None, reason="no nvdisasm: pip install nvidia-cuda-nvdisasm")

SM12X = ("sm_120a", "sm_121a")
ENTRIES = {kernel.entry for kernel in GEMM_KERNELS}
ENTRY_OF = [(arch, tile, dtype) for arch in SM12X for tile in TILES for dtype in ("bf16", "f32")]

#: The block-scaled instruction: 16 x 8 x 32, FP32 sums, E2M1 weights, E4M3 tokens, E8M0 scales.
QMMA = "QMMA.SF.16832.F32.E2M1.E4M3.E8"


@cache
def cubin(arch: str) -> Path:
    target = Target(CSRC / "sm12x_grouped_gemm.cu", arch, "cubin")
    return build([target])[target]


@cache
def reports(arch: str) -> dict[str, str]:
    """By entry what ptxas says of it."""
    parts = re.split(rf"Compiling entry function '(\w+)' for '{arch}'", Path(f"{cubin(arch)}.log").read_text())
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@cache
def instructions(arch: str) -> dict[str, tuple[str, ...]]:
    """By entry its instructions as nvdisasm spells them, without predicates."""
    tool = _nvdisasm()
    assert tool is not None
    text = subprocess.run([tool, "-c", cubin(arch)], capture_output=True, text=True, check=True).stdout
    sections = re.split(r"^\s*\.section\s+\.text\.(\w+),.*$", text, flags=re.MULTILINE)[1:]
    line = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:\{\s*)?(?:@!?\w+\s+)?(.+?)\s*[;}]", re.MULTILINE)
    return {name: tuple(line.findall(body)) for name, body in zip(sections[::2], sections[1::2], strict=True)}


def opcodes(arch: str, tile: Tile, dtype: str) -> list[str]:
    return [text.split()[0] for text in instructions(arch)[grouped_gemm_kernel(tile, dtype).entry]]


def expected_products(tile: Tile) -> int:
    """Instructions in one group of four K-blocks of a warp, which the kernel unrolls and loops over."""
    columns = tile.n // (2 if tile.n >= 64 else 1) // 8
    return 2 * columns * 4


@pytest.mark.parametrize("arch", SM12X)
def test_the_report_names_every_entry(arch: str) -> None:
    assert set(reports(arch)) == ENTRIES


@pytest.mark.parametrize(("arch", "tile", "dtype"), ENTRY_OF, ids=str)
def test_the_compiler_reports_no_spill_and_no_stack(arch: str, tile: Tile, dtype: str) -> None:
    report = reports(arch)[grouped_gemm_kernel(tile, dtype).entry]
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in report
    assert re.search(r"Used \d+ registers", report)


@needs_nvdisasm
@pytest.mark.parametrize("arch", SM12X)
def test_the_disassembly_holds_every_entry_and_nothing_that_they_call(arch: str) -> None:
    assert set(instructions(arch)) == ENTRIES


@needs_nvdisasm
@pytest.mark.parametrize(("arch", "tile", "dtype"), ENTRY_OF, ids=str)
def test_products_are_the_hardware_instruction(arch: str, tile: Tile, dtype: str) -> None:
    found = [opcode for opcode in opcodes(arch, tile, dtype) if opcode.split(".")[0].endswith("MMA")]
    assert found == [QMMA] * expected_products(tile)


@needs_nvdisasm
@pytest.mark.parametrize(("arch", "tile", "dtype"), ENTRY_OF, ids=str)
def test_nothing_lives_in_local_memory(arch: str, tile: Tile, dtype: str) -> None:
    assert [opcode for opcode in opcodes(arch, tile, dtype) if opcode.split(".")[0] in ("LDL", "STL")] == []


@needs_nvdisasm
@pytest.mark.parametrize(("arch", "tile", "dtype"), ENTRY_OF, ids=str)
def test_loads_are_asynchronous_and_sums_are_never_contracted(arch: str, tile: Tile, dtype: str) -> None:
    families = {opcode.split(".")[0] for opcode in opcodes(arch, tile, dtype)}
    # Copies past the registers, their arrival on a barrier, matrices from shared memory, barriers there.
    assert families >= {"LDGSTS", "ARRIVES", "LDSM", "SYNCS"}
    assert ("STSM" in families) == (dtype == "bf16")
    # alpha * sum + bias is two roundings.
    assert families >= {"FMUL", "FADD"}
    assert not families & {"FFMA", "FFMA2"}


@needs_nvdisasm
def test_without_the_instruction_there_is_none() -> None:
    """The reading itself: on sm_90a the same entries hold no QMMA."""
    assert set(instructions("sm_90a")) >= ENTRIES
    assert not any(text.startswith("QMMA") for body in instructions("sm_90a").values() for text in body)
