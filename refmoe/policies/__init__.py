"""Scale policies on real data: side by side, and which of them made given bytes."""

from __future__ import annotations

from refmoe.policies.compare import PolicyComparison, PolicyDifference, PolicyFigures, compare_policies
from refmoe.policies.detect import Ambiguity, Detection, detect_policy, split_gguf_blocks
from refmoe.policies.hypotheses import Hypothesis
from refmoe.policies.rules import PolicyRule, default_rules, rule_named, rules
from refmoe.policies.score import DifferingByte, Score
from refmoe.policies.witness import Witness

__all__ = [
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
