"""The whole layer as operators of torch: `torch.ops.refmoe.fused_moe` and `fused_moe_out`.

Importing this module imports torch and registers them. On a GPU the launches go to torch's current stream; nothing
waits and nothing depends on what a tensor holds, so they can be captured in a CUDA graph after one call outside of it,
which compiles and loads the kernels. Tensors of the CPU run on the executor. The fake kernels check shapes and dtypes
as the real ones do.
"""

from __future__ import annotations

import functools
from dataclasses import MISSING, fields
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch

from refmoe.cuda.device import CudaDevice, open_device
from refmoe.cuda.moe.arrays import check_choices, layer_outputs
from refmoe.cuda.moe.call import TENSORS, MoEArguments, MoECall, check_backend, make_call
from refmoe.cuda.moe.launches import LayerBuffers, layer_steps, workspace_bytes
from refmoe.errors import ArgumentError

ALIGNMENT = 16  # bytes, of every pointer: the kernels' widest access
_WORKSPACE_ALIGNMENT = 256

#: How torch's schema spells the annotations of `MoEArguments`.
_WORDS = {"Tensor": "Tensor", "Tensor | None": "Tensor?", "Sequence[Tensor | None]": "Tensor?[]", "DType": "ScalarType"}


def _schema() -> str:
    """The arguments but `output`, those without a default first and the others by keyword alone; then the backend."""
    required, optional = [], []
    for known in fields(MoEArguments):
        word = f"{_WORDS.get(str(known.type), known.type)} {known.name}"
        if known.default is MISSING:
            required.append(word)
        elif known.name != "output":
            default = f'"{known.default}"' if isinstance(known.default, str) else known.default
            optional.append(f"{word}={default}")
    return ", ".join((*required, "*", *optional, "str? backend=None"))


_LIBRARY: Any = torch.library.Library("refmoe", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define(f"fused_moe({_schema()}) -> Tensor")
_LIBRARY.define(f"fused_moe_out({_schema()}, Tensor(a!) output) -> ()")


def fused_moe(arguments: MoEArguments, backend: str | None = None) -> torch.Tensor:
    """`refmoe.cuda.fused_moe` on torch tensors, by the operators.

    Raises:
        ArgumentError: as there; a tensor on another device than `input`, or one that does not start at a multiple of
            16 bytes.
    """
    named = {**vars(arguments), "backend": backend}
    if arguments.output is not None:
        torch.ops.refmoe.fused_moe_out(**named)
        return arguments.output  # type: ignore[no-any-return]
    del named["output"]
    result: torch.Tensor = torch.ops.refmoe.fused_moe(**named)
    return result


def _new(*tensors: Any, backend: str | None = None, **named: Any) -> torch.Tensor:
    call, output = _checked(MoEArguments(*tensors, **named))
    _run(call, output, backend)
    return output


def _into(*tensors: Any, backend: str | None = None, **named: Any) -> None:
    _new(*tensors, backend=backend, **named)


def _fake_new(*tensors: Any, backend: str | None = None, **named: Any) -> torch.Tensor:
    return _checked(MoEArguments(*tensors, **named))[1]


def _fake_into(*tensors: Any, backend: str | None = None, **named: Any) -> None:
    _checked(MoEArguments(*tensors, **named))


def _checked(arguments: MoEArguments) -> tuple[MoECall, torch.Tensor]:
    """The call, and where its result goes: the output that was given, or a new one."""
    call, output = make_call(arguments), arguments.output
    x = call.tensors["x"]
    for name, tensor in (*call.tensors.items(), ("output", output)):
        if tensor is not None and tensor.device != x.device:
            raise ArgumentError(
                TENSORS.get(name, name), f"a tensor on {tensor.device}", f"one on {x.device}, as input is"
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
                    TENSORS.get(name, name), found, f"one that starts at a multiple of {ALIGNMENT} bytes"
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
