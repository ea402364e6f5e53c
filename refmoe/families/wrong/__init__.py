"""Calls that refmoe's own host code has to refuse: one argument of a sound call is damaged.

A family lists them as `argument-damage`. They are cases like any other, with `wrong=x-dtype` in the repro string. Such
a case is refused as the case list says only if the host function raises `ArgumentError`, the error names the argument,
and no kernel was launched. It is a claim about refmoe's host functions. Kernels of users and of the museum are not held
to it.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import RefmoeError
from refmoe.families.case import Option, one_of, refused
from refmoe.families.wrong.defaults import DEFAULTS
from refmoe.families.wrong.results import check_result

if TYPE_CHECKING:
    from refmoe.cuda.device import Device, LaunchRecord

_NONE = "none"


class Sound(Protocol):
    """What is asked here of a `Case`, which stands a floor higher: its family, its options and a copy with others."""

    @property
    def family(self) -> Any:
        """See `Case`."""

    def get(self, name: str, default: Any = ...) -> Any:
        """See `Case`."""

    def having(self, **values: Any) -> Any:
        """See `Case`."""

    def __getattr__(self, name: str) -> Any: ...


#: Whatever a family lists its calls as: what comes in goes out.
AnyCase = TypeVar("AnyCase", bound=Sound)

#: What is wrong with the call, `argument-damage`; a whole default level has few cases of one argument.
WRONG = Option(
    "wrong",
    _NONE,
    pattern=r"none|[a-z0-9_]+(\[[0-9]\])?-[a-z0-9_]+",
    needed="argument-damage, such as x-dtype",
    launch=True,
)

#: More rows than int32 counts, and elements of a row more than it has bytes of scale atoms for.
MANY, LONG = 1 << 31, 1 << 30

#: Bytes that no machine has.
_TOO_MUCH = 1 << 42

Arguments = Mapping[str, Any]
Damage = Callable[[Any], Any]
#: Of the other arguments too: what becomes of them.
Change = Callable[[Arguments], Arguments]


class NotRefused(RefmoeError):
    """A call that had to be refused went on to the device, or ended in an error that says nothing to the caller."""


# --- damages --------------------------------------------------------------------------------------------------------


def _other_type(array: Any) -> Any:
    """The same numbers in a type that no argument has."""
    width = {"i": np.int64, "u": np.int8}.get(array.dtype.kind, np.float64)
    return array.astype(np.int32 if array.dtype == np.int64 else np.uint8 if array.dtype == np.int8 else width)


def _strided(array: Any) -> Any:
    """The same array, every other element of one twice as wide."""
    return np.repeat(array, 2, axis=-1)[..., ::2]


def huge(shape: tuple[int, ...], like: Any) -> Any:
    """A contiguous array that takes no memory until it is touched."""
    from refmoe.ptx.state.pages import untouched

    count = int(np.prod(shape, dtype=np.int64))
    return np.asarray(untouched((count * like.itemsize,))).view(like.dtype).reshape(shape)


def many_experts() -> NDArray[np.int64]:
    """Offsets of so many experts without rows that int32 does not count their padded rows of scales."""
    return np.zeros(17 << 20, np.int64)


def _element(place: int, value: Callable[[Any], Any]) -> Damage:
    """A copy of an array with another element; of a number, another number."""

    def changed(given: Any) -> Any:
        if not isinstance(given, np.ndarray):
            return value(given)
        copy = given.copy()
        copy.reshape(-1)[place] = value(copy)
        return copy

    return changed


#: Of every array: no array, another type, another rank, elements with gaps between.
ARRAY = "list dtype rank strided"
#: Of the byte that output buffers hold before the launch.
BYTE = "negative byte fraction"

#: What can be wrong with an argument, whichever it is.
DAMAGES: Mapping[str, Damage] = {
    # Of arrays.
    "list": lambda array: array.tolist(),
    "none": lambda given: None,
    "dtype": _other_type,
    "rank": lambda array: array[None],
    "flat": lambda array: array.reshape(-1),
    "scalar": lambda array: np.zeros((), array.dtype),
    "short": lambda array: array[:-1].copy(),
    "long": lambda array: np.concatenate([array, array[-1:]]),
    "narrow": lambda array: array[..., :-1].copy(),
    "wide": lambda array: np.concatenate([array, array[..., -1:]], axis=-1),
    "no_rows": lambda array: array[:0].copy(),
    "no_middle": lambda array: array[:, :0].copy(),
    "no_columns": lambda array: array[..., :0].copy(),
    "one": lambda array: array[:1].copy(),
    "strided": _strided,
    "many_rows": lambda array: huge((MANY, *array.shape[1:]), array),
    # Rows that int32 counts, and not a step past the last of them.
    "most_rows": lambda array: huge((MANY - 64, *array.shape[1:]), array),
    "giga_rows": lambda array: huge((MANY // 2, *array.shape[1:]), array),
    "long_rows": lambda array: huge((*array.shape[:-2], 1, LONG), array),
    # Of their elements.
    "negative": _element(0, lambda given: -1),
    "below": _element(0, lambda given: -2),
    "nan": _element(0, lambda given: np.float32("nan")),
    "past": _element(0, lambda given: given.size if isinstance(given, np.ndarray) else given + 1),
    "huge": _element(-1, lambda given: (1 << 31) - 1),
    "first": _element(0, lambda given: given.flat[0] + 1),
    "last": _element(-1, lambda given: given.flat[-1] + 1),
    "twice": _element(0, lambda given: given.flat[1]),
    "falling": lambda array: array[::-1].copy(),
    "read_only": lambda array: _read_only(array),
    # Of words and numbers.
    "word": lambda given: "nonesuch",
    "number": lambda given: 3,
    "fraction": lambda given: 1.5,
    "infinite": lambda given: float("inf"),
    "flag": lambda given: True,
    "zero": lambda given: 0,
    "byte": lambda given: 256,
    "int32": lambda given: 1 << 31,
    "text": lambda given: "1",
    # Of sequences.
    "fewer": lambda given: given[:-1],
}


def _read_only(array: Any) -> Any:
    view = array.copy()
    view.setflags(write=False)
    return view


# --- what a family lists --------------------------------------------------------------------------------------------


def is_wrong(case: Sound) -> bool:
    """Whether the case is a call that has to be refused."""
    return bool(case.get("wrong", _NONE) != _NONE)


def wrong_calls(base: AnyCase, says: Mapping[str, str] | None = None, /, **damages: str) -> Iterator[AnyCase]:
    """The cases of a sound call with one argument damaged.

    Args:
        base: the sound call; it does not run.
        says: by `argument-damage` what the refusal has to say, where that is not just the argument's name.
        damages: by argument the words of `DAMAGES` or of the family's own, with spaces between. An element of a
            sequence is `quant_scales__0`.

    Raises:
        ArgumentError: no such damage.
    """
    for name, words in damages.items():
        argument = re.sub(r"__(\d)$", r"[\1]", name)
        for word in words.split():
            wrong = f"{argument}-{word}"
            yield base.having(wrong=wrong, refusal=(says or {}).get(wrong, f"{argument}: found"))


def check_wrong(case: Sound) -> None:
    """Refuse a damage that there is not, and one of a kernel that is not refmoe's own.

    Raises:
        ArgumentError: either.
    """
    if not is_wrong(case):
        return
    wrong = str(case.wrong)
    if case.family.base:
        raise refused("wrong", wrong, "none: refmoe's own host code alone is held to refusals")
    word = wrong.partition("-")[2]
    if wrong not in case.family.changes and word not in DAMAGES:
        raise refused("wrong", wrong, f"a damage that is {one_of(DAMAGES)}")


# --- the call -------------------------------------------------------------------------------------------------------


def called(case: Sound, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, called as the case has it: without what is at its default, or with the damaged argument.

    A caller leaves out what has its default. So does a case, and defaults are part of what is compared.

    Args:
        case: the case. If its damage is of an argument that this function does not have, it is called as it is.
        function: one of `refmoe.cuda`, which the family calls with sound arguments.
    """
    if not is_wrong(case):
        return without_defaults(function)

    @functools.wraps(function)
    def damaged(*given: Any, **named: Any) -> Any:
        arguments = _by_name(function, given, named)
        wrong = str(case.wrong)
        if wrong in case.family.changes:
            return function(**{**arguments, **case.family.changes[wrong](arguments)})
        argument, _, word = wrong.partition("-")
        name, at = re.fullmatch(r"([^\[]+)(?:\[(\d)\])?", argument).groups()  # type: ignore[union-attr]
        if name not in arguments:
            return function(*given, **named)
        value = arguments[name]
        if at is None:
            changed = DAMAGES[word](value)
        else:
            changed = [DAMAGES[word](each) if place == int(at) else each for place, each in enumerate(value)]
        return function(**{**arguments, name: changed})

    return damaged


def defaults_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """What a caller may leave out: of a function of `refmoe.cuda` as `DEFAULTS` has it, whatever the function says."""
    return DEFAULTS.get(_name(function), {})


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__.removeprefix('refmoe.cuda.')}.{function.__qualname__}"


def without_defaults(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is not given those of its named arguments that are at their defaults.

    Raises:
        RefmoeError: the types of what it returns are none that `RESULTS` promises.
    """
    defaults = defaults_of(function)

    @functools.wraps(function)
    def left(*given: Any, **named: Any) -> Any:
        result = function(*given, **{name: value for name, value in named.items() if not _is_default(name, value)})
        # A family's own functions hand what they are given to one of these.
        if function.__module__.startswith("refmoe.cuda."):
            check_result(_name(function), result, _by_name(function, given, named, defaults=False))
        return result

    def _is_default(name: str, value: Any) -> bool:
        return name in defaults and type(value) is type(defaults[name]) and bool(value == defaults[name])

    return left


def _by_name(
    function: Callable[..., Any], given: tuple[Any, ...], named: Mapping[str, Any], *, defaults: bool = True
) -> dict[str, Any]:
    """The arguments of a call by the names of the function's parameters, `defaults` included or not."""
    bound = inspect.signature(function).bind(*given, **named)
    if defaults:
        bound.apply_defaults()
    arguments = dict(bound.arguments)
    for parameter in bound.signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments |= arguments.pop(parameter.name, {})
    return arguments


class Untouched:
    """The device of a call that has to be refused: it plans as another one does, and runs nothing.

    Its buffers are names. A launch, and reading a buffer, end the call.

    Attributes:
        name, arch, multiprocessors, launches: those of the device that it stands for.
    """

    def __init__(self, inner: Device) -> None:
        self.name = inner.name
        self.arch: str = inner.arch
        self.multiprocessors: int = inner.multiprocessors
        self.launches: list[LaunchRecord] = inner.launches

    def upload(self, name: str, array: Any) -> Any:
        """The buffer's name; nothing is copied."""
        return name

    def output(self, name: str, shape: tuple[int, ...], fill: int, *, initialised: bool = False) -> Any:
        """The buffer's name; nothing is allocated.

        Raises:
            NotRefused: it is one of terabytes. Somebody who gets it waits for the refusal, or dies of it.
        """
        if (size := math.prod(shape)) >= _TOO_MUCH:
            raise NotRefused(f"the call had to be refused, and {size} bytes for its {name} were about to be asked for")
        return name

    def launch(self, plan: Any) -> None:
        """End the call.

        Raises:
            NotRefused: always.
        """
        raise NotRefused(f"the call had to be refused, and {plan.kernel.entry} was about to be launched")

    def download(self, buffer: Any) -> Any:
        """End the call.

        Raises:
            NotRefused: always.
        """
        raise NotRefused(f"the call had to be refused, and its buffer {buffer} was about to be read")
