"""Writing files so that a reader sees the old content or the new, never half of either."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

__all__ = ["write_atomic"]


def write_atomic(path: str | os.PathLike[str], data: bytes | str) -> Path:
    """Replace `path` by `data` (text is UTF-8) in one step; parent folders are made.

    The bytes go to a temporary file in the same folder, reach the disk, and are renamed over `path`. On any failure, a
    full disk or Ctrl-C included, the temporary file is removed and `path` is as it was. A pipe or a device is written
    in place.

    Raises:
        OSError: the folder cannot be made or the file cannot be written.
    """
    target = Path(path)
    content = data.encode() if isinstance(data, str) else data
    if target.exists() and not target.is_file():
        # Renaming a file over /dev/null would destroy it. A folder fails here, as it should.
        target.write_bytes(content)
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
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


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
