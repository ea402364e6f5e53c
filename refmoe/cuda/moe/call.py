"""What one call of a whole layer is made of: its arguments checked, whatever framework they come from.

An argument is looked at through `Facts`, so that NumPy arrays and torch tensors are refused with the same sentences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from refmoe.chips import CHIPS
from refmoe.cuda.activation import VARIANTS
from refmoe.cuda.arguments import INT32_MAX, check_int32, expanded_scale_rows, scale_buffer_bytes
from refmoe.cuda.gemm.tile import SCALE_LAYOUT
from refmoe.cuda.moe.launches import LayerOptions, LayerShape
from refmoe.cuda.quantize import EDGES, MODES
from refmoe.cuda.routing import MAX_TOP_K
from refmoe.errors import ArgumentError, describe
from refmoe.formats import MX_BLOCK
from refmoe.reference.backends import choose_backend

Tensor: TypeAlias = Any  # a NumPy array or a torch tensor
DType: TypeAlias = Any  # of either

BACKEND = "cutlass"  # the only path with kernels here

#: The tensors of a call, by the names of `LayerBuffers`: the argument of the caller that each one is.
TENSORS: Mapping[str, str] = MappingProxyType(
    {
        "x": "input",
        "input_sf": "input_sf",
        "topk_ids": "token_selected_experts",
        "topk_weights": "token_final_scales",
        "gate_up": "fc1_expert_weights",
        "gate_up_scales": "quant_scales[0]",
        "gate_up_alpha": "quant_scales[1]",
        "gate_up_bias": "fc1_expert_biases",
        "down": "fc2_expert_weights",
        "down_scales": "quant_scales[2]",
        "down_alpha": "quant_scales[3]",
        "down_bias": "fc2_expert_biases",
        "swiglu_alpha": "swiglu_alpha",
        "swiglu_beta": "swiglu_beta",
        "swiglu_limit": "swiglu_limit",
    }
)

_TOKEN_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "uint8": "mxfp8", "float8_e4m3fn": "mxfp8"}
_CODES_PER_WORD = {"uint8": 2, "int64": 16}  # E2M1 codes in an element of packed weights
_SCALE_DTYPES = {"uint8": 1, "int32": 4}


@dataclass(frozen=True)
class MoEArguments:
    """The arguments of a call, as `refmoe.cuda.fused_moe` describes them.

    This is the one list of them: the schema of torch's operators is made of these fields, annotations and defaults.
    """

    input: Tensor
    token_selected_experts: Tensor
    token_final_scales: Tensor
    fc1_expert_weights: Tensor
    fc2_expert_weights: Tensor
    output_dtype: DType
    quant_scales: Sequence[Tensor | None]
    fc1_expert_biases: Tensor | None = None
    fc2_expert_biases: Tensor | None = None
    input_sf: Tensor | None = None
    swiglu_alpha: Tensor | None = None
    swiglu_beta: Tensor | None = None
    swiglu_limit: Tensor | None = None
    tp_size: int = 1
    tp_rank: int = 0
    ep_size: int = 1
    ep_rank: int = 0
    output: Tensor | None = None
    min_latency_mode: bool = False
    quantize_in_expand: bool = True
    use_mxfp8_act_scaling: bool = True
    activation: str = "gpt_oss"
    scale_mode: str = "rceil"
    edge_policy: str = "exact"


@dataclass(frozen=True)
class Facts:
    """What can be known of a tensor without looking at its elements."""

    dtype: str
    shape: tuple[int, ...]
    contiguous: bool

    @property
    def text(self) -> str:
        """As `refmoe.errors.describe` has an array."""
        return f"{self.dtype} {list(self.shape)}"


@dataclass(frozen=True)
class MoECall:
    """A call that fits together.

    Attributes:
        shape: sizes on this rank.
        options: what is computed.
        tensors: the caller's tensors by the names of `LayerBuffers`; None where there is none.
    """

    shape: LayerShape
    options: LayerOptions
    tensors: Mapping[str, Any]


def facts_of(value: object) -> Facts | None:
    """Of a NumPy array or a torch tensor, fake ones included; None for anything else."""
    if isinstance(value, np.ndarray):
        return Facts(str(value.dtype), value.shape, bool(value.flags.c_contiguous))
    if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "is_contiguous"):
        dtype = str(value.dtype).removeprefix("torch.")  # type: ignore[attr-defined]
        return Facts(dtype, tuple(value.shape), value.is_contiguous())  # type: ignore[attr-defined]
    return None


def check_backend(backend: str | None, arch: str) -> None:
    """Refuse a backend without kernels here, or one that does not serve `arch`.

    None takes the cutlass path wherever its kernels are built. That includes sm_90a, where they carry the instruction
    that it lacks in software; by its name the backend is refused there, as servers refuse it.

    Raises:
        ArgumentError: with the backends that serve `arch`, or with what this one is instead.
    """
    if backend is None:
        return
    chosen = choose_backend(backend, arch if arch in CHIPS else None)
    if chosen.name != BACKEND:
        needed = f"{BACKEND}: {chosen.name} is a reference here, refmoe.reference.moe_layer(path={chosen.name!r})"
        raise ArgumentError("backend", describe(backend), needed)


def make_call(arguments: MoEArguments) -> MoECall:
    """Check the arguments of a call against each other. Elements are not looked at.

    Raises:
        ArgumentError: the first argument that does not fit.
    """
    given = arguments
    tokens, hidden, dtype = _tokens(given.input)
    top_k = _choices(given.token_selected_experts, given.token_final_scales, tokens)
    experts, intermediate = _weights(given.fc1_expert_weights, given.fc2_expert_weights, hidden)
    _one_of("activation", given.activation, VARIANTS)
    _one_of("scale_mode", given.scale_mode, MODES)
    _one_of("edge_policy", given.edge_policy, EDGES)
    if not given.use_mxfp8_act_scaling:
        raise ArgumentError("use_mxfp8_act_scaling", "False", "True: activations are MXFP8, a scale for 32 elements")
    _rank("tp", given.tp_size, given.tp_rank)
    _rank("ep", given.ep_size, given.ep_rank)
    if experts * given.ep_size > INT32_MAX:
        raise ArgumentError("ep_size", f"{given.ep_size} ranks of {experts} experts", "expert ids within int32")
    if top_k > experts * given.ep_size:
        found = f"{top_k} experts a token of {experts * given.ep_size}"
        raise ArgumentError("token_selected_experts", found, "experts that are different within a token")
    _check_quant_scales(given.quant_scales, experts, hidden, intermediate)
    _expect("fc1_expert_biases", given.fc1_expert_biases, "bfloat16", (experts, 2 * intermediate))
    _expect("fc2_expert_biases", given.fc2_expert_biases, "bfloat16", (experts, hidden))
    for name in ("swiglu_alpha", "swiglu_beta", "swiglu_limit"):
        value = getattr(given, name)
        _expect(name, value, "float32", (experts,))
        if value is not None and given.activation == "silu":
            raise ArgumentError(name, f"{_text(value)} with silu, which has none", "None")
    layout = _input_scales(given.input_sf, dtype, tokens, hidden)
    if _dtype_name(given.output_dtype) != "bfloat16":
        raise ArgumentError("output_dtype", describe(given.output_dtype), "bfloat16")
    _expect("output", given.output, "bfloat16", (tokens, hidden))
    rows = tokens * top_k
    check_int32("token_selected_experts", rows, "rows after expansion")
    check_int32("fc1_expert_weights", expanded_scale_rows(rows, experts), "padded scale rows")

    options = LayerOptions(
        quantization="ready" if dtype == "mxfp8" else "fused" if given.quantize_in_expand else "separate",
        dtype=dtype,
        variant=given.activation,
        mode=given.scale_mode,
        edge=given.edge_policy,
        input_sf_layout=layout,
        min_latency=bool(given.min_latency_mode),
    )
    named = vars(given) | {f"quant_scales[{index}]": scales for index, scales in enumerate(given.quant_scales)}
    tensors = {name: named[argument] for name, argument in TENSORS.items()}
    if given.tp_rank:
        tensors["down_bias"] = None  # the ranks of a tensor-parallel group are summed: one of them adds the bias
    shape = LayerShape(tokens, top_k, experts, hidden, intermediate, given.ep_rank * experts)
    return MoECall(shape, options, tensors)


def _tokens(input: object) -> tuple[int, int, str]:
    """(T, H, dtype)."""
    facts = facts_of(input)
    if facts is None or facts.dtype not in _TOKEN_DTYPES or len(facts.shape) != 2:
        raise ArgumentError("input", _text(input), "bfloat16 or float16 [T, H], or uint8 E4M3 codes [T, H]")
    tokens, hidden = facts.shape
    if hidden == 0 or hidden % MX_BLOCK:
        raise ArgumentError("input", f"H = {hidden}", f"H a positive multiple of {MX_BLOCK}")
    _contiguous("input", facts)
    return tokens, hidden, _TOKEN_DTYPES[facts.dtype]


def _choices(ids: object, weights: object, tokens: int) -> int:
    """k."""
    facts = facts_of(ids)
    if facts is None or facts.dtype != "int32" or len(facts.shape) != 2 or facts.shape[0] != tokens:
        raise ArgumentError("token_selected_experts", _text(ids), f"int32 [{tokens}, k]")
    top_k = facts.shape[1]
    if not 1 <= top_k <= MAX_TOP_K:
        raise ArgumentError("token_selected_experts", f"k = {top_k}", f"k from 1 to {MAX_TOP_K}")
    _contiguous("token_selected_experts", facts)
    _expect("token_final_scales", weights, "float32", (tokens, top_k), optional=False)
    return top_k


def _weights(gate_up: object, down: object, hidden: int) -> tuple[int, int]:
    """(E, I)."""
    experts, rows, k = _packed("fc1_expert_weights", gate_up)
    if not experts or not rows or rows % (2 * MX_BLOCK) or k != hidden:
        found = f"{_text(gate_up)}: [{experts}, {rows}, {k}] E2M1"
        raise ArgumentError("fc1_expert_weights", found, f"[E, 2 I, {hidden}] E2M1, I a multiple of {MX_BLOCK}")
    shape = _packed("fc2_expert_weights", down)
    if shape != (experts, hidden, rows // 2):
        needed = f"{[experts, hidden, rows // 2]} E2M1, that is uint8 {[experts, hidden, rows // 4]}"
        raise ArgumentError("fc2_expert_weights", f"{_text(down)}: {list(shape)} E2M1", needed)
    return experts, rows // 2


def _packed(name: str, weights: object) -> tuple[int, int, int]:
    """The shape in elements of weights packed in bytes, or in the int64 view in which FlashInfer passes them."""
    facts = facts_of(weights)
    if facts is None or facts.dtype not in _CODES_PER_WORD or len(facts.shape) != 3:
        raise ArgumentError(name, _text(weights), "packed E2M1, uint8 or their int64 view, of three dimensions")
    _contiguous(name, facts)
    experts, rows, words = facts.shape
    return experts, rows, words * _CODES_PER_WORD[facts.dtype]


def _check_quant_scales(scales: object, experts: int, hidden: int, intermediate: int) -> None:
    """Block scales and global scale of each GEMM."""
    if not isinstance(scales, Sequence) or len(scales) != 4:
        found = f"{len(scales)} tensors" if isinstance(scales, Sequence) else describe(scales)
        needed = "4: block scales and global scales of fc1, then of fc2"
        raise ArgumentError("quant_scales", found, needed)
    for index, (rows, k) in ((0, (2 * intermediate, hidden)), (2, (hidden, intermediate))):
        name, size = f"quant_scales[{index}]", experts * scale_buffer_bytes(rows, k, SCALE_LAYOUT)
        facts = facts_of(scales[index])
        if facts is None or facts.dtype not in _SCALE_DTYPES or _bytes(facts) != size:
            needed = (
                f"uint8 or their int32 view, {size} bytes: for each of {experts} experts [{rows}, {k // MX_BLOCK}] in "
            )
            raise ArgumentError(name, _text(scales[index]), needed + SCALE_LAYOUT)
        _contiguous(name, facts)
    for index in (1, 3):
        _expect(f"quant_scales[{index}]", scales[index], "float32", (experts,))


def _bytes(facts: Facts) -> int:
    return math.prod(facts.shape) * _SCALE_DTYPES[facts.dtype]


def _input_scales(input_sf: object, dtype: str, tokens: int, hidden: int) -> str:
    """The layout of `input_sf`, which its dimensions tell."""
    if dtype != "mxfp8":
        if input_sf is not None:
            raise ArgumentError("input_sf", f"{_text(input_sf)} with {dtype} input", "None: input is not MXFP8 yet")
        return "linear"
    facts = facts_of(input_sf)
    swizzled = scale_buffer_bytes(tokens, hidden, SCALE_LAYOUT)
    needed = f"uint8 [{tokens}, {hidden // MX_BLOCK}], or of one dimension {swizzled} bytes in {SCALE_LAYOUT}"
    if facts is None or facts.dtype not in _SCALE_DTYPES:
        raise ArgumentError("input_sf", f"{_text(input_sf)} with MXFP8 input", needed)
    _contiguous("input_sf", facts)
    if facts.dtype == "uint8" and facts.shape == (tokens, hidden // MX_BLOCK):
        return "linear"
    if len(facts.shape) == 1 and _bytes(facts) == swizzled:
        return SCALE_LAYOUT
    raise ArgumentError("input_sf", _text(input_sf), needed)


def _expect(name: str, value: object, dtype: str, shape: tuple[int, ...], *, optional: bool = True) -> None:
    if value is None and optional:
        return
    facts = facts_of(value)
    if facts is None or facts.dtype != dtype or facts.shape != shape:
        raise ArgumentError(name, _text(value), f"{dtype} {list(shape)}{' or None' if optional else ''}")
    _contiguous(name, facts)


def _contiguous(name: str, facts: Facts) -> None:
    if not facts.contiguous:
        raise ArgumentError(name, f"{facts.text} that is not contiguous", "a contiguous tensor")


def _rank(group: str, size: object, rank: object) -> None:
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ArgumentError(f"{group}_size", describe(size), "a number of ranks, at least 1")
    if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < size:
        raise ArgumentError(f"{group}_rank", describe(rank), f"0 to {size - 1}")


def _one_of(name: str, value: object, words: tuple[str, ...]) -> None:
    if value not in words:
        raise ArgumentError(name, describe(value), "one of " + ", ".join(words))


def _dtype_name(dtype: object) -> str:
    """ "bfloat16" of ml_dtypes's, NumPy's and torch's."""
    if type(dtype).__module__.partition(".")[0] == "torch":
        return str(dtype).removeprefix("torch.")
    try:
        return str(np.dtype(dtype))  # type: ignore[call-overload]
    except TypeError:
        return ""


def _text(value: object) -> str:
    facts = facts_of(value)
    return describe(value) if facts is None else facts.text
