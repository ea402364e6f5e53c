"""What a launch is given: buffers, and arguments as bytes of the parameters."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from refmoe.errors import describe
from refmoe.native.addresses import address
from refmoe.ptx.errors import ArgumentMismatch
from refmoe.ptx.native import pages as native
from refmoe.ptx.native.pages import SIZES, TAKEN
from refmoe.ptx.program.handles import misfit
from refmoe.ptx.state.memory import Arena, Region, padded
from refmoe.ptx.state.pages import cleared, untouched
from refmoe.ptx.state.textures import Bound, CudaArray, Resource, SurfaceObject, TextureObject, argument_handle
from refmoe.ptx.text.scopes import type_bits
from refmoe.ptx.text.syntax import Function, Instruction, Variable

# Elements of a mask that are looked at together.
_AT_ONCE = 1 << 20


class WrittenBytes:
    """Which bytes of a buffer were written: none at first; each launch that ends well adds those that it wrote.

    An array of bool says the same, but each launch has to look at all of it, and to write what it wrote once more.
    These are of one buffer, and of one launch at a time.

    Attributes:
        size: bytes of the buffer.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        # uint8 [at least size], 0xFF for each that was written, else 0; None as long as none was. It is memory of
        # launches, which goes to later ones.
        self._valid: np.ndarray[Any, np.dtype[np.uint8]] | None = None
        # (first byte, byte behind the last) outside of which all of that is 0.
        self._ranges: list[tuple[int, int]] = []

    # Bound here: of the last objects of a process the module's names are gone already.
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            self._give_back()

    def __reduce__(self) -> NoReturn:
        # A copy, or one in another process, would give the same memory back once more.
        raise TypeError("WrittenBytes cannot be copied or pickled: each buffer needs one of its own")

    @property
    def empty(self) -> bool:
        """Whether no byte was written."""
        return self._valid is None

    def begin(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """uint8 [at least size], 0xFF for each byte that was written, for a launch to write in."""
        held: np.ndarray[Any, np.dtype[np.uint8]] = untouched((padded(self.size),))
        for begin, end in self._ranges:
            assert self._valid is not None
            held[begin:end] = self._valid[begin:end]
        return held

    def take(self, region: Region) -> None:
        """Keep what a launch that began with `begin` has left; the region does not say it any more."""
        valid, region.valid = region.valid, None
        assert region.journal is not None
        ranges = _union([*self._ranges, *region.journal.written])
        self._give_back()
        self._valid, self._ranges = valid, ranges

    def write(self, begin: int, end: int, valid: Any = 0xFF) -> None:
        """Bytes from `begin` on, before `end`, are written, or what `valid` says of each."""
        if self._valid is None:
            self._valid = untouched((padded(self.size),))
        self._valid[begin:end] = valid
        self._ranges = _union([*self._ranges, (begin, end)])

    def mask(self, begin: int = 0, end: int | None = None) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """The same for some bytes, or all, as bool [n]."""
        last = self.size if end is None else end
        return np.zeros(last - begin, bool) if self._valid is None else self._valid[begin:last] != 0

    def _give_back(self) -> None:
        if self._valid is not None:
            for begin, end in self._ranges:
                self._valid[begin:end] = 0
            cleared(self._valid, sum(end - begin for begin, end in self._ranges))
            self._valid, self._ranges = None, []


def _union(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same bytes as ranges in order that do not touch."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


@dataclass(frozen=True)
class Buffer:
    """Device memory for a pointer parameter.

    Attributes:
        array: C-contiguous; the launch reads it where it lies and, if it is `writable`, writes there too, page by page,
            and puts back what was there if it fails. (What is shorter than a page, or does not begin at a multiple of
            16 bytes, is copied, and written after the launch.)
        name: for messages.
        initialised: which bytes the kernel may read. True: all. False: none, and where such a read is not refused it
            gives poison. Or an array of bool in the array's shape, or `WrittenBytes`: a launch that ends well updates
            it, so that the next launch may read what this one wrote.
        writable: whether the kernel may write it.
        space: `"global"`, or `"const"` for constant memory, which no kernel may write.
        workspace: whether its bytes are no result. An undefined value may then be left in it, and counts as bytes that
            nobody wrote.
    """

    array: np.ndarray[Any, Any]
    name: str = "buffer"
    initialised: bool | np.ndarray[Any, Any] | WrittenBytes = True
    writable: bool = True
    space: str = "global"
    workspace: bool = False


def fit(buffer: Buffer, where: str, placed: Sequence[Buffer]) -> tuple[int, bool]:
    """(position among `placed`, whether it stands there already) of a buffer, which must fit in beside them.

    Raises:
        ArgumentMismatch: it does not.
    """
    array = buffer.array
    if not isinstance(array, np.ndarray):
        raise ArgumentMismatch(f"{where}: {describe(array)} in a Buffer; a NumPy array needed")
    if not array.flags.c_contiguous:
        raise ArgumentMismatch(f"{where}: {describe(array)} is not C-contiguous")
    if buffer.writable and not array.flags.writeable:
        raise ArgumentMismatch(f"{where}: a writable buffer over a read-only array")
    if isinstance(buffer.initialised, np.ndarray) and (
        buffer.initialised.shape != array.shape or buffer.initialised.dtype != np.bool_
    ):
        raise ArgumentMismatch(f"{where}: initialised is {describe(buffer.initialised)} for {describe(array)}")
    if isinstance(buffer.initialised, WrittenBytes) and buffer.initialised.size != array.nbytes:
        found = f"those of {buffer.initialised.size} bytes"
        raise ArgumentMismatch(f"{where}: initialised is {found} for {describe(array)}")
    for position, other in enumerate(placed):
        shared = isinstance(buffer.initialised, WrittenBytes) and buffer.initialised is other.initialised
        if shared and array is not other.array:
            raise ArgumentMismatch(f"{where}: its WrittenBytes are those of {other.name}; it needs its own")
        if array.size and other.array.size and np.shares_memory(array, other.array):
            same = array.ctypes.data == other.array.ctypes.data and array.nbytes == other.array.nbytes
            if same and buffer.writable == other.writable and buffer.initialised is other.initialised:
                return position, True
            if same and not buffer.writable and not other.writable:
                return position, True
            if buffer.writable or other.writable:
                raise ArgumentMismatch(f"{where}: its array overlaps that of {other.name}")
    return len(placed), False


def bind(
    entry: Function,
    args: Sequence[Any],
    living: Sequence[Buffer] | None,
    arena: Arena,
    parameters: Region,
    offsets: dict[str, int],
    objects: Mapping[int, TextureObject | SurfaceObject],
    handles: Mapping[str, Sequence[Instruction]],
) -> tuple[list[tuple[Buffer, Region]], dict[int, Bound]]:
    """Put the buffers that live on, and then those among `args`, into the arena, and all arguments into the parameters.

    `objects` are the texture and surface objects that live on, by their handles; `handles` are the instructions that
    take one from a parameter. What comes back are the buffers, and all objects of the launch.

    Raises:
        ArgumentMismatch: an argument that does not fit its parameter.
    """
    if len(args) != len(entry.parameters):
        raise ArgumentMismatch(f"{entry.name} has {len(entry.parameters)} parameters; {len(args)} arguments given")
    bound = [(buffer, _region(buffer, arena)) for buffer in living or ()]
    known_objects = {handle: _object(each, "an object", bound, arena) for handle, each in objects.items()}
    for position, (variable, argument) in enumerate(zip(entry.parameters, args, strict=True)):
        where = f"argument {position} ({variable.name}) of {entry.name}"
        if isinstance(argument, np.ndarray) and argument.ndim:
            argument = Buffer(argument, f"argument {position}")
        if isinstance(argument, TextureObject | SurfaceObject):
            if variable.size != 8 or variable.pointer or variable.type not in ("u64", "b64", "s64"):
                kind = "pointer" if variable.pointer else f".{variable.type} of {variable.size} bytes"
                raise ArgumentMismatch(f"{where}: a {type(argument).__name__} for a {kind}")
            handle = argument_handle(position)
            known_objects[handle] = _object(argument, where, bound, arena)
            content = handle.to_bytes(8, "little")
        elif isinstance(argument, CudaArray | Resource):
            needed = "a TextureObject or a SurfaceObject over it needed"
            raise ArgumentMismatch(f"{where}: a {type(argument).__name__}; {needed}")
        elif isinstance(argument, Buffer):
            if variable.size != 8:
                raise ArgumentMismatch(f"{where}: a buffer for a parameter of {variable.size} bytes")
            content = _placed(argument, where, bound, arena).base.to_bytes(8, "little")
        else:
            content = _scalar(variable, argument, where, living is not None)
        offset = offsets[variable.name]
        parameters.data[offset : offset + variable.size] = np.frombuffer(content, np.uint8)
    _check_handles(entry, handles, parameters, offsets, known_objects)
    return bound, known_objects


def _check_handles(
    entry: Function, handles: Mapping[str, Sequence[Instruction]], parameters: Region, offsets: dict[str, int],
    objects: Mapping[int, Bound],
) -> None:  # fmt: skip
    """Refuse what no lane could use where a kernel takes a texture or a surface."""
    made = {handle: each.object for handle, each in objects.items()}
    for position, variable in enumerate(entry.parameters):
        uses = handles.get(variable.name)
        if uses and variable.size == 8:
            offset = offsets[variable.name]
            handle = int.from_bytes(parameters.data[offset : offset + 8].tobytes(), "little")
            if why := misfit(uses, handle, made):
                raise ArgumentMismatch(f"argument {position} ({variable.name}) of {entry.name}: {why}")


def _placed(buffer: Buffer, where: str, bound: list[tuple[Buffer, Region]], arena: Arena) -> Region:
    """The region of a buffer, which may be in the arena already."""
    place, known = fit(buffer, where, [each for each, _ in bound])
    if not known:
        bound.append((buffer, _region(buffer, arena)))
    return bound[place][1]


def buffer_of(resource: Resource) -> Buffer | int:
    """The memory with the texels of a texture or surface, or its address."""
    if isinstance(resource, CudaArray):
        return Buffer(resource.data, resource.name, resource.initialised, resource.data.flags.writeable)
    memory = resource.memory
    if isinstance(memory, np.ndarray):
        return Buffer(memory, "texture memory", writable=memory.flags.writeable)
    found: Buffer | int = memory
    return found


def _object(made: TextureObject | SurfaceObject, where: str, bound: list[tuple[Buffer, Region]], arena: Arena) -> Bound:
    """An object with the memory of its texels.

    Raises:
        ArgumentMismatch: there is no such memory.
    """
    memory, texels = buffer_of(made.resource), made.resource.texels
    if isinstance(memory, Buffer):
        region = _placed(memory, where, bound, arena)
        if isinstance(made, SurfaceObject) and not region.writable:
            raise ArgumentMismatch(f"{where}: a surface over {region.name}, which is read-only")
        return Bound(made, region, region.base)
    found = arena.window(memory)
    if found is None or found.space == "param" or memory - found.base + texels.size > found.size:
        raise ArgumentMismatch(f"{where}: {texels} at 0x{memory:X}, where the launch has no such memory")
    return Bound(made, found, memory)


def _region(buffer: Buffer, arena: Arena) -> Region:
    initialised, valid, unwritten = buffer.initialised, None, False
    if isinstance(initialised, WrittenBytes):
        valid, unwritten, initialised = initialised.begin(), initialised.empty, True
    elif isinstance(initialised, np.ndarray):
        unwritten = not initialised.any()
        if unwritten:
            valid = untouched((padded(buffer.array.nbytes),))
        elif not initialised.all():
            valid = bytes_of_mask(initialised.reshape(-1), buffer.array.itemsize)
        initialised = True
    return arena.add(
        buffer.name, buffer.space, _bytes(buffer.array), buffer.array.nbytes, valid, initialised, buffer.writable,
        in_place=True, unwritten=unwritten,
    )  # fmt: skip


def _bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of a C-contiguous array, without copying them."""
    return np.asarray(array).reshape(-1).view(np.uint8)


def bytes_of_mask(mask: np.ndarray[Any, np.dtype[np.bool_]], size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """0xFF for each byte of the elements, of `size` bytes, at which bool [n] is on; 0 costs nothing."""
    valid: np.ndarray[Any, np.dtype[np.uint8]] = untouched((padded(mask.size * size),))
    for begin in range(0, mask.size, _AT_ONCE):
        part = mask[begin : begin + _AT_ONCE]
        if part.any():
            of_bytes = np.repeat(part, size).view(np.uint8) * np.uint8(255)
            valid[begin * size : begin * size + of_bytes.size] = of_bytes
    return valid


@dataclass(frozen=True)
class Written:
    """What a launch left in a part of a buffer.

    Attributes:
        begin: byte of the buffer at which the part begins.
        data: uint8 [n], its bytes.
        first: the first element that has a byte in the part.
        valid: uint8 [m, item size], 0xFF for each initialised byte of the elements from `first` on, else 0; None where
            all are initialised.
    """

    begin: int
    data: np.ndarray[Any, np.dtype[np.uint8]]
    first: int
    valid: np.ndarray[Any, np.dtype[np.uint8]] | None

    @property
    def end(self) -> int:
        """The byte behind the last."""
        return self.begin + self.data.size


def parts_written(buffer: Buffer, region: Region) -> Iterator[Written]:
    """What a launch that ended well may have changed in a buffer, without copies, in order."""
    size = buffer.array.itemsize
    whole = [(0, buffer.array.nbytes)] if region.journal is None else region.journal.written
    for start, stop in whole:
        for begin in range(start, stop, _AT_ONCE):
            end = min(begin + _AT_ONCE, stop)
            first, last = begin // size, -(-end // size)
            valid = None
            if region.valid is not None:
                valid = region.valid[first * size : last * size].reshape(-1, size)
            yield Written(begin, region.data[begin:end], first, valid)


def write_back(buffer: Buffer, parts: Iterable[Written]) -> None:
    """Give the caller what a launch that ended well left in parts of a buffer: bytes, and which are initialised."""
    array, mask, size = _bytes(buffer.array), buffer.initialised, buffer.array.itemsize
    for part in parts:
        if not np.may_share_memory(array, part.data):
            array[part.begin : part.end] = part.data
        if isinstance(mask, WrittenBytes) and part.valid is not None:
            before = part.first * size
            mask.write(part.begin, part.end, part.valid.reshape(-1)[part.begin - before : part.end - before])
        elif isinstance(mask, np.ndarray) and part.valid is not None:
            _whole_elements(part.valid, out=mask.reshape(-1)[part.first : part.first + len(part.valid)])


def hand_over(buffer: Buffer, region: Region) -> None:
    """`write_back` of all that a launch wrote, where nobody asks the region any more which bytes are initialised."""
    mask, journal = buffer.initialised, region.journal
    if isinstance(mask, WrittenBytes) and journal is not None:
        mask.take(region)
        return
    if not (isinstance(mask, np.ndarray) and region.unwritten and journal is not None):
        write_back(buffer, parts_written(buffer, region))
        return
    assert region.valid is not None
    size = buffer.array.itemsize
    written = journal.written
    out = mask.reshape(-1)
    for begin, end in written:
        # Of a page, and so of what lies between two, an element of so many bytes never has a part.
        first, groups = begin // size, (end - begin) // size // TAKEN if size in SIZES else 0
        rest = begin + groups * TAKEN * size
        if groups:
            native.functions().take[size](address(region.valid[begin:]), address(out[first:]), groups)
        first, last = rest // size, -(-end // size)
        held = region.valid[first * size : last * size]
        _whole_elements(held.reshape(-1, size), out=out[first:last])
        held[:] = 0
    region.give_valid(sum(end - begin for begin, end in written))


def _whole_elements(valid: np.ndarray[Any, np.dtype[np.uint8]], out: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
    """Into `out`, bool [m], which elements have no byte of uint8 [m, item size] that is 0; the others are 0xFF."""
    size = valid.shape[1]
    if size in (1, 2, 4, 8):
        # One comparison of words: reducing short rows takes ten times as long.
        words = valid.reshape(-1).view(f"u{size}")
        np.equal(words, np.iinfo(words.dtype).max, out=out)
    else:
        np.all(valid, axis=1, out=out)


def _scalar(variable: Variable, argument: Any, where: str, by_address: bool) -> bytes:
    """The bytes of an argument that is no buffer. `by_address`: a pointer may be a number, the address of memory."""
    if argument is None:
        if variable.size != 8:
            raise ArgumentMismatch(f"{where}: None for a parameter of {variable.size} bytes")
        return bytes(8)
    if isinstance(argument, bytes | bytearray):
        if len(argument) != variable.size:
            raise ArgumentMismatch(f"{where}: {len(argument)} bytes for a parameter of {variable.size}")
        return bytes(argument)
    bits = type_bits(variable.type)
    number = argument.item() if isinstance(argument, np.generic | np.ndarray) else argument
    refused = variable.pointer and not (by_address and isinstance(number, int))
    if not isinstance(number, bool | int | float) or variable.size * 8 != bits or refused:
        kind = "pointer" if variable.pointer else f".{variable.type} of {variable.size} bytes"
        # A tensor of another library has a shape, as an array has.
        needed = "; a NumPy array or a Buffer needed" if variable.pointer and hasattr(argument, "shape") else ""
        raise ArgumentMismatch(f"{where}: {describe(argument)} for a {kind}{needed}")
    if isinstance(number, float) or variable.type in ("f32", "f64"):
        if variable.type[0] not in "fb" or bits not in (32, 64):
            raise ArgumentMismatch(f"{where}: {describe(argument)} for a .{variable.type}")
        try:
            return struct.pack("<f" if bits == 32 else "<d", float(number))
        except OverflowError as error:
            raise ArgumentMismatch(f"{where}: {number} does not fit .{variable.type}") from error
    if not -(1 << (bits - 1)) <= number < (1 << bits):
        raise ArgumentMismatch(f"{where}: {number} does not fit .{variable.type}")
    return (int(number) & ((1 << bits) - 1)).to_bytes(bits // 8, "little")
