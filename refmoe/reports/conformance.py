"""A document of `refmoe conformance`: the executor's instructions held against a GPU's; `refmoe.silicon` makes it."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from refmoe import ptx
from refmoe.ptx import isa
from refmoe.reports.checks import GateRefusal, first_and_count
from refmoe.reports.documents import Count, Kind, Model, PresentHash, Sha256

#: Instructions that differ and are named; the others are counted.
_NAMED = 5
#: Instructions of a run: the executor knows between so many and so many that a GPU of today takes.
INSTRUCTIONS = range(2_000, 10_000)
#: Lanes of an instruction, at least; those of the tables have 32,768.
LANES = 256
#: Instructions that no table computes, by their first word: they touch memory or other lanes.
_WITHOUT_TABLE = ("atom", "red", "shfl", "vote", "match", "redux", "wgmma")


# What products of warpgroups compute, but for the accumulation models.
_PRODUCTS = {"text": ("wgmma",), "engine/tensor": ("descriptor", "sparse", "sums", "wgmma"), "native": ("wgmma",)}


def isa_sha256() -> str:
    """SHA-256 over the sources that a run speaks for: what instructions, atomics, warps and warpgroups compute."""
    package = Path(ptx.__file__).parent
    digest = hashlib.sha256()
    single = (package / "text/memory_ops.py", package / "engine/warp.py")
    products = [package / folder / f"{name}.py" for folder, names in _PRODUCTS.items() for name in names]
    for file in (*sorted((package / "isa").glob("*.py")), *single, *products):
        digest.update(f"{file.name}\0".encode() + file.read_bytes())
    return digest.hexdigest()


class OutcomeRecord(Model):
    """An instruction with lanes that differ, or whose result is not claimed exact."""

    opcode: str
    lanes: Count
    differing: Count
    open_lanes: Count
    open_differing: Count
    examples: list[str]


class ConformanceDocument(Model):
    """The keys of a document."""

    kind: Literal["conformance"]
    gpu: str
    arch: str
    isa_sha256: Sha256
    opcodes: Count
    lanes: Count
    open_lanes: Count
    refused_by_ptxas: list[str]
    differing_opcodes: Count
    rows: list[OutcomeRecord]
    digest: Sha256


def _judge(document: Mapping[str, Any], present: PresentHash) -> Iterator[GateRefusal]:
    again, rows = CONFORMANCE.again, document["rows"]
    if document["isa_sha256"] != isa_sha256():
        text = f"the executor's instructions changed since they were held against {document['gpu']}; {again}"
        yield GateRefusal("stale.executor", text)
    differing = [row["opcode"] for row in rows if row["differing"]]
    if differing or document["differing_opcodes"]:
        named = ", ".join(differing[:_NAMED])
        text = f"{len(differing)} instructions differ on {document['gpu']}: {named}"
        yield GateRefusal("conformance.differs", text)
    if not document["opcodes"]:
        yield GateRefusal("conformance.rows", "it holds no instruction, so it proves nothing")
    elif document["opcodes"] not in INSTRUCTIONS:
        text = f"says that {document['opcodes']:,} instructions ran; needed {INSTRUCTIONS.start:,} and more"
        yield GateRefusal("conformance.rows", f"{text}, below {INSTRUCTIONS.stop:,}")
    there = [*(row["opcode"] for row in rows), *document["refused_by_ptxas"]]
    unknown = ((f"the instruction {name}", "is none that the executor knows") for name in there if not _known(name))
    yield from first_and_count("conformance.rows", unknown)
    yield from _totals(document)
    for opcode, count in Counter(row["opcode"] for row in rows).items():
        if count > 1:
            yield GateRefusal("conformance.rows", f"the instruction {opcode} is there {count} times")
        if opcode in document["refused_by_ptxas"]:
            yield GateRefusal("conformance.rows", f"the instruction {opcode} ran, and ptxas refused it")
    for opcode, count in Counter(document["refused_by_ptxas"]).items():
        if count > 1:
            yield GateRefusal("conformance.rows", f"the instruction {opcode} was refused {count} times")
    yield from first_and_count("conformance.counts", ((row["opcode"], wrong) for row in rows for wrong in _counts(row)))
    if document["isa_sha256"] == isa_sha256():  # other sources compute otherwise
        examples = ((row["opcode"], wrong) for row in rows for wrong in _examples(row))
        yield from first_and_count("conformance.examples", examples)


def _known(opcode: str) -> bool:
    """Whether the executor knows an instruction; a constant operand may follow its name."""
    name = opcode.partition(" ")[0]
    if name.partition(".")[0] in _WITHOUT_TABLE:
        return True
    try:
        isa.resolve(name)
    except isa.NoSuchInstruction:
        return False
    return True


def _totals(document: Mapping[str, Any]) -> Iterator[GateRefusal]:
    """Totals that are not those of the rows; rows without differing or open lanes are left out of a document."""
    rows = document["rows"]
    open_lanes, lanes = sum(row["open_lanes"] for row in rows), sum(row["lanes"] for row in rows)
    differing = sum(row["differing"] > 0 for row in rows)
    for said, found, what in (
        (document["open_lanes"], open_lanes, "open lanes"),
        (document["differing_opcodes"], differing, "differing instructions"),
    ):
        if said != found:
            yield GateRefusal("conformance.counts", f"says {said:,} {what}, and its rows have {found:,}")
    if document["opcodes"] < len(rows):
        text = f"says {document['opcodes']:,} instructions, and has {len(rows):,} rows"
        yield GateRefusal("conformance.counts", text)
    if document["lanes"] < lanes + (document["opcodes"] - len(rows)) * LANES:
        text = (
            f"says {document['lanes']:,} lanes, and its rows alone have {lanes:,}; needed {LANES:,} of each other one"
        )
        yield GateRefusal("conformance.counts", text)


def _counts(row: Mapping[str, Any]) -> Iterator[str]:
    if row["open_lanes"] + row["differing"] > row["lanes"]:
        yield f"{row['open_lanes']:,} open and {row['differing']:,} differing lanes of {row['lanes']:,}"
    if row["open_differing"] > row["open_lanes"]:
        yield f"{row['open_differing']:,} lanes differ of {row['open_lanes']:,} open ones"
    if not row["open_lanes"] and not row["differing"]:
        yield "a row in which no lane is open and none differs"
    if row["examples"] and not row["open_differing"] and not row["differing"]:
        yield "examples of lanes that differ, where none does"
    if not row["examples"] and (row["open_differing"] or row["differing"]):
        yield "lanes that differ, and no example of one"


#: A lane that differs, as `refmoe.silicon.conformance.compare` shows it.
_EXAMPLE = re.compile(r"operands ((?:0x[0-9a-f]{1,32} ?)+): GPU (.+), executor (.+)")
_TYPES = {"b16": np.uint16, "b32": np.uint32, "b64": np.uint64, "pred": np.bool_}


def _examples(row: Mapping[str, Any]) -> Iterator[str]:
    """Examples that the executor does not compute so, and lanes that are called open and whose result is claimed."""
    try:
        operation = isa.resolve(row["opcode"].partition(" ")[0])
    except isa.NoSuchInstruction:
        return  # of those that touch memory, whose examples no table computes
    if row["open_lanes"] and operation.exact_when is None:
        yield f"{row['open_lanes']:,} open lanes, and the executor claims that it is exact in all of them"
    for example in row["examples"]:
        said = _EXAMPLE.fullmatch(example)
        if said is None:
            yield f"the example {example!r}; needed operands, the GPU's result and the executor's"
            continue
        operands = [int(word, 16) for word in said[1].split()]
        types = [_TYPES.get(kind) for kind in operation.sources]
        if len(operands) != len(types):
            yield f"an example with {len(operands)} operands; it takes {len(types)}"
            continue
        if said[2] == said[3]:
            yield f"an example that does not differ: {example}"
        if None in types:
            continue
        try:
            lanes = [np.array([value], kind) for value, kind in zip(operands, types, strict=True)]
        except OverflowError:
            yield f"an example with an operand that no register holds: {example}"
            continue
        with np.errstate(all="ignore"):
            made = operation.function(*lanes)
            claimed = operation.exact_when is None or bool(np.all(operation.exact_when(*lanes)))
        results = made if isinstance(made, tuple) else (made,)
        now = " ".join(f"{int(each[0]):#x}" for each in results)
        if now != said[3]:
            yield f"the executor gives {now}, and the example says {said[3]}"
        if claimed and not row["differing"]:
            yield f"no claimed lane differs, and one is the example {example}"


CONFORMANCE = Kind(
    "conformance",
    again="run `refmoe conformance --device cuda` again",
    judge=_judge,
    model=ConformanceDocument,
)
