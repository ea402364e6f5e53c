"""torch tensors where NumPy arrays are needed: what the error says."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from support.ptx_kernel import text

import refmoe
from refmoe import ptx
from refmoe.errors import ArgumentError

torch = pytest.importorskip("torch")


def test_a_reference_names_the_tensor() -> None:
    with pytest.raises(ArgumentError, match=r"x: found torch.Tensor bfloat16 \[4, 64\]; needed"):
        refmoe.quantize(torch.zeros(4, 64, dtype=torch.bfloat16), "mxfp8")


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_launch_names_the_tensor(wrapped: bool) -> None:
    module, tensor = ptx.Module.parse(text("ret;")), torch.zeros(32, dtype=torch.int32)
    argument: Any = ptx.Buffer(tensor) if wrapped else tensor
    with pytest.raises(ptx.ArgumentMismatch, match=r"torch.Tensor int32 \[32\] .*a NumPy array .*needed"):
        ptx.launch(module, "k", (1, 1, 1), (32, 1, 1), [argument, None, 0])


def test_a_numpy_function_is_told_what_it_was_given() -> None:
    def quantize(x: Any) -> Any:
        tensor = refmoe.quantize(np.asarray(x), "mxfp8")
        return tensor.codes, tensor.scales

    verdict = str(refmoe.check(quantize, "quantize", dtypes=("bf16",)))
    assert "TypeError: Got unsupported ScalarType BFloat16; it was given torch arrays; arrays='numpy' gives" in verdict
    assert refmoe.check(quantize, "quantize", dtypes=("bf16",), arrays="numpy").passed


def test_torch_is_not_imported_by_refmoe() -> None:
    said = "import sys, refmoe.ptx, refmoe.errors; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", said], check=False).returncode == 0
