"""What this machine has of what refmoe needs."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

from refmoe.errors import RefmoeError

#: Room that the compiled kernels need, with the compiler's temporary files.
_CACHE_BYTES = 1 << 22


@dataclass(frozen=True)
class MachineFinding:
    """One thing looked for.

    Attributes:
        name: what.
        good: whether it is there and usable.
        needed: whether a run on ptx is impossible without it.
        text: what was found, or what is missing and what to do.
    """

    name: str
    good: bool
    needed: bool
    text: str


def examine() -> list[MachineFinding]:
    """Look for everything, needed things first."""
    return [_python(), *_packages(), *_compiler(), _ninja(), _cache(), _cutlass(), _nvdisasm(), _gpu()]


def _python() -> MachineFinding:
    supported = (platform.system(), platform.machine()) in (("Linux", "x86_64"), ("Linux", "aarch64"))
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} processors"
    needed = "" if supported else "; needed Linux on x86_64 or aarch64"
    return MachineFinding("python", supported, True, text + needed)


def _packages() -> list[MachineFinding]:
    needed = [_package(name) for name in ("numpy", "ml_dtypes", "safetensors", "pydantic", "rich")]
    return [*needed, _package("matplotlib", "pictures"), _package("jinja2", "HTML pages")]


def _package(name: str, use: str = "") -> MachineFinding:
    """A package that every run needs, or, with a `use`, only that."""
    if importlib.util.find_spec(name) is None:
        only = f" (only {use} need it)" if use else ""
        return MachineFinding(name, False, not use, f"not installed: pip install {name}{only}")
    return MachineFinding(name, True, not use, metadata.version(name))


def _compiler() -> list[MachineFinding]:
    from refmoe.cuda.toolchain import ToolchainError, candidates, find_toolchain

    try:
        chosen = find_toolchain()
        text = f"{chosen.nvcc}, release {chosen.version[0]}.{chosen.version[1]}, from {chosen.origin}"
        findings = [MachineFinding("nvcc", True, True, text)]
    except ToolchainError as error:
        findings = [MachineFinding("nvcc", False, True, str(error))]
    for candidate in candidates():
        usable = candidate.problem is None
        text = f"{candidate.nvcc}" if usable else f"{candidate.problem}"
        findings.append(MachineFinding(f"nvcc from {candidate.origin}", usable, False, text))
    compiler = shutil.which("g++")
    text = compiler or "not on PATH; nvcc needs a host compiler"
    return [*findings, MachineFinding("g++", compiler is not None, True, text)]


def _ninja() -> MachineFinding:
    from refmoe.cuda.toolchain import find_ninja

    ninja = find_ninja()
    return MachineFinding("ninja", ninja is not None, True, str(ninja or "not installed: pip install ninja"))


def _cache() -> MachineFinding:
    from refmoe.cuda.toolchain import cache_directory

    folder = cache_directory()
    parent = next(place for place in (folder, *folder.parents) if place.exists())
    try:
        # Written and not asked about: root may write everywhere, and a disk may be full.
        with tempfile.TemporaryFile(dir=parent) as file:
            file.write(bytes(_CACHE_BYTES))
    except OSError as error:
        text = f"{folder} cannot be written ({error.strerror}); set REFMOE_CACHE_DIR to a folder that can"
        return MachineFinding("kernel cache", False, True, text)
    return MachineFinding("kernel cache", True, True, f"{folder}")


def _cutlass() -> MachineFinding:
    from refmoe.museum.cutlass import find_headers

    def find() -> str:
        headers = find_headers()
        return f"{headers.root}, release {headers.release}, from {headers.origin}"

    return _optional("CUTLASS headers", find, "only `refmoe cutlass` needs them")


def _nvdisasm() -> MachineFinding:
    from refmoe.views.sass import find_nvdisasm

    return _optional("nvdisasm", lambda: str(find_nvdisasm()), "only `refmoe tiles --sass` needs it")


def _gpu() -> MachineFinding:
    from refmoe.cuda import open_device

    if importlib.util.find_spec("torch") is None:
        text = "not asked for: --device cuda needs torch and cuda-python: pip install 'refmoe[cuda]'"
        return MachineFinding("GPU", False, False, text)

    def find() -> str:
        device = open_device("cuda")
        return f"{getattr(device, 'gpu_name', device.name)}, {device.arch}"

    return _optional("GPU", find, "only --device cuda needs one")


def _optional(name: str, find: Callable[[], str], use: str) -> MachineFinding:
    """What only a part of refmoe needs: where it is, or the error that says what is missing."""
    try:
        return MachineFinding(name, True, False, find())
    except RefmoeError as error:
        return MachineFinding(name, False, False, f"{error} ({use})")
