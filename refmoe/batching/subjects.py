"""Every subject by name: paths of whole layers on the reference, and kernels on the executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from refmoe.batching.kernels import kernel_subjects
from refmoe.batching.layers import layer_subjects
from refmoe.batching.subject import Subject
from refmoe.errors import ArgumentError
from refmoe.reports.invariant import DEPENDS


@cache
def subjects() -> Mapping[str, Subject]:
    """The subjects by name, layers first; each knows whether it is known to depend on its batch."""
    found = [subject for made in (layer_subjects(), kernel_subjects()) for subject in made]
    return {subject.name: replace(subject, depends=DEPENDS.get(subject.name, "")) for subject in found}


def subject_named(name: str) -> Subject:
    """The subject of that name.

    Raises:
        ArgumentError: there is none.
    """
    if name not in subjects():
        raise ArgumentError("subject", repr(name), f"one of {', '.join(subjects())}")
    return subjects()[name]


def named_subjects(names: Sequence[str]) -> list[Subject]:
    """The subjects whose names are or begin with one of `names`; all without any.

    Raises:
        ArgumentError: a name that none begins with.
    """
    for name in names:
        if not any(each.startswith(name) for each in subjects()):
            subject_named(name)
    exact = [subjects()[name] for name in names if name in subjects()]
    begun = [each for name, each in subjects().items() if any(name.startswith(word) for word in names)]
    return exact if len(exact) == len(names) and names else begun or list(subjects().values())
