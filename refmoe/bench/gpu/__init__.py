"""The production kernels around the GEMMs on a GPU, at the sizes of gpt-oss-120b, each beside a copy of its traffic.

After them come the products by DP4A, and whole layers of these. Where torch or nvcc is missing, the kernels are timed
through the driver alone; a product of torch's and the layers are left out then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from refmoe.bench.gpu import gemv, layer
from refmoe.bench.gpu.kernels import (
    GPT_OSS_120B,
    activation,
    expand,
    finalize,
    plain_expand,
    quantize,
    quantize_then_expand,
    route,
    sort,
)
from refmoe.bench.gpu.timing import (
    Contender,
    beside,
    clocks,
    copy,
    empty,
    floor_device,
    gather,
    gpu_device,
    has_torch,
    taken_out,
    time_groups,
)
from refmoe.cuda.device import CudaDevice
from refmoe.cuda.expand import expand_kernel
from refmoe.cuda.launch import LaunchPlan
from refmoe.cuda.routing import SORT_KERNEL, SORT_THREADS
from refmoe.errors import ArgumentError
from refmoe.reports.environment import current_environment

SIZES = GPT_OSS_120B
PREFILL_TOKENS, DECODE_TOKENS = 8192, (1, 8)
#: What is timed only where torch is, each with the reason that a report without it gives.
ABSENT = {
    "torch.bmm": "it needs torch, and this machine lacks torch, nvcc or both",
    "whole layers": "they are timed only where torch and nvcc are, and this machine lacks torch, nvcc or both",
}
_CSRC = Path("refmoe", "cuda", "csrc")
# Kernels of another checkout that are timed, as commit 2db4e6e calls and launches them.
_OTHER_SOURCES = ("routing.cu", "mxfp8_quantize.cu", "expand.cu")


def run(against: Path | None = None) -> dict[str, Any]:
    """Time the kernels around the GEMMs on the current GPU and return a JSON-able document.

    `rows` holds for each contender the median microseconds of one graph node, the bytes it must move, the bandwidth
    that this means in TB/s, the ratio of its time to its group's floor, its spread and its repetitions. `environment`
    has the versions and the machine, `clocks` those that the GPU had under load, as nvidia-smi tells them. Without
    torch, or without nvcc, `absent` says what is left out and why.

    Args:
        against: a checkout of another commit, whose routing of many tokens and whose separate quantize and expand of
            few are timed beside this one's and called by the folder's name.

    Raises:
        ArgumentError: the folder lacks one of these kernels.
        DeviceUnavailable: no GPU that the kernels are built for.
        ToolchainError: neither nvcc nor PTX in the package.
    """
    if against is not None:
        for source in _OTHER_SOURCES:
            if not (against / _CSRC / source).is_file():
                raise ArgumentError("--against", f"{against} without {_CSRC / source}", "a checkout of commit 2db4e6e")
    device = gpu_device()
    floors, whole = floor_device(device), has_torch(device)
    rows = time_groups(device, taken_out(groups(device, floors, against)))
    rows += time_groups(device, taken_out(gemv.groups(device, floors, peers=whole)))
    rows += layer.rows(device, floors) if whole else []
    return {
        **{"kind": "bench", "name": "gpu", "gpu": device.gpu_name, "arch": device.arch},
        "environment": current_environment(gpu=True).model_dump(),
        "clocks": clocks(floors),
        "rows": rows,
        **({} if whole else {"absent": ABSENT}),
    }


def groups(device: CudaDevice, floors: CudaDevice, against: Path | None) -> list[list[Contender]]:
    """Contenders to be timed in turn; the first of each group is its floor."""
    many, hidden, top_k = PREFILL_TOKENS, SIZES.hidden, SIZES.top_k
    other = None if against is None else beside(device, against / _CSRC)
    there = "" if against is None else f" of {against.name}"
    quantizers = [quantize(device, SIZES, many, layout) for layout in ("linear", "128x4", "8x4")]
    fused = expand(device, SIZES, many, f"fused expand {many} x {hidden} bf16, top-{top_k}, 128x4")
    pair = quantize_then_expand(device, SIZES, many, f"quantize, then expand {many} x {hidden}")
    routed, activated, final = (make(device, SIZES, many) for make in (route, activation, finalize))
    return [
        [copy(floors, quantizers[0].traffic, writes=1), *quantizers],
        [copy(floors, fused.traffic, writes=2), fused, pair],
        *(
            [
                empty(floors),
                expand(device, SIZES, tokens, f"fused expand, M = {tokens}"),
                plain_expand(device, SIZES, tokens),
                (few := quantize_then_expand(device, SIZES, tokens, f"quantize, then expand, M = {tokens}")),
                *([] if other is None else [_pair_of(few, tokens, other, there)]),
            ]
            for tokens in DECODE_TOKENS
        ),
        [
            copy(floors, routed.traffic, writes=1),
            routed,
            *([] if other is None else [_route_of(routed, other, there)]),
            sort(device, SIZES, many),
        ],
        [gather(floors, activated.traffic, reads=4), activated],
        [gather(floors, final.traffic, reads=top_k), final],
        *(
            [empty(floors), *(make(device, SIZES, tokens) for make in (route, activation, finalize))]
            for tokens in DECODE_TOKENS
        ),
    ]


def _pair_of(pair: Contender, tokens: int, other: CudaDevice, there: str) -> Contender:
    """The same two launches with the kernels of another checkout, in which a CTA takes a token, be it alone or not."""

    def as_there(launches: Sequence[LaunchPlan]) -> list[LaunchPlan]:
        first, second = launches
        return [
            dataclasses.replace(first, kernel=dataclasses.replace(first.kernel, source="mxfp8_quantize")),
            dataclasses.replace(second, kernel=expand_kernel("mxfp8_linear", "128x4"), grid=tokens),
        ]

    return dataclasses.replace(pair, name=pair.name + there, device=other, sets=[as_there(each) for each in pair.sets])


def _route_of(routed: Contender, other: CudaDevice, there: str) -> Contender:
    """The same launches with the kernels of another checkout."""

    def as_there(launches: Sequence[LaunchPlan]) -> list[LaunchPlan]:
        """The first launch writes ids and weights alone, and the second sorts the ids."""
        choose, sort = launches
        *router, _, tokens, all_experts, top_k, experts, first_expert = choose.arguments
        maps = (router[2], *sort.arguments[1:4])
        return [
            dataclasses.replace(choose, arguments=(*router, tokens, all_experts, top_k)),
            LaunchPlan(SORT_KERNEL, SIZES.experts, SORT_THREADS, (*maps, tokens, top_k, experts, first_expert)),
        ]

    name = f"route {PREFILL_TOKENS} x {SIZES.experts}{there}"
    return dataclasses.replace(routed, name=name, device=other, sets=[as_there(each) for each in routed.sets])
