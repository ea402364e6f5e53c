"""The grouped GEMM in block FP8 as a CuTe DSL kernel for `wgmma`, of sm_90a.

The result is that of `.mma`, except that the tensor core sums 128 products by four m64n128k32, from zero.

A CTA is a warpgroup for every 64 tokens of its tile, and one warp that copies. Tensor copies (TMA) fill a ring of
stages, each one block of K of both sides. A stage is full when its bytes have landed, and empty when every warp that
multiplies has read it.

    tokens     a map of (rows, K, L), boxes of tile_m x 128: past an expert's rows they hold the next one's, unstored
    weights    a map of (N, K, experts), boxes of 128 x 128
"""

from __future__ import annotations

import cuda.bindings.driver as driver
import cutlass
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as hopper
from cutlass import Float8E4M3FN, Float32, Int32, pipeline
from cutlass.cute.nvgpu import cpasync, warpgroup

from .groups import BLOCK, TILE_N, WARP_LANES, Groups, from_row, partition, tile_of_out

#: Elements of K and tokens of one instruction, and the threads that issue it.
MMA_K, MMA_M, WARPGROUP = 32, 64, 128


class DeepSeekGemm(Groups):
    """The kernel for one tile, of 64 or 128 tokens, and one form of groups."""

    def __init__(self, tile_m: int, masked: bool):
        super().__init__(tile_m, masked)
        self.warpgroups = tile_m // MMA_M
        self.multiplying = self.warpgroups * WARPGROUP
        self.stages = 8 if tile_m == MMA_M else 6
        self.stage_bytes = (tile_m + TILE_N) * BLOCK

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
        """Launch the kernel; the arguments are those of `.mma`."""
        k_major = cute.nvgpu.OperandMajorMode.K
        mma = hopper.make_trivial_tiled_mma(
            Float8E4M3FN, Float8E4M3FN, k_major, k_major, Float32, (self.warpgroups, 1, 1), (MMA_M, TILE_N)
        )
        tile = (self.tile_m, TILE_N, BLOCK)
        rows = cutlass.tensor_utils.LayoutEnum.ROW_MAJOR
        token_stages = hopper.make_smem_layout_a(rows, tile, Float8E4M3FN, self.stages)
        weight_stages = hopper.make_smem_layout_b(rows, tile, Float8E4M3FN, self.stages)
        load = cpasync.CopyBulkTensorTileG2SOp()
        token_copy, token_places = cpasync.make_tiled_tma_atom(
            load, tokens, cute.select(token_stages, mode=[0, 1]), (self.tile_m, BLOCK)
        )
        weight_copy, weight_places = cpasync.make_tiled_tma_atom(
            load, weights, cute.select(weight_stages, mode=[0, 1]), (TILE_N, BLOCK)
        )
        self.kernel(
            *(mma, token_stages, weight_stages, token_copy, token_places, weight_copy, weight_places),
            *(token_scales, weight_scales, groups, out),
        ).launch(
            grid=[cute.size(weights, mode=[0]) // TILE_N, tiles, 1],
            block=[self.multiplying + WARP_LANES, 1, 1],
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        mma: cute.TiledMma,
        token_stages: cute.ComposedLayout,
        weight_stages: cute.ComposedLayout,
        token_copy: cute.CopyAtom,
        token_places: cute.Tensor,
        weight_copy: cute.CopyAtom,
        weight_places: cute.Tensor,
        token_scales: cute.Tensor,
        weight_scales: cute.Tensor,
        groups: cute.Tensor,
        out: cute.Tensor,
    ):
        """See the module."""
        thread, _, _ = cute.arch.thread_idx()
        tile_n, number, _ = cute.arch.block_idx()
        _, step, _ = cute.arch.grid_dim()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        shared = cutlass.memory.SmemAllocator()
        barriers = shared.allocate_array(cutlass.Int64, 2 * self.stages)
        s_tokens = shared.allocate_tensor(Float8E4M3FN, token_stages.outer, 1024, token_stages.inner)
        s_weights = shared.allocate_tensor(Float8E4M3FN, weight_stages.outer, 1024, weight_stages.inner)
        ring = pipeline.PipelineTmaAsync.create(
            num_stages=self.stages,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, self.multiplying // WARP_LANES),
            tx_count=self.stage_bytes,
            barrier_storage=barriers,
            cta_layout_vmnk=cute.make_layout((1, 1, 1, 1)),
        )
        blocks = cute.size(token_scales, mode=[1])
        experts = cute.size(weight_places, mode=[2])
        expert, within, base, before = self.find_tile(groups, experts, number, Int32(0), Int32(0))

        if warp == self.multiplying // WARP_LANES:
            filling = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.stages)
            while expert < experts:
                batch, first, _ = self.place(groups, expert, within)
                tile_tokens = cute.local_tile(from_row(token_places, batch, first), (self.tile_m, BLOCK), (0, None))
                tile_weights = cute.local_tile(weight_places[None, None, expert], (TILE_N, BLOCK), (tile_n, None))
                to_tokens, from_tokens = partition(token_copy, s_tokens, tile_tokens)
                to_weights, from_weights = partition(weight_copy, s_weights, tile_weights)
                for block in cutlass.range(blocks, unroll=1):
                    ring.producer_acquire(filling)
                    full = ring.producer_get_barrier(filling)
                    stage = filling.index
                    cute.copy(token_copy, from_tokens[None, block], to_tokens[None, stage], tma_bar_ptr=full)
                    cute.copy(weight_copy, from_weights[None, block], to_weights[None, stage], tma_bar_ptr=full)
                    filling.advance()
                number += step
                expert, within, base, before = self.find_tile(groups, experts, number, base, before)
            # Nobody may leave while copies into this CTA, or arrivals at its barriers, are under way.
            ring.producer_tail(filling)
        else:
            reading = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.stages)
            # One slice a warpgroup: descriptors are the same for its four warps.
            part = mma.get_slice(thread)
            a = mma.make_fragment_A(mma.get_slice(thread // WARPGROUP * WARPGROUP).partition_A(s_tokens))
            b = mma.make_fragment_B(part.partition_B(s_weights))
            places = part.partition_C(cute.make_identity_tensor((self.tile_m, TILE_N)))
            partial = mma.make_fragment_C(mma.partition_shape_C((self.tile_m, TILE_N)))
            total = cute.make_fragment_like(partial)
            factors = cute.make_rmem_tensor((2, cute.size(partial, mode=[1])), Float32)
            while expert < experts:
                batch, first, rows = self.place(groups, expert, within)
                tile_scales = from_row(token_scales, batch, first)
                total.fill(0.0)
                for block in cutlass.range(blocks, unroll=1):
                    weight_scale = weight_scales[tile_n, block, expert]
                    self.load_factors(factors, places, tile_scales, rows, block, weight_scale)
                    ring.consumer_wait(reading)
                    warpgroup.fence()
                    for k in cutlass.range_constexpr(BLOCK // MMA_K):
                        mma.set(warpgroup.Field.ACCUMULATE, k != 0)
                        at = (None, None, k, reading.index)
                        cute.gemm(mma, partial, a[at], b[at], partial)
                    warpgroup.commit_group()
                    warpgroup.wait_group(0)
                    ring.consumer_release(reading)
                    reading.advance()
                    self.promote(total, partial, factors)
                tile_out = tile_of_out(out, batch, first, (self.tile_m, TILE_N), tile_n)
                self.store_rows(total, part.partition_C(tile_out), places, rows)
                number += step
                expert, within, base, before = self.find_tile(groups, experts, number, base, before)
