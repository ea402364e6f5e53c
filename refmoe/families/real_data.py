"""Real data: the tensors of a small model that ship with refmoe, and any tensor of a user's safetensors file."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError
from refmoe.files import tensor_name
from refmoe.formats import MX_BLOCK

_DATA = Path(__file__).resolve().parent / "data"

#: Hidden states of all-MiniLM-L6-v2 that enter layer 2's feed-forward block, BF16 [256, 384].
FFN_INPUT = _DATA / "minilm_layer2_ffn_in.safetensors"

#: That block, BF16: rows of `layer2.ffn_up.weight` [320, 384] and `layer2.ffn_down.weight` [96, 1536], and
#: `layer2.ffn_mid` [32, 1536], what goes into the latter.
FFN = _DATA / "minilm_layer2_ffn.safetensors"

#: Whole weight matrices of that layer, BF16: `layer2.attention.query.weight` and `.output.weight` [384, 384],
#: `layer2.ffn_up.weight` [1536, 384] and `layer2.ffn_down.weight` [384, 1536].
WEIGHTS = _DATA / "minilm_layer2_weights.safetensors"

#: An expert made of it: MXFP4 `gate_up` [1536, 384], gate and up in turn, and `down` [384, 768].
EXPERT = _DATA / "minilm_layer2_moe.safetensors"

_DTYPES = {"BF16": ("bf16", ml_dtypes.bfloat16), "F16": ("fp16", np.float16)}


@dataclass(frozen=True)
class Activations:
    """A tensor of activations.

    Attributes:
        tensor: its name in the file.
        dtype: "bf16" or "fp16".
        patterns: uint16 [M, K], leading dimensions joined.
    """

    tensor: str
    dtype: str
    patterns: NDArray[np.uint16]


@functools.lru_cache(maxsize=4)
def read_activations(path: Path, tensor: str | None = None) -> Activations:
    """Read one BF16 or FP16 tensor [..., K], K a multiple of 32, from a safetensors file.

    Args:
        path: the file.
        tensor: name of the tensor; may be left out if the file holds just one.

    Raises:
        ArgumentError: no such file, a damaged one, no such tensor, or one of another dtype or width.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ArgumentError("activations", f"no file at {path}", "a safetensors file")
    try:
        with safe_open(path, framework="numpy") as file:
            name = tensor_name(path, sorted(file.keys()), tensor, "activations")
            view = file.get_slice(name)
            dtype, shape = view.get_dtype(), list(view.get_shape())
            _check(path, name, dtype, shape)
            values = file.get_tensor(name)
    except (SafetensorError, OSError, UnicodeDecodeError) as error:
        found = f"{path}, which cannot be read: {error}"
        raise ArgumentError("activations", found, "an undamaged safetensors file") from error
    patterns = np.ascontiguousarray(values).view(np.uint16).reshape(-1, shape[-1])
    return Activations(name, _DTYPES[dtype][0], patterns)


def _check(path: Path, name: str, dtype: str, shape: list[int]) -> None:
    if dtype not in _DTYPES:
        raise ArgumentError("activations", f"{dtype} tensor {name!r} in {path}", "a BF16 or F16 tensor")
    if len(shape) < 2 or shape[-1] == 0 or shape[-1] % MX_BLOCK:
        found = f"tensor {name!r} of shape {shape} in {path}"
        raise ArgumentError("activations", found, f"shape [..., K] with K a multiple of {MX_BLOCK}")


def tile_rows(patterns: NDArray[np.uint16], m: int, k: int, first_row: int = 0) -> NDArray[np.uint16]:
    """uint16 [m, k] made of the rows of `patterns` one after another, from `first_row` on, as often as needed."""
    start = first_row % patterns.shape[0] if patterns.shape[0] else 0
    return np.resize(np.roll(patterns, -start, axis=0), (m, k)) if patterns.size else np.zeros((m, k), np.uint16)
