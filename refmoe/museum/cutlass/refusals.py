"""Why a release of CUTLASS cannot have a tile: decided from the tile and the release.

`refmoe.museum.cutlass.builds.static_assertions` confirms it by a compile.
"""

from __future__ import annotations

from refmoe.cuda.gemm.tile import SCALE_ROWS, Tile
from refmoe.museum.cutlass.tiles import CUTLASS_TILES, most_cutlass_stages

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
