"""The weights of one MoE layer, as a rank holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.formats import MXFP4
from refmoe.reference import fp32
from refmoe.reference.activation import VARIANTS
from refmoe.reference.arrays import check_optional
from refmoe.reference.layout import checked_count
from refmoe.reference.tensor import MXTensor, NVFP4Experts, checked_weights


@dataclass(frozen=True, eq=False)
class MoELayer:
    """E local experts of hidden size H and intermediate size I, and the router over the R experts of all ranks.

    Attributes:
        gate_up: mxfp4 or nvfp4 [E, 2 I, H]; rows as the activation has its columns, interleaved for gpt_oss, halves for
            silu.
        down: [E, H, I] in the same format.
        top_k: experts a token.
        gate_up_bias: bfloat16 [E, 2 I], or None.
        down_bias: bfloat16 [E, H], or None.
        router_weight: bfloat16 [R, H]; None if the ids and weights of the experts come from elsewhere.
        router_bias: bfloat16 or float32 [R], or None.
        variant: "gpt_oss" or "silu".
        swiglu_alpha: float32 [E], or None for gpt-oss's own value; gpt_oss only.
        swiglu_beta: likewise.
        swiglu_limit: likewise.

    Raises:
        ArgumentError: formats, dtypes or shapes that do not belong together.
    """

    gate_up: MXTensor | NVFP4Experts
    down: MXTensor | NVFP4Experts
    top_k: int
    gate_up_bias: NDArray[Any] | None = None
    down_bias: NDArray[Any] | None = None
    router_weight: NDArray[Any] | None = None
    router_bias: NDArray[Any] | None = None
    variant: str = "gpt_oss"
    swiglu_alpha: NDArray[np.float32] | None = None
    swiglu_beta: NDArray[np.float32] | None = None
    swiglu_limit: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        for name in ("gate_up", "down"):
            checked_weights(name, getattr(self, name))
        if self.down.format != self.gate_up.format:
            raise ArgumentError("down", self.down.format, f"{self.gate_up.format}, the format of gate_up")
        experts, columns, hidden = self.gate_up.shape
        if columns % (2 * MXFP4.block) or not experts or not columns or not hidden:
            raise ArgumentError(
                "gate_up", f"{self.weights} {[experts, columns, hidden]}", "[E, 2 I, H], I a multiple of 32"
            )
        if self.down.shape != (experts, hidden, columns // 2):
            raise ArgumentError("down", f"{self.weights} {list(self.down.shape)}", f"{[experts, hidden, columns // 2]}")
        checked_count("top_k", self.top_k, least=1)
        if self.variant not in VARIANTS:
            raise ArgumentError("variant", describe(self.variant), f"one of {', '.join(VARIANTS)}")
        check_optional("gate_up_bias", self.gate_up_bias, (experts, columns), fp32.BF16)
        check_optional("down_bias", self.down_bias, (experts, hidden), fp32.BF16)
        if self.router_weight is not None:
            routed = len(self.router_weight)
            check_optional("router_weight", self.router_weight, (routed, hidden), fp32.BF16)
            check_optional("router_bias", self.router_bias, (routed,), fp32.BF16, np.float32)
        elif self.router_bias is not None:
            raise ArgumentError("router_bias", describe(self.router_bias), "None without a router_weight")
        for name in ("swiglu_alpha", "swiglu_beta", "swiglu_limit"):
            value = getattr(self, name)
            check_optional(name, value, (experts,), np.float32)
            if value is not None and self.variant != "gpt_oss":
                raise ArgumentError(name, f"{describe(value)} with {self.variant}", "None")

    @property
    def weights(self) -> str:
        """The format of the weights, "mxfp4" or "nvfp4"."""
        return self.gate_up.format

    @property
    def swiglu(self) -> dict[str, Any]:
        """The activation's arguments, an expert's each: variant, alpha, beta, limit."""
        alpha, beta, limit = self.swiglu_alpha, self.swiglu_beta, self.swiglu_limit
        return {"variant": self.variant, "alpha": alpha, "beta": beta, "limit": limit}

    @property
    def experts(self) -> int:
        """E, the local experts."""
        return self.gate_up.shape[0]

    @property
    def hidden(self) -> int:
        """H."""
        return self.gate_up.shape[2]

    @property
    def intermediate(self) -> int:
        """I."""
        return self.down.shape[2]
