"""Memory that outlives a launch: buffers, allocations and the variables of modules, each at an address of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from refmoe.errors import ArgumentError, describe
from refmoe.ptx.arguments import Buffer, WrittenBytes, buffer_of, fit
from refmoe.ptx.errors import ArgumentMismatch
from refmoe.ptx.module import Module
from refmoe.ptx.program.layout import code_address
from refmoe.ptx.state.pages import POISON, untouched
from refmoe.ptx.state.spaces import HEAP_BYTES, HEAP_NAME, PARAM_BASE, SHARED_WINDOW, WINDOW_BITS
from refmoe.ptx.state.textures import SurfaceObject, TextureObject, memory_handle
from refmoe.ptx.text.syntax import Variable

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
_WINDOW = 1 << WINDOW_BITS
# Windows below that of shared memory, without address 0 and the parameters.
_MOST = SHARED_WINDOW // _WINDOW - 2


class DeviceMemory:
    """What several launches have in common; give it to each of them.

    Every buffer has an address window of 2^40 bytes of its own, and its address, a multiple of 2^40, stays for the life
    of the memory: it may lie inside structs, arrays and tensor maps. A launch reads all buffers when it begins, and
    writes those that a kernel may write when it ends well; a launch that fails leaves everything as it was. Launches
    run one after another, so that each sees what the earlier ones wrote, and there is no race between two of them.

    A buffer is a caller's array (`place`), an allocation (`allocate`) or a variable of a module (`variable`). The
    `.global` variables of a module keep their values from launch to launch, and which bytes of an allocation were
    written is known from launch to launch too.

    >>> import numpy as np, refmoe
    >>> memory = refmoe.ptx.DeviceMemory()
    >>> address = memory.allocate(8, "pair")
    >>> memory.write(address, np.arange(1, dtype=np.uint32))
    >>> memory.written(address, 8).tolist()
    [True, True, True, True, False, False, False, False]
    """

    def __init__(self) -> None:
        self._buffers: list[Buffer] = []
        self._allocations: set[int] = set()
        # By module, which is kept: two modules may have variables of one name.
        self._variables: dict[tuple[int, str], int] = {}
        self._modules: dict[int, Module] = {}
        self._heap: int | None = None
        self._objects: dict[int, TextureObject | SurfaceObject] = {}
        self._handles = 0

    @property
    def objects(self) -> Mapping[int, TextureObject | SurfaceObject]:
        """The texture and surface objects that are not destroyed, by their handles."""
        return dict(self._objects)

    def create_object(self, made: TextureObject | SurfaceObject) -> int:
        """The handle of a texture or surface object, for structs and buffers (cudaCreateTextureObject).

        Raises:
            ArgumentError: the memory with its texels is none of this memory, or does not fit in.
        """
        if not isinstance(made, TextureObject | SurfaceObject):
            raise ArgumentError("made", describe(made), "a TextureObject or a SurfaceObject")
        memory = buffer_of(made.resource)
        if isinstance(memory, Buffer):
            if isinstance(made, SurfaceObject) and not memory.writable:
                raise ArgumentError("made", f"a surface over {memory.name}, which is read-only", "a writable array")
            self.place(memory)
        else:
            self._find(memory, made.resource.texels.size)
        handle = memory_handle(self._handles)
        # No handle is given twice, so that a stale one is found.
        self._handles += 1
        self._objects[handle] = made
        return handle

    def destroy_object(self, handle: int) -> None:
        """End a texture or surface object (cudaDestroyTextureObject); its memory stays.

        Raises:
            ArgumentError: there is no such object.
        """
        if handle not in self._objects:
            raise ArgumentError("handle", f"0x{handle:X}", "that of an object which is not destroyed")
        del self._objects[handle]

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The buffers, in the order in which they were placed."""
        return tuple(self._buffers)

    def place(self, buffer: Buffer) -> int:
        """The address of a buffer over the caller's array; the same array placed twice has one address.

        Raises:
            ArgumentError: it is not C-contiguous, read-only though writable, or overlaps another one.
        """
        try:
            place, known = fit(buffer, "buffer", self._buffers)
        except ArgumentMismatch as error:
            raise ArgumentError("buffer", error.message.removeprefix("buffer: "), "an array of its own") from error
        return _address(place) if known else self._add(buffer)

    def allocate(self, size: int, name: str = "allocation") -> int:
        """The address of `size` new bytes, none of them initialised, as cudaMalloc gives it.

        A launch may leave undefined values in them, such as the padding of a struct. Those count as bytes that nobody
        wrote.

        Raises:
            ArgumentError: a size that no allocation has.
        """
        if not 0 < size <= _WINDOW // 2:
            raise ArgumentError("size", f"{size} bytes", f"1 to {_WINDOW // 2}")
        address = self._add(Buffer(untouched((size,)), name, untouched((size,), np.bool_), workspace=True))
        self._allocations.add(address)
        return address

    def free(self, address: int) -> None:
        """End an allocation. Its address is never given again, so that a later access is a fault that names it.

        Raises:
            ArgumentError: no allocation begins there, or it was freed before.
        """
        if address not in self._allocations:
            raise ArgumentError("address", f"0x{address:X}", "the address of an allocation that is not freed")
        self._allocations.remove(address)
        place = _place(address)
        self._buffers[place] = Buffer(np.zeros(0, np.uint8), f"{self._buffers[place].name} (freed)")

    def heap(self) -> int:
        """The address of the heap that `malloc` of device code takes memory from; it lives on like all else here."""
        if self._heap is None:
            self._heap = self._add(
                Buffer(untouched((HEAP_BYTES,)), HEAP_NAME, untouched((HEAP_BYTES,), np.bool_), workspace=True)
            )
        return self._heap

    def variable(self, module: Module, name: str) -> int:
        """The address of a `.global` or `.const` variable of a module, as cudaGetSymbolAddress gives it.

        `write` to it sets a variable before a launch, as cudaMemcpyToSymbol does; a kernel cannot write a constant.

        Raises:
            ArgumentError: the module has no such variable.
        """
        variables = module.variables
        if name not in variables:
            known = ", ".join(variables) or "none"
            raise ArgumentError("name", describe(name), f"a variable of {module.name}, which has {known}")
        return self._variable(module, variables[name])

    def set_variables(self, module: Module, values: Mapping[str, Any]) -> dict[str, str]:
        """Write values into variables of a module, as cudaMemcpyToSymbol does.

        Args:
            module: whose variables they are.
            values: by the name of the variable, or by a part of it that no other has: an array, bytes, or a number of
                NumPy's. It may be shorter than the variable, whose other bytes are left.

        Returns:
            the whole name for each name in `values`.

        Raises:
            ArgumentError: there is no such variable, or it is too short.
        """
        names = {}
        for wanted, value in values.items():
            name = names[wanted] = _named(module, wanted)
            size = module.variables[name].size
            held = value if isinstance(value, bytes | bytearray | np.ndarray | np.generic) else None
            content = b"" if held is None else bytes(held) if isinstance(held, bytes | bytearray) else held.tobytes()
            if held is None or len(content) > size:
                found = f"{len(content)} bytes in {describe(value)}" if held is not None else describe(value)
                raise ArgumentError(wanted, found, f"an array or bytes, at most the {size} bytes that {name} has")
            self.write(self.variable(module, name), content)
        return names

    def _variable(self, module: Module, variable: Variable) -> int:
        """The address of a variable of a module, or of one of its functions."""
        module = module.owner
        name, variables = variable.name, module.variables
        key = (id(module), name)
        if key in self._variables:
            return self._variables[key]
        array = np.frombuffer(initial_bytes(variable), np.uint8).copy()
        constant = variable.space == "const"
        address = self._add(Buffer(array, name, writable=not constant, space="const" if constant else "global"))
        # Known from here on: variables may hold each other's addresses.
        self._variables[key] = address
        self._modules[id(module)] = module
        for offset, size, symbol, shift in variable.relocations:
            function = code_address(module.declared, symbol.name)
            if symbol.name in variables:
                held = self.variable(module, symbol.name)
            elif function is not None:
                held = function
            else:
                continue
            content = (held + symbol.offset >> shift).to_bytes(8, "little")[:size]
            array[offset : offset + size] = np.frombuffer(content, np.uint8)
        return address

    def variables(self, module: Module, wanted: Sequence[Variable]) -> dict[str, Any]:
        """Addresses of variables of a module by their names, uint64 scalars."""
        return {variable.name: np.uint64(self._variable(module, variable)) for variable in wanted}

    def write(self, address: int, data: Any) -> None:
        """Write bytes, or those of an array in C order, from an address on, as cudaMemcpyHostToDevice.

        Raises:
            ArgumentError: they do not lie in one buffer, or in one that is read-only for the host too.
        """
        raw = data if isinstance(data, bytes | bytearray | memoryview) else np.ascontiguousarray(data).tobytes()
        content = np.frombuffer(raw, np.uint8)
        buffer, first = self._find(address, content.size)
        if not buffer.array.flags.writeable:
            raise ArgumentError("address", f"0x{address:X} in {buffer.name}, a read-only array", "a writable one")
        _bytes(buffer)[first : first + content.size] = content
        if isinstance(buffer.initialised, WrittenBytes):
            buffer.initialised.write(first, first + content.size)
        elif isinstance(buffer.initialised, np.ndarray):
            # An element counts as initialised once all of its bytes were written: of one that a copy begins or ends
            # inside, what the rest holds is unknown.
            item = buffer.array.itemsize
            begin, end = -(-first // item), (first + content.size) // item
            buffer.initialised.reshape(-1)[begin:end] = True

    def read(self, address: int, size: int) -> Bytes:
        """A copy of `size` bytes from an address on, uint8 [size], as cudaMemcpyDeviceToHost.

        What nobody has written is poison (0xCD), see `written`.

        Raises:
            ArgumentError: they do not lie in one buffer.
        """
        buffer, first = self._find(address, size)
        content: Bytes = np.where(self.written(address, size), _bytes(buffer)[first : first + size], POISON)
        return content.astype(np.uint8)

    def written(self, address: int, size: int) -> Bools:
        """Which of `size` bytes from an address on are initialised, bool [size].

        Raises:
            ArgumentError: they do not lie in one buffer.
        """
        buffer, first = self._find(address, size)
        if isinstance(buffer.initialised, WrittenBytes):
            return buffer.initialised.mask(first, first + size)
        if not isinstance(buffer.initialised, np.ndarray):
            return np.full(size, buffer.initialised)
        return np.repeat(buffer.initialised.reshape(-1), buffer.array.itemsize)[first : first + size]

    def _add(self, buffer: Buffer) -> int:
        if len(self._buffers) >= _MOST:
            raise ArgumentError("memory", f"{_MOST} buffers in it, those that were freed too", "fewer")
        self._buffers.append(buffer)
        return _address(len(self._buffers) - 1)

    def _find(self, address: int, size: int) -> tuple[Buffer, int]:
        """(buffer, byte offset in it) of a range."""
        place, first = _place(address), address % _WINDOW
        if not 0 <= place < len(self._buffers):
            raise ArgumentError("address", f"0x{address:X}", "one in a buffer of this memory")
        buffer = self._buffers[place]
        if size < 0 or first + size > buffer.array.nbytes:
            found = f"{size} bytes from byte {first} of {buffer.name}"
            raise ArgumentError("address", found, f"a range inside its {buffer.array.nbytes} bytes")
        return buffer, first


def _named(module: Module, wanted: str) -> str:
    """The variable of a module of a name, or of a part of one.

    Raises:
        ArgumentError: none has it, or several.
    """
    variables = module.variables
    fitting = [wanted] if wanted in variables else [name for name in variables if wanted in name]
    if len(fitting) != 1:
        known = ", ".join(fitting or variables) or "none"
        raise ArgumentError("variables", repr(wanted), f"one variable of {module.name}, of {known}")
    return fitting[0]


def initial_bytes(variable: Variable) -> bytes:
    """What a module variable holds before anybody wrote to it; addresses in it are still zero."""
    return bytes(variable.size) if variable.initial is None else variable.initial.ljust(variable.size, b"\0")


def _bytes(buffer: Buffer) -> Bytes:
    raw: Bytes = buffer.array.reshape(-1).view(np.uint8)
    return raw


def _address(place: int) -> int:
    # The window of the kernel parameters comes first.
    return PARAM_BASE + ((place + 1) << WINDOW_BITS)


def _place(address: int) -> int:
    return (address >> WINDOW_BITS) - (PARAM_BASE >> WINDOW_BITS) - 1
