"""The outputs of the steps around the GEMMs as stages: the first difference in the problem's own terms.

topk_ids[5, 1]  token 5 rank 1: kernel expert 9 (logit 0x3FC00000 (1.5)) reference expert 4 (logit 0x3FC00000 (1.5))
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from refmoe.families.mismatch_map import Plane, matrix_plane
from refmoe.numbers_as_text import distance_text, number_text

__all__ = ["ChoiceIds", "ChoiceRows", "FirstRows", "RefusedToken", "RowChoices", "TokenSums", "Weights"]

_NONE = 0xFFFFFFFF  # -1, as a bit pattern


@dataclass(frozen=True, eq=False)
class ChoiceIds:
    """Expert ids [T, k] as uint32.

    Attributes:
        name: of the stage.
        logits: float32 [T, experts], bias included: what was chosen by.
        top_k: k.
    """

    name: str
    logits: NDArray[np.float32]
    top_k: int

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `refmoe.verify.compare.Stage`."""
        token, rank = divmod(index, self.top_k)
        kernel_text, reference_text = (self._expert(token, expert) for expert in (kernel, reference))
        return f"token {token} rank {rank}: kernel {kernel_text} reference {reference_text}", ""

    def _expert(self, token: int, expert: int) -> str:
        if expert >= self.logits.shape[1]:
            return f"expert 0x{expert:08X}, which does not exist"
        return f"expert {expert} (logit {number_text(int(self.logits.view(np.uint32)[token, expert]), 'f32')})"

    def plane(self, shape: tuple[int, ...]) -> Plane:
        """Tokens by ranks; see `refmoe.families.mismatch_map.HasPlane`."""
        return matrix_plane(shape, "token", "rank")


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights [T, k] as uint32; `ids` are the reference's experts, int32 [T, k]."""

    name: str
    ids: NDArray[np.int32]

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `refmoe.verify.compare.Stage`."""
        token, rank = divmod(index, self.ids.shape[1])
        values = f"kernel {number_text(kernel, 'f32')} reference {number_text(reference, 'f32')}"
        place = f"token {token} rank {rank} (expert {self.ids[token, rank]})"
        return f"{place}: {values}{distance_text(kernel, reference, 'f32')}", ""

    def plane(self, shape: tuple[int, ...]) -> Plane:
        """Tokens by ranks; see `refmoe.families.mismatch_map.HasPlane`."""
        return matrix_plane(shape, "token", "rank")


@dataclass(frozen=True, eq=False)
class RefusedToken:
    """The complement of the first token without an answer, uint32 [1], 0 for none."""

    name: str

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `refmoe.verify.compare.Stage`."""
        texts = [f"token {~word & _NONE}" if word else "no token" for word in (kernel, reference)]
        return f"the first token without an answer: kernel {texts[0]} reference {texts[1]}", ""


@dataclass(frozen=True, eq=False)
class FirstRows:
    """First rows of `experts` local experts and the rows in use, uint64 [E+1]."""

    name: str
    experts: int

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `refmoe.verify.compare.Stage`."""
        what = "the rows in use" if index == self.experts else f"the first row of local expert {index}"
        return f"{what}: kernel {kernel} reference {reference}", ""


@dataclass(frozen=True, eq=False)
class ChoiceRows:
    """The row of each choice token + rank * T, uint32 [T*k]; `ids` are the experts, int32 [T, k]."""

    name: str
    ids: NDArray[np.int32]

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `refmoe.verify.compare.Stage`."""
        rank, token = divmod(index, self.ids.shape[0])
        texts = ["no row" if row == _NONE else f"row {row}" for row in (kernel, reference)]
        place = f"token {token} rank {rank} (expert {self.ids[token, rank]})"
        return f"{place}: kernel {texts[0]} reference {texts[1]}", ""


@dataclass(frozen=True, eq=False)
class RowChoices:
    """The choice of each row, uint32 [T*k], of `tokens` tokens."""

    name: str
    tokens: int

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `refmoe.verify.compare.Stage`."""
        return f"row {index}: kernel {self._choice(kernel)} reference {self._choice(reference)}", ""

    def _choice(self, choice: int) -> str:
        if choice == _NONE:
            return "nobody's"
        rank, token = divmod(choice, self.tokens)
        return f"token {token} rank {rank}"


@dataclass(frozen=True, eq=False)
class TokenSums:
    """A layer's output [T, H] as bit patterns.

    Attributes:
        name: of the stage.
        dtype: "bf16" or "f32".
        width: H.
        rows: int32 [T*k], the row of each choice, -1 for none.
        ids: int32 [T, k], the experts.
    """

    name: str
    dtype: str
    width: int
    rows: NDArray[np.int32]
    ids: NDArray[np.int32]

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `refmoe.verify.compare.Stage`."""
        token, column = divmod(index, self.width)
        values = f"kernel {number_text(kernel, self.dtype)} reference {number_text(reference, self.dtype)}"
        tokens, top_k = self.ids.shape
        ranks = [
            f"rank {rank} from {'nowhere' if row < 0 else f'row {row}'} of expert {self.ids[token, rank]}"
            for rank, row in enumerate(self.rows.reshape(top_k, tokens)[:, token])
        ]
        distance = distance_text(kernel, reference, self.dtype)
        return f"token {token} column {column}: {values}{distance}", f"; token {token}: {', '.join(ranks)}"

    def plane(self, shape: tuple[int, ...]) -> Plane:
        """Tokens by columns; see `refmoe.families.mismatch_map.HasPlane`."""
        return matrix_plane(shape, "token", "column")
