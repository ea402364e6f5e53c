"""`printf` and `assert` in device code: calls of `vprintf` and `__assertfail`.

`vprintf(format, arguments)` takes a C format string and a buffer in which each argument lies at a multiple of its own
size, as C passes it to a variadic function: integers of 4 or 8 bytes, floats as double. Lanes that print in one step
print in lane order.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.loads_and_stores import Access
from refmoe.ptx.errors import AssertionFailed, MemoryFault
from refmoe.ptx.text.syntax import Instruction

Array = Any
_CONVERSION = re.compile(
    rb"%(?P<flags>[-+ #0]*)(?P<width>\*|\d+)?(?:\.(?P<precision>\*|\d*))?(?P<length>hh|h|ll|l|j|z|t|L)?"
    rb"(?P<kind>[diouxXcsfFeEgGaAp%])"
)
_EIGHT_BYTES = (b"l", b"ll", b"j", b"z", b"t")
_LONGEST = 1 << 20


@dataclass(frozen=True)
class _Bytes:
    """Bytes at generic addresses, one lane at a time, with the checks of any load but that for races."""

    instruction: Instruction

    def read(self, frame: Frame, lane: int, address: int, size: int) -> bytes:
        """Raises MemoryFault if they are not all there."""
        return b"".join(self._byte(frame, lane, address + offset) for offset in range(size))

    def string(self, frame: Frame, lane: int, address: int) -> bytes:
        """Up to the first zero byte.

        Raises:
            MemoryFault: there is none in the buffer.
        """
        result = bytearray()
        while len(result) < _LONGEST:
            byte = self._byte(frame, lane, address + len(result))
            if byte == b"\0":
                break
            result += byte
        return bytes(result)

    def _byte(self, frame: Frame, lane: int, address: int) -> bytes:
        access = Access(self.instruction, "generic", 1, 1)
        lanes = np.array([lane])
        where = np.array([address & 0xFFFFFFFFFFFFFFFF], np.uint64)
        for region, _, index in access.places(frame, where, lanes):
            return bytes(region.read(1, index).tobytes())
        raise AssertionError("an access without a place")


@dataclass(frozen=True)
class Print:
    """`vprintf`: the number of arguments, or -1 for a null format."""

    instruction: Instruction

    def __call__(self, frame: Frame, format: Array, arguments: Array, guard: Array | None) -> Array:
        """Raises MemoryFault where the format or an argument cannot be read."""
        where, lanes, formats = frame.select(format, guard)
        buffers = frame.acting(where, arguments)
        memory = _Bytes(self.instruction)
        counts = np.zeros(len(lanes), np.uint32)
        known: dict[int, bytes] = {}
        for number, (lane, place, buffer) in enumerate(zip(lanes, formats, buffers, strict=True)):
            if not int(place):
                counts[number] = 0xFFFFFFFF
                continue
            if int(place) not in known:
                known[int(place)] = memory.string(frame, lane, int(place))
            taken = _Arguments(memory, frame, lane, int(buffer))
            frame.machine.launch.printed.append(formatted(known[int(place)], taken))
            counts[number] = taken.count
        if where is None:
            return counts
        result = np.zeros(frame.count, np.uint32)
        result[where] = counts
        return result


class _Arguments:
    """A lane's arguments, taken one after another."""

    def __init__(self, memory: _Bytes, frame: Frame, lane: int, address: int) -> None:
        self.memory, self.frame, self.lane = memory, frame, lane
        self.place = self.begin = address
        self.count = 0

    def take(self, size: int) -> bytes:
        """The next one, of `size` bytes."""
        start = self.begin + -(-(self.place - self.begin) // size) * size
        self.place = start + size
        self.count += 1
        return self.memory.read(self.frame, self.lane, start, size)

    def string(self) -> bytes:
        """What the next one points to."""
        address = int.from_bytes(self.take(8), "little")
        return self.memory.string(self.frame, self.lane, address) if address else b"(null)"


def formatted(format: bytes, arguments: Any) -> bytes:
    """A C format with its arguments: `arguments.take(size)` and `arguments.string()` give the next one."""

    def one(match: re.Match[bytes]) -> bytes:
        kind = match["kind"].decode()
        if kind == "%":
            return b"%"
        flags, width, precision = set(match["flags"].decode()), 0, None
        if match["width"] == b"*":
            width = int.from_bytes(arguments.take(4), "little", signed=True)
            if width < 0:
                flags.add("-")
                width = -width
        elif match["width"]:
            width = int(match["width"])
        if match["precision"] == b"*":
            given = int.from_bytes(arguments.take(4), "little", signed=True)
            precision = given if given >= 0 else None
        elif match["precision"] is not None:
            precision = int(match["precision"] or 0)
        if kind == "c":
            return _padded(b"", arguments.take(4)[:1], flags - {"0"}, width)
        if kind == "s":
            return _padded(b"", arguments.string()[:precision], flags - {"0"}, width)
        if kind in "fFeEgGaA":
            (value,) = struct.unpack("<d", arguments.take(8))
            return _float(value, kind, flags, width, precision)
        size = 8 if kind == "p" or match["length"] in _EIGHT_BYTES else 4
        value = int.from_bytes(arguments.take(size), "little", signed=kind in "di")
        bits = {b"hh": 8, b"h": 16}.get(match["length"])
        if bits is not None:
            value &= (1 << bits) - 1
            value -= (kind in "di" and value >> (bits - 1)) << bits
        return _integer(value, kind, flags, width, precision)

    return _CONVERSION.sub(one, format)


def _sign(negative: bool, flags: set[str]) -> bytes:
    return b"-" if negative else b"+" if "+" in flags else b" " if " " in flags else b""


def _padded(head: bytes, body: bytes, flags: set[str], width: int) -> bytes:
    """Zeros go between the sign or prefix and the digits."""
    missing = max(width - len(head) - len(body), 0)
    if "-" in flags:
        return head + body + b" " * missing
    return head + b"0" * missing + body if "0" in flags else b" " * missing + head + body


def _integer(value: int, kind: str, flags: set[str], width: int, precision: int | None) -> bytes:
    if kind == "p":
        # As glibc has it.
        return _padded(b"", b"0x%x" % value if value else b"(nil)", flags - {"0"}, width)
    digits = format(abs(value), {"o": "o", "x": "x", "X": "X"}.get(kind, "d")).encode()
    if precision is not None:
        flags = flags - {"0"}
        digits = b"" if not value and not precision else digits.rjust(precision, b"0")
    head = _sign(value < 0, flags) if kind in "di" else b""
    if "#" in flags and kind == "o" and not digits.startswith(b"0"):
        digits = b"0" + digits
    if "#" in flags and kind in "xX" and value:
        head = b"0" + kind.encode()
    return _padded(head, digits, flags, width)


def _float(value: float, kind: str, flags: set[str], width: int, precision: int | None) -> bytes:
    head = _sign(math.copysign(1.0, value) < 0, flags)
    if not math.isfinite(value):
        word = "nan" if math.isnan(value) else "inf"
        return _padded(head, (word.upper() if kind.isupper() else word).encode(), flags - {"0"}, width)
    if kind in "aA":
        prefix, digits = _hexadecimal(abs(value), precision, "#" in flags)
        text = prefix + digits
        text = text.upper() if kind == "A" else text
        return _padded(head + text[:2].encode(), text[2:].encode(), flags, width)
    alternate = "#" if "#" in flags else ""
    text = format(abs(value), f"{alternate}.{6 if precision is None else precision}{kind}")
    return _padded(head, text.encode(), flags, width)


def _hexadecimal(value: float, precision: int | None, point: bool) -> tuple[str, str]:
    """`%a` of a number that is not negative, as glibc has it: a leading 1 (0 for zeros and subnormals)."""
    bits = struct.unpack("<Q", struct.pack("<d", value))[0]
    exponent, fraction = bits >> 52, bits & ((1 << 52) - 1)
    lead = 1 if exponent else 0
    power = exponent - 1023 if exponent else (-1022 if fraction else 0)
    if precision is None:
        digits = f"{fraction:013x}".rstrip("0")
    elif precision >= 13:
        digits = f"{fraction:013x}".ljust(precision, "0")
    else:
        dropped = 4 * (13 - precision)
        whole = (lead << 52) | fraction
        kept, rest = whole >> dropped, whole & ((1 << dropped) - 1)
        half = 1 << (dropped - 1)
        kept += rest > half or (rest == half and kept & 1)
        lead = kept >> (4 * precision)
        digits = f"{kept & ((1 << 4 * precision) - 1):0{precision}x}" if precision else ""
    return "0x", f"{lead}{'.' if digits or point else ''}{digits}p{power:+d}"


@dataclass(frozen=True)
class AssertFail:
    """`__assertfail(message, file, line, function, character size)`."""

    instruction: Instruction

    def __call__(
        self, frame: Frame, message: Array, file: Array, line: Array, function: Array, size: Array, guard: Array | None
    ) -> None:
        """Raises AssertionFailed in the first lane that comes here."""
        lane = frame.first_active(guard)
        if lane is None:
            return
        first = int(np.flatnonzero(frame.lanes() == lane)[0])
        memory, machine = _Bytes(self.instruction), frame.machine

        def text(address: Array) -> str:
            place = int(frame.spread(address)[first])
            try:
                return memory.string(frame, lane, place).decode(errors="replace") if place else "?"
            except MemoryFault:
                return "?"

        fields = {
            "expression": text(message), "file": text(file), "file_line": int(frame.spread(line)[first]),
            "function": text(function),
        }  # fmt: skip
        where = machine.at(lane, self.instruction)
        raise AssertionFailed(
            f"{fields['file']}:{fields['file_line']}: {fields['function']}: block {where['block']} "
            f"thread {where['thread']}: assertion `{fields['expression']}` failed; "
            f"{machine.describe(self.instruction)}",
            **fields,
            **where,
        )
