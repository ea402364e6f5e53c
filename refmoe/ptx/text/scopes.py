"""Names inside a function body: registers, variables and labels belong to their braces."""

from __future__ import annotations

import re
from collections.abc import Iterable

from refmoe.ptx.text.syntax import Register

# Register kind of each declared type. Registers of 8 bits only move bytes in and out of wider ones.
KINDS: dict[str, str] = {
    "pred": "pred",
    **dict.fromkeys(("b8", "u8", "s8"), "b8"),
    **dict.fromkeys(("b16", "u16", "s16", "f16", "bf16"), "b16"),
    **dict.fromkeys(("b32", "u32", "s32", "f32", "f16x2", "bf16x2"), "b32"),
    **dict.fromkeys(("b64", "u64", "s64", "f64"), "b64"),
    "b128": "b128",
}
_FAMILY_MEMBER = re.compile(r"(.*?)(0|[1-9]\d*)$")


def type_bits(name: str) -> int:
    """Bits of a fundamental type: `type_bits("bf16x2") == 32`, 0 for `pred`."""
    if name == "pred":
        return 0
    if name.endswith("x2"):
        return 32
    return int(name.lstrip("busfe"))


class Scope:
    """The names declared between one pair of braces; a name of an inner scope hides one outside.

    Equal names of different scopes get different unique names: the first scope to use a name keeps it as written.
    """

    def __init__(self, parent: Scope | None = None) -> None:
        self.parent = parent
        self._taken: set[str] = parent._taken if parent else set()
        self._registers: dict[str, Register] = {}
        self._families: dict[str, tuple[int, str, str]] = {}
        self._symbols: dict[str, str] = {}

    def reserve(self, names: Iterable[str]) -> None:
        """Keep names from becoming unique names here: those of the module, which this function may hide."""
        self._taken.update(names)

    def _unique(self, name: str) -> str:
        candidate, count = name, 1
        while candidate in self._taken:
            count += 1
            candidate = f"{name}@{count}"
        self._taken.add(candidate)
        return candidate

    def declare_register(self, name: str, kind: str) -> bool:
        """Declare one register; False if this scope has it already."""
        if name in self._registers:
            return False
        self._registers[name] = Register(self._unique(name), kind)
        return True

    def declare_family(self, prefix: str, count: int, kind: str) -> bool:
        """Declare `prefix0 .. prefix(count-1)`; False if this scope has that prefix already."""
        if prefix in self._families:
            return False
        self._families[prefix] = (count, kind, self._unique(f"{prefix}<>")[len(prefix) + 2 :])
        return True

    def declare_symbol(self, name: str, owner: str = "") -> str | None:
        """Declare a label or a variable: its unique name, or None if this scope has it already.

        With an `owner`, the function that it is in, the name is unique in the module.
        """
        if name in self._symbols:
            return None
        unique = self._unique(name)
        self._symbols[name] = f"{owner}:{unique}" if owner else unique
        return self._symbols[name]

    def register(self, name: str) -> Register | None:
        """The register that `name` means here."""
        if name in self._registers:
            return self._registers[name]
        match = _FAMILY_MEMBER.match(name)
        if match and match[1] in self._families:
            count, kind, suffix = self._families[match[1]]
            if int(match[2]) < count:
                # A register of that name may have been declared by itself, outside or in another scope.
                self._registers[name] = Register(self._unique(name + suffix), kind)
                return self._registers[name]
        return self.parent.register(name) if self.parent else None

    def symbol(self, name: str) -> str | None:
        """The unique name of the label or variable that `name` means here."""
        if name in self._symbols:
            return self._symbols[name]
        return self.parent.symbol(name) if self.parent else None
