"""Certificates of batch invariance: what they are made of, and the faults that they find."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.fp32_values import BF16
from support.selection.thinned import thinned
from typer.testing import CliRunner

import refmoe
from refmoe.batching import Call, Certificate, Subject, certify, subjects
from refmoe.batching.prove import calls_of, token_results
from refmoe.batching.subject import (
    NEIGHBOURS,
    PROBES,
    QUICK_SIZES,
    SIZES,
    Arrays,
    batch_of,
    token_experts,
    token_values,
)
from refmoe.cli import app
from refmoe.errors import ArgumentError
from refmoe.reports import invariant as judged
from refmoe.reports.invariant import DEPENDS, count_cases

K, EXPERTS = 96, 6

Run = Callable[[Arrays, str], Arrays]


def draw(kind: str, seed: int, tokens: int) -> Arrays:
    return {"x": token_values(kind, seed, tokens, K), "ids": token_experts(seed, tokens, EXPERTS, 2)}


def subject(run: Run, **changes: Any) -> Subject:
    return Subject("function/x", draw, run, "as it ran here", experts="ids", **changes)


def floats(batch: Arrays) -> np.ndarray:
    return batch["x"].astype(np.float32)


def chained(rows: np.ndarray, splits: int = 1) -> np.ndarray:
    """FP32 sums of each row: `splits` chains, whose ends are added in order."""
    with np.errstate(all="ignore"):
        ends = [_chain(part) for part in np.split(rows, splits, axis=1)]
        total = ends[0]
        for end in ends[1:]:
            total = total + end
    return total


def _chain(rows: np.ndarray) -> np.ndarray:
    total = np.zeros(len(rows), np.float32)
    for column in rows.T:
        total = total + column
    return total


def sound(batch: Arrays, way: str) -> Arrays:
    """A sum of each token's elements in one order."""
    return {"out": chained(floats(batch))}


# --- planted faults: each depends on the batch in a way that a spot check would miss ---------------------------------


def split_by_size(batch: Arrays, way: str) -> Arrays:
    """Split-K for small batches, as kernels do to fill a GPU."""
    return {"out": chained(floats(batch), 2 if len(batch["x"]) < 8 else 1)}


def split_for_large(batch: Arrays, way: str) -> Arrays:
    """The same from 64 tokens on: no batch of a decode step shows it."""
    return {"out": chained(floats(batch), 2 if len(batch["x"]) >= 64 else 1)}


def shared_scale(batch: Arrays, way: str) -> Arrays:
    """Quantized by the largest element of the batch."""
    x = np.nan_to_num(floats(batch), nan=0, posinf=0, neginf=0)
    largest = np.abs(x).max() or np.float32(1)
    return {"codes": np.rint(x / largest * 127).astype(np.int8)}


def order_by_position(batch: Arrays, way: str) -> Arrays:
    """A token of an odd position is summed from its other end."""
    x = floats(batch)
    x[1::2] = x[1::2, ::-1]
    return {"out": chained(x)}


def leaking_nan(batch: Arrays, way: str) -> Arrays:
    """A mask by 0 * x: what neighbours have that is no number comes through."""
    x = floats(batch)
    mask = np.eye(len(x), dtype=np.float32)
    with np.errstate(all="ignore"):
        mixed = np.einsum("ts,sk->tk", mask, x, optimize=False)
    return {"out": mixed}


def counted_padding(batch: Arrays, way: str) -> Arrays:
    """A mean over rows padded to a multiple of 8."""
    x = floats(batch)
    padded = -(-len(x) // 8) * 8
    return {"out": x / np.float32(padded - len(x) + K)}


def flushed_with_neighbours(batch: Arrays, way: str) -> Arrays:
    """Subnormals are flushed where a neighbour in the same tile of eight has one that is none."""
    x = floats(batch)
    out = x.copy()
    for start in range(0, len(x), 8):
        tile = x[start : start + 8]
        if (np.abs(tile) > 2.0**-126).any():
            out[start : start + 8] = np.where(np.abs(tile) < 2.0**-126, 0, tile)
    return {"out": out}


def expert_order(batch: Arrays, way: str) -> Arrays:
    """The sum of a token's experts begins with the expert that most tokens chose."""
    ids, x = batch["ids"], floats(batch)
    busiest = np.bincount(ids.ravel(), minlength=EXPERTS).argmax()
    halves = np.stack([x[:, : K // 2], x[:, K // 2 :]], axis=1)
    first = np.where(ids[:, 1] == busiest, 1, 0)
    rows = np.arange(len(x))
    with np.errstate(all="ignore"):
        return {"out": chained(np.concatenate([halves[rows, first], halves[rows, 1 - first]], axis=1))}


def wide_tile(batch: Arrays, way: str) -> Arrays:
    """The wide tile adds in two halves; nobody asks it of a batch of one."""
    return {"out": chained(floats(batch), 2 if way == "wide" and len(batch["x"]) > 1 else 1)}


def last_row(batch: Arrays, way: str) -> Arrays:
    """The last row of a full tile of seven loses its last column: an off by one in a guard."""
    x = floats(batch)
    if len(x) % 7 == 0:
        x[-1, -1] = 0
    return {"out": chained(x)}


FAULTS = (
    split_by_size, split_for_large, shared_scale, order_by_position, leaking_nan, counted_padding,
    flushed_with_neighbours, expert_order, last_row,
)  # fmt: skip


@pytest.mark.parametrize("run", FAULTS, ids=lambda run: run.__name__)
def test_a_planted_fault_is_found(run: Run) -> None:
    found = certify(subject(run))
    assert not found.invariant
    assert found.difference is not None
    # The pair is real: both calls, made again from their texts, give what it says.
    alone, batched = (
        token_results(subject(run), Call.read(text)) for text in (found.difference.alone, found.difference.batched)
    )
    name, element = found.difference.array, found.difference.element
    for results, said in ((alone, found.difference.first), (batched, found.difference.second)):
        value = results[name].reshape(-1)[element]
        assert value.tobytes()[::-1].hex().upper() == said
    assert found.difference.first != found.difference.second


def test_a_tile_that_adds_in_another_order_is_found() -> None:
    assert certify(subject(wide_tile, ways=("narrow", "wide"))).difference is not None
    assert certify(subject(wide_tile, ways=("narrow",))).invariant


def test_a_sum_in_one_order_is_invariant() -> None:
    found = certify(subject(sound))
    assert found.invariant
    assert found.cases == len(calls_of(subject(sound)))
    assert found.bytes_compared == 4 * found.cases
    assert str(found).startswith("INVARIANT function/x: the same bytes over ")


def test_the_sign_of_zero_and_the_bits_of_nan_count() -> None:
    def signed(batch: Arrays, way: str) -> Arrays:
        return {"out": np.full(len(batch["x"]), -0.0 if len(batch["x"]) > 8 else 0.0, np.float32)}

    def payload(batch: Arrays, way: str) -> Arrays:
        bits = 0x7FC00000 + (len(batch["x"]) > 8)
        return {"out": np.full(len(batch["x"]), bits, np.uint32).view(np.float32)}

    for run in (signed, payload):
        assert certify(subject(run)).difference is not None


def test_every_size_position_neighbour_and_way_is_tried() -> None:
    calls = calls_of(subject(sound, ways=("a", "b")))
    usual = [call for call in calls if call.way == "a"]
    assert {call.size for call in usual} == {2, 7, 8, 9, 64}
    for size in (2, 7, 8, 9, 64):
        places = {(call.neighbours, call.position) for call in usual if call.size == size}
        assert places == {(kind, place) for kind in NEIGHBOURS for place in {0, size // 2, size - 1}}
    assert {call.probe for call in usual} == set(PROBES)
    assert len(calls) == len(set(calls)) == count_cases((1, 2, 7, 8, 9, 64), list(NEIGHBOURS), ["a", "b"], PROBES)


def test_a_call_is_its_text_and_its_batch_holds_the_probe() -> None:
    made = subject(sound)
    for call in calls_of(made):
        assert Call.read(str(call)) == call
        batch, probe = batch_of(made, call), batch_of(made, call.alone)
        for name, array in probe.items():
            assert batch[name].shape[0] == call.size
            assert batch[name][call.position].tobytes() == array[0].tobytes()
        if call.neighbours == "crowd":
            assert (batch["ids"] == probe["ids"]).all()
        if call.neighbours == "random" and call.size > 1:
            others = np.delete(batch["x"], call.position, axis=0)
            assert len({row.tobytes() for row in others}) == call.size - 1


def test_the_data_bites() -> None:
    """What each kind is for is really in it."""
    kinds = {kind: token_values(kind, 7, 8, 2880).astype(np.float32) for kind in NEIGHBOURS}
    assert np.isnan(kinds["special"]).any()
    assert {np.inf, -np.inf} <= set(kinds["special"].ravel().tolist())
    assert (kinds["zeros"] == 0).all()
    assert 0.4 < np.signbit(kinds["zeros"]).mean() < 0.6
    assert (np.abs(kinds["tiny"]) < 2.0**-126).mean() > 0.9
    assert np.count_nonzero(kinds["tiny"])
    assert np.abs(kinds["huge"]).max() > 2.0**126
    assert (kinds["mirrored"][:, :1440] == kinds["mirrored"][:, 1440:]).all()


@pytest.mark.parametrize(
    "text",
    ["", "x", "layer/x:random:b2p2:random:seed7", "layer/x:odd:b2p0:random:seed7", "layer/x:random:b2p0:none:seed7"],
)
def test_what_is_no_call_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="call: found"):
        Call.read(text)


# --- paths and kernels -----------------------------------------------------------------------------------------------


#: Of each kind of path one, and the kernels whose runs are cheap.
CHEAP = ("layer/cutlass-fused", "kernel/mxfp8_quantize", "kernel/expand-mxfp8", "kernel/finalize", "kernel/activation")


@pytest.mark.parametrize("name", thinned(CHEAP, 6))
def test_a_path_and_a_kernel_do_not_depend_on_the_batch(name: str) -> None:
    assert certify(subjects()[name], "quick").invariant


@pytest.mark.parametrize(
    "name", thinned(["layer/dp4a", "layer/llama_cpp", "layer/llama_cpp-q8_1", "kernel/dp4a_gemv"], 2)
)
def test_what_depends_on_the_batch_is_seen_to(name: str) -> None:
    """llama.cpp's rule of warps: 7 tokens add in another order than 1. The reference and the kernel both show it."""
    found = certify(subjects()[name], "quick")
    assert not found.invariant
    assert found.expected
    assert "b7" in str(found.difference)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(subjects()))
def test_every_path_and_kernel_is_as_it_is_known_to_be(name: str) -> None:
    assert certify(subjects()[name], "quick").expected


def test_a_fault_in_a_path_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finalize takes its weights in BF16, where the batch is no multiple of 8."""
    from refmoe.reference.moe import paths

    usual = paths.finalize

    def rounded(rows: Any, maps: Any, weights: Any, **options: Any) -> Any:
        fits = len(weights) % 8 == 0 or len(weights) == 1
        return usual(rows, maps, weights if fits else weights.astype(BF16).astype(np.float32), **options)

    wide = partial(draw_wide, 3)
    plain = replace(subjects()["layer/cutlass-fused"], draw=wide, run=run_wide)
    assert certify(plain, "quick").invariant
    monkeypatch.setattr(paths, "finalize", rounded)
    assert certify(plain, "quick").difference is not None


def draw_wide(top_k: int, kind: str, seed: int, tokens: int) -> Arrays:
    from refmoe.batching.layers import draw_routed

    return draw_routed(64, 6, top_k, kind, seed, tokens)


def run_wide(batch: Arrays, way: str) -> Arrays:
    from support.moe import random_layer

    from refmoe.reference.moe import moe_layer

    layer = random_layer(np.random.default_rng(7))
    routed = {"topk_ids": batch["ids"], "topk_weights": batch["weights"]}
    return {"out": moe_layer(batch["x"], layer, quantization="fused", **routed)}


# --- functions -------------------------------------------------------------------------------------------------------

TOKENS = np.random.default_rng(7).standard_normal((40, 96)).astype(np.float32)


def test_a_function_of_ones_own() -> None:
    assert refmoe.invariant(lambda x: x * 2, TOKENS)
    found = refmoe.invariant(lambda x: x - x.mean(axis=0), TOKENS)
    assert isinstance(found, Certificate)
    assert not found
    assert found.difference is not None
    assert found.difference.batched.startswith("function/lambda:random:b2p0:random:way=0")


def test_several_arrays_tuples_mappings_and_ways() -> None:
    def routed(x: np.ndarray, ids: np.ndarray, tile: int = 8) -> dict[str, np.ndarray]:
        return {"x": x * ids[:, None], "rows": np.add.reduce(x.reshape(len(x), tile, -1), axis=1)}

    ids = np.arange(40, dtype=np.int32)
    assert refmoe.invariant(routed, {"x": TOKENS, "ids": ids})
    differs = refmoe.invariant(routed, {"x": TOKENS, "ids": ids}, ways=({"tile": 8}, {"tile": 8}))
    assert differs.invariant
    assert refmoe.invariant(lambda x: (x, x[:, ::-1]), TOKENS)
    two = refmoe.invariant(lambda x, order=1: x[:, ::order].cumsum(axis=1)[:, -1], TOKENS, ways=({}, {"order": -1}))
    assert two.difference is not None


def test_a_part_of_what_is_returned() -> None:
    """Scales in 128x4: a token's bytes lie apart."""
    from refmoe.reference.layout import swizzle_scales, unswizzle_scales

    x = token_values("random", 7, 40, 96)

    def quantized(x: np.ndarray) -> Any:
        made = refmoe.quantize(x, "mxfp8")
        return made.codes, swizzle_scales(made.scales, "128x4"), len(x)

    def mine(made: Any, position: int) -> np.ndarray:
        codes, scales, tokens = made
        return np.concatenate([codes[position], unswizzle_scales(scales, (tokens, 3), "128x4")[position]])

    assert refmoe.invariant(quantized, x, result=mine)


def test_a_registered_kernel() -> None:
    @refmoe.testing.kernel("mxfp8_quantize", arrays="numpy")
    def mine(x):  # type: ignore[no-untyped-def]
        made = refmoe.quantize(x, "mxfp8")
        return made.codes, made.scales

    found = refmoe.invariant(mine, token_values("random", 7, 40, 96))
    assert found.invariant
    assert found.subject == "function/mine"


@pytest.mark.parametrize(
    ("tokens", "options", "words"),
    [
        ({}, {}, "tokens: found none"),
        (np.zeros((0, 4)), {}, "tokens: found"),
        ({"x": TOKENS, "y": TOKENS[:3]}, {}, "as many tokens each"),
        (TOKENS, {"kinds": ("odd",)}, "kinds: found odd"),
        (TOKENS, {"sizes": ()}, "sizes: found"),
    ],
)
def test_wrong_arguments_are_refused(tokens: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        refmoe.invariant(lambda x: x, tokens, **options)


def test_results_that_do_not_count_tokens_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"run: found out \[\] for 1 tokens"):
        refmoe.invariant(lambda x: x.sum(), TOKENS)


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_and_its_document(tmp_path: Any) -> None:
    path = tmp_path / "invariant.json"
    names = ("--subject", "kernel/finalize", "--subject", "kernel/dp4a_gemv", "--level", "quick", "--report", str(path))
    found = CliRunner().invoke(app, ["invariant", *names])
    assert found.exit_code == 0, found.output
    assert "INVARIANT kernel/finalize: the same bytes over " in found.output
    assert "DEPENDS kernel/dp4a_gemv (known: " in found.output
    document = json.loads(path.read_text())
    assert document["passed"]
    (differs,) = [each["difference"] for each in document["certificates"] if each["verdict"] == "depends"]
    hashes = set()
    for call in (differs["alone"], differs["batched"]):
        made = CliRunner().invoke(app, ["invariant", "--call", call, "--json"])
        assert made.exit_code == 0, made.output
        hashes.add(json.loads(made.output)["sha256"])
    assert len(hashes) == 2
    for wrong in (["--call", "x"], ["--subject", "kernel/none"], ["--level", "deep"]):
        assert CliRunner().invoke(app, ["invariant", *wrong]).exit_code == 2


def test_only_what_is_known_to_depend_may() -> None:
    assert set(DEPENDS) <= set(subjects())
    assert {name for name, each in subjects().items() if each.depends} == set(DEPENDS)


def test_the_gate_knows_what_a_certificate_is_made_of() -> None:
    assert judged.SIZES == {"default": SIZES, "quick": QUICK_SIZES}
    assert (*NEIGHBOURS, "none") == judged.NEIGHBOURS
    assert judged.PROBES == PROBES
    for each in subjects().values():
        assert judged.RESTS_ON[each.name.partition("/")[0]] == each.rests_on
        assert min(each.most, SIZES[-1]) == judged.FEWER.get(each.name, SIZES[-1])
    assert judged.TOKEN_BYTES.keys() == subjects().keys()


@pytest.mark.parametrize("name", [name for name in subjects() if name.startswith("layer/")])
def test_the_gate_knows_how_many_bytes_a_token_of_a_layer_has(name: str) -> None:
    each = subjects()[name]
    results = token_results(each, Call(name, "random", 1, 0, "none", each.ways[0], 7))
    assert sum(array.nbytes for array in results.values()) == judged.TOKEN_BYTES[name]
