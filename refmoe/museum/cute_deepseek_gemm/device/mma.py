"""The grouped GEMM in block FP8 as a CuTe DSL kernel for `mma.sync`, of SM90 and SM12x.

    out[t, n] = sum over blocks b of 128 of K:  RN(RN(s[t, b] * S[n / 128, b]) * partial + sum)
    partial   = the tensor core's sum of 128 products of E4M3, chained from zero by four m16n8k32

A CTA computes tiles of `tile_m` tokens by 128 weight rows. A is the tokens, B the weights, both K-major. A block of K
of both is one stage of a ring in shared memory: cp.async fills it, ldmatrix reads it.

    shared memory    rows of 128 bytes, their chunks of 16 bytes XORed with the row mod 8
    warps            each all tokens of 16 or 64, or half of 128, by 32 weight rows
    a tile's tail    rows past the expert's are its last row once more: read, multiplied, and not stored
"""

from __future__ import annotations

import cuda.bindings.driver as driver
import cutlass
import cutlass.cute as cute
from cutlass import Float8E4M3FN, Float32, Int32
from cutlass.cute.nvgpu import cpasync, warp

from .groups import BLOCK, TILE_N, WARP_LANES, Groups, from_row, tile_of_out

#: Elements of K of one instruction, those of one copy, and the copies of a row.
MMA_K, CHUNK = 32, 16
ROW_CHUNKS = BLOCK // CHUNK
STAGES = 3
WARPS_N = 4


class DeepSeekGemm(Groups):
    """The kernel for one tile, of 16, 64 or 128 tokens, and one form of groups."""

    def __init__(self, tile_m: int, masked: bool):
        super().__init__(tile_m, masked)
        self.warps_m = 2 if tile_m > 64 else 1
        self.threads = self.warps_m * WARPS_N * WARP_LANES

    @cute.jit
    def __call__(
        self,
        tokens: cute.Tensor,
        token_scales: cute.Tensor,
        weights: cute.Tensor,
        weight_scales: cute.Tensor,
        groups: cute.Tensor,
        out: cute.Tensor,
        tiles: Int32,
        stream: driver.CUstream,
    ):
        """Launch the kernel.

        Args:
            tokens: E4M3 (rows, K, L), L the experts of a batch, or 1.
            token_scales: FP32 (rows, K / 128, L), of any strides.
            weights: E4M3 (N, K, experts).
            weight_scales: FP32 (N / 128, K / 128, experts).
            groups: see `Groups`.
            out: BF16 or FP32 (rows, N, L).
            tiles: of tokens, for which there are CTAs; where there are more tiles, CTAs take several.
            stream: of CUDA.
        """
        mma = cute.make_tiled_mma(
            warp.MmaFP8Op(Float8E4M3FN, Float32, (16, 8, MMA_K)),
            cute.make_layout((self.warps_m, WARPS_N, 1)),
            # Two instructions along the weight rows: what one ldmatrix brings.
            permutation_mnk=(16 * self.warps_m, 16 * WARPS_N, MMA_K),
        )
        swizzled = cute.make_composed_layout(
            cute.make_swizzle(3, 4, 3), 0, cute.make_layout((8, BLOCK), stride=(BLOCK, 1))
        )
        token_stages = cute.tile_to_shape(swizzled, (self.tile_m, BLOCK, STAGES), (0, 1, 2))
        weight_stages = cute.tile_to_shape(swizzled, (TILE_N, BLOCK, STAGES), (0, 1, 2))
        self.kernel(mma, token_stages, weight_stages, tokens, token_scales, weights, weight_scales, groups, out).launch(
            grid=[cute.size(weights, mode=[0]) // TILE_N, tiles, 1], block=[self.threads, 1, 1], stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        mma: cute.TiledMma,
        token_stages: cute.ComposedLayout,
        weight_stages: cute.ComposedLayout,
        tokens: cute.Tensor,
        token_scales: cute.Tensor,
        weights: cute.Tensor,
        weight_scales: cute.Tensor,
        groups: cute.Tensor,
        out: cute.Tensor,
    ):
        """See the module."""
        thread, _, _ = cute.arch.thread_idx()
        tile_n, number, _ = cute.arch.block_idx()
        _, step, _ = cute.arch.grid_dim()
        shared = cutlass.memory.SmemAllocator()
        s_tokens = shared.allocate_tensor(Float8E4M3FN, token_stages.outer, 128, token_stages.inner)
        s_weights = shared.allocate_tensor(Float8E4M3FN, weight_stages.outer, 128, weight_stages.inner)

        copy = cute.make_tiled_copy_tv(
            cute.make_copy_atom(
                cpasync.CopyG2SOp(cute.nvgpu.LoadCacheMode.GLOBAL), Float8E4M3FN, num_bits_per_copy=8 * CHUNK
            ),
            cute.make_layout((self.threads // ROW_CHUNKS, ROW_CHUNKS), stride=(ROW_CHUNKS, 1)),
            cute.make_layout((1, CHUNK)),
        )
        copies = copy.get_slice(thread)
        to_tokens, to_weights = copies.partition_D(s_tokens), copies.partition_D(s_weights)

        part = mma.get_slice(thread)
        a = mma.make_fragment_A(part.partition_A(s_tokens[None, None, 0]))
        b = mma.make_fragment_B(part.partition_B(s_weights[None, None, 0]))
        matrices = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), Float8E4M3FN)
        load_a, load_b = cute.make_tiled_copy_A(matrices, mma), cute.make_tiled_copy_B(matrices, mma)
        from_a = load_a.get_slice(thread).partition_S(s_tokens)
        from_b = load_b.get_slice(thread).partition_S(s_weights)
        into_a, into_b = load_a.retile(a), load_b.retile(b)
        places = split(part.partition_C(cute.make_identity_tensor((self.tile_m, TILE_N))))
        sums = mma.make_fragment_C(mma.partition_shape_C((self.tile_m, TILE_N)))
        partial, total = split(sums), split(cute.make_fragment_like(sums))
        factors = cute.make_rmem_tensor((2, cute.size(sums, mode=[1])), Float32)

        blocks = cute.size(tokens, mode=[1]) // BLOCK
        experts = cute.size(weights, mode=[2])
        expert, within, base, before = self.find_tile(groups, experts, number, Int32(0), Int32(0))
        while expert < experts:
            batch, first, rows = self.place(groups, expert, within)
            tile_weights = cute.local_tile(weights[None, None, expert], (TILE_N, BLOCK), (tile_n, None))
            from_weights = copies.partition_S(tile_weights)
            tile_tokens = from_row(tokens, batch, first)
            tile_scales = from_row(token_scales, batch, first)

            # A group for every block that there may be, so that counting groups is counting blocks.
            for block in cutlass.range_constexpr(STAGES - 1):
                if block < blocks:
                    self.start_copies(copy, tile_tokens, rows, to_tokens, from_weights, to_weights, block, block)
                cute.arch.cp_async_commit_group()
            total.fill(0.0)
            reading, filling = Int32(0), Int32(STAGES - 1)
            for block in cutlass.range(blocks, unroll=1):
                cute.arch.cp_async_wait_group(STAGES - 2)
                # Everybody's copies have landed, and everybody has read the stage that is filled next.
                cute.arch.barrier()
                ahead = block + (STAGES - 1)
                if ahead < blocks:
                    self.start_copies(copy, tile_tokens, rows, to_tokens, from_weights, to_weights, ahead, filling)
                cute.arch.cp_async_commit_group()
                weight_scale = weight_scales[tile_n, block, expert]
                self.load_factors(factors, places, tile_scales, rows, block, weight_scale)
                partial.fill(0.0)
                for k in cutlass.range_constexpr(BLOCK // MMA_K):
                    cute.copy(load_a, from_a[None, None, k, reading], into_a[None, None, k])
                    cute.copy(load_b, from_b[None, None, k, reading], into_b[None, None, k])
                    cute.gemm(mma, sums, a[None, None, k], b[None, None, k], sums)
                self.promote(total, partial, factors)
                reading = 0 if reading + 1 == STAGES else reading + 1
                filling = 0 if filling + 1 == STAGES else filling + 1

            tile_out = tile_of_out(out, batch, first, (self.tile_m, TILE_N), tile_n)
            self.store_rows(total, split(part.partition_C(tile_out)), places, rows)
            # The stages are read before the next tile's copies fill them.
            cute.arch.barrier()
            number += step
            expert, within, base, before = self.find_tile(groups, experts, number, base, before)

    @cute.jit
    def start_copies(
        self,
        copy: cute.TiledCopy,
        tile_tokens: cute.Tensor,
        rows: Int32,
        to_tokens: cute.Tensor,
        from_weights: cute.Tensor,
        to_weights: cute.Tensor,
        block: Int32,
        stage: Int32,
    ):
        """Start the copies of a block of K of both sides into a stage: eight threads a row of 128 bytes."""
        thread, _, _ = cute.arch.thread_idx()
        cute.copy(copy, from_weights[None, None, None, block], to_weights[None, None, None, stage])
        for i in cutlass.range_constexpr(self.tile_m * ROW_CHUNKS // self.threads):
            row = cutlass.min(thread // ROW_CHUNKS + i * (self.threads // ROW_CHUNKS), rows - 1)
            chunk = cute.local_tile(tile_tokens[row, None], (CHUNK,), (block * ROW_CHUNKS + thread % ROW_CHUNKS,))
            source = cute.make_tensor(chunk.iterator, cute.make_layout(((CHUNK, 1),), stride=((1, 0),)))
            cute.copy(copy, source, to_tokens[None, i, 0, stage])


def split(sums: cute.Tensor) -> cute.Tensor:
    """Sums ((2, 2), ...) as those of an instruction with eight columns: ((2 columns, 2 halves, 1), ...)."""
    (columns, halves), *fragments = sums.shape
    (column, half), *strides = sums.stride
    layout = cute.make_layout(((columns, halves, 1), *fragments), stride=((column, half, 0), *strides))
    return cute.make_tensor(sums.iterator, layout)
