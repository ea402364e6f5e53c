"""Modules that print what they hold, so that `print(refmoe.families)` is a list and no path of a file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType


def prints_as(module: str, text: Callable[[], str]) -> None:
    """Make a module print as `text()`; a notebook's last line shows it too.

        >>> prints_as(__name__, contents)  # at the end of the module

    Args:
        module: its name; it is being imported.
        text: called for every print, so that what was added since is in it.
    """

    class Printed(ModuleType):
        def __repr__(self) -> str:
            return text()

    sys.modules[module].__class__ = Printed
