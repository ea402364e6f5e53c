"""The defaults that cases leave out are those that the functions have."""

import enum
import importlib
import inspect
from typing import Any

import pytest

from refmoe.families.wrong import without_defaults
from refmoe.families.wrong.defaults import DEFAULTS


def _function(name: str) -> Any:
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(f"refmoe.cuda.{module}"), function)


def _word(default: Any) -> Any:
    return default.name.lower() if isinstance(default, enum.Enum) else default


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_those_of_the_function(name: str) -> None:
    parameters = inspect.signature(_function(name)).parameters.values()
    said = {each.name: _word(each.default) for each in parameters if each.default is not each.empty}
    assert dict(DEFAULTS[name]) == said


def test_a_wrong_default_is_left_to_the_function() -> None:
    def wrong(*, fill: int = 1) -> int:
        return fill

    wrong.__module__, wrong.__qualname__ = "refmoe.cuda.moe.arrays", "layer_launches"
    assert without_defaults(wrong)(fill=0) == 1
    assert without_defaults(wrong)(fill=2) == 2
