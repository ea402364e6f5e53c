"""The production kernels on a GPU, each beside a plain copy of as many bytes as it must move.

Every contender is timed in the same run, as a node of a CUDA graph, on buffers that rotate so that large ones do not
stay in the L2 cache. The first contender of each group is the floor of the others: a copy of as many bytes with the
same share of reads, or a kernel that does nothing.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import ml_dtypes
import numpy as np

from refmoe.bench.contenders import Contender, buffer_sets, copy, empty
from refmoe.bench.gpu_steps import step_groups
from refmoe.cuda.arguments import scale_buffer_bytes
from refmoe.cuda.device import CudaDevice
from refmoe.cuda.expand import expand_kernel, expand_plan
from refmoe.cuda.quantize import mxfp8_quantize_kernel, mxfp8_quantize_plan
from refmoe.formats import MX_BLOCK
from refmoe.reference import build_permutation

__all__ = ["run", "time_groups"]

HIDDEN = 2880  # gpt-oss
EXPERTS, TOP_K = 128, 4
PREFILL_TOKENS = 8192
ROUNDS = 15
TARGET_NODES = 40


def run() -> dict[str, Any]:
    """Time the kernels around the GEMMs on the current GPU and return a JSON-able document.

    `rows` holds for each contender the median microseconds of one graph node, the bytes it must move, the bandwidth
    that this means in TB/s, and the ratio of its time to its group's floor.

    Raises:
        DeviceUnavailable: no GPU that the kernels are built for.
    """
    device = CudaDevice()
    rows = time_groups(device, _groups_of_contenders(device))
    return {"kind": "bench", "name": "gpu", "gpu": device.gpu_name, "arch": device.arch, "rows": rows}


def time_groups(device: CudaDevice, groups: list[list[Contender]]) -> list[dict[str, Any]]:
    """The rows of `run` for groups of contenders, the first of each its floor."""
    rows: list[dict[str, Any]] = []
    for group in groups:
        medians = _interleaved_medians(device, group)
        floor = medians[0]
        for contender, microseconds in zip(group, medians, strict=True):
            rows.append(
                {
                    "name": contender.name,
                    "microseconds": round(microseconds, 2),
                    "traffic_bytes": contender.traffic,
                    "terabytes_per_second": round(contender.traffic / microseconds / 1e6, 3),
                    "ratio_to_floor": round(microseconds / floor, 3),
                }
            )
    return rows


def _groups_of_contenders(device: CudaDevice) -> list[list[Contender]]:
    """Contenders to be timed in turn; the first of each group is its floor."""
    floors = CudaDevice(csrc=Path(__file__).parent)
    quantize = [
        _quantize(device, PREFILL_TOKENS, HIDDEN, layout, f"quantize {PREFILL_TOKENS} x {HIDDEN} bf16, {layout} scales")
        for layout in ("linear", "128x4", "8x4")
    ]
    prefill = _expand(device, PREFILL_TOKENS, f"fused expand {PREFILL_TOKENS} x {HIDDEN} bf16, top-{TOP_K}, 128x4")
    separate = _separate(device, PREFILL_TOKENS, f"quantize, then expand {PREFILL_TOKENS} x {HIDDEN}")
    return [
        [copy(floors, quantize[0].traffic, writes=1), *quantize],
        [copy(floors, prefill.traffic, writes=2), prefill, separate],
        *(
            [
                empty(floors),
                _expand(device, tokens, f"fused expand, M = {tokens}"),
                _separate(device, tokens, f"quantize, then expand, M = {tokens}"),
            ]
            for tokens in (1, 8)
        ),
        *step_groups(device, floors),
    ]


def _activations(device: CudaDevice, tokens: int, seed: int) -> Any:
    values = np.random.default_rng(seed).standard_normal((tokens, HIDDEN), np.float32).astype(ml_dtypes.bfloat16)
    return device.upload("x", values)


def _quantize(device: CudaDevice, rows: int, k: int, layout: str, name: str) -> Contender:
    kernel = mxfp8_quantize_kernel("bf16", "rceil", "exact", layout)
    scale_bytes = scale_buffer_bytes(rows, k, layout)
    traffic = rows * k * 3 + rows * k // MX_BLOCK
    plans = [
        mxfp8_quantize_plan(
            kernel,
            _activations(device, rows, seed),
            device.output("codes", (rows, k), 0),
            device.output("scales", (scale_bytes,), 0),
            rows=rows,
            k=k,
            multiprocessors=device.multiprocessors,
        )
        for seed in range(buffer_sets(traffic))
    ]
    return Contender(name, traffic, len(plans), lambda index: device.enqueue(plans[index]))


def _expand(device: CudaDevice, tokens: int, name: str) -> Contender:
    traffic = tokens * HIDDEN * 2 + tokens * TOP_K * (HIDDEN + HIDDEN // MX_BLOCK)
    kernel = expand_kernel("bf16_rceil_exact", "128x4")
    plans = [
        _expand_plan(device, kernel, _activations(device, tokens, seed), None, tokens, seed)
        for seed in range(buffer_sets(traffic))
    ]
    return Contender(name, traffic, len(plans), lambda index: device.enqueue(plans[index]))


def _separate(device: CudaDevice, tokens: int, name: str) -> Contender:
    """The two launches that fusing replaces: quantize with linear scales, then copy codes and scales to the experts."""
    traffic = tokens * HIDDEN * 4 + 2 * tokens * HIDDEN // MX_BLOCK + tokens * TOP_K * (HIDDEN + HIDDEN // MX_BLOCK)
    quantize = mxfp8_quantize_kernel("bf16", "rceil", "exact", "linear")
    copy = expand_kernel("mxfp8_linear", "128x4")
    pairs = []
    for seed in range(buffer_sets(traffic)):
        codes = device.output("codes", (tokens, HIDDEN), 0)
        scales = device.output("scales", (scale_buffer_bytes(tokens, HIDDEN, "linear"),), 0)
        first = mxfp8_quantize_plan(
            quantize,
            _activations(device, tokens, seed),
            codes,
            scales,
            rows=tokens,
            k=HIDDEN,
            multiprocessors=device.multiprocessors,
        )
        pairs.append((first, _expand_plan(device, copy, codes, scales, tokens, seed)))

    def enqueue(index: int) -> None:
        for plan in pairs[index]:
            device.enqueue(plan)

    return Contender(name, traffic, len(pairs), enqueue)


def _expand_plan(device: CudaDevice, kernel: Any, x: Any, input_sf: Any, tokens: int, seed: int) -> Any:
    scores = np.random.default_rng(seed).random((tokens, EXPERTS))
    topk_ids = np.ascontiguousarray(np.argsort(scores, axis=1)[:, :TOP_K].astype(np.int32))
    permutation = build_permutation(topk_ids, EXPERTS)
    rows = tokens * TOP_K
    return expand_plan(
        kernel,
        x,
        input_sf,
        device.upload("topk_ids", topk_ids),
        device.upload("unpermuted_to_permuted", permutation.unpermuted_to_permuted),
        device.upload("offsets", permutation.offsets),
        device.output("codes", (rows, HIDDEN), 0),
        device.output("scales", (scale_buffer_bytes(rows + 127 * EXPERTS, HIDDEN, "128x4"),), 0),
        tokens=tokens,
        top_k=TOP_K,
        k=HIDDEN,
        first_expert=0,
        multiprocessors=device.multiprocessors,
    )


def _interleaved_medians(device: CudaDevice, contenders: list[Contender]) -> list[float]:
    """Median microseconds of one node of each; rounds alternate between them, so that drift hits all alike."""
    torch = device.torch
    graphs = []
    for contender in contenders:
        nodes = max(TARGET_NODES // contender.sets, 1) * contender.sets
        for index in range(contender.sets):
            contender.enqueue(index)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for node in range(nodes):
                contender.enqueue(node % contender.sets)
        graph.replay()
        graphs.append((graph, nodes))
    times: list[list[float]] = [[] for _ in contenders]
    for _ in range(ROUNDS):
        for (graph, nodes), samples in zip(graphs, times, strict=True):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            samples.append(start.elapsed_time(end) * 1e3 / nodes)
    return [median(samples) for samples in times]
