from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

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
