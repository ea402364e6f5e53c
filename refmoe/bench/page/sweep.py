"""The part of the page of results that `refmoe bench sweep` fills: operations and layers over the number of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from refmoe.bench.page.text import paragraph, table

Row = Mapping[str, Any]
TORCH, DEEPGEMM = "torch.compile", "DeepGEMM"
#: What is timed of the other peers, as sentences.
PEERS: Mapping[str, str] = {
    "FlashInfer": "Of FlashInfer it is `mxfp8_quantize`.",
    "Triton": "Triton's kernels are written by hand for this table.",
    "torchao": "Of torchao it is `to_mx`, compiled by `torch.compile`.",
}
#: Operations of the first GEMM: of tokens that choose evenly, and that choose at random.
EVEN, DRAWN = "GEMM1, block FP8", "GEMM1, block FP8, drawn choices"


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The lines of the section."""
    rows: Sequence[Row] = report["rows"]
    yield ""
    yield f"## Over the number of tokens, on an {report['gpu']}"
    yield ""
    yield from paragraph("""
        `refmoe bench sweep` times each operation around the GEMMs at M tokens, at the sizes of two models. All
        quantize to MXFP8. *route* chooses a token's experts and sorts the choices by expert. *quantize* makes MXFP8 of
        tokens. *expand* makes the MXFP8 rows of each expert. *activation* stands between the GEMMs, and *finalize*
        sums the rows of a token.
    """)
    yield ""
    yield from paragraph("""
        *floor*: the kernel's time divided by that of a copy of as many bytes with the same share of reads. *torch*:
        the time of the same operation in torch, compiled by `torch.compile`, divided by the kernel's. Below 1 torch is
        faster. It is compiled for 4,096 tokens, for one, and once for all numbers between. torch's version leaves the
        scales in token order, where the kernels write the order that the GEMM reads (128x4). Buffers rotate over 64
        sets at most, so that up to some dozens of tokens the L2 cache is warm, for both.
    """)
    yield ""
    yield from paragraph(_compared({name: each for name, each in report["differing"].items() if ": " not in name}))
    if "peers" in report:
        yield ""
        yield from paragraph(_peers(report))
    yield ""
    yield "![The time of each operation over the number of tokens, beside torch and the floor](bench_sweep.png)"
    for model in dict.fromkeys(row["model"] for row in rows):
        yield ""
        yield f"### {model}"
        yield ""
        mine = [row for row in rows if row["model"] == model and not row["operation"].startswith(("layer", "GEMM"))]
        yield from _operations(mine)
        yield ""
        yield from paragraph(_where_peers_are_faster(mine))
    yield from _layers(rows)
    yield from _drawn_products(report)
    yield from _products(rows)
    for line in _missing(report):
        yield ""
        yield from paragraph(line)


def _peers(report: Mapping[str, Any]) -> str:
    """Who else took part, and how their results compare."""
    others = {name: version for name, version in report["peers"].items() if name not in (TORCH, DEEPGEMM)}
    if not others:
        return f"torch is {report['peers'].get(TORCH, 'absent')}. No other peer of these operations took part."
    told = ", ".join(f"{name} {version}" for name, version in others.items())
    counted = [
        f"{unlike:,} of {whole:,} bytes of {peer}'s {what} are others"
        for name, (unlike, whole) in report["differing"].items()
        for peer, _, what in (name.partition(": "),)
        if peer in others and unlike
    ]
    differ = f"Compared at the most tokens, {'; '.join(counted)}." if counted else "Their bytes are the kernels'."
    return f"""
        Further peers in the same run, beside torch {report["peers"].get(TORCH, "")}: {told}. A row with a peer's name
        has its time divided by the kernel's. {" ".join(PEERS[name] for name in others if name in PEERS)} {differ}
    """


def _missing(report: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each peer that was not there, or failed."""
    absent = report["absent"]
    for peer in absent:
        why = f": {absent[peer]}" if isinstance(absent, Mapping) else ""
        yield f"{peer} could not run on this machine{why.rstrip('.')}."
    for what, said in report.get("failed", {}).items():
        yield f"{what} failed: {said.rstrip('.')}."


def _compared(differing: Mapping[str, Sequence[int]]) -> str:
    """How torch's results compare with the kernels'."""
    others = [f"{counts[0]:,} are others of the {name}" for name, counts in differing.items() if counts[0]]
    kinds = ", ".join(dict.fromkeys(name.partition(" of ")[0] for name in differing))
    whole = f"Compared at the most tokens: {kinds}; {sum(counts[1] for counts in differing.values()):,} bytes."
    return f"{whole} {'; '.join(others) if others else 'All are those of the kernels'}."


def _operations(rows: Sequence[Row]) -> Iterator[str]:
    """A table of one model: rows for each operation, a column for each number of tokens."""
    tokens = sorted({row["tokens"] for row in rows})
    yield from table(("operation", *(f"M = {count:,}" for count in tokens)), _operation_rows(rows, tokens))


def _operation_rows(rows: Sequence[Row], tokens: Sequence[int]) -> Iterator[Sequence[str]]:
    held = _held(rows)
    for operation in dict.fromkeys(row["operation"] for row in rows):
        ours = [held[operation, count, "refmoe"] for count in tokens]
        yield f"{operation}, µs", *(f"{row['microseconds']:.2f}" for row in ours)
        yield f"{operation}, floor", *(f"{row['ratio_to_floor']:.2f}" for row in ours)
        theirs = [held.get((operation, count, "torch.compile")) for count in tokens]
        if any(theirs):
            pairs = zip(theirs, ours, strict=True)
            yield f"{operation}, torch", *("" if other is None else _times(other, row) for other, row in pairs)
        for peer in dict.fromkeys(row["of"] for row in rows if row["operation"] == operation):
            if peer not in ("floor", "refmoe", TORCH):
                others = [held.get((operation, count, peer)) for count in tokens]
                each = zip(others, ours, strict=True)
                yield f"{operation}, {peer}", *("" if other is None else _times(other, row) for other, row in each)


def _held(rows: Sequence[Row]) -> dict[tuple[str, int, str], Row]:
    return {(row["operation"], row["tokens"], row["of"]): row for row in rows}


def _where_peers_are_faster(rows: Sequence[Row]) -> str:
    """A sentence for each peer."""
    held, faster = _held(rows), dict[str, dict[str, list[int]]]()
    for (operation, count, of), row in sorted(held.items(), key=lambda item: item[0][1]):
        if of not in ("floor", "refmoe"):
            where = faster.setdefault("torch" if of == TORCH else of, {})
            if row["microseconds"] < held[operation, count, "refmoe"]["microseconds"]:
                where.setdefault(operation, []).append(count)
    return " ".join(f"{peer} is faster {_places(where)}." for peer, where in faster.items())


def _places(where: Mapping[str, Sequence[int]]) -> str:
    said = [f"{operation} at M = {', '.join(f'{count:,}' for count in of)}" for operation, of in where.items()]
    return f"at {'; '.join(said)}" if said else "nowhere"


def _times(other: Row, row: Row) -> str:
    return f"{other['microseconds'] / row['microseconds']:.2f}"


def _layers(rows: Sequence[Row]) -> Iterator[str]:
    """A table for each layer: its launches, itself and the sum of its floors."""
    parts = [row for row in rows if row["operation"].startswith("layer")]
    for layer in dict.fromkeys(row["operation"].partition(": ")[0] for row in parts):
        mine = [row for row in parts if row["operation"].partition(": ")[0] == layer]
        tokens = sorted({row["tokens"] for row in mine})
        yield ""
        yield f"### A whole layer of {mine[0]['model']}: {layer.removeprefix('layer, ')}"
        yield ""
        overlaps = ""
        if "DP4A" in layer:
            overlaps = "A launch may begin while the one in front of it ends. The path takes up to 8 tokens."
        yield from paragraph(f"""
            Microseconds of each launch by itself, then of the layer in one graph. {overlaps} Last comes the layer's
            time divided by the sum of its launches' floors.
        """)
        yield ""
        yield from table(("launch", *(f"M = {count:,}" for count in tokens)), _layer_rows(mine, layer, tokens))


def _layer_rows(rows: Sequence[Row], layer: str, tokens: Sequence[int]) -> Iterator[Sequence[str]]:
    held = {(row["operation"], row["tokens"]): row for row in rows if row["of"] == "refmoe"}
    for operation in dict.fromkeys(row["operation"] for row in rows if row["operation"] != layer):
        yield operation.partition(": ")[2], *(f"{held[operation, count]['microseconds']:.2f}" for count in tokens)
    yield "the layer", *(f"{held[layer, count]['microseconds']:.2f}" for count in tokens)
    yield "times the sum of floors", *(f"{held[layer, count]['ratio_to_floor']:.2f}" for count in tokens)


def _drawn_products(report: Mapping[str, Any]) -> Iterator[str]:
    """A table of refmoe's kernel and DeepGEMM's layouts at each number of tokens."""
    rows = [row for row in report["rows"] if row["operation"] == DRAWN]
    if not rows:
        return
    tokens = sorted({row["tokens"] for row in rows})
    ours = {row["tokens"]: row for row in rows if row["of"] == "refmoe"}
    yield ""
    yield f"### The first GEMM of {rows[0]['model']} beside DeepGEMM"
    yield ""
    compared = {name: each for name, each in report["differing"].items() if name.startswith(f"{DEEPGEMM}: ")}
    differ, whole = (sum(each[place] for each in compared.values()) for place in (0, 1))
    said = f"Of {whole:,} bytes of its outputs {differ:,} are not the kernel's." if compared else ""
    yield from paragraph(f"""
        Tokens choose at random. The kernel is the one that the layer launches, and its floor is a copy of the weights
        of the experts that are chosen, the tokens and the output. DeepGEMM {report["peers"].get(DEEPGEMM, "")} takes
        the same rows in two layouts: *contiguous*, each expert's from a multiple of a tile on, and *masked*, each
        expert's in a place of equal size. Its rows have its time divided by the kernel's. Laying rows out is not timed.
        {said}
    """)
    yield ""
    yield from table(("GEMM", *(f"M = {count:,}" for count in tokens)), _drawn_rows(rows, ours, tokens))


def _drawn_rows(rows: Sequence[Row], ours: Mapping[int, Row], tokens: Sequence[int]) -> Iterator[Sequence[str]]:
    yield "refmoe, µs", *(f"{ours[count]['microseconds']:.2f}" for count in tokens)
    yield "refmoe, floor", *(f"{ours[count]['ratio_to_floor']:.2f}" for count in tokens)
    theirs = [row for row in rows if row["of"] == DEEPGEMM]
    held = {(row["name"].rpartition(", M = ")[0], row["tokens"]): row for row in theirs}
    for name in sorted({name for name, _ in held}):
        found = [held.get((name, count)) for count in tokens]
        pairs = zip(found, tokens, strict=True)
        yield name, *("" if other is None else _times(other, ours[count]) for other, count in pairs)


def _products(rows: Sequence[Row]) -> Iterator[str]:
    """The fastest of DeepGEMM's kernels beside the fastest of refmoe's."""
    products = [row for row in rows if row["operation"] == EVEN]
    of = {who: [row for row in products if row["of"] == who] for who in ("refmoe", "DeepGEMM")}
    if not of["refmoe"] or not of["DeepGEMM"]:
        return
    ours, theirs = (min(each, key=lambda row: float(row["microseconds"])) for each in of.values())
    yield ""
    yield from paragraph(f"""
        The first GEMM of {ours["model"]} at {ours["tokens"]:,} tokens that choose evenly, so that each expert's rows
        are one whole tile of 128: refmoe's fastest kernel ({ours["name"]}) takes {ours["microseconds"]:,.0f} µs, and
        {theirs["name"]} {theirs["microseconds"]:,.0f} µs, {_times(theirs, ours)} times as long. Tokens that choose at
        random, as in the table of the layer, leave tiles unfilled.
    """)
