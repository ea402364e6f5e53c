"""The family `deepseek_routing`: sigmoid top-k over groups of experts, the weights, and the maps of rows.

topk_ids[5, 1]  token 5 choice 1: kernel expert 9 (score 0x3F400000 (0.75)) reference expert 4 (score 0x3F400000 (0.75))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.errors import ArgumentError
from refmoe.families.case import SCHEDULES, Shape, number, refused, word
from refmoe.families.choices import RANKS, ROUTED
from refmoe.families.extents import routing_extents
from refmoe.families.family import POISON, Case, Contract, Expectation, Family, Fill, Inputs, Lack, Outputs
from refmoe.families.fills.sigmoid_gates import STEPS, step_logits
from refmoe.families.routing import ENTRY, ChoiceRows, FirstRows, RefusedToken, RowChoices, Weights, maps_of, outputs_of
from refmoe.families.stages import Plane, matrix_plane
from refmoe.families.wrong import ARRAY, BYTE, WRONG, Change, called, huge, wrong_calls
from refmoe.numbers_as_text import VALUE_DTYPES, number_text
from refmoe.reference.deepseek.routing import (
    GROUP_SCORES,
    MAX_EXPERTS,
    MAX_GROUPS,
    MAX_TOP_K,
    RULES,
    route_sigmoid_grouped_topk,
    sigmoid,
)
from refmoe.reference.expand import build_permutation

if TYPE_CHECKING:
    from refmoe.cuda.device import Device

F32 = NDArray[np.float32]

#: Lanes of a warp: a kernel that gives a warp a token has a lane for every 32nd expert.
_LANES = 32
_NAN_WEIGHT = np.array(0x7FFFFFFF, np.uint32).view(np.float32)

#: The factor on the weights by its word: DeepSeek-V3's, none, one of all 24 significant bits, one below 0, and one that
#: makes every weight subnormal.
SCALES: Mapping[str, np.float32] = MappingProxyType(
    {
        "2.5": np.float32(2.5),
        "1": np.float32(1),
        "third": np.float32(1 / 3),
        "minus": np.float32(-0.75),
        "tiny": np.float32(1.5 * 2.0**-127),
    }
)

# --- fills ----------------------------------------------------------------------------------------------------------
# make(draw, case) gives float32 logits [tokens, experts] and the bias [experts] of the experts of all ranks. Everything
# is made of integers and powers of two, or of `Draw.normal`: no libm decides a bit.

Scores = tuple[F32, F32]


def _size(case: Case) -> tuple[int, int]:
    """Tokens, and experts of all ranks."""
    return case.shape.m, case.shape.e * case.ranks


def _bias(draw: Draw, experts: int) -> F32:
    """About as large as the differences of the sigmoids, of all 24 significant bits."""
    return np.asarray((draw.normal((experts,)) / 7).astype(np.float32))


def _gaussian(draw: Draw, case: Case) -> Scores:
    tokens, experts = _size(case)
    return (draw.normal((tokens, experts)) * 2).astype(np.float32), _bias(draw, experts)


def _ties(draw: Draw, case: Case) -> Scores:
    """A few different logits and no bias for most: groups tie, experts of different groups tie, the k-th place ties."""
    tokens, experts = _size(case)
    place = draw.integers(8, (tokens, experts))
    bias = np.where(draw.integers(4, (experts,)) == 0, np.float32(0.0625), np.float32(0))
    return np.select([place < 1, place < 3], [1.5, 0.5], -0.75).astype(np.float32), bias.astype(np.float32)


def _groups(draw: Draw, case: Case) -> Scores:
    """Groups that another rule would keep: with one outstanding expert, with two good ones, with many fair ones.

    The two good ones win by their sum. By the largest alone, by all, or by the mean the others would.
    """
    tokens, experts = _size(case)
    size = experts // case.groups
    kind = np.repeat(draw.integers(3, (tokens, case.groups)), size, axis=1)
    order = np.argsort(draw.words(tokens * experts).reshape(tokens * case.groups, size), axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    if size > _LANES:
        # The two good ones of a large group lie in one lane of a warp, which holds every 32nd expert.
        first = draw.integers(size - _LANES, (len(rank),))
        rank = rank + GROUP_SCORES
        rank[np.arange(len(rank)), first], rank[np.arange(len(rank)), first + _LANES] = 0, 1
    rank = rank.reshape(tokens, experts)
    logits = np.select(
        [(kind == 0) & (rank == 0), (kind == 1) & (rank < GROUP_SCORES), kind == 2], [6.0, 1.5, 0.75], -3.0
    )
    # The experts beside them differ, so that it is seen which are chosen.
    beside = (logits + draw.normal((tokens, experts)) / 16).astype(np.float32)
    return beside, (_bias(draw, experts) / 16).astype(np.float32)


def _negative(draw: Draw, case: Case) -> Scores:
    """A bias below -1: every score that is chosen by is negative, and a dropped group's must not be 0."""
    logits, bias = _gaussian(draw, case)
    return logits, (bias - np.float32(4)).astype(np.float32)


def _negative_ties(draw: Draw, case: Case) -> Scores:
    """Ties of groups whose scores are about -1."""
    return _tied_sums(draw, case, -1)


def _positive_ties(draw: Draw, case: Case) -> Scores:
    """Ties of groups whose scores are about 1."""
    return _tied_sums(draw, case, 1)


def _tied_sums(draw: Draw, case: Case, sign: int) -> Scores:
    """Two kinds of groups with the same sum of scores, of a number and itself, and of two beside it.

    Every sigmoid is 1/2. Scores are about 1 or -1, in steps of 2^-23. A sum has steps twice as large, and an odd number
    of them: a step of either score makes a tie of it, which goes to an even number.
    """
    tokens, experts = _size(case)
    size = experts // case.groups
    step = 2.0**-23
    leading = np.where(np.arange(case.groups)[:, None] % 2 == 0, [5 * step, 5 * step], [4 * step, 6 * step])
    bias = np.full((case.groups, size), -2.5)
    first = draw.integers(size - 1, (case.groups,))
    rows = np.arange(case.groups)
    about = sign - 0.5
    bias[rows, first], bias[rows, first + 1] = about + sign * leading[:, 0], about + sign * leading[:, 1]
    return np.zeros((tokens, experts), np.float32), bias.reshape(-1).astype(np.float32)


def _largest(draw: Draw, case: Case) -> Scores:
    """Biases from -2^127 down to the largest number's negative, for all experts: every score is just above -Inf."""
    logits, _ = _gaussian(draw, case)
    patterns = 0xFF000000 + draw.integers(0x7FFFFF, (logits.shape[1],))
    return logits, patterns.astype(np.uint32).view(np.float32)


def _close(draw: Draw, case: Case) -> Scores:
    """Sigmoids a few of FP32's units apart, next to 0.5 and to 1: what fewer bits cannot tell apart."""
    tokens, experts = _size(case)
    steps = draw.integers(2 * experts, (tokens, experts))
    near_one = 0x40A00000 + (steps << 12)  # 5: neighbours of BF16 and less
    near_half = 0x39800000 + (steps << 14)  # 2^-12 and above
    chosen = np.where(draw.integers(2, (tokens, 1)) == 0, near_one, near_half)
    return chosen.astype(np.uint32).view(np.float32), np.zeros(experts, np.float32)


def _tiny(draw: Draw, case: Case) -> Scores:
    """Sigmoids from the ordinary down to zero, all choices of some tokens subnormal: 1e-20 is more than their sum.

    Without a bias the largest of them are chosen; what the rule of TensorRT-LLM divides by stays above zero.
    """
    tokens, experts = _size(case)
    least = np.array([-20.0, -47.0, -60.0, -80.0, -85.0])[draw.integers(5, (tokens,))]
    order = np.argsort(draw.words(tokens * experts).reshape(tokens, experts), axis=1, kind="stable")
    steps = np.argsort(order, axis=1, kind="stable") / 2  # BF16 has them too
    return (least[:, None] - steps).astype(np.float32), np.zeros(experts, np.float32)


def _wide(draw: Draw, case: Case) -> Scores:
    """Logits past both ends: sigmoids of 0 and of 1, which tie, and infinite logits."""
    tokens, experts = _size(case)
    logits = draw.normal((tokens, experts)) * 60
    kind = draw.integers(64, (tokens, experts))
    logits = np.select([kind == 0, kind == 1], [np.inf, -np.inf], logits)
    return logits.astype(np.float32), _bias(draw, experts)


#: FP32 bits: zeros, the least and the largest subnormal numbers, of either sign.
_TINY_BIAS = np.array([0, 0x80000000, 1, 0x80000001, 0x007FFFFF, 0x807FFFFF], np.uint32).view(np.float32)


def _equal(draw: Draw, case: Case) -> Scores:
    """One logit for all experts of a token: groups tie, and experts over more than a warp; some have two that lead."""
    tokens, experts = _size(case)
    logits = np.repeat(np.array([0.0, -0.0, 1.5, -1.5], np.float32)[np.arange(tokens) % 4][:, None], experts, axis=1)
    ahead = draw.integers(experts, (tokens, 2))
    leading = np.flatnonzero(np.arange(tokens) % 3 == 1)
    logits[leading[:, None], ahead[leading]] = 2.5
    return logits, np.zeros(experts, np.float32)


def _twins(draw: Draw, case: Case) -> Scores:
    """Groups led by two experts alike, in one lane of a warp if the group is large, or by a better and a worse one.

    The two alike have the larger sum. Counted once they have the smaller one.
    """
    tokens, experts = _size(case)
    size = experts // case.groups
    apart = _LANES if size > _LANES else 1
    first = draw.integers(size - apart, (tokens, case.groups, 1))
    alike = draw.integers(2, (tokens, case.groups, 1)) == 0
    place = np.arange(size)
    own = np.arange(case.groups)[:, None] / 128  # so that weights differ
    leading = np.where(alike, 1.5, 2.0) + own, np.where(alike, 1.5, 0.0) + own
    logits = np.select([place == first, place == first + apart], leading, -3.0)
    return logits.reshape(tokens, experts).astype(np.float32), np.zeros(experts, np.float32)


def _bias_alone(draw: Draw, case: Case) -> Scores:
    """Sigmoids of exactly zero, or the least subnormal ones: the bias decides, zeros of either sign and subnormal."""
    tokens, experts = _size(case)
    logits = np.where(draw.integers(4, (tokens, experts)) == 0, -100.0, -200.0)
    # As many experts as a token chooses have a number for a sigmoid, so that there are weights.
    logits[:, : case.shape.t] = 1 - np.arange(case.shape.t) / 8
    return logits.astype(np.float32), np.asarray(_TINY_BIAS[draw.integers(_TINY_BIAS.size, (experts,))])


def _never(draw: Draw, case: Case) -> Scores:
    """A bias of -Inf for all but as many experts of every group as the choices need."""
    logits, bias = _gaussian(draw, case)
    size = bias.size // case.groups
    keep = min(max(-(-case.shape.t // case.top_groups), GROUP_SCORES), size)
    order = np.argsort(draw.words(bias.size).reshape(case.groups, size), axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable").reshape(-1)
    return logits, np.where(rank < keep, bias, -np.inf).astype(np.float32)


def _same(draw: Draw, case: Case) -> Scores:
    """The last experts far ahead of all others, in an order of each token's own."""
    logits, bias = _gaussian(draw, case)
    return logits, np.where(np.arange(bias.size) >= bias.size - case.shape.t, bias + 9, bias).astype(np.float32)


def _refused(draw: Draw, case: Case) -> Scores:
    """Four tokens of seven have a NaN, of either sign, as their logit of any expert: of a dropped group too."""
    logits, bias = _gaussian(draw, case)
    place = draw.integers(bias.size, (len(logits),))
    nans = np.array([0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    for token in range(len(logits)):
        if 1 <= token % 7 <= nans.size:
            logits[token, place[token]] = nans[token % 7 - 1]
    return logits, bias


def _too_few(draw: Draw, case: Case) -> Scores:
    """A bias of -Inf leaves one expert too few: the last k - 1. No token has an answer."""
    logits, bias = _gaussian(draw, case)
    finite = np.arange(bias.size) > bias.size - case.shape.t
    return logits, np.where(finite, bias, -np.inf).astype(np.float32)


def _infinite(draw: Draw, case: Case) -> Scores:
    """A bias of +Inf for one expert: no token has an answer, the first one neither."""
    logits, bias = _gaussian(draw, case)
    return logits, np.where(np.arange(bias.size) == bias.size * 2 // 3, np.float32(np.inf), bias).astype(np.float32)


#: Logits of which the sigmoid has other bits if one of its roundings is another: one for each operation whose rounding
#: shows at all. With the subtraction of the shifter and the first part of ln 2 none of 10^7 changed.
_ROUNDED = {
    "f32": (
        *(-0.447387427, 0.442954004, 2.49597287, -0.376441032, -0.331941515, 1.75174952, 0.318000555, 1.48090947),
        *(0.876906157, 1.58749342, 1.11771762, 0.34641394, 1.91580641),
    ),
    "bf16": (-0.38671875, -0.373046875, -5.9375, -0.298828125, -0.384765625, -0.271484375, -0.25390625, -0.25),
}


def _roundings(draw: Draw, case: Case) -> Scores:
    """`_ROUNDED`, chosen in one group of each token, each of them in each 32 experts in turn; little of all else."""
    return _in_turn(np.array(_ROUNDED[case.dtype], np.float32), case)


def _in_turn(listed: F32, case: Case) -> Scores:
    """Logits that are chosen in one group of each token, each in each 32 experts in turn; little of all else."""
    tokens, experts = _size(case)
    # No two of the others have one weight, where there are so few experts that they are chosen, too.
    logits = np.tile(np.float32(-30) - np.arange(experts, dtype=np.float32) / np.float32(4), (tokens, 1))
    width = experts // case.groups
    parts = -(-width // 32)  # a lane has one expert of each
    choice = np.arange(case.shape.t)
    for token in range(tokens):
        turn, group = divmod(token, case.groups)
        part, number = choice % parts, choice // parts
        inside = (part * 32 + (number + token) % min(width, 32)) % width
        logits[token, group * width + inside] = listed[(turn * -(-choice.size // parts) + number + part) % listed.size]
    return logits, np.zeros(experts, np.float32)


def _steps(draw: Draw, case: Case) -> Scores:
    """`step_logits`, one for all experts of a token: a sigmoid that gets larger is chosen before the first ones.

    And behind these one logit of each step as in `_in_turn`, since for the first experts weights alone tell.
    """
    listed = step_logits()
    logits, bias = _in_turn(listed[::2], case)
    logits[: listed.size] = listed[: len(logits), None]
    return logits, bias


def _lacks_bias(case: Case) -> Lack | None:
    return None if case.bias == "distinct" else Lack("bias", f"bias=distinct for the fill {case.fill}")


def _lacks_fp32(case: Case) -> Lack | None:
    return None if case.dtype == "f32" else Lack("dtype", f"dtype f32 for the fill {case.fill}")


_FILLS = Fill.by_name(
    Fill("gaussian", "a choice by unbiased scores, weights of biased ones, a sum in another order", _gaussian),
    Fill("ties", "a tie of groups or of experts that goes to another than the lowest index", _ties),
    Fill("groups", "groups ranked by their largest score, by all, or by their mean", _groups),
    Fill("negative", "dropped groups masked with 0, scores compared as signed bits", _negative, lack=_lacks_bias),
    Fill("close", "scores compared with fewer bits, an approximate sigmoid", _close),
    Fill("tiny", "subnormal sigmoids flushed, no 1e-20 or another one", _tiny),
    Fill("wide", "a sigmoid that overflows to NaN or is clamped", _wide),
    Fill("equal", "a tie over more than a warp that goes to another than the lowest index", _equal),
    Fill("twins", "two equal scores of a group counted once", _twins),
    Fill("bias-alone", "a subnormal bias flushed, -0 told from +0", _bias_alone, lack=_lacks_bias),
    Fill("negative-ties", "the last bit of a negative score lost in its group's", _negative_ties, lack=_lacks_bias),
    Fill("positive-ties", "the last bit of a positive score lost in its group's", _positive_ties, lack=_lacks_bias),
    Fill("largest", "the largest numbers taken for infinities", _largest, lack=_lacks_bias),
    Fill("never", "-Inf chosen, or taken for padding", _never, lack=_lacks_bias),
    Fill("same", "experts without rows, and one with a row of every token", _same, lack=_lacks_bias),
    Fill("refused", "NaN accepted, NaN of a dropped group overlooked, the wrong token reported", _refused),
    Fill("infinite", "a score of +Inf accepted", _infinite, lack=_lacks_bias),
    Fill("roundings", "an operation of the sigmoid that rounds another way", _roundings),
    Fill(STEPS, "a constant of the sigmoid with another last bit", _steps, lack=_lacks_fp32),
    Fill("too-few", "fewer than k experts in the groups that are kept, and no word of it", _too_few, lack=_lacks_bias),
)


#: Fills of sizes and biases that no other one has.
_EDGE_FILLS = ("equal", "twins", "bias-alone", "infinite")
#: Fills that ask for one decision.
_SINGLE = ("negative-ties", "largest", "positive-ties")
#: Fills of which few weights differ.
_IDS_TELL = ("ties", "close", "equal", "negative-ties", "positive-ties")
#: Fills that need more tokens than others, to reach every expert of a lane.
_LONG = ("roundings", STEPS)
_PLAIN = tuple(name for name in _FILLS if name not in (*_EDGE_FILLS, *_SINGLE, *_LONG))


# --- words ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ChosenIds:
    """Expert ids [T, k] as uint32.

    Attributes:
        name: of the stage.
        scores: float32 [T, experts], bias included: what was chosen by.
        top_k: k.
        group: experts of a group.
    """

    name: str
    scores: F32
    top_k: int
    group: int

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `refmoe.families.stages.Stage`."""
        token, choice = divmod(index, self.top_k)
        kernel_text, reference_text = (self._expert(token, expert) for expert in (kernel, reference))
        return f"token {token} choice {choice}: kernel {kernel_text} reference {reference_text}", ""

    def _expert(self, token: int, expert: int) -> str:
        if expert >= self.scores.shape[1]:
            return f"expert 0x{expert:08X}, which does not exist"
        score = number_text(int(self.scores.view(np.uint32)[token, expert]), "f32")
        return f"expert {expert} of group {expert // self.group} (score {score})"

    def plane(self, shape: tuple[int, ...]) -> Plane:
        """Tokens by choices; see `refmoe.families.stages.HasPlane`."""
        return matrix_plane(shape, "token", "choice")


# --- inputs, expectation, run ---------------------------------------------------------------------------------------


def _inputs(case: Case) -> Inputs:
    """Logits over the experts of all ranks, their bias, and the factor on the weights."""
    logits, bias = _FILLS[case.fill].make(Draw("scores", case.fill, case.seed), case)
    with np.errstate(invalid="ignore"):
        rounded = np.ascontiguousarray(logits.astype(VALUE_DTYPES[case.dtype]))
    return {
        "logits": rounded,
        "bias": bias if case.bias == "distinct" else None,
        "scale": np.array([SCALES[case.scale]], np.float32),
    }


def _expect(case: Case, inputs: Inputs) -> Expectation:
    """The reference's choices, weights and maps; tokens without an answer as the kernel's contract has them."""
    top_k = case.shape.t
    scores = sigmoid(inputs["logits"].astype(np.float32))
    if inputs["bias"] is not None:
        with np.errstate(invalid="ignore"):
            scores = (scores + inputs["bias"]).astype(np.float32)
    answered = _answered(case, inputs, scores)
    ids = np.tile(np.arange(top_k, dtype=np.int32), (case.shape.m, 1))
    weights = np.full(ids.shape, _NAN_WEIGHT, np.float32)
    ids[answered], weights[answered] = _routed(case, inputs, answered)
    refused_first = np.flatnonzero(~answered)[:1].astype(np.uint32)
    outputs: dict[str, NDArray[Any]] = {
        "topk_ids": ids.view(np.uint32),
        "topk_weights": weights.view(np.uint32),
        "refused": ~refused_first if refused_first.size else np.zeros(1, np.uint32),
        **maps_of(build_permutation(ids, case.shape.e, case.first_expert)),
    }
    stages = (
        ChosenIds("topk_ids", scores, top_k, scores.shape[1] // case.groups),
        Weights("topk_weights", ids),
        RefusedToken("refused"),
        FirstRows("offsets", case.shape.e),
        ChoiceRows("unpermuted_to_permuted", ids),
        RowChoices("permuted_to_unpermuted", case.shape.m),
    )
    return Expectation(outputs, stages, _doubt(case, scores, ids, weights, answered))


def _routed(case: Case, inputs: Inputs, tokens: Any) -> tuple[NDArray[np.int32], F32]:
    return route_sigmoid_grouped_topk(
        np.ascontiguousarray(inputs["logits"][tokens]),
        inputs["bias"],
        case.shape.t,
        case.groups,
        case.top_groups,
        float(inputs["scale"][0]),
        rule=case.rule,
    )


def _answered(case: Case, inputs: Inputs, scores: F32) -> NDArray[np.bool_]:
    """Tokens whose scores are all below +Inf and of which the groups that are kept have k finite ones."""
    answered = ~(np.isnan(scores) | (scores == np.inf)).any(axis=1)
    if np.isneginf(scores).any():
        for token in np.flatnonzero(answered):
            try:
                _routed(case, inputs, slice(token, token + 1))
            except ArgumentError:
                answered[token] = False
    return np.asarray(answered)


def _doubt(case: Case, scores: F32, ids: NDArray[np.int32], weights: F32, answered: NDArray[np.bool_]) -> str | None:
    """Weights that are alike agree with a kernel that never looks at the scores, and so do groups that drop nobody."""
    if not answered.any():
        return None
    if case.shape.t > 1 and case.fill not in _IDS_TELL:
        found, need = np.unique(weights[answered]).size, min(2 * int(answered.sum()), 4)
        if found < need:
            return f"{found} distinct weights, fewer than {need}: nothing shows of the scores"
    if case.fill != "groups" or case.groups == case.top_groups:
        return None
    without = np.argsort(-scores, axis=1, kind="stable")[:, : case.shape.t]
    if (without == ids).all(axis=1)[answered].all():
        return "no token's choice depends on the groups: a kernel that ignores them would be right"
    return None


def _run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    """Launch the kernels."""
    from refmoe.cuda.deepseek.routing import route_grouped, try_route_grouped

    given = (
        *(inputs["logits"], inputs["bias"], case.shape.t, case.groups, case.top_groups),
        *(float(inputs["scale"][0]), case.shape.e),
    )
    settings: dict[str, Any] = {"rule": case.rule, "first_expert": case.first_expert, "fill": case.poison}
    if case.entry == "function":
        return outputs_of(called(case, route_grouped)(*given, device=device, **settings), None)
    routed, refused_token = called(case, try_route_grouped)(*given, device=device, **settings)
    return outputs_of(routed, refused_token)


def _check(case: Case) -> None:
    """Refuse sizes that the reference does not define.

    Raises:
        ArgumentError: experts that the groups do not share out, more choices than they have, or a rank beyond them.
    """
    _, experts = _size(case)
    if not GROUP_SCORES <= experts <= MAX_EXPERTS:
        raise refused("shape", str(case.shape), f"{GROUP_SCORES} to {MAX_EXPERTS} experts of all ranks")
    if not 1 <= case.groups <= MAX_GROUPS or experts % case.groups or experts // case.groups < GROUP_SCORES:
        needed = f"1 to {MAX_GROUPS} groups of one size, of at least {GROUP_SCORES} experts"
        raise refused("groups", f"{case.groups} of {experts} experts", needed)
    if not 1 <= case.top_groups <= case.groups:
        raise refused("top_groups", str(case.top_groups), f"1 to the {case.groups} groups")
    most = min(case.top_groups * (experts // case.groups), MAX_TOP_K)
    if case.shape.t > most:
        raise refused("shape", str(case.shape), f"t of at most {most}, for {case.top_groups} groups")
    if not 0 <= case.first_expert <= experts - case.shape.e:
        raise refused("first_expert", str(case.first_expert), f"0 to {experts - case.shape.e}")


# --- cases ----------------------------------------------------------------------------------------------------------

#: (experts, choices, groups, groups kept): DeepSeek-V3 and R1; and of one group Kimi K2 and GLM-4.5.
_ROUTERS = ((256, 8, 8, 4), (384, 8, 1, 1), (160, 8, 1, 1))


def _case(
    fill: str, m: int, e: int, t: int, groups: int, top_groups: int, dtype: str = "f32", seed: int = 7, **options: Any
) -> Case:
    options.setdefault("poison", 0x7F)  # of 0xFF the bytes of -1 consist: what is left unwritten would look right
    shape = Shape(m, e=e, t=t)
    return DEEPSEEK_ROUTING.case(fill, shape, dtype, seed, groups=groups, top_groups=top_groups, **options)


def _quick() -> Iterator[Case]:
    yield _case("gaussian", 1, *_ROUTERS[0])  # decode
    yield _case("gaussian", 1, *_ROUTERS[0], rule="trtllm")
    for number_of, fill in enumerate(_PLAIN):
        yield _case(fill, 17, 48, 4, 6, 3, dtype=("f32", "bf16")[number_of % 2])
        yield _case(fill, 9, 40, 5, 4, 2, dtype=("bf16", "f32")[number_of % 2], rule="trtllm", scale="third")
    yield _case("gaussian", 5, 66, 7, 3, 2, bias="none", scale="1")  # groups that no slot begins with
    yield _case("gaussian", 5, 15, 7, 5, 3)  # fewer experts than lanes
    yield _case("groups", 12, 64, 32, 32, 16)  # as many groups and choices as there may be, two experts each
    yield _case("gaussian", 9, 16, 4, 8, 4, first_expert=16, ranks=3)
    yield _case("gaussian", 3, 2, 1, 1, 1, dtype="bf16")


def _default() -> Iterator[Case]:
    yield _case("gaussian", 3, 1, 2, 4, 2, first_expert=5, ranks=8)  # a rank of one expert
    for number_of, fill in enumerate(_PLAIN):
        for rule in RULES:
            yield _case(fill, 10, *_ROUTERS[0], dtype=("f32", "bf16")[number_of % 2], rule=rule)
    for m in (2, 8, 64, 130):
        yield _case("gaussian", m, *_ROUTERS[0])
    yield _case("gaussian", 3, *_ROUTERS[0], schedules=8)
    yield _case("groups", 40, *_ROUTERS[0], dtype="bf16")
    for router, m in product(_ROUTERS[1:], (1, 9)):
        yield _case("gaussian", m, *router, rule="trtllm" if m == 1 else "deepseek")
        yield _case("close", m + 2, *router)
    yield _case("gaussian", 9, 64, 8, 8, 4, ranks=4)  # DeepSeek-V3 on four ranks, the first
    yield _case("groups", 6, 512, 10, 16, 5, scale="third")
    yield _case("groups", 9, 512, 6, 4, 2)  # two groups of four, each with four experts a lane
    for router, dtype in product((*_ROUTERS, (99, 5, 3, 2)), ("f32", "bf16")):
        for fill in _EDGE_FILLS:
            yield _case(fill, 9, *router, dtype=dtype, rule=RULES[dtype == "bf16"])
    for dtype in ("f32", "bf16"):
        yield _case("twins", 6, 512, 6, 8, 4, dtype=dtype)  # groups of which each lane has two experts
    for m in (15, 16, 17, 31, 32, 33):  # tokens of a CTA and of a warp, and one less and more
        yield _case("same", m, *_ROUTERS[0])
    for rule in RULES:
        yield _case("gaussian", 3, 40, 5, 4, 2, rule=rule, scale="minus")
        for experts in (256, 512):
            yield _case("gaussian", 3, experts, 6, 8, 4, rule=rule, scale="tiny")
        for experts, dtype in product((256, 512), ("f32", "bf16")):  # as many choices as a warp has lanes
            yield _case("gaussian", 2, experts, 32, 8, 4, rule=rule, dtype=dtype)
    # More choices than 2^16, and than 2^17: as many as one long prompt has; and tokens themselves past 2^16.
    for rule, dtype in zip(RULES, ("f32", "bf16"), strict=True):
        yield _case("gaussian", 16_500, 16, 8, 4, 3, rule=rule, dtype=dtype)
    yield _case("gaussian", 65_600, 8, 1, 2, 1, dtype="bf16")
    yield _case("gaussian", 0, *_ROUTERS[0])
    # Each entry has machine code of its own: each meets every fill. More than 256 experts take the wider ones.
    for fill, dtype, rule in product(_PLAIN, ("f32", "bf16"), RULES):
        for experts in (256, 512):
            yield _case(fill, 9, experts, 6, 8, 4, dtype=dtype, rule=rule)
    for fill, dtype, rule in product(_SINGLE, ("f32", "bf16"), RULES):
        for experts in (256, 512):
            yield _case(fill, 4, experts, 6, 8, 4, dtype=dtype, rule=rule)
    for dtype, rule, experts in product(("f32", "bf16"), RULES, (256, 512)):
        yield _case("gaussian", 2, experts, 32, 8, 4, dtype=dtype, rule=rule)  # a choice for each lane
        yield _case("roundings", 40, experts, 6, 8, 4, dtype=dtype, rule=rule, scale="1")
    yield _case("gaussian", 3, 8, 2, 4, 2, entry="function")
    for rule, experts in product(RULES, (256, 512)):
        yield _case(STEPS, 94, experts, 6, 8, 4, rule=rule, scale="1")


def _full() -> Iterator[Case]:
    routers = (*_ROUTERS, (512, 22, 32, 9), (72, 6, 6, 2), (33, 9, 3, 2), (8, 8, 4, 4))
    for seed, fill, dtype, rule, router in product((1, 2), _FILLS, ("f32", "bf16"), RULES, routers):
        if fill == STEPS:  # its few logits show nothing beside one another, but by a scale of 1
            continue
        for m in (9, 33):  # fewer tokens may all keep what they would without groups
            yield _case(fill, m, *router, dtype=dtype, seed=seed, rule=rule)
    for seed, rule, experts in product((1, 2), RULES, (256, 512)):
        yield _case(STEPS, 94, experts, 6, 8, 4, seed=seed, rule=rule, scale="1")
    for t in range(1, 33):
        yield _case("gaussian", 33, 128, t, 8, 4)
    yield _case("gaussian", 8192, *_ROUTERS[0])
    yield _case("ties", 8192, *_ROUTERS[0], dtype="bf16")


_CHANGES: Mapping[str, Change] = {
    "logits-many_tokens": lambda given: {"logits": huge((1 << 26, given["logits"].shape[1]), given["logits"])},
    "num_experts_local-past_all": lambda given: {"num_experts_local": 17, "first_expert": 0},
    "logits-many_choices": lambda given: {
        **{"logits": huge(((1 << 26) - 1, 64), given["logits"]), "bias": None, "k": 32},
        **{"groups": 1, "top_groups": 1},
    },
}


def _refuses() -> Iterator[Case]:
    yield from wrong_calls(
        _case("gaussian", 3, 8, 2, 4, 2, first_expert=8, ranks=2),
        {"logits-many_tokens": "threads", "logits-many_choices": "rows after expansion and threads"},
        logits=f"{ARRAY} flat no_columns many_tokens many_choices",
        bias=f"{ARRAY} short",
        k="zero text flag int32",
        groups="zero text number int32",
        top_groups="zero text int32",
        scale="nan infinite text flag",
        num_experts_local="zero text flag past_all int32",
        rule="word",
        first_expert="negative fraction past huge",
        fill=BYTE,
    )


DEEPSEEK_ROUTING = Family(
    name="deepseek_routing",
    about="The experts of each token by sigmoid top-k over groups, their weights, and the row of each choice.",
    dtypes=("f32", "bf16"),
    sizes="met",
    fills=_FILLS,
    options=(
        number("groups", 8),
        number("top_groups", 4),
        word("rule", *RULES, fixed=True),
        word("scale", *SCALES),
        word("bias", "distinct", "none"),
        *(*RANKS, ENTRY, SCHEDULES, POISON, WRONG),
    ),
    inputs=_inputs,
    expect=_expect,
    run=_run,
    extents=routing_extents,
    cases={"quick": _quick, "default": _default, "full": _full},
    refuses=_refuses,
    changes=_CHANGES,
    contract=Contract(
        inputs=("logits", "bias", "scale"),
        features=("bias",),
        outputs={
            **{"topk_ids": "", "topk_weights": "float32", "refused": "", "offsets": ""},
            **{"unpermuted_to_permuted": "", "permuted_to_unpermuted": ""},
        },
        settings={**ROUTED, "groups": "groups", "top_groups": "top_groups", "rule": "rule"},
        refusal="refused",
    ),
    sources=("deepseek_routing", "routing"),
    host=("refmoe.cuda.deepseek.routing",),
    invariance="deepseek_moe",
    check=_check,
    group="deepseek",
)
