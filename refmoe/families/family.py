"""What a kernel family is to the harness: how its cases get inputs, an expectation, and a launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from refmoe.errors import RefmoeError
from refmoe.families.case import Case
from refmoe.verify.compare import Stage

if TYPE_CHECKING:
    from refmoe.cuda import Device

__all__ = ["Assumption", "Expectation", "FamilyRun", "Inputs", "LaunchFailed", "Outputs", "required"]

Inputs = Mapping[str, NDArray[Any] | None]
Outputs = Mapping[str, NDArray[Any]]


class LaunchFailed(RefmoeError):
    """One of several launches of a case did not end; raised from the error that says why.

    Attributes:
        stage: what the launch computes.
        outputs: by stage name the buffers of the launches before it. A fault in one of those may be what stopped it.
    """

    def __init__(self, stage: str, outputs: Outputs, cause: RefmoeError) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.stage = stage
        self.outputs = outputs


@dataclass(frozen=True)
class Assumption:
    """What a verdict takes for granted of the chip's tensor cores.

    Attributes:
        model: name of the accumulation model, a key of `refmoe.reference.mma.MODELS`.
        evidence: what the model rests on: "hardware-checked", "published" or "extrapolated".
        text: both in sentences, for the reader of a report.
    """

    model: str
    evidence: str
    text: str


def _within(outputs: Outputs) -> str | None:
    return None


def _nothing(case: Case, device: Device) -> str | None:
    return None


@dataclass(frozen=True)
class Expectation:
    """What the reference says a case must give.

    Attributes:
        outputs: the expected buffers by stage name, poison included, in the order in which stages are computed:
            unsigned integers, bytes or the bit patterns of elements.
        stages: how to compare and describe each.
        doubt: why this data could not have failed, in a sentence, or None.
        assumption: what `outputs` rest on, or None where no tensor core takes part.
        outside: says of a kernel's outputs by stage name which lie outside their error bound, None if none does.
    """

    outputs: Outputs
    stages: tuple[Stage, ...]
    doubt: str | None
    assumption: Assumption | None = None
    outside: Callable[[Outputs], str | None] = _within


@dataclass(frozen=True)
class FamilyRun:
    """The functions of a family.

    Attributes:
        inputs: the input arrays of a case.
        expect: what the reference makes of them.
        run: what the kernel makes of them on a device, the buffers by stage name.
        missing: why a case cannot run here, in a sentence, or None; asked before anything is computed.
        made_of: what a kernel that is not ours was built from and with, and what of it ran.
    """

    inputs: Callable[[Case], Inputs]
    expect: Callable[[Case, Inputs], Expectation]
    run: Callable[[Case, Inputs, Device], Outputs]
    missing: Callable[[Case, Device], str | None] = _nothing
    made_of: Callable[[Case, Device], str | None] = _nothing


def required(inputs: Inputs, name: str) -> NDArray[Any]:
    """An input that is never absent."""
    value = inputs[name]
    assert value is not None, f"{name} is never absent"
    return value
