"""The kernels around the GEMMs of a layer as contenders of a benchmark, at the sizes of a model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from refmoe.bench.gpu.timing import Contender, contender, drawn_normal
from refmoe.cuda.activation import swiglu_kernel, swiglu_quantize_plan
from refmoe.cuda.arguments import scale_buffer_bytes
from refmoe.cuda.device import CudaDevice
from refmoe.cuda.expand import expand_as_kernel, expand_kernel, expand_plan
from refmoe.cuda.finalize import finalize_kernel, finalize_plan
from refmoe.cuda.launch import LANE_ELEMENTS, Buffer, Entry, LaunchPlan, row_plan
from refmoe.cuda.quantize import mxfp8_quantize_kernel, mxfp8_quantize_plan
from refmoe.cuda.routing import MapBuffers, chosen_bytes, permute_plan, route_plans
from refmoe.formats import MX_BLOCK
from refmoe.reference import Permutation, build_permutation

BF16_BYTES, WORD_BYTES = 2, 4


@dataclass(frozen=True)
class MoeSizes:
    """Sizes of a mixture of experts.

    Attributes:
        model: for people.
        hidden: elements of a token.
        intermediate: elements between the two GEMMs of an expert.
        experts: routed ones.
        top_k: experts of a token.
        activation: between the GEMMs, "gpt_oss" or "silu".
        biased: whether the GEMMs have a bias for each expert.
    """

    model: str
    hidden: int
    intermediate: int
    experts: int
    top_k: int
    activation: str
    biased: bool

    def choices(self, tokens: int, seed: int) -> tuple[NDArray[np.int32], Permutation]:
        """The experts of each token, drawn, int32 [tokens, top_k], and where that puts its rows."""
        scores = np.random.default_rng(seed).random((tokens, self.experts))
        ids = np.ascontiguousarray(np.argsort(scores, axis=1)[:, : self.top_k].astype(np.int32))
        return ids, build_permutation(ids, self.experts)


GPT_OSS_120B = MoeSizes("gpt-oss-120b", 2880, 2880, 128, 4, "gpt_oss", biased=True)
DEEPSEEK_V3 = MoeSizes("DeepSeek-V3", 7168, 2048, 256, 8, "silu", biased=False)


def mx_bytes(width: int) -> int:
    """Codes and scales of a row of MXFP8."""
    return width + width // MX_BLOCK


def drawn_logits(sizes: MoeSizes, tokens: int, seed: int) -> NDArray[np.float32]:
    """Of a router, float32 [tokens, experts]."""
    return np.random.default_rng(seed).standard_normal((tokens, sizes.experts), np.float32)


def drawn_weights(sizes: MoeSizes, tokens: int, seed: int) -> NDArray[np.float32]:
    """Of a token's experts, float32 [tokens, top_k]."""
    return np.random.default_rng(seed).random((tokens, sizes.top_k), np.float32)


def quantize(device: CudaDevice, sizes: MoeSizes, tokens: int, layout: str) -> Contender:
    """BF16 rows to MXFP8."""
    name = f"quantize {tokens} x {sizes.hidden} bf16, {layout} scales"
    traffic = tokens * (sizes.hidden * BF16_BYTES + mx_bytes(sizes.hidden))
    return contender(device, name, traffic, lambda seed: [_quantize_plan(device, sizes, tokens, layout, seed)])


def expand(device: CudaDevice, sizes: MoeSizes, tokens: int, name: str) -> Contender:
    """BF16 rows to the MXFP8 rows of their experts, scales in 128x4: one launch."""
    traffic = tokens * (sizes.hidden * BF16_BYTES + sizes.top_k * mx_bytes(sizes.hidden))
    kernel = expand_kernel("bf16_rceil_exact", "128x4")

    def launches(seed: int) -> list[LaunchPlan]:
        x = drawn_normal(device, (tokens, sizes.hidden), seed)
        return [_expand_plan(device, sizes, kernel, x, None, tokens, seed)]

    return contender(device, name, traffic, launches)


def plain_expand(device: CudaDevice, sizes: MoeSizes, tokens: int) -> Contender:
    """BF16 rows copied to their experts as they are."""
    rows, bytes_of_row = tokens * sizes.top_k, sizes.hidden * BF16_BYTES

    def launches(seed: int) -> list[LaunchPlan]:
        ids, permutation = sizes.choices(tokens, seed)
        arguments = (
            *(drawn_normal(device, (tokens, sizes.hidden), seed), None, None),
            device.upload("topk_ids", ids),
            device.upload("unpermuted_to_permuted", permutation.unpermuted_to_permuted),
            device.upload("offsets", permutation.offsets),
            *(device.output("codes", (rows, bytes_of_row), 0), None),
            *(tokens, sizes.top_k, 0, bytes_of_row // LANE_ELEMENTS, 0),
        )
        kernel = expand_as_kernel("", "copy")
        return [row_plan(kernel, arguments, rows=tokens, width=bytes_of_row, multiprocessors=device.multiprocessors)]

    name = f"plain BF16 expand, M = {tokens}"
    return contender(device, name, (1 + sizes.top_k) * tokens * bytes_of_row, launches)


def quantize_then_expand(device: CudaDevice, sizes: MoeSizes, tokens: int, name: str) -> Contender:
    """The two launches that fusing replaces: quantize with linear scales, then copy codes and scales to the experts."""
    traffic = tokens * (sizes.hidden * BF16_BYTES + (2 + sizes.top_k) * mx_bytes(sizes.hidden))
    kernel = expand_kernel("mxfp8_linear", "128x4")

    def launches(seed: int) -> list[LaunchPlan]:
        first = _quantize_plan(device, sizes, tokens, "linear", seed)
        _, codes, scales, *_ = first.arguments
        return [first, _expand_plan(device, sizes, kernel, codes, scales, tokens, seed)]

    return contender(device, name, traffic, launches)


def route(device: CudaDevice, sizes: MoeSizes, tokens: int) -> Contender:
    """FP32 logits to choices, weights, maps and offsets."""
    rows = tokens * sizes.top_k
    traffic = tokens * sizes.experts * WORD_BYTES + 4 * rows * WORD_BYTES + (sizes.experts + 1) * 8

    def launches(seed: int) -> tuple[LaunchPlan, ...]:
        return route_plans(
            "f32",
            device.upload("logits", drawn_logits(sizes, tokens, seed)),
            None,
            device.output("topk_ids", (rows * WORD_BYTES,), 0),
            device.output("topk_weights", (rows * WORD_BYTES,), 0),
            device.output("refused", (WORD_BYTES,), 0),
            device.output("chosen", (chosen_bytes(tokens, sizes.top_k),), 0),
            _maps(device, rows, sizes.experts),
            tokens=tokens,
            all_experts=sizes.experts,
            top_k=sizes.top_k,
            experts=sizes.experts,
            first_expert=0,
        )

    return contender(device, f"route {tokens} x {sizes.experts}, top-{sizes.top_k}, with maps", traffic, launches)


def sort(device: CudaDevice, sizes: MoeSizes, tokens: int) -> Contender:
    """Maps and offsets of given choices."""
    rows = tokens * sizes.top_k
    traffic = 3 * rows * WORD_BYTES + (sizes.experts + 1) * 8

    def launches(seed: int) -> list[LaunchPlan]:
        ids = device.upload("topk_ids", sizes.choices(tokens, seed)[0])
        maps = _maps(device, rows, sizes.experts)
        return [permute_plan(ids, maps, tokens=tokens, top_k=sizes.top_k, experts=sizes.experts, first_expert=0)]

    return contender(device, f"maps alone of {tokens} x top-{sizes.top_k}", traffic, launches)


def activation(device: CudaDevice, sizes: MoeSizes, tokens: int) -> Contender:
    """BF16 gates and ups to MXFP8 in 128x4, without a bias: the first GEMM has added it."""
    rows = tokens * sizes.top_k
    traffic = rows * (2 * sizes.intermediate * BF16_BYTES + mx_bytes(sizes.intermediate))
    kernel = swiglu_kernel(sizes.activation, "rceil", "exact", "128x4")

    def launches(seed: int) -> list[LaunchPlan]:
        plan = swiglu_quantize_plan(
            kernel,
            drawn_normal(device, (rows, 2 * sizes.intermediate), seed, scale=3),
            device.upload("offsets", sizes.choices(tokens, seed)[1].offsets),
            None,
            (None, None, None),
            *_quantized(device, rows, rows + 127 * sizes.experts, sizes.intermediate, "128x4"),
            rows=rows,
            width=sizes.intermediate,
            experts=sizes.experts,
            multiprocessors=device.multiprocessors,
        )
        return [plan]

    return contender(device, f"SwiGLU to MXFP8, {rows} x {sizes.intermediate}, 128x4", traffic, launches)


def finalize(device: CudaDevice, sizes: MoeSizes, tokens: int) -> Contender:
    """BF16 rows, the bias of the experts that are chosen, BF16 out."""
    rows = tokens * sizes.top_k
    biases = len(np.unique(sizes.choices(tokens, 0)[0])) if sizes.biased else 0
    traffic = (rows + tokens + biases) * sizes.hidden * BF16_BYTES + 3 * rows * WORD_BYTES
    kernel = finalize_kernel("bf16", "bf16")

    def launches(seed: int) -> list[LaunchPlan]:
        ids, permutation = sizes.choices(tokens, seed)
        plan = finalize_plan(
            kernel,
            drawn_normal(device, (rows, sizes.hidden), seed),
            device.upload("unpermuted_to_permuted", permutation.unpermuted_to_permuted),
            device.upload("weights", drawn_weights(sizes, tokens, seed)),
            device.upload("topk_ids", ids),
            drawn_normal(device, (sizes.experts, sizes.hidden), seed) if sizes.biased else None,
            device.output("out", (tokens, sizes.hidden * BF16_BYTES), 0),
            tokens=tokens,
            top_k=sizes.top_k,
            width=sizes.hidden,
            first_expert=0,
            multiprocessors=device.multiprocessors,
        )
        return [plan]

    name = f"finalize {tokens} x {sizes.hidden} bf16, top-{sizes.top_k}" + ", bias" * sizes.biased
    return contender(device, name, traffic, launches)


def _quantize_plan(device: CudaDevice, sizes: MoeSizes, tokens: int, layout: str, seed: int) -> LaunchPlan:
    return mxfp8_quantize_plan(
        mxfp8_quantize_kernel("bf16", "rceil", "exact", layout),
        drawn_normal(device, (tokens, sizes.hidden), seed),
        *_quantized(device, tokens, tokens, sizes.hidden, layout),
        rows=tokens,
        k=sizes.hidden,
        multiprocessors=device.multiprocessors,
    )


def _expand_plan(
    device: CudaDevice, sizes: MoeSizes, kernel: Entry, x: Buffer, input_sf: Buffer | None, tokens: int, seed: int
) -> LaunchPlan:
    ids, permutation = sizes.choices(tokens, seed)
    rows = tokens * sizes.top_k
    return expand_plan(
        kernel,
        x,
        input_sf,
        device.upload("topk_ids", ids),
        device.upload("unpermuted_to_permuted", permutation.unpermuted_to_permuted),
        device.upload("offsets", permutation.offsets),
        *_quantized(device, rows, rows + 127 * sizes.experts, sizes.hidden, "128x4"),
        tokens=tokens,
        top_k=sizes.top_k,
        k=sizes.hidden,
        first_expert=0,
        multiprocessors=device.multiprocessors,
    )


def _quantized(device: CudaDevice, rows: int, scale_rows: int, width: int, layout: str) -> tuple[Buffer, Buffer]:
    """Room for the codes and the scales of MXFP8 rows."""
    scale_bytes = scale_buffer_bytes(scale_rows, width, layout)
    return device.output("codes", (rows, width), 0), device.output("scales", (scale_bytes,), 0)


def _maps(device: CudaDevice, rows: int, experts: int) -> MapBuffers:
    return MapBuffers(
        device.output("offsets", ((experts + 1) * 8,), 0),
        device.output("permuted_to_unpermuted", (rows * WORD_BYTES,), 0),
        device.output("unpermuted_to_permuted", (rows * WORD_BYTES,), 0),
    )
