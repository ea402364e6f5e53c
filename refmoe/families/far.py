"""Cases that lie behind 2^31 elements, bytes or pieces of a buffer, where an index in 32 bits is another address.

Such a case is an ordinary one whose rows, or experts, lie behind so many others, of which nobody asks anything. What
lies in front is memory that was never touched, so it costs nothing: a page of it becomes resident when a kernel writes
it. On the executor only the CTAs of the case's own rows run. Data and expectation are the ordinary case's. A kernel
whose index is too narrow writes elsewhere, and what it had to write stays poison; or it leaves the buffer, a
MemoryFault.

What the host code refuses it refuses by the ordinary case's sizes, so a case has to stay within those limits itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from refmoe.families.case import number, refused
from refmoe.families.family import Case
from refmoe.reference.layout import EXPERT_ROW_ALIGNMENT

if TYPE_CHECKING:
    from refmoe.cuda.device import Device, LaunchRecord
    from refmoe.cuda.launch import LaunchPlan

#: Rows, and experts, that lie in front of the case's own in every buffer that has some of each.
ROWS_BEFORE = number("rows_before", launch=True)
EXPERTS_BEFORE = number("experts_before", launch=True)

Values = NDArray[Any]


@dataclass(frozen=True)
class Layout:
    """Where a launch's buffers have rows, or experts.

    Attributes:
        bytes_before: by buffer the bytes that lie in front of the case's own.
        counts: what is added to the plan's numbers, by their places among them.
        values: by buffer of integers what they become.
        absent: the int32 maps that hold -1, no row, for what lies in front.
        tiles_before: where a CTA takes tiles from its own number on, those in front; None where it takes rows.
        shares: whether a CTA takes consecutive rows, and not every row that is a grid further.
    """

    bytes_before: Mapping[str, int]
    counts: Mapping[int, int] = field(default_factory=dict)
    values: Mapping[str, Callable[[Values], Values]] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    tiles_before: int | None = None
    shares: bool = False


def of_rows(case: Case, row_bytes: Mapping[str, int], **more: Any) -> Layout:
    """The layout of a launch whose first number counts rows; `row_bytes` are those of a row, by buffer."""
    before = int(case.rows_before)
    return Layout({name: before * size for name, size in row_bytes.items()}, {0: before}, **more)


def behind(offsets: Values, rows: int) -> Values:
    """First rows of experts, and the rows in use, of which the first expert has `rows` more in front."""
    return offsets + np.where(np.arange(offsets.size) == 0, 0, rows)


@dataclass
class FarDevice:
    """An executor on which buffers are longer in front than the host code knows.

    Attributes:
        inner: the executor that runs the launch.
        layout: what moves.
        rows: of the case.
        rows_before: what lies in front of them.
        name, arch, multiprocessors, launches: the executor's.
    """

    inner: Device
    layout: Layout
    rows: int
    rows_before: int
    name: str = field(init=False)
    arch: str = field(init=False)
    multiprocessors: int = field(init=False)
    launches: list[LaunchRecord] = field(init=False)
    _maps: dict[str, Values] = field(default_factory=dict)

    def __post_init__(self) -> None:
        inner = self.inner
        self.name, self.arch, self.multiprocessors = inner.name, inner.arch, inner.multiprocessors
        self.launches = inner.launches

    def upload(self, name: str, array: Values) -> Any:
        """See `refmoe.cuda.device.Device`; untouched bytes in front."""
        if name in self.layout.values:
            array = self.layout.values[name](array)
        front = self.layout.bytes_before.get(name, 0)
        if not front:
            return self.inner.upload(name, array)
        own = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        whole = _untouched(front + own.size)
        whole[front:] = own
        if name in self.layout.absent:
            self._maps[name] = whole.view(np.int32)
        return self.inner.upload(name, whole)

    def output(self, name: str, shape: tuple[int, ...], fill: int, *, initialised: bool = False) -> Any:
        """See `refmoe.cuda.device.Device`; `fill` is in the case's own bytes alone."""
        from refmoe import ptx

        size = int(np.prod(shape))
        whole = _untouched(self.layout.bytes_before.get(name, 0) + size)
        whole[whole.size - size :] = fill
        return _Tail(ptx.Buffer(whole, name=name, initialised=initialised), shape)

    def launch(self, plan: LaunchPlan) -> None:
        """Run the CTAs of the case's own rows."""
        from refmoe.ptx.state.records import MAX_THREADS

        arguments = [self._whole(each) for each in plan.arguments]
        numbers = [place for place, each in enumerate(arguments) if isinstance(each, int)]
        for place, more in self.layout.counts.items():
            arguments[numbers[place]] += more
        before, own = self.layout.tiles_before, plan.grid
        if before is None:
            before, own = self.rows_before, self.rows
        grid = min(before + own, MAX_THREADS // plan.block)
        if self.layout.shares:
            share = -(-(before + own) // grid)
            # Rows that no expert has are not shared out: with fewer rows the same one is in a CTA further on.
            blocks = np.arange(before // share, min((before + own) // share + 1, grid - 1) + 1)
            passed = (blocks[:, None] * share + np.arange(share)).reshape(-1)
        else:
            blocks = np.unique(np.arange(before, before + own) % grid)
            # These CTAs come by others in front on their way.
            passed = (blocks[:, None] + np.arange(0, before + grid, grid)).reshape(-1)
        for rows in self._maps.values():
            rows[passed[passed < before]] = -1
        changes: dict[str, Any] = {"grid": grid, "blocks": tuple(blocks.tolist()), "arguments": tuple(arguments)}
        self.inner.launch(dataclasses.replace(plan, **changes))

    def _whole(self, argument: Any) -> Any:
        """An argument as the longer buffers have it: a buffer itself, and a tensor map of more rows."""
        from refmoe.cuda.launch import MatrixMap

        if isinstance(argument, _Tail):
            return argument.whole
        if isinstance(argument, MatrixMap):
            buffer = self._whole(argument.buffer)
            front = self.layout.bytes_before.get(buffer.name, 0) // argument.row_bytes
            return dataclasses.replace(argument, buffer=buffer, rows=argument.rows + front)
        return argument

    def download(self, buffer: Any) -> Values:
        """The case's own bytes of an output."""
        size = int(np.prod(buffer.shape))
        whole = buffer.whole.array
        return np.asarray(whole[whole.size - size :].reshape(buffer.shape))


class FirstFarDevice(FarDevice):
    """The same for two launches, of which the second, a programmatic one, takes the case's own rows alone.

    In front of them nobody has chosen anything that it could sort.
    """

    def launch(self, plan: LaunchPlan) -> None:
        """The first launch as any; for the second what the first one wrote behind the rows in front."""
        if not plan.programmatic:
            super().launch(plan)
            return
        arguments = tuple(self._own(each) if isinstance(each, _Tail) else each for each in plan.arguments)
        self.inner.launch(dataclasses.replace(plan, arguments=arguments))

    @staticmethod
    def _own(tail: _Tail) -> Any:
        from refmoe import ptx

        whole, size = tail.whole, int(np.prod(tail.shape))
        if whole.array.size == size:
            return whole
        own = whole.array[whole.array.size - size :].copy()
        return ptx.Buffer(own, name=whole.name, initialised=True, writable=False)


@dataclass(frozen=True)
class _Tail:
    """An output with bytes in front, and the shape of those behind them."""

    whole: Any
    shape: tuple[int, ...]


def _untouched(size: int) -> Values:
    from refmoe.ptx.state.pages import untouched

    return np.asarray(untouched((size,)))


def far_device(case: Case, device: Device, layout: Layout, kind: type[FarDevice] = FarDevice) -> Device:
    """The device for a case that lies behind others, of that kind; the device itself for any other case."""
    if not case.get("rows_before", 0) and not case.get("experts_before", 0):
        return device
    return kind(device, layout, case.shape.m, int(case.get("rows_before", 0)))


def lacks_memory(case: Case, arch: str) -> str | None:
    """Why a GPU does not run a case that lies behind others: it would compute all of it."""
    far = case.get("rows_before", 0) or case.get("experts_before", 0)
    if far and case.device != "ptx":
        return "what lies in front of the case's rows costs nothing on the executor alone, which leaves it out"
    return None


def check_before(case: Case) -> None:
    """Refuse numbers that are no whole atoms of the scale layouts, and more than one choice a token.

    Raises:
        ArgumentError: either.
    """
    for name in ("rows_before", "experts_before"):
        if int(case.get(name, 0)) % EXPERT_ROW_ALIGNMENT:
            raise refused(name, str(case.get(name)), f"a multiple of {EXPERT_ROW_ALIGNMENT}")
    if case.get("rows_before", 0) and case.shape.t > 1:
        raise refused("rows_before", str(case.get("rows_before")), "t1 with it: ranks would lie between its rows")
