"""Kernels beside refmoe's own, one folder each, held against the contract of one of refmoe's families.

They are other people's, or refmoe's in a language of other people's.

A folder is an exhibit: its module `exhibit` has an `EXHIBIT`. A folder is found because it lies here, and nothing else
names it.
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
    """The exhibits by the family name of their cases, such as "cutlass_gemm"."""
    folders = [each.name for each in pkgutil.iter_modules(__path__) if each.ispkg]
    found = [importlib.import_module(f"{__name__}.{folder}.exhibit").EXHIBIT for folder in folders]
    return {exhibit.family.name: exhibit for exhibit in found}
