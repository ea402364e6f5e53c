"""SwiGLU of a first product's rows, quantized to block FP8, as a CuTe DSL kernel.

    v    = (g * RN(1 / RN(1 + exp(-g)))) * u          FP32, each operation rounded
    code = E4M3(v * RN(1 / sf)), sf of 128 neighbouring v

A CTA takes one row at a time, a thread 16 results; eight lanes share a scale. Rows lie in batches, of each of which the
first are in use: contiguous rows are one batch.
"""

from __future__ import annotations

import cuda.bindings.driver as driver
import cutlass
import cutlass.cute as cute
from cutlass import Float8E4M3FN, Float32, Int32, Uint32

from .arithmetic import MAGNITUDE, as_bits, binary, max_u32, rcp_rn, swiglu, tile_scale

#: Results of a thread, and those that share a scale.
LANE, TILE = 16, 128
THREADS, WARP_LANES = 128, 32


class DeepSeekActivation:
    """The kernel for one policy and one form of rows.

    Args:
        masked: whether `groups` is int32 (experts), the rows in use of each batch; else it is int64 (experts + 1), of
            which the last are the rows in use.
        exact: of the policies of scales, else it is DeepGEMM's.
        power_of_two: whether scales are rounded up to one.
    """

    def __init__(self, masked: bool, exact: bool, power_of_two: bool):
        self.masked = masked
        self.exact = exact
        self.power_of_two = power_of_two

    @cute.jit
    def __call__(
        self,
        gate_up: cute.Tensor,
        groups: cute.Tensor,
        codes: cute.Tensor,
        scales: cute.Tensor,
        ctas: Int32,
        stream: driver.CUstream,
    ):
        """Launch the kernel.

        Args:
            gate_up: BF16 or FP32 (rows, 2 I, L), L the experts of batches, or 1: I gates, then I ups.
            groups: see the class.
            codes: E4M3 (rows, I, L).
            scales: FP32 (rows, I / 128, L), of any strides.
            ctas: of a batch; where there are more rows, a CTA takes several.
            stream: of CUDA.
        """
        self.kernel(gate_up, groups, codes, scales).launch(
            grid=[ctas, cute.size(codes, mode=[2]), 1], block=[THREADS, 1, 1], stream=stream
        )

    @cute.kernel
    def kernel(self, gate_up: cute.Tensor, groups: cute.Tensor, codes: cute.Tensor, scales: cute.Tensor):
        """See the module."""
        thread, _, _ = cute.arch.thread_idx()
        row, batch, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        used = Int32(0)
        if cutlass.const_expr(self.masked):
            used = groups[batch]
        else:
            used = Int32(groups[cute.size(groups) - 1])
        lanes = cute.size(codes, mode=[1]) // LANE
        whole_warps = (lanes + (WARP_LANES - 1)) // WARP_LANES * WARP_LANES
        values = cute.make_rmem_tensor((LANE,), Float32)
        while row < used:
            row_in, row_out = gate_up[row, None, batch], codes[row, None, batch]
            lane = thread
            while lane < whole_warps:
                amax = Uint32(0)
                # Every lane of a warp takes part in finding the largest of a tile.
                if lane < lanes:
                    gates = self.load(row_in, lane)
                    ups = self.load(row_in, lane + lanes)
                    for i in cutlass.range_constexpr(LANE):
                        values[i] = swiglu(gates[i], ups[i])
                        amax = max_u32(amax, as_bits(values[i]) & Uint32(MAGNITUDE))
                for step in cutlass.range_constexpr(3):
                    amax = max_u32(amax, cute.arch.shuffle_sync_bfly(amax, 1 << step))
                scale = tile_scale(amax, self.exact, self.power_of_two)
                if lane < lanes:
                    inverse = rcp_rn(scale)
                    for i in cutlass.range_constexpr(LANE):
                        values[i] = binary("mul.rn", values[i], inverse)
                    encoded = cute.make_rmem_tensor((LANE,), Float8E4M3FN)
                    encoded.store(values.load().to(Float8E4M3FN))
                    cute.autovec_copy(encoded, cute.local_tile(row_out, (LANE,), (lane,)))
                    if lane % (TILE // LANE) == 0:
                        scales[row, lane // (TILE // LANE), batch] = scale
                lane += THREADS
            row += ctas

    @cute.jit
    def load(self, row: cute.Tensor, lane: Int32) -> cute.Tensor:
        """16 neighbouring elements as FP32."""
        read = cute.make_rmem_tensor((LANE,), row.element_type)
        cute.autovec_copy(cute.local_tile(row, (LANE,), (lane,)), read)
        elements = cute.make_rmem_tensor((LANE,), Float32)
        elements.store(read.load().to(Float32))
        return elements
