"""The executor's bulk copies held against a GPU's, byte by byte: `pytest -m gpu tests/ptx/bulk/test_gpu.py`.

The same PTX runs on both; tensor maps are encoded by the driver there, by `encode_tensor_map` and its sibling of im2col
here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from support.bulk import im2col
from support.bulk.im2col import OFFSETS, WAITED, Images, any_images
from support.ptx_bulk import (
    COMMIT,
    FENCE,
    SHAPES,
    STARTS,
    STORED_SHAPES,
    STORED_STARTS,
    TEXT,
    THREADS,
    TILE_BYTES,
    Tensor,
    box_bytes,
    dump,
    expect,
    fill,
    load,
    memory_of,
    size_of,
    start_of,
    store,
    wait,
)

from refmoe import ptx
from refmoe.cuda.device import CudaDevice, DeviceUnavailable, open_device
from refmoe.ptx.state.tensormap import DATA_TYPES

pytestmark = pytest.mark.gpu
SWIZZLES = ("none", "32B", "64B", "128B")


@pytest.fixture(scope="module")
def gpu() -> CudaDevice:
    try:
        device = open_device("cuda")
    except DeviceUnavailable as error:
        pytest.skip(str(error))
    assert isinstance(device, CudaDevice)
    return device


class Both:
    """One kernel, to run on the GPU and on the executor."""

    def __init__(self, device: CudaDevice, body: str) -> None:
        self.device = device
        text = TEXT.format(body=body, tile=TILE_BYTES)
        self.text = text.replace(".version 9.0", ".version 8.3").replace("sm_120a", "sm_90a")
        module = device.call("cuModuleLoadData", self.text.encode() + b"\0")
        self.function = device.call("cuModuleGetFunction", module, b"k")

    def run(
        self, tensor: Tensor | Images, start: Sequence[int], source: np.ndarray, out: np.ndarray, maps: int = 0
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """(tensor, out) after a launch on the GPU, and on the executor; `maps` bytes lie at `other`."""
        return self._gpu(tensor, start, source, out, maps), self._executor(tensor, start, source, out, maps)

    def _gpu(
        self,
        tensor: Tensor | Images,
        start: Sequence[int],
        source: np.ndarray,
        out: np.ndarray,
        maps: int,
        steps: Sequence[int] = (),
    ) -> list[np.ndarray]:
        device = self.device
        buffers = [device.torch.from_numpy(a.copy()).cuda() for a in (source, out, np.zeros(max(maps, 16), np.uint8))]
        encoded = _encode(device, tensor, buffers[0].data_ptr(), steps)
        coordinates = [*start, *[0] * (5 - len(start))]
        values = [
            np.array([buffers[1].data_ptr()], np.uint64), np.frombuffer(encoded, np.uint8).copy(),
            np.array([buffers[2].data_ptr()], np.uint64), *(np.array([c], np.int32) for c in coordinates),
        ]  # fmt: skip
        addresses = np.array([value.ctypes.data for value in values], np.uint64)
        stream = device.torch.cuda.current_stream()
        device.call(
            "cuLaunchKernel", self.function, 1, 1, 1, THREADS, 1, 1, 0, stream.cuda_stream, addresses.ctypes.data, 0
        )
        stream.synchronize()
        return [buffer.cpu().numpy() for buffer in buffers[:2]]

    def _executor(
        self, tensor: Tensor | Images, start: Sequence[int], source: np.ndarray, out: np.ndarray, maps: int
    ) -> list[np.ndarray]:
        source, out = source.copy(), out.copy()
        memory = ptx.DeviceMemory()
        address = memory.place(ptx.Buffer(source, "tensor"))
        other = memory.place(ptx.Buffer(np.zeros(max(maps, 16), np.uint8), "maps"))
        args = [out, tensor.encode(address), other, *start, *[0] * (5 - len(start))]
        ptx.launch(ptx.Module.parse(self.text), "k", (1, 1, 1), (THREADS, 1, 1), args, memory=memory)
        return [source, out]


def _encode(device: CudaDevice, tensor: Tensor | Images, address: int, steps: Sequence[int] = ()) -> bytes:
    """`steps`: all element strides of an im2col tensor map, where they are not its own."""
    if isinstance(tensor, Images):
        return _encode_images(device, tensor, address, steps or (1, *tensor.steps, 1))
    driver = device.driver
    wide, narrow = driver.cuuint64_t, driver.cuuint32_t
    content = device.call(
        "cuTensorMapEncodeTiled",
        driver.CUtensorMapDataType(list(DATA_TYPES).index(tensor.data_type)),
        len(tensor.dims),
        address,
        [wide(d) for d in tensor.dims],
        # One dimension has no strides, but the driver refuses a null pointer to them.
        [wide(s) for s in tensor.strides] or [wide(0)],
        [narrow(b) for b in tensor.box],
        [narrow(s) for s in tensor.steps],
        driver.CUtensorMapInterleave(0),
        driver.CUtensorMapSwizzle(SWIZZLES.index(tensor.swizzle)),
        driver.CUtensorMapL2promotion(0),
        driver.CUtensorMapFloatOOBfill(int(tensor.fill == "nan")),
    )
    return ctypes.string_at(int(content.getPtr()), 128)


def _encode_images(device: CudaDevice, images: Images, address: int, steps: Sequence[int]) -> bytes:
    driver = device.driver
    wide, narrow = driver.cuuint64_t, driver.cuuint32_t
    content = device.call(
        "cuTensorMapEncodeIm2col",
        driver.CUtensorMapDataType(list(DATA_TYPES).index(images.data_type)),
        images.rank,
        address,
        [wide(d) for d in images.dims],
        [wide(s) for s in images.strides],
        list(images.lower),
        list(images.upper),
        images.channels,
        images.pixels,
        [narrow(s) for s in steps],
        driver.CUtensorMapInterleave(0),
        driver.CUtensorMapSwizzle(SWIZZLES.index(images.swizzle)),
        driver.CUtensorMapL2promotion(0),
        driver.CUtensorMapFloatOOBfill(int(images.fill == "nan")),
    )
    return ctypes.string_at(int(content.getPtr()), 128)


def agree(both: Both, tensor: Tensor | Images, start: Sequence[int], out: np.ndarray, **more: Any) -> None:
    """The same bytes in the tensor and in `out`."""
    there, here = both.run(tensor, start, memory_of(size_of(tensor)), out, **more)
    np.testing.assert_array_equal(here[0], there[0])
    np.testing.assert_array_equal(here[1], there[1])


@pytest.mark.parametrize("shape", SHAPES)
def test_loads(gpu: CudaDevice, shape: str) -> None:
    tensor = SHAPES[shape]
    rank, count = len(tensor.dims), box_bytes(tensor)
    both = Both(gpu, expect(count) + load(rank) + wait() + dump(count))
    for start in STARTS:
        agree(both, tensor, start_of(tensor, start), np.zeros(count, np.uint8))


@pytest.mark.parametrize("shape", STORED_SHAPES)
def test_stores(gpu: CudaDevice, shape: str) -> None:
    tensor = STORED_SHAPES[shape]
    rank, count = len(tensor.dims), box_bytes(tensor)
    done = "@%p0 cp.async.bulk.wait_group 0;"
    both = Both(gpu, fill(count) + FENCE + "bar.sync 0;" + store(rank) + COMMIT + done)
    for start in STORED_STARTS:
        agree(both, tensor, start_of(tensor, start), memory_of(count, 2))


def test_stores_across_an_end_inside_16_bytes_write_beyond_it(gpu: CudaDevice) -> None:
    # The executor refuses them; this is why.
    tensor = SHAPES["1d"]
    count, size = box_bytes(tensor), size_of(tensor)
    done = "@%p0 cp.async.bulk.wait_group 0;"
    both = Both(gpu, fill(count) + FENCE + "bar.sync 0;" + store(1) + COMMIT + done)
    before, tile = memory_of(size + 64), memory_of(count, 2)
    after, _ = both._gpu(tensor, (48,), before, tile, 0)
    assert after[size : size + 8].tobytes() != before[size : size + 8].tobytes()


def test_element_strides(gpu: CudaDevice) -> None:
    for tensor, start in (
        (Tensor("u16", 16, (32, 20, 5), (64, 1280), (16, 9, 3), (1, 4, 2)), (8, 3, -1)),
        (Tensor("u16", 16, (32, 20), (64,), (16, 8), (2, 3)), (8, 3)),
    ):
        count = box_bytes(tensor)
        both = Both(gpu, expect(count) + load(len(start)) + wait() + dump(count))
        agree(both, tensor, start, np.zeros(count, np.uint8))


def test_plain_copies(gpu: CudaDevice) -> None:
    opcode = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    load_out = f"@%p0 {opcode} [%r8], [%d0], 512, [%r7];" + wait() + "@%p0 st.shared.b32 [%r8], 7;"
    back = "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r8], 256; @%p0 cp.async.bulk.commit_group;"
    both = Both(gpu, expect(512) + load_out + FENCE + back + "@%p0 cp.async.bulk.wait_group 0;")
    agree(both, SHAPES["2d"], (0, 0), memory_of(512))


EDITS: dict[str, str] = {
    "address": "tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r9], %d5;",
    "dims": "tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r9], 1, 6;",
    "stride": "tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%r9], 0, 80;",
    "box": "tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%r9], 1, 2;",
    "step": "tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%r9], 1, 2;",
    "type": "tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [%r9], 1;",
    "rank": "tensormap.replace.tile.rank.shared::cta.b1024.b32 [%r9], 1;",
    "swizzle": "tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%r9], 2;",
}
# Bytes that the edited box transfers, where that is not all of it.
TRANSFERRED = {"box": 128, "step": 128, "type": 512}


def _edited(edit: str) -> Iterator[str]:
    yield "add.u32 %r9, %r8, 8192;"
    for i in range(0, 128, 16):
        yield f"@%p0 ld.param.v2.b64 {{%d20, %d21}}, [map+{i}]; @%p0 st.shared.v2.b64 [%r9+{i}], {{%d20, %d21}};"
    yield f"ld.param.u64 %d3, [other]; mov.u64 %d5, %d0; @%p0 {edit} bar.sync 0; @!%p1 bra READY;"
    yield "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d3], [%r9], 128;"
    yield "fence.proxy.tensormap::generic.acquire.gpu [%d3], 128;"
    yield "READY: mov.u64 %d1, %d3;"


@pytest.mark.parametrize("name", EDITS)
def test_edited_tensor_maps(gpu: CudaDevice, name: str) -> None:
    tensor = Tensor("u8", 8, (64, 16), (64,), (64, 4), (1, 1))
    count = TRANSFERRED.get(name, 256)
    both = Both(gpu, "".join(_edited(EDITS[name])) + expect(count) + load(2) + wait() + "bar.sync 0;" + dump(count))
    out = memory_of(1024, 5)
    agree(both, tensor, (0, 3), out, maps=256)


@pytest.mark.parametrize("shift", [128, 256, 512, 896])
def test_swizzles_take_absolute_address_bits(gpu: CudaDevice, shift: int) -> None:
    for swizzle, inner in (("none", 64), ("32B", 32), ("64B", 64), ("128B", 128)):
        tensor = Tensor("u8", 8, (128, 24), (128,), (inner, 8), (1, 1), swizzle)
        count = box_bytes(tensor)
        both = Both(gpu, f"add.u32 %r8, %r8, {shift};" + expect(count) + load(2) + wait() + dump(count))
        agree(both, tensor, (0, 2), np.zeros(count, np.uint8))


@pytest.mark.parametrize(("kind", "bits"), [("f16", 16), ("bf16", 16), ("f32", 32), ("f64", 64)])
def test_nan_fill(gpu: CudaDevice, kind: str, bits: int) -> None:
    size = 512 // bits
    tensor = Tensor(kind, bits, (size - 1, 3), (64,), (size, 4), (1, 1), fill="nan")
    both = Both(gpu, expect(256) + load(2) + wait() + dump(256))
    for start in ((0, 1), (128 // bits, -1), (-256 // bits, 0), (0, 50)):
        agree(both, tensor, start, np.zeros(256, np.uint8))


@pytest.mark.skip(reason="16U4_ALIGN16B exists on Blackwell only; no such GPU is at hand")
def test_fp4_takes_sixteen_bytes_for_eight(gpu: CudaDevice) -> None:
    tensor = Tensor("u4_align16", 4, (256, 12), (160,), (128, 8), (1, 1), "128B")
    count = box_bytes(tensor, packed=False)
    both = Both(gpu, expect(box_bytes(tensor)) + load(2) + wait() + dump(count))
    agree(both, tensor, (128, 5), np.zeros(count, np.uint8))


# Im2col


def columns(count: int, rank: int, offsets: Sequence[int]) -> str:
    """A load of a column, with offsets that the text holds: `other` is an address here."""
    constant = f"mov.b64 %d3, {im2col.packed(offsets)};"
    return constant + OFFSETS + expect(count) + im2col.load(rank) + wait() + dump(count)


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_columns(gpu: CudaDevice, rank: int) -> None:
    rng = np.random.default_rng(rank)
    for _ in range(40):
        images, start = any_images(rng, rank)
        offsets = [int(rng.integers(0, 5)) for _ in range(rank - 2)]
        agree(Both(gpu, columns(images.bytes, rank, offsets)), images, start, np.zeros(images.bytes, np.uint8))


@pytest.mark.parametrize("rank", [4, 5])
def test_corners_go_from_w_to_d(gpu: CudaDevice, rank: int) -> None:
    # The driver's page names them {D, H, W}. Each corner has a number of its own here.
    dims = (*(16, 7, 6, 5)[: rank - 1], 3)
    strides = tuple(int(np.prod(dims[:i])) for i in range(1, rank))
    lower, upper = (-3, -1, 1)[: rank - 2], (-2, 2, 1)[: rank - 2]
    images = Images("u8", 8, dims, strides, lower, upper, 16, 120, (1,) * (rank - 2))
    offsets = (2, 1, 0)[: rank - 2]
    agree(Both(gpu, columns(1920, rank, offsets)), images, (0, *lower, 0), np.zeros(1920, np.uint8))


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_stored_columns(gpu: CudaDevice, rank: int) -> None:
    rng = np.random.default_rng(10 + rank)
    for _ in range(20):
        images, start = any_images(rng, rank, storing=True)
        body = fill(images.bytes) + FENCE + "bar.sync 0;" + im2col.store(rank) + COMMIT + WAITED
        agree(Both(gpu, body), images, start, memory_of(images.bytes, 2))


@pytest.mark.parametrize("operation", ["add", "min", "max", "inc", "dec", "and", "or", "xor"])
def test_reduced_columns(gpu: CudaDevice, operation: str) -> None:
    images = Images("u32", 32, (16, 5, 6, 3), (64, 320, 1920), (1, 0), (-1, -2), 16, 20, (1, 1))
    reduce = im2col.store(4, "cp.reduce.async.bulk", f".{operation}")
    body = fill(images.bytes) + FENCE + "bar.sync 0;" + reduce + COMMIT + WAITED
    agree(Both(gpu, body), images, (0, 2, 2, 1), memory_of(images.bytes, 2))
