"""The family's arithmetic in integers, held against the posers' in fractions, on random operands and members."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from probe.test_infer import BF16, FP8, HALF, MIXED, MXF4, NVF4, PLAIN4, QGMMA, RIGHT, TF32, chain
from support.probe.poser import Poser, whole
from support.selection.thinned import thinned

from refmoe.probe.family import MODES, Member, Parameters, cut_to
from refmoe.probe.instructions import CODECS, INSTRUCTIONS, Instruction, of_target
from refmoe.probe.vectors import Unreachable, Vector, factors, mixture


@pytest.mark.parametrize(
    "instruction", thinned([BF16, HALF, FP8, TF32, QGMMA, MXF4, MIXED, PLAIN4, NVF4], 6), ids=lambda each: each.name
)
def test_a_member_answers_like_the_poser_of_its_parameters(instruction: Instruction) -> None:
    rng = random.Random(instruction.name)
    vectors = mixture(instruction, 100, 3)
    for _ in range(6):
        values = {
            **RIGHT[instruction],
            "align_bits": rng.randrange(13, 36),
            "cut": rng.choice(MODES),
            "rounding": rng.choice(MODES),
            "zeros": rng.choice(("takes part", "takes no part")),
            "floor": rng.choice((None, -126, -133)),
            "subnormal_a": rng.choice(("emin", "leading bit")),
            "subnormal_b": rng.choice(("emin", "leading bit")),
            "subnormal_scale": rng.choice(("emin", "leading bit")),
            "product": rng.choice(("factors", "leading bit")),
            "zero_signs": "".join(rng.choice("+-") for _ in range(3)),
            "inputs": rng.choice(("kept", "flushed")),
            "results": rng.choice(("kept", "flushed")),
            "overflow": rng.choice(("infinity", "largest")),
        }
        if "joins" not in values and not instruction.scales and rng.random() < 0.5:
            values["blocks"] = chain(instruction.k, instruction.k // 2)
        poser = Poser(instruction, **values)
        if poser.joins == "last":
            values["last_rounding"] = "nearest even"
        defaults = {"joins": "first", "result_bits": 23, "nan": 0x7FFFFFFF}
        member = Member(instruction, Parameters(**{**defaults, **values}))
        for number, (found, expected) in enumerate(zip(member.answers(vectors), poser.answers(vectors), strict=True)):
            assert found == expected, f"{number}: {found:#x}, not {expected:#x}: {values}"


@pytest.mark.parametrize("mode", MODES)
def test_integers_are_cut_as_fractions_are(mode: str) -> None:
    for significand in range(-70, 71):
        for shift in range(-2, 6):
            assert cut_to(significand, shift, mode) == whole(Fraction(significand) / Fraction(2) ** shift, mode)


@pytest.mark.parametrize("name", [name for name, codec in CODECS.items() if codec.bits - codec.low <= 16])
def test_every_short_code_is_encoded_as_it_is_decoded(name: str) -> None:
    codec = CODECS[name]
    for code in range(0, 1 << codec.bits, 1 << codec.low):
        kind, sign, significand, exponent = codec.decode(code)
        if kind == "number" and significand:
            value = -significand if sign else significand
            assert codec.code(value, exponent - codec.fraction_bits) == code


def test_factors_have_the_product_that_is_asked() -> None:
    for instruction in INSTRUCTIONS:
        x, y = CODECS[instruction.a], CODECS[instruction.b]
        for significand, exponent in ((1, 0), (-1, 1), (3, -1), (5, -3), (1, -20), (1, -149), (1, 40)):
            found = factors(instruction.a, instruction.b, significand, exponent)
            if found is None:
                with pytest.raises(Unreachable, match="no product"):
                    Vector(instruction).put(0, significand, exponent)
                continue
            (_, s, a, e), (_, t, b, f) = x.decode(found[0]), y.decode(found[1])
            value = Fraction(a * b) * Fraction(2) ** (e + f - x.fraction_bits - y.fraction_bits) * (-1) ** (s + t)
            assert value == Fraction(significand) * Fraction(2) ** exponent


def test_names_are_unique_and_every_target_has_instructions() -> None:
    assert len({each.name for each in INSTRUCTIONS}) == len(INSTRUCTIONS)
    assert {len(of_target(target)) for target in ("sm_80", "sm_86")} == {7}
    assert all(each.warpgroup is (each.targets == ("sm_90a",)) for each in INSTRUCTIONS)
