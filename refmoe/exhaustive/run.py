"""The whole of `refmoe parity --level exhaustive`: the sweep, the proofs, the document."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from refmoe.catalog import source_sha256
from refmoe.cuda.launch import Entry
from refmoe.cuda.toolchain import Target, build
from refmoe.exhaustive.blockwise import launches_of, prove
from refmoe.exhaustive.pieces import Piece, do_named
from refmoe.ptx import Module
from refmoe.reports.documents import digest_of
from refmoe.reports.environment import run_facts
from refmoe.reports.exhaustive import SCHEMA_VERSION, failures, proof_sha256, summary, swept_sha256
from refmoe.verify.sweep import Ledger, in_order, sweep
from refmoe.verify.workers import Workers

_SUMS = ("pairs", "blocks", "bytes", "differing")


def open_ledger(path: Path, device: str, arch: str, *, fresh: bool = False) -> Ledger:
    """The partial results at `path`, of the present sources.

    Raises:
        ArgumentError: the file is of other sources, or no such file.
        OSError: it cannot be read or written.
    """
    families = {family: source_sha256(family) for family in ("expand", "mxfp8_quantize")}
    swept = {"sources": swept_sha256(), "kernels": families, "device": device, "arch": arch}
    return Ledger(path, swept, fresh=fresh)


def run_pieces(
    pieces: Sequence[Piece], ledger: Ledger, device: str, arch: str, workers: Workers, tell: Callable[[str, Any], None]
) -> None:
    """Do what is not in the ledger; `tell` gets the name and the result of each piece as it comes."""
    work = partial(do_named, device=device, arch=arch)
    for name, result in sweep({str(piece): str(piece) for piece in pieces}, work, ledger, workers):
        tell(name, result)


def rows_of(pieces: Iterable[Piece], ledger: Ledger) -> list[dict[str, Any]]:
    """The sums of the pieces of each subject, dtype and policy, in the order of the pieces."""
    pieces = list(pieces)
    results = in_order([str(piece) for piece in pieces], ledger)
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for piece in pieces:
        entry = piece.subject.entry(piece.dtype, piece.mode, piece.edge)
        row = rows.setdefault(
            (piece.subject.name, piece.dtype, piece.mode, piece.edge),
            {
                **{"subject": piece.subject.name, "dtype": piece.dtype, "mode": piece.mode, "edge": piece.edge},
                **{
                    "entry": None if entry is None else entry.entry,
                    "pieces": 0,
                    **dict.fromkeys(_SUMS, 0),
                    "first": None,
                },
            },
        )
        result = results[str(piece)]
        row["pieces"] += 1
        for key in _SUMS:
            row[key] += result[key]
        row["first"] = row["first"] or result["first"]
    return list(rows.values())


def prove_entries(
    pieces: Iterable[Piece], ledger: Ledger, arch: str, workers: Workers, tell: Callable[[Mapping[str, Any]], None]
) -> list[dict[str, Any]]:
    """A proof for the entry of every kernel among `pieces`, as the compiler's PTX for `arch` has it.

    Proofs are kept in the ledger, under the name of what made them. `tell` gets each as it comes.
    """
    named: dict[str, str] = {}
    made_by = proof_sha256()[:12]
    for piece in pieces:
        kernel = piece.subject.entry(piece.dtype, piece.mode, piece.edge)
        if kernel is not None:
            named.setdefault(f"proof {made_by} of {kernel.entry}", str(piece))
    for _, proof in sweep(named, partial(prove_named, arch=arch), ledger, workers):
        tell(proof)
    return list(in_order(named, ledger).values())


def prove_named(name: str, arch: str) -> dict[str, Any]:
    """The proof for the entry of a kernel's piece, by the piece's name: the fields of a `Proof`."""
    piece = Piece.parse(name)
    kernel = piece.subject.entry(piece.dtype, piece.mode, piece.edge)
    assert kernel is not None
    return asdict(prove(ptx_of(kernel, arch), kernel.entry, launches_of(piece.subject, kernel)))


def ptx_of(kernel: Entry, arch: str) -> Module:
    """The compiler's PTX of a kernel's source."""
    return _parsed(Target(kernel.path(), arch, "ptx"))


@lru_cache(maxsize=2)
def _parsed(target: Target) -> Module:
    text = build([target])[target].read_text(encoding="utf-8")
    return Module.parse(text, name=f"{target.source.stem}.ptx", strict=True)


def document_of(
    rows: Sequence[Mapping[str, Any]],
    proofs: Sequence[Mapping[str, Any]],
    *,
    device: str,
    arch: str,
    command: str,
    seconds: float,
) -> dict[str, Any]:
    """The document of a sweep that is done."""
    families = sorted({row["subject"].partition(".")[0] for row in rows} - {"reference"})
    document: dict[str, Any] = {
        "kind": "exhaustive",
        "schema_version": SCHEMA_VERSION,
        **run_facts(command=command, seconds=seconds, gpu=device == "cuda"),
        "device": device,
        "arch": arch,
        "source_sha256": {family: source_sha256(family) for family in families},
        "swept_sha256": swept_sha256(),
        "proof_sha256": proof_sha256(),
        "rows": list(rows),
        "proofs": list(proofs),
        "summary": summary(list(rows), list(proofs)),
    }
    document["passed"] = not failures(document)
    document["digest"] = digest_of(document)
    return document
