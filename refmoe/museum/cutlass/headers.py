"""Where the headers of CUTLASS are, and of which release they are."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from refmoe.errors import RefmoeError

#: pip requirement of the release that refmoe is tested with.
PYPI_REQUIREMENT = "nvidia-cutlass==4.2.0.0"
#: `Headers.sha256` of that release: headers that are these, or that are not here, leave a report valid.
PYPI_SHA256 = "834c2245c226470b6d19738afb25c274cf9bf86444d7b5774450b84a510b57f6"
VERSION_HEADER = Path("include/cutlass/version.h")


class CutlassMissing(RefmoeError):
    """No headers of CUTLASS on this machine; the message says where they were looked for."""


@dataclass(frozen=True)
class Headers:
    """One copy of the headers.

    Attributes:
        root: the folder that holds `include` and `tools/util/include`.
        origin: "REFMOE_CUTLASS_DIR", "flashinfer" or "nvidia-cutlass".
        version: (major, minor, patch).
    """

    root: Path
    origin: str
    version: tuple[int, int, int]

    @property
    def release(self) -> str:
        """Major and minor, "4.2": the key of `refmoe.museum.cutlass.tiles`."""
        return f"{self.version[0]}.{self.version[1]}"

    @property
    def include_directories(self) -> tuple[Path, ...]:
        """What a compiler needs with -I."""
        return self.root / "include", self.root / "tools" / "util" / "include"

    @property
    def sha256(self) -> str:
        """Over the content of every header: an edited one is another kernel."""
        return _tree_sha256(self.include_directories)


def find_headers() -> Headers:
    """The headers of REFMOE_CUTLASS_DIR, else those that flashinfer bundles, else those of nvidia-cutlass.

    Raises:
        CutlassMissing: there are none, or REFMOE_CUTLASS_DIR holds none.
    """
    if explicit := os.environ.get("REFMOE_CUTLASS_DIR"):
        root = Path(explicit).absolute()
        if not (root / VERSION_HEADER).is_file():
            raise CutlassMissing(f"REFMOE_CUTLASS_DIR is {explicit}, and there is no {VERSION_HEADER} in it")
        return Headers(root, "REFMOE_CUTLASS_DIR", _version(root))
    for origin, package, below in (
        ("flashinfer", "flashinfer", "data/cutlass"),
        ("nvidia-cutlass", "cutlass_library", "source"),
    ):
        root = _package(package) / below
        if (root / VERSION_HEADER).is_file():
            return Headers(root, origin, _version(root))
    raise CutlassMissing(
        f"no headers of CUTLASS: REFMOE_CUTLASS_DIR is not set, and neither flashinfer nor nvidia-cutlass is "
        f"installed. Install them: pip install '{PYPI_REQUIREMENT}'"
    )


def _package(name: str) -> Path:
    """The folder of an installed package, which is not imported for it; a path that does not exist if there is none."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return Path(os.devnull)
    return Path(next(iter(spec.submodule_search_locations)))


def _version(root: Path) -> tuple[int, int, int]:
    path = root / VERSION_HEADER
    text = path.read_text()
    parts = [re.search(rf"#\s*define\s+CUTLASS_{part}\s+(\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
    if None in parts:
        raise CutlassMissing(f"{path} does not say which release it is of")
    major, minor, patch = (int(part[1]) for part in parts if part)
    return major, minor, patch


@lru_cache(maxsize=4)
def _tree_sha256(directories: tuple[Path, ...]) -> str:
    digest = hashlib.sha256()
    for directory in directories:
        for file in sorted(path for path in directory.rglob("*") if path.is_file()):
            digest.update(f"\0{file.relative_to(directory)}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()
