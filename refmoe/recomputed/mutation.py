"""The mutants of a sweep of `refmoe mutate`: those of CUDA sources and host code are found without a compiler."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from refmoe.mutation.document import read_reasons
from refmoe.mutation.site import FLOORS, Site
from refmoe.mutation.sites import all_sites, sampled
from refmoe.reports.checks import GateRefusal, first_and_count
from refmoe.reports.mutation import MUTATION

#: Mutants of PTX, at most. To find them takes a compiler and a run of all cases; there are about a million.
_MOST_OF_PTX = 4_000_000
#: Of the sample, where the command does not say.
_SEED = "7"


def refusals(document: Mapping[str, Any]) -> Iterator[GateRefusal]:
    """Mutants that there are not or that the seed does not draw, a wrong number of them, and reasons of nobody's."""
    yield from first_and_count("mutation.recomputed", _wrong(document))


def _wrong(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    command = document["command"]
    # The command is typed words with spaces between, see `refmoe.cli.mutate`; an id of a mutant may hold any.
    words = command.replace("=", " ").split()
    asked = {option: _after(words, f"--{option}") for option in ("floor", "operator", "kernel", "mutant")}
    seed = (_after(words, "--seed") or [_SEED])[-1]
    if seed != str(document["sample"]["seed"]):
        yield "its sample", f"is of the seed {document['sample']['seed']}, and {command!r} draws by {seed}"
        return
    floors = asked["floor"] or list(FLOORS)
    sites = _found(tuple(floor for floor in floors if floor != "ptx"), asked)
    yield from _number(document, len(sites), with_ptx="ptx" in floors)
    known = {site.id for site in sites}
    for each in document["mutants"]:
        if each["floor"] not in floors:
            yield f"mutant {each['id']}", f"is of a floor that {command!r} does not ask for"
        elif each["floor"] != "ptx" and each["id"] not in known:
            yield f"mutant {each['id']}", f"is none that there is; {MUTATION.again}"
    if not asked["mutant"]:
        yield from _drawn(document, sites)
    yield from _reasons(document)


def _after(words: Sequence[str], option: str) -> list[str]:
    return [after for word, after in itertools.pairwise(words) if word == option]


def _found(floors: tuple[str, ...], asked: Mapping[str, Sequence[str]]) -> list[Site]:
    """The mutants of these floors that a command asks for."""
    return [
        site
        for site in sites_of_sources()
        if site.floor in floors
        and (not asked["operator"] or site.operator in asked["operator"])
        and (not asked["kernel"] or site.kernel in asked["kernel"])
    ]


@functools.cache
def sites_of_sources() -> tuple[Site, ...]:
    """Every mutant of CUDA sources and host code."""
    return tuple(all_sites((), floors=("cuda", "host")))


def _number(document: Mapping[str, Any], found: int, *, with_ptx: bool) -> Iterator[tuple[str, str]]:
    """How many mutants there are: of PTX within bounds alone."""
    of = document["sample"]["of"]
    most = found + _MOST_OF_PTX if with_ptx else found
    if not found <= of <= most:
        needed = f"{found:,} to {most:,}" if with_ptx else f"{found:,}"
        yield "its sample", f"is said to be of {of:,} mutants; there are {needed}"


def _drawn(document: Mapping[str, Any], sites: Sequence[Site]) -> Iterator[tuple[str, str]]:
    """Mutants that were passed over: of a floor, a kernel and an operator the seed draws in one order."""
    held: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for each in document["mutants"]:
        held[each["floor"], each["kernel"], each["operator"]].add(each["id"])
    strata: dict[tuple[str, str, str], list[Site]] = defaultdict(list)
    for site in sites:
        strata[site.floor, site.kernel, site.operator].append(site)
    for key, inside in strata.items():
        due = {site.id for site in sampled(inside, len(held[key]), document["sample"]["seed"])}
        for name in sorted(due - held[key]):
            yield f"mutant {name}", f"is not there, and the seed {document['sample']['seed']} draws it"


def _reasons(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Survivors that are excused, and that refmoe's own list does not excuse so."""
    reasons = read_reasons()
    for each in document["survivors"]:
        listed = reasons.get(each["id"], {}).get("verdict", "open")
        if each["verdict"] not in ("open", listed):
            yield (
                f"survivor {each['id']}",
                f"is said to be {each['verdict']!r}; refmoe's list of reasons has {listed!r}",
            )
