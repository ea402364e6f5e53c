"""Make the pictures of docs/.

    python tools/pictures.py

- docs/layout_128x4.png: the scale layout, two tiles of it.
- docs/drift.png: the curves of reports/drift.json.
- docs/report.png: the page of a run that fails, beside the committed report of a GPU. Two of refmoe/families/mutants
  are planted in a copy of the kernels, a few cases run on it, the page is out/report.html. Chromium takes its picture
  (Debian: apt-get install chromium). Without Chromium the command is printed and the exit status is 1.

The same sources and reports give the same bytes, but for docs/report.png, which shows times and dates.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from refmoe.catalog import list_cases, parse_case
from refmoe.drift.picture import draw_drift
from refmoe.files import write_atomic
from refmoe.reports.environment import current_environment
from refmoe.reports.html import page_text, read_source
from refmoe.reports.parity import Report, make_report, report_text
from refmoe.verify.kernel import Devices, Kernel
from refmoe.verify.plant import load_patches, patched_sources
from refmoe.verify.runner import run_case
from refmoe.views.layout_picture import draw_layout

ROOT = Path(__file__).resolve().parent.parent
DOCS, OUT, REPORTS = ROOT / "docs", ROOT / "out", ROOT / "reports"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
#: One fault in the GEMM and one in the expand step, whose maps show what they are.
FAULTS = ("52-gemm-second-atom-scales", "09-tail-dropped")
FAMILIES = ("mxfp8_quantize", "expand", "sm12x_gemm")
#: Large enough for several tiles and experts.
SHOWN = ("sm12x_gemm:bf16:m24k512n640e3:gaussian:tile=256x8x256:seed7@ptx",)


def main() -> int:
    """Make all pictures; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    draw_layout("128x4", 128, 8, DOCS / "layout_128x4.png")
    draw_drift(json.loads((REPORTS / "drift.json").read_text()), DOCS / "drift.png")
    print(f"written: {DOCS / 'layout_128x4.png'}\nwritten: {DOCS / 'drift.png'}")
    return draw_page(_failing_page(), DOCS / "report.png")


def draw_page(page: Path, picture: Path) -> int:
    """Let Chromium draw the top of an HTML page; 1 if there is no Chromium."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    command = [
        browser or BROWSERS[0],
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--force-device-scale-factor=1.5",
        "--window-size=1160,1010",
        f"--screenshot={picture}",
        page.resolve().as_uri(),
    ]
    if browser is None:
        print(f"no Chromium here; where there is one: {shlex.join(command)}")
        return 1
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    print(f"written: {picture}")
    return 0


def _failing_page() -> Path:
    planted = OUT / "planted-faults.json"
    write_atomic(planted, report_text(_failing_report()))
    sources = [read_source(path) for path in (planted, REPORTS / "gpu.json")]
    page = write_atomic(OUT / "report.html", page_text(sources))
    print(f"written: {page}")
    return page


def _failing_report() -> Report:
    patches = {patch.name: patch for patch in load_patches()}
    first = patches[FAULTS[0]]
    both = dataclasses.replace(first, patches=tuple(change for name in FAULTS for change in patches[name].patches))
    cases = [*map(parse_case, SHOWN), *list_cases("quick", list(FAMILIES), "ptx", "sm_120a")]
    with tempfile.TemporaryDirectory(prefix="refmoe-picture-") as scratch:
        devices = Devices(csrc=patched_sources(both, Path(scratch) / "csrc"))
        results = [run_case(Kernel(case.family, devices), case) for case in cases]
    return make_report(
        results,
        command=f"tools/pictures.py, the faults {' and '.join(FAULTS)} planted",
        environment=current_environment(gpu=False),
        seconds=sum(result.seconds for result in results),
    )


if __name__ == "__main__":
    raise SystemExit(main())
