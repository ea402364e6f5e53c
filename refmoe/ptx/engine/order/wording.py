"""What an error says of two accesses that race: what the later one does, and what is missing between the two."""

from __future__ import annotations

from collections.abc import Callable

from refmoe.ptx.errors import Index3
from refmoe.ptx.state.records import ASYNCHRONOUS, BULK, PENDING, SEVERAL, STEP_SHIFT, THREAD, never

_SENTENCES = {
    "write-write": ("writes after a write by", "nothing orders the two"),
    "read-write": ("writes after a read by", "nothing orders the two"),
    "write-read": ("reads after a write by", "nothing orders the two"),
    "proxy": (
        "copies, through the asynchronous proxy, what was written through the generic one by",
        "no fence.proxy.async lies between",
    ),
    "non-coherent": (
        "reads, through the non-coherent cache (ld.global.nc), after a write by",
        "nothing orders such a read: the bytes may be those from before the launch",
    ),
    "texture": (
        "reads, through the texture cache, after a write by",
        "within a launch that cache does not see what is written",
    ),
}
_MILDER = {
    "missing acquire": "the strong read that saw its signal is no acquire, and no fence lies between",
    "same value": "nothing orders the two, but both write the same bytes",
    "copied operand": "no fence.proxy.async lies between, but it is an operand that cp.async brought",
    "unfenced init": "neither fence.mbarrier_init nor fence.proxy.async lies between",
}
_MILDER_VERBS = {
    "unfenced init": "completes a copy, through the asynchronous proxy, on an mbarrier that was initialised by",
}


def sentence(kind: str, warning: str) -> tuple[str, str]:
    """(what the later access does, what is missing) in a race of a kind, by its warning or `""`."""
    verb, missing = _SENTENCES[kind]
    return _MILDER_VERBS.get(warning, verb), _MILDER.get(warning, missing)


def whose_access(record: int, thread: Index3, agent: Callable[[int], str]) -> str:
    """Whose the earlier access is.

    Args:
        record: of that access.
        thread: of the record.
        agent: names an agent by its number.
    """
    agents = record & int(ASYNCHRONOUS | BULK)
    whom = f"several threads, thread {thread} among them," if record & int(SEVERAL) else f"thread {thread}"
    if record & ~int(THREAD | SEVERAL) == never(0):
        whom = f"a non-coherent load (ld.global.nc) by {whom}"
    elif agents & int(ASYNCHRONOUS):
        whom = f"an asynchronous {'bulk ' if agents & int(BULK) else ''}copy of {whom}"
    elif agents:
        whom = agent(record & int(THREAD))
    if record >> STEP_SHIFT == PENDING and agents != int(ASYNCHRONOUS):
        whom += ", not known to be complete,"
    return whom
