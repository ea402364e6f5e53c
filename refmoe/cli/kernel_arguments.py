"""Arguments of a kernel as words: what `refmoe run --args` takes.

    in:FILE.npy                     an array that the kernel reads
    inout:FILE.npy[:OUT.npy]        one that it also writes; the result replaces FILE, or goes to OUT
    out:FILE.npy:TYPE:SHAPE[:fill=BYTE]
                                    one that it writes: nothing in it counts as initialised, and bytes that it leaves
                                    alone hold 0xCD, unless `fill` writes it before the launch
    scratch:TYPE:SHAPE[:fill=BYTE]  likewise, not kept
    same:N                          the array of argument N, counted from 0, once more
    TYPE:VALUE                      a number: i32:-5, u64:0x10, f32:1.5
    bytes:FILE                      a parameter of struct type, the file as it is
    null                            a null pointer
    texture:FILE.npy[:OPTION...]    a texture object, see `refmoe.cli.texture_arguments`
    surface:FILE.npy[:OUT.npy][:OPTION...]
                                    a surface object; what the kernel leaves replaces FILE, or goes to OUT

TYPE is one of u8 u16 u32 u64 i8 i16 i32 i64 f16 f32 f64; BF16, FP8 and FP4 are the u16 and u8 of their bits. SHAPE is
`1024x16`.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.cli.texture_arguments import surface, texture
from refmoe.errors import ArgumentError
from refmoe.files import read_npy, write_atomic
from refmoe.ptx import Buffer, SurfaceObject
from refmoe.ptx.state.pages import POISON

Array = NDArray[Any]
TYPES: dict[str, type[np.generic]] = {
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
    "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "f16": np.float16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip
_FORMS = (
    "in:FILE, inout:FILE, out:FILE:TYPE:SHAPE, scratch:TYPE:SHAPE, same:N, TYPE:VALUE, bytes:FILE, texture:FILE, "
    "surface:FILE or null"
)


@dataclass(frozen=True)
class Argument:
    """One argument.

    Attributes:
        word: as written.
        value: what `refmoe.ptx.launch` takes: a `Buffer`, the bytes of a number or a struct, a texture or surface
            object, or None.
        output: file that its array goes to, or None.
        number: type of a number, or None.
    """

    word: str
    value: Any
    output: Path | None = None
    number: str | None = None


def read_arguments(words: Sequence[str]) -> tuple[Argument, ...]:
    """The arguments that words stand for; files are read.

    Raises:
        ArgumentError: a word of no known form, a file that is no array, an output that no file can take.
    """
    arguments: list[Argument] = []
    for word in words:
        head, _, rest = word.partition(":")
        if head == "same":
            arguments.append(_same(word, rest, arguments))
        elif head in TYPES:
            arguments.append(Argument(word, _number(word, head, rest), number=head))
        elif word == "null":
            arguments.append(Argument(word, None))
        elif head in _READERS and rest:
            arguments.append(_READERS[head](word, rest))
        else:
            raise ArgumentError("--args", repr(word), _FORMS)
    outputs = [argument.output.resolve() for argument in arguments if argument.output is not None]
    for output in outputs:
        if output.is_dir():
            raise ArgumentError("--args", f"an output into the folder {output}", "a file")
        if outputs.count(output) > 1:
            raise ArgumentError("--args", f"two outputs into {output}", "a file for each")
    return tuple(arguments)


def write_outputs(arguments: Sequence[Argument]) -> list[dict[str, Any]]:
    """Write the output arrays as .npy files; for each its file, type, shape and elements that nobody wrote."""
    written = []
    for argument in arguments:
        if argument.output is None:
            continue
        value = argument.value
        if isinstance(value, SurfaceObject):
            value = Buffer(value.resource.data, value.resource.name)
        array, initialised = value.array, value.initialised
        unwritten = int((~initialised).sum()) if isinstance(initialised, np.ndarray) else 0
        content = io.BytesIO()
        np.save(content, array, allow_pickle=False)
        write_atomic(argument.output, content.getvalue())
        file = {"file": str(argument.output), "dtype": str(array.dtype), "shape": list(array.shape)}
        written.append({**file, "unwritten": unwritten})
    return written


def _load(word: str, path: str) -> Array:
    try:
        array = read_npy(path)
    except ValueError as error:
        raise ArgumentError("--args", f"{word!r}: {error}", "a .npy file") from error
    if not isinstance(array, np.ndarray) or array.dtype.hasobject:
        raise ArgumentError("--args", f"{word!r}: {type(array).__name__}", "a .npy file with one array of numbers")
    if array.dtype.newbyteorder("<") != array.dtype:
        raise ArgumentError("--args", f"{word!r}: {array.dtype.str}", "little-endian numbers, as the kernel reads them")
    return np.ascontiguousarray(array)


def _input(word: str, rest: str) -> Argument:
    return Argument(word, Buffer(_load(word, rest), rest, writable=False))


def _input_output(word: str, rest: str) -> Argument:
    source, _, target = rest.partition(":")
    return Argument(word, Buffer(_load(word, source), source), Path(target or source))


def _texture(word: str, rest: str) -> Argument:
    source, *parts = rest.split(":")
    return Argument(word, texture(word, _load(word, source), source, parts))


def _surface(word: str, rest: str) -> Argument:
    source, *parts = rest.split(":")
    target = parts.pop(0) if parts and "=" not in parts[0] else source
    return Argument(word, surface(word, _load(word, source), source, parts), Path(target))


def _output(word: str, rest: str) -> Argument:
    name, _, rest = rest.partition(":")
    return Argument(word, _fresh(word, name, rest), Path(name))


def _scratch(word: str, rest: str) -> Argument:
    return Argument(word, replace(_fresh(word, "scratch", rest), workspace=True))


def _fresh(word: str, name: str, rest: str) -> Buffer:
    """A new array, TYPE:SHAPE[:fill=BYTE]."""
    parts = rest.split(":")
    fill = None
    if len(parts) == 3 and parts[2].startswith("fill="):
        fill = _integer(parts.pop().removeprefix("fill="))
        if fill is None or not 0 <= fill <= 255:
            raise ArgumentError("--args", repr(word), "fill=BYTE with a byte from 0 to 255")
    sizes = [_integer(size) for size in parts[-1].split("x")]
    if len(parts) != 2 or parts[0] not in TYPES or any(size is None or size < 0 for size in sizes):
        raise ArgumentError("--args", repr(word), f"TYPE:SHAPE with a TYPE of {' '.join(TYPES)} and a SHAPE as 1024x16")
    shape = tuple(size for size in sizes if size is not None)
    dtype = np.dtype(TYPES[parts[0]])
    try:
        held = np.full((*shape, dtype.itemsize), POISON if fill is None else fill, np.uint8)
    except (MemoryError, ValueError) as error:
        raise ArgumentError("--args", repr(word), f"an array that fits in memory ({error})") from error
    # The launch notes in the mask what it wrote.
    initialised: bool | Array = np.zeros(shape, bool) if fill is None else True
    return Buffer(held.reshape(-1).view(dtype).reshape(shape), name, initialised)


def _struct(word: str, rest: str) -> Argument:
    try:
        return Argument(word, Path(rest).read_bytes())
    except OSError as error:
        raise ArgumentError("--args", f"{word!r}: {error.strerror}", "a file") from error


def _same(word: str, rest: str, before: Sequence[Argument]) -> Argument:
    number = _integer(rest)
    if number is None or not 0 <= number < len(before) or not isinstance(before[number].value, Buffer):
        raise ArgumentError("--args", repr(word), "the number of an array in front of it, counted from 0")
    return Argument(word, before[number].value)


def _number(word: str, kind: str, rest: str) -> bytes:
    """The bytes of a number of exactly this type."""
    dtype = np.dtype(TYPES[kind])
    if kind[0] == "f":
        try:
            number = float(rest)
        except ValueError as error:
            raise ArgumentError("--args", repr(word), f"{kind}: and a number") from error
        with np.errstate(over="ignore"):
            rounded = np.array(number, dtype)
        if math.isfinite(number) and not np.isfinite(rounded):
            raise ArgumentError("--args", repr(word), f"a number of at most {np.finfo(dtype).max}")
        return rounded.tobytes()
    value = _integer(rest)
    limits = np.iinfo(dtype)
    if value is None or not limits.min <= value <= limits.max:
        raise ArgumentError("--args", repr(word), f"{kind}: and an integer from {limits.min} to {limits.max}")
    return np.array(value, dtype).tobytes()


def _integer(text: str) -> int | None:
    """A decimal, hexadecimal, octal or binary integer."""
    try:
        return int(text, 0)
    except ValueError:
        return None


_READERS = {
    "in": _input, "inout": _input_output, "out": _output, "scratch": _scratch, "bytes": _struct, "texture": _texture,
    "surface": _surface,
}  # fmt: skip
