"""Litmus programs on the executor, held against their verdicts. The only module here that knows the executor.

A program agrees if a race is found exactly where the model has one, and if what a race-free program left behind is
among the outcomes that the model allows. Many programs share one kernel, because compiling takes most of the time.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from refmoe import ptx
from refmoe.errors import RefmoeError
from refmoe.litmus.emit import GLOBAL_BYTES, arch, module_text, shape
from refmoe.litmus.events import Memory
from refmoe.litmus.program import Program, walk
from refmoe.litmus.verdict import ModelVerdict

#: Programs of one kernel. More take less time each, until the kernel's size shows.
BATCH = 48
#: Blocks of code that a warp may run: more than any program needs, or a loop of plain loads before it gives way.
STEP_BUDGET = 20000
#: Programs that a report shows of each shape, cause and kind.
_SHOWN = 1

#: Programs of one kernel with their verdicts.
Batch = tuple[tuple[Program, ModelVerdict], ...]
#: The documents of a batch's observations, see `Observation.document`.
Observed = list[dict[str, Any]]

Kind = Literal["agrees", "open", "missed", "false alarm", "outside the set", "not all seen", "not ended"]
KINDS: tuple[Kind, ...] = ("agrees", "open", "missed", "false alarm", "outside the set", "not all seen", "not ended")

#: Walks from which on a program without a race has to show every outcome that the model allows.
ENOUGH_WALKS = 400
#: But one that has more outcomes than these, which need more walks.
FEW_OUTCOMES = 48
#: Walks of a program that has shown all its outcomes: a false alarm may lie on a way on which no outcome is new.
LEAST_WALKS = 48
#: A program that has not shown them all, or whose race has not been found, is walked again, so many times as often.
PATIENCE = (30, 200)


@dataclass(frozen=True)
class Observation:
    """What the launches of a program did, each under another schedule, up to the first that failed.

    Attributes:
        outcomes: of those that ended well, values of `Program.registers`, then of the cells of global memory.
        race: the sentence of the race that was found, or None.
        error: the sentence of any other error, or None.
    """

    outcomes: frozenset[tuple[int, ...]]
    race: str | None = None
    error: str | None = None

    def document(self) -> dict[str, Any]:
        """The same as a JSON value."""
        return {"outcomes": sorted(self.outcomes), "race": self.race, "error": self.error}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Observation:
        """What `document` gave."""
        outcomes = frozenset(tuple(outcome) for outcome in document["outcomes"])
        return cls(outcomes, document["race"], document["error"])


def observe(
    programs: Sequence[Program],
    schedules: int = 1,
    launch: Callable[..., Any] = ptx.launch,
    walks: int = 0,
    expected: Sequence[frozenset[tuple[int, ...]]] | None = None,
) -> Iterator[Observation]:
    """Run programs, each under so many schedules.

    Args:
        programs: to run.
        schedules: how many, from 0 on.
        launch: what runs a kernel, with the arguments of `refmoe.ptx.launch`.
        walks: how many more there may be: ways through the tree of all schedules, see `refmoe.ptx.every_walk`.
        expected: of each program the outcomes with which there are enough: it is walked until all of them were seen,
            and at least `LEAST_WALKS` times.
    """
    wanted = [None] * len(programs) if expected is None else expected
    for start in range(0, len(programs), BATCH):
        batch = programs[start : start + BATCH]
        target = "sm_90" if any(arch(each) == "sm_90" for each in batch) else "sm_80"
        module = ptx.Module.parse(module_text(batch, target), "litmus")  # type: ignore[arg-type]
        for number, program in enumerate(batch):
            seen: set[tuple[int, ...]] = set()
            failed = Observation(frozenset())
            enough = wanted[start + number]
            for count, schedule in enumerate(_schedules(schedules, walks)):
                if count >= schedules + min(walks, LEAST_WALKS) and enough is not None and seen >= enough:
                    break
                try:
                    outcome = _run(module, number, program, schedule, launch)
                except ptx.Redundant:
                    continue
                if isinstance(outcome, Observation):
                    failed = outcome
                    break
                seen.add(outcome)
            yield replace(failed, outcomes=frozenset(seen))


def _schedules(schedules: int, walks: int) -> Iterator[ptx.Schedule]:
    """So many by number; then walks; where there are more than these, drawn ones again, as many as have been walked."""
    yield from map(ptx.Schedule, range(schedules))
    walked = 0
    for way in ptx.every_walk(walks // 2):
        walked += 1
        yield ptx.Schedule(walk=way)
    if walks and walked == walks // 2:
        yield from map(ptx.Schedule, range(schedules, schedules + walks - walked))


def _run(
    module: ptx.Module, number: int, program: Program, schedule: ptx.Schedule, launch: Callable[..., Any]
) -> tuple[int, ...] | Observation:
    """The outcome of one launch, or how it failed."""
    memory = np.zeros(GLOBAL_BYTES, np.uint8)
    for at, width, value in program.initial:
        memory[at.offset : at.offset + width] = np.frombuffer(value.to_bytes(width, "little"), np.uint8)
    results = np.zeros(max(1, len(program.registers)), np.uint64)
    how = shape(program)
    cluster = (how.cluster, 1, 1) if how.cluster > 1 else None
    arguments = [ptx.Buffer(memory, "memory"), ptx.Buffer(results, "results"), number]
    try:
        launch(
            module,
            "litmus",
            (how.grid, 1, 1),
            (how.block, 1, 1),
            arguments,
            cluster=cluster,
            step_budget=STEP_BUDGET,
            schedule=schedule,
            # By the letter of PTX what is but a warning is a race, too. Nobody reads what would order it.
            checks=ptx.Checks(strict=True, explain=False),
        )
    except ptx.RaceError as race:
        return Observation(frozenset(), race=str(race))
    except ptx.MemoryFault as fault:
        # All memory is initialised, so what is not is the target of a copy that nobody has waited for.
        if fault.kind == "uninitialised":
            return Observation(frozenset(), race=str(fault))
        return Observation(frozenset(), error=str(fault))
    except RefmoeError as error:
        return Observation(frozenset(), error=f"{type(error).__name__}: {error}")
    cells = Memory(program).observed
    last = (int.from_bytes(memory[cell.start : cell.start + cell.width].tobytes(), "little") for cell in cells)
    return (*(int(value) for value in results[: len(program.registers)]), *last)


def judge_observation(verdict: ModelVerdict, observation: Observation, whole: bool = False) -> Kind:
    """Whether an observation agrees with a verdict, and if not how; `whole`: it has to have every outcome."""
    if verdict.open:
        return "open"
    if observation.error is not None:
        return "not ended"
    if observation.race is not None:
        return "agrees" if verdict.racy else "false alarm"
    if verdict.racy:
        return "missed"
    allowed = verdict.outcomes or frozenset()
    if not observation.outcomes <= allowed:
        return "outside the set"
    return "not all seen" if whole and observation.outcomes != allowed else "agrees"


def shows_all(verdict: ModelVerdict) -> bool:
    """Whether a program has to show every outcome that the model allows, if it runs often enough."""
    return verdict.outcomes is not None and len(verdict.outcomes) <= FEW_OUTCOMES


@dataclass
class LitmusReport:
    """Results by shape, cause and kind.

    Attributes:
        counts: by (shape, cause), how many of each kind.
        when: of the missed, in which executions the race is: see `ModelVerdict.when`.
        allowed, seen: outcomes that race-free programs may have, and those of them that were seen.
        equal, subset: race-free programs that showed every outcome that the model allows, and those that did not, by
            shape.
        whole: whether programs were run so often that such must show all of them, see `shows_all`.
        worst: of each shape, cause and kind that is no agreement the shortest program, with all that is known of it.
    """

    counts: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    when: Counter[str] = field(default_factory=Counter)
    allowed: int = 0
    seen: int = 0
    whole: bool = False
    equal: Counter[str] = field(default_factory=Counter)
    subset: Counter[str] = field(default_factory=Counter)
    worst: dict[tuple[str, str, str], list[dict[str, Any]]] = field(default_factory=dict)
    _lengths: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def add(self, program: Program, verdict: ModelVerdict, observation: Observation) -> Kind:
        """Take one result down."""
        kind = judge_observation(verdict, observation, self.whole and shows_all(verdict))
        self.counts.setdefault((program.shape, program.cause), Counter())[kind] += 1
        if kind == "missed":
            self.when[verdict.when] += 1
        if not verdict.racy and verdict.outcomes is not None and not verdict.open:
            self.allowed += len(verdict.outcomes)
            self.seen += len(observation.outcomes & verdict.outcomes)
            if observation.race is None and observation.error is None:
                same = observation.outcomes == verdict.outcomes
                (self.equal if same else self.subset)[program.shape] += 1
        if kind not in ("agrees", "open"):
            key = (program.shape, program.cause, kind)
            length = sum(1 for thread in program.threads for _ in walk(thread.instructions))
            if key not in self._lengths or length < self._lengths[key]:
                self._lengths[key] = length
                self.worst[key] = [_described(program, verdict, observation)][:_SHOWN]
        return kind

    @property
    def kinds(self) -> Counter[str]:
        """How many of each kind in all."""
        return sum(self.counts.values(), Counter())

    @property
    def passed(self) -> bool:
        """Whether every program agrees, or is open."""
        return not set(self.kinds) - {"agrees", "open"}

    @property
    def verdict_on_outcomes(self) -> str:
        """Whether the outcomes that were seen are those of the model, in a sentence."""
        if not self.subset:
            return f"equal in all {self.equal.total()} programs without a race"
        return (
            f"equal in {self.equal.total()} programs without a race, and a part in {self.subset.total()}: "
            f"{self.seen} of {self.allowed} outcomes"
        )

    def by_shape(self) -> dict[str, Counter[str]]:
        """How many of each kind by shape."""
        shapes: dict[str, Counter[str]] = {}
        for (shape_, _), counts in self.counts.items():
            shapes.setdefault(shape_, Counter()).update(counts)
        return shapes

    def document(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "programs": self.kinds.total(),
            "kinds": {kind: self.kinds[kind] for kind in KINDS},
            "missed_by_executions": dict(self.when),
            "allowed_outcomes": self.allowed,
            "seen_outcomes": self.seen,
            "outcomes": self.verdict_on_outcomes,
            "equal": self.equal.total(),
            "subset": self.subset.total(),
            "subset_by_shape": dict(sorted(self.subset.items())),
            "passed": self.passed,
            "causes": [
                {"shape": shape_, "cause": cause, **{kind: counts[kind] for kind in KINDS if counts[kind]}}
                for (shape_, cause), counts in sorted(self.counts.items())
            ],
            "worst": [
                {"shape": shape_, "cause": cause, "kind": kind, **each}
                for (shape_, cause, kind), shown in sorted(self.worst.items())
                for each in shown
            ],
        }


def _described(program: Program, verdict: ModelVerdict, observation: Observation) -> dict[str, Any]:
    """A program with its verdict, what was observed, and its PTX."""
    outcomes = sorted(verdict.outcomes)[:16] if verdict.outcomes is not None else None
    return {
        "program": program.key.splitlines(),
        "when": verdict.when,
        "races": [str(race) for race in verdict.races],
        "outcomes": outcomes,
        "observed": observation.race or observation.error or sorted(observation.outcomes),
        "ptx": module_text([program], arch(program)).splitlines(),
    }


def one_by_one(work: Callable[[Batch], Observed], batches: Mapping[str, Batch]) -> Mapping[str, Observed]:
    """What becomes of each batch, in this process."""
    return {name: work(batch) for name, batch in batches.items()}


def compare(
    programs: Iterable[tuple[Program, ModelVerdict]],
    schedules: int = 1,
    walks: int = 0,
    spread: Callable[[Callable[[Batch], Observed], Mapping[str, Batch]], Mapping[str, Observed]] = one_by_one,
) -> LitmusReport:
    """Run programs, each under so many schedules, and hold them against their verdicts.

    A racy program is run until a race is found, and one without a race at least until all its outcomes were seen, if
    that takes no more than so many `walks` beyond the schedules. With `ENOUGH_WALKS` those that lack something are run
    again, see `PATIENCE`, each by itself: they take by far the longest.

    Args:
        programs: programs with their verdicts.
        schedules: see `observe`.
        walks: likewise.
        spread: does the work on batches by name, and gives the results by name: here, or in other processes. A name
            says of which programs a batch is, and how often they are walked.
    """
    report = LitmusReport(whole=walks >= ENOUGH_WALKS)
    every = list(programs)
    found = dict[str, Observation]()

    def run(batches: Iterable[Batch], walks: int) -> None:
        named = {_name(batch, walks): batch for batch in batches}
        results = spread(partial(_observed, schedules, walks), named)
        for name, batch in named.items():
            for (program, _), document in zip(batch, results[name], strict=True):
                found[program.key] = Observation.of(document)

    run(_batches(every), walks)
    for times in PATIENCE if report.whole else ():
        lacking = [((program, verdict),) for program, verdict in every if _lacks(verdict, found[program.key])]
        run(lacking, times * walks)
    for program, verdict in every:
        report.add(program, verdict, found[program.key])
    return report


def _name(batch: Batch, walks: int) -> str:
    """Which programs a batch has, and how often they are walked."""
    digest = hashlib.sha256("\0".join(program.key for program, _ in batch).encode()).hexdigest()
    return f"{len(batch)} programs {digest[:16]}, {walks} walks"


def _lacks(verdict: ModelVerdict, observation: Observation) -> bool:
    """Whether more runs might find what a program lacks."""
    return judge_observation(verdict, observation, shows_all(verdict)) in ("missed", "not all seen")


def _batches(programs: Iterable[tuple[Program, ModelVerdict]]) -> Iterator[Batch]:
    """Programs in batches of one kernel each."""
    remaining = iter(programs)
    while batch := tuple(itertools.islice(remaining, BATCH)):
        yield batch


def _observed(schedules: int, walks: int, batch: Batch) -> Observed:
    """What became of a batch."""
    enough = [_enough(verdict) for _, verdict in batch]
    found = observe([program for program, _ in batch], schedules, walks=walks, expected=enough)
    return [observation.document() for observation in found]


def _enough(verdict: ModelVerdict) -> frozenset[tuple[int, ...]]:
    """The outcomes that are worth looking for. Of a racy program there are never enough."""
    if verdict.open:
        return frozenset()
    if verdict.racy or verdict.outcomes is None:
        return frozenset({()})
    return verdict.outcomes


def table(report: LitmusReport) -> list[list[str]]:
    """Rows of the table by shape and cause: those that do not agree throughout; then all by shape."""
    rows = [["shape", "cause", *KINDS]]
    for (shape_, cause), counts in sorted(report.counts.items()):
        if set(counts) - {"agrees", "open"}:
            rows.append([shape_, cause, *(str(counts[kind] or "") for kind in KINDS)])
    for shape_, counts in sorted(report.by_shape().items()):
        rows.append([shape_, "all", *(str(counts[kind] or "") for kind in KINDS)])
    return [*rows, ["all", "", *(str(report.kinds[kind]) for kind in KINDS)]]
