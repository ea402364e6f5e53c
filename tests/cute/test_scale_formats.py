"""What CuTe DSL says of block scales, asked again, and held against the table of the guide."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from refmoe.cli import app
from refmoe.cute import CuteMissing, check_package
from refmoe.cute.scale_formats import Answer, ask, table

try:
    check_package()
except CuteMissing as missing:
    pytest.skip(str(missing), allow_module_level=True)

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "cute.md"


@pytest.fixture(scope="module")
def answers() -> tuple[Answer, ...]:
    return ask()


def of(answers: tuple[Answer, ...], arch: str, elements: tuple[str, str], scale: str, block: int) -> list[Answer]:
    key = (arch, elements, scale, block)
    return [each for each in answers if (each.arch, each.elements, each.scale, each.block) == key]


def test_mx_and_nvfp4_are_taken_on_both_chips(answers: tuple[Answer, ...]) -> None:
    for arch in ("sm_120a", "sm_100a"):
        for element, scale, block in (
            ("Float8E4M3FN", "Float8E8M0FNU", 32),
            ("Float4E2M1FN", "Float8E8M0FNU", 32),
            ("Float4E2M1FN", "Float8E4M3FN", 16),
        ):
            found = of(answers, arch, (element, element), scale, block)
            assert any(each.refusal is None and each.made == (scale, block) for each in found)


def test_no_product_has_float32_scales_of_128(answers: tuple[Answer, ...]) -> None:
    """Those of DeepSeek: a kernel has to promote by itself."""
    assert not any(each.made and each.made[0] == "Float32" for each in answers)
    (found,) = of(answers, "sm_100a", ("Float8E4M3FN", "Float8E4M3FN"), "Float32", 128)
    assert found.ignored
    assert found.made == ("Float8E8M0FNU", 32)


def test_sm120_refuses_in_a_sentence(answers: tuple[Answer, ...]) -> None:
    found = of(answers, "sm_120a", ("Float8E4M3FN", "Float8E4M3FN"), "Float32", 32)
    assert "expects the 'sf_type' Op parameter to be Float8E8M0FNU" in [each.refusal for each in found]
    assert not any(each.ignored for each in answers if each.arch == "sm_120a")


def test_the_guide_has_the_table(answers: tuple[Answer, ...]) -> None:
    assert table(answers) in GUIDE.read_text(encoding="utf-8")


def test_the_command_prints_it(answers: tuple[Answer, ...]) -> None:
    result = CliRunner().invoke(app, ["cute"])
    assert result.exit_code == 0
    assert table(answers) in result.output
