"""Batch invariance: a token's bytes do not depend on the batch that it is in, or the pair of calls that differs."""

from __future__ import annotations

from refmoe.batching.function import invariant
from refmoe.batching.prove import Certificate, Difference, certify, certify_all
from refmoe.batching.subject import Call, Subject
from refmoe.batching.subjects import subjects

__all__ = ["Call", "Certificate", "Difference", "Subject", "certify", "certify_all", "invariant", "subjects"]
