"""Compile CUTLASS's grouped GEMM once, and keep its PTX, its host code and what is made from them.

One run of nvcc gives the PTX and the object with the host code; it takes a minute or more and 6 GB, so two never run at
once on a machine. What is kept is named by a hash of everything that went in, the headers of CUTLASS included.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from refmoe.chips import CHIPS, Mma
from refmoe.cuda.gemm.tile import Tile, TileRefused
from refmoe.cuda.toolchain import (
    Toolchain,
    ToolchainError,
    cache_directory,
    find_toolchain,
    include_directory,
    runtime_library,
)
from refmoe.errors import ArgumentError, describe
from refmoe.museum.cutlass.cache import alone, checked_run, intact, placed, sha256
from refmoe.museum.cutlass.headers import Headers, find_headers
from refmoe.museum.cutlass.refusals import refused

CUTLASS_CSRC = Path(__file__).parent / "csrc"
SOURCE = CUTLASS_CSRC / "grouped_gemm.cu"
STANDIN = tuple(CUTLASS_CSRC / name for name in ("runtime_standin.cpp", "tensor_map.hpp", "exports.map"))

#: Schedules by name, with the tag of CUTLASS; its builder makes the SM120 schedule of it.
SCHEDULES = {
    "cooperative": "KernelPtrArrayTmaWarpSpecializedCooperative",
    "pingpong": "KernelPtrArrayTmaWarpSpecializedPingpong",
}
#: The kernel is written for one instruction.
CUTLASS_ARCHITECTURES = tuple(chip.arch for chip in CHIPS.values() if Mma.SYNC_MX in chip.instructions)

# Those of CUTLASS's own release build. Unlike our kernels' they let the compiler fuse a product and a sum: this is the
# kernel that servers run.
FLAGS = ("-std=c++17", "-O3", "--expt-relaxed-constexpr", "-DNDEBUG", "-Xcompiler=-fPIC,-fno-strict-aliasing")
HOST_FLAGS = ("-std=c++17", "-O2", "-fPIC")


DEFAULT_TILE = Tile(128, 128, 128)  # the one that every release has


@dataclass(frozen=True)
class Build:
    """One instantiation of the kernel.

    Attributes:
        schedule: "cooperative", two warp groups share a tile, or "pingpong", each has its own in turn.
        swapped: weights on M and tokens on N, as servers run it for few tokens; else the other way round.
        arch: one of `CUTLASS_ARCHITECTURES`.
        tile: weight rows by tokens by K, whichever of them is M.

    Raises:
        ArgumentError: a schedule or an arch that is none.
    """

    schedule: Literal["cooperative", "pingpong"] = "cooperative"
    swapped: bool = True
    arch: str = "sm_121a"
    tile: Tile = DEFAULT_TILE

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ArgumentError("schedule", describe(self.schedule), "one of " + ", ".join(SCHEDULES))
        if self.arch not in CUTLASS_ARCHITECTURES:
            raise ArgumentError("arch", describe(self.arch), "one of " + ", ".join(CUTLASS_ARCHITECTURES))

    def __str__(self) -> str:
        order = "swapped" if self.swapped else "unswapped"
        return f"{self.schedule}-{order}-{self.tile}-{self.arch}"


@dataclass(frozen=True)
class Built:
    """What a build left.

    Attributes:
        ptx: the kernel, for the executor.
        library: the host code of CUTLASS with the stand-in runtime.
        cubin: what ptxas made of the PTX, if `cubin` was asked for it.
        log: what nvcc said.
    """

    ptx: Path
    library: Path
    cubin: Path | None
    log: Path


def find_built(build: Build) -> Built | None:
    """What is in the cache for `build`, whole and undamaged, or None; nothing is compiled.

    Raises:
        CutlassMissing: no headers of CUTLASS, which name the build.
        ToolchainError: no compiler, which names it too.
    """
    return _Place.of(build).built()


def build(build: Build) -> Built:
    """The kernel and its host code, compiled if they are not in the cache.

    Raises:
        TileRefused: the release of CUTLASS cannot have this tile; the sentence says why.
        CutlassMissing: no headers of CUTLASS.
        ToolchainError: no compiler, a cache that cannot be written, or a source that does not compile.
    """
    place = _Place.of(build)
    if (why := refused(build.tile, place.headers.release)) is not None:
        raise TileRefused(
            "tile", f"{build.tile} with CUTLASS {place.headers.release}: {why}", "another tile or release"
        )
    if (found := place.built()) is not None:
        return found  # without waiting until some other build is done
    with alone(place.directory):
        if not all(intact(path) for path in (place.ptx, place.object, place.log)):
            _compile(build, place)
        if not intact(place.library):
            _link_standin(place)
    if (made := place.built()) is None:
        raise ToolchainError(f"{place.directory} was removed or changed while {build} was built")
    return made


def cubin(build_: Build) -> Path:
    """What ptxas makes of the PTX; its report of registers and spills lies beside it as `.log`.

    Raises:
        ToolchainError: as `build`, or ptxas refuses the PTX.
    """
    built = build(build_)
    place = _Place.of(build_)
    if not (intact(place.cubin) and intact(place.cubin.with_suffix(".log"))):

        def assemble(scratch: Path) -> dict[str, Path]:
            command = [str(place.toolchain.nvcc), "-cubin", f"-arch={build_.arch}", "-Xptxas=-v", str(built.ptx)]
            text = checked_run([*command, "-o", str(scratch / "kernel.cubin")], scratch, "ptxas")
            (scratch / "kernel.log").write_text(text)
            return {"kernel.cubin": place.cubin, "kernel.log": place.cubin.with_suffix(".log")}

        with alone(place.directory):
            placed(place.directory, assemble)
    return place.cubin


def gpu_library(build_: Build) -> Path:
    """The same host code, linked with the real CUDA runtime, for a machine with a GPU; its driver compiles the PTX.

    Raises:
        ToolchainError: as `build`, or the toolkit has no libcudart.
    """
    build(build_)
    place = _Place.of(build_)
    runtime = runtime_library(place.toolchain)
    target = place.directory / f"cudart.{sha256(str(runtime))[:16]}.so"
    if not intact(target):

        def link(scratch: Path) -> dict[str, Path]:
            command = ["g++", "-shared", str(place.object), str(runtime), f"-Wl,-rpath,{runtime.parent},-z,defs"]
            checked_run([*command, "-o", str(scratch / "library.so")], scratch, "g++")
            return {"library.so": target}

        with alone(place.directory):
            placed(place.directory, link)
    return target


@dataclass(frozen=True)
class _Place:
    """Where the files of one build lie, and with what they are made."""

    directory: Path
    headers: Headers
    toolchain: Toolchain

    @classmethod
    def of(cls, build: Build) -> _Place:
        headers, toolchain = find_headers(), find_toolchain()
        key = sha256(SOURCE.read_text(), *FLAGS, *_definitions(build), build.arch, headers.sha256, toolchain.build_id)
        return cls(cache_directory().absolute() / "cutlass" / f"{build}.{key[:16]}", headers, toolchain)

    def built(self) -> Built | None:
        """What lies there, if it is whole."""
        if not all(intact(path) for path in (self.ptx, self.object, self.log, self.library)):
            return None
        return Built(self.ptx, self.library, self.cubin if intact(self.cubin) else None, self.log)

    @property
    def ptx(self) -> Path:
        return self.directory / "kernel.ptx"

    @property
    def object(self) -> Path:
        return self.directory / "host.o"

    @property
    def log(self) -> Path:
        return self.directory / "nvcc.log"

    @property
    def cubin(self) -> Path:
        return self.directory / "kernel.cubin"

    @property
    def library(self) -> Path:
        key = sha256(*(file.read_text() for file in STANDIN), *HOST_FLAGS)
        return self.directory / f"standin.{key[:16]}.so"


def _definitions(build: Build) -> list[str]:
    m, n = (build.tile.m, build.tile.n) if build.swapped else (build.tile.n, build.tile.m)
    return [
        f"-DREFMOE_SCHEDULE={SCHEDULES[build.schedule]}",
        f"-DREFMOE_SWAPPED={int(build.swapped)}",
        f"-DREFMOE_TILE_M={m}",
        f"-DREFMOE_TILE_N={n}",
        f"-DREFMOE_TILE_K={build.tile.k}",
    ]


def compile_command(build: Build, headers: Headers, toolchain: Toolchain) -> list[str]:
    """The nvcc command line of a build, without what is made and where."""
    virtual = build.arch.replace("sm_", "compute_")
    includes = [f"-I{directory}" for directory in headers.include_directories]
    target = f"-gencode=arch={virtual},code={virtual}"
    return [str(toolchain.nvcc), *FLAGS, target, *includes, *_definitions(build), str(SOURCE)]


def static_assertions(build: Build) -> tuple[str, ...]:
    """What the static assertions of the headers say against a build; empty if it compiles.

    Only the compiler's front end runs, over the device code and the host's: half of the time of a build.

    Raises:
        CutlassMissing: no headers of CUTLASS.
        ToolchainError: no compiler.
    """
    command = compile_command(build, find_headers(), find_toolchain())
    with tempfile.TemporaryDirectory() as scratch:
        finished = subprocess.run(
            [*command, "-cuda", "-o", str(Path(scratch) / "host.ii")], cwd=scratch, capture_output=True, text=True
        )
    if finished.returncode == 0:
        return ()
    said = re.findall(r"error: static assertion failed with \"([^\"]*)\"", finished.stderr)
    return tuple(dict.fromkeys(said)) or (_first_error(finished.stderr),)


def _first_error(text: str) -> str:
    return next((line for line in text.splitlines() if "error" in line), text.strip()[:200])


def _compile(build: Build, place: _Place) -> None:
    def compile_(scratch: Path) -> dict[str, Path]:
        keep = scratch / "keep"  # nvcc leaves the PTX among its intermediate files, so one run gives both
        keep.mkdir()
        command = compile_command(build, place.headers, place.toolchain)
        command += ["-c", "--keep", "--keep-dir", str(keep), "-o", str(scratch / "host.o")]
        (scratch / "nvcc.log").write_text(checked_run(command, scratch, "nvcc"))
        (keep / f"{SOURCE.stem}.ptx").rename(scratch / "kernel.ptx")
        return {"kernel.ptx": place.ptx, "host.o": place.object, "nvcc.log": place.log}

    placed(place.directory, compile_)


def _link_standin(place: _Place) -> None:
    def link(scratch: Path) -> dict[str, Path]:
        command = ["g++", *HOST_FLAGS, "-shared", f"-I{include_directory(place.toolchain)}", str(STANDIN[0])]
        command += [str(place.object), f"-Wl,--version-script={STANDIN[2]},-z,defs"]  # defs: name what is not there
        checked_run([*command, "-o", str(scratch / "library.so")], scratch, "g++")
        return {"library.so": place.library}

    placed(place.directory, link)
