"""The SM90 models against outputs of an H200, and against models with one thing wrong.

The data: raw bits of one instruction, or of four chained ones (`_x4`), over eleven classes of operands: `a` [n, steps,
16, K], `b` [n, steps, 8, K], `c` and `d` [n, 16, 8], `class` [n].
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from support.selection.thinned import thinned
from support.tensor_cores.mma_operands import Product

from refmoe.formats import FP32
from refmoe.reference.mma import MODELS, Evidence
from refmoe.reference.scalar import mma as specification

DATA = Path(__file__).parent.parent.parent / "data" / "h200_mma_vectors.npz"

INSTRUCTIONS = {
    "mma_bf16_k16": ("sm90_mma", "bf16", "bf16"),
    "mma_f16_k16": ("sm90_mma", "f16", "f16"),
    "mma_bf16_k8": ("sm90_mma_k8", "bf16", "bf16"),
    "mma_f16_k8": ("sm90_mma_k8", "f16", "f16"),
    "mma_tf32_k8": ("sm90_mma_k8", "tf32", "tf32"),
    "mma_e4m3_k32": ("sm90_mma_fp8", "e4m3", "e4m3"),
    "mma_e5m2_k32": ("sm90_mma_fp8", "e5m2", "e5m2"),
    "mma_e4m3_e5m2_k32": ("sm90_mma_fp8", "e4m3", "e5m2"),
    "wg_bf16": ("sm90_wgmma", "bf16", "bf16"),
    "wg_f16": ("sm90_wgmma", "f16", "f16"),
    "wg_tf32": ("sm90_wgmma", "tf32", "tf32"),
    "wg_e4m3": ("sm90_wgmma_fp8", "e4m3", "e4m3"),
    "wg_e5m2": ("sm90_wgmma_fp8", "e5m2", "e5m2"),
    "wg_e4m3_e5m2": ("sm90_wgmma_fp8", "e4m3", "e5m2"),
    "wg_e5m2_e4m3": ("sm90_wgmma_fp8", "e5m2", "e4m3"),
}
CLASSES = {
    "normal", "wide", "full", "subn", "sparse", "zrule", "cancel", "overflow", "special", "tiny", "negzero"
}  # fmt: skip
HOPPER_FP8 = [name for name, (model, _, _) in INSTRUCTIONS.items() if model == "sm90_wgmma_fp8"]
FUSED = [name for name, (model, _, _) in INSTRUCTIONS.items() if model != "sm90_mma_fp8"]
CHAINED = [name for name in INSTRUCTIONS if name.startswith("wg_")]
LOWERED = [name for name, (model, _, _) in INSTRUCTIONS.items() if model == "sm90_mma_fp8"]


@cache
def vectors() -> dict[str, np.ndarray]:
    with np.load(DATA) as data:
        return {key: data[key] for key in data.files}


def chains(instruction: str, classes: set[str] | None = None, reverse: bool = False):
    """(product, silicon's bits, class) of every entry, its steps laid out along K."""
    _, a_format, b_format = INSTRUCTIONS[instruction]
    for key in (instruction, f"{instruction}_x4"):
        if f"{key}/a" not in vectors():
            continue
        a, b, c, d, names = (vectors()[f"{key}/{part}"] for part in ("a", "b", "c", "d", "class"))
        for i, name in enumerate(names):
            if classes is not None and name not in classes:
                continue
            steps = slice(None, None, -1 if reverse else 1)
            rows, columns = (np.concatenate(list(x[i][steps]), axis=-1) for x in (a, b))
            yield Product(rows, columns, c[i].view(np.float32), a_format, b_format), d[i], str(name)


def differing(instruction: str, model, **options) -> int:
    return sum(int((product.fast(model) != d).sum()) for product, d, _ in chains(instruction, **options))


def differing_slowly(instruction: str, classes: set[str]) -> int:
    model = INSTRUCTIONS[instruction][0]
    return sum(int((product.slow(model) != d).sum()) for product, d, _ in chains(instruction, classes))


@pytest.mark.parametrize("instruction", INSTRUCTIONS)
def test_the_fast_chain_is_silicon(instruction):
    assert differing(instruction, INSTRUCTIONS[instruction][0]) == 0


@pytest.mark.parametrize("instruction", INSTRUCTIONS)
def test_the_specification_is_silicon(instruction):
    # Four outputs of every entry: the specification takes a millisecond for each.
    for product, d, name in chains(instruction):
        part = product.of(a=product.a[:2], b=product.b[2:4], c=product.c[:2, 2:4])
        assert (part.slow(INSTRUCTIONS[instruction][0]) == d[:2, 2:4]).all(), name


@pytest.mark.parametrize("instruction", INSTRUCTIONS)
def test_every_class_of_data_is_there(instruction):
    assert {name for _, _, name in chains(instruction)} == CLASSES


def test_what_these_vectors_check_is_hardware_checked():
    checked = {(model, a, b) for model, a, b in INSTRUCTIONS.values()}
    claimed = {
        (name, a, b)
        for name, model in MODELS.items()
        for (a, b), pair in model.pairs.items()
        if pair.evidence is Evidence.HARDWARE
    }
    # Of the others nothing but chips that answered `refmoe probe` makes that word: see tests/probe/test_evidence.py.
    asked = {("sm90_mma_f16acc", "f16", "f16"), ("sm90_mma_k4", "tf32", "tf32"), ("sm90_mma_fp8", "e5m2", "e4m3")}
    assert claimed == checked | asked


# From here on: one thing is wrong in the model, and silicon has to disagree.


@pytest.mark.parametrize("floor", thinned([-400, -126, -132, -134], 2), ids=["none", "-126", "-132", "-134"])
def test_another_floor_is_not_silicon(floor):
    # -400 is below every product of two BF16 numbers, so it stands for no floor.
    found = {name: differing(name, replace(MODELS[INSTRUCTIONS[name][0]], floor=floor)) for name in FUSED}
    assert sum(found.values()) > 0, found


@pytest.mark.parametrize("instruction", thinned(INSTRUCTIONS, 3))
@pytest.mark.parametrize("change", [-1, 1])
def test_one_alignment_bit_more_or_less_is_not_silicon(instruction, change):
    model = MODELS[INSTRUCTIONS[instruction][0]]
    assert differing(instruction, replace(model, align_bits=model.align_bits + change)) > 0


@pytest.mark.parametrize("instruction", INSTRUCTIONS)
def test_one_result_bit_less_is_not_silicon(instruction):
    model = MODELS[INSTRUCTIONS[instruction][0]]
    assert differing(instruction, replace(model, result_bits=model.result_bits - 1)) > 0


@pytest.mark.parametrize("instruction", HOPPER_FP8)
def test_one_result_bit_more_is_not_silicon(instruction):
    assert differing(instruction, replace(MODELS["sm90_wgmma_fp8"], result_bits=14)) > 0


@pytest.mark.parametrize("instruction", FUSED)
def test_zeros_that_take_part_in_the_alignment_are_not_silicon(instruction, monkeypatch):
    """The published simulator gives a zero operand the exponent of a subnormal, and C = 0 the exponent -126."""
    product_of, c_of = specification._product, specification._c_term

    def product(codes, formats, scales):
        term = product_of(codes, formats, scales)
        if term.number.magnitude != 0 or term.number.kind is not specification.NumberKind.FINITE:
            return term
        magnitudes = [abs(fmt.decode(code)) for code, fmt in zip(codes, formats, strict=True)]
        exponents = [specification._exponent(x, fmt) for x, fmt in zip(magnitudes, formats, strict=True)]
        return specification.Term(term.number, sum(exponents))

    def c_term(c, fmt):
        term = c_of(c, fmt)
        return specification.Term(term.number, FP32.emin) if c in (0, 1 << 31) else term

    assert differing_slowly(instruction, {"zrule"}) == 0
    monkeypatch.setattr(specification, "_product", product)
    monkeypatch.setattr(specification, "_c_term", c_term)
    assert differing_slowly(instruction, {"zrule"}) > 0


@pytest.mark.parametrize("instruction", thinned(FUSED, 4))
def test_an_accumulator_that_is_not_cut_is_not_silicon(instruction, monkeypatch):
    truncated, c_of, whole = specification._truncated, specification._c_term, []

    def c_term(c, fmt):
        term = c_of(c, fmt)
        whole[:] = [term.number.magnitude]
        return term

    def keep_c(magnitude, unit_exponent):
        if whole and magnitude is whole[0]:
            whole.clear()
            return magnitude / specification.Fraction(2) ** unit_exponent
        return truncated(magnitude, unit_exponent)

    monkeypatch.setattr(specification, "_c_term", c_term)
    monkeypatch.setattr(specification, "_truncated", keep_c)
    assert differing_slowly(instruction, {"normal", "cancel"}) > 0


@pytest.mark.parametrize("instruction", CHAINED)
def test_blocks_in_descending_order_are_not_silicon(instruction):
    assert differing(instruction, INSTRUCTIONS[instruction][0], classes={"normal", "wide"}, reverse=True) > 0


@pytest.mark.parametrize("instruction", LOWERED)
def test_other_lowerings_of_fp8_are_not_silicon(instruction):
    model = MODELS["sm90_mma_fp8"]
    first, second = model.passes
    wrong = {
        "passes swapped": (second, first),
        "halves of K": (tuple(range(16)), tuple(range(16, 32))),
        "even and odd": (tuple(range(0, 32, 2)), tuple(range(1, 32, 2))),
        "one block of 32": (tuple(range(32)),),
    }
    for name, passes in wrong.items():
        pairs = {pair: replace(found, block=len(passes[0])) for pair, found in model.pairs.items()}
        assert differing(instruction, replace(model, passes=passes, pairs=pairs)) > 0, name
    # The native block of the wgmma is not what mma.sync does either.
    assert differing(instruction, "sm90_wgmma_fp8") > 0
