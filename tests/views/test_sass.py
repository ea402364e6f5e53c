"""What ptxas made of the grouped GEMM, read twice: in its own report, and in the disassembly of what it wrote."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from support.kernel_entries import GEMM_KERNELS

from refmoe.cuda import toolchain
from refmoe.cuda.gemm.kernel import GEMM
from refmoe.cuda.gemm.tile import TILES, Tile, TileRefused
from refmoe.cuda.toolchain import CSRC, Target, ToolchainError, build
from refmoe.views.sass import PtxasReport, disassemble, find_nvdisasm, gemm_sass, ptxas_reports


def _nvdisasm() -> Path | None:
    try:
        return find_nvdisasm()
    except ToolchainError:
        return None


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
    target = Target(CSRC / "gemm.cu", arch, "cubin")
    return build([target])[target]


@cache
def reports(arch: str) -> dict[str, PtxasReport]:
    """By entry what ptxas says of it."""
    return ptxas_reports(Path(f"{cubin(arch)}.log").read_text())


@cache
def instructions(arch: str) -> dict[str, tuple[str, ...]]:
    """By entry its instructions."""
    return disassemble(cubin(arch))


def opcodes(arch: str, tile: Tile, dtype: str) -> list[str]:
    return [text.split()[0] for text in instructions(arch)[GEMM.kernel(tile, dtype).entry]]


def expected_products(tile: Tile) -> int:
    """Instructions in one group of four K-blocks of a warp, which the kernel unrolls and loops over."""
    columns = tile.n // (2 if tile.n >= 64 else 1) // 8
    return 2 * columns * 4


@pytest.mark.parametrize("arch", SM12X)
def test_the_report_names_every_entry(arch: str) -> None:
    assert set(reports(arch)) == ENTRIES


@pytest.mark.parametrize(("arch", "tile", "dtype"), ENTRY_OF, ids=str)
def test_the_compiler_reports_no_spill_and_no_stack(arch: str, tile: Tile, dtype: str) -> None:
    usage = reports(arch)[GEMM.kernel(tile, dtype).entry]
    assert (usage.stack_bytes, usage.spill_store_bytes, usage.spill_load_bytes) == (0, 0, 0)
    assert 0 < usage.registers <= 255


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


# What `refmoe tiles --sass` shows


def test_the_report_is_read_by_entry() -> None:
    log = (
        "ptxas info    : Compiling entry function 'first' for 'sm_121a'\n"
        "ptxas info    : Function properties for first\n"
        "    24 bytes stack frame, 56 bytes spill stores, 84 bytes spill loads\n"
        "ptxas info    : Used 168 registers, used 8 barriers, 24 bytes cumulative stack size\n"
        "ptxas info    : Compiling entry function 'second' for 'sm_121a'\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 40 registers\n"
    )
    assert ptxas_reports(log) == {"first": PtxasReport(168, 24, 56, 84), "second": PtxasReport(40, 0, 0, 0)}


def test_a_report_without_numbers_is_refused() -> None:
    with pytest.raises(ToolchainError, match="of first"):
        ptxas_reports("ptxas info    : Compiling entry function 'first' for 'sm_121a'\n")


@needs_nvdisasm
def test_a_kernel_is_what_its_cubin_and_its_launch_say() -> None:
    tile = Tile(128, 128, 128)
    found = gemm_sass(tile, "sm_121a", stages=2)
    assert found.products == {QMMA: expected_products(tile)}
    assert found.usage == reports("sm_121a")[found.entry]
    assert found.local_instructions == 0
    # Barriers, two stages of 25,600 bytes, and the scratch of eight warps.
    assert (found.stages, found.shared_bytes) == (2, 1024 + 2 * 25_600 + 8 * 512)


@needs_nvdisasm
def test_a_file_that_is_no_cubin_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.cubin").write_bytes(b"no cubin")
    with pytest.raises(ToolchainError, match="cannot read"):
        disassemble(tmp_path / "broken.cubin")


def test_a_tile_that_cannot_be_had_is_refused_before_anything_is_compiled() -> None:
    with pytest.raises(TileRefused):
        gemm_sass(Tile(256, 8, 512), "sm_121a")


def test_without_a_disassembler_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("sys.path", [])
    with pytest.raises(ToolchainError, match="pip install nvidia-cuda-nvdisasm"):
        gemm_sass(Tile(128, 128, 128), "sm_121a")


@pytest.mark.slow
@needs_nvdisasm
def test_the_command_shows_both_kernels_or_what_is_not_built() -> None:
    from typer.testing import CliRunner

    from refmoe.cli import app

    run = CliRunner().invoke(app, ["tiles", "--sass", "--arch", "sm_121a", "--json"])
    assert run.exit_code == 0, run.output
    document = json.loads(run.output)
    assert document["kernels"][0]["name"] == "refmoe 128x128x128 bf16"
    assert document["kernels"][0]["products"] == {QMMA: 64}
    names = [entry["name"] for entry in document["kernels"][1:] + document["not_built"]]
    assert len(names) == 4
    assert all(name.startswith("CUTLASS ") and "128x128x128-sm_121a" in name for name in names)
    assert all(QMMA in kernel["products"] or kernel["products"] for kernel in document["kernels"])
    # What is missing says why, and what makes it.
    assert all(entry["reason"] and "make cutlass" in entry["command"] for entry in document["not_built"])
