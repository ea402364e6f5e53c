"""What this machine has of what refmoe needs.

Nothing is imported here before it is looked for: whatever is missing, each row says what it found.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata

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


#: Packages that every run on ptx needs.
NEEDED = ("numpy", "ml_dtypes", "llvmlite", "safetensors", "pydantic", "typer", "rich")
#: Packages that only a part needs: what that is, and what to install.
OPTIONAL = {
    "matplotlib": ("pictures need it", "'refmoe[pictures]'"),
    "jinja2": ("HTML pages need it", "jinja2"),
    "distributed": ("--cluster needs it", "'refmoe[cluster]'"),
}

Rows = Sequence[MachineFinding]


def examine() -> list[MachineFinding]:
    """Look for everything, needed things first."""
    found = [_python(), *map(_needed, NEEDED), *(_package(name, *words) for name, words in OPTIONAL.items())]
    for name, needed, look in (
        ("nvcc", True, _compiler),
        ("g++", True, _host_compiler),
        ("ninja", True, _ninja),
        ("kernel cache", True, _cache),
        ("CUTLASS headers", False, _cutlass),
        ("DeepGEMM headers", False, _deepgemm),
        ("CuTe DSL", False, _cute),
        ("nvdisasm", False, _nvdisasm),
        ("GPU", False, _gpu),
    ):
        found += _rows(name, needed, look)
    return found


def usable(findings: Rows) -> bool:
    """Whether kernels can be run on the executor."""
    return all(finding.good for finding in findings if finding.needed)


def closing_line(findings: Rows) -> str:
    """What follows from all of it."""
    return "`refmoe parity` can run." if usable(findings) else "`refmoe parity` cannot run."


def plain_text(findings: Rows) -> str:
    """The findings in lines, for a machine on which the command line itself cannot be imported."""
    words = [f"{'ok' if each.good else 'missing' if each.needed else 'absent':7} {each.name}" for each in findings]
    lines = [f"{word}  {each.text}" for word, each in zip(words, findings, strict=True)]
    return "\n".join([*lines, "", closing_line(findings), ""])


def _rows(name: str, needed: bool, look: Callable[[], Rows | MachineFinding]) -> Rows:
    """What was found; of what cannot be looked for, the package that the search itself needs."""
    try:
        found = look()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        return [MachineFinding(name, False, needed, f"not looked for, since {package} is not installed")]
    return [found] if isinstance(found, MachineFinding) else found


def _python() -> MachineFinding:
    supported = (platform.system(), platform.machine()) in (("Linux", "x86_64"), ("Linux", "aarch64"))
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} processors"
    needed = "" if supported else "; needed Linux on x86_64 or aarch64"
    return MachineFinding("python", supported, True, text + needed)


def _needed(name: str) -> MachineFinding:
    return _package(name, "", name)


def _package(name: str, use: str, install: str) -> MachineFinding:
    """A package that every run needs, or, with a `use`, only that."""
    if importlib.util.find_spec(name) is None:
        only = f" (only {use})" if use else ""
        return MachineFinding(name, False, not use, f"not installed: pip install {install}{only}")
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        version = "of no known version"
    return MachineFinding(name, True, not use, version)


def _compiled() -> str | None:
    """The compiler that made the PTX in the package; None if there is none. With it nvcc is not needed."""
    from refmoe.driver.packaged import compiler_line

    return compiler_line()


def _compiler() -> list[MachineFinding]:
    from refmoe.cuda.toolchain import ToolchainError, candidates, find_toolchain

    compiled = _compiled()
    try:
        chosen = find_toolchain()
        text = f"{chosen.nvcc}, release {chosen.version[0]}.{chosen.version[1]}, from {chosen.origin}"
        findings = [MachineFinding("nvcc", True, True, text)]
    except ToolchainError as error:
        findings = [MachineFinding("nvcc", False, compiled is None, str(error))]
    for candidate in candidates():
        usable = candidate.problem is None
        text = f"{candidate.nvcc}" if usable else f"{candidate.problem}"
        findings.append(MachineFinding(f"nvcc from {candidate.origin}", usable, False, text))
    text = f"in the package, of {compiled}" if compiled else "none in the package; only a machine without nvcc needs it"
    return [*findings, MachineFinding("PTX", compiled is not None, False, text)]


def _host_compiler() -> MachineFinding:
    compiler = shutil.which("g++")
    needed = _compiled() is None
    return MachineFinding("g++", compiler is not None, needed, compiler or "not on PATH; nvcc needs a host compiler")


def _ninja() -> MachineFinding:
    from refmoe.cuda.toolchain import find_ninja

    ninja = find_ninja()
    needed = _compiled() is None
    return MachineFinding("ninja", ninja is not None, needed, str(ninja or "not installed: pip install ninja"))


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


def _deepgemm() -> MachineFinding:
    from refmoe.museum.deepgemm.headers import find_headers

    def find() -> str:
        headers = find_headers()
        return f"{headers.include}, release {headers.release}"

    return _optional("DeepGEMM headers", find, "only the cases of deepgemm_gemm need them")


def _cute() -> MachineFinding:
    from refmoe.cute.package import PYPI_REQUIREMENT, check_package

    def find() -> str:
        check_package()
        return PYPI_REQUIREMENT

    return _optional("CuTe DSL", find, "only kernels in CuTe DSL need it")


def _nvdisasm() -> MachineFinding:
    from refmoe.views.sass import find_nvdisasm

    return _optional("nvdisasm", lambda: str(find_nvdisasm()), "only `refmoe tiles --sass` needs it")


def _gpu() -> MachineFinding:
    from refmoe.driver import opened

    def find() -> str:
        device = opened("cuda")
        return f"{getattr(device, 'gpu_name', device.name)}, {device.arch}"

    return _optional("GPU", find, "only --device cuda needs one")


def _optional(name: str, find: Callable[[], str], use: str) -> MachineFinding:
    """What only a part of refmoe needs: where it is, or the error that says what is missing."""
    from refmoe.errors import RefmoeError

    try:
        return MachineFinding(name, True, False, find())
    except RefmoeError as error:
        return MachineFinding(name, False, False, f"{error} ({use})")
