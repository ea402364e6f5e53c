"""Accumulation models of tensor cores, and the products that they define."""

from __future__ import annotations

from refmoe.reference.mma.models import ELEMENT_FORMATS, MODELS, AccumulationModel, Evidence, Kind, Pair, as_model
from refmoe.reference.mma.product import split_k_sum, tensor_core_mma

__all__ = [
    "ELEMENT_FORMATS",
    "MODELS",
    "AccumulationModel",
    "Evidence",
    "Kind",
    "Pair",
    "as_model",
    "split_k_sum",
    "tensor_core_mma",
]
