"""refmoe's kernels in CuTe DSL: held against the families that their CUDA kernels are held against."""

from __future__ import annotations

import pickle
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.selection.thinned import thinned

import refmoe.cute
from refmoe.catalog import list_cases, parse_case, sound_kernel, source_sha256
from refmoe.cuda import toolchain
from refmoe.families import FAMILIES
from refmoe.families.deepseek_gemm.family import DEEPSEEK_GEMM, of_windows
from refmoe.museum import cute_kernel, exhibits
from refmoe.museum.cute_deepseek_gemm.gemm import DEVICE_CODE, tile_number
from refmoe.museum.cute_faults import CuteFault, faults_missing
from refmoe.museum.cute_kernel import DeviceCode
from refmoe.museum.edits import EditError, literally
from refmoe.ptx import UnknownOpcode
from refmoe.verify.kernel import Devices
from refmoe.verify.plant import plant_faults
from refmoe.verify.runner import run_case
from refmoe.verify.verdict import Result, Verdict

NAMES = ("cute_deepseek_gemm", "cute_deepseek_activation")
FAULTS = {fault.name: fault for name in NAMES for fault in exhibits()[name].faults}

pytestmark = pytest.mark.skipif(
    all(candidate.problem for candidate in toolchain.candidates()), reason="no usable nvcc on this machine"
)
needs_cute = pytest.mark.skipif(faults_missing() is not None, reason="CuTe DSL is not installed: make cute")


def run(case: str) -> Result:
    return run_case(sound_kernel(parse_case(case)), parse_case(case))


@pytest.mark.parametrize("name", NAMES)
def test_they_are_exhibits_under_the_contract_of_their_family(name: str) -> None:
    family, base = exhibits()[name].family, FAMILIES[name.removeprefix("cute_")]
    assert (family.base, family.fills, family.contract) == (base.name, base.fills, base.contract)
    case = next(case for case in family.level("quick") if not case.refusal)
    fields = {option.name: case.get(option.name) for option in family.options if not option.launch}
    same = base.case(case.fill, case.shape, case.dtype, case.seed, **fields)
    ours, theirs = family.inputs(case), base.inputs(same)
    assert {key: None if value is None else value.tobytes() for key, value in ours.items()} == {
        key: None if value is None else value.tobytes() for key, value in theirs.items()
    }


@needs_cute
@pytest.mark.parametrize(
    "case",
    [
        "cute_deepseek_gemm:bf16:m24k384n256e3:near:rows=5-0-17:tile_m=16:poison=0x7F:seed7@ptx",
        "cute_deepseek_gemm:bf16:m24k384n256e3:near:model=sm90_wgmma_fp8:rows=5-0-17:tile_m=64:seed7@ptx.sm_90a",
        "cute_deepseek_activation:bf16:m9k256e9:fingerprint:layout=mn_major:routing=empty-experts:poison=0x7F:seed7@ptx",
    ],
)
def test_every_byte_is_the_references(case: str) -> None:
    result = run(case)
    assert (result.verdict, result.reason) == (Verdict.PASS, None)


@needs_cute
def test_code_that_was_compiled_for_one_element_serves_others(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of scales [1, 1, 1] every mode has the stride 1; of others only that of the blocks of K.
    monkeypatch.setattr(cute_kernel, "_PROGRAMS", programs := {})
    for shape, options in (("m1k128n128e1", ""), ("m24k384n256e3", ":rows=5-0-17")):
        result = run(f"cute_deepseek_gemm:bf16:{shape}:near{options}:tile_m=16:seed7@ptx")
        assert (result.verdict, result.reason) == (Verdict.PASS, None)
    assert len(programs) == 1


@needs_cute
def test_of_a_gpus_output_the_windows_of_the_case_are_taken() -> None:
    case = parse_case("cute_deepseek_gemm:bf16:m24k384n512e3:near:rows=5-0-17:sample=1:tile_m=16:poison=0x7F:seed7@ptx")
    inputs, expected = DEEPSEEK_GEMM.inputs(case), DEEPSEEK_GEMM.expect(case, DEEPSEEK_GEMM.inputs(case))
    whole = parse_case(str(case).replace(":sample=1", ""))
    computed = sound_kernel(whole).run(whole, inputs, expected, Devices().get(whole))["out"]
    assert (computed != expected.outputs["out"]).any()
    assert of_windows(case, inputs, computed).tobytes() == expected.outputs["out"].tobytes()
    assert of_windows(whole, inputs, computed) is computed


@needs_cute
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_default_level_passes_under_several_schedules(name: str) -> None:
    from refmoe.ptx import under_schedules

    for case in list_cases("default", [name]):
        with under_schedules(3):
            result = run_case(sound_kernel(case), case)
        assert not result.fails, result.reason


def test_a_machine_without_the_compiler_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise refmoe.cute.CuteMissing("CuTe DSL is not installed: pip install it")

    monkeypatch.setattr(cute_kernel, "check_package", missing)
    result = run("cute_deepseek_gemm:bf16:m24k384n256e3:near:rows=5-0-17:tile_m=16:poison=0x7F:seed7@ptx")
    assert result.verdict is Verdict.SKIPPED
    assert "not installed: make cute (CuTe DSL is not installed: pip install it)" in str(result.reason)


@needs_cute
def test_a_tile_that_the_kernel_has_not_is_refused_as_the_list_says() -> None:
    refused = [case for case in list_cases("quick", ["cute_deepseek_gemm"]) if case.refusal]
    assert refused
    for case in refused:
        result = run_case(sound_kernel(case), case)
        assert (result.verdict, result.fails) == (Verdict.UNSUPPORTED, False)


# What a hash covers


@pytest.mark.parametrize("name", NAMES)
def test_the_hash_follows_the_device_code_and_no_comment(name: str, tmp_path: Path) -> None:
    kernel = exhibits()[name].kernel(exhibits()[name].family, Devices())
    sound = kernel.sound
    assert kernel.source_sha256() == source_sha256(name)
    folder = tmp_path / "device"
    shutil.copytree(sound.folder, folder, ignore=shutil.ignore_patterns("__pycache__"))
    changed = replace(kernel, code=DeviceCode(folder))
    assert changed.source_sha256() == kernel.source_sha256()
    path = next(folder.glob("a*.py"), folder / "groups.py")
    path.write_text(path.read_text() + "\n# a comment\n")
    assert changed.source_sha256() == kernel.source_sha256()
    path.write_text(path.read_text() + "\nMORE = 1\n")
    assert changed.source_sha256() != kernel.source_sha256()


# Planted faults


def test_every_fault_has_a_name_and_a_case_of_its_family() -> None:
    assert len(FAULTS) == sum(len(exhibits()[name].faults) for name in NAMES) >= 30
    for fault in FAULTS.values():
        assert isinstance(fault, CuteFault)
        assert [str(case) for case in fault.cases()] == [fault.case]
        assert pickle.loads(pickle.dumps(fault)).name == fault.name


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.file])  # type: ignore[attr-defined]
def test_a_fault_of_the_device_code_can_be_planted(name: str, tmp_path: Path) -> None:
    (kernel,) = FAULTS[name].plant(tmp_path)
    texts = [
        (path.read_text(), (kernel.sound.folder / path.name).read_text()) for path in kernel.code.folder.glob("*.py")
    ]  # type: ignore[attr-defined]
    assert sum(changed != sound for changed, sound in texts) == 1


@needs_cute
@pytest.mark.parametrize(
    "name",
    thinned(
        ["cute-promoted-in-two-steps", "cute-wgmma-not-waited-for", "cute-amax-with-sign", "cute-ptx-fragment-shifted"],
        4,
    ),
)
def test_a_fault_is_caught(name: str) -> None:
    (result,) = plant_faults([FAULTS[name]], sound_kernel)
    assert result.caught, result.line


@needs_cute
@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_caught(name: str) -> None:
    (result,) = plant_faults([FAULTS[name]], sound_kernel)
    assert result.caught, result.line


@needs_cute
@pytest.mark.parametrize(
    ("file", "edit", "words"),
    [
        ("", literally("no such text", ""), "the text has 0 places"),
        ("mma.py", literally("total.fill(0.0)", "total.fill(nothing)"), "CuTe DSL refuses"),
        ("mma.py", literally("from .groups import", "from .nowhere import"), "No module named"),
    ],
)
def test_what_does_not_compile_is_no_fault_that_a_case_catches(
    file: str, edit: Any, words: str, tmp_path: Path
) -> None:
    fault = replace(FAULTS["cute-partial-kept"], name="broken", file=file, edit=edit)  # type: ignore[type-var]
    with pytest.raises(toolchain.ToolchainError, match=words):
        next(plant_faults([fault], sound_kernel))  # type: ignore[list-item]


def test_an_edit_that_fits_nowhere_is_an_error(tmp_path: Path) -> None:
    fault = replace(FAULTS["cute-partial-kept"], name="nowhere", edit=literally("no such text", ""))  # type: ignore[type-var]
    with pytest.raises(EditError, match="mutant nowhere: the text has 0 places"):
        fault.plant(tmp_path)


# Details


def test_tiles_are_numbered_expert_by_expert() -> None:
    counts = (17, 0, 33)
    found = [tile_number(counts, expert, row, 16) for expert, row in ((0, 0), (0, 16), (2, 0), (2, 15), (2, 32))]
    assert found == [0, 1, 2, 2, 4]


@needs_cute
@pytest.mark.parametrize("masked", [False, True])
def test_the_tcgen05_form_is_compiled_and_the_executor_refuses_it_by_name(masked: bool) -> None:
    from cutlass import Int32

    experts, rows, k, n = 3, 24, 384, 256
    batches = experts if masked else 1
    aligned: dict[str, Any] = {"align": 16, "divisibility": {1: 128}}
    codes = {"element": "Float8E4M3FN", **aligned}
    tensor = refmoe.cute.tensor
    arguments = (
        tensor(np.zeros((batches, rows, k), np.uint8).transpose(1, 2, 0), **codes),
        tensor(np.zeros((batches, rows, k // 128), np.float32).transpose(1, 2, 0), unit=False),
        tensor(np.zeros((experts, n, k), np.uint8).transpose(1, 2, 0), **codes),
        tensor(np.zeros((experts, n // 128, k // 128), np.float32).transpose(1, 2, 0)),
        np.zeros(experts, np.int32) if masked else np.zeros(experts + 1, np.int64),
        tensor(np.zeros((batches, rows, n), ml_dtypes.bfloat16).transpose(1, 2, 0), **aligned),
        Int32(4),
        cute_kernel.stream(),
    )
    kernel = DEVICE_CODE.load("tcgen05").DeepSeekGemm(masked=masked)
    program = refmoe.cute.compile(kernel, *arguments, arch="sm_100a")
    assert re.search(r"^\.target sm_100a", program.ptx, re.MULTILINE)
    assert len(re.findall(r"tcgen05\.mma\.cta_group::1\.kind::f8f6f4", program.ptx)) == 4
    assert {"alloc", "ld", "commit", "dealloc"} <= set(re.findall(r"tcgen05\.(\w+)\.", program.ptx))
    with pytest.raises(UnknownOpcode, match=r"cannot execute tcgen05\.alloc.*\(tensor memory of SM100 is not here\)"):
        program.launch(*arguments)


@needs_cute
def test_two_folders_of_device_code_are_two_packages(tmp_path: Path) -> None:
    folder = tmp_path / "device"
    shutil.copytree(DEVICE_CODE.folder, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "groups.py").write_text(
        (folder / "groups.py").read_text().replace("BLOCK = TILE_N = 128", "BLOCK = TILE_N = 64")
    )
    assert (DeviceCode(folder).load("mma").BLOCK, DEVICE_CODE.load("mma").BLOCK) == (64, 128)
