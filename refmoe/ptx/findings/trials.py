"""Changes that may order a race are made, one after another, and the launch is run with each.

A launch without a fault does not show that a change orders anything: under one schedule the two accesses may come as
they should by chance. So a change counts if the launch has no fault and leaves the same bytes under many schedules,
which the two accesses are free to come in another order in, if nothing orders them. One that only makes both accesses
strong never counts otherwise.

Where one change lets this race go, and another one is left in its place, the changes for that one are tried on top.

A barrier that is inserted has to be met by both threads, see `refmoe.ptx.findings.meeting`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, Protocol

from refmoe.ptx.engine.cluster.meetings import ClusterMeetings
from refmoe.ptx.engine.lanes import OutOfTime
from refmoe.ptx.errors import MemoryFault, PtxError, RaceError
from refmoe.ptx.findings.barriers import BARRIERS
from refmoe.ptx.findings.edits import Unplaced, apply
from refmoe.ptx.findings.finding import Finding
from refmoe.ptx.findings.meeting import among_themselves, exits_together, inserts_meetings, spare_barrier
from refmoe.ptx.findings.remedies import remedies
from refmoe.ptx.findings.site import UPDATES, RaceSite, Remedy, lines_of, widths
from refmoe.ptx.findings.updates import updates_of
from refmoe.ptx.module import Module

# Changes that are tried for one race, each of which is compiled and run; and instructions that are compiled for that.
_TRIALS, _COMPILED = 64, 40_000
# Steps of a launch, see `Launch.steps`, up to which it is run again with changes.
_TRIED = 1_000_000
# Schedules that a launch has to end under, where accesses may come in any order.
_FEWEST = 8
# How many changes are made on top of each other, of how many first ones that leave another race that is tried, and how
# many are tried for one race and those that are left. An unrolled loop needs one and the same change at each turn.
_DEEPEST, _BRANCHES, _ALL = 8, 2, 160
# Seconds of this process's time that changes may be tried for the races of one launch. Threads that poll are followed
# lane by lane, so that a launch of a second may take minutes under other schedules. Nobody waits for a warning so long.
_SECONDS, _WARNING_SECONDS = 30.0, 5.0


class Allowance:
    """How long changes may be tried for the races of one launch.

    Args:
        seconds: of processor time, which does not depend on what else the machine does.

    Attributes:
        most: the seconds that it began with.
        deadline: processor time at which trials end; None while nothing is tried.
        cut: whether something was left out for want of time.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = self.most = _SECONDS if seconds is None else seconds
        self.deadline: float | None = None
        self.cut = False

    def ends(self) -> bool:
        """Whether there is no time left, so that something is left out."""
        late = self.seconds <= 0 or (self.deadline is not None and time.process_time() >= self.deadline)
        self.cut = self.cut or late
        return late

    def for_warnings(self) -> None:
        """From here on it is that of warnings, if that is less than what is left."""
        if self.seconds > _WARNING_SECONDS:
            self.seconds = self.most = _WARNING_SECONDS

    @contextmanager
    def running(self) -> Iterator[None]:
        """What runs in the block uses it up."""
        begin = time.process_time()
        self.deadline = begin + self.seconds
        try:
            yield
        finally:
            self.seconds -= time.process_time() - begin
            self.deadline = None


@dataclass(frozen=True)
class Agreed:
    """What became of a launch under several schedules.

    Attributes:
        schedules: under how many it ended; 0 where it is too long for that.
        same: whether it left the same bytes under all of them.
        lines: those that it warned of, or that raced under one.
        failed: whether it had another fault under one.
        raced: whether a race ended it under one.
    """

    schedules: int
    same: bool
    lines: frozenset[int] = frozenset()
    failed: bool = False
    raced: bool = False


class Agreeing(Protocol):
    """Runs a launch under several schedules."""

    def __call__(self, module: Module, /) -> Agreed:
        """Run a module so, from the memory as it is now; memory is then as it was, and nobody sees it."""
        ...


@dataclass(frozen=True)
class Ended:
    """A launch with a change ended without a fault.

    Attributes:
        warnings: what it warned of.
        meetings: how often threads came to the barrier of their cluster, or None.
    """

    warnings: tuple[RaceError, ...]
    meetings: ClusterMeetings | None = None


# What became of a launch: a race, a read of bytes that nobody wrote, an end without a fault, or None for another fault,
# which the change itself may have made.
Outcome = RaceError | MemoryFault | Ended | None
Tried = Literal["clean", "another", "not"]


@dataclass(frozen=True)
class Change:
    """A change that was tried.

    Attributes:
        remedy: it.
        text: of the module with it.
        apart: the same text, but where inserted barriers meet only each other.
        clean: whether the launch then had no fault.
        agreed: what became of it under several schedules.
    """

    remedy: Remedy
    text: str
    apart: str
    clean: bool
    agreed: Agreed

    @property
    def mends(self) -> bool:
        """Whether it counts."""
        return self.clean and self.agreed.same and (self.remedy.orders or self.agreed.schedules >= _FEWEST)


class Trials:
    """Changes of one launch.

    Args:
        run: runs a module aside, with what became of it.
        agreeing: runs it under several schedules.
        hides: whether the fault that ends a module's launch only hides a race, which it has before or behind it, or
            which it does not come to.
        site: the code of a race of a module, or None.
        steps: how many the launch has taken so far.
        allowance: how long changes may be tried.
    """

    def __init__(
        self,
        run: Callable[[Module], Outcome],
        agreeing: Agreeing,
        hides: Callable[[RaceError | MemoryFault, RaceSite, Module], bool],
        site: Callable[[RaceError, Module], RaceSite | None],
        steps: Callable[[], int],
        allowance: Allowance,
    ) -> None:
        self._run, self._agreeing, self._hides, self._site, self._steps = run, agreeing, hides, site, steps
        self._allowance = allowance
        # What became of edited texts, and the changes that made a launch clean, with the lines that still race.
        self._modules: dict[str, Module] = {}
        self._outcomes: dict[str, Outcome] = {}
        # Whether the fault of an edited text hides the race of two lines.
        self._hidden: dict[tuple[str, frozenset[int]], bool] = {}
        self._agreed: dict[str, Agreed] = {}
        self._clean: list[tuple[Change, frozenset[int]]] = []
        # Edited texts with barriers of a cluster that the module does not have.
        self._meeting: set[str] = set()
        # How many were tried for the race that is asked for.
        self._count = 0

    def remedied(self, found: Finding, race: RaceSite, module: Module) -> Finding:
        """A finding with the change that orders its race, or with why none is known."""
        self._count = 0
        if not race.error.warning and updates_of(race):
            found = replace(found, missing=UPDATES[0], section=UPDATES[1])
        if race.twins:
            # No order is missing where one copy would do.
            return replace(found, remedy="elect.sync before it, and a branch that only the elected lane takes")
        if not self._most(race):
            remedy = next((each for each in remedies(race) if each.orders), None)
            return found if remedy is None else replace(found, remedy=remedy.words, missing=remedy.missing)
        self._loose: Remedy | None = None
        with self._allowance.running():
            change = self._best(race, module, module.text, 0)
        late = self._late() if self._allowance.cut else ""
        if change is None:
            return replace(found, why=late or self._why(race))
        return replace(
            found, missing=change.remedy.missing, remedy=change.remedy.words, tried=True, clean=change.clean,
            edited=change.text,
            section=found.section if race.error.warning == "unused value" else change.remedy.section,
            orders=change.remedy.passes_on,
            schedules=change.agreed.schedules, same=change.agreed.same, why=late,
        )  # fmt: skip

    def orders_too(self, error: RaceError, edited: str | None) -> bool:
        """Whether a change that was found for one race lets another one go, too."""
        return any(change.text == edited and error.line not in lines for change, lines in self._clean)

    def _most(self, race: RaceSite) -> int:
        """How many changes are tried at most."""
        return min(_TRIALS, _COMPILED // max(len(race.body), 1)) if self._steps() <= _TRIED else 0

    def _late(self) -> str:
        """Why no more was tried."""
        tried = f"{self._count} change{'' if self._count == 1 else 's'}"
        return f"the search ended after {tried}, because it took longer than {self._allowance.most:g} seconds"

    def _why(self, race: RaceSite) -> str:
        """Why no change is known."""
        if (differ := widths(race)) is not None:
            return (
                f"one access is of {differ[0]} bytes and the other of {differ[1]}: strong accesses excuse each "
                "other if they are of the very same bytes, so give them one width, or an order"
            )
        if race.one_store:
            return (
                "nothing orders lanes in one execution of a store: choose the lane that stores, or let each store at a "
                "place of its own"
            )
        if updates_of(race):
            return (
                "no small change makes an atomic of it: compare and swap in a loop (atomicCAS), or write it otherwise"
            )
        if self._loose is not None:
            return (
                f"with {self._loose.words} the two may come in any order, and the result depends on the schedule; "
                "it takes a wait of the one for the other"
            )
        if not self._count:
            return "no small change gives it"
        tried = f"none of {self._count} changes" if self._count > 1 else "the one change that was tried does not"
        return f"{tried} of scopes, fences, waits and barriers {'does' if self._count > 1 else ''}".rstrip()

    def _best(
        self, race: RaceSite, module: Module, apart: str, depth: int, like: list[str] | None = None
    ) -> Change | None:
        """The first change that counts; else one that leaves bytes that depend on the schedule, or another fault.

        `apart` is the module's text, but inserted barriers meet only each other.
        """
        another: list[tuple[Change, RaceError]] = []
        depends: Change | None = None
        beside: Change | None = None
        candidates = list(islice(remedies(race), self._most(race)))
        # What left this race is as good a guess for it.
        candidates.sort(key=lambda each: _texts(each) != like)
        for remedy in candidates:
            if self._count >= _ALL or self._allowance.ends():
                break
            if depth == 0 and (known := self._known(remedy, race)) is not None:
                return known
            self._count += 1
            outcome, text, left = self._tried(remedy, race, module)
            alone = self._met(remedy, race, module, apart, text) if outcome != "not" else None
            if alone is None:
                continue
            if outcome == "another" and remedy.suffices:
                change = Change(remedy, text, alone, False, Agreed(1, True))
                if left is not None:
                    another.append((change, left))
                beside = beside or change
            if outcome != "clean":
                continue
            change = Change(remedy, text, alone, True, self._under_schedules(text, module))
            if change.agreed.failed or change.agreed.lines & lines_of(race):
                continue
            if change.agreed.raced:
                # Another race shows under another schedule.
                beside = beside or (replace(change, clean=False) if remedy.suffices else None)
                continue
            if change.mends:
                self._clean.append((change, self._lines(text)))
                return change
            if remedy.suffices:
                depends = depends or change
            elif not change.agreed.same:
                self._loose = self._loose or remedy
        if depth + 1 < _DEEPEST:
            for change, left in another[: 1 if depth else _BRANCHES]:
                inner = self._edited(change.text, module)
                site = None if self._allowance.ends() else self._site(left, inner)
                if site is None or not _is_related(site, race, change.remedy):
                    continue
                more = self._best(site, inner, change.apart, depth + 1, _texts(change.remedy))
                if more is not None and more.mends:
                    return self._together(change, more)
        return depends or beside

    def _together(self, one: Change, more: Change) -> Change:
        first, then = one.remedy, more.remedy
        words = f"{first.words}, and {then.words}"
        turns = len(then.edits) // len(first.edits)
        if _texts(first) * turns == _texts(then) and len({each.at.source for each in then.edits}) == 1:
            lines = ", ".join(str(line) for line in dict.fromkeys(each.at.line for each in then.edits))
            words = f"{first.words}, and likewise at line {lines} of the same source"
        remedy = replace(first, words=words, edits=(*first.edits, *then.edits), orders=first.orders and then.orders)
        return replace(more, remedy=remedy)

    def _known(self, remedy: Remedy, race: RaceSite) -> Change | None:
        """A change like `remedy`, elsewhere, that made another race go and this one with it."""
        for change, lines in self._clean:
            if _texts(change.remedy) == _texts(remedy) and race.error.line not in lines:
                return replace(change, remedy=replace(remedy, words=change.remedy.words))
        return None

    def _tried(self, remedy: Remedy, race: RaceSite, module: Module) -> tuple[Tried, str, RaceError | None]:
        """(what became of a launch with a change, the text, the race that is left)."""
        try:
            text = apply(module.text, remedy.edits)
        except Unplaced:
            return "not", "", None
        return self._became(text, race, module)

    def _met(self, remedy: Remedy, race: RaceSite, module: Module, apart: str, text: str) -> str | None:
        """The changed text where inserted barriers meet only each other; None if one of both threads does not come.

        `text` is the one with the change, and does well.
        """
        outcome = self._outcomes.get(text)
        if _inserts_barriers_of_clusters(remedy) or module.text in self._meeting:
            self._meeting.add(text)
            if isinstance(outcome, Ended) and _only_one_came(race, outcome.meetings):
                return None
        number = spare_barrier(text)
        try:
            if number is None or not inserts_meetings(remedy.edits):
                return apply(apart, remedy.edits)
            alone = apply(apart, among_themselves(remedy.edits, number))
            if self._became(alone, race, module)[0] != "not":
                return alone
            ends = exits_together(module, number)
            together = "" if ends is None else apply(text, ends)
        except Unplaced:
            return None
        return text if together and self._became(together, race, module)[0] != "not" else None

    def _became(self, text: str, race: RaceSite, module: Module) -> tuple[Tried, str, RaceError | None]:
        """(what became of a launch with a text, the text, the race that is left)."""
        try:
            return self._seen_to(text, race, module)
        except OutOfTime:
            self._allowance.cut = True
            return "not", "", None

    def _seen_to(self, text: str, race: RaceSite, module: Module) -> tuple[Tried, str, RaceError | None]:
        """The same, unless there is no time left."""
        if text not in self._outcomes:
            self._outcomes[text] = self._outcome(text, module)
        outcome = self._outcomes[text]
        if outcome is None:
            return "not", "", None
        if isinstance(outcome, RaceError):
            same = outcome.kind == race.error.kind or outcome.buffer == race.error.buffer
            if (outcome.line in lines_of(race) and same) or self._is_hidden(text, outcome, race, module):
                return "not", "", None
            return "another", text, outcome
        if isinstance(outcome, MemoryFault):
            hidden = self._is_hidden(text, outcome, race, module)
            return ("not", "", None) if hidden else ("another", text, None)
        left = next((each for each in outcome.warnings if each.line == race.error.line), None)
        if left is not None and race.error.warning:
            return "not", "", None
        if not race.error.warning:
            # What was a fault may only lack an acquire now.
            left = left or next((each for each in outcome.warnings if each.poll is not None), None)
        return ("clean", text, None) if left is None else ("another", text, left)

    def _is_hidden(self, text: str, left: RaceError | MemoryFault, race: RaceSite, module: Module) -> bool:
        """Whether what is left in a launch with a text only hides the race."""
        key = text, lines_of(race)
        if key not in self._hidden:
            self._hidden[key] = self._hides(left, race, self._edited(text, module))
        return self._hidden[key]

    def _outcome(self, text: str, module: Module) -> Outcome:
        try:
            return self._run(self._edited(text, module))
        except MemoryFault as fault:
            # No change makes bytes that nobody wrote.
            return fault if fault.kind == "uninitialised" else None
        except PtxError:
            return None

    def _lines(self, text: str) -> frozenset[int]:
        """The lines that a launch with a text warns of."""
        outcome = self._outcomes.get(text)
        return frozenset(each.line for each in outcome.warnings) if isinstance(outcome, Ended) else frozenset()

    def _under_schedules(self, text: str, module: Module) -> Agreed:
        if text not in self._agreed:
            self._agreed[text] = self._agreeing(self._edited(text, module))
        return self._agreed[text]

    def _edited(self, text: str, module: Module) -> Module:
        if text not in self._modules:
            self._modules[text] = module.edited(text)
        return self._modules[text]


def _inserts_barriers_of_clusters(remedy: Remedy) -> bool:
    return any(BARRIERS["cluster"][1] in each.text for each in remedy.edits)


def _only_one_came(race: RaceSite, meetings: ClusterMeetings | None) -> bool:
    """Whether one of both threads of a race came to the barrier of their cluster more often than the other."""
    error = race.error
    if meetings is None or error.other_block is None or error.among is None:
        return False
    return meetings.of((error.block, error.thread)) != meetings.of((error.other_block, error.among))


def _is_related(site: RaceSite, race: RaceSite, made: Remedy) -> bool:
    """Whether a race that is left is what is left of another one, for which a change was made.

    It lacks an acquire, is of the same source, or is an update as the other one.
    """
    left = site.error
    unrolled = left.source is not None and left.source == race.error.source
    updates = made.updates and bool(updates_of(site))
    return left.poll is not None or left.line in lines_of(race) or unrolled or updates


def _texts(remedy: Remedy) -> list[str]:
    return [each.text for each in remedy.edits]
