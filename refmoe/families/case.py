"""The grammar of repro strings. It knows no family; a family brings its dtypes, sizes, fills and options.

    family:dtype:shape:fill[:option=value]...:seedN@device[.arch]
    expand:bf16:m4k2880e8t2:rne-ties:mode=floor:seed7@ptx
    sm12x_gemm:f32:m4k2880n640e4:gaussian:tile=128x8x512:stages=2:seed7@ptx

Options that have their default value are left out, so that a case has one string and equal strings are equal cases.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

from refmoe.errors import ArgumentError

GRAMMAR = "family:dtype:shape:fill[:option=value]...:seedN@device"

Value = str | int

_SIZE_WORDS = {"m": "rows", "k": "width", "n": "weight rows", "e": "experts", "t": "experts per token"}


@dataclass(frozen=True)
class Option:
    """One option of a family: its name, its default, and how it is written. `word`, `number`, `byte`, ... make one.

    Attributes:
        name: in front of the "=".
        default: the value that is not written.
        words: the values that it may have, if they are few.
        pattern: where there are no words, a regular expression of how a value is written.
        needed: the pattern in words, for the refusal of other text.
        fixed: whether one kernel has one value of it, for example one scale mode. The contract of a kernel states it.
        launch: whether it decides only how refmoe's own kernel is launched, for example the tile.
    """

    name: str
    default: Value
    words: tuple[str, ...] = ()
    pattern: str = ""
    needed: str = ""
    fixed: bool = False
    launch: bool = False

    def read(self, written: str) -> Value:
        """The value of its text.

        Raises:
            ArgumentError: the text of no value.
        """
        if self.words:
            return self.checked(written)
        if self.pattern and not re.fullmatch(self.pattern, written):
            raise refused(self.name, written, self.needed)
        if isinstance(self.default, int):
            return int(written, 16 if written.startswith("0x") else 10)
        return written if self.pattern else unquote(written)

    def write(self, value: Value) -> str:
        """The text of a value."""
        if isinstance(value, int):
            return f"0x{value:02X}" if self.pattern.startswith("0x") else str(value)
        # What separates fields may occur in a path, and what a shell splits at may too.
        return value if self.words or self.pattern else quote(value, safe="/._-+")

    def checked(self, value: Value) -> Value:
        """`value` itself.

        Raises:
            ArgumentError: the option cannot have it.
        """
        if not isinstance(value, type(self.default)) or isinstance(value, bool):
            raise refused(self.name, repr(value), one_of(self.words) if self.words else self.needed or "text")
        if self.words:
            if value not in self.words:
                raise refused(self.name, str(value), one_of(self.words))
        elif self.pattern and value != self.default and not re.fullmatch(self.pattern, self.write(value)):
            raise refused(self.name, str(value), self.needed)
        return value


def word(name: str, *words: str, fixed: bool = False, launch: bool = False) -> Option:
    """An option that takes one of `words`, by default the first."""
    return Option(name, words[0], words, fixed=fixed, launch=launch)


def number(name: str, default: int = 0, *, launch: bool = False) -> Option:
    """An option that takes an integer."""
    return Option(name, default, pattern=r"\d{1,9}", needed="an integer", launch=launch)


#: As many multiprocessors as the chip is taken to have, so that each CTA of a small grid takes several tiles; 0 for its
#: own.
MULTIPROCESSORS = number("multiprocessors", launch=True)

#: Legal schedules under which each launch of the case runs on the executor; a GPU has its own. Some mistakes show under
#: the executor's own never, such as a barrier that is tried only once.
SCHEDULES = number("schedules", 1, launch=True)

#: 1 for launches that may start before what is in front of them has ended, as those of a layer by integer products do.
PROGRAMMATIC = number("programmatic", launch=True)


def byte(name: str, default: int) -> Option:
    """An option that takes a byte, written 0xFF."""
    return Option(name, default, pattern=r"0x[0-9A-Fa-f]{2}", needed="a byte such as 0xFF")


def triple(name: str, default: str, needed: str) -> Option:
    """An option that takes three extents, written 128x8x512. It decides only the launch."""
    return Option(name, default, pattern=r"\d{1,5}x\d{1,5}x\d{1,5}", needed=needed, launch=True)


def text(name: str) -> Option:
    """An option that takes any text, written with escapes."""
    return Option(name, "")


@dataclass(frozen=True, order=True)
class Shape:
    """Sizes of a case; a size that the family does not have is 0.

    Attributes:
        m: rows of the input: tokens, or for a GEMM and an activation rows in expert order, one expert each.
        k: elements of a row: of an activation's output, which is half as wide as its input.
        e: local experts.
        t: experts per token.
        n: weight rows of each expert; of a layer its intermediate size, k being the hidden one.
    """

    m: int
    k: int = 0
    e: int = 0
    t: int = 0
    n: int = 0

    def __str__(self) -> str:
        sizes = {"m": self.m, "k": self.k, "n": self.n, "e": self.e, "t": self.t}
        return "".join(f"{letter}{size}" for letter, size in sizes.items() if size or letter == "m")

    @property
    def rows(self) -> int:
        """Rows after routing: m for each of the t experts of a token."""
        return self.m * max(self.t, 1)

    @classmethod
    def read(cls, letters: str, written: str) -> Shape:
        """The shape of its text, for a family with the sizes `letters`.

        Raises:
            ArgumentError: other sizes, or in another order.
        """
        match = re.fullmatch("".join(rf"{letter}(?P<{letter}>\d{{1,10}})" for letter in letters), written)
        if match is None:
            raise refused("shape", written, "".join(f"{letter}<{_SIZE_WORDS[letter]}>" for letter in letters))
        return cls(**{letter: int(size) for letter, size in match.groupdict().items()})


@dataclass(frozen=True)
class Fields:
    """A repro string cut at its separators. The family says what the fields mean.

    Attributes:
        family, dtype, shape, fill: the first four fields.
        options: (name, text) of each option, in order.
        seed: of the data.
        device, arch: what stands behind the "@"; `arch` is "" where none is written.
    """

    family: str
    dtype: str
    shape: str
    fill: str
    options: tuple[tuple[str, str], ...]
    seed: int
    device: str
    arch: str

    def __str__(self) -> str:
        options = (f"{name}={value}" for name, value in self.options)
        head = ":".join((self.family, self.dtype, self.shape, self.fill, *options, f"seed{self.seed}"))
        return f"{head}@{self.device}" + (f".{self.arch}" if self.arch else "")

    @classmethod
    def read(cls, written: str) -> Fields:
        """The fields of a repro string.

        Raises:
            ArgumentError: a string without the fields that every case has.
        """
        head, at, place = written.strip().rpartition("@")
        if not at:
            raise refused("device", f"no '@' in {written!r}", "...@device or ...@device.arch at the end")
        device, dot, arch = place.partition(".")
        if dot and not arch:
            raise refused("arch", "nothing behind the '.'", "an arch such as sm_90a or sm_120a")
        fields = head.split(":")
        if len(fields) < 5:
            raise refused("fields", f"{len(fields)} of them in {written!r}", GRAMMAR)
        family, dtype, shape, fill, *options, seed = fields
        match = re.fullmatch(r"seed(0|[1-9][0-9]{0,17})", seed)
        if match is None:
            raise refused("seed", seed, "seedN, N an integer, as the last field")
        pairs: list[tuple[str, str]] = []
        for field in options:
            name, equals, value = field.partition("=")
            if not equals:
                raise refused("option", field, "name=value")
            if name in dict(pairs):
                raise refused(name, "it twice", "each option at most once")
            pairs.append((name, value))
        return cls(family, dtype, shape, fill, tuple(pairs), int(match[1]), device, arch)


def written_options(options: Iterable[Option], values: Mapping[str, Value]) -> tuple[tuple[str, str], ...]:
    """(name, text) of each option that does not have its default value; the others are left out."""
    return tuple((each.name, each.write(values[each.name])) for each in options if values[each.name] != each.default)


def refused(field: str, found: str, needed: str) -> ArgumentError:
    """The error for a field that a case cannot have."""
    return ArgumentError(f"case {field}", found if " " in found else repr(found), needed)


def one_of(words: Iterable[str]) -> str:
    """What is needed, where it is one of a few words."""
    return "one of " + ", ".join(words)
