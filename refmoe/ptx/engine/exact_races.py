"""Races in a region of which everything is kept: slow, and without suspicion.

`RaceShadow` may suspect a race where one record stands for several threads. A launch that runs again keeps here, of
each byte, the accesses of every thread that are not known to be followed by another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.order.accessing import Accessing
from refmoe.ptx.engine.order.clocks import LANES
from refmoe.ptx.engine.order.racing_reads import RacingReads
from refmoe.ptx.engine.races import RaceShadow
from refmoe.ptx.native.context import Row
from refmoe.ptx.state.memory import Region
from refmoe.ptx.state.pages import PAGE
from refmoe.ptx.state.records import ASYNCHRONOUS, BULK, GRID, STRENGTH, STRENGTH_SHIFT, STRENGTHS, THREAD, WEAK, never

Array = Any
# Thread, kind of agent and strength of an access, its first byte and its width.
Who = tuple[int, int, int, int, int]
Kind = Literal["read", "write", "atomic"]
# First byte of one that combines elements, each by itself: its width is that of an element. It is of another proxy than
# atomics, with which it is never morally strong.
_BY_ELEMENTS = -1
# An access: its first byte, its lane and its record.
Made = tuple[int, int, int]
_AGENTS = int(ASYNCHRONOUS | BULK)
_STRENGTH, _THREAD = int(STRENGTH), int(THREAD)
# In the place of the agent of a read that may happen at any time: no copy's, and its thread's plain accesses neither.
_NEVER = -1
# What of the records of a thread's copies is the same while they are under way.
_COPY = _THREAD | _AGENTS
# Accesses from which on all are asked for at once.
_FEW = 4
# Accesses that are asked for ahead, for all lanes of a step together.
_AHEAD = 64
# Accesses that a byte has before those are looked for that need not be kept.
_MANY = 16


class _Held(dict[Who, int]):
    """Records by who made the access. `groups` has them apart by strength, first byte and width.

    Thousands of atomics of one counter are one group. None of them races with one more, which needs no look at each.
    """

    def __init__(self, of: Mapping[Who, int] = MappingProxyType({})) -> None:
        super().__init__()
        self.groups: dict[tuple[int, int, int], dict[Who, int]] = {}
        for who, record in of.items():
            self[who] = record

    def __setitem__(self, who: Who, record: int) -> None:
        super().__setitem__(who, record)
        self.groups.setdefault(who[2:], {})[who] = record

    def __delitem__(self, who: Who) -> None:
        super().__delitem__(who)
        del self.groups[who[2:]][who]

    def clear(self) -> None:
        super().clear()
        self.groups.clear()


@dataclass(slots=True)
class _Place:
    """The last record of each that wrote or read some neighbouring bytes, which nobody has told apart so far.

    Attributes:
        begin, width: the bytes.
        writes, reads: by who did it.
        under_way: of copies that will be complete, how many are not, by whether they write and by what the records of
            all of one lane, or of one barrier in memory, have.
        most_writes, most_reads: so many are kept before those are dropped that need not be: twice as many as the last
            time were left, so that each is looked at few times, however many threads there are.
    """

    begin: int
    width: int
    writes: _Held = field(default_factory=_Held)
    reads: _Held = field(default_factory=_Held)
    under_way: Counter[tuple[bool, int]] = field(default_factory=Counter)
    most_writes: int = _MANY
    most_reads: int = _MANY

    def of(self, byte: int) -> _Place:
        """One of its bytes, as a place of its own."""
        apart = _Held(self.writes), _Held(self.reads)
        return replace(self, begin=byte, width=1, writes=apart[0], reads=apart[1], under_way=Counter(self.under_way))

    def issue(self, writes: bool, record: int) -> None:
        """A copy has that record until it is complete."""
        self.under_way[writes, record & _COPY] += 1

    def complete(self, writes: bool, record: int, whose: list[Who], after: int) -> None:
        """A copy of that record is complete: what it did, `whose`, has the record `after`."""
        table, copies = self.writes if writes else self.reads, (writes, record & _COPY)
        self.under_way[copies] -= 1
        others = self.under_way[copies] > 0
        if not others:
            del self.under_way[copies]
        for who in whose:
            own = _owned(who, after)
            if not others:
                del table[who]
            elif own == who:
                # Both have one place in the table: that of the copy under way stays.
                continue
            table[own] = after


class _Chain:
    """The last strong write of a location, and the atomics that followed it without another write in between.

    Whoever observes one of them, by reading from it or from an atomic behind it, and whatever comes after that, comes
    after the write itself (PTX ISA, "Causality order": observation before base causality). A `red` tells its thread
    nothing of what it found: it might as well have come first, and what its thread does then comes after nothing.

    Attributes:
        writes: records, each but the first of an atomic that observed the one before.
        readers: (how many of the writes were there, record) of strong loads, and of atomics that are no `red`.
    """

    def __init__(self, writes: list[int]) -> None:
        self.writes = writes
        self.readers: list[tuple[int, int]] = []

    def observers(self, record: int) -> list[int]:
        """Records of those who observed a write."""
        if record not in self.writes:
            return []
        place = self.writes.index(record)
        return [reader for count, reader in self.readers if count > place]


class _Known(dict[int, bool]):
    """By record, whether it is known to come before what a lane does now; asked once for all bytes of an access."""

    def __init__(self, ordered: Callable[[list[int]], list[bool]]) -> None:
        super().__init__()
        self._ordered = ordered

    def __missing__(self, record: int) -> bool:
        self.ask([record])
        return self[record]

    def ask(self, records: Iterable[int]) -> None:
        """Ask for many in one call, which costs hardly more than one."""
        missing = [record for record in records if record not in self]
        if missing:
            self.update(zip(missing, self._ordered(missing), strict=True))

    def of(self, records: list[int]) -> list[bool]:
        """Of each record, whether it is known to come before."""
        self.ask(records)
        return [self[record] for record in records]


def _owned(who: Who, record: int) -> Who:
    """The access of a place by who is in a record."""
    return (record & _THREAD, record & _AGENTS, *who[2:])


def _who(record: int, begin: int, width: int) -> Who:
    return record & _THREAD, record & _AGENTS, (record & _STRENGTH) >> STRENGTH_SHIFT, begin, width


class ExactShadow(RaceShadow):
    """Every access of a region that may still race.

    Args:
        size: bytes.
        readers, columns: see `RaceShadow`.
    """

    def __init__(self, size: int, readers: int, columns: int | None = None) -> None:
        super().__init__(size, readers, columns)
        self._places: dict[int, _Place] = {}
        self._chains: dict[tuple[int, int], _Chain] = {}

    def enter(self, row: Array) -> None:
        """See `RaceShadow.enter`: for native code the region has no bytes, so that Python does every access."""
        super().enter(row)
        row[Row.SIZE] = 0

    def _places_of(self, begin: int, width: int) -> list[_Place]:
        """The places of the bytes of an access, which share none with other bytes."""
        places, end = self._places, begin + width
        first = places.get(begin)
        if first is not None and first.begin == begin and first.width == width:
            return [first]
        found = list({id(each): each for each in map(places.get, range(begin, end)) if each is not None}.values())
        if not found:
            new = _Place(begin, width)
            places.update(dict.fromkeys(range(begin, end), new))
            return [new]
        for each in found:
            if each.begin < begin or each.begin + each.width > end:
                places.update({byte: each.of(byte) for byte in range(each.begin, each.begin + each.width)})
        for byte in range(begin, end):
            if byte not in places:
                places[byte] = _Place(byte, 1)
        return list({id(each): each for each in map(places.__getitem__, range(begin, end))}.values())

    def _not_excused(self, frame: Frame, held: _Held, mine: Who, record: int) -> Iterator[tuple[Who, int]]:
        """Those of `held` that race with an access unless they come before it."""
        for (strength, begin, width), group in held.groups.items():
            # Elements of one width that have a byte in common are the same: they lie at multiples of it.
            alike = (begin, width) == mine[3:]
            if alike and min(strength, mine[2]) >= GRID:
                continue
            for who, other in group.items():
                if (who[0] != mine[0] or who[1]) and not (alike and self._excused(frame, other, record)):
                    yield who, other

    def _conflict(self, frame: Frame, held: _Held, lane: int, mine: Who, record: int, known: _Known) -> int | None:
        """A record of `held` that races with an access."""
        if not held:
            return None
        left, count = self._not_excused(frame, held, mine, record), _AHEAD
        # Where one races, nobody looks at the thousands behind it.
        while asked := list(islice(left, count)):
            if len(asked) > _FEW:
                known.ask([other for _, other in asked])
            for who, other in asked:
                if not known[other] and not self._observed(frame, who, other, lane, mine[0]):
                    return other
            count *= 2
        return None

    def _excused(self, frame: Frame, one: int, other: int) -> bool:
        """Whether the accesses of two records are morally strong: `races.excused` of records of one thread each."""
        strength = min(one & _STRENGTH, other & _STRENGTH) >> STRENGTH_SHIFT
        if not 0 < strength < GRID:
            return strength >= GRID
        per_cta, per_cluster = frame.machine.warps * LANES, frame.machine.clocks.warps * LANES
        first, second = one & _THREAD, other & _THREAD
        if first // per_cta == second // per_cta:
            return strength >= STRENGTHS["cta"]
        if first // per_cluster == second // per_cluster:
            return strength >= STRENGTHS["cluster"]
        return False

    def _observed(self, frame: Frame, who: Who, record: int, lane: int, thread: int) -> bool:
        """Whether a strong write was observed before what a lane does now."""
        chain = self._chains.get(who[3:]) if who[2] else None
        if chain is None:
            return False
        return any(
            reader & _THREAD == thread or self._ordered(frame, lane, reader) for reader in chain.observers(record)
        )

    def _note(self, frame: Frame, place: tuple[int, int], record: int, kind: Kind, observes: bool) -> None:
        """An access joins the chain of its location, begins another one, or ends it."""
        if not record & _STRENGTH:
            if kind != "read":
                self._chains.pop(place, None)
            return
        chain = self._chains.get(place)
        if chain is not None and kind != "write" and self._excused(frame, chain.writes[-1], record):
            if kind == "read" or observes:
                chain.readers.append((len(chain.writes), record))
            if kind != "read":
                chain.writes.append(record)
        elif kind != "read":
            self._chains[place] = _Chain([record])

    def _all_ordered(self, frame: Frame, lane: int, records: list[int]) -> list[bool]:
        """`_ordered` of many records."""
        asked = np.array(records, np.int64)
        found: list[bool] = frame.machine.clocks.ordered(np.full(len(records), lane), asked).tolist()
        return found

    def _drop_ordered(self, held: _Held, strength: int, known: _Known) -> int:
        """Forget accesses that come before one of a lane, and race with nothing that this one does not race with.

        Returns:
            How many there may be before this is done again.
        """
        as_strong = {who: other for who, other in held.items() if who[2] >= strength}
        known.ask(as_strong.values())
        for who in [who for who, other in as_strong.items() if known[other]]:
            del held[who]
        return max(_MANY, 2 * len(held))

    def _all_known(self, frame: Frame, rows: Sequence[Made], width: int, verb: Kind) -> list[_Known]:
        """What each access of a step will first ask of those before the step, asked in one call for all of them."""
        known: list[_Known] = []
        lanes: list[int] = []
        records: list[int] = []
        for begin, lane, record in rows:
            mine = _who(record, begin, width)
            known.append(_Known(partial(self._all_ordered, frame, lane)))
            for place in self._places_of(begin, width):
                for held in (place.writes, place.reads) if verb != "read" else (place.writes,):
                    if not held:
                        continue
                    others = [other for _, other in islice(self._not_excused(frame, held, mine, record), _AHEAD)]
                    records += others
                    lanes += [len(known) - 1] * len(others)
        if records:
            asked = np.array([lane for _, lane, _ in rows])[lanes]
            found = frame.machine.clocks.ordered(asked, np.array(records, np.int64)).tolist()
            for number, record, ordered in zip(lanes, records, found, strict=True):
                known[number][record] = ordered
        return known

    def _access(
        self, frame: Frame, access: Accessing, region: Region, row: Made, width: int, known: _Known, verb: Kind,
        same: bool,
    ) -> None:  # fmt: skip
        """One access of `width` bytes."""
        begin, _, record = row
        mine = _who(record, begin, width)
        for held in self._places_of(begin, width):
            found = self._refuse(frame, access, region, held, row, mine, known, verb != "read", same)
            self._enter(held, mine, record, known, verb, not found)
        self._note(frame, (begin, width), record, verb, access.observes)

    def _enter(self, held: _Place, mine: Who, record: int, known: _Known, verb: Kind, alone: bool) -> None:
        """Keep an access of a place; `alone`: a weak write comes after all that is kept of it."""
        strength = mine[2]
        if verb == "read":
            if len(held.reads) > held.most_reads:
                held.most_reads = self._drop_ordered(held.reads, strength, known)
            held.reads[mine] = record
            return
        if not strength and not mine[1] and alone:
            held.writes.clear()
            held.reads.clear()
        elif len(held.writes) > held.most_writes:
            held.most_writes = self._drop_ordered(held.writes, strength, known)
        held.writes[mine] = record

    def _write_together(
        self, frame: Frame, access: Accessing, region: Region, rows: Sequence[Made], known: Sequence[_Known],
        same: Sequence[bool],
    ) -> None:  # fmt: skip
        """Weak writes of one step: whether they race with what was there before. `after_write` holds them together."""
        width = access.width
        raced: set[int] = set()
        for row, knows, equal in zip(rows, known, same, strict=True):
            mine = _who(row[2], row[0], width)
            for held in self._places_of(row[0], width):
                if self._refuse(frame, access, region, held, row, mine, knows, True, equal):
                    raced.add(row[0])
        for row, knows in zip(rows, known, strict=True):
            for held in self._places_of(row[0], width):
                self._enter(held, _who(row[2], row[0], width), row[2], knows, "write", row[0] not in raced)
            raced.add(row[0])
            self._note(frame, (row[0], width), row[2], "write", access.observes)

    def _refuse(
        self, frame: Frame, access: Accessing, region: Region, held: _Place, row: Made, mine: Who, known: _Known,
        writes: bool, same: bool = False,
    ) -> bool:  # fmt: skip
        """Report what an access of a place races with; whether there is such an access."""
        _, lane, record = row
        found = self._conflict(frame, held.writes, lane, mine, record, known)
        kind = "write-write" if writes else "write-read"
        if found is None and writes:
            found = self._conflict(frame, held.reads, lane, mine, record, known)
            kind = "read-write"
        if found is not None:
            warning = "same value" if same else ""
            if not same and self._met_again(frame, access, region, held, row, found, kind, known):
                return True
            self._report(frame, access, region, held.begin, lane, found, kind, warning, record, held.width)
        return found is not None

    def _met_again(
        self, frame: Frame, access: Accessing, region: Region, held: _Place, row: Made, found: int, kind: str,
        known: _Known,
    ) -> bool:  # fmt: skip
        """Whether a race of an access with `found` is told as one that was met before."""
        _, lane, record = row
        if not isinstance(self.witness, RacingReads) or self.combined is not None:
            return False
        error = self.witness.like(kind, region.name, access.instruction)
        if error is None or self._poll(frame, access, lane, found, record, kind) is not None:
            return False
        byte = held.begin + frame.machine.first_cta * region.stride
        self.witness.met(error, byte, lane + frame.machine.first_thread, held.width, known.of)
        return True

    # Bulk copies, whose accesses have one record while they are under way, and another one afterwards

    def begin(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, records: Array, width: int,
        writes: bool, element: int = 0,
    ) -> None:  # fmt: skip
        """Copies of `lanes` [n] are issued that will access `width` bytes at `index` [n], as `records` [n].

        `element`: bytes of each of those that they combine by itself, 0 where they combine nothing.
        """
        first, agents = frame.machine.first_thread, int(ASYNCHRONOUS | BULK)
        rows = zip(index.tolist(), lanes.tolist(), records.tolist(), strict=True)
        for begin, lane, record in rows:
            own = _who(record, begin, width)
            if element:
                own = (*own[:3], _BY_ELEMENTS, element)
            known = _Known(partial(self._all_ordered, frame, lane))
            for held in self._places_of(begin, width):
                # What its thread did before comes before it.
                mine = (first + lane, own[1] & agents, *own[2:])
                self._refuse(frame, access, region, held, (begin, lane, record), mine, known, writes)
                (held.writes if writes else held.reads)[own] = record
                held.issue(writes, record)

    def put(self, index: Array, records: Array, width: int) -> None:
        """There are reads of `width` bytes at `index` [n] with `records` [n], which have been looked at."""
        for begin, record in zip(index.tolist(), records.tolist(), strict=True):
            for held in self._places_of(begin, width):
                held.reads[_who(record, begin, width)] = record

    def end(self, first: Array, span: int, before: Array, after: Array, writes: bool) -> None:
        """What copies of `span` bytes from `first` [n] on did as `before` [n] counts as `after` [n] from now on."""
        for begin, old, new in zip(first.tolist(), before.tolist(), after.tolist(), strict=True):
            found = map(self._places.get, range(begin, begin + span))
            for held in {id(each): each for each in found if each is not None}.values():
                table = held.writes if writes else held.reads
                whose = [who for who, record in table.items() if record == old]
                held.complete(writes, old, whose, new)

    def _is_certain(self, frame: Frame, lane: int, access: Accessing, record: int, mine: int, kind: str) -> bool:
        return True

    def _each(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, flags: np.int64,
        kind: Kind, same: Array | None = None,
    ) -> None:  # fmt: skip
        mine = self._mine(frame, lanes, flags)
        alike = np.zeros(len(index), bool) if same is None else same
        # Weak accesses race alike however they are cut.
        width = access.unit if access.strength else access.width
        each = np.arange(0, access.width, width)
        begins = (index[:, None] + each).ravel()
        rows = list(zip(begins.tolist(), *(np.repeat(of, len(each)).tolist() for of in (lanes, mine)), strict=True))
        known = self._all_known(frame, rows, width, kind)
        equals = np.repeat(alike, len(each)).tolist()
        if same is not None and not access.strength:
            self._write_together(frame, access, region, rows, known, equals)
        else:
            for row, knows, equal in zip(rows, known, equals, strict=True):
                self._access(frame, access, region, row, width, knows, kind, equal)
        if kind != "read":
            at, who = self._cover(index, lanes, access.width)
            self._writes[at] = self._mine(frame, who, flags)

    def _strength(self, access: Accessing) -> np.int64:
        flags: np.int64 = np.int64(access.strength << STRENGTH_SHIFT)
        return flags

    def read(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, asynchronous: bool = False
    ) -> None:
        """See `RaceShadow.read`."""
        self.note(frame, access, region, index, lanes, access.width, "read")
        if not access.coherent:
            self._read_non_coherent(frame, access, region, index, lanes)
            return
        flags = ASYNCHRONOUS if asynchronous else self._strength(access)
        self._each(frame, access, region, index, lanes, flags, "read")
        if asynchronous:
            self._issue(frame, access, index, lanes, writes=False)

    def copy(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, strong: bool = False,
        in_group: bool = False,
    ) -> None:  # fmt: skip
        """See `RaceShadow.copy`."""
        super().copy(frame, access, region, index, lanes, strong, in_group)
        if in_group:
            self._issue(frame, access, index, lanes, writes=True)

    def _issue(self, frame: Frame, access: Accessing, index: Array, lanes: Array, writes: bool) -> None:
        """Copies are issued for which `lanes` [n] will have `waited`."""
        mine = self._mine(frame, lanes, ASYNCHRONOUS)
        for begin, record in zip(index.tolist(), mine.tolist(), strict=True):
            for held in self._places_of(begin, access.width):
                held.issue(writes, record)

    def _read_non_coherent(self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array) -> None:
        mine = never(self._mine(frame, lanes, WEAK))
        for begin, lane, record in zip(index.tolist(), lanes.tolist(), mine.tolist(), strict=True):
            for held in self._places_of(begin, access.width):
                for other in held.writes.values():
                    self._report(frame, access, region, held.begin, lane, other, "non-coherent", "", record)
                held.reads[record & _THREAD, _NEVER, 0, begin, access.width] = record

    def before_write(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, words: Array
    ) -> None:
        """See `RaceShadow.before_write`."""
        self.note(frame, access, region, index, lanes, access.width, "write")
        same = region.words(access.width)[index // access.width] == words
        same = same if same.ndim == 1 else same.all(axis=1)
        self._each(frame, access, region, index, lanes, self._strength(access), "write", same)

    def _modify(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, flags: np.int64
    ) -> None:
        agents = flags & np.int64(_AGENTS)
        self._each(frame, access, region, index, lanes, agents | self._strength(access), "atomic")

    def _refuse_write(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, width: int, flags: np.int64,
        combines: bool = False,
    ) -> tuple[Array, Array]:  # fmt: skip
        self._each(frame, access, region, index, lanes, flags, "write")
        return self._cover(index, lanes, width)

    def mark(self, index: Array, width: int, records: Array) -> None:
        """See `RaceShadow.mark`: nothing is native here, and what was written is kept."""

    def waited(self, frame: Frame, access: Accessing, index: Array, lanes: Array) -> None:
        """See `RaceShadow.waited`."""
        super().waited(frame, access, index, lanes)
        mine = self._mine(frame, lanes, WEAK)
        for begin, record in zip(index.tolist(), mine.tolist(), strict=True):
            for held in self._places_of(begin, access.width):
                thread = record & _THREAD
                for writes, table in ((True, held.writes), (False, held.reads)):
                    if whose := [who for who in table if who[:2] == (thread, int(ASYNCHRONOUS))]:
                        held.complete(writes, thread | int(ASYNCHRONOUS), whose, record)

    def touched(self) -> Iterator[tuple[int, Array, Array]]:
        """See `RaceShadow.touched`."""
        pages: dict[int, Array] = {}
        for byte, held in self._places.items():
            of = pages.setdefault(byte // PAGE, np.zeros((2, PAGE), np.bool_))
            of[:, byte % PAGE] = bool(held.writes), bool(held.reads)
        for page, bytes_ in sorted(pages.items()):
            yield page, bytes_[0], bytes_[1]

    def every_write(self, at: Array, who: Array) -> tuple[Array, Array, Array]:
        """Of slots `at` [n], which lanes `who` [n] access: (slot, lane, record) of all writes that are kept.

        Of strong writes there may be several that nothing orders.
        """
        last = self.written(at)
        others = [
            (slot, lane, record)
            for slot, lane, newest in zip(at.tolist(), who.tolist(), last.tolist(), strict=True)
            if (place := self._places.get(self.granules.byte(slot))) is not None and len(place.writes) > 1
            for record in place.writes.values()
            if record != newest
        ]
        more = np.array(others, np.int64).reshape(-1, 3)
        return np.append(at, more[:, 0]), np.append(who, more[:, 1]), np.append(last, more[:, 2])

    def records(self, begin: int, end: int) -> tuple[Array, Array]:
        """See `RaceShadow.records`."""
        found = [
            (byte, record)
            for byte, held in self._places.items()
            if begin <= byte < end
            for table in (held.writes, held.reads)
            for record in table.values()
        ]
        table = np.array(found, np.int64).reshape(-1, 2)
        return table[:, 0], table[:, 1]
