"""Whether what a parity report tells of planted faults can be true: against the faults and the cases that there are."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

from refmoe.cuda.toolchain import CSRC, with_includes
from refmoe.errors import ArgumentError
from refmoe.families import FAMILIES
from refmoe.families.family import Case
from refmoe.museum import exhibits
from refmoe.reports.checks import GateRefusal, first_and_count
from refmoe.reports.consistency import Catalog
from refmoe.reports.parity import CaseRecord, MutantRecord, Report
from refmoe.verify.plant import CATCHING, GEMMS, Fault, FaultResult, Patch, load_patches
from refmoe.verify.tolerances import TOLERANCES
from refmoe.verify.verdict import Verdict


def fault_contradictions(report: Report, catalog: Catalog) -> Iterator[GateRefusal]:
    """What is wrong with the planted faults of a report, each with the check that says so."""
    asked = "--mutants" in report.command.split()
    if asked and not report.mutants:
        yield GateRefusal("fault.none", f"made by `{report.command}`, and it holds no planted fault")
    if report.mutants and not asked:
        text = f"it holds {len(report.mutants)} planted faults, and was made by `{report.command}`, which plants none"
        yield GateRefusal("fault.none", text)
    survivors = (
        (f"the planted fault {each.name} was not caught", each.fault) for each in report.mutants if not each.caught
    )
    yield from first_and_count("fault.survived", survivors)
    if not report.mutants:
        if report.tolerances:
            yield GateRefusal("fault.tolerance", "it weighs no planted fault, and lists tolerances")
        return
    known = known_faults({case.family for case in report.cases})
    # A case catches dozens of faults.
    parse = cache(catalog.parse_case)
    yield from first_and_count("fault.list", _listing(report.mutants, known))
    by_id = {case.id: case for case in report.cases}
    finds = {"fault.caught": _caught, "fault.check": _check, "fault.tolerance": _tolerance}
    for check, find in finds.items():
        wrong = ((f"the planted fault {each.name}", text) for each in report.mutants for text in find(each, report))
        yield from first_and_count(check, wrong)
    wrong = (
        (f"the planted fault {each.name}", text)
        for each in report.mutants
        for text in _case(each, known.get(each.name), by_id, parse)
    )
    yield from first_and_count("fault.case", wrong)
    wrong = ((f"the planted fault {each.name}", text) for each in report.mutants for text in _finding(each, parse))
    yield from first_and_count("fault.finding", wrong)
    stated = [(rule.name, rule.source, rule.rule) for rule in report.tolerances]
    if stated != [(rule.name, rule.source, rule.rule) for rule in TOLERANCES]:
        yield GateRefusal("fault.tolerance", "its tolerances are not those that refmoe weighs faults by; run it again")


def known_faults(families: set[str]) -> Mapping[str, Fault]:
    """The faults that `refmoe parity --mutants` plants for cases of these families, by name."""
    faults: list[Fault] = list(load_patches()) if families - exhibits().keys() else []
    for name, exhibit in exhibits().items():
        if name in families and exhibit.faults_missing() is None:
            faults += exhibit.faults
    return {fault.name: fault for fault in faults}


def _listing(mutants: Sequence[MutantRecord], known: Mapping[str, Fault]) -> Iterator[tuple[str, str]]:
    held = Counter(mutant.name for mutant in mutants)
    elsewhere = {fault.name for exhibit in exhibits().values() for fault in exhibit.faults}
    for name in sorted(known.keys() - held.keys()):
        yield f"the planted fault {name}", "is not in the report; run it again"
    for name, count in held.items():
        if count > 1:
            yield f"the planted fault {name}", f"is there {count} times"
        if name not in known and name not in elsewhere:
            yield f"the planted fault {name}", "is none that there is"
    for mutant in mutants:
        fault = known.get(mutant.name)
        if fault is not None and (mutant.fault, mutant.kind) != (fault.fault, fault.kind):
            yield f"the planted fault {mutant.name}", f"is told as {mutant.fault!r}, and it is {fault.fault!r}"


def _caught(mutant: MutantRecord, report: Report) -> Iterator[str]:
    if mutant.cases < 1:
        yield f"{mutant.cases} cases ran on it"
    if re.search(r"(?<![\d,])0 of [\d,]+ differ", mutant.finding or ""):
        yield f"is caught by what differs nowhere: {mutant.finding}"
    parts = {"case": mutant.case, "verdict": mutant.verdict, "finding": mutant.finding, "check": mutant.check}
    absent = [name for name, value in parts.items() if not value]
    if mutant.caught and absent:
        yield f"is caught, and it has no {', no '.join(absent)}"
    if mutant.caught and mutant.verdict is not None and mutant.verdict not in CATCHING:
        yield f"is caught by the verdict {mutant.verdict.value}, which catches nothing"
    if not mutant.caught and len(absent) not in (0, len(parts)):
        yield f"is not caught, and it has no {', no '.join(absent)} but the rest"


def _case(
    mutant: MutantRecord, fault: Fault | None, by_id: Mapping[str, CaseRecord], parse: Callable[[str], Case]
) -> Iterator[str]:
    if mutant.case is None:
        return
    try:
        case = parse(mutant.case)
    except ArgumentError as error:
        yield f"is caught by {mutant.case!r}, which is no case: {error}"
        return
    if case.device != "ptx":
        yield f"is caught on {case.device}, where no fault is planted: {mutant.case}"
    record = by_id.get(mutant.case)
    if mutant.caught and record is not None and record.verdict is not Verdict.PASS:
        yield f"is caught by {mutant.case}, which is {record.verdict.value} without it"
    if fault is not None and mutant.cases > max(len(by_id), 1) and mutant.cases > len(fault.cases()):
        yield f"{mutant.cases:,} cases ran on it, and there are {len(fault.cases()):,}"
    if case in case.family.refusals:
        yield f"is caught by {mutant.case}, which the kernel refuses"
    families = _launching(fault) if isinstance(fault, Patch) else None
    if families is not None and case.family.name not in families:
        yield f"is caught by {mutant.case}, and no kernel of {case.family.name} has the file that it is planted in"


def _launching(patch: Patch) -> frozenset[str]:
    """The families whose sources, or headers of them, a patch changes."""
    changed = {file.file for file in patch.patches}
    return frozenset(family for family, files in _files().items() if changed & files)


@cache
def _files() -> Mapping[str, frozenset[str]]:
    """By family the files that its kernels are compiled from, by their names below csrc."""
    made: dict[str, frozenset[str]] = {}
    for name, family in FAMILIES.items():
        files = {file for source in family.sources for file in with_includes(CSRC / f"{source}.cu")}
        made[name] = frozenset(file.relative_to(CSRC).as_posix() for file in files)
    return made


def _check(mutant: MutantRecord, report: Report) -> Iterator[str]:
    result = FaultResult(
        mutant.name, mutant.fault, mutant.kind, mutant.case, mutant.verdict, mutant.finding, mutant.cases, mutant.caught
    )
    if mutant.caught and mutant.check != result.check:
        yield f"is said to be caught by {mutant.check!r}, and its verdict and finding say {result.check!r}"


#: How a finding of bytes begins: the stage and the index, and behind the place both values. See
#: `refmoe.verify.compare`.
_PLACE = re.compile(r"(?P<stage>[\w.]+)\[(?P<index>[\d, ]*)\]  ")
_COUNTS = re.compile(r"; (?P<differ>[\d,]+) of (?P<size>[\d,]+) differ")
_VALUES = re.compile(r"kernel (?P<kernel>0x[0-9A-F]+|-?\d+) .*?reference (?P<reference>0x[0-9A-F]+|-?\d+)")
#: Bytes of an element, of which FP4 codes have two in one.
_ELEMENT = (0.5, 1, 2, 4, 8)


def _finding(mutant: MutantRecord, parse: Callable[[str], Case]) -> Iterator[str]:
    """A finding of bytes that the case does not have."""
    if mutant.verdict not in (Verdict.MISMATCH, Verdict.OUT_OF_BOUND) or not mutant.case or not mutant.finding:
        return
    try:
        case = parse(mutant.case)
    except ArgumentError:
        return  # said already
    extents = case.family.extents(case)
    place, counts, values = (each.search(mutant.finding) for each in (_PLACE, _COUNTS, _VALUES))
    if place is None or not mutant.finding.startswith(place[0]):
        yield f"is caught by bytes, and its finding names no place: {mutant.finding[:80]}"
        return
    if place["stage"] not in extents:
        yield f"is caught in {place['stage']}, which {mutant.case} does not have"
        return
    if values and values["kernel"] == values["reference"]:
        yield f"is caught by what does not differ: {values[0]}"
    if counts is None:
        return
    differ, size = (int(counts[name].replace(",", "")) for name in ("differ", "size"))
    if differ > size:
        yield f"is caught by {differ:,} of {size:,} elements"
    if extents[place["stage"]] >= 0 and extents[place["stage"]] not in {round(size * each) for each in _ELEMENT}:
        yield f"is caught in {size:,} elements of {place['stage']}, and the case has {extents[place['stage']]:,} bytes"
    if math.prod(int(word) + 1 for word in place["index"].split(",") if word.strip()) > size:
        yield f"is caught at [{place['index']}] of {size:,} elements of {place['stage']}"


def _tolerance(mutant: MutantRecord, report: Report) -> Iterator[str]:
    if mutant.accepted_by is None:
        return
    if unknown := set(mutant.accepted_by) - {rule.name for rule in TOLERANCES}:
        yield f"is accepted by {', '.join(sorted(unknown))}, of which there is no tolerance"
    family = (mutant.case or "").partition(":")[0]
    base = exhibits()[family].family.base if family in exhibits() else family
    if base not in GEMMS:
        yield f"is weighed by tolerances of GEMMs, and {family or 'no kernel'} is none"
