"""Find nvcc, compile kernels with it, and keep what was compiled.

nvcc is looked for in CUDA_HOME, then on PATH, then among the PyPI packages of this Python. Compiled files are named
by a hash of everything that went into them (the source, every header it includes, flags, compiler version), so a
changed header rebuilds what includes it and nothing else, and two builds never disturb each other.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from refmoe.chips import kernel_chip
from refmoe.errors import ArgumentError, RefmoeError

CSRC = Path(__file__).parent / "csrc"

# ptxas may fuse an unqualified mul and add, so no FP32 operation is left unqualified; division and square root are
# IEEE, and subnormals stay unless an instruction says otherwise. Then the PTX says all there is to say about a result.
FLAGS = ("-std=c++17", "-O3", "-fmad=false", "-prec-div=true", "-prec-sqrt=true", "-ftz=false", "-lineinfo")

MINIMUM_VERSION = (12, 9)  # the first nvcc that knows sm_121a
PYPI_REQUIREMENT = "cuda-toolkit[nvcc,cudart,cccl]==13.0.3.0"
NO_HOST_COMPILER = "nvcc needs a host compiler, and there is no g++ on PATH"

Kind = Literal["ptx", "cubin"]


class ToolchainError(RefmoeError):
    """No usable compiler was found, or the compiler refused a source."""


@dataclass(frozen=True)
class Candidate:
    """One place where nvcc was looked for.

    Attributes:
        origin: "CUDA_HOME", "PATH" or "PyPI".
        nvcc: the compiler found there, or None.
        version: its release as (major, minor), or None.
        problem: why it cannot be used, or None if it can.
    """

    origin: str
    nvcc: Path | None
    version: tuple[int, int] | None
    problem: str | None


@dataclass(frozen=True)
class Toolchain:
    """A compiler that can build every target: `nvcc`, its release, where it came from, and its full version line."""

    nvcc: Path
    version: tuple[int, int]
    origin: str
    build_id: str


@dataclass(frozen=True)
class Target:
    """One file to compile: `source` for `arch` into PTX text or a cubin, without the entries `left_out`.

    The compiled file of a source without some entries is that of the whole source without them, but for the numbers of
    its labels.
    """

    source: Path
    arch: str
    kind: Kind
    left_out: frozenset[str] = frozenset()


def candidates() -> list[Candidate]:
    """Every place where nvcc is looked for, in order of preference, with what was found there."""
    return [_inspect(origin, nvcc, absent) for origin, nvcc, absent in _places()]


def find_toolchain() -> Toolchain:
    """The first usable nvcc of CUDA_HOME, PATH and PyPI.

    Raises:
        ToolchainError: none is usable; the message says what was found at each place and what to install.
    """
    found = candidates()
    for candidate in found:
        if candidate.problem is None and candidate.nvcc is not None and candidate.version is not None:
            return Toolchain(candidate.nvcc, candidate.version, candidate.origin, _version_text(candidate.nvcc))
    reasons = "; ".join(f"{candidate.origin}: {candidate.problem}" for candidate in found)
    lacks_host = any(candidate.problem == NO_HOST_COMPILER for candidate in found)
    remedy = "Install g++" if lacks_host else f"Install one: pip install '{PYPI_REQUIREMENT}'"
    raise ToolchainError(f"no usable nvcc ({reasons}). {remedy}")


def include_directory(toolchain: Toolchain) -> Path:
    """The folder with cuda_runtime_api.h and, in `cccl`, the C++ standard library of CUDA.

    Raises:
        ToolchainError: there is none with the compiler.
    """
    return _toolkit_file(toolchain, "include/cuda_runtime_api.h", "targets/*/include/cuda_runtime_api.h").parent


def runtime_library(toolchain: Toolchain) -> Path:
    """libcudart.so, which a program needs on a machine with a GPU.

    Raises:
        ToolchainError: there is none with the compiler.
    """
    return _toolkit_file(toolchain, "lib*/libcudart.so*", "targets/*/lib/libcudart.so*")


def find_ninja() -> Path | None:
    """The ninja of the PyPI package, else the one on PATH, else None."""
    try:
        import ninja
    except ImportError:
        found = shutil.which("ninja")
        return Path(found) if found else None
    return Path(ninja.BIN_DIR) / "ninja"


def cache_directory() -> Path:
    """Where compiled files are kept: REFMOE_CACHE_DIR, else `refmoe` below XDG_CACHE_HOME or ~/.cache."""
    if explicit := os.environ.get("REFMOE_CACHE_DIR"):
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "refmoe"


def entries_of(ptx: Path) -> frozenset[str]:
    """The names of the entries of a compiled PTX file."""
    return frozenset(re.findall(r"^\.visible \.entry (\w+)", ptx.read_text(), re.MULTILINE))


def source_sha256(source: Path) -> str:
    """SHA-256 over a kernel's source, every header of ours that it includes, and the flags it is built with."""
    digest = hashlib.sha256("\0".join(FLAGS).encode())
    for file in sorted(with_includes(source), key=lambda path: path.name):
        digest.update(f"\0{file.name}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def build(targets: Iterable[Target], toolchain: Toolchain | None = None) -> Mapping[Target, Path]:
    """Compile what is not in the cache, in parallel, and return where each target's file is.

    A cubin is assembled from the compiled PTX, the very text that the executor runs; both are kept.

    A compiled file appears under its name only when it is whole. Beside it, `<name>.log` holds the compiler's report
    (registers, spills and stack frame for a cubin).

    Raises:
        ArgumentError: a source does not exist, or the kernels are not built for its arch.
        ToolchainError: no compiler, no ninja, a cache that cannot be written, or a source that does not compile.
    """
    wanted = list(dict.fromkeys(targets))
    for target in wanted:
        kernel_chip(target.arch)
        if not target.source.is_file():
            raise ArgumentError("source", f"no file {target.source}", "a CUDA source")
    compiler = toolchain or find_toolchain()
    directory = cache_directory().absolute()
    paths = {target: directory / _artifact_name(target, compiler) for target in wanted}
    absent = [target for target, path in paths.items() if not path.is_file()]
    steps = dict.fromkeys(each for target in absent for each in (_text_of(target), target))
    files = {target: directory / _artifact_name(target, compiler) for target in steps}
    missing = {target: path for target, path in files.items() if not path.is_file()}
    if missing:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            _run_ninja(missing, compiler, directory)
        except OSError as error:
            raise ToolchainError(f"cannot write compiled kernels to {directory}: {error}") from error
    return paths


def _places() -> list[tuple[str, Path | None, str]]:
    """(origin, nvcc or None, what to say if it is None)."""
    home = os.environ.get("CUDA_HOME")
    on_path = shutil.which("nvcc")
    return [
        ("CUDA_HOME", Path(home) / "bin" / "nvcc" if home else None, "not set"),
        ("PATH", Path(on_path) if on_path else None, "no nvcc on PATH"),
        ("PyPI", _pypi_nvcc(), f"not installed ({PYPI_REQUIREMENT})"),
    ]


def _pypi_nvcc() -> Path | None:
    for toolkit in _pypi_toolkits():
        if (toolkit / "bin" / "nvcc").exists():
            return toolkit / "bin" / "nvcc"
    return None


def _pypi_toolkits() -> Iterator[Path]:
    for folder in sys.path:
        yield from sorted(Path(folder or ".").glob("nvidia/cu[0-9]*"), reverse=True)


def _toolkit_file(toolchain: Toolchain, *patterns: str) -> Path:
    # nvcc on PATH may be a script that calls the real one, and only that one knows where its toolkit is.
    run = subprocess.run([toolchain.nvcc, "--dryrun", "-c", "x.cu"], capture_output=True, text=True, timeout=60)
    top = re.search(r"^#\$ TOP=(.+)$", run.stderr, re.MULTILINE)
    roots = [toolchain.nvcc.resolve().parent.parent, *([Path(top[1]).resolve()] if top else []), *_pypi_toolkits()]
    for root in roots:
        for pattern in patterns:
            for found in sorted(root.glob(pattern)):
                return found
    raise ToolchainError(f"no {patterns[0]} with {toolchain.nvcc}: pip install '{PYPI_REQUIREMENT}'")


def _inspect(origin: str, nvcc: Path | None, absent: str) -> Candidate:
    if nvcc is None:
        return Candidate(origin, None, None, absent)
    if not os.access(nvcc, os.X_OK):
        return Candidate(origin, nvcc, None, f"{nvcc} is not an executable file")
    try:
        text = _version_text(nvcc)
    except (OSError, subprocess.SubprocessError) as error:
        return Candidate(origin, nvcc, None, f"{nvcc} --version failed: {error}")
    release = re.search(r"release (\d+)\.(\d+)", text)
    if release is None:
        return Candidate(origin, nvcc, None, f"{nvcc} --version names no release")
    version = int(release[1]), int(release[2])
    if version < MINIMUM_VERSION:
        need = ".".join(map(str, MINIMUM_VERSION))
        return Candidate(origin, nvcc, version, f"{nvcc} is release {release[1]}.{release[2]}; needed {need} or newer")
    if shutil.which("g++") is None:
        return Candidate(origin, nvcc, version, NO_HOST_COMPILER)
    return Candidate(origin, nvcc, version, None)


@cache
def _version_text(nvcc: Path) -> str:
    run = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True, timeout=60)
    return run.stdout.strip()


def with_includes(source: Path) -> set[Path]:
    """`source` and, recursively, the headers that it includes in quotes from its own folder."""
    seen: set[Path] = set()
    pending = [source]
    while pending:
        file = pending.pop()
        if file in seen:
            continue
        seen.add(file)
        for name in re.findall(r'^\s*#\s*include\s*"([^"]+)"', file.read_text(), re.MULTILINE):
            header = file.parent / name
            if header.is_file():
                pending.append(header)
    return seen


def _artifact_name(target: Target, toolchain: Toolchain) -> str:
    parts = [source_sha256(target.source), toolchain.build_id, *sorted(target.left_out)]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return f"{target.source.stem}.{target.arch}.{key[:16]}.{target.kind}"


def _text_of(target: Target) -> Target:
    """The PTX that a cubin is assembled from; of PTX it is itself."""
    return replace(target, kind="ptx")


def leaving_out(entries: Iterable[str]) -> str:
    """A header that is included in front of a source and makes its compiler leave entries out.

    A kernel's time to compile is that of its entries, dozens of instances of one template. The header defines the name
    of an entry as a macro. Where the source says

        extern "C" __global__ void entry(int* out) { ... }

    the compiler then reads the declaration of a kernel that nobody defines, and a template that nobody instantiates:

        extern "C" __global__ void left_out_1(); template <class> __global__ void left_out_1(int* out) { ... }
    """
    lines = (
        f"#define {entry}(...) left_out_{number}(); template <class> __global__ void left_out_{number}(__VA_ARGS__)\n"
        for number, entry in enumerate(sorted(entries), 1)
    )
    return "".join(lines)


def _run_ninja(outputs: Mapping[Target, Path], toolchain: Toolchain, directory: Path) -> None:
    ninja = find_ninja()
    if ninja is None:
        raise ToolchainError("ninja not found: pip install ninja")
    # A folder of its own: another build in the same cache neither sees nor overwrites half-written files.
    with tempfile.TemporaryDirectory(dir=directory, prefix=".build.") as scratch:
        lines = ["rule nvcc", "  command = $run", "  description = nvcc $out"]
        for target, path in outputs.items():
            built = Path(scratch) / path.name
            command = [str(toolchain.nvcc), f"-{target.kind}", f"-arch={target.arch}", *FLAGS, "-Xptxas=-v"]
            if target.kind == "ptx":
                read = target.source.resolve()
                if target.left_out:
                    header = Path(scratch) / f"{path.name}.h"
                    header.write_text(leaving_out(target.left_out))
                    command += ["-include", str(header)]
            else:
                text = directory / _artifact_name(_text_of(target), toolchain)
                read = Path(scratch) / text.name if _text_of(target) in outputs else text
            command += [str(read), "-o", str(built)]
            run = (
                f"{shlex.join(command)} > {shlex.quote(f'{built}.log')} 2>&1 || "
                f"{{ cat {shlex.quote(f'{built}.log')}; exit 1; }}"
            )
            lines += [f"build {_ninja_path(built)}: nvcc {_ninja_path(read)}", f"  run = {run.replace('$', '$$')}"]
        (Path(scratch) / "build.ninja").write_text("\n".join(lines) + "\n")
        finished = subprocess.run([ninja, "-C", scratch, "--quiet"], capture_output=True, text=True)
        if finished.returncode != 0:
            if shutil.disk_usage(scratch).free < 1 << 20:  # then the compiler's own words are lost too
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise ToolchainError(f"nvcc failed:\n{finished.stdout.strip()}\n{finished.stderr.strip()}".rstrip())
        for path in outputs.values():
            os.replace(Path(scratch) / f"{path.name}.log", f"{path}.log")
            os.replace(Path(scratch) / path.name, path)


def _ninja_path(path: Path) -> str:
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")
