"""Other people's kernels, one folder each, held against the contract of one of refmoe's families.

A folder is an exhibit: its package has an `EXHIBIT`. Nothing else names it; it is found by lying here.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

from refmoe.museum.exhibit import Exhibit

__all__ = ["Exhibit", "exhibits"]


@cache
def exhibits() -> Mapping[str, Exhibit]:
    """Every exhibit by the name of its cases."""
    found = [
        importlib.import_module(f"{__name__}.{each.name}.exhibit")
        for each in pkgutil.iter_modules(__path__)
        if each.ispkg
    ]
    return {module.EXHIBIT.family.name: module.EXHIBIT for module in found}
