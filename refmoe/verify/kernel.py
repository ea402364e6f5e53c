"""The protocol of a kernel: refmoe's own, the museum's, a user's, and one with a planted fault.

`Kernel` is the protocol, and refmoe's own kernels are instances of it. Other kernels are subclasses. They override what
is different: where they run, what they refuse, which bytes are not compared, and what decides their result.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from refmoe.cuda.device import DeviceUnavailable
from refmoe.cuda.launch import Entry
from refmoe.cuda.toolchain import CSRC, ToolchainError
from refmoe.driver import compiler_in_use, opened
from refmoe.errors import ArgumentError, RefmoeError
from refmoe.families.extents.geometry import HeldDevice
from refmoe.families.extents.plans import check_plans
from refmoe.families.extents.work import ORDINARY
from refmoe.families.family import Case, Expectation, Family, Inputs, Outputs
from refmoe.families.wrong import NotRefused, Untouched, is_wrong
from refmoe.verify.source import kernel_sha256

if TYPE_CHECKING:
    from refmoe.cuda.device import Device, LaunchRecord
    from refmoe.ptx import Trace

Masks = Mapping[str, NDArray[Any]]


class Refusal(RefmoeError):
    """A kernel's answer to a case that it does not take; the message says why.

    Attributes:
        declared: whether the kernel declared before the run that it would answer so.
    """

    def __init__(self, answer: str, *, declared: bool = False) -> None:
        super().__init__(answer)
        self.declared = declared


class Malformed(RefmoeError):
    """An output is missing or of another form than the contract says, or an input is not as it was given.

    Attributes:
        stage: name of the output, or of the input.
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
    """The devices of a run. Each is opened once, so that a kernel is compiled and parsed once for all cases.

    Attributes:
        csrc: the folder of the kernel sources; a changed copy holds a planted fault.
        checked: whether the executor checks bounds, initialisation, alignment and races.
        trace: records barrier waits on the executor, or None.
        multiprocessors: how many the executor's chip has; None for the number of the arch's own chip.
        entry_by_entry: whether the executor compiles a changed source for each entry that it launches, by itself.
    """

    csrc: Path = CSRC
    checked: bool = True
    trace: Trace | None = None
    multiprocessors: int | None = None
    entry_by_entry: bool = False
    _open: dict[tuple[str, str, int], Device] = field(default_factory=dict)
    _absent: dict[tuple[object, ...], tuple[type[RefmoeError], str]] = field(default_factory=dict)

    def get(self, case: Case) -> Device:
        """The case's device.

        Raises:
            ArgumentError: a trace is asked for on a device that cannot record barrier waits.
            refmoe.cuda.DeviceUnavailable: it is not on this machine.
            refmoe.cuda.ToolchainError: there is no compiler to build its kernels with.
        """
        key = case.device, case.arch, int(case.get("multiprocessors", 0))
        # Looking again for each of hundreds of cases finds nothing else.
        absent = (*key, os.environ.get("CUDA_HOME"), os.environ.get("PATH"))
        if absent in self._absent:
            kind, text = self._absent[absent]
            raise kind(text)
        if key not in self._open:
            try:
                self._open[key] = self._opened(case)
            except (DeviceUnavailable, ToolchainError) as error:
                self._absent[absent] = type(error), str(error)
                raise
        return self._open[key]

    def _opened(self, case: Case) -> Device:
        from refmoe.cuda.device import PtxDevice
        from refmoe.ptx import Checks

        device = opened(case.device, case.arch or None, self.csrc)
        if (chosen := case.get("multiprocessors", 0) or self.multiprocessors) is not None:
            device.multiprocessors = int(chosen)
        if self.trace is not None and not isinstance(device, PtxDevice):
            raise ArgumentError("trace", f"a case on {device.name}", "one on ptx: a GPU tells nobody who waits")
        if isinstance(device, PtxDevice):
            device.trace = self.trace
            device.entry_by_entry = self.entry_by_entry
            if not self.checked:
                device.checks = Checks(bounds=False, uninitialised=False, alignment=False, races=False)
        return device


@dataclass
class Kernel:
    """A kernel of a family. An instance of this class is refmoe's own kernel.

    Attributes:
        family: the family.
        devices: where it runs.
    """

    family: Family
    devices: Devices = field(default_factory=Devices)

    @property
    def name(self) -> str | None:
        """The name of a user's kernel in reports; None for refmoe's own and the museum's, which their family names."""
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
            refmoe.cuda.DeviceUnavailable: the device is not on this machine.
            refmoe.cuda.ToolchainError: there is no compiler.
        """
        return self.devices.get(case)

    def missing(self, case: Case, place: Place) -> str | None:
        """What this machine lacks for the case, in a sentence, or None. It is asked before anything is computed."""
        return self.family.lacks(case, place.arch)

    def due_refusal(self, case: Case, place: Place) -> str | None:
        """A part of the sentence with which the kernel has to refuse the case; None if it has to run the case."""
        return self.family.refusals.get(case.on("ptx"))

    def problem(self, case: Case) -> tuple[Inputs, Expectation]:
        """The case's inputs, and the outputs that the reference expects."""
        if is_wrong(case):
            return _inputs(case.data), Expectation({}, (), None)
        return _problem(case.data)

    def run(self, case: Case, inputs: Inputs, expected: Expectation, place: Any) -> Outputs:
        """The kernel's buffers by name.

        Args:
            case: the case.
            inputs: its input arrays, read-only.
            expected: for the shapes and dtypes of outputs; read-only, since the comparison needs it afterwards.
            place: where it runs.

        Raises:
            Refusal: the kernel does not take the case.
            Malformed: an output of another form.
        """
        check_plans(self.family.name, self.family.host)
        if is_wrong(case):
            return self._refused(case, inputs, place)
        try:
            ordinary = case.fill in ORDINARY.get(self.family.name, ())
            return self.family.run(case, inputs, HeldDevice(place, self.family.name, ordinary=ordinary))
        except ArgumentError as error:
            raise Refusal(str(error)) from error

    def _refused(self, case: Case, inputs: Inputs, place: Any) -> Outputs:
        """Make a call that has to be refused, on a device that runs nothing.

        Raises:
            Refusal: it is refused; Python itself refuses an argument that the function does not have.
            NotRefused: it is not, or by an error that says nothing to the caller.
        """
        try:
            return self.family.run(case, inputs, Untouched(place))
        except (ArgumentError, TypeError) as error:
            raise Refusal(str(error)) from error
        except RefmoeError:
            raise
        except Exception as error:
            raise NotRefused(f"the call had to be refused, and ended in {type(error).__name__}: {error}") from error

    def leaves_out(self, output: str) -> bool:
        """Whether the kernel does not compute an output of its family; any other one it has to give."""
        return False

    def ignored(self, case: Case, inputs: Inputs, expected: Expectation) -> Masks:
        """Masks of elements that are not compared, bool by buffer name; a buffer without a mask is compared whole."""
        return {}

    def explain(self, case: Case, inputs: Inputs, outputs: Outputs) -> tuple[str | None, tuple[str, ...]]:
        """Why outputs differ, in a sentence, and the policies whose bytes they are. Most kernels cannot tell."""
        return None, ()

    def made_of(self, case: Case, inputs: Inputs, place: Place) -> str | None:
        """For a kernel that is not refmoe's own: what it was built from, with which compiler, and what of it ran."""
        return None

    def source_sha256(self) -> str | None:
        """The hash of all that decides the kernel's result, None if that cannot be known.

        Raises:
            ArgumentError: a kernel that is not refmoe's own and does not say what decides its result.
            OSError: a source cannot be read.
        """
        if self.family.base:
            found = f"{self.family.name} without a source_sha256 of its own"
            raise ArgumentError("kernel", found, "a subclass of Kernel that has one")
        return _own_sha256(self.family, self.devices.csrc)

    def sources(self) -> tuple[str, ...]:
        """For a user's kernel: the files and functions that the hash covers."""
        return ()

    def compiler(self) -> str | None:
        """The compiler and its version."""
        return _compiler(os.environ.get("CUDA_HOME"), os.environ.get("PATH"))

    def unchecked(self) -> Kernel:
        """The same kernel without the executor's checks, so that it gives outputs where it would fault."""
        return replace(self, devices=replace(self.devices, checked=False, _open={}))


@lru_cache(maxsize=1)
def _inputs(case: Case) -> Inputs:
    # Wrong calls come one behind the other, and share a sound one.
    return case.family.inputs(case)


@lru_cache(maxsize=1)
def _problem(case: Case) -> tuple[Inputs, Expectation]:
    # A case on several archs in a row needs its reference once. More would keep whole case lists in memory.
    inputs = case.family.inputs(case)
    return inputs, case.family.expect(case, inputs)


@lru_cache(maxsize=1)
def _compiler(cuda_home: str | None, path: str | None) -> str:
    # A millisecond, and every case of a report names it.
    return compiler_in_use()


@lru_cache(maxsize=64)
def _own_sha256(family: Family, csrc: Path) -> str:
    sources = [Entry(source, "").path(csrc) for source in family.sources]
    return kernel_sha256(sources, family.host, run=(family.run,))
