"""Figures of a benchmark that follow from others of it: ratios, rates, shares and maxima."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

from refmoe.chips import CHIPS

#: What a repetition, a time in microseconds and a ratio or rate were rounded to.
_REPETITION, _TIME, _RATIO = 5e-5, 5e-3, 5e-4
#: What a share of instructions was rounded to.
_SHARE = 6e-5
#: How much more than its nominal bandwidth a memory seems to give: part of the rotating buffers stays in the L2 cache.
_CACHED = 1.25
#: Of the shares of a whole, in percent, with what was rounded.
_PEAK = 101.0
_SHARES = ("memory", "l2", "l1", "issue", "alu", "fma", "xu", "lsu", "warps")
#: The least and the most that a counter of a launch may say.
_COUNTED: Mapping[str, tuple[float, float]] = {
    "microseconds": (0.1, 1e6),
    "instructions": (1, 1e12),
    "memory_bytes_read": (0, 1e12),
    "memory_bytes_written": (0, 1e12),
    "waves": (0, 1e6),
    "registers": (1, 255),
    **{f"{name}_share": (0, _PEAK) for name in _SHARES},
}
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 512, 4096)
#: What a sweep is over: numbers of tokens of each operation.
_SWEPT: Mapping[str, Sequence[int]] = {
    "route of gpt-oss-120b": _TOKENS,
    **{
        f"{operation} of {model}": _TOKENS
        for operation in ("quantize", "expand", "activation", "finalize")
        for model in ("gpt-oss-120b", "DeepSeek-V3")
    },
    "layer, DP4A of gpt-oss-120b": _TOKENS[:4],
    "layer, block FP8 of DeepSeek-V3": _TOKENS,
}
#: Who a sweep may time beside refmoe, and the operations of those that a machine may lack. Reports older than `peers`
#: know the first two.
RIVALS = ("torch.compile", "DeepGEMM", "FlashInfer", "Triton", "torchao")
OPTIONAL_RIVALS: Mapping[str, Sequence[str]] = {
    "FlashInfer": ("quantize",),
    "Triton": ("quantize", "activation"),
    "torchao": ("quantize",),
}
#: The products that a sweep has beside DeepGEMM at each number of tokens.
_DRAWN = "GEMM1, block FP8, drawn choices of DeepSeek-V3"
#: The fewest bytes of a result that torch's is compared with at the most tokens, and how many results there are.
_COMPARED = 1000
_COMPARED_RESULTS = 14
#: How the rows are called that a group of contenders begins with.
_FLOORS = re.compile(r"(copy|gather|read|sum of floors)\b.*|an empty kernel")


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a JSON number; true and false are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def derived(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What of a document does not follow from the rest of it: where, and a sentence."""
    rows = document.get("rows", [])
    yield from _floors(rows)
    yield from _bandwidth(document, rows)
    find = _BY_NAME.get(document["name"])
    if find is not None:
        yield from find(document)


def _called(row: Mapping[str, Any]) -> str:
    return str(row.get("name", row.get("contender", "a row")))


def _median(row: Mapping[str, Any]) -> tuple[float, float]:
    """A row's microseconds, and by how much they may be wrong."""
    if row.get("repetitions"):
        return statistics.median(row["repetitions"]), _REPETITION
    return row["microseconds"], _TIME


def _floors(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Ratios that are not the row's time by that of the floor in front of it, and rows that are there twice."""
    floor: tuple[float, float] | None = None
    group: set[str] = set()
    for row in rows:
        if "ratio_to_floor" not in row or not is_number(row.get("microseconds")):
            continue
        name = _called(row)
        if _FLOORS.fullmatch(name):
            floor, group = _median(row), set()
        if name in group:
            yield name, "is there twice in its group"
        group.add(name)
        if floor is None:
            yield name, "has a ratio to a floor, and no floor is before it"
            continue
        (time, off), (least, least_off) = _median(row), floor
        low, high = (time - off) / (least + least_off) - _RATIO, (time + off) / max(least - least_off, 1e-9) + _RATIO
        if not is_number(row["ratio_to_floor"]) or not low <= row["ratio_to_floor"] <= high:
            yield name, f"says {row['ratio_to_floor']} times its floor, and its times have {time / least:.3f}"


def _bandwidth(document: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Rates beyond what the memory of the GPU gives, and copies that do not move what their name says."""
    words = str(document.get("gpu", "")).split()
    known = [product for chip in CHIPS.values() for product in chip.products if product.name.split()[0] in words]
    most = max((product.bandwidth for product in known), default=math.inf) / 1000 * _CACHED
    for row in rows:
        rate = row.get("terabytes_per_second")
        if is_number(rate) and rate > most:
            yield _called(row), f"{rate} TB/s, and the memory of {document['gpu']} gives {most / _CACHED:.3g}"
        said = re.fullmatch(r".*, ([\d.]+) MB", _called(row))
        if said and is_number(row.get("traffic_bytes")) and f"{row['traffic_bytes'] / 1e6:.1f}" != said[1]:
            yield _called(row), f"is said to move {row['traffic_bytes']:,} bytes"


def _deepseek_gemm(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    problems: dict[str, list[Mapping[str, Any]]] = {}
    for row in document["rows"]:
        problems.setdefault(row["problem"], []).append(row)
    for problem, rows in problems.items():
        experts, each = (int(word) for word in problem.split(" x "))
        by: dict[str, float] = {}
        for row in rows:
            by[row["of"]] = min(by.get(row["of"], math.inf), row["microseconds"])
        flops = {
            row["teraflops"] * row["microseconds"] / (experts * each)
            for row in rows
            if is_number(row["teraflops"]) and row["of"] != "copy"
        }
        if flops and max(flops) > min(flops) * 1.02:
            yield problem, "its TFLOP/s by its microseconds are of unlike problems"
        for row in rows:
            over = row["deepgemm_over_this"]
            if is_number(over) and "DeepGEMM" in by and abs(over - by["DeepGEMM"] / row["microseconds"]) > 2 * _RATIO:
                found = by["DeepGEMM"] / row["microseconds"]
                yield (
                    f"{problem}, {row['contender']}",
                    f"DeepGEMM over it is said to be {over}; the times have {found:.3f}",
                )
        for target in document["targets"]:
            rival, _, rest = str(target["name"]).partition(" over ours, ")
            if rest != problem or rival not in by or "refmoe" not in by:
                continue
            found = by[rival] / by["refmoe"]
            if not is_number(target["ratio"]) or abs(target["ratio"] - found) > 2 * _RATIO:
                yield target["name"], f"says {target['ratio']}, and its rows have {found:.3f}"
    for target in document["targets"]:
        if str(target["name"]).partition(" over ours, ")[2] not in problems:
            yield str(target["name"]), "is of a problem without a row"


def _deepseek_routing(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    times = [row["microseconds"] for row in document["rows"]]
    for number, said in enumerate(document["torch_over_ours"]):
        ours, theirs = times[2 * number + 1], times[2 * number + 2]
        if abs(said - theirs / ours) > _TIME * (theirs / ours) / ours + 2 * _RATIO:
            yield "torch_over_ours", f"says {said}, and its rows have {theirs / ours:.3f}"
    if document["weights_with_other_bits"] > document["weights"]:
        yield "weights_with_other_bits", f"{document['weights_with_other_bits']:,} of {document['weights']:,}"


def _layer(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    held = Counter(row.get("target") for row in document["rows"])
    for target in document.get("targets", ()):
        if held[target] != 1:
            yield str(target), f"has {held[target]} rows; needed one"


def _cutlass(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    held = sorted(str(row["contender"]) for row in document["rows"])
    if held != ["all checks", "no checks"]:
        yield "rows", f"are of {', '.join(held)}; needed all checks and no checks"


def _models(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    work = 2e-9 * document["m"] * document["n"] * document["k"]
    for row in document["rows"]:
        found = work / (row["median_ms"] / 1e3) if row["median_ms"] else math.inf
        if not math.isclose(row["gflops"], found, rel_tol=1e-9):
            yield row["data"], f"says {row['gflops']:.4g} GFLOP/s, and its time gives {found:.4g}"


def _memory(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    ratios = []
    for row in document["rows"]:
        cost = row["records"] + row["initialised"] + row["kept"] + row["clocks"]
        ratios.append(cost / row["touched"] if row["touched"] else math.inf)
        if not math.isclose(row["bytes_per_byte_touched"], ratios[-1], rel_tol=1e-9):
            text = f"says {row['bytes_per_byte_touched']:.4g} bytes a byte touched, and its bytes have {ratios[-1]:.4g}"
            yield row["kernel"], text
        # The worst of several launches is no better than all of them together.
        if row["most_of_a_launch"] < row["bytes_per_byte_touched"] * (1 - 1e-9):
            text = f"says {row['most_of_a_launch']:.4g} bytes a byte of its worst launch, and all have {ratios[-1]:.4g}"
            yield row["kernel"], text
    average = sum(ratios) / len(ratios)
    if not math.isclose(document["bytes_per_byte_touched"], average, rel_tol=1e-9):
        text = f"says {document['bytes_per_byte_touched']:.4g}, and the average of its rows is {average:.4g}"
        yield "bytes_per_byte_touched", text
    if document["resident_bytes"] < document["touched"]:
        yield "resident_bytes", f"says {document['resident_bytes']:,}, and {document['touched']:,} were touched"


def _exponential(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    share = document["not_correctly_rounded"] / document["inputs"]
    if not math.isclose(document["share_not_correctly_rounded"], share, rel_tol=1e-9):
        yield "share_not_correctly_rounded", f"says {document['share_not_correctly_rounded']}; the counts have {share}"
    rows = document["rows"]
    for key in ("inputs", "not_correctly_rounded", "decided_in_decimal"):
        if (found := sum(row[key] for row in rows)) != document[key]:
            yield key, f"says {document[key]:,}, and its rows have {found:,}"
    # Every pattern of FP32 but a NaN is an input, or one at which the result is a constant.
    numbers = 2**32 - 2 * (2**23 - 1)
    if document["stride"] == 1 and document["inputs"] + document["constant_inputs"] != numbers:
        found = document["inputs"] + document["constant_inputs"]
        yield "constant_inputs", f"with its inputs are {found:,}, and FP32 has {numbers:,} numbers"
    worst = max(rows, key=lambda row: row["max_ulp"])
    for key in ("max_ulp", "worst_input", "worst_bits"):
        if document[key] != worst[key]:
            yield key, f"says {document[key]}, and the worst of its rows has {worst[key]}"
    for row in rows:
        if row["worst_bits"] != f"0x{int(np.float32(row['worst_input']).view(np.uint32)):08x}":
            yield str(row["x"]), f"its worst input {row['worst_input']} does not have the bits {row['worst_bits']}"
    if document["reached"] != (document["max_ulp"] <= document["stated_max_ulp"]):
        text = f"is {document['reached']}, with {document['max_ulp']} ulp of {document['stated_max_ulp']} stated"
        yield "reached", text


def _deepseek(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    taken = sum(row["seconds"] for row in document["rows"])
    if not math.isclose(document["launches_s"], taken, rel_tol=1e-9):
        yield "launches_s", f"says {document['launches_s']:.6g}, and its rows took {taken:.6g}"
    for row in document["rows"]:
        if not 0 <= row["differing"] <= row["bytes"]:
            yield row["stage"], f"{row['differing']:,} of {row['bytes']:,} bytes differ"
    equal = not any(row["differing"] for row in document["rows"])
    tokens, top_k = document["sizes"]["tokens"], document["sizes"]["top_k"]
    if document["all_reached"] != (equal and document["experts_drawn"] <= tokens * top_k):
        text = f"all_reached is {document['all_reached']}, and its rows and experts say otherwise"
        yield "all_reached", text


def _tiles(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    kernels = {(row["kernel"], row["tile"]) for row in document["rows"]}
    keys = ("kernel", "tile", "product", "model", "gemm", "tokens")
    for key, count in Counter(tuple(each[name] for name in keys) for each in document["predictions"]).items():
        if key[:2] not in kernels or key[2] not in document["sources"]:
            yield ", ".join(map(str, key)), "is predicted for a kernel or a product that it does not count"
        if count > 1:
            yield ", ".join(map(str, key)), f"is predicted {count} times"
    for row in document["rows"]:
        for share, part, whole in (
            ("instructions_a_byte", "instructions_a_step", "bytes_a_step"),
            ("tensor_share", "tensor_instructions", "instructions_a_step"),
        ):
            if row.keys() >= {share, part, whole} and abs(row[share] - row[part] / row[whole]) > _SHARE:
                found = row[part] / row[whole]
                yield f"{row['kernel']}, {row['tile']}", f"says {share} {row[share]}, and its counts have {found:.4f}"
    for each in document["predictions"]:
        times = each["by_resource"]
        name = f"{each['kernel']}, {each['tile']}, {each['product']}, {each['tokens']} tokens"
        if each["predicted_microseconds"] != max(times.values()):
            longest = max(times.values())
            yield name, f"predicts {each['predicted_microseconds']} us, and its resources take up to {longest}"
        elif times.get(each["bound"]) != each["predicted_microseconds"]:
            yield name, f"is said to be bound by {each['bound']}, which is not what takes longest"
    spilling = {row["kernel"] for row in document["rows"] if row["spill_bytes"] and row["kernel"].startswith("refmoe")}
    if document["all_reached"] != (not document["spills"]) or bool(spilling) != bool(document["spills"]):
        text = f"{len(spilling)} kernels of refmoe's spill in its rows, and it lists {len(document['spills'])}"
        yield "spills", text


def _counters(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Counters that no launch has, and launches of no group."""
    floor, group = None, set[tuple[str, str]]()
    for row in document["rows"]:
        name = _called(row)
        if row.get("name") == row.get("floor"):
            floor, group = name, set()
        if row.get("floor") != floor or (name, row.get("entry")) in group:
            yield name, "is of no group, or there twice"
        group.add((name, str(row.get("entry"))))
        for key, (least, most) in _COUNTED.items():
            if not is_number(row.get(key)) or not least <= row[key] <= most:
                yield name, f"{key} is {row.get(key)!r}"
        waits = row.get("waits")
        shares = list(waits.values()) if isinstance(waits, Mapping) else [math.inf]
        if not all(map(is_number, shares)) or any(share < 5 for share in shares) or sum(shares) > _PEAK:
            yield name, "its warps wait for more than all of their time"
        elif shares != sorted(shares, reverse=True):
            yield name, "the causes of its waiting are in no order"


def _sweep(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Rows that are missing, there twice or of another label; layers below their floors; results of other sizes."""
    rows = document["rows"]
    held = Counter((row["model"], row["operation"], row["tokens"], row["of"], row["name"]) for row in rows)
    yield from ((key[4], f"is there {times} times") for key, times in held.items() if times > 1)
    found: dict[str, dict[str, set[int]]] = {}
    for row in rows:
        found.setdefault(f"{row['operation']} of {row['model']}", {}).setdefault(row["of"], set()).add(row["tokens"])
        said = re.search(r"M = (\d+)", row["name"])
        if said and int(said[1]) != row["tokens"]:
            yield row["name"], f"is said to be of {row['tokens']} tokens"
        theirs = next((who for who in RIVALS if row["name"].startswith(who)), None)
        if row["of"] not in ({theirs} if theirs else {"refmoe", "floor"}):
            yield row["name"], f"is said to be of {row['of']}"
        if row["of"] == "floor" and not _FLOORS.fullmatch(row["name"]):
            yield row["name"], "is no floor"
        if row["of"] == "refmoe" and _FLOORS.fullmatch(row["name"]):
            yield row["name"], "is a floor"
        if row["operation"].startswith("layer") and ": " not in row["operation"] and row["ratio_to_floor"] < 1:
            yield row["name"], "is faster than the sum of its floors"
    for operation, needed in _SWEPT.items():
        for of in ("floor", "refmoe", "torch.compile") if not operation.startswith("layer") else ("floor", "refmoe"):
            lacking = set(needed) - found.get(operation, {}).get(of, set())
            if lacking:
                yield operation, f"has no row of {of} at {', '.join(map(str, sorted(lacking)))} tokens"
    products: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["operation"].startswith("GEMM"):
            products.setdefault((row["operation"], row["tokens"]), []).append(row)
    for problem in products.values():
        yield from _swept_products(problem)
    any_of = any(row["of"] == "DeepGEMM" for row in rows)
    if any_of == ("DeepGEMM" in document["absent"]):
        yield "absent", f"says {list(document['absent'])}, and its rows say otherwise"
    if "peers" in document:
        yield from _swept_peers(document, found)
    for name, (differing, whole) in document["differing"].items():
        if not 0 <= differing <= whole or whole < _COMPARED:
            yield name, f"{differing:,} of {whole:,} bytes differ"
    # What has a peer's name in front of it is of no peer that every sweep has.
    results = sum(": " not in name for name in document["differing"])
    if results < _COMPARED_RESULTS:
        yield "differing", f"has {results} results; needed {_COMPARED_RESULTS}"


def _swept_products(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Of the products of one problem, figures that do not follow from their times."""
    fastest = min((row["microseconds"] for row in rows if row["of"] == "DeepGEMM"), default=None)
    for row in rows:
        over = row.get("deepgemm_over_this")
        if fastest is not None and is_number(over) and abs(over - fastest / row["microseconds"]) > 2 * _RATIO:
            yield (
                row["name"],
                f"DeepGEMM over it is said to be {over}; the times have {fastest / row['microseconds']:.3f}",
            )
    flops = {row["teraflops"] * row["microseconds"] for row in rows if is_number(row.get("teraflops"))}
    if flops and max(flops) > min(flops) * 1.02:
        yield "GEMM", "its TFLOP/s by its microseconds are of unlike problems"


def _swept_peers(document: Mapping[str, Any], found: Mapping[str, Mapping[str, set[int]]]) -> Iterator[tuple[str, str]]:
    """Of a sweep that says who took part: who is unaccounted for, and rows that neither exist nor are said to fail.

    Args:
        document: the report.
        found: the numbers of tokens that have a row, by operation of a model, and by whose it is.
    """
    versions, absent, failed = document["peers"], document["absent"], document.get("failed", {})
    for what, said in (("peers", versions), ("absent", absent), ("failed", failed)):
        if not isinstance(said, Mapping) or not all(isinstance(text, str) and text for text in said.values()):
            yield what, "is no text for each name"
            return
    for who in RIVALS:
        if (who in versions) == (who in absent):
            yield who, "is neither said to take part nor to be absent" if who not in versions else "is said to be both"
    for of in ("floor", "refmoe"):
        if lacking := set(_TOKENS) - found.get(_DRAWN, {}).get(of, set()):
            yield _DRAWN, f"has no row of {of} at {', '.join(map(str, sorted(lacking)))} tokens"
    needed = [(_DRAWN, "DeepGEMM")]
    for who, operations in OPTIONAL_RIVALS.items():
        needed += [(key, who) for key in _SWEPT if key.partition(" of ")[0] in operations]
    for key, who in needed:
        lacking = set(_TOKENS) - found.get(key, {}).get(who, set())
        if who in versions and lacking and not any(name.startswith(who) and _fails(name, key) for name in failed):
            yield key, f"has no row of {who} at {', '.join(map(str, sorted(lacking)))} tokens, and no failure of it"
        if who in absent and found.get(key, {}).get(who):
            yield key, f"has rows of {who}, which is said to be absent"


def _fails(name: str, operation: str) -> bool:
    """Whether a failure is one of an operation of a model: "peer: operation of model", or DeepGEMM's rows."""
    return name.endswith(f": {operation}") or (operation == _DRAWN and name.startswith("DeepGEMM"))


_BY_NAME = {
    "counters": _counters,
    "cutlass": _cutlass,
    "deepseek": _deepseek,
    "deepseek_gemm": _deepseek_gemm,
    "deepseek_routing": _deepseek_routing,
    "exponential": _exponential,
    "layer": _layer,
    "memory": _memory,
    "models": _models,
    "sweep": _sweep,
    "tiles": _tiles,
}
