"""Routing, activation and finalize on a GPU, at the sizes of gpt-oss-120b, each beside a copy of its traffic."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from refmoe.bench.contenders import Contender, buffer_sets, copy, empty, gather, of_plans
from refmoe.cuda.activation import swiglu_kernel, swiglu_quantize_plan
from refmoe.cuda.arguments import scale_buffer_bytes
from refmoe.cuda.device import CudaDevice
from refmoe.cuda.finalize import finalize_kernel, finalize_plan
from refmoe.cuda.launch import LaunchPlan
from refmoe.cuda.routing import MapBuffers, permute_plan, route_plans
from refmoe.formats import MX_BLOCK
from refmoe.reference import build_permutation

__all__ = ["step_groups"]

HIDDEN = INTERMEDIATE = 2880
EXPERTS, TOP_K = 128, 4
PREFILL_TOKENS = 8192
BF16_BYTES, WORD_BYTES = 2, 4


def step_groups(device: CudaDevice, floors: CudaDevice) -> list[list[Contender]]:
    """Contenders to be timed in turn; the first of each group is its floor."""
    route, sort = _route(device, PREFILL_TOKENS), _sort(device, PREFILL_TOKENS)
    activation, finalize = _activation(device, PREFILL_TOKENS), _finalize(device, PREFILL_TOKENS)
    return [
        [copy(floors, route.traffic, writes=1), route, sort],
        [gather(floors, activation.traffic, reads=4), activation],
        [gather(floors, finalize.traffic, reads=TOP_K), finalize],
        *(
            [empty(floors), _route(device, tokens), _activation(device, tokens), _finalize(device, tokens)]
            for tokens in (1, 8)
        ),
    ]


def _ids(tokens: int, seed: int) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    scores = np.random.default_rng(seed).random((tokens, EXPERTS))
    return np.ascontiguousarray(np.argsort(scores, axis=1)[:, :TOP_K].astype(np.int32))


def _maps(device: CudaDevice, rows: int) -> MapBuffers:
    return MapBuffers(
        device.output("offsets", ((EXPERTS + 1) * 8,), 0),
        device.output("permuted_to_unpermuted", (rows * WORD_BYTES,), 0),
        device.output("unpermuted_to_permuted", (rows * WORD_BYTES,), 0),
    )


def _route(device: CudaDevice, tokens: int) -> Contender:
    """FP32 logits to choices, weights, maps and offsets."""
    rows = tokens * TOP_K
    traffic = tokens * EXPERTS * WORD_BYTES + 4 * rows * WORD_BYTES + (EXPERTS + 1) * 8
    sets = [
        route_plans(
            "f32",
            device.upload("logits", np.random.default_rng(seed).standard_normal((tokens, EXPERTS), np.float32)),
            None,
            device.output("topk_ids", (rows * WORD_BYTES,), 0),
            device.output("topk_weights", (rows * WORD_BYTES,), 0),
            device.output("refused", (WORD_BYTES,), 0),
            _maps(device, rows),
            tokens=tokens,
            all_experts=EXPERTS,
            top_k=TOP_K,
            experts=EXPERTS,
            first_expert=0,
        )
        for seed in range(buffer_sets(traffic))
    ]
    return of_plans(device, f"route {tokens} x {EXPERTS}, top-{TOP_K}, with maps", traffic, sets)


def _sort(device: CudaDevice, tokens: int) -> Contender:
    """Maps and offsets of given choices."""
    rows = tokens * TOP_K
    traffic = 3 * rows * WORD_BYTES + (EXPERTS + 1) * 8
    sets = [
        [
            permute_plan(
                device.upload("topk_ids", _ids(tokens, seed)),
                _maps(device, rows),
                tokens=tokens,
                top_k=TOP_K,
                experts=EXPERTS,
                first_expert=0,
            )
        ]
        for seed in range(buffer_sets(traffic))
    ]
    return of_plans(device, f"maps alone of {tokens} x top-{TOP_K}", traffic, sets)


def _activation(device: CudaDevice, tokens: int) -> Contender:
    """BF16 gates and ups to MXFP8 in 128x4, without a bias: the first GEMM has added it."""
    rows, width = tokens * TOP_K, INTERMEDIATE
    traffic = rows * (2 * width * BF16_BYTES + width + width // MX_BLOCK)
    kernel = swiglu_kernel("gpt_oss", "rceil", "exact", "128x4")
    scale_bytes = scale_buffer_bytes(rows + 127 * EXPERTS, width, "128x4")

    def plan(seed: int) -> LaunchPlan:
        values = np.random.default_rng(seed).standard_normal((rows, 2 * width), np.float32)
        return swiglu_quantize_plan(
            kernel,
            device.upload("gate_up", (values * 3).astype(ml_dtypes.bfloat16)),
            device.upload("offsets", build_permutation(_ids(tokens, seed), EXPERTS).offsets),
            None,
            (None, None, None),
            device.output("codes", (rows, width), 0),
            device.output("scales", (scale_bytes,), 0),
            rows=rows,
            width=width,
            experts=EXPERTS,
            multiprocessors=device.multiprocessors,
        )

    sets = [[plan(seed)] for seed in range(buffer_sets(traffic))]
    return of_plans(device, f"SwiGLU to MXFP8, {rows} x {width}, 128x4", traffic, sets)


def _finalize(device: CudaDevice, tokens: int) -> Contender:
    """BF16 rows, bias, BF16 out. The bias, 0.7 MB, stays in the L2 cache and is not counted."""
    rows = tokens * TOP_K
    traffic = (rows + tokens) * HIDDEN * BF16_BYTES + 3 * rows * WORD_BYTES
    kernel = finalize_kernel("bf16", "bf16")

    def plan(seed: int) -> LaunchPlan:
        rng, ids = np.random.default_rng(seed), _ids(tokens, seed)
        return finalize_plan(
            kernel,
            device.upload("rows", rng.standard_normal((rows, HIDDEN), np.float32).astype(ml_dtypes.bfloat16)),
            device.upload("unpermuted_to_permuted", build_permutation(ids, EXPERTS).unpermuted_to_permuted),
            device.upload("weights", rng.random((tokens, TOP_K), np.float32)),
            device.upload("topk_ids", ids),
            device.upload("bias", rng.standard_normal((EXPERTS, HIDDEN)).astype(ml_dtypes.bfloat16)),
            device.output("out", (tokens, HIDDEN * BF16_BYTES), 0),
            tokens=tokens,
            top_k=TOP_K,
            width=HIDDEN,
            first_expert=0,
            multiprocessors=device.multiprocessors,
        )

    sets = [[plan(seed)] for seed in range(buffer_sets(traffic))]
    return of_plans(device, f"finalize {tokens} x {HIDDEN} bf16, top-{TOP_K}, bias", traffic, sets)
