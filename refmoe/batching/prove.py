"""The certificate: a token's bytes alone, held against its bytes in every batch that is tried."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.batching.subject import NEIGHBOURS, PROBES, QUICK_SIZES, SIZES, Arrays, Call, Subject, batch_of
from refmoe.errors import ArgumentError
from refmoe.reports.invariant import FEW

LEVELS = ("quick", "default")


@dataclass(frozen=True)
class Difference:
    """The first pair of calls of one token that give different bytes.

    Attributes:
        alone: the probe in a batch of its own.
        batched: the call that differs.
        array: of the results.
        element: flat index of the first element that differs, in the token's part of the array.
        first, second: its bytes, in hexadecimal, most significant first.
        differing, elements: how many of the token's elements differ, of all its arrays.
    """

    alone: str
    batched: str
    array: str
    element: int
    first: str
    second: str
    differing: int
    elements: int

    def __str__(self) -> str:
        where = f"{self.array}[{self.element}] is 0x{self.first} alone and 0x{self.second} in the batch"
        lines = [f"{where}; {self.differing:,} of {self.elements:,} elements differ"]
        return "\n".join([*lines, *(f"repro: refmoe invariant --call '{call}'" for call in (self.alone, self.batched))])


@dataclass(frozen=True)
class Certificate:
    """What was tried of one subject, and what came of it.

    Attributes:
        subject: its name.
        cases: calls that were held against the token alone.
        bytes_compared: in all of them.
        sizes, neighbours, ways, probes: that the cases are made of.
        difference: the first pair that differs, None if the bytes are equal over all cases.
        depends: why it is known to depend on its batch, "" if it must not.
        rests_on: where it ran, in a sentence.
        source: the kernel family or the module whose sources decide it.
    """

    subject: str
    cases: int
    bytes_compared: int
    sizes: tuple[int, ...]
    neighbours: tuple[str, ...]
    ways: tuple[str, ...]
    probes: tuple[str, ...]
    difference: Difference | None
    depends: str = ""
    rests_on: str = ""
    source: str = ""

    @property
    def invariant(self) -> bool:
        """Whether no case differs, and there was one."""
        return self.difference is None and self.cases > 0

    @property
    def expected(self) -> bool:
        """Whether that is what is known of the subject."""
        return self.invariant != bool(self.depends)

    def __bool__(self) -> bool:
        return self.invariant

    def __str__(self) -> str:
        over = f"{self.cases:,} cases, {self.bytes_compared:,} bytes"
        if self.difference is None:
            return f"INVARIANT {self.subject}: the same bytes over {over}; {self.rests_on}"
        known = f" (known: {self.depends})" if self.depends else ""
        return f"DEPENDS {self.subject}{known}: {self.difference}"

    __repr__ = __str__


def calls_of(subject: Subject, level: str = "default", seed: int = 7) -> list[Call]:
    """The calls of a level, without those of a probe alone.

    Every size, with the probe first, in the middle and last, among neighbours of every kind; probes of every kind in
    turn. Ways other than the usual one are tried on every size and fewer kinds.

    Raises:
        ArgumentError: an unknown level.
    """
    if level not in LEVELS:
        raise ArgumentError("level", repr(level), f"one of {', '.join(LEVELS)}")
    sizes = sorted({min(size, subject.most) for size in (SIZES if level == "default" else QUICK_SIZES)})
    kinds = [kind for kind in NEIGHBOURS if kind in subject.kinds and (level == "default" or kind in FEW)]
    probes = [kind for kind in PROBES if kind in subject.kinds]
    found: list[Call] = []
    for way in subject.ways:
        for size in sizes:
            if size == 1:
                if way != subject.ways[0]:
                    found += [Call(subject.name, probe, 1, 0, "none", way, seed) for probe in probes]
                continue
            for number, kind in enumerate(kinds):
                if way != subject.ways[0] and kind not in FEW:
                    continue
                for turn, position in enumerate(sorted({0, size // 2, size - 1})):
                    probe = probes[(number + turn) % len(probes)]
                    # Every kind of probe comes to every position, with another seed for each size.
                    found.append(Call(subject.name, probe, size, position, kind, way, seed))
    return found


def certify(
    subject: Subject, level: str = "default", seed: int = 7, calls: Iterable[Call] | None = None
) -> Certificate:
    """Hold a token's bytes in every batch of a level against its bytes alone; stop at the first that differ.

    Args:
        subject: what computes them.
        level: "quick" or "default".
        seed: of the data.
        calls: these instead of a level.

    Raises:
        ArgumentError: an unknown level; results whose first axis is not the batch's.
    """
    tried = list(calls_of(subject, level, seed) if calls is None else calls)
    alone: dict[Call, dict[str, NDArray[Any]]] = {}
    compared, cases = 0, 0
    difference = None
    for call in tried:
        base = call.alone if not subject.ways[0] else _usual(call.alone, subject)
        if base not in alone:
            alone[base] = token_results(subject, base)
        found = token_results(subject, call)
        cases += 1
        compared += sum(array.nbytes for array in alone[base].values())
        difference = _difference(base, alone[base], call, found)
        if difference is not None:
            break
    return Certificate(
        subject.name,
        cases,
        compared,
        tuple(sorted({call.size for call in (*tried, *alone)})),
        tuple(dict.fromkeys(call.neighbours for call in tried)),
        tuple(dict.fromkeys(call.way for call in tried)),
        tuple(dict.fromkeys(call.probe for call in tried)),
        difference,
        subject.depends,
        subject.rests_on,
        subject.source,
    )


def _usual(call: Call, subject: Subject) -> Call:
    return replace(call, way=subject.ways[0])


def token_results(subject: Subject, call: Call) -> dict[str, NDArray[Any]]:
    """The probe's part of every array of results.

    Raises:
        ArgumentError: an array whose first axis is not the batch's, or no array.
    """
    results = subject.run(batch_of(subject, call), call.way)
    if not results:
        raise ArgumentError("run", f"no result of {subject.name}", "at least one array")
    for name, array in results.items():
        if array.ndim < 1 or array.shape[0] != call.size:
            raise ArgumentError("run", f"{name} {list(array.shape)} for {call.size} tokens", "tokens first")
    return {name: np.array(array[call.position]) for name, array in results.items()}


def result_sha256(results: Arrays) -> str:
    """SHA-256 of a token's results: names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name, array in sorted(results.items()):
        digest.update(f"\0{name}\0{array.dtype}\0{array.shape}\0".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _difference(base: Call, first: Arrays, call: Call, second: Arrays) -> Difference | None:
    place: tuple[str, int, str, str] | None = None
    differing = elements = 0
    for name, array in first.items():
        other = second.get(name)
        if other is None or other.shape != array.shape or other.dtype != array.dtype:
            found = "nothing" if other is None else f"{other.dtype} {list(other.shape)}"
            raise ArgumentError("run", f"{name} is {found} in {call}", f"{array.dtype} {list(array.shape)}, as alone")
        ours, theirs = _bytes(array), _bytes(other)
        places = np.flatnonzero((ours != theirs).any(axis=1))
        elements, differing = elements + len(ours), differing + places.size
        if places.size and place is None:
            index = int(places[0])
            place = name, index, ours[index][::-1].tobytes().hex().upper(), theirs[index][::-1].tobytes().hex().upper()
    if place is None:
        return None
    return Difference(str(base), str(call), *place, differing, elements)


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """uint8 [elements, bytes of one], little end first."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return np.frombuffer(flat.tobytes(), np.uint8).reshape(flat.size, -1)


def certify_all(subjects: Sequence[Subject], level: str = "default", seed: int = 7) -> Iterator[Certificate]:
    """The certificates of subjects, each as soon as it is made."""
    for subject in subjects:
        yield certify(subject, level, seed)
