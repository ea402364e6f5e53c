"""Fill the figures of README.md from the committed reports, so that none of them is typed by hand.

`python docs/make_readme.py` rewrites the blocks between `<!-- figures: NAME -->` and `<!-- end -->`;
`python docs/make_readme.py --check` fails if that would change anything.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from refmoe.files import write_atomic

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
REPORTS = ROOT / "reports"
SHOWN_MUTANT = "20-flush-to-zero"


def main() -> int:
    """Rewrite or check README.md; the exit status."""
    text = README.read_text()
    filled = re.sub(r"(<!-- figures: (\S+) -->\n).*?(<!-- end -->)", _fill, text, flags=re.DOTALL)
    if "--check" not in sys.argv:
        write_atomic(README, filled)
        return 0
    if filled != text:
        print("README.md does not show what the reports say: run `make readme`")
    return int(filled != text)


def _fill(match: re.Match[str]) -> str:
    return f"{match[1]}{BLOCKS[match[2]]()}\n{match[3]}"


def _load(name: str) -> Any:
    return json.loads((REPORTS / name).read_text())


def _mismatch() -> str:
    mutant = next(record for record in _load("ptx.json")["mutants"] if record["name"] == SHOWN_MUTANT)
    return f"```\n{mutant['finding']}\nrepro: refmoe repro '{mutant['case']}'\n```"


def _proven() -> str:
    rows = ["| kernel | arch | where it ran | cases | verdicts | bytes compared |", "|---|---|---|---|---|---|"]
    for name in ("ptx.json", "h200.json"):
        report = _load(name)
        where = {"ptx": "PTX executed, no GPU", "cuda": report["environment"].get("gpu") or "GPU"}
        groups: dict[tuple[str, str, str], list[Any]] = {}
        for case in report["cases"]:
            groups.setdefault((case["family"], case["arch"], case["device"]), []).append(case)
        for (family, arch, device), cases in sorted(groups.items()):
            verdicts = sorted({case["verdict"] for case in cases})
            counts = ", ".join(f"{sum(case['verdict'] == v for case in cases)} {v}" for v in verdicts)
            compared = sum(case["compared"] for case in cases)
            rows.append(f"| {family} | {arch} | {where[device]} | {len(cases)} | {counts} | {compared:,} |")
    return "\n".join(rows)


def _mutants() -> str:
    mutants = _load("ptx.json")["mutants"]
    caught = sum(mutant["caught"] for mutant in mutants)
    return f"{caught} of {len(mutants)} planted faults are caught; the unpatched kernels pass the same cases."


def _bench() -> str:
    quantize, executor = _load("bench/quantize.json"), _load("bench/executor.json")
    rows = ["| what | measured | target |", "|---|---|---|"]
    for name, peer in (("quantize_mxfp8", "torchao `to_mx`"), ("dequantize_mxfp4", "`gguf`")):
        comparison = quantize["comparisons"][name]
        rows.append(f"| `{name}`, times as fast as {peer} | {comparison['ratio']:.1f} | {comparison['target']:.0f} |")
    speed = executor["lane_instructions_per_s"]["all checks"] / 1e9
    target = executor["targets"]["lane_instructions_per_s"] / 1e9
    rows.append(
        f"| executor, quantize 2048 x 2880, all checks on, G lane-instructions/s | {speed:.2f} | {target:.1f} |"
    )
    target = executor["targets"]["one_row_s"] * 1e3
    rows.append(f"| executor, one row, ms | {executor['one_row_s'] * 1e3:.2f} | {target:.0f} |")
    return "\n".join(rows)


def _gpu() -> str:
    report = _load("bench/gpu.json")
    rows = [f"| {report['gpu']} | µs | TB/s | time / floor |", "|---|---|---|---|"]
    for row in report["rows"]:
        bandwidth = f"{row['terabytes_per_second']:.2f}" if row["traffic_bytes"] > 10**7 else ""
        rows.append(f"| {row['name']} | {row['microseconds']:.2f} | {bandwidth} | {row['ratio_to_floor']:.2f} |")
    return "\n".join(rows)


BLOCKS: dict[str, Callable[[], str]] = {
    "mismatch": _mismatch,
    "proven": _proven,
    "mutants": _mutants,
    "bench": _bench,
    "gpu": _gpu,
}

if __name__ == "__main__":
    sys.exit(main())
