"""What of `wgmma` is held against a GPU: all of it, and so that a wrong bit would be seen."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.toolchain import PTXAS

from refmoe import ptx
from refmoe.ptx.engine.tensor.descriptor import Descriptor
from refmoe.silicon.conformance import compare_products, multiply_on_executor
from refmoe.silicon.wgmma import (
    CLASSES,
    TARGET,
    InstructionKernel,
    draws,
    entries,
    marked,
    marked_entries,
    module_text_of,
)

ENTRIES = entries()


def test_every_type_and_every_n_is_there() -> None:
    dense = [entry for entry in ENTRIES if not entry.form.sparse]
    floats = [entry.form.n for entry in ENTRIES if entry.form.negates]
    assert set(floats) == set(range(8, 257, 8))
    types = {(entry.form.d, entry.form.a, entry.form.b, entry.form.saturates) for entry in dense}
    assert len(types) == 4 + 2 * 4 + 2 * 4 + 1
    for held in (False, True):
        assert {(e.form.d, e.form.a, e.form.b, e.form.saturates) for e in dense if e.held == held} == types
    assert {(entry.a_sign, entry.b_sign) for entry in dense} == {(1, 1), (1, -1), (-1, 1), (-1, -1)}
    assert {(entry.a_across, entry.b_across) for entry in dense} >= {(False, False), (True, True), (False, True)}
    assert {entry.selector for entry in ENTRIES if entry.form.sparse} == {0, 1}


def test_each_type_has_the_least_and_the_largest_n_and_several_signs() -> None:
    for sparse in (False, True):
        by_type: dict[tuple[str, str, str, bool], list[InstructionKernel]] = {}
        for entry in ENTRIES:
            if entry.form.sparse == sparse:
                form = entry.form
                by_type.setdefault((form.d, form.a, form.b, form.saturates), []).append(entry)
        # Single bits are never sparse.
        assert len(by_type) == 21 - sparse
        for (d, a, *_), found in by_type.items():
            assert {entry.held for entry in found} == {False, True}
            assert {8, 256} < {entry.form.n for entry in found}
            signs = {(entry.a_sign, entry.b_sign) for entry in found}
            assert len(signs) >= (1 if d == "s32" else 3)
            if a in ("f16", "bf16"):
                assert {entry.a_across for entry in found if not entry.held} == {False, True}
                assert {entry.b_across for entry in found} == {False, True}
                assert not sparse or {entry.selector for entry in found} == {0, 1}


def test_operands_lie_in_every_layout() -> None:
    places = [row for entry in ENTRIES for draw in draws(entry) for row in draw.places]
    assert {Descriptor.of(int(b)).width for _, b, _ in places} == {16, 32, 64, 128}
    assert {bool(adds) for _, _, adds in places} == {False, True}
    assert all(len(draws(entry)) == len(CLASSES) for entry in ENTRIES if entry.form.negates)
    bits = [int(row[int(entry.held)]) for entry in marked_entries() for draw in marked(entry) for row in draw.places]
    found = [Descriptor.of(each) for each in bits]
    assert {each.base for each in found} == set(range(8))
    assert {each.width for each in found} == {16, 32, 64, 128}
    # Bits that mean nothing, and offsets that are no multiples of a layout's.
    assert any(each >> 14 & 3 for each in bits)
    assert any(each.leading % 128 for each in found)


def test_draws_are_the_same_each_time() -> None:
    for one, other in zip(draws(ENTRIES[7]), draws(ENTRIES[7]), strict=True):
        for name in ("image", "places", "rows", "sums"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.skipif(PTXAS is None, reason="no ptxas")
@pytest.mark.slow
def test_ptxas_takes_every_kernel(tmp_path: Path) -> None:
    source = tmp_path / "products.ptx"
    source.write_text(module_text_of([*ENTRIES, *marked_entries()]))
    assert PTXAS is not None
    done = subprocess.run([PTXAS, f"-arch={TARGET}", source, "-o", tmp_path / "out"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("entry", [ENTRIES[0], ENTRIES[1], marked_entries()[0]], ids=str)
def test_a_wrong_register_is_counted(entry: InstructionKernel) -> None:
    module = ptx.Module.parse(module_text_of([entry]))
    (draw, *_) = marked(entry) if entry in marked_entries() else draws(entry)
    right = multiply_on_executor(module, "w0", draw)
    assert (right != draw.sums).any()
    wrong = right.copy()
    wrong[1, 2, 37] ^= 1
    assert compare_products("k", [(draw, right)], lambda draw: right).differing == 0
    outcome = compare_products("k", [(draw, wrong)], lambda draw: right)
    assert (outcome.lanes, outcome.differing) == (right.size, 1)
    (example,) = outcome.examples
    assert f"register 2 lane 37: GPU {int(wrong[1, 2, 37]):#x}, executor {int(right[1, 2, 37]):#x}" in example
