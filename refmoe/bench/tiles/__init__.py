"""The tiles of the SM12x grouped GEMMs beside CUTLASS's builds of the same, without the chip: what a step costs.

Where the figures come from:

    registers, spills, shared memory   ptxas, and the launch plan
    instructions of a step             machine code; how often a block runs, by the executor (refmoe.bench.tiles.counts)
    wavefronts of shared memory        the executor, from the addresses of every access
    predicted microseconds             a MODEL (refmoe.bench.tiles.model): published clocks and bandwidth, no hardware
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from refmoe import ptx
from refmoe.bench.executor import gemm_operands
from refmoe.bench.tiles.counts import TileStep, counted_run, step_of
from refmoe.bench.tiles.flow import FlowError
from refmoe.bench.tiles.model import MODELS, SCHEDULERS, StepCost, predict
from refmoe.bench.tiles.peaks import modelled_products
from refmoe.bench.timing import machine
from refmoe.chips import CHIPS, Mma
from refmoe.cuda.arguments import expanded_scale_rows
from refmoe.cuda.device import PtxDevice
from refmoe.cuda.gemm.grouped import GemmShape, GroupedGemm
from refmoe.cuda.gemm.kernel import GEMM
from refmoe.cuda.gemm.tile import Tile, stage_bytes
from refmoe.cuda.nvfp4_gemm import NVFP4_GEMM
from refmoe.cuda.toolchain import CSRC, Target, build, find_toolchain
from refmoe.museum import cutlass
from refmoe.museum.cutlass.builds import CUTLASS_ARCHITECTURES
from refmoe.museum.cutlass.gemm import host_launch, prepare
from refmoe.views.sass import NotBuilt, Sass, cutlass_builds, cutlass_sass, disassembly, find_nvdisasm, read_sass

#: Tokens of a layer for which times are predicted.
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 512, 4096)
ARCHS = CUTLASS_ARCHITECTURES
OUT_DTYPE = "bf16"
_SEED = 20251123
#: Bits of an element with its share of the scales: (weights, tokens).
_BITS = {Mma.SYNC_MX: (4 + 8 / 32, 8 + 8 / 32), Mma.SYNC_NVF4: (4 + 8 / 16, 4 + 8 / 16)}
_MORE_STEPS = (1, 3)  # than stages: both launches go around the ring


@dataclass(frozen=True)
class _Counted:
    """A kernel in a tile: what ptxas made of it, and a step of it; or why that could not be counted."""

    sass: Sass
    tile: Tile
    mma: Mma
    operand_bytes: int
    step: TileStep | None
    why_not: str = ""


def run() -> dict[str, Any]:
    """Read and count every tile; nothing is timed, and no GPU is needed.

    Returns:
        JSON-able: `rows`, one a kernel, tile and set of architectures; `not_built` with the builds of CUTLASS that are
        not there, each with the reason; `predictions`, which are a model, one a kernel, tile, product, model, GEMM and
        number of tokens, with microseconds by resource; `sources` of the model; `spills`, the kernels of ours that
        spill; `cores` and `versions` of this machine; and `all_reached`, whether there is none.

    Raises:
        ToolchainError: no nvcc or no nvdisasm.
        FlowError: the counts do not fit the machine code of a kernel of ours.
    """
    counted, absent = [], []
    for arch in ARCHS:
        counted += [_ours(family, mma, tile, arch) for family, mma in _FAMILIES for tile in family.tiles]
        found, missing = _cutlass(arch)
        counted += found
        absent += missing
    spills = [each.sass.name for each in counted if each.sass.name.startswith("refmoe") and _spills(each.sass)]
    return {
        "rows": _merged([_row(each) for each in counted]),
        "not_built": [asdict(entry) for entry in absent],
        "predictions": list(_predictions(counted)),
        "sources": sources(),
        "spills": spills,
        **machine(),
        "versions": {"nvcc": find_toolchain().build_id.splitlines()[-1], "nvdisasm": _nvdisasm_version()},
        "all_reached": not spills,
    }


_FAMILIES: tuple[tuple[GroupedGemm, Mma], ...] = ((GEMM, Mma.SYNC_MX), (NVFP4_GEMM, Mma.SYNC_NVF4))


def _ours(family: GroupedGemm, mma: Mma, tile: Tile, arch: str) -> _Counted:
    stages = family.check_tile(tile, arch=arch, stages=None)
    kernel = family.kernel(tile, OUT_DTYPE)
    text, code = (Target(kernel.path(CSRC), arch, kind) for kind in ("ptx", "cubin"))
    files = build([text, code])
    plan = family.plan(tile, OUT_DTYPE, stages, (), None, GemmShape(1, 1, tile.m, tile.k), multiprocessors=1)
    sass = read_sass(
        files[code],
        files[code].with_name(files[code].name + ".log"),
        kernel.entry,
        name=f"refmoe {'MXFP4' if mma is Mma.SYNC_MX else 'NVFP4'}",
        arch=arch,
        stages=stages,
        shared_bytes=plan.shared_bytes,
    )

    def launch(steps: int, profile: ptx.Profile) -> None:
        device = PtxDevice(arch, 1, observer=profile)
        _launch(family, device, tile, steps * tile.k)

    runs = [counted_run(stages + more, partial(launch, stages + more)) for more in _MORE_STEPS]
    step = step_of(disassembly(files[code])[kernel.entry], files[text], *runs)
    return _Counted(sass, tile, mma, family.stage_bytes(tile), step)


def _launch(family: GroupedGemm, device: PtxDevice, tile: Tile, k: int) -> None:
    """One whole tile on the executor, on drawn codes."""
    rng = np.random.default_rng(_SEED)
    columns = family.groups(k) * 4
    family.run(
        rng.integers(0, 0x70, (tile.n, k // family.byte_tokens), np.uint8),
        rng.integers(0x30, 0x40, expanded_scale_rows(tile.n, 1) * columns, np.uint8),
        rng.integers(0, 256, (1, tile.m, k // 2), np.uint8),
        rng.integers(0x30, 0x40, -(-tile.m // 128) * 128 * columns, np.uint8),
        np.array([0, tile.n], np.int64),
        device=device,
        tile=tile,
        stages=None,
        alpha=None,
        bias=None,
        out_dtype=OUT_DTYPE,
        fill=0,
    )


def _cutlass(arch: str) -> tuple[list[_Counted], list[NotBuilt]]:
    """Each build of CUTLASS's kernel that is there, in the tiles of ours; and each that is not, with the reason."""
    counted: list[_Counted] = []
    absent: list[NotBuilt] = []
    for tile in GEMM.tiles:
        for build_ in cutlass_builds(tile, arch):
            sass = cutlass_sass(build_)
            if isinstance(sass, NotBuilt):
                absent.append(sass)
            else:
                counted.append(_cutlass_counted(build_, sass))
    return counted, absent


def _cutlass_counted(build_: cutlass.Build, sass: Sass) -> _Counted:
    """CUTLASS's kernel; where its counts do not fit its machine code, the reason instead of a step."""
    built, path, tile = cutlass.build(build_), cutlass.cubin(build_), build_.tile
    module = ptx.Module.parse(built.ptx.read_text(), name=f"CUTLASS {build_}")

    def launch(steps: int, profile: ptx.Profile) -> None:
        device = PtxDevice(build_.arch, 1, observer=profile)
        operands = gemm_operands(np.array([0, tile.n], np.int64), tile.m, steps * tile.k)
        prepared = prepare(**operands, device=device, build=build_, built=built)
        recorded = host_launch(prepared)
        ptx.launch(
            module,
            recorded.entry,
            recorded.grid,
            recorded.block,
            [recorded.parameters],
            shared_bytes=recorded.shared_bytes,
            memory=prepared.memory,
            lowest_leader=True,
            profile=profile,
        )

    runs = [counted_run(sass.stages + more, partial(launch, sass.stages + more)) for more in _MORE_STEPS]
    try:
        step, why_not = step_of(disassembly(path)[sass.entry], built.ptx, *runs), ""
    except FlowError as error:
        step, why_not = None, str(error)
    return _Counted(sass, tile, Mma.SYNC_MX, stage_bytes(tile), step, why_not)


def _spills(sass: Sass) -> bool:
    usage = sass.usage
    return bool(usage.spill_store_bytes or usage.spill_load_bytes or sass.local_instructions)


def _row(each: _Counted) -> dict[str, Any]:
    sass, usage, step = each.sass, each.sass.usage, each.step
    row: dict[str, Any] = {
        "kernel": sass.name.replace(f"-{each.tile}-{sass.arch}", ""),
        "tile": str(each.tile),
        "archs": [sass.arch],
        "registers": usage.registers,
        "spill_bytes": usage.spill_store_bytes + usage.spill_load_bytes,
        "stages": sass.stages,
        "shared_bytes": sass.shared_bytes,
        "bytes_in_flight": (sass.stages - 1) * each.operand_bytes,
        "bytes_a_step": each.operand_bytes,
    }
    if step is None:
        return row | {"not_counted": each.why_not}
    return row | {
        "instructions_a_step": round(step.instructions, 1),
        "instructions_a_byte": round(step.instructions / each.operand_bytes, 4),
        "tensor_instructions": round(step.products, 1),
        "tensor_share": round(step.products / step.instructions, 4),
        "open_share": round(step.open_instructions / step.instructions, 4),
        "load_wavefronts": round(step.loads.taken, 1),
        "load_conflicts": round(step.loads.conflicts, 1),
        "worst_conflict": step.loads.worst,
        "copy_conflicts": round(step.copies.conflicts, 1),
    }


def _merged(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for architectures with the same figures."""
    found: list[dict[str, Any]] = []
    for row in rows:
        same = [each for each in found if {**each, "archs": None} == {**row, "archs": None}]
        if same:
            same[0]["archs"] += row["archs"]
        else:
            found.append(row)
    return found


def _predictions(counted: Sequence[_Counted]) -> Iterator[dict[str, Any]]:
    """The model's times of each kernel on the products of its architecture."""
    for each in counted:
        if each.step is None:
            continue
        ours = each.sass.name.startswith("refmoe")
        turns = each.step.loads.taken + each.step.copies.taken if ours else None
        cost = StepCost(each.tile, each.mma, each.step.instructions, turns, *_BITS[each.mma])
        for arch, product, peaks in modelled_products():
            if arch != each.sass.arch:
                continue
            for model in MODELS:
                for gemm, (n, k) in model.gemms().items():
                    for tokens in TOKENS:
                        times = predict(cost, n, k, model.loads(tokens), product, peaks)
                        yield {
                            "kernel": _row(each)["kernel"],
                            "tile": str(each.tile),
                            "product": product.name,
                            "model": model.name,
                            "gemm": gemm,
                            "tokens": tokens,
                            "predicted_microseconds": round(times.longest, 2),
                            "bound": times.bound,
                            "by_resource": {name: round(value, 2) for name, value in times.microseconds.items()},
                        }


def _nvdisasm_version() -> str:
    """The last line of what nvdisasm says of itself, or that it says nothing."""
    told = subprocess.run([find_nvdisasm(), "--version"], capture_output=True, text=True).stdout.strip()
    return told.splitlines()[-1] if told else "unknown"


def sources() -> dict[str, Any]:
    """The published numbers that the model takes, by product."""
    return {
        product.name: {
            "arch": arch,
            "multiprocessors": product.multiprocessors,
            "bandwidth_gb_per_second": product.bandwidth,
            "bandwidth_source": product.source,
            "clock_mhz": peaks.clock,
            "operations_a_clock": {mma.value: rate for mma, rate in peaks.operations.items()},
            "peaks_source": peaks.source,
            "instructions_a_clock": SCHEDULERS,
            "chip_shared_bytes": CHIPS[arch].shared_bytes,
        }
        for arch, product, peaks in modelled_products()
    }
