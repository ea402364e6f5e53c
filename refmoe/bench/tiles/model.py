"""A model of the time of the SM12x grouped GEMM, tile by tile. It is no measurement: nobody here has such a chip.

A launch takes at least as long as each of four resources is busy:

    memory   all bytes that must move once, at the nominal bandwidth of the product
    issue    instructions of the busiest multiprocessor, four in a clock, one for each of its schedulers
    tensor   operations of whole tiles on the busiest multiprocessor, at the published rate
    shared   wavefronts of the busiest multiprocessor, one in a clock: 32 banks of 4 bytes

The predicted time is the longest of the four. Left out are latency, the first and the last stage of the ring, what
happens once a tile, launches, caches, and clocks below the boost clock: hardware takes longer. What is left in ranks
tiles, and says which resource to spare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from refmoe.bench.tiles.peaks import Peaks
from refmoe.chips import Mma, Product
from refmoe.cuda.gemm.tile import Tile
from refmoe.errors import ArgumentError

#: Warp schedulers of a multiprocessor, each with one instruction a clock (CUDA C++ Programming Guide, "Compute
#: Capability 12.x").
SCHEDULERS = 4
_BF16_BYTES = 2


@dataclass(frozen=True)
class LayerShape:
    """The routed experts of a model.

    Attributes:
        name: of the model.
        hidden, intermediate: elements of a token, and of an expert's inner row.
        experts, top_k: of a layer, and of a token.
    """

    name: str
    hidden: int
    intermediate: int
    experts: int
    top_k: int

    def gemms(self) -> dict[str, tuple[int, int]]:
        """By name (weight rows, K) of the two products of an expert: gates and ups, then down."""
        return {"GEMM1": (2 * self.intermediate, self.hidden), "GEMM2": (self.hidden, self.intermediate)}

    def loads(self, tokens: int) -> dict[int, int]:
        """{rows: experts} of `tokens` tokens whose choices spread evenly: as many experts as can have a row have one.

        Raises:
            ArgumentError: no token.
        """
        if tokens < 1:
            raise ArgumentError("tokens", str(tokens), "at least 1")
        rows = tokens * self.top_k
        active = min(self.experts, rows)
        each, more = divmod(rows, active)
        return {count: experts for count, experts in ((each + 1, more), (each, active - more)) if experts}


GPT_OSS_120B = LayerShape("gpt-oss-120b", 2880, 2880, 128, 4)
DEEPSEEK_V3 = LayerShape("DeepSeek-V3", 7168, 2048, 256, 8)
MODELS = (GPT_OSS_120B, DEEPSEEK_V3)


@dataclass(frozen=True)
class StepCost:
    """One step along K of one block of threads: what the model needs of a kernel.

    Attributes:
        tile: outputs and depth, K in elements.
        mma: the matrix instruction.
        instructions: of machine code, by warps.
        wavefronts: of shared memory; None where they were not all counted.
        weight_bits, token_bits: of an element with its share of the scale.
    """

    tile: Tile
    mma: Mma
    instructions: float
    wavefronts: float | None
    weight_bits: float
    token_bits: float


@dataclass(frozen=True)
class Prediction:
    """Microseconds by resource ("memory", "issue", "tensor", "shared"), by the model of this module."""

    microseconds: Mapping[str, float]

    @property
    def bound(self) -> str:
        """The resource that is busy longest."""
        return max(self.microseconds, key=lambda name: self.microseconds[name])

    @property
    def longest(self) -> float:
        """Its microseconds: the predicted time."""
        return self.microseconds[self.bound]


def predict(cost: StepCost, n: int, k: int, loads: Mapping[int, int], product: Product, peaks: Peaks) -> Prediction:
    """The time of one grouped GEMM.

    Args:
        cost: of a step of the tile.
        n: weight rows of an expert.
        k: elements of a row.
        loads: {rows: experts}, as `LayerShape.loads` gives it.
        product: whose multiprocessors and bandwidth count.
        peaks: its clock and rates.
    """
    tile = cost.tile
    tiles = -(-n // tile.m) * sum(experts * -(-rows // tile.n) for rows, experts in loads.items())
    steps = -(-tiles // product.multiprocessors) * -(-k // tile.k)
    rows = sum(count * experts for count, experts in loads.items())
    weights = sum(loads.values()) * n * k * cost.weight_bits / 8
    moved = weights + rows * (k * cost.token_bits / 8 + n * _BF16_BYTES)
    operations = 2 * tile.m * tile.n * tile.k
    clocks = {
        "issue": steps * cost.instructions / SCHEDULERS,
        "tensor": steps * operations / peaks.operations[cost.mma],
    }
    if cost.wavefronts is not None:
        clocks["shared"] = steps * cost.wavefronts
    times = {name: count / peaks.clock for name, count in clocks.items()}
    return Prediction({"memory": moved / product.bandwidth / 1e3, **times})
