"""The kernel families, `FAMILIES`: each has a module of its name here, and a line in the list of imports below.

>>> print(refmoe.families)                      # every family: dtypes, sizes, options with their defaults, fills
>>> print(refmoe.families["expand"])            # one of them: what each option may be, what each fill catches
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from refmoe.errors import ArgumentError, describe
from refmoe.families.case import one_of
from refmoe.families.family import Family
from refmoe.printed_modules import prints_as

# The list of families: a line each, in the order in which reports show them.
# isort: off
# ruff: noqa: F401
from refmoe.families.quantize import QUANTIZE
from refmoe.families.nvfp4 import NVFP4_QUANTIZE
from refmoe.families.block_fp8 import BLOCK_FP8_QUANTIZE
from refmoe.families.q8_1 import Q8_1_QUANTIZE
from refmoe.families.expand import EXPAND
from refmoe.families.gemm import SM12X_GEMM
from refmoe.families.nvfp4_gemm import SM12X_NVFP4_GEMM
from refmoe.families.deepseek_gemm import DEEPSEEK_GEMM
from refmoe.families.dp4a import DP4A_GEMV
from refmoe.families.routing import ROUTE
from refmoe.families.activation import ACTIVATION
from refmoe.families.swiglu_q8_1 import SWIGLU_Q8_1
from refmoe.families.finalize import FINALIZE
from refmoe.families.finalize_q8_1 import FINALIZE_Q8_1
from refmoe.families.moe import MOE
from refmoe.families.integer_moe import INTEGER_MOE
from refmoe.families.deepseek.routing import DEEPSEEK_ROUTING
from refmoe.families.deepseek.expand import DEEPSEEK_EXPAND
from refmoe.families.deepseek.activation import DEEPSEEK_ACTIVATION
from refmoe.families.deepseek.finalize import DEEPSEEK_FINALIZE
from refmoe.families.deepseek.moe import DEEPSEEK_MOE
# isort: on

__all__ = ["FAMILIES", "Family", "family_called"]

#: Every family that is imported above, by name.
FAMILIES: dict[str, Family] = {each.name: each for each in tuple(globals().values()) if isinstance(each, Family)}


def family_called(name: str) -> Family:
    """The family of a name, of its operation, or of a part of its name that no other family has.

    For example, "quantize" is mxfp8_quantize, whose operation is called that, and "gemm" is sm12x_gemm.

    Raises:
        ArgumentError: no family is called that.
    """
    if not isinstance(name, str) or not name:
        raise ArgumentError("family", describe(name), one_of(FAMILIES))
    if name in FAMILIES:
        return FAMILIES[name]
    # An operation has the name of its one source.
    found = [family for family in FAMILIES.values() if family.sources == (name,)]
    found = found or [family for each, family in FAMILIES.items() if name in each]
    if not found:
        needed = f"{one_of(FAMILIES)}; a kernel of no family is compared by refmoe.testing.assert_bit_exact"
        raise ArgumentError("family", describe(name), needed)
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
    yield 'print(refmoe.families["expand"]) says what each option may be and what each fill catches.'


prints_as(__name__, lambda: "\n".join(_listed()), family_called)
