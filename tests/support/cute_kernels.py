"""CuTe DSL functions as a user writes them, for tests: import it where CuTe DSL is installed."""

from __future__ import annotations

import cuda.bindings.driver as driver
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

THREADS = 128


@cute.kernel
def scale_kernel(x: cute.Tensor, y: cute.Tensor, factor: Float32):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    i = block * THREADS + thread
    if i < cute.size(x):
        y[i] = x[i] * factor


@cute.jit
def scale(x: cute.Tensor, y: cute.Tensor, factor: Float32, stream: driver.CUstream):
    blocks = (cute.size(x) + THREADS - 1) // THREADS
    scale_kernel(x, y, factor).launch(grid=[blocks, 1, 1], block=[THREADS, 1, 1], stream=stream)


@cute.jit
def scale_unchecked(x: cute.Tensor, y: cute.Tensor, factor: Float32):
    """One block too many, which an `if` in the kernel leaves alone, so that the bound is y's own."""
    scale_kernel(x, y, factor).launch(grid=[cute.size(x), 1, 1], block=[THREADS, 1, 1])


@cute.jit
def scale_twice(x: cute.Tensor, y: cute.Tensor, factor: Float32):
    """Two launches, of which the second reads what the first wrote."""
    blocks = (cute.size(x) + THREADS - 1) // THREADS
    scale_kernel(x, y, factor).launch(grid=[blocks, 1, 1], block=[THREADS, 1, 1])
    transpose_kernel(y, x).launch(grid=[1, 1, 1], block=[THREADS, 1, 1])


@cute.kernel
def transpose_kernel(x: cute.Tensor, y: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    if thread < cute.size(x):
        y[cute.size(x) - 1 - thread] = x[thread]


@cute.kernel
def copy_kernel(x: cute.Tensor, y: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    rows, columns = x.shape
    for i in range(thread, rows * columns, THREADS):
        y[i // columns, i % columns] = x[i // columns, i % columns]


@cute.jit
def copy(x: cute.Tensor, y: cute.Tensor):
    copy_kernel(x, y).launch(grid=[1, 1, 1], block=[THREADS, 1, 1])


@cute.jit
def copy_pair(pair: tuple[cute.Tensor, cute.Tensor], times: cutlass.Constexpr, extra: cute.Tensor | None):
    for _ in cutlass.range_constexpr(times):
        copy_kernel(pair[0], pair[1]).launch(grid=[1, 1, 1], block=[THREADS, 1, 1])


@cute.kernel
def pointer_kernel(x: cute.Pointer, y: cute.Pointer, count: Int32):
    thread, _, _ = cute.arch.thread_idx()
    source, target = cute.make_tensor(x, cute.make_layout(count)), cute.make_tensor(y, cute.make_layout(count))
    if thread < count:
        target[thread] = source[thread] + 1


@cute.jit
def by_pointer(x: cute.Pointer, y: cute.Pointer, count: Int32):
    pointer_kernel(x, y, count).launch(grid=[1, 1, 1], block=[THREADS, 1, 1])


@cute.jit
def copy_crowded(x: cute.Tensor, y: cute.Tensor):
    """Wants two blocks on a multiprocessor, about whose shared memory the compiler then asks the driver."""
    copy_kernel(x, y).launch(grid=[1, 1, 1], block=[THREADS, 1, 1], min_blocks_per_mp=2)


@cute.kernel
def cluster_kernel(x: cute.Tensor):
    block, _, _ = cute.arch.block_idx()
    thread, _, _ = cute.arch.thread_idx()
    if thread == 0:
        x[block] = cute.arch.block_idx_in_cluster()


@cute.jit
def in_clusters(x: cute.Tensor):
    cluster_kernel(x).launch(grid=[cute.size(x), 1, 1], block=[THREADS, 1, 1], cluster=[2, 1, 1])


@cute.jit
def nothing(x: cute.Tensor):
    """Launches no kernel."""


@cute.jit
def refused(x: cute.Tensor):
    cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), x.element_type, num_bits_per_copy=3)
    scale_kernel(x, x, Float32(1.0)).launch(grid=[1, 1, 1], block=[THREADS, 1, 1])


@cute.kernel
def loads_whole_kernel(x: cute.Tensor):
    x.store(x.load() + 1.0)


@cute.jit
def loads_whole(times: cutlass.Constexpr, x: cute.Tensor):
    """Loads a tensor as one value, whose layout has to be static."""
    loads_whole_kernel(x).launch(grid=[times, 1, 1], block=[1, 1, 1])
