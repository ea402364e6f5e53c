"""A checked call on NumPy arrays: what only their elements show, their buffers on a device, the launches in order."""

from __future__ import annotations

import numpy as np

from refmoe.cuda.arguments import BF16, check_fill
from refmoe.cuda.device import Device
from refmoe.cuda.launch import Buffer
from refmoe.cuda.moe.call import MoECall
from refmoe.cuda.moe.launches import READ_WHOLE, LaunchStep, LayerBuffers, layer_steps, workspace_bytes
from refmoe.errors import ArgumentError


def layer_outputs(call: MoECall, device: Device, fill: int = 0) -> dict[str, Buffer]:
    """Run a checked call of NumPy arrays and keep every buffer that its launches write, by name, `out` among them.

    Args:
        call: from `make_call`.
        device: where the kernels run.
        fill: byte that all of them hold before the first launch.
    """
    buffers, steps = layer_launches(call, device, fill)
    for step in steps:
        device.launch(step.plan)
    return buffers


def layer_launches(call: MoECall, device: Device, fill: int = 0) -> tuple[dict[str, Buffer], tuple[LaunchStep, ...]]:
    """As `layer_outputs`, but nothing is launched yet: the buffers, and the launches in order."""
    check_fill(fill)
    shape = call.shape
    written = {
        name: device.output(name, (size,), fill, initialised=name in READ_WHOLE)
        for name, size in workspace_bytes(shape, call.options).items()
    }
    out = device.output("out", (shape.tokens, shape.hidden * BF16.itemsize), fill)
    given = {
        name: None if array is None else device.upload(name, array.ravel()) for name, array in call.tensors.items()
    }
    buffers = LayerBuffers(**given, out=out, workspace=written)
    steps = layer_steps(shape, call.options, buffers, multiprocessors=device.multiprocessors, arch=device.arch)
    return {**written, "out": out}, steps


def check_choices(call: MoECall) -> None:
    """Refuse what a look at the elements of NumPy arrays shows: an expert of this rank twice in a token, a limit below
    0 or NaN. Ids outside this rank, with which servers pad a batch, may come twice."""
    ids, limit = call.tensors["topk_ids"], call.tensors["swiglu_limit"]
    ordered = np.sort(ids, axis=1)
    first = call.shape.first_expert
    own = (ordered >= first) & (ordered < first + call.shape.experts)
    token, rank = np.nonzero((ordered[:, 1:] == ordered[:, :-1]) & own[:, 1:])
    if token.size:
        found = f"expert {ordered[token[0], rank[0]]} twice in token {token[0]}"
        raise ArgumentError("token_selected_experts", found, f"{ids.shape[1]} different experts in each token")
    if limit is not None and not (limit >= 0).all():
        expert = int(np.flatnonzero(~(limit >= 0))[0])
        raise ArgumentError("swiglu_limit", f"{limit[expert]} for expert {expert}", "limits of at least 0")
