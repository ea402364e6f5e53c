"""Every kernel around the GEMMs, and whole layers, over the number of tokens, beside their floors and other people's.

The sizes are those of gpt-oss-120b and of DeepSeek-V3. Each number of tokens M has a group for each operation: its
floor first, then refmoe's kernel, then the same operation of each peer: in torch, compiled by `torch.compile`, and of
those of `refmoe.bench.sweep.peers` that are installed. Of a layer each launch is timed by itself, too, so that the
layer's time is attributed to its parts: of gpt-oss-120b by DP4A products, up to 8 tokens; of DeepSeek-V3 in block FP8.
Last comes DeepGEMM beside the first GEMM of DeepSeek-V3, where its headers are: at each M with tokens that choose at
random, and at the most with tokens that choose evenly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from refmoe.bench import deepseek_gemm
from refmoe.bench.gpu import layer
from refmoe.bench.gpu.kernels import DEEPSEEK_V3, GPT_OSS_120B, MoeSizes, quantize_then_expand
from refmoe.bench.gpu.timing import Calls, Contender, clocks, copy, floor_device, gather, interleaved, rows_of
from refmoe.bench.sweep import deepgemm, deepseek_layer
from refmoe.bench.sweep.operations import operations_of
from refmoe.bench.sweep.peer import Rivals, sentence
from refmoe.bench.sweep.peers import peers
from refmoe.cuda.device import CudaDevice
from refmoe.reports.environment import current_environment

#: The most first: what `torch.compile` makes for one size is better than what it makes for all of them.
TOKENS = (4096, 512, 128, 64, 32, 16, 8, 4, 2, 1)
SIZES = (GPT_OSS_120B, DEEPSEEK_V3)
#: Experts of DeepSeek-V3 and rows of each, with 4,096 tokens that choose evenly.
DEEPGEMM_PROBLEM = (256, 128)
#: What fusing the expand replaces, an operation of its own beside the same floor.
PAIR = "expand in two launches"
#: The peer whose results are named without it.
FIRST_PEER = "torch.compile"


def run() -> dict[str, Any]:
    """Time everything on the current GPU and return a JSON-able document.

    `rows` holds for each contender its `model`, `operation`, `tokens` and `of` ("floor", "refmoe" or a peer's name),
    and what `refmoe.bench.gpu.timing.rows_of` says of it. `differing` has for each result of a peer how many of its
    bytes are not those of refmoe's kernel, of how many, at the most tokens; of DeepGEMM at each number of them. `peers`
    has the versions of those that took part, `absent` why the others did not, and `failed` what a peer said when it
    could not do an operation.

    Raises:
        DeviceUnavailable: no GPU that the kernels are built for.
        RefmoeError: a launch of refmoe fails.
    """
    device, floors = CudaDevice(), floor_device()
    rows: list[dict[str, Any]] = []
    differing: dict[str, list[int]] = {}
    rivals = Rivals()
    for sizes in SIZES:
        device.torch._dynamo.reset()  # what it has compiled for the sizes of another model
        rivals.prepare(device.torch, peers())
        for tokens in TOKENS:
            rows += _operations(device, floors, sizes, tokens, rivals)
        for operation in operations_of(sizes):
            ours = operation.ours(device, sizes, TOKENS[0])
            for name, what, counts in rivals.differing(device, sizes, TOKENS[0], operation, ours):
                whose = "" if name == FIRST_PEER else f"{name}: "
                differing[f"{whose}{what} of {operation.name}, {sizes.model}"] = counts
    for tokens in layer.TOKENS:
        rows += _labelled(layer.rows_at(device, floors, tokens), GPT_OSS_120B.model, "layer, DP4A", tokens)
    try:
        rivals.versions[deepgemm.NAME] = deepgemm.find(device)
    except Exception as error:  # whatever its compiler says, too
        rivals.absent[deepgemm.NAME] = sentence(error)
    experts = deepseek_layer.drawn_experts(device)
    weights = experts["gate_up"], experts["gate_up_scales"]
    products = deepgemm.DrawnProducts(device, floors, weights, deepgemm.NAME in rivals.versions)
    for tokens in TOKENS:
        found = deepseek_layer.rows_at(device, floors, experts, tokens)
        rows += _labelled(found, DEEPSEEK_V3.model, "layer, block FP8", tokens)
        rows += products.rows_at(tokens)
    del experts, weights, products.weights
    even = deepseek_gemm.timed(device, floors, *DEEPGEMM_PROBLEM, rivals=products.rivals)
    rows += [_product(row) for row in even]
    return {
        **{"gpu": device.gpu_name, "arch": device.arch, "environment": current_environment(gpu=True).model_dump()},
        **{"clocks": clocks(floors), "rows": rows, "differing": {**differing, **products.differing}},
        **{"peers": rivals.versions, "absent": rivals.absent, "failed": {**rivals.failed, **products.failed}},
    }


def _operations(
    device: CudaDevice, floors: CudaDevice, sizes: MoeSizes, tokens: int, rivals: Rivals
) -> Iterator[dict[str, Any]]:
    """The rows of each operation at one number of tokens."""
    for operation in operations_of(sizes):
        ours = operation.ours(device, sizes, tokens)
        group: list[Contender | Calls] = [_floor(floors, ours.traffic, *operation.shares(sizes)), ours]
        names = [(operation.name, "floor"), (operation.name, "refmoe")]
        if operation.name == "expand":
            group.append(quantize_then_expand(device, sizes, tokens, f"quantize, then expand, M = {tokens}"))
            names.append((PAIR, "refmoe"))
        for name, calls in rivals.contenders(device, sizes, tokens, operation, ours.traffic):
            group.append(calls)
            names.append((operation.name, name))
        for (name, of), row in zip(names, rows_of(group, interleaved(device, group)), strict=True):
            yield {"model": sizes.model, "operation": name, "tokens": tokens, "of": of, **row}


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
