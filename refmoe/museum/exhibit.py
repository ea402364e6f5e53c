"""The value that the folder of somebody else's kernel has to have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from refmoe.families.family import Family
from refmoe.verify.kernel import Devices, Kernel
from refmoe.verify.plant import Fault


@dataclass(frozen=True)
class Exhibit:
    """Somebody else's kernel.

    Attributes:
        family: one of refmoe's families, restated under the kernel's own name with its own cases. The kernel is held
            against that family's contract.
        kernel: makes the kernel of a family and devices.
        faults: faults that are planted in the kernel or in its use.
        faults_missing: says why the faults cannot be planted on this machine, in a sentence, or None.
    """

    family: Family
    kernel: Callable[[Family, Devices], Kernel]
    faults: Sequence[Fault] = ()
    faults_missing: Callable[[], str | None] = lambda: None
