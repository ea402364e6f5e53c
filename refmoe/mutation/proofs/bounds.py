"""What host code holds the arguments of launches to, said once for each kernel.

Proofs take it for granted. `refmoe.mutation.trial` holds every launch of the cases against it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from refmoe.cuda.arguments import INT32_MAX, MAX_GRID
from refmoe.cuda.launch import MatrixMap
from refmoe.ptx.arguments import Buffer

#: Rows that a walk in steps of a grid does not leave 32 bits with.
_ROWS = INT32_MAX - MAX_GRID
#: Pieces of 16 elements, or of fewer, of a row: of rows of 2^31 - 1 bytes at most.
_PIECES = 1 << 28
#: Numbers of rows, as 64-bit integers.
_OFFSETS = (64, 0, INT32_MAX)
#: Rows of choices, as 32-bit integers.
_PLACES = (32, -1, INT32_MAX)
#: Bytes of scales in FP32, of which an integer of 32 bits counts as many as there are.
_SCALES = 4 * INT32_MAX
#: Tiles or slices that CTAs walk over in steps of a grid of no more: a step past the last one fits 32 bits.
MOST_TILES = INT32_MAX // 2


@dataclass(frozen=True)
class HostBounds:
    """What host code holds the integers of a launch to.

    Attributes:
        most: by parameter's number, the largest.
        grid: the most CTAs.
        least: by parameter's number, the smallest, where it is not 0.
        multiples: by parameter's number, the power of two that it is a multiple of.
        holds: by number of a parameter that is an array, the bits of its integers, the least and the largest.
        apart: whether no array that it may write has bytes in common with another one of its arguments.
        tiles: divisors by number of a parameter. A grid has no more CTAs than tiles, of which there are
            `MOST_TILES` at most. Their number is the product of the parameters, each divided by its divisor and
            rounded up.
        sizes: by number of a parameter that is an array, the bytes that it has at most.
    """

    most: Mapping[int, int]
    grid: int = INT32_MAX
    least: Mapping[int, int] = field(default_factory=dict)
    multiples: Mapping[int, int] = field(default_factory=dict)
    holds: Mapping[int, tuple[int, int, int]] = field(default_factory=dict)
    apart: bool = False
    tiles: Mapping[int, int] = field(default_factory=dict)
    sizes: Mapping[int, int] = field(default_factory=dict)

    def tiles_of(self, numbers: Sequence[int]) -> int:
        """The tiles of a launch: a grid's CTAs walk over them."""
        return math.prod(-(-numbers[place] // divisor) for place, divisor in self.tiles.items())


#: By the beginning of an entry's name. `refmoe.mutation.trial` holds the launches of cases against it.
BOUNDS: Mapping[str, HostBounds] = MappingProxyType(
    {
        # Of one token, a CTA for each of its choices.
        "refmoe_expand_choice_": HostBounds({7: 1, 8: 32, 10: _PIECES}, 32, least={7: 1}),
        **{
            f"refmoe_expand_{dtype}_{mode}_": HostBounds({7: _ROWS, 8: 32, 10: _PIECES}, MAX_GRID)
            for dtype in ("bf16", "fp16")
            for mode in ("floor", "rceil")
        },
        # NVFP4, FP8 of a tensor or of a token, and copies have one array more.
        "refmoe_expand_": HostBounds({8: _ROWS, 9: 32, 11: _PIECES}, MAX_GRID),
        "refmoe_mxfp8_quantize_": HostBounds({3: _ROWS, 4: _PIECES}, MAX_GRID, multiples={4: 2}, apart=True),
        "refmoe_nvfp4_quantize_": HostBounds({4: _ROWS, 5: _PIECES}, MAX_GRID),
        # K of a product has at most 2^31 - 1 bytes of scale atoms, 512 for each 128 or 64 elements.
        "refmoe_sm12x_gemm_": HostBounds({10: 1 << 29, 12: 16}, least={12: 2}),
        "refmoe_sm12x_nvfp4_gemm_": HostBounds({10: 1 << 28, 12: 16}, least={12: 2}),
        # K of a product is a positive multiple of 128.
        "refmoe_deepseek_gemm_wgmma_": HostBounds({}, least={11: 128}, multiples={11: 128}),
        "refmoe_finalize_bf16_": HostBounds({6: _ROWS}),
        "refmoe_finalize_f32_": HostBounds({6: _ROWS}),
        # A row's stride is the tiles of a row, or 1.
        "refmoe_deepseek_expand_": HostBounds(
            {6: _ROWS, 7: 32, 8: _PIECES, 9: _PIECES // 8, 11: _PIECES // 8},
            MAX_GRID,
            multiples={8: 8},
            holds={1: _PLACES},
            apart=True,
            sizes={3: _SCALES, 5: _SCALES},
        ),
        "refmoe_deepseek_activation_": HostBounds({8: _PIECES}, multiples={8: 8}, apart=True),
        # Quads of a matrix of 2^31 - 1 elements at most (`quantize_q8_1`; a layer's are fewer), a CTA for each 256.
        "refmoe_q8_1_quantize_": HostBounds({4: 1 << 29}, 1 << 21, multiples={4: 8}, apart=True),
        # Quads of a row; and rows of choices, -1 of those of other ranks.
        "refmoe_finalize_q8_1_": HostBounds(
            {11: (1 << 29) - 8}, multiples={11: 8}, holds={1: _PLACES}, apart=True, tiles={8: 1, 11: 128}
        ),
        "refmoe_swiglu_q8_1_": HostBounds(
            {10: _PIECES}, multiples={10: 8}, holds={1: _OFFSETS}, apart=True, tiles={8: 1, 10: 128}
        ),
        # Rows, and those of one more tile; chunks of 16 elements.
        "refmoe_block_fp8_128x128_": HostBounds(
            {3: INT32_MAX - 128, 4: _PIECES, 5: MOST_TILES, 6: MOST_TILES}, tiles={3: 128, 4: 8}, sizes={2: _SCALES}
        ),
        "refmoe_block_fp8_1x128_": HostBounds(
            {3: _ROWS, 4: _PIECES, 5: MOST_TILES, 6: MOST_TILES}, MAX_GRID, sizes={2: _SCALES}
        ),
        "refmoe_swiglu_": HostBounds({}, holds={1: _OFFSETS}, apart=True),
        "refmoe_deepseek_finalize_": HostBounds({5: _ROWS, 6: 32}, MAX_GRID),
    }
)


def within_bounds(entry: str, grid: int, arguments: Sequence[object]) -> bool:
    """Whether a launch of an entry is within what is said of it."""
    known = bounds_of(entry)
    held = all(
        isinstance(each, int)
        and each <= known.most.get(place, each)
        and each >= known.least.get(place, each)
        and each % known.multiples.get(place, 1) == 0
        for place, each in enumerate(arguments)
        if place in known.most or place in known.least or place in known.multiples
    )
    arrays = all(_holds(arguments[place], *numbers) for place, numbers in known.holds.items())
    arrays = arrays and all(_fits(arguments[place], most) for place, most in known.sizes.items())
    few = not known.tiles or _few_tiles(known, grid, arguments)
    return held and arrays and few and grid <= known.grid and (arrays_apart(arguments) or not known.apart)


def _few_tiles(known: HostBounds, grid: int, arguments: Sequence[object]) -> bool:
    """Whether a grid has no more CTAs than tiles, and there are few enough of these."""
    numbers = [each if isinstance(each, int) else -1 for each in arguments]
    return all(numbers[place] >= 0 for place in known.tiles) and grid <= known.tiles_of(numbers) <= MOST_TILES


def _holds(array: object, bits: int, low: int, high: int) -> bool:
    """Whether all integers of an argument are within bounds. They are there before the launch, which writes none."""
    if not isinstance(array, Buffer) or array.array.nbytes % (bits // 8):
        return False
    numbers = np.frombuffer(array.array.tobytes(), f"<i{bits // 8}")
    return bool(np.all((low <= numbers) & (numbers <= high)))


def _fits(array: object, most: int) -> bool:
    """Whether an array has so many bytes at most."""
    return array is None or (isinstance(array, Buffer) and array.array.nbytes <= most)


def arrays_apart(arguments: Sequence[object]) -> bool:
    """Whether no array that a launch may write has bytes in common with another one of its arguments."""
    buffers = [each.buffer if isinstance(each, MatrixMap) else each for each in arguments]
    held = [each for each in buffers if isinstance(each, Buffer)]
    return not any(
        (one.writable or other.writable) and np.may_share_memory(one.array, other.array)
        for one, other in itertools.combinations(held, 2)
    )


def bounds_of(entry: str) -> HostBounds:
    """What is known of an entry's launches."""
    return next((held for start, held in BOUNDS.items() if entry.startswith(start)), HostBounds({}))
