"""docs/BENCHMARK_RESULTS.md and its pictures, made from the committed reports of `refmoe bench` and nothing else."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refmoe.bench.compare import read_report
from refmoe.bench.counters.reading import RESOURCES, sentence
from refmoe.bench.page import sweep
from refmoe.bench.page.text import paragraph, table
from refmoe.bench.tiles.view import reasons
from refmoe.errors import ArgumentError
from refmoe.reports.bench import Target, cell_text, targets_of

Reports = Mapping[str, Mapping[str, Any]]
PAGE = "BENCHMARK_RESULTS.md"
#: Pictures by name, with the report that each is drawn from.
PICTURES: Mapping[str, str] = {
    "bench_gpu.png": "gpu",
    "bench_sweep.png": "sweep",
    "bench_tiles.png": "tiles",
}
#: What no report here can hold.
UNMEASURED = (
    "Tokens per second on an SM12x chip, which are RTX 50 cards and the GB10: nobody here has one.",
    "The time of a tile of the SM12x GEMM on its chip. The times below are a model, and say so.",
    "The clocks of each launch. The report of the GPU has one sample of them, taken while it copied.",
)


#: The table of tiles: its heads, and the keys of a row of the report.
TILE_COLUMNS: Mapping[str, str] = {
    "kernel": "kernel",
    "tile": "tile",
    "instructions / byte": "instructions_a_byte",
    "instructions": "instructions_a_step",
    "tensor": "tensor_instructions",
    "tensor share": "tensor_share",
    "registers": "registers",
    "spills, B": "spill_bytes",
    "shared, B": "shared_bytes",
    "stages": "stages",
    "in flight, B": "bytes_in_flight",
    "turns": "load_wavefronts",
    "conflicts": "load_conflicts",
}


@dataclass(frozen=True)
class GpuTarget:
    """A ratio of two rows of the report `gpu` that the project set itself.

    Attributes:
        what: for people.
        row, beside: patterns that find one row each; the ratio is that of their times.
        most: the ratio that it may have.
    """

    what: str
    row: str
    beside: str
    most: float


def _dp4a_targets(rows: int) -> tuple[GpuTarget, GpuTarget]:
    """Of one token at 4 experts of gpt-oss: 80 % of the speed of a read of its bytes, and 3 times that of a bmm."""
    problem = f"4 experts {rows} x 2880, M = 1"
    row, bmm = f"DP4A, {problem}$", f"torch.bmm in BF16, {problem}$"
    return (
        GpuTarget(f"DP4A, {problem}, beside a read of its bytes", row, "floor", 1 / 0.80),
        GpuTarget(f"DP4A, {problem}, beside torch.bmm in BF16", row, bmm, 1 / 3),
    )


_WHOLE_LAYER = re.compile(r"layer, [^:]*")
_EXPAND, _PAIR = r"fused expand 8192 x 2880", r"quantize, then expand 8192 x 2880"
GPU_TARGETS = (
    GpuTarget("fused expand, 8192 tokens, beside a copy that reads 1 and writes 2", _EXPAND, "floor", 1.17),
    GpuTarget("fused expand, 8192 tokens, beside the separate pair", _EXPAND, _PAIR, 0.72),
    GpuTarget(
        "fused expand, M = 1, beside the separate pair of commit 2db4e6e",
        r"fused expand, M = 1$",
        r"quantize, then expand, M = 1 of 2db4e6e",
        0.54,
    ),
    GpuTarget(
        "fused expand, M = 1, beside a plain BF16 expand", r"fused expand, M = 1$", r"plain BF16 expand, M = 1$", 1.06
    ),
    GpuTarget("SwiGLU with requantize, 8192 tokens, beside a copy", r"SwiGLU to MXFP8, 32768 x 2880", "floor", 1.30),
    GpuTarget("finalize, 8192 tokens, beside a copy", r"finalize 8192 x 2880", "floor", 1.20),
    GpuTarget(
        "routing, 8192 tokens, beside that of commit 2db4e6e", r"route 8192 x 128", r"route 8192 x 128 of 2db4e6e", 0.50
    ),
    GpuTarget(
        "a gpt-oss layer on the DP4A path, M = 1, beside the sum of its floors", r"layer, DP4A, M = 1$", "floor", 1.5
    ),
    *(each for rows in (5760, 2880) for each in _dp4a_targets(rows)),
)


def read_reports(folder: Path) -> dict[str, dict[str, Any]]:
    """The reports of `refmoe bench` in a folder by benchmark, every other kind left out.

    Raises:
        ArgumentError: no folder, a damaged report, or none of the GPU or of the tiles.
    """
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            kind = json.loads(path.read_text()).get("kind")
        except (ValueError, AttributeError) as error:
            raise ArgumentError("report", f"{path}, which is no JSON object", "a report of `refmoe bench`") from error
        if kind == "bench":
            document = read_report(path, rows=False)
            found[document["name"]] = document
    if missing := [name for name in PICTURES.values() if name not in found]:
        raise ArgumentError("reports", f"{folder} without {', '.join(missing)}", "a report of each: refmoe bench NAME")
    return found


def whole_rows(gpu: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows of a GPU report without those that are launches of another row, a whole layer (`LAYER: LAUNCH`)."""
    names = {row["name"] for row in gpu["rows"]}
    return [row for row in gpu["rows"] if row["name"].rpartition(": ")[0] not in names]


def page_text(reports: Reports) -> str:
    """The whole page."""
    return "\n".join(_lines(reports)) + "\n"


def _lines(reports: Reports) -> Iterator[str]:
    gpu, tiles = reports["gpu"], reports["tiles"]
    yield "# Benchmark results"
    yield ""
    yield from paragraph("""
        Every figure on this page is from a committed report in `reports/bench`. `make benchmarks` writes the page
        and its pictures again, and `make gate` fails if a report says something else than the page.
    """)
    yield ""
    yield "## What nobody here could measure"
    yield ""
    yield from (f"- {each}" for each in UNMEASURED)
    yield ""
    yield "## Targets that were missed"
    yield ""
    missed = list(_missed(reports))
    yield from missed or ["None."]
    yield ""
    yield "## Machines and versions"
    yield ""
    yield from table(("report", "machine", "clocks", "versions"), _machines(reports))
    yield ""
    yield f"## Kernels on an {gpu['gpu']}"
    yield ""
    yield from paragraph("""
        A time is the median of one node of a CUDA graph, on buffers that rotate, so that the L2 cache is cold. The
        first row of each group is its *floor*: a copy of as many bytes, a pure read, or an empty kernel. Times of
        two reports are not comparable; ratios to a floor in one report are.
    """)
    yield ""
    yield "![The ratio of each kernel's time to its floor](bench_gpu.png)"
    yield ""
    yield from table(("what", "µs", "MB", "TB/s", "time / floor"), _gpu_rows(gpu))
    yield ""
    yield "### Targets"
    yield ""
    yield from table(("ratio", "measured", "target", ""), _targets(gpu))
    if (counters := reports.get("counters")) is not None:
        yield from _counters(counters, gpu)
    yield from _deepseek(reports)
    if (swept := reports.get("sweep")) is not None:
        yield from sweep.lines(swept)
    yield ""
    yield "## Tiles of the SM12x GEMMs, without the chip"
    yield ""
    yield from paragraph("""
        A *step* multiplies one stage of the ring in shared memory and copies another. Instructions are those of all
        warps of a block, from machine code; how often each block of it runs is from the executor. *Turns* are
        accesses of shared memory by the fragment loads of a step, and *conflicts* those above the fewest possible.
    """)
    yield ""
    yield "![Instructions for each byte of operands, tile by tile](bench_tiles.png)"
    yield ""
    yield from table(tuple(TILE_COLUMNS), _tile_rows(tiles))
    yield ""
    yield from _beside_cutlass(tiles)
    yield from _not_counted(tiles)
    for reason, builds in reasons(tiles["not_built"]).items():
        yield f"- {len(builds)} builds of CUTLASS are not there, {reason}: {_tiles_of(builds)}."
    yield ""
    yield "### Predicted times: a model, not a measurement"
    yield ""
    yield from paragraph("""
        For each product, GEMM and number of tokens M the table has the tile whose predicted time is shortest, of
        refmoe's MXFP4 kernel; of tiles with the same time, the one that keeps all four resources least busy. The
        time is a lower bound, in microseconds: the longest of memory, issue of instructions, tensor cores and
        shared memory, from published clocks and bandwidth, without latency. The resource in brackets is that
        longest one.
    """)
    yield ""
    yield from _prediction_rows(tiles["predictions"])
    yield ""
    for product, facts in tiles["sources"].items():
        yield f"- {product}: {facts['bandwidth_source']}. {facts['peaks_source']}."
    yield ""
    yield "## The executor and the references, on a CPU"
    yield ""
    yield from table(("benchmark", "target", "measured", "needed", ""), _cpu_rows(reports))
    if (layer := reports.get("deepseek")) is not None:
        yield from _deepseek_layer(layer)
    yield ""
    yield "## Pictures"
    yield ""
    yield "Each picture was drawn from the report with this digest, which its file holds as the text `Report`."
    yield ""
    drawn = {name: report for name, report in PICTURES.items() if report in reports}
    rows = ((f"`{name}`", f"`{report}`", f"`{reports[report]['digest']}`") for name, report in drawn.items())
    yield from table(("picture", "report", "digest"), rows)


def _machines(reports: Reports) -> Iterator[Sequence[str]]:
    for name, report in sorted(reports.items()):
        environment = report.get("environment") or {}
        versions = report.get("versions") or {
            key: environment[key] for key in ("driver", "nvcc", "torch", "numpy") if environment.get(key)
        }
        cores = f"{report['cores']} cores of a CPU" if "cores" in report else "not in the report"
        yield (
            f"`{name}`",
            str(report.get("gpu") or cores),
            cell_text(report["clocks"]) if report.get("clocks") else "not in the report",
            cell_text(versions) if versions else "not in the report",
        )


def _gpu_rows(gpu: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for row in gpu["rows"]:
        large = row["traffic_bytes"] > 10**6
        size = f"{row['traffic_bytes'] / 1e6:.1f}" if large else ""
        rate = f"{row['terabytes_per_second']:.2f}" if large else ""
        yield row["name"], f"{row['microseconds']:.2f}", size, rate, f"{row['ratio_to_floor']:.2f}"


def _counters(counters: Mapping[str, Any], gpu: Mapping[str, Any]) -> Iterator[str]:
    """Where the time of the kernels goes that missed their targets: each beside its floor."""
    yield ""
    yield f"### Kernels that missed a target: the counters of an {counters['gpu']}"
    yield ""
    other = counters["gpu"] != gpu["gpu"]
    ratios = (
        "Another card has another ratio of arithmetic to memory, and may reach what this one missed." if other else ""
    )
    yield from paragraph(f"""
        `refmoe bench counters` launches each kernel of the tables above once under NVIDIA's profiler, with a cold L2
        cache. A share is of what the chip can do at most in that time, in percent. *Slow* is the pipe of slow
        functions, *loads* that of loads and stores, and *warps* are those resident. Times under the profiler are
        longer than those above. {ratios} Below the table is what each kernel keeps busy, or what its warps wait for.
    """)
    yield ""
    rows = list(_missed_rows(counters, gpu))
    heads = ("launch", "µs", "instructions", *RESOURCES, "warps", "waves", "registers")
    yield from table(heads, (_counted(row) for row in rows))
    yield ""
    for row in rows:
        if row["name"] != row["floor"]:
            yield f"- {_launch_name(row)}: {sentence(row)}."
    for name in _missed_layers(gpu):
        yield f"- {name}: {_launches_of(name, gpu)}."


def _missed_targets(gpu: Mapping[str, Any]) -> list[GpuTarget]:
    return [target for target in GPU_TARGETS if (target_ratio(target, gpu["rows"]) or 0) > target.most]


def _missed_layers(gpu: Mapping[str, Any]) -> Iterator[str]:
    """The layers that missed a target: no profile is of a whole layer."""
    layers = [row["name"] for row in gpu["rows"] if _WHOLE_LAYER.fullmatch(row["name"])]
    for target in _missed_targets(gpu):
        yield from (name for name in layers if re.match(target.row, name))


def _launches_of(layer: str, gpu: Mapping[str, Any]) -> str:
    """What a layer's launches take, each timed by itself, the longest first."""
    parts = [row for row in gpu["rows"] if row["name"].startswith(f"{layer}: ")]
    parts.sort(key=lambda row: -row["microseconds"])
    times = (f"{row['name'].removeprefix(f'{layer}: ')} {row['microseconds']:.2f} µs" for row in parts)
    return f"its launches, each timed by itself, take {', '.join(times)}"


def _missed_rows(counters: Mapping[str, Any], gpu: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The counted launches of each row that missed a target, and before them the one of its floor."""
    missed = _missed_targets(gpu)
    patterns = dict.fromkeys(pattern for each in missed for pattern in (each.row, each.beside) if pattern != "floor")
    floor: Mapping[str, Any] | None = None
    for row in counters["rows"]:
        if row["name"] == row["floor"]:
            floor = row
        elif any(re.match(pattern, row["name"]) for pattern in patterns):
            if floor is not None:
                yield floor
            floor = None
            yield row


def _counted(row: Mapping[str, Any]) -> Sequence[str]:
    shares = (f"{row[key]:.0f}" for key in (*(key for _, key in RESOURCES.values()), "warps_share"))
    whole = (f"{row['waves']:.2f}", str(row["registers"]))
    return _launch_name(row), f"{row['microseconds']:.2f}", f"{row['instructions']:,}", *shares, *whole


def _launch_name(row: Mapping[str, Any]) -> str:
    return row["name"] if row["name"] == row["floor"] else f"{row['name']} (`{row['entry']}`)"


def _deepseek(reports: Reports) -> Iterator[str]:
    """The kernels of DeepSeek-V3 beside other people's, of each of the two reports that is there."""
    if (gemm := reports.get("deepseek_gemm")) is not None:
        yield ""
        yield from paragraph(f"""
            The grouped GEMM in block FP8 on an {gemm["gpu"]}, N = 4096 and K = 7168, beside DeepGEMM's kernel, eight
            instantiations of it in the same run. The last column says whether the output is DeepGEMM's, bit by bit:
            `mma.sync` adds up in another way than `wgmma`.
        """)
        yield ""
        heads = ("experts x rows", "kernel and tile", "microseconds", "TFLOP/s", "times the copy's time", "bits")
        yield from table(heads, _gemm_rows(gemm))
        yield ""
        yield from table(("target", "measured", "asked", "verdict"), _least_rows(gemm["targets"]))
    if (routing := reports.get("deepseek_routing")) is not None:
        yield ""
        yield from paragraph(f"""
            The router of DeepSeek-V3 beside the same in torch {routing["torch"]}, compiled by `torch.compile`:
            {routing["problem"]}. {routing["tokens_with_other_experts"]:,} tokens get other experts. Of
            {routing["weights"]:,} weights {routing["weights_with_other_bits"]:,} differ, by
            {routing["most_units_apart"]} units of their last place at most, since torch's sigmoid is another. The maps
            are {"others" if routing["maps_differ"] else "the same"}.
        """)
        yield ""
        times = ((row["name"], f"{row['microseconds']:.2f}") for row in routing["rows"])
        yield from table(("what", "microseconds"), times)


def _deepseek_layer(layer: Mapping[str, Any]) -> Iterator[str]:
    """A whole layer on the executor, launch by launch."""
    sizes, rows = layer["sizes"], layer["rows"]
    compared, differing = (sum(row[key] for row in rows) for key in ("bytes", "differing"))
    yield ""
    yield from paragraph(f"""
        A whole DeepSeek-V3 layer at its true sizes on the executor, M = {sizes["tokens"]}: hidden {sizes["hidden"]:,},
        intermediate {sizes["intermediate"]:,}, the router over {sizes["experts"]} experts, top-{sizes["top_k"]} and a
        shared expert. Every check is on, and every buffer is held against the reference under the model
        {layer["model"]} ({layer["evidence"]}): of {compared:,} bytes {differing:,} differ. The reference took
        {layer["reference_s"]:.0f} seconds.
    """)
    yield ""
    launches = ((row["stage"], f"`{row['entry']}`", f"{row['seconds']:.1f}", f"{row['bytes']:,}") for row in rows)
    yield from table(("launch", "entry", "seconds", "bytes compared"), launches)


def _gemm_rows(gemm: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    said = {None: "", True: "the same", False: "others"}
    for row in gemm["rows"]:
        rate = "" if row["teraflops"] is None else f"{row['teraflops']:,.0f}"
        times = f"{row['microseconds']:,.0f}", rate, f"{row['ratio_to_floor']:.2f}"
        yield row["problem"], row["contender"], *times, said[row["bits_are_deepgemms"]]


def _least_rows(targets: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    """Targets whose figures have to be large."""
    for target in targets:
        measured_as = "not measured" if target["ratio"] is None else f"{target['ratio']:.3f}"
        word = "reached" if target["reached"] else "**missed**"
        yield target["name"], measured_as, f"at least {target['target']:g}", word


def _targets(gpu: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for target in GPU_TARGETS:
        ratio = target_ratio(target, gpu["rows"])
        if ratio is None:
            yield target.what, "not in the report", f"at most {target.most:.4g}", "not measured"
        else:
            word = "reached" if ratio <= target.most else "**missed**"
            yield target.what, f"{ratio:.3f}", f"at most {target.most:.4g}", word


def target_ratio(target: GpuTarget, rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The measured ratio of a target, or None if the report lacks one of its rows."""
    found = [row for row in rows if re.match(target.row, row["name"])]
    if not found:
        return None
    if target.beside == "floor":
        return float(found[0]["ratio_to_floor"])
    beside = [row for row in rows if re.match(target.beside, row["name"])]
    return float(found[0]["microseconds"] / beside[0]["microseconds"]) if beside else None


def _tile_rows(tiles: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    # ptxas makes another machine code of CUTLASS's kernel for each chip; of ours it makes the same.
    several = Counter((row["kernel"], row["tile"]) for row in tiles["rows"])
    for row in tiles["rows"]:
        kernel = row["kernel"]
        if several[kernel, row["tile"]] > 1:
            kernel = f"{kernel}, {' '.join(row['archs'])}"
        named = {**row, "kernel": kernel}
        yield tuple(cell_text(named.get(key)) or "not counted" for key in TILE_COLUMNS.values())


def _not_counted(tiles: Mapping[str, Any]) -> Iterator[str]:
    """Why the instructions of some kernels are not counted, a reason a line."""
    reasons: dict[str, list[str]] = {}
    for row in tiles["rows"]:
        if "not_counted" in row:
            reasons.setdefault(row["not_counted"], []).append(f"{row['kernel']} ({' '.join(row['archs'])})")
    for reason, kernels in reasons.items():
        yield f"- Not counted, because {reason}: {', '.join(kernels)}."


def _beside_cutlass(tiles: Mapping[str, Any]) -> Iterator[str]:
    """Our kernel in each tile that a counted build of CUTLASS has."""
    for theirs in tiles["rows"]:
        if not theirs["kernel"].startswith("CUTLASS") or "instructions_a_step" not in theirs:
            continue
        for ours in tiles["rows"]:
            if ours["kernel"] == "refmoe MXFP4" and ours["tile"] == theirs["tile"]:
                ratio = ours["instructions_a_step"] / theirs["instructions_a_step"]
                build = f"{theirs['kernel']} for {' '.join(theirs['archs'])}"
                yield (
                    f"- {theirs['tile']}: refmoe's kernel issues {ratio:.2f} times as many instructions a step as "
                    f"{build}. It spills {ours['spill_bytes']} bytes, and CUTLASS's {theirs['spill_bytes']}."
                )


def _tiles_of(builds: Sequence[str]) -> str:
    """Builds as `tile (how many)`, by tile in their order."""
    counts: dict[str, int] = {}
    for build in builds:
        found = re.search(r"\d+x\d+x\d+", build)
        tile = found[0] if found else build
        counts[tile] = counts.get(tile, 0) + 1
    return ", ".join(f"{tile} ({count})" for tile, count in counts.items())


def _prediction_rows(predictions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    ours = [each for each in predictions if each["kernel"] == "refmoe MXFP4"]
    tokens = sorted({each["tokens"] for each in ours})
    best: dict[tuple[str, str, str], dict[int, Mapping[str, Any]]] = {}
    for each in ours:
        cells = best.setdefault((each["product"], each["model"], each["gemm"]), {})
        held = cells.get(each["tokens"])
        if held is None or _preference(each) < _preference(held):
            cells[each["tokens"]] = each
    heads = ("product", "model", "GEMM", *(f"M = {count:,}" for count in tokens))
    rows = (
        (
            *key,
            *(f"{cells[m]['predicted_microseconds']:,.0f}: {cells[m]['tile']} ({cells[m]['bound']})" for m in tokens),
        )
        for key, cells in best.items()
    )
    yield from table(heads, rows)


def _preference(each: Mapping[str, Any]) -> tuple[float, float]:
    """The predicted time; of equal ones the tile that keeps its resources least busy."""
    return each["predicted_microseconds"], sum(each["by_resource"].values())


def _cpu_rows(reports: Reports) -> Iterator[Sequence[str]]:
    for name, target in _cpu_targets(reports):
        found = "see the report" if target.found is None else cell_text(float(target.found))
        sense = "see the report" if target.needed is None else target.sense
        yield f"`{name}`", target.what, found, sense, "reached" if target.reached else "**missed**"


def _cpu_targets(reports: Reports) -> Iterator[tuple[str, Target]]:
    """The targets of the benchmarks that run on a CPU, each with its benchmark."""
    for name, report in sorted(reports.items()):
        if "gpu" not in report:
            yield from ((name, target) for target in targets_of(report))


def _missed(reports: Reports) -> Iterator[str]:
    """A line for each target that was missed, of all benchmarks."""
    for target in GPU_TARGETS:
        ratio = target_ratio(target, reports["gpu"]["rows"])
        if ratio is not None and ratio > target.most:
            yield f"- `gpu`, {target.what}: {ratio:.3f}, at most {target.most:g}"
    for name, report in sorted(reports.items()):
        yield from (f"- `{name}`, {target.line}" for target in targets_of(report) if not target.reached)
