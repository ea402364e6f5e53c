"""What the counters of a launch say, in words: which resource it keeps busy, or what its warps wait for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Resources of the chip by the heads of their columns: their words, and the keys of their shares.
RESOURCES: Mapping[str, tuple[str, str]] = {
    "memory": ("memory", "memory_share"),
    "L2": ("the L2 cache", "l2_share"),
    "L1": ("the L1 cache", "l1_share"),
    "issue": ("issue of instructions", "issue_share"),
    "ALU": ("the ALU pipe", "alu_share"),
    "FMA": ("the FMA pipe", "fma_share"),
    "slow": ("the pipe of slow functions", "xu_share"),
    "loads": ("the pipe of loads and stores", "lsu_share"),
}
#: From this share on a resource decides the time: a copy that nothing else holds up reaches about as much of memory.
BUSY = 70.0
_CAUSES = 2


def sentence(row: Mapping[str, Any]) -> str:
    """One sentence about a row of `refmoe bench counters`.

    A launch keeps a resource busy from `BUSY` percent of its peak on. One that keeps none busy waits, and the sentence
    names the two commonest causes.
    """
    shares = sorted(((row[key], words) for words, key in RESOURCES.values()), reverse=True)
    if busy := [f"{words} {share:.0f} %" for share, words in shares if share >= BUSY]:
        return f"busy, of their peaks: {', '.join(busy)}"
    share, words = shares[0]
    causes = " and ".join(f"{cause} ({part:.0f} %)" for cause, part in list(row["waits"].items())[:_CAUSES])
    return f"nothing is busy: {words}, the busiest, has {share:.0f} % of its peak; warps wait most for {causes}"
