"""Instructions of launches on ordinary data: what a kernel takes at most where it has a short way.

Some kernels have a short way and a long one to the same bytes. No byte shows that a kernel always goes the long way,
and no grid does. So the executor's count of instructions is held against a figure of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from refmoe.errors import RefmoeError

if TYPE_CHECKING:
    from refmoe.cuda.launch import LaunchPlan
    from refmoe.ptx import LaunchResult

#: By family the fills of whose data nearly all take the short way: those of a network, and the last that do.
ORDINARY: Mapping[str, tuple[str, ...]] = MappingProxyType({"activation": ("gaussian", "scale-edges")})

_WARP = 32
#: Rows up to which each has a CTA and is made by the written operations at once: latency counts there.
_FEW_ROWS = 256
#: Results of a lane, instructions of one that is estimated and encoded, and more of one that has a bias.
_RESULTS, _ESTIMATED, _BIASED = 16, 40, 9
#: Which argument of a launch is the bias.
_BIAS = 2


def _activation(numbers: list[int], plan: LaunchPlan) -> int | None:
    """The written operations take 50 instructions a result and more."""
    rows, _, lanes, _ = numbers
    if rows <= _FEW_ROWS and plan.grid >= rows:
        return None
    each = _ESTIMATED + (_BIASED if plan.arguments[_BIAS] is not None else 0)
    return rows * -(-lanes // _WARP) * _WARP * _RESULTS * each


#: By source, the lane instructions of a launch at most, of the integers among its arguments; None if nothing is said.
_MOST: Mapping[str, Callable[[list[int], LaunchPlan], int | None]] = MappingProxyType({"activation": _activation})


def check_work(plan: LaunchPlan, result: LaunchResult | None) -> None:
    """Hold what a launch on ordinary data did against what is said of its kernel.

    Args:
        plan: the launch.
        result: what the executor counted; None on a GPU, which counts nothing.

    Raises:
        RefmoeError: it took more instructions.
    """
    if result is None or plan.blocks is not None or plan.kernel.source not in _MOST:
        return
    most = _MOST[plan.kernel.source]([each for each in plan.arguments if isinstance(each, int)], plan)
    if most is not None and result.lane_instructions > most:
        raise RefmoeError(
            f"{plan.kernel.entry} takes {result.lane_instructions:,} lane instructions on ordinary data; "
            f"its short way takes {most:,} at most"
        )
