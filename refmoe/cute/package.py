"""NVIDIA's package nvidia-cutlass-dsl, the compiler of CuTe DSL: where it is, which release, and what may go wrong.

It is proprietary: refmoe imports it where it is installed, and holds none of it.
"""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from refmoe.errors import RefmoeError

#: pip requirement of the release that refmoe is tested with.
PYPI_REQUIREMENT = "nvidia-cutlass-dsl==4.8.1"


class CuteMissing(RefmoeError):
    """No CuTe DSL on this machine, or another release than refmoe knows; the message says how to install it."""


class CompileError(RefmoeError):
    """CuTe DSL refused a function; the message holds its own."""


class HostError(RefmoeError):
    """The host code of a kernel cannot be run, or it ended with an error; the message says which call failed."""


def check_package() -> None:
    """Refuse a machine without the release that refmoe is tested with.

    Another one may lower arguments in another way, of which nothing would tell.

    Raises:
        CuteMissing: it is not installed, or it is another release.
    """
    install = f"pip install '{PYPI_REQUIREMENT}', which needs no GPU"
    needed = PYPI_REQUIREMENT.partition("==")[2]
    try:
        found = version("nvidia-cutlass-dsl")
    except PackageNotFoundError as error:
        raise CuteMissing(f"CuTe DSL is not installed: {install}") from error
    if found != needed:
        raise CuteMissing(f"nvidia-cutlass-dsl is {found}; refmoe runs kernels of {needed}: {install}")


def imported(name: str) -> Any:
    """A module of the package, such as "cutlass.cute".

    Raises:
        CuteMissing: it is not installed, or cannot be imported.
    """
    check_package()
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise CuteMissing(f"{name} of {PYPI_REQUIREMENT} cannot be imported: {error}") from error
