"""Instructions by which one lane writes a whole range with no value of its own: `st.bulk` and `discard`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.loads_and_stores import Access, Store, tell_watch
from refmoe.ptx.errors import MisuseError

Array = Any
DISCARDED = 128
_WORD = 16
_MOST = 1 << 24


def _starts(begin: Array, size: int, step: int) -> Array:
    """Where the words of ranges of `size` bytes begin, [n * words]."""
    return (begin[:, None] + np.arange(0, size, step, dtype=begin.dtype)).ravel()


@dataclass(frozen=True)
class StoreRange:
    """`st.bulk`: zeros in shared memory, by a weak store (PTX ISA, "st.bulk").

    Attributes:
        word: the store of each 8 bytes.
    """

    word: Store

    def __call__(self, frame: Frame, address: Array, size: Array, guard: Array | None) -> None:
        """Write zeros.

        Raises:
            MemoryFault, RaceError: as of any store.
            MisuseError: a size that is no multiple of 8, or above 16 MiB.
        """
        where, lanes, chosen = frame.select(address, guard)
        if not lanes.size:
            return
        machine, word = frame.machine, self.word
        sizes = np.broadcast_to(frame.acting(where, size), lanes.shape)
        wrong = (sizes % word.width != 0) | (sizes > _MOST)
        if wrong.any():
            bad = int(np.argmax(wrong))
            what = f"writes {int(sizes[bad])} bytes, no multiple of {word.width} up to {_MOST}"
            raise machine.error(MisuseError, word.instruction, lanes[bad], what, link="")
        machine.progress()
        for count in np.unique(sizes[sizes > 0]).tolist():
            some = sizes == count
            who = np.repeat(lanes[some], count // word.width)
            for region, which, index in word._parts(frame, _starts(chosen[some], count, word.width), who):
                theirs = who if which is None else who[which]
                word.put(frame, region, index, theirs, np.zeros(len(index), np.uint64))
                tell_watch(machine, word.instruction, region, index, word.width, theirs)


@dataclass(frozen=True)
class Discard:
    """`discard`: a weak write of bytes that nobody knows (PTX ISA, "discard").

    Attributes:
        whole: the access of all 128 bytes.
        word: the store of each 16 of them.
    """

    whole: Access
    word: Store

    def __call__(self, frame: Frame, address: Array, guard: Array | None) -> None:
        """The bytes count as never written from now on, and are others.

        Raises:
            MemoryFault, RaceError: as of any store.
        """
        _, lanes, chosen = frame.select(address, guard)
        if not lanes.size:
            return
        machine, word = frame.machine, self.word
        machine.progress()
        for region, which, begin in self.whole._parts(frame, chosen, lanes):
            index = _starts(begin, DISCARDED, _WORD)
            theirs = np.repeat(lanes if which is None else lanes[which], DISCARDED // _WORD)
            place = index // _WORD
            # Other bytes than before, so that whoever else stores does not store the same.
            word.put(frame, region, index, theirs, ~region.words(_WORD)[place])
            if region.valid is None:
                region.validate()
            region.words(_WORD, of_valid=True)[place] = 0
            machine.refresh(region)
