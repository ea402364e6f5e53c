"""CUTLASS's own host code on the stand-in runtime: what it is told of each group, and the launch that it makes."""

from __future__ import annotations

import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from support.cutlass import built_or_skip

from refmoe import ptx
from refmoe.chips import CHIPS
from refmoe.cuda import open_device
from refmoe.cuda.arguments import expanded_scale_rows
from refmoe.cuda.device import DeviceUnavailable, PtxDevice
from refmoe.errors import ArgumentError
from refmoe.museum.cutlass import (
    Build,
    Built,
    CutlassHostError,
    HostLibrary,
    Prepared,
    describe_built,
    grouped_gemm,
    host_launch,
    prepare,
)
from refmoe.ptx.state.tensormap import TensorMap, decode_tensor_map
from refmoe.reference import MXTensor
from refmoe.reference import grouped_gemm as reference_gemm
from refmoe.reference.layout import (
    expert_base_rows,
    expert_scale_rows,
    swizzle_weight_scales,
    unswizzle_scales,
)

BUILDS = [Build("cooperative", True), Build("pingpong", True), Build("cooperative", False), Build("pingpong", False)]
ROWS = np.array([3, 0, 130])
N, K = 136, 256


@pytest.fixture(params=BUILDS, ids=str)
def build(request: pytest.FixtureRequest) -> Build:
    return request.param


@pytest.fixture
def built(build: Build) -> Built:
    return built_or_skip(build)


@pytest.fixture
def device(build: Build) -> PtxDevice:
    found = open_device("ptx", build.arch)
    assert isinstance(found, PtxDevice)
    return found


def operands(n: int = N, k: int = K) -> tuple[np.ndarray, ...]:
    """codes, scales, weights, weight_scales, offsets of `ROWS` tokens."""
    random = np.random.default_rng(5)
    offsets = np.concatenate([[0], np.cumsum(ROWS)])
    scale_bytes = expanded_scale_rows(int(ROWS.sum()), ROWS.size) * -(-k // 128) * 4
    return (
        random.integers(0, 0x7F, (ROWS.sum(), k), dtype=np.uint8),
        random.integers(120, 130, scale_bytes, dtype=np.uint8),
        random.integers(0, 256, (ROWS.size, n, k // 2), dtype=np.uint8),
        swizzle_weight_scales(random.integers(120, 130, (ROWS.size, n, k // 32), dtype=np.uint8)),
        offsets,
    )


@pytest.fixture
def prepared(build: Build, built: Built, device: PtxDevice) -> Prepared:
    alpha = np.array([1, 2, 3], np.float32)
    return prepare(*operands(), device=device, build=build, built=built, alpha=alpha)


def words(prepared: Prepared, name: str, dtype: type) -> np.ndarray:
    """A buffer as numbers, a row a group."""
    return prepared.buffers[name].array.reshape(ROWS.size, -1).view(dtype)


def test_the_kernel_is_what_the_design_says(built: Built) -> None:
    found = describe_built(built)
    assert (found.stages, found.threads, found.problems, found.stride_a) == (2, 384, 12, 8)
    assert found.shared_bytes <= CHIPS["sm_121a"].shared_bytes
    assert found.release >= 420


def test_the_default_kernel_has_the_figures_of_the_table() -> None:
    found = describe_built(built_or_skip(Build()))
    assert (found.release, found.shared_bytes, found.parameter_bytes) == (420, 78_848, 2_304)


def test_groups_are_described_to_cutlass(prepared: Prepared, build: Build) -> None:
    m, n = (np.full(3, N), ROWS) if build.swapped else (ROWS, np.full(3, N))
    assert np.array_equal(words(prepared, "problems", np.int32), np.stack([m, n, np.full(3, K)], axis=1))
    for name in ("stride_a", "stride_b"):
        assert np.array_equal(words(prepared, name, np.int64), np.full((3, 1), K))
    assert np.array_equal(words(prepared, "stride_d", np.int64), np.full((3, 1), N))
    # ((32,4), rows/128), ((32,4), K/128), (1, L): only the extents and the stride of the rows of atoms are dynamic.
    for name, rows in (("layout_sfa", m), ("layout_sfb", n)):
        layout = words(prepared, name, np.int32)
        assert np.array_equal(layout[:, 0], -(-rows // 128))
        assert (layout[:, 1] == K // 128).all()
        assert (layout[:, 3] == 512 * K // 128).all()


def test_pointers_lead_to_each_expert(prepared: Prepared, build: Build) -> None:
    offsets = operands()[-1]
    begins = {
        "weights": np.arange(3) * N * K // 2,
        "codes": offsets[:-1] * K,
        "weight_scales": np.arange(3) * 256 * K // 32,
        "scales": expert_base_rows(offsets) * K // 32,
        "out": offsets[:-1] * N * 2,
        "alpha": np.arange(3) * 4,
    }
    a, b = ("weights", "codes") if build.swapped else ("codes", "weights")
    scales = {"weights": "weight_scales", "codes": "scales"}
    names = {"ptr_a": a, "ptr_b": b, "ptr_sfa": scales[a], "ptr_sfb": scales[b], "ptr_d": "out", "ptr_alpha": "alpha"}
    assert prepared.memory is not None
    for pointers, name in names.items():
        base = prepared.memory.place(prepared.buffers[name])
        assert np.array_equal(
            words(prepared, pointers, np.uint64)[:, 0], np.uint64(base) + begins[name].astype(np.uint64)
        )


def test_the_launch_is_the_kernel_of_the_ptx(prepared: Prepared, built: Built, device: PtxDevice) -> None:
    launch = host_launch(prepared)
    assert (launch.grid, launch.block) == ((device.multiprocessors, 1, 1), (384, 1, 1))
    assert launch.shared_bytes == describe_built(built).shared_bytes
    entry = re.search(r"\.entry (\S+)\(", built.ptx.read_text())
    assert entry is not None
    assert launch.entry == entry[1]
    module = ptx.Module.parse(built.ptx.read_text(), name="kernel.ptx")
    assert list(module.entries) == [launch.entry]
    for address in (prepared.operands.ptr_a, prepared.operands.problems, prepared.operands.workspace):
        assert address.to_bytes(8, "little") in launch.parameters


def maps(parameters: bytes) -> list[TensorMap]:
    return [
        decode_tensor_map(parameters[found.start() : found.start() + 128])
        for found in re.finditer(b"refmoeTM", parameters)
    ]


def test_tensor_maps_are_those_of_the_operands(prepared: Prepared, build: Build) -> None:
    a, b, sfa, sfb, d = maps(host_launch(prepared).parameters)
    weights, tokens = (a, b) if build.swapped else (b, a)
    assert (weights.data_type, weights.box[:2], weights.swizzle) == ("u4_align16", (128, 128), 3)
    assert (tokens.data_type, tokens.box[:2], tokens.swizzle) == ("u8", (128, 128), 3)
    for scales in (sfa, sfb):
        assert (scales.data_type, scales.swizzle, scales.rank) == ("u16", 0, 4)
        assert int(np.prod(scales.box[: scales.rank])) * 2 == 128 * 4
    assert (d.data_type, d.rank) == ("bf16", 2)


def test_the_grid_is_as_many_blocks_as_the_chip_has_multiprocessors(build: Build, built: Built) -> None:
    device = PtxDevice(build.arch, multiprocessors=7)
    prepared = prepare(*operands(), device=device, build=build, built=built)
    assert host_launch(prepared).grid == (7, 1, 1)
    assert prepared.operands.ptr_alpha == 0


def test_a_chip_with_less_shared_memory_is_refused(prepared: Prepared, built: Built) -> None:
    small = HostLibrary(built.library, replace(CHIPS["sm_121a"], shared_bytes=65_536))
    with pytest.raises(CutlassHostError, match="asks for 78848 bytes of shared memory; the chip has 65536"):
        small.record(prepared.operands)
    assert host_launch(prepared).shared_bytes == 78_848  # the refusal does not stay


def test_cutlass_itself_refuses_a_k_tail(build: Build, built: Built, device: PtxDevice) -> None:
    with pytest.raises(ArgumentError, match=r"K = 160, N = 136; .*K a multiple of 128 \(can_implement: Invalid status"):
        prepare(*operands(k=160), device=device, build=build, built=built)


def test_what_is_not_offered_is_refused_before_anything_runs(build: Build, device: PtxDevice) -> None:
    with pytest.raises(ArgumentError, match="out_dtype: found 'f32'"):
        grouped_gemm(*operands(), device=device, build=build, out_dtype="f32")
    with pytest.raises(ArgumentError, match="alpha"):
        grouped_gemm(*operands(), device=device, build=build, alpha=np.ones(2, np.float32))
    with pytest.raises(ArgumentError, match="a K of 160; needed a multiple of 128"):
        grouped_gemm(*operands(k=160), device=device, build=build)
    for arch in ("sm_90a", "sm_120a"):
        with pytest.raises(DeviceUnavailable, match=f"the device is {arch}, and .* is for sm_121a"):
            grouped_gemm(*operands(), device=open_device("ptx", arch), build=build)


def test_the_whole_way_ends_in_the_reference_bytes(build: Build, built: Built, device: PtxDevice) -> None:
    """Operands, host code, stand-in, executor: rows of no expert keep the fill, the empty expert changes nothing."""
    codes, scales, weights, weight_scales, offsets = operands()
    alpha = np.array([0.75, 2, -3], np.float32)
    spare = np.vstack([codes, codes[:2]])
    rows = expert_scale_rows(offsets)
    padded = scales.size // (K // 32)
    tokens = MXTensor(codes, unswizzle_scales(scales, (padded, K // 32))[rows], "mxfp8")
    experts = MXTensor(weights, unswizzle_scales(weight_scales, (3, N, K // 32)), "mxfp4")
    expected = reference_gemm(tokens, experts, offsets, model="sm120", alpha=alpha, out_dtype=ml_dtypes.bfloat16)

    room = np.zeros(expanded_scale_rows(len(spare), 3) * K // 32, np.uint8)
    room[: scales.size] = scales
    out = grouped_gemm(spare, room, weights, weight_scales, offsets, device=device, build=build, alpha=alpha, fill=0xA5)
    assert np.array_equal(out[: len(codes)].view(np.uint16), expected.view(np.uint16))
    assert (out[len(codes) :].view(np.uint8) == 0xA5).all()
    assert device.launches[-1].kernel.source == "cutlass/grouped_gemm"
