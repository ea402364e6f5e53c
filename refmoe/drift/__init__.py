"""Drift: several paths through the same mixtures of experts, side by side over decode steps."""

from __future__ import annotations

from refmoe.drift.growth import Growth, fit_growth
from refmoe.drift.paths import DriftPath, DriftPathError, drift_path
from refmoe.drift.run import DriftRun, PathComparison, Point, run_drift

__all__ = [
    "DriftPath",
    "DriftPathError",
    "DriftRun",
    "Growth",
    "PathComparison",
    "Point",
    "drift_path",
    "fit_growth",
    "run_drift",
]
