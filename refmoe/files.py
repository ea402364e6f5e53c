"""Writing files so that a reader sees the old content or the new, never half of either; reading arrays from files."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy as np

from refmoe.errors import ArgumentError

#: What is added to a report's name for the file that holds what a run has found so far.
PARTIAL = ".partial"


def partial_of(report: Path, command: str = "") -> Path:
    """The file that holds what a run has found until its report is written; each of several commands has its own."""
    whose = f".{hashlib.sha256(command.encode()).hexdigest()[:8]}" if command else ""
    return report.with_name(f"{report.name}{whose}{PARTIAL}")


def write_atomic(path: str | os.PathLike[str], data: bytes | str) -> Path:
    """Replace `path` by `data` (text is UTF-8) in one step; parent folders are made.

    The bytes go to a temporary file in the same folder, reach the disk, and are renamed over `path`. On any failure, a
    full disk or Ctrl-C included, the temporary file is removed and `path` is as it was. A pipe or a device is written
    in place.

    Raises:
        OSError: the folder cannot be made or the file cannot be written; its `filename` is `path`.
    """
    target = Path(path)
    content = data.encode() if isinstance(data, str) else data
    if target.exists() and not target.is_file():
        # Renaming a file over /dev/null would destroy it. A folder fails here, as it should.
        target.write_bytes(content)
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        # Whoever asked knows the file, not the temporary one.
        raise OSError(error.errno, error.strerror, str(target)) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644 & ~_umask())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    return target


def read_npy(path: str | os.PathLike[str], mmap_mode: Literal["r"] | None = None) -> Any:
    """What `numpy.load` makes of a .npy or .npz file of numbers.

    Raises:
        ValueError: it cannot be read, or is no such file; the message says which, without the path.
    """
    try:
        return np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    except (ValueError, EOFError) as error:
        # NumPy takes whatever it does not know for a pickle, and advises to load it unsafely.
        raise ValueError("no .npy file, or one of Python objects" if "pickle" in str(error) else str(error)) from error


def tensor_name(path: Path, names: list[str], tensor: str | None, argument: str) -> str:
    """The tensor that is asked for, of those in a file; None asks for the only one.

    Args:
        path: the file.
        names: its tensors.
        tensor: what is asked for.
        argument: what the file is called in an error.

    Raises:
        ArgumentError: no such tensor, or None and not just one.
    """
    if tensor is None and len(names) == 1:
        return names[0]
    if tensor in names:
        return tensor
    found = f"{len(names)} tensors in {path}" if tensor is None else f"no tensor {tensor!r} in {path}"
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    raise ArgumentError(argument, found, f"FILE:TENSOR with one of: {shown or 'none, the file is empty'}")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
