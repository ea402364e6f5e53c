"""The tensors of a folder: one safetensors file or many shards, all headers checked before anything is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from refmoe.models.schema import TensorSpec
from refmoe.models.tensor_file import CheckpointError, TensorFile, refuse_pickle

INDEX = "model.safetensors.index.json"
"""The file that says which shard holds which tensor."""


class TensorSet:
    """The tensors of a checkpoint folder by name, wherever they lie.

    Attributes:
        folder: the folder.
        files: its safetensors files, checked.
    """

    def __init__(self, folder: Path) -> None:
        """Check the headers of every shard that the index names; without one, of every safetensors file.

        Raises:
            CheckpointError: no such files, a shard or tensor that the index names and that is not there, a tensor in
                two files or in another than the index says, or a file that `TensorFile` refuses.
        """
        self.folder = folder
        index = folder / INDEX
        where = _read_index(index) if index.exists() else None
        names = sorted({*where.values()} if where is not None else (path.name for path in _weights(folder)))
        for name in names:
            if not (folder / name).is_file():
                first = next(tensor for tensor, shard in (where or {}).items() if shard == name)
                raise CheckpointError(index, first, f"shard {name}, which is not there", f"the file {folder / name}")
        self.files = [TensorFile(folder / name) for name in names]
        self._file_of = _merge(self.files)
        if where is not None:
            _match_index(index, where, self._file_of)

    def require(self, needed: Mapping[str, TensorSpec]) -> None:
        """Check that every tensor of `needed` is there with its dtype and shape; others may be there too.

        Raises:
            CheckpointError: one is missing (all missing ones are counted), or has another dtype or shape.
        """
        missing = [name for name in needed if name not in self._file_of]
        if missing:
            more = f", and {len(missing) - 1} more are missing" if len(missing) > 1 else ""
            found = f"no such tensor among {len(self._file_of)}{more}"
            raise CheckpointError(self.folder, missing[0], found, needed[missing[0]].words)
        for name, spec in needed.items():
            file = self._file_of[name]
            info = file.tensors[name]
            if info.dtype not in (spec.dtype, *spec.also) or info.shape != spec.shape:
                found = TensorSpec(info.dtype, info.shape).words
                raise CheckpointError(file.path, name, found, f"{spec.words}, by config.json")

    def names(self) -> list[str]:
        """Every tensor's name, sorted."""
        return sorted(self._file_of)

    def tensor(self, name: str) -> NDArray[Any]:
        """A tensor as a read-only view of the file: BF16 as ml_dtypes.bfloat16, FP8 codes as uint8.

        Raises:
            CheckpointError: there is no such tensor.
        """
        if name not in self._file_of:
            raise CheckpointError(self.folder, name, f"no such tensor among {len(self._file_of)}", "one that is there")
        return self._file_of[name].view(name)

    def release(self) -> None:
        """Give back the memory of what was read; views stay valid and read it again when used."""
        for file in self.files:
            file.release()


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`.

    Raises:
        CheckpointError: no such file, or no JSON object in it.
    """
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(path, None, f"no file that can be read: {error.strerror}", "a JSON object") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(path, None, f"no JSON: {error}", "a JSON object") from error
    if not isinstance(value, dict):
        raise CheckpointError(path, None, f"a JSON {type(value).__name__}", "a JSON object")
    return value


def _weights(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    if not files:
        for path in sorted(folder.iterdir()):
            refuse_pickle(path)
        raise CheckpointError(folder, None, "no .safetensors file", "model.safetensors, or shards and their index")
    return files


def _read_index(path: Path) -> dict[str, str]:
    where = read_json(path).get("weight_map")
    if not isinstance(where, dict) or not where:
        raise CheckpointError(path, None, "no weight_map", "a weight_map from tensor names to shards")
    for name, shard in where.items():
        # A shard lies beside its index: a path could lead anywhere on the disk.
        if not isinstance(shard, str) or not shard or Path(shard).name != shard:
            raise CheckpointError(path, name, f"shard {shard!r}", "the bare name of a file beside the index")
        refuse_pickle(path.parent / shard)
    return where


def _merge(files: list[TensorFile]) -> dict[str, TensorFile]:
    merged: dict[str, TensorFile] = {}
    for file in files:
        for name in file.tensors:
            if name in merged:
                raise CheckpointError(file.path, name, f"it in {merged[name].path.name} too", "each tensor once")
            merged[name] = file
    return merged


def _match_index(index: Path, where: Mapping[str, str], files: Mapping[str, TensorFile]) -> None:
    for name, shard in where.items():
        if name not in files or files[name].path.name != shard:
            found = f"no such tensor in {shard}"
            raise CheckpointError(index, name, found, f"it in {files[name].path.name if name in files else 'a shard'}")
    for name, file in files.items():
        if name not in where:
            raise CheckpointError(file.path, name, f"a tensor that {index.name} does not name", "an index of all")
