"""Paths side by side over decode steps, in lock step: every step is compared as it is made, and then forgotten.

Step 0 is the prompt; each further step decodes one token of every sequence. Teacher-forced, every path is given the
tokens that the base chose, its own most likely ones; free-running, each goes on with its own choice. Until a sequence's
first other token the two are the same; from there on a free-running path answers another question than the base.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.drift.growth import Growth, fit_growth
from refmoe.drift.metrics import agrees, cosine, differing, divergence, max_ulp, relative_l2, rerouted
from refmoe.drift.paths import DriftPath, check_weights
from refmoe.drift.trace import (
    ArrayPlace,
    FirstDifference,
    FormatsPart,
    PathDecoder,
    StepTrace,
    bytes_compared,
    find_difference,
    find_formats,
)
from refmoe.errors import ArgumentError, describe
from refmoe.models import GptOssCheckpoint
from refmoe.models.expert_stack import AnyDeepSeek

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
_LOGIT_METRICS: Mapping[str, Callable[[Array, Array], Array]] = {
    "divergence": divergence,
    "relative_l2": relative_l2,
    "top1": agrees,
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


@dataclass(eq=False)
class PathComparison:
    """One path beside another, in one mode, over the steps that were added.

    Attributes:
        base: the path that it is held against.
        path: its name.
        mode: "teacher-forced" or "free-running".
        must_equal: whether the two have one arithmetic, so that no bit may differ.
        layers: by place and metric float64 [sequences, steps, layers]; the place "moe" is what left the experts,
            "hidden" what left the layer; "differing" counts elements with other bytes. Under "routing" there is
            "rerouted", the share of tokens that went to another set of experts; NaN for a path that does not say.
        logits: by metric float64 [sequences, steps]: "divergence" in nats, "relative_l2", and "top1", 1 where the most
            likely token is the same.
        diverged: for each sequence the first step whose input token is another one; None for never.
        bytes_compared: of every intermediate that both have, in the same format.
        bytes_differing: of those.
        first: where bits part first; None if they never do.
        formats: the first stage that they keep in different formats, if any.
    """

    base: str
    path: str
    mode: str
    must_equal: bool
    layers: Mapping[str, Mapping[str, NDArray[np.float64]]]
    logits: Mapping[str, NDArray[np.float64]]
    diverged: list[int | None]
    bytes_compared: int = 0
    bytes_differing: int = 0
    first: FirstDifference | None = None
    formats: FormatsPart | None = None

    @property
    def passed(self) -> bool:
        """Whether everything that must be equal is, and was compared: arrays of other formats would be passed by."""
        return not self.must_equal or (self.formats is None and self.bytes_differing == 0 < self.bytes_compared)

    @cached_property
    def growth(self) -> Growth:
        """Of the relative error of the last layer's hidden state, over the steps after the prompt."""
        errors = self.layers["hidden"]["relative_l2"][:, 1:, -1]
        steps = np.arange(1, errors.shape[1] + 1)
        return fit_growth(errors, np.stack([steps < (np.inf if step is None else step) for step in self.diverged]))

    def add(self, base: StepTrace, other: StepTrace, step: int, start: int, same_tokens: NDArray[np.bool_]) -> None:
        """Compare one step of a group of sequences, the first of which is number `start`."""
        group = slice(start, start + len(same_tokens))
        if step == 0 and self.formats is None:
            self.formats = find_formats(base, other)
        for sequence in np.flatnonzero(~same_tokens) + start:
            if self.diverged[sequence] is None:
                self.diverged[sequence] = step
        if self.first is None or step < self.first.step:
            self.first = find_difference(base, other, step) or self.first
        compared, unequal = bytes_compared(base, other)
        self.bytes_compared, self.bytes_differing = self.bytes_compared + compared, self.bytes_differing + unequal
        for place in PLACES:
            for layer, (a, b) in enumerate(zip(getattr(base, place), getattr(other, place), strict=True)):
                for name, metric in _LAYER_METRICS.items():
                    self.layers[place][name][group, step, layer] = metric(a, b)
        for layer in range(len(base.moe)):
            routed = self.layers["routing"]["rerouted"]
            routed[group, step, layer] = _rerouted(base, other, layer, len(same_tokens))
        for name, metric in _LOGIT_METRICS.items():
            self.logits[name][group, step] = metric(base.logits, other.logits)


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
    comparisons: tuple[PathComparison, ...]
    bits: Mapping[tuple[str, str], tuple[str, ...]]


def run_drift(
    checkpoint: GptOssCheckpoint | AnyDeepSeek,
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
        ArgumentError: fewer than two paths, a path that does not take the checkpoint's weights, no step, no mode or an
            unknown one, prompts that are no such tokens, more in flight than there are; what the decoder and the paths
            refuse.
    """
    together = len(prompts) if in_flight is None else in_flight
    _check(checkpoint, paths, prompts, base, steps, modes, together)
    size = (len(prompts), steps + 1, layers_of(checkpoint))
    pairs = _pairs(paths, paths[base])
    comparisons = tuple(_no_steps(first, path, mode, size) for first, path in pairs for mode in modes)
    tokens: list[NDArray[np.int64]] = []
    bits: dict[tuple[str, str], tuple[str, ...]] = {}
    for start in range(0, len(prompts), together):
        group = _Group(checkpoint, paths, prompts[start : start + together], base, modes, top_k)
        tokens.append(group.decode(steps, comparisons, start, progress))
        for key, hashes in group.hashes.items():
            bits[key] = (*bits.get(key, ()), *(each.hexdigest() for each in hashes))
    point = Point(len(prompts), prompts.shape[1], top_k, together)
    return DriftRun(point, prompts, np.concatenate(tokens), comparisons, bits)


def layers_of(checkpoint: GptOssCheckpoint | AnyDeepSeek) -> int:
    """The layers that are compared: of DeepSeek those that have experts."""
    return len(checkpoint.moe_layers if isinstance(checkpoint, AnyDeepSeek) else checkpoint.layers)


def _no_steps(base: DriftPath, path: DriftPath, mode: str, size: tuple[int, int, int]) -> PathComparison:
    """A comparison to which steps are to be added; `size`: sequences, steps, layers."""
    metrics = {**dict.fromkeys(PLACES, tuple(_LAYER_METRICS)), "routing": ("rerouted",)}
    return PathComparison(
        base.name,
        path.name,
        mode,
        _same_arithmetic(base, path),
        layers={place: {name: np.empty(size) for name in names} for place, names in metrics.items()},
        logits={name: np.empty(size[:2]) for name in _LOGIT_METRICS},
        diverged=[None] * size[0],
    )


def _rerouted(base: StepTrace, other: StepTrace, layer: int, sequences: int) -> Array:
    ids = [trace.arrays.get(ArrayPlace(layer, "routing", "ids")) for trace in (base, other)]
    if ids[0] is None or ids[1] is None:
        return np.full(sequences, np.nan)
    return rerouted(ids[0], ids[1], sequences)


class _Group:
    """Sequences that are decoded together, by every path."""

    def __init__(
        self,
        checkpoint: GptOssCheckpoint | AnyDeepSeek,
        paths: Sequence[DriftPath],
        prompts: NDArray[np.int64],
        base: int,
        modes: Sequence[str],
        top_k: int | None,
    ) -> None:
        self._prompts = prompts
        # The base's own tokens are what the others are forced to: its two modes are one run.
        self._base = (paths[base].name, modes[0])
        others = [(path, mode) for path in paths if path is not paths[base] for mode in modes]
        self._decoders = {
            (path.name, mode): PathDecoder(checkpoint, path, len(prompts), top_k)
            for path, mode in [(paths[base], modes[0]), *others]
        }
        self.hashes = {key: [hashlib.sha256() for _ in prompts] for key in self._decoders}

    def decode(
        self, steps: int, comparisons: Sequence[PathComparison], start: int, progress: Callable[[str], None]
    ) -> NDArray[np.int64]:
        """The prompt and `steps` more, added to the comparisons; what the base chose, [sequences, steps]."""
        given: dict[tuple[str, str], NDArray[np.int64]] = dict.fromkeys(self._decoders, self._prompts)
        chosen: list[NDArray[np.int64]] = []
        for step in range(steps + 1):
            traces = {key: decoder.advance(given[key]) for key, decoder in self._decoders.items()}
            for key, trace in traces.items():
                self._hash(key, trace)
            for each in comparisons:
                first, second = self._key(each.base, each.mode), self._key(each.path, each.mode)
                same = np.asarray((given[first] == given[second]).all(axis=1))
                each.add(traces[first], traces[second], step, start, same)
            own = {key: trace.logits.argmax(axis=1)[:, None].astype(np.int64) for key, trace in traces.items()}
            given = {key: own[key if key[1] == FREE else self._base] for key in self._decoders}
            chosen.append(own[self._base])
            progress(f"step {step}")
        return np.concatenate(chosen[:steps], axis=1)

    def _key(self, path: str, mode: str) -> tuple[str, str]:
        return self._base if path == self._base[0] else (path, mode)

    def _hash(self, key: tuple[str, str], trace: StepTrace) -> None:
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


def _check(
    checkpoint: object,
    paths: Sequence[DriftPath],
    prompts: object,
    base: int,
    steps: int,
    modes: Sequence[str],
    together: int,
) -> None:
    if not isinstance(checkpoint, GptOssCheckpoint | AnyDeepSeek):
        needed = "a GptOssCheckpoint, whose decoder is here, or one of DeepSeek, whose experts alone are"
        raise ArgumentError("checkpoint", describe(checkpoint), needed)
    for path in paths:
        check_weights(path, checkpoint.weights)
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
