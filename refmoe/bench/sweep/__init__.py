"""Every kernel around the GEMMs, and whole layers, over the number of tokens, beside their floors and other people's.

The sizes are those of gpt-oss-120b and of DeepSeek-V3. Each number of tokens M has a group for each operation: its
floor first, then refmoe's kernel, then the same operation in torch, compiled by `torch.compile`. Of a layer each launch
is timed by itself, too, so that the layer's time is attributed to its parts: of gpt-oss-120b by DP4A products, up to 8
tokens; of DeepSeek-V3 in block FP8. Last comes DeepGEMM beside the first GEMM of DeepSeek-V3, where its headers are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from refmoe.bench import deepseek_gemm
from refmoe.bench.gpu import layer
from refmoe.bench.gpu.kernels import (
    DEEPSEEK_V3,
    GPT_OSS_120B,
    MoeSizes,
    activation,
    expand,
    finalize,
    quantize,
    quantize_then_expand,
    route,
)
from refmoe.bench.gpu.timing import Calls, Contender, clocks, copy, floor_device, gather, interleaved, rows_of
from refmoe.bench.sweep import deepseek_layer
from refmoe.bench.sweep.peers import peers_of
from refmoe.cuda.device import CudaDevice
from refmoe.reports.environment import current_environment

#: The most first: what `torch.compile` makes for one size is better than what it makes for all of them.
TOKENS = (4096, 512, 128, 64, 32, 16, 8, 4, 2, 1)
SIZES = (GPT_OSS_120B, DEEPSEEK_V3)
#: Experts of DeepSeek-V3 and rows of each, with 4,096 tokens that choose evenly.
DEEPGEMM_PROBLEM = (256, 128)
Make = Callable[[CudaDevice, MoeSizes, int], Contender]

#: refmoe's contender for each operation, and how many bytes its floor reads for each that it writes, or writes for each
#: that it reads.
OPERATIONS: dict[str, tuple[Make, Callable[[MoeSizes], tuple[int, int]]]] = {
    "route": (route, lambda sizes: (8, 1)),
    "quantize": (lambda device, sizes, tokens: quantize(device, sizes, tokens, "linear"), lambda sizes: (2, 1)),
    "expand": (
        lambda device, sizes, tokens: expand(device, sizes, tokens, f"fused expand, M = {tokens}"),
        lambda sizes: (1, sizes.top_k // 2),
    ),
    "activation": (activation, lambda sizes: (4, 1)),
    "finalize": (finalize, lambda sizes: (sizes.top_k, 1)),
}
#: What fusing the expand replaces, an operation of its own beside the same floor.
PAIR = "expand in two launches"


def run() -> dict[str, Any]:
    """Time everything on the current GPU and return a JSON-able document.

    `rows` holds for each contender its `model`, `operation`, `tokens` and `of` ("floor", "refmoe", "torch.compile" or
    "DeepGEMM"), and what `refmoe.bench.gpu.timing.rows_of` says of it. `differing` has for each result of an operation
    in torch how many of its bytes are not those of refmoe's kernel, of how many, at the most tokens. `absent` names the
    peers that this machine cannot run.

    Raises:
        DeviceUnavailable: no GPU that the kernels are built for.
        RefmoeError: a launch fails, or torch's result has another size than the kernel's.
    """
    device, floors = CudaDevice(), floor_device()
    rows: list[dict[str, Any]] = []
    differing: dict[str, list[int]] = {}
    for sizes in SIZES:
        device.torch._dynamo.reset()  # what it has compiled for the sizes of another model
        compiled = {peer.operation: device.torch.compile(peer.function) for peer in peers_of(sizes)}
        for tokens in TOKENS:
            rows += _operations(device, floors, sizes, tokens, compiled)
        for peer in peers_of(sizes):
            ours = OPERATIONS[peer.operation][0](device, sizes, TOKENS[0])
            for what, counts in peer.differing(device, sizes, TOKENS[0], compiled[peer.operation], ours).items():
                differing[f"{what} of {peer.operation}, {sizes.model}"] = counts
    for tokens in layer.TOKENS:
        rows += _labelled(layer.rows_at(device, floors, tokens), GPT_OSS_120B.model, "layer, DP4A", tokens)
    experts = deepseek_layer.drawn_experts(device)
    for tokens in TOKENS:
        found = deepseek_layer.rows_at(device, floors, experts, tokens)
        rows += _labelled(found, DEEPSEEK_V3.model, "layer, block FP8", tokens)
    del experts
    products = deepseek_gemm.timed(device, floors, *DEEPGEMM_PROBLEM)
    rows += [_product(row) for row in products]
    absent = [] if any(row["of"] == "DeepGEMM" for row in products) else ["DeepGEMM"]
    return {
        **{"gpu": device.gpu_name, "arch": device.arch, "environment": current_environment(gpu=True).model_dump()},
        **{"clocks": clocks(floors), "rows": rows, "differing": differing, "absent": absent},
    }


def _operations(
    device: CudaDevice, floors: CudaDevice, sizes: MoeSizes, tokens: int, compiled: dict[str, Callable[..., Any]]
) -> Iterator[dict[str, Any]]:
    """The rows of each operation at one number of tokens."""
    for peer in peers_of(sizes):
        make, shares = OPERATIONS[peer.operation]
        ours = make(device, sizes, tokens)
        group: list[Contender | Calls] = [_floor(floors, ours.traffic, *shares(sizes)), ours]
        names = [(peer.operation, "floor"), (peer.operation, "refmoe")]
        if peer.operation == "expand":
            group.append(quantize_then_expand(device, sizes, tokens, f"quantize, then expand, M = {tokens}"))
            names.append((PAIR, "refmoe"))
        group.append(peer.calls(device, sizes, tokens, compiled[peer.operation], ours.traffic))
        names.append((peer.operation, peer.NAME))
        for (operation, of), row in zip(names, rows_of(group, interleaved(device, group)), strict=True):
            yield {"model": sizes.model, "operation": operation, "tokens": tokens, "of": of, **row}


def _floor(floors: CudaDevice, traffic: int, reads: int, writes: int) -> Contender:
    """A copy of so many bytes, however few: it waits for memory once, too."""
    return gather(floors, traffic, reads=reads) if reads > 1 else copy(floors, traffic, writes=writes)


def _labelled(rows: Sequence[dict[str, Any]], model: str, operation: str, tokens: int) -> Iterator[dict[str, Any]]:
    """Rows of a layer: its floor, itself, and its launches, whose operation is the layer's and their stage."""
    for place, row in enumerate(rows):
        stage = row["name"].rpartition(": ")[2]
        of, part = ("floor", "") if place == 0 else ("refmoe", "" if place == 1 else f": {stage}")
        yield {"model": model, "operation": operation + part, "tokens": tokens, "of": of, **row}


def _product(row: dict[str, Any]) -> dict[str, Any]:
    """A row of `refmoe bench deepseek_gemm` as one of this bench."""
    experts, each = DEEPGEMM_PROBLEM
    tokens = experts * each // DEEPSEEK_V3.top_k
    of = "floor" if row["of"] == "copy" else row["of"]
    kept = {key: value for key, value in row.items() if key not in ("problem", "of", "contender")}
    name = {"model": DEEPSEEK_V3.model, "operation": "GEMM1, block FP8", "tokens": tokens, "of": of}
    return {**name, "name": row["contender"], **kept}
