"""A whole DeepSeek-V3 layer in block FP8 on a GPU, its launches timed one by one beside the sum of their floors."""

from __future__ import annotations

from typing import Any

import numpy as np

from refmoe.bench.gpu.kernels import BF16_BYTES, DEEPSEEK_V3, WORD_BYTES
from refmoe.bench.gpu.layer import attributed
from refmoe.bench.gpu.timing import drawn_codes, drawn_normal, drawn_scales
from refmoe.cuda.deepseek_gemm import BLOCK
from refmoe.cuda.device import CudaDevice
from refmoe.cuda.launch import Buffer
from refmoe.cuda.moe.deepseek import (
    DeepSeekBuffers,
    DeepSeekOptions,
    DeepSeekShape,
    deepseek_steps,
    deepseek_workspace_bytes,
)
from refmoe.cuda.moe.launches import LaunchStep
from refmoe.reference.deepseek.layer import DeepSeekRules

GROUPS, TOP_GROUPS, SCALE = 8, 4, 2.5
_NAMES = ("gate_up", "gate_up_scales", "down", "down_scales")


def drawn_experts(device: CudaDevice) -> dict[str, Buffer]:
    """All 256 routed experts, 11.3 GB, as `DeepSeekBuffers` names them: normal numbers as a quantizer leaves them."""
    return _drawn(device, DEEPSEEK_V3.experts, "", 0)


def _drawn(device: CudaDevice, experts: int, prefix: str, seed: int) -> dict[str, Buffer]:
    hidden, inner = DEEPSEEK_V3.hidden, DEEPSEEK_V3.intermediate
    made = []
    for at, (n, k) in enumerate(((2 * inner, hidden), (hidden, inner)), 2 * seed):
        made += [drawn_codes(device, experts * n, k, at), drawn_scales(device, experts * n * k // BLOCK**2, at)]
    return dict(zip((f"{prefix}{name}" for name in _NAMES), made, strict=True))


def rows_at(device: CudaDevice, floors: CudaDevice, experts: dict[str, Buffer], tokens: int) -> list[dict[str, Any]]:
    """Rows of a report for one number of tokens, as `refmoe.bench.gpu.layer.attributed` makes them."""
    sizes = DEEPSEEK_V3
    shape = DeepSeekShape(
        *(tokens, sizes.top_k, sizes.experts, sizes.hidden, sizes.intermediate, sizes.intermediate),
        *(0, sizes.experts, GROUPS, TOP_GROUPS),
    )
    # The router limits groups, and this draw does not. It only sets how many bytes are counted.
    load = np.bincount(sizes.choices(tokens, 0)[0].ravel(), minlength=sizes.experts)
    name = f"layer, block FP8, M = {tokens}"
    return attributed(device, floors, name, load.tolist(), lambda seed: _steps(device, shape, experts, seed))


def _steps(device: CudaDevice, shape: DeepSeekShape, experts: dict[str, Buffer], seed: int) -> tuple[LaunchStep, ...]:
    torch = device.torch
    tokens, rows = shape.tokens, shape.rows
    buffers = DeepSeekBuffers(
        x=drawn_normal(device, (tokens, shape.hidden), seed),
        logits=drawn_normal(device, (tokens, shape.all_experts), seed),
        correction_bias=torch.zeros((shape.all_experts,), dtype=torch.float32, device="cuda"),
        topk_ids=device.output("topk_ids", (rows * WORD_BYTES,), 0),
        topk_weights=device.output("topk_weights", (rows * WORD_BYTES,), 0),
        refused=device.output("refused", (WORD_BYTES,), 0),
        **experts,
        **_drawn(device, 1, "shared_", seed + 1),
        token_rows=device.upload("token_rows", np.array([0, tokens], np.int64)),
        out=device.output("out", (tokens, shape.hidden * BF16_BYTES), 0),
        workspace={name: device.output(name, (size,), 0) for name, size in deepseek_workspace_bytes(shape).items()},
    )
    options = DeepSeekOptions(DeepSeekRules(), "bf16", "mn_major", SCALE)
    return deepseek_steps(shape, options, buffers, multiprocessors=device.multiprocessors, arch=device.arch)
