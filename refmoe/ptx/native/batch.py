"""Machine code of templates: those that were compiled together are a batch, one object file on disk.

A second file for each template, small, says which batch has it. A batch that is gone, or damaged, is as if its
templates had never been compiled.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from weakref import WeakValueDictionary

from refmoe.native import cache as kept
from refmoe.native.compiler import LEVEL, Native, compiled, key_of
from refmoe.ptx.native.piece import Library
from refmoe.ptx.native.template import Slot, Template


class Batch:
    """Templates that were compiled together.

    Attributes:
        name: of its file.
        slots: by key of a template, what its table holds.
    """

    def __init__(self, name: str, slots: Mapping[str, tuple[Slot, ...]], code: bytes) -> None:
        self.name, self.slots = name, slots
        self._native = Native(code)
        self._addresses: dict[str, int] = {}

    def address(self, key: str) -> int:
        """Where the code of a template is, for as long as this object is kept."""
        # Many pieces are of one template, and LLVM takes longer to say where it is.
        if (found := self._addresses.get(key)) is None:
            found = self._addresses[key] = self._native.address(_symbol(key))
        return found


# Those that some kernel uses, by name and by the key of each template.
_BATCHES: WeakValueDictionary[str, Batch] = WeakValueDictionary()
_OF: WeakValueDictionary[str, Batch] = WeakValueDictionary()


def load(name: str) -> Batch | None:
    """The batch in a file, or None where nothing whole is."""
    found = _BATCHES.get(name)
    if found is None and (held := kept.load(name)) is not None:
        found = _entered(Batch(name, *pickle.loads(held)))
    return found


def find(templates: Mapping[str, Template]) -> dict[str, Batch]:
    """The batch of each template, by key. Those that nobody has compiled are compiled now, and are one batch."""
    found = {key: batch for key in templates if (batch := _known(key)) is not None}
    missing = {key: template for key, template in templates.items() if key not in found}
    if missing:
        found |= dict.fromkeys(missing, _compiled(missing))
    return found


def _known(key: str) -> Batch | None:
    """The batch that has a template."""
    if (found := _OF.get(key)) is not None:
        return found
    name = kept.load(_pointer(key))
    batch = None if name is None else load(name.decode())
    return batch if batch is not None and key in batch.slots else None


def _compiled(templates: Mapping[str, Template]) -> Batch:
    library = Library()
    slots = {key: library.add(_symbol(key), template) for key, template in templates.items()}
    code = compiled(str(library.module))
    name = key_of("batch", *templates, level=LEVEL)
    kept.store(name, pickle.dumps((slots, code)))
    for key in templates:
        kept.store(_pointer(key), name.encode())
    return _entered(Batch(name, slots, code))


def _entered(batch: Batch) -> Batch:
    _BATCHES[batch.name] = batch
    for key in batch.slots:
        _OF[key] = batch
    return batch


def _pointer(key: str) -> str:
    return key_of("template", key, level=LEVEL)


def _symbol(key: str) -> str:
    return f"piece_{key}"
