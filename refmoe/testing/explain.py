"""Why a quantizing kernel differs: another policy than its contract's, with the size of the difference, or a fault."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.policies import Difference, Rule, compare_policies, detect_policy, rule_named
from refmoe.testing.contract import Kernel

__all__ = ["contract_rule", "declared_difference", "explain_difference"]


def contract_rule(kernel: Kernel) -> Rule:
    """The quantization policy of a contract of mxfp8_quantize."""
    return kernel.rule or rule_named(f"{kernel.options['mode']}/{kernel.options['edge']}", "mxfp8")


def explain_difference(
    kernel: Kernel, layout: str, x: NDArray[Any], codes: NDArray[np.uint8], scales: NDArray[np.uint8]
) -> tuple[str, tuple[str, ...]]:
    """A sentence on whose bytes these are, and the names of the policies that give all of them, if any does."""
    found = detect_policy(x, codes, scales, "mxfp8", layout=layout)
    base = contract_rule(kernel)
    for rule in (match.rule for match in found.matches):
        apart = _apart(x, base, rule)
        if apart.scales or apart.codes:
            return f"a policy difference: these are the bytes of {rule}, {_size(x, base, rule)}", found.names
    if found.matches:
        return f"the blocks that differ are such as {found.matches[0].rule} leaves undefined", ()
    if found.ordinary:
        return (
            f"on ordinary blocks these are the bytes of {', '.join(map(str, found.ordinary))}; edge blocks differ",
            (),
        )
    if found.hypotheses:
        fault = found.hypotheses[0]
        left = f"; {fault.left} of {fault.blocks} blocks are not explained by it" if fault.left else ""
        return f"this would explain it: {fault.fault}, under {fault.names[0]}{left}", ()
    return "no known policy gives these bytes, with or without a known fault", ()


def declared_difference(kernel: Kernel, x: NDArray[Any]) -> str | None:
    """How far the contract's policy is from `rceil/exact` on this input, where it is another; None if it is not."""
    rule = contract_rule(kernel)
    if rule.name == "rceil/exact" or not x.size:
        return None
    return f"declared policy: {rule}, {_size(x, rule_named('rceil/exact', 'mxfp8'), rule)}"


def _apart(x: NDArray[Any], base: Rule, other: Rule) -> Difference:
    if base == other:
        return Difference(0, 0, 0)
    return compare_policies(x, "mxfp8", policies=[base.name, other.name]).between(base.name, other.name)


def _size(x: NDArray[Any], base: Rule, other: Rule) -> str:
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
