"""Why a launch runs again: what it met has to be looked at more closely than a launch usually is.

Launches are deterministic, and memory is as it was when one has failed. So undefined values, which are expensive to
follow, are followed only where a first run meets some. And instructions in several branches at which lanes meet are
made one only where lanes have come to them.
"""

from __future__ import annotations

from collections.abc import Callable

from refmoe.ptx.engine.code import FOLLOWING, FOLLOWING_APART, Code, View
from refmoe.ptx.engine.lanes import Checks
from refmoe.ptx.engine.slow import Suspected
from refmoe.ptx.engine.undefined.follower import Following, Place
from refmoe.ptx.errors import Deadlock, MemoryFault, RaceError, UnknownOpcode, WarpError
from refmoe.ptx.text.syntax import Instruction

# Runs that each found one more instruction at which undefined values begin, before all are taken for such.
_MOST = 3


class Repeats:
    """What the next run of a launch looks at.

    Args:
        checks: what is looked for.
        code: of the entry, as it runs at first.
        joins: whether lanes may meet at several instructions.

    Attributes:
        follows: whether undefined values are followed.
    """

    def __init__(self, checks: Checks, code: Callable[[], Code], joins: bool) -> None:
        self._checks, self._code, self._joins = checks, code, joins
        self.follows = False
        self._joined: tuple[tuple[Instruction, ...], ...] = ()
        self._begins: tuple[Place, ...] = ()
        self._first: MemoryFault | None = None

    def following(self) -> Following | None:
        """What the next run knows of undefined values at its start."""
        if not self.follows:
            return None
        return Following(frozenset(self._begins), everywhere=len(self._begins) > _MOST)

    def view(self, view: View) -> View:
        """How the next run's code is made: as for its observer, and so that the machine sees every block."""
        if self.follows and not view.observed:
            view = FOLLOWING_APART if view.apart else FOLLOWING
        return view.joining(self._joined)

    def again(self, error: BaseException) -> bool:
        """Note what the next run has to look at; False if there is none.

        `error`: how the last one failed.
        """
        if self._joins and isinstance(error, UnknownOpcode) and error.alike and error.alike not in self._joined:
            self._joined = (*self._joined, error.alike)
            return True
        if not self._may_be_undefined(error):
            return False
        self.follows = True
        if (place := self._place(error)) is not None:
            self._begins = (*self._begins, place)
        if self._first is None and isinstance(error, MemoryFault):
            self._first = error
        return True

    def finding(self, error: BaseException) -> BaseException:
        """The error to raise.

        A race about bytes that were read before anybody wrote them is told as that read, and so is a deadlock: where
        lanes stand still nobody knows what they would have done with the bytes.
        """
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
