"""llama.cpp's own CUDA kernels, compiled from its sources and run on the executor, beside Q8_1 and DP4A of refmoe.

REFMOE_LLAMA_CPP names the folder `ggml` of llama.cpp, as llama-cpp-python's source package has it in vendor/llama.cpp.
`make llama-cpp` gets the package and runs this file. No line of it is in this repository.

It is compiled with IEEE division, without contraction and without a flush to zero: its own build has `-use_fast_math`,
whose division is not defined to the bit.
"""

from __future__ import annotations

import ctypes
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
from refmoe.reference.dp4a import DOUBLED, dp4a_gemv, halved_scales, warps_per_row
from refmoe.reference.layout import unpack_fp4
from refmoe.reference.q8_1 import Q8Tensor, half, packed_blocks, quantize_q8_1
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
#: The vector kernel for MXFP4, of each number of tokens; the parameters are those of its definition.
INSTANCES = """
#define REFMOE_INSTANCE(tokens) template __global__ void mul_mat_vec_q<GGML_TYPE_MXFP4, tokens, false>( \\
    const void*, const void*, const int32_t*, const ggml_cuda_mm_fusion_args_device, float*, const uint32_t, \\
    const uint3, const uint32_t, const uint32_t, const uint32_t, const uint3, const uint32_t, const uint32_t, \\
    const uint32_t, const uint3, const uint32_t, const uint32_t, const uint32_t, const uint32_t);
REFMOE_INSTANCE(1) REFMOE_INSTANCE(2) REFMOE_INSTANCE(3) REFMOE_INSTANCE(4)
REFMOE_INSTANCE(5) REFMOE_INSTANCE(6) REFMOE_INSTANCE(7) REFMOE_INSTANCE(8)
template __global__ void mul_mat_vec_q_moe<GGML_TYPE_MXFP4, 2, false>(
    const void*, const void*, const int32_t*, const ggml_cuda_mm_fusion_args_device, float*, const uint32_t,
    const uint3, const uint32_t, const uint32_t, const uint32_t, const uint32_t, const uint32_t, const uint32_t,
    const uint32_t, const uint32_t, const uint32_t);
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
    source.write_text(kernels + INSTANCES)
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


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """What llama.cpp's CPU code calls a reference. What it needs of other files is of other formats."""
    target = tmp_path_factory.mktemp("llama") / "quants.so"
    folders = [f"-I{Path(SOURCES) / name}" for name in ("include", "src")]
    flags = ("-shared", "-fPIC", "-O2", "-ffp-contract=off")
    source = Path(SOURCES) / "src" / "ggml-quants.c"
    subprocess.run(["gcc", *flags, *folders, str(source), "-o", str(target)], check=True, capture_output=True)
    return ctypes.CDLL(str(target), mode=os.RTLD_LAZY)


@pytest.mark.parametrize("fill", sorted(Q8_1_QUANTIZE.fills.keys() - {"specials", "subnormal"}))
def test_the_cpus_q8_1_multiplies_by_a_reciprocal_and_sums_codes(cpu: ctypes.CDLL, fill: str) -> None:
    """Declared: neither variant here is the CPU's.

    C leaves open what int8 a NaN, an Inf and a number past int8 become. So two fills are left out, and of the others
    blocks whose 1 / d is infinite.
    """
    x = np.ascontiguousarray(Q8_1_QUANTIZE.inputs(Q8_1_QUANTIZE.case(fill, Shape(32, 416), "f32", 5))["x"])
    out = np.zeros((32 * 13, 36), np.uint8)
    where = (ctypes.c_void_p(each.ctypes.data) for each in (x, out))
    cpu.quantize_row_q8_1_ref(*where, ctypes.c_int64(x.size))
    blocks = x.reshape(-1, 32)
    d = fp32.divide(np.abs(blocks).max(axis=-1), np.float32(127))
    quotients = fp32.multiply(blocks, fp32.divide(np.float32(1), d)[:, None]).astype(np.float64)
    rounded = np.trunc(quotients + np.copysign(0.5, quotients))
    defined = (np.abs(rounded) <= 127).all(axis=1)
    codes = rounded[defined].astype(np.int8)
    s = half(fp32.multiply(codes.astype(np.float32).sum(axis=1), d[defined]))
    assert out[defined].tobytes() == packed_blocks(Q8Tensor(codes, half(d)[defined, None], s[:, None])).tobytes()
    ours = packed_blocks(quantize_q8_1(x, variant="llama_cpp_mmvq")).reshape(out.shape)[defined]
    assert defined.mean() > 0.9
    assert ours[:, :2].tobytes() == out[defined, :2].tobytes()
    assert ours[:, 2:4].tobytes() != out[defined, 2:4].tobytes()
    assert (ours[:, 4:].tobytes() != out[defined, 4:].tobytes()) == (fill in OTHER_CODES)


#: Fills on which a reciprocal gives other codes than a division.
OTHER_CODES = ("real",)


def ggml_blocks(weights: MXTensor, expert: int) -> np.ndarray[Any, Any]:
    """The weights of an expert as GGML stores them, uint8 [N, K/32, 17]."""
    codes = unpack_fp4(weights.codes[expert])
    pairs = codes.reshape(codes.shape[0], -1, 2, 16)
    packed = pairs[:, :, 0] | pairs[:, :, 1] << 4
    return np.ascontiguousarray(np.concatenate([weights.scales[expert][..., None], packed], axis=2))


def in_llama_cpps_order(q8: Q8Tensor, row: int, weights: MXTensor, expert: int, warps: int) -> np.ndarray[Any, Any]:
    """float32 [N] as its kernels sum: two threads a block, 16 blocks a warp at a time, warps, then a butterfly."""
    n, blocks = weights.scales.shape[1:]
    codes = q8.codes[row].astype(np.int64).reshape(blocks, 2, 2, 8)  # low or high nibble, thread of the pair, element
    doubled = DOUBLED[unpack_fp4(weights.codes[expert])].astype(np.int64).reshape(n, blocks, 2, 2, 8)
    dots = (doubled * codes).sum(axis=(2, 4)).astype(np.float32)
    factors = fp32.multiply(halved_scales(weights.scales[expert]), q8.d[row].astype(np.float32))
    terms = fp32.multiply(np.repeat(factors, 2, axis=1), dots.reshape(n, 2 * blocks))
    threads = 32 * warps
    sums = np.zeros((n, threads), np.float32)
    for start in range(0, 2 * blocks, threads):
        count = min(threads, 2 * blocks - start)
        sums[:, :count] = fp32.add(sums[:, :count], terms[:, start : start + count])
    lanes = sums[:, :32]
    for warp in range(1, warps):
        lanes = fp32.add(lanes, sums[:, 32 * warp : 32 * warp + 32])
    while lanes.shape[1] > 1:
        lanes = fp32.add(lanes[:, : lanes.shape[1] // 2], lanes[:, lanes.shape[1] // 2 :])
    return lanes[:, 0]


def operands(fill: str, shape: Shape, seed: int = 9) -> tuple[Q8Tensor, MXTensor, np.ndarray[Any, Any]]:
    """Tokens, weights and the experts of each token, int32 [M, k]."""
    given = DP4A_GEMV.inputs(DP4A_GEMV.case(fill, shape, seed=seed))
    q8 = Q8Tensor(given["codes"], given["d"], np.zeros_like(given["d"]))
    return q8, MXTensor(given["weights"], given["weight_scales"], "mxfp4"), given["topk_ids"]


def packed_weights(weights: MXTensor) -> np.ndarray[Any, Any]:
    return np.stack([ggml_blocks(weights, expert) for expert in range(weights.codes.shape[0])])


def mul_mat_vec_q(
    kernel: tuple[Any, str], q8: Q8Tensor, weights: MXTensor, ids: np.ndarray[Any, Any] | None = None
) -> np.ndarray[Any, Any]:
    """float32 [M, N] of the only expert; with ids [k] of one token float32 [k, N]."""
    module, text = kernel
    tokens, (_, n, blocks) = len(q8.codes), weights.scales.shape
    chosen = 1 if ids is None else len(ids)
    out = np.zeros((max(tokens, chosen), n), np.float32)
    # Experts are channels. All of a token's choices have the activation of channel 0.
    one = divisor(1)
    args = [
        *(packed_weights(weights), packed_blocks(q8), ids, bytes(48), ptx.Buffer(out, "out", initialised=False)),
        *(32 * blocks, one, blocks, blocks, n, one, n * blocks, blocks, n, one, n * blocks, blocks, n, 0),
    ]
    name = entry(text, rf"13mul_mat_vec_qIL9ggml_type\d+ELi{tokens}E")
    warps = warps_per_row(tokens)
    # Its own rule for the number of warps is in the kernel, as the threads that it is compiled for.
    threads = re.search(rf"{name}\(.*?\.maxntid (\d+)", text, re.DOTALL)
    assert threads
    assert int(threads[1]) == 32 * warps
    rows = 1 if tokens == 1 else 2
    ptx.launch(module, name, grid=(n // rows, chosen, 1), block=(32, warps, 1), args=args)
    return out


#: Fills on which every order and every rounding gives the same sums: terms are integers of few bits, or zeros, or all
#: but two of them are.
SAME_BY_CHANCE = ("all-codes", "zero-rows", "overflow")


@pytest.mark.parametrize("fill", DP4A_GEMV.fills)
def test_mul_mat_vec_q_differs_in_the_order_of_the_sum_alone(vector_product: tuple[Any, str], fill: str) -> None:
    q8, weights, _ = operands(fill, Shape(1, 2880, 1, 1, 6))
    out = mul_mat_vec_q(vector_product, q8, weights)[0]
    assert out.tobytes() == in_llama_cpps_order(q8, 0, weights, 0, 4).tobytes()
    ours = dp4a_gemv(q8, weights, np.zeros((1, 1), np.int32), out_dtype=np.float32)[0]
    assert (out.tobytes() == ours.tobytes()) == (fill in SAME_BY_CHANCE)


@pytest.mark.parametrize("fill", ["gaussian", "cancelling"])
@pytest.mark.parametrize("tokens", range(2, 9))
def test_several_tokens_have_as_many_warps_as_here(vector_product: tuple[Any, str], tokens: int, fill: str) -> None:
    """4 warps share a row for up to 4 tokens, and 2 for up to 8; another number gives other sums."""
    q8, weights, _ = operands(fill, Shape(tokens, 2880, 1, 1, 6))
    out = mul_mat_vec_q(vector_product, q8, weights)
    for warps in (1, 2, 4):
        sums = np.stack([in_llama_cpps_order(q8, token, weights, 0, warps) for token in range(tokens)])
        assert (out.tobytes() == sums.tobytes()) == (warps == warps_per_row(tokens))


@pytest.mark.parametrize("fill", ["gaussian", "fingerprint", "cancelling"])
def test_one_token_with_experts(vector_product: tuple[Any, str], fill: str) -> None:
    q8, weights, ids = operands(fill, Shape(1, 1440, 8, 4, 6))
    out = mul_mat_vec_q(vector_product, q8, weights, ids[0])
    sums = np.stack([in_llama_cpps_order(q8, 0, weights, int(expert), 4) for expert in ids[0]])
    assert out.tobytes() == sums.tobytes()


@pytest.mark.parametrize("tokens", [2, 5, 8])
@pytest.mark.parametrize("fill", ["gaussian", "fingerprint", "cancelling"])
def test_several_tokens_with_experts_have_a_warp_each(vector_product: tuple[Any, str], fill: str, tokens: int) -> None:
    """Another kernel, `mul_mat_vec_q_moe`: one warp has a row of one token, where four or two share it here."""
    module, text = vector_product
    q8, weights, ids = operands(fill, Shape(tokens, 1440, 8, 3, 6))
    (_, n, blocks), chosen = weights.scales.shape, ids.shape[1]
    out = np.zeros((tokens, chosen, n), np.float32)
    args = [
        *(packed_weights(weights), packed_blocks(q8), ids, bytes(48), ptx.Buffer(out, "out", initialised=False)),
        *(32 * blocks, divisor(1), n, blocks, blocks, chosen * n, n * blocks, blocks, n, tokens, chosen),
    ]
    name = entry(text, "17mul_mat_vec_q_moeI")
    ptx.launch(module, name, grid=(n // 2, chosen, 1), block=(32, tokens, 1), args=args)
    for token, rank in np.ndindex(tokens, chosen):
        expert = int(ids[token, rank])
        assert out[token, rank].tobytes() == in_llama_cpps_order(q8, token, weights, expert, 1).tobytes()
    ours = dp4a_gemv(q8, weights, ids, out_dtype=np.float32).reshape(chosen, tokens, n).transpose(1, 0, 2)
    assert out.tobytes() != ours.tobytes()
