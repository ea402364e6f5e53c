"""A finding: what both accesses of a race were, which order is missing, and what gives it."""

from __future__ import annotations

from dataclasses import dataclass

from refmoe.ptx.findings.accesses import Accessed

PAGE = "docs/guides/races.md"


@dataclass(frozen=True)
class Finding:
    """What is said of one race.

    Attributes:
        later, earlier: both accesses, the one that was found out first; the earlier one is None where nobody knows.
        missing: which order is missing, in words.
        remedy: the smallest change that orders them, in words; empty where none is known.
        tried: whether the launch was run with that change, and was without this race.
        clean: whether it was then without any other fault, too.
        edited: the PTX text with the change, or None.
        bytes, threads: how many the same two instructions hit; `more` if there may be others.
        section: of the page that tells what PTX says of it.
        other: what the earlier access was, where it was none of this launch's.
    """

    later: Accessed
    earlier: Accessed | None
    missing: str
    remedy: str
    tried: bool
    clean: bool
    edited: str | None
    bytes: int
    threads: int
    more: bool
    section: str
    other: str = "not known"

    @property
    def link(self) -> str:
        """The section's place."""
        return f"{PAGE}#{self.section}"

    def lines(self) -> tuple[str, ...]:
        """What is said, a sentence each."""
        found = [f"this access: {self.later}"]
        found.append(f"the earlier one: {self.earlier or self.other}")
        if self.bytes > 1 or self.threads > 1:
            least = "at least " if self.more else ""
            found.append(
                f"the same two instructions: {least}{_counted(self.bytes, 'place')}, {_counted(self.threads, 'thread')}"
            )
        found.append(f"missing: {self.missing}")
        if self.remedy:
            if not self.tried:
                outcome = "not tried"
            elif self.clean:
                outcome = "tried: this launch is then without a fault"
            else:
                outcome = "tried: this race is then gone, and another fault is left"
            found.append(f"what orders them: {self.remedy} ({outcome})")
        found.append(f"see {self.link}")
        return tuple(found)

    def document(self) -> dict[str, object]:
        """As JSON has it."""
        sides = {
            name: None if side is None else {
                "kind": side.kind, "scope": side.scope, "block": side.block, "thread": side.thread,
                "line": side.line, "source": side.source, "text": side.text,
            }
            for name, side in (("later", self.later), ("earlier", self.earlier))
        }  # fmt: skip
        return {
            **sides, "missing": self.missing, "remedy": self.remedy, "tried": self.tried, "clean": self.clean,
            "bytes": self.bytes, "threads": self.threads, "more": self.more, "link": self.link,
        }  # fmt: skip


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
