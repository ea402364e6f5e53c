"""What a run ran on: versions and machine, as far as they can decide a result."""

from __future__ import annotations

import datetime
import importlib.util
import math
import os
import platform
import re
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from refmoe.version import __version__

#: A text that is not blank.
Word = Annotated[str, Field(pattern=r"\S")]

#: A version as Python packages have them; Python itself may have a plus behind it.
_VERSION = r"^\d+(\.\d+)*((a|b|rc|\.?dev|\.?post)\d*)*(\+[\w.]*)?$"
Version = Annotated[str, Field(pattern=_VERSION)]

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


#: The major version of each that is out now. One that is two further has not come yet.
_MAJORS = {"python": 3, "numpy": 2, "ml_dtypes": 0, "torch": 2, "torchao": 0, "gguf": 0, "cuda": 13}
#: What refmoe runs with, at least: the `dependencies` of pyproject.toml.
_LEAST = {"python": (3, 10), "numpy": (2, 1), "ml_dtypes": (0, 5), "cuda": (12, 0)}
#: What compilers and disassemblers of the CUDA toolkit say of themselves.
_BUILD = re.compile(r"Build cuda_(\d+\.\d+)\.r\d+\.\d+/compiler\.\d+_0")
_PLATFORM = re.compile(r"(Linux|Darwin|Windows) [\w-]+")
#: Processors that Linux can be built for, at most.
_PROCESSORS = 8192


def impossible(versions: Mapping[str, object]) -> Iterator[str]:
    """What of some versions, and of a machine's platform and processors, there cannot be; a sentence each.

    Args:
        versions: as `Environment` has them, or a benchmark; keys of something else are passed by.
    """
    for name, said in versions.items():
        if not isinstance(said, str):
            continue
        package, version = name, said
        if name in ("nvcc", "nvdisasm", "driver"):
            build = _BUILD.fullmatch(said) if name != "driver" else re.fullmatch(r"CUDA ([\d.]+)", said)
            if build is None:
                yield f"{name} says {said[:60]!r}, which none says of itself"
                continue
            package, version = "cuda", build[1]
        if package not in _MAJORS:
            continue
        if not re.fullmatch(_VERSION, version):
            yield f"{name} {said[:60]!r}, which is no version"
            continue
        found = version_numbers(version)
        if found[0] > _MAJORS[package] + 1:
            yield f"{name} {said[:60]} has not come yet: {_MAJORS[package]} is the major version of today"
        elif found < _LEAST.get(package, ()):
            least = ".".join(map(str, _LEAST[package]))
            yield f"{name} {said[:60]}, and refmoe needs {package} {least} or newer"
    system = versions.get("platform")
    if isinstance(system, str) and not _PLATFORM.fullmatch(system):
        yield f"the platform {system[:60]!r}, which is no system and machine"
    processors = versions.get("processors", versions.get("cores"))
    if isinstance(processors, int) and not 1 <= processors <= _PROCESSORS:
        yield f"{processors:,} processors; a machine has 1 to {_PROCESSORS:,}"


def version_numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, at most three: each of few digits, or it counts as large."""
    parts = re.match(r"\d+(\.\d+)*", version)
    numbers = tuple(int(part[:9]) for part in parts[0].split(".")[:3]) if parts else ()
    return numbers + (0,) * (3 - len(numbers))


def run_facts(*, command: str, seconds: float, gpu: bool = False) -> dict[str, Any]:
    """What every document of a run says of it: when, by which command, on what, and how many seconds it took."""
    return {
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": command,
        "environment": current_environment(gpu=gpu).model_dump(mode="json"),
        # Rounded up: the gate refuses a run of no time, and a small one takes less than half of a tenth.
        "seconds": math.ceil(seconds * 10) / 10,
    }


def current_environment(*, gpu: bool) -> Environment:
    """The environment of this process.

    Args:
        gpu: whether to ask for the GPU: torch, which takes seconds to import, or where it is missing the driver.
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
    from refmoe.cuda.toolchain import ToolchainError
    from refmoe.driver import compiler_in_use

    try:
        return compiler_in_use()
    except ToolchainError:
        return None


def _gpu() -> tuple[str | None, str | None]:
    """Name of the current GPU and version of the driver's CUDA."""
    try:
        from cuda.bindings import driver
    except ImportError:
        return None, None
    if importlib.util.find_spec("torch") is None:
        name = _first_gpu(driver)
    else:
        import torch

        name = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    if name is None:
        return None, None
    status, version = driver.cuDriverGetVersion()
    known = status == driver.CUresult.CUDA_SUCCESS
    return name, f"CUDA {version // 1000}.{version % 1000 // 10}" if known else None


def _first_gpu(driver: Any) -> str | None:
    """The name of the first GPU, as the driver itself has it."""
    good = driver.CUresult.CUDA_SUCCESS
    try:
        if driver.cuInit(0)[0] != good:
            return None
    except RuntimeError:  # cuda-bindings's word for no libcuda.so
        return None
    status, ordinal = driver.cuDeviceGet(0)
    if status != good:
        return None
    status, name = driver.cuDeviceGetName(256, ordinal)
    return name.split(b"\0")[0].decode() if status == good else None
