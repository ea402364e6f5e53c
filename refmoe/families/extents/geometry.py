"""The geometry of launches: CTAs, threads and shared memory of each, against a count of its own.

Most kernels walk over their work in steps of the grid, so that a grid of another size gives the same bytes. No byte
shows that a launch has twice the CTAs, or one. Here the sizes follow from the numbers that the kernel itself is told,
and every figure is written down a second time: a plan has to be the documented one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from refmoe.errors import RefmoeError
from refmoe.families.extents.work import check_work

if TYPE_CHECKING:
    from refmoe.cuda.device import Device
    from refmoe.cuda.launch import LaunchPlan

_WARP = 32


@dataclass(frozen=True)
class Geometry:
    """What a launch has to have; None where nothing is said.

    Attributes:
        grid: CTAs.
        block: threads of a CTA.
        shared_bytes: dynamic shared memory of a CTA.
        programmatic: whether it may start before the one in front of it has ended.
    """

    grid: int | None = None
    block: int | None = None
    shared_bytes: int | None = None
    programmatic: bool | None = None


#: The integers among a launch's arguments, in order; the launch; multiprocessors of the device.
Due = Callable[[list[int], "LaunchPlan", int], Geometry]


def _ceil(count: int, step: int) -> int:
    return -(-count // step)


def _whole_warps(threads: int) -> int:
    return _ceil(threads, _WARP) * _WARP


def _rows(pieces: int, lanes: int = 1) -> Due:
    """One CTA a row up to 64 a multiprocessor and 2^16 in all; a thread a piece of the row, up to 512.

    Args:
        pieces: which number counts the pieces of a row.
        lanes: how many a thread takes.
    """

    def due(numbers: list[int], plan: LaunchPlan, multiprocessors: int) -> Geometry:
        grid = min(numbers[0], 64 * multiprocessors, 1 << 16)
        return Geometry(grid, min(_whole_warps(_ceil(numbers[pieces], lanes)), 512), 0, False)

    return due


def _expand(numbers: list[int], plan: LaunchPlan, multiprocessors: int) -> Geometry:
    """As `_rows`; but of a token alone that becomes MXFP8, each choice has a CTA."""
    due = _rows(3)(numbers, plan, multiprocessors)
    tokens, top_k = numbers[:2]
    alone = tokens == 1 and not re.search("nvfp4|fp8_t|copy", plan.kernel.entry)
    return replace(due, grid=top_k) if alone else due


def _block_fp8(numbers: list[int], plan: LaunchPlan, multiprocessors: int) -> Geometry:
    """Tiles of 128 x 128 have a CTA each, up to 8 a multiprocessor."""
    if "_1x128_" in plan.kernel.entry:
        return _rows(1)(numbers, plan, multiprocessors)
    tiles = _ceil(numbers[0], 128) * _ceil(numbers[1] * 16, 128)
    return Geometry(min(tiles, 8 * multiprocessors), 256, 0, False)


def _finalize(numbers: list[int], plan: LaunchPlan, multiprocessors: int) -> Geometry:
    """Slices of 256 columns; of each as many CTAs of four warps as are resident, 8 a multiprocessor for all slices."""
    slices = _ceil(numbers[3], 256)
    each = min(_ceil(numbers[0], 4), max(1, 8 * multiprocessors // slices))
    return Geometry(slices * each, 128, 0)


def _slices(row: int, most: int, threads: int, rows: int | None = 0) -> Due:
    """Slices of so many quads, a thread each, up to so many a multiprocessor.

    Args:
        row: which number counts the quads of a row.
        most: CTAs a multiprocessor.
        threads: of a CTA.
        rows: which number counts rows, each of which begins a slice; None where a slice may have several.
    """

    def due(numbers: list[int], plan: LaunchPlan, multiprocessors: int) -> Geometry:
        slices = _ceil(numbers[row], threads) * (1 if rows is None else numbers[rows])
        return Geometry(min(slices, most * multiprocessors), threads, 0)

    return due


def _dp4a(numbers: list[int], plan: LaunchPlan, multiprocessors: int) -> Geometry:
    """A CTA has 16 weight rows and 4 warps up to 32 KB; else 2 rows a warp, and 4 warps, 2 or 1: the most to 98 KB."""
    tokens, top_k, _, _, n, blocks = numbers[:6]
    row_bytes = (16 + 1) * blocks
    rows, warps = 16, 4
    if rows * row_bytes > 32 << 10:
        warps = next(warps for warps in (4, 2, 1) if 2 * warps * row_bytes <= 98 << 10)
        rows = 2 * warps
    return Geometry(tokens * top_k * _ceil(n, rows), _WARP * warps, rows * row_bytes)


def _grouped_gemm(numbers: list[int], plan: LaunchPlan, multiprocessors: int) -> Geometry:
    """One CTA a multiprocessor, or as many as there can be tiles; warps of 32 weight rows, two abreast from 64 tokens.

    Rows are counted by the output, which has nothing else.
    """
    experts, n = numbers[:2]
    m, width = map(int, re.findall(r"_(\d+)x(\d+)x\d+_", plan.kernel.entry)[0])
    block = m // 32 * (2 if width >= 64 else 1) * _WARP
    size = getattr(plan.arguments[7], "nbytes", None)
    if size is None:
        return Geometry(None, block, programmatic=False)
    rows = size // (n * (2 if plan.kernel.entry.endswith("bf16") else 4))
    most = _ceil(n, m) * (rows // width + min(experts, rows))
    return Geometry(min(most, multiprocessors), block, programmatic=False)


def _deepseek_gemm(numbers: list[int], plan: LaunchPlan, multiprocessors: int) -> Geometry:
    """A warp has 32 of 128 weight rows, two abreast from 64 tokens. Four stages, three of 128 tokens.

    A stage has a byte of each element of 128 of K, and an FP32 scale of each token and of the weights, in lines of 128.
    """
    tokens = int(re.findall(r"_gemm_(\d+)_", plan.kernel.entry)[0])
    stage = (128 + tokens) * 128 + _ceil(4 * (tokens + 1), 128) * 128
    return Geometry(None, 128 * (2 if tokens >= 64 else 1), (3 if tokens > 64 else 4) * stage, False)


def _deepseek_gemm_wgmma(numbers: list[int], plan: LaunchPlan, multiprocessors: int) -> Geometry:
    """Three warpgroups; stages of the codes of both sides, boxes of 64 x 64 BF16, two barriers a stage."""
    tokens = int(re.findall(r"_wgmma_(\d+)_", plan.kernel.entry)[0])
    stages, boxes = {64: (8, 2), 128: (6, 4), 256: (4, 4)}[tokens]
    return Geometry(None, 384, stages * (128 + tokens) * 128 + boxes * 8192 + 16 * stages, False)


def _routing(numbers: list[int], plan: LaunchPlan, multiprocessors: int) -> Geometry:
    """Up to 16 tokens, or 64 choices that are given, are one CTA's. Of more a warp chooses for a token, and a CTA of
    each expert sorts.
    """
    tokens, entry = numbers[0], plan.kernel.entry.removeprefix("refmoe_route_")
    if entry.startswith("few_") and tokens <= 16:
        return Geometry(1, min(_whole_warps(max(tokens * _WARP, numbers[3] + 1)), 512), 0, False)
    if entry.startswith("choose_") and tokens > 16:
        return Geometry(_ceil(tokens, 8), 256, 0, False)
    if entry == "sort_chosen":
        return Geometry(numbers[2], min(_whole_warps(_ceil(tokens * numbers[1], 8)), 1024), 0, True)
    if entry == "sort_few" and tokens * numbers[1] <= 64:
        return Geometry(1, min(_whole_warps(max(tokens * numbers[1], numbers[2] + 1)), 512), 0, False)
    if entry == "sort" and tokens * numbers[1] > 64:
        return Geometry(numbers[2], min(_whole_warps(tokens), 1024), 0, False)
    raise RefmoeError(f"{plan.kernel.entry} is not the kernel for {tokens} tokens and their choices")


def _deepseek_routing(numbers: list[int], plan: LaunchPlan, multiprocessors: int) -> Geometry:
    """A warp a token, eight of a CTA."""
    return Geometry(_ceil(numbers[0], 8), 256, 0, False)


#: By the source of the kernel. Others, those of users and of the museum, are not held to anything.
GEOMETRIES: Mapping[str, Due] = MappingProxyType(
    {
        "quantize": _rows(1),
        "nvfp4": _rows(1),
        "block_fp8": _block_fp8,
        "expand": _expand,
        "deepseek_expand": _rows(2),
        "activation": _rows(2),
        "deepseek_activation": _rows(3),
        "deepseek_finalize": _rows(2, lanes=8),
        "finalize": _finalize,
        "finalize_q8_1": _slices(3, 16, 128),
        "q8_1": _slices(0, 16, 256, rows=None),
        "swiglu_q8_1": _slices(2, 64, 128),
        "dp4a": _dp4a,
        "gemm": _grouped_gemm,
        "nvfp4_gemm": _grouped_gemm,
        "deepseek_gemm": _deepseek_gemm,
        "deepseek_gemm_wgmma": _deepseek_gemm_wgmma,
        "routing": _routing,
        "deepseek_routing": _deepseek_routing,
    }
)

#: Sources whose kernels write Q8_1: the buffers that they are told of last are called so in a finding.
_Q8_1, _HALVES = ("q8_1", "finalize_q8_1", "swiglu_q8_1"), ("d", "s")

#: Layers whose launches overlap.
_OVERLAPPING = ("integer_moe",)


def check_launch(plan: LaunchPlan, multiprocessors: int) -> None:
    """Hold a launch against what is said of its kernel.

    Args:
        plan: the launch.
        multiprocessors: of the device.

    Raises:
        RefmoeError: the first thing that is another one.
    """
    entry = plan.kernel.entry
    if (wants := GEOMETRIES.get(plan.kernel.source)) is None:
        return
    wanted = wants([each for each in plan.arguments if isinstance(each, int)], plan, multiprocessors)
    for name, found, needed in (
        # A sample of a large problem has a CTA a row, so that it is known who has which.
        ("CTAs", plan.grid, None if plan.blocks is not None else wanted.grid),
        ("threads", plan.block, wanted.block),
        ("bytes of shared memory", plan.shared_bytes, wanted.shared_bytes),
    ):
        if needed is not None and found != needed:
            raise RefmoeError(f"{entry} is launched with {found} {name}; it has to be {needed}")
    if wanted.programmatic is not None and plan.programmatic != wanted.programmatic:
        raise RefmoeError(
            f"{entry} may{'' if plan.programmatic else ' not'} start before the launch in front has ended"
        )
    # A tensor of torch's says None.
    names = [said for each in plan.arguments if isinstance(said := getattr(each, "name", None), str)]
    for due, name in zip(_HALVES, names[-2:] if plan.kernel.source in _Q8_1 else (), strict=False):
        if name.rpartition("_")[2] != due:
            raise RefmoeError(f"{entry} writes its {due} into a buffer that is called {name}")


class HeldDevice:
    """A device that holds each launch against `check_launch` before it runs it; in all else the device itself.

    Args:
        inner: the device.
        family: of the case. Of a layer whose launches overlap, each but the first has to be programmatic.
        ordinary: whether the data are as those of a network: then `check_work` holds, too.
    """

    def __init__(self, inner: Device, family: str, *, ordinary: bool = False) -> None:
        self._inner = inner
        self._ordinary = ordinary
        self._overlapping = family in _OVERLAPPING
        self._launched = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def launch(self, plan: LaunchPlan) -> None:
        """Run a plan to its end.

        Raises:
            RefmoeError: its geometry is not the documented one, and nothing has run; or it took the long way.
        """
        check_launch(plan, self._inner.multiprocessors)
        if self._overlapping and plan.programmatic != (self._launched > 0):
            raise RefmoeError(f"launch {self._launched + 1} of the layer waits as another one has to")
        self._launched += 1
        self._inner.launch(plan)
        if self._ordinary:
            check_work(plan, self._inner.launches[-1].result)
