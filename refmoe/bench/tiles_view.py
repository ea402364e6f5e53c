"""The document of `refmoe bench tiles` for people: a table of tiles, what is not built, and the model's times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from refmoe.reports.bench import cell_text
from refmoe.tables import plain_table

#: Columns of the table of tiles: key of a row, and its words.
_COLUMNS: Mapping[str, str] = {
    "instructions_a_byte": "instructions\na byte",
    "instructions_a_step": "instructions\na step",
    "tensor_instructions": "tensor\na step",
    "tensor_share": "tensor\nshare",
    "open_share": "open\nshare",
    "registers": "registers",
    "spill_bytes": "spills,\nbytes",
    "shared_bytes": "shared,\nbytes",
    "stages": "stages",
    "bytes_in_flight": "bytes\nin flight",
    "load_wavefronts": "load\nwavefronts",
    "load_conflicts": "of them\nconflicts",
    "worst_conflict": "worst",
}
NOTE = (
    "A step multiplies one stage and copies another; instructions are those of all warps of a block. The open share lies "
    "in blocks whose count the executor's counts leave open. Wavefronts are turns of shared memory in a step; conflicts "
    "are those above the fewest possible. Bytes in flight are those of all stages but the one that is read."
)
MODEL_NOTE = (
    "A MODEL, no measurement: microseconds from published clocks and bandwidth, a lower bound without latency. The letter "
    "says which resource is busy longest: m memory, i issue of instructions, t tensor cores, s shared memory."
)


def renderables(document: Mapping[str, Any]) -> Iterator[Table | str]:
    """What to print, in order."""
    yield tile_table(document["rows"])
    yield NOTE
    for reason, builds in reasons(document["not_built"]).items():
        yield f"Not there, {reason}: {', '.join(builds)}"
    spills = ", ".join(document["spills"]) or "none"
    yield f"Kernels of refmoe that spill: {spills}"
    yield prediction_table(document["predictions"])
    yield MODEL_NOTE
    for product, facts in document["sources"].items():
        yield f"{product}: {facts['bandwidth_source']}; {facts['peaks_source']}"


def tile_table(rows: list[dict[str, Any]]) -> Table:
    """A line for each kernel and tile."""
    table = plain_table("kernel", "tile", "archs", *(f">{words}" for words in _COLUMNS.values()))
    for row in rows:
        cells = [cell_text(row.get(key)) for key in _COLUMNS]
        table.add_row(row["kernel"], row["tile"], ", ".join(row["archs"]), *cells)
        if "not_counted" in row:
            table.add_row("", "", row["not_counted"], *("" for _ in _COLUMNS))
    return table


def reasons(not_built: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Builds of CUTLASS that are not there, by the reason."""
    found: dict[str, list[str]] = {}
    for entry in not_built:
        found.setdefault(entry["reason"], []).append(entry["name"].removeprefix("CUTLASS "))
    return found


def prediction_table(predictions: list[dict[str, Any]]) -> Table:
    """A line for each product, GEMM and tile; a column for each number of tokens."""
    tokens = sorted({each["tokens"] for each in predictions})
    table = plain_table("product", "model", "GEMM", "kernel", "tile", *(f">M = {count:,}" for count in tokens))
    lines: dict[tuple[str, ...], dict[int, str]] = {}
    for each in predictions:
        key = tuple(each[name] for name in ("product", "model", "gemm", "kernel", "tile"))
        text = f"{each['predicted_microseconds']:,.1f} {each['bound'][0]}"
        lines.setdefault(key, {})[each["tokens"]] = text
    for key, cells in lines.items():
        table.add_row(*key, *(cells.get(count, "") for count in tokens))
    return table
