"""The cost of the search for races: what the command prints of it."""

from __future__ import annotations

from functools import partial

import pytest
from support.toolchain import NVCC
from typer.testing import CliRunner

from refmoe.bench import races
from refmoe.cli import app

pytestmark = pytest.mark.skipif(NVCC is None, reason="no usable nvcc on this machine")


def test_the_command_prints_a_row_for_each_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(races, "run", partial(races.run, tokens=32, rounds=1))
    result = CliRunner().invoke(app, ["bench", "races"])
    assert result.exit_code in (0, 1), result.output  # of so few tokens the factor says nothing
    header, *lines = result.output.splitlines()
    assert header.split() == ["kernel", "all", "checks", "s", "no", "races", "s", "factor"]
    assert [line.split()[0] for line in lines[:4]] == ["quantize", "gemm", "routing", "reduction"]
    assert "tokens: 32" in lines
