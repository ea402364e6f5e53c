"""Predefined registers. Those whose values the machine cannot know (clocks, SM numbers) do not exist here."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

_AXES = "xyz"
_VECTORS = ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
_MASKS = ("lanemask_eq", "lanemask_le", "lanemask_lt", "lanemask_ge", "lanemask_gt")

# Register kind of each, as PTX spells it.
SPECIALS: dict[str, str] = {
    **{f"%{name}.{axis}": "b32" for name in _VECTORS for axis in _AXES},
    **{f"%{name}": "b32" for name in ("laneid", "warpid", "nwarpid", *_MASKS)},
    **{f"%{name}": "b32" for name in ("cluster_ctarank", "cluster_nctarank")},
    **{f"%{name}": "b32" for name in ("dynamic_smem_size", "total_smem_size")},
    "%is_explicit_cluster": "pred",
}


def values(
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    first_cta: int,
    ctas: int,
    warps: int,
    dynamic_bytes: int,
    shared_bytes: int,
) -> dict[str, Any]:
    """Each predefined register over the lanes of some CTAs: an array [lanes], or a scalar where all lanes agree."""
    result = dict(_of_any_ctas(grid, block, ctas, warps, dynamic_bytes, shared_bytes))
    cta = first_cta + np.arange(ctas)
    for axis, name in enumerate(_AXES):
        ctaid = cta // int(np.prod(grid[:axis])) % grid[axis]
        same = ctas == 1 or bool((ctaid == ctaid[0]).all())
        spread = np.uint32(ctaid[0]) if same else np.repeat(ctaid.astype(np.uint32), warps * 32)
        result[f"%ctaid.{name}"] = result[f"%clusterid.{name}"] = spread
    return result


@lru_cache(maxsize=8)
def _of_any_ctas(
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    ctas: int,
    warps: int,
    dynamic_bytes: int,
    shared_bytes: int,
) -> dict[str, Any]:
    """Those that do not depend on which CTAs they are."""
    threads = np.arange(warps * 32)
    lane = np.tile(np.arange(32, dtype=np.uint32), ctas * warps)
    one = np.uint32(1)
    lower = (one << lane) - one
    eq = one << lane
    result: dict[str, Any] = {
        "%laneid": lane,
        "%warpid": np.tile((threads // 32).astype(np.uint32), ctas),
        "%nwarpid": np.uint32(warps),
        "%lanemask_eq": eq,
        "%lanemask_lt": lower,
        "%lanemask_le": lower | eq,
        "%lanemask_ge": ~lower,
        "%lanemask_gt": ~(lower | eq),
        "%cluster_ctarank": np.uint32(0),
        "%cluster_nctarank": np.uint32(1),
        "%dynamic_smem_size": np.uint32(dynamic_bytes),
        "%total_smem_size": np.uint32(shared_bytes),
        "%is_explicit_cluster": np.bool_(False),
    }
    for axis, name in enumerate(_AXES):
        tid = threads // int(np.prod(block[:axis])) % block[axis]
        result[f"%tid.{name}"] = np.uint32(0) if block[axis] == 1 else np.tile(tid.astype(np.uint32), ctas)
        result[f"%ntid.{name}"] = np.uint32(block[axis])
        result[f"%nctaid.{name}"] = result[f"%nclusterid.{name}"] = np.uint32(grid[axis])
        result[f"%cluster_ctaid.{name}"] = np.uint32(0)
        result[f"%cluster_nctaid.{name}"] = np.uint32(1)
    return result
