"""The operations of the sweep: refmoe's contender, its floor, what peers are given, and what of theirs is compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from refmoe.bench.gpu.kernels import (
    MoeSizes,
    activation,
    drawn_logits,
    drawn_weights,
    expand,
    finalize,
    quantize,
    route,
)
from refmoe.bench.gpu.timing import Calls, Contender, drawn_normal, set_count
from refmoe.cuda.device import CudaDevice
from refmoe.errors import RefmoeError


@dataclass(frozen=True)
class PeerOperation:
    """An operation around the GEMMs.

    Attributes:
        name: for people.
        ours: refmoe's contender.
        shares: how many bytes its floor reads for each that it writes, or writes for each that it reads.
        inputs: of a peer, drawn as for refmoe's kernel, from a seed.
        results: what is compared with refmoe's kernel: for each name the place among a peer's results, then the launch
            and the place among its arguments. Scales in 128x4 are left out, whose places differ, and the weights of the
            router, whose last bits do.
    """

    name: str
    ours: Callable[[CudaDevice, MoeSizes, int], Contender]
    shares: Callable[[MoeSizes], tuple[int, int]]
    inputs: Callable[[CudaDevice, MoeSizes, int, int], Sequence[Any]]
    results: Mapping[str, tuple[int, int, int]]

    def calls(
        self, device: CudaDevice, sizes: MoeSizes, tokens: int, peer: str, function: Callable[..., Any], traffic: int
    ) -> Calls:
        """A peer's contender: its function on as many sets of inputs as refmoe's kernel has."""
        sets = [self.inputs(device, sizes, tokens, seed) for seed in range(set_count(traffic))]
        run = [lambda given=given: function(*given) for given in sets]
        return Calls(f"{peer}: {self.name}, M = {tokens}", traffic, run)

    def differing(
        self, device: CudaDevice, sizes: MoeSizes, tokens: int, function: Callable[..., Any], ours: Contender
    ) -> dict[str, list[int]]:
        """For each result of a peer the bytes that are not those of refmoe's kernel, and how many there are.

        Raises:
            RefmoeError: they are not as many.
        """
        torch = device.torch
        ours.enqueue(0)
        made = function(*self.inputs(device, sizes, tokens, 0))
        found = made if isinstance(made, tuple) else (made,)
        counts = {}
        for name, (place, launch, argument) in self.results.items():
            if found[place] is None:
                continue
            written: Any = ours.sets[0][launch].arguments[argument]
            theirs, kernel = (each.contiguous().view(torch.uint8).flatten() for each in (found[place], written))
            if theirs.shape != kernel.shape:
                said = f"found {theirs.numel()} bytes of the peer; needed {kernel.numel()}"
                raise RefmoeError(f"{name} of {self.name}: {said}")
            counts[name] = [int((theirs != kernel).sum()), theirs.numel()]
        return counts


def operations_of(sizes: MoeSizes) -> tuple[PeerOperation, ...]:
    """The operations of a model: DeepSeek-V3 has another router, which `refmoe bench deepseek_routing` times."""
    return tuple(one for one in OPERATIONS if one.name != "route" or sizes.activation == "gpt_oss")


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


OPERATIONS = (
    PeerOperation(
        "route",
        route,
        lambda sizes: (8, 1),
        _logits,
        {"ids": (0, 0, 2), "offsets": (2, 1, 1), "map of rows": (3, 1, 2), "map of choices": (4, 1, 3)},
    ),
    PeerOperation(
        "quantize",
        lambda device, sizes, tokens: quantize(device, sizes, tokens, "linear"),
        lambda sizes: (2, 1),
        _rows,
        {"codes": (0, 0, 1), "scales": (1, 0, 2)},
    ),
    PeerOperation(
        "expand",
        lambda device, sizes, tokens: expand(device, sizes, tokens, f"fused expand, M = {tokens}"),
        lambda sizes: (1, sizes.top_k // 2),
        _expanded,
        {"codes": (0, 0, 5)},
    ),
    PeerOperation("activation", activation, lambda sizes: (4, 1), _gates, {"codes": (0, 0, 6)}),
    PeerOperation("finalize", finalize, lambda sizes: (sizes.top_k, 1), _finals, {"output": (0, 0, 5)}),
)
