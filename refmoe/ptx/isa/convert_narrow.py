"""cvt to and from the packed 8-, 6- and 4-bit formats and the E8M0 scale."""

from __future__ import annotations

import numpy as np

from refmoe.ptx.isa.floats import BF16, F16, FLOATS, Float
from refmoe.ptx.isa.narrow import NARROW, Narrow, decode_table, e8m0_table, encode_table, sticky16
from refmoe.ptx.isa.operation import Array, Operation, kind
from refmoe.ptx.isa.spelling import Spelling

# The formats that a packed f16 converts to.
_FROM_F16 = ("e4m3", "e5m2", "e2m1")

TYPES = (*(name + "x2" for name in NARROW), "ue8m0x2")


def cvt(spelling: Spelling) -> Operation:
    """cvt with a packed narrow source or destination; the first operand, or the upper half, is the high element."""
    rounding = spelling.need("rn", "rz", "rp")
    satfinite = spelling.flag("satfinite")
    relu = spelling.flag("relu")
    satfinite = satfinite or spelling.flag("satfinite")
    to = spelling.need(*TYPES, "f16x2", "bf16x2")
    of = spelling.type(*TYPES, "f16x2", "bf16x2", "f32")
    narrow = NARROW.get(to.removesuffix("x2"))
    if (
        narrow
        and rounding == "rn"
        and satfinite
        and (of in ("f32", "bf16x2") or (of == "f16x2" and narrow.name in _FROM_F16))
    ):
        return _encode(spelling, narrow, of, relu)
    narrow = NARROW.get(of.removesuffix("x2"))
    if narrow and rounding == "rn" and not satfinite and to in ("f16x2", "bf16x2"):
        return _decode(spelling, narrow, relu, FLOATS[to.removesuffix("x2")])
    if to == "ue8m0x2" and rounding in ("rz", "rp") and of in ("f32", "bf16x2") and not relu:
        return _encode_scale(spelling, rounding, of, satfinite)
    if of == "ue8m0x2" and to == "bf16x2" and rounding == "rn" and not (satfinite or relu):
        return _decode_scale(spelling)
    raise spelling.unknown()


def _look_up(table: Array, index: Array) -> Array:
    """table[index]: every index is in range, so clipping only spares NumPy the check, which takes longer."""
    return table.take(index.astype(np.intp), mode="clip")


def _encode_pair(spelling: Spelling, table: Array, field: int, of: str) -> Operation:
    """Two look-ups and one shift; the destination holds two fields."""
    result = np.uint8 if field == 4 else np.uint16
    low = table.astype(result)
    high = low << field

    def from_f32(a: Array, b: Array) -> Array:
        return _look_up(high, sticky16(a)) | _look_up(low, sticky16(b))

    def from_pair(a: Array) -> Array:
        return _look_up(high, a >> 16) | _look_up(low, a & 0xFFFF)

    function, sources = (from_f32, 2) if of == "f32" else (from_pair, 1)
    return Operation(spelling.opcode, function, ("b32",) * sources, (kind(2 * field),))


def _encode(spelling: Spelling, narrow: Narrow, of: str, relu: bool) -> Operation:
    table = encode_table(narrow, F16 if of == "f16x2" else BF16, relu)
    return _encode_pair(spelling, table, narrow.field, of)


def _decode(spelling: Spelling, narrow: Narrow, relu: bool, target: Float) -> Operation:
    table = decode_table(narrow, relu, target).astype(np.uint32)
    field = narrow.field
    mask = (1 << field) - 1
    high = table << 16

    def function(a: Array) -> Array:
        return _look_up(high, a >> field) | _look_up(table, a & mask)

    return Operation(spelling.opcode, function, (kind(2 * field),), ("b32",))


def _encode_scale(spelling: Spelling, rounding: str, of: str, satfinite: bool) -> Operation:
    return _encode_pair(spelling, e8m0_table(rounding, satfinite), 8, of)


def _decode_scale(spelling: Spelling) -> Operation:
    """2^(byte - 127): the exponent field itself, the subnormal 2^-127 for 0, NaN for 255."""
    byte = np.arange(256, dtype=np.uint32)
    table = byte << BF16.mantissa
    table[0] = 1 << (BF16.mantissa - 1)
    table[255] = BF16.nan
    high = table << 16
    return Operation(spelling.opcode, lambda a: _look_up(high, a >> 8) | _look_up(table, a & 0xFF), ("b16",), ("b32",))
