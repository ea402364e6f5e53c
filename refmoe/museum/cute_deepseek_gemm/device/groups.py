"""What the kernels have in common: whose rows a tile has, arithmetic that names its rounding, ways in and out."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import cpasync

#: Elements of K that share a scale, and weight rows that do: those of a tile.
BLOCK = TILE_N = 128
WARP_LANES = 32


@cute.jit
def mul_rn(a: Float32, b: Float32) -> Float32:
    """a * b rounded to nearest, which no compiler may fuse."""
    return cute.arch.inline_ptx("mul.rn.f32 {$w0}, {$r0}, {$r1};", write_only_types=[Float32], read_only_args=[a, b])


@cute.jit
def fma_rn(a: Float32, b: Float32, c: Float32) -> Float32:
    """a * b + c rounded once."""
    return cute.arch.inline_ptx(
        "fma.rn.f32 {$w0}, {$r0}, {$r1}, {$r2};", write_only_types=[Float32], read_only_args=[a, b, c]
    )


def from_row(matrix: cute.Tensor, batch: Int32, first: Int32) -> cute.Tensor:
    """The rows of a batch of (rows, columns, L), from the first row of a tile on."""
    return cute.domain_offset((first, 0), matrix[None, None, batch])


def tile_of_out(out: cute.Tensor, batch: Int32, first: Int32, tile: tuple[int, int], tile_n: Int32) -> cute.Tensor:
    """A tile of the output, (tokens, weight rows), whose first row is `first`."""
    return cute.local_tile(from_row(out, batch, first), tile, (0, tile_n))


def partition(copy: cute.CopyAtom, stages: cute.Tensor, tiles: cute.Tensor):
    """The stages of an operand, and its blocks of K, as one tensor copy takes them; each is its tensor's last mode."""
    box = cute.rank(stages) - 1
    return cpasync.tma_partition(
        copy, 0, cute.make_layout(1), cute.group_modes(stages, 0, box), cute.group_modes(tiles, 0, box)
    )


class Groups:
    """Which rows are whose, and the walk over tiles of tokens.

    Args:
        tile_m: tokens of a tile.
        masked: whether each expert has a batch of rows of which the first are in use: `groups` is then int32
            (experts). Else rows are contiguous, and `groups` is int64 (experts + 1), the first row of each.
    """

    def __init__(self, tile_m: int, masked: bool):
        self.tile_m = tile_m
        self.masked = masked

    @cute.jit
    def rows_of(self, groups: cute.Tensor, expert: Int32) -> Int32:
        """The rows of an expert."""
        rows = Int32(0)
        if cutlass.const_expr(self.masked):
            rows = groups[expert]
        else:
            rows = Int32(groups[expert + 1] - groups[expert])
        return rows

    @cute.jit
    def find_tile(self, groups: cute.Tensor, experts: Int32, number: Int32, base: Int32, before: Int32):
        """Find a tile of tokens by its number, which must not fall from call to call.

        All lanes of a warp take part: they look at 32 experts at once, from `base` on, before which there are `before`
        tiles.

        Returns:
            The expert, or `experts` if there is no such tile; the tile's number among the expert's; base and before.
        """
        lane = cute.arch.lane_idx()
        expert, within = experts, Int32(0)
        while base < experts and expert == experts:
            rows = Int32(0)
            if base + lane < experts:
                rows = self.rows_of(groups, base + lane)
            tiles = (rows + (self.tile_m - 1)) // self.tile_m
            through = tiles  # tiles of the lanes up to this one
            for step in cutlass.range_constexpr(5):
                other = cute.arch.shuffle_sync_up(through, 1 << step, mask_and_clamp=0)
                if lane >= (1 << step):
                    through += other
            reached = cute.arch.vote_ballot_sync(number - before < through)
            if reached != 0:
                owner = cute.arch.popc((reached & -reached) - 1)
                within = number - before - cute.arch.shuffle_sync(through - tiles, owner)
                expert = base + owner
            else:
                before += cute.arch.shuffle_sync(through, WARP_LANES - 1)
                base += WARP_LANES
        return expert, within, base, before

    @cute.jit
    def place(self, groups: cute.Tensor, expert: Int32, within: Int32):
        """Where a tile of an expert lies.

        Returns:
            The batch, or 0; the tile's first row in it; the rows of the expert from there on.
        """
        batch, first = Int32(0), Int32(0)
        if cutlass.const_expr(self.masked):
            batch = expert
        else:
            first = Int32(groups[expert])
        return batch, first + within * self.tile_m, self.rows_of(groups, expert) - within * self.tile_m

    @cute.jit
    def load_factors(
        self,
        factors: cute.Tensor,
        places: cute.Tensor,
        scales: cute.Tensor,
        rows: Int32,
        block: Int32,
        weight_scale: Float32,
    ):
        """RN(token scale * weight scale) of a block for each row of this thread's sums, (2 halves, fragments).

        Rows past the expert's have the scale of its last: they are not stored.
        """
        for i in cutlass.range_constexpr(cute.size(factors, mode=[1])):
            for half in cutlass.range_constexpr(2):
                row = cutlass.min(places[(0, half, 0), i, 0][0], rows - 1)
                factors[half, i] = mul_rn(scales[row, block], weight_scale)

    @cute.jit
    def promote(self, total: cute.Tensor, partial: cute.Tensor, factors: cute.Tensor):
        """total = RN(factor * partial + total). Sums are ((2 columns, 2 halves, columns / 8), fragments, ...)."""
        for i in cutlass.range_constexpr(cute.size(total, mode=[1])):
            for j in cutlass.range_constexpr(cute.size(total, mode=[2])):
                for eight in cutlass.range_constexpr(cute.size(total, mode=[0, 2])):
                    for half in cutlass.range_constexpr(2):
                        for column in cutlass.range_constexpr(2):
                            at = ((column, half, eight), i, j)
                            total[at] = fma_rn(factors[half, i], partial[at], total[at])

    @cute.jit
    def store_rows(self, sums: cute.Tensor, to_out: cute.Tensor, places: cute.Tensor, rows: Int32):
        """Store the sums of rows that are the expert's, two neighbouring columns at a time."""
        kind = to_out.element_type
        result = cute.make_rmem_tensor(sums.layout, kind)
        result.store(sums.load().to(kind))
        copy = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), kind, num_bits_per_copy=2 * kind.width)
        for i in cutlass.range_constexpr(cute.size(sums, mode=[1])):
            for half in cutlass.range_constexpr(2):
                if places[(0, half, 0), i, 0][0] < rows:
                    for j in cutlass.range_constexpr(cute.size(sums, mode=[2])):
                        for eight in cutlass.range_constexpr(cute.size(sums, mode=[0, 2])):
                            at = ((None, half, eight), i, j)
                            cute.copy(copy, result[at], to_out[at])
