"""What a GPU's own counters say of the kernels of `refmoe bench gpu`: which resource each of them keeps busy.

A time beside its floor says how far a kernel is from what no kernel can beat. It does not say why. The counters do:
which share of their peaks memory, issue of instructions and each pipe reach, and what a warp waits for meanwhile.
NVIDIA's profiler `ncu` reads them, kernel by kernel, with a cold L2 cache as in the bench.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from refmoe.bench.counters.ncu import METRICS, STALLS, parse
from refmoe.bench.gpu.timing import clocks, floor_device
from refmoe.cuda.device import CudaDevice, DeviceUnavailable
from refmoe.errors import RefmoeError
from refmoe.reports.environment import current_environment

#: Every kernel of refmoe and of its floors, and none of torch's, which fill the buffers.
_OURS = "regex:^refmoe_"
_SECONDS = 500


def run() -> dict[str, Any]:
    """Profile each launch of `refmoe bench gpu` once on the current GPU and return a JSON-able document.

    `rows` holds for each launch, in the order of that bench: `name` of its row there, `entry`, `floor` (the name of its
    group's first row), `traffic_bytes` that the whole row must move, and what `refmoe.bench.counters.ncu` makes of its
    counters. Times under a profiler are not comparable with those of the bench.

    Raises:
        DeviceUnavailable: no GPU that the kernels are built for, or no `ncu` on PATH.
        RefmoeError: `ncu` takes too long or may not read the counters, or its answer is not one row for each launch.
    """
    device = CudaDevice()
    ncu = shutil.which("ncu")
    if ncu is None:
        raise DeviceUnavailable("no ncu on PATH; needed NVIDIA Nsight Compute, which reads a GPU's counters")
    with tempfile.TemporaryDirectory() as folder:
        launched, counted = Path(folder, "launches.json"), Path(folder, "counters.csv")
        command = [
            *(ncu, "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(counted)),
            *("--clock-control", "none", "--cache-control", "all", "--kernel-name", _OURS),
            *("--metrics", ",".join((*METRICS.values(), *STALLS.values()))),
            *(sys.executable, "-m", "refmoe.bench.counters.launches", str(launched)),
        ]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise RefmoeError(f"ncu took more than {_SECONDS} seconds") from error
        text = counted.read_text() if counted.is_file() else ""
        if ended.returncode or not launched.is_file():
            said = (ended.stderr.strip() or text.strip() or ended.stdout.strip()).splitlines()
            raise RefmoeError(
                f"ncu ended with exit status {ended.returncode}: {said[-1] if said else 'it said nothing'}"
            )
        rows = join(json.loads(launched.read_text()), parse(text))
    return {
        **{"gpu": device.gpu_name, "arch": device.arch, "environment": current_environment(gpu=True).model_dump()},
        **{"clocks": clocks(floor_device()), "rows": rows},
    }


def join(launches: Sequence[Mapping[str, Any]], counted: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each launch with its counters.

    Args:
        launches: in order, each with its `entry`.
        counted: what ncu said, in order, each with its `entry`.

    Raises:
        RefmoeError: they are not the same entries in the same order.
    """
    ours, theirs = ([each["entry"] for each in side] for side in (launches, counted))
    for at, (needed, found) in enumerate(itertools.zip_longest(ours, theirs, fillvalue="nothing")):
        if needed != found:
            raise RefmoeError(f"ncu counted {found} as launch {at} of {len(theirs)}; needed {needed}, of {len(ours)}")
    return [{**launch, **counts} for launch, counts in zip(launches, counted, strict=True)]
