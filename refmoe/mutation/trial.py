"""One mutant, tried: built, run on the cases that reach it until one fails, and compared as machine code if none does.

What is tried never changes what this process holds, but for host code: a mutant of it is put in place of the real
one. So each trial runs in a forked child, see `refmoe.mutation.forked`.
"""

from __future__ import annotations

import functools
import re
import signal
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from refmoe.chips import kernel_chip
from refmoe.cuda.device import LaunchRecord, PtxDevice
from refmoe.cuda.launch import Entry, LaunchPlan
from refmoe.cuda.toolchain import CSRC, with_includes
from refmoe.errors import RefmoeError
from refmoe.families import FAMILIES
from refmoe.families.family import Case, Expectation, Inputs
from refmoe.families.wrong import is_wrong
from refmoe.mutation import host
from refmoe.mutation import ptx as ptx_operators
from refmoe.mutation.entries import (
    DoesNotBuild,
    changed_tree,
    compiled_entries,
    machine_code_sha256,
    on_one_arch,
    same_machine_code,
    sound_entries,
    sound_text,
)
from refmoe.mutation.proofs.bounds import within_bounds
from refmoe.mutation.proofs.differences import proof
from refmoe.mutation.proofs.equality import proof_of_same_kernel
from refmoe.mutation.proofs.program import sound
from refmoe.mutation.proofs.statements import same_module
from refmoe.mutation.reach import HOST, EntryKey, Reach, default_cases, in_order
from refmoe.mutation.site import Site
from refmoe.ptx import Module
from refmoe.ptx.errors import ArgumentMismatch, Contraction, ParseError, UnknownOpcode
from refmoe.ptx.findings import unexplained
from refmoe.reports.mutation import EVERY_VALUE
from refmoe.verify.certified import CERTIFIED, COUNTED
from refmoe.verify.kernel import Devices, Kernel
from refmoe.verify.plant import CATCHING, FaultResult
from refmoe.verify.runner import run_case
from refmoe.verify.verdict import Result, Verdict

Outcome = Literal["caught", "timed out", "equivalent", "does not build", "survived"]

#: Cases that a mutant meets before anything dear is done for it: its whole source compiled, machine code compared.
FIRST_CASES = 6

#: CPU seconds of this process that one case may take; the sound kernels' dearest takes a few.
CASE_SECONDS = 30.0

#: Seconds from its beginning after which a trial gives a proof up: the mutant lives. They are less than
#: `refmoe.mutation.forked.TRIAL_SECONDS`, since a trial without an answer counts as caught.
PROOF_SECONDS = 3000.0

#: A constant of a CUDA source: a declaration on one line.
_CONSTANT = re.compile(r"\s*constexpr\s+[\w:]+\s+\w+\s*=[^;]*;\s*(?://.*)?$")

#: Operators on host code whose mutants meet calls that have to be refused before all others.
_OF_CHECKS = frozenset(("dropped-check", "guard", "logic", "off-by-one", "relation"))

#: Bytes of inputs and expectations that are kept for the next mutants.
PROBLEM_BYTES = 2 << 30


@dataclass(frozen=True)
class Tried:
    """What became of one mutant.

    Attributes:
        id: the mutant's.
        floor, kernel, operator: see `Site`.
        outcome: "caught": a case failed. "timed out": a case took too long, which counts as caught. "equivalent": the
            machine code is the same, or a machine proof says that nobody sees a difference. "does not build": the
            compiler or the assembler refuses it. "survived": none of these.
        case: the case that failed or took too long, None if none did.
        check: what caught it: "bytes", a check of the executor, "warning" or "refusal"; of an equivalent one "PTX",
            "SASS", "proof", or `EVERY_VALUE`.
        finding: the first mismatch, the fault, the compiler's words, or the proof in a few.
        cases: cases run.
        reached: cases that reach it.
        seconds: CPU seconds that it took, the compiler's left out.
        runs: of one that was tried on every value, what was tried: documents of `refmoe.mutation.proofs.trials.Trial`.
    """

    id: str
    floor: str
    kernel: str
    operator: str
    outcome: Outcome
    case: str | None
    check: str | None
    finding: str | None
    cases: int
    reached: int
    seconds: float
    runs: Sequence[Mapping[str, Any]] = ()

    def document(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)


class _TookTooLong(BaseException):
    """A case or a proof took more seconds than it may. No handler of errors may take it for one."""


@dataclass
class Problems:
    """Inputs and expectations of cases, kept up to `PROBLEM_BYTES`."""

    held: dict[Case, tuple[Inputs, Expectation]] = field(default_factory=dict)
    size: int = 0

    def of(self, case: Case, compute: Callable[[Case], tuple[Inputs, Expectation]]) -> tuple[Inputs, Expectation]:
        """The problem of a case."""
        data = case.data
        if data in self.held:
            return self.held[data]
        problem = compute(case)
        arrays = [*problem[0].values(), *problem[1].outputs.values()]
        size = sum(getattr(array, "nbytes", 0) for array in arrays)
        if self.size + size <= PROBLEM_BYTES:
            self.held[data] = problem
            self.size += size
        return problem


PROBLEMS = Problems()


@dataclass
class _TrialKernel(Kernel):
    """refmoe's own kernel, whose problems are kept."""

    def problem(self, case: Case) -> tuple[Inputs, Expectation]:
        # The expectation of a wrong call is empty, and its data are those of a case.
        return super().problem(case) if is_wrong(case) else PROBLEMS.of(case, super().problem)

    def source_sha256(self) -> str | None:
        return None  # the outcome of a trial is no evidence of the kernel


ModuleOf = Callable[[EntryKey], Module]


@functools.lru_cache(maxsize=512)
def sound_module(key: EntryKey) -> Module:
    """The module of one entry as it is."""
    return Module.parse(sound_text(key), name=f"{key[0]}.{key[2]}.ptx", strict=True)


def _without_counted(record: LaunchRecord) -> LaunchRecord:
    """A launch without the approximations that the certificate of the sound kernel counts.

    The text of a trial says of no instruction where it stands in the source, and a certificate asks for that. No
    operator makes another approximation of these opcodes.
    """
    result = record.result
    if result is None or record.kernel.source not in CERTIFIED:
        return record
    found = zip(result.approximate, result.approximate_at, strict=True)
    kept = [(what, at) for what, at in found if what[0] not in COUNTED]
    left = replace(result, approximate=tuple(each[0] for each in kept), approximate_at=tuple(each[1] for each in kept))
    return replace(record, result=left)


@dataclass
class _TrialDevice(PtxDevice):
    """An executor that is given the module of each entry, rather than compiling it."""

    module_of: ModuleOf = field(default=sound_module)
    unforeseen: bool = False  # a launch was not as proofs take it for granted

    def launch(self, plan: LaunchPlan) -> None:
        text = sound_text((plan.kernel.source, plan.kernel.entry, self.arch))
        # A sample of a large problem has a grid that no caller launches.
        grid = plan.grid if plan.blocks is None else 0
        foreseen = sound(plan, text) and within_bounds(plan.kernel.entry, grid, plan.arguments)
        self.unforeseen |= not foreseen
        super().launch(plan)
        self.launches[-1] = _without_counted(self.launches[-1])

    def _module(self, kernel: Entry) -> Module:
        return self.module_of((kernel.source, kernel.entry, self.arch))


@dataclass
class _TrialDevices(Devices):
    """Executors for one mutant."""

    module_of: ModuleOf = field(default=sound_module)

    def _opened(self, case: Case) -> PtxDevice:
        chip = kernel_chip(case.arch)
        multiprocessors = int(case.get("multiprocessors", 0)) or chip.multiprocessors
        return _TrialDevice(chip.arch, multiprocessors, CSRC, module_of=self.module_of)


SOUND = _TrialDevices()


@functools.cache
def warm(name: str) -> Verdict:
    """Run a case on the sound kernels, so that trials after it find its problem and its modules at hand."""
    case = default_cases()[name]
    result = run_case(_TrialKernel(case.family, SOUND), case)
    SOUND.get(case).launches.clear()
    if (found := _caught(result, case)) is not None:
        raise RefmoeError(f"{name}: the kernels as they are fail this case by {found}, so it says nothing of a mutant")
    return result.verdict


def prepare(name: str) -> None:
    """Compute the problem of a case, so that trials after it find it at hand."""
    case = default_cases()[name]
    _TrialKernel(case.family, SOUND).problem(case)


class Catalogue:
    """What every case reaches, by entry and by line of host code.

    Args:
        reached: of every case that mutants are tried on.
    """

    def __init__(self, reached: Iterable[Reach]) -> None:
        self.reached = in_order(reached)
        self.entries: dict[EntryKey, list[Reach]] = {}
        self.sources: dict[str, list[Reach]] = {}
        self.lines: dict[tuple[str, int], list[Reach]] = {}
        for each in self.reached:
            for key in sorted(each.entries):
                self.entries.setdefault(key, []).append(each)
            for source in sorted({key[0] for key in each.entries}):
                self.sources.setdefault(source, []).append(each)
            for place in each.lines:
                self.lines.setdefault(place, []).append(each)

    def of_site(self, site: Site) -> list[Reach]:
        """The cases that may reach a site, in order."""
        if site.floor == "ptx":
            return self.entries.get(ptx_operators.key_of(site), [])
        if site.floor == "cuda":
            including = {source for source in self.sources if _includes(source, site.file)}
            return [each for each in self.reached if any(key[0] in including for key in each.entries)]
        if host.is_global(site.file, site.line):
            files = {file for file, _ in self.lines}
            wanted = {site.file} & files
            found = [each for each in self.reached if any(file in wanted for file, _ in each.lines)]
        else:
            lines = {(site.file, line) for line in host.statement_lines(site.file, site.line)}
            found = [each for each in self.reached if lines & each.lines]
        if site.operator in _OF_CHECKS:
            # Calls that have to be refused launch nothing, and what refuses them is what such operators change most.
            found.sort(key=lambda each: not is_wrong(default_cases()[each.case]))
        return found


@functools.cache
def _includes(source: str, file: str) -> bool:
    return any(path.name == file for path in with_includes(CSRC / f"{source}.cu"))


def attempt(site: Site, catalogue: Catalogue, most: int | None = None) -> Tried:
    """Try a mutant in this process, which must be one of its own.

    Args:
        site: the mutant.
        catalogue: what each case reaches.
        most: cases that are run at most, for a quick look; what survives them has more of them before it.
    """
    start = time.process_time()
    trial = _Trial(site, catalogue, most)
    try:
        found = {"cuda": trial.cuda, "ptx": trial.ptx, "host": trial.host}[site.floor]()
    except DoesNotBuild as error:
        found = {"outcome": "does not build", "finding": str(error)}
    except _TookTooLong:
        found = {"outcome": "timed out", "case": trial.running, "check": "time"}
    facts = {"outcome": "survived", "case": None, "check": None, "finding": None, **found}
    return Tried(
        site.id,
        site.floor,
        site.kernel,
        site.operator,
        cases=trial.ran,
        reached=len(trial.reached),
        seconds=round(time.process_time() - start, 2),
        **facts,
    )


class _Trial:
    """The trial of one mutant."""

    def __init__(self, site: Site, catalogue: Catalogue, most: int | None) -> None:
        self.site = site
        self.most = most
        self.catalogue = catalogue
        self.reached = catalogue.of_site(site)
        self.running = ""
        self.ran = 0
        self.done: set[str] = set()
        self.begun = time.monotonic()
        self.sound_launches = True  # as far as they are launched; a proof takes it for granted

    def ptx(self) -> dict[str, Any]:
        """A mutant of one entry's PTX."""
        key = ptx_operators.key_of(self.site)
        text = self.site.applied(sound_text(key))
        texts = {key: text}
        return (
            self.run(self.reached[:FIRST_CASES], texts)
            or self.equal(texts, [key])
            or self.run(self.reached[FIRST_CASES:], texts)
            or self.proven(texts)
        )

    def proven(self, texts: Mapping[EntryKey, str]) -> dict[str, Any]:
        """Whether a survivor's entries are proven to be the sound ones; {} if not, or for a quick look.

        Cases come first: so each of them can tell that a proof is wrong. A proof that takes too long is none.
        """
        left = PROOF_SECONDS - (time.monotonic() - self.begun)
        if self.most is not None or not self.sound_launches or left <= 0:
            return {}
        try:
            with _limited(left, wall=True):
                return self._proven(texts)
        except _TookTooLong:
            return {}

    def _proven(self, texts: Mapping[EntryKey, str]) -> dict[str, Any]:
        reasons = []
        runs: list[dict[str, Any]] = []
        for key in on_one_arch(texts):
            sound = sound_text(key)
            # What differs in one instruction is followed on; what differs in more is laid beside the other.
            why = proof(self.site, sound) if self.site.floor == "ptx" else None
            if why is None:
                found = proof_of_same_kernel(sound, texts[key])
                if found is None:
                    return {}
                why = found.words
                runs += [run for each in found.trials if (run := asdict(each)) not in runs]
            reasons.append(why)
        check = EVERY_VALUE if runs else "proof"
        return {
            "outcome": "equivalent",
            "check": check,
            "finding": "; ".join(sorted(set(reasons))),
            "runs": tuple(runs),
        }

    def cuda(self) -> dict[str, Any]:
        """A mutant of a CUDA source or header."""
        text = self.site.applied((CSRC / self.site.file).read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory(prefix="refmoe-mutant-") as scratch:
            tree = changed_tree(self.site.file, text, Path(scratch) / "tree")
            first = self.reached[:FIRST_CASES]
            changed = {source for source in self.catalogue.sources if _includes(source, self.site.file)}
            wanted = sorted({key for each in first for key in each.entries if key[0] in changed})
            texts: dict[EntryKey, str] = {}
            # One entry says whether it builds, and one case catches most mutants.
            for source, arch in sorted({(key[0], key[2]) for key in wanted}):
                names = {key[1] for key in wanted if (key[0], key[2]) == (source, arch)}
                made = compiled_entries(tree, source, arch, names)
                texts |= {(source, name, arch): _made(made, name) for name in names}
            different = set(_differing(texts))
            found = self.run([each for each in first if each.entries & different], texts)
            if found:
                return found
            places = sorted({(key[0], key[2]) for each in self.reached for key in each.entries if key[0] in changed})
            for source, arch in places:
                made = compiled_entries(tree, source, arch)
                texts |= {(source, name, arch): _made(made, name) for name in sound_entries(source, arch)}
        different = set(_differing(texts))
        if not different:
            return {"outcome": "equivalent", "check": "PTX"}
        self.reached = [each for each in self.reached if each.entries & different]
        return (
            self.equal(texts, different)
            or self.run(self.reached, texts)
            or self.proven({key: texts[key] for key in different})
            or self.same_but_for_hints(text, different)
        )

    def same_but_for_hints(self, text: str, different: Iterable[EntryKey]) -> dict[str, Any]:
        """Whether a changed constant tells the assembler how many CTAs are to fit, and is used for nothing else.

        Without such hints the compiler makes the same text of both sources. What they compute depends on no hint.
        A constant has no undefined behaviour, which the compiler could use. {} if it is not so.
        """
        if self.most is not None or not _CONSTANT.match(text.splitlines()[self.site.line - 1]):
            return {}
        with tempfile.TemporaryDirectory(prefix="refmoe-mutant-") as scratch:
            tree = changed_tree(self.site.file, text, Path(scratch) / "tree")
            for source, arch in sorted({(key[0], key[2]) for key in different}):
                made = [compiled_entries(each, source, arch, hints=False) for each in (CSRC, tree)]
                if made[0] != made[1]:
                    return {}
        finding = "it hints how many CTAs are to fit a multiprocessor, and is used for nothing else"
        return {"outcome": "equivalent", "check": "proof", "finding": finding}

    def host(self) -> dict[str, Any]:
        """A mutant of host code."""
        sound = (HOST / self.site.file).read_text(encoding="utf-8")
        text = self.site.applied(sound)
        try:
            host.put_in_place(self.site.file, text)
        except Exception as error:
            # Every import of the module would fail so, unless it is the module that cannot be run a second time: then
            # this raises, too, and nothing is said of the mutant.
            host.put_in_place(self.site.file, sound)
            return {"outcome": "does not build", "finding": f"{type(error).__name__}: {error}"}
        return self.run(self.reached, {}) or self.same(text)

    def same(self, text: str) -> dict[str, Any]:
        """Whether a survivor of host code is proven to be the sound module; {} if not, or for a quick look."""
        why = same_module((HOST / self.site.file).read_text(encoding="utf-8"), text) if self.most is None else None
        return {} if why is None else {"outcome": "equivalent", "check": "proof", "finding": why}

    def equal(self, texts: Mapping[EntryKey, str], different: Iterable[EntryKey]) -> dict[str, Any]:
        """Whether the machine code of entries whose text differs is as it was; {} if not, or for a quick look."""
        if self.most is not None:
            return {}
        if all(same_machine_code(texts[key], key) for key in on_one_arch({key: texts[key] for key in different})):
            return {"outcome": "equivalent", "check": "SASS"}
        return {}

    def run(self, cases: Iterable[Reach], texts: Mapping[EntryKey, str]) -> dict[str, Any]:
        """Run cases until one fails; {} if none does."""
        modules: dict[EntryKey, Module] = {}

        def module_of(key: EntryKey) -> Module:
            if key not in texts or texts[key] == sound_text(key):
                return sound_module(key)
            if key not in modules:
                modules[key] = Module.parse(texts[key], name="mutant.ptx", strict=True)
            return modules[key]

        devices = _TrialDevices(module_of=module_of)
        for each in cases:
            if each.case in self.done or self.ran == self.most:
                continue
            self.done.add(each.case)
            self.running = each.case
            self.ran += 1
            case = default_cases()[each.case]
            try:
                with _limited(CASE_SECONDS), unexplained():
                    result = run_case(_TrialKernel(case.family, devices), case)
            except Exception as error:
                # The host code raises what no caller expects.
                return {
                    "outcome": "caught",
                    "case": each.case,
                    "check": "exception",
                    "finding": f"{type(error).__name__}: {error}"[:300],
                }
            finally:
                place = devices.get(case)
                self.sound_launches &= not (isinstance(place, _TrialDevice) and place.unforeseen)
                place.launches.clear()
            if isinstance(result.error, (ParseError, UnknownOpcode, ArgumentMismatch, Contraction)):
                for key, text in texts.items():
                    machine_code_sha256(text, key[2])  # what the assembler refuses is no mutant
            caught = _caught(result, case)
            if caught is not None:
                finding = result.first_mismatch or result.reason or "; ".join(result.warnings)
                return {
                    "outcome": "caught",
                    "case": each.case,
                    "check": caught,
                    "finding": (finding or "")[:300],
                }
        return {}


def _made(made: Mapping[str, str], name: str) -> str:
    """An entry of a changed source.

    Raises:
        DoesNotBuild: it has another name there, so that nobody can launch it.
    """
    if name not in made:
        raise DoesNotBuild(f"there is no entry {name} any more")
    return made[name]


def _differing(texts: Mapping[EntryKey, str]) -> list[EntryKey]:
    """The entries whose text is another one than that of the sound kernel."""
    return [key for key, text in texts.items() if text != sound_text(key)]


def _caught(result: Result, case: Case) -> str | None:
    """What of a result catches a mutant, in a word, or None."""
    if case.refusal:
        return None if result.verdict is Verdict.UNSUPPORTED and result.expected else "refusal"
    if result.verdict is Verdict.UNSUPPORTED:
        return "refusal"
    if result.verdict not in CATCHING:
        # What PTX forbids counts, also where nobody knows that it goes wrong. The sound kernels do nothing of the kind.
        return "warning" if result.warnings else None
    finding = result.first_mismatch or result.reason
    return FaultResult("", "", "", str(case), result.verdict, finding, 1, True).check


@contextmanager
def _limited(seconds: float, *, wall: bool = False) -> Iterator[None]:
    """Ends the block by `_TookTooLong` after so many seconds, of this process's CPU time or of the wall clock."""
    sent, timer = (signal.SIGALRM, signal.ITIMER_REAL) if wall else (signal.SIGPROF, signal.ITIMER_PROF)

    def ring(number: int, frame: FrameType | None) -> None:
        raise _TookTooLong

    before = signal.signal(sent, ring)
    signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(sent, before)


def families_of(cases: Collection[str]) -> list[str]:
    """The families of cases, in the order of the reports."""
    names = {default_cases()[case].family.name for case in cases}
    return [name for name in FAMILIES if name in names]
