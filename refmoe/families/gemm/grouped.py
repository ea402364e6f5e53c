"""What the families of all grouped GEMMs have: buffers, the expectation, the launch, the contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from refmoe.families.family import Assumption, Case, Contract, Expectation, Inputs, Outputs
from refmoe.families.gemm.epilogue import BITS, FloatArray, distinct_bias, epilogue, interval, output_bits
from refmoe.families.gemm.stages import Products
from refmoe.families.stages import GroupedScales
from refmoe.families.vacuity import Limits, doubt_products
from refmoe.reference.layout import swizzle_weight_scales

if TYPE_CHECKING:
    from refmoe.cuda.device import Device

CONTRACT = Contract(
    inputs=(
        *("tokens", "token_scales", "token_scale_buffer", "weights", "weight_scales", "weight_scale_buffer"),
        *("offsets", "alpha", "bias"),
    ),
    features=("alpha", "bias"),
    outputs={"out": "case.dtype"},
    settings={"num_experts": "e", "out_dtype": "dtype"},
    padded_inputs=True,
)

Bounds = Callable[[], tuple[NDArray[np.float64], NDArray[np.float64]]]


def gemm_inputs(
    case: Case,
    tokens: NDArray[np.uint8],
    token_scales: NDArray[np.uint8],
    weights: NDArray[np.uint8],
    weight_scales: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    alpha: FloatArray | None,
    block: int,
) -> Inputs:
    """Operands as references take them (linear scales) and as kernels do (128x4 buffers, padding poisoned)."""
    expanded = GroupedScales("token_scales", "128x4", offsets, case.shape.k // block)
    return {
        "tokens": tokens,
        "token_scales": token_scales,
        "token_scale_buffer": expanded.buffer(token_scales[: offsets[-1]], case.shape.m, case.poison),
        "weights": weights,
        "weight_scales": weight_scales,
        "weight_scale_buffer": swizzle_weight_scales(weight_scales, fill=case.poison),
        "offsets": offsets,
        "alpha": alpha,
        "bias": distinct_bias(case) if case.bias == "distinct" else None,
    }


def expect_products(
    case: Case,
    inputs: Inputs,
    values: NDArray[Any],
    second: tuple[str, FloatArray] | None,
    bounds: Bounds,
    limits: Limits,
    assumption: Assumption,
) -> Expectation:
    """What a kernel has to write.

    Args:
        case: with its dtype, fill and poison.
        inputs: of `gemm_inputs`.
        values: the reference's output [T, N].
        second: a second answer, if the fill allows one: the stage's name, and FP32 sums [T, N].
        bounds: the exact sums and the model's bound around them; asked for FP32 results alone.
        limits: beyond which the data could not have failed.
        assumption: of the tensor cores.
    """
    offsets = inputs["offsets"]
    used = int(offsets[-1])
    outputs = {"out": output_bits(case, values, used)}
    if second is not None:
        outputs[second[0]] = output_bits(case, epilogue(case, inputs, second[1]), used)
    within = interval(case, inputs, *bounds()) if case.dtype == "f32" else None
    stages = tuple(
        Products(name, case.dtype, case.shape.n, offsets, case.poison, within if name == "out" else None)
        for name in outputs
    )
    doubt = doubt_products(
        values[:used].astype(np.float32),
        inputs["token_scales"][:used],
        inputs["weight_scales"],
        None if within is None else within.relative_width(),
        limits,
    )
    answers = dict.fromkeys(outputs, "out")
    return Expectation(outputs, stages, doubt, assumption, lambda found: stages[0].outside(found["out"]), answers)


def run_products(
    launch: Callable[..., NDArray[Any]], case: Case, inputs: Inputs, device: Device, **tile: Any
) -> Outputs:
    """The output's bits of one of refmoe's own GEMMs; `tile` is its tile and stages."""
    out = launch(
        inputs["tokens"],
        inputs["token_scale_buffer"],
        inputs["weights"],
        inputs["weight_scale_buffer"],
        inputs["offsets"],
        device=device,
        **tile,
        alpha=inputs["alpha"],
        bias=inputs["bias"],
        out_dtype=case.dtype,
        fill=case.poison,
    )
    return {"out": np.ascontiguousarray(out).view(BITS[case.dtype])}
