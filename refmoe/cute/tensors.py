"""Tensors as arguments: NumPy arrays as CuTe DSL sees them when it compiles, and the bytes it takes when it launches.

The DSL lowers a tensor to a struct: a pointer, then the dynamic numbers of its layout, sizes before strides. What is
static is in the code, so that an argument of a launch has to have the same static sizes and strides, and the alignment
and divisibility that the code takes for granted. Here all of that is checked; on a GPU the DSL does not.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from refmoe.cute.package import imported
from refmoe.errors import ArgumentError, describe
from refmoe.ptx import Buffer

#: Elements by the name of a NumPy or ml_dtypes type; the values are names of `cutlass`.
_ELEMENTS = {
    **{"bool": "Boolean", "int8": "Int8", "uint8": "Uint8", "int16": "Int16", "uint16": "Uint16"},
    **{"int32": "Int32", "uint32": "Uint32", "int64": "Int64", "uint64": "Uint64"},
    **{"float16": "Float16", "float32": "Float32", "float64": "Float64", "bfloat16": "BFloat16"},
    **{"float8_e4m3fn": "Float8E4M3FN", "float8_e5m2": "Float8E5M2", "float8_e8m0fnu": "Float8E8M0FNU"},
}


class Memory(Protocol):
    """Where buffers have their addresses."""

    def place(self, buffer: Any) -> int:
        """The address of a buffer's first byte."""


@dataclass(frozen=True, eq=False)
class GpuBuffer:
    """A buffer of a GPU: its addresses are asked of `tensor`, and those of its parts by the same parts of `array`.

    Attributes:
        tensor: of torch, uint8.
        array: as many bytes of the host's. None is ever written or read, so that they cost no memory.
    """

    tensor: Any
    array: NDArray[np.uint8]

    @classmethod
    def of(cls, tensor: Any) -> GpuBuffer:
        """The buffer of a tensor."""
        return cls(tensor, np.empty(tensor.numel(), np.uint8))


class GpuMemory:
    """The memory of a GPU, where every buffer has its address already."""

    def place(self, buffer: Any) -> int:
        """The address of a buffer's first byte.

        Raises:
            ArgumentError: an array of the host.
        """
        if not isinstance(buffer, GpuBuffer):
            raise ArgumentError("memory", describe(buffer.array), "a tensor with a refmoe.cute.GpuBuffer")
        return int(buffer.tensor.data_ptr())


@dataclass(frozen=True, eq=False)
class Tensor:
    """A NumPy array as an argument of a CuTe DSL function; see `tensor`.

    Attributes:
        array: what the kernel reads or writes, in NumPy's order of modes.
        element: the name of the element type in `cutlass`.
        align: bytes that the code may take the address to be a multiple of.
        static: modes whose sizes the code may know.
        divisibility: of sizes, by mode: what the code may take them to be multiples of.
        unit: whether the code may know which mode has the stride 1.
        innermost: which mode that is, where several have it; None for the last of more than one element, or the last.
        buffer: the buffer that the array is a view of, None for one of the executor's that is made of the array.
    """

    array: NDArray[Any]
    element: str
    align: int
    static: tuple[int, ...] = ()
    divisibility: tuple[tuple[int, int], ...] = ()
    unit: bool = True
    innermost: int | None = None
    buffer: Buffer | GpuBuffer | None = None

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements."""
        return tuple(stride // self.array.itemsize for stride in self.array.strides)

    def fake(self) -> Any:
        """What CuTe DSL compiles with: no data; sizes and strides are dynamic, those apart that are static."""
        cute, runtime, cutlass = imported("cutlass.cute"), imported("cutlass.cute.runtime"), imported("cutlass")
        multiples = dict(self.divisibility)
        sizes = [
            size if mode in self.static else cute.sym_int32(divisibility=multiples.get(mode, 1))
            for mode, size in enumerate(self.array.shape)
        ]
        unit = self._unit_mode() if self.unit else None
        # Bytes of alignment that rows keep: a stride has them where the innermost size is a multiple, too.
        elements = multiples.get(unit, 1) if unit is not None else 1
        strides = [
            1 if mode == unit else cute.sym_int64(divisibility=elements if stride % elements == 0 else 1)
            for mode, stride in enumerate(self.strides)
        ]
        return runtime.make_fake_tensor(
            getattr(cutlass, self.element), tuple(sizes), tuple(strides), assumed_align=self.align
        )

    def _unit_mode(self) -> int | None:
        """The innermost mode: that of stride 1; of several the named one, one of several elements, or the last."""
        sizes, ones = self.array.shape, [mode for mode, stride in enumerate(self.strides) if stride == 1]
        if self.innermost in ones:
            return self.innermost
        return next((mode for mode in reversed(ones) if sizes[mode] > 1), ones[-1] if ones else None)


def tensor(
    array: NDArray[Any] | Buffer,
    *,
    element: str | None = None,
    align: int | None = None,
    static: Sequence[int] = (),
    divisibility: Mapping[int, int] | None = None,
    unit: bool = True,
    innermost: int | None = None,
    buffer: Buffer | GpuBuffer | None = None,
) -> Tensor:
    """A NumPy array, or a view of one, as an argument of `refmoe.cute.compile` and of a launch.

    An array that is passed as it is becomes `tensor(array)`: sizes and strides are dynamic, but for the stride 1 of the
    innermost mode.

    Args:
        array: of any strides. A view is what it is a view of to the executor, so its base has to be C-contiguous. A
            `refmoe.ptx.Buffer` says what of its array is initialised, and what a kernel may write.
        element: the name of a type in `cutlass`, such as "Float8E4M3FN" for bytes; by default that of the dtype.
        align: bytes that the address is a multiple of; by default those of an element.
        static: modes whose sizes are compiled into the code.
        divisibility: by mode, what its size is a multiple of.
        unit: whether the code may know which mode has the stride 1; else all strides are dynamic.
        innermost: that mode, for an array in which modes of one element have the stride 1, too. By default it is that
            of more than one element, or the last.
        buffer: of which the array is a view, or of a GPU a view of its `array`.

    Raises:
        ArgumentError: no array, a dtype without an element of its own, or sizes that are not so divisible.
    """
    buffer = array if isinstance(array, Buffer) else buffer
    values = array.array if isinstance(array, Buffer) else array
    if not isinstance(values, np.ndarray) or values.ndim == 0:
        raise ArgumentError("array", describe(values), "a NumPy array of at least one mode, or a refmoe.ptx.Buffer")
    name = _ELEMENTS.get(values.dtype.name) if element is None else element
    if name is None:
        raise ArgumentError("array", describe(values), f"element=..., or a dtype of {', '.join(_ELEMENTS)}")
    width = getattr(getattr(imported("cutlass"), name, None), "width", None)
    if width is None or max(width, 8) != 8 * values.itemsize:
        raise ArgumentError("element", f"{name} of {width} bits for {values.dtype}", "one as wide as the dtype")
    multiples = dict(divisibility or {})
    for mode, multiple in multiples.items():
        if not 0 <= mode < values.ndim or values.shape[mode] % multiple:
            raise ArgumentError(
                "divisibility", f"{multiple} of mode {mode} of {describe(values)}", "one that divides it"
            )
    divisible = tuple(sorted(multiples.items()))
    return Tensor(values, name, align or values.itemsize, tuple(static), divisible, unit, innermost, buffer)


def as_tensor(value: Any) -> Tensor | None:
    """A value as a tensor if it is one: a `Tensor`, an array of at least one mode, or a buffer."""
    if isinstance(value, Tensor):
        return value
    is_array = isinstance(value, Buffer) or (isinstance(value, np.ndarray) and value.ndim > 0)
    return tensor(value) if is_array else None


class Packed:
    """The bytes of one lowered argument, which live as long as this does."""

    def __init__(self, content: bytes) -> None:
        self._content = ctypes.create_string_buffer(content, len(content))

    def __c_pointers__(self) -> list[int]:
        return [ctypes.addressof(self._content)]


def address_of(where: str, given: Tensor, memory: Memory) -> int:
    """The address of the array of an argument in a memory, in which it is placed if need be.

    Raises:
        ArgumentError: it is a view of what is not contiguous.
    """
    array, buffer = given.array, given.buffer
    if buffer is None:
        whole = array
        while not whole.flags.c_contiguous:
            if not isinstance(whole.base, np.ndarray):
                found = f"{describe(array)} with strides {array.strides}"
                raise ArgumentError(where, found, "a view of a contiguous array")
            whole = whole.base
        buffer = Buffer(whole, where, writable=whole.flags.writeable)
    offset = array.ctypes.data - buffer.array.ctypes.data
    if not 0 <= offset <= buffer.array.nbytes:
        raise ArgumentError(where, describe(buffer.array), f"the buffer that {describe(array)} is a view of")
    return memory.place(buffer) + offset


def pack_tensor(where: str, given: Tensor, compiled: Any, lowered: str, memory: Memory) -> Packed:
    """The struct of a tensor, as the code that was compiled with `compiled` takes it.

    Args:
        where: the argument, for messages.
        given: of this launch.
        compiled: the fake tensor that the code was compiled with.
        lowered: the type that it was lowered to, "!llvm.struct<(ptr<1>,struct<(struct<(i32,i32)>,struct<(i64)>)>)>".
        memory: where its array is, or will be.

    Raises:
        ArgumentError: a size, a stride, an address or an element that the code does not take.
    """
    if given.element != compiled.element_type.__name__:
        found = f"{given.element}, {describe(given.array)}"
        raise ArgumentError(where, found, f"elements of {compiled.element_type.__name__}, as it was compiled for")
    address = address_of(where, given, memory)
    if address % compiled._assumed_align:
        raise ArgumentError(where, f"the address 0x{address:X}", f"a multiple of {compiled._assumed_align} bytes")
    numbers = [
        address,
        *_dynamic(where, "sizes", given.array.shape, compiled.shape, given.array.shape),
        *_dynamic(where, "strides", given.strides, compiled.stride, given.array.shape),
    ]
    leaves = re.findall(r"\bptr\b|\bi\d+\b", lowered)
    if len(leaves) != len(numbers):
        raise ArgumentError(where, f"{len(numbers)} numbers of a tensor", f"{len(leaves)}, as {lowered} has")
    return Packed(_struct(list(zip(leaves, numbers, strict=True))))


def _dynamic(where: str, word: str, found: Sequence[int], needed: Sequence[Any], sizes: Sequence[int]) -> Iterator[int]:
    """Those of sizes or strides that are dynamic in the code."""
    if len(found) != len(needed):
        raise ArgumentError(where, f"{len(found)} modes", f"{len(needed)}, as it was compiled for")
    for mode, (number, known) in enumerate(zip(found, needed, strict=True)):
        multiple = getattr(known, "divisibility", None)
        if multiple is None:
            # The stride of a mode with one element is never used.
            if number != known and not (word == "strides" and sizes[mode] <= 1):
                raise ArgumentError(where, f"{word} {tuple(found)}", f"{known} of mode {mode}, as it was compiled for")
            continue
        if number % multiple:
            raise ArgumentError(where, f"{word} {tuple(found)}", f"a multiple of {multiple} of mode {mode}")
        yield number


def _struct(leaves: Sequence[tuple[str, int]]) -> bytes:
    """Numbers as the C struct of their types: each at a multiple of its size."""
    content = b""
    largest = 1
    for kind, number in leaves:
        size = 8 if kind == "ptr" else int(kind[1:]) // 8
        largest = max(largest, size)
        content += bytes(-len(content) % size) + int(number).to_bytes(size, "little", signed=number < 0)
    return content + bytes(-len(content) % largest)
