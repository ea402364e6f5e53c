"""Where the headers of DeepGEMM are, and of which release they are."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from refmoe.errors import RefmoeError

#: The package, and the release that refmoe is tested with.
PACKAGE, RELEASE = "sgl-deep-gemm", "0.2.5"
PYPI_REQUIREMENT = f"{PACKAGE}=={RELEASE}"
#: `Headers.sha256` of that release: headers that are these, or that are not here, leave a report valid.
PYPI_SHA256 = "60cb240d884abf035688d2da329f8abb71fbebfe4b26f323940683d35e1be20a"
KERNEL_HEADER = Path("deep_gemm/impls/sm90_fp8_gemm_1d2d.cuh")


class DeepGemmMissing(RefmoeError):
    """No headers of DeepGEMM on this machine; the message says where they were looked for."""


@dataclass(frozen=True)
class Headers:
    """One copy of the headers.

    Attributes:
        include: the folder that a compiler needs with -I; CUTLASS's headers lie beside DeepGEMM's in it.
        release: of the package, or "REFMOE_DEEPGEMM_DIR".
    """

    include: Path
    release: str

    @property
    def sha256(self) -> str:
        """Over the content of every header: an edited one is another kernel."""
        return _tree_sha256(self.include)


def find_headers() -> Headers:
    """The headers of REFMOE_DEEPGEMM_DIR, a folder that holds `include`, else those of the installed package.

    The package is not imported, since that needs a GPU.

    Raises:
        DeepGemmMissing: there are none, or REFMOE_DEEPGEMM_DIR holds none.
    """
    if explicit := os.environ.get("REFMOE_DEEPGEMM_DIR"):
        include = Path(explicit).absolute() / "include"
        if not (include / KERNEL_HEADER).is_file():
            raise DeepGemmMissing(f"REFMOE_DEEPGEMM_DIR is {explicit}, and there is no include/{KERNEL_HEADER} in it")
        return Headers(include, "REFMOE_DEEPGEMM_DIR")
    try:
        package = distribution(PACKAGE)
    except PackageNotFoundError:
        package = None
    include = Path(os.devnull) if package is None else Path(str(package.locate_file("deep_gemm/include")))
    if package is None or not (include / KERNEL_HEADER).is_file():
        raise DeepGemmMissing(
            f"no headers of DeepGEMM: REFMOE_DEEPGEMM_DIR is not set, and {PACKAGE} is not installed. "
            f"Install it: pip install '{PYPI_REQUIREMENT}'"
        )
    return Headers(include, package.version)


@lru_cache(maxsize=4)
def _tree_sha256(directory: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(path for path in directory.rglob("*") if path.is_file()):
        digest.update(f"\0{file.relative_to(directory)}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()
