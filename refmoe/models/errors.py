"""The error that refuses a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from refmoe.errors import ArgumentError

__all__ = ["CheckpointError"]


class CheckpointError(ArgumentError):
    """A checkpoint, or a part of one, is not what it has to be.

    Attributes:
        file: the file or folder.
        tensor: the tensor's name in the file, None where it is about no single tensor.
        found: what the file holds, in words.
        needed: what it would have to hold, in words.
    """

    def __init__(self, file: Path, tensor: str | None, found: str, needed: str) -> None:
        super().__init__(str(file) if tensor is None else f"{file}: tensor {tensor}", found, needed)
        self.file = file
        self.tensor = tensor

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.file, self.tensor, self.found, self.needed)
