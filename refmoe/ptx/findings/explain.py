"""Launches that raced are run again: to know both accesses, and to find out what orders them.

Launches are deterministic, and one that fails leaves memory as it was. So everything said of a race is seen in runs of
the same launch: the earlier access by a `RaceWitness`, and the change that orders both by making it, see
`refmoe.ptx.findings.trials`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from refmoe.ptx.engine.cluster.meetings import ClusterMeetings
from refmoe.ptx.engine.lanes import Checks, OutOfTime
from refmoe.ptx.engine.order.witness import RaceWitness, RacingPair
from refmoe.ptx.errors import Index3, MemoryFault, PtxError, RaceError
from refmoe.ptx.findings.accesses import Accessed, kind_of
from refmoe.ptx.findings.collective import ALL_LANES, consumers, meeting_at, members
from refmoe.ptx.findings.edits import PtxEdit, Unplaced, apply
from refmoe.ptx.findings.finding import Finding
from refmoe.ptx.findings.site import RaceSite, Relation, lines_of
from refmoe.ptx.findings.trials import Agreed, Agreeing, Allowance, Ended, Outcome, Trials
from refmoe.ptx.module import Module
from refmoe.ptx.text.syntax import Function, Instruction, in_source

# Steps of a launch, see `Launch.steps`, up to which it is run again with a witness.
LONGEST_SEEN = 20_000_000
# Warnings of one launch that are explained.
_WARNINGS = 4
# Entries whose collectives are looked at.
_LONGEST_COLLECTIVE = 50_000
# Relations beyond a block, the widest first.
_WIDER: tuple[Relation, ...] = ("grid", "cluster")
_EXPLAINS: ContextVar[bool] = ContextVar("explains", default=True)
_GUARD = re.compile(r"@!?\s*\S+\s+")


class Counted(Protocol):
    """A launch in which it was counted who met whom."""

    @property
    def meetings(self) -> ClusterMeetings | None:
        """How often threads came to the barrier of their cluster, or None where nobody has."""
        ...


class EndedLaunch(Protocol):
    """A launch that ended well, and whose bytes nobody has yet."""

    @property
    def warnings(self) -> tuple[RaceError, ...]:
        """What it warned of."""
        ...

    @property
    def ran(self) -> Counted:
        """What is known of it besides."""
        ...

    def take_back(self) -> None:
        """Leave memory as it was."""
        ...


T = TypeVar("T", bound=EndedLaunch)
R = TypeVar("R", bound=EndedLaunch, covariant=True)


@contextmanager
def unexplained() -> Iterator[None]:
    """Launches in the block, of this thread, that race say no more than that.

    Nothing is run again, neither to explain a race nor to find out whether anybody uses the value that was read.
    """
    token = _EXPLAINS.set(False)
    try:
        yield
    finally:
        _EXPLAINS.reset(token)


def runs_again() -> bool:
    """Whether launches that race are run again: not in a block of `unexplained`."""
    return _EXPLAINS.get()


class Attempt(Protocol[R]):
    """Runs the launch once more."""

    def __call__(self, module: Module, exact: frozenset[str], witness: RaceWitness | None, aside: bool, /) -> R:
        """Run it from the memory as it is now.

        Args:
            module: its own, or an edited one.
            exact: names of regions of which every access is kept.
            witness: who takes down accesses, or None.
            aside: whether nobody is to see it: no observer, and no reader of what it prints.

        Raises:
            PtxError: what went wrong; memory is then as it was.
        """
        ...


@dataclass(frozen=True)
class LaunchShape:
    """The launch: threads of a block, blocks of a cluster."""

    block: Index3
    cluster: Index3

    def relation(self, one: tuple[Index3, Index3 | None], other: tuple[Index3, Index3 | None]) -> Relation:
        """What two threads, as (block, thread), have in common; of an unknown thread the block counts."""
        (block, thread), (other_block, other_thread) = one, other
        if block != other_block:
            clusters = [tuple(b // c for b, c in zip(each, self.cluster, strict=True)) for each in (block, other_block)]
            return "cluster" if clusters[0] == clusters[1] and math.prod(self.cluster) > 1 else "grid"
        if thread is None or other_thread is None:
            return "block"
        if thread == other_thread:
            return "thread"
        return "warp" if self._warp(thread) == self._warp(other_thread) else "block"

    def _warp(self, thread: Index3) -> int:
        x, y, z = thread
        return (x + self.block[0] * (y + self.block[1] * z)) // 32


def settled(
    module: Module,
    checks: Checks,
    shape: LaunchShape,
    attempt: Attempt[T],
    reading_all: Attempt[T],
    agreeing: Agreeing,
    seen: bool,
    steps: Callable[[], int],
    allowance: Allowance,
) -> tuple[T, tuple[RaceError, ...]]:
    """Run a launch until what it found is certain.

    Args:
        module: that is launched.
        checks: of the launch.
        shape: of the launch.
        attempt: runs it.
        reading_all: runs it, and lets threads read bytes that nobody wrote.
        agreeing: runs it with a change, under several schedules.
        seen: whether observers see it, who cannot see it twice.
        steps: how many it has taken so far.
        allowance: how long changes may be tried.

    Returns:
        the launch that ended well, and what it warned of.

    Raises:
        RaceError: with its finding, if the checks ask for that.
        PtxError: what else went wrong.
    """
    # Not made for a launch without races: it refers to itself, and with it the caller's arrays would outlive the launch
    # until the garbage collector runs.
    explainer: Explainer | None = None
    explains = checks.explain and _EXPLAINS.get()
    exact: frozenset[str] = frozenset()
    running, milder = module, list[RaceError]()
    while True:
        try:
            outcome = attempt(running, exact, None, False)
        except RaceError as error:
            if not error.certain and error.buffer not in exact:
                # It is suspected: look again, at all that happens to that buffer.
                exact |= {error.buffer}
                continue
            if not explains or steps() > LONGEST_SEEN:
                raise
            explainer = explainer or Explainer(module, shape, attempt, agreeing, steps, allowance)
            consumed = explainer.collective(error, running, exact)
            if consumed is None:
                raise explainer.explained(error, running, exact).with_traceback(error.__traceback__) from None
            warning, running = consumed
            if checks.strict:
                raise warning.with_traceback(error.__traceback__) from None
            milder.append(warning)
            continue
        except MemoryFault as fault:
            if fault.kind != "uninitialised" or not explains or steps() > LONGEST_SEEN:
                raise
            explainer = Explainer(module, shape, attempt, agreeing, steps, allowance, reading_all)
            raise explainer.too_early(fault, running).with_traceback(fault.__traceback__) from None
        if not outcome.warnings or not explains or seen or steps() > LONGEST_SEEN:
            return outcome, (*outcome.warnings, *milder)
        outcome.take_back()
        allowance.for_warnings()
        explainer = explainer or Explainer(module, shape, attempt, agreeing, steps, allowance)
        found = [explainer.explained(each, running, exact) for each in outcome.warnings[:_WARNINGS]]
        rest = outcome.warnings[_WARNINGS:]
        return attempt(running, exact, None, False), (*found, *rest, *milder)


@dataclass(frozen=True)
class Consumed:
    """Racing values that collectives consumed.

    Attributes:
        by: the collectives.
        edited: the module in which lanes meet there.
        clean: whether a launch of that had no race.
        agreed: what became of it under several schedules.
    """

    by: tuple[Instruction, ...]
    edited: Module
    clean: bool
    agreed: Agreed


class Explainer:
    """Explains the races of one launch.

    Args:
        module: that was launched.
        shape: of the launch.
        attempt: runs it.
        agreeing: runs it with a change, under several schedules.
        steps: how many it has taken so far.
        allowance: how long changes may be tried.
        seeing: runs the launch for who is to see its accesses, if that is another way.
    """

    def __init__(
        self,
        module: Module,
        shape: LaunchShape,
        attempt: Attempt[EndedLaunch],
        agreeing: Agreeing,
        steps: Callable[[], int],
        allowance: Allowance,
        seeing: Attempt[EndedLaunch] | None = None,
    ) -> None:
        self._module, self._shape, self._attempt = module, shape, attempt
        self._seeing = attempt if seeing is None else seeing
        self._agreeing, self._allowance = agreeing, allowance
        self._trials = Trials(self._became, agreeing, self._hides, self._site, steps, allowance)
        # Collectives at which lanes meet in the module that runs.
        self._met: set[Instruction] = set()
        # Who saw a region last, which is asked for once for each race there: the module, what is kept exactly.
        self._last: tuple[Module, frozenset[str], RaceWitness] | None = None

    def seen(self, error: RaceError, module: Module, exact: frozenset[str]) -> RacingPair:
        """A race as a witness saw it: with its earlier instruction, and what else the two instructions hit."""
        pairs = self._witnessed(error.buffer, module, exact).pairs
        alike = [pair for (kind, line, _), pair in pairs.items() if (kind, line) == (error.kind, error.line)]
        # A warning may have been met at another byte before.
        known = [pair for pair in alike if pair.error.offset == error.offset or error.offset in pair.bytes]
        exactly = [pair for pair in known if pair.error.earlier is not None] or known or alike
        return exactly[0] if exactly else RacingPair(error, {error.offset}, {0})

    def _witnessed(self, region: str, module: Module, exact: frozenset[str]) -> RaceWitness:
        """A witness of all races in a region."""
        if self._last is not None and self._last[0] is module and self._last[1] == exact:
            witness = self._last[2]
            if region in witness.regions:
                return witness
        witness = RaceWitness(region)
        # Behind a race anything may go wrong.
        with suppress(PtxError, OutOfTime):
            self._seeing(module, exact, witness, True).take_back()
        self._last = module, exact, witness
        return witness

    def too_early(self, fault: MemoryFault, module: Module) -> MemoryFault:
        """A read of bytes that nobody wrote; with its race, if another thread writes them and nothing orders the two.

        So it is where a barrier is missing behind the first writes of shared memory.
        """
        exact: frozenset[str] = frozenset()
        while True:
            try:
                self._seeing(module, exact, None, True).take_back()
                return fault
            except RaceError as error:
                if not error.certain and error.buffer not in exact:
                    exact |= {error.buffer}
                    continue
                if (error.space, error.buffer) != (fault.space, fault.buffer) or error.warning:
                    return fault
                pair, offset = self.seen(error, module, exact), fault.offset or 0
                threads = {thread for sides in pair.sides for thread in sides}
                touched = not pair.bytes.isdisjoint(range(offset, offset + fault.size))
                if not touched and (fault.block, fault.thread) not in threads:
                    # It is a race of other threads, at other bytes.
                    return fault
                race = self.explained(error, module, exact)
                return fault.of(race) if fault.line in lines_of(race) else fault
            except (PtxError, OutOfTime):
                return fault

    def explained(self, error: RaceError, module: Module, exact: frozenset[str]) -> RaceError:
        """A race of a module that ran, with its finding."""
        pair = self.seen(error, module, exact)
        race = self._race(error, pair, self._witnessed(error.buffer, module, exact), self._module)
        later = Accessed(
            *kind_of(opcode_of(error)), block=error.block, thread=error.thread, line=error.line, source=error.source,
            callers=error.callers, text=error.text,
        )  # fmt: skip
        earlier = None
        if pair.error.earlier is not None:
            earlier = Accessed.of(pair.error.earlier, error.other_block, error.among)
        missing, section = ("", "") if race is None else race.default
        found = Finding(
            later, earlier, missing, "", False, False, None, len(pair.bytes), len(pair.threads), pair.more, section,
            "of the grid before this one" if error.kind == "previous grid" else "not known",
        )  # fmt: skip
        if race is not None:
            found = self._remedied(found, race, module)
        if error.poll is not None:
            pairs = self._witnessed(error.buffer, module, exact).pairs.values()
            others = {each.error.line: each.error for each in pairs if each.error.cause == error.cause}
            others.pop(error.line, None)
            found = replace(found, also=tuple(_place(each) for _, each in sorted(others.items())))
        return error.explained(found, earlier=pair.error.earlier)

    def _remedied(self, found: Finding, race: RaceSite, module: Module) -> Finding:
        """A finding with the change that orders its race.

        A program launches one kernel many times. What was tried at the first launch is not tried again.
        """
        error, earlier = race.error, race.earlier
        key = ("remedy", error.kind, error.warning, error.line, earlier and earlier.line)
        known = module.told.get(key)
        if known is not None:
            return found.again(known)
        found = self._trials.remedied(found, race, module)
        if found.tried or found.why:
            module.told[key] = found
        return found

    def _site(self, error: RaceError, module: Module) -> RaceSite | None:
        """A race of an edited module, with its code there."""
        exact = frozenset[str]() if error.certain else frozenset((error.buffer,))
        pair = self.seen(error, module, exact)
        return self._race(error, pair, self._witnessed(error.buffer, module, exact), module)

    def _race(self, error: RaceError, pair: RacingPair, witness: RaceWitness, module: Module) -> RaceSite | None:
        """The race with its code; None where the text has no such instruction."""
        for function in _functions(module):
            body = function.body or ()
            later = next((each for each in body if isinstance(each, Instruction) and _is(each, error)), None)
            if later is not None:
                first = pair.error.earlier
                earlier = first if isinstance(first, Instruction) else None
                one, other = (error.block, error.thread), (error.other_block, error.among)
                sides = (each for (_, line, _), of in witness.pairs.items() if line == error.line for each in of.sides)
                warps = any(self._shape.relation(*each) == "block" for each in sides)
                # The same two instructions may race within a block and between blocks: an order has to have all.
                wider = {self._shape.relation(*each) for each in pair.sides}
                relation = next((each for each in _WIDER if each in wider), self._shape.relation(one, other))
                return RaceSite(error, later, earlier, body, relation, warps)
        return None

    def _became(self, module: Module) -> Outcome:
        """What became of a launch of an edited module."""
        try:
            outcome = self._run_certainly(module)
        except RaceError as error:
            return error
        outcome.take_back()
        return Ended(outcome.warnings, outcome.ran.meetings)

    def _hides(self, left: RaceError | MemoryFault, race: RaceSite, module: Module) -> bool:
        """Whether the fault that ends a launch of an edited module only hides a race there.

        Behind another race the launch goes on with a witness. Behind a read of bytes that nobody wrote it does not: it
        has to have come to both accesses before.
        """
        lines = lines_of(race)
        regions = {race.error.buffer} | ({left.buffer} if isinstance(left, RaceError) else set())
        witness = RaceWitness(*regions)
        with suppress(PtxError):
            self._attempt(module, frozenset(regions), witness, True).take_back()
        if any(lines == lines_of(pair.error) for pair in witness.pairs.values()):
            return True
        return isinstance(left, MemoryFault) and not lines <= witness.lines(race.error.buffer)

    def _run_certainly(self, module: Module) -> EndedLaunch:
        """Run a module aside; a race that is only suspected is looked for again."""
        exact: frozenset[str] = frozenset()
        while True:
            try:
                return self._attempt(module, exact, None, True)
            except RaceError as error:
                if error.certain or error.buffer in exact:
                    raise
                exact |= {error.buffer}

    # Values that a collective consumed

    def collective(self, error: RaceError, module: Module, exact: frozenset[str]) -> tuple[RaceError, Module] | None:
        """The warning that a race is, and the module in which lanes meet where its values were consumed; or None."""
        if error.kind != "read-write" or error.warning or error.space != "shared":
            return None
        pair = self.seen(error, module, exact)
        load = pair.error.earlier
        if not isinstance(load, Instruction):
            return None
        key = ("collective", error.line, load.line)
        known: Consumed | None = module.told.get(key)
        if known is not None and self._met.isdisjoint(known.by):
            self._met.update(known.by)
            return _milder(error, pair, known, before=True), known.edited
        for function in _functions(self._module):
            body = function.body or ()
            if len(body) > _LONGEST_COLLECTIVE:
                continue
            found = consumers(body, load)
            new = [each for each in found if each not in self._met]
            if not new:
                continue
            clean = True
            try:
                edited = module.edited(apply(module.text, [PtxEdit(each, "before", meeting_at(each)) for each in new]))
                self._run_certainly(edited).take_back()
            except RaceError as other:
                clean = False
                if (other.kind, other.line) == (error.kind, error.line):
                    return None
            except (Unplaced, PtxError):
                return None
            self._met.update(new)
            with self._allowance.running():
                agreed = self._agreeing(edited)
            module.told[key] = consumed = Consumed(tuple(found), edited, clean, agreed)
            return _milder(error, pair, consumed), edited
        return None


def _functions(module: Module) -> Iterator[Function]:
    for name, function in list(module.declared.items()):
        whole = module.read(name)
        yield function if whole is None else whole


def _milder(error: RaceError, pair: RacingPair, consumed: Consumed, before: bool = False) -> RaceError:
    """The warning that an error is, whose values were consumed. `before`: in an earlier launch of the module, too."""
    found, agreed = consumed.by, consumed.agreed
    taken = ", ".join(str(each.line) for each in found[:_WARNINGS])
    load = pair.error.earlier
    assert load is not None
    masks = dict.fromkeys(map(members, found))
    whole, meets = [*masks] == [ALL_LANES], ", ".join(f"bar.warp.sync {mask}" for mask in masks)
    missing = (
        "a meeting of the warp between what took the values and the lane that signals for all: "
        f"{found[0].opcode.split('.')[0]} of line {taken} took them, and orders no memory"
    )
    finding = Finding(
        Accessed(
            *kind_of(opcode_of(error)), error.block, error.thread, error.line, error.source, error.callers, error.text
        ),
        Accessed.of(load, error.other_block, error.among), missing,
        f"{'__syncwarp()' if whole else '__syncwarp(mask)'} ({meets}) at line {taken}, before the signal", True,
        consumed.clean,
        consumed.edited.text, len(pair.bytes), len(pair.threads), pair.more, "values-that-a-collective-took",
        schedules=0 if agreed.failed else agreed.schedules, same=agreed.same or agreed.failed, before=before,
    )  # fmt: skip
    return error.explained(finding, earlier=load, warning="warp-collective")


def _place(error: RaceError) -> str:
    return f"line {error.line}{in_source(error.source, error.callers)}"


def opcode_of(error: RaceError) -> str:
    """The opcode of the later access."""
    return _GUARD.sub("", error.text).split()[0].rstrip(";")


def _is(instruction: Instruction, error: RaceError) -> bool:
    return instruction.line == error.line and instruction.text == error.text
