"""The rows of a run of `refmoe parity --level exhaustive`: its command says which, and each has so many blocks."""

from __future__ import annotations

import functools
import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from refmoe.errors import ArgumentError
from refmoe.exhaustive.pairs import Domain
from refmoe.exhaustive.pieces import EXPERTS, ROWS, TOP_K, WIDTH, Piece, list_pieces, ranges
from refmoe.formats import MX_BLOCK, MX_FORMATS
from refmoe.reference.layout import grouped_scale_rows, scale_buffer_size
from refmoe.reports.checks import GateRefusal, first_and_count
from refmoe.reports.exhaustive import EXHAUSTIVE, row_name


def refusals(document: Mapping[str, Any]) -> Iterator[GateRefusal]:
    """Rows that are missing or beyond those that the command asks for, and counts that are not those of a sweep."""
    yield from first_and_count("exhaustive.recomputed", _wrong(document))


def _wrong(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    try:
        wanted = rows_of(document["command"], document["device"])
    except (ArgumentError, ValueError) as error:
        yield f"its command {document['command']!r}", f"asks for no sweep: {error}"
        return
    held = {row_name(row): row for row in document["rows"]}
    for name in sorted(wanted.keys() - held.keys()):
        yield f"the row {name}", f"is missing, and {document['command']!r} asks for it; {EXHAUSTIVE.again}"
    for name in sorted(held.keys() - wanted.keys()):
        yield f"the row {name}", f"is none of those that {document['command']!r} asks for"
    for name in sorted(held.keys() & wanted.keys()):
        piece, row = wanted[name], held[name]
        for what, found in (("entry", _entry(piece)), ("blocks", _blocks(piece)), ("bytes", _bytes(piece))):
            if row[what] != found:
                yield f"the row {name}", f"says {what} {row[what]}; a sweep has {found}"


def rows_of(command: str, device: str) -> Mapping[str, Piece]:
    """By its name the first piece of every row that a command makes.

    Raises:
        ArgumentError: it asks for what there is not.
        ValueError: it is no command.
    """
    words = shlex.split(command.replace("=", " "))
    asked = {key: _after(words, f"--{key}") for key in ("suite", "dtype", "policy")}
    found: dict[str, Piece] = {}
    for piece in list_pieces(asked["suite"], asked["dtype"]):
        policy = f"{piece.mode}/{piece.edge}"
        # References run on no device: a sweep on a GPU leaves them out.
        if (asked["policy"] and policy not in asked["policy"]) or (
            device == "cuda" and piece.subject.family == "reference"
        ):
            continue
        found.setdefault(f"{piece.subject.name}:{piece.dtype}:{policy}", piece)
    return found


def _after(words: Sequence[str], option: str) -> list[str]:
    return [after for word, after in itertools.pairwise(words) if word == option]


def _entry(piece: Piece) -> str | None:
    entry = piece.subject.entry(piece.dtype, piece.mode, piece.edge)
    return entry.entry if entry is not None else None


@functools.cache
def _blocks_by_range(domain: Domain) -> tuple[int, ...]:
    return tuple(sum(map(domain.blocks, range(first, last + 1))) for first, last in ranges(domain))


def _blocks(piece: Piece) -> int:
    return sum(_blocks_by_range(piece.domain))


def _bytes(piece: Piece) -> int:
    """What is compared of all launches of a row: every launch fills its last blocks up."""
    size = ROWS * WIDTH // MX_BLOCK
    launches = sum(-(-blocks // size) for blocks in _blocks_by_range(piece.domain))
    return launches * _bytes_a_launch(piece)


def _bytes_a_launch(piece: Piece) -> int:
    """The codes and scales that a launch writes."""
    family, blocks = piece.subject.family, WIDTH // MX_BLOCK
    if family == "reference":
        return ROWS * WIDTH * MX_FORMATS[piece.subject.format].element.bits // 8 + ROWS * blocks
    if family == "expand":
        rows = ROWS * TOP_K
        return rows * WIDTH + scale_buffer_size(grouped_scale_rows(rows, EXPERTS), blocks, piece.subject.variant)
    return ROWS * WIDTH + scale_buffer_size(ROWS, blocks, piece.subject.variant)
