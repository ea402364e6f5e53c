"""Whether a parity report can be true: every record against its own id, and the report against its records.

A digest shows an accident. Somebody who edits a verdict makes a new digest, and has to make everything else agree as
well: the summary, the bytes compared, the case list of the level, the words on what it proves.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

from refmoe.chips import CHIPS, KERNEL_ARCHS
from refmoe.cuda.toolchain import CSRC, with_includes
from refmoe.errors import ArgumentError
from refmoe.families import FAMILIES
from refmoe.families.family import Case
from refmoe.museum import exhibits
from refmoe.ptx import PtxError
from refmoe.ptx.schedules import schedules_of
from refmoe.reference.mma import MODELS
from refmoe.reports.checks import GateRefusal, first_and_count
from refmoe.reports.documents import gpu_refusals, is_sha256
from refmoe.reports.parity import CaseRecord, Report, count_verdicts
from refmoe.verify.verdict import EVIDENCE, Verdict, schedule_evidence

#: What clocks of two processes may differ by, in seconds.
_CLOCK = 1.0

#: Lanes of a launch that one processor steps in a second, at most: vectors of 16 lanes, three at once, at 6 GHz. The
#: executor's fastest cases take a hundredth of that.
_LANES_A_SECOND = 16 * 3 * 6_000_000_000
#: Seconds of a case are rounded to so many.
_TICK = 1e-4


class Catalog(Protocol):
    """What the sources say now: the module `refmoe.catalog`."""

    def source_sha256(self, name: str) -> str:
        """The present source hash of a kernel family; ArgumentError or OSError if it is gone."""

    def parse_case(self, text: str) -> Case:
        """The case of a repro string; ArgumentError if it is none."""

    def list_cases(self, level: str, suites: Sequence[str], device: str, arch: str | None) -> list[Case]:
        """The cases of a level."""


class Record:
    """A record beside the case that its id names.

    Attributes:
        of: the record.
        case: the case, None if the id is none.
        wrong: why the id is no case, "" if it is one.
    """

    def __init__(self, record: CaseRecord, catalog: Catalog) -> None:
        self.of = record
        self.case: Case | None = None
        self.wrong = ""
        try:
            self.case = catalog.parse_case(self.text)
        except ArgumentError as error:
            self.wrong = str(error)

    @property
    def text(self) -> str:
        """The repro string in the id; of a user's kernel on this machine's processor as one on ptx."""
        inner = self.of.id.removeprefix(f"{self.of.kernel}/") if self.of.kernel else self.of.id
        return re.sub("@host$", "@ptx", inner) if self.of.kernel else inner

    @cached_property
    def extents(self) -> Mapping[str, int] | None:
        """The bytes of each stage that the case has, None without a case."""
        return self.case.family.extents(self.case) if self.case is not None else None


def contradictions(report: Report, records: Sequence[Record], catalog: Catalog) -> Iterator[GateRefusal]:
    """What cannot be true of a report, each with the check that says so."""
    yield from _report(report, records)
    yield from _level(report, catalog)
    for check, find in _OF_A_CASE.items():
        wrong = ((f"case {record.of.id}", text) for record in records for text in find(record, report))
        yield from first_and_count(check, wrong)
    yield from _one_model(records)


# --- the report ------------------------------------------------------------------------------------------------------


def _report(report: Report, records: Sequence[Record]) -> Iterator[GateRefusal]:
    counted = count_verdicts([case.verdict for case in report.cases])
    if report.summary != counted:
        text = f"its summary says {_counts(report.summary)}, and its cases are {_counts(counted)}"
        yield GateRefusal("parity.summary", text)
    yield from _environment(report)
    yield from _evidence(report)
    if not report.seconds and any(case.verdict.ran for case in report.cases):
        yield GateRefusal("parity.seconds", f"{len(report.cases):,} cases in a run of no time")
    longest = max(report.cases, key=lambda case: case.seconds, default=None)
    if longest is not None and longest.seconds > report.seconds + _CLOCK:
        text = f"case {longest.id} took {longest.seconds:g} s of a run of {report.seconds:g} s"
        yield GateRefusal("parity.seconds", text)
    idle = [case for case in report.cases if case.kernel is None and case.verdict is Verdict.PASS and not case.seconds]
    wrong = ((f"case {case.id}", "PASS in 0 s: to make its inputs alone takes longer") for case in idle)
    yield from first_and_count("parity.seconds", wrong)
    yield from first_and_count("parity.instructions", _speed(report))


def _speed(report: Report) -> Iterator[tuple[str, str]]:
    """Cases that ran faster than any machine runs them."""
    for case in report.cases:
        most = (case.seconds + _TICK) * report.environment.processors * _LANES_A_SECOND
        if case.lane_instructions > most:
            text = f"{case.lane_instructions:,} lane instructions in {case.seconds:g} s"
            yield f"case {case.id}", f"{text}, more than {report.environment.processors:,} processors run"


def _counts(summary: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in summary.items()) or "none"


def _environment(report: Report) -> Iterator[GateRefusal]:
    machine = report.environment
    on_gpu = [case for case in report.cases if case.device == "cuda" and case.verdict.ran]
    for arch in sorted({case.arch for case in on_gpu}):
        for refusal in gpu_refusals(machine.gpu, arch):
            # The arch of a user's kernel is the compute capability alone, "sm_90".
            if machine.gpu is None or arch in CHIPS:
                yield refusal
    # Without torch they ran through the driver alone: see refmoe.driver.
    if on_gpu and machine.driver is None:
        text = f"{len(on_gpu):,} cases ran on a GPU, and the environment names no driver"
        yield GateRefusal("parity.environment", text)
    if machine.gpu is not None and not any(case.device == "cuda" for case in report.cases):
        yield GateRefusal("parity.environment", f"its environment names {machine.gpu}, and no case of it is of a GPU")
    # An exhibit that CuTe DSL's own compiler made names that one; no other kernel may.
    compilers = {
        case.compiler
        for case in report.cases
        if case.kernel is None
        and case.verdict.ran
        and not (case.family in exhibits() and str(case.compiler).startswith(DSL))
    }
    for compiler in compilers - {machine.nvcc}:
        text = f"cases were compiled by {compiler or 'nothing'}, and the environment names {machine.nvcc or 'no nvcc'}"
        yield GateRefusal("parity.environment", text)


def _evidence(report: Report) -> Iterator[GateRefusal]:
    own = [case for case in report.cases if case.kernel is None]
    devices = {case.device for case in report.cases}
    models = {case.model: str(case.model_evidence) for case in report.cases if case.model is not None}
    fewest = min((case.schedules for case in own if case.device == "ptx" and case.verdict.ran), default=1)
    wanted = {*devices, *models, *(["schedules"] if fewest > 1 else [])}
    for key in sorted(wanted ^ report.evidence.keys()):
        said = "says nothing of" if key in wanted else "says what no case of it rests on:"
        yield GateRefusal("parity.evidence", f"its evidence {said} {key}")
    for device in sorted({case.device for case in own} & report.evidence.keys()):
        if report.evidence[device] != EVIDENCE.get(device):
            yield GateRefusal("parity.evidence", f"its words on what {device} proves are not refmoe's; run it again")
    for model, evidence in models.items():
        text = report.evidence.get(model)
        if text is not None and (model not in text or evidence not in text):
            yield GateRefusal("parity.evidence", f"its words on the model {model} do not say that it is {evidence}")
    if fewest > 1 and report.evidence.get("schedules") != schedule_evidence(fewest):
        yield GateRefusal("parity.evidence", f"its words on schedules are not those of {fewest} schedules")


#: What a run writes of what it was asked for: see `refmoe.cli.prove`.
_PARITY = (
    r"refmoe parity --device (?P<device>\S+)( --arch=(?P<arch>\S+))?"
    r"( --level (?P<level>\S+)( --suite=\S+)*| --case \.\.\.)( --mutants)?( --share \S+)?"
    r"( --schedules (?P<schedules>\S+))?"
)
_REPRO = r"refmoe repro '[^']+'( --schedules \S+)?"


def _own_schedules(case_id: str) -> int:
    """The schedules that a case says itself, see `refmoe.families.case.SCHEDULES`."""
    said = re.search(r":schedules=(\d+):", case_id)
    return int(said[1]) if said else 1


def _level(report: Report, catalog: Catalog) -> Iterator[GateRefusal]:
    """Whether a report of a level holds the cases that the level has now, and no others."""
    ids = {case.id for case in report.cases if case.kernel is None}
    if not ids:
        return
    asked_for = re.fullmatch(_PARITY, report.command)
    if asked_for is None:
        if re.fullmatch(_REPRO, report.command) is None:
            found = f"made by {report.command!r}, which is not how a run of refmoe's kernels says what it was asked for"
            yield GateRefusal("parity.command", f"{found}; needed `refmoe parity --device ...`")
        return
    if asked_for["schedules"] and not _asked_schedules(report.command):
        found = f"made by {report.command!r}, and {asked_for['schedules']!r} names no schedules"
        yield GateRefusal("parity.command", f"{found}; needed a count as 16 or numbers as 0,7")
    device, arch, level = (asked_for[name] for name in ("device", "arch", "level"))
    schedules = asked_for["schedules"]
    own = [case for case in report.cases if case.kernel is None]
    for what, asked, stray in (
        ("device", device, [case for case in own if case.verdict.ran and case.device != device]),
        ("arch", arch, [case for case in own if arch and case.verdict.ran and case.arch != arch]),
        ("schedules", "no more", [case for case in own if not schedules and case.schedules > _own_schedules(case.id)]),
    ):
        if stray:
            found = f"its case {stray[0].id} has {what} {getattr(stray[0], what)}"
            yield GateRefusal("parity.command", f"made by {report.command!r}, which asks for {asked}, and {found}")
    if level is None:
        return
    suites = re.findall(r"--suite=(\S+)", report.command)
    try:
        listed = {str(case) for case in catalog.list_cases(level, suites, device, arch)}
    except ArgumentError as error:
        yield GateRefusal("parity.command", f"made by {report.command!r}, which cannot be: {error}")
        return
    if device != "ptx":
        # Cases come and go while no GPU is at hand. What its report may not lose, the baseline says.
        return
    for these, said in ((listed - ids, "lacks"), (ids - listed, "holds beyond that")):
        if these:
            more = f" and {len(these) - 1:,} more" if len(these) > 1 else ""
            text = f"it was made by `{report.command}`, and {said} the case {min(these)}{more}; run it again"
            yield GateRefusal("parity.level", text)


def _one_model(records: Sequence[Record]) -> Iterator[GateRefusal]:
    """Families of which some cases passed with an accumulation model and some without one."""
    passed = [record.of for record in records if record.of.verdict is Verdict.PASS]
    for family in sorted({case.family for case in passed}):
        bare = [case for case in passed if case.family == family and case.model is None]
        if bare and len(bare) < sum(case.family == family for case in passed):
            yield GateRefusal(
                "case.model", f"case {bare[0].id}: names no accumulation model, as other cases of {family} do"
            )


# --- a case ----------------------------------------------------------------------------------------------------------


def _id(record: Record, report: Report) -> Iterator[str]:
    case, of = record.case, record.of
    if case is None:
        yield f"is no case: {record.wrong}"
        return
    if str(case) != record.text:
        yield f"is not how this case is written: {case}"
    named = {"family": case.family.name, "seed": case.seed}
    if of.kernel is None:
        named |= {"device": case.device} | ({"arch": case.arch} if case.arch else {})
    elif of.id.rpartition("@")[2].partition(".")[0] != of.device:
        yield f"ran on {of.device}, where its id says {of.id.rpartition('@')[2]}"
    for name, value in named.items():
        if getattr(of, name) != value:
            yield f"its id says {name} {value}, and its record {getattr(of, name)}"
    if of.kernel is None and of.verdict.ran and of.arch not in KERNEL_ARCHS:
        yield f"ran for {of.arch!r}, for which there are no kernels"


def _repro(record: Record, report: Report) -> Iterator[str]:
    of = record.of
    if of.kernel is None:
        _, runs, rest = of.repro.partition(f"refmoe repro '{of.id}'")
        if not of.repro.startswith("refmoe") or not runs or not re.fullmatch(r"( --schedules \S+)?", rest):
            yield f"its repro line runs something else: {of.repro!r}"
        return
    inner = of.id.removeprefix(f"{of.kernel}/")
    names_it = of.repro.startswith("refmoe.check(") and repr(inner) in of.repro
    if not names_it and not re.match(r"pytest '[^']+::[^']+'", of.repro):
        yield f"its repro line is neither a test nor a call that runs it: {of.repro!r}"


def _passes(record: Record, report: Report) -> Iterator[str]:
    of = record.of
    if of.verdict is not Verdict.PASS:
        return
    differing = {stage: count for stage, count in of.differing.items() if count}
    if differing:
        yield f"PASS, and {sum(differing.values()):,} elements differ in {', '.join(differing)}"
    for name in ("first_mismatch", "stage", "reason", "maps"):
        if getattr(of, name) is not None:
            yield f"PASS, and it has a {name.replace('_', ' ')}: {str(getattr(of, name))[:80]}"


def _nothing(record: Record, report: Report) -> Iterator[str]:
    of = record.of
    if of.verdict is Verdict.PASS and not of.compared and record.case is not None and record.case.shape.m:
        yield "PASS, and not one byte was compared"


def _bytes(record: Record, report: Report) -> Iterator[str]:
    of, extents = record.of, record.extents
    if of.verdict not in (Verdict.PASS, Verdict.MISTRUSTED) or extents is None:
        return
    wanted = sum(size for stage, size in extents.items() if stage in of.differing)
    if of.kernel is None and of.compared != wanted and wanted >= 0 and not _partly(of.family):
        yield f"{of.compared:,} bytes compared, and its shape has {wanted:,}"
    elif of.compared > wanted >= 0:
        yield f"{of.compared:,} bytes compared, and its shape has no more than {wanted:,}"


def _stages(record: Record, report: Report) -> Iterator[str]:
    of, extents = record.of, record.extents
    if of.verdict not in (Verdict.PASS, Verdict.MISTRUSTED) or extents is None:
        return
    if unknown := of.differing.keys() - extents.keys():
        yield f"compared {', '.join(sorted(unknown))}, which its family does not have"
    if of.kernel is None and (absent := extents.keys() - of.differing.keys()):
        yield f"did not compare {', '.join(sorted(absent))}"


def _partly(family: str) -> bool:
    """Whether the kernel of that name leaves some bytes of its family's outputs open, which are then not compared."""
    return family in exhibits() and exhibits()[family].partly


def _mismatch(record: Record, report: Report) -> Iterator[str]:
    of = record.of
    if of.verdict is not Verdict.MISMATCH:
        return
    if not of.stage or not of.first_mismatch:
        yield "MISMATCH, and it does not say where"
    elif not of.differing.get(of.stage):
        yield f"MISMATCH in {of.stage}, of which no element differs"


def _maps(record: Record, report: Report) -> Iterator[str]:
    for drawn in record.of.maps or ():
        counted = sum(map(sum, drawn.counts))
        if counted != record.of.differing.get(drawn.stage):
            yield f"its map of {drawn.stage} counts {counted:,} elements of {record.of.differing.get(drawn.stage, 0):,}"


def _reason(record: Record, report: Report) -> Iterator[str]:
    of = record.of
    if of.verdict not in (Verdict.PASS, Verdict.MISMATCH) and not (of.reason or "").strip():
        yield f"{of.verdict.value} without a reason"


def _refusal(record: Record, report: Report) -> Iterator[str]:
    of, case = record.of, record.case
    if (of.expected is None) == (of.verdict is Verdict.UNSUPPORTED):
        word = "says nothing of" if of.expected is None else f"is {of.verdict.value} and speaks of"
        yield f"{word} whether the case list expects a refusal"
    if of.kernel is not None or case is None or of.family in exhibits():
        return
    due = case.family.refusals.get(case.on("ptx"))
    if of.verdict is Verdict.UNSUPPORTED and of.expected and (due is None or due not in (of.reason or "")):
        needed = f"the list needs {due!r}" if due else "the list does not expect it to be refused"
        yield f"UNSUPPORTED as the case list is said to expect, and {needed}: {of.reason}"
    if of.verdict is Verdict.PASS and due is not None:
        yield f"PASS, and the kernel has to refuse it: {due}"


def _skipped(record: Record, report: Report) -> Iterator[str]:
    of, case = record.of, record.case
    if of.verdict.ran:
        return
    empties = [("compared", 0), ("lane_instructions", 0), ("differing", {}), ("maps", None)]
    if of.device == "ptx":  # in reports of a GPU that are older than this check, the launches of the cases before
        empties.append(("launches", []))
    for name, empty in empties:
        if getattr(of, name) != empty and not (name == "differing" and not any(of.differing.values())):
            yield f"{of.verdict.value}, and it has {name.replace('_', ' ')}: {str(getattr(of, name))[:80]}"
    own = of.kernel is None and of.family not in exhibits()
    if of.verdict is Verdict.SKIPPED and own and case is not None and (of.device, of.arch) in _places(report):
        lacked = case.family.lacks(case, of.arch)
        if lacked is None or lacked != of.reason:
            needed = f"what it lacks is {lacked!r}" if lacked else f"other cases ran on {of.device} for {of.arch}"
            yield f"SKIPPED, since {of.reason!r}, and {needed}"


def _places(report: Report) -> set[tuple[str, str]]:
    """Devices and archs on which a case of refmoe's own kernels ran; kept with the report."""
    found: set[tuple[str, str]] | None = report.__dict__.get("_places")
    if found is None:
        found = {(case.device, case.arch) for case in report.cases if case.verdict.ran and case.kernel is None}
        report.__dict__["_places"] = found
    return found


def _evidence_word(record: Record, report: Report) -> Iterator[str]:
    of = record.of
    wanted = "bit-exact" if of.compared else "none"
    if of.evidence != wanted:
        yield f"evidence {of.evidence!r} of {of.compared:,} bytes compared; needed {wanted!r}"
    if of.made_of is not None and of.family not in exhibits() and of.kernel is None:
        yield f"a kernel of refmoe's own, and it says that it is made of {of.made_of}"
    if of.made_of is None and of.family in exhibits() and of.verdict is Verdict.PASS:
        yield "a kernel that is not refmoe's, and it does not say what it is made of"


#: Threads of a CTA, and CTAs of a grid in x, at most: CUDA Programming Guide, technical specifications.
_CTA = 1024
_GRID = 2**31 - 1

#: The package of the compiler of CuTe DSL.
DSL = "nvidia-cutlass-dsl"


def _launches(record: Record, report: Report) -> Iterator[str]:
    of = record.of
    if of.device != "ptx" and of.warnings:
        yield f"{len(of.warnings):,} warnings of the executor on {of.device}"
    if of.device != "ptx" and of.lane_instructions:
        yield f"{of.lane_instructions:,} lane instructions counted on {of.device}, where nobody counts them"
    if of.kernel is not None or of.verdict is not Verdict.PASS or record.case is None or not record.case.shape.m:
        return
    if not of.launches:
        yield "PASS without a launch"
    if of.device == "ptx" and not of.lane_instructions:
        yield "PASS on the executor without an instruction"
    if of.family not in FAMILIES:
        return
    for launch in of.launches:
        said = re.fullmatch(r"(\w+) (\d+) x (\d+)", launch)
        if said is None or not said[1].startswith(entry_names(of.family)):
            yield f"the launch {launch!r}, which is none of a kernel of {of.family}"
        elif not 1 <= int(said[3][:9]) <= _CTA or not 1 <= int(said[2][:12]) <= _GRID:
            yield f"the launch {launch!r}; a grid has 1 to {_GRID:,} CTAs, and a CTA 1 to {_CTA:,} threads"
        elif of.device == "ptx" and 0 < of.lane_instructions < int(said[3]):
            # Of a sample of a large problem only some CTAs run, and in each every thread.
            yield f"{of.lane_instructions:,} lane instructions, and a CTA of {launch!r} alone has {said[3]} threads"


def _hash(record: Record, report: Report) -> Iterator[str]:
    of = record.of
    due = of.verdict.ran and of.verdict is not Verdict.ERROR
    for name, needed in (("source_sha256", due and (of.kernel is None or bool(of.sources))), ("input_sha256", due)):
        value = getattr(of, name)
        if value is None and needed:
            yield f"{of.verdict.value} without a {name}"
        elif value is not None and not is_sha256(value):
            yield f"its {name} is no SHA-256: {value!r}"


def _model(record: Record, report: Report) -> Iterator[str]:
    of = record.of
    if (of.model is None) != (of.model_evidence is None):
        yield f"the model {of.model} with the evidence {of.model_evidence}"
    if of.model is None:
        return
    if of.model not in MODELS:
        yield f"the model {of.model!r}, which there is not"
        return
    known = MODELS[of.model].words
    if of.model_evidence is not None and of.model_evidence not in known:
        needed = " or ".join(sorted(known))
        yield f"the model {of.model} is said to be {of.model_evidence}, and it is {needed}"


@functools.cache
def entry_names(family: str) -> tuple[str, ...]:
    """How the names of the entries begin that a family's cases launch: its sources stamp them out by macros.

    Args:
        family: one of refmoe's own.
    """
    files = {file for source in FAMILIES[family].sources for file in with_includes(CSRC / f"{source}.cu")}
    names = (re.findall(r"\brefmoe_[a-z]\w+?(?=\W|##|_?$)", file.read_text(encoding="utf-8")) for file in files)
    return tuple(sorted({name for found in names for name in found}))


def _schedules(record: Record, report: Report) -> Iterator[str]:
    of = record.of
    if of.schedules > 1 and of.device != "ptx":
        yield f"{of.schedules} schedules on {of.device}, which has its own"
    if of.device != "ptx" or not of.verdict.ran or of.kernel is not None:
        return
    asked = _asked_schedules(report.command)
    if asked and of.schedules != asked:
        yield f"{of.schedules} schedules, and `{report.command}` asks for {asked}"
    if not asked and of.schedules < _own_schedules(of.id):
        yield f"{of.schedules} schedules, and the case says {_own_schedules(of.id)}"


@functools.cache
def _asked_schedules(command: str) -> int:
    """The schedules that a command asks for, 0 if it does not say."""
    said = re.search(r" --schedules (\S+)$", command)
    if said is None:
        return 0
    try:
        # A count is not counted out: a command can ask for as many as it likes.
        return int(said[1]) if said[1].isdecimal() else len(schedules_of(said[1]))
    except (PtxError, ValueError):
        return 0  # the command is refused as a whole


def _kernel(record: Record, report: Report) -> Iterator[str]:
    of = record.of
    if of.kernel is None:
        if of.sources or of.device == "host":
            yield "a kernel of refmoe's, and it names sources or ran on this machine's processor"
        return
    if not re.fullmatch(r"[^:]+::[^:/]+", of.kernel) or not of.id.startswith(f"{of.kernel}/"):
        yield f"its kernel is {of.kernel!r}, which its id does not begin with"
    file = of.kernel.partition("::")[0]
    if file.endswith(".py"):
        named = {source.partition("::")[0] for source in of.sources or ()}
        if of.verdict.ran and file not in named:
            yield f"its sources leave out {file}, in which the kernel is: {', '.join(sorted(named)) or 'none'}"
    for source in of.sources or ():
        path = Path(source.partition("::")[0])
        if path.is_absolute() or ".." in path.parts:
            yield f"its source {source!r} lies outside of the project"


#: What is asked of every case, by the check that refuses it.
_OF_A_CASE: Mapping[str, Callable[[Record, Report], Iterator[str]]] = {
    "case.id": _id,
    "case.repro": _repro,
    "case.pass": _passes,
    "case.nothing": _nothing,
    "case.bytes": _bytes,
    "case.stages": _stages,
    "case.mismatch": _mismatch,
    "case.maps": _maps,
    "case.reason": _reason,
    "case.refusal": _refusal,
    "case.skipped": _skipped,
    "case.evidence": _evidence_word,
    "case.launches": _launches,
    "case.hash": _hash,
    "case.model": _model,
    "case.schedules": _schedules,
    "case.kernel": _kernel,
}


def two_stories(reports: Mapping[Path, Sequence[Record]]) -> Iterator[GateRefusal]:
    """Cases of which two reports, or two records, tell different inputs or different bytes.

    The data of a case does not depend on the device. So what ran on the executor and on a GPU had the same inputs.
    """
    seen: dict[str, tuple[Path, CaseRecord]] = {}
    ran: dict[tuple[object, ...], tuple[Path, CaseRecord]] = {}
    wrong, counted = [], []
    for path, records in reports.items():
        for record in records:
            of = record.of
            if record.case is None or of.kernel is not None or of.verdict is not Verdict.PASS:
                continue
            # One kernel steps the same instructions for one case, wherever and whenever the executor runs it.
            kernel = of.id, of.device, of.arch, of.source_sha256, of.compiler, of.schedules
            place, same = ran.setdefault(kernel, (path, of))
            for name in ("lane_instructions", "launches"):
                if getattr(same, name) != getattr(of, name):
                    told = f"{name} {getattr(of, name)} in {path}, and {getattr(same, name)} in {place}"
                    counted.append((f"case {of.id}", told))
            where, other = seen.setdefault(str(record.case.data), (path, of))
            if _partly(of.family):
                continue
            for name in ("input_sha256", "compared"):
                if getattr(other, name) != getattr(of, name):
                    told = f"{name} {getattr(of, name)} in {path}, and {getattr(other, name)} in {where} ({other.id})"
                    wrong.append((f"case {of.id}", told))
    yield from first_and_count("parity.facts", wrong)
    yield from first_and_count("parity.instructions", counted)


def smallest(records: Sequence[Record], elements: int) -> list[Record]:
    """Of each family and fill the passed case with the fewest elements, if they are at most so many.

    A fill makes all of its cases. So the smallest tells whether it still makes what ran.
    """
    chosen: dict[tuple[str, str, str], tuple[int, Record]] = {}
    for record in records:
        case = record.case
        if case is None or record.of.kernel is not None or record.of.verdict is not Verdict.PASS or case.get("file"):
            continue
        shape = case.shape
        size = max(shape.m, 1) * math.prod(max(each, 1) for each in (shape.k, shape.n, shape.e if shape.n else 1))
        key = case.family.name, case.fill, case.dtype
        if shape.m and size <= elements and (key not in chosen or size < chosen[key][0]):
            chosen[key] = size, record
    return [record for _, record in chosen.values()]


def repeated(cases: Sequence[CaseRecord]) -> Iterator[GateRefusal]:
    """Cases that are there twice."""
    twice = [name for name, count in Counter(case.id for case in cases).items() if count > 1]
    yield from first_and_count("case.twice", ((f"case {name} is there twice", "each counts once") for name in twice))
