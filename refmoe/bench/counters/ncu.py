"""Counters as NVIDIA's profiler `ncu` prints them, and what they mean for a kernel.

A *share* is of what the chip can do at most in the time of the launch, in percent. The names of counters are those of
compute capability 9.0.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from typing import Any

from refmoe.errors import RefmoeError

#: Keys of a row, and the counters.
METRICS: Mapping[str, str] = {
    "nanoseconds": "gpu__time_duration.sum",
    "memory_bytes_read": "dram__bytes_read.sum",
    "memory_bytes_written": "dram__bytes_write.sum",
    "memory_share": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_share": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1_share": "l1tex__throughput.avg.pct_of_peak_sustained_elapsed",
    "instructions": "smsp__inst_executed.sum",
    "issue_share": "smsp__issue_active.avg.pct_of_peak_sustained_elapsed",
    "alu_share": "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_elapsed",
    "fma_share": "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_elapsed",
    "xu_share": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_elapsed",
    "lsu_share": "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_elapsed",
    "warps_share": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "waves": "launch__waves_per_multiprocessor",
    "registers": "launch__registers_per_thread",
}
#: What a warp waits for, in plain words, and the counters: warps that wait so, for each instruction that is issued.
STALLS: Mapping[str, str] = {
    words: f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio"
    for words, name in (
        ("memory", "long_scoreboard"),
        ("shared memory or a slow pipe", "short_scoreboard"),
        ("a busy pipe", "math_pipe_throttle"),
        ("the queue of loads and stores", "lg_throttle"),
        ("the queue of shared memory and slow pipes", "mio_throttle"),
        ("the result of the instruction before", "wait"),
        ("a barrier", "barrier"),
        ("its turn", "not_selected"),
        ("instructions to be fetched", "no_instruction"),
        ("a constant", "imc_miss"),
        ("stores at its end", "drain"),
        ("a branch", "branch_resolving"),
        ("a fence", "membar"),
        ("a slot of dispatch", "dispatch_stall"),
        ("a sleep", "sleeping"),
    )
}


def parse(text: str) -> list[dict[str, Any]]:
    """A row for each launch that `ncu --csv --page raw --print-units base` counted.

    Returns:
        JSON-able rows: `entry`, `microseconds`, the keys of METRICS but for nanoseconds, and `waits`, the share of each
        cause of STALLS in the waiting of warps, in percent, the largest first, those below 5 left out.

    Raises:
        RefmoeError: no table, or one without one of the counters.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    table = list(csv.DictReader(lines))[1:]  # the first row has the units
    if not table:
        said = text.strip().splitlines()
        raise RefmoeError(f"ncu counted nothing: {said[-1] if said else 'it printed nothing'}")
    return [_row(each) for each in table]


def _row(found: Mapping[str, str]) -> dict[str, Any]:
    values = {key: _number(found, metric) for key, metric in METRICS.items()}
    waits = {words: _number(found, metric) for words, metric in STALLS.items()}
    whole = sum(waits.values())
    shares = {words: round(100 * each / whole, 1) for words, each in waits.items()} if whole else {}
    row: dict[str, Any] = {"entry": found["Kernel Name"].partition("(")[0]}
    row["microseconds"] = round(values.pop("nanoseconds") / 1e3, 2)
    for key, value in values.items():
        row[key] = round(value, 2) if key.endswith("share") or key == "waves" else int(value)
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return {**row, "waits": {words: share for words, share in ordered if share >= 5}}


def _number(found: Mapping[str, str], metric: str) -> float:
    said = (found.get(metric) or "").replace(",", "")
    try:
        return float(said)
    except ValueError:
        raise RefmoeError(f"ncu says {said!r} of {metric}; needed a number: the chip may lack this counter") from None
