"""What a kernel is to the harness: one protocol, for refmoe's own, the museum's, a user's and a planted fault.

`Kernel` is the protocol; what it does here is what refmoe's own kernels do. Others override what is different about
them: where they run, what they refuse, which bytes their contract says nothing about, what decides their result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from refmoe.cuda.launch import Kernel as Entry
from refmoe.cuda.toolchain import CSRC, find_toolchain
from refmoe.errors import ArgumentError, RefmoeError
from refmoe.families.family import Case, Expectation, Family, Inputs, Outputs
from refmoe.verify.source import kernel_sha256

if TYPE_CHECKING:
    from refmoe.cuda.device import Device, LaunchRecord
    from refmoe.ptx import Trace

__all__ = ["Devices", "Kernel", "Malformed", "Masks", "Place", "Refusal"]

Masks = Mapping[str, NDArray[Any]]


class Refusal(RefmoeError):
    """A kernel's answer to a case that it does not take; the message says why."""


class Malformed(RefmoeError):
    """An output has not the form of the contract.

    Attributes:
        stage: the output.
    """

    def __init__(self, stage: str, text: str) -> None:
        super().__init__(f"{stage}: {text}")
        self.stage = stage


class Place(Protocol):
    """Where a kernel runs: the name in reports, "ptx", "cuda" or "host", and the arch."""

    name: str
    arch: str
    launches: list[LaunchRecord]


@dataclass
class Devices:
    """The devices of a run, each opened once, so that a compiled and parsed module serves all its cases.

    Attributes:
        csrc: where kernel sources are taken from; a changed copy holds a planted fault.
        checked: whether the executor looks for faults; without, only what a kernel writes tells it from another.
        trace: what takes down who waited on which barrier on the executor, or None.
        multiprocessors: that the executor's chip has; None for those of the arch's own.
    """

    csrc: Path = CSRC
    checked: bool = True
    trace: Trace | None = None
    multiprocessors: int | None = None
    _open: dict[tuple[str, str], Device] = field(default_factory=dict)

    def get(self, case: Case) -> Device:
        """The case's device.

        Raises:
            ArgumentError: a trace of a device that tells nobody who waits.
            refmoe.cuda.DeviceUnavailable: it is not on this machine.
            refmoe.cuda.ToolchainError: there is no compiler to build its kernels with.
        """
        key = case.device, case.arch
        if key not in self._open:
            self._open[key] = self._opened(case)
        return self._open[key]

    def _opened(self, case: Case) -> Device:
        from refmoe.cuda.device import PtxDevice, open_device
        from refmoe.ptx import Checks

        device = open_device(case.device, arch=case.arch or None, csrc=self.csrc)
        find_toolchain()
        if self.multiprocessors is not None:
            device.multiprocessors = self.multiprocessors
        if self.trace is not None and not isinstance(device, PtxDevice):
            raise ArgumentError("trace", f"a case on {device.name}", "one on ptx: a GPU tells nobody who waits")
        if isinstance(device, PtxDevice):
            device.trace = self.trace
            if not self.checked:
                device.checks = Checks(bounds=False, uninitialised=False, alignment=False, races=False)
        return device


@dataclass
class Kernel:
    """A kernel that answers for a family. This one is refmoe's own.

    Attributes:
        family: the family.
        devices: where it runs.
    """

    family: Family
    devices: Devices = field(default_factory=Devices)

    @property
    def name(self) -> str | None:
        """The name of a user's kernel in reports; None for a kernel that its family's name names."""
        return None

    def identify(self, case: Case) -> str:
        """The name of a case on this kernel, in reports."""
        return str(case)

    def repro(self, case: Case) -> str:
        """The command that runs just this case."""
        return f"refmoe repro '{case}'"

    def place(self, case: Case) -> Place:
        """Where the case runs.

        Raises:
            refmoe.cuda.DeviceUnavailable, refmoe.cuda.ToolchainError: it is not here.
        """
        return self.devices.get(case)

    def missing(self, case: Case, place: Place) -> str | None:
        """Why a case cannot run here, in a sentence, or None; asked before anything is computed."""
        return None

    def refuses(self, case: Case, place: Place) -> str | None:
        """What the case list says that the kernel answers, a part of its sentence; None if it has to run the case."""
        return self.family.refusals.get(case.on("ptx"))

    def expects(self, case: Case, place: Place, answer: str) -> bool:
        """Whether a refusal with this answer is one that the case list expects."""
        declared = self.refuses(case, place)
        return declared is not None and declared in answer

    def problem(self, case: Case) -> tuple[Inputs, Expectation]:
        """The case's inputs, and what has to come of them."""
        return _problem(case.data)

    def run(self, case: Case, inputs: Inputs, expected: Expectation, place: Any) -> Outputs:
        """The kernel's buffers by name.

        Raises:
            Refusal: the kernel does not take the case.
            Malformed: an output of another form.
        """
        try:
            return self.family.run(case, inputs, place)
        except ArgumentError as error:
            raise Refusal(str(error)) from error

    def ignored(self, case: Case, inputs: Inputs, expected: Expectation) -> Masks:
        """Elements that no reader may depend on, bool by buffer; a buffer that is not there is compared whole."""
        return {}

    def explain(self, case: Case, inputs: Inputs, outputs: Outputs) -> tuple[str | None, tuple[str, ...]]:
        """Why outputs differ, in a sentence, and the policies whose bytes they are; nothing of most kernels."""
        return None, ()

    def made_of(self, case: Case, inputs: Inputs, place: Place) -> str | None:
        """What a kernel that is not ours was built from and with, and what of it ran."""
        return None

    def source_sha256(self) -> str | None:
        """The hash of all that decides its result, None if that cannot be told.

        Raises:
            OSError: a source cannot be read.
        """
        return _own_sha256(self.family, self.devices.csrc)

    def sources(self) -> tuple[str, ...]:
        """Of a user's kernel the files and functions that the hash is of."""
        return ()

    def compiler(self) -> str | None:
        """What compiles it."""
        return find_toolchain().build_id.splitlines()[-1]

    def unchecked(self) -> Kernel:
        """The same kernel where nothing is looked for, so that what it writes can be had."""
        return replace(self, devices=replace(self.devices, checked=False, _open={}))


@lru_cache(maxsize=1)
def _problem(case: Case) -> tuple[Inputs, Expectation]:
    # A case on several archs in a row needs its reference once. More would keep whole case lists in memory.
    inputs = case.family.inputs(case)
    return inputs, case.family.expect(case, inputs)


@lru_cache(maxsize=64)
def _own_sha256(family: Family, csrc: Path) -> str:
    return kernel_sha256([Entry(source, "").path(csrc) for source in family.sources], family.host)
