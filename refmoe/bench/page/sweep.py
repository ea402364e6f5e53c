"""The part of the page of results that `refmoe bench sweep` fills: operations and layers over the number of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from refmoe.bench.page.text import paragraph, table

Row = Mapping[str, Any]


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The lines of the section."""
    rows: Sequence[Row] = report["rows"]
    yield ""
    yield f"## Over the number of tokens, on an {report['gpu']}"
    yield ""
    same, differing = _compared(report["differing"])
    yield from paragraph(f"""
        `refmoe bench sweep` times each operation around the GEMMs at M tokens, at the sizes of two models. *floor* is
        how many times the time of its floor a kernel takes: of a copy, or below a megabyte of an empty kernel. *torch*
        is how many times the kernel's time the same operation takes in torch, compiled by `torch.compile`. That leaves
        its scales token-linear, which is less work. {same} {differing}
    """)
    for model in dict.fromkeys(row["model"] for row in rows):
        yield ""
        yield f"### {model}"
        yield ""
        yield from _operations([row for row in rows if row["model"] == model])
    yield from _layers(rows)
    yield from _products(rows)
    for peer in report["absent"]:
        yield ""
        yield f"{peer} was not installed."


def _compared(differing: Mapping[str, Sequence[int]]) -> tuple[str, str]:
    """Two sentences on how torch's results compare with the kernels'."""
    others = {name: counts for name, counts in differing.items() if counts[0]}
    whole = sum(counts[1] for counts in differing.values())
    same = f"Of {whole:,} bytes of results at the most tokens "
    if not others:
        return f"{same}all are those of the kernels.", ""
    differ = ", ".join(f"{counts[0]:,} of {name}" for name, counts in others.items())
    return f"{same}{sum(counts[0] for counts in others.values()):,} are others:", f"{differ}."


def _operations(rows: Sequence[Row]) -> Iterator[str]:
    """A table of one model: three rows for each operation, a column for each number of tokens."""
    plain = [row for row in rows if not row["operation"].startswith(("layer", "GEMM"))]
    tokens = sorted({row["tokens"] for row in plain})
    yield from table(("operation", *(f"M = {count:,}" for count in tokens)), _operation_rows(plain, tokens))


def _operation_rows(rows: Sequence[Row], tokens: Sequence[int]) -> Iterator[Sequence[str]]:
    for operation in dict.fromkeys(row["operation"] for row in rows):
        held = {(row["tokens"], row["of"]): row for row in reversed(rows) if row["operation"] == operation}
        pairs = {row["tokens"]: row for row in rows if row["name"].startswith("separate pair")}
        ours = [held[count, "refmoe"] for count in tokens]
        theirs = [held[count, "torch.compile"] for count in tokens]
        yield f"{operation}, µs", *(f"{row['microseconds']:.2f}" for row in ours)
        yield f"{operation}, floor", *(f"{row['ratio_to_floor']:.2f}" for row in ours)
        if operation == "expand":
            yield "two launches instead of one", *(_times(pairs[row["tokens"]], row) for row in ours)
        yield f"{operation}, torch", *(_times(other, row) for other, row in zip(theirs, ours, strict=True))


def _times(other: Row, row: Row) -> str:
    return f"{other['microseconds'] / row['microseconds']:.2f}"


def _layers(rows: Sequence[Row]) -> Iterator[str]:
    """A table for each layer: its launches, itself and the sum of its floors."""
    parts = [row for row in rows if row["operation"].startswith("layer")]
    for layer in dict.fromkeys(row["operation"].partition(": ")[0] for row in parts):
        mine = [row for row in parts if row["operation"].partition(": ")[0] == layer]
        tokens = sorted({row["tokens"] for row in mine})
        yield ""
        yield f"### A whole {layer} of {mine[0]['model']}"
        yield ""
        yield from paragraph("""
            Microseconds of each launch by itself, then of the layer in one graph, and how many times the sum of its
            launches' floors it takes. A launch of the layer may begin while the one in front of it ends.
        """)
        yield ""
        yield from table(("launch", *(f"M = {count:,}" for count in tokens)), _layer_rows(mine, layer, tokens))


def _layer_rows(rows: Sequence[Row], layer: str, tokens: Sequence[int]) -> Iterator[Sequence[str]]:
    held = {(row["operation"], row["tokens"]): row for row in rows if row["of"] == "refmoe"}
    for operation in dict.fromkeys(row["operation"] for row in rows if row["operation"] != layer):
        yield operation.partition(": ")[2], *(f"{held[operation, count]['microseconds']:.2f}" for count in tokens)
    yield "the layer", *(f"{held[layer, count]['microseconds']:.2f}" for count in tokens)
    yield "times the sum of floors", *(f"{held[layer, count]['ratio_to_floor']:.2f}" for count in tokens)


def _products(rows: Sequence[Row]) -> Iterator[str]:
    """The fastest of DeepGEMM's kernels beside the fastest of refmoe's."""
    products = [row for row in rows if row["operation"].startswith("GEMM")]
    of = {who: [row for row in products if row["of"] == who] for who in ("refmoe", "DeepGEMM")}
    if not of["refmoe"] or not of["DeepGEMM"]:
        return
    ours, theirs = (min(each, key=lambda row: float(row["microseconds"])) for each in of.values())
    yield ""
    yield from paragraph(f"""
        The first GEMM of {ours["model"]} at {ours["tokens"]:,} tokens that choose evenly, in the same run: refmoe's
        fastest kernel ({ours["name"]}) takes {ours["microseconds"]:,.0f} µs, DeepGEMM's ({theirs["name"]})
        {theirs["microseconds"]:,.0f} µs, {_times(theirs, ours)} times as long.
    """)
