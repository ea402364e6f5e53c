"""A trace for people: a timeline with a row for each warp, and a table of events.

    step    12        40
    warp 0  A>+B>aaaaaa+A>
    warp 4  bbbb+      A

A column is a step in which anything happened. A lower-case letter is a warp that waits for the barrier of that letter,
an upper-case one that arrives there; a digit waits at the named barrier of that number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from string import ascii_lowercase

from refmoe.ptx.observe.events import TraceEvent

_SIGNS = (
    ("a lower-case letter", "the warp waits for that mbarrier"),
    ("an upper-case letter", "it arrives there, or announces bytes to it"),
    ("a digit", "it waits at that named barrier, in hexadecimal"),
    (">", "it issues asynchronous copies"),
    ("<", "copies of its land"),
    ("+", "it sees a phase complete"),
    ("!", "that mbarrier's phase is complete (rows of barriers)"),
)
#: Of two things that a warp did in one step, the one that stands later here is shown.
_ORDER = (
    *("init", "leave", "give up", "wake", "pass", "land", "copy", "announce", "complete", "expect", "arrive"),
    *("bar", "park"),
)
_OVERFLOW = "*"


def render(events: Sequence[TraceEvent], width: int) -> str:
    """Timeline and table of the events of one CTA, each line ended."""
    return f"{render_timeline(events, width)}\n{_table(events)}"


def render_timeline(events: Sequence[TraceEvent], width: int) -> str:
    """The timeline of the events of one CTA, wrapped at `width` columns, with its legend."""
    letters = _letters(events)
    columns = {step: index for index, step in enumerate(sorted({event.step for event in events}))}
    rows = {f"warp {warp}": _row(events, warp, columns, letters) for warp in _warps(events)}
    rows |= {f"{letter} phases": _phases(events, name, columns) for name, letter in letters.items()}
    head = max(map(len, ("step", *rows))) + 2
    steps = list(columns)
    lines = [f"block {events[0].block}: {len(events)} events in {len(columns)} steps"]
    for start in range(0, len(columns), width):
        stop = min(start + width, len(columns))
        lines.append(f"{'step':<{head}}{_ruler(steps[start:stop])}")
        shown = {name: cells[start:stop] for name, cells in rows.items()}
        lines += [f"{name:<{head}}{cells}".rstrip() for name, cells in shown.items() if cells.strip()]
        lines.append("")
    return "\n".join([*lines, *_legend(events, letters)]) + "\n"


def _warps(events: Sequence[TraceEvent]) -> list[int]:
    return sorted({event.warp for event in events if event.warp is not None})


def _letters(events: Sequence[TraceEvent]) -> dict[str, str]:
    """A letter for each mbarrier that is used, in order of address."""
    used = (event for event in events if event.address is not None and event.kind not in ("init", "pass"))
    names = {event.barrier: event.address for event in used}
    ordered = sorted((address, name) for name, address in names.items() if name is not None)
    return {
        name: ascii_lowercase[index] if index < len(ascii_lowercase) else _OVERFLOW
        for index, (_, name) in enumerate(ordered)
    }


def _row(events: Sequence[TraceEvent], warp: int, columns: dict[int, int], letters: dict[str, str]) -> str:
    """What a warp did in each column, and what it waited for in those between."""
    cells = [" "] * len(columns)
    rank = [-1] * len(columns)
    waits: dict[int, str] = {}
    waiting = " "
    for event in events:
        if event.warp != warp:
            continue
        column = columns[event.step]
        sign = _sign(event, letters)
        if event.kind in ("park", "bar"):
            waits[column] = sign
        elif event.kind in ("wake", "give up", "leave", "pass"):
            waits[column] = " "
        if (order := _ORDER.index(event.kind)) > rank[column]:
            cells[column], rank[column] = sign, order
    for column, cell in enumerate(cells):
        waiting = waits.get(column, waiting)
        if cell == " ":
            cells[column] = waiting
    return "".join(cells)


def _sign(event: TraceEvent, letters: dict[str, str]) -> str:
    letter = letters.get(event.barrier or "", _OVERFLOW)
    if event.kind == "park":
        return letter
    if event.kind in ("arrive", "announce", "expect", "complete", "init"):
        return letter.upper()
    if event.kind == "bar":
        return f"{int((event.barrier or '').split()[-1]):x}"
    return {"copy": ">", "land": "<", "pass": "+", "wake": "+"}.get(event.kind, " ")


def _phases(events: Sequence[TraceEvent], name: str, columns: dict[int, int]) -> str:
    """Where the phases of a barrier are complete."""
    cells = [" "] * len(columns)
    for event in events:
        if event.kind == "phase" and event.barrier == name:
            cells[columns[event.step]] = "!"
    return "".join(cells)


def _ruler(steps: Sequence[int]) -> str:
    """The number of every tenth step, left-aligned over its column."""
    return "".join(f"{step:<10}" for step in steps[::10]).rstrip()


def _legend(events: Sequence[TraceEvent], letters: dict[str, str]) -> list[str]:
    counts = {event.barrier: event.amount for event in events if event.kind == "init"}
    lines = [f"{sign:<22}{meaning}" for sign, meaning in _SIGNS]
    unused = len(counts.keys() - letters.keys())
    if unused:
        lines.append(f"{_OVERFLOW:<22}{unused} mbarriers that are initialised, and at which nobody arrives")
    for name, letter in letters.items():
        count = f", {counts[name]} arrivals a phase" if name in counts else ""
        lines.append(f"{letter:<22}{name}{count}: {_users(events, name)}")
    return lines


def _users(events: Sequence[TraceEvent], name: str) -> str:
    """Which warps arrive at a barrier, and which wait there."""
    parts = []
    for word, kinds in (("arriving", ("arrive", "expect")), ("waiting", ("park", "pass"))):
        warps = sorted({e.warp for e in events if e.barrier == name and e.kind in kinds and e.warp is not None})
        if warps:
            parts.append(f"{word} warps {_ranges(warps)}")
    return "; ".join(parts) or "unused"


def _table(events: Sequence[TraceEvent]) -> str:
    head = ("step", "warps", "lanes", "what", "barrier", "phase", "amount", "line", "instruction")
    rows = [_table_row(alike) for alike in _alike(events)]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    left = {3, 4, 8}
    return "".join(
        "  ".join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        + "\n"
        for row in (head, *rows)
    )


def _alike(events: Sequence[TraceEvent]) -> list[list[TraceEvent]]:
    """Neighbours that differ in their warp only share a row."""
    rows: list[list[TraceEvent]] = []
    for event in events:
        if rows and event.warp is not None and replace(rows[-1][0], warp=event.warp) == event:
            rows[-1].append(event)
        else:
            rows.append([event])
    return rows


def _table_row(alike: Sequence[TraceEvent]) -> tuple[str, ...]:
    event = alike[0]
    return (
        str(event.step),
        _ranges([one.warp for one in alike if one.warp is not None]),
        str(sum(one.lanes for one in alike) or ""),
        event.kind,
        event.barrier or "",
        "" if event.phase is None else str(event.phase),
        str(sum(one.amount for one in alike) or ""),
        str(event.line or ""),
        event.text,
    )


def _ranges(warps: Sequence[int]) -> str:
    """`0-3, 6`."""
    parts: list[list[int]] = []
    for warp in warps:
        if parts and warp == parts[-1][-1] + 1:
            parts[-1].append(warp)
        else:
            parts.append([warp])
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
