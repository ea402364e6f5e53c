"""DeepSeek-V3's router on a GPU, beside the same in torch, compiled by torch.compile.

8,192 tokens choose 8 of 256 experts, out of the 4 best of 8 groups. Two questions are timed: the experts and their
weights; and these with the maps that sort the choices by expert, which a grouped GEMM needs.

torch's sigmoid and its sum of weights are not ours, so the last bits of weights may differ. What differs is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from refmoe.bench.gpu.timing import Calls, Contender, empty, floor_device, time_groups
from refmoe.cuda.deepseek.routing import deepseek_route_kernel, deepseek_route_plan
from refmoe.cuda.device import CudaDevice
from refmoe.cuda.launch import Buffer, LaunchPlan
from refmoe.cuda.routing import MapBuffers, permute_plan

TOKENS, EXPERTS, TOP_K, GROUPS, TOP_GROUPS, SCALE = 8192, 256, 8, 8, 4, 2.5
#: Sets of operands that take turns.
SETS = 4


@dataclass(frozen=True)
class _Answer:
    """What a router writes: experts int32 and weights FP32 [T, k], and maps of the choices."""

    topk_ids: Buffer
    topk_weights: Buffer
    maps: MapBuffers


def run() -> dict[str, Any]:
    """Time both on the current GPU and return a JSON-able document.

    `rows` holds for each contender the median microseconds, the bytes that it must move, and the ratio to an empty
    kernel. `tokens_with_other_experts`, `weights_with_other_bits` and `most_units_apart` compare the answers; units are
    those of a weight's last place. `maps_differ` says whether the maps of the same experts do.

    Raises:
        DeviceUnavailable: no GPU that the kernels are built for.
    """
    device = CudaDevice()
    torch = device.torch
    floors = floor_device()
    operands = [_operands(torch, seed) for seed in range(SETS)]
    ours = [_answer(torch) for _ in operands]
    plans = [_plans(torch, *given, answer) for given, answer in zip(operands, ours, strict=True)]
    choose, route = torch.compile(_choose), torch.compile(_route)
    chosen = TOKENS * (EXPERTS * 2 + TOP_K * 8) + EXPERTS * 4
    sorted_too = chosen + TOKENS * TOP_K * 8 + (EXPERTS + 1) * 8
    contenders: Sequence[Contender | Calls] = (
        empty(floors),
        Contender("refmoe: experts and weights", chosen, device, [plan[:1] for plan in plans]),
        Calls("torch.compile: experts and weights", chosen, [_call(choose, given) for given in operands]),
        Contender("refmoe: with the maps", sorted_too, device, plans),
        Calls("torch.compile: with the maps", sorted_too, [_call(route, given) for given in operands]),
    )
    rows = time_groups(device, [contenders])
    times = [row["microseconds"] for row in rows]
    return {
        "gpu": device.gpu_name,
        "arch": device.arch,
        "torch": torch.__version__,
        "problem": f"{TOKENS} tokens, {EXPERTS} experts in {GROUPS} groups, {TOP_GROUPS} kept, top {TOP_K}",
        "rows": rows,
        "torch_over_ours": [round(times[2] / times[1], 3), round(times[4] / times[3], 3)],
        **_compared(torch, ours[0], route(torch, *operands[0])),
    }


def _operands(torch: Any, seed: int) -> tuple[Buffer, Buffer]:
    """Logits BF16 [T, E], and the bias FP32 [E] of the choice."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    logits = torch.randn((TOKENS, EXPERTS), generator=generator, device="cuda").to(torch.bfloat16)
    return logits, torch.randn((EXPERTS,), generator=generator, device="cuda") / 8


def _answer(torch: Any) -> _Answer:
    choices = TOKENS * TOP_K

    def made(count: int, dtype: Any) -> Buffer:
        return torch.zeros((count,), dtype=dtype, device="cuda")

    maps = MapBuffers(made(EXPERTS + 1, torch.int64), made(choices, torch.int32), made(choices, torch.int32))
    return _Answer(made(choices, torch.int32), made(choices, torch.float32), maps)


def _plans(torch: Any, logits: Buffer, bias: Buffer, answer: _Answer) -> list[LaunchPlan]:
    """The launch that chooses, and the one that sorts."""
    refused = torch.zeros((1,), dtype=torch.int32, device="cuda")
    route = deepseek_route_plan(
        deepseek_route_kernel("bf16", EXPERTS, "deepseek"),
        *(logits, bias, answer.topk_ids, answer.topk_weights, refused),
        tokens=TOKENS,
        experts=EXPERTS,
        top_k=TOP_K,
        groups=GROUPS,
        top_groups=TOP_GROUPS,
        scale=SCALE,
    )
    sort = permute_plan(answer.topk_ids, answer.maps, tokens=TOKENS, top_k=TOP_K, experts=EXPERTS, first_expert=0)
    return [route, sort]


def _call(function: Callable[..., Any], given: tuple[Buffer, Buffer]) -> Callable[[], Any]:
    import torch

    return lambda: function(torch, *given)


def _choose(torch: Any, logits: Buffer, bias: Buffer) -> tuple[Buffer, Buffer]:
    """Experts int32 and weights FP32 [T, k], as the modelling code of DeepSeek-V3 has it."""
    scores = torch.sigmoid(logits.float())
    biased = scores + bias
    groups = biased.view(TOKENS, GROUPS, EXPERTS // GROUPS).topk(2, dim=-1).values.sum(dim=-1)
    kept = torch.zeros_like(groups, dtype=torch.bool)
    kept = kept.scatter(1, groups.topk(TOP_GROUPS, dim=-1, sorted=False).indices, True)
    kept = kept.repeat_interleave(EXPERTS // GROUPS, dim=1)
    ids = biased.masked_fill(~kept, float("-inf")).topk(TOP_K, dim=-1).indices
    weights = scores.gather(1, ids)
    return ids.int(), weights / (weights.sum(dim=-1, keepdim=True) + 1e-20) * SCALE


def _route(torch: Any, logits: Buffer, bias: Buffer) -> tuple[Buffer, Buffer, Buffer, Buffer, Buffer]:
    """These, and the maps: where experts begin, the choice of each row, and the row of each choice.

    A choice is numbered rank by rank, token + rank * T; rows of an expert are in the order of their choices.
    """
    ids, weights = _choose(torch, logits, bias)
    by_choice = ids.T.reshape(-1)
    experts, permuted = torch.sort(by_choice, stable=True)
    places = torch.arange(EXPERTS + 1, device=logits.device, dtype=torch.int32)
    offsets = torch.searchsorted(experts, places)
    numbers = torch.arange(TOKENS * TOP_K, device=logits.device, dtype=torch.int32)
    unpermuted = torch.zeros_like(numbers).scatter(0, permuted, numbers)
    return ids, weights, offsets, permuted.int(), unpermuted


def _compared(torch: Any, ours: _Answer, theirs: tuple[Buffer, ...]) -> dict[str, Any]:
    """How the answers differ. Weights are compared by expert, where all experts of a token are the same."""
    ids, weights, offsets, permuted, unpermuted = theirs
    our_ids, our_weights = ours.topk_ids.view(TOKENS, TOP_K), ours.topk_weights.view(TOKENS, TOP_K)
    same = (our_ids == ids).all(dim=1)
    apart = (our_weights[same].view(torch.int32) - weights[same].contiguous().view(torch.int32)).abs()
    pairs = (
        (ours.maps.offsets, offsets),
        (ours.maps.permuted_to_unpermuted, permuted),
        (ours.maps.unpermuted_to_permuted, unpermuted),
    )
    return {
        "tokens_with_other_experts": int((~same).sum()),
        "weights": int(apart.numel()),
        "weights_with_other_bits": int((apart != 0).sum()),
        "most_units_apart": int(apart.max()) if apart.numel() else 0,
        "maps_differ": any(not torch.equal(one.long(), other.long()) for one, other in pairs),
    }
