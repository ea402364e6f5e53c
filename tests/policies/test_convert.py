"""What converting block FP8 to MXFP8 loses: what is exact, exhaustively; figures as they are defined; real data."""

from __future__ import annotations

import itertools
import json
import math
import re
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from refmoe.errors import ArgumentError
from refmoe.families.real_data import FFN
from refmoe.formats import E4M3, E8M0
from refmoe.policies.convert import (
    LEAST,
    MODES,
    compare_conversion,
    convert_to_mxfp8,
    loss_by_significand,
    power_of_two_losses,
    relabel,
)
from refmoe.policies.convert_inputs import built_in_sources, layer_kind
from refmoe.policies.convert_picture import draw_conversions
from refmoe.policy import ScaleMode
from refmoe.reference.block_fp8 import BlockFP8Tensor, quantize_block_fp8
from refmoe.reference.quantize import quantize_mxfp8
from refmoe.reference.scalar.numbers import decode
from refmoe.reference.scalar.quantize import quantize_block

ROOT = Path(__file__).resolve().parents[2]


def normal(shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(ml_dtypes.bfloat16)


def test_what_power_of_two_scales_lose_is_what_the_specification_says() -> None:
    """Every pair of a largest code and one below it, in exact rationals."""
    found = {loss.mode: (loss.largest, loss.smaller) for loss in power_of_two_losses()}
    for mode in (ScaleMode.RCEIL, ScaleMode.FLOOR, ScaleMode.CEIL, ScaleMode.ROUND_LOG2):
        largest = smaller = 0
        for top in range(1, 127):
            numbers = [decode(code, E4M3) for code in range(top + 1)]
            block = quantize_block([numbers[top], *numbers], E4M3, mode)
            unit = decode(block.scale, E8M0).magnitude
            values = [decode(code, E4M3).magnitude * unit for code in block.codes]
            if values[0] != numbers[top].magnitude:
                largest += top + 1
            else:
                smaller += sum(a != b.magnitude for a, b in zip(values[1:], numbers, strict=True))
        assert found[mode.value] == (largest, smaller), mode
    assert found["rceil"] == (0, 0)
    assert found["floor"] == found["even"], "no code has a mantissa that EVEN rounds up"


@pytest.mark.parametrize("block", ["1x128", "128x128"])
@pytest.mark.parametrize("exponent", [-120, -7, 0, 100])
def test_power_of_two_scales_convert_without_loss(block: str, exponent: int) -> None:
    x = np.ldexp(normal((130, 416)).astype(np.float32), exponent)
    tensor = quantize_block_fp8(np.ascontiguousarray(x), block=block, policy="exact", scales="ue8m0")
    kept, again = relabel(tensor), convert_to_mxfp8(tensor)
    assert kept is not None
    assert kept.codes is tensor.codes
    assert kept.dequantize().tobytes() == again.dequantize().tobytes() == tensor.dequantize().tobytes()
    # Blocks whose largest element is below their tile's: the same values in other codes.
    assert (kept.codes != again.codes).any()


def test_scales_at_the_ends_of_e8m0_keep_their_codes() -> None:
    codes = np.full((4, 32), 0x38, np.uint8)
    scales = np.array([[2.0**-127], [2.0**-126], [1.0], [2.0**127]], np.float32)
    kept = relabel(BlockFP8Tensor(codes, scales, "1x128"))
    assert kept is not None
    assert kept.scales[:, 0].tolist() == [0, 1, 127, 254]
    for bad in (1.5, 0.0, np.inf, np.nan, -1.0, 2.0**-128):
        assert relabel(BlockFP8Tensor(codes, scales * 0 + np.float32(bad), "1x128")) is None


def test_other_scales_lose_at_most_half_a_unit_and_rceil_never_saturates() -> None:
    tensor = quantize_block_fp8(normal((64, 1024)))
    y = tensor.dequantize().astype(np.float64)
    q = convert_to_mxfp8(tensor).dequantize().astype(np.float64)
    scales = convert_to_mxfp8(tensor).scales.astype(int) - 127
    above = np.abs(y) >= np.repeat(np.ldexp(2.0**-6, scales), 32, axis=1)
    # 2^-4 of a significand of at least one: a unit of E4M3 is 2^-3.
    assert (np.abs(q - y)[above] <= np.abs(y[above]) * 2.0**-4).all()
    assert compare_conversion(normal((64, 1024))).mode("rceil").saturated == 0


def test_figures_are_what_their_definitions_say() -> None:
    x = normal((9, 160))
    found = compare_conversion(x, block="1x128", modes=("rceil", "floor"))
    tensor = quantize_block_fp8(x)
    y, wide = tensor.dequantize().astype(np.float64), x.astype(np.float64)

    def l2(a: np.ndarray, b: np.ndarray) -> float:
        return math.sqrt(
            sum(Fraction(float(v)) ** 2 for v in (a - b).flat) / sum(Fraction(float(v)) ** 2 for v in b.flat)
        )

    # Squares are not negative. Each of n is rounded at most n + 3 times on its way into a sum. Two sums make a figure,
    # of which the root halves the error again; twice that leaves room for its own rounding.
    bound = (x.size + 4) * 2.0**-52
    assert bound < 1e-12
    assert found.block_error == pytest.approx(l2(y, wide), rel=bound)
    assert (found.tiles, found.shape) == (18, (9, 160))
    for figures in found.modes:
        made = quantize_mxfp8(tensor.dequantize(), mode=figures.mode)
        q = made.dequantize().astype(np.float64)
        direct = quantize_mxfp8(x, mode=figures.mode).dequantize().astype(np.float64)
        assert figures.direct.relative_l2 == pytest.approx(l2(direct, wide), rel=bound)
        assert figures.converted.relative_l2 == pytest.approx(l2(q, wide), rel=bound)
        assert figures.conversion.relative_l2 == pytest.approx(l2(q, y), rel=bound)
        assert figures.codes_changed == (made.codes != tensor.codes).sum()
        assert figures.values_changed == (q != y).sum()
        assert figures.flushed == ((q == 0) & (y != 0)).sum()
        limit = np.repeat(np.ldexp(448.0, made.scales.astype(int) - 127), 32, axis=1)
        assert figures.saturated == (np.abs(y) > limit).sum()
        kept = q != 0
        assert figures.max_relative == (np.abs(q - y)[kept] / np.abs(y[kept])).max()


def test_bands_of_rows_do_not_show() -> None:
    """A tensor of several bands, the last of them short, has the figures of one pass."""
    x = normal((300, 16384), 3)
    found = compare_conversion(x, block="128x128", modes=("rceil",))
    tensor = quantize_block_fp8(x, block="128x128")
    y, wide = tensor.dequantize().astype(np.float64), x.astype(np.float64)
    q = quantize_mxfp8(tensor.dequantize()).dequantize().astype(np.float64)
    assert found.block_error == pytest.approx(math.sqrt(((y - wide) ** 2).sum() / (wide**2).sum()), rel=1e-9)
    assert found.mode("rceil").conversion.relative_l2 == pytest.approx(
        math.sqrt(((q - y) ** 2).sum() / (y**2).sum()), rel=1e-9
    )
    assert found.mode("rceil").elements == x.size


def test_no_mode_loses_less_than_the_least() -> None:
    """The best of every scale byte there is, block by block, and not only of those that are tried."""
    tensor = quantize_block_fp8(np.ldexp(normal((4, 256)), -np.arange(256) % 17).astype(np.float32))
    y = tensor.dequantize().astype(np.float64).reshape(-1, 32)
    best = np.full(len(y), np.inf)
    for byte in range(80, 140):
        unit = 2.0 ** (byte - 127)
        q = np.clip(y / unit, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * unit
        best = np.minimum(best, ((q - y) ** 2).sum(axis=1))
    found = compare_conversion(None, tensor, modes=(LEAST, "rceil"))
    least = math.sqrt(best.sum() / (y**2).sum())
    assert found.mode(LEAST).conversion.relative_l2 == pytest.approx(least, rel=1e-12)
    assert found.mode("rceil").conversion.relative_l2 >= least


def test_what_is_not_finite_counts_as_poisoned_and_in_no_error() -> None:
    x = normal((2, 256))
    x[0, 3] = np.nan
    found = compare_conversion(x, modes=("rceil", LEAST))
    for figures in found.modes:
        assert figures.poisoned == 4
        assert math.isfinite(figures.conversion.relative_l2)
        assert math.isfinite(figures.converted.relative_l2)


def test_real_weights_take_the_error_of_a_second_rounding() -> None:
    """Two roundings of the same size that know nothing of each other: sqrt(2) times the error of one."""
    up = load_file(FFN)["layer2.ffn_up.weight"]
    found = compare_conversion(up, block="128x128", modes=("rceil",)).mode("rceil")
    block = compare_conversion(up, block="128x128", modes=("rceil",)).block_error
    # Measured, not derived: how far from independent the two are on these weights.
    assert found.converted.relative_l2 == pytest.approx(math.hypot(block, found.conversion.relative_l2), rel=0.02)
    assert 1.35 < found.converted.relative_l2 / block < 1.45


def test_a_tensor_in_block_fp8_has_no_error_against_a_source() -> None:
    tensor = quantize_block_fp8(normal((130, 256)), block="128x128")
    found = compare_conversion(None, tensor)
    assert (found.scales, found.block) == ("stored", "128x128")
    assert math.isnan(found.block_error)
    assert math.isnan(found.mode("rceil").converted.relative_l2)
    assert found.mode("rceil").conversion.relative_l2 > 0.01


def test_the_loss_by_significand_vanishes_at_powers_of_two_alone() -> None:
    significands, errors = loss_by_significand(64)
    assert errors[0] == 0
    assert (errors[1:] > 0.002).all()
    assert errors.max() < 0.045
    assert significands[[0, -1]].tolist() == [1.0, 1 + 63 / 64]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.layers.3.self_attn.kv_a_proj_with_mqa.weight", "attention"),
        ("model.layers.3.mlp.experts.7.gate_proj.weight", "ffn gate"),
        ("model.layers.3.mlp.experts.7.up_proj.weight", "ffn up"),
        ("model.layers.3.mlp.experts.7.down_proj.weight", "ffn down"),
        ("model.layers.3.mlp.gate.weight", "router"),
        ("model.layers.3.mlp.experts.gate_up_proj", "ffn gate and up"),
        ("layer2.ffn_mid", "activations"),
        ("lm_head.weight", "other"),
    ],
)
def test_layer_kinds(name: str, kind: str) -> None:
    assert layer_kind(name) == kind


def test_what_is_refused() -> None:
    with pytest.raises(ArgumentError, match="modes: found str 'round'"):
        compare_conversion(normal((2, 128)), modes=("round",))
    with pytest.raises(ArgumentError, match="K: found 40; needed a multiple of 32"):
        convert_to_mxfp8(quantize_block_fp8(normal((2, 40))))
    with pytest.raises(ArgumentError, match="x: found None"):
        compare_conversion(None)
    with pytest.raises(ArgumentError, match="at least one element"):
        compare_conversion(normal((0, 128)))


def test_the_committed_report_has_these_figures_for_the_shipped_tensors() -> None:
    document = json.loads((ROOT / "reports" / "convert.json").read_text())
    entries = {(each["name"], each["scales"]): each for each in document["tensors"]}
    sources = [source for source in built_in_sources() if source.origin == "shipped"]
    assert len(sources) == 6
    for source, scales in itertools.product(sources, ("fp32", "ue8m0")):
        entry = entries[source.name, scales]
        found = compare_conversion(source.x, block=source.block, scales=scales)
        assert entry["block_error"] == float(f"{found.block_error:.6g}")
        assert [each["mode"] for each in entry["modes"]] == list(MODES)
        for each, figures in zip(entry["modes"], found.modes, strict=True):
            assert each["converted_error"] == float(f"{figures.converted.relative_l2:.6g}")
            assert each["codes_changed"] == figures.codes_changed


def test_the_guide_has_the_figures_of_the_committed_report() -> None:
    document = json.loads((ROOT / "reports" / "convert.json").read_text())
    guide = (ROOT / "docs" / "guides" / "convert.md").read_text()
    for tensor in (each for each in document["tensors"] if each["scales"] == "fp32"):
        modes = {each["mode"]: each for each in tensor["modes"]}
        errors = (tensor["block_error"], modes["rceil"]["direct_error"], modes["rceil"]["converted_error"])
        cells = [tensor["layer"], tensor["block"], *(f"{error:.4f}" for error in errors)]
        cells += [f"{modes[mode]['added']:.2f}" for mode in ("rceil", "floor")]
        assert f"| {' | '.join(cells)} |" in guide, tensor["name"]
        assert modes["rceil"]["flushed"] == modes["rceil"]["saturated"] == 0
        assert modes["rceil"]["conversion_error"] <= modes["least"]["conversion_error"] * 1.0001
    fp32 = [each for each in document["tensors"] if each["scales"] == "fp32"]
    floors = [next(mode for mode in each["modes"] if mode["mode"] == "floor")["added"] for each in fp32]
    assert f"costs {min(floors):.2f} to {max(floors):.2f} times" in guide
    weights = [each for each in fp32 if each["origin"] == "shipped" and each["block"] == "128x128"]
    rceil = [next(mode for mode in each["modes"] if mode["mode"] == "rceil") for each in weights]
    # What is said of the whole model holds of the four matrices that ship.
    low, high = map(float, re.search(r"36 lie at (\S+) to (\S+) times", " ".join(guide.split())).groups())
    assert low <= round(min(mode["added"] for mode in rceil), 2) <= round(max(m["added"] for m in rceil), 2) <= high
    far = max(mode["direct_error"] / each["block_error"] for mode, each in zip(rceil, weights, strict=True))
    assert f"as good as block FP8 was, within {math.ceil(100 * (far - 1))} %" in " ".join(guide.split())
    for loss in document["power_of_two"]:
        assert loss["pairs"] == 8127
        assert re.search(rf"\| .*`{loss['mode']}`.* \| {loss['largest']:,} \| {loss['smaller']:,} \|", guide), loss


def test_weights_are_whole_matrices_and_drawn_ones_are_of_no_layer() -> None:
    found = {source.name.removeprefix("all-MiniLM-L6-v2 "): source for source in built_in_sources()}
    shapes = {name: source.x.shape for name, source in found.items() if name.endswith(".weight")}
    assert shapes == {
        "layer2.attention.query.weight": (384, 384),
        "layer2.attention.output.weight": (384, 384),
        "layer2.ffn_up.weight": (1536, 384),
        "layer2.ffn_down.weight": (384, 1536),
    }
    rows = load_file(FFN)
    for name in ("layer2.ffn_up.weight", "layer2.ffn_down.weight"):
        assert found[name].x[: len(rows[name])].tobytes() == rows[name].tobytes()
    kinds = {source.kind for source in found.values() if source.origin == "drawn"}
    assert kinds == {"drawn weights", "drawn activations"}


def test_a_picture_is_the_same_every_time(tmp_path: Path) -> None:
    source = next(built_in_sources())
    found = [(source, compare_conversion(source.x, block=source.block))]
    first, second = (draw_conversions(found, tmp_path / name) for name in ("a.png", "b.png"))
    assert first.read_bytes() == second.read_bytes()
    with pytest.raises(ArgumentError, match=r"\.png or \.svg"):
        draw_conversions(found, tmp_path / "a.pdf")
