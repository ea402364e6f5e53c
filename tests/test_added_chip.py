"""A chip is added by one value in `refmoe.chips`; this adds one to a copy of the package, and uses it from there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import refmoe
from refmoe.cuda.toolchain import ToolchainError, find_toolchain

PACKAGE = Path(refmoe.__file__).parent

#: A chip whose tensor cores are SM90's without wgmma, as far as anybody knows.
ADDED = """
            Chip(
                arch="sm_110a",
                compute_capability=(11, 0),
                ptx_version="9.0",
                sums={**_sync(), Mma.SYNC_FP8: ChipSums("sm90_mma_fp8", own=False)},
                shared_bytes=131 * 1024,
                cluster_blocks=8,
                resident_threads=1024,
                resident_blocks=16,
                resident_bytes=132 * 1024,
                products=(Product("T5000", 20, 273.0, "made up"),),
            ),
"""

SCRIPT = '''
import json

import refmoe
from refmoe.catalog import kernel_of, list_cases, parse_case
from refmoe.chips import CHIPS
from refmoe.cuda.deepseek_gemm import accumulation_models
from refmoe.errors import RefmoeError
from refmoe.probe.claims import model_of, word_of
from refmoe.probe.instructions import of_target
from refmoe.ptx.residency import chip_of, residency
from refmoe.reference.backends import BACKENDS
from refmoe.verify.runner import run_cases

EMPTY = """
.version 9.0
.target sm_110a
.address_size 64
.extern .shared .align 4 .b8 own[];
.visible .entry empty() { ret; }
"""


def outcome(size):
    try:
        refmoe.run_ptx(EMPTY, block=32, shared=size)
    except RefmoeError as error:
        return str(error)
    return ""


listed = list_cases("quick")
cases = [
    "mxfp8_quantize:bf16:m1k32:gaussian:seed7@ptx.sm_110a",
    "deepseek_gemm:bf16:m5k128n128e2:near:model=sm90_mma_fp8:rows=2-3:tile_m=8:seed7@ptx.sm_110a",
]
results = list(run_cases([parse_case(case) for case in cases], kernel_of))
print(json.dumps({
    "package": refmoe.__file__,
    "archs": sorted({case.arch for case in listed}),
    "listed": sorted({case.family.name for case in listed if case.arch == "sm_110a"}),
    "results": [result.line for result in results],
    "verdicts": [result.verdict.value for result in results],
    "models": list(accumulation_models("sm_110a")),
    "resident": residency(chip_of("sm_110a"), 8, 60 * 1024, None, 20).blocks,
    "shared": [outcome(size) for size in (131 * 1024, 131 * 1024 + 4)],
    "probed": [
        [each.name, model_of(each, "sm_110a").name, word_of(each, "sm_110a")] for each in of_target("sm_110a")
    ],
    "backends": {
        name: [backend.accumulation["sm_110a"].model, backend.accumulation["sm_110a"].evidence.value]
        for name, backend in BACKENDS.items()
        if "sm_110a" in backend.architectures
    },
}))
'''


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of refmoe that has one chip more."""
    try:
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(str(error))
    root = tmp_path_factory.mktemp("copied")
    shutil.copytree(PACKAGE, root / "refmoe")
    path = root / "refmoe" / "chips.py"
    text = path.read_text()
    last = '            Chip(\n                arch="sm_120a",'
    assert text.count(last) == 1
    path.write_text(text.replace(last, ADDED.lstrip("\n") + last))
    return root


def python(root: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(root), "COLUMNS": "200"}
    run = subprocess.run([sys.executable, *arguments], cwd=root, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.fixture(scope="module")
def found(copied: Path) -> dict[str, Any]:
    """What the other Python says of the chip."""
    (copied / "script.py").write_text(SCRIPT)
    said: dict[str, Any] = json.loads(python(copied, "script.py"))
    assert Path(said["package"]).is_relative_to(copied)
    return said


def test_its_cases_are_listed(found: dict[str, Any]) -> None:
    assert "sm_110a" in found["archs"]
    assert {"mxfp8_quantize", "sm12x_gemm", "deepseek_gemm"} <= set(found["listed"])


def test_its_kernels_run_on_the_executor_and_pass(found: dict[str, Any]) -> None:
    assert found["verdicts"] == ["PASS"] * 2, found["results"]


def test_its_own_instructions_and_limits_count(found: dict[str, Any]) -> None:
    assert found["models"] == ["sm90_mma_fp8"]
    assert found["resident"] == 2  # of 61 KiB in 132
    fits, too_much = found["shared"]
    assert fits == ""
    assert "sm_110a has 134144 for a block" in too_much


def test_the_probe_asks_it_what_it_has(copied: Path, found: dict[str, Any]) -> None:
    names = [name for name, _, _ in found["probed"]]
    assert python(copied, "-m", "refmoe", "probe", "--arch", "sm_110a", "--list").split("\n")[:-1] == names
    assert len(names) == 11
    assert {model for _, model, _ in found["probed"]} == {
        "sm90_mma", "sm90_mma_f16acc", "sm90_mma_k8", "sm90_mma_k4", "sm90_mma_fp8",
    }  # fmt: skip
    assert {word for _, _, word in found["probed"]} == {"extrapolated"}


def test_backends_of_its_instructions_serve_it(found: dict[str, Any]) -> None:
    assert found["backends"] == {
        "marlin": ["sm90_mma", "extrapolated"],
        "dp4a": ["exact", "definition"],
        "llama_cpp": ["exact", "definition"],
        "deepseek_fp8": ["sm90_mma_fp8", "extrapolated"],
    }


@pytest.mark.slow
def test_commands_know_it(copied: Path) -> None:
    assert "sm_110a" in python(copied, "-m", "refmoe", "tiles", "--m", "1", "--arch", "sm_110a")
    said = python(copied, "-m", "refmoe", "parity", "--case", "mxfp8_quantize:bf16:m1k32:gaussian:seed7@ptx.sm_110a")
    assert "PASS" in said
