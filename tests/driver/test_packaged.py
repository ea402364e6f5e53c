"""PTX as files of the package: it is what nvcc makes, it runs, and nothing else is ever used in its place."""

from __future__ import annotations

import json
import lzma
import shutil
import subprocess
from pathlib import Path

import pytest
from support.toolchain import PTXAS, hide_nvcc

from refmoe.catalog import parse_case
from refmoe.chips import KERNEL_ARCHS
from refmoe.cuda.toolchain import CSRC, Target, ToolchainError, build, entries_of, find_toolchain
from refmoe.driver import compiler_in_use, opened, packaged
from refmoe.driver.device import PackagedPtxDevice
from refmoe.driver.packaged import PackagedPtxError, entries_in, pack, packaged_ptx, with_one_entry, without_places
from refmoe.reports.environment import current_environment
from refmoe.verify.kernel import Devices, Kernel
from refmoe.verify.runner import run_case
from refmoe.verify.verdict import Verdict

SOURCES = [CSRC / "quantize.cu", CSRC / "q8_1.cu"]
CASE = "mxfp8_quantize:bf16:m16k416:boundary-mantissas:seed7@ptx"
OTHER = "q8_1_quantize:bf16:m5k416:cancelling:seed7@ptx"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of PTX of some sources."""
    folder = tmp_path_factory.mktemp("made") / "ptx"
    assert pack(folder, sources=SOURCES).texts == len(SOURCES) * len(KERNEL_ARCHS)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, in place of the package's."""
    copy = Path(shutil.copytree(made, tmp_path / "ptx"))
    monkeypatch.setattr(packaged, "FOLDER", copy)
    return copy


@pytest.fixture
def no_nvcc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without nvcc, and without what it compiled before."""
    hide_nvcc(monkeypatch, tmp_path)
    with pytest.raises(ToolchainError):
        find_toolchain()


@pytest.mark.parametrize("arch", KERNEL_ARCHS)
def test_it_is_what_nvcc_makes(made: Path, arch: str) -> None:
    for source in SOURCES:
        target = Target(source, arch, "ptx")
        text = packaged_ptx(source, arch, made)
        assert text == without_places(build([target])[target].read_text())
        assert f".target {arch}" in text
        assert '.file\t1 "' in text
        assert str(CSRC.parent) not in text


@pytest.mark.skipif(PTXAS is None, reason="no ptxas")
@pytest.mark.parametrize("source", ["quantize", "routing", "finalize", "deepseek_gemm_wgmma"])
def test_one_entry_of_it_is_a_whole_module(source: str, tmp_path: Path) -> None:
    """With functions that entries call, and with braces of inline PTX at the beginning of a line."""
    assert PTXAS is not None
    target = Target(CSRC / f"{source}.cu", "sm_90a", "ptx")
    text = build([target])[target].read_text()
    entries = entries_in(text)
    assert set(entries) == entries_of(build([target])[target])
    alone = [with_one_entry(text, entry) for entry in entries]
    assert [entries_in(each) for each in alone] == [[entry] for entry in entries]
    # Nothing but entries is left out, and each of them whole.
    other = ".visible .entry other(\n)\n{\n}\n"
    rest = len(with_one_entry(text + other, "other")) - len(other)
    assert sum(len(each) - rest for each in alone) + rest == len(text)
    for each in (alone[0], alone[-1]):
        (tmp_path / "a.ptx").write_text(each)
        command = [PTXAS, "-arch=sm_90a", tmp_path / "a.ptx", "-o", tmp_path / "out"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr + done.stdout


@pytest.mark.parametrize(
    "text",
    [
        ".visible .entry a(\n)\n{\n",
        ".visible .entry a(\n)\n{\n.visible .entry b(\n)\n{\n}\n}\n",
        ".visible .entry a(\n)\n{\n}\n.visible .entry a(\n)\n{\n}\n",
        ".visible .entry b(\n)\n{\n}\n",
    ],
)
def test_an_entry_that_cannot_be_taken_out_is_an_error(text: str) -> None:
    with pytest.raises(PackagedPtxError):
        with_one_entry(text, "a")


def test_only_the_folders_of_file_lines_are_left_out() -> None:
    text = '.entry a() {\n\t.loc\t1 61 0\n}\n\t.file\t1 "/tmp/a b/x.cu"\n\t.file\t2 "y.cuh", 17, 4\n// "/tmp/z"\n'
    assert without_places(text) == text.replace("/tmp/a b/x.cu", "x.cu")


def test_the_executor_runs_it_without_nvcc(folder: Path, no_nvcc: None) -> None:
    case = parse_case(CASE)
    result = run_case(Kernel(case.family), case)
    assert result.verdict is Verdict.PASS, result.reason
    assert result.compiler == json.loads((folder / "manifest.json").read_text())["compiler"]
    assert compiler_in_use() == result.compiler == current_environment(gpu=False).nvcc
    assert type(opened("ptx", "sm_121a")) is PackagedPtxDevice


def test_where_there_is_nvcc_it_compiles(folder: Path) -> None:
    (folder / "quantize.sm_120a.ptx.xz").write_bytes(b"")
    case = parse_case(CASE)
    assert run_case(Kernel(case.family), case).verdict is Verdict.PASS


def test_without_either_a_sentence_says_what_was_looked_for(
    no_nvcc: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packaged, "FOLDER", tmp_path / "none")
    case = parse_case(CASE)
    result = run_case(Kernel(case.family), case)
    assert result.verdict is Verdict.SKIPPED
    assert "no nvcc on PATH" in str(result.reason)
    assert "this package has no PTX: it was not built by `make wheel`" in str(result.reason)
    assert current_environment(gpu=False).nvcc is None


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _other(path: Path) -> None:
    path.write_bytes(lzma.compress(lzma.decompress(path.read_bytes()).replace(b"rn", b"rz", 1)))


def _longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


@pytest.mark.parametrize("spoil", [_cut, _other, _longer, Path.unlink, lambda path: path.write_bytes(b"text")])
def test_a_damaged_file_is_refused(spoil: object, folder: Path, no_nvcc: None) -> None:
    assert callable(spoil)
    spoil(folder / "quantize.sm_120a.ptx.xz")
    with pytest.raises(PackagedPtxError, match=r"quantize\.sm_120a\.ptx\.xz is damaged\. Install refmoe again"):
        packaged_ptx(SOURCES[0], "sm_120a")
    case = parse_case(CASE)
    result = run_case(Kernel(case.family), case)
    assert result.verdict is Verdict.SKIPPED
    assert "is damaged" in str(result.reason)
    assert packaged_ptx(SOURCES[1], "sm_120a")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "damaged"),
        ("[]", "damaged"),
        ('{"version": 1, "compiler": "x", "texts": {"quantize.sm_120a": {}}}', "2 of its values"),
        ('{"version": 2, "compiler": "x", "texts": {}}', "version 2; needed 1"),
        ('{"version": 1, "compiler": "x", "texts": {"../x.sm_120a": {}}}', "damaged"),
    ],
)
def test_a_damaged_manifest_is_refused(text: str, said: str, folder: Path) -> None:
    (folder / "manifest.json").write_text(text)
    with pytest.raises(PackagedPtxError, match=said):
        packaged_ptx(SOURCES[0], "sm_120a")


@pytest.mark.parametrize("changed", ["quantize.cu", "mxfp8_encode.cuh"])
def test_ptx_of_other_sources_is_refused(changed: str, folder: Path, no_nvcc: None, tmp_path: Path) -> None:
    csrc = Path(shutil.copytree(CSRC, tmp_path / "csrc"))
    assert packaged_ptx(csrc / "quantize.cu", "sm_120a")  # the same, in another place
    (csrc / changed).write_text((csrc / changed).read_text() + "\n")
    with pytest.raises(PackagedPtxError, match="made of another source, other headers or other flags than"):
        packaged_ptx(csrc / "quantize.cu", "sm_120a")
    case = parse_case(CASE)
    result = run_case(Kernel(case.family, Devices(csrc=csrc)), case)
    assert result.verdict is Verdict.SKIPPED
    assert "made of another source" in str(result.reason)


def test_ptx_of_other_flags_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from refmoe.cuda import toolchain

    monkeypatch.setattr(toolchain, "FLAGS", (*toolchain.FLAGS, "-use_fast_math"))
    with pytest.raises(PackagedPtxError, match="other flags"):
        packaged_ptx(SOURCES[0], "sm_120a")


def test_a_source_or_an_architecture_that_was_not_packed_is_said(folder: Path) -> None:
    with pytest.raises(PackagedPtxError, match=r"no PTX of gemm\.cu for sm_120a\. Install a wheel"):
        packaged_ptx(CSRC / "gemm.cu", "sm_120a")
    with pytest.raises(PackagedPtxError, match=r"no PTX of quantize\.cu for sm_80"):
        packaged_ptx(SOURCES[0], "sm_80")


def test_a_compiler_that_comes_is_found_by_devices_that_were_refused(folder: Path, tmp_path: Path) -> None:
    devices, case = Devices(), parse_case(OTHER)
    with pytest.MonkeyPatch.context() as patch:
        hide_nvcc(patch, tmp_path)
        patch.setattr(packaged, "FOLDER", tmp_path / "none")
        for _ in range(2):
            with pytest.raises(ToolchainError, match="this package has no PTX"):
                devices.get(case)
    assert devices.get(case).name == "ptx"
