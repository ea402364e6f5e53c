"""What a run ran on: versions and machine, as far as they can decide a result."""

from __future__ import annotations

import datetime
import os
import platform
from importlib import metadata
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from refmoe.version import __version__

#: A text that is not blank.
Word = Annotated[str, Field(pattern=r"\S")]

#: A version as Python packages have them; Python itself may have a plus behind it.
Version = Annotated[str, Field(pattern=r"^\d+(\.\d+)*((a|b|rc|\.?dev|\.?post)\d*)*(\+[\w.]*)?$")]

#: A driver by the newest CUDA that it runs.
Driver = Annotated[str, Field(pattern=r"^CUDA \d{1,3}\.\d{1,3}$")]


class Environment(BaseModel):
    """Versions and machine of a run; None for what is not there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    refmoe: Version
    python: Version
    numpy: Version
    ml_dtypes: Version
    nvcc: Word | None
    torch: Version | None
    gpu: Word | None
    driver: Driver | None
    platform: Word
    processors: Annotated[int, Field(ge=1)]


def run_facts(*, command: str, seconds: float, gpu: bool = False) -> dict[str, Any]:
    """What every document of a run says of it: when, by which command, on what, and how many seconds it took."""
    return {
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": command,
        "environment": current_environment(gpu=gpu).model_dump(mode="json"),
        "seconds": round(seconds, 1),
    }


def current_environment(*, gpu: bool) -> Environment:
    """The environment of this process.

    Args:
        gpu: whether to ask torch for the GPU, which takes seconds to import.
    """
    name, driver = _gpu() if gpu else (None, None)
    return Environment(
        refmoe=__version__,
        python=platform.python_version(),
        numpy=metadata.version("numpy"),
        ml_dtypes=metadata.version("ml_dtypes"),
        nvcc=_nvcc(),
        torch=_version("torch") if gpu else None,
        gpu=name,
        driver=driver,
        platform=f"{platform.system()} {platform.machine()}",
        processors=os.cpu_count() or 1,
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _nvcc() -> str | None:
    from refmoe.cuda.toolchain import ToolchainError, find_toolchain

    try:
        return find_toolchain().build_id.splitlines()[-1]
    except ToolchainError:
        return None


def _gpu() -> tuple[str | None, str | None]:
    """Name of the current GPU and version of the driver's CUDA."""
    try:
        import torch
        from cuda.bindings import driver
    except ImportError:
        return None, None
    if not torch.cuda.is_available():
        return None, None
    status, version = driver.cuDriverGetVersion()
    known = status == driver.CUresult.CUDA_SUCCESS
    return torch.cuda.get_device_name(), f"CUDA {version // 1000}.{version % 1000 // 10}" if known else None
