"""What is said of a race: both accesses, what is missing between them, and what was tried that orders them."""

from __future__ import annotations

from refmoe.ptx.findings.accesses import Accessed
from refmoe.ptx.findings.explain import unexplained
from refmoe.ptx.findings.finding import Finding

__all__ = ["Accessed", "Finding", "unexplained"]
