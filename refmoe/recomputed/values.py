"""Where two JSON values that should be the same part."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from refmoe.reports.reading import json_word

#: Figures are rounded to six digits. NumPy's functions differ by an ulp from one processor to another, which may turn
#: the last of these digits, and of 1.00000 that is one part in a hundred thousand.
_LAST_DIGIT = 1.1e-5
#: Where a figure is one less a small number, such as a cosine: the same of its twelve digits.
_SMALLEST = 1e-11


def partings(said: Any, found: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Each place at which they part, and what it says and what was found; floats may part in their last digit."""
    if isinstance(said, Mapping) and isinstance(found, Mapping):
        for key in dict.fromkeys((*found, *said)):
            inside = f"{where}.{key}" if where else str(key)
            if key not in said or key not in found:
                yield inside, "is not there" if key not in said else "is there, and is none of its figures"
            else:
                yield from partings(said[key], found[key], inside)
    elif isinstance(said, list) and isinstance(found, list):
        if len(said) != len(found):
            yield where, f"has {len(said):,} entries, and computed anew there are {len(found):,}"
        for number, (ours, theirs) in enumerate(zip(said, found, strict=False)):
            yield from partings(ours, theirs, f"{where}.{number}")
    elif not _alike(said, found):
        yield where, f"says {_word(said)}, and computed anew it is {_word(found)}"


def _alike(said: Any, found: Any) -> bool:
    if isinstance(said, float) and isinstance(found, float):
        return math.isclose(said, found, rel_tol=_LAST_DIGIT, abs_tol=_SMALLEST)
    return type(said) is type(found) and bool(said == found)


def _word(value: Any) -> str:
    if isinstance(value, (Mapping, list)):
        return json_word(value)
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
