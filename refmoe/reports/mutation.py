"""A document of `refmoe mutate`: what became of the mutants of refmoe's own kernels; `refmoe.mutation` makes it."""

from __future__ import annotations

import builtins
import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from refmoe import errors, ptx
from refmoe.cuda.toolchain import CSRC
from refmoe.errors import ArgumentError
from refmoe.families import FAMILIES
from refmoe.families.case import Fields
from refmoe.ptx import errors as faults
from refmoe.reports.documents import Count, Kind, Model, PresentHash, Seconds, Sha256
from refmoe.reports.environment import Environment, Word
from refmoe.verify.source import file_sha256

SCHEMA_VERSION = "3"

#: What may become of a mutant.
OUTCOMES = ("caught", "timed out", "equivalent", "does not build", "survived")

#: The words of a survivor's reason. "equivalent": an argument in words that nothing can tell it from the kernel.
#: "no case": what it breaks is outside of what the cases of the default level ask. "open": nobody has looked.
VERDICTS = ("equivalent", "no case", "open")

#: What tells that a mutant is equivalent: where its expressions and the kernel's differ, every value that they are
#: computed of was tried.
EVERY_VALUE = "every value"

#: What may tell that a mutant is equivalent.
SAME = ("PTX", "SASS", "proof", EVERY_VALUE)

#: Bits of what is counted through, at most.
MOST_BITS = 34

#: Of the mutants that build and change what is computed, the part that has to be caught.
BAR = 0.98

#: By what figures are counted.
GROUPS = ("operators", "kernels")


#: Mutants of a document, at least: of fewer a share says little.
LEAST = 100

Floor = Literal["cuda", "ptx", "host"]


class MutationRecord(Model):
    """What became of one mutant."""

    id: Word
    floor: Floor
    kernel: Word
    operator: Word
    outcome: str
    case: str | None
    check: Word | None
    cases: Count


class SurvivorRecord(Model):
    """A mutant that lived, and why."""

    id: Word
    cases: Count
    verdict: str
    reason: str


class CountedRecord(Model):
    """A value that a run counted through: the bits that were tried at 0 and at 1, and words beside."""

    made_by: Word
    width: Literal[1, 8, 16, 32, 64]
    mask: str
    beside: list[str]


class EveryValueRun(Model):
    """A run of two expressions over every value of what they are computed of."""

    inputs: Count
    domain: list[CountedRecord]
    where: list[str]
    steps: Count


class EveryValueRecord(Model):
    """A mutant that was tried on every value of what differs."""

    id: Word
    runs: list[EveryValueRun]


class Sample(Model):
    """Which mutants were tried."""

    of: Count
    tried: Count
    seed: int


class MutationDocument(Model):
    """The keys of a document."""

    kind: Literal["mutation"]
    schema_version: Literal["3"]
    created: str
    command: str
    environment: Environment
    seconds: Seconds
    level: Literal["default"]
    source_sha256: dict[str, Sha256]
    compiler: Word
    sample: Sample
    summary: dict[str, int | float | None]
    operators: list[dict[str, Any]]
    kernels: list[dict[str, Any]]
    survivors: list[SurvivorRecord]
    every_value: list[EveryValueRecord]
    mutants: list[MutationRecord]
    passed: bool
    digest: Sha256


def figures(mutants: Iterable[Mapping[str, Any]], reasons: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """The counts of some mutants, and the part of those that can be caught that is.

    `share` takes the arguments in words for what they say, that no input shows a difference. `share_unargued` takes
    them for nothing: what lives without the same machine code, a proof by machine or a run over every value counts as
    not caught.

    Args:
        mutants: with `id`, `outcome` and `check`.
        reasons: of survivors, by id.
    """
    mutants = list(mutants)
    counts = Counter(each["outcome"] for each in mutants)
    in_words = sum(
        each["outcome"] == "survived" and reasons.get(each["id"], {}).get("verdict") == "equivalent" for each in mutants
    )
    by_machine = sum(each["outcome"] == "equivalent" and each["check"] == "proof" for each in mutants)
    by_run = sum(each["outcome"] == "equivalent" and each["check"] == EVERY_VALUE for each in mutants)
    caught = counts["caught"] + counts["timed out"]
    different = len(mutants) - counts["does not build"] - counts["equivalent"]
    wrong = different - in_words
    return {
        "mutants": len(mutants),
        "does_not_build": counts["does not build"],
        "same_code": counts["equivalent"] - by_machine - by_run,
        "proven_by_machine": by_machine,
        "tried_on_every_value": by_run,
        "argued_equivalent": in_words,
        "caught": counts["caught"],
        "timed_out": counts["timed out"],
        "survived": counts["survived"] - in_words,
        "share": round(caught / wrong, 4) if wrong else None,
        "share_unargued": round(caught / different, 4) if different else None,
    }


def grouped(
    mutants: Sequence[Mapping[str, Any]], key: str, reasons: Mapping[str, Mapping[str, str]]
) -> list[dict[str, Any]]:
    """The figures of each floor's operators (`key` "operator") or kernels (`key` "kernel"), by name."""
    parts: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for each in mutants:
        parts.setdefault((each["floor"], each[key]), []).append(each)
    return [{"floor": floor, key: name, **figures(held, reasons)} for (floor, name), held in sorted(parts.items())]


def contradictions(document: Mapping[str, Any]) -> list[str]:
    """What in a document does not fit the rest of it, a sentence each."""
    mutants, survivors = document["mutants"], document["survivors"]
    ids = [each["id"] for each in mutants]
    found = [f"mutant {name} is listed {count} times" for name, count in Counter(ids).items() if count > 1]
    found += [
        f"mutant {each['id']} has the outcome {each['outcome']!r}; needed one of {', '.join(OUTCOMES)}"
        for each in mutants
        if each["outcome"] not in OUTCOMES
    ]
    for each in mutants:
        caught = each["outcome"] in ("caught", "timed out")
        if each["outcome"] == "caught" and (not each["case"] or not each["check"]):
            found.append(f"mutant {each['id']} is caught by no case, or by no check")
        if not caught and each["case"]:
            found.append(f"mutant {each['id']} is {each['outcome']} and names the case {each['case']}")
        if each["outcome"] == "equivalent" and each["check"] not in SAME:
            found.append(f"mutant {each['id']} is equivalent by {each['check']!r}; needed one of {', '.join(SAME)}")
        if caught and each["cases"] < 1:
            found.append(f"mutant {each['id']} is {each['outcome']} after {each['cases']} cases")
    lived = [each["id"] for each in mutants if each["outcome"] == "survived"]
    if [each["id"] for each in survivors] != lived:
        found.append(f"{len(lived)} mutants survived, and the list of survivors has {len(survivors)} others")
    for each in survivors:
        if each["verdict"] not in VERDICTS:
            found.append(
                f"survivor {each['id']} has the verdict {each['verdict']!r}; needed one of {', '.join(VERDICTS)}"
            )
        if not str(each["reason"]).strip():
            found.append(f"survivor {each['id']} has no reason")
    found += _runs(document)
    reasons = {each["id"]: each for each in survivors}
    if document["summary"] != figures(mutants, reasons):
        found.append("its summary is not the sum of its mutants")
    for group in GROUPS:
        if document[group] != grouped(mutants, group[:-1], reasons):
            found.append(f"its counts by {group} are not those of its mutants")
    if document["sample"]["tried"] != len(mutants) or len(mutants) > document["sample"]["of"]:
        found.append(f"it says that {document['sample']['tried']} mutants were tried, and lists {len(mutants)}")
    if not mutants:
        found.append("it has no mutants")
    return found


def _runs(document: Mapping[str, Any]) -> Iterator[str]:
    """What of the runs over every value does not fit the mutants, or itself."""
    mutants = [each for each in document["mutants"] if each["check"] == EVERY_VALUE]
    if [each["id"] for each in mutants] != [each["id"] for each in document["every_value"]]:
        listed = len(document["every_value"])
        yield f"{len(mutants)} mutants were tried on every value, and the list of runs has {listed} others"
    for each in mutants:
        if each["outcome"] != "equivalent" or each["floor"] == "host":
            yield f"mutant {each['id']} is {each['outcome']} on the floor {each['floor']}, and was tried on every value"
    for each in document["every_value"]:
        if not each["runs"]:
            yield f"mutant {each['id']} was tried on every value in no run"
        for run in each["runs"]:
            try:
                bits = sum(_bits(part) for part in run["domain"])
            except ValueError as error:
                yield f"mutant {each['id']} was tried on {error}"
                continue
            if not run["domain"] or bits > MOST_BITS or run["inputs"] != 1 << bits:
                yield (
                    f"mutant {each['id']} was tried on {run['inputs']:,} values of {bits} bits; "
                    f"needed two to the power of them, of {MOST_BITS} at most"
                )
            elif not run["steps"]:
                yield f"mutant {each['id']} was tried on every value, in no step"


def _bits(part: Mapping[str, Any]) -> int:
    """Bits of the number that counts through a value.

    Raises:
        ValueError: the words are none of its width.
    """
    words = [part["mask"], *part["beside"]]
    for word in words:
        if not re.fullmatch(r"0x[0-9a-f]+", word) or int(word, 16) >> part["width"]:
            raise ValueError(f"the word {word!r} of {part['width']} bits")
    mask, beside = int(words[0], 16), {int(word, 16) for word in words[1:]}
    if len(beside) < len(words) - 1 or any(not word & ~mask for word in beside):
        raise ValueError(f"{', '.join(part['beside'])} twice, which {part['mask']} has, too")
    held = bin(mask).count("1")
    return max(held, (len(beside) - 1).bit_length()) + 1 if beside else held


def _implausible(document: Mapping[str, Any]) -> list[str]:
    """What no sweep whose sources are the present ones can have found, a sentence each."""
    mutants, survivors = document["mutants"], document["survivors"]
    found = [text for each in mutants for text in _foreign(each)]
    if len(mutants) < LEAST:
        found.append(f"it has {len(mutants):,} mutants; needed {LEAST:,}")
    outcomes = Counter(each["outcome"] for each in mutants)
    if outcomes["equivalent"] > outcomes["caught"] + outcomes["timed out"]:
        found.append(f"{outcomes['equivalent']:,} mutants are equivalent, more than are caught")
    if not document["command"].startswith("refmoe mutate"):
        found.append(f"it was made by {document['command']!r}; needed refmoe mutate")
    found += _sample(document)
    if not document["seconds"]:
        found.append(f"{len(mutants):,} mutants were tried in no time")
    cases = {each["id"]: each["cases"] for each in mutants}
    for each in survivors:
        if each["cases"] != cases.get(each["id"]):
            found.append(f"survivor {each['id']} passed {each['cases']} cases, and its mutant {cases.get(each['id'])}")
        if each["verdict"] == "equivalent" and len(each["reason"].split()) < _WORDS:
            found.append(f"survivor {each['id']} is said to be equivalent by {each['reason']!r}")
    return found


#: Words of an argument that a mutant is equivalent, at least.
_WORDS = 3


def _foreign(each: Mapping[str, Any]) -> Iterator[str]:
    """What of a mutant does not fit its own name, or names what there is not."""
    parts = [each["floor"], each["kernel"], each["operator"]]
    if not each["id"].startswith(":".join([*parts, ""])):
        yield f"mutant {each['id']} is said to be of {', '.join(parts)}"
    if each["case"]:
        try:
            fields = Fields.read(each["case"])
            FAMILIES[fields.family].read(fields)
        except (ArgumentError, KeyError) as error:
            yield f"mutant {each['id']} is caught by {each['case']!r}, which is no case: {error}"
    if each["outcome"] in ("caught", "timed out", "equivalent") and not each["check"]:
        yield f"mutant {each['id']} is {each['outcome']} by no check"
    if each["outcome"] == "timed out" and each["check"] not in (None, "time"):
        yield f"mutant {each['id']} timed out, by the check {each['check']!r}; needed time"
    if each["outcome"] == "caught" and each["check"] and not _catches(each["check"]):
        yield f"mutant {each['id']} is caught by {each['check']!r}, which is the word of no check"
    if each["outcome"] in ("survived", "does not build") and each["check"]:
        yield f"mutant {each['id']} is {each['outcome']}, and the check {each['check']!r} found it"
    if each["floor"] != "ptx":
        yield from _place(each)


def _place(each: Mapping[str, Any]) -> Iterator[str]:
    """A place of a source that is not there. Lines may have moved: a comment does not count."""
    parts = each["id"].removeprefix(f"{each['floor']}:{each['kernel']}:{each['operator']}:").split(":", 3)
    folder = CSRC if each["floor"] == "cuda" else CSRC.parent
    if len(parts) < 4 or not all(number.isdecimal() for number in parts[1:3]):
        yield f"mutant {each['id']} does not name its file, line, column and change"
        return
    file, _, _, change = parts
    text = _text(folder / file) if ".." not in Path(file).parts else None
    if text is None or Path(file).with_suffix("").as_posix() != each["kernel"]:
        yield f"mutant {each['id']} is of the file {file}, which is none of {each['kernel']}"
        return
    before = change.partition(" -> ")[0].split(" ")[0]
    if before not in text:
        yield f"mutant {each['id']} replaces {before!r}, which {file} does not have"


@functools.cache
def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None


def _catches(word: str) -> bool:
    """Whether a check is called so, or so begins a finding that has no word, which is of several words.

    The words of the executor are those of its sources: the kinds of its faults, and the names of its errors.
    """
    if not re.fullmatch(r"\w+", word):
        return True
    return word in ("bytes", "refusal", "exception") or word in _words_of_the_executor()


@functools.cache
def _words_of_the_executor() -> frozenset[str]:
    texts = (file.read_text(encoding="utf-8") for file in Path(ptx.__file__).parent.rglob("*.py"))
    quoted = (word for text in texts for word in re.findall(r'"([a-z]+)"', text))
    named = {name for module in (faults, errors, builtins) for name in vars(module) if name[0].isupper()}
    return frozenset((*quoted, *named, "race", "undefined", "deadlock", "misuse", "endless"))


#: Mutants that `refmoe mutate` draws where it is not told how many: minutes, where all of them are weeks.
DRAWN = 200


def _sample(document: Mapping[str, Any]) -> Iterator[str]:
    """A number of mutants that the command does not try."""
    words = document["command"].replace("=", " ").split()
    if "--mutant" in words:
        return
    asked = words[words.index("--sample") + 1 :][:1] if "--sample" in words else [str(DRAWN)]
    if not asked or not asked[0].isdecimal():
        yield f"it was made by {document['command']!r}, which does not say how many mutants it draws"
        return
    of, tried = document["sample"]["of"], document["sample"]["tried"]
    needed = min(int(asked[0]) or of, of)
    if tried != needed:
        yield f"it tried {tried:,} of {of:,} mutants, and {document['command']!r} tries {needed:,}"


def _sources(stated: Mapping[str, str]) -> set[str]:
    """Files that are mutated and of which a document has no hash."""
    mutated = {path.relative_to(CSRC.parent).as_posix() for path in CSRC.iterdir() if path.suffix in (".cu", ".cuh")}
    return mutated - stated.keys()


def failures(document: Mapping[str, Any]) -> list[str]:
    """Where fewer are caught than the bar asks, a sentence each."""
    found = []
    share = document["summary"]["share"]
    if share is None or share < BAR:
        found.append(f"{_percent(share)} of the mutants that can be caught are; needed {_percent(BAR)}")
    return found


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.1f} %"


def _judge(document: Mapping[str, Any], present: PresentHash) -> list[str]:
    stale = sorted(name for name, stated in document["source_sha256"].items() if file_sha256(name) != stated)
    if stale:
        more = f" and {len(stale) - 1} more" if len(stale) > 1 else ""
        return [f"{stale[0]}{more} changed since its mutants were tried; {MUTATION.again}"]
    if absent := sorted(_sources(document["source_sha256"])):
        return [f"it does not say of which {absent[0]} it is, and {len(absent) - 1} more; {MUTATION.again}"]
    if found := [*contradictions(document), *_implausible(document)]:
        return found
    below = failures(document)
    if document["passed"] != (not below):
        return [f"says that it {'passed' if document['passed'] else 'did not pass'}, against its own figures"]
    return below


MUTATION = Kind(
    "mutation",
    again="run `refmoe mutate --sample N --report FILE` again",
    judge=_judge,
    model=MutationDocument,
    version=SCHEMA_VERSION,
)
