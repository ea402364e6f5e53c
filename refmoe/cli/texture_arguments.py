"""Textures and surfaces as words: what `refmoe run --args` takes for their handles.

    texture:FILE.npy[:OPTION...]             a texture object over the array of a file
    surface:FILE.npy[:OUT.npy][:OPTION...]   a surface object; what the kernel leaves replaces FILE, or goes to OUT

An OPTION is kind=KIND (2d by default; linear is memory for tex1Dfetch), channels=N, and of textures address=MODE or
address=MODE,MODE,MODE, filter=MODE, read=MODE, border=NUMBER,NUMBER,NUMBER,NUMBER, normalized.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from refmoe.errors import ArgumentError
from refmoe.ptx import CudaArray, LinearMemory, SurfaceObject, TextureObject

OPTIONS_OF_ARRAYS = ("kind", "channels")
OPTIONS_OF_TEXTURES = ("address", "filter", "read", "border")
_NORMALIZED = "normalized"


def options(word: str, parts: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """The options in the parts of a word.

    Raises:
        ArgumentError: one that is none.
    """
    found: dict[str, str] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        if name not in known or name in found or (name == _NORMALIZED) == bool(equals):
            raise ArgumentError("--args", f"{part!r} in {word!r}", f"an option of {', '.join(known)}")
        found[name] = value
    return found


def texture(word: str, array: NDArray[Any], name: str, parts: Sequence[str]) -> TextureObject:
    """The texture object that a word means."""
    found = options(word, parts, (*OPTIONS_OF_ARRAYS, *OPTIONS_OF_TEXTURES, _NORMALIZED))
    array.flags.writeable = False
    colour = found.get("border", "0,0,0,0").split(",")
    modes = found.get("address", "clamp").split(",")
    try:
        border = tuple(float(each) for each in colour)
    except ValueError as error:
        raise ArgumentError("--args", f"border={','.join(colour)} in {word!r}", "four numbers") from error
    try:
        return TextureObject(
            _resource(word, array, name, found), modes[0] if len(modes) == 1 else modes, found.get("filter", "point"),
            found.get("read", "element_type"), _NORMALIZED in found, border,
        )  # fmt: skip
    except ArgumentError as error:
        raise ArgumentError("--args", f"{error.argument} {error.found} in {word!r}", error.needed) from error


def surface(word: str, array: NDArray[Any], name: str, parts: Sequence[str]) -> SurfaceObject:
    """The surface object that a word means."""
    found = options(word, parts, OPTIONS_OF_ARRAYS)
    try:
        resource = _resource(word, array, name, found)
        return SurfaceObject(resource)  # type: ignore[arg-type]  # It refuses linear memory.
    except ArgumentError as error:
        raise ArgumentError("--args", f"{error.argument} {error.found} in {word!r}", error.needed) from error


def _resource(word: str, array: NDArray[Any], name: str, found: dict[str, str]) -> CudaArray | LinearMemory:
    kind, channels = found.get("kind", "2d"), found.get("channels", "1")
    if not channels.isdecimal():
        raise ArgumentError("--args", f"channels={channels} in {word!r}", "1, 2 or 4")
    if kind == "linear":
        return LinearMemory(array, int(channels))
    return CudaArray(array, kind, int(channels), name)
