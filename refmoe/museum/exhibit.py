"""The value that the folder of somebody else's kernel has to have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from refmoe.errors import ArgumentError
from refmoe.families.family import Family
from refmoe.verify.kernel import Devices, Kernel
from refmoe.verify.plant import Fault


def restated(family: Family, **changes: Any) -> Family:
    """A family under the name of somebody else's kernel: contract and reference, nothing of refmoe's own kernel.

    Args:
        family: one of refmoe's.
        changes: other values of its fields, `name` and `cases` among them.
    """

    def run(*arguments: object) -> NoReturn:
        raise ArgumentError(
            "kernel", f"{changes['name']} without a run of its own", "a subclass of Kernel that has one"
        )

    return replace(family, **{"sources": (), "host": (), "run": run, "group": "", "base": family.name, **changes})


@dataclass(frozen=True)
class Exhibit:
    """Somebody else's kernel.

    Attributes:
        family: one of refmoe's families, restated under the kernel's own name with its own cases. The kernel is held
            against that family's contract.
        kernel: makes the kernel of a family and devices.
        faults: faults that are planted in the kernel or in its use.
        faults_missing: says why the faults cannot be planted on this machine, in a sentence, or None.
        partly: whether the kernel leaves some bytes of its family's outputs open, which are then not compared.

    Raises:
        ArgumentError: the family launches refmoe's own kernel, which would then stand under another name.
    """

    family: Family
    kernel: Callable[[Family, Devices], Kernel]
    faults: Sequence[Fault] = ()
    faults_missing: Callable[[], str | None] = lambda: None
    partly: bool = False

    def __post_init__(self) -> None:
        if self.family.sources or self.family.host or not self.family.base:
            found = f"{self.family.name} with sources, host or run of refmoe's own kernel"
            raise ArgumentError("family", found, "one made by refmoe.museum.exhibit.restated")
