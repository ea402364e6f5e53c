"""What holds of two operations whatever is read: overlap, moral strength, release and acquire patterns.

Numbers of sections are those of the PTX ISA manual, 9.0.
"""

from __future__ import annotations

from refmoe.litmus.events import Event, Way, includes
from refmoe.litmus.program import Program
from refmoe.litmus.relations import Relation, has


def program_ordered(one: Event, other: Event) -> bool:
    """8.9.1: both are executed by one thread; asynchronous operations are no part of it (8.9.1.1)."""
    return one.thread == other.thread and not one.asynchronous and not other.asynchronous


def overlap(one: Event, other: Event) -> bool:
    """8.2.1: some byte is accessed by both."""
    return not set(one.cells).isdisjoint(other.cells)


def overlap_completely(one: Event, other: Event) -> bool:
    """8.2.1: the same bytes are accessed by both."""
    return one.cells == other.cells


def in_each_others_scope(program: Program, one: Event, other: Event) -> bool:
    """8.7: each operation is strong and specifies a scope that includes the thread executing the other operation."""
    return (
        one.strong
        and other.strong
        and one.scope is not None
        and other.scope is not None
        and includes(program, one.scope, one.place, other.place)
        and includes(program, other.scope, other.place, one.place)
    )


def morally_strong(program: Program, one: Event, other: Event) -> bool:
    """8.7, its three conditions."""
    if not (program_ordered(one, other) or in_each_others_scope(program, one, other)):
        return False
    if one.proxy != other.proxy:
        return False
    return not (one.memory and other.memory) or overlap_completely(one, other)


def release_patterns(way: Way, order: Relation) -> list[tuple[int, int]]:
    """8.8: (first operation, strong write) of every release pattern; of a single operation both are the same."""
    patterns = []
    for write in way.events:
        if not (write.writes and write.strong):
            continue
        if write.release:
            patterns.append((write.index, write.index))
        for first in way.events:
            if not (program_ordered(first, write) and has(order, first.index, write.index)):
                continue
            # A release operation on the same location, or a release fence, followed by a strong write.
            if (first.release and first.writes and overlap_completely(first, write)) or first.releases_behind:
                patterns.append((first.index, write.index))
    return patterns


def acquire_patterns(way: Way, order: Relation) -> list[tuple[int, int]]:
    """8.8: (strong read, last operation) of every acquire pattern; that of a red makes none (8.11.1)."""
    patterns = []
    for read in way.events:
        if not (read.reads and read.strong) or read.reduction:
            continue
        if read.acquire:
            patterns.append((read.index, read.index))
        for last in way.events:
            if not (program_ordered(read, last) and has(order, read.index, last.index)):
                continue
            if (last.acquire and last.reads and overlap_completely(read, last)) or last.acquires_before:
                patterns.append((read.index, last.index))
    return patterns
