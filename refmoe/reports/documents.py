"""What all documents share: one JSON object with a kind, keys that the kind promises, and a digest that shows an edit.

Every kind has a file of its name here that says what its documents hold and when the gate refuses one: `parity`,
`conformance`, `stress`, `drift`, `convert`, `bench` and `baseline`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refmoe.errors import RefmoeError

#: What to say of a document that is not intact; its path stands before.
EDITED = "edited after it was made: its content does not have the digest that it states"

#: Gives the present source hash of a kernel family; ArgumentError or OSError if the family is gone.
PresentHash = Callable[[str], str]


class ReportError(RefmoeError):
    """A file is no report, or was changed after it was made; the message says which, in a sentence."""


@dataclass(frozen=True)
class Kind:
    """A kind of document beside parity reports.

    Attributes:
        name: its key `kind`.
        again: what to do about a document that is refused, "run `refmoe stress --device cuda` again".
        keys: what every document of this kind has.
        judge: why an intact document that has these keys is refused, a sentence each; it gets the document and the
            present source hashes.
        version: the schema version that is read, or None if the kind has none.
        evidence: whether it proves something: it then must be intact, and a folder of such documents can pass the gate.
    """

    name: str
    again: str
    keys: frozenset[str]
    judge: Callable[[Mapping[str, Any], PresentHash], list[str]]
    version: str | None = None
    evidence: bool = True

    def check(self, path: Path, document: Mapping[str, Any], present: PresentHash) -> list[str]:
        """Why the gate refuses the document at `path`, a sentence each.

        Raises:
            ReportError: something inside it is not of the type that the kind promises.
        """
        with well_formed(path, self.name):
            return [f"{path}: {sentence}" for sentence in self._refusals(document, present)]

    def _refusals(self, document: Mapping[str, Any], present: PresentHash) -> list[str]:
        if self.evidence and not is_intact(document):
            return [f"edited after it was made; {self.again}"]
        if self.version is not None and document.get("schema_version") != self.version:
            found = document.get("schema_version")
            return [version_text(found, self.version, f"document of kind {self.name}")]
        if missing := sorted(self.keys - document.keys()):
            return [f"says that it is of kind {self.name}, but has no {missing[0]}; {self.again}"]
        return self.judge(document, present)


@contextlib.contextmanager
def well_formed(path: Path, kind: str) -> Iterator[None]:
    """What goes wrong while the insides of a document are read is the document's fault: one sentence."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, ArithmeticError) as error:
        raise ReportError(f"{path}: says it is of kind {kind}, but lacks or spoils {error}") from error


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


def read_document(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        ReportError: the file cannot be read, is empty, or holds no JSON object.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ReportError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ReportError(f"{path}: cannot be read: {error}") from error
    if not text.strip():
        raise ReportError(f"{path}: the file is empty; a report is one JSON object")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{path}: no JSON, so no report: {error}") from error
    if not isinstance(document, dict):
        raise ReportError(f"{path}: holds {_json_word(document)} and no more; a report is one JSON object")
    return document


def _json_word(value: object) -> str:
    """What JSON calls a value that is no object."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list) else "a number"


def version_text(found: object, read: str, kind: str = "report") -> str:
    """The refusal of a document of another schema version, without its path."""
    unlike = f", and it is a string, not {_json_word(found)}" if str(found) == read else ""
    return f"a {kind} of schema version {found}; this refmoe reads version {read}{unlike}"
