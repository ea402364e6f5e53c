"""What the activation kernel's host side refuses and launches; that a row depends on no other."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.launch_recorder import Recorder
from support.toolchain import NVCC

from refmoe.cuda import open_device
from refmoe.cuda.activation import swiglu_quantize
from refmoe.errors import ArgumentError
from refmoe.reference import quantize_mxfp8
from refmoe.reference.activation import swiglu

BF16 = ml_dtypes.bfloat16
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="no nvcc on this machine")


def gate_up(rows: int = 4, columns: int = 128) -> Any:
    return (np.random.default_rng(rows).standard_normal((rows, columns)) * 4).astype(BF16)


OFFSETS = np.array([0, 1, 1, 3], np.int64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gate_up": gate_up().astype(np.float32)}, r"gate_up: found float32 \[4, 128\]; needed bfloat16 \[R, 2I\]"),
        ({"gate_up": gate_up(columns=96)}, "gate_up: found 2I = 96; needed I a positive multiple of 32"),
        ({"gate_up": gate_up(columns=0)}, "gate_up: found 2I = 0"),
        ({"gate_up": gate_up(columns=256)[:, ::2]}, "gate_up: found strides"),
        ({"gate_up": gate_up(0, 1 << 31)}, "gate_up: found 4294967296 bytes of scale atoms, for I = 1073741824"),
        ({"offsets": OFFSETS.astype(np.int32)}, r"offsets: found int32 \[4\]; needed int64 \[4\]"),
        ({"offsets": np.zeros(1, np.int64)}, r"offsets: found int64 \[1\]; needed int64 \[E\+1\]"),
        ({"offsets": np.array([0, 5], np.int64)}, "offsets: found 0 .. 5; .* at most 4 rows last"),
        ({"offsets": np.array([0, 2, 1], np.int64)}, "offsets: found 0 .. 1, decreasing"),
        ({"offsets": np.array([1, 2], np.int64)}, "offsets: found 1 .. 2; needed 0 first"),
        ({"variant": "gelu"}, "variant: found 'gelu'; needed one of 'gpt_oss', 'silu'"),
        ({"mode": "even"}, "mode: found 'even'"),
        ({"edge": "deepgemm"}, "edge: found 'deepgemm'"),
        ({"layout": "linear"}, "layout: found 'linear'; needed one of '128x4', '8x4'"),
        ({"bias": np.zeros((3, 64), BF16)}, r"bias: found bfloat16 \[3, 64\]; needed bfloat16 \[3, 128\]"),
        ({"swiglu_alpha": np.ones(2, np.float32)}, r"swiglu_alpha: found float32 \[2\]; needed float32 \[3\]"),
        ({"swiglu_beta": np.ones(3)}, r"swiglu_beta: found float64 \[3\]; needed float32 \[3\]"),
        (
            {"swiglu_limit": np.array([7, -1, 7], np.float32)},
            "swiglu_limit: found -1.0 for expert 1; needed limits of at least 0",
        ),
        ({"swiglu_limit": np.array([7, 7, np.nan], np.float32)}, "swiglu_limit: found nan for expert 2"),
        ({"variant": "silu", "swiglu_limit": np.ones(3, np.float32)}, "swiglu_limit: .* with silu, which has none"),
        ({"fill": 256}, "fill: found int 256"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    device = Recorder()
    arguments = {"gate_up": gate_up(), "offsets": OFFSETS, **changes}
    with pytest.raises(ArgumentError, match=message):
        swiglu_quantize(device=device, **arguments)
    assert device.launches == []


def test_a_row_is_a_cta_and_sixteen_results_a_thread() -> None:
    device = Recorder()
    swiglu_quantize(gate_up(4, 5760), np.array([0, 4], np.int64), device=device)
    (plan,) = device.launches
    assert (plan.grid, plan.block) == (4, 192)
    swiglu_quantize(gate_up(200, 64), np.array([0, 200], np.int64), device=device)
    assert device.launches[1].grid == 64 * device.multiprocessors


def test_no_rows_launch_nothing() -> None:
    device = Recorder()
    found = swiglu_quantize(gate_up(0), np.zeros(3, np.int64), device=device, fill=0xFF)
    assert found.codes.shape == (0, 64)
    assert found.scales.tobytes() == b"\xff" * 256 * 4
    assert device.launches == []


@needs_nvcc
@pytest.mark.parametrize("variant", ["gpt_oss", "silu"])
def test_codes_are_those_of_the_references_and_rows_are_alone(variant: str) -> None:
    device, values = open_device("ptx"), gate_up(4)
    found = swiglu_quantize(values, OFFSETS, device=device, variant=variant, fill=0x7F)
    expected = quantize_mxfp8(swiglu(values, variant=variant))
    assert found.codes[:3].tobytes() == expected.codes[:3].tobytes()
    assert (found.codes[3] == 0x7F).all()  # no expert has it
    alone = swiglu_quantize(values[1:2], np.array([0, 1], np.int64), device=device, variant=variant)
    assert alone.codes.tobytes() == found.codes[1:2].tobytes()


@needs_nvcc
def test_rows_of_no_expert_are_not_even_read() -> None:
    """On a device their memory may never have been written."""
    from refmoe.cuda.activation import swiglu_kernel, swiglu_quantize_plan
    from refmoe.cuda.launch import row_threads

    device, values = open_device("ptx"), gate_up(2)
    source = device.output("gate_up", (2, 256), 0)  # counts as unwritten
    source.array[0] = values.view(np.uint8)[0]
    source.initialised.write(0, source.array[0].nbytes)
    codes, scales = device.output("codes", (2, 64), 0), device.output("scales", (256 * 4,), 0)
    plan = swiglu_quantize_plan(
        swiglu_kernel("gpt_oss", "rceil", "exact", "128x4"),
        source,
        device.upload("offsets", np.array([0, 1], np.int64)),
        None,
        (None, None, None),
        codes,
        scales,
        rows=2,
        width=64,
        experts=1,
        multiprocessors=2,
    )
    assert plan.block == row_threads(64)
    device.launch(plan)
    assert codes.array[0].tobytes() == quantize_mxfp8(swiglu(values)).codes[0].tobytes()
