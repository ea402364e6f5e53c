"""Other people's code for operations of the sweep, one module each.

A module that lies here is a peer: it has a `PEER`. Nothing else names it. A package that a peer needs is imported when
the peer is prepared, never before.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from refmoe.bench.sweep.peer import Peer

__all__ = ["peers"]


@cache
def peers() -> tuple[Peer, ...]:
    """All of them, in the order of their modules' names."""
    modules = [importlib.import_module(f"{__name__}.{each.name}") for each in pkgutil.iter_modules(__path__)]
    return tuple(module.PEER for module in modules)
