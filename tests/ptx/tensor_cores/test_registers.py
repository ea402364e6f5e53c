"""`setmaxnreg` moves registers between the warps of a block: who asks for more than there are waits for ever."""

from __future__ import annotations

import numpy as np
import pytest
from support.tensor_cores.register_roles import CASES

from refmoe import ptx
from refmoe.ptx.engine.tensor.register_pool import registers_at_start


def launch(name: str, schedule: int, grid: int = 1) -> None:
    case = CASES[name]
    module = ptx.Module.parse(case.text(), name="roles")
    out = ptx.Buffer(np.zeros(1, np.uint32), "out")
    checks = ptx.Checks(races=grid == 1)  # each block writes the word
    ptx.launch(module, "k", (grid, 1, 1), (case.threads, 1, 1), [out], schedule=ptx.Schedule(schedule), checks=checks)


@pytest.mark.parametrize("schedule", [0, 3])
@pytest.mark.parametrize("name", CASES)
def test_who_waits_for_ever_on_a_chip_is_found(name: str, schedule: int) -> None:
    if not CASES[name].waits:
        launch(name, schedule)
        return
    with pytest.raises(ptx.Deadlock, match="waits for registers that nobody gives back"):
        launch(name, schedule)


def test_the_finding_says_what_there_is_and_what_is_asked_for() -> None:
    with pytest.raises(ptx.Deadlock) as caught:
        launch("512 of 504", 0)
    (sentence,) = caught.value.waiting
    assert "block (0, 0, 0) thread (" in sentence
    assert "setmaxnreg.inc.sync.aligned.u32 240" in sentence
    assert "ask for 65,536 in all, and began with 64,512, 168 for each of 384 threads" in sentence
    assert "(.minnctapersm 1 and .maxntid 384, 1, 1)" in sentence


def test_every_block_has_a_pool_of_its_own() -> None:
    launch("512 of 512", 0, grid=5)
    with pytest.raises(ptx.Deadlock, match="began with 65,536"):
        launch("528 of 512", 0, grid=5)


@pytest.mark.parametrize(
    ("directives", "expected"),
    [
        ({}, None),
        ({"maxntid": (384,)}, None),
        ({"maxntid": (384, 1, 1), "minnctapersm": (1,)}, 168),
        ({"maxntid": (16, 8, 3), "minnctapersm": (1,)}, 168),
        ({"reqntid": (128,), "minnctapersm": (2,)}, 256),
        ({"maxntid": (1024,), "minnctapersm": (2,)}, 32),
        # As `ptxas -v` has it: each part of a multiprocessor has a fourth of the warps, rounded up.
        ({"maxntid": (288,), "minnctapersm": (1,)}, 168),
        ({"maxntid": (416,), "minnctapersm": (1,)}, 128),
        ({"maxntid": (544,), "minnctapersm": (1,)}, 96),
        ({"maxntid": (160,), "minnctapersm": (2,)}, 168),
        ({"maxnreg": (168,)}, 168),
        ({"maxnreg": (165,)}, 168),
        ({"maxnreg": (255,), "maxntid": (512,), "minnctapersm": (1,)}, 128),
        ({"maxnreg": (64,), "maxntid": (512,), "minnctapersm": (1,)}, 64),
    ],
)
def test_registers_at_the_start(directives: dict[str, tuple[int, ...]], expected: int | None) -> None:
    found = registers_at_start(directives)
    assert (found and found[0]) == expected
