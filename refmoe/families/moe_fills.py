"""Tokens and weights of whole layers, seeded.

`gaussian` has weights of uniform codes and a few scales around one that keeps the sums near 2, so that the clamps of
the activation are reached and few of its results vanish. `real` is a real feed-forward block on its own activations;
its experts are that block with rows moved and blocks scaled by powers of two of either sign, so that they differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.fills import BLOCK
from refmoe.families.real_data import SHIPPED, read_activations, tile_rows
from refmoe.reference.tensor import MXTensor

__all__ = ["MOE_FILLS", "SHIPPED_EXPERT", "LayerFill", "LayerWeights", "tokens_of", "weights_of"]

#: The expert that ships with refmoe: MXFP4 `gate_up` [1536, 384], gate and up in turn, and `down` [384, 768].
SHIPPED_EXPERT = Path(__file__).resolve().parent / "data" / "minilm_layer2_moe.safetensors"

_BF16 = np.dtype(ml_dtypes.bfloat16)
_IDENTITY = 127
_CODE_RMS = 2.93  # of uniform E2M1 codes
_SIGNS = 0x88  # of the two codes of a byte
_SHIFTS = (0, 1, -1, 2, -2)  # exponents of the factors of the real experts


@dataclass(frozen=True)
class LayerFill:
    """A fill; `size` is the (hidden, intermediate) that it has, None for any."""

    size: tuple[int, int] | None = None


MOE_FILLS: Mapping[str, LayerFill] = MappingProxyType({"gaussian": LayerFill(), "real": LayerFill((384, 768))})


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """gate_up: mxfp4 [E, 2 I, H], rows as the variant's activation reads them; down: mxfp4 [E, H, I]."""

    gate_up: MXTensor
    down: MXTensor


def tokens_of(fill: str, seed: int, tokens: int, hidden: int) -> NDArray[Any]:
    """BF16 [tokens, hidden]."""
    if fill == "real":
        return tile_rows(read_activations(SHIPPED).patterns, tokens, hidden, first_row=seed * 37).view(_BF16)
    draw = Draw("moe-tokens", fill, seed)
    # A channel in 17 is an outlier, as in transformers: blocks get different scales.
    factors = np.where(np.arange(hidden) % 17 == 3, 12.0, 1.0)
    return np.asarray((draw.normal((tokens, hidden)) * factors).astype(_BF16))


def weights_of(
    fill: str, seed: int, variant: str, experts: int, hidden: int, intermediate: int, first_expert: int = 0
) -> LayerWeights:
    """Those of `experts` experts from `first_expert` on; an expert has the same weights on every rank."""
    make: Callable[[int], tuple[MXTensor, MXTensor]]
    make = _real_expert if fill == "real" else functools.partial(_drawn_expert, fill, seed, hidden, intermediate)
    made = [make(first_expert + expert) for expert in range(experts)]
    gate_up = _stacked([_laid_out(variant, pair[0]) for pair in made])
    return LayerWeights(gate_up, _stacked([pair[1] for pair in made]))


def _drawn_expert(fill: str, seed: int, hidden: int, intermediate: int, expert: int) -> tuple[MXTensor, MXTensor]:
    draw = Draw("moe-weights", fill, seed, expert)
    return _drawn(draw, 2 * intermediate, hidden), _drawn(draw, hidden, intermediate)


def _drawn(draw: Draw, rows: int, k: int) -> MXTensor:
    """Uniform codes, the scales of a row's blocks within a factor of 4."""
    codes = draw.words(-(-rows * k // 16)).view(np.uint8)[: rows * k // 2].reshape(rows, k // 2)
    middle = _IDENTITY - 1 - round(np.log2(_CODE_RMS * np.sqrt(k)))
    scales = middle + draw.integers(3, (rows, k // BLOCK)) - 1
    return MXTensor(np.ascontiguousarray(codes), scales.astype(np.uint8), "mxfp4")


@functools.lru_cache(maxsize=1)
def _shipped() -> Mapping[str, NDArray[np.uint8]]:
    from safetensors.numpy import load_file

    return load_file(SHIPPED_EXPERT)


def _real_expert(expert: int) -> tuple[MXTensor, MXTensor]:
    """Gate and up move together, and another way than the rows of down."""
    shipped = _shipped()
    sign = np.uint8(_SIGNS if expert % 2 else 0)
    made = []
    for name, rows_together in (("gate_up", 2), ("down", 1)):
        codes, scales = shipped[f"{name}.codes"], shipped[f"{name}.scales"]
        count = codes.shape[0] // rows_together
        order = np.argsort(Draw("moe-rows", name, expert).words(count), kind="stable")
        rows = (order[:, None] * rows_together + np.arange(rows_together)).reshape(-1)
        shift = _SHIFTS[expert % len(_SHIFTS)]
        made.append(MXTensor(codes[rows] ^ sign, (scales[rows].astype(np.int64) + shift).astype(np.uint8), "mxfp4"))
    return made[0], made[1]


def _laid_out(variant: str, gate_up: MXTensor) -> MXTensor:
    """Gate and up in turn; for silu all gates first."""
    if variant == "gpt_oss":
        return gate_up
    codes, scales = (np.concatenate([part[::2], part[1::2]]) for part in (gate_up.codes, gate_up.scales))
    return MXTensor(codes, scales, "mxfp4")


def _stacked(experts: list[MXTensor]) -> MXTensor:
    return MXTensor(
        np.stack([expert.codes for expert in experts]), np.stack([expert.scales for expert in experts]), "mxfp4"
    )
