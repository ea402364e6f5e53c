"""What the block FP8 GEMM refuses before anything runs, its instructions and grids, and what it reads and writes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.selection.thinned import thinned
from support.traffic_meter import Meter, meter  # noqa: F401

from refmoe.chips import KERNEL_ARCHS
from refmoe.cuda.deepseek_gemm import (
    INSTRUCTIONS,
    MMA,
    WGMMA,
    GroupedShape,
    ScaleStrides,
    accumulation_models,
    cta_of_tile,
    deepseek_gemm,
    deepseek_gemm_masked,
    deepseek_gemm_plan,
    scale_strides,
)
from refmoe.cuda.device import PtxDevice, open_device
from refmoe.cuda.launch import MatrixMap
from refmoe.cuda.toolchain import CSRC, FLAGS, ToolchainError, find_toolchain
from refmoe.errors import ArgumentError
from refmoe.reference import deepseek_gemm as reference

M, N, K, E = 7, 128, 256, 3
INDPTR = np.array([0, 2, 2, 5])


def operands(rows: int = M, n: int = N, k: int = K, experts: int = E, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def codes(*shape: int) -> np.ndarray:
        drawn = rng.integers(0, 256, shape).astype(np.uint8)
        return np.where(drawn & 0x7F == 0x7F, np.uint8(0x38), drawn)

    return {
        "tokens": codes(rows, k),
        "token_scales": rng.random((rows, k // 128), np.float32),
        "weights": codes(experts, n, k),
        "weight_scales": rng.random((experts, n // 128, k // 128), np.float32),
    }


def device(arch: str = "sm_120a") -> PtxDevice:
    opened = open_device("ptx", arch)
    assert isinstance(opened, PtxDevice)
    return opened


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens": np.zeros((M, K), np.int8)}, "tokens: found int8 [7, 256]; needed uint8 [7, 256]"),
        ({"tokens": np.zeros((1, M, K), np.uint8)}, "tokens: found uint8 [1, 7, 256]; needed uint8 [M, K]"),
        (
            {"weights": np.zeros((E, 200, K), np.uint8)},
            "N = 200; needed N a positive multiple of 128, which share a scale",
        ),
        (
            {"weights": np.zeros((E, N, 192), np.uint8)},
            "K = 192; needed K a positive multiple of 128, which share a scale",
        ),
        ({"weights": np.zeros((0, N, K), np.uint8)}, "needed uint8 [E, N, K] with at least one expert"),
        ({"weight_scales": np.zeros((E, 1, 1), np.float32)}, "weight_scales: "),
        ({"token_scales": np.zeros((M, 1), np.float32)}, "needed float32 [7, at least 2], k_major"),
        ({"scale_layout": "mn_major"}, "needed float32 [2, at least 7], mn_major"),
        ({"scale_layout": "linear"}, "scale_layout: "),
        ({"m_indptr": np.array([0, 2, 2, 9])}, "0 .. 9; needed 0 first, never decreasing, at most 7 rows last"),
        ({"m_indptr": np.array([0, 3, 2, 5])}, "0 .. 5, decreasing"),
        ({"m_indptr": INDPTR.astype(np.int32)}, "m_indptr: found int32"),
        ({"model": "sm90_wgmma_fp8"}, "model: found str 'sm90_wgmma_fp8' on sm_120a; needed sm120"),
        ({"tile_m": 24}, "tile_m: found int 24; needed one of 8, 16, 32, 64, 128, which mma has"),
        ({"ctas": 2}, "ctas: found int 2 with tile_m = 8 and N = 128; needed 1"),
        ({"out_dtype": "fp16"}, "out_dtype: "),
        ({"fill": 256}, "fill: "),
    ],
)
def test_arguments(changes: dict[str, Any], words: str) -> None:
    opened = device()
    with pytest.raises(ArgumentError) as refusal:
        deepseek_gemm(**(operands() | {"m_indptr": INDPTR, "device": opened} | changes))
    assert words in str(refusal.value)
    assert not opened.launches


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens": np.zeros((M, K), np.uint8)}, "needed uint8 [E, R, K]"),
        ({"masked_m": np.array([0, 1, 5], np.int32)}, "masked_m: found 0 .. 5; needed 0 to the 4 rows of an expert"),
        ({"masked_m": np.array([0, 1, 2])}, "masked_m: found int64"),
        ({"expected_m": 0}, "expected_m: found int 0; needed 1 to the 4 rows of an expert"),
        ({"expected_m": 5}, "expected_m: found int 5"),
    ],
)
def test_arguments_of_batches(changes: dict[str, Any], words: str) -> None:
    given = operands(12)
    given["tokens"] = given["tokens"].reshape(E, 4, K)
    given["token_scales"] = given["token_scales"].reshape(E, 4, 2)
    arguments: dict[str, Any] = given | {"masked_m": np.array([0, 1, 4], np.int32), "device": device()} | changes
    with pytest.raises(ArgumentError) as refusal:
        deepseek_gemm_masked(**arguments)
    assert words in str(refusal.value)


def test_every_chip_has_a_model_and_every_model_an_instruction() -> None:
    assert {model for arch in KERNEL_ARCHS for model in accumulation_models(arch)} == set(INSTRUCTIONS)
    assert accumulation_models("sm_90a")[0] == "sm90_wgmma_fp8"
    for model, instruction in INSTRUCTIONS.items():
        assert (instruction is WGMMA) == ("wgmma" in model)


@pytest.mark.parametrize("rows_each", [0, 40])
@pytest.mark.parametrize("layout", ["k_major", "mn_major"])
def test_strides_find_every_scale(rows_each: int, layout: str) -> None:
    shape = GroupedShape(rows=120, experts=3, n=128, k=640, rows_each=rows_each)
    batch = (3,) if rows_each else ()
    rows = rows_each or shape.rows
    by_row = np.arange(np.prod((*batch, rows, 5))).reshape(*batch, rows, 5)
    lines = by_row if layout == "k_major" else by_row.swapaxes(-1, -2)
    buffer = np.pad(lines, [(0, 0)] * (lines.ndim - 1) + [(0, 3)], constant_values=-1)
    at = scale_strides(layout, buffer.shape[-1], shape)
    flat, numbered = buffer.reshape(-1), by_row.reshape(-1, 5)
    for row in (0, 1, 39, 40, 79, 119):
        expert = row // rows_each if rows_each else 2
        for block in range(5):
            assert flat[row * at.row + expert * at.expert + block * at.block] == numbered[row, block]


@pytest.mark.parametrize(("tile_m", "ctas"), [(8, 1), (64, 1), (128, 2)])
def test_tiles_are_numbered_once_each(tile_m: int, ctas: int) -> None:
    counts, n = (3, 0, 1200, 129, 64), 768
    numbers = [
        cta_of_tile(counts, (expert, row, column), tile_m, n, ctas)
        for expert, count in enumerate(counts)
        for row in range(0, count, tile_m)
        for column in range(0, n, 128)
    ]
    assert sorted(numbers) == list(range(len(numbers)))
    # Tiles of one band of tokens and one column follow each other.
    first = cta_of_tile(counts, (2, 0, 0), tile_m, n, ctas)
    assert cta_of_tile(counts, (2, tile_m, 0), tile_m, n, ctas) == first + ctas


def plan(model: str, tile_m: int, **changes: Any) -> Any:
    shape = changes.pop("shape", GroupedShape(rows=1000, experts=8, n=512, k=1024))
    found = deepseek_gemm_plan(
        model,
        tile_m,
        "bf16",
        (None,) * 4,
        None,
        None,
        None,
        shape,
        ScaleStrides(1, 0, 1),
        multiprocessors=132,
        **changes,
    )
    assert found.shared_bytes <= (232_448 if "wgmma" in model else 101_376)
    return found


def test_grids() -> None:
    assert plan("sm120", 128).grid == (1000 // 128 + 8) * 4
    batch = GroupedShape(rows=8 * 4096, experts=8, n=512, k=1024, rows_each=4096)
    assert plan("sm120", 128, shape=batch).grid == 8 * 32 * 4
    assert plan("sm120", 128, shape=batch, expected_m=200).grid == 8 * 2 * 4
    assert plan("sm90_wgmma_fp8", 128, shape=batch).grid == 132
    assert plan("sm90_wgmma_fp8", 128, shape=batch, ctas=2).grid == 132
    assert plan("sm90_wgmma_fp8", 64, blocks=(0, 1)).grid == (1000 // 64 + 8) * 4
    maps = [argument for argument in plan("sm90_wgmma_fp8", 128, ctas=2).arguments if isinstance(argument, MatrixMap)]
    assert [each.box for each in maps] == [(64, 128), (128, 128), (64, 64)]
    with pytest.raises(ArgumentError, match="tiles of 8 tokens, twice over"):
        plan("sm120", 8, shape=GroupedShape(rows=1 << 30, experts=8, n=4096, k=128))


@pytest.mark.parametrize(
    ("rows", "mma", "wgmma"),
    [(0, 8, 64), (9, 16, 64), (65, 128, 128), (128, 128, 128), (129, 128, 256), (257, 128, 128), (1000, 128, 256)],
)
def test_the_tile_that_is_chosen(rows: int, mma: int, wgmma: int) -> None:
    """The narrowest that holds all rows; of more rows the one that pads them least, and then the widest."""
    assert (MMA.choose_tile_m(rows), WGMMA.choose_tile_m(rows)) == (mma, wgmma)


@pytest.mark.parametrize("tile_m", thinned(MMA.tiles_m, 2))
def test_other_rows_are_neither_read_nor_written(meter: Meter, tile_m: int) -> None:  # noqa: F811
    """Of tokens and their scales every byte of rows in use is read and no other; of weights those of experts in use."""
    deepseek_gemm(**operands(), m_indptr=INDPTR, device=meter, tile_m=tile_m, out_dtype="f32")
    ((reads, writes),) = meter.touched
    assert writes == {"out": 5 * N * 4}
    assert reads["tokens"] == 5 * K
    assert reads["token_scales"] == 5 * 2 * 4
    assert reads["weights"] == 2 * N * K
    assert reads["weight_scales"] == 2 * 2 * 4


def test_no_rows_launch_nothing() -> None:
    opened = device()
    empty = operands(0) | {"m_indptr": np.zeros(E + 1, np.int64)}
    assert deepseek_gemm(**empty, device=opened).shape == (0, N)
    assert not opened.launches


def test_the_fastest_instruction_is_the_default() -> None:
    arrays = operands()
    opened = device("sm_90a")
    found = deepseek_gemm(**arrays, m_indptr=INDPTR, device=opened)
    assert opened.launches[-1].kernel.source == "deepseek_gemm_wgmma"
    wanted = reference.deepseek_gemm(**arrays, m_indptr=INDPTR, model="sm90_wgmma_fp8")
    np.testing.assert_array_equal(found[:5].view(np.uint16), wanted[:5].view(np.uint16))
    assert found.dtype == ml_dtypes.bfloat16


@pytest.mark.slow
def test_one_source_compiles_for_every_chip_from_sm_89_on(tmp_path: Path) -> None:
    """No executor and no model stands for sm_89: that it compiles is all that is said of it."""
    try:
        compiler = find_toolchain()
    except ToolchainError as error:
        pytest.skip(str(error))
    for arch in ("sm_89", "sm_100a", "sm_103a"):
        command = [str(compiler.nvcc), "-cubin", f"-arch={arch}", *FLAGS, str(CSRC / "deepseek_gemm.cu")]
        subprocess.run([*command, "-o", str(tmp_path / arch)], check=True, capture_output=True, timeout=300)
