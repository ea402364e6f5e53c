"""Two reports of one benchmark side by side: for each row the ratio of its times with a confidence interval.

The ratio of a row is the median of B's repetitions divided by the median of A's: above 1, B is slower. Its interval is
a percentile bootstrap (Efron, 1979). Repetitions are drawn again with replacement, as many as there are, from A and
from B independently of each other; the ratio of the medians of each draw is kept; the interval runs between quantiles
of those.
With n rows the quantiles are those of the confidence 1 - (1 - confidence) / n (Bonferroni): where nothing changed, the
chance that any row is called faster or slower is at most about 1 - confidence. The draws are seeded, so two reports
always give the same intervals.

What the repetitions of one run cannot show is in no interval: clocks and temperatures that differ from run to run. A
tolerance (`slower_than`) is for that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from refmoe.errors import ArgumentError
from refmoe.reports.documents import ReportError, is_intact, read_document

DRAWS = 10_000
CONFIDENCE = 0.95
LEAST_REPETITIONS = 5
_SEED = 20251123
#: What two reports must have in common to be of one machine, where both have it.
_MACHINE = ("gpu", "arch", "cores")


def read_report(path: Path, *, rows: bool = True) -> dict[str, Any]:
    """A report of `refmoe bench`, whole and unchanged.

    Args:
        path: of the report.
        rows: whether it must have rows.

    Raises:
        ArgumentError: it cannot be read, is no such report, has no rows, or was changed after it was written.
    """
    needed = "a report of `refmoe bench`, as --report writes it"
    try:
        # As the gate reads it: no pipe makes it wait, and there is no number without end in it.
        document = read_document(path)
    except ReportError as error:
        raise ArgumentError("report", str(error), needed) from error
    if document.get("kind") != "bench" or not isinstance(document.get("name"), str):
        raise ArgumentError("report", f"{path}, JSON of something else", needed)
    if not is_intact(document):
        raise ArgumentError("report", f"{path}, whose digest is not that of its content", "a report that nobody edited")
    if not rows:
        return document
    if not isinstance(document.get("rows"), list) or not all(isinstance(row, dict) for row in document["rows"]):
        raise ArgumentError(
            "report", f"{path}, of the benchmark {document['name']}, without rows", "a report with rows"
        )
    return document


def compare(a: Path, b: Path, *, slower_than: float = 0.0, ratios_only: bool = False) -> dict[str, Any]:
    """Compare each row of two reports.

    Args:
        a: the report from before.
        b: the report from after.
        slower_than: share of a row's time by which it may have grown: 0.02 lets two percent pass.
        ratios_only: compare the medians alone, for reports that keep no repetitions; no row gets a verdict then.

    Returns:
        JSON-able: `benchmark`, `confidence` of all rows together, `slower_than`, `rows` in the order of A, each with
        `name`, `a_microseconds` and `b_microseconds` (medians), `ratio`, `low` and `high` of its interval, `verdict`
        "faster", "slower" or "no difference"; `slower`, the names of the rows whose interval lies above
        1 + slower_than; `all_reached`, whether there is none.

    Raises:
        ArgumentError: a file that is no such report, two benchmarks, two machines, rows that only one of them has, or
            rows without repetitions.
    """
    if not 0 <= slower_than < float("inf"):
        raise ArgumentError("slower_than", str(slower_than), "a share of zero or more, such as 0.02")
    before, after = read_report(a), read_report(b)
    _check_same(before, after)
    rows_a, rows_b = _by_name(a, before["rows"]), _by_name(b, after["rows"])
    for path, have, other in ((b, rows_b, rows_a), (a, rows_a, rows_b)):
        if missing := [name for name in other if name not in have]:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise ArgumentError("report", f"{path}, without the row {missing[0]!r}{more}", "the same rows in both")
    if ratios_only:
        rows = [_by_medians(name, rows_a[name], rows_b[name], a, b) for name in rows_a]
    else:
        each = 1 - (1 - CONFIDENCE) / max(len(rows_a), 1)
        rows = []
        for name in rows_a:
            samples = [_repetitions(path, name, found[name]) for path, found in ((a, rows_a), (b, rows_b))]
            rows.append({"name": name, **ratio_of(samples[0], samples[1], confidence=each)})
    slower = [row["name"] for row in rows if row.get("low", 0) > 1 + slower_than]
    return {
        "benchmark": before["name"],
        "confidence": None if ratios_only else CONFIDENCE,
        "slower_than": slower_than,
        "rows": rows,
        "slower": slower,
        "all_reached": not slower,
    }


def ratio_of(a: Sequence[float], b: Sequence[float], *, confidence: float = CONFIDENCE) -> dict[str, Any]:
    """The ratio of two medians with its interval and verdict; the module says how.

    Args:
        a: repetitions from before.
        b: repetitions from after, in the same unit of time.
        confidence: of the interval.
    """
    rng = np.random.default_rng(_SEED)
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)

    def medians(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        drawn: np.ndarray[Any, Any] = np.median(rng.choice(values, (DRAWS, values.size)), axis=1)
        return drawn

    ratios = medians(second) / medians(first)
    tail = (1 - confidence) / 2
    low, high = (float(each) for each in np.quantile(ratios, (tail, 1 - tail)))
    before, after = float(np.median(first)), float(np.median(second))
    return {
        "a_microseconds": before,
        "b_microseconds": after,
        "ratio": after / before,
        "low": low,
        "high": high,
        "verdict": "slower" if low > 1 else "faster" if high < 1 else "no difference",
    }


def row_name(row: Mapping[str, Any]) -> str | None:
    """What a row is called: its `name`, or its problem and contender; None if it has neither."""
    if isinstance(row.get("name"), str):
        return str(row["name"])
    if isinstance(row.get("problem"), str) and isinstance(row.get("contender"), str):
        return f"{row['problem']}, {row['contender']}"
    return None


def _check_same(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    if before["name"] != after["name"]:
        found = f"reports of {before['name']} and of {after['name']}"
        raise ArgumentError("reports", found, "two reports of one benchmark")
    for key in _MACHINE:
        if key in before and key in after and before[key] != after[key]:
            found = f"{key} {before[key]} and {after[key]}"
            raise ArgumentError(
                "reports", found, "two reports of one machine: times of two machines say nothing of code"
            )


def _by_name(path: Path, rows: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The rows by name; of rows with one name, such as a floor that several groups have, the second is `name, 2`."""
    found: dict[str, Mapping[str, Any]] = {}
    times: Counter[str] = Counter()
    for number, row in enumerate(rows):
        name = row_name(row)
        if name is None:
            raise ArgumentError("report", f"{path}, row {number} without a name", "rows with a name each")
        times[name] += 1
        found[name if times[name] == 1 else f"{name}, {times[name]}"] = row
    if not found:
        raise ArgumentError("report", f"{path}, without a row", "a report with rows")
    return found


def _repetitions(path: Path, name: str, row: Mapping[str, Any]) -> Sequence[float]:
    samples = row.get("repetitions")
    if samples is None:
        found = f"{path}, whose row {name!r} keeps no repetitions"
        raise ArgumentError("report", found, "a report made since rows keep them, or --ratios-only, without verdicts")
    good = isinstance(samples, list) and all(_is_time(each) for each in samples)
    if not good or len(samples) < LEAST_REPETITIONS:
        count = f"{len(samples)} repetitions" if good else "repetitions that are no times"
        needed = f"{LEAST_REPETITIONS} or more times above zero, in microseconds"
        raise ArgumentError("report", f"{path}, whose row {name!r} has {count}", needed)
    return list(samples)


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")


def _by_medians(name: str, before: Mapping[str, Any], after: Mapping[str, Any], a: Path, b: Path) -> dict[str, Any]:
    times = []
    for path, row in ((a, before), (b, after)):
        if not _is_time(row.get("microseconds")):
            found = f"{path}, whose row {name!r} has microseconds {row.get('microseconds')!r}"
            raise ArgumentError("report", found, "a time above zero")
        times.append(float(row["microseconds"]))
    return {"name": name, "a_microseconds": times[0], "b_microseconds": times[1], "ratio": times[1] / times[0]}
