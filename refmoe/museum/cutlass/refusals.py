"""Why a release of CUTLASS cannot have a tile: decided from the tile and the release, confirmed by a compile."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from refmoe.cuda.arch import SCALE_ROWS
from refmoe.cuda.gemm.tile import Tile
from refmoe.cuda.toolchain import find_toolchain
from refmoe.museum.cutlass.headers import find_headers
from refmoe.museum.cutlass.tiles import CUTLASS_TILES, most_cutlass_stages

if TYPE_CHECKING:
    from refmoe.museum.cutlass.builds import Build

__all__ = ["refused", "static_assertions"]

K_ELEMENTS = 128  # FP4 is unpacked by whole rows of so many elements, four scale columns of one atom


def refused(tile: Tile, release: str) -> str | None:
    """Why `release` ("4.2") cannot have `tile` with weights on M, or None if it can, or if nobody knows.

    The table of `refmoe.museum.cutlass.tiles` comes first; a tile that it lacks is judged by rules.
    """
    known = CUTLASS_TILES.get(tile, {}).get(release)
    if known is not None and known.opens is not None:
        return None if known.opens else known.note
    if tile.k % K_ELEMENTS:
        return f"K is no multiple of {K_ELEMENTS}, the rows in which FP4 is unpacked"
    if tile.m % SCALE_ROWS:
        return f"M is no multiple of {SCALE_ROWS}, the rows of an atom of scales"
    if release == "4.2" and tile.n < 32:
        return "asserts N >= 32"
    if release == "4.2" and tile.n % SCALE_ROWS:
        return f"asserts that the TMA box of its scales, whole {SCALE_ROWS} rows, fills the tile"
    if most_cutlass_stages(tile) < 2:
        return "one stage of unpacked FP4 fits"
    return None


def static_assertions(build: Build) -> tuple[str, ...]:
    """What the static assertions of the headers say against a build; empty if it compiles.

    Only the compiler's front end runs, over the device code and the host's: half of the time of a build.

    Raises:
        CutlassMissing: no headers of CUTLASS.
        ToolchainError: no compiler.
    """
    from refmoe.museum.cutlass.builds import compile_command

    command = compile_command(build, find_headers(), find_toolchain())
    with tempfile.TemporaryDirectory() as scratch:
        finished = subprocess.run(
            [*command, "-cuda", "-o", str(Path(scratch) / "host.ii")], cwd=scratch, capture_output=True, text=True
        )
    if finished.returncode == 0:
        return ()
    said = re.findall(r"error: static assertion failed with \"([^\"]*)\"", finished.stderr)
    return tuple(dict.fromkeys(said)) or (_first_error(finished.stderr),)


def _first_error(text: str) -> str:
    return next((line for line in text.splitlines() if "error" in line), text.strip()[:200])
