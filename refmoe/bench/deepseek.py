"""A whole DeepSeek-V3 layer at its true sizes on the executor: one token, every buffer held against the reference.

Hidden 7168, intermediate 2048, 256 experts in 8 groups of which 4 are kept, top-8 and a shared expert. The token goes
through every launch, from the router's logits to finalize, with all checks. Of the 256 experts only the 8 that are
chosen are drawn, in weights as large as trained ones.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.bench.executor import executors
from refmoe.bench.timing import machine
from refmoe.cuda.deepseek_gemm import accumulation_models
from refmoe.cuda.device import PtxDevice
from refmoe.cuda.moe.deepseek import deepseek_launches, layer_arguments
from refmoe.draw import Draw
from refmoe.families.deepseek.moe import BUFFERS, drawn_expert, reference_array
from refmoe.reference.deepseek.layer import BlockFP8Expert, DeepSeekMoELayer
from refmoe.reference.moe import moe_layer

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K, GROUPS, TOP_GROUPS, SCALE = 7168, 2048, 256, 8, 8, 4, 2.5
_SEED = 20251123


class DrawnExperts:
    """The experts of a layer, drawn when they are asked for; `asked` has their numbers."""

    def __init__(self, count: int, hidden: int, intermediate: int) -> None:
        self._count, self._hidden, self._intermediate = count, hidden, intermediate
        self.asked: dict[int, BlockFP8Expert] = {}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: Any) -> BlockFP8Expert:
        if number not in self.asked:
            self.asked[number] = drawn_expert(_SEED, number, self._hidden, self._intermediate)
        return self.asked[number]


def run(
    *,
    hidden: int = HIDDEN,
    intermediate: int = INTERMEDIATE,
    experts: int = EXPERTS,
    top_k: int = TOP_K,
    groups: int = GROUPS,
    top_groups: int = TOP_GROUPS,
    tokens: int = 1,
) -> dict[str, Any]:
    """Execute the layer and compare every buffer; the sizes are DeepSeek-V3's.

    Returns:
        JSON-able: `sizes`; `rows`, one a launch with `stage`, `entry`, `seconds`, `lane_instructions`, `bytes` that are
        compared, and `differing` of them; `experts_drawn`, `model`, `evidence`, `reference_s`, `launches_s`, the
        machine, and `all_reached`: whether no byte of any buffer differs.

    Raises:
        RefmoeError: no nvcc, or what a check found.
    """
    device = executors()["all checks"]
    routed = DrawnExperts(experts, hidden, intermediate)
    layer = DeepSeekMoELayer(
        routed,  # type: ignore[arg-type]
        *(hidden, intermediate, top_k),
        shared=drawn_expert(_SEED, -1, hidden, intermediate),
        router_weight=(Draw("bench-router", _SEED).normal((experts, hidden)) / 64).astype(ml_dtypes.bfloat16),
        correction_bias=(Draw("bench-bias", _SEED).normal((experts,)) / 7).astype(np.float32),
        groups=groups,
        top_groups=top_groups,
        scale=SCALE,
    )
    x = _tokens(tokens, hidden)
    start = time.perf_counter()
    found = moe_layer(x, layer, path="deepseek_fp8", model=accumulation_models(device.arch)[0], stages=True)
    reference_s = time.perf_counter() - start
    rows = _executed(device, layer, x, found.stages)
    return {
        "sizes": {
            **{"tokens": tokens, "hidden": hidden, "intermediate": intermediate, "experts": experts},
            **{"top_k": top_k, "groups": groups, "top_groups": top_groups},
        },
        "rows": rows,
        "experts_drawn": len(routed.asked),
        "arch": device.arch,
        "model": found.model,
        "evidence": found.evidence.value,
        "reference_s": reference_s,
        "launches_s": sum(row["seconds"] for row in rows),
        **machine(),
        "all_reached": len(routed.asked) <= tokens * top_k and not any(row["differing"] for row in rows),
    }


def _tokens(tokens: int, hidden: int) -> NDArray[Any]:
    """BF16 [tokens, hidden], with outlier channels."""
    values = Draw("bench-tokens", _SEED).normal((tokens, hidden)) * np.where(np.arange(hidden) % 17 == 3, 12.0, 1.0)
    return np.asarray(values.astype(ml_dtypes.bfloat16))


def _executed(
    device: PtxDevice, layer: DeepSeekMoELayer, x: NDArray[Any], stages: Mapping[str, Mapping[str, NDArray[Any]]]
) -> list[dict[str, Any]]:
    """Each launch: how long it took, and how many bytes of what it wrote differ from the reference."""
    routing = stages["routing"]
    arguments = layer_arguments(layer, x, routing["ids"], logits=routing["logits"])
    written, steps = deepseek_launches(arguments, device=device, fill=0x7F)
    rows = []
    for step in steps:
        device.launches.clear()
        start = time.perf_counter()
        device.launch(step.plan)
        seconds = time.perf_counter() - start
        result = device.launches[-1].result
        compared = differing = 0
        for stage, (buffer, _) in BUFFERS.items():
            if stage.partition(".")[0] != step.stage:
                continue
            kernel = np.ascontiguousarray(device.download(written[buffer])).reshape(-1).view(np.uint8)
            wanted = np.ascontiguousarray(reference_array(stage, stages)).reshape(-1).view(np.uint8)
            compared += wanted.size
            differing += int((kernel != wanted).sum()) if kernel.size == wanted.size else wanted.size
        rows.append(
            {
                "stage": step.stage,
                "entry": step.plan.kernel.entry,
                "seconds": seconds,
                "lane_instructions": 0 if result is None else result.lane_instructions,
                "bytes": compared,
                "differing": differing,
            }
        )
    return rows
