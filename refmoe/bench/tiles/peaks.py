"""Published clocks and tensor-core rates of the SM12x products, for models of time; nobody measured them here.

They stand beside `refmoe.chips` and not in it. The reports of the GEMMs hold a hash of everything that decides their
results, and that table is in it because tiles depend on shared memory: a clock in that table would make every report of
those kernels stale, although no result depends on a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from refmoe.chips import CHIPS, Mma, Product


@dataclass(frozen=True)
class Peaks:
    """What is published of a product, without sparsity.

    Attributes:
        clock: boost clock in MHz.
        operations: floating-point operations of a multiprocessor in a clock by matrix instruction; a product and a sum
            are two.
        source: of the clock and the rates, with the derivation of what is not published as such.
    """

    clock: float
    operations: Mapping[Mma, int]
    source: str


_RATES = MappingProxyType({Mma.SYNC_MX: 1024, Mma.SYNC_NVF4: 4096})

#: By name of the product. RTX 5090: 419e12 / (170 x 2.407e9) = 1024 and 1676e12 / (170 x 2.407e9) = 4096 operations.
#: GB10: 31e12 / (6144 x 2) = 2.523 GHz; 48 x 4096 x 2.523e9 = 496e12, half of the petaflop with sparsity.
PEAKS: Mapping[str, Peaks] = MappingProxyType(
    {
        "RTX 5090": Peaks(
            2407.0,
            _RATES,
            "NVIDIA, RTX Blackwell GPU Architecture, appendix A: boost clock 2407 MHz, 419 TFLOPS in FP8 and 1676 in"
            " FP4, both with FP32 accumulation; divided by 170 multiprocessors and the clock",
        ),
        "GB10": Peaks(
            2523.0,
            _RATES,
            "NVIDIA, Hot Chips 2025: 31 TFLOPS in FP32 with 6144 cores, from which the clock is derived, and 1 PFLOPS"
            " in FP4 with sparsity; the rate in FP8 is not published and is taken to be the RTX 5090's in a clock",
        ),
    }
)


def modelled_products() -> tuple[tuple[str, Product, Peaks], ...]:
    """(arch, product, peaks) of every product whose clock is known."""
    return tuple(
        (chip.arch, product, PEAKS[product.name])
        for chip in CHIPS.values()
        for product in chip.products
        if product.name in PEAKS
    )
