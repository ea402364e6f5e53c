"""Faults of kernels in CuTe DSL: edits of a copy of their device code, or of the PTX that it becomes."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from refmoe.cute import CuteMissing, check_package
from refmoe.families.case import Fields
from refmoe.families.family import Case, Family
from refmoe.museum import exhibits
from refmoe.museum.cute_kernel import NOT_INSTALLED, CuteKernel
from refmoe.museum.edits import Edit, EditError
from refmoe.museum.exhibit import Exhibit


@dataclass(frozen=True)
class CuteFault:
    """A fault of a kernel in CuTe DSL.

    Attributes:
        name: a short name.
        fault: what is wrong, in a sentence.
        kind: the class of faults that it stands for.
        case: the case that must catch it.
        file: of the device code, which is edited; "" where the PTX is.
        edit: the change.
    """

    name: str
    fault: str
    kind: str
    case: str
    file: str
    edit: Edit

    # A family does not go to another process, a fault does: so it holds no kernel, and its case names the exhibit.

    @property
    def exhibit(self) -> Exhibit:
        """The kernel that it is a fault of."""
        return exhibits()[Fields.read(self.case).family]

    @property
    def family(self) -> Family:
        """The exhibit's family."""
        return self.exhibit.family

    def plant(self, scratch: Path) -> Sequence[CuteKernel]:
        """The kernel with the fault.

        Raises:
            EditError: the edit does not fit.
        """
        kernel = cast("type[CuteKernel]", self.exhibit.kernel)
        sound = kernel.sound
        try:
            if not self.file:
                return [kernel(self.family, code=replace(sound, edit_ptx=self.edit))]
            folder = scratch / self.name / "device"
            shutil.copytree(sound.folder, folder, ignore=shutil.ignore_patterns("__pycache__"))
            path = folder / self.file
            path.write_text(self.edit(path.read_text(encoding="utf-8")), encoding="utf-8")
        except EditError as error:
            raise EditError(f"mutant {self.name}: {error}") from error
        return [kernel(self.family, code=replace(sound, folder=folder))]

    def cases(self) -> Sequence[Case]:
        """The one case that must catch it."""
        return [self.family.read(Fields.read(self.case))]


def faults_missing() -> str | None:
    """Why the faults cannot be planted here, in a sentence, or None."""
    try:
        check_package()
    except CuteMissing as error:
        return f"{NOT_INSTALLED} ({error})"
    return None
