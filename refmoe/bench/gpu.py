"""The production kernels around the GEMMs on a GPU, at the sizes of gpt-oss-120b, each beside a copy of its traffic.

After them come the products by DP4A, and whole layers of these.
"""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.bench import gemv, gpu_layer
from refmoe.bench.gpu_timing import ROTATING_BYTES, Contender, contender, copy, empty, gather, time_groups
from refmoe.cuda.activation import swiglu_kernel, swiglu_quantize_plan
from refmoe.cuda.arguments import scale_buffer_bytes
from refmoe.cuda.device import CudaDevice
from refmoe.cuda.expand import expand_as_kernel, expand_kernel, expand_plan
from refmoe.cuda.finalize import finalize_kernel, finalize_plan
from refmoe.cuda.launch import LANE_ELEMENTS, Buffer, Entry, LaunchPlan, row_plan
from refmoe.cuda.quantize import mxfp8_quantize_kernel, mxfp8_quantize_plan
from refmoe.cuda.routing import SORT_KERNEL, SORT_THREADS, MapBuffers, chosen_bytes, permute_plan, route_plans
from refmoe.errors import ArgumentError
from refmoe.formats import MX_BLOCK
from refmoe.reference import Permutation, build_permutation
from refmoe.reports.environment import current_environment

HIDDEN = INTERMEDIATE = 2880
EXPERTS, TOP_K = 128, 4
PREFILL_TOKENS, DECODE_TOKENS = 8192, (1, 8)
BF16_BYTES, WORD_BYTES = 2, 4
_CSRC = Path("refmoe", "cuda", "csrc")
_BUSY_LAUNCHES = 4000  # of 256 MB each: half a second
MX_BYTES = HIDDEN + HIDDEN // MX_BLOCK  # codes and scales of a row


def run(against: Path | None = None) -> dict[str, Any]:
    """Time the kernels around the GEMMs on the current GPU and return a JSON-able document.

    `rows` holds for each contender the median microseconds of one graph node, the bytes it must move, the bandwidth
    that this means in TB/s, the ratio of its time to its group's floor, its spread and its repetitions. `environment`
    has the versions and the machine, `clocks` those that the GPU had under load, as nvidia-smi tells them.

    Args:
        against: a checkout of another commit, whose routing of many tokens is timed beside this one's and called by
            the folder's name.

    Raises:
        ArgumentError: the folder has no routing kernel.
        DeviceUnavailable: no GPU that the kernels are built for.
    """
    if against is not None and not (against / _CSRC / "routing.cu").is_file():
        raise ArgumentError("--against", f"{against} without {_CSRC}/routing.cu", "a checkout of refmoe")
    device = CudaDevice()
    floors = CudaDevice(csrc=Path(__file__).parent)
    rows = time_groups(device, groups(device, floors, against))
    rows += time_groups(device, gemv.groups(device, floors))
    rows += gpu_layer.rows(device, floors)
    return {
        **{"kind": "bench", "name": "gpu", "gpu": device.gpu_name, "arch": device.arch},
        "environment": current_environment(gpu=True).model_dump(),
        "clocks": _clocks(floors),
        "rows": rows,
    }


def _clocks(floors: CudaDevice) -> str:
    """The GPU's clocks while it copies, or an empty text without nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return ""
    busy = copy(floors, ROTATING_BYTES, writes=1)
    for turn in range(_BUSY_LAUNCHES):
        busy.enqueue(turn)
    query = ["nvidia-smi", "--query-gpu=clocks.sm,clocks.mem", "--format=csv,noheader", "--id=0"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False, timeout=30)
    floors.torch.cuda.synchronize()
    found = [part.strip() for part in answer.stdout.strip().split(",")]
    return f"SM {found[0]}, memory {found[1]}, under load" if answer.returncode == 0 and len(found) == 2 else ""


def groups(device: CudaDevice, floors: CudaDevice, against: Path | None) -> list[list[Contender]]:
    """Contenders to be timed in turn; the first of each group is its floor."""
    many = PREFILL_TOKENS
    quantize = [_quantize(device, many, layout) for layout in ("linear", "128x4", "8x4")]
    expand = _expand(device, many, f"fused expand {many} x {HIDDEN} bf16, top-{TOP_K}, 128x4")
    route, activation, finalize = _route(device, many), _activation(device, many), _finalize(device, many)
    return [
        [copy(floors, quantize[0].traffic, writes=1), *quantize],
        [
            copy(floors, expand.traffic, writes=2),
            expand,
            _quantize_then_expand(device, many, f"quantize, then expand {many} x {HIDDEN}"),
        ],
        *(
            [
                empty(floors),
                _expand(device, tokens, f"fused expand, M = {tokens}"),
                _plain_expand(device, tokens),
                _quantize_then_expand(device, tokens, f"quantize, then expand, M = {tokens}"),
            ]
            for tokens in DECODE_TOKENS
        ),
        [copy(floors, route.traffic, writes=1), route, *_route_of(route, against), _sort(device, many)],
        [gather(floors, activation.traffic, reads=4), activation],
        [gather(floors, finalize.traffic, reads=TOP_K), finalize],
        *(
            [empty(floors), _route(device, tokens), _activation(device, tokens), _finalize(device, tokens)]
            for tokens in DECODE_TOKENS
        ),
    ]


def _quantize(device: CudaDevice, tokens: int, layout: str) -> Contender:
    name = f"quantize {tokens} x {HIDDEN} bf16, {layout} scales"
    traffic = tokens * (HIDDEN * BF16_BYTES + MX_BYTES)
    return contender(device, name, traffic, lambda seed: [_quantize_plan(device, tokens, layout, seed)])


def _expand(device: CudaDevice, tokens: int, name: str) -> Contender:
    traffic = tokens * (HIDDEN * BF16_BYTES + TOP_K * MX_BYTES)
    kernel = expand_kernel("bf16_rceil_exact", "128x4")

    def launches(seed: int) -> list[LaunchPlan]:
        return [_expand_plan(device, kernel, _normal(device, (tokens, HIDDEN), seed), None, tokens, seed)]

    return contender(device, name, traffic, launches)


def _plain_expand(device: CudaDevice, tokens: int) -> Contender:
    """BF16 rows copied to their experts as they are."""
    rows, bytes_of_row = tokens * TOP_K, HIDDEN * BF16_BYTES

    def launches(seed: int) -> list[LaunchPlan]:
        ids, permutation = _choices(tokens, seed)
        arguments = (
            *(_normal(device, (tokens, HIDDEN), seed), None, None),
            device.upload("topk_ids", ids),
            device.upload("unpermuted_to_permuted", permutation.unpermuted_to_permuted),
            device.upload("offsets", permutation.offsets),
            *(device.output("codes", (rows, bytes_of_row), 0), None),
            *(tokens, TOP_K, 0, bytes_of_row // LANE_ELEMENTS, 0),
        )
        kernel = expand_as_kernel("", "copy")
        return [row_plan(kernel, arguments, rows=tokens, width=bytes_of_row, multiprocessors=device.multiprocessors)]

    name = f"plain BF16 expand, M = {tokens}"
    return contender(device, name, (1 + TOP_K) * tokens * bytes_of_row, launches)


def _quantize_then_expand(device: CudaDevice, tokens: int, name: str) -> Contender:
    """The two launches that fusing replaces: quantize with linear scales, then copy codes and scales to the experts."""
    traffic = tokens * (HIDDEN * BF16_BYTES + (2 + TOP_K) * MX_BYTES)
    kernel = expand_kernel("mxfp8_linear", "128x4")

    def launches(seed: int) -> list[LaunchPlan]:
        quantize = _quantize_plan(device, tokens, "linear", seed)
        _, codes, scales, *_ = quantize.arguments
        return [quantize, _expand_plan(device, kernel, codes, scales, tokens, seed)]

    return contender(device, name, traffic, launches)


def _route(device: CudaDevice, tokens: int) -> Contender:
    """FP32 logits to choices, weights, maps and offsets."""
    rows = tokens * TOP_K
    traffic = tokens * EXPERTS * WORD_BYTES + 4 * rows * WORD_BYTES + (EXPERTS + 1) * 8

    def launches(seed: int) -> tuple[LaunchPlan, ...]:
        return route_plans(
            "f32",
            device.upload("logits", np.random.default_rng(seed).standard_normal((tokens, EXPERTS), np.float32)),
            None,
            device.output("topk_ids", (rows * WORD_BYTES,), 0),
            device.output("topk_weights", (rows * WORD_BYTES,), 0),
            device.output("refused", (WORD_BYTES,), 0),
            device.output("chosen", (chosen_bytes(tokens, TOP_K),), 0),
            _maps(device, rows),
            tokens=tokens,
            all_experts=EXPERTS,
            top_k=TOP_K,
            experts=EXPERTS,
            first_expert=0,
        )

    return contender(device, f"route {tokens} x {EXPERTS}, top-{TOP_K}, with maps", traffic, launches)


def _route_of(route: Contender, against: Path | None) -> list[Contender]:
    """The same launches with the kernels of another checkout."""
    if against is None:
        return []
    other = CudaDevice(csrc=against / _CSRC)
    name = f"route {PREFILL_TOKENS} x {EXPERTS} of {against.name}"

    def as_there(launches: Sequence[LaunchPlan]) -> list[LaunchPlan]:
        """The first launch writes ids and weights alone, and the second sorts the ids."""
        choose, sort = launches
        *router, _, tokens, all_experts, top_k, experts, first_expert = choose.arguments
        maps = (router[2], *sort.arguments[1:4])
        return [
            dataclasses.replace(choose, arguments=(*router, tokens, all_experts, top_k)),
            LaunchPlan(SORT_KERNEL, EXPERTS, SORT_THREADS, (*maps, tokens, top_k, experts, first_expert)),
        ]

    return [dataclasses.replace(route, name=name, device=other, sets=[as_there(each) for each in route.sets])]


def _sort(device: CudaDevice, tokens: int) -> Contender:
    """Maps and offsets of given choices."""
    rows = tokens * TOP_K
    traffic = 3 * rows * WORD_BYTES + (EXPERTS + 1) * 8

    def launches(seed: int) -> list[LaunchPlan]:
        ids = device.upload("topk_ids", _choices(tokens, seed)[0])
        maps = _maps(device, rows)
        return [permute_plan(ids, maps, tokens=tokens, top_k=TOP_K, experts=EXPERTS, first_expert=0)]

    return contender(device, f"maps alone of {tokens} x top-{TOP_K}", traffic, launches)


def _activation(device: CudaDevice, tokens: int) -> Contender:
    """BF16 gates and ups to MXFP8 in 128x4, without a bias: the first GEMM has added it."""
    rows = tokens * TOP_K
    traffic = rows * (2 * INTERMEDIATE * BF16_BYTES + MX_BYTES)
    kernel = swiglu_kernel("gpt_oss", "rceil", "exact", "128x4")

    def launches(seed: int) -> list[LaunchPlan]:
        plan = swiglu_quantize_plan(
            kernel,
            _normal(device, (rows, 2 * INTERMEDIATE), seed, scale=3),
            device.upload("offsets", _choices(tokens, seed)[1].offsets),
            None,
            (None, None, None),
            *_quantized(device, rows, rows + 127 * EXPERTS, "128x4"),
            rows=rows,
            width=INTERMEDIATE,
            experts=EXPERTS,
            multiprocessors=device.multiprocessors,
        )
        return [plan]

    return contender(device, f"SwiGLU to MXFP8, {rows} x {INTERMEDIATE}, 128x4", traffic, launches)


def _finalize(device: CudaDevice, tokens: int) -> Contender:
    """BF16 rows, bias, BF16 out. The bias, 0.7 MB, stays in the L2 cache and is not counted."""
    rows = tokens * TOP_K
    traffic = (rows + tokens) * HIDDEN * BF16_BYTES + 3 * rows * WORD_BYTES
    kernel = finalize_kernel("bf16", "bf16")

    def launches(seed: int) -> list[LaunchPlan]:
        ids, permutation = _choices(tokens, seed)
        plan = finalize_plan(
            kernel,
            _normal(device, (rows, HIDDEN), seed),
            device.upload("unpermuted_to_permuted", permutation.unpermuted_to_permuted),
            device.upload("weights", np.random.default_rng(seed).random((tokens, TOP_K), np.float32)),
            device.upload("topk_ids", ids),
            _normal(device, (EXPERTS, HIDDEN), seed),
            device.output("out", (tokens, HIDDEN * BF16_BYTES), 0),
            tokens=tokens,
            top_k=TOP_K,
            width=HIDDEN,
            first_expert=0,
            multiprocessors=device.multiprocessors,
        )
        return [plan]

    return contender(device, f"finalize {tokens} x {HIDDEN} bf16, top-{TOP_K}, bias", traffic, launches)


def _quantize_plan(device: CudaDevice, tokens: int, layout: str, seed: int) -> LaunchPlan:
    return mxfp8_quantize_plan(
        mxfp8_quantize_kernel("bf16", "rceil", "exact", layout),
        _normal(device, (tokens, HIDDEN), seed),
        *_quantized(device, tokens, tokens, layout),
        rows=tokens,
        k=HIDDEN,
        multiprocessors=device.multiprocessors,
    )


def _expand_plan(
    device: CudaDevice, kernel: Entry, x: Buffer, input_sf: Buffer | None, tokens: int, seed: int
) -> LaunchPlan:
    ids, permutation = _choices(tokens, seed)
    rows = tokens * TOP_K
    return expand_plan(
        kernel,
        x,
        input_sf,
        device.upload("topk_ids", ids),
        device.upload("unpermuted_to_permuted", permutation.unpermuted_to_permuted),
        device.upload("offsets", permutation.offsets),
        *_quantized(device, rows, rows + 127 * EXPERTS, "128x4"),
        tokens=tokens,
        top_k=TOP_K,
        k=HIDDEN,
        first_expert=0,
        multiprocessors=device.multiprocessors,
    )


def _normal(device: CudaDevice, shape: tuple[int, int], seed: int, scale: float = 1.0) -> Buffer:
    """BF16 on the device."""
    values = np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(scale)
    return device.upload("x", values.astype(ml_dtypes.bfloat16))


def _choices(tokens: int, seed: int) -> tuple[NDArray[np.int32], Permutation]:
    """The experts of each token, int32 [tokens, TOP_K], and where that puts its rows."""
    scores = np.random.default_rng(seed).random((tokens, EXPERTS))
    ids = np.ascontiguousarray(np.argsort(scores, axis=1)[:, :TOP_K].astype(np.int32))
    return ids, build_permutation(ids, EXPERTS)


def _quantized(device: CudaDevice, rows: int, scale_rows: int, layout: str) -> tuple[Buffer, Buffer]:
    """Room for the codes and the scales of MXFP8 rows."""
    scale_bytes = scale_buffer_bytes(scale_rows, HIDDEN, layout)
    return device.output("codes", (rows, HIDDEN), 0), device.output("scales", (scale_bytes,), 0)


def _maps(device: CudaDevice, rows: int) -> MapBuffers:
    return MapBuffers(
        device.output("offsets", ((EXPERTS + 1) * 8,), 0),
        device.output("permuted_to_unpermuted", (rows * WORD_BYTES,), 0),
        device.output("unpermuted_to_permuted", (rows * WORD_BYTES,), 0),
    )
