"""Files that take long to make: each appears whole or not at all, and is known by its SHA-256.

Beside a file lies its hash, and a file that does not fit it counts as not made.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from refmoe.cuda.toolchain import ToolchainError
from refmoe.files import write_atomic


def sha256(*parts: str) -> str:
    """Over texts, in order."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _seal(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def intact(path: Path) -> bool:
    """Whether a file is there and is what was placed."""
    try:
        return _seal(path).read_text() == hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return False


def placed(directory: Path, make: Callable[[Path], dict[str, Path]]) -> None:
    """Let `make` write into a folder of its own, then move the files that it names to where they belong."""
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".build.") as scratch:
        for name, target in make(Path(scratch)).items():
            made = Path(scratch) / name
            # Between these two lines the file counts as damaged, and is made again by whoever looks.
            write_atomic(_seal(target), hashlib.sha256(made.read_bytes()).hexdigest())
            os.replace(made, target)


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Wait until no other process compiles here; what an interrupted one left behind is removed.

    Raises:
        ToolchainError: nothing can be written here.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with (directory.parent / ".lock").open("w") as lock:
            os.set_inheritable(lock.fileno(), True)  # a compiler that outlives a killed process keeps the lock
            fcntl.flock(lock, fcntl.LOCK_EX)
            for leftover in directory.parent.glob(".build.*"):
                shutil.rmtree(leftover, ignore_errors=True)
            yield
    except OSError as error:
        raise ToolchainError(f"cannot write to {directory}: {error}") from error


def checked_run(command: Sequence[str], scratch: Path, name: str) -> str:
    """What a compiler says, run in `scratch`, where its temporary files go too.

    Raises:
        ToolchainError: it failed, or cannot be started.
    """
    # A group of its own: nvcc is a chain of processes, and Ctrl-C must not leave the largest of them running.
    try:
        process = subprocess.Popen(
            command,
            cwd=scratch,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "TMPDIR": str(scratch)},
            start_new_session=True,
            close_fds=False,  # it inherits the lock of `alone`
        )
    except OSError as error:
        raise ToolchainError(f"cannot start {name}: {error}") from error
    try:
        text, _ = process.communicate()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if process.returncode != 0:
        raise ToolchainError(f"{name} failed:\n{text.strip()}")
    return text
