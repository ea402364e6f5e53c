"""The weights of a DeepSeek-V3 layer in NVFP4, as a rank holds them.

A routed expert has NVFP4 weights, and calibrated scales for what goes into each of its two products. Gate and up are
one matrix under one factor, since servers multiply them in one product. The shared expert is NVFP4 likewise, or BF16
where it was left out of the quantization.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.formats import MXFP4, NVFP4
from refmoe.reference import fp32
from refmoe.reference.arrays import check_optional, checked_array
from refmoe.reference.deepseek.routing import RULES, check_sizes
from refmoe.reference.layout import checked_count
from refmoe.reference.nvfp4 import NVFP4Tensor, checked_encode_scale

#: What the widths are multiples of: paths with BF16 tokens take whole blocks of 32.
_STEP = MXFP4.block


@dataclass(frozen=True, eq=False)
class NVFP4Expert:
    """One expert in NVFP4.

    Attributes:
        gate_up: [2 I, H], the rows of the gate first.
        down: [H, I].
        gate_up_input_scale: FP32, the global decode scale that the tokens are quantized under.
        down_input_scale: FP32, likewise of the activation.

    Raises:
        ArgumentError: sizes that do not belong together or are no multiples of 32, or a scale that is not above 0 and
            finite with a finite reciprocal.
    """

    gate_up: NVFP4Tensor
    down: NVFP4Tensor
    gate_up_input_scale: np.float32
    down_input_scale: np.float32

    def __post_init__(self) -> None:
        for name in ("gate_up", "down"):
            tensor = getattr(self, name)
            if not isinstance(tensor, NVFP4Tensor) or len(tensor.shape) != 2:
                raise ArgumentError(name, describe(tensor), "an NVFP4Tensor of two dimensions")
            scale = f"{name}_input_scale"
            try:
                object.__setattr__(self, scale, checked_encode_scale(getattr(self, scale)))
            except ArgumentError as error:
                raise ArgumentError(scale, error.found, error.needed) from None
        _check_shapes(self.gate_up.shape, self.down.shape)

    @property
    def hidden(self) -> int:
        """H."""
        return self.down.shape[0]

    @property
    def intermediate(self) -> int:
        """I."""
        return self.down.shape[1]


@dataclass(frozen=True, eq=False)
class BF16Expert:
    """One expert that was not quantized.

    Attributes:
        gate_up: bfloat16 [2 I, H], the rows of the gate first.
        down: bfloat16 [H, I].

    Raises:
        ArgumentError: another dtype, or sizes that do not belong together or are no multiples of 32.
    """

    gate_up: NDArray[Any]
    down: NDArray[Any]

    def __post_init__(self) -> None:
        checked_array("gate_up", self.gate_up, ("2 I", "H"), fp32.BF16)
        checked_array("down", self.down, ("H", "I"), fp32.BF16)
        _check_shapes(self.gate_up.shape, self.down.shape)

    @property
    def hidden(self) -> int:
        """H."""
        return int(self.down.shape[0])

    @property
    def intermediate(self) -> int:
        """I."""
        return int(self.down.shape[1])


@dataclass(frozen=True, eq=False)
class DeepSeekNVFP4Layer:
    """The experts of a layer that a rank has, and the router over all R of them.

    Attributes:
        routed: this rank's routed experts. One is looked up when a token goes to it, so that a sequence that reads
            from a file reads no other.
        hidden: H, a multiple of 32.
        intermediate: I of a routed expert, a multiple of 32.
        top_k: routed experts a token.
        shared: the expert that every token goes to, of any multiple of 32; None if there is none, or if another rank
            adds it.
        router_weight: bfloat16 [R, H]; None if the ids and weights of the experts come from elsewhere.
        correction_bias: float32 [R], added to the sigmoids for the choice alone, or None.
        groups: of routed experts.
        top_groups: those that a token's experts may come from.
        scale: the factor on the normalised weights.

    Raises:
        ArgumentError: dtypes or sizes that do not belong together.
    """

    routed: Sequence[NVFP4Expert]
    hidden: int
    intermediate: int
    top_k: int
    shared: NVFP4Expert | BF16Expert | None = None
    router_weight: NDArray[Any] | None = None
    correction_bias: NDArray[np.float32] | None = None
    groups: int = 1
    top_groups: int = 1
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not len(self.routed):
            raise ArgumentError("routed", "no expert", "at least one")
        for name in ("hidden", "intermediate"):
            if checked_count(name, getattr(self, name), least=1) % _STEP:
                raise ArgumentError(name, str(getattr(self, name)), f"a multiple of {_STEP}")
        checked_count("top_k", self.top_k, least=1)
        if self.shared is not None and (
            not isinstance(self.shared, (NVFP4Expert, BF16Expert)) or self.shared.hidden != self.hidden
        ):
            needed = f"an NVFP4Expert or a BF16Expert of H = {self.hidden}, or None"
            raise ArgumentError("shared", describe(self.shared), needed)
        if self.router_weight is not None:
            routed = len(self.router_weight)
            check_optional("router_weight", self.router_weight, (routed, self.hidden), fp32.BF16)
            none = np.zeros((0, routed), np.float32)
            check_sizes(none, self.correction_bias, self.top_k, self.groups, self.top_groups, self.scale, RULES[0])
        elif self.correction_bias is not None:
            raise ArgumentError("correction_bias", describe(self.correction_bias), "None without a router_weight")

    @property
    def weights(self) -> str:
        """The format of the routed experts' weights, "nvfp4"."""
        return NVFP4.name

    @property
    def experts(self) -> int:
        """E, the routed experts of this rank."""
        return len(self.routed)

    def expert(self, number: int) -> NVFP4Expert:
        """One of them.

        Raises:
            ArgumentError: it has other sizes than the layer.
        """
        found = self.routed[number]
        if (found.hidden, found.intermediate) != (self.hidden, self.intermediate):
            sizes = f"expert {number} of H = {found.hidden}, I = {found.intermediate}"
            raise ArgumentError("routed", sizes, f"H = {self.hidden}, I = {self.intermediate}")
        return found


def _check_shapes(gate_up: tuple[int, ...], down: tuple[int, ...]) -> None:
    columns, hidden = gate_up
    if columns % (2 * _STEP) or hidden % _STEP or not columns or not hidden:
        raise ArgumentError("gate_up", str([columns, hidden]), f"[2 I, H], I and H positive multiples of {_STEP}")
    if down != (hidden, columns // 2):
        raise ArgumentError("down", str(list(down)), str([hidden, columns // 2]))
