"""Kernels of mxfp8_quantize under a whole policy: what the policy expects, and whose bytes a kernel gave."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.families.family import Case, Expectation, Inputs
from refmoe.families.quantize import FILLS, quantized_stages
from refmoe.families.vacuity import doubt_codes
from refmoe.formats import MX_BLOCK
from refmoe.policies import PolicyDifference, PolicyRule, compare_policies, detect_policy, rule_named
from refmoe.policies.blocks import input_blocks
from refmoe.reference.layout import swizzle_scales
from refmoe.reference.quantize import quantize_mxfp8


def quantize_by(rule: PolicyRule, x: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.bool_]]:
    """Codes [M, K] and linear scales [M, K/32] of MXFP8 by a rule, and bool [M, K/32]: the blocks that it defines."""
    blocked = x.shape[0], x.shape[1] // MX_BLOCK
    if not x.size:
        return np.zeros(x.shape, np.uint8), np.zeros(blocked, np.uint8), np.ones(blocked, bool)
    parts = [rule.run(blocks) for _, blocks in input_blocks(np.ascontiguousarray(x).reshape(-1, MX_BLOCK), "mxfp8")]
    codes = np.concatenate([part.codes for part in parts]).reshape(x.shape)
    scales = np.concatenate([part.scales for part in parts]).reshape(blocked)
    return codes, scales, np.concatenate([part.defined for part in parts]).reshape(blocked)


@lru_cache(maxsize=1)
def ruled_problem(rule: PolicyRule, case: Case) -> tuple[Inputs, Expectation]:
    """A case's inputs, and the expectation of a rule that the family's own options cannot name."""
    inputs = case.family.inputs(case)
    x = inputs["x"]
    codes, scales, _ = quantize_by(rule, x)
    # The limits of a fill are those of its quantized form under the family's own policies.
    usual = quantize_mxfp8(x)
    outputs = {"codes": codes, "scales": swizzle_scales(scales, case.layout, fill=case.poison)}
    doubt = doubt_codes(usual.codes, usual.scales, FILLS[case.fill].limits)
    return inputs, Expectation(outputs, quantized_stages(case, scales), doubt)


def undefined(rule: PolicyRule, case: Case, inputs: Inputs) -> dict[str, NDArray[np.bool_]]:
    """The codes and scales of blocks that the rule leaves undefined, bool of the outputs' shapes."""
    blocks = ~quantize_by(rule, inputs["x"])[2]
    return {
        "codes": np.repeat(blocks, MX_BLOCK, axis=1),
        "scales": swizzle_scales(blocks.astype(np.uint8), case.layout).astype(np.bool_),
    }


def explain_difference(
    base: PolicyRule, layout: str, x: NDArray[Any], codes: NDArray[np.uint8], scales: NDArray[np.uint8]
) -> tuple[str, tuple[str, ...]]:
    """A sentence that says which policy gives these bytes, and the names of the policies that give all of them."""
    found = detect_policy(x, codes, scales, "mxfp8", layout=layout)
    for rule in (match.rule for match in found.matches):
        apart = _apart(x, base, rule)
        if apart.scales or apart.codes:
            return f"a policy difference: these are the bytes of {rule}, {_size(x, base, rule)}", found.names
    if found.matches:
        return f"the blocks that differ are such as {found.matches[0].rule} leaves undefined", ()
    if found.ordinary:
        names = ", ".join(map(str, found.ordinary))
        edges = "all zero, tiny, or not finite"
        return f"these are the bytes of {names}, but on edge blocks: every block that differs is {edges}", ()
    if found.hypotheses:
        fault = found.hypotheses[0]
        left = f"; {fault.left} of {fault.blocks} blocks are not explained by it" if fault.left else ""
        return f"this would explain it: {fault.fault}, under {fault.names[0]}{left}", ()
    return "no known policy gives these bytes, with or without a known fault", ()


def declared_difference(rule: PolicyRule, x: NDArray[Any]) -> str | None:
    """The distance of the contract's policy from `rceil/exact` on this input, in words; None if it is that policy."""
    if rule.name == "rceil/exact" or not x.size:
        return None
    return f"declared policy: {rule}, {_size(x, rule_named('rceil/exact', 'mxfp8'), rule)}"


def _apart(x: NDArray[Any], base: PolicyRule, other: PolicyRule) -> PolicyDifference:
    if base == other:
        return PolicyDifference(0, 0, 0)
    return compare_policies(x, "mxfp8", policies=[base.name, other.name]).between(base.name, other.name)


def _size(x: NDArray[Any], base: PolicyRule, other: PolicyRule) -> str:
    """The size of a policy difference in words."""
    compared = compare_policies(x, "mxfp8", policies=[base.name, other.name])
    apart = compared.between(base.name, other.name)
    errors = {figures.rule.name: figures.relative_l2 for figures in compared.figures}
    text = (
        f"not of {base}; on this input they differ in {apart.scales} of {apart.blocks} scale bytes "
        f"({apart.scale_share:.1%}) and {apart.codes} codes ({apart.code_share:.1%})"
    )
    if np.isfinite(list(errors.values())).all():
        text += f", relative L2 error {errors[other.name]:.4f} against {errors[base.name]:.4f}"
    return text
