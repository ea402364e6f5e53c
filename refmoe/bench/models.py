"""The fast SM120 accumulation model on one layer-sized product, held against its specification."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.bench.timing import machine, measure
from refmoe.errors import RefmoeError
from refmoe.formats import MX_BLOCK
from refmoe.reference.layout import unpack_fp4
from refmoe.reference.mma import MODELS, tensor_core_mma
from refmoe.reference.quantize import quantize_mxfp4, quantize_mxfp8
from refmoe.reference.scalar.mma import accumulate
from refmoe.reference.tensor import MXTensor

TARGETS = {"gaussian": 20.0, "wide elements": 20.0, "wide blocks": 20.0}
"""GFLOP/s that each kind of data has to reach; a product is 2 M N K operations."""

_SEED = 20250917
_MODEL = "sm120"


def run(*, m: int = 16, n: int = 2880, k: int = 2880, rounds: int = 7, checked: int = 24) -> dict[str, Any]:
    """MXFP8 [m, k] times MXFP4 [n, k] under the model of SM120, quantized from three kinds of data.

    `gaussian`: normally distributed. `wide elements`: each element times a power of two between 2^-12 and 2^12, so that
    most elements of a block are small beside its largest. `wide blocks`: each block of 32 times one between 2^-10 and
    2^10, so that most products are truncated. `checked` outputs of each, drawn at random, are held against the
    specification, bit for bit, before anything is timed.

    Returns:
        JSON-able: the shape, `rounds`, the model and its evidence, `cores`, `versions`, `all_reached`, and in
        `rows` for each kind of data the median, GFLOP/s of both, the target, the outputs checked and whether the target
        is reached.

    Raises:
        RefmoeError: an output differs from the specification.
    """
    rows = []
    for index, (kind, target) in enumerate(TARGETS.items()):
        rng = np.random.default_rng([_SEED, index])
        a, b = quantize_mxfp8(_draw(rng, kind, m, k)), quantize_mxfp4(_draw(rng, kind, n, k))
        b_codes, c = unpack_fp4(b.codes), np.zeros((m, n), np.float32)
        product = partial(
            tensor_core_mma, a.codes, b_codes, c,
            model=_MODEL, a_format="e4m3", b_format="e2m1", a_scales=a.scales, b_scales=b.scales,
        )  # fmt: skip
        found = product()
        start = time.perf_counter()
        _require_equal(rng, kind, a, b_codes, b.scales, found, checked)
        slow = time.perf_counter() - start
        seconds = measure({"refmoe": product}, rounds=rounds)["refmoe"].median
        gflops = 2e-9 * m * n * k / seconds
        rows.append(
            {
                "data": kind,
                "median_ms": seconds * 1e3,
                "gflops": gflops,
                "specification_gflops": 2e-9 * checked * k / slow,
                "target": target,
                "checked": checked,
                "reached": gflops >= target,
            }
        )
    return {
        "m": m,
        "n": n,
        "k": k,
        "rounds": rounds,
        "model": _MODEL,
        "evidence": MODELS[_MODEL].pair("e4m3", "e2m1").evidence.value,
        **machine(),
        "rows": rows,
        "all_reached": all(row["reached"] for row in rows),
    }


def _draw(rng: np.random.Generator, kind: str, rows: int, k: int) -> NDArray[np.float32]:
    x = rng.standard_normal((rows, k), np.float32)
    if kind == "wide elements":
        x *= np.exp2(rng.uniform(-12, 12, x.shape)).astype(np.float32)
    elif kind == "wide blocks":
        x *= np.repeat(np.exp2(rng.uniform(-10, 10, (rows, k // MX_BLOCK))).astype(np.float32), MX_BLOCK, axis=1)
    return x


def _require_equal(
    rng: np.random.Generator,
    kind: str,
    a: MXTensor,
    b_codes: NDArray[np.uint8],
    b_scales: NDArray[np.uint8],
    found: NDArray[np.float32],
    checked: int,
) -> None:
    for row, column in zip(
        rng.integers(0, found.shape[0], checked), rng.integers(0, found.shape[1], checked), strict=True
    ):
        wanted = accumulate(
            a.codes[row].tolist(), b_codes[column].tolist(), 0, MODELS[_MODEL], "e4m3", "e2m1",
            a.scales[row].tolist(), b_scales[column].tolist(),
        )  # fmt: skip
        bits = int(found[row, column].view(np.uint32))
        if bits != wanted:
            where = f"[{row}, {column}] of {kind} data"
            raise RefmoeError(f"bench models: output {where} is {bits:#010x}, the specification's {wanted:#010x}")
