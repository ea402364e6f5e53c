"""A whole gpt-oss layer by integer products on a GPU, launch by launch, beside the sum of its launches' floors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from refmoe.bench.gpu.kernels import GPT_OSS_120B
from refmoe.bench.gpu.timing import Contender, drawn_bytes, empty, interleaved, read, rows_of, set_count
from refmoe.cuda.device import CudaDevice
from refmoe.cuda.moe.integer import integer_steps, integer_workspace_bytes, output_bytes
from refmoe.cuda.moe.launches import LaunchStep, LayerBuffers, LayerShape
from refmoe.formats import Q8_1

PATH = "dp4a"
TOKENS = (1, 2, 4, 8)
#: Fewer bytes than this take no longer than a launch that does nothing.
FEW_BYTES = 2**20


def rows(device: CudaDevice, floors: CudaDevice) -> list[dict[str, Any]]:
    """Rows of a report, as `refmoe.bench.gpu.timing.rows_of` makes them, for each number of tokens.

    The first is the sum of floors: for each launch a pure read of the bytes that it moves, or a launch that does
    nothing where these are few. Then come the layer, all its launches in one graph, and each launch in a graph of its
    own. The router is not part of it. Every choice of a token is an expert of its own, as of 128 nearly all are.
    """
    made: list[dict[str, Any]] = []
    for tokens in TOKENS:
        made += rows_at(device, floors, tokens)
    return made


def rows_at(device: CudaDevice, floors: CudaDevice, tokens: int) -> list[dict[str, Any]]:
    """Those for one number of tokens."""
    shape = LayerShape(
        tokens, GPT_OSS_120B.top_k, tokens * GPT_OSS_120B.top_k, GPT_OSS_120B.hidden, GPT_OSS_120B.intermediate
    )
    name = f"layer, DP4A, M = {tokens}"
    return attributed(device, floors, name, [1] * shape.experts, lambda seed: _steps(device, shape, seed))


def attributed(
    device: CudaDevice,
    floors: CudaDevice,
    name: str,
    rows_per_expert: Sequence[int],
    steps: Callable[[int], Sequence[LaunchStep]],
) -> list[dict[str, Any]]:
    """Rows of a report for the sum of a layer's floors, the layer, and each of its launches.

    Args:
        device: where the kernels are.
        floors: where those of the floors are.
        name: of the layer's row. The sum's row ends as it does, behind its last comma.
        rows_per_expert: of the layer's load, which decides what its launches move.
        steps: the launches in order, on a set of buffers of the layer's own for each seed.
    """
    first = steps(0)
    moved = [traffic.read + traffic.written for traffic in (step.traffic(rows_per_expert) for step in first)]
    count = set_count(sum(moved))
    sets = [[step.plan for step in (first if seed == 0 else steps(seed))] for seed in range(count)]
    layer = Contender(name, sum(moved), device, sets)
    launches = [
        # By itself a launch starts when the one in front of it has ended.
        Contender(
            f"{name}: {step.stage}", size, device, [[replace(plans[place], programmatic=False)] for plans in sets]
        )
        for place, (step, size) in enumerate(zip(first, moved, strict=True))
    ]
    least = [read(floors, size) if size >= FEW_BYTES else empty(floors) for size in moved]
    samples = interleaved(device, [*least, layer, *launches])
    summed = [sum(turn) for turn in zip(*samples[: len(least)], strict=True)]
    floor = Contender(f"sum of floors, {name.rpartition(', ')[2]}", sum(moved), floors, ())
    return rows_of([floor, layer, *launches], [summed, *samples[len(least) :]])


def _steps(device: CudaDevice, shape: LayerShape, seed: int) -> tuple[LaunchStep, ...]:
    """The launches of a layer on drawn tokens, codes and scales."""
    rng = np.random.default_rng(seed)
    both = 2 * shape.intermediate

    def bf16(*size: int) -> Any:
        return device.upload("bf16", rng.standard_normal(size, np.float32).astype(ml_dtypes.bfloat16))

    def codes(rows: int, columns: int) -> tuple[Any, Any]:
        weights = drawn_bytes(device, seed, (shape.experts, rows, columns // 2), 0, 256)
        return weights, drawn_bytes(device, seed + 1, (shape.experts, rows, columns // Q8_1.block), 116, 121)

    gate_up, gate_up_scales = codes(both, shape.hidden)
    down, down_scales = codes(shape.hidden, shape.intermediate)
    chosen = rng.permutation(shape.experts).reshape(shape.tokens, shape.top_k).astype(np.int32)
    kinds = {"quantization": "separate", "output": "bf16"}
    space = integer_workspace_bytes(shape, PATH, **kinds)
    buffers = LayerBuffers(
        x=bf16(shape.tokens, shape.hidden),
        input_sf=None,
        topk_ids=device.upload("topk_ids", chosen),
        topk_weights=device.upload("topk_weights", rng.random((shape.tokens, shape.top_k), np.float32)),
        gate_up=gate_up,
        gate_up_scales=gate_up_scales,
        down=down,
        down_scales=down_scales,
        gate_up_alpha=None,
        down_alpha=None,
        gate_up_bias=bf16(shape.experts, both),
        down_bias=bf16(shape.experts, shape.hidden),
        swiglu_alpha=None,
        swiglu_beta=None,
        swiglu_limit=None,
        out=device.output("out", (output_bytes(shape, kinds["output"]),), 0),
        workspace={name: device.output(name, (size,), 0) for name, size in space.items()},
    )
    return integer_steps(shape, PATH, buffers, **kinds, multiprocessors=device.multiprocessors)
