"""What a kernel under a contract has to make of a case, and which bytes the contract says nothing about."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.families.case import Case
from refmoe.families.family import Expectation, Inputs, required
from refmoe.families.quantize_expand import RUNS, case_doubt
from refmoe.families.vacuity import Sample
from refmoe.policies.compare import input_blocks
from refmoe.policies.rules import Rule
from refmoe.reference.dequantize import BLOCK
from refmoe.reference.layout import swizzle_scales
from refmoe.reference.quantize import quantize_mxfp8
from refmoe.testing.contract import Kernel
from refmoe.verify.compare import Codes, Scales

__all__ = ["Target", "target_of"]


@dataclass(frozen=True, eq=False)
class Target:
    """A case as a registered kernel meets it.

    Attributes:
        inputs: NumPy arrays by name, None for what the case has not.
        expected: the outputs, and how to compare them.
        ignored: bool by output, of its shape: elements that no reader may depend on, or that the policy leaves
            undefined; an output that is not there is compared whole.
    """

    inputs: Inputs
    expected: Expectation
    ignored: Mapping[str, NDArray[np.bool_]]


def target_of(kernel: Kernel, case: Case) -> Target:
    """Inputs and expectation of a case under a kernel's contract."""
    run = RUNS[case.family]
    inputs = run.inputs(case)
    make = run.expect if kernel.rule is None else _expect_by(kernel.rule)
    expected = make(case, inputs)
    ignored: dict[str, NDArray[np.bool_]] = {}
    if not kernel.buffers:
        # An array that the kernel allocates has no poison in it: what depends on the poison is what nobody writes.
        other = make(dataclasses.replace(case, poison=case.poison ^ 0xFF), inputs)
        ignored = {name: value != other.outputs[name] for name, value in expected.outputs.items()}
    if kernel.rule is not None:
        for name, undefined in _undefined(kernel.rule, case, inputs).items():
            ignored[name] = ignored.get(name, False) | undefined
    return Target(inputs, expected, {name: mask for name, mask in ignored.items() if mask.any()})


def quantize_by(rule: Rule, x: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.bool_]]:
    """Codes [M, K] and linear scales [M, K/32] of MXFP8 by a rule, and bool [M, K/32]: the blocks that it defines."""
    rows, k = x.shape
    if not x.size:
        return np.zeros((rows, k), np.uint8), np.zeros((rows, k // BLOCK), np.uint8), np.ones((rows, k // BLOCK), bool)
    parts = [rule.run(blocks) for _, blocks in input_blocks(np.ascontiguousarray(x).reshape(-1, BLOCK), "mxfp8")]
    codes = np.concatenate([part.codes for part in parts]).reshape(rows, k)
    scales, defined = (
        np.concatenate([getattr(part, name) for part in parts]).reshape(rows, k // BLOCK)
        for name in ("scales", "defined")
    )
    return codes, scales, defined


def _expect_by(rule: Rule) -> Any:
    """As the family's own `expect`, for a policy that its cases cannot name."""

    def expect(case: Case, inputs: Inputs) -> Expectation:
        x = required(inputs, "x")
        codes, scales, _ = quantize_by(rule, x)
        # The limits of a fill are those of its quantized form under the family's own policies.
        usual = quantize_mxfp8(x)
        rows, blocks = scales.shape
        stages = (
            Codes("codes", codes.shape, scales, written_rows=rows, poison=case.poison),
            Scales("scales", case.layout, rows, blocks, poison=case.poison),
        )
        outputs = {"codes": codes, "scales": swizzle_scales(scales, case.layout, fill=case.poison)}
        return Expectation(outputs, stages, case_doubt(case, Sample(usual.codes, usual.scales)))

    return expect


def _undefined(rule: Rule, case: Case, inputs: Inputs) -> dict[str, NDArray[np.bool_]]:
    """The codes and scales of blocks that the rule leaves undefined."""
    undefined = ~quantize_by(rule, required(inputs, "x"))[2]
    return {
        "codes": np.repeat(undefined, BLOCK, axis=1),
        "scales": swizzle_scales(undefined.astype(np.uint8), case.layout).astype(np.bool_),
    }
