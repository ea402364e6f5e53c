"""A document of `refmoe invariant`: what of a token's bytes depends on its batch; `refmoe.batching` makes it."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from refmoe.errors import ArgumentError
from refmoe.families import FAMILIES
from refmoe.reference.moe.paths import PATHS
from refmoe.reports.checks import GateRefusal, first_and_count
from refmoe.reports.documents import Count, Kind, Model, PresentHash, Seconds, Sha256, passed_refusals
from refmoe.reports.environment import Environment
from refmoe.verify.source import python_sha256

SCHEMA_VERSION = "1"

#: What stands for the sources of a path of the reference, beside the families of kernels.
LAYER = "layer"
#: What decides the bytes of a path of the reference, and which calls are made.
_SOURCES = (
    *("formats.py", "policy.py", "draw.py", "families/moe.py"),
    *("reference/*.py", "reference/mma/*.py", "reference/moe/*.py", "reference/deepseek/*.py"),
    *("reference/deepseek_gemm/*.py", "reference/gguf/*.py"),
    "batching/*.py",
)

_WARPS = "llama.cpp's rule: 4, 2 or 1 warps share a weight row by the tokens of the batch, and add in another order"
_BLOCK = "a block of 128 x 128 spans 128 tokens, which share its scale; it is meant for weights"

#: Subjects that are known to depend on their batch, and why. Any other one must not.
DEPENDS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("layer/dp4a", "layer/llama_cpp", "layer/llama_cpp-ready", "layer/llama_cpp-q8_1"), _WARPS),
        **dict.fromkeys(("kernel/dp4a_gemv", "kernel/integer_moe-dp4a", "kernel/integer_moe-llama_cpp"), _WARPS),
        "kernel/block_fp8_quantize-128x128": _BLOCK,
    }
)

#: Sizes that every subject is tried at, and neighbours that a way other than the usual one is tried among.
LEAST_SIZES = frozenset({1, 2, 7})
FEW = ("random", "special", "crowd")

#: By level the sizes of `refmoe.batching`, of which a subject has those up to its most tokens.
SIZES: Mapping[str, tuple[int, ...]] = MappingProxyType({"default": (1, 2, 7, 8, 9, 64), "quick": (1, 2, 7, 9)})
#: Subjects that take fewer tokens than the largest size: products for decode.
FEWER = MappingProxyType(
    dict.fromkeys(("kernel/dp4a_gemv", "kernel/integer_moe-dp4a", "kernel/integer_moe-llama_cpp"), 8)
)
#: Bytes of one token's results by subject: all of them are compared in every case.
TOKEN_BYTES: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *(f"layer/{name}" for name in ("cutlass", "cutlass-fused", "cutlass-ready", "cutlass-floor")),
                *(f"layer/{name}" for name in ("cutlass-rank", "cutlass-router", "trtllm_mxfp8", "nvfp4", "marlin")),
                *(f"layer/{name}" for name in ("triton", "trtllm", "dp4a", "llama_cpp", "llama_cpp-ready")),
                *("kernel/integer_moe-dp4a", "kernel/integer_moe-llama_cpp"),
            ),
            5760,
        ),
        "layer/llama_cpp-q8_1": 3240,
        **dict.fromkeys(("layer/deepseek_fp8", "layer/deepseek_fp8-trtllm"), 2816),
        **dict.fromkeys(("kernel/mxfp8_quantize", "kernel/activation"), 462),
        "kernel/nvfp4_quantize": 252,
        "kernel/block_fp8_quantize": 464,
        "kernel/block_fp8_quantize-128x128": 448,
        **dict.fromkeys(("kernel/q8_1_quantize", "kernel/swiglu_q8_1", "kernel/finalize_q8_1"), 504),
        "kernel/expand-mxfp8": 924,
        "kernel/expand-nvfp4": 504,
        "kernel/expand-fp8_token": 904,
        "kernel/expand-copy": 1792,
        **dict.fromkeys(("kernel/sm12x_gemm", "kernel/sm12x_nvfp4_gemm"), 288),
        "kernel/deepseek_gemm": 512,
        "kernel/dp4a_gemv": 128,
        "kernel/finalize": 896,
        "kernel/routing": 32,
        **dict.fromkeys(("kernel/moe", "kernel/deepseek_moe", "kernel/deepseek_moe-router"), 256),
    }
)
#: The words of `refmoe.batching` for neighbours and for the token that is compared.
NEIGHBOURS = ("random", "zeros", "special", "huge", "tiny", "wide", "mirrored", "crowd", "copies", "none")
PROBES = ("random", "mirrored", "wide", "special", "tiny")
#: By level the neighbours that every subject has.
_ALWAYS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"default": ("random", "zeros", "wide", "mirrored", "crowd", "copies"), "quick": ("random", "crowd")}
)
#: Where a subject ran, by the first part of its name.
RESTS_ON = MappingProxyType(
    {
        "layer": "on the reference, to the last bit; the chip adds as its accumulation model says",
        "kernel": "on the executor, for sm_120a: ptxas and the chip are assumed to follow the PTX manual",
    }
)


class DifferenceRecord(Model):
    """The first pair of calls of one token that give different bytes."""

    alone: str
    batched: str
    array: str
    element: Count
    first: str
    second: str
    differing: Count
    elements: Count


class CertificateRecord(Model):
    """What was tried of one subject."""

    subject: str
    source: str
    rests_on: str
    verdict: Literal["invariant", "depends"]
    depends: str
    cases: Count
    bytes_compared: Count
    sizes: list[Count]
    neighbours: list[str]
    ways: list[str]
    probes: list[str]
    difference: DifferenceRecord | None


class InvariantDocument(Model):
    """The keys of a document."""

    kind: Literal["invariant"]
    schema_version: Literal["1"]
    created: str
    command: str
    environment: Environment
    seconds: Seconds
    level: Literal["quick", "default"]
    seed: Count
    source_sha256: dict[str, Sha256]
    certificates: list[CertificateRecord]
    cases: Count
    passed: bool
    digest: Sha256


def layer_sha256() -> str:
    """Of the Python sources that decide the bytes of the reference's paths."""
    return python_sha256(_SOURCES)


def count_cases(sizes: Sequence[int], neighbours: Sequence[str], ways: Sequence[str], probes: Sequence[str]) -> int:
    """The calls of a certificate without a difference: see `refmoe.batching.prove.calls_of`."""
    positions = sum(len({0, size // 2, size - 1}) for size in sizes if size > 1)
    # The probe alone, in a way that is not the usual one, has no neighbours.
    kinds = [kind for kind in neighbours if kind != "none"]
    few = len([kind for kind in kinds if kind in FEW])
    return positions * len(kinds) + (len(ways) - 1) * (positions * few + len(probes) * (1 in sizes))


def failures(document: Mapping[str, Any]) -> list[str]:
    """What is otherwise than is known of it, a sentence each."""
    return [refusal.text for refusal in _failures(document)]


def _failures(document: Mapping[str, Any]) -> Iterator[GateRefusal]:
    for each in document["certificates"]:
        if each["verdict"] == "depends" and not each["depends"]:
            shown = each["difference"] or {}
            pair = f"{shown.get('alone')} and {shown.get('batched')} differ in {shown.get('array')}"
            yield GateRefusal("invariant.verdict", f"{each['subject']} depends on its batch: {pair}")
        if each["verdict"] == "invariant" and each["depends"]:
            text = f"{each['subject']} is known to depend on its batch, and no case of {each['cases']:,} shows it"
            yield GateRefusal("invariant.verdict", text)


def _judge(document: Mapping[str, Any], present: PresentHash) -> Iterator[GateRefusal]:
    found = list(_failures(document))
    yield from found
    yield from passed_refusals(document, bool(found), "nothing in it failed")
    yield from _stale(document, present)
    yield from _paths(document)
    certificates = document["certificates"]
    if not document["seconds"]:
        yield GateRefusal("invariant.counts", f"{document['cases']:,} cases in no time")
    if sum(each["cases"] for each in certificates) != document["cases"]:
        text = f"says {document['cases']:,} cases, and its certificates have {sum(e['cases'] for e in certificates):,}"
        yield GateRefusal("invariant.counts", text)
    yield from first_and_count(
        "invariant.paths", ((e["subject"], text) for e in certificates for text in _made_of(e, document["level"]))
    )
    yield from _command(document)
    for check, find in (
        ("invariant.counts", _counts),
        ("invariant.verdict", _verdict),
        ("invariant.difference", _difference),
    ):
        yield from first_and_count(check, ((each["subject"], text) for each in certificates for text in find(each)))


def _stale(document: Mapping[str, Any], present: PresentHash) -> Iterator[GateRefusal]:
    used = {LAYER, *(each["source"] for each in document["certificates"])}
    stated = document["source_sha256"]
    for source in sorted(used ^ stated.keys()):
        word = "has no hash of" if source in used else "has a hash of what it does not use:"
        yield GateRefusal("stale.kernel", f"{word} {source}; {INVARIANT.again}")
    for source in sorted(used & stated.keys()):
        try:
            now = layer_sha256() if source == LAYER else present(source)
        except (ArgumentError, OSError) as error:
            yield GateRefusal("stale.family", f"kernel family {source} has no source any more: {error}")
            continue
        if stated[source] != now:
            check = "stale.figures" if source == LAYER else "stale.kernel"
            yield GateRefusal(check, f"the source of {source} changed since it was tried; {INVARIANT.again}")


def _paths(document: Mapping[str, Any]) -> Iterator[GateRefusal]:
    """Whether every path of `moe_layer` and every source of a kernel is there, and nothing twice."""
    names = Counter(each["subject"] for each in document["certificates"])
    for name, count in names.items():
        if count > 1:
            yield GateRefusal("invariant.paths", f"{name} is there {count} times")
        if name not in TOKEN_BYTES:
            yield GateRefusal("invariant.paths", f"{name!r} is the name of no path and of no kernel")
    for backend in sorted({backend for backend, _ in PATHS}):
        if f"layer/{backend}" not in names:
            yield GateRefusal("invariant.paths", f"the path {backend} is not there; {INVARIANT.again}")
    tried = {each["source"] for each in document["certificates"]}
    for name, family in FAMILIES.items():
        excused = family.invariance and family.invariance not in FAMILIES
        if not excused and not {name, family.invariance} & tried:
            yield GateRefusal("invariant.paths", f"no kernel of {name} is there; {INVARIANT.again}")


def _made_of(each: Mapping[str, Any], level: str) -> Iterator[str]:
    """What a certificate is made of, against its subject and the level."""
    room, _, name = each["subject"].partition("/")
    source = LAYER if room == "layer" else name.partition("-")[0]
    if each["source"] != source:
        yield f"says that {each['source']} decides it, and it is {source}"
    if each["rests_on"] != RESTS_ON.get(room):
        yield f"rests {each['rests_on']!r}; needed {RESTS_ON.get(room)!r}"
    most = FEWER.get(each["subject"], SIZES[level][-1])
    if each["sizes"] != (sizes := sorted({min(size, most) for size in SIZES[level]})):
        yield f"batches of {each['sizes']}; the level {level} has {sizes}"
    for key, known in (("neighbours", NEIGHBOURS), ("probes", PROBES), ("ways", each["ways"])):
        if len(set(each[key])) < len(each[key]) or not set(each[key]) <= set(known):
            yield f"{key} that are there twice, or that there are not: {', '.join(each[key])}"
    if absent := [kind for kind in _ALWAYS[level] if kind not in each["neighbours"]]:
        yield f"no neighbours {', '.join(absent)}, which every subject has at the level {level}"


def _command(document: Mapping[str, Any]) -> Iterator[GateRefusal]:
    """A command that does not make such a document."""
    words = document["command"].replace("=", " ").split()
    said = dict(itertools.pairwise(words))
    if words[:2] != ["refmoe", "invariant"]:
        yield GateRefusal("invariant.paths", f"made by {document['command']!r}; needed refmoe invariant")
    if "--subject" in words:
        yield GateRefusal("invariant.paths", f"made by {document['command']!r}, which tries some subjects; needed all")
    for key in ("level", "seed"):
        if said.get(f"--{key}", str(document[key])) != str(document[key]):
            yield GateRefusal(
                "invariant.paths", f"of {key} {document[key]}, and its command says {document['command']!r}"
            )


def _counts(each: Mapping[str, Any]) -> Iterator[str]:
    most = count_cases(each["sizes"], each["neighbours"], each["ways"], each["probes"])
    if not each["cases"] or not each["bytes_compared"]:
        yield f"{each['bytes_compared']:,} bytes compared in {each['cases']:,} cases, which proves nothing"
    elif each["verdict"] == "invariant" and each["cases"] != most:
        yield f"{each['cases']:,} cases, and its sizes, positions, neighbours and ways make {most:,}"
    elif each["cases"] > most:
        yield f"{each['cases']:,} cases until it differed, of {most:,}"
    every = TOKEN_BYTES.get(each["subject"])
    if every is not None and each["bytes_compared"] != every * each["cases"]:
        text = f"{each['bytes_compared']:,} bytes compared in {each['cases']:,} cases"
        yield f"{text}; a token's results have {every:,} bytes, and each case compares them"
    if absent := sorted(LEAST_SIZES - set(each["sizes"])):
        yield f"no batch of {', '.join(map(str, absent))}"
    if "random" not in each["neighbours"] or not each["ways"] or not each["probes"]:
        yield "no neighbour of random numbers, no way or no probe"


def _verdict(each: Mapping[str, Any]) -> Iterator[str]:
    if each["depends"] != DEPENDS.get(each["subject"], ""):
        known = DEPENDS.get(each["subject"])
        yield f"is excused by {each['depends']!r}, and what is known is {known!r}"
    if (each["verdict"] == "depends") != (each["difference"] is not None):
        word = "without a pair that differs" if each["difference"] is None else "with a pair that differs"
        yield f"{each['verdict']}, {word}"


def _difference(each: Mapping[str, Any]) -> Iterator[str]:
    shown = each["difference"]
    if shown is None:
        return
    alone, batched = shown["alone"], shown["batched"]
    if not all(call.startswith(f"{each['subject']}:") for call in (alone, batched)) or ":b1p0:none" not in alone:
        yield f"its pair is {alone!r} and {batched!r}; needed this subject, first alone and then in a batch"
    if alone == batched or shown["first"] == shown["second"] or len(shown["first"]) != len(shown["second"]):
        yield f"its pair has the bytes 0x{shown['first']} and 0x{shown['second']}"
    if not all(re.fullmatch(r"([0-9A-Fa-f]{2})+", shown[key]) for key in ("first", "second")):
        yield f"its pair has {shown['first']!r} and {shown['second']!r}, which are no bytes"
    if shown["elements"] > (most := TOKEN_BYTES.get(each["subject"], shown["elements"])):
        yield f"{shown['elements']:,} elements, and a token's results have {most:,} bytes"
    if not 1 <= shown["differing"] <= shown["elements"] or shown["element"] >= shown["elements"]:
        yield f"{shown['differing']:,} of {shown['elements']:,} elements differ, the first of them {shown['element']:,}"


INVARIANT = Kind(
    "invariant", again="run `refmoe invariant` again", judge=_judge, model=InvariantDocument, version=SCHEMA_VERSION
)
