"""Barriers in shared memory: `mbarrier` objects, their phases, and the lanes parked at them.

An object counts down the arrivals of its current phase and the bytes that transactions still owe; when both are zero
the phase is complete, and the next one begins with the count that the object was initialised for. Its eight bytes
are opaque: they count as uninitialised, and nothing may be stored there before `mbarrier.inval`.

For races, an arrival releases what its lane did and saw, and a wait that finds its phase complete acquires what the
arrivals of that phase released. `cp.async.mbarrier.arrive` arrives for copies, so it releases these alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from refmoe.ptx.engine.barriers import ranges
from refmoe.ptx.engine.cluster.arrivals import RemoteArrivals
from refmoe.ptx.engine.copies import Copies, CountedArrivals, completing
from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.engine.loads_and_stores import Access
from refmoe.ptx.engine.mbarrier_table import MOST, OBJECT_BYTES, MbarrierTable
from refmoe.ptx.engine.order.accessing import Accessing
from refmoe.ptx.engine.order.clocks import LANES
from refmoe.ptx.engine.races import shadow_of
from refmoe.ptx.native.clocks import move_rows, raise_rows, raise_whole
from refmoe.ptx.state.numbers import among, different
from refmoe.ptx.state.records import CLUSTER, CTA, GUARDED, THREAD
from refmoe.ptx.text.syntax import Instruction

Array = Any
# A state token: phase << 24 | pending count.
_PHASE_SHIFT = 24
# Bytes of shared memory that a warp's asynchronous stores reach together.
_PACKET = 64
_FOREVER = np.int64(1) << np.int64(62)


class Transactions(Protocol):
    """Bulk copies under way, whose bytes the objects count."""

    @property
    def pending(self) -> bool:
        """Whether there are loads that have not landed."""
        ...

    def owed(self, ids: Array) -> Array:
        """Bytes under way to each object."""
        ...

    def land(self, frame: Frame, ids: Array, transactions: Array) -> Array:
        """Land loads that complete on objects `ids` [k], as long as those are owed bytes.

        `transactions`, int64 by object, are those bytes; what lands is taken off. Returns on which something landed,
        bool by object.
        """
        ...

    def agents(self, ids: Array) -> Array:
        """The agent of each object, see `refmoe.ptx.engine.races`."""
        ...


class Mbarriers(MbarrierTable):
    """The objects of some CTAs, their phases, and who waits for them.

    Args:
        machine: the lanes.
        waits: the wait that begins each block which begins with one.
        transactions: the bulk copies of these lanes.
        invalidates: whether there are `mbarrier.inval`.
    """

    def __init__(
        self, machine: Lanes, waits: Mapping[int, Wait], transactions: Transactions, invalidates: bool
    ) -> None:
        super().__init__(machine, invalidates)
        self._waits = waits
        self._bulk = transactions
        self._arrivals: list[CountedArrivals] = []
        self.remote = RemoteArrivals()
        # Of a look that found all complete, and what it found: the block that the wait begins looks again.
        self._looked: tuple[int, Wait | None, bytes, Array] = (-1, None, b"", np.zeros(0, np.int64))
        # Whether the lanes of this step look before what they wait for has happened, and go on without.
        self.early = False

    @cached_property
    def at(self) -> Array:
        """int64 [lanes], where lanes are parked: number of the object, 0 where they are not."""
        return np.zeros(self.machine.lanes, np.int64)

    @cached_property
    def _place(self) -> Array:
        """int64 [lanes], block of the wait at which they are."""
        return np.zeros(self.machine.lanes, np.int64)

    @cached_property
    def _asked(self) -> Array:
        return np.zeros(self.machine.lanes, np.uint64)

    def awaited(self, lanes: Array) -> Iterator[tuple[Instruction, Array, Array]]:
        """(instruction, lanes [n], their objects [n]) of parked lanes, by the place of their wait."""
        for place in np.unique(self._place[lanes]):
            which = np.flatnonzero(lanes & (self._place == place))
            yield self._waits[int(place)].access.instruction, which, self.at[which]

    # Life

    def create(self, frame: Frame, access: Access, address: Array, lanes: Array, counts: Array) -> None:
        """`mbarrier.init`, one object a lane.

        Raises:
            MisuseError: a count out of range, or an object that is in use.
        """
        slots = self.slots(frame, access, address, lanes)
        self._check_counts(access.instruction, lanes, counts)
        shared = self.machine.shared
        alive = (self._numbers[slots] != 0) & (shared.words(OBJECT_BYTES, of_valid=True)[slots] == 0)
        if alive.any():
            bad = int(np.argmax(alive))
            what = f"{self.name(slots[bad])} is initialised already"
            raise self.machine.misuse(access.instruction, lanes[bad], what)
        _, first, times = np.unique(slots, return_index=True, return_counts=True)
        if (times > 1).any():
            bad = int(first[np.argmax(times > 1)])
            what = f"{self.name(slots[bad])} is initialised by {int(times.max())} threads at once"
            raise self.machine.misuse(access.instruction, lanes[bad], what)
        if shared.shadow is not None:
            shadow_of(shared).atomic(frame, access, shared, slots * OBJECT_BYTES, lanes)
        self._make_room(len(slots))
        ids = self.count + np.arange(len(slots))
        self.count += len(slots)
        self.number(slots, ids)
        self.slot[ids] = slots
        self.expected[ids] = self.pending[ids] = counts
        if self.machine.clocks is not None:
            self._creation[ids] = self.machine.clocks.record(lanes)
            self._published[ids] = False
            shadow_of(shared).mark(slots * OBJECT_BYTES, OBJECT_BYTES, np.full(len(slots), GUARDED))
        shared.words(OBJECT_BYTES, of_valid=True)[slots] = 0
        self.machine.tracer.mbarrier("init", access.instruction, lanes, ids, counts)

    def publish(self, lanes: Array) -> None:
        """`fence.mbarrier_init`: what `lanes` have initialised is known to the asynchronous proxy, and passed on."""
        if self.machine.clocks is None:
            return
        self.machine.strong.fence_inits(lanes)
        made = np.isin(self._creation & THREAD, lanes + self.machine.first_thread)
        self._published |= made & (self._creation != 0)
        self.machine.tick(self.machine.launch.clock + 1)

    def check_published(self, frame: Frame, access: Accessing, lanes: Array, ids: Array) -> None:
        """Copies of `lanes` [n] are to complete on objects `ids` [n].

        A copy updates the object through the asynchronous proxy, and `mbarrier.init` wrote it through the generic one
        (PTX ISA, "Async proxy"). Examples of libcu++ have no fence there, so that it is but a warning.

        Raises:
            RaceError: no fence lies between the two, if the checks are strict.
        """
        clocks = self.machine.clocks
        if clocks is None:
            return
        bad = np.flatnonzero(~(self._published[ids] | clocks.has_crossed(lanes, self._creation[ids])))
        if bad.size:
            lane, made, byte = lanes[bad[0]], self._creation[ids[bad[0]]], int(self.slot[ids[bad[0]]]) * OBJECT_BYTES
            shadow_of(self.machine.shared).unfenced_init(frame, access, self.machine.shared, byte, lane, made)

    def destroy(self, frame: Frame, access: Access, address: Array, lanes: Array) -> None:
        """`mbarrier.inval`.

        Raises:
            MisuseError: no object, or one at which lanes wait or on which copies will arrive.
            RaceError: nothing orders another lane's use of it before.
        """
        ids = self.objects(frame, access, address, lanes)
        used = np.isin(ids, self.at[self.at > 0]) | (self.announced[ids] > 0) | (self._bulk.owed(ids) > 0)
        if used.any():
            bad = int(np.argmax(used))
            raise self.machine.misuse(access.instruction, lanes[bad], f"{self.name(self.slot[ids[bad]])} is in use")
        self.check_users(frame, access, ids, lanes)
        self.number(self.slot[ids], 0)
        if self.machine.clocks is not None:
            # Who comes next has to come after this, and not only after the initialisation.
            shared, index = self.machine.shared, self.slot[ids] * OBJECT_BYTES
            shadow_of(shared).note(frame, access, shared, index, lanes, OBJECT_BYTES, "write")
            shadow_of(shared).mark(index, OBJECT_BYTES, self.machine.clocks.record(lanes))

    # Counting

    def _check_counts(self, instruction: Instruction, lanes: Array, counts: Array) -> None:
        wrong = (counts < 1) | (counts > MOST)
        if wrong.any():
            bad = int(np.argmax(wrong))
            raise self.machine.misuse(instruction, lanes[bad], f"a count of {int(counts[bad])}, not 1 to {MOST}")

    def arrive(self, frame: Frame, work: Arrive, address: Array, lanes: Array, counts: Array, owed: Array) -> Array:
        """Arrivals, lane after lane. Returns the state before each.

        Args:
            frame: the step.
            work: the instruction.
            address: uint64 [n].
            lanes: int64 [n].
            counts: int64 [n], how often each lane arrives.
            owed: int64 [n], bytes that each adds to what transactions owe, before it arrives.
        """
        ids = self.objects(frame, work.access, address, lanes)
        self._check_counts(work.access.instruction, lanes, counts)
        totals = np.bincount(ids, counts, self.count)
        if (totals[ids] > self.pending[ids]).any() and len(lanes) > 1:
            # The phase may end between two of them.
            states = [
                self.arrive(frame, work, address[i : i + 1], lanes[i : i + 1], counts[i : i + 1], owed[i : i + 1])
                for i in range(len(lanes))
            ]
            return np.concatenate(states)
        state = self._states(ids, counts)
        self.machine.tracer.mbarrier("expect", work.access.instruction, lanes, ids, owed)
        self.machine.tracer.mbarrier("arrive", work.access.instruction, lanes, ids, counts)
        np.add.at(self.transactions, ids, owed)
        self._check_owed(work.access.instruction, ids, lanes)
        self._pass_on(work, lanes, ids, counts)
        self._count_down(frame, work.access.instruction, ids, lanes, counts)
        if work.drops:
            np.add.at(self.expected, ids, -counts)
        self._settle(frame, ids, work.access.instruction, "" if work.completes else "may not complete the phase")
        return state

    def _states(self, ids: Array, counts: Array) -> Array:
        """The state that each of the arrivals finds."""
        # Mostly lanes come in the order of their objects.
        order = slice(None) if (ids[1:] >= ids[:-1]).all() else np.argsort(ids, kind="stable")
        ordered, taken = ids[order], counts[order]
        before = np.cumsum(taken) - taken
        first = np.r_[True, ordered[1:] != ordered[:-1]]
        before -= np.maximum.accumulate(np.where(first, before, 0))
        state = np.empty(len(ids), np.int64)
        state[order] = (self.phase[ordered] << _PHASE_SHIFT) + self.pending[ordered] - before
        return state.view(np.uint64)

    def _count_down(self, frame: Frame, instruction: Instruction, ids: Array, lanes: Array, counts: Array) -> None:
        np.add.at(self.pending, ids, -counts)
        below = self.pending[ids] < 0
        if below.any():
            bad = int(np.argmax(below))
            number = ids[bad]
            phase = f"phase {int(self.phase[number])} of {self.name(self.slot[number])}"
            what = f"{-int(self.pending[number])} arrivals more than {phase} expects"
            raise self.machine.misuse(instruction, lanes[bad], what)
        self.machine.progress()

    def _check_owed(self, instruction: Instruction, ids: Array, lanes: Array) -> None:
        beyond = np.abs(self.transactions[ids]) > MOST
        if beyond.any():
            bad = int(np.argmax(beyond))
            owed = int(self.transactions[ids[bad]])
            raise self.machine.misuse(instruction, lanes[bad], f"a transaction count of {owed}, beyond {MOST}")

    def expect(self, frame: Frame, work: Expect, address: Array, lanes: Array, owed: Array) -> None:
        """`mbarrier.expect_tx` and, with negative bytes, `mbarrier.complete_tx`."""
        ids = self.objects(frame, work.access, address, lanes)
        if self.machine.clocks is not None:
            far = np.flatnonzero(self.far(ids, lanes))
            self.remote.note(self.machine, work.access.instruction, ids[far], lanes[far], self.phase[ids[far]], False)
        self._expect(frame, work.access, ids, lanes, owed)

    def _expect(self, frame: Frame, access: Access, ids: Array, lanes: Array, owed: Array) -> None:
        self.machine.tracer.mbarrier("expect", access.instruction, lanes, ids, owed)
        np.add.at(self.transactions, ids, owed)
        self._check_owed(access.instruction, ids, lanes)
        self.machine.progress()
        self._settle(frame, ids, access.instruction, "")

    def complete_bytes(
        self, frame: Frame, access: Access, address: Array, lanes: Array, size: int, places: Array
    ) -> None:
        """Each lane wrote `size` bytes at `places` [n] of its CTA asynchronously: the transaction owes as many less."""
        ids = self.objects(frame, access, address, lanes)
        clocks = self.machine.clocks
        for packet in self._packets(ids, lanes, size, places):
            some, which = lanes[packet], ids[packet]
            if clocks is not None:
                np.maximum.at(self._coming, (which, clocks.copy_of(some)), clocks.now)
            self._expect(frame, access, which, some, np.full(len(some), -size, np.int64))

    def _packets(self, ids: Array, lanes: Array, size: int, places: Array) -> list[Array]:
        """The lanes whose bytes an object counts at once, in turn: positions in `ids` [n].

        The manual lets each lane's bytes come by themselves. Hopper counts those of a warp in one aligned 64 bytes
        together, those at one place mostly one after another: 32 words in a row complete 64 expected bytes, never 124.
        """
        owed = self.transactions[ids]
        comes = np.bincount(ids, minlength=len(self.transactions))[ids] * size
        if not ((self.pending[ids] == 0) & (owed > 0) & (comes > owed)).any():
            return [np.arange(len(ids))]
        packets, seen = dict[tuple[int, ...], list[int]](), Counter[tuple[int, ...]]()
        for at, (number, lane, place) in enumerate(zip(ids.tolist(), lanes.tolist(), places.tolist(), strict=True)):
            where = number, lane // LANES, place
            packets.setdefault((number, lane // LANES, place // _PACKET, seen[where]), []).append(at)
            seen[where] += 1
        return [np.array(packet) for packet in packets.values()]

    def announce(self, frame: Frame, work: CopyArrive, address: Array, lanes: Array) -> None:
        """`cp.async.mbarrier.arrive`: one arrival for each lane, once its copies have landed."""
        ids = self.objects(frame, work.access, address, lanes)
        if work.increments:
            np.add.at(self.pending, ids, 1)
            if (self.pending[ids] > MOST).any():
                raise self.machine.misuse(work.access.instruction, lanes[0], "a pending count beyond its 20 bits")
        np.add.at(self.announced, ids, 1)
        machine = self.machine
        machine.tracer.mbarrier("announce", work.access.instruction, lanes, ids, 1)
        copies = machine.part(Copies)
        self._arrivals.append(CountedArrivals(copies.issued, machine.launch.clock, lanes, ids))
        copies.arrive()
        machine.progress()
        self._settle(frame, ids, work.access.instruction, "")
        if machine.lands_at_once():
            self.land(frame, different(ids), work.access.instruction)

    def _settle(self, frame: Frame, ids: Array, instruction: Instruction, refusal: str) -> None:
        """Complete phases that have all they expect; land copies that alone keep parked lanes waiting."""
        ids = different(ids)
        self._complete(ids, instruction, refusal)
        if self._arrivals or self._bulk.pending:
            awaited = ids[among(ids, self.at)]
            if awaited.size:
                self.land(frame, awaited, instruction)

    def _complete(self, ids: Array, instruction: Instruction, refusal: str) -> None:
        done = ids[(self.pending[ids] == 0) & (self.transactions[ids] == 0)]
        if not done.size:
            return
        if refusal:
            cta = int(self.slot[done[0]]) * OBJECT_BYTES // self.machine.shared.stride
            lane = cta * self.machine.warps * 32
            raise self.machine.misuse(instruction, lane, f"an arrival that {refusal} completes it")
        self.machine.tracer.completed(done)
        self.phase[done] += 1
        self._all_foreign[done] = self._foreign[done] >= self.expected[done]
        self._foreign[done] = 0
        self.pending[done] = self.expected[done]
        if self.machine.clocks is not None:
            clocks = self.machine.clocks
            move_rows(self._known, self._coming, done, clocks.filled.spans(clocks.columns))
            self._raise_whole(done)
            for number in done.tolist() if self._coming_beyond or self._known_beyond else ():
                self._known_beyond.pop(number, None)
                if number in self._coming_beyond:
                    self._known_beyond[number] = self._coming_beyond.pop(number)
        woken = among(self.at, done)
        if woken.any():
            self.machine.tracer.woken("wake", woken)
            self._send(woken)
        self.machine.progress()

    def land(self, frame: Frame, ids: Array, instruction: Instruction) -> None:
        """Land the copies of those objects' arrivals and transactions for which nothing else is missing."""
        self._land_bulk(frame, ids, instruction)
        ready = ids[
            (self.announced[ids] > 0) & (self.announced[ids] >= self.pending[ids]) & (self.transactions[ids] == 0)
        ]
        if not ready.size:
            return
        machine = self.machine
        coming, self._arrivals = completing(self._arrivals, ready, self.pending, self.announced)
        before = np.zeros(machine.lanes, np.int64)
        for each in coming:
            before[each.lanes] = np.maximum(before[each.lanes], each.number)
            if machine.clocks is not None:
                np.maximum.at(self._coming, (each.ids, machine.clocks.copy_of(each.lanes)), each.step)
        machine.part(Copies).announce(frame, before)
        for each in coming:
            np.add.at(self.announced, each.ids, -1)
            machine.tracer.mbarrier("arrive", instruction, each.lanes, each.ids, 1)
            self._count_down(frame, instruction, each.ids, each.lanes, np.ones(len(each.lanes), np.int64))
        self._complete(ready, instruction, "")

    def _land_bulk(self, frame: Frame, ids: Array, instruction: Instruction) -> None:
        """Land bulk copies that complete on those objects, where all arrivals have come or come with other copies."""
        bulk, clocks = self._bulk, self.machine.clocks
        ready = ids[(self.pending[ids] <= self.announced[ids]) & (self.transactions[ids] > 0)]
        if not ready.size or not bulk.pending:
            return
        touched = np.flatnonzero(bulk.land(frame, ready, self.transactions))
        if clocks is not None and touched.size:
            self._coming[touched, clocks.agents_of(bulk.agents(touched))] = clocks.now
        self._complete(touched, instruction, "")

    def landed(self, frame: Frame, ids: Array, bytes_: int, instruction: Instruction) -> None:
        """Bulk copies that complete on objects `ids` [n], of so many bytes each, landed as they were issued."""
        np.add.at(self.transactions, ids, -bytes_)
        clocks, touched = self.machine.clocks, np.unique(ids)
        if clocks is not None:
            self._coming[touched, clocks.agents_of(self._bulk.agents(touched))] = clocks.now
        self._complete(touched, instruction, "")

    # Waiting

    def complete(self, work: Wait, ids: Array, lanes: Array, asked: Array) -> Array:
        """Whether the phase that each lane asks for is complete; `asked` is a parity or a state."""
        phase = self.phase[ids]
        if work.parity:
            odd = asked > 1
            if odd.any():
                bad = int(np.argmax(odd))
                raise self.machine.misuse(work.access.instruction, lanes[bad], f"a parity of {int(asked[bad])}")
            return (phase & 1) != asked.view(np.int64)
        wanted = (asked >> np.uint64(_PHASE_SHIFT)).view(np.int64)
        stale = (phase - wanted > 1) | (phase < wanted)
        if stale.any():
            bad = int(np.argmax(stale))
            what = f"the state of phase {int(wanted[bad])}, in phase {int(phase[bad])}"
            raise self.machine.misuse(work.access.instruction, lanes[bad], what)
        return phase > wanted

    def look(self, frame: Frame, work: Wait, address: Array, lanes: Array, asked: Array) -> tuple[Array, Array]:
        """(objects, whether their phases are complete) of lanes that need them, copies landed where they alone lack.

        If lanes are `early`, nothing lands for their sake.
        """
        step, same, before, ids = self._looked
        if step == self.machine.launch.clock and same is work and before == lanes.tobytes():
            return ids, np.ones(len(ids), np.bool_)
        ids = self.objects(frame, work.access, address, lanes)
        self._check_own(work, ids, lanes)
        ready = self.complete(work, ids, lanes, asked)
        if (self._arrivals or self._bulk.pending) and not ready.all() and not self.early:
            self.land(frame, different(ids[~ready]), work.access.instruction)
            ready = self.complete(work, ids, lanes, asked)
        return ids, ready

    def pass_by(self, work: Wait, lanes: Array, ids: Array) -> None:
        """The phases of objects `ids` are complete for which `lanes` [n] wait in this step, which looks again."""
        self._looked = self.machine.launch.clock, work, lanes.tobytes(), ids

    def _check_own(self, work: Wait, ids: Array, lanes: Array) -> None:
        """A wait is for a barrier of the own block (PTX ISA, "mbarrier.test_wait": `.shared::cta`)."""
        machine = self.machine
        if machine.launch.grid.cluster_blocks > 1:
            other = self.far(ids, lanes)
            if other.any():
                bad = int(np.argmax(other))
                what = f"a wait for {self.name(self.slot[ids[bad]])}, another block of the cluster"
                raise machine.misuse(work.access.instruction, lanes[bad], what)

    def acquire(self, work: Wait, ids: Array, lanes: Array) -> None:
        """Lanes have seen the last phase of their objects complete."""
        clocks = self.machine.clocks
        if clocks is None or not lanes.size:
            return
        self.remote.seen(ids, self.phase[ids])
        if work.own_block:
            near = ~self._all_foreign[ids]
            ids, lanes = ids[near], lanes[near]
        if not work.acquires:
            # A fence behind it acquires.
            for number, lane in zip(ids.tolist(), lanes.tolist(), strict=True):
                key = self.machine.strong.key(self.machine.shared, int(self.slot[number]) * OBJECT_BYTES)
                cluster = clocks.cluster(lane >> 5)
                theirs = clocks.pool.knowledge(cluster, self._known[number], self._known_beyond.get(number))
                self.machine.strong.observe(lane, key, theirs)
            return
        clocks.learn_rows(lanes, ids, self._known, self._known_beyond, self.machine.alive)

    def park(self, place: int, lanes: Array, ids: Array, asked: Array) -> None:
        """Lanes wait at the instruction that begins block `place`."""
        self.at[lanes] = ids
        self._place[lanes] = place
        self._asked[lanes] = asked

    def _send(self, lanes: Array) -> None:
        for place in different(self._place[lanes]):
            self.machine.resume_at(int(place), lanes & (self._place == place))
        self.at[lanes] = 0

    def give_up(self) -> Array:
        """Send all parked lanes on, as after the time limit of `try_wait`. Returns who they are."""
        parked = self.at > 0
        self.machine.tracer.woken("give up", parked)
        self._send(parked)
        return parked

    def places(self) -> Array:
        """int64 [lanes], the block of the wait at which each lane is parked, -1 for none."""
        return np.where(self.at > 0, self._place, -1)

    def report(self) -> list[str]:
        """One sentence for each object and place at which lanes are parked."""
        machine = self.machine
        lines: list[str] = []
        if not self._waits:
            return lines
        owed = self._bulk.owed(np.arange(self.count))
        parked = np.flatnonzero(self.at > 0)
        for number, place in sorted(set(zip(self.at[parked].tolist(), self._place[parked].tolist(), strict=True))):
            lanes = np.flatnonzero((self.at == number) & (self._place == place))
            work = self._waits[place]
            asked = int(self._asked[lanes[0]])
            what = f"parity {asked}" if work.parity else f"phase {asked >> _PHASE_SHIFT}"
            lines.append(
                f"{self.name(self.slot[number])}: phase {int(self.phase[number])} (parity "
                f"{int(self.phase[number]) & 1}) is not complete, {int(self.pending[number])} of "
                f"{int(self.expected[number])} arrivals and {int(self.transactions[number])} bytes pending, "
                f"{int(self.announced[number])} arrivals by copies under way, {int(owed[number])} bytes by bulk "
                f"copies under way; waiting for {what} are {ranges(machine, lanes)}; "
                f"{machine.describe(work.access.instruction)}"
            )
        return lines

    # Races

    def _pass_on(self, work: Arrive, lanes: Array, ids: Array, counts: Array) -> None:
        """What arrivals pass on to those who wait: what comes before them, or, if relaxed, before fences of theirs."""
        machine, clocks = self.machine, self.machine.clocks
        if clocks is None:
            return
        foreign = self.far(ids, lanes)
        np.add.at(self._foreign, ids[foreign], counts[foreign])
        self.remote.note(machine, work.access.instruction, ids[foreign], lanes[foreign], self.phase[ids[foreign]])
        if work.own_block:
            # Who waits is of the object's block (PTX ISA, "Morally strong operations").
            lanes, ids, foreign = lanes[~foreign], ids[~foreign], foreign[~foreign]
        if work.releases:
            if lanes.size:
                self._release(lanes, ids)
            return
        for lane, number, far in zip(lanes.tolist(), ids.tolist(), foreign.tolist(), strict=True):
            theirs = machine.strong.fenced(lane, CLUSTER if far else CTA)
            if theirs is not None:
                row = clocks.pool.rows[theirs.rows[clocks.cluster(lane >> 5)]]
                np.maximum(self._coming[number], row, out=self._coming[number])
                self._coming_beyond[number] = clocks.pool.join(self._coming_beyond.get(number), theirs)

    def _release(self, lanes: Array, ids: Array) -> None:
        clocks = self.machine.clocks
        rows, numbers = _runs(clocks.rows(lanes), ids)
        raise_rows(self._coming, numbers, clocks.seen, rows, clocks.filled.spans(clocks.columns))
        clocks.mark(self._coming, ids, lanes, clocks.now)
        if clocks.beyond:
            for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
                if (theirs := clocks.beyond.get(row)) is not None:
                    self._coming_beyond[number] = clocks.pool.join(self._coming_beyond.get(number), theirs)
        self.machine.tick(self.machine.launch.clock + 1)

    def _raise_whole(self, ids: Array) -> None:
        """In what arrivals released, a warp all of whose lanes arrived is known as a whole.

        Lanes that have exited are lanes of their warp: nobody knows what they did unless they arrived, too.
        """
        machine = self.machine
        warps, lane = machine.clocks.warps, machine.clocks.lane
        cluster = self.slot[ids] * OBJECT_BYTES // (machine.shared.stride * machine.launch.grid.cluster_blocks)
        if (exist := machine.exist.reshape(-1, warps, 32)[cluster]).all():
            raise_whole(self._known, ids, lane, machine.clocks.filled.warps)
            return
        known = self._known[ids, : machine.clocks.copy]
        lanes = np.where(exist, known[:, lane:].reshape(-1, warps, 32), _FOREVER).min(axis=2)
        self._known[ids, :warps] = np.maximum(known[:, :warps], np.where(lanes < _FOREVER, lanes, 0))


def _runs(warps: Array, ids: Array) -> tuple[Array, Array]:
    """Pairs (warp, object) without neighbouring repeats."""
    first = np.r_[True, (warps[1:] != warps[:-1]) | (ids[1:] != ids[:-1])]
    return warps[first], ids[first]


# Instructions


@dataclass(frozen=True)
class Create:
    """`mbarrier.init`."""

    access: Access

    def __call__(self, frame: Frame, address: Array, count: Array, guard: Array | None) -> None:
        """Initialise the objects of the acting lanes."""
        where, lanes, chosen = frame.select(address, guard)
        if lanes.size:
            counts = frame.acting(where, count).astype(np.int64)
            frame.machine.part(Mbarriers).create(frame, self.access, chosen, lanes, counts)


@dataclass(frozen=True)
class Destroy:
    """`mbarrier.inval`."""

    access: Access

    def __call__(self, frame: Frame, address: Array, guard: Array | None) -> None:
        """End the objects of the acting lanes."""
        _, lanes, chosen = frame.select(address, guard)
        if lanes.size:
            frame.machine.part(Mbarriers).destroy(frame, self.access, chosen, lanes)


@dataclass(frozen=True)
class Publish:
    """`fence.mbarrier_init`."""

    def __call__(self, frame: Frame, guard: Array | None) -> None:
        """What the acting lanes have initialised is known to the asynchronous proxy, and passed on."""
        where = frame.where(guard)
        frame.machine.part(Mbarriers).publish(frame.lanes() if where is None else frame.lanes()[where])


@dataclass(frozen=True)
class Arrive:
    """`mbarrier.arrive`, `arrive_drop`, with `.expect_tx` or `.noComplete`.

    Attributes:
        access: the object.
        releases: not `.relaxed`.
        own_block: `.cta` is written out. Where no scope is, CUTLASS means that of the cluster, and so it is taken.
        drops: the arrivals are missing from all later phases too.
        completes: the phase may end here.
    """

    access: Access
    releases: bool = True
    own_block: bool = False
    drops: bool = False
    completes: bool = True

    def __call__(self, frame: Frame, address: Array, count: Array, owed: Array, guard: Array | None) -> Array:
        """Arrive `count` times, after adding `owed` bytes. The states before, uint64 [lanes of the frame]."""
        where, lanes, chosen = frame.select(address, guard)
        result = np.zeros(frame.count, np.uint64)
        if lanes.size:
            counts, bytes_ = (frame.acting(where, value).astype(np.int64) for value in (count, owed))
            states = frame.machine.part(Mbarriers).arrive(frame, self, chosen, lanes, counts, bytes_)
            result[slice(None) if where is None else where] = states
        return result


@dataclass(frozen=True)
class Expect:
    """`mbarrier.expect_tx`, and with `sign` -1 `mbarrier.complete_tx`."""

    access: Access
    sign: int

    def __call__(self, frame: Frame, address: Array, owed: Array, guard: Array | None) -> None:
        """Change what transactions owe."""
        where, lanes, chosen = frame.select(address, guard)
        if lanes.size:
            owed = frame.acting(where, owed).astype(np.int64) * self.sign
            frame.machine.part(Mbarriers).expect(frame, self, chosen, lanes, owed)


@dataclass(frozen=True)
class CopyArrive:
    """`cp.async.mbarrier.arrive`; `increments`: not `.noinc`, the phase expects one arrival more."""

    access: Access
    increments: bool

    def __call__(self, frame: Frame, address: Array, guard: Array | None) -> None:
        """Announce the arrivals."""
        _, lanes, chosen = frame.select(address, guard)
        if lanes.size:
            frame.machine.part(Mbarriers).announce(frame, self, chosen, lanes)


@dataclass(frozen=True)
class Wait:
    """`mbarrier.test_wait` and `try_wait`.

    Attributes:
        access: the object.
        parity: for a parity, not for a state.
        acquires: not `.relaxed`.
        own_block: `.cta` is written out.
    """

    access: Access
    parity: bool
    acquires: bool = True
    own_block: bool = False

    def __call__(self, frame: Frame, address: Array, asked: Array, guard: Array | None) -> Array:
        """Whether the phase is complete, bool [lanes of the frame]."""
        where, lanes, chosen = frame.select(address, guard)
        result = np.zeros(frame.count, bool)
        if lanes.size:
            mbarriers = frame.machine.part(Mbarriers)
            if not self.access.instruction.opcode.startswith("mbarrier.try_wait"):
                mbarriers.early = frame.machine.looks_early()
            ids, ready = mbarriers.look(frame, self, chosen, lanes, frame.acting(where, asked).astype(np.uint64))
            frame.machine.tracer.mbarrier("pass", self.access.instruction, lanes[ready], ids[ready])
            mbarriers.acquire(self, ids[ready], lanes[ready])
            result[slice(None) if where is None else where] = ready
        return result
