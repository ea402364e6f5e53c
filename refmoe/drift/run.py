"""Paths side by side over decode steps, in lock step: every step is compared as it is made, and then forgotten.

Step 0 is the prompt; each further step decodes one token of every sequence. Teacher-forced, every path is given the
tokens that the base chose, its own most likely ones; free-running, each goes on with its own choice. Until a sequence's
first other token the two are the same; from there on a free-running path answers another question than the base.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.drift.growth import Growth, fit_growth
from refmoe.drift.metrics import agrees, cosine, differing, divergence, max_ulp, relative_l2, rerouted
from refmoe.drift.paths import DriftPath
from refmoe.drift.trace import (
    Difference,
    FormatsPart,
    Place,
    Runner,
    Trace,
    bytes_compared,
    find_difference,
    find_formats,
)
from refmoe.errors import ArgumentError, describe
from refmoe.models import GptOssCheckpoint

__all__ = ["FREE", "MODES", "PLACES", "TEACHER", "Comparison", "DriftRun", "Point", "run_drift"]

Array = NDArray[Any]

TEACHER, FREE = "teacher-forced", "free-running"
MODES = (TEACHER, FREE)
#: What is measured of every layer: what left the experts, and what left the layer.
PLACES = ("moe", "hidden")
_LAYER_METRICS: Mapping[str, Callable[[Array, Array], Array]] = {
    "relative_l2": relative_l2,
    "cosine": cosine,
    "max_ulp": max_ulp,
    "differing": differing,
}


@dataclass(frozen=True)
class Point:
    """What a sweep varies.

    Attributes:
        batch: sequences.
        prompt: tokens in the prompt of each.
        k: experts a token; None for the checkpoint's.
        in_flight: sequences that are decoded together; the batch is decoded in groups of that many.
    """

    batch: int
    prompt: int
    k: int | None
    in_flight: int

    def __str__(self) -> str:
        k = "" if self.k is None else f", k {self.k}"
        return f"batch {self.batch}, prompt {self.prompt}{k}, {self.in_flight} in flight"


@dataclass(frozen=True, eq=False)
class Comparison:
    """One path beside another, in one mode.

    Attributes:
        base: the path that it is held against.
        path: its name.
        mode: "teacher-forced" or "free-running".
        must_equal: whether the two have one arithmetic, so that no bit may differ.
        bytes_compared: of every intermediate that both have, in the same format.
        bytes_differing: of those.
        first: where bits part first; None if they never do.
        formats: the first stage that they keep in different formats, if any.
        diverged: for each sequence the first step whose input token is another one; None for never.
        layers: by place and metric float64 [sequences, steps, layers]; the place "moe" is what left the experts,
            "hidden" what left the layer; "differing" counts elements with other bytes. Under "routing" there is
            "rerouted", the share of tokens that went to another set of experts; NaN for a path that does not say.
        logits: by metric float64 [sequences, steps]: "divergence" in nats, "relative_l2", and "top1", 1 where the most
            likely token is the same.
        growth: of the relative error of the last layer's hidden state, over the steps after the prompt.
    """

    base: str
    path: str
    mode: str
    must_equal: bool
    bytes_compared: int
    bytes_differing: int
    first: Difference | None
    formats: FormatsPart | None
    diverged: tuple[int | None, ...]
    layers: Mapping[str, Mapping[str, NDArray[np.float64]]]
    logits: Mapping[str, NDArray[np.float64]]
    growth: Growth

    @property
    def passed(self) -> bool:
        """Whether everything that must be equal is, and was compared: arrays of other formats would be passed by."""
        return not self.must_equal or (self.formats is None and self.bytes_differing == 0 < self.bytes_compared)


@dataclass(frozen=True, eq=False)
class DriftRun:
    """All comparisons at one point.

    Attributes:
        point: what was varied.
        prompts: int64 [sequences, prompt].
        tokens: what the base chose, int64 [sequences, steps].
        comparisons: by path and mode.
        bits: by path and mode, for each sequence the SHA-256 of everything that left experts, layers and the model.
    """

    point: Point
    prompts: NDArray[np.int64]
    tokens: NDArray[np.int64]
    comparisons: tuple[Comparison, ...]
    bits: Mapping[tuple[str, str], tuple[str, ...]]


def run_drift(
    checkpoint: GptOssCheckpoint,
    paths: Sequence[DriftPath],
    prompts: NDArray[np.int64],
    *,
    base: int = 0,
    steps: int = 64,
    modes: Sequence[str] = MODES,
    top_k: int | None = None,
    in_flight: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> DriftRun:
    """Decode `steps` tokens of every sequence by every path and compare as it goes.

    Besides the base with every other path, paths of one arithmetic are compared with the first of them.

    Args:
        checkpoint: the weights.
        paths: at least two.
        prompts: tokens [sequences, prompt].
        base: which path the others are held against.
        steps: tokens to decode after the prompt.
        modes: of `MODES`.
        top_k: experts a token; None for the checkpoint's.
        in_flight: sequences decoded together; None for all.
        progress: called with a word or two after every step of every group.

    Raises:
        ArgumentError: fewer than two paths, no step, no mode or an unknown one, prompts that are no such tokens, more
            in flight than there are; what the decoder and the paths refuse.
    """
    together = len(prompts) if in_flight is None else in_flight
    _check(checkpoint, paths, prompts, base, steps, modes, together)
    groups = [
        _Group(checkpoint, paths, prompts[start : start + together], base, modes, top_k)
        for start in range(0, len(prompts), together)
    ]
    tokens = []
    for group in groups:
        tokens.append(group.decode(steps, progress))
    comparisons = tuple(_joined([group.tallies[index] for group in groups]) for index in range(len(groups[0].tallies)))
    bits = {key: tuple(digest for group in groups for digest in group.digests(key)) for key in groups[0].hashes}
    point = Point(len(prompts), prompts.shape[1], top_k, together)
    return DriftRun(point, prompts, np.concatenate(tokens), comparisons, bits)


@dataclass(eq=False)
class _Tally:
    """A comparison of one group as it goes."""

    base: DriftPath
    path: DriftPath
    mode: str
    must_equal: bool
    sequences: int
    compared: int = 0
    unequal: int = 0
    first: Difference | None = None
    formats: FormatsPart | None = None
    diverged: list[int | None] = field(default_factory=list)
    layers: dict[str, dict[str, list[Array]]] = field(default_factory=dict)
    logits: dict[str, list[Array]] = field(default_factory=dict)

    def add(self, base: Trace, other: Trace, step: int, same_tokens: NDArray[np.bool_]) -> None:
        if step == 0:
            self.diverged = [None] * self.sequences
            self.formats = find_formats(base, other)
        for sequence in np.flatnonzero(~same_tokens):
            if self.diverged[sequence] is None:
                self.diverged[sequence] = step
        if self.first is None:
            self.first = find_difference(base, other, step)
        compared, unequal = bytes_compared(base, other)
        self.compared, self.unequal = self.compared + compared, self.unequal + unequal
        for place in PLACES:
            pairs = list(zip(getattr(base, place), getattr(other, place), strict=True))
            for name, metric in _LAYER_METRICS.items():
                values = np.stack([metric(a, b) for a, b in pairs], axis=1)
                self.layers.setdefault(place, {}).setdefault(name, []).append(values)
        routes = np.stack([_rerouted(base, other, layer, self.sequences) for layer in range(len(base.moe))], axis=1)
        self.layers.setdefault("routing", {}).setdefault("rerouted", []).append(routes)
        for name, metric in (("divergence", divergence), ("relative_l2", relative_l2), ("top1", agrees)):
            self.logits.setdefault(name, []).append(metric(base.logits, other.logits))


def _rerouted(base: Trace, other: Trace, layer: int, sequences: int) -> Array:
    ids = [trace.arrays.get(Place(layer, "routing", "ids")) for trace in (base, other)]
    if ids[0] is None or ids[1] is None:
        return np.full(sequences, np.nan)
    return rerouted(ids[0], ids[1], sequences)


class _Group:
    """Sequences that are decoded together, by every path."""

    def __init__(
        self,
        checkpoint: GptOssCheckpoint,
        paths: Sequence[DriftPath],
        prompts: NDArray[np.int64],
        base: int,
        modes: Sequence[str],
        top_k: int | None,
    ) -> None:
        self._prompts = prompts
        self._base = paths[base]
        # The base's own tokens are what the others are forced to: its two modes are one run.
        self._runners = {
            (self._base.name, mode): Runner(checkpoint, self._base, len(prompts), top_k) for mode in modes[:1]
        }
        self._runners |= {
            (path.name, mode): Runner(checkpoint, path, len(prompts), top_k)
            for path in paths
            if path is not self._base
            for mode in modes
        }
        self.tallies = [
            _Tally(first, path, mode, _same_arithmetic(first, path), len(prompts))
            for first, path in _pairs(paths, self._base)
            for mode in modes
        ]
        self.hashes = {key: [hashlib.sha256() for _ in prompts] for key in self._runners}

    def decode(self, steps: int, progress: Callable[[str], None]) -> NDArray[np.int64]:
        """The prompt and `steps` more; what the base chose, [sequences, steps]."""
        given: dict[tuple[str, str], NDArray[np.int64]] = dict.fromkeys(self._runners, self._prompts)
        chosen: list[NDArray[np.int64]] = []
        for step in range(steps + 1):
            traces: dict[tuple[str, str], Trace] = {}
            for key, runner in self._runners.items():
                traces[key] = runner.advance(given[key])
                self._hash(key, traces[key])
            for tally in self.tallies:
                keys = [self._key(path, tally.mode) for path in (tally.base, tally.path)]
                same = np.asarray((given[keys[0]] == given[keys[1]]).all(axis=1))
                tally.add(traces[keys[0]], traces[keys[1]], step, same)
            own = {key: trace.logits.argmax(axis=1)[:, None].astype(np.int64) for key, trace in traces.items()}
            forced = own[next(iter(self._runners))]
            given = {key: own[key] if key[1] == FREE else forced for key in self._runners}
            chosen.append(forced)
            progress(f"step {step}")
        return np.concatenate(chosen[:steps], axis=1)

    def digests(self, key: tuple[str, str]) -> list[str]:
        """Of each sequence."""
        return [each.hexdigest() for each in self.hashes[key]]

    def _key(self, path: DriftPath, mode: str) -> tuple[str, str]:
        return next(iter(self._runners)) if path is self._base else (path.name, mode)

    def _hash(self, key: tuple[str, str], trace: Trace) -> None:
        for array in (*trace.moe, *trace.hidden, trace.logits):
            for each, sequence in zip(self.hashes[key], array, strict=True):
                each.update(np.ascontiguousarray(sequence).tobytes())


def _pairs(paths: Sequence[DriftPath], base: DriftPath) -> list[tuple[DriftPath, DriftPath]]:
    """The base with every other path; then each path with the first of its arithmetic, if that is not the base."""
    others = [path for path in paths if path is not base]
    pairs = [(base, path) for path in others]
    for index, path in enumerate(others):
        twin = next((first for first in others[:index] if _same_arithmetic(first, path)), None)
        if twin is not None and not _same_arithmetic(base, path):
            pairs.append((twin, path))
    return pairs


def _same_arithmetic(first: DriftPath, second: DriftPath) -> bool:
    return first.arithmetic is not None and first.arithmetic == second.arithmetic


def _joined(tallies: Sequence[_Tally]) -> Comparison:
    """The comparison over all groups."""
    one = tallies[0]
    layers = {
        place: {
            name: np.concatenate([np.stack(tally.layers[place][name], axis=1) for tally in tallies]).astype(np.float64)
            for name in one.layers[place]
        }
        for place in one.layers
    }
    logits = {
        name: np.concatenate([np.stack(tally.logits[name], axis=1) for tally in tallies]).astype(np.float64)
        for name in one.logits
    }
    diverged = tuple(step for tally in tallies for step in tally.diverged)
    errors = layers["hidden"]["relative_l2"][:, 1:, -1]
    steps = np.arange(1, errors.shape[1] + 1)
    same = np.stack([steps < (np.inf if step is None else step) for step in diverged])
    firsts = [tally.first for tally in tallies if tally.first is not None]
    return Comparison(
        one.base.name,
        one.path.name,
        one.mode,
        one.must_equal,
        sum(tally.compared for tally in tallies),
        sum(tally.unequal for tally in tallies),
        min(firsts, key=lambda first: first.step, default=None),
        one.formats,
        diverged,
        layers,
        logits,
        fit_growth(errors, same),
    )


def _check(
    checkpoint: object,
    paths: Sequence[DriftPath],
    prompts: object,
    base: int,
    steps: int,
    modes: Sequence[str],
    together: int,
) -> None:
    if not isinstance(checkpoint, GptOssCheckpoint):
        raise ArgumentError("checkpoint", describe(checkpoint), "a GptOssCheckpoint: the decoder is gpt-oss's")
    names = [path.name for path in paths]
    if len(names) < 2 or len(set(names)) < len(names):
        raise ArgumentError("paths", ", ".join(names) or "none", "at least two, of different names")
    if not 0 <= base < len(paths):
        raise ArgumentError("base", str(base), f"0 to {len(paths) - 1}")
    if type(steps) is not int or steps < 1:
        raise ArgumentError("steps", describe(steps), "at least 1")
    if not modes or len(set(modes)) < len(modes) or not set(modes) <= set(MODES):
        raise ArgumentError("modes", describe(tuple(modes)), f"one or both of {', '.join(MODES)}")
    if not isinstance(prompts, np.ndarray) or prompts.dtype.kind not in "iu" or prompts.ndim != 2 or not prompts.size:
        raise ArgumentError("prompts", describe(prompts), "integers [sequences, prompt]")
    if type(together) is not int or not 1 <= together <= len(prompts):
        raise ArgumentError("in_flight", describe(together), f"1 to {len(prompts)}, the sequences")
