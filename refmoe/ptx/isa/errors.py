"""The refusal of an opcode that the table does not define."""

from __future__ import annotations


class NoSuchInstruction(Exception):
    """No operation has this spelling, or the manual does not allow its combination of modifiers.

    Attributes:
        opcode: the full spelling, `"add.rn.u32"`.
        reason: what is missing, where that is not the opcode itself; or `""`.
    """

    def __init__(self, opcode: str, reason: str = "") -> None:
        super().__init__(f"unknown opcode {opcode!r}" + (f" ({reason})" if reason else ""))
        self.opcode = opcode
        self.reason = reason

    def __reduce__(self) -> tuple[type[NoSuchInstruction], tuple[str, str]]:
        # Exceptions pickle by their message, which would be taken for the opcode between worker processes.
        return type(self), (self.opcode, self.reason)
