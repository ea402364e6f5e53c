"""The Triton kernels of `refmoe bench sweep` without a GPU: their PTX for sm_90a, executed, against the references."""

from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from refmoe import ptx
from refmoe.reference import quantize_mxfp8, swiglu

DATA = Path(__file__).parent.parent / "data"
KERNELS = ("quantize", "gpt_oss", "silu")
#: Of a program in the committed PTX: MX blocks, `kernels.FEW_BLOCKS`, and threads.
BLOCKS, THREADS = 16, 128
ROWS, WIDTH = 37, 96


def kernel_text(name: str) -> str:
    return (DATA / f"triton_sweep_{name}.ptx").read_text()


def drawn(width: int) -> np.ndarray:
    """BF16 rows, one of them zeros, one with magnitudes at which a scale steps, one tiny."""
    rows = np.random.default_rng(width).standard_normal((ROWS, width), np.float32) * 3
    rows[3], rows[4, :3], rows[5] = 0, (448, -448, 450), rows[5] * np.float32(2**-125)
    return rows.astype(ml_dtypes.bfloat16)


def run(name: str, text: str, rows: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales of MXFP8 rows of `width` elements, uint8."""
    codes, scales = np.zeros((ROWS, width), np.uint8), np.zeros((ROWS, width // 32), np.uint8)
    module = ptx.Module.parse(text, "triton.ptx")
    shared = int(re.findall(r"^// (\d+) bytes of dynamic shared memory", text, re.MULTILINE)[0])
    outputs = [ptx.Buffer(each, initialised=False) for each in (codes, scales)]
    numbers = (scales.size, *((width // 32,) if name == "silu" else ()))
    # The last two parameters are Triton's scratch memory, of which these kernels use none.
    args = [rows.view(np.uint16), *outputs, *numbers, None, None]
    grid = (-(-scales.size // BLOCKS), 1, 1)
    ptx.launch(module, module.entries[0], grid, (THREADS, 1, 1), args, shared)
    return codes, scales


def check(name: str, text: str) -> None:
    """Every byte of a kernel is the reference's, but for codes next to it where the exponential rounds otherwise."""
    rows = drawn(WIDTH if name == "quantize" else 2 * WIDTH)
    codes, scales = run(name, text, rows, WIDTH)
    wanted = quantize_mxfp8(rows if name == "quantize" else swiglu(rows, variant=name))
    assert scales.tobytes() == wanted.scales.tobytes()
    apart = np.abs(codes.astype(int) - wanted.codes.astype(int))
    assert apart.max() <= (name != "quantize")
    assert (apart != 0).mean() < 1e-3


@pytest.mark.parametrize("name", KERNELS)
def test_every_byte(name: str) -> None:
    check(name, kernel_text(name))


def test_a_kernel_that_rounds_scales_down_is_seen() -> None:
    carry = str(0x1FFFFF)
    assert carry in kernel_text("quantize")
    with pytest.raises(AssertionError):
        check("quantize", kernel_text("quantize").replace(carry, "0"))


@pytest.mark.parametrize("name", KERNELS)
def test_triton_still_makes_this_ptx(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from support.sweep.triton_ptx import TRITON_VERSION, compile_ptx

    text = compile_ptx(name)
    if triton.__version__ == TRITON_VERSION:
        assert text == kernel_text(name)
    # Whatever a version makes has to run, and to be right.
    check(name, text)
