"""Every pair (amax, element): what the blocks hold, what is expected of them, and that a wrong byte is seen."""

from __future__ import annotations

import numpy as np
import pytest
from support.selection.thinned import thinned

from refmoe.cuda.device import open_device
from refmoe.errors import ArgumentError
from refmoe.exhaustive import pieces
from refmoe.exhaustive.definition import Definition, definition
from refmoe.exhaustive.pairs import LEAST_BLOCKS, Domain, Maker, batches
from refmoe.exhaustive.pieces import RANGES, SUBJECTS, Piece, do_piece, list_pieces, ranges
from refmoe.formats import FORMATS, as_mx_format
from refmoe.policy import EdgePolicy, ScaleMode
from refmoe.reference.scalar.numbers import decode
from refmoe.reference.scalar.quantize import quantize_block
from refmoe.reports import exhaustive
from refmoe.reports.exhaustive import all_pairs

EMPTY = Definition(np.zeros((2, 32769), np.uint8), np.zeros((2, 32769), np.int32), np.zeros((1, 65536), np.uint8))


@pytest.mark.parametrize(("dtype", "edge"), [("bf16", "exact"), ("fp16", "transformer_engine"), ("bf16", "deepgemm")])
@pytest.mark.parametrize("amax", [0, 1, 31, 2000, 0x7BFF, 0x7C00, 0x7F7F, 0x7F80, 0x7F81, 0x7FFF])
def test_an_amax_meets_all_its_elements_at_every_position_with_both_signs(dtype: str, edge: str, amax: int) -> None:
    domain = Domain.of(dtype, edge)
    infinity = FORMATS[dtype].infinity_code
    pattern = np.arange(1 << 16)
    magnitude = pattern & 0x7FFF
    beside = (magnitude <= amax) | (magnitude > infinity) if amax <= infinity else magnitude <= amax
    if edge != "exact":
        beside &= magnitude != infinity
    if edge == "deepgemm":
        beside &= magnitude < infinity
    defined = beside[amax]
    assert domain.pairs(amax) == (beside.sum() if defined else 0)
    if not defined:
        assert domain.blocks(amax) == 0
        return
    elements = Maker(domain, EMPTY).blocks(amax).elements
    assert len(elements) == domain.blocks(amax) >= LEAST_BLOCKS
    found = np.zeros(1 << 16, np.bool_)
    number = np.arange(len(elements))
    place = (number + amax) % 32
    top = elements[number, place]
    assert (top & 0x7FFF == amax).all()
    assert {(int(at), int(each) >> 15) for at, each in zip(place, top, strict=True)} == {
        (at, sign) for at in range(32) for sign in (0, 1)
    }
    others = elements.copy()
    others[number, place] = others[number, (place + 1) % 32]
    found[others] = True
    assert (found == beside).all()


def test_an_element_comes_to_every_position() -> None:
    maker = Maker(Domain.of("bf16", "exact"), EMPTY)
    seen = np.zeros(32, np.bool_)
    for amax in range(20000, 20032):
        seen |= (maker.blocks(amax).elements == 0x1234).any(axis=0)
    assert seen.all()


@pytest.mark.parametrize("edge", [edge.value for edge in EdgePolicy])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_pairs_are_as_many_as_the_report_says(dtype: str, edge: str) -> None:
    domain = Domain.of(dtype, edge)
    assert sum(map(domain.pairs, range(1 << 15))) == all_pairs(dtype, edge)
    assert all_pairs("bf16", "exact") > 2**30
    cut = ranges(domain)
    assert len(cut) == RANGES
    assert [amax for first, last in cut for amax in range(first, last + 1)] == list(range(1 << 15))


@pytest.mark.parametrize(
    ("format", "mode", "edge"),
    thinned(
        [("mxfp8", "ceil", "deepgemm"), ("mxfp8", "floor", "flashinfer"), ("mxfp4", "round_log2", "llama_cpp_cuda")], 2
    ),
)
def test_blocks_are_what_the_definition_makes_of_each_alone(format: str, mode: str, edge: str) -> None:
    maker = Maker(Domain.of("fp16", edge), definition("fp16", format, mode, edge))
    element = as_mx_format(format).element
    for amax in (0, 3, 0x400, 0x5555, 0x7BFF, 0x7C00, 0x7E01):
        if not maker.domain.has(amax):
            continue
        made = maker.blocks(amax)
        for block in {0, 1, len(made.scales) // 2, len(made.scales) - 1}:
            numbers = [decode(int(bits), FORMATS["fp16"]) for bits in made.elements[block]]
            asked = quantize_block(numbers, element, ScaleMode(mode), EdgePolicy(edge))
            assert (asked.scale, asked.codes) == (made.scales[block], tuple(made.codes[block]))


def test_a_short_last_batch_is_filled_with_copies() -> None:
    maker = Maker(Domain.of("bf16", "exact"), EMPTY)
    made = [(batch.elements.copy(), used) for batch, used in batches(maker, range(3), 80)]
    assert [used for _, used in made] == [80, 80, 3 * LEAST_BLOCKS - 160]
    last, used = made[-1]
    assert (last[used:] == np.resize(last[:used], (80 - used, 32))).all()


@pytest.mark.parametrize("name", thinned(SUBJECTS, 2))
def test_a_subject_passes_a_thin_slice_and_a_wrong_byte_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_device("ptx")
    piece = Piece(SUBJECTS[name], "fp16", "rceil", "exact", 20000, 20001)
    result = do_piece(piece, device)
    assert result["differing"] == 0
    assert result["pairs"] == sum(map(piece.domain.pairs, piece.amaxes))
    table = definition("fp16", piece.subject.format, "rceil", "exact")
    codes, scales = table.codes.copy(), table.scales.copy()
    codes[table.rows[0, 20000 + 1], 0x8123] ^= 1
    wrong = Definition(table.scales, table.rows, codes)
    monkeypatch.setattr(pieces, "definition", lambda *_: wrong)
    first = do_piece(piece, device)["first"]
    assert (first["output"], first["element"], first["amax"]) in [("codes", 0x8123, 20000), ("codes", 0x8123, 20001)]
    scales[0, 20001 + 1] += 1
    wrong = Definition(scales, table.rows, table.codes)
    first = do_piece(piece, device)["first"]
    assert (first["output"], first["amax"], first["expected"] - first["found"]) == ("scales", 20001, 1)


def test_names_of_pieces_are_read_back() -> None:
    for piece in list_pieces(["reference", "expand.8x4"], ["fp16"]):
        assert Piece.parse(str(piece)) == piece
    good = "expand.8x4:bf16:rceil/exact:0000-1fff"
    for part, other, needed in [
        ("expand.8x4", "expand.linear", "one of mxfp8_quantize.linear"),
        ("bf16", "fp32", "bf16, fp16"),
        ("rceil", "even", "rceil/exact"),
        ("0000-1fff", "1fff-0000", "FIRST <= LAST"),
        (":", ";", "SUBJECT:DTYPE"),
    ]:
        with pytest.raises(ArgumentError, match=needed):
            Piece.parse(good.replace(part, other, 1))
    with pytest.raises(ArgumentError, match="one of bf16, fp16"):
        list_pieces([], ["fp32"])
    with pytest.raises(ArgumentError, match=r"mxfp8_quantize\.8x4"):
        list_pieces(["gemm"])


def test_the_gate_knows_every_subject() -> None:
    assert set(SUBJECTS) == exhaustive.SUBJECTS
