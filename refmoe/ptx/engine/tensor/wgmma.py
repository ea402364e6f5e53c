"""`wgmma`: products of a warpgroup that run on while later instructions do, in groups that its warps wait for.

Four warps, the first a multiple of four, run each instruction together. A product is issued: its chunks of shared
memory are being read, and its registers are in use, until a `wgmma.wait_group` waits for its group. Only then it is
computed, as late as the manual allows: a kernel that overwrites an operand before computes garbage, or is stopped.
Products of one accumulator that follow each other are one chain of native code.

Registers of A and D stay in their homes, which products read and write themselves. That other instructions touch them
is found where the analysis of `refmoe.ptx.program.warpgroup` says that one might: those report what they access.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from refmoe.ptx.engine.bulk.copies import Bulk
from refmoe.ptx.engine.bulk.races import BulkShadow
from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.engine.loads_and_stores import Access
from refmoe.ptx.engine.tensor.descriptor import CHUNK, chunks
from refmoe.ptx.engine.tensor.sparse import metadata_of, multiply_sparse, ordered_places
from refmoe.ptx.engine.tensor.sums import Sums
from refmoe.ptx.errors import WarpError
from refmoe.ptx.text.syntax import Instruction
from refmoe.ptx.text.wgmma import ROW_BYTES, ROWS, Form

Array = Any
_LANES, _WARPS = 32, 4
_GROUP = _LANES * _WARPS


@dataclass(frozen=True)
class Product:
    """A `wgmma.mma_async` as it is written.

    Attributes:
        access: of a chunk in shared memory.
        form: what it multiplies.
        d: names of the registers of D.
        a: of A, none where it lies in shared memory.
        negates: whether products are taken off.
        a_across, b_across: see `refmoe.ptx.text.wgmma.Operands`.
        sums: how it adds up.
        selector: of a sparse A, see `metadata_of`.
    """

    access: Access
    form: Form
    d: tuple[str, ...]
    a: tuple[str, ...]
    negates: bool
    a_across: bool
    b_across: bool
    sums: Sums
    selector: int = 0

    @cached_property
    def registers(self) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """Its shape and the registers that it uses."""
        return self.form.shape, self.d, self.a

    @cached_property
    def chain(self) -> tuple[Any, ...]:
        """What products have in common that may continue one another."""
        return self.form, self.d, not self.a, self.negates, self.a_across, self.b_across, self.sums

    def __call__(
        self, frame: Frame, a_place: Array | None, b_place: Array, metadata: Array | None, adds: Array
    ) -> None:
        """Issue it.

        Raises:
            WarpError: not all lanes of the warpgroup are here.
            MisuseError: an operand that is not the same in all of them, or registers that are not ready.
            MemoryFault, RaceError: an operand in shared memory that cannot be read.
        """
        instruction = self.access.instruction
        rows, lanes = _whole(frame, instruction)
        b, on = (_alike(frame, instruction, rows, lanes, value) for value in (b_place, adds))
        a = None if a_place is None else _alike(frame, instruction, rows, lanes, a_place)
        groups = frame.machine.part(Warpgroups)
        for number, first in enumerate(lanes[:, 0].tolist()):
            places = None if metadata is None else self._places(frame, first, frame.spread(metadata)[rows[number]])
            at = None if a is None else int(a[number])
            groups.issue(frame, self, first, at, int(b[number]), places, bool(on[number]))

    def _places(self, frame: Frame, first: int, metadata: Array) -> Array:
        """Where a sparse A's units stand, see `metadata_of`; MisuseError where two are in one place, or in disorder."""
        places = metadata_of(metadata, self.selector, self.form)
        wrong = ~ordered_places(places, self.form)
        if wrong.any():
            row, group = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
            one, other = (int(each) for each in places[row, 2 * group : 2 * group + 2] % 4)
            what = f"metadata that put row {row}'s elements of group {group} at places {one} and {other}"
            raise frame.machine.misuse(self.access.instruction, first, what)
        return places


@dataclass(frozen=True)
class Fence:
    """`wgmma.fence`: registers that the warpgroup accessed are ready for its products."""

    instruction: Instruction

    def __call__(self, frame: Frame) -> None:
        """Raises WarpError: not all lanes of the warpgroup are here."""
        for group in frame.machine.part(Warpgroups).of(frame, self.instruction):
            group.fenced = True
            group.touched.clear()
            group.used.clear()


@dataclass(frozen=True)
class Commit:
    """`wgmma.commit_group`: the products issued since the last one are a group."""

    instruction: Instruction

    def __call__(self, frame: Frame) -> None:
        """Raises WarpError: not all lanes of the warpgroup are here."""
        for group in frame.machine.part(Warpgroups).of(frame, self.instruction):
            group.closed += 1


@dataclass(frozen=True)
class Wait:
    """`wgmma.wait_group keep`: all groups but the last `keep` are complete."""

    instruction: Instruction
    keep: int

    def __call__(self, frame: Frame) -> None:
        """Raises WarpError: not all lanes of the warpgroup are here."""
        groups = frame.machine.part(Warpgroups)
        for group in groups.of(frame, self.instruction):
            groups.complete(frame, group, group.closed - self.keep)


@dataclass(frozen=True)
class Touch:
    """What an instruction other than `wgmma` does to registers of products.

    Attributes:
        instruction: it.
        names: registers that it reads or writes.
    """

    instruction: Instruction
    names: frozenset[str]

    def __call__(self, frame: Frame, guard: Array | None) -> None:
        """Raises MisuseError: a register is in use by a product that has not been waited for."""
        where = frame.where(guard)
        lanes = frame.lanes() if where is None else frame.lanes()[where]
        if lanes.size:
            frame.machine.part(Warpgroups).touch(self, lanes)


@dataclass(frozen=True)
class _Flight:
    """A product that runs.

    Attributes:
        product: as written.
        group: the number of its group.
        a: int64 [64, 2] or, across, [16, 8], where the chunks of A lie, as `Region.data` has them; or None.
        b: likewise of B, [N, 2] or [16, N / 8].
        held: uint8 [64, 32], A out of registers, or None.
        places: of a sparse A, where its units stand, or None.
        adds: whether D is added.
    """

    product: Product
    group: int
    a: Array | None
    b: Array
    held: Array | None
    places: Array | None
    adds: bool

    @property
    def index(self) -> Array:
        """int64 [n], all chunks that it reads."""
        return self.b.ravel() if self.a is None else np.concatenate([self.a.ravel(), self.b.ravel()])


@dataclass
class _Warpgroup:
    """What a warpgroup has under way.

    Attributes:
        lanes: the first one of each of its warps.
        flights: products that run, in the order of their issue.
        closed: groups so far.
        fenced: whether there was a fence.
        touched: by name, the instruction that last accessed a register since the last fence.
        used: products issued since then, one for each way in which registers were used.
        written: registers of D or of A, as products have them, that are known to have been written.
    """

    lanes: Array
    flights: list[_Flight] = field(default_factory=list)
    closed: int = 0
    fenced: bool = False
    touched: dict[str, Instruction] = field(default_factory=dict)
    used: dict[tuple[str, tuple[str, ...], tuple[str, ...]], Product] = field(default_factory=dict)
    written: set[tuple[str, ...]] = field(default_factory=set)


class Warpgroups:
    """The warpgroups of some CTAs."""

    def __init__(self, machine: Lanes) -> None:
        self.machine = machine
        self._groups: dict[int, _Warpgroup] = {}
        # By product: where its accumulators lie for the first warp, and from a warp's to the next warp's.
        self._homes: dict[int, tuple[Array, int]] = {}

    def of(self, frame: Frame, instruction: Instruction) -> Iterator[_Warpgroup]:
        """The warpgroups of a frame.

        Raises:
            WarpError: not all lanes of one are here.
        """
        for first in _whole(frame, instruction)[1][:, 0].tolist():
            yield self._group(first)

    def _group(self, first: int) -> _Warpgroup:
        if first not in self._groups:
            self._groups[first] = _Warpgroup(first + np.arange(_WARPS) * _LANES)
        return self._groups[first]

    def _number(self, group: _Warpgroup) -> int:
        """Of a warpgroup in its cluster."""
        warps: int = self.machine.clocks.warps
        return int(group.lanes[0]) // _LANES % warps // _WARPS

    # Products

    def issue(
        self,
        frame: Frame,
        product: Product,
        first: int,
        a_place: int | None,
        b_place: int,
        places: Array | None,
        adds: bool,
    ) -> None:
        """The warpgroup from lane `first` on issues a product."""
        group = self._group(first)
        self._check_registers(group, product)
        self._check_written(group, product, adds)
        form = product.form
        a = (
            None
            if a_place is None
            else self._chunks(frame, product, first, a_place, (ROWS, ROW_BYTES), product.a_across)
        )
        b = self._chunks(frame, product, first, b_place, (form.n, form.column_bytes), product.b_across)
        flight = _Flight(product, group.closed, a, b, self._held(group, product), places, adds)
        shared, index = self.machine.shared, flight.index
        if self.machine.clocks is not None:
            number = self._number(group)
            agent = self.machine.part(Bulk).multiplying_agent(number)
            _shadow(self.machine).multiply(frame, product.access, shared, index, group.lanes, number, agent)
        product.access._check_valid(frame, shared, index, np.broadcast_to(first, index.shape))
        group.flights.append(flight)
        group.used[product.registers] = product

    def _chunks(
        self, frame: Frame, product: Product, first: int, place: int, shape: tuple[int, int], across: bool
    ) -> Array:
        """Where an operand of rows or columns of so many bytes lies, as `Region.data` has it."""
        outer, size = shape
        width = product.form.bits // 8
        lines, size = (size // width, outer * width) if across else shape
        address = chunks(place, lines, size, across)
        lanes = np.broadcast_to(first, address.size)
        _, _, index = next(product.access._parts(frame, address.ravel().view(np.uint64), lanes))
        return index.reshape(address.shape)

    def _check_registers(self, group: _Warpgroup, product: Product) -> None:
        """MisuseError: no fence since registers were accessed, or a register of another product that runs."""
        machine, instruction, lane = self.machine, product.access.instruction, int(group.lanes[0])
        if not group.fenced:
            raise machine.misuse(instruction, lane, "no wgmma.fence before the first wgmma of the warpgroup")
        for name in (*product.d, *product.a) if group.touched else ():
            if name in group.touched:
                what = f"no wgmma.fence since {name} was accessed by {machine.describe(group.touched[name])}"
                raise machine.misuse(instruction, lane, what)
        for flight in group.flights:
            if (taken := _taken(flight.product, product)) is not None:
                what = f"{taken} is {_role(flight.product, taken)} of a wgmma that nobody has waited for: "
                raise machine.misuse(instruction, lane, what + machine.describe(flight.product.access.instruction))
        for other in group.used.values():
            if (taken := _taken(other, product)) is not None:
                what = f"no wgmma.fence since {taken} was {_role(other, taken)} of another wgmma: "
                raise machine.misuse(instruction, lane, what + machine.describe(other.access.instruction))

    def _check_written(self, group: _Warpgroup, product: Product, adds: bool) -> None:
        """Suspected: a register of A, or a sum that is added to, may be one that nobody has written."""
        if not adds:
            group.written.add(product.d)
        warp = int(group.lanes[0]) // _LANES
        for names in (product.a, product.d):
            if names not in group.written:
                self.machine.check_written(product.access.instruction, names, slice(warp, warp + _WARPS))
                group.written.add(names)

    def _held(self, group: _Warpgroup, product: Product) -> Array | None:
        """A out of registers: register i of lane 4g + t of warp w has four bytes of row 16w + g + 8 (i % 2)."""
        if not product.a:
            return None
        warp = int(group.lanes[0]) // _LANES
        rows = [self.machine.home(name)[warp : warp + _WARPS] for name in product.a]
        # [half of the row, upper, warp, g, t] -> [warp, upper, g, half, t]
        split = np.stack(rows).reshape(2, 2, _WARPS, 8, 4).transpose(2, 1, 3, 0, 4)
        return np.ascontiguousarray(split).reshape(ROWS, -1).view(np.uint8)

    # Their end

    def complete(self, frame: Frame, group: _Warpgroup, closed: int) -> None:
        """Compute the products of the groups before number `closed`."""
        ready = [flight for flight in group.flights if flight.group < closed]
        if ready:
            group.flights = [flight for flight in group.flights if flight.group >= closed]
            for chain in _chains(ready):
                self._multiply(group, chain)
            if self.machine.clocks is not None:
                shadow, number = _shadow(self.machine), self._number(group)
                done = np.concatenate([flight.index for flight in ready])
                shadow.multiplied(frame, done, group.lanes[:1], number)
                for flight in group.flights:
                    # They may read what the others did.
                    shadow.multiplying(frame, flight.index, group.lanes[:1], number)
        if self.machine.clocks is not None:
            _shadow(self.machine).wait_for_products(frame, group.lanes, self._number(group))

    def _multiply(self, group: _Warpgroup, chain: list[_Flight]) -> None:
        product = chain[0].product
        memory = self.machine.shared.words(CHUNK)
        if chain[0].held is not None:
            a = np.concatenate([flight.held for flight in chain if flight.held is not None], axis=1)
        else:
            a = _operand(memory, [flight.a for flight in chain], product.form, product.a_across)
        b = _operand(memory, [flight.b for flight in chain], product.form, product.b_across)
        if product.negates:
            a = _negated(a, product.form.bits)
        homes, warp_bytes = self._accumulators(product)
        warp = int(group.lanes[0]) // _LANES
        places = homes + warp * warp_bytes
        if product.form.sparse:
            multiply_sparse(
                product.sums, a, product.form, [flight.places for flight in chain], b, places, warp_bytes, chain[0].adds
            )
        else:
            product.sums(a, b, places, warp_bytes, chain[0].adds)

    def _accumulators(self, product: Product) -> tuple[Array, int]:
        if id(product) not in self._homes:
            held = [self.machine.home(name) for name in product.d]
            places = np.array([each.ctypes.data for each in held], np.int64)
            self._homes[id(product)] = places, held[0].strides[0]
        return self._homes[id(product)]

    # Other instructions

    def touch(self, touch: Touch, lanes: Array) -> None:
        """`lanes` access registers outside of products."""
        per_cta = self.machine.warps * _LANES
        within = lanes % per_cta
        for first in np.unique(lanes - within % _GROUP).tolist():
            group = self._group(first)
            for flight in group.flights:
                other = flight.product
                names = touch.names.intersection((*other.d, *other.a))
                if names:
                    name = min(names)
                    lane = int(lanes[np.argmax((lanes >= first) & (lanes < first + _GROUP))])
                    what = f"{name} is {_role(other, name)} of a wgmma that nobody has waited for: "
                    what += self.machine.describe(other.access.instruction)
                    raise self.machine.misuse(touch.instruction, lane, what)
            group.touched.update(dict.fromkeys(touch.names, touch.instruction))

    def leave(self, gone: Array) -> None:
        """Lanes exit: bool of all.

        Raises:
            MisuseError: a product of theirs has not been waited for.
        """
        for first, group in self._groups.items():
            if group.flights and gone[first : first + _GROUP].any():
                what = "the thread exits while a wgmma of its warpgroup runs that nobody has waited for"
                instruction = group.flights[0].product.access.instruction
                raise self.machine.misuse(instruction, first + int(np.argmax(gone[first : first + _GROUP])), what)


def _taken(one: Product, other: Product) -> str | None:
    """A register that a product uses in another way than one before it, in which it needs a fence and a wait.

    Accumulators go from one product to the next of its shape, and registers of A may serve several.
    """
    if one.registers == other.registers:
        return None
    alike = one.d == other.d and one.form.shape == other.form.shape
    wrong = set(one.d).intersection(other.a) | set(one.a).intersection(other.d)
    wrong |= set() if alike else set(one.d).intersection(other.d)
    return min(wrong, default=None)


def _role(product: Product, name: str) -> str:
    return "a register of A" if name in product.a else "an accumulator"


def _shadow(machine: Lanes) -> BulkShadow:
    shadow = machine.shared.shadow
    assert isinstance(shadow, BulkShadow)
    return shadow


def _whole(frame: Frame, instruction: Instruction) -> tuple[Array, Array]:
    """(places in the frame's vectors, lanes) of the warpgroups of a frame, each [n, 128].

    Raises:
        WarpError: not all lanes of one take part.
    """
    machine, where = frame.machine, frame.where(None)
    lanes = frame.lanes()
    places = np.arange(frame.count) if where is None else np.flatnonzero(where)
    lanes = lanes[places]
    within = lanes % (machine.warps * _LANES)
    first = lanes - within % _GROUP
    if lanes.size % _GROUP or (first.reshape(-1, _GROUP) != first[::_GROUP, None]).any():
        groups, counts = np.unique(first, return_counts=True)
        group = groups[np.argmax(counts != _GROUP)]
        there = int((first == group).sum())
        what = f"{there} lanes of its warpgroup take part, {_GROUP} must"
        raise machine.error(WarpError, instruction, int(lanes[np.argmax(first == group)]), what)
    return places.reshape(-1, _GROUP), lanes.reshape(-1, _GROUP)


def _alike(frame: Frame, instruction: Instruction, rows: Array, lanes: Array, value: Array) -> Array:
    """An operand of each warpgroup [n]; MisuseError unless all its lanes have the same."""
    held = frame.spread(value)[rows]
    differs = (held != held[:, :1]).any(axis=1)
    if differs.any():
        row = int(np.argmax(differs))
        column = int(np.argmax(held[row] != held[row, 0]))
        one, other = (hex(int(held[row, each])) for each in (0, column))
        what = f"an operand that differs between the threads of a warpgroup: {one} in its first, {other} in this one"
        raise frame.machine.misuse(instruction, int(lanes[row, column]), what)
    return held[:, 0]


def _chains(flights: list[_Flight]) -> Iterator[list[_Flight]]:
    """Products in the order of their issue, those that continue one another together."""
    chain: list[_Flight] = []
    for flight in flights:
        if chain and (flight.product.chain != chain[-1].product.chain or not flight.adds):
            yield chain
            chain = []
        chain.append(flight)
    if chain:
        yield chain


def _operand(memory: Array, steps: list[Any], form: Form, across: bool) -> Array:
    """Rows of A, or columns of B, of all steps: uint8 [n, bytes]."""
    if not across:
        found = memory[np.concatenate(steps, axis=1) // CHUNK]
        return found.reshape(len(found), -1).view(np.uint8)
    # [steps of K, chunks of rows or columns]
    found = memory[np.concatenate(steps, axis=0) // CHUNK]
    lines = found.reshape(len(found), -1).view(np.dtype(f"u{form.bits // 8}"))
    return np.ascontiguousarray(lines.T).view(np.uint8)


def _negated(elements: Array, bits: int) -> Array:
    """Elements with the other sign: bytes in which the last of each has it."""
    found = np.array(elements)
    found[:, bits // 8 - 1 :: bits // 8] ^= np.uint8(0x80)
    return found
