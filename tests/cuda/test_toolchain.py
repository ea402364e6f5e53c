from __future__ import annotations

import os
import re
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.kernel_entries import (
    ACTIVATION_KERNELS,
    BLOCK_FP8_KERNELS,
    DEEPSEEK_ACTIVATION_KERNELS,
    DEEPSEEK_EXPAND_KERNELS,
    DEEPSEEK_FINALIZE_KERNELS,
    DEEPSEEK_GEMM_KERNELS,
    DEEPSEEK_ROUTING_KERNELS,
    DP4A_KERNELS,
    EXPAND_AS_KERNELS,
    EXPAND_KERNELS,
    FINALIZE_KERNELS,
    FINALIZE_Q8_1_KERNELS,
    GEMM_KERNELS,
    NVFP4_GEMM_KERNELS,
    NVFP4_KERNELS,
    Q8_1_KERNELS,
    QUANTIZE_KERNELS,
    ROUTING_KERNELS,
    SWIGLU_Q8_1_KERNELS,
)
from support.selection.thinned import thinned
from support.toolchain import spills_of

from refmoe import ptx
from refmoe.chips import KERNEL_ARCHS
from refmoe.cuda import toolchain
from refmoe.cuda.device import PtxDevice
from refmoe.cuda.launch import Entry, LaunchPlan
from refmoe.cuda.toolchain import CSRC, Target, ToolchainError, build, entries_of
from refmoe.errors import ArgumentError


def _usable() -> bool:
    return any(candidate.problem is None for candidate in toolchain.candidates())


needs_nvcc = pytest.mark.skipif(not _usable(), reason="no usable nvcc on this machine")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("REFMOE_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "csrc"
    folder.mkdir()
    (folder / "inner.cuh").write_text("constexpr int kValue = 1;\n")
    (folder / "outer.cuh").write_text('#include "inner.cuh"\n')
    (folder / "uses.cu").write_text(
        '#include "outer.cuh"\nextern "C" __global__ void entry(int* out) { *out = kValue; }\n'
    )
    (folder / "alone.cu").write_text('extern "C" __global__ void entry(int* out) { *out = 7; }\n')
    return folder


def _fake_nvcc(folder: Path, release: str) -> Path:
    nvcc = folder / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.0'\n")
    nvcc.chmod(nvcc.stat().st_mode | stat.S_IXUSR)
    return nvcc


def test_cuda_home_is_preferred_to_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = _fake_nvcc(tmp_path / "home", "13.0")
    on_path = _fake_nvcc(tmp_path / "path", "13.1")
    monkeypatch.setenv("CUDA_HOME", str(home.parent.parent))
    monkeypatch.setenv("PATH", f"{on_path.parent}{os.pathsep}{os.environ['PATH']}")
    found = toolchain.find_toolchain()
    assert (found.nvcc, found.version, found.origin) == (home, (13, 0), "CUDA_HOME")


def test_an_old_nvcc_is_passed_over_and_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = _fake_nvcc(tmp_path / "home", "12.8")
    new = _fake_nvcc(tmp_path / "path", "12.9")  # the first that knows sm_121a
    monkeypatch.setenv("CUDA_HOME", str(old.parent.parent))
    monkeypatch.setenv("PATH", f"{new.parent}{os.pathsep}{os.environ['PATH']}")
    assert toolchain.find_toolchain().nvcc == new
    first = toolchain.candidates()[0]
    assert first.problem is not None
    assert "release 12.8; needed 12.9 or newer" in first.problem


def test_no_compiler_names_every_place_and_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(toolchain, "_pypi_nvcc", lambda: None)
    with pytest.raises(ToolchainError) as caught:
        toolchain.find_toolchain()
    message = str(caught.value)
    for part in ("CUDA_HOME: ", "PATH: no nvcc on PATH", "PyPI: not installed", "pip install 'cuda-toolkit["):
        assert part in message


def test_a_missing_host_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc = _fake_nvcc(tmp_path / "home", "13.0")
    monkeypatch.setenv("CUDA_HOME", str(nvcc.parent.parent))
    (tmp_path / "sh").mkdir()
    sh = shutil.which("sh")
    assert sh is not None
    (tmp_path / "sh" / "sh").symlink_to(sh)
    monkeypatch.setenv("PATH", str(tmp_path / "sh"))
    assert toolchain.candidates()[0].problem == "nvcc needs a host compiler, and there is no g++ on PATH"
    with pytest.raises(ToolchainError, match=r"Install g\+\+$"):
        toolchain.find_toolchain()


def test_the_hash_covers_source_headers_and_flags(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = toolchain.source_sha256(sources / "uses.cu")
    alone = toolchain.source_sha256(sources / "alone.cu")
    (sources / "inner.cuh").write_text("constexpr int kValue = 2;\n")
    assert toolchain.source_sha256(sources / "uses.cu") != before
    assert toolchain.source_sha256(sources / "alone.cu") == alone
    monkeypatch.setattr(toolchain, "FLAGS", (*toolchain.FLAGS, "-DX"))
    assert toolchain.source_sha256(sources / "alone.cu") != alone


@needs_nvcc
def test_a_changed_header_rebuilds_what_includes_it_and_nothing_else(cache: Path, sources: Path) -> None:
    uses, alone = (Target(sources / name, "sm_120a", "ptx") for name in ("uses.cu", "alone.cu"))
    first = build([uses, alone])
    untouched = first[alone].stat().st_mtime_ns
    (sources / "inner.cuh").write_text("constexpr int kValue = 42;\n")
    second = build([uses, alone])
    assert second[uses] != first[uses]
    assert "42;" in second[uses].read_text()
    assert second[alone] == first[alone]
    assert second[alone].stat().st_mtime_ns == untouched


@needs_nvcc
def test_relative_paths_are_those_of_the_caller(cache: Path, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sources.parent)
    monkeypatch.setenv("REFMOE_CACHE_DIR", "cache")
    target = Target(Path(sources.name) / "uses.cu", "sm_120a", "ptx")
    assert build([target])[target].is_file()


@needs_nvcc
def test_a_source_that_does_not_compile_shows_the_compilers_words_and_leaves_nothing(
    cache: Path, sources: Path
) -> None:
    (sources / "alone.cu").write_text('extern "C" __global__ void entry() { undeclared = 1; }\n')
    target = Target(sources / "alone.cu", "sm_120a", "ptx")
    with pytest.raises(ToolchainError, match='identifier "undeclared" is undefined'):
        build([target])
    assert list(cache.iterdir()) == []


@needs_nvcc
def test_a_cache_that_cannot_be_made_is_named(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REFMOE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(ToolchainError, match=r"cannot write compiled kernels to .*file/cache"):
        build([Target(sources / "alone.cu", "sm_120a", "ptx")])


def test_refusals(sources: Path) -> None:
    with pytest.raises(ArgumentError, match=r"arch: found str 'sm_80'; needed one of sm_90a, sm_120a, sm_121a"):
        build([Target(sources / "alone.cu", "sm_80", "ptx")])
    with pytest.raises(ArgumentError, match=r"source: found no file .*none\.cu"):
        build([Target(sources / "none.cu", "sm_120a", "ptx")])


def has_entries(source: Path, arch: str) -> bool:
    """Whether a source has entries for an arch: that of wgmma has them for sm_90a alone."""
    return arch == "sm_90a" or not source.stem.endswith("_wgmma")


@needs_nvcc
@pytest.mark.parametrize("arch", thinned(reversed(KERNEL_ARCHS), 3))
def test_no_kernel_spills_or_uses_local_memory(arch: str) -> None:
    targets = [Target(source, arch, "cubin") for source in sorted(CSRC.glob("*.cu"))]
    for target, path in build(targets).items():
        source = target.source.stem
        found = dict(spills_of(Path(f"{path}.log").read_text(), arch))
        assert bool(found) == has_entries(target.source, arch)
        for entry, (stack, stores, loads) in found.items():
            if (arch, source) == ("sm_90a", "deepseek_gemm") and entry.rpartition("_")[0] == "refmoe_deepseek_gemm_128":
                # Where ptxas widens FP8 to FP16, the widest tile spills; wgmma is there for such tiles.
                continue
            assert max(stores, loads) == 0, entry
            # The tensor-core instruction in software keeps its operands in an array.
            in_software = arch == "sm_90a" and source in ("gemm", "nvfp4_gemm")
            assert in_software or stack == 0, entry


@needs_nvcc
def test_every_kernel_of_the_table_is_an_entry_and_no_entry_is_missing() -> None:
    sources = sorted(CSRC.glob("*.cu"))
    built = build([Target(source, arch, "ptx") for source in sources for arch in ("sm_120a", "sm_90a")])
    entries = set().union(*map(entries_of, built.values()))
    for target, path in built.items():
        assert bool(entries_of(path)) == has_entries(target.source, target.arch)
    tables = (
        *(QUANTIZE_KERNELS, NVFP4_KERNELS, BLOCK_FP8_KERNELS, EXPAND_KERNELS, EXPAND_AS_KERNELS),
        *(Q8_1_KERNELS, GEMM_KERNELS, NVFP4_GEMM_KERNELS, DEEPSEEK_GEMM_KERNELS, DP4A_KERNELS),
        *(ROUTING_KERNELS, ACTIVATION_KERNELS, SWIGLU_Q8_1_KERNELS, FINALIZE_KERNELS, FINALIZE_Q8_1_KERNELS),
        *(DEEPSEEK_ROUTING_KERNELS, DEEPSEEK_EXPAND_KERNELS),
        *(DEEPSEEK_ACTIVATION_KERNELS, DEEPSEEK_FINALIZE_KERNELS),
    )
    assert entries == {kernel.entry for table in tables for kernel in table}


def body(path: Path, entry: str) -> str:
    """An entry of a PTX file, without places in the source and with labels that do not count entries."""
    (found,) = re.findall(rf"^\.visible \.entry {entry}\(.*?^}}", path.read_text(), re.MULTILINE | re.DOTALL)
    bare = re.sub(r"^\s*\.loc\s.*\n", "", found, flags=re.MULTILINE)
    return re.sub(r"\$L__BB\d+_", "$L__BB_", bare)


@needs_nvcc
@pytest.mark.parametrize("source", sorted(CSRC.glob("*.cu")), ids=lambda source: str(source.stem))
def test_an_entry_without_the_others_is_that_of_the_whole_source(source: Path) -> None:
    whole = Target(source, "sm_120a" if has_entries(source, "sm_120a") else "sm_90a", "ptx")
    path = build([whole])[whole]
    entry = min(entries_of(path))
    alone = replace(whole, left_out=entries_of(path) - {entry})
    found = build([alone])[alone]
    assert entries_of(found) == {entry}
    assert body(found, entry) == body(path, entry)


@needs_nvcc
def test_a_cubin_is_assembled_from_the_ptx_of_its_source_and_of_nothing_else(cache: Path, sources: Path) -> None:
    text, cubin = (Target(sources / "uses.cu", "sm_120a", kind) for kind in ("ptx", "cubin"))
    assert b"other" not in build([cubin])[cubin].read_bytes()
    path = build([text])[text]
    path.write_text(path.read_text().replace(" entry(", " other("))
    build([cubin])[cubin].unlink()
    assert b"other" in build([cubin])[cubin].read_bytes()


@needs_nvcc
def test_of_a_changed_source_an_entry_is_compiled_when_it_is_launched(cache: Path, tmp_path: Path) -> None:
    shutil.copytree(CSRC, tmp_path / "csrc")
    kernels = [kernel for kernel in FINALIZE_KERNELS if kernel.entry.endswith("_f32")]
    for changed, modules, files in [(False, 1, 1), (True, 2, 3)]:
        if changed:
            with (tmp_path / "csrc" / "finalize.cu").open("a") as file:
                file.write("// changed\n")
        device = PtxDevice("sm_120a", 1, csrc=tmp_path / "csrc", entry_by_entry=True)
        found = {id(module) for module in [device._module(kernel) for kernel in kernels]}
        assert (len(found), len(list(cache.glob("*.ptx")))) == (modules, files)


def test_what_does_not_compile_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from refmoe.cuda import device, quantize_mxfp8

    calls = []

    def refuse(targets: list[Target]) -> None:
        calls.append(targets)
        raise ToolchainError("nvcc failed: No space left on device")

    monkeypatch.setattr(device, "build", refuse)
    opened = device.open_device("ptx")
    for _ in range(3):
        with pytest.raises(ToolchainError, match="No space left"):
            quantize_mxfp8(np.zeros((1, 32), np.float16), device=opened)
    assert len(calls) == 1


@needs_nvcc
def test_an_endless_kernel_ends_in_an_error(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "spin.cu").write_text('extern "C" __global__ void spin(volatile int* x) { while (*x == 0) *x = 0; }')
    device = PtxDevice("sm_120a", 1, csrc=tmp_path, step_budget=1000)
    with pytest.raises(ptx.StepBudgetExceeded, match="more than 1000 steps"):
        device.launch(LaunchPlan(Entry("spin", "spin"), 1, 1, (ptx.Buffer(np.zeros(1, np.int32)),)))
