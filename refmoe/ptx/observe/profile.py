"""What a launch did, counted: instructions, divergence, bank conflicts, sectors, live registers.

    profile = Profile()
    launch(module, entry, grid, block, args, profile=profile)
    print(profile.text())

Instructions are counted by the block of code that a step ran and the lanes that ran it, which is exact and costs nearly
nothing. Loads, stores, atomics, `ldmatrix`, `stmatrix` and `cp.async` run in Python then, so that their addresses are
seen; results are the same.

`refmoe.ptx.observe.kernel_profile` says how single accesses are counted.

Not counted: the traffic of bulk copies (`cp.async.bulk`), caches, and time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from refmoe.ptx.engine.atomics import Atomic
from refmoe.ptx.engine.code import View
from refmoe.ptx.engine.copies import CopyAsync
from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.loads_and_stores import Access, Load, Store
from refmoe.ptx.engine.machine import Launch, observer_of
from refmoe.ptx.engine.tensor.matrix import LoadMatrix, StoreMatrix
from refmoe.ptx.observe.kernel_profile import KernelProfile
from refmoe.ptx.observe.profile_view import text_of
from refmoe.ptx.text.syntax import Instruction

Array = Any
_WARP = 32


@dataclass
class Profile:
    """Counts; give it to `refmoe.ptx.launch`, or to several. A launch that fails leaves what came before.

    Attributes:
        kernels: what was counted, a kernel each, in the order of their first launches.
    """

    kernels: list[KernelProfile] = field(default_factory=list)
    _now: KernelProfile | None = field(default=None, repr=False)

    @property
    def view(self) -> View:
        """Memory is accessed in Python."""
        return _VIEW

    def mark(self) -> Callable[[], None]:
        """What forgets all that is counted from now on."""
        # Code is not counted with.
        kept = deepcopy(self.kernels, {id(each.code): each.code for each in self.kernels})

        def forget() -> None:
            self.kernels, self._now = deepcopy(kept, {id(each.code): each.code for each in kept}), None

        return forget

    def attach(self, launch: Launch) -> None:
        """A launch begins."""
        known = [each for each in self.kernels if each.code is launch.code]
        if not known:
            known = [KernelProfile(launch.name, launch.code.entry.name, launch.code)]
            self.kernels += known
        self._now = known[0]
        self._now.launches += 1
        self._now.blocks, self._now.threads = launch.grid.size, launch.block

    def step(self, place: int, frame: Frame) -> None:
        """The lanes of a frame run block `place`."""
        assert self._now is not None
        self._now.step(place, frame)

    def at(self, frame: Frame, instruction: Instruction) -> None:
        """Nothing is asked of single instructions."""

    def accessed(self, access: Access, lanes: Array, address: Array) -> None:
        """`lanes` [n] accessed `address` uint64 [n]."""
        assert self._now is not None
        self._now.accessed(access.instruction, access.space, access.width, lanes, address)

    def to_dict(self) -> dict[str, Any]:
        """The counts as JSON has them. Equal launches give equal counts: nothing in them is measured."""
        return {"kernels": [kernel.to_dict() for kernel in self.kernels]}

    def json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=1) + "\n"

    def text(self, top: int = 10) -> str:
        """Tables for people: of each the `top` rows that count most."""
        return "\n".join(text_of(kernel, top) for kernel in self.kernels)


# What takes the place of accesses in generated code


@dataclass(frozen=True)
class _Seen:
    """A load, a store or an atomic that is counted when it is done."""

    work: Load | Store | Atomic

    def __call__(self, frame: Frame, address: Array, guard: Array | None, *rest: Any) -> Any:
        _, lanes, chosen = frame.select(address, guard)
        result: Any = self.work(frame, address, guard, *rest)
        _profile(frame).accessed(self.work, lanes, chosen)
        return result


@dataclass(frozen=True)
class _SeenMatrix:
    """`ldmatrix` or `stmatrix`: a lane passes the address of a row, the first lanes those of the first matrix."""

    work: LoadMatrix | StoreMatrix

    def __call__(self, frame: Frame, address: Array, *rest: Any) -> Any:
        _, lanes, chosen = frame.select(address, None)
        result: Any = self.work(frame, address, *rest)
        used = lanes % _WARP < self.work.addresses
        _profile(frame).accessed(self.work.row, lanes[used], chosen[used])
        return result


@dataclass(frozen=True)
class _SeenCopy:
    """`cp.async`: it reads device memory where it reads anything, and writes shared memory."""

    work: CopyAsync

    def __call__(self, frame: Frame, target: Array, source: Array, size: Array, guard: Array | None) -> None:
        where, lanes, to = frame.select(target, guard)
        _, _, origin = frame.select(source, guard)
        reads = frame.acting(where, size) > 0
        self.work(frame, target, source, size, guard)
        _profile(frame).accessed(self.work.target, lanes, to)
        _profile(frame).accessed(self.work.source, lanes[reads], origin[reads])


def _profile(frame: Frame) -> Profile:
    observer = observer_of(frame)
    assert isinstance(observer, Profile)
    return observer


def _seen(work: Any) -> Any:
    if isinstance(work, Load | Store | Atomic):
        return _Seen(work)
    if isinstance(work, LoadMatrix | StoreMatrix):
        return _SeenMatrix(work)
    return _SeenCopy(work) if isinstance(work, CopyAsync) else work


def _stays_native(instruction: Instruction) -> bool:
    stem, *parts = instruction.opcode.split(".")
    return stem not in ("ld", "st", "ldmatrix", "stmatrix") or "param" in parts


_VIEW = View("profile", _stays_native, False, _seen)
