"""The kernel families. `FAMILIES` is the only list; each family has a module of its name beside it.

>>> print(refmoe.families)                      # every family: dtypes, sizes, options with their defaults, fills
>>> print(refmoe.families.FAMILIES["expand"])   # one of them: what each option may be, what each fill catches
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from refmoe.errors import ArgumentError, describe
from refmoe.families.activation import ACTIVATION
from refmoe.families.case import one_of
from refmoe.families.expand import EXPAND
from refmoe.families.family import Family
from refmoe.families.finalize import FINALIZE
from refmoe.families.gemm import SM12X_GEMM
from refmoe.families.moe import MOE
from refmoe.families.nvfp4 import NVFP4_QUANTIZE
from refmoe.families.quantize import QUANTIZE
from refmoe.families.routing import ROUTE
from refmoe.printed_modules import prints_as

__all__ = ["FAMILIES", "Family", "family_called"]

#: The families by name, in the order in which reports show them.
FAMILIES: dict[str, Family] = {
    family.name: family for family in (QUANTIZE, NVFP4_QUANTIZE, EXPAND, SM12X_GEMM, ROUTE, ACTIVATION, FINALIZE, MOE)
}


def family_called(name: str) -> Family:
    """The family of a name, of the operation whose one kernel has that name, or of a part that no other name has.

    "quantize" is mxfp8_quantize, whose kernel is quantize.cu; "nvfp4" is nvfp4_quantize.

    Raises:
        ArgumentError: no family is called that.
    """
    found = [family for family in FAMILIES.values() if family.sources == (name,)]
    if not found:
        found = [family for each, family in FAMILIES.items() if isinstance(name, str) and name and name in each]
    if name in FAMILIES:
        return FAMILIES[name]
    if len(found) != 1:
        raise ArgumentError("family", describe(name), one_of(FAMILIES))
    return found[0]


def _listed() -> Iterator[str]:
    for family in FAMILIES.values():
        yield f"{family.name}: {family.about}"
        rows = {
            "dtypes": ", ".join(family.dtypes),
            "sizes": " ".join(family.sizes),
            "options": " ".join(f"{option.name}={option.write(option.default)}" for option in family.options),
            "fills": ", ".join(family.fills),
        }
        for name, words in rows.items():
            first, next_ = f"  {name:<8} ", " " * 11
            yield textwrap.fill(words, 118, initial_indent=first, subsequent_indent=next_, break_on_hyphens=False)
        yield ""
    yield 'print(refmoe.families.FAMILIES["expand"]) says what each option may be and what each fill catches.'


prints_as(__name__, lambda: "\n".join(_listed()))
