"""A PTX module: its entries, its variables, and the code of its entries."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from refmoe.ptx.engine.code import PLAIN, Code, View
from refmoe.ptx.errors import ArgumentMismatch
from refmoe.ptx.text.parser import ParsedModule, parse
from refmoe.ptx.text.syntax import Function, Variable


@dataclass
class Module:
    """A parsed PTX module. Its entries are compiled at their first launch.

    Attributes:
        name: for messages.
        target: as written in the text, `"sm_120a"`.
        strict: refuse entries with FP arithmetic that ptxas may fuse.
        told: what launches of it found out about its races, for the launches that follow.
    """

    name: str
    target: str
    strict: bool
    _parsed: ParsedModule = field(repr=False)
    _codes: dict[tuple[str, str], Code] = field(default_factory=dict, repr=False)
    _owner: Module | None = field(default=None, repr=False)
    told: dict[tuple[object, ...], Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def parse(cls, text: str, name: str = "module.ptx", strict: bool = False) -> Module:
        """Parse PTX text; the body of an entry is read when it is first asked for.

        Raises:
            ParseError: with the line.
        """
        parsed = parse(text, name)
        return cls(name, parsed.target, strict, parsed)

    @property
    def text(self) -> str:
        """As it was parsed."""
        return self._parsed.text

    @property
    def owner(self) -> Module:
        """Whose variables these are: of an edited module the one that it was."""
        return self if self._owner is None else self._owner

    def edited(self, text: str) -> Module:
        """The same module with another text, and with the same variables where they live on in a memory.

        Raises:
            ParseError: with the line.
        """
        parsed = parse(text, self.name)
        return Module(self.name, parsed.target, self.strict, parsed, _owner=self.owner)

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of the kernels."""
        return tuple(name for name, function in self._parsed.declared.items() if function.is_entry)

    def fitting(self, wanted: str) -> tuple[str, ...]:
        """Names of the kernels that a name stands for: the one of that name, or all that have it as a part.

        `*` stands for anything, so that a C++ kernel is found by pieces of its mangled name: `"rms_norm*Half"`.
        """
        if wanted in self.entries:
            return (wanted,)
        parts = re.compile(".*".join(map(re.escape, wanted.split("*"))))
        return tuple(name for name in self.entries if parts.search(name))

    @property
    def variables(self) -> dict[str, Variable]:
        """The module's `.global` and `.const` variables by their names."""
        return {name: v for name, v in self._parsed.variables.items() if v.space in ("global", "const")}

    @cached_property
    def cancels_launches(self) -> bool:
        """Whether blocks may cancel the launch of others."""
        return "clusterlaunchcontrol.try_cancel" in self.text

    @property
    def declared(self) -> Mapping[str, Function]:
        """Its functions by their names, kernels too, without their bodies."""
        return self._parsed.declared

    def read(self, name: str) -> Function | None:
        """A function as it was parsed, kernel or not, with its body if it has one; None if there is no such function.

        Raises:
            ParseError: a statement of its body has no end, with the line.
        """
        return self._parsed.function(name)

    def compile(self, entry: str, view: View = PLAIN) -> Code:
        """The code of an entry; compiled once for each view.

        Raises:
            ArgumentMismatch: there is no such entry.
            ParseError: a statement of its body has no end, with the line.
            UnknownOpcode: it has more calls than an entry takes in.
            Contraction: the module is strict and it has arithmetic that ptxas may fuse.
        """
        if (entry, view.name) not in self._codes:
            # LLVM comes with it: who runs nothing here needs none.
            from refmoe.ptx.emit.codegen import compile_entry

            if entry not in self.entries:
                self.function(entry)
            self._codes[entry, view.name] = compile_entry(
                self._parsed, entry, lambda: self.function(entry), self.strict, view
            )
        return self._codes[entry, view.name]

    def function(self, entry: str) -> Function:
        """An entry as it was parsed: its parameters and directives.

        Raises:
            ArgumentMismatch: there is no such entry.
            ParseError: a statement of its body has no end, with the line.
        """
        function = self._parsed.function(entry)
        if function is None or not function.is_entry or function.body is None:
            raise ArgumentMismatch(f"{self.name} has no entry {entry!r}; it has {', '.join(self.entries) or 'none'}")
        return function
