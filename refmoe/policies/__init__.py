"""Scale policies on real data: side by side, and which of them made given bytes.

>>> print(refmoe.policies)      # every policy by name, with its scale mode, its edge policy and its formats
"""

from __future__ import annotations

from collections.abc import Iterator

from refmoe.policies.compare import PolicyComparison, PolicyDifference, PolicyFigures, compare_policies
from refmoe.policies.detect import Ambiguity, Detection, detect_policy, split_gguf_blocks
from refmoe.policies.hypotheses import Hypothesis
from refmoe.policies.rules import PolicyRule, default_rules, rule_named, rules
from refmoe.policies.score import DifferingByte, Score
from refmoe.policies.witness import Witness
from refmoe.policy import EDGE_FORMATS, POLICIES, RELEASES, ScaleMode
from refmoe.printed_modules import prints_as

__all__ = [
    "POLICIES",
    "Ambiguity",
    "Detection",
    "DifferingByte",
    "Hypothesis",
    "PolicyComparison",
    "PolicyDifference",
    "PolicyFigures",
    "PolicyRule",
    "Score",
    "Witness",
    "compare_policies",
    "default_rules",
    "detect_policy",
    "rule_named",
    "rules",
    "split_gguf_blocks",
]


def _listed() -> Iterator[str]:
    yield "A policy is how a block's scale is chosen, its mode, and what becomes of blocks that are zero, tiny or not"
    yield "finite, its edge. refmoe's own is rceil/exact."
    yield ""
    yield f"  mode    {', '.join(mode.value for mode in ScaleMode)}"
    for edge, formats in EDGE_FORMATS.items():
        yield f"  edge    {edge.value:<20}{'':<28}{', '.join(formats)}"
    for policy in (*POLICIES.values(), *RELEASES.values()):
        mode = policy.mode.value
        rules = f"{mode}/{policy.edge.value}" if policy.edge is not None else f"{mode}, edges of its own"
        yield f"  policy  {policy.name:<20}{rules:<28}{', '.join(policy.formats)}"
    yield ""
    yield 'refmoe.quantize(x, "mxfp4", policy="gguf") quantizes by one; MODE/EDGE is one too; MODE is MODE/exact.'
    yield "The comments of refmoe.policy.ScaleMode and EdgePolicy say what each does, and which systems do it."


prints_as(__name__, lambda: "\n".join(_listed()))
