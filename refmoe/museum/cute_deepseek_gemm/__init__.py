"""The grouped GEMM in block FP8 as CuTe DSL kernels: for `mma.sync`, and for wgmma with tensor copies."""
