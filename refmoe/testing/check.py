"""One case of a registered kernel: run, compared, judged, and turned into a record of the report."""

from __future__ import annotations

import dataclasses
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.families.case import Case
from refmoe.families.family import Outputs, required
from refmoe.reports.parity import CaseRecord, MismatchMapRecord
from refmoe.reports.user_kernels import file_sha256
from refmoe.testing.arrays import from_numpy, to_numpy
from refmoe.testing.assertions import mismatch_text
from refmoe.testing.contract import Kernel, Unsupported
from refmoe.testing.elements import as_patterns
from refmoe.testing.expect import Target, target_of
from refmoe.testing.explain import declared_difference, explain_difference
from refmoe.verify.compare import Comparison, compare
from refmoe.verify.runner import input_sha256
from refmoe.verify.verdict import Verdict

__all__ = ["Outcome", "RefmoeCase", "case_text", "run_kernel"]

#: Element types that an output may have beside unsigned integers of the same size, where that is always the same.
_ELEMENTS = {"codes": "float8_e4m3fn", "scales": "float8_e8m0fnu", "topk_weights": "float32"}
_DTYPES = {"bf16": "bfloat16", "f32": "float32"}


class _Malformed(Exception):
    """An output has not the form of the contract; the stage and a sentence."""

    def __init__(self, stage: str, text: str) -> None:
        super().__init__(f"{stage}: {text}")
        self.stage = stage


@dataclass(frozen=True)
class Outcome:
    """What became of a case.

    Attributes:
        record: as the report holds it.
        error: what the kernel or the reading of its outputs raised, or None.
        policies: names of the policies whose bytes a quantizing kernel gave instead of its contract's.
        text: what to say of it.
    """

    record: CaseRecord
    error: Exception | None
    policies: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class RefmoeCase:
    """A case as a test has it: the value of the fixture `refmoe_case`.

    Attributes:
        case: the case.
        kernel: the registered kernel that the test's cases were made for; None if they were made for a family.
        node: the test's pytest id, which is how to run it again.
        root: the project's root folder.
        record: takes down an outcome for the report.
    """

    case: Case
    kernel: Kernel | None
    node: str
    root: Path
    record: Callable[[Outcome], None]

    def check(self, kernel: Kernel | None = None) -> None:
        """Run a registered kernel on the case; fail the test unless every byte is as it has to be.

        A case that the kernel cannot be given is skipped with the reason, and is UNSUPPORTED in the report.

        Args:
            kernel: the kernel; that of `refmoe_cases` if left out.

        Raises:
            AssertionError: MISMATCH, OUT_OF_BOUND or MISTRUSTED; the message is refmoe's.
            Exception: whatever the kernel raised.
            refmoe.errors.ArgumentError: no kernel, or none that `refmoe.testing.kernel` made.
        """
        __tracebackhide__ = True
        import pytest

        chosen = self.kernel if kernel is None else kernel
        if not isinstance(chosen, Kernel):
            raise ArgumentError("kernel", describe(chosen), "one made by refmoe.testing.kernel")
        outcome = run_kernel(chosen, self.case, self.node, self.root)
        self.record(outcome)
        if outcome.error is not None:
            raise outcome.error
        if outcome.record.verdict.fails:
            raise AssertionError(outcome.text)
        if not outcome.record.verdict.ran:
            pytest.skip(outcome.text)


def case_text(case: Case, place: str) -> str:
    """The repro string of a case with the place where a user's kernel runs, "host" or "cuda", for its device."""
    return f"{str(case).rpartition('@')[0]}@{place}"


def run_kernel(kernel: Kernel, case: Case, node: str, root: Path) -> Outcome:
    """Run a registered kernel on a case, whatever happens in it."""
    start = time.perf_counter()
    absent = kernel.missing()
    if absent is not None:
        return _outcome(kernel, case, node, root, start, Verdict.SKIPPED, absent)
    refused = kernel.refusal(case)
    if refused is not None:
        return _outcome(kernel, case, node, root, start, Verdict.UNSUPPORTED, refused)
    target = target_of(kernel, case)
    refused = _lacking(kernel, target)
    if refused is not None:
        return _outcome(kernel, case, node, root, start, Verdict.UNSUPPORTED, refused, target)
    try:
        found = _call(kernel, case, target)
    except Unsupported as error:
        reason = str(error) or f"{kernel.name} raised {type(error).__name__}"
        return _outcome(kernel, case, node, root, start, Verdict.UNSUPPORTED, reason, target)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return _outcome(kernel, case, node, root, start, Verdict.ERROR, reason, target, error=error)
    try:
        outputs = {name: _patterns(name, value, case, target) for name, value in found.items()}
    except _Malformed as error:
        comparison = Comparison(error.stage, str(error), {error.stage: 1}, 0)
        return _outcome(kernel, case, node, root, start, Verdict.MISMATCH, None, target, comparison)
    except Exception as error:  # an output that is no array, or one that cannot be brought here
        reason = f"{type(error).__name__}: {error}"
        return _outcome(kernel, case, node, root, start, Verdict.ERROR, reason, target, error=error)
    return _judged(kernel, case, node, root, start, target, outputs)


def _lacking(kernel: Kernel, target: Target) -> str | None:
    """Why a kernel with these parameters cannot be given these inputs."""
    inputs = target.inputs
    for name in kernel.contract.features:
        if name not in kernel.parameters and inputs.get(name) is not None:
            return f"{kernel.name} takes no {name}, which the case has"
    if inputs.get("input_sf", "absent") is None and required(inputs, "x").dtype == np.uint8:
        return None if "input_sf" in kernel.parameters else f"{kernel.name} takes no input_sf: this one is None"
    expected = target.expected.outputs
    unseen = [name in target.ignored and target.ignored[name].all() for name in kernel.outputs if name in expected]
    if unseen and all(unseen):
        return f"the case is about bytes that must not be written, and {kernel.name} takes no buffers"
    refusal = kernel.contract.refusal
    if refusal and refusal not in kernel.outputs and expected.get(refusal, np.zeros(1)).any():
        return f"the case holds input to be refused, and {kernel.name} does not compute {refusal}"
    for name in kernel.required:
        if name in kernel.contract.inputs and name not in inputs:
            return f"{kernel.name} needs {name}, which the case does not give"
    return None


def _call(kernel: Kernel, case: Case, target: Target) -> dict[str, Any]:
    """Call the function, and name what it returned or wrote."""
    arguments: dict[str, Any] = kernel.settings(case)
    for name in kernel.parameters:
        if name in target.inputs:
            value = target.inputs[name]
            arguments[name] = None if value is None else from_numpy(value, kernel.arrays, kernel.device)
    for name in kernel.buffers:
        expected = target.expected.outputs[name]
        poisoned = np.frombuffer(bytes([case.poison]) * expected.nbytes, expected.dtype).reshape(expected.shape)
        arguments[name] = from_numpy(poisoned, kernel.arrays, kernel.device)
    result = kernel.function(**arguments)
    if kernel.buffers:
        return {name: arguments[name] for name in kernel.buffers}
    return _named(kernel, result, [name for name in kernel.outputs if name in target.expected.outputs])


def _named(kernel: Kernel, result: Any, wanted: list[str]) -> dict[str, Any]:
    if isinstance(result, Mapping):
        found = dict(result)
    elif isinstance(result, (tuple, list)):
        names = kernel.outputs if len(result) == len(kernel.outputs) else tuple(wanted)
        if len(result) != len(names):
            raise ArgumentError(
                "kernel", f"{len(result)} values returned", f"{len(names)} of them: {', '.join(kernel.outputs)}"
            )
        found = dict(zip(names, result, strict=True))
    else:
        found = {wanted[0]: result} if len(wanted) == 1 else {}
    lacking = [name for name in wanted if name not in found]
    if lacking:
        returned = describe(sorted(found)) if found else type(result).__name__
        raise ArgumentError("kernel", f"{returned} returned", f"{', '.join(wanted)}: a tuple of arrays, or a mapping")
    return {name: found[name] for name in wanted}


def _patterns(name: str, value: object, case: Case, target: Target) -> NDArray[Any]:
    """An output as bit patterns of the expected form.

    Raises:
        _Malformed: another shape or another type of elements.
    """
    expected = target.expected.outputs[name]
    array = to_numpy(value, name)
    element = _ELEMENTS.get(name) or _DTYPES.get(case.out if case.family == "finalize" else case.dtype, "")
    integers = array.dtype.kind in "iu" and array.dtype.itemsize == expected.dtype.itemsize
    if not integers and array.dtype.name != element:
        # An integer output, an id or a map, has no element type of floating point.
        plain = name in ("codes", "scales", "out", "topk_weights")
        kinds = (
            f"{element}, or its bits as uint{8 * expected.dtype.itemsize}" if plain else f"int{8 * expected.itemsize}"
        )
        raise _Malformed(name, f"the element types differ: kernel {array.dtype}; the contract has {kinds}")
    if name == "scales" and array.size == expected.size:
        array = array.reshape(expected.shape)  # a buffer in a layout: its axes mean nothing
    if array.shape != expected.shape:
        shapes = f"kernel {list(array.shape)} reference {list(expected.shape)}"
        raise _Malformed(name, f"the shapes differ: {shapes}")
    return as_patterns(array).view(expected.dtype)


def _judged(
    kernel: Kernel, case: Case, node: str, root: Path, start: float, target: Target, outputs: Outputs
) -> Outcome:
    expected = target.expected
    cleaned = {name: _without(outputs[name], expected.outputs[name], target.ignored.get(name)) for name in outputs}
    # A second answer to an output, "out-as-int64", is held against that output.
    answers = {stage.name: stage.name.partition("-")[0] for stage in expected.stages}
    stages = [stage for stage in expected.stages if answers[stage.name] in cleaned]
    comparison = compare(stages, {name: cleaned[of] for name, of in answers.items() if of in cleaned}, expected.outputs)
    unseen = sum(
        int(mask.sum()) * expected.outputs[name].itemsize for name, mask in target.ignored.items() if name in cleaned
    )
    comparison = dataclasses.replace(comparison, compared=comparison.compared - unseen)
    finish = (kernel, case, node, root, start)
    outside = expected.outside(cleaned) if "out" in cleaned else None
    if outside is not None:
        return _outcome(*finish, Verdict.OUT_OF_BOUND, outside, target, comparison)
    if comparison.stage is not None:
        reason, policies = _explained(kernel, case, target, outputs)
        return _outcome(*finish, Verdict.MISMATCH, reason, target, comparison, policies=policies)
    verdict = Verdict.PASS if expected.doubt is None else Verdict.MISTRUSTED
    return _outcome(*finish, verdict, expected.doubt, target, comparison)


def _without(ours: NDArray[Any], theirs: NDArray[Any], ignored: NDArray[np.bool_] | None) -> NDArray[Any]:
    return ours if ignored is None else np.where(ignored, theirs, ours)


def _explained(kernel: Kernel, case: Case, target: Target, outputs: Outputs) -> tuple[str | None, tuple[str, ...]]:
    if case.family != "mxfp8_quantize" or {"codes", "scales"} - set(outputs):
        return None, ()
    x = np.ascontiguousarray(required(target.inputs, "x"))
    return explain_difference(kernel, case.layout, x, *(np.ascontiguousarray(outputs[n]) for n in ("codes", "scales")))


def _outcome(
    kernel: Kernel,
    case: Case,
    node: str,
    root: Path,
    start: float,
    verdict: Verdict,
    reason: str | None,
    target: Target | None = None,
    comparison: Comparison | None = None,
    *,
    error: Exception | None = None,
    policies: tuple[str, ...] = (),
) -> Outcome:
    name, file = kernel.source(root)
    text = case_text(case, kernel.place)
    assumption = target.expected.assumption if target is not None else None
    record = CaseRecord(
        id=f"{name}/{text}",
        family=case.family,
        device="cuda" if kernel.place == "cuda" else "host",
        arch=_arch(kernel),
        verdict=verdict,
        evidence="bit-exact" if comparison is not None and comparison.compared > 0 else "none",
        model=assumption.model if assumption else None,
        model_evidence=assumption.evidence if assumption else None,
        reason=reason,
        stage=comparison.stage if comparison else None,
        first_mismatch=comparison.first_mismatch if comparison else None,
        repro=f"pytest '{node}'",
        source_sha256=file_sha256(file) if file is not None else None,
        input_sha256=input_sha256(target.inputs) if target is not None else None,
        seed=case.seed,
        compared=max(comparison.compared, 0) if comparison else 0,
        differing=dict(comparison.differing) if comparison else {},
        launches=[],
        lane_instructions=0,
        made_of=_made_of(kernel, case, target),
        kernel=name,
        seconds=round(time.perf_counter() - start, 4),
        maps=[MismatchMapRecord(**dataclasses.asdict(item)) for item in comparison.maps] or None
        if comparison
        else None,
    )
    return Outcome(record, error, policies, _text(record, comparison, case, kernel))


def _made_of(kernel: Kernel, case: Case, target: Target | None) -> str:
    parts = [
        f"{kernel.arrays} arrays on {kernel.device}",
        kernel.made_of,
        f"contract: {kernel.policy}" * bool(kernel.policy),
    ]
    if target is not None and case.family == "mxfp8_quantize":
        parts.append(declared_difference(kernel, np.ascontiguousarray(required(target.inputs, "x"))) or "")
    return "; ".join(filter(None, parts))


def _arch(kernel: Kernel) -> str:
    """What the kernel ran on: the machine's name, or the GPU's compute capability."""
    if kernel.place == "host":
        return platform.machine()
    try:
        import torch

        major, minor = torch.cuda.get_device_capability()
    except (ImportError, AssertionError, RuntimeError):
        return ""
    return f"sm_{major}{minor}"


def _text(record: CaseRecord, comparison: Comparison | None, case: Case, kernel: Kernel) -> str:
    lines = [f"{record.verdict.value} {record.reason or case_text(case, kernel.place)}"]
    if record.verdict is Verdict.MISMATCH and comparison is not None:
        lines = [mismatch_text(comparison), *([record.reason] if record.reason else [])]
    if not record.verdict.ran:
        return lines[0]
    lines.append(f"contract: {case.family}{f', {kernel.policy}' if kernel.policy else ''}")
    lines.append(f"repro: {record.repro}")
    if kernel.rule is None:
        lines.append(f"refmoe's own kernel on the same case: refmoe repro '{case}'")
    return "\n".join(lines)
