"""What CUTLASS's grouped GEMM refuses, and why: outputs, epilogues, tiles of a release, and lengths of K.

What is said of tiles is decided from the tile and the release; `refmoe.museum.cutlass.builds.static_assertions`
confirms it by a compile.
"""

from __future__ import annotations

from refmoe.cuda.gemm.tile import SCALE_ROWS, Tile
from refmoe.errors import ArgumentError
from refmoe.families.family import Case
from refmoe.museum.cutlass.tiles import CUTLASS_TILES, most_cutlass_stages

K_ELEMENTS = 128  # FP4 is unpacked by whole rows of so many elements, four scale columns of one atom


def check_case(case: Case, tile: Tile, release: str) -> None:
    """Refuse a case that no kernel of `tile` in `release` ("4.2") can serve.

    Raises:
        ArgumentError: the sentence says why.
    """
    if case.dtype != "bf16":
        raise ArgumentError(
            "dtype", case.dtype, "bf16: CUTLASS's kernel is instantiated for BF16 outputs, as servers do"
        )
    if case.bias != "none":
        raise ArgumentError("bias", case.bias, "none: the epilogue of this instantiation is alpha * sum")
    if (why := refused(tile, release)) is not None:
        raise ArgumentError("tile", f"{tile}, of which CUTLASS {release} says: {why}", "128x128x128")
    check_k("shape", case.shape.k)


def check_k(name: str, k: int) -> None:
    """Refuse a K that is no whole number of the rows in which CUTLASS loads FP4; `name` is the caller's argument.

    Raises:
        ArgumentError: it is none.
    """
    if k % K_ELEMENTS:
        raise ArgumentError(name, f"a K of {k}", f"a multiple of {K_ELEMENTS}: CUTLASS loads FP4 by so many elements")


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
