"""A choice of tile made visible: a table for the terminal, a document for programs."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from refmoe.cuda.gemm.choice import tiles_needed
from refmoe.cuda.gemm.tile import Tile, max_stages, stage_bytes, stage_capacity
from refmoe.museum.cutlass.tiles import CUTLASS_RELEASES, CUTLASS_TILES, CutlassTile
from refmoe.tables import plain_table
from refmoe.views.layout import counted
from refmoe.views.weighed import Choice, TileVerdict, llama_cpp_warps, reason, use_percent, weigh

_STYLE = {TileVerdict.CHOSEN: "bold green", TileVerdict.SKIPPED: "", TileVerdict.REFUSED: "red"}


def choice_document(choice: Choice) -> dict[str, Any]:
    """Everything that the tables show, and the limits behind them, as JSON values."""
    chip = choice.chip
    return {
        "m": choice.m,
        "arch": choice.chip.arch,
        "rule": choice.rule.value,
        "min_latency": choice.min_latency,
        "shared_bytes": chip.shared_bytes,
        "stage_capacity": stage_capacity(chip),
        "tile": str(choice.tile),
        "stages": choice.stages,
        "reason": reason(choice),
        "llama_cpp_warps": llama_cpp_warps(choice.m),
        "tiles": [
            {
                **_figures(entry.tile, choice),
                "verdict": entry.verdict.value,
                "reason": entry.reason,
                "cutlass": {
                    release: {**vars(found), "evidence": found.evidence.value}
                    for release, found in CUTLASS_TILES[entry.tile].items()
                },
            }
            for entry in weigh(choice)
        ],
    }


def choice_summary(choice: Choice) -> str:
    """The problem and the answer, in two lines."""
    chip = choice.chip
    warps = counted(llama_cpp_warps(choice.m), "warp")
    latency = ", min_latency" if choice.min_latency else ""
    return (
        f"M = {choice.m} (the most tokens of any expert), {chip.arch}, {choice.rule.value} rule{latency}: "
        f"{choice.tile}, {choice.stages} stages; {reason(choice)}\n"
        f"A block has {stage_capacity(chip):,} bytes for stages, of {chip.shared_bytes:,}; "
        f"for comparison: llama.cpp's matrix-vector kernel, which has no tiles, would give each weight row {warps}"
    )


def choice_table(choice: Choice) -> Table:
    """What each tile takes and why it was chosen or not."""
    table = plain_table("tile", ">use %", ">bytes/stage", ">stages", ">tiles needed", "verdict", "~why")
    for entry in weigh(choice):
        figures = _figures(entry.tile, choice)
        table.add_row(
            figures["tile"],
            f"{figures['use_percent']:.1f}",
            f"{figures['stage_bytes']:,}",
            str(figures["stages"]),
            str(figures["tiles_needed"]),
            entry.verdict.value,
            entry.reason,
            style=_STYLE[entry.verdict],
        )
    return table


def cutlass_table(choice: Choice) -> Table:
    """Which releases of CUTLASS open the same tiles, with the stages that they get or why they do not."""
    table = plain_table("tile", *(f"~CUTLASS {release}" for release in CUTLASS_RELEASES))
    for entry in weigh(choice):
        found = CUTLASS_TILES[entry.tile]
        table.add_row(str(entry.tile), *(_cutlass_cell(found[release]) for release in CUTLASS_RELEASES))
    return table


def _figures(tile: Tile, choice: Choice) -> dict[str, Any]:
    return {
        "tile": str(tile),
        "use_percent": use_percent(tile, choice.m),
        "stage_bytes": stage_bytes(tile),
        "stages": max_stages(tile, choice.chip),
        "tiles_needed": tiles_needed(tile, choice.m),
    }


def _cutlass_cell(found: CutlassTile) -> str:
    words = {True: "yes", False: "no", None: "?"}[found.opens]
    stages = "" if found.stages is None else f", {found.stages} stages"
    size = "" if found.shared_bytes is None else f", {found.shared_bytes:,} bytes"
    note = f": {found.note}" if found.note else ""
    return f"{words}{stages}{size}{note} ({found.evidence.value})"
