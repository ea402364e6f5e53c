"""A run of `refmoe drift` again: its prompts and its random checkpoint follow from the seed, and so does all else."""

from __future__ import annotations

import argparse
import functools
import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from refmoe.drift.document import drift_document
from refmoe.drift.inputs import draw_prompts, open_or_write, parse_prompts, parse_sweeps, sweep_points
from refmoe.drift.paths import DEEPSEEK_PATHS, DEFAULT_PATHS, NVFP4_PATHS, named_paths
from refmoe.drift.run import MODES, run_drift
from refmoe.errors import RefmoeError
from refmoe.recomputed.values import partings
from refmoe.reports.checks import GateRefusal, first_and_count

#: What tells of the run and not of what it found.
_OF_THE_RUN = frozenset(("created", "command", "environment", "seconds", "digest"))


def refusals(document: Mapping[str, Any]) -> Iterator[GateRefusal]:
    """Figures and hashes that the command does not give. A checkpoint of the user's own is not read."""
    if any(word.partition("=")[0] == "--checkpoint" for word in shlex.split(document["command"])):
        return
    try:
        found = again(document["command"])
    except (RefmoeError, ValueError) as error:
        yield GateRefusal("drift.recomputed", f"made by {document['command']!r}, which cannot run: {error}")
        return
    said = {key: value for key, value in document.items() if key not in _OF_THE_RUN}
    yield from first_and_count("drift.recomputed", partings(_exact(said), _exact(found)))


def _exact(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document without what a path in float64 found: a processor's own order of sums decides its last bits."""
    loose = {path["name"] for path in document["paths"] if path["arithmetic"] is None}
    runs = [
        {
            **run,
            "tokens": run["tokens"] if document["base"] not in loose else [],
            "comparisons": [one for one in run["comparisons"] if not loose & {one["base"], one["path"]}],
            "bits": [each for each in run["bits"] if each["path"] not in loose],
        }
        for run in document["runs"]
    ]
    # The base's tokens are what every path is given.
    return {**document, "runs": runs if document["base"] not in loose else []}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _options() -> _Parser:
    """The options of the command, see `refmoe.cli.drift`."""
    parser = _Parser(prog="refmoe drift", add_help=False, allow_abbrev=False)
    for name in ("paths", "policies", "base", "prompt", "report", "plot"):
        parser.add_argument(f"--{name}")
    for name in ("batch", "prompt-length"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--mode", choices=(*MODES, "both"), default="both")
    parser.add_argument("--weights", default="mxfp4")
    parser.add_argument("--sweep", action="append", default=[])
    parser.add_argument("--json", action="store_true")
    return parser


@functools.lru_cache(maxsize=4)
def again(command: str) -> dict[str, Any]:
    """What a document of the command has beside when and where it was made.

    Raises:
        RefmoeError: the command refuses its options.
        ValueError: it has no such option.
    """
    words = shlex.split(command)
    if words[:2] != ["refmoe", "drift"]:
        raise ValueError("needed refmoe drift")
    asked = _options().parse_args(words[2:])
    given = None if asked.prompt is None else parse_prompts(asked.prompt)
    shape = (asked.batch or 2, asked.prompt_length or 8) if given is None else given.shape
    points = sweep_points(parse_sweeps(asked.sweep), *shape)
    with open_or_write(None, asked.seed, asked.weights) as checkpoint:
        default = {"nvfp4": NVFP4_PATHS, "block_fp8": DEEPSEEK_PATHS}.get(checkpoint.weights, DEFAULT_PATHS)
        paths, base = named_paths(_listed(asked.paths), _listed(asked.policies), asked.base, default)
        vocabulary = checkpoint.config.vocab_size
        runs = [
            run_drift(
                checkpoint,
                paths,
                draw_prompts(vocabulary, point.batch, point.prompt, asked.seed) if given is None else given,
                base=base,
                steps=asked.steps,
                modes=MODES if asked.mode == "both" else (asked.mode,),
                top_k=point.k,
                in_flight=point.in_flight,
            )
            for point in points
        ]
        document = drift_document(
            runs, paths, checkpoint,
            base=base, steps=asked.steps, seed=asked.seed, tiny=True, command=command, seconds=0,
        )  # fmt: skip
    # As a file gives it back: lists for tuples, words for keys.
    return {key: value for key, value in json.loads(json.dumps(document)).items() if key not in _OF_THE_RUN}


def _listed(words: str | None) -> list[str] | None:
    return None if words is None else [word.strip() for word in words.split(",")]
