"""The toy family: neighbours of a row, added or subtracted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from refmoe.reference.toy import toy

from refmoe.draw import Draw
from refmoe.families.case import Shape, word
from refmoe.families.family import POISON, Case, Contract, Expectation, Extents, Family, Fill, Inputs, Outputs
from refmoe.families.vacuity import Limits, doubt_values
from refmoe.numbers_as_text import distance_text, number_text

if TYPE_CHECKING:
    from refmoe.cuda.device import Device

__all__ = ["TOY"]


def _gaussian(draw: Draw, m: int, k: int) -> Any:
    return draw.normal((m, k))


def _cancelling(draw: Draw, m: int, k: int) -> Any:
    """The second of a pair is the first with another sign, and a little more."""
    first = draw.normal((m, k // 2))
    return np.stack([first, -first * (1 + 2.0**-12)], axis=2).reshape(m, k)


_FILLS = {
    fill.name: fill
    for fill in (
        Fill("gaussian", "pairs of other neighbours, or one of a pair left out", _gaussian),
        Fill("cancelling", "a sum with fewer bits", _cancelling, Limits(zeros=0.01, reason="no pair cancels wholly")),
    )
}


@dataclass(frozen=True)
class Pairs:
    """The sums [M, K/2] as bit patterns; `width` is K/2."""

    name: str
    width: int

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `refmoe.families.stages.Stage`."""
        row, pair = divmod(index, self.width)
        values = f"kernel {number_text(kernel, 'f32')} reference {number_text(reference, 'f32')}"
        return f"row {row} pair {pair}: {values}{distance_text(kernel, reference, 'f32')}", ""


def _inputs(case: Case) -> Inputs:
    made = _FILLS[case.fill].make(Draw("toy", case.fill, case.seed), case.shape.m, case.shape.k)
    return {"x": made.astype(np.float32)}


def _expect(case: Case, inputs: Inputs) -> Expectation:
    sums = toy(inputs["x"], case.sign)
    doubt = doubt_values(sums, _FILLS[case.fill].limits)
    return Expectation({"out": sums.view(np.uint32)}, (Pairs("out", case.shape.k // 2),), doubt)


def _run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    from refmoe.cuda.toy import toy as launch

    return {"out": launch(inputs["x"], device=device, sign=case.sign, fill=case.poison).view(np.uint32)}


def _extents(case: Case) -> Extents:
    return {"out": case.shape.m * case.shape.k // 2 * 4}


def _quick() -> Iterator[Case]:
    for sign in ("plus", "minus"):
        for fill in _FILLS:
            yield TOY.case(fill, Shape(5, 96), sign=sign)


def _default() -> Iterator[Case]:
    yield TOY.case("gaussian", Shape(300, 96))  # more pairs than threads
    yield TOY.case("gaussian", Shape(0, 96))


TOY = Family(
    name="toy",
    about="Neighbours of a row, added or subtracted in FP32.",
    dtypes=("f32",),
    sizes="mk",
    fills=_FILLS,
    options=(word("sign", "plus", "minus", fixed=True), POISON),
    inputs=_inputs,
    expect=_expect,
    run=_run,
    extents=_extents,
    cases={"quick": _quick, "default": _default},
    contract=Contract(inputs=("x",), outputs={"out": "float32"}, settings={"sign": "sign"}),
    sources=("toy",),
    host=("refmoe.cuda.toy",),
    invariance="A toy has no tokens.",
)
