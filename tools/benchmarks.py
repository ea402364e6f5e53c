"""Make docs/BENCHMARK_RESULTS.md and its pictures from reports/bench, so that nobody types a figure.

    python tools/benchmarks.py            write the page and its pictures
    python tools/benchmarks.py --check    fail if the page or a picture is not of the committed reports

`make benchmarks` and `make gate` run these. The file of a picture holds the digest of the report that it was drawn
from, which is how a picture is checked: its pixels depend on the release of matplotlib.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from refmoe.bench.page import PAGE, PICTURES, page_text, read_reports
from refmoe.bench.page.pictures import draw, drawn_from
from refmoe.errors import ArgumentError
from refmoe.files import write_atomic

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Write or check the page below `root`; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 if anything would change")
    check = parser.parse_args(arguments).check
    docs = root / "docs"
    page = docs / PAGE
    try:
        reports = read_reports(root / "reports" / "bench")
    except ArgumentError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    text = page_text(reports)
    if not check:
        for name, report in PICTURES.items():
            draw(name, reports[report], docs)
        write_atomic(page, text)
        return 0
    stale = [] if page.is_file() and page.read_text() == text else [PAGE]
    stale += [name for name, report in PICTURES.items() if not _shows(docs / name, reports[report]["digest"])]
    for name in stale:
        print(f"docs/{name} does not show what the reports say: run `make benchmarks`")
    return int(bool(stale))


def _shows(picture: Path, digest: str) -> bool:
    """Whether a picture is there and was drawn from the report with this digest."""
    try:
        return drawn_from(picture) == digest
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
