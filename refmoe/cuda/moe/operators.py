"""The whole layer as operators of torch: `torch.ops.refmoe.fused_moe` and `fused_moe_out`.

Importing this module imports torch and registers them. On a GPU the launches go to torch's current stream; nothing
waits and nothing depends on what a tensor holds, so they can be captured in a CUDA graph after one call outside of it,
which compiles and loads the kernels. Tensors of the CPU run on the executor. The fake kernels check shapes and dtypes
as the real ones do.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch

from refmoe.cuda.device import CudaDevice, open_device
from refmoe.cuda.moe.call import ARGUMENTS, MoECall, check_backend, make_call
from refmoe.cuda.moe.launches import LayerBuffers, layer_steps, workspace_bytes
from refmoe.errors import ArgumentError

__all__ = ["fused_moe"]

ALIGNMENT = 16  # bytes, of every pointer: the kernels' widest access
_WORKSPACE_ALIGNMENT = 256

_ARGUMENTS = (
    "Tensor input, Tensor token_selected_experts, Tensor token_final_scales, Tensor fc1_expert_weights, "
    "Tensor fc2_expert_weights, ScalarType output_dtype, Tensor?[] quant_scales, *, Tensor? fc1_expert_biases=None, "
    "Tensor? fc2_expert_biases=None, Tensor? input_sf=None, Tensor? swiglu_alpha=None, Tensor? swiglu_beta=None, "
    "Tensor? swiglu_limit=None, int tp_size=1, int tp_rank=0, int ep_size=1, int ep_rank=0, "
    "bool min_latency_mode=False, bool quantize_in_expand=True, bool use_mxfp8_act_scaling=True, "
    'str activation="gpt_oss", str scale_mode="rceil", str edge_policy="exact", str? backend=None'
)

_LIBRARY: Any = torch.library.Library("refmoe", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define(f"fused_moe({_ARGUMENTS}) -> Tensor")
_LIBRARY.define(f"fused_moe_out({_ARGUMENTS}, Tensor(a!) output) -> ()")


def fused_moe(*tensors: Any, output: torch.Tensor | None = None, **others: Any) -> torch.Tensor:
    """`refmoe.cuda.moe.fused.fused_moe` on torch tensors, by the operators.

    Raises:
        ArgumentError: as there; a tensor on another device than `input`, or one that does not start at a multiple of
            16 bytes.
    """
    if output is None:
        result: torch.Tensor = torch.ops.refmoe.fused_moe(*tensors, **others)
        return result
    torch.ops.refmoe.fused_moe_out(*tensors, **others, output=output)
    return output


def _new(*tensors: Any, **others: Any) -> torch.Tensor:
    call, output = _checked(tensors, {**others, "output": None})
    _run(call, output, others.get("backend"))
    return output


def _into(*tensors: Any, output: torch.Tensor, **others: Any) -> None:
    call, _ = _checked(tensors, {**others, "output": output})
    _run(call, output, others.get("backend"))


def _fake_new(*tensors: Any, **others: Any) -> torch.Tensor:
    return _checked(tensors, {**others, "output": None})[1]


def _fake_into(*tensors: Any, output: torch.Tensor, **others: Any) -> None:
    _checked(tensors, {**others, "output": output})


def _checked(tensors: tuple[Any, ...], others: Mapping[str, Any]) -> tuple[MoECall, torch.Tensor]:
    """The call, and where its result goes: the output that was given, or a new one."""
    call = make_call(*tensors, **{name: value for name, value in others.items() if name != "backend"})
    x, output = call.tensors["x"], others["output"]
    for name, tensor in (*call.tensors.items(), ("output", output)):
        if tensor is not None and tensor.device != x.device:
            raise ArgumentError(
                ARGUMENTS.get(name, name), f"a tensor on {tensor.device}", f"one on {x.device}, as input is"
            )
    if output is None:
        output = x.new_empty((call.shape.tokens, call.shape.hidden), dtype=torch.bfloat16)
    return call, output


def _run(call: MoECall, output: torch.Tensor, backend: str | None) -> None:
    if output.device.type == "cpu":
        _run_on_executor(call, output, backend)
        return
    with torch.cuda.device(output.device):
        device = _gpu(output.device.index)
        check_backend(backend, device.arch)
        for name, tensor in (*call.tensors.items(), ("output", output)):
            if tensor is not None and tensor.data_ptr() % ALIGNMENT:
                found = f"a tensor that starts {tensor.data_ptr() % ALIGNMENT} bytes past a multiple of {ALIGNMENT}"
                raise ArgumentError(
                    ARGUMENTS.get(name, name), found, f"one that starts at a multiple of {ALIGNMENT} bytes"
                )
        buffers = LayerBuffers(**call.tensors, out=output, workspace=_workspace(call, output.device))
        for step in layer_steps(
            call.shape, call.options, buffers, multiprocessors=device.multiprocessors, arch=device.arch
        ):
            device.enqueue(step.plan)


def _workspace(call: MoECall, device: torch.device) -> dict[str, torch.Tensor]:
    """All intermediates in one allocation. Torch gives it to others only in the order of the stream."""
    sizes = workspace_bytes(call.shape, call.options)
    padded = {name: -(-size // _WORKSPACE_ALIGNMENT) * _WORKSPACE_ALIGNMENT for name, size in sizes.items()}
    whole: Any = torch.empty(sum(padded.values()), dtype=torch.uint8, device=device)
    parts = whole.split(list(padded.values()))
    return dict(zip(padded, parts, strict=True))


@functools.lru_cache(maxsize=16)
def _gpu(index: int) -> CudaDevice:
    """The GPU that is current, whose number is `index`: a module is loaded into one GPU's context."""
    return CudaDevice()


@functools.lru_cache(maxsize=1)
def _executor() -> Any:
    return open_device("ptx")


def _run_on_executor(call: MoECall, output: torch.Tensor, backend: str | None) -> None:
    from refmoe.cuda.moe.fused import check_choices, layer_outputs

    arrays = {name: None if tensor is None else _array(tensor) for name, tensor in call.tensors.items()}
    same = MoECall(call.shape, call.options, arrays)
    check_choices(same)
    device = _executor()
    check_backend(backend, device.arch)
    found = device.download(layer_outputs(same, device)["out"])
    output.view(torch.uint8).copy_(torch.from_numpy(found))


def _array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """The tensor's memory as an array, with ml_dtypes for what NumPy has no name for."""
    known = {torch.bfloat16: ml_dtypes.bfloat16, torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn}
    plain = tensor.detach()
    if tensor.dtype not in known:
        return np.asarray(plain.numpy())
    bits = torch.uint16 if tensor.element_size() == 2 else torch.uint8
    return np.asarray(plain.view(bits).numpy()).view(known[tensor.dtype])


for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("fused_moe", _new, _key)
    _LIBRARY.impl("fused_moe_out", _into, _key)
torch.library.register_fake("refmoe::fused_moe", _fake_new, lib=_LIBRARY)
torch.library.register_fake("refmoe::fused_moe_out", _fake_into, lib=_LIBRARY)
