"""The operations around the GEMMs in torch, as somebody writes them who has no kernel, for `torch.compile`.

They take what refmoe's kernels take and write the same numbers, but for two things that make them cheaper: scales stay
token-linear, where the kernels write the layout that the GEMM reads, and the rows of an expert are not aligned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from refmoe.bench.sweep.peer import Peer, ReadyPeer
from refmoe.formats import MX_BLOCK

_E4M3_MAX = 448.0
_MANTISSA_BITS = 23
#: What a mantissa carries with that is above that of 448, 1.75, and the exponent of 448.
_CARRY, _LARGEST_EXPONENT = (1 << 21) - 1, 8
_EXPONENT_BIAS = 127


def quantize(torch: Any, x: Any) -> tuple[Any, Any]:
    """MXFP8 codes and token-linear E8M0 scales of BF16 rows; the scale is the least power of two that fits."""
    blocks = x.float().view(x.shape[0], -1, MX_BLOCK)
    largest = blocks.abs().amax(dim=-1).view(torch.int32)
    exponents = (((largest + _CARRY) >> _MANTISSA_BITS) - _LARGEST_EXPONENT).clamp(min=0)
    inverse = ((2 * _EXPONENT_BIAS - exponents) << _MANTISSA_BITS).view(torch.float32)
    codes = (blocks * inverse.unsqueeze(-1)).clamp(-_E4M3_MAX, _E4M3_MAX).to(torch.float8_e4m3fn)
    return codes.view(x.shape), exponents.to(torch.uint8)


def expand(torch: Any, x: Any, token_of_row: Any) -> tuple[Any, Any]:
    """Each expert's MXFP8 rows."""
    codes, scales = quantize(torch, x)
    return codes.view(torch.uint8)[token_of_row], scales[token_of_row]


def silu_activation(torch: Any, gate_up: Any) -> tuple[Any, Any]:
    """SiLU(gate) * up of DeepSeek-V3, in MXFP8; gates are the first half of a row."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return quantize(torch, gate * torch.sigmoid(gate) * up)


def gpt_oss_activation(torch: Any, gate_up: Any) -> tuple[Any, Any]:
    """The clamped SwiGLU of gpt-oss, in MXFP8; gates are the even columns."""
    gate, up = gate_up[:, ::2].float().clamp(max=7.0), gate_up[:, 1::2].float().clamp(-7.0, 7.0)
    return quantize(torch, gate * torch.sigmoid(gate * 1.702) * (up + 1.0))


def activation(torch: Any, gate_up: Any, kind: str) -> tuple[Any, Any]:
    """Either of them."""
    return (gpt_oss_activation if kind == "gpt_oss" else silu_activation)(torch, gate_up)


def finalize(torch: Any, rows: Any, row_of_choice: Any, weights: Any, ids: Any, bias: Any) -> Any:
    """The weighted sum of a token's rows with their experts' bias if any, BF16 [T, H]. Choices go rank by rank."""
    tokens, top_k = ids.shape
    total = torch.zeros((tokens, rows.shape[1]), dtype=torch.float32, device=rows.device)
    for rank in range(top_k):
        chosen = rows[row_of_choice.view(top_k, tokens)[rank]].float()
        if bias is not None:
            chosen = chosen + bias[ids[:, rank]].float()
        total = total + weights[:, rank, None] * chosen
    return total.to(torch.bfloat16)


def route(torch: Any, logits: Any, top_k: int) -> tuple[Any, ...]:
    """Experts and weights of each token, where experts begin, the choice of each row and the row of each choice."""
    chosen, ids = logits.topk(top_k, dim=-1)
    weights = torch.softmax(chosen, dim=-1)
    experts, permuted = torch.sort(ids.int().T.reshape(-1), stable=True)
    numbers = torch.arange(permuted.shape[0], device=logits.device, dtype=torch.int32)
    offsets = torch.searchsorted(experts, torch.arange(logits.shape[1] + 1, device=logits.device, dtype=torch.int32))
    return ids.int(), weights, offsets, permuted.int(), torch.zeros_like(numbers).scatter(0, permuted, numbers)


#: The function of each operation, of torch and what the operation draws.
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "route": route,
    "quantize": quantize,
    "expand": expand,
    "activation": activation,
    "finalize": finalize,
}


def _prepare(torch: Any) -> ReadyPeer:
    """Compile nothing yet: each function is compiled when it is first called with a size."""
    compiled = {operation: partial(torch.compile(function), torch) for operation, function in FUNCTIONS.items()}
    return ReadyPeer(str(torch.__version__), compiled)


PEER = Peer("torch.compile", tuple(FUNCTIONS), _prepare)
