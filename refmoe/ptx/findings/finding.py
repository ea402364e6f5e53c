"""A finding: what both accesses of a race were, which order is missing, and what gives it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from refmoe.ptx.findings.accesses import Accessed

PAGE = "docs/guides/races.md"

# Where the project's files can be read by who has no checkout: `[project.urls]` of pyproject.toml.
PROJECT = "https://github.com/refmoe/refmoe/blob/main"


@dataclass(frozen=True)
class Finding:
    """What is said of one race.

    Attributes:
        later, earlier: both accesses, the one that was found out first; the earlier one is None where nobody knows.
        missing: which order is missing, in words.
        remedy: the smallest change that orders them, in words; empty where none is known, see `why`.
        tried: whether the launch was run with that change, and was without this race.
        clean: whether it was then without any other fault, too.
        edited: the PTX text with the change, or None.
        bytes, threads: how many the same two instructions hit; `more` if there may be others.
        section: of the page that tells what PTX says of it.
        other: what the earlier access was, where it was none of this launch's.
        orders: whether the change orders them; else it makes both strong, and they may come in any order.
        schedules: under how many the launch with that change was run; 0 where it is too long for that.
        same: whether it left the same bytes under all of them.
        why: why no change is known, or why not all were tried.
        also: other accesses that this change orders, too: places.
        before: whether the change was tried with an earlier launch of the module, where the same two lines raced.
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
    orders: bool = True
    schedules: int = 0
    same: bool = True
    why: str = ""
    also: tuple[str, ...] = ()
    before: bool = False

    @property
    def link(self) -> str:
        """The section's address."""
        return f"{PROJECT}/{PAGE}#{self.section}"

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
            what = "what orders them" if self.orders else "what lets them come in any order"
            found.append(f"{what}: {self.remedy} ({self._outcome()})")
            if self.why:
                found.append(f"not all was tried: {self.why}")
        elif self.why:
            found.append(f"what orders them: not known: {self.why}")
        if self.also:
            found.append(f"the same change orders {', '.join(self.also)}")
        found.append(f"see {self.link}")
        return tuple(found)

    def _outcome(self) -> str:
        """What became of the launch with the change."""
        if not self.tried:
            return "not tried"
        if not self.clean:
            return "tried: this race is then gone, and another fault is left"
        launch = "an earlier launch, where they raced too," if self.before else "this launch"
        clean = f"tried: {launch} is then without a fault"
        if self.schedules <= 1:
            return f"{clean}; under this schedule alone"
        if not self.same:
            return f"{clean} under {self.schedules} schedules; its bytes still depend on the schedule"
        return f"{clean}, and leaves the same bytes under {self.schedules} schedules"

    def again(self, known: Finding) -> Finding:
        """This finding, of which nothing was tried, with what is known from an earlier launch of the module."""
        return replace(
            self, missing=known.missing, remedy=known.remedy, tried=known.tried, clean=known.clean, edited=known.edited,
            section=known.section, orders=known.orders, schedules=known.schedules, same=known.same, why=known.why,
            before=True,
        )  # fmt: skip

    def document(self) -> dict[str, object]:
        """As JSON has it."""
        sides = {
            name: None if side is None else {
                "kind": side.kind, "scope": side.scope, "block": side.block, "thread": side.thread,
                "line": side.line, "source": side.source, "callers": list(side.callers), "text": side.text,
            }
            for name, side in (("later", self.later), ("earlier", self.earlier))
        }  # fmt: skip
        return {
            **sides, "missing": self.missing, "remedy": self.remedy, "tried": self.tried, "clean": self.clean,
            "orders": self.orders, "schedules": self.schedules, "same": self.same, "why": self.why,
            "also": list(self.also), "before": self.before, "bytes": self.bytes, "threads": self.threads,
            "more": self.more, "link": self.link,
        }  # fmt: skip


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
