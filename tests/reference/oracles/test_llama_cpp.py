"""llama.cpp's own CUDA kernels, compiled from its sources and run on the executor, beside Q8_1 and DP4A of refmoe.

REFMOE_LLAMA_CPP names the folder `ggml` of llama.cpp, as llama-cpp-python's source package has it in vendor/llama.cpp.
No line of it is in this repository. It is compiled with IEEE division, without contraction and without a flush to zero:
its own build has `-use_fast_math`, whose division is not defined to the bit.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.toolchain import NVCC

from refmoe import ptx
from refmoe.families.case import Shape
from refmoe.families.dp4a import DP4A_GEMV
from refmoe.families.q8_1 import Q8_1_QUANTIZE
from refmoe.reference import fp32
from refmoe.reference.dp4a import DOUBLED, dp4a_gemv, halved_scales
from refmoe.reference.layout import unpack_fp4
from refmoe.reference.q8_1 import Q8Tensor, packed_blocks, quantize_q8_1
from refmoe.reference.tensor import MXTensor

SOURCES = os.environ.get("REFMOE_LLAMA_CPP", "")
pytestmark = [
    pytest.mark.skipif(not SOURCES, reason="REFMOE_LLAMA_CPP does not name the folder ggml of llama.cpp's sources"),
    pytest.mark.skipif(NVCC is None, reason="no nvcc on this machine"),
]

FLAGS = ("-std=c++17", "-O3", "-fmad=false", "-prec-div=true", "-prec-sqrt=true", "-ftz=false")
#: What llama.cpp's headers name of cuBLAS, which no kernel here calls.
CUBLAS = """
#pragma once
#include <library_types.h>
typedef struct cublasContext* cublasHandle_t;
typedef int cublasStatus_t, cublasOperation_t, cublasComputeType_t, cublasMath_t, cublasGemmAlgo_t;
typedef int cublasFillMode_t, cublasSideMode_t, cublasDiagType_t;
enum { CUBLAS_STATUS_SUCCESS, CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_COMPUTE_16F, CUBLAS_COMPUTE_32F };
enum { CUBLAS_COMPUTE_32F_FAST_16F, CUBLAS_GEMM_DEFAULT_TENSOR_OP, CUBLAS_TF32_TENSOR_OP_MATH, CUBLAS_DEFAULT_MATH };
const char* cublasGetStatusString(cublasStatus_t);
cublasStatus_t cublasCreate(cublasHandle_t*);
cublasStatus_t cublasSetMathMode(cublasHandle_t, int);
cublasStatus_t cublasSetStream(cublasHandle_t, cudaStream_t);
cublasStatus_t cublasDestroy(cublasHandle_t);
"""
#: The vector kernel for MXFP4 and one token; the parameters are those of its definition.
INSTANCE = """
template __global__ void mul_mat_vec_q<GGML_TYPE_MXFP4, 1, false>(
    const void*, const void*, const int32_t*, const ggml_cuda_mm_fusion_args_device, float*, const uint32_t,
    const uint3, const uint32_t, const uint32_t, const uint32_t, const uint3, const uint32_t, const uint32_t,
    const uint32_t, const uint3, const uint32_t, const uint32_t, const uint32_t, const uint32_t);
"""
#: Where mmvq.cu turns from kernels to the host code that instantiates them for every type, which takes minutes.
HOST_CODE = "static std::pair<dim3, dim3> calc_launch_params"

#: GGML's MXFP4 block: the scale byte, and 16 bytes that hold element i with element i + 16.
GGML_BLOCK_BYTES = 17


def compiled(folder: Path, source: Path) -> Path:
    """The PTX of a source that includes llama.cpp's headers."""
    root = Path(SOURCES)
    (folder / "cublas_v2.h").write_text(CUBLAS)
    target = folder / f"{source.stem}.ptx"
    includes = [f"-I{path}" for path in (folder, root / "include", root / "src", root / "src" / "ggml-cuda")]
    command = [str(NVCC), "-ptx", "-arch=sm_90a", *FLAGS, *includes, str(source), "-o", str(target)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    return target


@pytest.fixture(scope="module")
def quantizers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    text = compiled(tmp_path_factory.mktemp("llama"), Path(SOURCES) / "src/ggml-cuda/quantize.cu").read_text()
    return ptx.Module.parse(text, name="quantize.ptx"), text


@pytest.fixture(scope="module")
def vector_product(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    folder = tmp_path_factory.mktemp("llama")
    kernels, found, _ = (Path(SOURCES) / "src/ggml-cuda/mmvq.cu").read_text().partition(HOST_CODE)
    assert found
    # A line `template<...>` in front of the host code belongs to it.
    kernels = re.sub(r"template\s*<[^<>]*>\s*$", "", kernels)
    source = folder / "mmvq.cu"
    source.write_text(kernels + INSTANCE)
    text = compiled(folder, source).read_text()
    return ptx.Module.parse(text, name="mmvq.ptx"), text


def entry(text: str, pattern: str) -> str:
    (name,) = re.findall(rf"\.entry (\w*{pattern}\w*)\(", text)
    return str(name)


def divisor(number: int) -> bytes:
    """llama.cpp's `init_fastdiv_values`: a multiplier, a shift and the divisor."""
    shift = (number - 1).bit_length()
    return np.array([(1 << 32) * ((1 << shift) - number) // number + 1, shift, number], np.uint32).tobytes()


@pytest.mark.parametrize("fill", Q8_1_QUANTIZE.fills)
def test_quantize_q8_1_is_the_mmvq_variant(quantizers: tuple[Any, str], fill: str) -> None:
    module, text = quantizers
    rows, k = 3, 416
    x = Q8_1_QUANTIZE.inputs(Q8_1_QUANTIZE.case(fill, Shape(rows, k), "f32", 5))["x"]
    out = np.zeros((rows, k // 32, 36), np.uint8)
    strides = (k, k, rows * k, rows * k)
    args = [x, ptx.Buffer(out, "out", initialised=False), *strides, k, rows, divisor(1)]
    ptx.launch(module, entry(text, "13quantize_q8_1"), grid=(-(-k // 256), rows, 1), block=(256, 1, 1), args=args)
    assert out.tobytes() == packed_blocks(quantize_q8_1(x, variant="llama_cpp_mmvq")).tobytes()


@pytest.mark.parametrize("fill", Q8_1_QUANTIZE.fills)
def test_quantize_mmq_q8_1_with_layout_ds4_is_the_mmq_variant(quantizers: tuple[Any, str], fill: str) -> None:
    module, text = quantizers
    rows, k = 3, 512
    x = Q8_1_QUANTIZE.inputs(Q8_1_QUANTIZE.case(fill, Shape(rows, k), "f32", 5))["x"]
    out = np.zeros((k // 128, rows, 144), np.uint8)  # four blocks together: their d and s, then their codes
    name = next(
        each
        for each in re.findall(r"\.entry (\w*quantize_mmq_q8_1\w*)\(", text)
        if "layout1ELb0" in each  # MMQ_Q8_1_DS_LAYOUT_DS4, not scattered
    )
    args = [x, None, ptx.Buffer(out, "out", initialised=False), k, k, rows * k, rows * k, k, rows, 1, 0]
    ptx.launch(module, name, grid=(rows, 1, 1), block=(128, 1, 1), args=args)
    wanted = packed_blocks(quantize_q8_1(x, variant="llama_cpp_mmq")).reshape(rows, k // 128, 4, 36)
    halves, codes = wanted[..., :4].reshape(rows, k // 128, 16), wanted[..., 4:].reshape(rows, k // 128, 128)
    assert out.tobytes() == np.concatenate([halves, codes], axis=2).transpose(1, 0, 2).tobytes()


def ggml_blocks(weights: MXTensor, expert: int) -> np.ndarray[Any, Any]:
    """The weights of an expert as GGML stores them, uint8 [N, K/32, 17]."""
    codes = unpack_fp4(weights.codes[expert])
    pairs = codes.reshape(codes.shape[0], -1, 2, 16)
    packed = pairs[:, :, 0] | pairs[:, :, 1] << 4
    return np.ascontiguousarray(np.concatenate([weights.scales[expert][..., None], packed], axis=2))


def in_llama_cpps_order(q8: Q8Tensor, weights: MXTensor, expert: int) -> np.ndarray[Any, Any]:
    """float32 [N] as `mul_mat_vec_q` sums: two threads a block, 64 blocks at a time, warps, then a butterfly."""
    n, blocks = weights.scales.shape[1:]
    codes = q8.codes[0].astype(np.int64).reshape(blocks, 2, 2, 8)  # low or high nibble, thread of the pair, element
    doubled = DOUBLED[unpack_fp4(weights.codes[expert])].astype(np.int64).reshape(n, blocks, 2, 2, 8)
    dots = (doubled * codes).sum(axis=(2, 4)).astype(np.float32)
    factors = fp32.multiply(halved_scales(weights.scales[expert]), q8.d[0].astype(np.float32))
    terms = fp32.multiply(np.repeat(factors, 2, axis=1), dots.reshape(n, 2 * blocks))
    sums = np.zeros((n, 128), np.float32)
    for start in range(0, 2 * blocks, 128):
        count = min(128, 2 * blocks - start)
        sums[:, :count] = fp32.add(sums[:, :count], terms[:, start : start + count])
    lanes = sums[:, :32]
    for warp in range(1, 4):
        lanes = fp32.add(lanes, sums[:, 32 * warp : 32 * warp + 32])
    while lanes.shape[1] > 1:
        lanes = fp32.add(lanes[:, : lanes.shape[1] // 2], lanes[:, lanes.shape[1] // 2 :])
    return lanes[:, 0]


@pytest.mark.parametrize("fill", DP4A_GEMV.fills)
def test_mul_mat_vec_q_differs_in_the_order_of_the_sum_alone(vector_product: tuple[Any, str], fill: str) -> None:
    module, text = vector_product
    n, k = 6, 2880
    given = DP4A_GEMV.inputs(DP4A_GEMV.case(fill, Shape(1, k, 1, 1, n), seed=9))
    q8 = Q8Tensor(given["codes"], given["d"], np.zeros_like(given["d"]))
    weights = MXTensor(given["weights"], given["weight_scales"], "mxfp4")
    out, blocks = np.zeros(n, np.float32), k // 32
    args = [
        *(ggml_blocks(weights, 0), packed_blocks(q8), None, bytes(48), ptx.Buffer(out, "out", initialised=False)),
        *(k, divisor(1), blocks, blocks, n, divisor(1), n * blocks, blocks, n, divisor(1), n * blocks, blocks, n, 0),
    ]
    ptx.launch(module, entry(text, "mul_mat_vec_q"), grid=(n, 1, 1), block=(32, 4, 1), args=args)
    assert out.tobytes() == in_llama_cpps_order(q8, weights, 0).tobytes()
    ours = dp4a_gemv(q8, weights, np.zeros((1, 1), np.int32), out_dtype=np.float32)[0]
    assert (out.tobytes() == ours.tobytes()) == (fill in SAME_BY_CHANCE)


#: Fills on which every order and every rounding gives the same sums: terms are integers of few bits.
SAME_BY_CHANCE = ("all-codes",)
