"""The grouped GEMM in block FP8 as a CuTe DSL kernel for `tcgen05.mma`, of sm_100a. Compiled, and never run.

The promotion is that of `.mma`. What SM100's tensor core adds up to within 128 products is published, and is the model
`sm100` of `refmoe.reference.mma`. But no instruction of it was ever executed here: the executor refuses tcgen05, and
there is no such chip. So nothing of this kernel is proven but that it compiles.

A CTA is four warps and a tile of 128 tokens by 64 weight rows. The first warp starts the tensor copies of a block of K
and its four products, which go to tensor memory. Then each thread loads its token's 64 sums and promotes them.
"""

from __future__ import annotations

import cuda.bindings.driver as driver
import cutlass
import cutlass.cute as cute
import cutlass.utils.blackwell_helpers as blackwell
from cutlass import Float8E4M3FN, Float32, Int32, pipeline
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05

from .groups import BLOCK, Groups, fma_rn, from_row, mul_rn, partition, tile_of_out

#: Tokens and weight rows of a tile, elements of K of one product, and weight rows that share a scale.
TILE_M, TILE_N, MMA_K, SCALE_N = 128, 64, 32, 128
STAGES, THREADS, TENSOR_COLUMNS = 4, 128, 64


class DeepSeekGemm(Groups):
    """The kernel for one form of groups."""

    def __init__(self, masked: bool):
        super().__init__(TILE_M, masked)

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
        k_major, tile = OperandMajorMode.K, (TILE_M, TILE_N, BLOCK)
        mma = blackwell.make_trivial_tiled_mma(
            Float8E4M3FN, Float8E4M3FN, k_major, k_major, Float32, tcgen05.CtaGroup.ONE, (TILE_M, TILE_N)
        )
        token_stages = blackwell.make_smem_layout_a(mma, tile, Float8E4M3FN, STAGES)
        weight_stages = blackwell.make_smem_layout_b(mma, tile, Float8E4M3FN, STAGES)
        load = cpasync.CopyBulkTensorTileG2SOp()
        token_copy, token_places = cute.nvgpu.make_tiled_tma_atom_A(
            load, tokens, cute.select(token_stages, mode=[0, 1, 2]), tile, mma
        )
        weight_copy, weight_places = cute.nvgpu.make_tiled_tma_atom_B(
            load, weights, cute.select(weight_stages, mode=[0, 1, 2]), tile, mma
        )
        self.kernel(
            *(mma, token_stages, weight_stages, token_copy, token_places, weight_copy, weight_places),
            *(token_scales, weight_scales, groups, out),
        ).launch(grid=[cute.size(weights, mode=[0]) // TILE_N, tiles, 1], block=[THREADS, 1, 1], stream=stream)

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
        ring_barriers = shared.allocate_array(cutlass.Int64, 2 * STAGES)
        sum_barriers = shared.allocate_array(cutlass.Int64, 2)
        s_tokens = shared.allocate_tensor(Float8E4M3FN, token_stages.outer, 1024, token_stages.inner)
        s_weights = shared.allocate_tensor(Float8E4M3FN, weight_stages.outer, 1024, weight_stages.inner)
        tensor_memory = cutlass.memory.TmemAllocator(
            barrier_for_retrieve=pipeline.NamedBarrier(barrier_id=1, num_threads=THREADS)
        )
        tensor_memory.allocate(TENSOR_COLUMNS)
        one = pipeline.CooperativeGroup(pipeline.Agent.Thread)
        filling, reading = pipeline.PipelineTmaUmma.create(
            num_stages=STAGES,
            producer_group=one,
            consumer_group=one,
            tx_count=(TILE_M + TILE_N) * BLOCK,
            barrier_storage=ring_barriers,
        ).make_participants()
        multiplying, promoting = pipeline.PipelineUmmaAsync.create(
            num_stages=1,
            producer_group=one,
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, THREADS),
            barrier_storage=sum_barriers,
        ).make_participants()
        tensor_memory.wait_for_alloc()

        part = mma.get_slice(0)
        a, b = mma.make_fragment_A(s_tokens), mma.make_fragment_B(s_weights)
        sums = mma.make_fragment_C(mma.partition_shape_C((TILE_M, TILE_N)))
        sums = cute.make_tensor(tensor_memory.retrieve_ptr(Float32), sums.layout)
        load = tcgen05.make_tmem_copy(
            cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x64), Float32), sums[(None, None), 0, 0]
        )
        loads = load.get_slice(thread)
        from_sums = loads.partition_S(sums[(None, None), 0, 0])
        places = loads.partition_D(cute.make_identity_tensor((TILE_M, TILE_N)))
        partial = cute.make_rmem_tensor(places.shape, Float32)
        total = cute.make_fragment_like(partial)

        blocks, experts = cute.size(token_scales, mode=[1]), cute.size(weight_places, mode=[2])
        expert, within, base, before = self.find_tile(groups, experts, number, Int32(0), Int32(0))
        while expert < experts:
            batch, first, rows = self.place(groups, expert, within)
            tile_tokens = cute.local_tile(from_row(token_places, batch, first), (TILE_M, BLOCK), (0, None))
            tile_tokens = part.partition_A(tile_tokens)
            tile_weights = cute.local_tile(weight_places[None, None, expert], (TILE_N, BLOCK), (tile_n, None))
            tile_weights = part.partition_B(tile_weights)
            to_tokens, from_tokens = partition(token_copy, s_tokens, tile_tokens)
            to_weights, from_weights = partition(weight_copy, s_weights, tile_weights)
            row = cutlass.min(thread, rows - 1)
            scales = from_row(token_scales, batch, first)
            total.fill(0.0)
            for block in cutlass.range(blocks, unroll=1):
                if warp == 0:
                    empty = filling.acquire_and_advance()
                    cute.copy(
                        token_copy, from_tokens[None, block], to_tokens[None, empty.index], tma_bar_ptr=empty.barrier
                    )
                    cute.copy(
                        weight_copy, from_weights[None, block], to_weights[None, empty.index], tma_bar_ptr=empty.barrier
                    )
                    full = reading.wait_and_advance()
                    free = multiplying.acquire_and_advance()
                    for k in cutlass.range_constexpr(BLOCK // MMA_K):
                        mma.set(tcgen05.Field.ACCUMULATE, k != 0)
                        at = (None, None, k, full.index)
                        cute.gemm(mma, sums, a[at], b[at], sums)
                    full.release()
                    free.commit()
                factor = mul_rn(scales[row, block], weight_scales[tile_n * TILE_N // SCALE_N, block, expert])
                multiplied = promoting.wait_and_advance()
                cute.copy(load, from_sums, partial)
                cute.arch.fence_view_async_tmem_load()
                multiplied.release()
                for i in cutlass.range(cute.size(partial), unroll_full=True):
                    total[i] = fma_rn(factor, partial[i], total[i])
            if thread < rows:
                result = cute.make_rmem_tensor(total.layout, out.element_type)
                result.store(total.load().to(out.element_type))
                tile_out = tile_of_out(out, batch, first, (TILE_M, TILE_N), tile_n)
                cute.autovec_copy(result, loads.partition_D(tile_out))
            number += step
            expert, within, base, before = self.find_tile(groups, experts, number, base, before)
        cute.arch.barrier()
        tensor_memory.relinquish_alloc_permit()
        tensor_memory.free(tensor_memory.retrieve_ptr(Float32))
