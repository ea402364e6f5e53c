"""The tensor maps that CuTe DSL's host code packs by itself, as the executor's.

The DSL does not call the driver for a tensor map. Its host code shifts and ors the 128 bytes that the hardware reads,
in plain sight in the lowered module. Their format is not documented. The fields below were found by compiling maps that
differ in one argument; tests/cute/test_tensor_maps.py compiles them again. Bits that no such map has set are refused.

    word 0   address
    word 1   bit 1: always set     4-6: rank - 1     7-10, 16: type     13-14, 19: swizzle     17-18: L2 promotion
             21: the tensor is large, 2^17 bytes or more     32-63: stride of dimension 1 / 16
    word 2   strides of dimensions 2 and 3 / 16, 32 bits each
    word 3   0-31: stride of dimension 4 / 16     32-47: the next four bits of each of the four strides
    word 4   sizes of dimensions 0 and 1, less 1, 32 bits each
    word 5   those of dimensions 2 and 3
    word 6   0-31: that of dimension 4     56-63: box of dimension 0, less 1
    word 7   boxes of dimensions 1 to 4, less 1, 8 bits each
    words 8 to 15 are not read
"""

from __future__ import annotations

import struct

from refmoe.cute.package import HostError
from refmoe.errors import ArgumentError
from refmoe.ptx import encode_tensor_map
from refmoe.ptx.text.syntax import Variable

MAP_BYTES = 128
#: Where a parameter begins at such a multiple and has so many bytes, it is a tensor map.
MAP_ALIGN = 64

_WORDS = struct.Struct("<8Q")
_LOW, _BYTE = (1 << 32) - 1, 0xFF
_ALWAYS, _LARGE = 1 << 1, 1 << 21
# By bits 7-10 and 16; types are numbered as PTX's tensormap.replace does, and bit 16 rounds FP32 to TF32.
_TYPES = {
    **{0: "u8", 1: "u16", 2: "u32", 4: "u64", 6: "f16", 7: "f32", 9: "f64", 10: "bf16"},
    7 | 1 << 4: "tf32",
}
# By bits 13-14 and 19.
_SWIZZLES = {0: "none", 1: "32B", 2: "64B", 3: "128B", 3 | 1 << 2: "128B_atom_32B"}
_PROMOTIONS = ("none", "64B", "128B", "256B")


def of_executor(content: bytes, parameter: Variable) -> bytes:
    """The bytes of a kernel's parameter for the executor: a tensor map of the hardware's is translated.

    Raises:
        HostError: as `translate`.
    """
    is_map = parameter.size == MAP_BYTES and parameter.align >= MAP_ALIGN
    return translate(content) if is_map and not is_of_executor(content) else content


def is_of_executor(content: bytes) -> bool:
    """Whether the bytes of a parameter begin as the executor's own form of a tensor map does."""
    return content.startswith(b"refmoe")


def translate(content: bytes) -> bytes:
    """The executor's tensor map of the hardware's 128 bytes.

    Raises:
        HostError: they hold what no map that refmoe knows does; the message names the field.
    """
    words = _WORDS.unpack_from(content)
    control = words[1]
    rank = _field(control, 4, 3) + 1
    kind = _field(control, 7, 4) | _field(control, 16, 1) << 4
    swizzle = _field(control, 13, 2) | _field(control, 19, 1) << 2
    known = _ALWAYS | 7 << 4 | 15 << 7 | 1 << 16 | 3 << 13 | 1 << 19 | 3 << 17 | _LARGE
    unknown = (control & _LOW & ~known, words[3] >> 48, words[6] & ~(_LOW | _BYTE << 56), words[7] & ~_LOW)
    if not control & _ALWAYS or any(unknown):
        raise HostError(f"a tensor map with the word 0x{control & _LOW:08X}, which has bits that refmoe does not know")
    if rank > 5 or kind not in _TYPES or swizzle not in _SWIZZLES:
        raise HostError(f"a tensor map of rank {rank}, type {kind} and swizzle {swizzle}, which refmoe does not know")
    low = (control >> 32, words[2] & _LOW, words[2] >> 32, words[3] & _LOW)
    strides = [(each | _field(words[3], 32 + 4 * mode, 4) << 32) * 16 for mode, each in enumerate(low)]
    sizes = [words[4] & _LOW, words[4] >> 32, words[5] & _LOW, words[5] >> 32, words[6] & _LOW]
    # A dimension of one element is never stepped along, so that its stride may be anything.
    strides = [stride if size else max(stride, 16) for stride, size in zip(strides, sizes[1:], strict=True)]
    boxes = [words[6] >> 56, *(_field(words[7], 8 * mode, 8) for mode in range(4))]
    try:
        return encode_tensor_map(
            words[0],
            _TYPES[kind],
            dims=[size + 1 for size in sizes[:rank]],
            strides=strides[: rank - 1],
            box=[box + 1 for box in boxes[:rank]],
            swizzle=_SWIZZLES[swizzle],
            l2_promotion=_PROMOTIONS[_field(control, 17, 2)],
        )
    except ArgumentError as error:
        raise HostError(f"a tensor map that no copy can go by: {error}") from error


def _field(word: int, begin: int, bits: int) -> int:
    return word >> begin & ((1 << bits) - 1)
