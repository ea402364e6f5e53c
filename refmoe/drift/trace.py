"""Everything that one path computed in one step, in order, and where two such traces part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.drift.metrics import bit_patterns
from refmoe.drift.paths import DriftPath
from refmoe.errors import ArgumentError
from refmoe.formats import BF16, FP32
from refmoe.models import Decoder, ExpertStack, GptOssCheckpoint, State, Step
from refmoe.models.expert_stack import AnyDeepSeek
from refmoe.numbers_as_text import number_text
from refmoe.reference.moe.pipeline import AnyLayer

Array = NDArray[Any]

OUTPUT = ("finalize", "out")
LOGITS = "logits"
#: Of the decoder's own stages, what comes before the experts; what they are given; what comes after them.
_AFTER, _ENTERED = "residual", "moe_norm"
#: Stages whose rows are sorted by expert.
_PERMUTED = ("expand", "gemm1", "activation", "gemm2")


@dataclass(frozen=True)
class ArrayPlace:
    """Where an array belongs.

    Attributes:
        layer: its number; None for the logits.
        stage: of the dense part, of the experts, or "logits".
        array: its name within a stage of the experts; "" elsewhere.
    """

    layer: int | None
    stage: str
    array: str = ""

    def __str__(self) -> str:
        name = f"{self.stage}.{self.array}" if self.array else self.stage
        return name if self.layer is None else f"layer {self.layer}, {name}"


@dataclass(frozen=True, eq=False)
class StepTrace:
    """One step of one path.

    Attributes:
        arrays: every intermediate, in the order in which it was computed.
        moe: what left the experts, layer by layer, BF16 [B, S, H].
        hidden: what left the layer, likewise.
        logits: float32 [B, V].
    """

    arrays: Mapping[ArrayPlace, Array]
    moe: tuple[Array, ...]
    hidden: tuple[Array, ...]
    logits: Array


@dataclass(frozen=True)
class FirstDifference:
    """The first bytes in which two traces differ.

    Attributes:
        step: 0 for the prompt.
        layer: its number; None for the logits.
        stage: where.
        array: its name within the stage; "" for a stage that is one array.
        index: of the first element that differs.
        text: all of it, with both values, in a sentence.
    """

    step: int
    layer: int | None
    stage: str
    array: str
    index: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class FormatsPart:
    """The first stage that the two paths keep in different formats, so that no bytes can be compared there."""

    stage: str
    base: tuple[str, ...]
    other: tuple[str, ...]


class PathDecoder:
    """One path through one decoder, with the sequences that it has in flight."""

    def __init__(
        self, checkpoint: GptOssCheckpoint | AnyDeepSeek, path: DriftPath, sequences: int, top_k: int | None
    ) -> None:
        """`top_k`: experts a token, None for the checkpoint's."""
        self.path = path
        self._top_k = top_k
        self._stages: dict[int, Mapping[str, Mapping[str, Array]]] = {}
        self._decoder: Decoder | ExpertStack
        if isinstance(checkpoint, AnyDeepSeek):
            self._decoder = ExpertStack(checkpoint, moe=self._moe)
        else:
            self._decoder = Decoder(checkpoint, moe=self._moe)
        self._state: State = self._decoder.new_state(sequences)

    def advance(self, tokens: Array) -> StepTrace:
        """Decode tokens [B, S] and say what was computed."""
        self._stages.clear()
        return _trace(self._decoder.prefill(tokens, self._state, stages=True), self._stages)

    def _moe(self, layer: int, x: Array, weights: AnyLayer) -> Array:
        if self._top_k is not None:
            weights = _with_top_k(weights, self._top_k)
        stages = self._stages[layer] = self.path.run(layer, x, weights)
        if OUTPUT[0] not in stages or OUTPUT[1] not in stages[OUTPUT[0]]:
            found = f"{self.path.name} with the stages {', '.join(stages)}"
            raise ArgumentError("path", found, "a last one, finalize.out")
        return stages[OUTPUT[0]][OUTPUT[1]]


def _with_top_k(weights: AnyLayer, top_k: int) -> AnyLayer:
    if not 1 <= top_k <= weights.experts:
        raise ArgumentError("k", str(top_k), f"1 to {weights.experts}, the experts of a layer")
    return replace(weights, top_k=top_k)


def _trace(step: Step, experts: Mapping[int, Mapping[str, Mapping[str, Array]]]) -> StepTrace:
    arrays: dict[ArrayPlace, Array] = {}
    for number, layer in enumerate(step.layers):
        arrays |= {ArrayPlace(number, name): array for name, array in layer.stages.items() if name != _AFTER}
        arrays[ArrayPlace(number, _ENTERED)] = layer.entered
        for stage, named in experts[number].items():
            arrays |= {ArrayPlace(number, stage, name): array for name, array in named.items()}
        arrays[ArrayPlace(number, _AFTER)] = layer.stages[_AFTER]
    arrays[ArrayPlace(None, LOGITS)] = step.logits
    hidden = tuple(layer.stages[_AFTER] for layer in step.layers)
    return StepTrace(arrays, tuple(layer.left for layer in step.layers), hidden, step.logits)


def find_difference(base: StepTrace, other: StepTrace, step: int) -> FirstDifference | None:
    """The first bytes, in the order of computation, in which two traces differ; None if there are none.

    A stage that only one path has, or that both keep in different formats, is passed by: `find_formats`.
    """
    for place, a, b in _common(base, other):
        unequal = bit_patterns(a) != bit_patterns(b)
        if unequal.any():
            index = tuple(int(i) for i in np.unravel_index(int(unequal.argmax()), a.shape))
            values = f"base {_value(a[index])}, path {_value(b[index])}"
            count = f"{int(unequal.sum()):,} of {a.size:,} differ{_origin(base, place, index)}"
            text = f"step {step}, {place}{list(index)}: {values}; {count}"
            return FirstDifference(step, place.layer, place.stage, place.array, index, text)
    return None


def find_formats(base: StepTrace, other: StepTrace) -> FormatsPart | None:
    """The first stage of the experts that both have, in different formats; None if there is none."""
    sides = [_formats(trace) for trace in (base, other)]
    for stage, formats in sides[0].items():
        if stage in sides[1] and sides[1][stage] != formats:
            return FormatsPart(stage, formats, sides[1][stage])
    return None


def bytes_compared(base: StepTrace, other: StepTrace) -> tuple[int, int]:
    """The bytes that both have, and how many of them differ."""
    compared = unequal = 0
    for _, a, b in _common(base, other):
        left, right = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
        compared += left.size
        unequal += int((left != right).sum())
    return compared, unequal


def _common(base: StepTrace, other: StepTrace) -> Iterator[tuple[ArrayPlace, Array, Array]]:
    for place, a in base.arrays.items():
        b = other.arrays.get(place)
        if b is not None and (a.dtype, a.shape) == (b.dtype, b.shape):
            yield place, a, b


def _formats(trace: StepTrace) -> dict[str, tuple[str, ...]]:
    """Names and dtypes of the arrays of each stage of the experts in layer 0."""
    found: dict[str, tuple[str, ...]] = {}
    for place, array in trace.arrays.items():
        if place.layer == 0 and place.array:
            found[place.stage] = (*found.get(place.stage, ()), f"{place.array} {array.dtype}")
    return found


def _value(value: Any) -> str:
    """A number with its pattern; a code or an index as it is."""
    formats = {fmt.dtype: fmt for fmt in (BF16, FP32)}
    if value.dtype not in formats:
        return f"0x{int(value):02X}" if value.dtype == np.uint8 else str(value)
    return number_text(int(np.asarray(value).view(f"u{value.dtype.itemsize}")), formats[value.dtype])


def _origin(trace: StepTrace, place: ArrayPlace, index: tuple[int, ...]) -> str:
    """Whose row it is, of an array whose rows are sorted by expert."""
    routing = [ArrayPlace(place.layer, "routing", name) for name in ("ids", "offsets", "permuted_to_unpermuted")]
    if place.stage not in _PERMUTED or len(index) < 2 or any(each not in trace.arrays for each in routing):
        return ""
    ids, offsets, source = (trace.arrays[each] for each in routing)
    if index[0] >= offsets[-1]:
        return f"; row {index[0]} belongs to no expert"
    rank, token = divmod(int(source[index[0]]), len(ids))
    sequence, position = divmod(token, len(ids) // len(trace.logits))
    at = f", position {position} of this step" if len(ids) > len(trace.logits) else ""
    return f"; row {index[0]} is sequence {sequence}{at}, rank {rank}, expert {int(ids[token, rank])}"
