"""The faults of `refmoe.museum.cutlass.faults`, planted and run."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from refmoe.errors import RefmoeError
from refmoe.families.case import Case, parse_case
from refmoe.families.family import Inputs, Outputs
from refmoe.families.quantize_expand import RUNS
from refmoe.museum.cutlass.faults import CASE, CUTLASS_MUTANTS, MULTIPROCESSORS, CutlassMutant, EditError
from refmoe.museum.cutlass.kernel import beside_ours, check_supported, cutlass_missing, operands
from refmoe.verify.plant import CATCHING, MutantResult
from refmoe.verify.runner import Devices, kernel_and_reference, run_case
from refmoe.verify.tolerances import accepting
from refmoe.verify.verdict import Verdict

if TYPE_CHECKING:
    from refmoe.cuda import Device

__all__ = ["cutlass_mutants_missing", "run_cutlass_mutants"]


def run_cutlass_mutants(mutants: Sequence[CutlassMutant] = CUTLASS_MUTANTS) -> Iterator[MutantResult]:
    """Plant each fault, and run its case on it; none where the build is missing.

    Raises:
        EditError: a fault cannot be planted.
    """
    if cutlass_mutants_missing() is not None:
        return
    controls: dict[str, bool] = {}
    with tempfile.TemporaryDirectory(prefix="refmoe-cutlass-mutants-") as scratch:
        for mutant in mutants:
            case = parse_case(mutant.case)
            ptx = _planted(mutant, case, Path(scratch))
            if mutant.case not in controls:
                controls[mutant.case] = run_case(case, _devices(None, None)).verdict is Verdict.PASS
            yield _result(mutant, case, controls[mutant.case], ptx)


def cutlass_mutants_missing() -> str | None:
    """Why the faults cannot be planted here, in a sentence, or None."""
    from refmoe.cuda import ToolchainError

    case = parse_case(CASE)
    try:
        return cutlass_missing(case, Devices().get(case))
    except ToolchainError as error:
        return str(error)


def _result(mutant: CutlassMutant, case: Case, control: bool, ptx: Path | None) -> MutantResult:
    result = run_case(case, _devices(mutant, ptx))
    caught = result.verdict in CATCHING
    return MutantResult(
        mutant.name,
        mutant.fault,
        mutant.kind,
        case=str(case) if caught else None,
        verdict=result.verdict if caught else None,
        finding=(result.first_mismatch or result.reason) if caught else None,
        cases=1,
        control=control,
        accepted_by=_accepted_by(mutant, ptx, case) if caught else None,
    )


def _planted(mutant: CutlassMutant, case: Case, scratch: Path) -> Path | None:
    """The file of the changed PTX, None where the fault is not in the PTX."""
    from refmoe.museum.cutlass import find_built

    if mutant.edit is None:
        return None
    built = find_built(check_supported(case, case.arch))
    assert built is not None
    path = scratch / f"{mutant.name}.ptx"
    try:
        path.write_text(mutant.edit(built.ptx.read_text()))
    except EditError as error:
        raise EditError(f"mutant {mutant.name}: {error}") from error
    return path


def _accepted_by(mutant: CutlassMutant, ptx: Path | None, case: Case) -> tuple[str, ...] | None:
    """The published tolerances that the mutant's output passes, on ordinary data and with nothing looked for."""
    ordinary = dataclasses.replace(case, fill="gaussian", poison=0)
    try:
        kernel, reference = kernel_and_reference(ordinary, _devices(mutant, ptx, checked=False))
    except RefmoeError:
        return None
    return accepting(*(bits["cutlass"].view(ml_dtypes.bfloat16) for bits in (kernel, reference)))


def _devices(mutant: CutlassMutant | None, ptx: Path | None, *, checked: bool = True) -> Devices:
    """Devices on which the family's kernel is used with the fault."""

    def run(case: Case, inputs: Inputs, device: Device) -> Outputs:
        return _run(mutant, ptx, case, inputs, device)

    family = dataclasses.replace(RUNS["cutlass_gemm"], run=run)
    return Devices(checked=checked, runs={"cutlass_gemm": family}, multiprocessors=MULTIPROCESSORS)


def _run(mutant: CutlassMutant | None, ptx: Path | None, case: Case, inputs: Inputs, device: Device) -> Outputs:
    """As `refmoe.museum.cutlass.kernel.cutlass_run`, with the fault between its steps."""
    from refmoe.cuda.device import PtxDevice
    from refmoe.museum.cutlass import execute, find_built, host_launch, prepare

    assert isinstance(device, PtxDevice)
    build = check_supported(case, device.arch)
    built = find_built(build)
    assert built is not None
    prepared = prepare(**operands(case, inputs), device=device, build=build, built=built)
    if mutant is not None and mutant.given is not None:
        prepared = mutant.given(prepared)
    launch = host_launch(prepared)
    if mutant is not None and mutant.launched is not None:
        launch = mutant.launched(launch)
    used = built if ptx is None else dataclasses.replace(built, ptx=ptx)
    execute(used, launch, prepared, device)
    theirs = device.download(prepared.buffers["out"]).view(ml_dtypes.bfloat16)
    return {**_ours(case), "cutlass": theirs.view(np.uint16)}


@lru_cache(maxsize=2)
def _ours(case: Case) -> Outputs:
    """What our kernel writes, which no fault touches."""
    inputs = RUNS[case.family].inputs(case)
    device = Devices().get(case)
    return beside_ours(case, inputs, device, np.zeros((case.shape.m, case.shape.n), ml_dtypes.bfloat16))
