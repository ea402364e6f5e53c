"""One call for a whole MoE layer, with the argument names of FlashInfer's `cutlass_fused_moe`.

The same call takes NumPy arrays, whose kernels run on the executor or on a GPU, and torch tensors
(refmoe.cuda.moe.operators).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from refmoe.cuda.arguments import BF16
from refmoe.cuda.device import Device, open_device
from refmoe.cuda.moe.arrays import check_choices, layer_outputs
from refmoe.cuda.moe.call import TENSORS, MoEArguments, check_backend, make_call
from refmoe.errors import ArgumentError, describe

#: Arguments of FlashInfer's that say nothing here at their first value, and what any other would ask for.
_ABSENT: Mapping[str, tuple[object, str]] = {
    "cluster_size": (1, "clusters of ranks"),
    "cluster_rank": (0, "clusters of ranks"),
    "enable_alltoall": (False, "an all-to-all between ranks"),
    "use_deepseek_fp8_block_scale": (False, "FP8 weights with a scale for 128 x 128"),
    "use_w4_group_scaling": (False, "INT4 weights with scales for groups"),
    "use_packed_weights": (False, "INT4 weights in CUTLASS's packing"),
}


def fused_moe(
    input: Any,
    token_selected_experts: Any,
    token_final_scales: Any,
    fc1_expert_weights: Any,
    fc2_expert_weights: Any,
    output_dtype: object,
    quant_scales: Sequence[Any],
    fc1_expert_biases: Any = None,
    fc2_expert_biases: Any = None,
    input_sf: Any = None,
    swiglu_alpha: Any = None,
    swiglu_beta: Any = None,
    swiglu_limit: Any = None,
    tp_size: int = 1,
    tp_rank: int = 0,
    ep_size: int = 1,
    ep_rank: int = 0,
    output: Any = None,
    min_latency_mode: bool = False,
    quantize_in_expand: bool = True,
    use_mxfp8_act_scaling: bool = True,
    activation: str = "gpt_oss",
    scale_mode: str = "rceil",
    edge_policy: str = "exact",
    device: Device | str | None = None,
    backend: str | None = None,
    **others: object,
) -> Any:
    """An MoE layer after its router: MXFP8 tokens, MXFP4 weights, BF16 out.

    Names and meanings are those of FlashInfer's `cutlass_fused_moe`, with three differences: rows of fc1 are laid out
    as this package's activation reads them (FlashInfer wants all ups, then all gates); where swiglu_alpha, _beta and
    _limit are None, they are gpt-oss's 1.702, 1 and 7; and what is not built here is refused, not ignored.

    Ranks: this one has the experts [ep_rank * E, (ep_rank + 1) * E) of ep_size * E, and of each its slice of I. The sum
    of all ranks' outputs is the layer's. It depends on how many ranks there are: each rounds its part to BF16, and with
    tp_size > 1 the blocks of K that one rank sums are others.

    Args:
        input: BF16 or FP16 [T, H]; or uint8 or float8_e4m3fn [T, H], E4M3 codes, with input_sf.
        token_selected_experts: int32 [T, k], expert ids over all ranks, this rank's different within a token, k at
            most 32. An id outside this rank's adds nothing and may come twice, as in the rows that pad a batch.
        token_final_scales: float32 [T, k], their weights.
        fc1_expert_weights: E2M1 [E, 2 I, H], packed: uint8 [E, 2 I, H / 2] or its int64 view. For "gpt_oss" gate and up
            alternate, gate first; for "silu" all gates come first.
        fc2_expert_weights: E2M1 [E, H, I], packed likewise.
        output_dtype: bfloat16, of ml_dtypes or NumPy; with torch tensors torch's.
        quant_scales: [scales of fc1, global scale of fc1, scales of fc2, global scale of fc2]. Scales are E8M0, uint8
            or its int32 view, for each expert whole 128x4 atoms; global ones float32 [E] or None, factors of the sums.
        fc1_expert_biases: BF16 [E, 2 I], laid out as the rows of fc1, or None.
        fc2_expert_biases: BF16 [E, H] or None; added by tp_rank 0, before the weight.
        input_sf: scales of ready codes: uint8 [T, H / 32] linear, or of one dimension in 128x4, as uint8 or int32.
        swiglu_alpha: float32 [E], the sigmoid's factor, or None; of "gpt_oss" only, as the next two.
        swiglu_beta: float32 [E], what is added to up, or None.
        swiglu_limit: float32 [E], where gate and up are clamped, or None.
        tp_size: ranks that share each expert's I.
        tp_rank: this one's number among them.
        ep_size: ranks that share the experts.
        ep_rank: this one's number among them.
        output: BF16 [T, H] to write to, or None for a new one.
        min_latency_mode: take the narrow tiles for few tokens. The result is the same.
        quantize_in_expand: quantize inside expand, or in a launch before it. The result is the same.
        use_mxfp8_act_scaling: True.
        activation: "gpt_oss" or "silu", see `refmoe.reference.activation`.
        scale_mode: of the activations, "rceil" or "floor".
        edge_policy: of the activations, "exact" or "flashinfer".
        device: for NumPy arrays: a device, "ptx" (the default) or "cuda". Torch tensors say themselves: on a GPU the
            kernels go to the current stream; tensors of the CPU take the executor.
        backend: None or "cutlass".
        **others: further arguments of FlashInfer's, at the values that turn them off.

    Returns:
        BF16 [T, H]; `output` if there is one.

    Raises:
        ArgumentError: an argument is none of these; nothing has run. Ids of torch tensors on a GPU are not looked at,
            since that would wait for them.
        RuntimeError: with torch tensors, torch's own sentence on a value that the operator's schema has no place for,
            such as a NumPy array beside them.
    """
    given = locals()  # only the arguments yet
    _refuse_others(others)
    arguments = MoEArguments(**{known.name: given[known.name] for known in fields(MoEArguments)})
    if type(input).__module__.partition(".")[0] == "torch":
        if device is not None:
            raise ArgumentError("device", describe(device), "None with torch tensors, which say it themselves")
        from refmoe.cuda.moe import operators

        return operators.fused_moe(arguments, backend)
    call = make_call(arguments)
    _all_numpy(call.tensors, output)
    place = _device(device)
    check_backend(backend, place.arch)
    check_choices(call)
    out = place.download(layer_outputs(call, place)["out"]).view(BF16)
    if output is None:
        return out
    output[:] = out
    return output


def _refuse_others(others: Mapping[str, object]) -> None:
    for name, value in others.items():
        if name not in _ABSENT:
            raise TypeError(f"fused_moe() got an unexpected keyword argument {name!r}")
        off, what = _ABSENT[name]
        if value != off:
            raise ArgumentError(name, describe(value), f"{off}: {what} is not built here")


def _all_numpy(tensors: Mapping[str, Any], output: object) -> None:
    for name, value in (*tensors.items(), ("output", output)):
        if value is not None and not isinstance(value, np.ndarray):
            argument = TENSORS.get(name, name)
            raise ArgumentError(argument, f"a {type(value).__module__} tensor", "a NumPy array, as input is one")
    if isinstance(output, np.ndarray) and not output.flags.writeable:
        raise ArgumentError("output", "a read-only array", "one that can be written")


def _device(device: Device | str | None) -> Device:
    if device is None or isinstance(device, str):
        return _opened(device or "ptx")
    return device


@functools.lru_cache(maxsize=4)
def _opened(name: str) -> Device:
    """Kept, with the modules that it has parsed."""
    return open_device(name)
