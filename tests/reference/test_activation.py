"""SwiGLU: equal to its specification on values that hurt, what a NaN becomes, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from support.fp32_values import BF16, CORNERS, bits, mixed, same_bytes
from support.selection.thinned import thinned

from refmoe.errors import ArgumentError
from refmoe.reference import expand, fp32, quantize_mxfp8, swiglu, swiglu_quantize
from refmoe.reference.scalar.activation import swiglu as specified

ALPHA, BETA, LIMIT = (int(np.float32(x).view(np.uint32)) for x in (1.702, 1.0, 7.0))


@pytest.mark.parametrize("variant", ["gpt_oss", "silu"])
@pytest.mark.parametrize("dtype", [np.float32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("bias", thinned([None, "shared", "per row"], 3))
def test_equals_the_specification(variant: str, dtype: np.dtype, bias: str | None) -> None:
    rng = np.random.default_rng(7)
    with np.errstate(over="ignore", invalid="ignore"):
        x = mixed(rng, (12, 20)).astype(dtype)
    addend = None if bias is None else rng.standard_normal((20,) if bias == "shared" else x.shape).astype(BF16)
    rows = [None] * 12 if addend is None else bits(np.broadcast_to(addend, x.shape))
    wanted = [specified(row, variant, b, ALPHA, BETA, LIMIT) for row, b in zip(bits(x), rows, strict=True)]
    assert same_bytes(swiglu(x, variant=variant, bias=addend), wanted)


@pytest.mark.parametrize("variant", ["gpt_oss", "silu"])
def test_every_pair_of_corners(variant: str) -> None:
    """Both infinities, NaNs, the clamps' own value and its neighbours, as gate and as up."""
    gate, up = (side.reshape(-1) for side in np.meshgrid(CORNERS, CORNERS))
    x = np.stack([gate, up], axis=1)
    wanted = [specified(row, variant, None, ALPHA, BETA, LIMIT) for row in bits(x)]
    assert same_bytes(swiglu(x, variant=variant), wanted)


@pytest.mark.parametrize("limit", [0.0, -0.0])
@pytest.mark.parametrize("beta", thinned([1.0, 0.0, -0.0, -1.0], 4))
def test_every_pair_of_corners_at_a_limit_of_zero(limit: float, beta: float) -> None:
    """-0 lies below +0: the clamps decide the sign of a zero, and NumPy's own minimum leaves it open."""
    gate, up = (side.reshape(-1) for side in np.meshgrid(CORNERS, CORNERS))
    x = np.stack([gate, up], axis=1)
    beta_bits, limit_bits = (int(np.float32(value).view(np.uint32)) for value in (beta, limit))
    wanted = [specified(row, "gpt_oss", None, ALPHA, beta_bits, limit_bits) for row in bits(x)]
    assert same_bytes(swiglu(x, beta=beta, limit=limit), wanted)


@pytest.mark.parametrize(("least", "greatest"), [(-0.0, 0.0), (-1.0, 2.0), (-np.inf, np.inf)])
def test_minimum_and_maximum_order_zeros(least: float, greatest: float) -> None:
    x, y = np.array([least, greatest], np.float32), np.array([greatest, least], np.float32)
    assert same_bytes(fp32.minimum(x, y), np.full(2, least, np.float32).view(np.uint32))
    assert same_bytes(fp32.maximum(x, y), np.full(2, greatest, np.float32).view(np.uint32))
    assert np.isnan(fp32.minimum(x, x * np.float32(np.nan))).all()
    assert np.isnan(fp32.maximum(x * np.float32(np.nan), x)).all()


def test_a_nan_is_kept_through_the_clamps() -> None:
    nan = np.float32(np.nan)
    x = np.array([[nan, 1], [1, nan], [-nan, 100], [100, 100]], np.float32)
    found = swiglu(x)
    assert found[:3].view(np.uint32).tolist() == [[0x7FFFFFFF]] * 3
    assert np.isfinite(found[3])


def test_parameters_may_differ_from_row_to_row() -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((4, 16)).astype(np.float32) * 10
    alpha, beta, limit = (rng.uniform(0.5, 3, 4).astype(np.float32) for _ in range(3))
    found = swiglu(x, alpha=alpha, beta=beta, limit=limit)
    for row in range(4):
        alone = swiglu(x[row : row + 1], alpha=float(alpha[row]), beta=float(beta[row]), limit=float(limit[row]))
        assert found[row].tobytes() == alone.tobytes()
    assert found.tobytes() != swiglu(x).tobytes()


def test_interleaving_and_halves() -> None:
    gate, up = np.array([[1.0, 2.0]], np.float32), np.array([[3.0, -1.0]], np.float32)
    interleaved = np.stack([gate, up], axis=2).reshape(1, 4)
    # up + 1 is 4 and 0 in one variant, up is 3 and -1 in the other.
    assert swiglu(interleaved)[0, 1] == 0
    assert swiglu(np.concatenate([gate, up], axis=1), variant="silu")[0, 1] < 0


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"gate_up": np.zeros((2, 4))}, "gate_up"),
        ({"gate_up": np.zeros((2, 5), np.float32)}, "gate_up"),
        ({"gate_up": np.zeros(4, np.float32)}, "gate_up"),
        ({"variant": "gelu"}, "variant"),
        ({"bias": np.zeros(2, np.float32)}, "bias"),
        ({"bias": np.zeros(4)}, "bias"),
        ({"alpha": np.zeros(3, np.float32)}, "alpha"),
        ({"beta": "1"}, "beta"),
        ({"limit": -1.0}, "limit"),
        ({"limit": float("nan")}, "limit"),
        ({"variant": "silu", "limit": 5.0}, "limit"),
        ({"variant": "silu", "alpha": np.ones(2, np.float32)}, "alpha"),
    ],
)
def test_refused_arguments(arguments: dict, argument: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        swiglu(**{"gate_up": np.zeros((2, 4), np.float32), **arguments})
    assert refused.value.argument == argument


@pytest.mark.parametrize("layout", ["128x4", "8x4", "linear"])
@pytest.mark.parametrize("edge", ["exact", "flashinfer"])
def test_quantized_rows_are_the_parts_put_together(layout: str, edge: str) -> None:
    """Bias and parameters of each row's expert; scales in the places of expand's; rows of no expert hold the fill."""
    rng = np.random.default_rng(9)
    offsets = np.array([0, 3, 3, 8], np.int64)
    gate_up = (rng.standard_normal((10, 192)) * 5).astype(BF16)
    gate_up[8:] = np.nan
    gate_up[0, 0] = np.inf
    bias = rng.standard_normal((3, 192)).astype(BF16)
    alpha, beta, limit = (rng.uniform(0.5, 5, 3).astype(np.float32) for _ in range(3))
    parameters = {"alpha": alpha, "beta": beta, "limit": limit}
    found = swiglu_quantize(
        gate_up, offsets, mode="floor", edge=edge, bias=bias, **parameters, layout=layout, fill=0xA5
    )
    rows = {0: slice(0, 3), 2: slice(3, 8)}
    parts = []
    for expert, part in rows.items():
        own = {name: float(values[expert]) for name, values in parameters.items()}
        parts.append(swiglu(gate_up[part], bias=bias[expert], **own))
    quantized = quantize_mxfp8(np.concatenate(parts), mode="floor", edge=edge)
    assert found.codes[:8].tobytes() == quantized.codes.tobytes()
    assert (found.codes[8:] == 0xA5).all()
    # expand writes ready scales of the same rows to the same places.
    ids = np.repeat([0, 2], [3, 5]).astype(np.int32)[:, None]
    as_expanded = expand(
        quantized.codes, ids, 3, layout=layout, input_sf=quantized.scales, fill=0xA5
    ).scales  # fmt: skip
    assert found.scales[: as_expanded.size].tobytes() == as_expanded.tobytes()
    assert (found.scales[as_expanded.size :] == 0xA5).all()


def test_quantized_rows_of_nobody() -> None:
    found = swiglu_quantize(np.zeros((2, 64), BF16), np.zeros(3, np.int64), fill=7)
    assert (found.codes == 7).all()
    assert (found.scales == 7).all()


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"gate_up": np.zeros((4, 96), BF16)}, "gate_up"),
        ({"offsets": np.array([0, 5], np.int64)}, "offsets"),
        ({"offsets": np.array([0, 4], np.int32)}, "offsets"),
        ({"bias": np.zeros((2, 64), BF16)}, "bias"),
        ({"bias": np.zeros((1, 64))}, "bias"),
        ({"alpha": np.ones(2, np.float32)}, "alpha"),
        ({"beta": 1.0}, "beta"),
        ({"limit": -np.ones(1, np.float32)}, "limit"),
        ({"layout": "4x4"}, "layout"),
        ({"fill": 256}, "fill"),
        ({"edge": "nowhere"}, "edge"),
        ({"variant": "relu"}, "variant"),
    ],
)
def test_refused_arguments_of_the_quantized_form(arguments: dict, argument: str) -> None:
    good = {"gate_up": np.zeros((4, 64), BF16), "offsets": np.array([0, 4], np.int64)}
    with pytest.raises(ArgumentError) as refused:
        swiglu_quantize(**{**good, **arguments})
    assert refused.value.argument == argument
