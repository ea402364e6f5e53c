"""Each entry of the kernels has machine code of its own: the committed report has launched all, under many fills."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from support.toolchain import NVCC

from refmoe.chips import DEFAULT_ARCH
from refmoe.families import FAMILIES
from refmoe.mutation.entries import sound_entries
from refmoe.reports.parity import Report, read_report

REPORT = Path(__file__).parents[2] / "reports" / "ptx.json"
#: Fills that every entry meets, at least.
FILLS = 2


@pytest.fixture(scope="module")
def met() -> dict[str, set[str]]:
    """By entry, the families and fills of the cases that launched it."""
    report: Report = read_report(REPORT)
    found: dict[str, set[str]] = defaultdict(set)
    for case in report.cases:
        for launched in case.launches:
            family, _, _, fill, *_ = case.id.split(":")
            found[launched.split()[0]].add(f"{family} {fill}")
    return found


@pytest.mark.skipif(NVCC is None, reason="no usable nvcc")
@pytest.mark.parametrize("source", sorted({source for family in FAMILIES.values() for source in family.sources}))
def test_every_entry_is_launched_under_many_fills(source: str, met: dict[str, set[str]]) -> None:
    arch = "sm_90a" if source.endswith("_wgmma") else DEFAULT_ARCH
    few = {entry: sorted(met[entry]) for entry in sound_entries(source, arch) if len(met[entry]) < FILLS}
    assert not few
