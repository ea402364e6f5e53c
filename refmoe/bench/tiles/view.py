"""The document of `refmoe bench tiles` for people: a table of tiles, what is not built, and the model's times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from refmoe.reports.bench import cell_text
from refmoe.tables import plain_table

#: Columns of the table of tiles: key of a row, and its words.
_COLUMNS: Mapping[str, str] = {
    "instructions_a_byte": "ins/B",
    "instructions_a_step": "ins",
    "tensor_instructions": "mma",
    "tensor_share": "share",
    "open_share": "open",
    "registers": "regs",
    "spill_bytes": "spills",
    "shared_bytes": "shared",
    "stages": "stages",
    "bytes_in_flight": "in flight",
    "load_wavefronts": "turns",
    "load_conflicts": "conflicts",
    "worst_conflict": "worst",
}
# A terminal has no room for more.
_SHOWN_TOKENS = (1, 8, 64, 512, 4096)
NOTE = (
    "A step multiplies one stage and copies another, once for each K of the tile. ins: instructions of a step by all "
    "warps of a block; ins/B: divided by the bytes of operands that a step takes; mma: "
    "tensor-core instructions, and their "
    "share; open: the share in blocks whose count the executor's counts leave open. regs: registers of a thread; "
    "spills, shared and in flight: bytes; in flight are the stages but the one that is read. "
    "turns: of shared memory for the "
    "fragment loads of a step; conflicts: turns above the fewest possible; worst: the degree of the worst one."
)
MODEL_NOTE = (
    "A MODEL, no measurement: microseconds from published clocks and bandwidth, a lower bound without latency. The "
    "letter says which resource is busy longest: m memory, i issue of instructions, t tensor cores, s shared memory."
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
    table = plain_table("kernel", "tile", "sm", *(f">{words}" for words in _COLUMNS.values()))
    for row in rows:
        cells = [cell_text(row.get(key)) for key in _COLUMNS]
        table.add_row(row["kernel"], row["tile"], " ".join(arch.removeprefix("sm_") for arch in row["archs"]), *cells)
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
    """A line for each product, GEMM and tile; a column for some numbers of tokens. The report has all."""
    tokens = [count for count in _SHOWN_TOKENS if count in {each["tokens"] for each in predictions}]
    table = plain_table("product", "model", "GEMM", "kernel", "tile", *(f">M = {count:,}" for count in tokens))
    lines: dict[tuple[str, ...], dict[int, str]] = {}
    for each in predictions:
        key = tuple(each[name] for name in ("product", "model", "gemm", "kernel", "tile"))
        text = f"{each['predicted_microseconds']:,.1f} {each['bound'][0]}"
        lines.setdefault(key, {})[each["tokens"]] = text
    for key, cells in lines.items():
        table.add_row(*key, *(cells.get(count, "") for count in tokens))
    return table
