"""Make docs/BENCHMARK_RESULTS.md and its pictures from reports/bench, so that nobody types a figure.

    python tools/benchmarks.py            write the page and its pictures
    python tools/benchmarks.py --check    fail if the page or a picture is not of the committed reports

`make benchmarks` and `make gate` run these. The page ends with the digest of the report that each picture was drawn
from, which is how a picture is checked: its bytes depend on the release of matplotlib.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from refmoe.bench.page import PAGE, PICTURES, page_text, read_reports
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
        from refmoe.bench.page_pictures import draw

        for name, report in PICTURES.items():
            draw(name, reports[report], docs)
        write_atomic(page, text)
        return 0
    missing = [name for name in PICTURES if not (docs / name).is_file()]
    if missing:
        print(f"docs/ lacks {', '.join(missing)}: run `make benchmarks`")
    stale = not page.is_file() or page.read_text() != text
    if stale:
        print(f"docs/{PAGE} does not show what the reports say: run `make benchmarks`")
    return int(stale or bool(missing))


if __name__ == "__main__":
    sys.exit(main())
