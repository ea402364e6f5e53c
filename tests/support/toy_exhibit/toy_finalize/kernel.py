"""The kernel as another one of the family finalize: its cases, what it refuses, how it is launched, its fault."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from refmoe.cuda.launch import Entry, LaunchPlan
from refmoe.families.case import Shape
from refmoe.families.family import Case, Expectation, Inputs, Outputs
from refmoe.families.finalize import FINALIZE
from refmoe.museum.exhibit import restated
from refmoe.verify.kernel import Devices, Kernel, Place, Refusal
from refmoe.verify.source import kernel_sha256

__all__ = ["TOY_FINALIZE", "BackwardSum", "ToyFinalize", "on"]

CSRC = Path(__file__).parent / "csrc"
_THREADS = 64


def _case(fill: str, shape: Shape, **options: Any) -> Case:
    return TOY_FINALIZE.case(fill, shape, **options)


def _quick() -> Iterator[Case]:
    yield _case("gaussian", Shape(5, 64, e=4, t=3))
    yield _case("cancelling", Shape(5, 64, e=4, t=4))
    yield _case("gaussian", Shape(5, 64, e=4, t=2), first_expert=4, ranks=2)
    yield _case("gaussian", Shape(5, 64, e=4, t=2), bias="distinct", refusal="adds no bias")
    yield _case("gaussian", Shape(5, 64, e=4, t=2), out="f32", refusal="gives BF16 alone")


TOY_FINALIZE = restated(FINALIZE, name="toy_finalize", cases={"quick": _quick})


@dataclass
class ToyFinalize(Kernel):
    """Somebody's kernel from its own sources."""

    def run(self, case: Case, inputs: Inputs, expected: Expectation, place: Any) -> Outputs:
        """The sums as bit patterns.

        Raises:
            Refusal: a bias, or another type than BF16.
        """
        if inputs["bias"] is not None:
            raise Refusal("this kernel adds no bias")
        if (case.dtype, case.out) != ("bf16", "bf16"):
            raise Refusal("this kernel gives BF16 alone")
        tokens, top_k = inputs["weights"].shape
        names = ("rows", "unpermuted_to_permuted", "weights")
        given = [place.upload(name, np.ascontiguousarray(inputs[name])) for name in names]
        out = place.output("out", (tokens, 2 * case.shape.k), case.poison)
        grid = -(-tokens * case.shape.k // _THREADS)
        arguments = (*given, out, tokens, top_k, case.shape.k)
        place.launch(LaunchPlan(Entry("toy_finalize", "toy_finalize"), grid, _THREADS, arguments))
        return {"out": place.download(out).view(np.uint16)}

    def made_of(self, case: Case, inputs: Inputs, place: Place) -> str:
        """Where it is from."""
        return "somebody's kernel, release 1"

    def source_sha256(self) -> str:
        """The hash of its source and its launch."""
        return kernel_sha256([self.devices.csrc / "toy_finalize.cu"], [__name__])


def on(devices: Devices) -> ToyFinalize:
    """The kernel on devices that take its own sources."""
    return ToyFinalize(TOY_FINALIZE, replace(devices, csrc=CSRC, _open={}))


@dataclass(frozen=True)
class BackwardSum:
    """A fault: the ranks are summed from the last one down."""

    name: str = "backward-sum"
    fault: str = "The ranks are summed from the last one down."
    kind: str = "order"
    case: str = "toy_finalize:bf16:m5k64e4t4:cancelling:seed7@ptx"

    def plant(self, scratch: Path) -> Sequence[Kernel]:
        """The kernel from a changed copy of its source."""
        text = (CSRC / "toy_finalize.cu").read_text()
        changed = text.replace("int rank = 0; rank < top_k; ++rank", "int rank = top_k - 1; rank >= 0; --rank")
        assert changed != text
        (scratch / "toy_finalize.cu").write_text(changed)
        return [ToyFinalize(TOY_FINALIZE, Devices(csrc=scratch))]

    def cases(self) -> Sequence[Case]:
        """Those that run."""
        return [case for case in TOY_FINALIZE.level("quick") if not case.refusal]
