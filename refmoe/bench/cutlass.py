"""How long the executor takes for CUTLASS's grouped GEMM, with all its checks on and with none."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from refmoe.bench.executor import executors, gemm_operands, lane_instructions
from refmoe.bench.timing import machine, measure, verdict
from refmoe.cuda.gemm.kernel import grouped_gemm as our_grouped_gemm
from refmoe.errors import RefmoeError
from refmoe.museum.cutlass import Build, find_built, find_headers, grouped_gemm

TARGETS = {"checked_s": 1.6}
"""At most so long with all checks on, compilation apart."""

#: Output columns, and elements of a row.
N, K = 2880, 2816
#: Four experts, of which the second has no row.
OFFSETS = np.array([0, 9, 9, 17, 24], np.int64)


def run(*, rounds: int = 2) -> dict[str, Any]:
    """24 x 2880 x 2816 over four experts, cooperative, swapped, sm_121a, on drawn codes.

    What is timed is the whole call from Python: argument checks, buffers, the host code of CUTLASS, execution, results.
    An unmeasured call before parses and translates the PTX. The best of the rounds counts: load only adds.

    Returns:
        JSON-able: `build`, `release`, `shape`, `rows` by contender ("all checks", "no checks") with `best_s`,
        `lane_instructions`, `rounds`, `cores`, `versions`, `targets`, `reached` by target, and `all_reached`.

    Raises:
        RefmoeError: the build is missing, or the output differs from that of our kernel in a byte.
    """
    build = Build()
    if find_built(build) is None:
        raise RefmoeError(f"bench cutlass: {build} is not built: make cutlass")
    operands = gemm_operands(OFFSETS, N, K)
    devices = executors(build.arch)
    expected = our_grouped_gemm(**operands, device=devices["no checks"]).tobytes()

    def compute(name: str) -> None:
        found = grouped_gemm(**operands, device=devices[name], build=build)
        if found.tobytes() != expected:
            raise RefmoeError(f"bench cutlass: the output of CUTLASS with {name} is not that of our kernel")

    contenders = {name: partial(compute, name) for name in devices}
    best = {name: min(timing.seconds) for name, timing in measure(contenders, rounds=rounds).items()}
    reached = {"checked_s": best["all checks"] <= TARGETS["checked_s"]}
    return {
        "build": str(build),
        "release": ".".join(map(str, find_headers().version)),
        "shape": [int(OFFSETS[-1]), N, K],
        "experts": OFFSETS.size - 1,
        "rows": [{"contender": name, "best_s": took} for name, took in best.items()],
        "lane_instructions": lane_instructions(devices["all checks"]),
        "rounds": rounds,
        **machine(),
        **verdict(TARGETS, reached),
    }
