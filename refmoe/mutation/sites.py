"""All mutants, and a sample of them that meets every kernel and every operator."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

from refmoe.chips import DEFAULT_ARCH, KERNEL_ARCHS
from refmoe.errors import ArgumentError
from refmoe.mutation import cuda, host, ptx
from refmoe.mutation.reach import EntryKey, Reach
from refmoe.mutation.site import FLOORS, Site


def all_sites(
    reached: Iterable[Reach],
    *,
    floors: Collection[str] = (),
    operators: Collection[str] = (),
    kernels: Collection[str] = (),
) -> list[Site]:
    """Every mutant, in the order of ids' floors, files and places; of those that are asked for, if any are.

    Args:
        reached: the cases; PTX is mutated in the entries that they launch.
        floors: "cuda", "ptx", "host".
        operators: names as ids have them.
        kernels: names as ids have them.

    Raises:
        ArgumentError: a floor, an operator or a kernel that no mutant has.
    """
    for floor in floors:
        if floor not in FLOORS:
            raise ArgumentError("floor", repr(floor), f"one of {', '.join(FLOORS)}")
    with _uncollected():
        found = list(_sites(reached, floors or FLOORS))
    for name, wanted, has in (
        ("operator", operators, {site.operator for site in found}),
        ("kernel", kernels, {site.kernel for site in found}),
    ):
        for each in wanted:
            if each not in has:
                raise ArgumentError(name, repr(each), f"one of {', '.join(sorted(has))}")
    return [
        site
        for site in found
        if (not operators or site.operator in operators) and (not kernels or site.kernel in kernels)
    ]


def _sites(reached: Iterable[Reach], floors: Collection[str]) -> Iterator[Site]:
    if "cuda" in floors:
        for file in cuda.files():
            yield from cuda.sites(file)
    if "ptx" in floors:
        for key in _chosen(each.entries for each in reached):
            yield from ptx.sites(key)
    if "host" in floors:
        for file in host.files():
            yield from host.sites(file)


@contextmanager
def _uncollected() -> Iterator[None]:
    """No search for garbage in the block, which makes a million objects and no circle of them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _chosen(launched: Iterable[frozenset[EntryKey]]) -> list[EntryKey]:
    """The entries whose PTX is mutated, each on one arch: the first of the default one and the others that runs it.

    The compiler writes the same text for all of them, but where an arch lacks an instruction. What stands for it there
    is in the CUDA sources, and is mutated as part of these.
    """
    archs: dict[tuple[str, str], set[str]] = {}
    for keys in launched:
        for source, entry, arch in keys:
            archs.setdefault((source, entry), set()).add(arch)
    order = (DEFAULT_ARCH, *(arch for arch in KERNEL_ARCHS if arch != DEFAULT_ARCH))
    return sorted((*key, next(arch for arch in order if arch in found)) for key, found in archs.items())


def sampled(sites: Sequence[Site], count: int, seed: int) -> list[Site]:
    """`count` of the sites, each (floor, kernel, operator) as often as the others as long as it has any left.

    A sample of more holds that of fewer. The order is that of `sites`.
    """
    strata: dict[tuple[str, str, str], list[tuple[str, int]]] = {}
    for number, site in enumerate(sites):
        drawn = hashlib.sha256(f"{seed}\0{site.id}".encode()).hexdigest()
        strata.setdefault((site.floor, site.kernel, site.operator), []).append((drawn, number))
    turns = sorted(
        (turn, drawn, number) for held in strata.values() for turn, (drawn, number) in enumerate(sorted(held))
    )
    return [sites[number] for number in sorted(number for _, _, number in turns[:count])]
