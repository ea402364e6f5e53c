"""The process that `refmoe bench counters` profiles: it launches what `refmoe bench gpu` times, each once, in order.

    python -m refmoe.bench.counters.launches OUT.json

OUT.json gets a row for each launch: the name of its row in that bench, its entry, the name of its group's floor, and
the bytes that the whole row must move.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from refmoe.bench import gpu
from refmoe.bench.gpu import gemv
from refmoe.bench.gpu.timing import Calls, Contender, floor_device
from refmoe.cuda.device import CudaDevice


def launch(groups: Iterable[Sequence[Contender | Calls]]) -> list[dict[str, Any]]:
    """Launch each contender's first set of buffers and say what was launched. Calls of torch are left out."""
    rows = []
    for group in groups:
        for one in group:
            if isinstance(one, Calls):
                continue
            for plan in one.sets[0]:
                one.device.enqueue(plan)
                row = {"name": one.name, "entry": plan.kernel.entry, "floor": group[0].name}
                rows.append({**row, "traffic_bytes": one.traffic})
    return rows


def main(out: Path) -> None:
    """Launch everything on the current GPU and write what was launched."""
    device, floors = CudaDevice(), floor_device()
    rows = launch([*gpu.groups(device, floors, None), *gemv.groups(device, floors)])
    device.torch.cuda.synchronize()
    out.write_text(json.dumps(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
