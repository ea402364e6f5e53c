"""Draw docs/report.png: the page of a run that fails, beside the committed report of a GPU.

`python tools/pictures.py` plants two of refmoe/families/mutants in a copy of the kernels, runs a few cases on them,
writes out/report.html and takes its picture with Chromium, if there is one (Debian: apt-get install chromium); else it
prints the command. Only times and dates differ from one picture to the next.
"""

from __future__ import annotations

import dataclasses
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from refmoe.families.case import parse_case
from refmoe.families.suites import list_cases
from refmoe.files import write_atomic
from refmoe.reports.environment import current_environment
from refmoe.reports.html import page_text, read_source
from refmoe.reports.parity import Report, make_report, report_text
from refmoe.verify.plant import load_mutants, mutated_sources
from refmoe.verify.runner import Devices, run_case

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "out"
PICTURE = ROOT / "docs" / "report.png"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
#: One fault in the GEMM and one in the expand step, whose maps show what they are.
FAULTS = ("52-gemm-second-atom-scales", "09-tail-dropped")
FAMILIES = ("mxfp8_quantize", "expand", "sm12x_gemm")
#: Large enough for several tiles and experts.
SHOWN = ("sm12x_gemm:bf16:m24k512n640e3:gaussian:tile=256x8x256:seed7@ptx",)


def main() -> int:
    """Make the page and, with a browser, its picture; the exit status."""
    planted = OUT / "planted-faults.json"
    write_atomic(planted, report_text(_failing_report()))
    sources = [read_source(path) for path in (planted, ROOT / "reports" / "h200.json")]
    page = write_atomic(OUT / "report.html", page_text(sources))
    print(f"written: {page}")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    command = [
        browser or BROWSERS[0],
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--force-device-scale-factor=1.5",
        "--window-size=1160,1010",
        f"--screenshot={PICTURE}",
        page.resolve().as_uri(),
    ]
    if browser is None:
        print(f"no Chromium here; where there is one: {shlex.join(command)}")
        return 1
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    print(f"written: {PICTURE}")
    return 0


def _failing_report() -> Report:
    mutants = {mutant.name: mutant for mutant in load_mutants()}
    first = mutants[FAULTS[0]]
    both = dataclasses.replace(first, patches=tuple(patch for name in FAULTS for patch in mutants[name].patches))
    cases = [*map(parse_case, SHOWN), *list_cases("quick", list(FAMILIES), "ptx", "sm_120a")]
    with tempfile.TemporaryDirectory(prefix="refmoe-picture-") as scratch:
        devices = Devices(csrc=mutated_sources(both, Path(scratch) / "csrc"))
        results = [run_case(case, devices) for case in cases]
    return make_report(
        results,
        command=f"tools/pictures.py, the faults {' and '.join(FAULTS)} planted",
        environment=current_environment(gpu=False),
        seconds=sum(result.seconds for result in results),
    )


if __name__ == "__main__":
    raise SystemExit(main())
