"""What is converted: tensors of a model that ship with refmoe, drawn ones of real shapes, and a user's files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.errors import ArgumentError
from refmoe.families.real_data import FFN, FFN_INPUT, WEIGHTS
from refmoe.policies.inputs import named_in_full, read_input, read_stored_fp8
from refmoe.reference.block_fp8 import BlockFP8Tensor

#: What tensors' names tell, the first that fits; `router` before `gate`, since DeepSeek calls its router mlp.gate.
_KINDS = (
    ("router", r"router|mlp\.gate\.(weight|e_score)"),
    ("attention", r"attn|attention|\b[qkvo]_proj|\bq_[ab]_proj|\bkv_[ab]_proj|qkv"),
    ("ffn gate and up", r"gate_up|mlp1_weight"),
    ("ffn gate", r"gate_proj|\bw1\b"),
    ("ffn up", r"up_proj|ffn_up|\bw3\b|\bfc1\b|intermediate"),
    ("ffn down", r"down_proj|ffn_down|mlp2_weight|\bw2\b|\bfc2\b"),
    ("activations", r"ffn_in|ffn_mid|hidden|activation|\bx\b"),
)


def layer_kind(name: str) -> str:
    """What a tensor's name tells of its layer: "attention", "ffn down", ..., "other" if nothing.

    >>> layer_kind("model.layers.3.mlp.experts.7.down_proj.weight")
    'ffn down'
    """
    return next((kind for kind, pattern in _KINDS if re.search(pattern, name)), "other")


@dataclass(frozen=True, eq=False)
class Source:
    """A tensor to convert.

    Attributes:
        name: what it is called.
        origin: "shipped", "drawn" or "file".
        kind: of its layer, as its name tells: "attention", "ffn down", "activations", ...; "drawn weights" or "drawn
            activations" if it is of no layer.
        block: the tile that it gets, or has: 128x128 for weights, 1x128 for activations.
        x: BF16, FP16 or FP32 [M, K]; None if there is only block FP8.
        stored: block FP8 as a checkpoint has it, else None.
    """

    name: str
    origin: str
    kind: str
    block: str
    x: NDArray[np.generic] | None
    stored: BlockFP8Tensor | None = None


def built_in_sources() -> Iterator[Source]:
    """The shipped tensors of a small model, then drawn ones with the widths of DeepSeek-V3 and gpt-oss.

    Weights are whole matrices. Those that are drawn are of no layer, and their kind says so.
    """
    shipped = (
        (WEIGHTS, "layer2.attention.query.weight"),
        (WEIGHTS, "layer2.attention.output.weight"),
        (WEIGHTS, "layer2.ffn_up.weight"),
        (WEIGHTS, "layer2.ffn_down.weight"),
        (FFN_INPUT, "layer2.ffn_in"),
        (FFN, "layer2.ffn_mid"),
    )
    for path, tensor in shipped:
        x = read_input(f"{path}:{tensor}").x
        yield Source(f"all-MiniLM-L6-v2 {tensor}", "shipped", layer_kind(tensor), _block_of(tensor), x)
    for name, block, shape, make in (
        ("weights, normal", "128x128", (256, 7168), _normal),
        ("weights, heavy tails", "128x128", (256, 2048), _heavy),
        ("weights, rows of unlike size", "128x128", (256, 2880), _unlike_rows),
        ("activations, normal", "1x128", (64, 7168), _normal),
        ("activations, outlier channels", "1x128", (64, 7168), _outlier_channels),
        ("activations, gated products", "1x128", (128, 2880), _gated),
        ("activations, sixteen octaves", "1x128", (128, 2048), _octaves),
    ):
        drawn = make(Draw("convert", name), shape) * _unlike_tiles(Draw("convert", "tiles", name), shape)
        x = drawn.astype(ml_dtypes.bfloat16)
        yield Source(name, "drawn", f"drawn {name.partition(',')[0]}", block, x)


def read_source(text: str, block: str | None = None) -> Source:
    """A user's tensor.

    Args:
        text: as `refmoe.policies.inputs.read_input` takes it. A tensor NAME of E4M3 codes in a safetensors file is read
            with NAME_scale_inv beside it, FP32 [ceil(M/128), ceil(K/128)], as DeepSeek's checkpoints have it.
        block: "1x128" or "128x128"; if left out, 128x128 for what is called a weight or a projection, else 1x128.

    Raises:
        ArgumentError: no such file or tensor, another dtype or shape, codes without scales.
    """
    text = named_in_full(text)
    stored = read_stored_fp8(text)
    if stored is not None:
        if block not in (None, "128x128"):
            raise ArgumentError("block", f"{block} for {text}", "128x128: the tensor is in block FP8 already")
        return Source(text, "file", layer_kind(text), "128x128", None, BlockFP8Tensor(*stored, "128x128"))
    read = read_input(text)
    if read.x.ndim < 2 or read.x.dtype not in (np.dtype(ml_dtypes.bfloat16), np.float16, np.float32):
        found = f"{read.x.dtype} {list(read.x.shape)} in {text}"
        raise ArgumentError("input", found, "bfloat16, float16 or float32 [..., K], or float8_e4m3fn with its scales")
    x = np.ascontiguousarray(read.x).reshape(-1, read.x.shape[-1])
    return Source(read.name, "file", layer_kind(read.name), block or _block_of(read.name), x)


def _block_of(name: str) -> str:
    return "128x128" if re.search(r"weight|_proj", name) else "1x128"


def _unlike_tiles(draw: Draw, shape: tuple[int, int]) -> NDArray[np.float64]:
    """A factor from 1 to 2 for each 128x128, so that the significands of scales are everywhere, as those of a model."""
    tiles = 1 + draw.integers(1 << 16, (-(-shape[0] // 128), -(-shape[1] // 128))) / 65536
    return np.repeat(np.repeat(tiles, 128, axis=0), 128, axis=1)[: shape[0], : shape[1]]


def _normal(draw: Draw, shape: tuple[int, int]) -> NDArray[np.float64]:
    return draw.normal(shape)


def _heavy(draw: Draw, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Products of three."""
    return draw.normal(shape) * draw.normal(shape) * draw.normal(shape)


def _unlike_rows(draw: Draw, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Rows that differ by up to seven binades, so that one scale for 128 of them suits few."""
    return np.ldexp(draw.normal(shape), draw.integers(8, (shape[0], 1)) - 4)


def _outlier_channels(draw: Draw, shape: tuple[int, int]) -> NDArray[np.float64]:
    """One channel in 97 is 40 times as large."""
    return draw.normal(shape) * np.where(np.arange(shape[1]) % 97 == 5, 40.0, 1.0)


def _gated(draw: Draw, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Products of two, an eighth where the first is negative: what SwiGLU's results look like."""
    gate, up = draw.normal(shape), draw.normal(shape)
    return gate * up * np.where(gate < 0, 0.125, 1.0)


def _octaves(draw: Draw, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Elements of one tile down to 2^-15 of the largest, where E4M3's own range ends."""
    return np.ldexp(draw.normal(shape), -draw.integers(16, shape))
