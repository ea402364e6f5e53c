"""The geometry of launches is held against a count of its own, on sizes that cases have and on those that none can."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, replace
from typing import Any

import numpy as np
import pytest
import torch

from refmoe import ptx
from refmoe.catalog import parse_case
from refmoe.cuda import block_fp8, deepseek_gemm, dp4a, finalize, launch, nvfp4_gemm, q8_1, routing
from refmoe.cuda.launch import Entry, LaunchPlan
from refmoe.errors import RefmoeError
from refmoe.families import FAMILIES
from refmoe.families.extents import geometry, plans
from refmoe.families.extents.geometry import GEOMETRIES, HeldDevice, check_launch
from refmoe.verify.kernel import Devices, Kernel
from refmoe.verify.runner import run_case
from refmoe.verify.verdict import Verdict


def probed() -> Iterator[tuple[LaunchPlan, int]]:
    for family in plans._PROBES:
        for made, multiprocessors, refused in plans._PROBES[family]():
            if not refused:
                yield made(), multiprocessors


def test_every_plan_is_held_and_one_that_is_another_is_not_let_through() -> None:
    seen = set()
    for plan, multiprocessors in probed():
        check_launch(plan, multiprocessors)
        seen.add(plan.kernel.source)
        for other in (
            replace(plan, grid=plan.grid + 1),
            replace(plan, grid=plan.grid * 2),
            replace(plan, block=plan.block + 32),
        ):
            with pytest.raises(RefmoeError, match=plan.kernel.entry):
                check_launch(other, multiprocessors)
    assert {"quantize", "block_fp8", "finalize", "q8_1", "dp4a", "gemm", "nvfp4_gemm", "routing"} <= seen


def test_every_source_of_a_family_has_a_geometry() -> None:
    assert {source for family in FAMILIES.values() for source in family.sources} == set(GEOMETRIES)


def test_shared_memory_and_the_order_of_launches_count() -> None:
    size = dp4a.GemvSize(tokens=2, top_k=2, experts=2, first_expert=0, n=72, k=64)
    plan = dp4a.dp4a_gemv_plan("bf16", *(None,) * 9, size=size, input_by_choice=False)
    check_launch(plan, 3)
    with pytest.raises(RefmoeError, match="bytes of shared memory"):
        check_launch(replace(plan, shared_bytes=plan.shared_bytes + 1), 3)
    sorting = LaunchPlan(routing.SORT_CHOSEN_KERNEL, 8, 32, (None, 20, 2, 8, 0, 16), programmatic=True)
    check_launch(sorting, 3)
    with pytest.raises(RefmoeError, match="may not start"):
        check_launch(replace(sorting, programmatic=False), 3)


def test_a_sample_of_a_large_problem_has_a_grid_of_its_own_and_others_kernels_have_none() -> None:
    plan = next(plan for plan, _ in probed())
    check_launch(replace(plan, grid=plan.grid + 1, blocks=(0, 3)), plans._SMALL)
    check_launch(LaunchPlan(Entry("somebody_elses", "kernel"), 7, 33, ()), plans._SMALL)


class Inner:
    name, arch, multiprocessors = "ptx", "sm_120a", 3

    def __init__(self) -> None:
        self.launches: list[LaunchPlan] = []

    def launch(self, plan: LaunchPlan) -> None:
        self.launches.append(plan)


def test_a_layer_whose_launches_overlap_waits_in_its_first_alone() -> None:
    plan = LaunchPlan(Entry("somebody_elses", "kernel"), 1, 32, ())
    inner = Inner()
    device = HeldDevice(inner, "integer_moe")  # type: ignore[arg-type]
    device.launch(plan)
    with pytest.raises(RefmoeError, match="launch 2"):
        device.launch(plan)
    device.launch(replace(plan, programmatic=True))
    assert len(inner.launches) == 2
    with pytest.raises(RefmoeError, match="launch 1"):
        HeldDevice(inner, "integer_moe").launch(replace(plan, programmatic=True))  # type: ignore[arg-type]
    HeldDevice(inner, "moe").launch(plan)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("family", "module", "name", "value"),
    [
        ("mxfp8_quantize", launch, "CTAS_PER_MULTIPROCESSOR", 65),
        ("mxfp8_quantize", launch, "MAX_GRID", 1 << 17),
        ("moe", launch, "check_rows", lambda name, rows: None),
        ("block_fp8_quantize", block_fp8, "TILE_ROWS", 129),
        ("block_fp8_quantize", block_fp8, "TILE_CTAS_PER_MULTIPROCESSOR", 7),
        ("dp4a_gemv", dp4a, "WARPS", (4, 3, 1)),
        ("integer_moe", dp4a, "SHARED_BYTES", 99 * 1024),
        ("finalize", finalize, "CTAS", 9),
        ("routing", routing, "FEW_CHOICES", 63),
        ("deepseek_routing", routing, "FEW_CHOICES", 65),
        ("sm12x_nvfp4_gemm", nvfp4_gemm, "DYNAMIC_TILES", nvfp4_gemm.TILES),
        ("sm12x_nvfp4_gemm", nvfp4_gemm, "choose_tile", lambda m, arch: nvfp4_gemm.TILES[0]),
        ("q8_1_quantize", q8_1, "quantize_q8_1", lambda x, *, device, variant="llama_cpp_mmvq", fill=1: x),
    ],
)
def test_a_rule_of_a_plan_that_is_another_fails_the_family_s_cases(
    family: str, module: Any, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans.check_plans(family, FAMILIES[family].host)
    monkeypatch.setattr(module, name, value)
    with pytest.raises(RefmoeError):
        plans.check_plans(family, FAMILIES[family].host)


def test_a_case_fails_by_a_launch_of_another_size(monkeypatch: pytest.MonkeyPatch) -> None:
    case = parse_case("q8_1_quantize:bf16:m3k64:gaussian:seed7@ptx")
    kernel = Kernel(case.family, Devices())
    assert run_case(kernel, case).verdict is Verdict.PASS
    monkeypatch.setattr(geometry, "GEOMETRIES", {"q8_1": lambda numbers, plan, count: geometry.Geometry(plan.grid + 1)})
    monkeypatch.setattr(plans, "_PROBES", {})
    result = run_case(kernel, case)
    assert result.verdict is Verdict.ERROR
    assert "CTAs; it has to be" in str(result.reason)


def as_tensor(argument: Any) -> Any:
    """What the cuda device would give in place of a buffer of the executor's: torch's tensors have no name."""
    return torch.from_numpy(np.array(argument.array.view(np.uint8))) if isinstance(argument, ptx.Buffer) else argument


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_launches_of_a_gpu_whose_buffers_have_no_names_are_held_as_well(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []

    def check(plan: LaunchPlan, multiprocessors: int) -> None:
        check_launch(replace(plan, arguments=tuple(map(as_tensor, plan.arguments))), multiprocessors)
        with pytest.raises(RefmoeError, match="threads"):
            check_launch(replace(plan, block=plan.block + 32), multiprocessors)
        held.append(plan)

    monkeypatch.setattr(geometry, "check_launch", check)
    kernel = Kernel(FAMILIES[family], Devices())
    case = next(
        case
        for case in FAMILIES[family].level("default")
        if case.shape.m and max(astuple(case.shape)) <= 512 and kernel.missing(case, kernel.place(case)) is None
    )
    assert run_case(kernel, case).verdict is Verdict.PASS
    assert held


def test_threads_and_memory_of_deepseek_gemm_follow_from_its_tile() -> None:
    for tile_m in deepseek_gemm.MMA.tiles_m:
        kernel = deepseek_gemm.MMA.kernel(tile_m, "bf16", 1)
        plan = LaunchPlan(kernel, 1, deepseek_gemm._mma_threads(tile_m), (), deepseek_gemm._mma_shared_bytes(tile_m))
        check_launch(plan, 3)
        with pytest.raises(RefmoeError, match="bytes of shared memory"):
            check_launch(replace(plan, shared_bytes=plan.shared_bytes + 128), 3)
