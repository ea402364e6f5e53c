"""The operations around the GEMMs in torch, as somebody writes them who has no kernel, for `torch.compile`.

They take what refmoe's kernels take and write the same numbers, but for two things that make them cheaper: scales stay
token-linear, where the kernels write the layout that the GEMM reads, and the rows of an expert are not aligned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from refmoe.bench.gpu.kernels import MoeSizes, drawn_logits, drawn_weights
from refmoe.bench.gpu.timing import Calls, Contender, drawn_normal, set_count
from refmoe.cuda.device import CudaDevice
from refmoe.errors import RefmoeError
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


@dataclass(frozen=True)
class Peer:
    """An operation in torch.

    Attributes:
        operation: its name in the bench.
        function: of torch and what `inputs` makes.
        inputs: drawn as for refmoe's kernel, from a seed.
        results: what is compared with refmoe's kernel: for each name the place among the function's results, then the
            launch and the place among its arguments. Scales in 128x4 are left out, whose places differ, and the
            weights of the router, whose last bits do.
    """

    NAME: ClassVar[str] = "torch.compile"

    operation: str
    function: Callable[..., Any]
    inputs: Callable[[CudaDevice, MoeSizes, int, int], Sequence[Any]]
    results: Mapping[str, tuple[int, int, int]]

    def calls(
        self, device: CudaDevice, sizes: MoeSizes, tokens: int, function: Callable[..., Any], traffic: int
    ) -> Calls:
        """The contender: `function`, which may be compiled, on as many sets of inputs as refmoe's kernel has."""
        torch = device.torch
        sets = [self.inputs(device, sizes, tokens, seed) for seed in range(set_count(traffic))]
        run = [lambda given=given: function(torch, *given) for given in sets]
        return Calls(f"{self.NAME}: {self.operation}, M = {tokens}", traffic, run)

    def differing(
        self, device: CudaDevice, sizes: MoeSizes, tokens: int, function: Callable[..., Any], ours: Contender
    ) -> dict[str, list[int]]:
        """For each result the bytes that are not those of refmoe's kernel, and how many there are.

        Raises:
            RefmoeError: they are not as many.
        """
        torch = device.torch
        ours.enqueue(0)
        found = function(torch, *self.inputs(device, sizes, tokens, 0))
        counts = {}
        for name, (place, launch, argument) in self.results.items():
            written: Any = ours.sets[0][launch].arguments[argument]
            theirs, kernel = (
                each.contiguous().view(torch.uint8).flatten()
                for each in (found[place] if isinstance(found, tuple) else found, written)
            )
            if theirs.shape != kernel.shape:
                sizes_of = f"found {theirs.numel()} bytes of torch; needed {kernel.numel()}"
                raise RefmoeError(f"{name} of {self.operation}: {sizes_of}")
            counts[name] = [int((theirs != kernel).sum()), theirs.numel()]
        return counts


def peers_of(sizes: MoeSizes) -> tuple[Peer, ...]:
    """The operations of a model: DeepSeek-V3 has another router, which `refmoe bench deepseek_routing` times."""
    return tuple(peer for peer in PEERS if peer.operation != "route" or sizes.activation == "gpt_oss")


def _tensor(device: CudaDevice, array: Any) -> Any:
    return device.torch.from_numpy(array).cuda()


def _rows(device: CudaDevice, sizes: MoeSizes, tokens: int, seed: int) -> Sequence[Any]:
    return (drawn_normal(device, (tokens, sizes.hidden), seed),)


def _expanded(device: CudaDevice, sizes: MoeSizes, tokens: int, seed: int) -> Sequence[Any]:
    permuted = sizes.choices(tokens, seed)[1].permuted_to_unpermuted
    return (*_rows(device, sizes, tokens, seed), _tensor(device, permuted % tokens))


def _gates(device: CudaDevice, sizes: MoeSizes, tokens: int, seed: int) -> Sequence[Any]:
    return drawn_normal(device, (tokens * sizes.top_k, 2 * sizes.intermediate), seed, scale=3), sizes.activation


def _finals(device: CudaDevice, sizes: MoeSizes, tokens: int, seed: int) -> Sequence[Any]:
    ids, permutation = sizes.choices(tokens, seed)
    return (
        drawn_normal(device, (tokens * sizes.top_k, sizes.hidden), seed),
        _tensor(device, permutation.unpermuted_to_permuted),
        _tensor(device, drawn_weights(sizes, tokens, seed)),
        _tensor(device, ids),
        drawn_normal(device, (sizes.experts, sizes.hidden), seed) if sizes.biased else None,
    )


def _logits(device: CudaDevice, sizes: MoeSizes, tokens: int, seed: int) -> Sequence[Any]:
    return _tensor(device, drawn_logits(sizes, tokens, seed)), sizes.top_k


PEERS = (
    Peer(
        "route",
        route,
        _logits,
        {"ids": (0, 0, 2), "offsets": (2, 1, 1), "map of rows": (3, 1, 2), "map of choices": (4, 1, 3)},
    ),
    Peer("quantize", quantize, _rows, {"codes": (0, 0, 1), "scales": (1, 0, 2)}),
    Peer("expand", expand, _expanded, {"codes": (0, 0, 5)}),
    Peer("activation", activation, _gates, {"codes": (0, 0, 6)}),
    Peer("finalize", finalize, _finals, {"output": (0, 0, 5)}),
)
