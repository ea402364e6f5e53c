"""MXFP8 quantization against torchao, MXFP4 decoding against gguf, side by side on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.bench.timing import Timing, measure
from refmoe.errors import RefmoeError
from refmoe.reference.dequantize import dequantize_mxfp4
from refmoe.reference.layout import pack_fp4, unpack_fp4
from refmoe.reference.quantize import quantize_mxfp4, quantize_mxfp8

__all__ = ["TARGETS", "run"]

TARGETS = {"quantize_mxfp8": 4.0, "dequantize_mxfp4": 6.0}
"""How many times faster than its peer each function has to be."""

_SEED = 20250917


def run(*, size: int = 4096, rounds: int = 9) -> dict[str, Any]:
    """Both comparisons on normally distributed [size, size] data.

    `quantize_mxfp8`: BF16 to MXFP8, RCEIL, against `torchao.prototype.mx_formats.mx_tensor.to_mx` in eager mode with
    one thread and with one a core; the better median counts. `dequantize_mxfp4`: GGUF's MXFP4 blocks to float32,
    against `gguf.quants.dequantize`; taking the blocks apart is part of our time. Equality of the bytes is checked
    before anything is timed.

    Returns:
        JSON-able: `size`, `rounds`, `cores`, `versions`, `reached` (all targets), and for each comparison in
        `comparisons` its `medians_s` by contender, `ratio`, `target` and `reached`.

    Raises:
        RefmoeError: torch, torchao or gguf is not installed, or results differ.
    """
    comparisons = {
        "quantize_mxfp8": _compare("refmoe", _quantize_contenders(size), rounds, TARGETS["quantize_mxfp8"]),
        "dequantize_mxfp4": _compare("refmoe", _decode_contenders(size), rounds, TARGETS["dequantize_mxfp4"]),
    }
    return {
        "size": size,
        "rounds": rounds,
        "cores": len(os.sched_getaffinity(0)),
        "versions": {name: version(name) for name in ("numpy", "torch", "torchao", "gguf")},
        "comparisons": comparisons,
        "reached": all(comparison["reached"] for comparison in comparisons.values()),
    }


def _compare(ours: str, contenders: dict[str, Callable[[], object]], rounds: int, target: float) -> dict[str, Any]:
    timings: dict[str, Timing] = measure(contenders, rounds=rounds)
    peer = min(timing.median for name, timing in timings.items() if name != ours)
    ratio = peer / timings[ours].median
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
            return to_mx(tensor, torch.float8_e4m3fn, 32, ScaleCalculationMode.RCEIL)
        finally:
            torch.set_num_threads(before)

    ours = quantize_mxfp8(x)
    scales, codes = torchao(1)
    _require_equal("scales", ours.scales, scales.view(torch.uint8).numpy())
    _require_equal("codes", ours.codes, codes.view(torch.uint8).numpy())
    thread_counts = sorted({1, 2, len(os.sched_getaffinity(0))})
    contenders: dict[str, Callable[[], object]] = {"refmoe": lambda: quantize_mxfp8(x)}
    for threads in thread_counts:
        contenders[f"torchao, {threads} threads"] = partial(torchao, threads)
    return contenders


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
    codes = pack_fp4(elements, order="gguf").reshape(-1, 16)
    blocks = np.concatenate([quantized.scales.reshape(-1, 1), codes], axis=1)
    rows = blocks.reshape(size, -1)

    def ours() -> NDArray[np.float32]:
        return dequantize_mxfp4(np.ascontiguousarray(blocks[:, 1:]), blocks[:, :1].copy(), order="gguf")

    def gguf() -> NDArray[np.float32]:
        return np.asarray(dequantize(rows, GGMLQuantizationType.MXFP4))

    _require_equal("values", ours().reshape(-1).view(np.uint32), gguf().reshape(-1).view(np.uint32))
    return {"refmoe": ours, "gguf": gguf}


def _normal(size: int) -> NDArray[np.float32]:
    return np.random.default_rng(_SEED).standard_normal((size, size), np.float32)


def _missing(packages: str) -> RefmoeError:
    return RefmoeError(f"bench quantize needs {packages}: pip install torch 'refmoe[oracles]'")


def _require_equal(what: str, ours: NDArray[Any], theirs: NDArray[Any]) -> None:
    # A benchmark of two functions that do not do the same thing says nothing.
    if not np.array_equal(ours, theirs):
        raise RefmoeError(f"bench quantize: {what} differ, {int((ours != theirs).sum())} of {ours.size}")
