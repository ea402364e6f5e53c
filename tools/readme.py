"""Make the figures of README.md and of pages of docs/ from what is committed, so that nobody types one.

They come from the reports, and from the chips that answered `refmoe probe`.

    python tools/readme.py            rewrite what stands between `<!-- figures: NAME -->` and `<!-- end -->`
    python tools/readme.py --check    fail if that would change anything

`make readme` and `make gate` run these.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from refmoe.bench.page import GPU_TARGETS, target_ratio
from refmoe.catalog import parse_case
from refmoe.evidence import read_evidence, weakest
from refmoe.families.deepseek_gemm.family import ASSUMPTIONS
from refmoe.files import write_atomic
from refmoe.probe.sentences import (
    SM12X,
    answered_sentence,
    chips_sentence,
    mxfp8_sentence,
    nvfp4_sentence,
    ran_sentence,
    table,
)
from refmoe.reference.mma import MODELS

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
# Pages that say in words what the products of SM12x rest on.
_WORDS = ("guides/reports.md", "families/gemm.md", "families/nvfp4_gemm.md", "families/deepseek_gemm.md")
_SHOWN = ("guides/evidence.md", "guides/probe.md", "guides/convert.md", "families/dp4a.md", *_WORDS)
PAGES = (ROOT / "README.md", *(DOCS / page for page in _SHOWN))
REPORTS = ROOT / "reports"
SHOWN_MUTANT = "20-flush-to-zero"
WRONG_CALLS = "wrong calls refused"
# The operands of the kernels' tensor-core products: with NVFP4 on both sides there are no others.
_KERNEL_FORMATS = (("e2m1", "e4m3"), ("e4m3", "e4m3"))
_NVFP4_FORMATS = (("e2m1", "e2m1"),)


def main() -> int:
    """Rewrite or check README.md; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 if README.md would change")
    check = parser.parse_args().check
    stale = 0
    for page in PAGES:
        text = page.read_text()
        filled = re.sub(r"(<!-- figures: (\S+) -->\n).*?(<!-- end -->)", _fill, text, flags=re.DOTALL)
        if not check:
            write_atomic(page, filled)
        elif filled != text:
            print(f"{page.relative_to(ROOT)} does not show what the reports say: run `make readme`")
            stale = 1
    return stale


def _fill(match: re.Match[str]) -> str:
    return f"{match[1]}{BLOCKS[match[2]]()}\n{match[3]}"


def _load(name: str) -> Any:
    return json.loads((REPORTS / name).read_text())


def _mismatch() -> str:
    mutant = next(record for record in _load("ptx.json")["mutants"] if record["name"] == SHOWN_MUTANT)
    return f"```\n{mutant['verdict']} {mutant['finding']}\nrepro: refmoe repro '{mutant['case']}'\n```"


def _groups(name: str) -> dict[tuple[str, str], list[Any]]:
    """The cases of a report by family and architecture; one that it skipped is as the report has it that ran it."""
    ran = {case["id"]: case for case in _load("cutlass.json")["cases"] if case["verdict"] != "SKIPPED"}
    groups: dict[tuple[str, str], list[Any]] = {}
    for found in _load(name)["cases"]:
        case = ran.get(found["id"], found) if found["verdict"] == "SKIPPED" else found
        groups.setdefault((case["family"], case["arch"]), []).append(case)
    return groups


def _proven() -> str:
    """A row for each kernel: how many cases passed, by where they ran."""
    executed, native = _groups("ptx.json"), _groups("gpu.json")
    columns = [("executed", arch, executed) for arch in sorted({arch for _, arch in executed})]
    columns += [
        (f"on an {_load('gpu.json')['environment']['gpu']}", arch, native)
        for arch in sorted({arch for _, arch in native})
    ]
    rows = [
        "| kernel | " + " | ".join(f"{arch} {place}" for place, arch, _ in columns) + " |",
        "|---" + "|---:" * len(columns) + "|",
    ]
    for family in sorted({family for _, _, groups in columns for family, _ in groups}):
        cells = [_passed(groups.get((family, arch), [])) for _, arch, groups in columns]
        rows.append(f"| {family} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _passed(cases: list[Any]) -> str:
    """Cases that passed; and, in words, those that did not run to a comparison. Wrong calls are not counted here."""
    verdicts = Counter(_verdict(case) for case in cases)
    verdicts.pop(WRONG_CALLS, None)
    passed = verdicts.pop("PASS", 0)
    others = ", ".join(f"{count} {verdict.lower()}" for verdict, count in sorted(verdicts.items()))
    return f"{passed:,} ({others})" if others else f"{passed:,}" if cases else ""


def _evidence() -> str:
    """A row for each kernel: bytes compared by where, wrong calls refused, and what the products rest on."""
    executed, native = _load("ptx.json"), _load("gpu.json")
    gpu = native["environment"]["gpu"]
    rows = [
        f"| kernel | bytes compared, executed | bytes compared on an {gpu} | wrong calls refused | rests on |",
        "|---|---:|---:|---:|---|",
    ]
    both = [*executed["cases"], *native["cases"]]
    for family in sorted({case["family"] for case in both}):
        compared = (
            sum(case["compared"] for case in report["cases"] if case["family"] == family)
            for report in (executed, native)
        )
        cases = [case for case in both if case["family"] == family]
        refused = sum(_verdict(case) == WRONG_CALLS for case in cases)
        models = sorted({f"{c['model']}: {_word_now(c)}" for c in cases if c.get("model")})
        rests = f"bit-exact; tensor cores by the model {', '.join(models)}" if models else "bit-exact"
        rows.append(f"| {family} | " + " | ".join(f"{count:,}" for count in (*compared, refused)) + f" | {rests} |")
    return "\n".join(rows)


def _word_now(case: dict[str, Any]) -> str:
    """What a case's model rests on today: a chip may have answered since the report was made.

    A report holds no formats, so those of the kernels tell by which word a pair was called: the words of pairs that
    cannot be told apart are the weakest of theirs.
    """
    model = MODELS[case["model"]]
    known = _NVFP4_FORMATS if model.group else _KERNEL_FORMATS
    pairs = [model.pairs[formats] for formats in known if formats in model.pairs]
    return weakest([pair.evidence for pair in pairs if case["model_evidence"] in pair.words]).value


def _verdict(case: dict[str, Any]) -> str:
    """The verdict in words; a wrong call that was refused, as it has to be, is no kernel that lacks something."""
    refused = case["verdict"] == "UNSUPPORTED" and ":wrong=" in case["id"]
    return WRONG_CALLS if refused else str(case["verdict"])


def _tiles() -> str:
    """For each tile of the GEMM: in how many passed cases it ran, and where."""
    counts: dict[str, Counter[str]] = {}
    for name in ("ptx.json", "gpu.json"):
        for case in _load(name)["cases"]:
            for launch in case["launches"]:
                if match := re.match(r"refmoe_sm12x_gemm_(\d+x\d+x\d+)_", launch):
                    place = f"{case['arch']} {'executed' if case['device'] == 'ptx' else 'on the GPU'}"
                    passed = counts.setdefault(match[1], Counter())
                    passed[place] += case["verdict"] == "PASS"
    places = sorted({place for passed in counts.values() for place in passed})
    rows = ["| GEMM tile | " + " | ".join(places) + " |", "|---" * (len(places) + 1) + "|"]
    for tile in sorted(counts, key=lambda text: [int(extent) for extent in text.split("x")]):
        rows.append(f"| {tile} | " + " | ".join(str(counts[tile].get(place, "")) for place in places) + " |")
    return "\n".join(rows)


def _conformance() -> str:
    if not (REPORTS / "bench/conformance.json").exists():
        return "- The executor's instructions against a GPU: to be run again (`refmoe conformance`)."
    conformance = _load("bench/conformance.json")
    compared = f"{conformance['opcodes']:,} instructions on {conformance['lanes']:,} lanes"
    differ = conformance["differing_opcodes"]
    return f"- The executor against an {conformance['gpu']}: {compared}; {differ} differ where exactness is claimed."


def _stress() -> str:
    stress = _load("stress.json") if (REPORTS / "stress.json").exists() else {}
    if not stress.get("reruns"):
        return "- Many runs of one launch, and compute-sanitizer: to be run again (`refmoe stress`)."
    tools = ", ".join(f"{tool['tool']} {tool['verdict']}" for tool in stress["sanitizers"])
    same = sum(rerun["different_outputs"] == 1 for rerun in stress["reruns"])
    runs = stress["reruns"][0]["runs"]
    return (
        f"- {same} of {len(stress['reruns'])} kernels gave the same bytes in {runs} runs on an {stress['gpu']}; "
        f"compute-sanitizer: {tools}."
    )


def _exhaustive() -> str:
    if not (REPORTS / "exhaustive.json").exists():
        return "- Every pair (amax, element): to be run again (`refmoe parity --level exhaustive`)."
    swept = _load("exhaustive.json")
    total = swept["summary"]
    dtypes = " and ".join(dict.fromkeys(row["dtype"].upper() for row in swept["rows"]))
    where = f"on an {swept['environment']['gpu']}" if swept["device"] == "cuda" else "on the executor"
    proven = total["proofs"] - total["refused"]
    return (
        f"- MXFP8 quantization and the fused expand, for every {dtypes} input: {total['pairs']:,} pairs "
        f"(amax, element) {where}, {total['differing']:,} bytes differ. That pairs are enough is proven for {proven} "
        f"of {total['proofs']} entries ([how](exhaustive.md))."
    )


def _silicon() -> str:
    return "\n".join((_conformance(), _stress(), _exhaustive(), _schedules()))


def _tolerances() -> str:
    """How many of the GEMM's planted faults each published tolerance would have let through."""
    report = _load("ptx.json")
    mutants = [mutant for mutant in report["mutants"] if mutant["accepted_by"] is not None]
    rows = ["| tolerance | rule | faults it lets through |", "|---|---|---|"]
    for tolerance in report["tolerances"]:
        passed = sum(tolerance["name"] in mutant["accepted_by"] for mutant in mutants)
        rule = tolerance["rule"].replace("|", "\\|")
        rows.append(f"| {tolerance['source']} | {rule} | {passed} of {len(mutants)} |")
    return "\n".join(rows)


def _mutants() -> str:
    mutants = _load("ptx.json")["mutants"]
    caught = sum(mutant["caught"] for mutant in mutants)
    planted = f"{caught} of {len(mutants)} planted faults are caught; the unpatched kernels pass the same cases."
    drawn = _load("mutation.json")["summary"]
    found = drawn["caught"] + drawn["timed_out"]
    return (
        f"{planted} Of {drawn['mutants']:,} small changes that a program drew, {drawn['does_not_build']} do not build, "
        f"{drawn['same_code']} give the same machine code, {drawn['proven_by_machine']} are proven equivalent by "
        f"machine, {drawn['tried_on_every_value']} by a run over every value of what differs and "
        f"{drawn['argued_equivalent']} by an argument in words, {found:,} are caught, {drawn['survived']} "
        f"survive: {100 * drawn['share']:.1f} % of those that can be caught, and "
        f"{100 * drawn['share_unargued']:.1f} % if the arguments count for nothing. "
        "[The report](reports/mutation.json) gives each argument, and the reason of each that survives."
    )


def _schedules() -> str:
    every = _load("schedules.json")["cases"] if (REPORTS / "schedules.json").exists() else []
    # A case that is refused or skipped ran under none.
    cases = [case for case in every if case["verdict"] not in ("UNSUPPORTED", "SKIPPED")]
    if not cases:
        return "- Every case under 16 legal schedules of each launch: to be run again (`make schedules`)."
    passed = sum(case["verdict"] == "PASS" for case in cases)
    fewest = min(case["schedules"] for case in cases)
    return f"- {passed:,} of {len(cases):,} cases leave the same bytes under {fewest} legal schedules of each launch."


def _bench() -> str:
    quantize, executor = _load("bench/quantize.json"), _load("bench/executor.json")
    rows = ["| what | measured | target |", "|---|---|---|"]
    for name, peer in (("quantize_mxfp8", "torchao `to_mx`"), ("dequantize_mxfp4", "`gguf`")):
        comparison = quantize["comparisons"][name]
        rows.append(f"| `{name}`, times as fast as {peer} | {comparison['ratio']:.1f} | {comparison['target']:.0f} |")
    speed = executor["lane_instructions_per_s"]["all checks"] / 1e9
    target = executor["targets"]["lane_instructions_per_s"] / 1e9
    rows.append(
        f"| executor, quantize 2048 x 2880, all checks on, G lane-instructions/s | {speed:.2f} | {target:.1f} |"
    )
    target = executor["targets"]["one_row_s"] * 1e3
    rows.append(f"| executor, one row, ms | {executor['one_row_s'] * 1e3:.2f} | {target:.0f} |")
    models = _load("bench/models.json")
    for row in models["rows"]:
        target = f"{row['target']:g}"
        rows.append(f"| model `sm120`, 16 x 2880 x 2880, {row['data']}, GFLOP/s | {row['gflops']:.1f} | {target} |")
    gemm = executor["gemm"]["medians_s"]["all checks"]
    rows.append(
        f"| executor, GEMM 1 x 5760 x 2880, all checks on, s | {gemm:.2f} | {executor['targets']['gemm_s']:g} |"
    )
    cutlass = _load("bench/cutlass.json")
    checked = next(row["best_s"] for row in cutlass["rows"] if row["contender"] == "all checks")
    rows.append(
        "| executor, CUTLASS's kernel, N 2880, K 2816, 4 experts, all checks on, s "
        f"| {checked:.1f} | {cutlass['targets']['checked_s']:g} |"
    )
    races = _load("bench/races.json")
    costliest = max(races["rows"], key=lambda row: row["factor"])
    rows.append(
        f"| executor, search for races, times as long as without, the costliest of {len(races['rows'])} kernels "
        f"({costliest['kernel']}) | {costliest['factor']:.2f} | {races['targets']['factor']:g} |"
    )
    exponential = _load("bench/exponential.json")
    rows.append(
        f"| the kernels' exponential over every FP32 input, largest error, ulp "
        f"| {exponential['max_ulp']:.4f} | stated {exponential['stated_max_ulp']} |"
    )
    return "\n".join(rows)


def _dp4a() -> str:
    """The DP4A product beside a read of its bytes and a BF16 product, and the targets that it has with one token."""
    report = _load("bench/gpu.json")
    times = {row["name"]: row["microseconds"] for row in report["rows"]}
    rows = [
        f"| {report['gpu']} | µs | of the speed of a read of its bytes | times as fast as torch.bmm in BF16 |",
        "|---|---|---|---|",
    ]
    for row in report["rows"]:
        if row["name"].startswith("DP4A, "):
            problem = row["name"].removeprefix("DP4A, ")
            faster = times[f"torch.bmm in BF16, {problem}"] / row["microseconds"]
            rows.append(
                f"| {problem} | {row['microseconds']:.2f} | {100 / row['ratio_to_floor']:.0f} % | {faster:.2f} |"
            )
    asked = "With one token 80 % of a read and 3 times a bmm are asked for, at both sizes. As ratios of times:"
    return "\n".join([*rows, "", asked, "", *_dp4a_targets(report["rows"])])


def _dp4a_targets(rows: list[dict[str, Any]]) -> list[str]:
    said = []
    for target in (each for each in GPU_TARGETS if each.what.startswith("DP4A, ")):
        ratio = target_ratio(target, rows)
        found = (
            "not measured" if ratio is None else f"{ratio:.3f}, {'reached' if ratio <= target.most else '**missed**'}"
        )
        said.append(f"- {target.what}: at most {target.most:.4g}; {found}")
    return said


def _convert() -> str:
    """What converting block FP8 with FP32 scales to MXFP8 costs, by tensor."""
    rows = [
        "| tensor | shape | layer | tile | block FP8 | MXFP8 | converted | times | times by `floor` |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    shipped = []
    for tensor in _load("convert.json")["tensors"]:
        if tensor["scales"] != "fp32":
            continue
        modes = {mode["mode"]: mode for mode in tensor["modes"]}
        errors = tensor["block_error"], modes["rceil"]["direct_error"], modes["rceil"]["converted_error"]
        times = [modes[mode]["added"] for mode in ("rceil", "floor")]
        name = tensor["name"].removeprefix("all-MiniLM-L6-v2 ")
        if tensor["origin"] == "shipped":
            name = f"`{name}`"
            shipped += [times[0]] if tensor["block"] == "128x128" else []
        cells = (name, "x".join(map(str, tensor["shape"])), tensor["layer"], tensor["block"])
        numbers = (*(f"{error:.4f}" for error in errors), *(f"{each:.2f}" for each in times))
        rows.append(f"| {' | '.join((*cells, *numbers))} |")
    said = f"The real weights: {min(shipped):.2f} to {max(shipped):.2f} times the error of block FP8."
    return "\n".join([*rows, "", said])


def _cutlass() -> str:
    """The builds of CUTLASS's kernel: in how many cases each ran, and which were not made."""
    builds: dict[tuple[str, str], Counter[str]] = {}
    sources: set[str] = set()
    for case in _load("cutlass.json")["cases"]:
        build = parse_case(case["id"]).build
        builds.setdefault((build, case["arch"]), Counter())[case["verdict"]] += 1
        sources |= {case["made_of"].partition(":")[0]} if case.get("made_of") else set()
    rows = ["| CUTLASS's kernel, tile 128x128x128 | built for | executed without its chip |", "|---|---|---|"]
    for (build, arch), verdicts in sorted(builds.items()):
        ran = (
            f"{verdicts['PASS']} case{'s' * (verdicts['PASS'] > 1)}, all bytes equal"
            if verdicts["PASS"]
            else "not built for this report"
        )
        rows.append(f"| {build.replace('-', ', ')} | {arch} | {ran} |")
    executed = "PTX and host code were executed; what ptxas makes of the PTX was only compiled."
    return "\n".join([*rows, "", f"{', '.join(sorted(sources))}: {executed}"])


def _drift() -> str:
    """The teacher-forced comparisons: what must be equal in bytes, the others by how far they are apart."""
    report = _load("drift.json")
    rows = [
        f"| {report['steps']} decode steps against `{report['base']}` | bits part at "
        "| median error of the hidden state | same next token | does the error grow? |",
        "|---|---|---|---|---|",
    ]
    for one in report["runs"][0]["comparisons"]:
        if one["mode"] != "teacher-forced":
            continue
        hidden, logits = one["curves"]["hidden"]["relative_l2"], one["curves"]["logits"]["top1"]
        errors = [step[-1] for sequence in hidden for step in sequence]
        tokens = [agreed for sequence in logits for agreed in sequence]
        first = one["first_difference"]
        same = f"nowhere: {one['bytes_compared']:,} bytes are the same"
        where = f"step {first['step']}, layer {first['layer']}, {first['stage']}" if first else same
        rows.append(
            f"| `{one['path']}` | {where} | {statistics.median(errors):.2g} "
            f"| {100 * statistics.mean(tokens):.0f} % | {one['growth']['conclusion']} |"
        )
    return "\n".join(rows)


def _probed() -> str:
    return table(read_evidence()).rstrip("\n")


def _chips() -> str:
    return chips_sentence(read_evidence())


def _ran() -> str:
    cases = _load("gpu.json")["cases"]
    native = any(case["arch"] in SM12X and case["verdict"] == "PASS" and case["device"] == "cuda" for case in cases)
    return ran_sentence(read_evidence(), [_load("gpu.json")["environment"]["gpu"]] if native else [])


def _deepseek() -> str:
    """What the models of the DeepSeek GEMM rest on."""
    words = ", ".join(f"`{name}` is **{each.evidence}**" for name, each in ASSUMPTIONS.items())
    return f"What they rest on: {words} ([the words](../guides/probe.md))."


def _installs() -> str:
    """A row for each way to install the probe, as `make sizes` measured it, and where the space goes."""
    document = json.loads((DOCS / "install.json").read_text())
    rows = ["| install | packages | to fetch | on the disk | pip, once fetched |", "|---|---:|---:|---:|---:|"]
    for each, label in zip(document["installs"], ("`refmoe[probe]`", "five packages"), strict=True):
        sizes = f"{each['fetched_bytes'] / 1e6:.0f} MB | {each['bytes'] / 1e6:.0f} MB | {each['seconds']:.0f} s"
        rows.append(f"| {label} | {len(each['packages'])} | {sizes} |")
    large = {name: size for name, size in document["installs"][0]["packages"].items() if size >= 10e6}
    parts = [f"{name} {size / 1e6:.0f} MB" for name, size in sorted(large.items(), key=lambda item: -item[1])]
    return (
        "\n".join(rows)
        + f"\n\nMeasured by `make sizes` with Python {document['python']} on {document['platform']}. The most is: "
        + f"{', '.join(parts)}. The wheel of refmoe has {document['wheel_bytes'] / 1e6:.1f} MB."
    )


BLOCKS: dict[str, Callable[[], str]] = {
    "mismatch": _mismatch,
    "proven": _proven,
    "evidence": _evidence,
    "silicon": _silicon,
    "tiles": _tiles,
    "tolerances": _tolerances,
    "mutants": _mutants,
    "bench": _bench,
    "dp4a": _dp4a,
    "convert": _convert,
    "cutlass": _cutlass,
    "drift": _drift,
    "probed": _probed,
    "chips": _chips,
    "ran": _ran,
    "installs": _installs,
    "answered": lambda: answered_sentence(read_evidence()),
    "mxfp8": lambda: mxfp8_sentence(read_evidence()),
    "deepseek": _deepseek,
    "nvfp4": lambda: nvfp4_sentence(read_evidence()),
}

if __name__ == "__main__":
    sys.exit(main())
