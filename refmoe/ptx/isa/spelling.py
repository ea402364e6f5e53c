"""An opcode read from left to right: every builder takes the modifiers it knows, in the order the manual gives them."""

from __future__ import annotations

import re

from refmoe.ptx.isa.errors import NoSuchInstruction

# The order in which the manual has the modifiers of floating-point instructions.
_RANKS = {
    **dict.fromkeys(("rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", "approx"), 0),
    "ftz": 1,
    **dict.fromkeys(("NaN", "sat"), 2),
}
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
_COMPARING = {**dict.fromkeys((*_COMPARISONS, "and", "or", "xor"), 0), "ftz": 1}


# Types, which keep their order: it says which is which.
_TYPE = re.compile(r"([busf]|bf)\d+(x\d)?|e\dm\dx\d|ue8m0x\d|tf32|pred")
# The order of what else stands in front of them. What is not here comes first, in the order written.
_PLACES = {
    part: place
    for place, part in enumerate(("ftz", "oob", "NaN", "xorsign", "abs", "cc", "sat", "relu", "satfinite"), 1)
} | dict.fromkeys(("rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", "rna", "rs", "approx", "full"), -1)


def in_order(opcode: str) -> str:
    """A spelling with its modifiers in the manual's order and its types behind them: ptxas takes any order.

    `max.s16x2.relu` is `max.relu.s16x2`, and `cvt.bf16x2.f32.relu.rn` is `cvt.rn.relu.bf16x2.f32`.
    """
    stem, *parts = opcode.split(".")
    types = [part for part in parts if _TYPE.fullmatch(part)]
    rest = [part for part in parts if not _TYPE.fullmatch(part)]
    if len(set(rest)) < len(rest):
        return opcode
    return ".".join([stem, *sorted(rest, key=lambda part: _PLACES.get(part, 0)), *types])


class Spelling:
    """The dot-separated parts of an opcode, taken one after another.

    A part that nobody takes makes the opcode unknown: see `end`.
    """

    def __init__(self, opcode: str) -> None:
        self.opcode = opcode
        self.mnemonic, *self._parts = opcode.split(".")
        ranks = _COMPARING if self.mnemonic in ("set", "setp") else _RANKS
        count = next((place for place, part in enumerate(self._parts) if part not in ranks), len(self._parts))
        # ptxas takes `div.ftz.rn.f32` for `div.rn.ftz.f32`, and so every other order.
        self._parts[:count] = sorted(self._parts[:count], key=ranks.__getitem__)

    @property
    def last(self) -> str:
        """The last part not yet taken, `""` if there is none: the instruction type of most opcodes."""
        return self._parts[-1] if self._parts else ""

    def has(self, *parts: str) -> bool:
        """Whether any of `parts` is still to be taken."""
        return any(part in self._parts for part in parts)

    def take(self, *choices: str) -> str:
        """Take the next part if it is one of `choices`, else nothing: returns the part or `""`."""
        if self._parts and self._parts[0] in choices:
            return self._parts.pop(0)
        return ""

    def need(self, *choices: str) -> str:
        """Take the next part.

        Raises:
            NoSuchInstruction: it is none of `choices`.
        """
        part = self.take(*choices)
        if not part:
            raise self.unknown()
        return part

    def flag(self, name: str) -> bool:
        """Take the next part if it is `name`, and say whether it was."""
        return bool(self.take(name))

    def end(self) -> None:
        """Say that every part must have been taken.

        Raises:
            NoSuchInstruction: some part was not.
        """
        if self._parts:
            raise self.unknown()

    def type(self, *choices: str) -> str:
        """Take the last part, in most opcodes the instruction type.

        Raises:
            NoSuchInstruction: it is none of `choices`, or not the last.
        """
        part = self.need(*choices)
        self.end()
        return part

    def integer(self, *choices: str) -> tuple[bool, int]:
        """Take the last part, an integer type: (signed, bits)."""
        name = self.type(*choices)
        return name[0] == "s", int(name[1:])

    def unknown(self) -> NoSuchInstruction:
        """The error that refuses this opcode."""
        return NoSuchInstruction(self.opcode)
