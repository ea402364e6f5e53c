"""A document of `refmoe bench`: what was timed. It proves nothing, so the gate only asks that it is what it says."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refmoe.reports.bench_figures import derived, is_number
from refmoe.reports.checks import GateRefusal, first_and_count
from refmoe.reports.documents import Kind, PresentHash
from refmoe.reports.environment import impossible

#: Endings of the names of times, which are more than zero.
_TIMES = ("_s", "_ms", "microseconds", "seconds")
#: What a rate of a GPU's row was rounded to: digits of its microseconds, and of its terabytes per second.
_ROUNDED = 5e-3, 5e-4


def _judge(document: Mapping[str, Any], present: PresentHash) -> Iterator[GateRefusal]:
    name = document["name"]
    timed = document.get("rows") or document.get("comparisons") or document.get("medians_s")
    if not isinstance(name, str) or not isinstance(timed, (list, dict)):
        text = "says it is a bench document, but has no name, or no rows, comparisons or medians"
        yield GateRefusal("bench.content", text)
        return
    broken = [key for key, kind in _SHAPES.items() if key in document and not isinstance(document[key], kind)]
    broken += ["a row"] * any(not isinstance(row, Mapping) for row in document.get("rows", ()))
    if broken:
        yield GateRefusal("bench.content", f"{broken[0]} of it is not what a benchmark writes there; {BENCH.again}")
        return
    if not name.isidentifier() or not any(module.is_file() for module in _modules(name)):
        yield GateRefusal("bench.content", f"there is no benchmark {name!r}")
    machine = {"cores": document.get("cores"), "torch": document.get("torch"), **document.get("versions", {})}
    yield from (GateRefusal("document.environment", f"it names {said}") for said in impossible(machine))
    yield from first_and_count("bench.figures", _times(document, name))
    rows = document.get("rows", [])
    yield from first_and_count("bench.figures", ((_row_name(row), wrong) for row in rows for wrong in _rate(row)))
    yield from first_and_count("bench.figures", ((_row_name(row), text) for row in rows for text in _repeated(row)))
    yield from first_and_count("bench.figures", ((name, wrong) for wrong in _speeds(document)))
    yield from first_and_count("bench.figures", derived(document))
    yield from (GateRefusal("bench.targets", wrong) for wrong in _targets(document))
    yield from (GateRefusal("bench.targets", wrong) for wrong in _comparisons(document))


#: What a document holds under some keys, where it has them.
_SHAPES: Mapping[str, tuple[type, ...]] = {
    **{"rows": (list,), "comparisons": (Mapping,), "medians_s": (Mapping,)},
    **{
        "versions": (Mapping,),
        "cores": (int,),
        "targets": (Mapping, list),
        "reached": (Mapping, bool),
        "all_reached": (bool,),
    },
}


def _modules(name: str) -> Iterator[Path]:
    """Where the module of a benchmark may be: its report may be read where nothing of it can be imported."""
    folder = Path(__file__).resolve().parent.parent / "bench"
    yield folder / f"{name}.py"
    yield folder / name / "__init__.py"


def _row_name(row: Mapping[str, Any]) -> str:
    return str(row.get("name", next(iter(row.values()), "a row")))


def _times(value: Any, where: str) -> Iterator[tuple[str, str]]:
    """Times that are none: below zero, zero, or no number."""
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if key in ("targets", "reached"):
            continue
        named = isinstance(key, str) and key.endswith(_TIMES) and not key.endswith("_per_s")
        measured = item.values() if isinstance(item, Mapping) and named else [item] if named else []
        for each in measured:
            if isinstance(each, bool) or not isinstance(each, (int, float)) or each < 0:
                yield f"{where}, {key}", f"found {each!r}; needed a time of zero or more"
        yield from _times(item, f"{where}, {key}")


def _rate(row: Any) -> Iterator[str]:
    """Of a row of a GPU's benchmark, a rate that is not its bytes by its time."""
    if not isinstance(row, Mapping) or not {"traffic_bytes", "microseconds", "terabytes_per_second"} <= row.keys():
        return
    time, rate = row["microseconds"], row["terabytes_per_second"]
    if not all(isinstance(row[key], (int, float)) for key in ("traffic_bytes", "microseconds", "terabytes_per_second")):
        return
    least = (time - _ROUNDED[0]) * (rate - _ROUNDED[1]) * 1e6
    most = (time + _ROUNDED[0]) * (rate + _ROUNDED[1]) * 1e6
    if not least <= row["traffic_bytes"] <= most:
        yield f"{row['traffic_bytes']:,} bytes in {time} us are not {rate} TB/s"


def _repeated(row: Mapping[str, Any]) -> Iterator[str]:
    """Of a row of a GPU's benchmark, a time or a spread that is not that of its repetitions."""
    times = row.get("repetitions")
    if times is None:
        return
    if not isinstance(times, list) or not times or not all(is_number(time) and time >= 0 for time in times):
        yield "its repetitions are no times"
        return
    for what, said, found in (
        ("median", row.get("microseconds"), statistics.median(times)),
        ("spread", row.get("spread"), [min(times), max(times)]),
    ):
        ours, theirs = (value if isinstance(value, list) else [value] for value in (said, found))
        right = len(ours) == len(theirs) and all(map(is_number, ours))
        # A median of numbers that were rounded themselves.
        if not right or any(abs(a - b) > 2 * _ROUNDED[0] for a, b in zip(ours, theirs, strict=True)):
            yield f"its {what} is said to be {said}, and its {len(times)} repetitions have {found}"


def _speeds(document: Mapping[str, Any]) -> Iterator[str]:
    """Lane instructions in a second that are not those of the median time, in the document and one level below."""
    for part in (document, *(value for value in document.values() if isinstance(value, Mapping))):
        count, medians, speeds = (
            part.get(key) for key in ("lane_instructions", "medians_s", "lane_instructions_per_s")
        )
        if not is_number(count) or not isinstance(medians, Mapping) or not isinstance(speeds, Mapping):
            continue
        if speeds.keys() != medians.keys():
            yield f"speeds of {', '.join(speeds)}, and times of {', '.join(medians)}"
        for name, speed in speeds.items():
            if not is_number(speed) or not is_number(medians.get(name)) or medians[name] <= 0:
                yield f"{name}: {speed} lane instructions a second, without a time"
            elif abs(speed * medians[name] - count) > 1e-6 * count:
                found = f"{count:,} lane instructions in {medians[name]:.4g} s"
                yield f"{name}: {found}, which is not {speed:.4g} in a second"


def _targets(document: Mapping[str, Any]) -> Iterator[str]:
    """Targets that are said to be reached, or missed, against the figure beside them."""
    targets, reached = document.get("targets"), document.get("reached")
    said: list[Any] = []
    if isinstance(targets, Mapping) and isinstance(reached, Mapping):
        said += reached.values()
        for name, value in targets.items():
            found = measured(document, name)
            if found is None or name not in reached:
                continue
            holds = found >= value if name.endswith("_per_s") else found <= value
            if holds != reached[name]:
                word = "reached" if reached[name] else "missed"
                yield f"the target {name} of {value:g} is said to be {word} with {found:g}"
    rows = [*document.get("rows", ()), *(targets if isinstance(targets, list) else ())]
    for row in rows:
        if isinstance(row, Mapping) and isinstance(row.get("reached"), bool) and "target" in row:
            said.append(row["reached"])
            found = row.get("gflops", row.get("ratio"))
            if found is not None and (found >= row["target"]) != row["reached"]:
                word = "reached" if row["reached"] else "missed"
                yield f"{_row_name(row)}: the target {row['target']:g} is said to be {word} with {found:g}"
    counted = [row["differing"] for row in rows if isinstance(row, Mapping) and isinstance(row.get("differing"), int)]
    if any(counted) and document.get("all_reached") is not False:
        yield f"all_reached is not false, and {sum(counted):,} of its bytes differ"
    if said and "all_reached" in document and document["all_reached"] != all(said):
        word = json_bool(document["all_reached"])
        yield f"all_reached is {word}, and {sum(map(bool, said))} of {len(said)} targets are"


def json_bool(value: object) -> str:
    """What JSON calls it."""
    return str(value).lower()


def measured(document: Mapping[str, Any], target: str) -> float | None:
    """The figure that a target is of; None if the document keeps it where this does not look."""
    own = document.get(target)
    if isinstance(own, Mapping):
        own = own.get("all checks")
    inner = document.get(target.removesuffix("_s"))
    if own is None and isinstance(inner, Mapping):
        own = inner.get("medians_s", {}).get("all checks")
    for row in document.get("rows", ()):
        if row.get("target") == target:
            own = row.get("best_s")
        if target == "checked_s" and row.get("contender") == "all checks":
            own = row.get("best_s")
    return own if isinstance(own, (int, float)) else None


@dataclass(frozen=True)
class Target:
    """A target that a report says something of.

    Attributes:
        what: it is of.
        found: what was measured; None if the report keeps it where nobody looks.
        needed: the target; None if the report says no more than that one was missed.
        least: whether it has to be at least that, else at most.
        reached: as the report says.
    """

    what: str
    found: float | None
    needed: float | None
    least: bool
    reached: bool

    @property
    def line(self) -> str:
        """It, for people."""
        if self.needed is None:
            return self.what
        found = "see the report" if self.found is None else cell_text(float(self.found))
        return f"{self.what}: {found}, {self.sense}"

    @property
    def sense(self) -> str:
        """The target in words."""
        assert self.needed is not None
        return f"{'at least' if self.least else 'at most'} {cell_text(float(self.needed))}"


def targets_of(document: Mapping[str, Any]) -> list[Target]:
    """All targets of a report of `refmoe bench`, in its order."""
    found = list(_targets_of(document))
    if document.get("all_reached") is False and all(each.reached for each in found):
        found.append(Target("a target that the report does not name", None, None, least=False, reached=False))
    return found


def _targets_of(document: Mapping[str, Any]) -> Iterator[Target]:
    targets, reached = document.get("targets"), document.get("reached")
    rows = [row for row in document.get("rows", ()) if isinstance(row, Mapping)]
    if isinstance(targets, Mapping) and isinstance(reached, Mapping):
        for name, value in targets.items():
            if name in reached:
                least = name.endswith("_per_s")
                yield Target(name.replace("_", " "), measured(document, name), value, least, reached[name])
                continue
            # One target for all rows, each of which is judged by its name.
            for row in rows:
                if (called := _row_name(row)) in reached:
                    yield Target(f"{name.replace('_', ' ')} of {called}", row.get(name), value, False, reached[called])
    for row in [*rows, *(targets if isinstance(targets, list) else ())]:
        if isinstance(row.get("reached"), bool) and isinstance(row.get("target"), (int, float)):
            yield Target(_row_name(row), row.get("gflops", row.get("ratio")), row["target"], True, row["reached"])
    for name, each in document.get("comparisons", {}).items():
        if {"ratio", "target", "reached"} <= each.keys():
            yield Target(f"{name}, ratio", each["ratio"], each["target"], True, each["reached"])


def _comparisons(document: Mapping[str, Any]) -> Iterator[str]:
    """Comparisons whose ratio is not that of their medians, or whose target is told wrongly."""
    held = document.get("comparisons", {})
    for name, each in held.items():
        if not {"medians_s", "ratio", "target", "reached"} <= each.keys():
            continue
        peers = [seconds for contender, seconds in each["medians_s"].items() if not contender.startswith("refmoe")]
        ratio = min(peers) / each["medians_s"]["refmoe"]
        if abs(ratio - each["ratio"]) > 1e-6 * ratio:
            yield f"{name}: the ratio {each['ratio']:.4g}, and its medians have {ratio:.4g}"
        if (each["ratio"] >= each["target"]) != each["reached"]:
            yield f"{name}: the target {each['target']:g} is told wrongly for the ratio {each['ratio']:.4g}"
    reached = [each["reached"] for each in held.values() if "reached" in each]
    if reached and document.get("reached") != all(reached):
        yield f"reached is {json_bool(document.get('reached'))}, and {sum(reached)} of {len(reached)} targets are"


BENCH = Kind("bench", again="run `refmoe bench` again", keys=frozenset(("name",)), judge=_judge, evidence=False)


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """The keys of some rows, in their order, and whether all their values are numbers."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: all(isinstance(row.get(key, 0), (int, float)) for row in rows) for key in keys}


def cell_text(value: Any) -> str:
    """A JSON value as a reader wants it: grouped digits, four significant ones, lists by commas."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e7 else f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(cell_text, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {cell_text(item)}" for name, item in value.items())
    return str(value)
