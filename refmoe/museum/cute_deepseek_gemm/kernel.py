"""The CuTe DSL kernels of the grouped GEMM in block FP8, under the family `deepseek_gemm`: cases, and how they run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.chips import CHIPS, DEFAULT_ARCH, KERNEL_ARCHS
from refmoe.families.case import Shape
from refmoe.families.deepseek_gemm.family import DEEPSEEK_GEMM, DOWN, GATE_UP, class_case, class_samples, of_windows
from refmoe.families.deepseek_gemm.fills import FILLS
from refmoe.families.deepseek_gemm.problem import expert_rows, window_tiles, windows
from refmoe.families.family import SAMPLES, Case, Inputs, Outputs
from refmoe.museum.cute_deepseek_gemm.gemm import (
    DEVICE_CODE,
    MODULES,
    TILE_N,
    TILES_M,
    choose_tile_m,
    grouped_gemm,
    tile_number,
)
from refmoe.museum.cute_kernel import CuteKernel
from refmoe.museum.exhibit import restated

_BITS = {"bf16": np.uint16, "f32": np.uint32}
_WGMMA: dict[str, Any] = {"model": "sm90_wgmma_fp8"}
#: Rows at the tail of every tile, an expert with none, and two tiles of weight rows.
_SMALL, _SMALL_ROWS = Shape(m=24, k=384, n=256, e=3), "5-0-17"
#: By module, rows of a batch and of its experts, one without rows: so many that there are more tiles than experts. The
#: last of their blocks of K lies in a stage that the next tile's first copies fill.
_BATCHES = {"mma": (19, "19-0-17-11"), "wgmma": (66, "66-0-65-3")}
_BATCH_SIZES: dict[str, int] = {"k": 512, "n": 128, "e": 4}
#: More blocks of K than any ring has stages, an odd number of them.
_DEEP = Shape(m=9, k=1408, n=128, e=2)


def _case(fill: str, shape: Shape, dtype: str = "bf16", seed: int = 7, **options: Any) -> Case:
    return CUTE_DEEPSEEK_GEMM.case(fill, shape, dtype, seed, **options)


def _touching(model: str) -> Iterator[Case]:
    """Cases that touch every line of a kernel, in few variants, each of which is compiled by itself."""
    narrow, wide = TILES_M[MODULES[model]][0], TILES_M[MODULES[model]][-1]
    yield _case("near", _SMALL, rows=_SMALL_ROWS, tile_m=narrow, model=model, poison=0x7F)
    yield _case("specials", _SMALL, rows=_SMALL_ROWS, tile_m=narrow, scales="mn_major", pad=3, model=model)
    if model != "sm90_mma_fp8":  # the same code as for SM120
        shape, rows = Shape(wide * 2 + 3, 256, n=128, e=3), f"{wide + 1}-0-{wide}"
        yield _case("wide-range", shape, rows=rows, tile_m=wide, model=model)
    m, rows = _BATCHES[MODULES[model]]
    batch: dict[str, Any] = {"grouping": "masked", "rows": rows, "tile_m": narrow, "model": model}
    # Fewer CTAs than tiles: each takes several.
    yield _case("cancelling", Shape(m, **_BATCH_SIZES), "f32", expected_m=1, pad=2, **batch)
    yield _case("one-hot-tokens", Shape(m, **_BATCH_SIZES), "f32", scales="mn_major", pad=5, **batch)
    yield _case("near", _SMALL, rows=_SMALL_ROWS, tile_m=8, refusal="which the CuTe DSL kernel of", model=model)


def _quick() -> Iterator[Case]:
    for model in MODULES:
        yield from _touching(model)


def _alike() -> Iterator[Case]:
    """For SM121, whose code is that of SM120."""
    yield _case("near", _SMALL, rows=_SMALL_ROWS, tile_m=TILES_M["mma"][0])


def _default() -> Iterator[Case]:
    for model in MODULES:
        narrow = TILES_M[MODULES[model]][0]
        for fill in FILLS:
            yield _case(fill, _SMALL, rows=_SMALL_ROWS, tile_m=narrow, model=model)
        yield _case("near", _DEEP, rows="4-5", tile_m=narrow, model=model)
        # More experts than four rounds of a warp's lanes look for a tile, one row at each but for every third.
        yield _case("one-hot-weights", Shape(88, 256, n=128, e=130), rows="1-0-1", tile_m=narrow, model=model)
        # More weight scales than the 16 of a row of K that DeepSeek-V3's experts have.
        yield _case("near", Shape(2, 128, n=2176, e=1), tile_m=narrow, model=model)
        # The 33rd expert has more tiles than there are CTAs: some take a second one from there on.
        many: dict[str, Any] = {
            "grouping": "masked",
            "rows": "-".join([str(33 * narrow + 1), *"0" * 15]),
            "expected_m": 1,
        }
        if model != "sm90_mma_fp8":  # the same code as for SM120
            yield _case("near", Shape(33 * narrow + 1, 128, n=128, e=33), tile_m=narrow, model=model, **many)
        if MODULES[model] == "mma":  # an expert that begins behind more rows than 12 bits number
            yield _case("near", Shape(4105, 128, n=128, e=2), rows="4100-5", tile_m=TILES_M["mma"][-1], model=model)
        yield _case("near", Shape(1, 128, n=128, e=1), tile_m=narrow, model=model)  # one block: fewer than stages
        yield _case("near", Shape(3, 640, n=128, e=2), grouping="masked", rows="0", tile_m=narrow, model=model)
        yield _case("near", Shape(0, 256, n=128, e=2), model=model)
        yield _case("near", Shape(20, 256, n=128, e=3), tile_m=narrow, model=model)  # some rows of no expert
    yield _true_size("sm90_wgmma_fp8")


def _true_size(model: str) -> Case:
    """A window of each of three experts of DeepSeek-V3's sizes."""
    k, n = DOWN
    return _case("near", Shape(72, k, n=n, e=3), rows="0-1-71", sample=1, scales="mn_major", tile_m=64, model=model)


def _full() -> Iterator[Case]:
    for model in MODULES:
        for tile_m in TILES_M[MODULES[model]]:
            for fill in FILLS:
                for dtype in _BITS:
                    yield _case(fill, Shape(2 * tile_m + 9, 512, n=256, e=4), dtype, tile_m=tile_m, model=model)
            for k in range(128, 1152, 128):
                shape = Shape(9, k, n=128, e=2)
                yield _case("wide-range", shape, scales="mn_major", pad=k // 128, tile_m=tile_m, model=model)
        # All experts of a layer, of which every third has no rows and every third has two.
        yield _case("wide-range", Shape(256, DOWN[0], n=128, e=256), rows="1-0-2", scales="mn_major", model=model)
        yield class_case(_case, "1-0", GATE_UP, model=model)
        yield _true_size(model)


def _samples() -> Iterator[Case]:
    for model in MODULES:
        yield from class_samples(_case, model)


CUTE_DEEPSEEK_GEMM = restated(
    DEEPSEEK_GEMM,
    name="cute_deepseek_gemm",
    about="The same grouped GEMM in block FP8 by kernels in CuTe DSL, for mma.sync and for wgmma.",
    options=tuple(option for option in DEEPSEEK_GEMM.options if option.name != "ctas"),
    cases={"quick": _quick, "default": _default, "full": _full, SAMPLES: _samples},
    software={
        arch: _alike
        for arch in KERNEL_ARCHS
        if arch != DEFAULT_ARCH and CHIPS[arch].abilities == CHIPS[DEFAULT_ARCH].abilities
    },
)


@dataclass
class CuteGemm(CuteKernel):
    """The grouped GEMM in CuTe DSL."""

    sound = DEVICE_CODE
    host = "refmoe.museum.cute_deepseek_gemm.gemm"

    def execute(self, case: Case, inputs: Inputs, device: Any) -> Outputs:
        """The output's bit patterns; see `CuteKernel.execute`."""
        rows = expert_rows(case)
        mean = case.expected_m or (case.shape.m if case.grouping == "masked" else -(-sum(rows.counts) // case.shape.e))
        tile_m = case.tile_m or choose_tile_m(case.model, mean)
        run = window_tiles(windows(case, rows), rows, tile_m, TILE_N) if case.sample else None
        blocks = None
        if run is not None:
            blocks = tuple(
                (
                    tile.column // TILE_N,
                    tile_number(rows.counts, tile.expert, tile.row - rows.first[tile.expert], tile_m),
                    0,
                )
                for tile in run
            )
        out = grouped_gemm(
            tuple(inputs[name] for name in ("tokens", "token_scales", "weights", "weight_scales")),
            inputs["masked_m"] if case.grouping == "masked" else inputs["m_indptr"],
            device=device,
            code=self.device_code,
            model=case.model,
            scale_layout=case.scales,
            tile_m=tile_m,
            out_dtype=case.dtype,
            expected_m=case.expected_m,
            fill=case.poison,
            blocks=blocks,
        )
        bits = np.ascontiguousarray(out).view(_BITS[case.dtype])
        return {"out": of_windows(case, inputs, bits, run if device.name == "ptx" else None)}
