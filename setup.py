"""Puts compiled PTX into a wheel, if there is some: see `tools/wheel.py`. All else is in pyproject.toml."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithPtx(build_py):
    """Builds the package, and copies the folder that REFMOE_PTX names into it."""

    def run(self) -> None:
        """Build."""
        super().run()
        target = Path(self.build_lib) / "refmoe" / "driver" / "ptx"
        # What an earlier build left would be taken along.
        shutil.rmtree(target, ignore_errors=True)
        if (folder := os.environ.get("REFMOE_PTX")) and not self.editable_mode:
            shutil.copytree(folder, target)


setup(cmdclass={"build_py": BuildWithPtx})
