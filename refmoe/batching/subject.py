"""What a certificate is about: something that gives every token of a batch a result, and the batches to try it on.

A *batch* is arrays by name whose first axis counts tokens. A *subject* computes results from it, arrays whose first
axis counts the same tokens. A *call* is one batch of a subject: the probe, a token, at a position among neighbours.
Its text holds all that decides it, so that it can be made again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.errors import ArgumentError

Arrays = Mapping[str, NDArray[Any]]

#: Sizes of batches: around the limits at which servers change kernels, 1, 8 and a tile.
SIZES = (1, 2, 7, 8, 9, 64)
#: Those of the quick level: llama.cpp's warps differ between 2 and 7, and not always between 2 and 9.
QUICK_SIZES = (1, 2, 7, 9)

#: What stands around the probe.
NEIGHBOURS: Mapping[str, str] = {
    "random": "other tokens, drawn as the probe is",
    "zeros": "tokens of zeros, both signs",
    "special": "tokens with NaN and both infinities",
    "huge": "tokens near the largest BF16",
    "tiny": "tokens of subnormals",
    "wide": "tokens whose elements lie 40 octaves apart: no order of summation is exact",
    "mirrored": "tokens whose halves are equal: with weights whose halves are opposite, all that is left is rounding",
    "crowd": "other tokens that go to the probe's experts: one expert has all rows",
    "copies": "the probe itself, again and again",
}

#: What the probe may be; the words are those of neighbours.
PROBES = ("random", "mirrored", "wide", "special", "tiny")

_NAME = r"[\w./+-]+"
_CALL = re.compile(
    rf"(?P<subject>{_NAME}):(?P<probe>\w+):b(?P<size>\d{{1,6}})p(?P<position>\d{{1,6}}):(?P<neighbours>\w+)"
    rf"(?::way=(?P<way>{_NAME}))?:seed(?P<seed>\d{{1,9}})"
)


@dataclass(frozen=True, eq=False)
class Subject:
    """Something that computes a result for every token of a batch.

    Attributes:
        name: as in calls, "layer/llama_cpp" or "kernel/finalize".
        draw: `draw(kind, seed, tokens)` gives that many tokens of a kind, a key of `NEIGHBOURS` but crowd and copies.
        run: `run(batch, way)` gives the results.
        rests_on: where it runs and what that proves, in a sentence.
        ways: ways to compute the same, such as tiles of a GEMM; "" for the usual one.
        most: tokens of the largest batch that it takes.
        kinds: of neighbours that it takes; a router refuses tokens of NaN.
        experts: the array of a batch that says where a token goes, "" if there is none.
        depends: why it is known to depend on its batch, in a sentence; "" if it must not.
        source: the kernel family or the module whose sources decide it.
    """

    name: str
    draw: Callable[[str, int, int], Arrays]
    run: Callable[[Arrays, str], Arrays]
    rests_on: str
    ways: tuple[str, ...] = ("",)
    most: int = SIZES[-1]
    kinds: tuple[str, ...] = tuple(NEIGHBOURS)
    experts: str = ""
    depends: str = ""
    source: str = field(default="")


@dataclass(frozen=True)
class Call:
    """One batch of a subject.

    Attributes:
        subject: its name.
        probe: the kind of the token that is looked at.
        size: tokens of the batch.
        position: of the probe.
        neighbours: their kind, a key of `NEIGHBOURS`; "none" for the probe alone.
        way: of the subject's ways.
        seed: of the data.
    """

    subject: str
    probe: str
    size: int
    position: int
    neighbours: str
    way: str = ""
    seed: int = 7

    def __str__(self) -> str:
        way = f":way={self.way}" if self.way else ""
        return f"{self.subject}:{self.probe}:b{self.size}p{self.position}:{self.neighbours}{way}:seed{self.seed}"

    @classmethod
    def read(cls, text: str) -> Call:
        """The call of its text.

        Raises:
            ArgumentError: the text of none.
        """
        match = _CALL.fullmatch(text.strip())
        if match is None:
            needed = "SUBJECT:PROBE:bSIZEpPOSITION:NEIGHBOURS[:way=WAY]:seedN, as a certificate prints it"
            raise ArgumentError("call", repr(text), needed)
        found = match.groupdict()
        sizes = {name: int(found[name]) for name in ("size", "position", "seed")}
        call = cls(found["subject"], found["probe"], neighbours=found["neighbours"], way=found["way"] or "", **sizes)
        if not 0 <= call.position < call.size:
            raise ArgumentError("call", f"position {call.position} of {call.size}", "a position within the batch")
        if call.probe not in PROBES or call.neighbours not in (*NEIGHBOURS, "none"):
            needed = f"a probe of {', '.join(PROBES)}, and neighbours of none, {', '.join(NEIGHBOURS)}"
            raise ArgumentError("call", f"{call.probe} among {call.neighbours}", needed)
        if call.neighbours == "none" and call.size != 1:
            raise ArgumentError("call", f"no neighbours in a batch of {call.size}", "neighbours")
        return call

    @property
    def alone(self) -> Call:
        """The same probe in a batch of its own, the usual way."""
        return replace(self, size=1, position=0, neighbours="none", way="")


def batch_of(subject: Subject, call: Call) -> dict[str, NDArray[Any]]:
    """The arrays of a call."""
    probe = subject.draw(call.probe, call.seed, 1)
    if call.neighbours in ("none", "copies"):
        return {name: np.repeat(array, call.size, axis=0) for name, array in probe.items()}
    kind = "random" if call.neighbours == "crowd" else call.neighbours
    # Neighbours share no draw with the probe, whatever its kind is.
    around = subject.draw(kind, call.seed + 1_000_003 + call.size, call.size)
    batch = {name: np.array(array) for name, array in around.items()}
    if call.neighbours == "crowd" and subject.experts:
        batch[subject.experts][:] = probe[subject.experts]
    for name, array in probe.items():
        batch[name][call.position] = array[0]
    return batch


def token_values(kind: str, seed: int, tokens: int, width: int) -> NDArray[Any]:
    """BF16 [tokens, width] of a kind; one channel in 17 is an outlier, as in transformers."""
    draw = Draw("batching", kind, seed)
    normal = draw.normal((tokens, width))
    signs = np.where(normal < 0, -1.0, 1.0)
    if kind == "zeros":
        values = signs * 0.0
    elif kind == "huge":
        values = signs * np.exp2(127 - np.abs(normal))
    elif kind == "wide":
        values = normal * np.exp2(draw.integers(41, (tokens, width)) - 20.0)
    elif kind == "tiny":
        values = normal * np.exp2(-132)
    else:
        values = normal * np.where(np.arange(width) % 17 == 3, 12.0, 1.0)
    if kind == "mirrored":
        # Blocks of very different sizes: sums of equal ones may be exact in any order.
        values *= np.repeat(np.exp2(draw.integers(25, (tokens, -(-width // 32))) - 12.0), 32, axis=1)[:, :width]
        values[:, width // 2 :] = values[:, : width // 2]
    if kind == "special":
        place = draw.integers(5, (tokens, width))
        values = np.where(place == 0, np.nan, np.where(place == 1, signs * np.inf, values))
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(values.astype(ml_dtypes.bfloat16))


def token_experts(seed: int, tokens: int, experts: int, top_k: int) -> NDArray[np.int32]:
    """int32 [tokens, top_k], different within a token."""
    words = Draw("batching-experts", seed).words(tokens * experts).reshape(tokens, experts)
    return np.ascontiguousarray(np.argsort(words, axis=1, kind="stable")[:, :top_k].astype(np.int32))


def token_weights(seed: int, tokens: int, top_k: int) -> NDArray[np.float32]:
    """float32 [tokens, top_k], positive, of all significant bits."""
    raw = 1 + Draw("batching-weights", seed).integers(1 << 23, (tokens, top_k)) / (1 << 23)
    return np.asarray((raw / top_k).astype(np.float32))
