"""Models of `wgmma` with FP16 accumulators, which no kernel of ours has: they stand apart from `MODELS`.

Both are fused blocks, see `refmoe.reference.mma.models`, whose C has an exponent of at least -14 and whose sum is
rounded once, to nearest even, to FP16. Of FP8 the terms are cut to multiples of 2^(E - 13), as with FP32 accumulators.
On an H200 0 of 393,216 outputs of each of the five pairs differ, over normal, wide, full-range, subnormal, large,
sparse, cancelling and special data, C included.
"""

from __future__ import annotations

from dataclasses import replace

from refmoe.evidence import Evidence
from refmoe.reference.mma.models import MODELS, AccumulationModel, Pair, answered

_FP8 = ("e4m3", "e5m2")
_HALF = replace(
    MODELS["sm90_mma_f16acc"],
    name="sm90_wgmma_f16acc",
    instruction="SM90 wgmma of FP16, FP16 accumulators",
    pairs={("f16", "f16"): Pair(16, Evidence.EXTRAPOLATED, Evidence.EXTRAPOLATED)},
)

HALF_MODELS: dict[str, AccumulationModel] = {
    "f16": answered(_HALF),
    **dict.fromkeys(
        _FP8,
        answered(
            replace(
                _HALF,
                name="sm90_wgmma_fp8_f16acc",
                instruction="SM90 wgmma of FP8, FP16 accumulators",
                pairs={(a, b): Pair(32, Evidence.EXTRAPOLATED, Evidence.EXTRAPOLATED) for a in _FP8 for b in _FP8},
                align_bits=13,
            )
        ),
    ),
}
"""The models by the type of A."""


def sparse(model: AccumulationModel) -> AccumulationModel:
    """A model of `wgmma.sp`: as many products make a block, of twice the elements of K, half of them zeros of A."""
    pairs = {pair: replace(held, block=2 * held.block) for pair, held in model.pairs.items()}
    return replace(model, name=f"{model.name}_sparse", pairs=pairs)
