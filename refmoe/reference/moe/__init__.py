"""Whole MoE layers: their weights, the paths through them to the last bit, and where a path's output can lie."""

from __future__ import annotations

from refmoe.reference.moe.enclosure import Enclosure, layer_bound, layer_enclosure
from refmoe.reference.moe.float64 import moe_float64
from refmoe.reference.moe.layer import MoELayer
from refmoe.reference.moe.paths import path_steps
from refmoe.reference.moe.pipeline import MoEStages, moe_layer

__all__ = [
    "Enclosure",
    "MoELayer",
    "MoEStages",
    "layer_bound",
    "layer_enclosure",
    "moe_float64",
    "moe_layer",
    "path_steps",
]
