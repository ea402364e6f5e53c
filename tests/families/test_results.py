"""A function of refmoe.cuda whose result has other types than it promises fails its cases."""

from __future__ import annotations

from importlib import import_module

import ml_dtypes
import numpy as np
import pytest

from refmoe.catalog import parse_case
from refmoe.cuda import block_fp8
from refmoe.errors import RefmoeError
from refmoe.families.wrong.results import RESULTS, check_result
from refmoe.verify.kernel import Devices, Kernel
from refmoe.verify.runner import run_case
from refmoe.verify.verdict import Verdict

F32, BF16, U8 = (np.zeros(1, dtype) for dtype in (np.float32, ml_dtypes.bfloat16, np.uint8))


def test_results_are_held_against_their_types() -> None:
    check_result("block_fp8.quantize_block_fp8", (U8, F32), {})
    check_result("finalize.finalize", F32, {"out_dtype": np.dtype(np.float32)})
    check_result("dp4a.dp4a_gemv", BF16, {})
    check_result("gemm.kernel.grouped_gemm", BF16, {"out_dtype": "bf16"})
    check_result("gemm.tile.check_tile", 3, {})  # no arrays
    check_result("expand.expand_as", (U8, U8), {"output": "nvfp4"})
    check_result("expand.expand_as", BF16, {"output": "copy", "x": BF16})
    with pytest.raises(RefmoeError, match="returned arrays of uint8, float16; it promises uint8, float32"):
        check_result("block_fp8.quantize_block_fp8", (U8, F32.astype(np.float16)), {})
    with pytest.raises(RefmoeError, match="it promises float32"):
        check_result("gemm.kernel.grouped_gemm", BF16, {"out_dtype": "f32"})
    with pytest.raises(RefmoeError, match="returned arrays of bfloat16; it promises uint8"):
        check_result("expand.expand_as", BF16, {"output": "fp8_tensor", "x": BF16})
    with pytest.raises(RefmoeError, match="returned arrays of float32; it promises bfloat16"):
        check_result("expand.expand_as", F32, {"output": "copy", "x": BF16})
    with pytest.raises(RefmoeError, match=r"gemm\.tile\.choose is no function whose results"):
        check_result("gemm.tile.choose", 3, {})
    with pytest.raises(RefmoeError, match="returned arrays of nothing"):
        check_result("routing.permute", None, {})


def test_every_function_that_promises_types_exists() -> None:
    for name in RESULTS:
        module, _, function = name.rpartition(".")
        assert callable(getattr(import_module(f"refmoe.cuda.{module}"), function))


def test_a_case_fails_on_another_type(monkeypatch: pytest.MonkeyPatch) -> None:
    case = parse_case("block_fp8_quantize:bf16:m2k256:gaussian:seed7@ptx")
    kernel = Kernel(case.family, Devices())
    assert run_case(kernel, case).verdict is Verdict.PASS
    made = block_fp8.BlockQuantized
    monkeypatch.setattr(block_fp8, "BlockQuantized", lambda codes, scales: made(codes, scales.view(np.int32)))
    result = run_case(kernel, case)
    assert result.verdict is Verdict.ERROR
    assert "block_fp8.quantize_block_fp8 returned arrays of uint8, int32" in str(result.reason)
