"""Faults in the use of DeepGEMM's grouped GEMM: in its PTX, and in the operands that it is given.

An edit of the PTX finds its instruction by its text, and says at how many places that stands at least: the compiler
unrolls the loop over K. An edit that fits no place is an error, because the fault could not be planted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from refmoe.cuda.toolchain import ToolchainError, find_toolchain
from refmoe.families.case import Fields
from refmoe.families.family import Case, Expectation, Inputs, Outputs
from refmoe.museum.deepgemm.gemm import Problem
from refmoe.museum.deepgemm.headers import DeepGemmMissing, find_headers
from refmoe.museum.deepgemm.kernel import DEEPGEMM_GEMM, DeepGemm, DeepGemmTampering
from refmoe.museum.edits import EditError

CONTIGUOUS = "deepgemm_gemm:bf16:m160k768n256e4:near:rows=5-0-17-133:seed7@ptx.sm_90a"
MASKED = "deepgemm_gemm:bf16:m256k384n256e3:one-hot-tokens:grouping=masked:rows=129-0-7:seed7@ptx.sm_90a"


@dataclass(frozen=True)
class Everywhere:
    """A change of PTX text, of every place that fits.

    Attributes:
        pattern: a regular expression of the instruction.
        replacement: what takes its place, with the groups of the pattern.
    """

    pattern: str
    replacement: str

    def __call__(self, text: str) -> str:
        """The changed text.

        Raises:
            EditError: no place fits, or the change changes nothing.
        """
        changed, count = re.subn(self.pattern, self.replacement, text)
        if changed == text:
            raise EditError(f"the PTX has {count} places that match {self.pattern!r}; needed one that changes")
        return changed


class _Planted(DeepGemm):
    """DeepGEMM's kernel with a fault. A warning of copies that do not know their barrier, which it has not, fails."""

    def run(self, case: Case, inputs: Inputs, expected: Expectation, place: Any) -> Outputs:
        """See `DeepGemm.run`.

        Raises:
            RaceError: a copy completes on a barrier without a proxy fence behind its `mbarrier.init`.
        """
        outputs = super().run(case, inputs, expected, place)
        for record in place.launches:
            for warning in record.result.warnings if record.result is not None else ():
                if warning.warning == "unfenced init":
                    raise warning
        return outputs


@dataclass(frozen=True)
class DeepGemmFault:
    """A fault, planted in the PTX or in the operands.

    Attributes:
        name: a short name.
        fault: what is wrong, in a sentence.
        kind: the class of faults that it stands for.
        tampering: plants it.
        case: the case that must catch it.
    """

    name: str
    fault: str
    kind: str
    tampering: DeepGemmTampering
    case: str = CONTIGUOUS

    def plant(self, scratch: Path) -> Sequence[DeepGemm]:
        """DeepGEMM's kernel with the fault."""
        return [_Planted(DEEPGEMM_GEMM, tampering=self.tampering)]

    def cases(self) -> Sequence[Case]:
        """The one case that must catch it."""
        return [DEEPGEMM_GEMM.read(Fields.read(self.case))]


def _given(name: str, fault: str, change: Callable[[Problem], Problem], case: str = CONTIGUOUS) -> DeepGemmFault:
    return DeepGemmFault(name, fault, "operands", DeepGemmTampering(given=change), case)


def _edited(name: str, fault: str, kind: str, change: Callable[[str], str]) -> DeepGemmFault:
    return DeepGemmFault(name, fault, kind, DeepGemmTampering(edit=change))


def _next_block(problem: Problem) -> Problem:
    return replace(problem, token_scales=np.roll(problem.token_scales, 1, axis=1))


def _transposed(problem: Problem) -> Problem:
    form = problem.weight_scales.shape
    return replace(problem, weight_scales=np.ascontiguousarray(problem.weight_scales.swapaxes(1, 2)).reshape(form))


def _next_expert(problem: Problem) -> Problem:
    return replace(problem, grouped=np.where(problem.grouped < 0, -1, (problem.grouped + 1) % 4).astype(np.int32))


def _one_less(problem: Problem) -> Problem:
    return replace(problem, grouped=np.maximum(problem.grouped - 1, 0))


_TRANSACTIONS = r"(mov\.u32 \s*%r\d+, )33280;"  # of a tile of tokens, one of weights and 128 scales

DEEPGEMM_FAULTS: Sequence[DeepGemmFault] = (
    _given("700-scales-of-the-next-block", "token scales are those of the K block before", _next_block),
    _given("701-weight-scales-transposed", "weight scales [K/128, N/128] are given as [N/128, K/128]", _transposed),
    _given("702-rows-of-the-next-expert", "the number of every row's expert is one too high", _next_expert),
    _given("703-one-row-less", "the counts of a batch are one too low", _one_less, MASKED),
    _edited(
        "704-promotion-chained", "the first product of a K block is added to the block before it", "accumulation",
        Everywhere(r"setp\.ne\.b32 p, %r\d+, 0;", "setp.eq.b32 p, 0, 0;"),
    ),
    _edited(
        "705-promotion-truncated", "the promoted sum is rounded towards zero", "rounding",
        Everywhere(r"fma\.rn\.f32", "fma.rz.f32"),
    ),
    _edited(
        "706-output-truncated", "the output is truncated to BF16", "rounding",
        Everywhere(r"cvt\.rn\.bf16x2\.f32", "cvt.rz.bf16x2.f32"),
    ),
    _edited(
        "707-scales-not-awaited", "a stage counts as full before its scales are there", "synchronisation",
        Everywhere(_TRANSACTIONS, r"\g<1>32768;"),
    ),
    _edited(
        "708-store-without-proxy-fence", "the tile is stored without a fence between the proxies", "synchronisation",
        Everywhere(r"fence\.proxy\.async\.shared::cta;", ""),
    ),
    _edited(
        "709-products-not-awaited", "sums are read before the products are complete", "synchronisation",
        Everywhere(r"wgmma\.wait_group\.sync\.aligned 0;", "wgmma.wait_group.sync.aligned 1;"),
    ),
    _edited(
        "710-operands-not-fenced", "registers of sums are handed over without wgmma.fence", "synchronisation",
        Everywhere(r"wgmma\.fence\.sync\.aligned;", ""),
    ),
    _edited(
        "711-barriers-not-published", "barriers are used by the copies before they are known to them",
        "synchronisation", Everywhere(r"fence\.mbarrier_init\.release\.cluster;", ""),
    ),
)  # fmt: skip


def faults_missing() -> str | None:
    """Why the faults cannot be planted on this machine, in a sentence, or None."""
    try:
        find_headers()
        find_toolchain()
    except (DeepGemmMissing, ToolchainError) as error:
        return str(error)
    return None
