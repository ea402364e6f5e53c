"""What the tests of `refmoe policy` quantize, and quantizers that share no code with what is tested."""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
from support.mx_blocks import INPUTS, adversarial_blocks, specified

from refmoe.formats import E2M1, E4M3
from refmoe.policies.inputs import read_input
from refmoe.policy import EdgePolicy, ScaleMode
from refmoe.reference.layout import pack_fp4
from refmoe.reference.scalar import decode
from refmoe.reference.scalar.gguf import quantize_block_gguf

ELEMENT = {"mxfp8": E4M3, "mxfp4": E2M1}
FILLS = ("gaussian", "wide-range", "rne-ties", "boundary-mantissas", "specials", "tiny", "saturation")


@cache
def real() -> np.ndarray:
    """The shipped activations, BF16 [256, 384]."""
    return read_input("real").x


@cache
def adversarial(dtype: str = "bf16") -> np.ndarray:
    """Blocks [n, 32] with every kind of trouble."""
    return np.ascontiguousarray(adversarial_blocks(dtype)).view(INPUTS[dtype][1])


def gaussian(rows: int = 8, width: int = 416, dtype: object = ml_dtypes.bfloat16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32).astype(dtype)


def bits_of(x: np.ndarray) -> np.ndarray:
    return x.view(np.uint16 if x.dtype.itemsize == 2 else np.uint32).reshape(-1, 32)


@cache
def slow(dtype: str, format: str, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The adversarial blocks by the scalar specification: defined [n], codes [n, 32] one a byte, scales [n]."""
    bits = adversarial_blocks(dtype)
    codes, scales = np.zeros(bits.shape, np.uint8), np.zeros(len(bits), np.uint8)
    if name == "gguf":
        defined = np.zeros(len(bits), np.bool_)
        for index, row in enumerate(bits):
            try:
                block = quantize_block_gguf([decode(int(code), INPUTS[dtype][0]) for code in row])
            except ValueError:
                continue
            defined[index], codes[index], scales[index] = True, block.codes, block.scale
        return defined, codes, scales
    mode, edge = name.split("/")
    defined, some_codes, some_scales = specified(bits, dtype, ELEMENT[format], ScaleMode(mode), EdgePolicy(edge))
    codes[defined], scales[defined] = some_codes, some_scales
    return defined, codes, scales


def stored(codes: np.ndarray, format: str) -> np.ndarray:
    """Codes, one a byte, as a tensor holds them."""
    return codes if format == "mxfp8" else pack_fp4(codes)
