"""One launch under several schedules: from the same memory, and with the same bytes at the end, or it is an error.

    with under_schedules(16):
        ...                                # every launch here runs under the schedules 0 to 15

Each of them begins with the memory that the launch was given. What is compared is every byte that a launch leaves
initialised in a buffer that it may write, which bytes those are, and the lines that it prints, in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from refmoe.errors import describe
from refmoe.ptx.arguments import Buffer, Written, WrittenBytes, bytes_of_mask, hand_over, parts_written, write_back
from refmoe.ptx.engine.cluster.meetings import ClusterMeetings
from refmoe.ptx.errors import ArgumentMismatch, Index3, PtxError, ScheduleError
from refmoe.ptx.schedule import Schedule
from refmoe.ptx.state.memory import Arena, Region
from refmoe.ptx.text.syntax import Instruction, in_source

Array = Any
_SHOWN = 2
# Those of launches that do not name any.
_AMBIENT: ContextVar[tuple[Schedule, ...]] = ContextVar("schedules", default=(Schedule(),))


@contextmanager
def under_schedules(schedules: int | str | Sequence[int | str | Schedule]) -> Iterator[None]:
    """Run this thread's launches in a `with` block under these schedules, unless a launch says otherwise.

    Args:
        schedules: see `schedules_of`.

    Raises:
        ArgumentMismatch: `schedules` names no schedule.
    """
    token = _AMBIENT.set(schedules_of(schedules))
    try:
        yield
    finally:
        _AMBIENT.reset(token)


def current_schedules() -> tuple[Schedule, ...]:
    """Those under which a launch runs that does not name any."""
    return _AMBIENT.get()


def schedules_of(value: int | str | Sequence[int | str | Schedule]) -> tuple[Schedule, ...]:
    """Schedules as people name them.

    >>> print(*schedules_of(3))
    schedule=0 schedule=1 schedule=2
    >>> print(*schedules_of("0,7"))
    schedule=0 schedule=7
    >>> print(*schedules_of("schedule=7"))
    schedule=7

    Args:
        value: how many there are, 0 and those that follow it; or their numbers.

    Raises:
        ArgumentMismatch: no schedule at all, one that is named twice, or something else.
    """
    numbers: Any = value
    if isinstance(value, str):
        words = value.split(",")
        numbers = int(words[0]) if len(words) == 1 and words[0].isascii() and words[0].isdecimal() else words
    if isinstance(numbers, int) and not isinstance(numbers, bool):
        numbers = range(numbers)
    try:
        found = tuple(map(Schedule.of, numbers))
    except TypeError:
        found = ()
    if not found or len(set(found)) != len(found):
        raise ArgumentMismatch(f"schedules {describe(value)}: at least one needed, a count as 16 or numbers as 0,7")
    return found


def named(schedules: Sequence[Schedule]) -> str:
    """Schedules in a form that `schedules_of` takes: `16`, `0,7` or `schedule=7`."""
    numbers = [schedule.number for schedule in schedules]
    if numbers == list(range(len(numbers))):
        return str(len(numbers))
    return ",".join(map(str, numbers)) if len(numbers) > 1 else str(schedules[0])


def asked(
    schedule: int | str | Schedule | None, schedules: int | str | Sequence[int | str | Schedule] | None
) -> tuple[Schedule, ...]:
    """The schedules of a launch that was given one, or several, or neither.

    Raises:
        ArgumentMismatch: it was given both, or something else.
    """
    if schedule is None:
        return current_schedules() if schedules is None else schedules_of(schedules)
    if schedules is not None:
        raise ArgumentMismatch(f"schedule {describe(schedule)} and schedules {describe(schedules)}: one of both needed")
    return (Schedule.of(schedule),)


def that_show(error: PtxError) -> tuple[Schedule, ...]:
    """The schedules under which a launch shows an error again."""
    both = error.schedules if isinstance(error, ScheduleError) else (error.schedule,)
    return tuple(map(Schedule, both))


class Attached(Protocol):
    """What looks at a launch's memory while it runs."""

    def attach(self, arena: Arena) -> None:
        """A launch begins."""
        ...


@dataclass
class Ran:
    """A launch that ended well, and whose bytes have not been given to the caller yet.

    Attributes:
        arena: its memory.
        bound: the caller's buffers, and where they lay.
        printed: what it printed, as one piece a call of `printf`.
        observed: whether somebody may go on looking at its memory.
        meetings: how often threads came to the barrier of their cluster, or None where nobody has.
    """

    arena: Arena
    bound: list[tuple[Buffer, Region]]
    printed: tuple[bytes, ...]
    observed: bool
    meetings: ClusterMeetings | None = None

    def keep(self) -> None:
        """Give its bytes to the caller."""
        for buffer, region in self.bound:
            if buffer.writable:
                if self.observed:
                    write_back(buffer, parts_written(buffer, region))
                else:
                    hand_over(buffer, region)
        if not self.observed:
            self.arena.release()

    def take_back(self) -> None:
        """Leave the caller's arrays as they were."""
        self.arena.restore()
        if not self.observed:
            self.arena.release()


# Runs a launch under a schedule, with somebody who looks at its memory; None for whom the caller named.
Run = Callable[[Schedule, "LastWrites | None"], Ran]
# For each of a launch's buffers its parts, by their first bytes.
Outputs = dict[int, list[Written]]


def run_all(run: Run, schedules: Sequence[Schedule]) -> None:
    """Run a launch under schedules, and give the caller the bytes that it leaves under all of them.

    Args:
        run: does it; it raises what goes wrong, and then memory is as it was.
        schedules: the one whose bytes the caller gets, and others.

    Raises:
        ScheduleError: two schedules differ in a byte or in a printed line, and nothing goes wrong under any.
        PtxError: what went wrong under one of them. It comes before a difference, which it mostly is the cause of.
    """
    first, *others = schedules
    told: _Told | None = None
    try:
        ran = run(first, None)
    except PtxError as error:
        raise under(error, first) from None
    expected, printed = _taken(ran), Counter(ran.printed)
    for number, schedule in enumerate(others, 1):
        try:
            other = run(schedule, None)
        except PtxError as error:
            raise under(error, schedule, schedules[:number], "" if told is None else told.sentence) from None
        found = _taken(other)
        if told is None:
            told = _told(run, ran, (first, schedule), (expected, found), (printed, Counter(other.printed)))
    if told is not None:
        raise told.error()
    for number, parts in expected.items():
        write_back(ran.bound[number][0], parts)


def agree(run: Callable[[Schedule], Ran | None], schedules: Sequence[Schedule]) -> tuple[bool, int]:
    """Whether a launch leaves the same bytes, and prints the same lines, under all of some schedules; it leaves none.

    Args:
        run: does it; None where it does not end, of which nothing follows.
        schedules: so.

    Returns:
        that, and under how many it ended.

    Raises:
        PtxError: what went wrong under one of them.
    """
    held: tuple[Outputs, Counter[bytes]] | None = None
    same, ended = True, 0
    # Bytes that differ are no end: what went wrong under a later one is worse.
    for schedule in schedules:
        ran = run(schedule)
        if ran is None:
            continue
        ended += 1
        found, printed = _taken(ran), Counter(ran.printed)
        if held is None:
            held = found, printed
        elif same:
            same = _difference(ran.bound, held[0], found) is None and printed == held[1]
    return same, ended


@dataclass(frozen=True)
class _Told:
    """A difference between two schedules.

    Attributes:
        sentence: that there is one, in short.
        error: makes the error, for which both schedules are run once more.
    """

    sentence: str
    error: Callable[[], ScheduleError]


def _told(
    run: Run,
    ran: Ran,
    pair: tuple[Schedule, Schedule],
    outputs: tuple[Outputs, Outputs],
    printed: tuple[Counter[bytes], Counter[bytes]],
) -> _Told | None:
    """The difference between two schedules in their bytes, or else in their lines."""
    difference = _difference(ran.bound, *outputs)
    if difference is not None:
        name = ran.bound[difference.number][0].name
        place = f"byte {difference.offset} of {name}"
        return _Told(_differ(place, pair), lambda: _error(run, ran, pair, outputs, difference))
    if printed[0] != printed[1]:
        return _Told(_differ("what it prints", pair), lambda: _printed_error(pair, *printed))
    return None


def _differ(what: str, pair: tuple[Schedule, Schedule]) -> str:
    return f"the result depends on the schedule, too: {what} differs between {pair[0]} and {pair[1]}"


def under(error: PtxError, schedule: Schedule, clean: Sequence[Schedule] = (), differs: str = "") -> PtxError:
    """An error that happened under a schedule.

    Args:
        error: what happened.
        schedule: under which.
        clean: those under which the launch ended well before.
        differs: that two of these differ.
    """
    if isinstance(error, ArgumentMismatch) or (schedule.default and not clean):
        return error
    but = f", while it ends well under {', '.join(map(str, clean[:_SHOWN]))}" if clean else ""
    but += f" and {len(clean) - _SHOWN} more" if len(clean) > _SHOWN else ""
    but += f"; {differs}" if differs else ""
    told = error.under(schedule.number, f"under {schedule}{but}; repro: {schedule}")
    return told.with_traceback(error.__traceback__)


def _taken(ran: Ran) -> Outputs:
    """Copies of what a launch wrote; the caller's arrays are as they were."""
    outputs = {}
    for number, (buffer, region) in enumerate(ran.bound):
        if buffer.writable:
            outputs[number] = [
                Written(part.begin, part.data.copy(), part.first, None if part.valid is None else part.valid.copy())
                for part in parts_written(buffer, region)
            ]  # fmt: skip
    ran.take_back()
    return outputs


@dataclass(frozen=True)
class _Difference:
    """Where two schedules differ.

    Attributes:
        number: of the first buffer among those that are bound.
        offset: of the first byte there.
        count: bytes of all buffers.
    """

    number: int
    offset: int
    count: int


def _difference(bound: list[tuple[Buffer, Region]], expected: Outputs, found: Outputs) -> _Difference | None:
    first: tuple[int, int] | None = None
    count = 0
    for number, parts in expected.items():
        buffer, region = bound[number]
        if not region.compared:
            continue
        for begin, end in _runs([(part.begin, part.end) for part in (*parts, *found[number])]):
            differs = _bytes_that_differ(buffer, begin, end, parts, found[number])
            if differs.any():
                count += int(np.count_nonzero(differs))
                first = first or (number, begin + int(np.argmax(differs)))
    return None if first is None else _Difference(*first, count)


def _bytes_that_differ(buffer: Buffer, begin: int, end: int, one: list[Written], other: list[Written]) -> Array:
    data, valid = _state(buffer, begin, end, one)
    others_data, others_valid = _state(buffer, begin, end, other)
    return (valid != others_valid) | (valid & (data != others_data))


def _runs(parts: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Ranges that cover all of `parts`, in order, without an overlap."""
    reached = 0
    for begin, end in sorted(parts):
        if end > reached:
            yield max(begin, reached), end
            reached = end


def _state(buffer: Buffer, begin: int, end: int, parts: list[Written]) -> tuple[Array, Array]:
    """(uint8 [n], bool [n]): bytes of a buffer, whose array is as before the launch, and which are initialised."""
    data = buffer.array.reshape(-1).view(np.uint8)[begin:end].copy()
    size = buffer.array.itemsize
    mask = buffer.initialised
    if isinstance(mask, WrittenBytes):
        valid = mask.mask(begin, end)
    elif isinstance(mask, np.ndarray):
        first, last = begin // size, -(-end // size)
        of_bytes = bytes_of_mask(mask.reshape(-1)[first:last], size)
        valid = of_bytes[begin - first * size : end - first * size] != 0
    else:
        valid = np.full(end - begin, mask)
    for part in parts:
        low, high = max(begin, part.begin), min(end, part.end)
        if low >= high:
            continue
        data[low - begin : high - begin] = part.data[low - part.begin : high - part.begin]
        if part.valid is not None:
            origin = part.first * size
            valid[low - begin : high - begin] = part.valid.reshape(-1)[low - origin : high - origin] != 0
    return data, valid


class LastWrites:
    """Who wrote some bytes of a buffer last.

    Attributes:
        number: of the buffer's region in the arena.
        begin, size: its bytes.
        writer: in words, or None where nobody did.
        span: (first byte, size) of what was written then.
    """

    def __init__(self, number: int, begin: int, size: int) -> None:
        self.number, self.begin, self.size = number, begin, size
        self.writer: str | None = None
        self.span: tuple[int, int] | None = None

    def attach(self, arena: Arena) -> None:
        """A launch begins."""
        arena.regions[self.number].watch = self

    def wrote(
        self,
        step: int,
        place_of: Callable[[int], tuple[Index3, Index3]],
        instruction: Instruction,
        region: Region,
        index: Array,
        width: int,
        lanes: Array,
    ) -> None:
        """See `refmoe.ptx.state.memory.Watching`."""
        hits = np.flatnonzero((index < self.begin + self.size) & (index + width > self.begin))
        if hits.size:
            block, thread = place_of(int(lanes[hits[-1]]))
            source = in_source(instruction.source, instruction.callers)
            text = instruction.text.rstrip(";")
            self.span = int(index[hits[-1]]), width
            self.writer = f"block {block} thread {thread}, line {instruction.line}{source}: {text}"


def _error(
    run: Run, ran: Ran, pair: tuple[Schedule, Schedule], outputs: tuple[Outputs, Outputs], difference: _Difference
) -> ScheduleError:
    buffer, region = ran.bound[difference.number]
    name, kind = buffer.name, buffer.array.dtype
    number = next(i for i, each in enumerate(ran.arena.regions) if each is region)
    begin, size = difference.offset // kind.itemsize * kind.itemsize, kind.itemsize
    writers = []
    for schedule in pair:
        # Runs are reproducible: who wrote what is asked for only where it matters.
        looking = LastWrites(number, begin, size)
        run(schedule, looking).take_back()
        writers.append(looking)
    spans = [each.span for each in writers if each.span is not None]
    if size == 1 and spans:
        # Of bytes that are just bytes, those that were written together belong together.
        begin, size = spans[0]
    values = []
    for parts in outputs:
        data, valid = _state(buffer, begin, begin + size, parts[difference.number])
        values.append(data.tobytes() if valid.all() else None)
    said = [
        f"{schedule} gives {_value(value, kind)}, written by {each.writer or 'nobody'}"
        for schedule, value, each in zip(pair, values, writers, strict=True)
    ]
    return ScheduleError(
        f"the result depends on the schedule: byte {difference.offset} of {name}: {'; '.join(said)}; "
        f"{difference.count} {'byte differs' if difference.count == 1 else 'bytes differ'}; "
        f"repro: schedules={named(pair)}",
        buffer=name,
        offset=difference.offset,
        count=difference.count,
        schedules=(pair[0].number, pair[1].number),
        schedule=pair[1].number,
        values=(values[0], values[1]),
        writers=(writers[0].writer, writers[1].writer),
    )


def _value(value: bytes | None, kind: np.dtype[Any]) -> str:
    if value is None:
        return "nothing initialised"
    if kind.kind in "iuf" and 1 < kind.itemsize == len(value):
        return f"{np.frombuffer(value, kind)[0]} (bytes {value.hex(' ')})"
    return f"{'byte' if len(value) == 1 else 'bytes'} {value.hex(' ')}"


def _printed_error(pair: tuple[Schedule, Schedule], one: Counter[bytes], other: Counter[bytes]) -> ScheduleError:
    missing, more = list((one - other).elements()), list((other - one).elements())
    values = (missing[0] if missing else None, more[0] if more else None)
    said = [
        f"{schedule} alone prints {value.decode(errors='replace')!r}"
        for schedule, value in zip(pair, values, strict=True)
        if value is not None
    ]
    count = max(len(missing), len(more))
    return ScheduleError(
        f"the result depends on the schedule: {'; '.join(said)}; {count} "
        f"{'line differs' if count == 1 else 'lines differ'}; repro: schedules={named(pair)}",
        buffer=None,
        offset=None,
        count=count,
        schedules=(pair[0].number, pair[1].number),
        schedule=pair[1].number,
        values=values,
        writers=(None, None),
    )
