"""The CuTe DSL kernel of SwiGLU with requantization, of the family `deepseek_activation`: cases, and how they run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.chips import DEFAULT_ARCH, KERNEL_ARCHS
from refmoe.families.case import Shape
from refmoe.families.deepseek.activation import DEEPSEEK_ACTIVATION
from refmoe.families.family import Case, Inputs, Outputs
from refmoe.museum.cute_deepseek_activation.activation import DEVICE_CODE, swiglu_block_fp8
from refmoe.museum.cute_kernel import CuteKernel
from refmoe.museum.exhibit import restated
from refmoe.reference.block_fp8 import LAYOUTS, POLICIES, SCALES

#: With the policy deepgemm these are zeros throughout, or differ in nothing from the exact one.
_BELOW_FLOOR = ("tiny",)
_VARIANTS = tuple((policy, scales) for policy in POLICIES for scales in SCALES)
_FILLS = tuple(DEEPSEEK_ACTIVATION.fills)
#: Fills of FP32 numbers all of whose bits are chosen.
_OF_FP32 = ("ties", "exponents", "near-ties")


def _case(fill: str, m: int, k: int, e: int, dtype: str = "bf16", seed: int = 7, **options: Any) -> Case:
    return CUTE_DEEPSEEK_ACTIVATION.case(fill, Shape(m, k, e), dtype, seed, **options)


def _quick() -> Iterator[Case]:
    # Three variants, of which each is compiled by itself.
    yield _case("gaussian", 8, 2048, 256, layout="mn_major")  # decode
    exact: dict[str, Any] = {"dtype": "f32", "policy": "exact"}
    for number, fill in enumerate(_FILLS):
        yield _case(fill, 7, 384, 3, layout=LAYOUTS[number % 2], **exact)
    for fill, layout in zip(("fingerprint", "specials", "zeros"), (*LAYOUTS, LAYOUTS[0]), strict=True):
        yield _case(fill, 5, 384, 6, rows="masked", layout=layout, scales="ue8m0", poison=0x7F)
    yield _case("fingerprint", 9, 256, 9, routing="empty-experts", layout="mn_major", poison=0x7F)
    yield _case("floor", 9, 384, 4)
    yield _case("gaussian", 30, 128, 4, first_expert=4, ranks=2)  # half of the rows are another rank's


def _alike() -> Iterator[Case]:
    """For the archs whose code is that of SM120: no instruction of it is an arch's own."""
    yield _case("gaussian", 8, 2048, 256, layout="mn_major")


def _default() -> Iterator[Case]:
    for number, fill in enumerate(_FILLS):
        for policy, scales in _VARIANTS:
            if policy == "deepgemm" and fill in _BELOW_FLOOR:
                continue
            # As few variants as show each policy with each dtype, and each form of rows.
            dtype = "f32" if fill in _OF_FP32 or policy == "exact" else "bf16"
            rows = "masked" if scales == "ue8m0" else "contiguous"
            yield _case(
                fill, 6, 640, 5, dtype=dtype, policy=policy, scales=scales, rows=rows, layout=LAYOUTS[number % 2]
            )
    yield _case("fingerprint", 2, 8320, 2, layout="mn_major")  # a row wider than four rounds of a CTA, by one tile
    for dtype in ("bf16", "f32"):  # and than six
        yield _case("fingerprint", 2, 12_416, 2, dtype=dtype)
    yield _case("fingerprint", 40, 128, 2, layout="mn_major", multiprocessors=1)  # more rows than CTAs
    yield _case("fingerprint", 12, 128, 4, rows="masked", scales="ue8m0", multiprocessors=1)
    yield _case("fingerprint", 8200, 128, 2, layout="mn_major")  # more rows than 13 bits number
    yield _case("gaussian", 0, 2048, 8)
    yield _case("gaussian", 0, 2048, 8, rows="masked", scales="ue8m0")


def _full() -> Iterator[Case]:
    for fill in _FILLS:
        for dtype in ("f32",) if fill in _OF_FP32 else ("bf16", "f32"):
            for policy, scales in _VARIANTS:
                if policy == "deepgemm" and fill in _BELOW_FLOOR:
                    continue
                for rows in ("contiguous", "masked"):
                    for layout in LAYOUTS:
                        options: dict[str, Any] = {"policy": policy, "scales": scales, "rows": rows, "layout": layout}
                        yield _case(fill, 16, 2048, 4, dtype=dtype, **options)
    for k in range(128, 2176, 128):
        yield _case("fingerprint", 9, k, 4, layout="mn_major")
    yield _case("gaussian", 4096, 2048, 256, layout="mn_major")


CUTE_DEEPSEEK_ACTIVATION = restated(
    DEEPSEEK_ACTIVATION,
    name="cute_deepseek_activation",
    about="The same SwiGLU with requantization by a kernel in CuTe DSL.",
    cases={"quick": _quick, "default": _default, "full": _full},
    software={arch: _alike for arch in KERNEL_ARCHS if arch != DEFAULT_ARCH},
)


@dataclass
class CuteActivation(CuteKernel):
    """SwiGLU with requantization in CuTe DSL."""

    sound = DEVICE_CODE
    host = "refmoe.museum.cute_deepseek_activation.activation"

    def execute(self, case: Case, inputs: Inputs, device: Any) -> Outputs:
        """Codes and scales; see `CuteKernel.execute`."""
        rows = swiglu_block_fp8(
            inputs["gate_up"],
            inputs["masked_m"] if case.rows == "masked" else inputs["offsets"],
            device=device,
            code=self.device_code,
            policy=case.policy,
            scales=case.scales,
            layout=case.layout,
            fill=case.poison,
        )
        scales = np.ascontiguousarray(rows.scales).view(np.uint32)
        return {"codes": rows.codes.reshape(-1, rows.codes.shape[-1]), "scales": scales.reshape(-1, scales.shape[-1])}
