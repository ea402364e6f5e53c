"""SwiGLU to MXFP8 by estimates: its bytes are the defined ones for every estimate that the PTX ISA allows."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.toolchain import NVCC

from refmoe.catalog import parse_case
from refmoe.cuda.toolchain import CSRC
from refmoe.families import FAMILIES
from refmoe.reference import fp32
from refmoe.reference.exponential import LOG2E, exponential
from refmoe.verify.kernel import Devices, Kernel
from refmoe.verify.runner import run_case
from refmoe.verify.verdict import Verdict

HEADER = "swiglu_estimate.cuh"
#: Units in the last place that the PTX ISA allows ex2.approx.ftz.f32 and rcp.approx.ftz.f32.
EX2_ULP, RCP_ULP = 2, 1
#: 2^-24, half a unit in the last place of 1: the unit of the errors below.
HALF_ULP = 2.0**-24

#: Rows that are made by estimates, some of which are not proved.
ESTIMATED = ":multiprocessors=1:seed7@ptx"
CASES = (
    f"activation:bf16:m80k544e80:bracketed:params=distinct:routing=all-one-token{ESTIMATED}",
    f"activation:bf16:m80k544e2:bracketed-by-bias:variant=silu:mode=floor:bias=distinct{ESTIMATED}",
    f"activation:bf16:m200k576e3:gaussian:bias=distinct{ESTIMATED}",
    f"activation:bf16:m200k576e3:gaussian:variant=silu:mode=floor{ESTIMATED}",
    f"activation:bf16:m80k160e80:tiny:params=open:routing=all-one-token{ESTIMATED}",
)


def shifted(tree: Path, instruction: str, result: str, by: str) -> None:
    """Add `by` units in the last place to the estimate `result` of a header's `instruction`, but to zeros and Inf."""
    header = tree / HEADER
    text = header.read_text()
    statement = f'    asm("{instruction}'
    start = text.index(f"    return {result};", text.index(statement))
    number = f"__uint_as_float(__float_as_uint({result}) + ({by}))"
    changed = f"    return {result} > 0x1p-120f && {result} < 0x1p+120f ? {number} : {result};"
    header.write_text(text[:start] + changed + text[start + len(f"    return {result};") :])


def with_estimates(folder: Path, ex2: str, rcp: str) -> Devices:
    """Devices whose kernels have estimates that are off by so many units in the last place, C++ of an int."""
    tree = folder / "csrc"
    shutil.copytree(CSRC, tree)
    shifted(tree, "ex2.approx.ftz.f32", "y", ex2)
    shifted(tree, "rcp.approx.ftz.f32", "r", rcp)
    return Devices(csrc=tree, entry_by_entry=True)


@pytest.fixture(autouse=True)
def _long_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """What shifts an estimate takes instructions, too, and a worse estimate proves less."""
    monkeypatch.setattr("refmoe.verify.kernel.ORDINARY", {})


def verdicts(devices: Devices) -> list[Verdict]:
    kernel = Kernel(FAMILIES["activation"], devices)
    return [run_case(kernel, parse_case(text)).verdict for text in CASES]


#: A sign that the argument's last bit decides.
BY_LAST_BIT = "(__float_as_int({}) & 1) ? {} : -{}"


@pytest.mark.skipif(NVCC is None, reason="no nvcc on this machine")
@pytest.mark.parametrize(
    ("ex2", "rcp"),
    [
        *((f"{sign * EX2_ULP}", f"{sign * RCP_ULP}") for sign in (1, -1)),
        (f"{EX2_ULP}", f"-{RCP_ULP}"),
        (BY_LAST_BIT.format("t", EX2_ULP, EX2_ULP), BY_LAST_BIT.format("d", RCP_ULP, RCP_ULP)),
    ],
)
def test_bytes_are_the_same_for_the_worst_estimates(tmp_path: Path, ex2: str, rcp: str) -> None:
    assert verdicts(with_estimates(tmp_path, ex2, rcp)) == [Verdict.PASS] * len(CASES)


@pytest.mark.skipif(NVCC is None, reason="no nvcc on this machine")
@pytest.mark.parametrize("by", ["512", "-512"])
def test_worse_estimates_would_show(tmp_path: Path, by: str) -> None:
    assert Verdict.MISMATCH in verdicts(with_estimates(tmp_path, by, "0"))


def moved(values: NDArray[np.float32], ulp: int) -> NDArray[np.float32]:
    found: NDArray[np.float32] = (values.view(np.int32) + np.int32(ulp)).view(np.float32)
    return found


def sigmoids(gates: NDArray[np.float32], alphas: NDArray[np.float32]) -> NDArray[np.float32]:
    exponentials = exponential(fp32.multiply(gates, -alphas))
    found: NDArray[np.float32] = np.float32(1) / fp32.add(exponentials, np.float32(1))
    return found


def estimates(gates: NDArray[np.float32], alphas: NDArray[np.float32], ex2: int, rcp: int) -> NDArray[np.float32]:
    """The kernel's sigmoids, its ex2 and its rcp off by so many units in the last place."""
    t = fp32.multiply(gates, fp32.multiply(-alphas, LOG2E))
    powers = moved(np.exp2(t.astype(np.float64)).astype(np.float32), ex2)
    return moved((1 / fp32.add(powers, np.float32(1)).astype(np.float64)).astype(np.float32), rcp)


def test_the_margin_is_wider_than_any_error_and_not_twice_as_wide() -> None:
    text = (CSRC / HEADER).read_text()
    margins = {float(found) for found in re.findall(r"1\.0f [-+] ([\d.]+)f \* kHalfUlp", text)}
    most_x = float(re.search(r"kMostX = ([\d.]+)f", text)[1])  # type: ignore[index]
    most_sum = float.fromhex(re.search(r"kMostExponentials = (\S+)f;", text)[1])  # type: ignore[index]
    assert np.log(most_sum) < most_x
    rng = np.random.default_rng(7)
    alphas = np.exp(rng.uniform(np.log(0.25), np.log(4), 1 << 20)).astype(np.float32)
    gates = (rng.uniform(-most_x, 4, alphas.size) / alphas).astype(np.float32)
    defined = sigmoids(gates, alphas).astype(np.float64)
    # Each of the two products behind a sigmoid rounds in both, and so does the product with a margin.
    products = 2 + 2 + 1
    worst = 0.0
    for ex2 in (-EX2_ULP, 0, EX2_ULP):
        for rcp in (-RCP_ULP, 0, RCP_ULP):
            found = estimates(gates, alphas, ex2, rcp)
            worst = max(worst, float(np.abs(found / defined - 1).max()) / HALF_ULP + products)
    (margin,) = margins
    assert margin / 2 < worst < margin
