"""Why a launch runs again: what it met has to be looked at more closely than a launch usually is.

Launches are deterministic, and memory is as it was when one has failed. So undefined values, which are expensive to
follow, are followed only where a first run meets some, and values that were read in a race only where there is one.
And instructions in several branches at which lanes meet are made one only where lanes have come to them. Room for many
mbarriers on which bulk copies complete is made only where a cluster has them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from refmoe.ptx.engine.bulk.agents import MoreAgents, most_agents
from refmoe.ptx.engine.code import FOLLOWING, FOLLOWING_APART, Code, View
from refmoe.ptx.engine.lanes import Checks
from refmoe.ptx.engine.order.racing_reads import RacedWith, RacingReads, ReadsFound, is_followed
from refmoe.ptx.engine.slow import Suspected
from refmoe.ptx.engine.undefined.follower import Following, Place
from refmoe.ptx.errors import Deadlock, MemoryFault, RaceError, UnknownOpcode, WarpError
from refmoe.ptx.grid import Grid
from refmoe.ptx.program.registers import results_and_uses
from refmoe.ptx.program.unwritten import instructions_of
from refmoe.ptx.text.memory_ops import memory_opcode
from refmoe.ptx.text.syntax import Instruction

# Runs that look for reads that race, or follow them, before a race is a fault.
_MOST_LOOKS = 6
_OF_READS = ("write-read", "read-write")
_GUARD = re.compile(r"@!?\s*\S+\s+")
# Runs that each found one more instruction at which undefined values begin, before all are taken for such.
_MOST = 3


@cache
def _is_strong_read(opcode: str) -> bool:
    if opcode.startswith(("mbarrier.test_wait", "mbarrier.try_wait")):
        return True
    parts = memory_opcode(opcode)
    return parts is not None and parts.strong and parts.stem in ("ld", "atom")


class Repeats:
    """What the next run of a launch looks at.

    Args:
        checks: what is looked for.
        code: of the entry, as it runs at first.
        joins: whether lanes may meet at several instructions.
        exact: names of regions of which all accesses are kept in any case.
        races: whether values that were read in a race may be followed.
        agents: of a cluster that the first run has room for, see `refmoe.ptx.engine.bulk.agents`; 0 for as many as
            it has threads.

    Attributes:
        agents: of a cluster that the next run has room for.
        follows: whether undefined values are followed.
        racing: the reads that race, where there are some, in the run that is next, or was last; else None.
    """

    def __init__(
        self, checks: Checks, code: Callable[[], Code], joins: bool, exact: frozenset[str], races: bool,
        agents: int = 0,
    ) -> None:  # fmt: skip
        self._checks, self._code, self._joins, self._exact, self._races = checks, code, joins, exact, races
        self.agents = agents
        self._begin()

    def _begin(self) -> None:
        """Nothing is known yet."""
        self.follows = False
        self.racing: RacingReads | None = None
        # The race, or the read of what a copy is under way to, that was found first, and how many runs it has taken.
        self._race: RaceError | MemoryFault | None = None
        self._looks = 0
        self._joined: tuple[tuple[Instruction, ...], ...] = ()
        self._begins: tuple[Place, ...] = ()
        self._first: MemoryFault | None = None

    def warps(self, living: int, grid: Grid) -> int:
        """Of each block of the next run, of which `living` have lanes."""
        if not (self._checks.races and self._code().has_bulk):
            return living
        return max(living, -(-min(self.agents, most_agents(grid)) // (32 * grid.cluster_blocks)))

    def following(self) -> Following | None:
        """What the next run knows of undefined values at its start."""
        if not self.follows:
            return None
        begins = frozenset(self._begins) | (frozenset() if self.racing is None else self.racing.places)
        return Following(begins, everywhere=len(self._begins) > _MOST, racing=self.racing)

    @property
    def exact(self) -> frozenset[str]:
        """Names of regions of which all accesses are kept in the next run."""
        return self._exact if self.racing is None else self._exact | self.racing.regions

    def view(self, view: View) -> View:
        """How the next run's code is made: as for its observer, and so that the machine sees every block."""
        if self.follows and not view.observed:
            view = FOLLOWING_APART if view.apart else FOLLOWING
        return view.joining(self._joined)

    def again(self, error: BaseException, short: bool = True) -> bool:
        """Note what the next run has to look at; False if there is none.

        `error`: how the last one failed. `short`: whether the launch is short enough for races to be followed.
        """
        self._races = self._races and short
        if isinstance(error, MoreAgents):
            self.agents = error.agents
            # Threads are counted in whole warps, so that none has its old number.
            self._begin()
            return True
        if isinstance(error, ReadsFound):
            self._follow_what_was_found()
            return True
        if self._joins and isinstance(error, UnknownOpcode) and error.alike and error.alike not in self._joined:
            self._joined = (*self._joined, error.alike)
            return True
        if isinstance(error, RaceError):
            return self._may_go_unused(error)
        if self.racing is None and isinstance(error, MemoryFault) and error.under_way and self._races:
            self._race, self.racing = error, RacingReads(frozenset((error.buffer or "",)), {}, error)
        elif not self._may_be_undefined(error):
            return False
        self._begin_again()
        self.follows = True
        if (place := self._place(error)) is not None:
            self._begins = (*self._begins, place)
        if self._first is None and isinstance(error, MemoryFault) and self.racing is None:
            self._first = error
        return True

    def again_after_all(self) -> bool:
        """Whether a launch that ended well has to run again, because reads of it raced that were not followed.

        Raises:
            RaceError: one of its races is a fault.
        """
        racing = self.racing
        if racing is None:
            return False
        assert self._race is not None
        new = racing.new()
        if racing.gives_up or (new and self._looks >= _MOST_LOOKS):
            raise self._race
        if new:
            self._follow_what_was_found()
            return True
        fault = racing.lost() or racing.fault
        if fault is not None:
            raise self._told(fault)
        # A value that a CAS has compared was not thrown away for another reason.
        if not racing.checks_all and self._looks_at_others():
            raise self._race
        return False

    def _follow_what_was_found(self) -> None:
        racing = self.racing
        assert racing is not None
        known = dict(racing.known)
        for read, raced in racing.new().items():
            before = known.get(read, raced)
            known[read] = RacedWith(before.error, before.bytes | raced.bytes)
        self.racing, self.follows = RacingReads(racing.regions, known, racing.first), True
        self._looks += 1

    @property
    def warnings(self) -> tuple[RaceError, ...]:
        """Races of the launch that ended well, of reads whose values nobody used."""
        return () if self.racing is None else self.racing.warnings()

    def _begin_again(self) -> None:
        if self.racing is not None:
            self.racing = RacingReads(self.racing.regions, self.racing.known, self.racing.first, self.racing.stops)

    def _may_go_unused(self, error: RaceError) -> bool:
        """Whether a race may be but a warning, because nobody uses the value that was read."""
        if error.use or not self._races or error.kind not in _OF_READS or error.warning:
            return False
        if error.kind == "write-read" and not is_followed(_GUARD.sub("", error.text).split()[0].rstrip(";")):
            return False
        if self.racing is None:
            if not error.certain and error.buffer not in self._exact:
                return False
            # The value of a read that comes after the write is followed from there on.
            behind = error.kind == "write-read"
            self._race, self.follows = error, self.follows or behind
            self.racing = RacingReads(frozenset((error.buffer,)), {}, error, stops=not behind)
            return True
        self._looks += 1
        if error.buffer in self.racing.regions or self._looks > _MOST_LOOKS:
            return False
        self.racing = RacingReads(self.racing.regions | {error.buffer}, self.racing.known, self.racing.first)
        return True

    def _looks_at_others(self) -> bool:
        """Whether the entry uses what a strong read, an atomic or a look at an mbarrier returns.

        That may decide whether a value that was read in a race is thrown away, as in a sequence lock. Under another
        schedule it is used then, so that one run without a use tells nothing.
        """
        instructions = [each for block in self._code().program.blocks for each in instructions_of(block)]
        used = {register.name for each in instructions for register in results_and_uses(each)[1]}
        return any(
            register.name in used
            for each in instructions
            if _is_strong_read(each.opcode)
            for register in results_and_uses(each)[0]
        )

    def _told(self, error: RaceError) -> RaceError | MemoryFault:
        """A race as the first run found it, if it is of that instruction."""
        first = self._race
        if isinstance(first, MemoryFault):
            return first
        if first is None or (error.line, error.text, error.buffer) != (first.line, first.text, first.buffer):
            return error
        return first.used(error.use) if error.use else first

    def finding(self, error: BaseException) -> BaseException:
        """The error to raise.

        A race about bytes that were read before anybody wrote them is told as that read, and so is a deadlock: where
        lanes stand still nobody knows what they would have done with the bytes.
        """
        if self._race is not None:
            # Whatever else went wrong may have gone wrong because of the race.
            error = self._told(error) if isinstance(error, RaceError) and error.certain else self._race
        if self._first is None:
            return error
        if isinstance(error, RaceError) and self._first.buffer == error.buffer:
            if self._first.offset == error.offset:
                return self._first
            # In shared memory all variables are one buffer: the two may have nothing to do with each other.
            return self._first.adding(f"where that value is followed, there is a race: {error.message}")
        return self._first if isinstance(error, Deadlock) else error

    def _may_be_undefined(self, error: BaseException) -> bool:
        """Whether it may be no error, or another one, if undefined values are followed."""
        if not self._checks.undefined:
            return False
        if isinstance(error, Suspected):
            return not self.follows
        place = self._place(error)
        if place is not None:
            return place not in self._begins and len(self._begins) <= _MOST
        # What lanes wait for, or who they say that they are, may be undefined.
        return isinstance(error, Deadlock | WarpError) and not self.follows and bool(self._code().unwritten)

    def _place(self, error: BaseException) -> Place | None:
        """The instruction at which an undefined value begins, which is an error as long as none is followed."""
        if isinstance(error, MemoryFault):
            read = error.kind == "uninitialised" and not error.use
            return (error.line, error.text) if read and self._checks.uninitialised and not self._checks.strict else None
        if isinstance(error, WarpError) and error.absent:
            return error.line, error.text
        return None
