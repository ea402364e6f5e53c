"""Q8_0: every factor and integer against the specification and gguf's own dequantizer."""

from __future__ import annotations

import numpy as np
import pytest

from refmoe.errors import ArgumentError
from refmoe.reference.gguf.q8_0 import BLOCK_DTYPE, Q8_0Tensor
from refmoe.reference.scalar.q8_0 import dequantize_block


def every_factor(integers: np.ndarray) -> np.ndarray:
    """uint8 [65536, 1, 34]: every FP16 pattern over the same 32 integers."""
    content = np.empty((1 << 16, 1, 34), np.uint8)
    content[:, 0, :2] = np.arange(1 << 16, dtype="<u2").view(np.uint8).reshape(-1, 2)
    content[:, 0, 2:] = integers.astype(np.int8).view(np.uint8)
    return content


def test_awkward_factors_and_every_integer_are_those_of_the_specification() -> None:
    awkward = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3C00, 0xBC00, 0x3555, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00]
    nans = [0x7C01, 0x7E00, 0xFE01, 0xFFFF]
    content = np.empty((len(awkward + nans), 8, 34), np.uint8)
    content[..., :2] = np.array(awkward + nans, "<u2").view(np.uint8).reshape(-1, 1, 2)
    content[..., 2:] = np.arange(256, dtype=np.uint8).reshape(8, 32)
    values = Q8_0Tensor.of_bytes(content).dequantize().view(np.uint32)
    expected = [[dequantize_block(block.tobytes()) for block in row] for row in content]
    np.testing.assert_array_equal(values, np.array(expected, np.uint32).reshape(values.shape))


@pytest.mark.parametrize("first", [-128, -96, -64, -32, 0, 32, 64, 96])
def test_every_factor_and_integer_are_those_of_gguf_but_for_the_bits_of_a_nan(first: int) -> None:
    gguf = pytest.importorskip("gguf", reason="gguf is not installed")
    from gguf.quants import dequantize

    content = every_factor(np.arange(first, first + 32))
    ours = Q8_0Tensor.of_bytes(content).dequantize()
    with np.errstate(invalid="ignore"):
        theirs = dequantize(content[:, 0], gguf.GGMLQuantizationType.Q8_0)
    nan = np.isnan(theirs)
    # An infinite factor times 0 is NaN, whose sign is the processor's in gguf.
    assert (ours.view(np.uint32)[nan] == 0x7FC00000).all()
    np.testing.assert_array_equal(ours.view(np.uint32)[~nan], theirs.view(np.uint32)[~nan])
    assert nan.any()


def test_a_tensor_is_a_view_of_its_bytes_and_rows_are_too() -> None:
    content = np.random.default_rng(3).integers(0, 256, (6, 2, 34)).astype(np.uint8)
    tensor = Q8_0Tensor.of_bytes(content)
    assert (tensor.shape, tensor.format, len(tensor)) == ((6, 64), "q8_0", 6)
    for view in (tensor.blocks, tensor.scales, tensor.integers, tensor[2:4].integers):
        assert np.shares_memory(view, content)
    with np.errstate(invalid="ignore"):
        whole = tensor.dequantize()
    assert tensor[2:4].dequantize().tobytes() == whole[2:4].tobytes()
    assert tensor[np.array([[5], [0]])].dequantize().tobytes() == whole[[5, 0]].tobytes()


def test_no_rows_are_no_values() -> None:
    assert Q8_0Tensor(np.empty((0, 2), BLOCK_DTYPE)).dequantize().shape == (0, 64)


def test_refusals() -> None:
    with pytest.raises(ArgumentError, match=r"content: found uint8 \[2, 33\]; needed uint8 \[\.\.\., K/32, 34\]"):
        Q8_0Tensor.of_bytes(np.zeros((2, 33), np.uint8))
    with pytest.raises(ArgumentError, match="the 34 bytes side by side"):
        Q8_0Tensor.of_bytes(np.zeros((2, 68), np.uint8)[:, ::2])
    with pytest.raises(ArgumentError, match=r"content: found int8"):
        Q8_0Tensor.of_bytes(np.zeros((2, 34), np.int8))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="blocks: found float32"):
        Q8_0Tensor(np.zeros((2, 34), np.float32))
