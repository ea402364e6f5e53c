"""What the folder of somebody else's kernel offers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from refmoe.families.family import Family
from refmoe.verify.kernel import Devices, Kernel
from refmoe.verify.plant import Fault

__all__ = ["Exhibit"]


def _all_here() -> str | None:
    return None


@dataclass(frozen=True)
class Exhibit:
    """Somebody else's kernel.

    Attributes:
        family: the family whose contract it is held against, restated under the kernel's own name with its own cases.
        kernel: gives it on devices.
        faults: the faults planted in it or in its use.
        faults_missing: why they cannot be planted here, in a sentence, or None.
    """

    family: Family
    kernel: Callable[[Family, Devices], Kernel]
    faults: Sequence[Fault] = ()
    faults_missing: Callable[[], str | None] = _all_here
