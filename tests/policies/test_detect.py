"""Which policy made these bytes: every policy of ours, by the scalar specification, and what cannot be told apart."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from support.mx_blocks import INPUTS
from support.policy_data import FILLS, adversarial, gaussian, real, slow, stored
from support.selection.thinned import thinned

from refmoe.errors import ArgumentError
from refmoe.policies import detect_policy, rule_named, rules, split_gguf_blocks
from refmoe.policies.blocks import BLOCKS_A_CHUNK, KINDS, InputBlocks
from refmoe.policies.inputs import read_input
from refmoe.policies.witness import find_witness
from refmoe.reference import quantize, quantize_mxfp4, quantize_mxfp8, swizzle_scales

SPECIFIED = {format: [rule.name for rule in rules(format) if "@" not in rule.name] for format in ("mxfp8", "mxfp4")}
EVERY = [(format, name) for format, names in SPECIFIED.items() for name in names]


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize(("format", "name"), EVERY)
def test_bytes_of_the_specification_name_its_policy_and_those_that_agree(format: str, name: str, dtype: str) -> None:
    """On adversarial blocks; the rules that agree are counted by the specification too, none more and none less."""
    defined, codes, scales = slow(dtype, format, name)
    x = np.ascontiguousarray(adversarial(dtype)[defined])
    found = detect_policy(x, stored(codes[defined], format), scales[defined], format)
    assert found.verdict == "exact"
    assert set(rule_named(name, format).names) <= set(found.names)

    agree = {}
    for other in SPECIFIED[format]:
        theirs, their_codes, their_scales = slow(dtype, format, other)
        both = defined & theirs
        if both.any() and (codes == their_codes)[both].all() and (scales == their_scales)[both].all():
            agree[other] = int((defined & ~theirs).sum())
    assert {match.rule.name: match.undefined for match in found.matches if "@" not in match.rule.name} == agree


@pytest.mark.parametrize("fill", thinned(FILLS, 6))
@pytest.mark.parametrize(("format", "name"), EVERY)
def test_every_policy_is_named_on_every_fill(format: str, name: str, fill: str) -> None:
    x = read_input(f"{fill}:m16k416").x.reshape(-1, 32)
    made = rule_named(name, format).run(InputBlocks(x, format))
    x = np.ascontiguousarray(x[made.defined])
    assert len(x), "a fill of which the policy defines no block tests nothing"
    found = detect_policy(x, stored(made.codes[made.defined], format), made.scales[made.defined], format)
    assert found.verdict == "exact"
    assert name in found.names


@pytest.mark.parametrize(("format", "name"), EVERY)
def test_every_policy_is_named_on_real_activations(format: str, name: str) -> None:
    """Whose blocks are all ordinary: the mode is told, the edges cannot be, and gguf is alone."""
    made = rule_named(name, format).run(InputBlocks(real().reshape(-1, 32), format))
    found = detect_policy(real(), stored(made.codes, format), made.scales)
    assert found.kinds["ordinary"] == 3072
    mode = name.split("/")[0]
    assert {match.rule.name.split("/")[0].replace("torchao_", "").split("@")[0] for match in found.matches} == {mode}
    assert name in found.names
    assert all(ambiguity.witness is not None for ambiguity in found.ambiguities)


@pytest.mark.parametrize("format", ["mxfp8", "mxfp4"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_edges_agree_on_ordinary_blocks_and_only_deepgemm_parts_on_small_ones(format: str, dtype: str) -> None:
    sources = [adversarial(dtype)]
    if dtype != "fp32":
        sources += [read_input(f"{fill}:{dtype}:m32k416").x.reshape(-1, 32) for fill in (*FILLS, "scale-bytes")]
    blocks = InputBlocks(np.concatenate(sources), format)
    by_mode: dict[str, list] = {}
    for rule in rules(format):
        if rule.name != "gguf":
            by_mode.setdefault(rule.policy.mode.value, []).append((rule, rule.run(blocks)))
    ordinary, small = (blocks.kind == KINDS.index(kind) for kind in ("ordinary", "small"))
    assert ordinary.any()
    for (_, first), *others in by_mode.values():
        for rule, made in others:
            same = (made.codes == first.codes).all(axis=1) & (made.scales == first.scales) | ~made.defined
            # torchao's log2 in FP32 leaves a few ordinary maxima open.
            assert made.defined[ordinary].all() or (dtype == "fp32" and rule.name == "torchao_rceil@0.18")
            assert same[ordinary].all(), rule.name
            assert same[small].all() or "deepgemm" in rule.name
    if format == "mxfp8" and dtype == "bf16":
        assert small.any()
        assert not same_scales(blocks, "rceil/deepgemm", "rceil/exact")[small].all()


def same_scales(blocks: InputBlocks, first: str, second: str) -> np.ndarray:
    one, other = (rule_named(name, blocks.format).run(blocks) for name in (first, second))
    return one.scales == other.scales


@pytest.mark.parametrize(("format", "name"), EVERY)
@pytest.mark.parametrize("dtype", thinned(INPUTS, 4))
def test_a_block_is_undefined_where_the_quantizer_refuses_it(format: str, name: str, dtype: str) -> None:
    blocks = InputBlocks(adversarial(dtype), format)
    quantizer = quantize_mxfp8 if format == "mxfp8" else quantize_mxfp4
    refused = []
    for row in blocks.x:
        try:
            if name == "gguf":
                quantize(row[None], "mxfp4", policy="gguf")
            else:
                mode, edge = name.split("/")
                quantizer(row[None], mode=mode, edge=edge)
            refused.append(False)
        except ArgumentError:
            refused.append(True)
    np.testing.assert_array_equal(rule_named(name, format).run(blocks).defined, ~np.array(refused))


def test_aliases_are_one_rule_and_rules_are_distinct() -> None:
    assert rule_named("ocp", "mxfp8") is rule_named("torchao_floor", "mxfp8") is rule_named("floor", "mxfp8")
    assert rule_named("flashinfer", "mxfp4") is rule_named("rceil/flashinfer", "mxfp4")
    assert len(rules("mxfp8")) == 6 * 4 + 4
    assert len(rules("mxfp4")) == 6 * 3 + 1 + 4


@pytest.mark.parametrize("format", ["mxfp8", "mxfp4"])
def test_some_block_tells_any_two_policies_apart(format: str) -> None:
    """And it does so by the specification too."""
    dtype = np.dtype(np.float32)
    for first in rules(format):
        for second in rules(format):
            if first is not second:
                witness = find_witness(first, second, dtype, format)
                assert witness is not None, (first, second)
                assert witness.first != witness.second
                x = np.array([witness.values], np.float32)
                one, other = (rule.run(InputBlocks(x, format)) for rule in (first, second))
                assert one.defined.all()
                assert other.defined.all()
                assert (one.codes != other.codes).any() or (one.scales != other.scales).any()


def test_undefined_blocks_are_counted_and_leave_a_match() -> None:
    """llama.cpp says nothing of a block with an infinity: whatever it holds, the rest names it."""
    x = gaussian()
    x[3, 40] = np.inf
    x[5, 0] = np.nan
    rule = rule_named("llama_cpp_cuda", "mxfp4")
    made = rule.run(InputBlocks(x.reshape(-1, 32), "mxfp4"))
    found = detect_policy(x, stored(made.codes, "mxfp4"), made.scales)
    assert found.verdict == "exact where defined"
    assert found.names == ("round_log2/llama_cpp_cuda", "llama_cpp_cuda")
    assert found.matches[0].undefined == 1


def test_the_first_difference_has_block_coordinates_beyond_the_first_chunk() -> None:
    x = gaussian(600, 1024)
    assert x.size // 32 > BLOCKS_A_CHUNK
    made = quantize_mxfp8(x, mode="even")
    codes, scales = made.codes.copy(), made.scales.copy()
    codes[590, 1000] ^= 1
    scales[591, 3] += 1
    found = detect_policy(x, codes, scales)
    assert found.verdict == "none"
    nearest = found.nearest[0]
    assert nearest.rule.name == "even/exact"
    assert (nearest.differing, nearest.scales, nearest.codes) == (2, 1, 1)
    assert nearest.first_code is not None
    assert nearest.first_scale is not None
    assert (nearest.first_code.row, nearest.first_code.block, nearest.first_code.lane) == (590, 31, 8)
    assert nearest.first_code.text.startswith("codes[590, 1000]  block (590, 31) lane 8: found 0x")
    assert (nearest.first_scale.row, nearest.first_scale.block, nearest.first_scale.lane) == (591, 3, None)
    assert found.hypotheses == ()


def test_differences_on_edge_blocks_alone_leave_the_mode_named() -> None:
    x = read_input("specials:m16k416").x
    made = quantize_mxfp8(x, mode="ceil", edge="exact")
    kind = InputBlocks(x.reshape(-1, 32), "mxfp8").kind
    codes = made.codes.reshape(-1, 32).copy()
    codes[kind == KINDS.index("nan")] ^= 0x55
    found = detect_policy(x, codes, made.scales)
    assert found.verdict == "none"
    assert {rule.policy.mode.value for rule in found.ordinary} == {"ceil"}
    assert set(found.nearest[0].by_kind) == {"nan"}


@pytest.mark.parametrize("layout", ["linear", "128x4", "8x4"])
def test_layouts_and_packings_are_read(layout: str) -> None:
    x = gaussian(130, 416)
    made = quantize(x, "mxfp4", policy="gguf")
    scales = swizzle_scales(made.scales, layout, fill=0xEE)
    assert detect_policy(x, made.codes, scales, layout=layout).names == ("gguf",)
    low, high = made.codes.reshape(-1, 2, 8) & 15, made.codes.reshape(-1, 2, 8) >> 4
    elements = np.stack([low, high], axis=-1).reshape(-1, 2, 16)
    packed = elements[:, 0] | elements[:, 1] << 4
    assert detect_policy(x, packed, scales, layout=layout, packing="gguf").names == ("gguf",)
    gguf = np.concatenate([made.scales.reshape(-1, 1), packed], axis=1)
    codes, linear = split_gguf_blocks(gguf)
    assert detect_policy(x, codes, linear, packing="gguf").names == ("gguf",)


X, Q = gaussian(), quantize_mxfp8(gaussian())
REFUSALS = [
    ({"x": X.astype(np.float64)}, r"x: found float64 \[8, 416\]; needed an array of"),
    ({"x": X[:, :400].copy()}, "a multiple of 32"),
    ({"x": X[:0]}, "at least one element"),
    ({"x": np.asfortranarray(X)}, "not contiguous"),
    ({"codes": Q.codes.astype(np.int16)}, "codes: found int16"),
    ({"codes": Q.codes[:, :-1].copy()}, r"found 3320 bytes; needed 3328 \(mxfp8\) or 1664 \(mxfp4\)"),
    ({"codes": Q.codes.T}, "codes: found .* that is not contiguous"),
    ({"format": "mxfp4"}, "found 3328 bytes; needed 1664 for 3328 elements of mxfp4"),
    ({"format": "nvfp4"}, "needed mxfp8 or mxfp4"),
    ({"scales": Q.scales[:-1].copy()}, "found 91 bytes; needed 104 for 8 x 13 scales in the layout linear"),
    ({"scales": np.zeros(128, np.uint8)}, "found 128 bytes, which is the size of 8x4; needed 104"),
    ({"layout": "4x4"}, "needed one of 128x4, 8x4, linear"),
    ({"packing": "odd"}, "even-low or gguf"),
    ({"packing": "gguf"}, "gguf for mxfp8"),
]


@pytest.mark.parametrize(("change", "message"), REFUSALS)
def test_what_cannot_be_is_refused(change: dict, message: str) -> None:
    arguments = {"x": X, "codes": Q.codes, "scales": Q.scales, **change}
    with pytest.raises(ArgumentError, match=message):
        detect_policy(**arguments)


def test_gguf_blocks_are_whole() -> None:
    with pytest.raises(ArgumentError, match="found 18 bytes; needed a multiple of 17"):
        split_gguf_blocks(np.zeros(18, np.uint8))


def test_bf16_input_of_an_fp32_tensor_is_another_input() -> None:
    x = gaussian(dtype=np.float32)
    made = quantize_mxfp8(x.astype(ml_dtypes.bfloat16), mode="rceil")
    found = detect_policy(x, made.codes, made.scales)
    assert found.verdict == "none"
    assert found.hypotheses[0].fault == "the input was rounded to BF16 first"
    assert found.hypotheses[0].left == 0
