"""Scale policies on real data: side by side, and which of them made given bytes."""

from __future__ import annotations

from refmoe.policies.compare import Difference, PolicyComparison, PolicyFigures, compare_policies
from refmoe.policies.detect import Ambiguity, Detection, detect_policy, split_gguf_blocks
from refmoe.policies.evidence import Place, Score
from refmoe.policies.faults import Hypothesis
from refmoe.policies.rules import Rule, default_rules, rule_named, rules
from refmoe.policies.witness import Witness

__all__ = [
    "Ambiguity",
    "Detection",
    "Difference",
    "Hypothesis",
    "Place",
    "PolicyComparison",
    "PolicyFigures",
    "Rule",
    "Score",
    "Witness",
    "compare_policies",
    "default_rules",
    "detect_policy",
    "rule_named",
    "rules",
    "split_gguf_blocks",
]
