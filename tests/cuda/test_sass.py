"""What ptxas made of routing, activation and finalize: nothing in local memory, no fused sum but the written ones."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from support.kernel_entries import ACTIVATION_KERNELS, BLOCK_FP8_KERNELS, FINALIZE_KERNELS, ROUTING_KERNELS
from support.selection.thinned import thinned
from support.toolchain import spills_of

from refmoe.chips import KERNEL_ARCHS
from refmoe.cuda import toolchain
from refmoe.cuda.launch import Entry
from refmoe.cuda.toolchain import CSRC, Target, build

pytestmark = pytest.mark.skipif(
    all(candidate.problem for candidate in toolchain.candidates()), reason="no usable nvcc on this machine"
)

KERNELS: dict[str, tuple[Entry, ...]] = {
    "routing": ROUTING_KERNELS,
    "activation": ACTIVATION_KERNELS,
    "finalize": FINALIZE_KERNELS,
    "block_fp8": BLOCK_FP8_KERNELS,
}
BUILDS = [(family, arch) for family in KERNELS for arch in KERNEL_ARCHS]


def _nvdisasm() -> str | None:
    found = (tool for folder in sys.path for tool in sorted(Path(folder or ".").glob("nvidia/cu[0-9]*/bin/nvdisasm")))
    return shutil.which("nvdisasm") or next(map(str, found), None)


needs_nvdisasm = pytest.mark.skipif(_nvdisasm() is None, reason="no nvdisasm: pip install nvidia-cuda-nvdisasm")


@cache
def cubin(family: str, arch: str) -> Path:
    target = Target(CSRC / f"{family}.cu", arch, "cubin")
    return build([target])[target]


@cache
def opcodes(family: str, arch: str) -> dict[str, set[str]]:
    """By entry the stems of its instructions."""
    tool = _nvdisasm()
    assert tool is not None
    text = subprocess.run([tool, "-c", cubin(family, arch)], capture_output=True, text=True, check=True).stdout
    sections = re.split(r"^\s*\.section\s+\.text\.(\w+),.*$", text, flags=re.MULTILINE)[1:]
    line = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:\{\s*)?(?:@!?\w+\s+)?([A-Z0-9]+)", re.MULTILINE)
    return {name: set(line.findall(body)) for name, body in zip(sections[::2], sections[1::2], strict=True)}


@pytest.mark.parametrize(("family", "arch"), thinned(BUILDS, len(KERNEL_ARCHS) + 1))
def test_every_entry_is_there_without_spill_or_stack(family: str, arch: str) -> None:
    found = dict(spills_of(Path(f"{cubin(family, arch)}.log").read_text(), arch))
    assert set(found) == {kernel.entry for kernel in KERNELS[family]}
    for entry, sizes in found.items():
        assert sizes == [0, 0, 0], entry


@needs_nvdisasm
@pytest.mark.parametrize(("family", "arch"), thinned(BUILDS, len(KERNEL_ARCHS) + 1))
def test_nothing_lives_in_local_memory(family: str, arch: str) -> None:
    for entry, found in opcodes(family, arch).items():
        assert not found & {"LDL", "STL"}, entry


@needs_nvdisasm
@pytest.mark.parametrize("arch", KERNEL_ARCHS)
def test_the_weighted_sum_is_never_contracted(arch: str) -> None:
    """Finalize has no FMA in its source, so none may be in what came of it."""
    for entry, found in opcodes("finalize", arch).items():
        assert found >= {"FMUL", "FADD"}, entry
        assert not found & {"FFMA", "FFMA2"}, entry
