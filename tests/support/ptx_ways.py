"""Launches as native code, and with every instruction in Python."""

from __future__ import annotations

from typing import Any

import pytest

from refmoe.ptx.engine.code import PLAIN, View

_PYTHON = View("in Python", lambda _: False, True, lambda work: work)


class Way:
    """An observer that sees nothing; its view says how code runs."""

    def __init__(self, view: View) -> None:
        self.view = view

    def attach(self, launch: Any) -> None:
        pass

    def step(self, place: int, frame: Any) -> None:
        pass

    def at(self, frame: Any, instruction: Any) -> None:
        pass


ways = pytest.mark.parametrize("way", [Way(PLAIN), Way(_PYTHON)], ids=["native", "python"])
