"""MXFP8 quantization against torchao, MXFP4 decoding against gguf, side by side on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.bench.timing import machine, measure
from refmoe.errors import RefmoeError
from refmoe.formats import MXFP4, MXFP8
from refmoe.reference.dequantize import dequantize_mxfp4
from refmoe.reference.layout import pack_fp4, unpack_fp4
from refmoe.reference.quantize import quantize_mxfp4, quantize_mxfp8

TARGETS = {"quantize_mxfp8": 4.0, "dequantize_mxfp4": 6.0}
"""How many times faster than its peer each function has to be."""

_SEED = 20250917
_GGUF_BLOCK = np.dtype([("scale", np.uint8), ("codes", f"V{MXFP4.block_bytes}")])


def run(*, size: int = 4096, rounds: int = 9) -> dict[str, Any]:
    """Both comparisons on normally distributed [size, size] data.

    `quantize_mxfp8`: BF16 to MXFP8, RCEIL, against `torchao.prototype.mx_formats.mx_tensor.to_mx` in eager mode with
    one thread and with one a core; the better median counts. `dequantize_mxfp4`: MXFP4 to float32 against
    `gguf.quants.dequantize`, each from its own layout; what it takes us to read GGUF's blocks, taking them apart
    included, is measured beside it. Equality of the bytes is checked before anything is timed.

    Returns:
        JSON-able: `size`, `rounds`, `cores`, `versions`, `reached` (all targets), and for each comparison in
        `comparisons` its `medians_s` by contender, `ratio`, `target` and `reached`.

    Raises:
        RefmoeError: torch, torchao or gguf is not installed, or results differ.
    """
    comparisons = {
        "quantize_mxfp8": _compare(_quantize_contenders(size), rounds, TARGETS["quantize_mxfp8"]),
        "dequantize_mxfp4": _compare(_decode_contenders(size), rounds, TARGETS["dequantize_mxfp4"]),
    }
    return {
        "size": size,
        "rounds": rounds,
        **machine("torch", "torchao", "gguf"),
        "comparisons": comparisons,
        "reached": all(comparison["reached"] for comparison in comparisons.values()),
    }


def _compare(contenders: dict[str, Callable[[], object]], rounds: int, target: float) -> dict[str, Any]:
    timings = measure(contenders, rounds=rounds)
    peer = min(timing.median for name, timing in timings.items() if not name.startswith("refmoe"))
    ratio = peer / timings["refmoe"].median
    return {
        "medians_s": {name: timing.median for name, timing in timings.items()},
        "ratio": ratio,
        "target": target,
        "reached": ratio >= target,
    }


def _quantize_contenders(size: int) -> dict[str, Callable[[], object]]:
    try:
        import torch
        from torchao.prototype.mx_formats.config import ScaleCalculationMode
        from torchao.prototype.mx_formats.mx_tensor import to_mx
    except ImportError as error:
        raise _missing("torch and torchao") from error

    x = _normal(size).astype(ml_dtypes.bfloat16)
    tensor = torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)

    def torchao(threads: int) -> Any:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            return to_mx(tensor, torch.float8_e4m3fn, MXFP8.block, ScaleCalculationMode.RCEIL)
        finally:
            torch.set_num_threads(before)

    ours = quantize_mxfp8(x)
    scales, codes = torchao(1)
    _require_equal("scales", ours.scales, scales.view(torch.uint8).numpy())
    _require_equal("codes", ours.codes, codes.view(torch.uint8).numpy())
    thread_counts = sorted({1, 2, len(os.sched_getaffinity(0))})
    peers = {f"torchao, {threads} threads": partial(torchao, threads) for threads in thread_counts}
    return {"refmoe": lambda: quantize_mxfp8(x), **peers}


def _decode_contenders(size: int) -> dict[str, Callable[[], object]]:
    try:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError as error:
        raise _missing("gguf") from error

    quantized = quantize_mxfp4(_normal(size))
    elements = unpack_fp4(quantized.codes)
    # gguf reads code 8 as +0 and never writes it; the two agree on every other code.
    elements[elements == 8] = 0
    codes, scales = pack_fp4(elements), quantized.scales
    blocks = np.empty((size, size // MXFP4.block), _GGUF_BLOCK)
    blocks["scale"] = scales
    blocks["codes"] = pack_fp4(elements, order="gguf").view("V16")

    def from_gguf_blocks() -> NDArray[np.float32]:
        packed = blocks["codes"].copy().view(np.uint8)
        return dequantize_mxfp4(packed, blocks["scale"].copy(), order="gguf")

    contenders: dict[str, Callable[[], NDArray[np.float32]]] = {
        "refmoe": lambda: dequantize_mxfp4(codes, scales),
        "refmoe, GGUF blocks": from_gguf_blocks,
        "gguf": lambda: np.asarray(dequantize(blocks.view(np.uint8), GGMLQuantizationType.MXFP4)),
    }
    wanted = contenders["gguf"]().view(np.uint32)
    for contender in contenders.values():
        _require_equal("values", contender().view(np.uint32), wanted)
    return dict(contenders)


def _normal(size: int) -> NDArray[np.float32]:
    return np.random.default_rng(_SEED).standard_normal((size, size), np.float32)


def _missing(packages: str) -> RefmoeError:
    return RefmoeError(f"bench quantize needs {packages}: pip install torch 'refmoe[oracles]'")


def _require_equal(what: str, ours: NDArray[Any], theirs: NDArray[Any]) -> None:
    # A benchmark of two functions that do not do the same thing says nothing.
    if not np.array_equal(ours, theirs):
        raise RefmoeError(f"bench quantize: {what} differ, {int((ours != theirs).sum())} of {ours.size}")
