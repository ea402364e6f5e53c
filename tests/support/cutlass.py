"""CUTLASS builds for tests: what is in the cache, or a reason why a test is skipped."""

from __future__ import annotations

import os

import pytest

from refmoe.cuda.toolchain import ToolchainError
from refmoe.museum.cutlass import Build, Built, CutlassMissing, find_built

__all__ = ["built_or_skip"]


def built_or_skip(build: Build) -> Built:
    """The build, if it is there; where REFMOE_CUTLASS_BUILD says that it has to be, its absence fails the test."""
    try:
        found = find_built(build)
        missing = f"{build} is not built: make cutlass"
    except (CutlassMissing, ToolchainError) as error:
        found, missing = None, str(error)
    if found is not None:
        return found
    if os.environ.get("REFMOE_CUTLASS_BUILD"):
        pytest.fail(missing)
    pytest.skip(missing)
