"""What a report says, computed anew from what the package holds: the truth that the gate compares with.

`refmoe.reports` asks whether a document can be true, from the document alone. These rooms ask whether it is, where the
answer takes seconds: operands, programs, pieces and prompts are drawn from seeds, so their figures can be had again.
What only a GPU or a compiler can answer is not asked.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial
from typing import Any

from refmoe.reports.checks import GateRefusal
from refmoe.reports.gate import Recompute

#: The kinds whose figures are computed anew, each by the module of its name here.
KINDS = ("bench", "conformance", "convert", "drift", "exhaustive", "litmus", "mutation", "parity", "stress")
#: Those that take more than some seconds.
SLOW = frozenset(("convert", "drift"))


def recompute(*, quick: bool = False) -> Mapping[str, Recompute]:
    """By the kind of a document what computes its figures anew.

    Args:
        quick: leave out what takes more than some seconds.
    """
    return {kind: partial(refusals, kind) for kind in KINDS if not (quick and kind in SLOW)}


def refusals(kind: str, document: Mapping[str, Any]) -> list[GateRefusal]:
    """Why a document of that kind, which passed its own checks, does not tell what comes out again."""
    # A folder with one kind of report needs one module: together they import most of the package.
    return list(importlib.import_module(f"refmoe.recomputed.{kind}").refusals(document))
