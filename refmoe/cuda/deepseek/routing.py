"""The router of a DeepSeek-V3 layer: sigmoid top-k over groups, and the maps that sort the choices by expert.

Two launches: a warp a token chooses; then the sorting kernel of `refmoe.cuda.routing` makes the maps of the ids. The
kernels refuse nothing: a token without an answer gets experts 0, 1, ... with NaN for weights and is reported in a word
of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from refmoe.cuda.arguments import BF16, check_array, check_fill, check_int32
from refmoe.cuda.device import Device
from refmoe.cuda.launch import WARP_LANES, Buffer, Entry, LaunchPlan
from refmoe.cuda.routing import SORT_THREADS, MapBuffers, Routed, check_ranks, permute_plan, refused_token, refused_word
from refmoe.errors import ArgumentError
from refmoe.reference.deepseek.routing import check_sizes

SLOTS = (8, 16)  # experts of a lane that kernels are built for
THREADS = 256  # kThreads: 8 tokens a CTA
DTYPES = {np.dtype(np.float32): "f32", BF16: "bf16"}


def deepseek_route_kernel(dtype: str, experts: int, rule: str) -> Entry:
    """The kernel for logits of `dtype` "f32" or "bf16" over `experts` experts, and the rule of the weights."""
    slots = next(slots for slots in SLOTS if experts <= slots * WARP_LANES)
    return Entry("deepseek_routing", f"refmoe_deepseek_route_{dtype}_{slots}_{rule}")


def deepseek_route_plan(
    kernel: Entry,
    logits: Buffer,
    bias: Buffer | None,
    topk_ids: Buffer,
    topk_weights: Buffer,
    refused: Buffer,
    *,
    tokens: int,
    experts: int,
    top_k: int,
    groups: int,
    top_groups: int,
    scale: float,
) -> LaunchPlan:
    """A launch that chooses, a warp a token; `permute_plan` of `refmoe.cuda.routing` makes the maps of the ids.

    Args:
        kernel: from `deepseek_route_kernel`.
        logits: [tokens, experts].
        bias: float32 [experts] or None.
        topk_ids: int32 [tokens, top_k], written; 16-byte aligned, for the launch that sorts.
        topk_weights: float32 [tokens, top_k], written.
        refused: uint32 [1]: see `refmoe.cuda.routing.refused_token`. Must be 0 before the launch, which only raises it.
        tokens: T, at least 1.
        experts: of all ranks.
        top_k: choices of a token.
        groups: of experts.
        top_groups: those that are kept.
        scale: the factor on the weights, rounded to FP32.
    """
    factor = int(np.float32(scale).view(np.int32))
    sizes = (tokens, experts, top_k, groups, top_groups, factor)
    grid = -(-tokens * WARP_LANES // THREADS)
    return LaunchPlan(kernel, grid, THREADS, (logits, bias, topk_ids, topk_weights, refused, *sizes))


def route_grouped(
    logits: npt.NDArray[Any],
    bias: npt.NDArray[np.float32] | None,
    k: int,
    groups: int,
    top_groups: int,
    scale: float,
    num_experts_local: int,
    *,
    device: Device,
    rule: str = "deepseek",
    first_expert: int = 0,
    fill: int = 0,
) -> Routed:
    """Choose k experts for every token, weigh them, and sort the choices by expert, with the production kernels.

    Args:
        logits: float32 or bfloat16 [T, all experts], C-contiguous, at most 512 experts.
        bias: float32 [all experts], added to the sigmoids for the choice alone, or None.
        k: experts a token.
        groups: of neighbouring experts.
        top_groups: how many are kept.
        scale: the factor on the weights.
        num_experts_local: E, experts of this rank.
        device: where the kernels run.
        rule: of the weights, "deepseek" or "trtllm"; see `refmoe.reference.deepseek.routing`.
        first_expert: global id of this rank's first expert.
        fill: byte that the output buffers hold before the launch, 0..255; the kernels write all of them.

    Raises:
        ArgumentError: an argument is none of these, and nothing has run; or a token has no answer, which the kernels
            find.
    """
    routed, refused = try_route_grouped(
        logits, bias, k, groups, top_groups, scale, num_experts_local,
        device=device, rule=rule, first_expert=first_expert, fill=fill,
    )  # fmt: skip
    if refused is not None:
        found = f"a score of NaN or +Inf, or fewer than {k} finite ones, in token {refused}"
        raise ArgumentError("logits", found, f"at least k = {k} finite scores and none above, bias included")
    return routed


def try_route_grouped(
    logits: npt.NDArray[Any],
    bias: npt.NDArray[np.float32] | None,
    k: int,
    groups: int,
    top_groups: int,
    scale: float,
    num_experts_local: int,
    *,
    device: Device,
    rule: str = "deepseek",
    first_expert: int = 0,
    fill: int = 0,
) -> tuple[Routed, int | None]:
    """As `route_grouped`, with the first token that has no answer, or None; such tokens go to experts 0..k-1 by NaN.

    Raises:
        ArgumentError: an argument is none of `route_grouped`'s; nothing has run.
    """
    check_fill(fill)
    top_k = check_sizes(logits, bias, k, groups, top_groups, scale, rule)
    tokens, experts = logits.shape
    check_array("logits", logits, logits.dtype, (tokens, experts))
    if bias is not None:
        check_array("bias", bias, np.dtype(np.float32), (experts,))
    check_ranks(num_experts_local, first_expert, experts)
    check_int32("logits", tokens * WARP_LANES, "threads")
    check_int32("logits", tokens * top_k + num_experts_local * SORT_THREADS, "rows after expansion and threads")

    rows = tokens * top_k
    topk_ids, topk_weights = (device.output(name, (rows * 4,), fill) for name in ("topk_ids", "topk_weights"))
    refused = refused_word(device)
    maps = MapBuffers(
        device.output("offsets", ((num_experts_local + 1) * 8,), fill),
        device.output("permuted_to_unpermuted", (rows * 4,), fill),
        device.output("unpermuted_to_permuted", (rows * 4,), fill),
    )
    if tokens:
        choose = deepseek_route_plan(
            deepseek_route_kernel(DTYPES[logits.dtype], experts, rule),
            device.upload("logits", logits),
            None if bias is None else device.upload("bias", bias),
            topk_ids,
            topk_weights,
            refused,
            **{"tokens": tokens, "experts": experts, "top_k": top_k},
            **{"groups": groups, "top_groups": top_groups},
            scale=scale,
        )
        device.launch(choose)
    sizes = {"tokens": tokens, "top_k": top_k, "experts": num_experts_local, "first_expert": first_expert}
    device.launch(permute_plan(topk_ids, maps, **sizes))
    routed = Routed(
        device.download(maps.offsets).view(np.int64),
        device.download(maps.permuted_to_unpermuted).view(np.int32),
        device.download(maps.unpermuted_to_permuted).view(np.int32),
        device.download(topk_ids).view(np.int32).reshape(tokens, top_k),
        device.download(topk_weights).view(np.float32).reshape(tokens, top_k),
    )
    return routed, refused_token(int(device.download(refused).view(np.uint32)[0]))
