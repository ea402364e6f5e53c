"""A document of `refmoe parity --level exhaustive`: every pair (amax, element); `refmoe.exhaustive` makes it."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from refmoe.chips import KERNEL_ARCHS
from refmoe.families import FAMILIES
from refmoe.policy import EdgePolicy, ScaleMode
from refmoe.reports.consistency import entry_names
from refmoe.reports.documents import Count, Kind, Model, PresentHash, Seconds, Sha256, gpu_refusals
from refmoe.reports.environment import Environment
from refmoe.verify.source import python_text

SCHEMA_VERSION = "1"

#: Modules that decide what a piece is and what is expected of it: the sweep, the definition, the fast references.
_DECIDES = (
    *("exhaustive/definition.py", "exhaustive/pairs.py", "exhaustive/pieces.py"),
    *("formats.py", "policy.py", "reference/scalar/*.py", "reference/quantize.py", "reference/fp32.py"),
    *("reference/expand.py", "reference/layout.py", "reference/tensor.py", "families/quantize.py"),
)
#: Modules that decide what is proven of a kernel.
_PROVES = ("exhaustive/blockwise.py", "exhaustive/follow.py", "exhaustive/terms.py")

_INFINITY = {"bf16": 0x7F80, "fp16": 0x7C00}
_LAST = 0x7FFF
#: Edges under which blocks with a NaN, or with an infinity, are not defined.
_WITHOUT_NAN = ("deepgemm",)
_WITHOUT_INFINITY = ("deepgemm", "transformer_engine", "llama_cpp_cuda")


class RowRecord(Model):
    """What was swept of one kernel or reference, under one policy."""

    subject: str
    dtype: Literal["bf16", "fp16"]
    mode: str
    edge: str
    entry: str | None
    pieces: Count
    pairs: Count
    blocks: Count
    bytes: Count
    differing: int
    first: dict[str, Any] | None


class ProofRecord(Model):
    """What was found of one entry, see `refmoe.exhaustive.blockwise.Proof`."""

    entry: str
    launches: list[str]
    instructions: Count
    predicates: Count
    forced: Count
    bytes: Count
    shapes: dict[str, Count]
    maximum: str | None
    refusals: list[str]


class ExhaustiveDocument(Model):
    """The keys of a document."""

    kind: Literal["exhaustive"]
    schema_version: Literal["1"]
    created: str
    command: str
    environment: Environment
    seconds: Seconds
    device: Literal["ptx", "cuda"]
    arch: Literal[KERNEL_ARCHS]  # type: ignore[valid-type]
    source_sha256: dict[str, Sha256]
    swept_sha256: Sha256
    proof_sha256: Sha256
    rows: list[RowRecord]
    proofs: list[ProofRecord]
    summary: dict[str, int]
    passed: bool
    digest: Sha256


def _sha256(patterns: tuple[str, ...]) -> str:
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for pattern in patterns:
        for file in sorted(package.glob(pattern)):
            text = python_text(file.read_text(encoding="utf-8"))
            digest.update(f"{file.relative_to(package).as_posix()}\0{len(text)}\0{text}".encode())
    return digest.hexdigest()


def swept_sha256() -> str:
    """SHA-256 over the sources that decide what is expected, without comments and docstrings."""
    return _sha256(_DECIDES)


def proof_sha256() -> str:
    """SHA-256 over the sources of the proof."""
    return _sha256(_PROVES)


def all_pairs(dtype: str, edge: str) -> int:
    """How many pairs (amax, element) there are, signs of elements counted; a closed form of the sweep's own count.

    Beside a number stand all that are no larger, and every NaN; beside a NaN all numbers, and the NaNs up to it.
    """
    infinity = _INFINITY[dtype]
    amaxes = infinity + (edge not in _WITHOUT_INFINITY)
    numbers = amaxes * (amaxes + 1)
    if edge in _WITHOUT_NAN:
        return numbers
    nans = _LAST - infinity
    return numbers + amaxes * 2 * nans + nans * 2 * amaxes + nans * (nans + 1)


def summary(rows: list[Mapping[str, Any]], proofs: list[Mapping[str, Any]]) -> dict[str, int]:
    """The sums of a document."""
    total = {key: sum(row[key] for row in rows) for key in ("pieces", "pairs", "blocks", "bytes", "differing")}
    return {"rows": len(rows), **total, "proofs": len(proofs), "refused": sum(bool(p["refusals"]) for p in proofs)}


def row_name(row: Mapping[str, Any]) -> str:
    """A row in words: `mxfp8_quantize.linear:bf16:rceil/exact`."""
    return f"{row['subject']}:{row['dtype']}:{row['mode']}/{row['edge']}"


def contradictions(document: Mapping[str, Any]) -> list[str]:
    """What in a document does not fit the rest of it, a sentence each."""
    rows, proofs = document["rows"], document["proofs"]
    found = []
    if not rows:
        found.append("it has no rows, so it proves nothing")
    for name, count in Counter(map(row_name, rows)).items():
        if count > 1:
            found.append(f"{name} is there {count} times")
    by_entry = {proof["entry"]: proof for proof in proofs}
    if len(by_entry) < len(proofs):
        found.append("an entry is proven twice")
    for row in rows:
        found += _contradictions_of(row, by_entry)
    for proof in proofs:
        if proof["entry"] not in {row["entry"] for row in rows}:
            found.append(f"the entry {proof['entry']} is proven, and no row is of it")
        if not proof["refusals"] and not (proof["bytes"] > 0 and proof["launches"] and proof["maximum"]):
            found.append(f"the entry {proof['entry']} is proven over no byte, no launch or no amax")
    found += _unknown(document)
    if document["summary"] != summary(rows, proofs):
        found.append("its summary is not the sum of its rows")
    return found


#: Subjects of the sweep: `refmoe.exhaustive.pieces.SUBJECTS`.
SUBJECTS = frozenset(
    (
        *("mxfp8_quantize.linear", "mxfp8_quantize.128x4", "mxfp8_quantize.8x4", "expand.128x4", "expand.8x4"),
        *("reference.mxfp8", "reference.mxfp4"),
    )
)
#: Pieces of a row: `refmoe.exhaustive.pieces.RANGES`.
PIECES = 16
#: The launches that a proof follows, by family: those of `refmoe.exhaustive.blockwise.launches_of`.
LAUNCHES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "mxfp8_quantize": (
            *("24 x 2880, grid 24", "9 x 416, grid 9", "2 x 8224, grid 2", "131 x 32, grid 64"),
            "3 x 32, grid 3, idle threads",
        ),
        "expand": (
            *("24 x 2880, top 2 of 8 experts from 0 on, grid 24", "5 x 416, top 11 of 16 experts from 0 on, grid 5"),
            *("3 x 416, top 6 of 16 experts from 0 on, grid 3", "3 x 416, top 5 of 16 experts from 0 on, grid 3"),
            *("4 x 416, top 12 of 8 experts from 8 on, grid 4", "2 x 8224, top 1 of 8 experts from 0 on, grid 2"),
            "131 x 32, top 3 of 8 experts from 0 on, grid 64",
            "3 x 32, top 2 of 8 experts from 0 on, grid 3, idle threads",
            "2 x 32, top 0 of 8 experts from 0 on, grid 2",
            *("1 x 2880, top 2 of 8 experts from 0 on, grid 2", "1 x 32, top 3 of 8 experts from 0 on, grid 3"),
            *("1 x 8224, top 1 of 8 experts from 0 on, grid 1", "1 x 416, top 12 of 8 experts from 8 on, grid 12"),
        ),
    }
)
#: What makes the amax of a block.
_MAXIMA = re.compile(r"max\.[\w.]+")


def _unknown(document: Mapping[str, Any]) -> Iterator[str]:
    """Words and figures that no sweep has."""
    if not document["command"].startswith("refmoe parity"):
        yield f"it was made by {document['command']!r}; needed refmoe parity"
    words = document["command"].replace("=", " ").split()
    if "exhaustive" not in (after for word, after in itertools.pairwise(words) if word == "--level"):
        yield f"it was made by {document['command']!r}; needed one with --level exhaustive"
    for key in ("device", "arch"):
        for said in (after for word, after in itertools.pairwise(words) if word == f"--{key}"):
            if said != document[key]:
                yield f"it was swept for the {key} {document[key]}, and its command asks for {said}"
    if not document["seconds"]:
        yield "it was swept in no time"
    if document["device"] == "cuda":
        yield from (refusal.text for refusal in gpu_refusals(document["environment"]["gpu"], document["arch"]))
    if (document["device"] == "cuda") != (document["environment"]["gpu"] is not None):
        yield f"it was swept on {document['device']}, and its environment names {document['environment']['gpu']}"
    for row in document["rows"]:
        name, (family, _, layout) = row_name(row), row["subject"].partition(".")
        if row["subject"] not in SUBJECTS:
            yield f"{name} is of no subject; needed one of {', '.join(sorted(SUBJECTS))}"
        modes, edges = [each.value for each in ScaleMode], [each.value for each in EdgePolicy]
        if row["mode"] not in modes or row["edge"] not in edges:
            yield f"{name} is of no policy"
        if row["entry"] is not None and family in FAMILIES:
            wanted = f"{row['dtype']}_{row['mode']}_{row['edge']}_{layout}"
            if not any(row["entry"] == f"{start}{wanted}" for start in entry_names(family)):
                yield f"{name} is of the entry {row['entry']}; needed that of {wanted}"
        if row["blocks"] > 2 * row["pairs"]:
            yield f"{name} has {row['blocks']:,} blocks, more than its {row['pairs']:,} pairs need"
        if row["pieces"] != PIECES:
            yield f"{name} has {row['pieces']:,} pieces; the sweep cuts it into {PIECES}"
    for proof in document["proofs"]:
        if proof["refusals"]:
            continue
        family = next((name for name in LAUNCHES if proof["entry"].startswith(entry_names(name))), "")
        listed, held = Counter(LAUNCHES.get(family, ())), Counter(proof["launches"])
        for words, said in ((listed - held, "lacks"), (held - listed, "holds beyond those of a proof")):
            if words:
                yield f"the entry {proof['entry']} {said} the launch {min(words)!r}"
        # The codes alone: a launch names its tokens or rows, its width, and how often a token is copied.
        sizes = (re.match(r"(\d+) x (\d+)(?:, top (\d+) .* from 0 on)?", launch) for launch in proof["launches"])
        codes = sum(int(m[1]) * int(m[2]) * int(m[3] or 1) for m in sizes if m and (m[3] or family != "expand"))
        if not held - listed and proof["bytes"] < codes:
            text = f"the entry {proof['entry']} is proven over {proof['bytes']:,} bytes"
            yield f"{text}; its launches have {codes:,} codes"
        if not proof["instructions"] or not proof["shapes"]:
            yield f"the entry {proof['entry']} is proven with no instruction, or no output"
        if proof["forced"] > proof["predicates"] or proof["predicates"] > proof["instructions"]:
            counts = f"{proof['forced']:,} of {proof['predicates']:,} of {proof['instructions']:,}"
            yield f"the entry {proof['entry']} has {counts} instructions forced"
        if proof["maximum"] and not _MAXIMA.fullmatch(proof["maximum"]):
            yield f"the entry {proof['entry']} makes its amax by {proof['maximum']!r}"


def _contradictions_of(row: Mapping[str, Any], by_entry: Mapping[str, Mapping[str, Any]]) -> list[str]:
    name, found = row_name(row), []
    pairs = all_pairs(row["dtype"], row["edge"])
    if row["pairs"] != pairs:
        found.append(f"{name} has {row['pairs']:,} pairs; there are {pairs:,}")
    if row["blocks"] * 31 < row["pairs"]:
        found.append(f"{name} has {row['blocks']:,} blocks, too few for its pairs")
    # A code for every element of a block; of MXFP4 two in a byte.
    least = row["blocks"] * (16 if row["subject"] == "reference.mxfp4" else 32)
    if row["bytes"] < least:
        found.append(f"{name} compared {row['bytes']:,} bytes; its blocks have {least:,} of codes alone")
    if not 0 <= row["differing"] <= row["bytes"]:
        found.append(f"{name} has {row['differing']:,} differing bytes of {row['bytes']:,}")
    if (row["first"] is None) != (row["differing"] == 0):
        found.append(f"{name} has {row['differing']:,} differing bytes, and its first difference says otherwise")
    if row["pieces"] < 1:
        found.append(f"{name} has no piece")
    if (row["entry"] is None) != row["subject"].startswith("reference."):
        found.append(f"{name} is of the entry {row['entry']}")
    if row["entry"] is not None and row["entry"] not in by_entry:
        found.append(f"{name} has no proof of its entry {row['entry']}")
    return found


def failures(document: Mapping[str, Any]) -> list[str]:
    """What a run found to be wrong, a sentence each."""
    found = [
        f"{row_name(row)}: {row['differing']:,} of {row['bytes']:,} bytes differ"
        for row in document["rows"]
        if row["differing"]
    ]
    unproven = ((proof["entry"], why) for proof in document["proofs"] for why in _unproven(proof))
    return found + [f"{entry} is not proven: {why}" for entry, why in unproven]


#: What a proof speaks of: each is one function of (amax, element), or of amax alone, wherever its block lies.
_PROVEN = ("codes", "scales")


def _unproven(proof: Mapping[str, Any]) -> Iterator[str]:
    """Why a proof is none: the first instruction that it refuses, or else an output that is no single function."""
    if proof["refusals"]:
        yield proof["refusals"][0]
    elif proof["shapes"] != dict.fromkeys(_PROVEN, 1):
        counts = ", ".join(f"{output} {proof['shapes'].get(output, 0):,}" for output in _PROVEN)
        yield f"functions by which bytes are made, wherever a block lies: {counts}; needed one of each"


def _judge(document: Mapping[str, Any], present: PresentHash) -> list[str]:
    stale = [name for name, stated in document["source_sha256"].items() if present(name) != stated]
    if stale:
        return [f"the source of {', '.join(stale)} changed since it was swept; {EXHAUSTIVE.again}"]
    if document["swept_sha256"] != swept_sha256():
        return [f"what is expected, or its sweep, changed since it was made; {EXHAUSTIVE.again}"]
    if document["proof_sha256"] != proof_sha256():
        return [f"the proof changed since it was made; {EXHAUSTIVE.again}"]
    kernels = {row["subject"].partition(".")[0] for row in document["rows"]} - {"reference"}
    if missing := sorted(kernels - document["source_sha256"].keys()):
        return [f"it does not say of which source of {missing[0]} it is"]
    if found := contradictions(document):
        return found
    wrong = failures(document)
    if document["passed"] is not (not wrong):
        said = "passed" if document["passed"] else "did not pass"
        return [f"says that it {said}, against what it found: {wrong[0] if wrong else 'nothing wrong'}"]
    return wrong


EXHAUSTIVE = Kind(
    "exhaustive",
    again="run `refmoe parity --level exhaustive` again",
    judge=_judge,
    model=ExhaustiveDocument,
    version=SCHEMA_VERSION,
)
