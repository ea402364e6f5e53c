"""The targets of a benchmark: those of its module, under which its report has to say whether they are reached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from refmoe.bench import (
    against,
    cutlass,
    deepseek_gemm,
    executor,
    faults,
    first_launch,
    layer,
    memory,
    models,
    parity,
    quantize,
    races,
)
from refmoe.bench.tiles import sources
from refmoe.recomputed.values import partings
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
    if "all_reached" not in document and (name in _NAMED or name in ("races", "models", "deepseek_gemm", "tiles")):
        yield "all_reached", "is not there"


def _numbers(products: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The published numbers of each product without the words on where they are from."""
    return {
        name: {key: value for key, value in each.items() if not key.endswith("_source")}
        for name, each in products.items()
    }
