"""Accumulation models of tensor cores, and the products that they define."""

from __future__ import annotations

from refmoe.evidence import Evidence
from refmoe.reference.mma.bounds import (
    a_priori_bound,
    exact_sum,
    magnitude_sum,
    output_bound,
    running_bound,
    split_k_bound,
    within_bound,
)
from refmoe.reference.mma.models import ELEMENT_FORMATS, MODELS, AccumulationModel, Kind, Pair, as_model
from refmoe.reference.mma.product import split_k_sum, tensor_core_mma

__all__ = [
    "ELEMENT_FORMATS",
    "MODELS",
    "AccumulationModel",
    "Evidence",
    "Kind",
    "Pair",
    "a_priori_bound",
    "as_model",
    "exact_sum",
    "magnitude_sum",
    "output_bound",
    "running_bound",
    "split_k_bound",
    "split_k_sum",
    "tensor_core_mma",
    "within_bound",
]
