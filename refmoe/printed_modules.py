"""Modules that print what they hold, so that `print(refmoe.families)` is a list and no path of a file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType


def prints_as(module: str, text: Callable[[], str], item: Callable[[str], object] | None = None) -> None:
    """Make a module print as `text()`; a notebook's last line shows it too.

        >>> prints_as(__name__, contents)  # at the end of the module

    Args:
        module: its name; it is being imported.
        text: called for every print, so that what was added since is in it.
        item: gives what `module["name"]` is; a module without it takes no names.
    """

    class Printed(ModuleType):
        def __repr__(self) -> str:
            return text()

        def __getitem__(self, name: str) -> object:
            if item is None:
                raise TypeError(f"module {module!r} is not subscriptable")
            return item(name)

    sys.modules[module].__class__ = Printed
