"""Kernels and host sides of the probe: every question reaches its output, on the executor and through the driver."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.probe.executor_driver import ExecutorDriver
from support.selection.thinned import thinned
from support.toolchain import PTXAS

from refmoe.chips import TARGETS
from refmoe.probe.hosts import CudaBox, ExecutorBox, NoGpu, Unanswered, ask_twice, target_of
from refmoe.probe.instructions import BY_NAME, CODECS, INSTRUCTIONS, Instruction
from refmoe.probe.kernels import MOST_TILES, QUESTIONS, ptx_text
from refmoe.probe.vectors import Vector, mixture

BF16 = BY_NAME["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"]
FP8 = BY_NAME["mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32"]
NVF4 = next(each for each in INSTRUCTIONS if each.scale == "ue4m3")
WGMMA = BY_NAME["wgmma.mma_async.sync.aligned.m64n8k32.f16.e4m3.e5m2"]
NEWEST = {each: next(t for t in reversed(TARGETS) if t in each.model) for each in INSTRUCTIONS}


def marked(instruction: Instruction) -> list[Vector]:
    """A product of 3 at each place of K in turn, -1 at the next, and another C each time: no two places are alike."""
    found = []
    for n in range(instruction.k + 3):
        vector = Vector(instruction).put(n % instruction.k, 3, 0).put((n + 1) % instruction.k, -1, 0)
        found.append(vector.add(n, 0) if n else vector)
    return found


@pytest.mark.parametrize("instruction", thinned(INSTRUCTIONS, 3), ids=lambda each: each.name)
def test_every_place_of_k_and_every_question_of_a_tile_is_answered(instruction: Instruction) -> None:
    one, two = ask_twice(ExecutorBox(NEWEST[instruction]), instruction, marked(instruction))
    codec = CODECS[instruction.accumulator]
    wanted = [codec.code(2 + n, 0) for n in range(instruction.k + 3)]
    assert one == wanted
    assert two == wanted


@pytest.mark.parametrize("instruction", [each for each in INSTRUCTIONS if each.scale], ids=lambda each: each.name)
def test_each_scale_byte_serves_its_own_block_and_side(instruction: Instruction) -> None:
    vectors, wanted = [], []
    for k in range(instruction.k):
        for a, b in ((1, 0), (0, 1)):
            vector = Vector(instruction).put(k, 1, 0)
            step = 1 if instruction.scale == "ue8m0" else 8
            for number in range(instruction.scales):
                vector.a_scales[number] += a * step * (number + 1)
                vector.b_scales[number] += b * step * (number + 1)
            vectors.append(vector)
            wanted.append(CODECS["f32"].code(1, k // instruction.scale_block + 1))
    assert ask_twice(ExecutorBox("sm_120a"), instruction, vectors)[0] == wanted


def test_more_questions_than_a_launch_holds() -> None:
    vectors = mixture(WGMMA, QUESTIONS * MOST_TILES + 5, 1)
    box = ExecutorBox("sm_90a")
    together = ask_twice(box, WGMMA, vectors)[0]
    assert len(together) == len(vectors)
    assert together[-5:] == ask_twice(box, WGMMA, vectors[-5:])[0]


@pytest.mark.skipif(PTXAS is None, reason="no ptxas")
@pytest.mark.parametrize("target", thinned(TARGETS, 4))
def test_ptxas_takes_every_kernel(target: str, tmp_path: Path) -> None:
    assert PTXAS is not None
    for number, instruction in enumerate(each for each in INSTRUCTIONS if target in each.targets):
        source = tmp_path / f"{number}.ptx"
        source.write_text(ptx_text(instruction, target))
        done = subprocess.run(
            [PTXAS, f"-arch={target}", source, "-o", tmp_path / "out"], capture_output=True, text=True
        )
        assert done.returncode == 0, f"{instruction.name}: {done.stderr}{done.stdout}"


@pytest.mark.parametrize("instruction", [BF16, FP8, WGMMA], ids=lambda each: each.name)
def test_the_driver_path_asks_what_the_executor_is_asked(instruction: Instruction) -> None:
    driver = ExecutorDriver((9, 0), "NVIDIA H200")
    box = CudaBox(driver)
    assert (box.target, box.chip, box.driver) == ("sm_90a", "NVIDIA H200", "CUDA 13.0")
    vectors = mixture(instruction, 100, 3)
    assert ask_twice(box, instruction, vectors) == ask_twice(ExecutorBox("sm_90a"), instruction, vectors)
    assert driver.launches == 2
    assert not driver.memory  # everything that was allocated was freed


@pytest.mark.gpu
@pytest.mark.parametrize("instruction", [BF16, WGMMA], ids=lambda each: each.name)
def test_a_gpu_answers_twice_alike(instruction: Instruction) -> None:
    try:
        box = CudaBox()
    except NoGpu as error:
        pytest.skip(str(error))
    if box.target not in instruction.targets:
        pytest.skip(f"{box.chip} does not have it")
    one, two = ask_twice(box, instruction, mixture(instruction, 100, 3))
    assert one == two


def test_an_answer_of_one_launch_that_differs_is_the_second_ask() -> None:
    def spoil(launch: int, array: Any) -> None:
        if launch == 1:
            array[0] ^= 1  # D[0, 0] of the first tile, whose copy is D[8, 0]

    one, two = ask_twice(CudaBox(ExecutorDriver((8, 0), "A", spoil)), BF16, marked(BF16))
    assert [n for n in range(len(one)) if one[n] != two[n]] == [0]
    assert one[0] ^ two[0] == 1


def test_a_row_that_differs_within_a_launch_is_seen_too() -> None:
    def spoil(launch: int, array: Any) -> None:
        array.reshape(-1, 4, 32)[0, 2, 0] ^= 1  # D[8, 0] in both launches

    one, two = ask_twice(CudaBox(ExecutorDriver((8, 0), "A", spoil)), BF16, marked(BF16))
    assert one[0] != two[0]


def test_a_launch_that_fails_has_the_drivers_words_and_frees_its_memory() -> None:
    driver = ExecutorDriver((8, 9), "NVIDIA L4")
    with pytest.raises(Unanswered, match="cuLaunchKernel failed: CUDA_ERROR_LAUNCH_FAILED"):
        ask_twice(CudaBox(driver), FP8, marked(FP8))
    assert not driver.memory


def test_a_driver_that_is_too_old_is_said() -> None:
    class Old(ExecutorDriver):
        def cuModuleLoadData(self, image: bytes) -> tuple[Any, ...]:
            return (self.CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION,)

        def cuDriverGetVersion(self) -> tuple[Any, ...]:
            return self.CUresult.CUDA_SUCCESS, 12040

    said = r"the driver runs CUDA 12\.4 and does not know PTX 8\.7, which sm_120a is asked in: update the driver"
    with pytest.raises(Unanswered, match=said):
        ask_twice(CudaBox(Old((12, 0), "RTX")), FP8, marked(FP8))


def test_a_machine_without_a_driver_is_said() -> None:
    class NoLibrary(ExecutorDriver):
        def cuInit(self, flags: int) -> tuple[Any, ...]:
            raise RuntimeError("Failed to dlopen libcuda.so.1")  # as cuda-bindings does

    with pytest.raises(NoGpu, match=r"this machine has no NVIDIA driver: libcuda\.so\.1 is not found"):
        CudaBox(NoLibrary((9, 0), "none"))


def test_the_executor_says_that_it_has_no_model() -> None:
    with pytest.raises(Unanswered, match="no model of this instruction on sm_89"):
        ask_twice(ExecutorBox("sm_89"), FP8, marked(FP8))


def test_no_gpu_and_a_gpu_that_is_too_old_are_said() -> None:
    with pytest.raises(NoGpu, match="the driver sees no GPU"):
        CudaBox(ExecutorDriver((9, 0), "none", gpus=0))
    with pytest.raises(NoGpu, match=r"compute capability 7\.5; probed are sm_80"):
        CudaBox(ExecutorDriver((7, 5), "NVIDIA T4"))
    assert [target_of(each.compute_capability) for each in TARGETS.values()] == list(TARGETS)


def test_copies_of_a_question_lie_on_the_diagonal_alone() -> None:
    """A neighbour's operands change nothing: the answer is that of a question asked alone."""
    vectors = mixture(NVF4, 24, 9)
    box = ExecutorBox("sm_120a")
    alone = [ask_twice(box, NVF4, [each])[0][0] for each in vectors[:8]]
    assert ask_twice(box, NVF4, vectors)[0][:8] == alone
    assert len(np.unique(alone)) > 4


# --- without the executor's compiler ----------------------------------------------------------------------------------

BARE = """
import json, sys

sys.modules.update(llvmlite=None, torch=None)
import refmoe.cli.probe
import refmoe.probe.bundle
import refmoe.probe.hosts
from refmoe.chips import TARGETS
from refmoe.probe.claims import model_answers
from refmoe.probe.infer import infer
from refmoe.probe.instructions import BY_NAME, of_target
from refmoe.probe.kernels import ptx_text
from refmoe.reference.mma import MODELS

texts = [ptx_text(each, target) for target in TARGETS for each in of_target(target)]
each = BY_NAME[OPCODE]
found = infer(each, lambda question, vectors: model_answers(each, "sm_90a", vectors))
try:
    refmoe.probe.hosts.CudaBox()
except refmoe.probe.hosts.NoGpu as error:
    said = str(error)
else:
    said = "a GPU"
print(json.dumps({
    "texts": len(texts), "bits": found.parameters.document()["align_bits"], "said": said,
    "executor": [name for name in sys.modules if name.startswith(("refmoe.ptx.engine", "refmoe.ptx.native"))],
}))
"""


def test_a_gpu_is_asked_without_torch_and_without_the_executors_compiler() -> None:
    script = BARE.replace("OPCODE", repr(FP8.name))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["texts"] == sum(target in each.targets for target in TARGETS for each in INSTRUCTIONS)
    assert (said["bits"], said["executor"]) == (25, [])
    assert said["said"] == "a GPU" or any(
        part in said["said"] for part in ("refmoe[probe]", "CUDA driver", "no NVIDIA driver", "no GPU")
    )
