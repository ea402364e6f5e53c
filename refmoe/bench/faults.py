"""How long it takes to plant the faults of an earlier commit, and to catch each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from refmoe.bench.parity import EARLIER, earlier, environment, last_line
from refmoe.bench.timing import machine, verdict
from refmoe.catalog import kernel_of, parse_case, sound_kernel
from refmoe.cuda.toolchain import cache_directory
from refmoe.errors import RefmoeError
from refmoe.museum import exhibits
from refmoe.verify.plant import Fault, load_patches, plant_faults
from refmoe.verify.runner import run_cases

TARGETS = {"planted_s": 200.0}
"""At most so long on a cache that holds the sound kernels and no broken one: what is left is the compiler's time."""


def run(*, names: list[str] | None = None) -> dict[str, Any]:
    """The faults of commit 2db4e6e, planted with a process for each core.

    The cache is a new one, in which the cases that catch them have run on the sound kernels. Every broken kernel is
    compiled in the measured time. CUTLASS's build is taken from the present cache.

    Args:
        names: other faults.

    Returns:
        JSON-able: `earlier`, `faults`, `planted_s`, `rows` with the seconds of both steps, `jobs`, `cores`, `versions`,
        `targets`, `reached` by target, and `all_reached`.

    Raises:
        RefmoeError: a fault is not caught, or cannot be planted here.
    """
    chosen = earlier("faults") if names is None else names
    jobs = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="refmoe-faults-bench-") as folder:
        cache, found = Path(folder) / "cache", Path(folder) / "took.json"
        cache.mkdir()
        built = cache_directory().absolute() / "cutlass"
        if built.is_dir():
            (cache / "cutlass").symlink_to(built)
        code = (
            "import json, pathlib, sys; from refmoe.bench.faults import plant; "
            "took = plant(sys.argv[3:], int(sys.argv[2])); pathlib.Path(sys.argv[1]).write_text(json.dumps(took))"
        )
        command = [sys.executable, "-c", code, str(found), str(jobs), *chosen]
        own = environment(REFMOE_CACHE_DIR=str(cache))
        ran = subprocess.run(command, env=own, capture_output=True, text=True)
        if ran.returncode:
            raise RefmoeError(f"bench faults: {last_line(ran)}")
        took = json.loads(found.read_text())
    return {
        "earlier": EARLIER,
        "faults": len(chosen),
        "planted_s": took["planted"],
        "rows": [{"step": step, "seconds": seconds} for step, seconds in took.items()],
        "jobs": jobs,
        **machine("llvmlite"),
        **verdict(TARGETS, {"planted_s": took["planted"] <= TARGETS["planted_s"]}),
    }


def plant(names: list[str], jobs: int) -> dict[str, float]:
    """Seconds, in this process and its workers, of the cases on the sound kernels and of the planted faults.

    Raises:
        RefmoeError: there is no fault of a name, or it is not caught.
    """
    faults = _named(names)
    start = time.perf_counter()
    for result in run_cases([parse_case(fault.case) for fault in faults if fault.case], kernel_of, jobs=jobs):
        if result.fails:
            raise RefmoeError(f"the sound kernel fails {result.id}")
    planted = time.perf_counter()
    for caught in plant_faults(faults, sound_kernel, jobs=jobs):
        if not caught.caught:
            raise RefmoeError(caught.line.splitlines()[0])
    return {"sound": planted - start, "planted": time.perf_counter() - planted}


def _named(names: list[str]) -> list[Fault]:
    """Faults of refmoe's own kernels and of the museum's, by their names."""
    known: dict[str, Fault] = {fault.name: fault for fault in load_patches()}
    for exhibit in exhibits().values():
        known |= {fault.name: fault for fault in exhibit.faults}
    if absent := [name for name in names if name not in known]:
        raise RefmoeError(f"no fault is called {', '.join(absent)}")
    return [known[name] for name in names]
