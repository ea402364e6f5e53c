"""Bytes that torchao and gguf made, and the policies that are named for them."""

from __future__ import annotations

import numpy as np
import pytest
from support.policy_data import FILLS, adversarial, gaussian, real
from support.selection.thinned import thinned

from refmoe.families.real_data import FFN
from refmoe.policies import detect_policy, split_gguf_blocks
from refmoe.policies.inputs import read_input

MODES = ("floor", "ceil", "even", "rceil")


def inputs() -> dict[str, np.ndarray]:
    made = {f"fill {fill}": read_input(f"{fill}:m16k416").x.reshape(-1, 32) for fill in FILLS}
    made |= {f"adversarial {dtype}": adversarial(dtype) for dtype in ("bf16", "fp32")}
    file = FFN
    for tensor in ("ffn_mid", "ffn_up.weight", "ffn_down.weight"):
        made[tensor] = read_input(f"{file}:layer2.{tensor}").x.reshape(-1, 32)
    return {**made, "real": real().reshape(-1, 32), "gaussian fp32": gaussian(dtype=np.float32).reshape(-1, 32)}


INPUTS_BY_NAME = inputs()


def torchao_bytes(x: np.ndarray, format: str, mode: str) -> tuple[np.ndarray, np.ndarray]:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchao")
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    if x.dtype == np.float32:
        tensor = torch.from_numpy(x.copy())
    else:
        tensor = torch.from_numpy(x.view(np.int16).copy()).view(torch.bfloat16)
    kind = torch.float8_e4m3fn if format == "mxfp8" else torch.float4_e2m1fn_x2
    scales, codes = to_mx(tensor, kind, 32, ScaleCalculationMode[mode.upper()])
    return codes.view(torch.uint8).numpy(), scales.view(torch.uint8).numpy()


@pytest.mark.parametrize("name", thinned(INPUTS_BY_NAME, 8))
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("format", ["mxfp8", "mxfp4"])
def test_torchao_is_named(format: str, mode: str, name: str) -> None:
    """As its release everywhere, and as its policy wherever there is nothing but ordinary and zero blocks."""
    x = INPUTS_BY_NAME[name]
    found = detect_policy(x, *torchao_bytes(x, format, mode), format)
    assert f"torchao_{mode}@0.18" in found.names
    modes = {match.rule.policy.mode.value for match in found.matches}
    # Maxima of rne-ties have the same scale in every mode, those of saturation in several.
    assert modes == {mode} or name in ("fill rne-ties", "fill saturation")
    if found.kinds["ordinary"] + found.kinds["small"] + found.kinds["zero"] == len(x):
        assert found.verdict == "exact"
        assert f"torchao_{mode}" in found.names
    elif "adversarial" in name:
        assert f"torchao_{mode}" not in found.names
    if name == "real":
        assert found.names[0] == f"{mode}/exact"


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning:gguf")
@pytest.mark.parametrize(
    "name",
    thinned(["real", "ffn_mid", "ffn_up.weight", "gaussian fp32", "fill rne-ties", "fill boundary-mantissas"], 2),
)
def test_gguf_is_named_and_nothing_else(name: str) -> None:
    gguf = pytest.importorskip("gguf")
    x = INPUTS_BY_NAME[name]
    if name == "fill boundary-mantissas":
        # gguf's scale is undefined below 2^-125.
        x = np.ascontiguousarray(x[np.abs(x.astype(np.float32)).max(axis=1) > 2.0**-100])
    blocks = gguf.quants.quantize(x.astype(np.float32), gguf.GGMLQuantizationType.MXFP4)
    codes, scales = split_gguf_blocks(blocks)
    found = detect_policy(x, codes, scales, "mxfp4", packing="gguf")
    assert (found.verdict, found.names) == ("exact", ("gguf",))
    mistaken = detect_policy(x, codes, scales, "mxfp4")
    assert mistaken.hypotheses[0].fault == "the codes are packed in the order gguf, not even-low"
    assert mistaken.hypotheses[0].names == ("gguf",)
