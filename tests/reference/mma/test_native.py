"""Native chains against NumPy's, bit for bit, and both against the specification."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from support.selection.thinned import thinned
from support.tensor_cores.mma_operands import DEFINED, accumulators, code_dtype, every_code, finite_codes, near_codes

from refmoe.formats import FP16, MX_BLOCK
from refmoe.reference.mma import ELEMENT_FORMATS, MODELS, Kind, native, tensor_core_mma
from refmoe.reference.mma.bounds import _cut_products
from refmoe.reference.mma.product import checked_operands, numpy_product
from refmoe.reference.scalar.mma import accumulate

pytest.importorskip("llvmlite")

from refmoe.native.compiler import has_feature
from refmoe.reference.mma.native import shape
from refmoe.reference.mma.native.cut import cut_products
from refmoe.reference.mma.native.product import native_chain

PRODUCTS, M, N = 2, 19, 11
SCALE_ENDS = [0x00, 0x01, 0x7E, 0x7F, 0x80, 0xFD, 0xFE, 0xFF]


def cases():
    for name, model in MODELS.items():
        if model.kind is Kind.EXACT:
            continue
        pairs = [case[1:] for case in DEFINED if case[0] == name] or model.pairs
        for a, b in pairs:
            for scaled in {False: [False], True: [False, True]}[model.scaled] if model.scaling is None else [True]:
                yield pytest.param(name, a, b, scaled, id=f"{name}-{a}-{b}{'-scaled' if scaled else ''}")


CASES = list(cases())


def around_one(rng, name, shape):
    return near_codes(rng, name, shape, 3)


def wide(rng, name, shape):
    return near_codes(rng, name, shape, 9)


def sparse(rng, name, shape):
    """Mostly zeros of either sign, whole rows of them too."""
    codes = finite_codes(rng, name, shape)
    zero = rng.random(shape) < 0.9
    zero[..., ::3, :] = True
    sign = 1 << (ELEMENT_FORMATS[name].bits - 1)
    return np.where(zero, rng.integers(0, 2, shape) * sign, codes).astype(codes.dtype)


def cancelling(rng, name, shape):
    """Neighbours along K that differ in nothing but the sign: all ones on the other side adds up to zero."""
    codes = finite_codes(rng, name, shape)
    codes[..., 1::2] = codes[..., ::2] ^ (1 << (ELEMENT_FORMATS[name].bits - 1))
    return codes


FILLS = {
    "every code": every_code,
    "any number": finite_codes,
    "around 1": around_one,
    "wide": wide,
    "sparse": sparse,
    "cancelling": cancelling,
}


def any_c(rng, shape):
    """Any FP32, NaNs and infinities with their share."""
    return rng.integers(0, 1 << 32, shape, dtype=np.uint64).astype(np.uint32).view(np.float32)


def held_c(rng, model, shape, low, high):
    """C from 2^low to 2^high, a value of the accumulators."""
    c = any_c(rng, shape) if low is None else accumulators(rng, shape, low, high)
    if model.accumulator is FP16:
        with np.errstate(all="ignore"):
            c = c.astype(np.float16).astype(np.float32)
    return c


# Subnormal, around 1, near overflow, anything.
CS = [(-149, -120), (-10, 10), (100, 127), (None, None)]


def steps(model, a, b):
    return 32 if model.kind is Kind.FMA else 2 * model.instruction_k(a, b)


def scales_of(rng, model, rows, k, at_ends):
    block = model.scaling.block if model.scaling else MX_BLOCK
    shape = (PRODUCTS, rows, k // block)
    if at_ends:
        return rng.choice(np.array(SCALE_ENDS, np.uint8), shape)
    # UE4M3 has another range than E8M0.
    low, high = (0x20, 0x60) if model.name == "sm120_nvf4" else (0x70, 0x8E)
    return rng.integers(low, high, shape).astype(np.uint8)


def bits(found):
    return found.view(np.uint32)


@pytest.mark.parametrize(("name", "a_format", "b_format", "scaled"), thinned(CASES, 2))
def test_native_equals_numpy_and_specification(name, a_format, b_format, scaled):
    model = MODELS[name]
    rng = np.random.default_rng([7, *name.encode(), *a_format.encode(), *b_format.encode(), scaled])
    k = steps(model, a_format, b_format)
    block = model.pair(a_format, b_format).block
    for number, (fill, draw) in enumerate(FILLS.items()):
        a, b = draw(rng, a_format, (PRODUCTS, M, k)), draw(rng, b_format, (PRODUCTS, N, k))
        if fill == "cancelling":
            b[...] = b[..., :1]
        for at_ends in (False, True) if scaled else (False,):
            a_scales = scales_of(rng, model, M, k, at_ends) if scaled else None
            b_scales = scales_of(rng, model, N, k, at_ends) if scaled else None
            for low, high in CS:
                c = held_c(rng, model, (PRODUCTS, M, N), low, high)
                if fill == "cancelling" and low == -10:
                    c[:] = -0.0
                x, y, z = checked_operands(a, b, c, model, a_format, b_format, a_scales, b_scales)
                found = bits(native_chain(x, y, z, model, block))
                wanted = bits(numpy_product(x, y, z, model, block))
                assert (found == wanted).all(), (fill, low, np.argwhere(found != wanted)[:4])
            # Some outputs of each fill against the definition; C is anything here.
            p, row, column = rng.integers((PRODUCTS, M, N)).tolist()
            assert found[p, row, column] == accumulate(
                a[p, row].tolist(), b[p, column].tolist(), int(bits(c)[p, row, column]), model, a_format, b_format,
                None if a_scales is None else a_scales[p, row].tolist(),
                None if b_scales is None else b_scales[p, column].tolist(),
            ), (fill, number)  # fmt: skip


@pytest.mark.parametrize("avx512", [True, False], ids=["avx512", "any-host"])
@pytest.mark.parametrize(("name", "a_format", "b_format", "scaled"), thinned(CASES, 12))
def test_long_chains_of_blocks_far_apart(name, a_format, b_format, scaled, avx512, monkeypatch):
    """Blocks of all sizes follow each other, so that of 8 columns some cut products, some C, some nothing."""
    if avx512 and not has_feature("avx512f"):
        pytest.skip("this host has no AVX-512")
    monkeypatch.setattr(shape, "has_feature", lambda name: avx512)
    model = MODELS[name]
    rng = np.random.default_rng([11, *name.encode(), *a_format.encode(), *b_format.encode(), scaled])
    blocks = 12
    step = steps(model, a_format, b_format) // 2
    operands = []
    for rows, fmt in ((M, a_format), (N, b_format)):
        spreads = rng.choice([1, 2] if model.accumulator is FP16 else [1, 3, 9, 20], blocks)
        parts = [near_codes(rng, fmt, (PRODUCTS, rows, step), spread) for spread in spreads]
        operands.append(np.concatenate(parts, axis=2))
    a, b = operands
    # The second product has what is no number, in a few places.
    for codes, fmt in ((a, a_format), (b, b_format)):
        places = tuple(rng.integers((1, codes.shape[1], codes.shape[2]), size=(3, 3)).T)
        codes[1:][places] = every_code(rng, fmt, 3)
    scales = [None, None]
    if scaled:
        block = model.scaling.block if model.scaling else MX_BLOCK
        low, high = (0x08, 0x78) if name == "sm120_nvf4" else (0x70, 0x90)
        scales = [rng.integers(low, high, (PRODUCTS, rows, a.shape[2] // block)).astype(np.uint8) for rows in (M, N)]
    c = held_c(rng, model, (PRODUCTS, M, N), -10, 10)
    c[..., ::3] = 0.0
    operands = checked_operands(a, b, c, model, a_format, b_format, *scales)
    block = model.pair(a_format, b_format).block
    found, wanted = bits(native_chain(*operands, model, block)), bits(numpy_product(*operands, model, block))
    assert (found == wanted).all(), np.argwhere(found != wanted)[:4]
    assert np.isfinite(found[0].view(np.float32)).any()


@pytest.mark.parametrize(("name", "a_format", "b_format"), sorted({case.values[:3] for case in CASES}))
def test_what_is_left_beside_a_cancelled_pair(name, a_format, b_format):
    """x u - x u + y v: the pair sets the alignment, and all that can be seen is what that leaves of y v."""
    model = MODELS[name]
    rng = np.random.default_rng(8)
    k = steps(model, a_format, b_format)
    a, b = np.zeros((1, 60, k), code_dtype(a_format)), np.zeros((1, 60, k), code_dtype(b_format))
    # All three in one pass of the models that unpack.
    for codes, fmt, sign in ((a, a_format, 1 << (ELEMENT_FORMATS[a_format].bits - 1)), (b, b_format, 0)):
        codes[..., 0], codes[..., 4] = finite_codes(rng, fmt, (1, 60)), finite_codes(rng, fmt, (1, 60))
        codes[..., 1] = codes[..., 0] ^ sign
    scales = [None, None]
    if model.scaling is not None:
        scales = [scales_of(rng, model, 60, k, False)[:1] for _ in range(2)]
    c = np.zeros((1, 60, 60), np.float32)
    x, y, z = checked_operands(a, b, c, model, a_format, b_format, *scales)
    block = model.pair(a_format, b_format).block
    assert (bits(native_chain(x, y, z, model, block)) == bits(numpy_product(x, y, z, model, block))).all()


@pytest.mark.parametrize("name", ["sm90_mma", "sm90_wgmma", "sm90_mma_k8"])
def test_sums_around_the_least_numbers(name):
    """2047 2^i + 2^j near the floor of the alignment, the least subnormal and the least normal number."""
    model = MODELS[name]
    sweep = np.exp2(np.arange(-104, -49)).astype(np.float32)
    a, b = np.zeros((2, sweep.size, 16), np.float32)
    a[:, 0], b[:, 0] = 23 * sweep, 89 * 2.0**-67
    a[:, 1], b[:, 1] = 2.0**-67, sweep
    x, y = ((part.view(np.uint32) >> 16).astype(np.uint16)[None] for part in (a, b))
    for c in (0.0, 2.0**-149, -(2.0**-149), 2.0**-127, -(2.0**-126)):
        each = np.full((1, sweep.size, sweep.size), c, np.float32)
        operands = checked_operands(x, y, each, model, "bf16", "bf16", None, None)
        block = model.pair("bf16", "bf16").block
        found = bits(native_chain(*operands, model, block))
        assert (found == bits(numpy_product(*operands, model, block))).all()
        for row, column in np.random.default_rng(9).integers(0, sweep.size, (40, 2)).tolist():
            assert found[0, row, column] == accumulate(
                x[0, row].tolist(), y[0, column].tolist(), int(bits(each)[0, 0, 0]), model, "bf16", "bf16"
            )


@pytest.mark.parametrize("byte", [100, 105, 112, 118])
def test_a_subnormal_accumulator_has_the_least_exponent(byte):
    """Products whose own bits lie below those that a subnormal C lets pass are cut, each by itself."""
    model, rng = MODELS["sm120"], np.random.default_rng(byte)
    a, b = (finite_codes(rng, name, (1, 24, 32)) for name in ("e2m1", "e4m3"))
    c = (rng.integers(1, 1 << 20, (1, 24, 24)).astype(np.uint32)).view(np.float32)
    scales = np.full((1, 24, 1), byte, np.uint8), np.zeros((1, 24, 1), np.uint8)
    operands = checked_operands(a, b, c, model, "e2m1", "e4m3", *scales)
    block = model.pair("e2m1", "e4m3").block
    found = bits(native_chain(*operands, model, block))
    assert (found == bits(numpy_product(*operands, model, block))).all()
    for row, column in rng.integers(0, 24, (10, 2)).tolist():
        codes = a[0, row].tolist(), b[0, column].tolist(), int(bits(c)[0, row, column])
        assert found[0, row, column] == accumulate(*codes, model, "e2m1", "e4m3", [byte], [0])


@pytest.mark.parametrize("name", ["sm120", "sm90_wgmma_fp8"])
@pytest.mark.parametrize("place", range(32))
def test_one_special_element(name, place):
    """A NaN at each place of K reaches its row or its column, and nothing else."""
    rng = np.random.default_rng(place)
    a, b = (near_codes(rng, "e4m3", (1, rows, 64), 3) for rows in (M, N))
    a[0, 17, 32 + place], b[0, 9, place] = 0x7F, 0xFF
    c = accumulators(rng, (1, M, N), -10, 10)
    model = MODELS[name]
    found = native_chain(*checked_operands(a, b, c, model, "e4m3", "e4m3", None, None), model, 32)
    lost = np.zeros((M, N), bool)
    lost[17], lost[:, 9] = True, True
    assert (np.isnan(found[0]) == lost).all()
    assert (bits(found)[0][lost] == 0x7FFFFFFF).all()


@pytest.mark.parametrize("sign", [0, 0x80])
def test_infinities_of_all_scales_meet(sign):
    """An infinite C and an infinite product, which the least scales leave infinite."""
    model = MODELS["sm120"]
    a, b = np.zeros((1, M, 32), np.uint8), np.full((1, N, 32), 0x3C, np.uint8)
    a[..., 5] = 0x7C | sign
    c = np.full((1, M, N), -np.inf, np.float32)
    scales = [np.zeros((1, rows, 1), np.uint8) for rows in (M, N)]
    x, y, z = checked_operands(a, b, c, model, "e5m2", "e5m2", *scales)
    found = bits(native_chain(x, y, z, model, 32))
    assert (found == (0xFF800000 if sign else 0x7FFFFFFF)).all()


def test_one_scale_of_two():
    """An operand without scales has scales of one."""
    rng = np.random.default_rng(3)
    model = MODELS["sm120"]
    a, b = near_codes(rng, "e4m3", (1, M, 64), 3), near_codes(rng, "e2m1", (1, N, 64), 2)
    c = accumulators(rng, (1, M, N), -10, 10)
    scales = rng.integers(0x70, 0x8E, (1, M, 2)).astype(np.uint8)
    x, y, z = checked_operands(a, b, c, model, "e4m3", "e2m1", scales, None)
    assert (bits(native_chain(x, y, z, model, 32)) == bits(numpy_product(x, y, z, model, 32))).all()


@pytest.mark.parametrize(("m", "n"), [(1, 1), (16, 8), (17, 9), (33, 1100), (3, 513)])
def test_units_of_work_meet(m, n):
    """Rows and columns that fill no unit, on threads; nothing outside D is written, nothing outside A and B read."""
    rng = np.random.default_rng(m)
    model = MODELS["sm120"]
    k = 4096 if n > 100 else 64
    a, b = near_codes(rng, "e4m3", (1, m, k), 3), near_codes(rng, "e2m1", (1, n, k), 2)
    c = accumulators(rng, (1, m, n), -10, 10)
    scales = [rng.integers(0x7A, 0x84, (1, rows, k // 32)).astype(np.uint8) for rows in (m, n)]
    x, y, z = checked_operands(a, b, c, model, "e4m3", "e2m1", *scales)
    assert (bits(native_chain(x, y, z, model, 32)) == bits(numpy_product(x, y, z, model, 32))).all()


def test_operands_need_not_lie_together():
    rng = np.random.default_rng(5)
    model = MODELS["sm90_mma"]
    a, b = (near_codes(rng, "bf16", (2, rows, 64), 3)[:, ::2, ::2] for rows in (2 * M, 2 * N))
    c = accumulators(rng, (2, N, M), -10, 10).swapaxes(1, 2)
    together = [np.ascontiguousarray(each) for each in (a, b, c)]
    wanted = numpy_product(*checked_operands(*together, model, "bf16", "bf16", None, None), model, 16)
    for chain in (native_chain, numpy_product):
        assert (
            bits(chain(*checked_operands(a, b, c, model, "bf16", "bf16", None, None), model, 16)) == bits(wanted)
        ).all()


def test_nothing_to_compute():
    model = MODELS["sm120"]
    empty = [np.zeros((0, rows, 32), np.uint8) for rows in (4, 5)]
    x, y, z = checked_operands(*empty, np.zeros((0, 4, 5), np.float32), model, "e4m3", "e4m3", None, None)
    assert native_chain(x, y, z, model, 32).shape == (0, 4, 5)


@pytest.fixture
def asked_for(monkeypatch):
    """What was asked for so far, empty at the start and put back at the end."""
    monkeypatch.setattr(native, "_asked_for", {})
    return native._asked_for


@pytest.mark.parametrize(("loaded", "rows"), [(False, 64), (True, 8)])
def test_small_work_stays_with_numpy_and_big_work_does_not(asked_for, monkeypatch, loaded, rows):
    calls = []
    monkeypatch.setattr(native, "_loaded", lambda: loaded)
    from refmoe.reference.mma.native import product

    monkeypatch.setattr(product, "native_chain", lambda *operands: calls.append(operands) or native_chain(*operands))
    rng = np.random.default_rng(6)
    a, b = near_codes(rng, "e4m3", (rows, 2048), 3), near_codes(rng, "e4m3", (rows, 2048), 3)
    c = accumulators(rng, (rows, rows), -10, 10)
    results = [bits(tensor_core_mma(a, b, c, model="sm120", a_format="e4m3", b_format="e4m3")) for _ in range(9)]
    # 2^23 multiplications each, and loading pays from 2^26 on; of 2^17 each, from 2^20 on where the compiler is loaded.
    assert len(calls) == 2
    assert all((result == results[0]).all() for result in results)
    assert asked_for == {("sm120", "e4m3", "e4m3", False): 9 * rows * rows * 2048}


def test_without_llvmlite_numpy_computes(asked_for, monkeypatch):
    asked_for["sm120", "e4m3", "e4m3", False] = 1 << 40
    monkeypatch.setattr(native, "_installed", lambda: False)
    rng = np.random.default_rng(6)
    a = near_codes(rng, "e4m3", (4, 32), 3)
    x, y, z = checked_operands(a, a, np.zeros((4, 4), np.float32), MODELS["sm120"], "e4m3", "e4m3", None, None)
    assert native.native_product(x, y, z, MODELS["sm120"], 32) is None


@pytest.mark.parametrize(("name", "k"), [("exact", 64), ("fp32", 63)])
def test_what_has_no_native_form(asked_for, name, k):
    a = np.zeros((1, 1, k), np.uint8)
    model = MODELS[name]
    asked_for[name, "e4m3", "e4m3", False] = 1 << 40
    x, y, z = checked_operands(a, a, np.zeros((1, 1, 1), np.float32), model, "e4m3", "e4m3", None, None)
    assert native.native_product(x, y, z, model, 1) is None


@pytest.mark.parametrize(("m", "n", "k"), [(3, 8, 5), (2, 9, 32), (1, 23, 1), (4, 64, 0)])
def test_cut_products_equal_those_of_numpy(m, n, k):
    """Some are whole, some are cut, some are no numbers: a NaN counts as cut."""
    rng = np.random.default_rng(11)
    a, b = rng.integers(-9, 9, (m, k)) / 4.0, rng.integers(-9, 9, (n, k)) / 8.0
    units = np.ldexp(1.0, rng.integers(-3, 9, (m, n)))
    a[:1, :1], b[-1:, :1] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        wanted = _cut_products(a, b, units)
    found = cut_products(a, b, units)
    assert all(
        (np.nan_to_num(x, nan=0.25) == np.nan_to_num(y, nan=0.25)).all() for x, y in zip(found, wanted, strict=True)
    )
    assert k < 5 or 0 < wanted[1].sum() < m * n * k


def test_bounds_of_big_products_are_native(asked_for):
    a, b, units = np.ones((1, 32)), np.ones((8, 32)), np.full((1, 8), 0.5)
    assert native.native_cuts(a, b, units) is None
    asked_for["cuts"] = 1 << 26
    sums, cuts = native.native_cuts(a, b, units)
    assert not sums.any()
    assert (cuts == 32).all()
    assert native.native_cuts(a, b[:7], units[:, :7].copy()) is None


def test_import_is_light():
    """Who only imports the references loads no compiler."""
    program = "import sys, refmoe, refmoe.reference, refmoe.reference.mma; print('llvmlite' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"


def test_codes_of_every_width_are_covered():
    assert {np.dtype(code_dtype(name)).itemsize for case in CASES for name in case.values[1:3]} == {1, 2, 4}
