"""The weights of a DeepSeek-V3 layer in block FP8, as a rank holds them, and what systems do differently with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.formats import BLOCK_FP8
from refmoe.reference import fp32
from refmoe.reference.arrays import check_optional
from refmoe.reference.block_fp8 import SCALES, BlockFP8Tensor
from refmoe.reference.deepseek.finalize import ORDERS
from refmoe.reference.deepseek.routing import RULES, check_sizes
from refmoe.reference.layout import checked_count

WEIGHTS = "block_fp8"
"""The format of the weights."""
QUANTIZERS = ("deepgemm", "exact", "trtllm")
_TILE = BLOCK_FP8["128x128"]


@dataclass(frozen=True, eq=False)
class BlockFP8Expert:
    """One expert.

    Attributes:
        gate_up: 128x128 [2 I, H], the rows of the gate first.
        down: 128x128 [H, I].

    Raises:
        ArgumentError: other tiles, or sizes that do not belong together or are no multiples of 128.
    """

    gate_up: BlockFP8Tensor
    down: BlockFP8Tensor

    def __post_init__(self) -> None:
        for name in ("gate_up", "down"):
            tensor = getattr(self, name)
            if not isinstance(tensor, BlockFP8Tensor) or tensor.tile is not _TILE:
                raise ArgumentError(name, describe(tensor), "a BlockFP8Tensor with tiles of 128x128")
        (columns, hidden), down = self.gate_up.codes.shape, self.down.codes.shape
        if columns % (2 * _TILE.rows) or hidden % _TILE.columns or not columns or not hidden:
            raise ArgumentError("gate_up", str([columns, hidden]), "[2 I, H], I and H positive multiples of 128")
        if down != (hidden, columns // 2):
            raise ArgumentError("down", str(list(down)), str([hidden, columns // 2]))

    @property
    def hidden(self) -> int:
        """H."""
        return int(self.down.codes.shape[0])

    @property
    def intermediate(self) -> int:
        """I."""
        return int(self.down.codes.shape[1])


@dataclass(frozen=True, eq=False)
class DeepSeekMoELayer:
    """The experts of a layer that a rank has, and the router over all R of them.

    Attributes:
        routed: this rank's routed experts. One is looked up when a token goes to it, so that a sequence that reads
            from a file reads no other.
        hidden: H, a multiple of 128.
        intermediate: I of a routed expert, a multiple of 128.
        top_k: routed experts a token.
        shared: the expert that every token goes to, of any multiple of 128; None if there is none, or if another rank
            adds it.
        router_weight: bfloat16 [R, H]; None if the ids and weights of the experts come from elsewhere.
        correction_bias: float32 [R], added to the sigmoids for the choice alone, or None.
        groups: of routed experts.
        top_groups: those that a token's experts may come from.
        scale: the factor on the normalised weights.

    Raises:
        ArgumentError: dtypes or sizes that do not belong together.
    """

    routed: Sequence[BlockFP8Expert]
    hidden: int
    intermediate: int
    top_k: int
    shared: BlockFP8Expert | None = None
    router_weight: NDArray[Any] | None = None
    correction_bias: NDArray[np.float32] | None = None
    groups: int = 1
    top_groups: int = 1
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not len(self.routed):
            raise ArgumentError("routed", "no expert", "at least one")
        for name in ("hidden", "intermediate"):
            if checked_count(name, getattr(self, name), least=1) % _TILE.columns:
                raise ArgumentError(name, str(getattr(self, name)), f"a multiple of {_TILE.columns}")
        checked_count("top_k", self.top_k, least=1)
        if self.shared is not None and (
            not isinstance(self.shared, BlockFP8Expert) or self.shared.hidden != self.hidden
        ):
            raise ArgumentError("shared", describe(self.shared), f"a BlockFP8Expert of H = {self.hidden}, or None")
        if self.router_weight is not None:
            routed = len(self.router_weight)
            check_optional("router_weight", self.router_weight, (routed, self.hidden), fp32.BF16)
            none = np.zeros((0, routed), np.float32)
            check_sizes(none, self.correction_bias, self.top_k, self.groups, self.top_groups, self.scale, RULES[0])
        elif self.correction_bias is not None:
            raise ArgumentError("correction_bias", describe(self.correction_bias), "None without a router_weight")

    @property
    def weights(self) -> str:
        """The format of the weights, "block_fp8"."""
        return WEIGHTS

    @property
    def experts(self) -> int:
        """E, the routed experts of this rank."""
        return len(self.routed)

    def expert(self, number: int) -> BlockFP8Expert:
        """One of them.

        Raises:
            ArgumentError: it has other sizes than the layer.
        """
        found = self.routed[number]
        if (found.hidden, found.intermediate) != (self.hidden, self.intermediate):
            needed = f"H = {self.hidden} and I = {self.intermediate}, the layer's"
            raise ArgumentError("routed", f"expert {number} of {found.hidden} and {found.intermediate}", needed)
        return found


@dataclass(frozen=True)
class DeepSeekRules:
    """What systems that run this layer do differently.

    Attributes:
        weights: how routing weights are rounded, one of `refmoe.reference.deepseek.routing.RULES`.
        quantizer: of the activations, "deepgemm" or "exact" as in `refmoe.reference.block_fp8`, or "trtllm".
        scales: "fp32", or "ue8m0" for powers of two; with "trtllm" "fp32".
        order: in which the shared expert is added, one of `refmoe.reference.deepseek.finalize.ORDERS`.

    Raises:
        ArgumentError: an unknown word.
    """

    weights: str = "deepseek"
    quantizer: str = "deepgemm"
    scales: str = "fp32"
    order: str = "fp32"

    def __post_init__(self) -> None:
        for name, words in (("weights", RULES), ("quantizer", QUANTIZERS), ("scales", SCALES), ("order", ORDERS)):
            if getattr(self, name) not in words:
                raise ArgumentError(name, describe(getattr(self, name)), f"one of {', '.join(words)}")
        if self.quantizer == "trtllm" and self.scales != "fp32":
            raise ArgumentError("scales", f"{self.scales} with the quantizer trtllm", "fp32")


SYSTEMS: Mapping[str, DeepSeekRules] = MappingProxyType(
    {
        "refmoe": DeepSeekRules(),
        "trtllm": DeepSeekRules("trtllm", "trtllm", "fp32", "bf16"),
    }
)
"""Whose rules they are, by name: those of refmoe's own kernels, and those that TensorRT-LLM publishes for SM100."""


def as_rules(rules: DeepSeekRules | str | None) -> DeepSeekRules:
    """The rules themselves, those of a system by name, or for None those of refmoe's kernels.

    Raises:
        ArgumentError: an unknown system.
    """
    if isinstance(rules, DeepSeekRules):
        return rules
    if rules is None:
        return SYSTEMS["refmoe"]
    if not isinstance(rules, str) or rules not in SYSTEMS:
        raise ArgumentError("rules", describe(rules), f"DeepSeekRules, or one of {', '.join(SYSTEMS)}")
    return SYSTEMS[rules]
