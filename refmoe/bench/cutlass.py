"""How long the executor takes for CUTLASS's grouped GEMM, with all its checks on and with none."""

from __future__ import annotations

import os
import time
from importlib.metadata import version
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from refmoe.cuda.arguments import expanded_scale_rows, k_groups
from refmoe.cuda.device import PtxDevice, open_device
from refmoe.cuda.gemm.kernel import grouped_gemm as our_grouped_gemm
from refmoe.errors import RefmoeError
from refmoe.museum.cutlass import Build, find_built, find_headers, grouped_gemm
from refmoe.ptx import Checks

__all__ = ["TARGETS", "run"]

TARGETS = {"checked_s": 12.0}
"""At most so long with all checks on, compilation apart."""

_SEED = 20250917
_N, _K = 2880, 2816
# Four experts, of which the second has no row.
_OFFSETS = np.array([0, 9, 9, 17, 24], np.int64)
_UNCHECKED = Checks(bounds=False, uninitialised=False, alignment=False, races=False)


def run(*, rounds: int = 2) -> dict[str, Any]:
    """24 x 2880 x 2816 over four experts, cooperative, swapped, sm_121a, on drawn codes.

    What is timed is the whole call from Python: argument checks, buffers, the host code of CUTLASS, execution, results.
    A problem of one step before parses and translates the PTX. The best of the rounds counts: load only adds.

    Returns:
        JSON-able: `build`, `release`, `shape`, `rows` by contender ("all checks", "no checks") with `best_s`,
        `lane_instructions`, `rounds`, `cores`, `versions`, `targets`, `reached` by target, and `all_reached`.

    Raises:
        RefmoeError: the build is missing, or the output differs from that of our kernel in a byte.
    """
    build = Build()
    if find_built(build) is None:
        raise RefmoeError(f"bench cutlass: {build} is not built: make cutlass")
    operands = _operands(_OFFSETS, _N, _K)
    devices = {"all checks": _device(build.arch, Checks()), "no checks": _device(build.arch, _UNCHECKED)}
    expected = our_grouped_gemm(**operands, device=devices["no checks"]).tobytes()
    small = _operands(np.array([0, 1], np.int64), 128, 128)
    seconds: dict[str, list[float]] = {name: [] for name in devices}
    for device in devices.values():
        grouped_gemm(**small, device=device, build=build)
    for _ in range(rounds):
        for name, device in devices.items():
            start = time.perf_counter()
            found = grouped_gemm(**operands, device=device, build=build)
            seconds[name].append(time.perf_counter() - start)
            if found.tobytes() != expected:
                raise RefmoeError(f"bench cutlass: the output of CUTLASS with {name} is not that of our kernel")
    launched = devices["all checks"].launches[-1].result
    assert launched is not None
    best = {name: min(times) for name, times in seconds.items()}
    reached = {"checked_s": best["all checks"] <= TARGETS["checked_s"]}
    return {
        "build": str(build),
        "release": ".".join(map(str, find_headers().version)),
        "shape": [int(_OFFSETS[-1]), _N, _K],
        "experts": _OFFSETS.size - 1,
        "rows": [{"contender": name, "best_s": took} for name, took in best.items()],
        "lane_instructions": launched.lane_instructions,
        "rounds": rounds,
        "cores": len(os.sched_getaffinity(0)),
        "versions": {"numpy": version("numpy")},
        "targets": dict(TARGETS),
        "reached": reached,
        "all_reached": all(reached.values()),
    }


def _operands(offsets: npt.NDArray[np.int64], n: int, k: int) -> dict[str, Any]:
    """Codes as drawn; scales around one."""
    rng = np.random.default_rng(_SEED)
    rows, experts = int(offsets[-1]), offsets.size - 1
    columns = k_groups(k) * 4
    return {
        "codes": rng.standard_normal((rows, k), np.float32).astype(ml_dtypes.float8_e4m3fn).view(np.uint8),
        "scales": rng.integers(118, 128, expanded_scale_rows(rows, experts) * columns, dtype=np.uint8),
        "weights": rng.integers(0, 256, (experts, n, k // 2), dtype=np.uint8),
        "weight_scales": rng.integers(118, 128, experts * -(-n // 128) * 128 * columns, dtype=np.uint8),
        "offsets": offsets,
    }


def _device(arch: str, checks: Checks) -> PtxDevice:
    device = open_device("ptx", arch)
    assert isinstance(device, PtxDevice)
    device.checks = checks
    return device
