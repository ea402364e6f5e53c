"""Another compiler's kernel without its chip: Triton's PTX of `tl.dot_scaled` for sm_120a against the references.

Triton 3.9 makes one block-scaled `mma` for each 32 of K where both operands are FP8. FP8 by FP4 it multiplies out to
BF16, scales included, and uses `mma.m16n8k16`, whose model no one has checked on SM120 yet.
"""

from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from support.selection.thinned import thinned

from refmoe import ptx
from refmoe.reference.mma import tensor_core_mma

DATA = Path(__file__).parent.parent / "data"
PAIRS = ["e4m3", "e2m1"]
BLOCK_M, BLOCK_N = 64, 32
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def kernel_text(b_format: str) -> str:
    return (DATA / f"triton_e4m3_{b_format}.ptx").read_text()


class Problem:
    """Random operands, or powers of two small enough that every order of addition gives the same sum."""

    def __init__(self, b_format: str, m: int, n: int, k: int, seed: int, exact: bool = False) -> None:
        rng = np.random.default_rng(seed)
        self.b_format, self.shape = b_format, (m, n, k)
        self.a, self.b = self._codes(rng, "e4m3", m, k, exact), self._codes(rng, b_format, n, k, exact)
        low, high = (127, 128) if exact else (118, 136)
        self.a_scales = rng.integers(low, high, (m, k // 32)).astype(np.uint8)
        self.b_scales = rng.integers(low, high, (n, k // 32)).astype(np.uint8)

    @staticmethod
    def _codes(rng: np.random.Generator, name: str, rows: int, k: int, exact: bool) -> np.ndarray:
        if exact:
            ones, sign = (0x38, 0x80) if name == "e4m3" else (2, 8)
            return (ones | rng.integers(0, 2, (rows, k)) * sign).astype(np.uint8)
        codes = rng.integers(0, 256 if name == "e4m3" else 16, (rows, k)).astype(np.uint8)
        # No NaN: one would hide what the rest of its row adds up to.
        return np.where(codes & 0x7F == 0x7F, np.uint8(0x3A), codes) if name == "e4m3" else codes

    def run(self, text: str, checks: ptx.Checks | None = None) -> tuple[np.ndarray, ptx.LaunchResult]:
        m, n, k = self.shape
        b = self.b if self.b_format == "e4m3" else self.b[:, ::2] | self.b[:, 1::2] << np.uint8(4)
        out = np.zeros((m, n), np.float32)
        module = ptx.Module.parse(text, "triton.ptx")
        shared = int(re.findall(r"^// (\d+) bytes of dynamic shared memory", text, re.MULTILINE)[0])
        grid = (-(-m // BLOCK_M), -(-n // BLOCK_N), 1)
        operands = [self.a, self.a_scales, np.ascontiguousarray(b), self.b_scales]
        # The last two parameters are Triton's scratch memory, of which this kernel uses none.
        args = [*operands, ptx.Buffer(out, "c", initialised=False), m, n, k, None, None]
        return out, ptx.launch(module, module.entries[0], grid, (128, 1, 1), args, shared, checks)

    def expected(self, in_order: bool = False) -> np.ndarray:
        m, n, k = self.shape
        zero = np.zeros((m, n), np.float32)
        if self.b_format == "e4m3":
            return tensor_core_mma(
                self.a, self.b, zero, model="sm120", a_format="e4m3", b_format="e4m3",
                a_scales=self.a_scales, b_scales=self.b_scales,
            )  # fmt: skip
        order = np.arange(k) if in_order else instruction_order(k)
        a, b = (
            np.ascontiguousarray(bf16(values, scales)[:, order])
            for values, scales in (
                (self.a.view(ml_dtypes.float8_e4m3fn).astype(np.float32), self.a_scales),
                (E2M1[self.b], self.b_scales),
            )
        )
        return tensor_core_mma(a, b, zero, model="sm90_mma", a_format="bf16", b_format="bf16")

    def integers(self) -> np.ndarray:
        a, b = self.a.view(ml_dtypes.float8_e4m3fn).astype(np.int64), self.b
        values = (
            b.view(ml_dtypes.float8_e4m3fn).astype(np.int64) if self.b_format == "e4m3" else E2M1[b].astype(np.int64)
        )
        return (a @ values.T).astype(np.float32)


def bf16(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """BF16 bits of values times powers of two: four bits of significand, so exact in the range of these tests."""
    powers = np.exp2(np.repeat(scales, 32, axis=1).astype(np.float32) - 127)
    return (values * powers).astype(ml_dtypes.bfloat16).view(np.uint16)


def instruction_order(k: int) -> np.ndarray:
    """Which elements of K the instructions take one after another, 16 each.

    In the operand layout of kWidth 8 a lane t of four holds 8 neighbours of each half of 64 elements; instruction i of
    the four takes its elements 2i and 2i + 1 of both.
    """
    return np.array(
        [
            64 * group + 32 * half + 8 * lane + 2 * instruction + pair
            for group in range(k // 64)
            for instruction in range(4)
            for half in range(2)
            for lane in range(4)
            for pair in range(2)
        ]
    )


def same_bytes(x: np.ndarray, y: np.ndarray) -> bool:
    return x.tobytes() == y.tobytes()


@pytest.mark.parametrize("b_format", PAIRS)
@pytest.mark.parametrize(("m", "n", "k"), thinned([(64, 32, 128), (70, 40, 384), (1, 33, 256)], 4))
def test_every_byte(b_format: str, m: int, n: int, k: int) -> None:
    problem = Problem(b_format, m, n, k, seed=m + n)
    out, result = problem.run(kernel_text(b_format))
    assert same_bytes(out, problem.expected())
    model = {"e4m3": {"sm120": "published"}, "e2m1": {"sm90_mma": "extrapolated"}}
    assert result.models == model[b_format]


def test_the_order_of_instructions_shows() -> None:
    problem = Problem("e2m1", 64, 32, 384, seed=3)
    assert not same_bytes(problem.expected(), problem.expected(in_order=True))


@pytest.mark.parametrize("b_format", PAIRS)
def test_sums_that_no_order_can_change(b_format: str) -> None:
    problem = Problem(b_format, 66, 34, 256, seed=5, exact=True)
    out, _ = problem.run(kernel_text(b_format))
    assert same_bytes(out, problem.integers())


@pytest.mark.parametrize("b_format", PAIRS)
def test_a_scale_that_is_nan_spoils_its_row_and_no_other(b_format: str) -> None:
    problem = Problem(b_format, 64, 32, 128, seed=6)
    problem.a_scales[5, 2] = 0xFF
    out, _ = problem.run(kernel_text(b_format))
    expected = problem.expected() if b_format == "e4m3" else None
    assert np.isnan(out[5]).all()
    assert not np.isnan(np.delete(out, 5, axis=0)).any()
    if expected is not None:
        assert same_bytes(out, expected)


def test_what_ptxas_may_fuse_is_reported() -> None:
    text = kernel_text("e2m1").splitlines()
    _, result = Problem("e2m1", 64, 32, 128, seed=7).run(kernel_text("e2m1"))
    assert result.contraction_possible
    assert {text[line - 1].split()[0] for line in result.contraction_possible} == {"mul.bf16"}


# Faults, each in the text of the compiler: (operands, what is replaced, how often it stands there, by what).
FAULTS = {
    "a barrier less after the copies": ("e4m3", r"(cp\.async\.wait_group\s+0;\s+)bar\.sync\s+0;", r"\1"),
    "a barrier less before the scales": ("e2m1", r"(st\.shared\.v2\.b8[^;]*;\s+)bar\.sync\s+0;", r"\1"),
    "a copy that is not waited for": ("e4m3", r"cp\.async\.wait_group\s+0;", ""),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_that_the_checks_see(fault: str) -> None:
    b_format, pattern, replacement = FAULTS[fault]
    text, count = re.subn(pattern, replacement, kernel_text(b_format), count=1)
    assert count == 1
    with pytest.raises((ptx.RaceError, ptx.MemoryFault)):
        Problem(b_format, 64, 32, 256, seed=8).run(text)


def test_a_dropped_barrier_leaves_the_bytes_right() -> None:
    """Only the race check sees it: this is why it is on."""
    b_format, pattern, replacement = FAULTS["a barrier less after the copies"]
    text = re.sub(pattern, replacement, kernel_text(b_format), count=1)
    problem = Problem(b_format, 64, 32, 256, seed=8)
    out, _ = problem.run(text, ptx.Checks(races=False, uninitialised=False))
    assert same_bytes(out, problem.expected())


@pytest.mark.parametrize("b_format", PAIRS)
def test_a_wrong_scale_offset_shows_in_the_bytes(b_format: str) -> None:
    # The step from one slab of K to the next: its first scale is number k / 32.
    text, count = re.subn(r"(shr\.s32\s+%r\d+, %r\d+), 5;", r"\1, 6;", kernel_text(b_format))
    assert count >= 1
    problem = Problem(b_format, 64, 32, 256, seed=9)
    out, _ = problem.run(text)
    assert not same_bytes(out, problem.expected())


def test_a_wrong_scale_selector_shows_in_the_bytes() -> None:
    text, count = re.subn(r"(mma\.sync.*)\{ 0, 0 \};", r"\1{ 1, 0 };", kernel_text("e4m3"))
    assert count == 16
    problem = Problem("e4m3", 64, 32, 128, seed=10)
    out, _ = problem.run(text)
    assert not same_bytes(out, problem.expected())


@pytest.mark.parametrize("b_format", PAIRS)
def test_triton_still_makes_this_ptx(b_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from support.triton_dot_scaled import TRITON_VERSION, compile_ptx

    text = compile_ptx("e4m3", b_format)
    if triton.__version__ == TRITON_VERSION:
        assert text == kernel_text(b_format)
    # Whatever a version makes has to run, and to be right.
    problem = Problem(b_format, 70, 40, 256, seed=11, exact=True)
    assert same_bytes(problem.run(text)[0], problem.integers())
