"""`refmoe parity --level exhaustive`: every pair (amax, element), in pieces that are kept."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import typer

from refmoe.cli.common import INTERRUPTED, finish
from refmoe.errors import ArgumentError
from refmoe.files import partial_of
from refmoe.verify.workers import Workers


def run_exhaustive(
    suites: Sequence[str],
    dtypes: Sequence[str],
    policies: Sequence[str],
    device: str,
    arch: str | None,
    workers: Workers,
    report: Path | None,
    *,
    fresh: bool,
    as_json: bool,
) -> NoReturn:
    """Sweep, prove, write the report, and exit.

    Partial results lie next to the report, in REPORT.partial; the same command goes on from there.

    Raises:
        ArgumentError: no such suite, dtype or policy, or partial results of other sources.
    """
    from refmoe.chips import DEFAULT_ARCH
    from refmoe.cuda.device import open_device
    from refmoe.exhaustive.pieces import list_pieces
    from refmoe.exhaustive.run import document_of, open_ledger, prove_entries, rows_of, run_pieces
    from refmoe.reports.exhaustive import failures

    started = time.monotonic()
    pieces = list_pieces(suites, dtypes)
    known = list(dict.fromkeys(f"{piece.mode}/{piece.edge}" for piece in pieces))
    if unknown := next((policy for policy in policies if policy not in known), None):
        raise ArgumentError("policy", unknown, f"one of {', '.join(known)}")
    pieces = [piece for piece in pieces if not policies or f"{piece.mode}/{piece.edge}" in policies]
    if device == "cuda":
        arch = open_device(device, arch).arch
        # References run on no device; on a GPU the kernels are what is asked about.
        pieces = [piece for piece in pieces if piece.subject.family != "reference"]
    arch = arch or DEFAULT_ARCH
    path = report or Path("out") / f"exhaustive-{device}.json"
    ledger = open_ledger(partial_of(path), device, arch, fresh=fresh)
    done = sum(str(piece) in ledger.done for piece in pieces)

    def tell(name: str, result: Any) -> None:
        nonlocal done
        done += 1
        verdict = f"{result['differing']:,} bytes differ" if result["differing"] else "equal"
        typer.echo(f"[{done}/{len(pieces)}] {name}: {result['pairs']:,} pairs, {verdict}", err=True)

    def tell_proof(proof: Mapping[str, Any]) -> None:
        refusals = proof["refusals"]
        typer.echo(f"{proof['entry']}: {refusals[0] if refusals else 'proven'}", err=True)

    if done:
        typer.echo(f"{done} of {len(pieces)} pieces are in {ledger.path}", err=True)
    try:
        run_pieces(pieces, ledger, device, arch, workers, tell)
        proofs = prove_entries(pieces, ledger, arch, workers, tell_proof)
    except KeyboardInterrupt:
        typer.echo(f"interrupted; {done} of {len(pieces)} pieces are in {ledger.path}: run it again to go on", err=True)
        raise typer.Exit(INTERRUPTED) from None
    options = [f"--device {device}", f"--arch {arch}"]
    for option, values in (("suite", suites), ("dtype", dtypes), ("policy", policies)):
        options += [f"--{option} {value}" for value in values]
    command = " ".join(["refmoe parity --level exhaustive", *options])
    rows = rows_of(pieces, ledger)
    document = document_of(rows, proofs, device=device, arch=arch, command=command, seconds=time.monotonic() - started)

    def show() -> None:
        total = document["summary"]
        for sentence in failures(document):
            typer.echo(sentence)
        typer.echo(
            f"{'PASS' if document['passed'] else 'FAIL'}: {total['rows']} subjects and policies, "
            f"{total['pairs']:,} pairs, {total['bytes']:,} bytes compared, {total['differing']:,} differ; "
            f"{total['proofs']} entries followed for every input, {total['refused']} refused; {path}"
        )

    finish(document, show, good=document["passed"], report=path, as_json=as_json)
