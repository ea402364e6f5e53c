"""What all documents share: one JSON object with a kind, keys that the kind promises, and a digest that shows an edit.

Every kind has a file of its name here that says what its documents hold and when the gate refuses one: `parity`,
`conformance`, `stress`, `litmus`, `drift`, `convert`, `bench`, `invariant` and `baseline`. An editor can also make a
new digest, so each kind also says which figures of a document have to agree.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from refmoe.chips import CHIPS, TARGETS
from refmoe.reports.checks import GateRefusal, ReportError
from refmoe.reports.environment import Environment, impossible, version_numbers
from refmoe.reports.reading import json_word, read_document, shown
from refmoe.version import __version__

__all__ = [
    "EDITED",
    "Count",
    "GateRefusal",
    "Kind",
    "Model",
    "PresentHash",
    "ReportError",
    "Seconds",
    "Sha256",
    "chip_refusals",
    "digest_of",
    "is_intact",
    "is_sha256",
    "passed_refusals",
    "read_document",
    "time_refusals",
    "version_text",
    "well_formed",
]

#: What to say of a document that is not intact; its path stands before.
EDITED = "edited after it was made: its content does not have the digest that it states"

#: Gives the present source hash of a kernel family; ArgumentError or OSError if the family is gone.
PresentHash = Callable[[str], str]

#: No document is older.
_FIRST = datetime.datetime(2025, 1, 1, tzinfo=datetime.timezone.utc)

#: Forms of one chip, as the table of products has them.
_FORMS = frozenset(("SXM", "PCIe", "NVL"))

#: What the clocks of two machines may differ by.
_CLOCKS = datetime.timedelta(days=1)


class Model(BaseModel):
    """An object of a document: its keys and their types, no other keys, and no type for another."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class Kind:
    """A kind of document beside parity reports.

    Attributes:
        name: its key `kind`.
        again: what to do about a document that is refused, "run `refmoe stress --device cuda` again".
        judge: why an intact document of this form is refused; it gets the document and the present source hashes. A
            sentence instead of a `GateRefusal` stands for the check `document.passed`.
        model: the document's keys and their types, or None.
        keys: what every document of this kind has, where it has no model.
        version: the schema version that is read, or None if the kind has none.
        evidence: whether it proves something: a folder of such documents can pass the gate.
    """

    name: str
    again: str
    judge: Callable[[Mapping[str, Any], PresentHash], Iterable[GateRefusal | str]]
    model: type[BaseModel] | None = None
    keys: frozenset[str] = frozenset()
    version: str | None = None
    evidence: bool = True

    def check(self, path: Path, document: Mapping[str, Any], present: PresentHash) -> list[GateRefusal]:
        """Why the gate refuses the document at `path`.

        Raises:
            ReportError: something inside it is not of the type that the kind promises.
        """
        with well_formed(path, self.name):
            return [refusal.at(shown(path)) for refusal in self._refusals(document, present)]

    def _refusals(self, document: Mapping[str, Any], present: PresentHash) -> list[GateRefusal]:
        if self.version is not None and document.get("schema_version") != self.version:
            found = document.get("schema_version")
            return [GateRefusal("document.version", version_text(found, self.version, f"document of kind {self.name}"))]
        if "digest" in document and not is_intact(document):
            return [GateRefusal("document.digest", f"edited after it was made; {self.again}")]
        if missing := sorted(self._required - document.keys()):
            text = f"says that it is of kind {self.name}, but has no {missing[0]}; {self.again}"
            return [GateRefusal("document.schema", text)]
        if self.model is not None:
            try:
                self.model.model_validate(document)
            except ValidationError as error:
                return [GateRefusal("document.schema", f"no valid document of kind {self.name}: {first_error(error)}")]
        judged = [
            each if isinstance(each, GateRefusal) else GateRefusal("document.passed", each)
            for each in self._judged(document, present)
        ]
        environment = environment_refusals(document.get("environment"))
        return [*time_refusals(document), *chip_refusals(document), *environment, *judged]

    def _judged(self, document: Mapping[str, Any], present: PresentHash) -> Iterable[GateRefusal | str]:
        return self.judge(document, present)

    @property
    def _required(self) -> frozenset[str]:
        fields = self.model.model_fields if self.model is not None else {}
        return self.keys | {name for name, field in fields.items() if field.is_required()} | {"digest"}


def first_error(error: ValidationError) -> str:
    """The first thing that is wrong, with its place: "cases.0.seconds: Input should be ..."."""
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    more = f", and {error.error_count() - 1:,} more" if error.error_count() > 1 else ""
    found = json.dumps(first["input"], default=str)
    found = f"; found {found if len(found) <= 60 else found[:57] + '...'}" if first["type"] != "missing" else ""
    return f"{place}: {first['msg']}{found}{more}"


@contextlib.contextmanager
def well_formed(path: Path, kind: str) -> Iterator[None]:
    """What goes wrong while the insides of a document are read is the document's fault: one sentence."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, ArithmeticError) as error:
        raise ReportError(f"{path}: says it is of kind {kind}, but lacks or spoils {error}") from error


def passed_refusals(document: Mapping[str, Any], failed: bool, otherwise: str) -> Iterator[GateRefusal]:
    """What is wrong with whether a document says that it passed; `otherwise` tells what holds if nothing failed."""
    if failed == document["passed"]:
        said = "passed, and it did not" if failed else f"did not pass, and {otherwise}"
        yield GateRefusal("document.passed", f"says itself that it {said}")


def time_refusals(document: Mapping[str, Any]) -> Iterator[GateRefusal]:
    """What is wrong with when a document says that it was made, if it says that."""
    if "created" not in document:
        return
    created = document["created"]
    try:
        made = datetime.datetime.fromisoformat(created)
    except (TypeError, ValueError):
        yield GateRefusal("document.time", f"made at {created!r}, which is no time; needed ISO 8601 with a time zone")
        return
    if made.tzinfo is None:
        yield GateRefusal("document.time", f"made at {created!r}, without a time zone; needed ISO 8601 with one")
    elif made < _FIRST:
        yield GateRefusal("document.time", f"made at {created}, before there was any report")
    elif made > datetime.datetime.now(datetime.timezone.utc) + _CLOCKS:
        yield GateRefusal("document.time", f"made at {created}, which has not come yet")
    elif document.get("seconds", 0) > (made - _FIRST).total_seconds():
        text = f"made at {created}, after {document['seconds']:g} s, which began before there was any report"
        yield GateRefusal("document.time", text)


def chip_refusals(document: Mapping[str, Any]) -> Iterator[GateRefusal]:
    """What is wrong with the GPU that a document names, if it names one."""
    if "gpu" not in document:
        return
    yield from gpu_refusals(document["gpu"], document.get("arch"))
    environment = document.get("environment")
    if not isinstance(environment, Mapping):
        return
    if environment.get("gpu") != document["gpu"]:
        found = f"ran on {document['gpu']}, and its environment names {environment.get('gpu') or 'no GPU'}"
        yield GateRefusal("document.chip", found)
    # What ran without torch says what it left out, see `refmoe.bench.gpu`.
    for part in ("driver", *(() if document.get("absent") else ("torch",))):
        if environment.get(part) is None:
            yield GateRefusal("document.chip", f"ran on {document['gpu']}, and its environment names no {part}")


def environment_refusals(environment: Any) -> Iterator[GateRefusal]:
    """What is wrong with where a document says that it was made: its form, and a refmoe that has not come yet."""
    if environment is None:
        return
    try:
        found = Environment.model_validate(environment, strict=True)
    except ValidationError as error:
        yield GateRefusal("document.schema", f"no valid environment: {first_error(error)}")
        return
    yield from refmoe_refusals(found.refmoe)
    if found.gpu is None and found.driver is not None:
        yield GateRefusal("document.chip", f"its environment names the driver {found.driver}, and no GPU")
    yield from (
        GateRefusal("document.environment", f"its environment names {said}") for said in impossible(environment)
    )


def refmoe_refusals(version: str) -> Iterator[GateRefusal]:
    """What is wrong with the refmoe that a document was made by: it has not come yet."""
    if version_numbers(version) > version_numbers(__version__):
        text = f"made by refmoe {version}, and this one, which is to read it, is {__version__}"
        yield GateRefusal("document.version", text)


def gpu_refusals(gpu: object, arch: object) -> Iterator[GateRefusal]:
    """What is wrong with the name of a GPU and the arch that it is said to have."""
    if not isinstance(gpu, str) or not gpu.strip():
        yield GateRefusal("document.chip", f"ran on a GPU, and names {gpu!r}; needed the GPU's name")
        return
    if arch not in {chip.arch for chip in CHIPS.values()} | TARGETS.keys():
        yield GateRefusal(
            "document.chip", f"ran on {gpu} and says {arch!r}, which is the arch of no chip that is known"
        )
    for chip in CHIPS.values():
        if chip.arch != arch and any(_sold_as(gpu, product.name) for product in chip.products):
            yield GateRefusal("document.chip", f"ran on {gpu}, which is {chip.arch}, and says {arch}")


def _sold_as(gpu: str, product: str) -> bool:
    # A driver does not name the form that a chip is sold in: "H100 80GB HBM3" is an H100 SXM.
    return set(product.split()) - _FORMS <= set(gpu.removeprefix("NVIDIA ").split())


def digest_of(document: Mapping[str, Any]) -> str:
    """SHA-256 of a document's canonical JSON: sorted keys, no spaces, UTF-8, the key `digest` left out."""
    content = {key: value for key, value in document.items() if key != "digest"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def is_intact(document: Mapping[str, Any]) -> bool:
    """Whether a document has the digest that it states; one with a NaN has none, since JSON has no word for it."""
    try:
        return digest_of(document) == document.get("digest")
    except (ValueError, RecursionError):
        return False


def is_sha256(text: object) -> bool:
    """Whether it is a SHA-256 as reports write one: 64 digits of base 16, in small letters, not all of them equal."""
    return isinstance(text, str) and len(text) == 64 and set(text) <= set("0123456789abcdef") and len(set(text)) > 1


def version_text(found: object, read: str, kind: str = "report") -> str:
    """The refusal of a document of another schema version, without its path."""
    unlike = f", and it is a string, not {json_word(found)}" if str(found) == read else ""
    return f"a {kind} of schema version {found}; this refmoe reads version {read}{unlike}"
