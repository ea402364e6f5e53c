"""The kernel families. `FAMILIES` is the only list; each family has a module of its name beside it.

>>> from refmoe.families import FAMILIES
>>> print(FAMILIES["expand"])      # its dtypes, sizes, options, fills, inputs and outputs
"""

from __future__ import annotations

from refmoe.errors import ArgumentError, describe
from refmoe.families.activation import ACTIVATION
from refmoe.families.case import one_of
from refmoe.families.expand import EXPAND
from refmoe.families.family import Family
from refmoe.families.finalize import FINALIZE
from refmoe.families.gemm import SM12X_GEMM
from refmoe.families.moe import MOE
from refmoe.families.quantize import QUANTIZE
from refmoe.families.routing import ROUTE

__all__ = ["FAMILIES", "Family", "family_called"]

#: The families by name, in the order in which reports show them.
FAMILIES: dict[str, Family] = {
    family.name: family for family in (QUANTIZE, EXPAND, SM12X_GEMM, ROUTE, ACTIVATION, FINALIZE, MOE)
}


def family_called(name: str) -> Family:
    """The family of a name, or of a part of its name that no other family has: "quantize" is mxfp8_quantize.

    Raises:
        ArgumentError: no family is called that.
    """
    found = [family for each, family in FAMILIES.items() if isinstance(name, str) and name and name in each]
    if name in FAMILIES:
        return FAMILIES[name]
    if len(found) != 1:
        raise ArgumentError("family", describe(name), one_of(FAMILIES))
    return found[0]
