"""What the gate draws again of a run of drift is what the run draws."""

from __future__ import annotations

from typing import Any

import pytest

from refmoe.drift.document import _checkpoint
from refmoe.drift.inputs import TINY, TINY_DEEPSEEK, WEIGHTS, draw_prompts, open_or_write
from refmoe.reports import drawn


def document(weights: str, **changes: Any) -> dict[str, Any]:
    with open_or_write(None, 3, weights) as opened:
        checkpoint = _checkpoint(opened, tiny=True)
    run = {"point": {"batch": 2}, "prompts": draw_prompts(256, 2, 5, 3).tolist(), "tokens": [[1, 2], [3, 255]]}
    command = f"refmoe drift --seed 3 --steps 2 --weights {weights}"
    made = {"command": command, "seed": 3, "steps": 2, "checkpoint": checkpoint, "runs": [run]}
    return {**made, **changes}


@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_random_checkpoint_and_its_prompts_are_drawn_again(weights: str) -> None:
    assert list(drawn.drawn_refusals(document(weights))) == []
    other = next(each for each in WEIGHTS if each != weights)
    said = f"refmoe drift --seed 3 --steps 2 --weights {other}"
    assert any("of a random checkpoint with" in text for text in drawn.drawn_refusals(document(weights, command=said)))


def test_sizes_are_those_of_drift() -> None:
    assert drawn.TINY_GPT_OSS == TINY
    assert drawn.TINY_DEEPSEEK == TINY_DEEPSEEK
    assert tuple(drawn.WRITTEN) == WEIGHTS


def test_a_checkpoint_and_prompts_that_were_given_are_not_drawn() -> None:
    given = document("mxfp4", command="refmoe drift --seed=3 --steps=2 --checkpoint=x --prompt '1,2;3,4'")
    given["checkpoint"] |= {"name": "x", "sha256": None}
    given["runs"][0]["prompts"] = [[1, 2], [3, 4]]
    assert list(drawn.drawn_refusals(given)) == []
    (text,) = drawn.drawn_refusals({**given, "command": "refmoe drift --seed 3 --steps 2 --prompt '1,2;3,4'"})
    assert text == "of the checkpoint 'x', and its command names none"
