"""The kernel families: one list, and every family's own module beside it.

>>> from refmoe.families import FAMILIES
>>> print(FAMILIES["expand"])      # its dtypes, sizes, options, fills, inputs and outputs
"""

from __future__ import annotations

from refmoe.families.activation import ACTIVATION
from refmoe.families.expand import EXPAND
from refmoe.families.family import Family
from refmoe.families.finalize import FINALIZE
from refmoe.families.gemm import SM12X_GEMM
from refmoe.families.moe import MOE
from refmoe.families.quantize import QUANTIZE
from refmoe.families.routing import ROUTE

__all__ = ["FAMILIES", "Family"]

#: The families by name, in the order in which reports show them.
FAMILIES: dict[str, Family] = {
    family.name: family for family in (QUANTIZE, EXPAND, SM12X_GEMM, ROUTE, ACTIVATION, FINALIZE, MOE)
}
