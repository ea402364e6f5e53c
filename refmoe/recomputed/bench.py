"""The targets of a benchmark: those of its module, under which its report has to say whether they are reached."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from refmoe.bench import (
    against,
    cutlass,
    deepseek,
    deepseek_gemm,
    deepseek_routing,
    executor,
    exponential,
    faults,
    first_launch,
    gpu,
    layer,
    memory,
    models,
    parity,
    quantize,
    races,
)
from refmoe.bench.tiles import TOKENS, sources
from refmoe.bench.tiles.model import MODELS as MODELLED
from refmoe.bench.tiles.peaks import modelled_products
from refmoe.chips import CHIPS
from refmoe.recomputed.values import partings
from refmoe.reference.exponential import MAX_ULP
from refmoe.reference.mma import MODELS
from refmoe.reports.checks import GateRefusal, first_and_count

#: By its name the targets of a benchmark whose report has them under `targets`, each with a word under `reached`.
_NAMED: Mapping[str, Mapping[str, float]] = {
    "cutlass": cutlass.TARGETS,
    "executor": executor.TARGETS,
    "faults": faults.TARGETS,
    "layer": layer.TARGETS,
    "memory": memory.TARGETS,
    "parity": parity.TARGETS,
}


def refusals(document: Mapping[str, Any]) -> Iterator[GateRefusal]:
    """Targets that are not those of the benchmark, that are left out, or that no word says anything of."""
    yield from first_and_count("bench.recomputed", _wrong(document))


def _wrong(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    name = document["name"]
    if name in _NAMED:
        yield from partings(document.get("targets"), dict(_NAMED[name]), "targets")
        reached = document.get("reached")
        if not isinstance(reached, Mapping) or reached.keys() != _NAMED[name].keys():
            yield "reached", f"does not say of each of {', '.join(_NAMED[name])} whether it is reached"
    elif name == "first_launch":
        asked = {key: value for key, value in first_launch.TARGETS.items() if key in document["targets"]}
        yield from partings(document["targets"], asked, "targets")
    elif name == "races":
        yield from partings(document["targets"], dict(races.TARGETS), "targets")
    elif name == "models":
        found = {row["data"]: row["target"] for row in document["rows"]}
        yield from partings(found, dict(models.TARGETS), "the targets of its rows")
    elif name == "quantize":
        found = {key: each["target"] for key, each in document["comparisons"].items()}
        yield from partings(found, dict(quantize.TARGETS), "the targets of its comparisons")
    elif name == "against":
        found = {key: each["target"] for key, each in document["comparisons"].items() if "target" in each}
        wanted = {key: value for key, value in against.TARGETS.items() if key in document["comparisons"]}
        yield from partings(found, wanted, "the targets of its comparisons")
    elif name == "deepseek_gemm":
        wanted = {
            f"{rival} over ours, {experts} x {rows}": least
            for (experts, rows), (rival, least) in deepseek_gemm.TARGETS.items()
        }
        yield from partings({each["name"]: each["target"] for each in document["targets"]}, wanted, "targets")
    elif name == "tiles":
        yield from partings(_numbers(document["sources"]), _numbers(sources()), "sources")
    yield from _form(document)
    if "all_reached" not in document and (name in _NAMED or name in ("races", "models", "deepseek_gemm", "tiles")):
        yield "all_reached", "is not there"


def _numbers(products: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The published numbers of each product without the words on where they are from."""
    return {
        name: {key: value for key, value in each.items() if not key.endswith("_source")}
        for name, each in products.items()
    }


#: What each report has beside its kind, its name and its digest.
_KEYS: Mapping[str, str] = {
    "cutlass": "build release shape experts rows lane_instructions rounds cores versions targets reached all_reached",
    "deepseek": "sizes rows experts_drawn arch model evidence reference_s launches_s cores versions all_reached",
    "deepseek_gemm": "gpu arch rows targets all_reached",
    "deepseek_routing": "gpu arch torch problem rows torch_over_ours tokens_with_other_experts weights "
    "weights_with_other_bits most_units_apart maps_differ",
    "executor": "shape rounds cores versions lane_instructions medians_s lane_instructions_per_s one_row_s gemm "
    "targets reached all_reached",
    "exponential": "stride constants inputs constant_inputs max_ulp stated_max_ulp worst_input worst_bits "
    "not_correctly_rounded share_not_correctly_rounded decided_in_decimal numpy_exp_relative_error_times_2_53 rows "
    "seconds versions reached",
    "gpu": "gpu arch environment clocks rows",
    "layer": "shape rows rounds cores versions targets reached all_reached",
    "memory": "buffers touched resident_bytes rows bytes_per_byte_touched cores versions targets reached all_reached",
    "models": "m n k rounds model evidence cores versions rows all_reached",
    "quantize": "size rounds cores versions comparisons reached",
    "tiles": "rows not_built predictions sources spills cores versions all_reached",
}
#: What some reports of a benchmark have, and others have not.
_OPTIONAL: Mapping[str, frozenset[str]] = {"gpu": frozenset(("absent",))}


def _fixed() -> Mapping[str, Mapping[str, Any]]:
    """By its name what a benchmark times, of which no option of the command says otherwise."""
    run = {module.__name__.rpartition(".")[2]: defaults(module.run) for module in _WITH_SIZES}
    made = run["deepseek"]
    routing = deepseek_routing
    return {
        "cutlass": {"shape": [int(cutlass.OFFSETS[-1]), cutlass.N, cutlass.K], **run["cutlass"]},
        "deepseek": {"sizes": made},
        "deepseek_routing": {
            "problem": f"{routing.TOKENS} tokens, {routing.EXPERTS} experts in {routing.GROUPS} groups, "
            f"{routing.TOP_GROUPS} kept, top {routing.TOP_K}"
        },
        "executor": {"shape": [run["executor"]["rows"], executor.K], "rounds": run["executor"]["rounds"]},
        "exponential": {**run["exponential"], "stated_max_ulp": MAX_ULP},
        "layer": run["layer"],
        "memory": {key: run["memory"][key] for key in ("buffers", "touched")},
        "models": {key: run["models"][key] for key in ("m", "n", "k", "rounds")},
        "quantize": run["quantize"],
    }


_WITH_SIZES = (cutlass, deepseek, executor, exponential, layer, memory, models, quantize)


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """The values that arguments of a function have where they are left out."""
    return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}


def _form(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Keys that a report has not or lacks, and another size than the command times."""
    name = document["name"]
    if name in _KEYS:
        # A run beside another checkout says more.
        held, due = document.keys() - {"kind", "name", "digest", "against"}, set(_KEYS[name].split())
        for key in sorted(held - due - _OPTIONAL.get(name, frozenset())):
            yield key, f"is nothing that the benchmark {name} writes"
        for key in sorted(due - held):
            yield key, f"is not there, and the benchmark {name} writes it"
    for key, value in _fixed().get(name, {}).items():
        if key in document:
            yield from partings(document[key], value, key)
    if "model" in document and "evidence" in document:
        known = MODELS.get(document["model"])
        words = known.words if known else frozenset()
        if document["evidence"] not in words:
            yield "evidence", f"is {document['evidence']!r} of the model {document['model']!r}, which does not have it"
    if "arch" in document and document["arch"] not in {chip.arch for chip in CHIPS.values()}:
        yield "arch", f"is {document['arch']!r}, which is that of no chip that is known"
    needed = {"nvcc", "nvdisasm"} if name == "tiles" else {"numpy"}
    if "versions" in document and (absent := sorted(needed - document["versions"].keys())):
        yield "versions", f"do not name {absent[0]}"
    yield from _OF_ONE.get(name, _nothing)(document)


def _nothing(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from ()


def _executor(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    gemm = {"shape": [1, executor.GEMM_N, executor.K], "tile": executor.GEMM_TILE}
    yield from partings({key: document["gemm"].get(key) for key in gemm}, gemm, "gemm")


def _routing(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Weights are compared of the tokens whose experts are the same."""
    found = (deepseek_routing.TOKENS - document["tokens_with_other_experts"]) * deepseek_routing.TOP_K
    if document["weights"] != found:
        yield "weights", f"says {document['weights']:,}, and the tokens with the same experts have {found:,}"


def _gpu(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Rows of what is said to be left out, and rows that are missing without a word."""
    held = {
        "torch.bmm": any(row["name"].startswith("torch.bmm") for row in document["rows"]),
        "whole layers": any(row["name"].startswith("layer, ") for row in document["rows"]),
    }
    if "absent" in document:
        yield from partings(document["absent"], gpu.ABSENT, "absent")
    for name, there in held.items():
        if there == ("absent" in document):
            yield name, "has rows, and is said to be absent" if there else "has no row, and nothing says why"


def _models(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for row in document["rows"]:
        yield from partings(row["checked"], defaults(models.run)["checked"], f"{row['data']}, checked")


def _predicted(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Predictions that are missing: each counted kernel, product, model, GEMM and number of tokens has one."""
    wanted = {
        (row["kernel"], row["tile"], product.name, model.name, gemm, tokens)
        for row in document["rows"]
        if "not_counted" not in row
        for arch, product, _ in modelled_products()
        if arch in row["archs"]
        for model in MODELLED
        for gemm in model.gemms()
        for tokens in TOKENS
    }
    keys = ("kernel", "tile", "product", "model", "gemm", "tokens")
    held = {tuple(each[key] for key in keys) for each in document["predictions"]}
    for these, said in ((wanted - held, "is not predicted"), (held - wanted, "is none of what is predicted")):
        for key in sorted(these, key=str):
            yield ", ".join(map(str, key)), said


def _work(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Bytes and operations that are not those of a problem of the DeepSeek GEMM."""
    n, k = deepseek_gemm.N, deepseek_gemm.K
    for row in document["rows"]:
        if isinstance(row["bits_are_deepgemms"], bool) == (row["of"] == "copy"):
            yield f"{row['problem']}, {row['contender']}", "does not say whether its bits are DeepGEMM's, or has none"
        experts, each = (int(word) for word in row["problem"].split(" x "))
        count = experts * each
        traffic = (count + experts * n) * k + 2 * count * n
        name = f"{row['problem']}, {row['contender']}"
        if row["traffic_bytes"] != traffic:
            yield name, f"says {row['traffic_bytes']:,} bytes, and its operands and output have {traffic:,}"
        if (row["of"] == "copy") != (row["teraflops"] is None):
            yield name, f"says {row['teraflops']} TFLOP/s"
        elif row["teraflops"] is not None:
            found = 2 * count * n * k / row["microseconds"] / 1e6
            if abs(row["teraflops"] - found) > 0.06 + found * 0.006 / row["microseconds"]:
                yield name, f"says {row['teraflops']} TFLOP/s, and its time gives {found:.1f}"


_OF_ONE: Mapping[str, Callable[[Mapping[str, Any]], Iterator[tuple[str, str]]]] = {
    "deepseek_gemm": _work,
    "deepseek_routing": _routing,
    "executor": _executor,
    "gpu": _gpu,
    "models": _models,
    "tiles": _predicted,
}
