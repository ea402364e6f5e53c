"""Accumulation models of tensor cores, and the products that they define."""

from __future__ import annotations

from refmoe.reference.mma.bounds import exact_sum, output_bound, running_bound, within_bound
from refmoe.reference.mma.models import ELEMENT_FORMATS, MODELS, AccumulationModel, Evidence, Kind, Pair, as_model
from refmoe.reference.mma.product import tensor_core_mma

__all__ = [
    "ELEMENT_FORMATS",
    "MODELS",
    "AccumulationModel",
    "Evidence",
    "Kind",
    "Pair",
    "as_model",
    "exact_sum",
    "output_bound",
    "running_bound",
    "tensor_core_mma",
    "within_bound",
]
