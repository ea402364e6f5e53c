from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from refmoe.errors import ArgumentError, describe
from refmoe.files import write_atomic


def test_write_atomic_replaces_and_makes_folders(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.json"
    write_atomic(path, "old")
    assert write_atomic(path, b"new") == path
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in path.parent.iterdir()] == ["b.json"]


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    path = tmp_path / "report.json"
    write_atomic(path, "old")

    def fail(descriptor: int) -> None:
        raise failure

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(type(failure)):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]


def test_a_device_is_written_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomic(pipe, "through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert pipe.is_fifo()


def test_argument_error_survives_pickling() -> None:
    error = ArgumentError("x", describe(np.zeros((2, 3), np.float32)), "bfloat16")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == "x: found float32 [2, 3]; needed bfloat16"
    assert (copy.argument, copy.found, copy.needed) == (error.argument, error.found, error.needed)


def test_import_stays_light() -> None:
    code = "import refmoe, sys; print([m for m in ('torch', 'matplotlib', 'pydantic', 'typer') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
