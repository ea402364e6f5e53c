"""The case lists: what each level and arch takes, and what the names of families and groups mean."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from refmoe.catalog import all_families, groups, list_cases, parse_case
from refmoe.errors import ArgumentError
from refmoe.families import FAMILIES
from refmoe.families.choices import ROUTINGS
from refmoe.families.family import LEVELS, Case
from refmoe.families.quantize import FILLS


@cache
def whole(level: str, device: str = "ptx") -> tuple[Case, ...]:
    """The list of a level, which takes seconds to make and which several tests look at."""
    return tuple(list_cases(level, device=device))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("device", ["ptx", "cuda"])
def test_case_lists_have_no_repetition_and_hold_the_level_below(level: str, device: str) -> None:
    listed = whole(level, device)
    assert len(set(listed)) == len(listed)
    assert len({str(case) for case in listed}) == len(listed)
    lower = LEVELS[max(LEVELS.index(level) - 1, 0)]
    assert set(whole(lower, device)) <= set(listed)


def test_samples_are_a_list_of_their_own_and_a_part_of_full() -> None:
    listed = list_cases("samples")
    assert {case.family.name for case in listed} == {"deepseek_gemm", "cute_deepseek_gemm"}
    assert {case.arch for case in listed} == {"sm_120a", "sm_90a"}
    assert len(set(listed)) == len(listed)
    assert set(listed) <= set(whole("full"))
    assert not set(listed) & set(whole("default"))
    assert {str(case) for case in list_cases("samples", arch="sm_90a")} == {
        str(case) for case in listed if case.arch == "sm_90a"
    }


@pytest.mark.parametrize(("level", "below"), [("quick", "quick"), ("default", "quick"), ("full", "default")])
def test_the_other_archs_run_the_level_below(level: str, below: str) -> None:
    listed = whole(level)
    for arch in ("sm_90a", "sm_121a"):
        lower = [
            case
            for suite, family in all_families().items()
            for case in list_cases(level if family.leading_arch == arch else below, [suite], arch=arch)
        ]
        lacking = {
            case.on("ptx", arch)
            for family in all_families().values()
            for case in family.level(level)
            if arch in family.archs and arch not in family.software
            if family.lacks(case, family.leading_arch) is not None and family.lacks(case, arch) is None
        }
        found = {case for case in listed if case.arch == arch}
        assert found == {case.on("ptx", arch) for case in lower} | lacking
        assert arch != "sm_90a" or any("wgmma" in str(case) for case in lacking)
    # CUTLASS's kernel is built for sm_121a first, and there is none for sm_90a.
    cutlass = {case.arch: 0 for case in listed} | Counter(
        case.arch for case in listed if case.family.name == "cutlass_gemm"
    )
    assert cutlass["sm_121a"] >= cutlass["sm_120a"] > cutlass["sm_90a"] == 0


def test_what_the_executor_would_compute_in_software_is_kept_small() -> None:
    software = list_cases("full", ["sm12x_gemm"], arch="sm_90a")
    assert {case.fill for case in software} == set(FAMILIES["sm12x_gemm"].fills)
    assert max(case.shape.m * case.shape.k * case.shape.n for case in software) < 1 << 18
    # On a GPU of that arch the kernel's own software is fast enough for every case.
    native = list_cases("full", ["sm12x_gemm"], device="cuda", arch="sm_90a")
    assert len(native) == len(list_cases("full", ["sm12x_gemm"], arch="sm_120a"))


def test_the_default_level_holds_what_it_promises() -> None:
    listed = list_cases("default", arch="sm_120a")
    served = {name for name, family in all_families().items() if "sm_120a" in family.archs}
    assert {case.family.name for case in listed} == served | {"cutlass_gemm"}
    assert set(all_families()) - served <= {"cutlass_gemm", "deepgemm_gemm"}
    for family in ("mxfp8_quantize", "expand"):
        mine = [case for case in listed if case.family.name == family]
        assert {case.fill for case in mine} >= set(FILLS) - {"activations"}
        assert {(case.mode, case.edge) for case in mine} == {
            (m, e) for m in ("rceil", "floor") for e in ("exact", "flashinfer")
        }
        assert {case.layout for case in mine} == set(FAMILIES[family].option("layout").words)
        assert {case.dtype for case in mine} == set(FAMILIES[family].dtypes)
        assert {case.shape.m for case in mine} >= {0, 1, 2, 8}
        assert {case.poison for case in mine} >= {0xFF, 0x7F}
    expand = [case for case in listed if case.family.name == "expand"]
    assert {case.routing for case in expand} == set(ROUTINGS)
    assert {case.input_sf for case in expand if case.dtype == "mxfp8"} == {"linear", "128x4", "none"}
    assert {(case.shape.k, case.shape.e, case.shape.t) for case in expand} >= {(2880, 128, 4), (7168, 256, 8)}
    assert any(case.shape.t == 1 and case.routing == "same-experts" and case.shape.m > 128 for case in expand)
    assert any(case.first_expert > 0 for case in expand)


@pytest.mark.parametrize(("level", "suite"), [("huge", "expand"), ("quick", "gemm")])
def test_unknown_levels_and_suites_are_refused(level: str, suite: str) -> None:
    with pytest.raises(ArgumentError, match="one of"):
        list_cases(level, [suite])


@pytest.mark.parametrize("level", LEVELS)
def test_the_group_lists_its_families_and_every_case_is_its_string(level: str) -> None:
    cases = list_cases(level, ["moe"], arch="sm_120a")
    assert {case.family.name for case in cases} >= {"routing", "activation", "finalize"}
    assert set(groups()["moe"]) == {"routing", "activation", "finalize", "moe"}
    assert all(parse_case(str(case)) == case for case in cases)
