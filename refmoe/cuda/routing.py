"""The routing kernels: softmax top-k, and the maps that sort the choices of all tokens by expert.

Up to 16 tokens take one launch, more take two. The kernels refuse nothing: a token without an answer gets experts
0, 1, ... with NaN for weights and is reported in a word of its own, which callers on a stream read when they like.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from refmoe.cuda.arguments import BF16, INT32_MAX, check_array, check_fill, check_int32
from refmoe.cuda.device import Device
from refmoe.cuda.launch import WARP_LANES, Buffer, Entry, LaunchPlan
from refmoe.errors import ArgumentError, describe

MAX_TOP_K = WARP_LANES  # a lane holds one choice
MAX_EXPERTS = 1024
SLOTS = (4, 8, 32)  # logits of a lane that kernels are built for
FEW_TOKENS = 16  # kFewTokens: what one CTA routes and sorts
FEW_CHOICES = 64  # kFewChoices: given ones that one CTA sorts
LOAD_CHOICES, LOAD_BYTES = 8, 16  # kLoadChoices: of the sort of choices that a launch has made
CHOOSE_THREADS = 256  # 8 tokens a CTA
ROUTE_THREADS, SORT_THREADS = 512, 1024  # kRouteThreads, kSortThreads
DTYPES = {np.dtype(np.float32): "f32", BF16: "bf16"}

SORT_CHOSEN_KERNEL = Entry("routing", "refmoe_route_sort_chosen")
SORT_KERNEL = Entry("routing", "refmoe_route_sort")
SORT_FEW_KERNEL = Entry("routing", "refmoe_route_sort_few")

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Permuted:
    """Where the choices go, as `refmoe.reference.build_permutation` has them.

    Attributes:
        offsets: int64 [E+1], first row of each of this rank's experts, then the rows in use.
        permuted_to_unpermuted: int32 [T*k], choice token + k_rank*T of each row, -1 from row offsets[E] on.
        unpermuted_to_permuted: int32 [T*k], row of each choice, -1 for experts of other ranks.
    """

    offsets: npt.NDArray[np.int64]
    permuted_to_unpermuted: Int32Array
    unpermuted_to_permuted: Int32Array


@dataclass(frozen=True)
class Routed(Permuted):
    """The choices and where they go.

    Attributes:
        topk_ids: int32 [T, k] global expert ids, the largest logit first.
        topk_weights: float32 [T, k].
    """

    topk_ids: Int32Array
    topk_weights: npt.NDArray[np.float32]


@dataclass(frozen=True)
class MapBuffers:
    """The device buffers of `Permuted`, by the same names."""

    offsets: Buffer
    permuted_to_unpermuted: Buffer
    unpermuted_to_permuted: Buffer


def route_kernels(dtype: str, experts: int) -> tuple[Entry, Entry]:
    """(all in one launch, choices alone) for logits of `dtype` "f32" or "bf16" over `experts` experts."""
    slots = next(slots for slots in SLOTS if experts <= slots * WARP_LANES)
    few, choose = (Entry("routing", f"refmoe_route_{part}_{dtype}_{slots}") for part in ("few", "choose"))
    return few, choose


def route_plans(
    dtype: str,
    logits: Buffer,
    bias: Buffer | None,
    topk_ids: Buffer,
    topk_weights: Buffer,
    refused: Buffer,
    chosen: Buffer,
    maps: MapBuffers,
    *,
    tokens: int,
    all_experts: int,
    top_k: int,
    experts: int,
    first_expert: int,
) -> tuple[LaunchPlan, ...]:
    """One launch of one CTA for up to 16 tokens; else two: a warp a token chooses, then a CTA an expert sorts.

    Args:
        dtype: of the logits, "f32" or "bf16".
        logits: [tokens, all_experts].
        bias: float32 [all_experts] or None.
        topk_ids: int32 [tokens, top_k], written; 16-byte aligned.
        topk_weights: float32 [tokens, top_k], written.
        refused: uint32 [1]: see `refused_token`. Must be 0 before the first launch; launches only ever raise it.
        chosen: `chosen_bytes` of it, written by the first launch of two and read by the second; 16-byte aligned.
        maps: written.
        tokens: T; 0 is allowed.
        all_experts: experts of all ranks.
        top_k: choices of a token.
        experts: of this rank.
        first_expert: the id of the first of them.
    """
    few, choose = route_kernels(dtype, all_experts)
    router = (logits, bias, topk_ids, topk_weights, refused)
    if tokens <= FEW_TOKENS:
        # A warp a token, and a thread for each offset if there are as many.
        threads = min(_whole_warps(max(tokens * WARP_LANES, experts + 1)), ROUTE_THREADS)
        sizes = (tokens, all_experts, top_k, experts, first_expert)
        return (LaunchPlan(few, grid=1, block=threads, arguments=(*router, *_outputs(maps), *sizes)),)
    choices = LaunchPlan(
        choose,
        grid=-(-tokens * WARP_LANES // CHOOSE_THREADS),
        block=CHOOSE_THREADS,
        arguments=(*router, chosen, tokens, all_experts, top_k, experts, first_expert),
    )
    sort = LaunchPlan(
        SORT_CHOSEN_KERNEL,
        grid=experts,
        block=min(_whole_warps(-(-tokens * top_k // LOAD_CHOICES)), SORT_THREADS),
        arguments=(chosen, *_outputs(maps), tokens, top_k, experts, first_expert, all_experts),
        programmatic=True,
    )
    return choices, sort


def chosen_bytes(tokens: int, top_k: int) -> int:
    """Bytes of the buffer `chosen` of `route_plans`: 16 bits a choice, in whole loads of 16 bytes."""
    return -(-tokens * top_k // LOAD_CHOICES) * LOAD_BYTES


def permute_plan(
    topk_ids: Buffer, maps: MapBuffers, *, tokens: int, top_k: int, experts: int, first_expert: int
) -> LaunchPlan:
    """One CTA for at most 64 choices; else one an expert, a thread a token up to 1024, which then take several each.

    Args:
        topk_ids: int32 [tokens, top_k], all different within a token; 16-byte aligned.
        maps: written.
        tokens: T; 0 is allowed.
        top_k: choices of a token, at most 32.
        experts: of this rank.
        first_expert: the id of the first of them.
    """
    arguments = (topk_ids, *_outputs(maps), tokens, top_k, experts, first_expert)
    if tokens * top_k <= FEW_CHOICES:
        # A thread for each offset if there are as many.
        threads = min(_whole_warps(max(tokens * top_k, experts + 1)), ROUTE_THREADS)
        return LaunchPlan(SORT_FEW_KERNEL, grid=1, block=threads, arguments=arguments)
    return LaunchPlan(SORT_KERNEL, experts, min(_whole_warps(max(tokens, 1)), SORT_THREADS), arguments)


def refused_word(device: Device) -> Buffer:
    """The `refused` buffer of a launch that chooses experts: uint32 [1], which is 0 and which it reads."""
    return device.output("refused", (4,), 0, initialised=True)


def refused_token(word: int) -> int | None:
    """The first token without an answer that the `refused` word of `route_plans` tells of, or None."""
    return None if word == 0 else ~word & 0xFFFFFFFF


def route(
    logits: npt.NDArray[Any],
    k: int,
    num_experts_local: int,
    *,
    device: Device,
    bias: npt.NDArray[np.float32] | None = None,
    first_expert: int = 0,
    fill: int = 0,
) -> Routed:
    """Choose k experts for every token, weight them, and sort the choices by expert, with the production kernels.

    Args:
        logits: float32 or bfloat16 [T, all experts], C-contiguous, at most 1024 experts; -Inf says "never".
        k: experts a token, 1 to 32.
        num_experts_local: E, experts of this rank.
        device: where the kernels run.
        bias: float32 [all experts], added to the logits in FP32, or None.
        first_expert: global id of this rank's first expert.
        fill: byte that the output buffers hold before the launch, 0..255; the kernels write all of them.

    Raises:
        ArgumentError: an argument is none of these, and nothing has run; or a token has a NaN, a +Inf or fewer than k
            finite values among its logits, which the kernels find.
    """
    routed, refused = try_route(
        logits, k, num_experts_local, device=device, bias=bias, first_expert=first_expert, fill=fill
    )
    if refused is not None:
        found = f"NaN, +Inf or fewer than {k} finite values in token {refused}"
        raise ArgumentError("logits", found, f"at least k = {k} finite values and none above, bias included")
    return routed


def try_route(
    logits: npt.NDArray[Any],
    k: int,
    num_experts_local: int,
    *,
    device: Device,
    bias: npt.NDArray[np.float32] | None = None,
    first_expert: int = 0,
    fill: int = 0,
) -> tuple[Routed, int | None]:
    """As `route`, with the first token that has no answer, or None; such tokens go to experts 0..k-1 by NaN weights.

    Raises:
        ArgumentError: an argument is none of `route`'s; nothing has run.
    """
    check_fill(fill)
    tokens, all_experts = _check_logits(logits, bias)
    _check_count("k", k, most=min(all_experts, MAX_TOP_K), what=f"for {all_experts} experts")
    check_ranks(num_experts_local, first_expert, all_experts)
    _check_rows("logits", tokens * k, num_experts_local)

    topk_ids, topk_weights = (device.output(name, (tokens * k * 4,), fill) for name in ("topk_ids", "topk_weights"))
    refused = refused_word(device)
    chosen = device.output("chosen", (chosen_bytes(tokens, k),), fill)
    maps = _map_buffers(device, tokens * k, num_experts_local, fill)
    plans = route_plans(
        DTYPES[logits.dtype],
        device.upload("logits", logits),
        None if bias is None else device.upload("bias", bias),
        topk_ids,
        topk_weights,
        refused,
        chosen,
        maps,
        tokens=tokens,
        all_experts=all_experts,
        top_k=k,
        experts=num_experts_local,
        first_expert=first_expert,
    )
    for plan in plans:
        device.launch(plan)
    permuted = _download(device, maps)
    routed = Routed(
        permuted.offsets,
        permuted.permuted_to_unpermuted,
        permuted.unpermuted_to_permuted,
        device.download(topk_ids).view(np.int32).reshape(tokens, k),
        device.download(topk_weights).view(np.float32).reshape(tokens, k),
    )
    return routed, refused_token(int(device.download(refused).view(np.uint32)[0]))


def permute(
    topk_ids: Int32Array, num_experts_local: int, *, device: Device, first_expert: int = 0, fill: int = 0
) -> Permuted:
    """Sort given choices by expert, stably in the order token + k_rank*T, with the production kernel.

    Args:
        topk_ids: int32 [T, k] global expert ids, C-contiguous, all different within a token; k at most 32.
        num_experts_local: E, experts of this rank.
        device: where the kernel runs.
        first_expert: global id of the first of them; ids of other ranks get no row.
        fill: byte that the output buffers hold before the launch, 0..255; the kernel writes all of them.

    Raises:
        ArgumentError: an argument is none of these; nothing has run.
    """
    check_fill(fill)
    if not isinstance(topk_ids, np.ndarray) or topk_ids.ndim != 2:
        raise ArgumentError("topk_ids", describe(topk_ids), "int32 [T, k]")
    tokens, top_k = topk_ids.shape
    check_array("topk_ids", topk_ids, np.dtype(np.int32), (tokens, top_k))
    _check_count("topk_ids", top_k, most=MAX_TOP_K, what="ids a token")
    check_ranks(num_experts_local, first_expert, INT32_MAX)
    _check_rows("topk_ids", tokens * top_k, num_experts_local)
    ordered = np.sort(topk_ids, axis=1)
    token, rank = np.nonzero(ordered[:, 1:] == ordered[:, :-1])
    if token.size:
        found = f"expert {ordered[token[0], rank[0]]} twice in token {token[0]}"
        raise ArgumentError("topk_ids", found, f"{top_k} different experts in each token")
    maps = _map_buffers(device, tokens * top_k, num_experts_local, fill)
    sizes = {"tokens": tokens, "top_k": top_k, "experts": num_experts_local, "first_expert": first_expert}
    device.launch(permute_plan(device.upload("topk_ids", topk_ids), maps, **sizes))
    return _download(device, maps)


def _outputs(maps: MapBuffers) -> tuple[Buffer, ...]:
    return maps.offsets, maps.permuted_to_unpermuted, maps.unpermuted_to_permuted


def _map_buffers(device: Device, rows: int, experts: int, fill: int) -> MapBuffers:
    return MapBuffers(
        device.output("offsets", ((experts + 1) * 8,), fill),
        device.output("permuted_to_unpermuted", (rows * 4,), fill),
        device.output("unpermuted_to_permuted", (rows * 4,), fill),
    )


def _download(device: Device, maps: MapBuffers) -> Permuted:
    return Permuted(
        device.download(maps.offsets).view(np.int64),
        device.download(maps.permuted_to_unpermuted).view(np.int32),
        device.download(maps.unpermuted_to_permuted).view(np.int32),
    )


def _whole_warps(threads: int) -> int:
    return -(-threads // WARP_LANES) * WARP_LANES


def _check_logits(logits: object, bias: object) -> tuple[int, int]:
    if not isinstance(logits, np.ndarray) or logits.dtype not in DTYPES or logits.ndim != 2:
        raise ArgumentError("logits", describe(logits), "float32 or bfloat16 [T, experts]")
    tokens, experts = logits.shape
    if not 1 <= experts <= MAX_EXPERTS:
        raise ArgumentError("logits", f"{experts} experts", f"1 to {MAX_EXPERTS}")
    check_array("logits", logits, logits.dtype, (tokens, experts))
    check_int32("logits", tokens * WARP_LANES, "threads")
    if bias is not None:
        check_array("bias", bias, np.dtype(np.float32), (experts,))
    return tokens, experts


def _check_rows(argument: str, rows: int, experts: int) -> None:
    """Refuse rows that the sorting threads, a CTA an expert, could pass in int32 on their way over them."""
    steps = max(experts, LOAD_CHOICES) * SORT_THREADS
    check_int32(argument, rows + steps, f"rows after expansion and threads, for {experts} experts")


def _check_count(argument: str, count: object, *, most: int, what: str) -> None:
    if not isinstance(count, (int, np.integer)) or isinstance(count, bool) or not 1 <= count <= most:
        raise ArgumentError(argument, f"{describe(count)} {what}", f"1 to {most}")


def check_ranks(experts: object, first_expert: object, all_experts: int) -> None:
    """Refuse numbers of experts of a rank, and a first one, that do not lie within all experts.

    Raises:
        ArgumentError: `num_experts_local` or `first_expert`.
    """
    _check_count("num_experts_local", experts, most=min(all_experts, INT32_MAX), what=f"of {all_experts} experts")
    last = all_experts - int(experts)  # type: ignore[call-overload]
    if not isinstance(first_expert, (int, np.integer)) or not 0 <= first_expert <= last:
        raise ArgumentError("first_expert", describe(first_expert), f"0 to {last}: the id of this rank's first expert")
