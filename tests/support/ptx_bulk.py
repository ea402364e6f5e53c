"""Small kernels with bulk copies, and what the manual says of boxes, one element at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from refmoe import ptx

# Shared memory: tile at address 1024 (the windows of the executor), barrier behind it.
TILE_BYTES = 16384
THREADS = 64

# %d0: out, %d1: the tensor map, %r1: thread, %r2..%r6: coordinates, %r7: the barrier, %r8: the tile
TEXT = """.version 9.0
.target sm_120a
.address_size 64
.visible .entry k(.param .u64 out, .param .align 64 .b8 map[128], .param .u64 other,
                  .param .s32 c0, .param .s32 c1, .param .s32 c2, .param .s32 c3, .param .s32 c4)
{{
    .reg .pred %p<16>; .reg .b32 %r<64>; .reg .b64 %d<32>;
    .shared .align 1024 .b8 tile[{tile}];
    .shared .align 8 .b64 bar[4];
    ld.param.u64 %d0, [out]; ld.param.u64 %d3, [other];
    mov.b64 %d1, map; cvta.param.u64 %d1, %d1;
    ld.param.s32 %r2, [c0]; ld.param.s32 %r3, [c1]; ld.param.s32 %r4, [c2];
    ld.param.s32 %r5, [c3]; ld.param.s32 %r6, [c4];
    mov.u32 %r1, %tid.x; mov.u32 %r7, bar; mov.u32 %r8, tile;
    setp.eq.u32 %p0, %r1, 0;
    setp.lt.u32 %p1, %r1, 32;
    @%p0 mbarrier.init.shared::cta.b64 [%r7], 1;
    @%p0 fence.mbarrier_init.release.cluster;
    bar.sync 0;
{body}
    ret;
}}
"""

# The tile, byte by byte, to `out`.
DUMP = """
    mov.u32 %r20, %r1;
DUMP:
    setp.ge.u32 %p10, %r20, {count}; @%p10 bra DUMPED;
    add.u32 %r21, %r8, %r20; ld.shared.u8 %r22, [%r21];
    cvt.u64.u32 %d10, %r20; add.u64 %d10, %d10, %d0; st.global.u8 [%d10], %r22;
    add.u32 %r20, %r20, {threads}; bra DUMP;
DUMPED:
"""

# Bytes of `out` to the tile.
FILL = """
    mov.u32 %r20, %r1;
FILL:
    setp.ge.u32 %p10, %r20, {count}; @%p10 bra FILLED;
    cvt.u64.u32 %d10, %r20; add.u64 %d10, %d10, %d0; ld.global.u8 %r22, [%d10];
    add.u32 %r21, %r8, %r20; st.shared.u8 [%r21], %r22;
    add.u32 %r20, %r20, {threads}; bra FILL;
FILLED:
"""

WAIT = """
WAIT{n}:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r7], {parity};
    @!%p2 bra WAIT{n};
"""


def wait(parity: int = 0, n: int = 0) -> str:
    """Wait for the phase of a parity; `n` tells several waits apart."""
    return WAIT.format(parity=parity, n=n)


def fill(count: int, threads: int = THREADS) -> str:
    """`count` bytes of `out` to the tile."""
    return FILL.format(count=count, threads=threads)


def dump(count: int, threads: int = THREADS) -> str:
    """`count` bytes of the tile to `out`."""
    return DUMP.format(count=count, threads=threads)


def expect(count: int) -> str:
    """Thread 0 arrives and expects bytes."""
    return f"@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r7], {count};"


def load(rank: int, spelling: str = "shared::cluster.global.tile") -> str:
    """Thread 0 loads the box at the coordinates into the tile."""
    at = ", ".join(f"%r{2 + i}" for i in range(rank))
    opcode = f"cp.async.bulk.tensor.{rank}d.{spelling}.mbarrier::complete_tx::bytes"
    return f"@%p0 {opcode} [%r8], [%d1, {{{at}}}], [%r7];"


def store(rank: int) -> str:
    """Thread 0 stores the tile to the box at the coordinates."""
    at = ", ".join(f"%r{2 + i}" for i in range(rank))
    return f"@%p0 cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group [%d1, {{{at}}}], [%r8];"


COMMIT = "@%p0 cp.async.bulk.commit_group;"
FENCE = "fence.proxy.async.shared::cta;"


def run(
    body: str,
    out: Any,
    tensor_map: bytes = bytes(128),
    coordinates: Sequence[int] = (),
    other: int = 0,
    memory: ptx.DeviceMemory | None = None,
    grid: int = 1,
    checks: ptx.Checks | None = None,
    threads: int = THREADS,
    trace: ptx.Trace | None = None,
    cluster: int | None = None,
) -> ptx.LaunchResult:
    """Launch a body."""
    module = ptx.Module.parse(TEXT.format(body=body, tile=TILE_BYTES), name="bulk.ptx")
    start = [*coordinates, *[0] * (5 - len(coordinates))]
    args = [out, tensor_map, other, *start]
    return ptx.launch(
        module, "k", (grid, 1, 1), (threads, 1, 1), args, checks=checks, step_budget=200_000, memory=memory,
        trace=trace, cluster=None if cluster is None else (cluster, 1, 1),
    )  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """A tiled tensor map in words: sizes innermost first, strides in bytes.

    `bits`: of an element in memory.
    """

    data_type: str
    bits: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle: str = "none"
    fill: str = "zeros"

    def encode(self, address: int) -> bytes:
        return ptx.encode_tensor_map(
            address, self.data_type, self.dims, self.strides, self.box, self.steps, swizzle=self.swizzle, fill=self.fill
        )


def _elements(tensor: Tensor, start: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...], bool]]:
    """(number in the box, coordinates in the tensor, whether that is inside) of each element of a box."""
    steps = (1, *tensor.steps[1:])
    counts = [-(-size // step) for size, step in zip(tensor.box, steps, strict=True)]
    for number, backwards in enumerate(product(*(range(count) for count in reversed(counts)))):
        position = backwards[::-1]
        at = tuple(s + p * step for s, p, step in zip(start, position, steps, strict=True))
        yield number, at, all(0 <= a < d for a, d in zip(at, tensor.dims, strict=True))


def swizzled(address: int, mode: str) -> int:
    """The shared-memory address that a byte lands at, from the one it has without a swizzle.

    A pattern repeats every 256, 512 or 1024 bytes: in rows of 128 bytes, the 16-byte chunk j of row i stands where
    chunk j xor i would, as far as the span reaches.
    """
    if mode == "none":
        return address
    chunks = {"32B": 2, "64B": 4, "128B": 8}[mode]
    row, byte = divmod(address, 128)
    chunk, rest = divmod(byte, 16)
    group, inner = divmod(chunk, chunks)
    return row * 128 + (group * chunks + (inner ^ (row % chunks))) * 16 + rest


def loaded(tensor: Tensor, memory: bytes, start: Sequence[int], address: int = 1024) -> dict[int, int]:
    """What a load writes: byte by shared-memory address, of a tile at `address`."""
    result: dict[int, int] = {}
    for number, at, inside in _elements(tensor, start):
        where = at[0] * tensor.bits + 8 * sum(a * s for a, s in zip(at[1:], tensor.strides, strict=True))
        for bit in range(0, tensor.bits, 4):
            place = number * tensor.bits + bit
            outside = 0x7FF7 >> place % 16 & 15 if tensor.fill == "nan" else 0
            nibble = memory[(where + bit) // 8] >> ((where + bit) % 8) & 15 if inside else outside
            byte, shift = place // 8, place % 8
            if tensor.data_type == "u4_align16":
                byte = byte // 8 * 16 + byte % 8
            target = swizzled(address + byte, tensor.swizzle)
            result[target] = result.get(target, 0) | nibble << shift
    return result


def stored(tensor: Tensor, memory: bytes, tile: bytes, start: Sequence[int], address: int = 1024) -> bytes:
    """Memory after a store of a tile that lies at shared-memory address `address`."""
    result = bytearray(memory)
    width = tensor.bits // 8
    for number, at, inside in _elements(tensor, start):
        if inside:
            where = at[0] * width + sum(a * s for a, s in zip(at[1:], tensor.strides, strict=True))
            for byte in range(width):
                result[where + byte] = tile[swizzled(address + number * width + byte, tensor.swizzle) - address]
    return bytes(result)


def memory_of(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def box_bytes(tensor: Tensor, *, packed: bool = True) -> int:
    counts = [tensor.box[0], *(-(-b // s) for b, s in zip(tensor.box[1:], tensor.steps[1:], strict=True))]
    total = int(np.prod(counts)) * tensor.bits // 8
    return total * 2 if tensor.data_type == "u4_align16" and not packed else total


SHAPES = {
    "1d": Tensor("u8", 8, (100,), (), (64,), (1,)),
    "2d": Tensor("u16", 16, (40, 11), (96,), (16, 4), (1, 1)),
    "3d": Tensor("f32", 32, (8, 5, 4), (48, 256), (4, 3, 2), (1, 1, 1)),
    "4d": Tensor("bf16", 16, (8, 3, 3, 3), (32, 96, 288), (8, 2, 2, 2), (1, 1, 1, 1)),
    "5d": Tensor("u64", 64, (2, 3, 2, 3, 2), (32, 96, 192, 576), (2, 2, 2, 2, 1), (1, 1, 1, 1, 1)),
    "wide": Tensor("u8", 8, (300, 9), (304,), (256, 8), (1, 1)),
    "32B": Tensor("u8", 8, (64, 24), (64,), (32, 16), (1, 1), "32B"),
    "64B": Tensor("u16", 16, (64, 24), (128,), (32, 16), (1, 1), "64B"),
    "128B": Tensor("bf16", 16, (96, 24), (192,), (64, 16), (1, 1), "128B"),
    "128B 3d": Tensor("u8", 8, (128, 5, 6), (128, 640), (128, 3, 4), (1, 1, 1), "128B"),
}
# Along dimension 0 in units of 16 bytes: a box may begin nowhere else.
STARTS = {
    "inside": (0, 0, 0, 0, 0),
    "further": (1, 1, 1, 1, 1),
    "before": (-1, -1, 0, -1, 0),
    "beyond": (3, 9, 3, 2, 1),
    "half": (5, 0, 0, 0, 0),
    "outside": (100, 0, 0, 0, 0),
    "far below": (-40, -9, 0, 0, 0),
}


def start_of(tensor: Tensor, name: str) -> tuple[int, ...]:
    """Coordinates of a box's first element."""
    first, *others = STARTS[name][: len(tensor.dims)]
    return (first * 128 // tensor.bits, *others)


def size_of(tensor: Tensor) -> int:
    """Bytes up to the end of the last element."""
    last = sum((d - 1) * s for d, s in zip(tensor.dims[1:], tensor.strides, strict=True))
    return last + tensor.dims[0] * tensor.bits // 8


STORED_SHAPES = {
    name: replace(tensor, dims=(tensor.dims[0] // (step := 128 // tensor.bits) * step, *tensor.dims[1:]))
    for name, tensor in SHAPES.items()
}
STORED_STARTS = [name for name, start in STARTS.items() if min(start) >= 0]
