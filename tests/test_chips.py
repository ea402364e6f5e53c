"""The table of chips: that it agrees with itself, and what follows from it elsewhere."""

from __future__ import annotations

import pytest

from refmoe.chips import CHIPS, DEFAULT_ARCH, KERNEL_ARCHS, TARGETS, kernel_chip, sums_of
from refmoe.cuda import open_device
from refmoe.errors import ArgumentError
from refmoe.museum.cutlass.builds import CUTLASS_ARCHITECTURES
from refmoe.reference.backends import BACKENDS
from refmoe.reference.mma import MODELS
from refmoe.reference.mma.half import HALF_MODELS


def test_a_chip_is_named_by_its_compute_capability_and_its_products_are_told_apart() -> None:
    for arch, chip in CHIPS.items():
        major, minor = chip.compute_capability
        assert arch == chip.arch == f"sm_{major}{minor}a"
    names = [product.name for chip in CHIPS.values() for product in chip.products]
    assert len(set(names)) == len(names)


def test_kernels_are_refused_for_a_chip_that_they_are_not_built_for() -> None:
    assert KERNEL_ARCHS == ("sm_90a", "sm_120a", "sm_121a")
    assert DEFAULT_ARCH in KERNEL_ARCHS
    assert CHIPS["sm_100a"].no_kernels
    with pytest.raises(ArgumentError, match="arch: found str 'sm_100a'; needed one of sm_90a, sm_120a, sm_121a"):
        kernel_chip("sm_100a")


def test_a_grid_of_the_executor_is_that_of_the_first_product() -> None:
    assert {arch: open_device("ptx", arch).multiprocessors for arch in KERNEL_ARCHS} == {
        "sm_90a": 132,
        "sm_120a": 170,
        "sm_121a": 48,
    }


def test_what_serves_a_chip_follows_from_its_instructions() -> None:
    assert CUTLASS_ARCHITECTURES == ("sm_120a", "sm_121a")
    assert {name: backend.architectures for name, backend in BACKENDS.items()} == {
        "cutlass": ("sm_120a", "sm_121a", "sm_100a"),
        "marlin": ("sm_90a", "sm_100a", "sm_120a", "sm_121a"),
        "triton": ("sm_90a", "sm_100a"),
        "trtllm": ("sm_100a",),
        "trtllm_mxfp8": ("sm_100a",),
        "dp4a": tuple(CHIPS),
        "llama_cpp": tuple(CHIPS),
        "nvfp4": ("sm_120a", "sm_121a"),
        "deepseek_fp8": tuple(CHIPS),
    }


def test_every_sum_has_a_model_that_there_is_and_targets_stand_from_the_oldest_on() -> None:
    known = {*MODELS, *(model.name for model in HALF_MODELS.values()), ""}
    assert {
        name for target in TARGETS.values() for sums in target.sums.values() for name in (sums.model, sums.half)
    } <= known
    assert CHIPS.items() <= TARGETS.items()
    capabilities = [target.compute_capability for target in TARGETS.values()]
    assert capabilities == sorted(set(capabilities))


def test_a_target_without_its_letter_has_the_sums_of_its_chip_and_an_unknown_one_those_of_all() -> None:
    assert sums_of("sm_90") == sums_of("sm_90a") == CHIPS["sm_90a"].sums
    assert sums_of("sm_120f") == CHIPS["sm_120a"].sums
    assert sums_of("sm_130") == sums_of("words") == TARGETS["sm_80"].sums
    assert not any(sums.own for sums in sums_of("sm_130").values())


def test_sm120_and_sm121_do_the_same_with_the_same_code() -> None:
    assert CHIPS["sm_120a"].abilities == CHIPS["sm_121a"].abilities
    assert len({chip.abilities for chip in CHIPS.values()}) == len(CHIPS) - 1
