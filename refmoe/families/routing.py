"""The family `routing`: the experts of each token, their weights, and the maps of rows.

topk_ids[5, 1]  token 5 choice 1: kernel expert 9 (logit 0x3FC00000 (1.5)) reference expert 4 (logit 0x3FC00000 (1.5))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.case import SCHEDULES, Shape, refused, word
from refmoe.families.choices import RANKS, ROUTED, ROUTING, check_choices, expert_ids
from refmoe.families.extents import routing_extents
from refmoe.families.family import POISON, Case, Contract, Expectation, Family, Fill, Inputs, Outputs
from refmoe.families.far import ROWS_BEFORE, FirstFarDevice, Layout, check_before, far_device, lacks_memory, of_rows
from refmoe.families.stages import Plane, matrix_plane
from refmoe.families.wrong import ARRAY, BYTE, WRONG, Change, called, huge, wrong_calls
from refmoe.numbers_as_text import VALUE_DTYPES, compared_text, number_text
from refmoe.reference.expand import Permutation, build_permutation
from refmoe.reference.routing import route_softmax_topk

if TYPE_CHECKING:
    from refmoe.cuda.device import Device
    from refmoe.cuda.routing import Permuted, Routed

FloatArray = NDArray[np.float32]

_NONE = 0xFFFFFFFF  # -1, as a bit pattern
_NAN_WEIGHT = np.array(0x7FFFFFFF, np.uint32).view(np.float32)

# --- fills ----------------------------------------------------------------------------------------------------------
# make(draw, tokens, experts, k) gives float32 logits [tokens, experts]. Everything is made of integers and powers of
# two, or of `Draw.normal`: no libm decides a bit.


def _gaussian_logits(draw: Draw, tokens: int, experts: int, k: int) -> FloatArray:
    return (draw.normal((tokens, experts)) * 2).astype(np.float32)


def _tied_logits(draw: Draw, tokens: int, experts: int, k: int) -> FloatArray:
    """About k / 2 experts with the largest value, as many with the next: now the one, now the other is cut by k."""
    place = draw.integers(experts, (tokens, experts))
    return np.select([place < k / 2, place < k, place < 3 * k], [2, 0.5, -0.25], -1.5).astype(np.float32)


def _negative_logits(draw: Draw, tokens: int, experts: int, k: int) -> FloatArray:
    return (-1 - np.abs(draw.normal((tokens, experts))) * 8).astype(np.float32)


def _zero_logits(draw: Draw, tokens: int, experts: int, k: int) -> FloatArray:
    """Zeros of either sign, more than k; about k / 2 experts with subnormals above them, others below."""
    place = draw.integers(experts, (tokens, experts))
    least = 2.0**-126  # the least normal number, which BF16 has too
    zeros = np.where(draw.integers(2, place.shape) == 0, 0.0, -0.0)
    return np.select([place < k / 2, place > experts * 3 // 4], [least / 64, -least / 64], zeros).astype(np.float32)


def _wide_logits(draw: Draw, tokens: int, experts: int, k: int) -> FloatArray:
    """Far enough apart for the lower ranks' exponentials to be subnormal or zero."""
    return (draw.normal((tokens, experts)) * 60).astype(np.float32)


def _close_logits(draw: Draw, tokens: int, experts: int, k: int) -> FloatArray:
    """A few of BF16's units apart, on both sides of a binade's border, either sign for a whole token.

    More experts have more values to choose from: of a dozen, all k chosen would be the largest one.
    """
    values = max(12, experts // 2)
    patterns = 0x4000 + draw.integers(values, (tokens, experts)) - values // 2 | draw.integers(2, (tokens, 1)) << 15
    return (patterns.astype(np.uint32) << 16).view(np.float32)


def _never_logits(draw: Draw, tokens: int, experts: int, k: int) -> FloatArray:
    """-Inf but for a few more than k experts of each token."""
    order = np.argsort(draw.words(tokens * experts).reshape(tokens, experts), axis=1, kind="stable")
    ranked = np.argsort(order, axis=1, kind="stable")
    return np.where(ranked < k + 2, _negative_logits(draw, tokens, experts, k), -np.inf).astype(np.float32)


def _same_logits(draw: Draw, tokens: int, experts: int, k: int) -> FloatArray:
    """The last k experts far ahead of all others, in an order of each token's own."""
    logits = _gaussian_logits(draw, tokens, experts, k)
    logits[:, experts - k :] += 100
    return logits


def _equal_logits(draw: Draw, tokens: int, experts: int, k: int) -> FloatArray:
    """One value for all experts of a token, but for fewer than k that lead: the rest of the choices tie over all lanes.

    The value is a zero of either sign, a subnormal number, or an ordinary one.
    """
    values = np.array([0.0, -0.0, 2.0**-130, -(2.0**-130), 3.5, -3.5], np.float32)
    logits = np.repeat(values[np.arange(tokens) % values.size][:, None], experts, axis=1)
    ahead = np.argsort(draw.words(tokens * experts).reshape(tokens, experts), axis=1, kind="stable")
    for token in range(tokens):
        logits[token, ahead[token, : token % k]] += 1 + np.arange(token % k)
    return logits


#: Differences of logits of which the exponential has other bits if a constant of it has another last bit, or another
#: threshold: of 10^8 that were tried some for each constant but the last digits of ln 2, with which none changed. The
#: first seven are small, so that the sum of their token leaves the least subnormal number a weight.
_EXPONENTS = (
    *("-0x1.9fe368p+6", "-0x1.9fe366p+6", "-0x1.9fe36ap+6"),
    *("-16.982107162475586", "-18.317623138427734", "-19.699970245361328", "-12.930776596069336"),
    *("-11.436927795410156", "-10.050633430480957", "-12.823222160339355"),
    *("-0.7684872150421143", "-10.371408462524414", "-1.8416657447814941"),
    *("-1.76425302028656", "-0.9422624111175537", "-3.733013391494751", "-2.328556776046753"),
    *("-3.814624071121216", "-5.879952907562256", "-6.5731000900268555", "-0.3427959978580475"),
    *("-6.464328765869141", "-12.674161911010742", "-5.281101226806641"),
    *("-0.31456321477890015", "-0.99099200963974", "-0.1134229302406311"),
    *("-7.9603776931762695", "-3.0634939670562744", "-10.731844902038574"),
    *("-0.15096229314804077", "-0.32267776131629944", "-0.9246691465377808"),
    *("-1.0426751375198364", "-0.21398012340068817"),
)


def _exponent_logits(draw: Draw, tokens: int, experts: int, k: int) -> FloatArray:
    """Next to a logit of 0 what `_EXPONENTS` has, k - 1 of it a token, and nothing else that is chosen."""
    listed = np.array([float.fromhex(each) if "x" in each else float(each) for each in _EXPONENTS], np.float32)
    order = np.argsort(draw.words(tokens * experts).reshape(tokens, experts), axis=1, kind="stable")
    logits = np.full((tokens, experts), -np.inf, np.float32)
    numbers = np.arange(tokens)[:, None] * (k - 1) + np.arange(k - 1)
    np.put_along_axis(logits, order[:, :1], np.float32(0), axis=1)
    np.put_along_axis(logits, order[:, 1:k], listed[numbers % listed.size], axis=1)
    return logits


def _largest_logits(draw: Draw, tokens: int, experts: int, k: int) -> FloatArray:
    """The largest number of BF16 for 1 to k experts of a token, its negative for all others but a few of -Inf.

    So weights are fractions, and a token with fewer than k leading experts takes others that are just above -Inf.
    """
    largest = np.float32((2 - 2.0**-7) * 2.0**127)
    order = np.argsort(draw.words(tokens * experts).reshape(tokens, experts), axis=1, kind="stable")
    ranked = np.argsort(order, axis=1, kind="stable")
    leading = ranked < 1 + np.arange(tokens)[:, None] % k
    logits: FloatArray = np.select([leading, ranked < k + 2], [largest, -largest], -np.inf).astype(np.float32)
    return logits


def _rotating_logits(draw: Draw, tokens: int, experts: int, k: int) -> FloatArray:
    """Token t prefers expert t modulo their number, and then the next ones: each expert has every so many choices."""
    behind: FloatArray = ((np.arange(experts) - np.arange(tokens)[:, None]) % experts).astype(np.float32)
    return -behind


def _refused_logits(draw: Draw, tokens: int, experts: int, k: int) -> FloatArray:
    """All but every fifth token is without an answer: NaN of either sign, +Inf, too few that are finite."""
    logits = _gaussian_logits(draw, tokens, experts, k)
    place = draw.integers(experts, (tokens,))
    kinds = np.array([0, 0x7FC00000, 0xFFC00000, 0x7F800000], np.uint32).view(np.float32)
    for token in range(tokens):
        kind = token % 5
        if kind in (1, 2, 3):
            logits[token, place[token]] = kinds[kind]
        elif kind == 4:
            logits[token, k - 1 :] = -np.inf
    return logits


#: The fill of choices that are given, which the option `routing` makes: dtype "ids".
_GIVEN = "given"

_FILLS = Fill.by_name(
    Fill("gaussian", "a softmax over other experts, in another order, or fused", _gaussian_logits),
    Fill("ties", "a tie that goes to another than the lowest index", _tied_logits),
    Fill("negative", "logits compared as signed bits, padding chosen", _negative_logits),
    Fill("signed-zeros", "-0 told from +0, subnormals flushed", _zero_logits),
    Fill("wide", "an exponential that flushes or is clamped", _wide_logits),
    Fill("close", "logits compared with fewer bits", _close_logits),
    Fill("never", "-Inf chosen, or taken for padding", _never_logits),
    Fill("same", "experts without rows, and one with a row of every token", _same_logits),
    Fill("equal", "a tie over more than a warp that goes to another than the lowest index", _equal_logits),
    Fill("exponents", "a constant of the exponential with another last bit, another threshold", _exponent_logits),
    Fill("largest", "the largest numbers taken for infinities", _largest_logits),
    Fill("rotating", "an expert's choices lost that have the same place in every group", _rotating_logits),
    Fill("refused", "NaN or +Inf accepted, -Inf chosen, the wrong token reported", _refused_logits),
    Fill(_GIVEN, "a map or an offset of another expert, token or choice", expert_ids),
)
_LOGITS = tuple(name for name in _FILLS if name not in (_GIVEN, "equal", "exponents", "largest", "rotating"))

#: No bias; ordinary numbers; zeros of either sign and subnormal ones; numbers but for some that are -Inf; numbers but
#: for one that is Inf, with which no token has an answer.
_BIAS = word("bias", "none", "distinct", "tiny", "never", "infinite", "minus-zero")
#: FP32 bits: zeros, the least and the largest subnormal numbers, of either sign.
_TINY_BIAS = np.array([0, 0x80000000, 1, 0x80000001, 0x007FFFFF, 0x807FFFFF], np.uint32).view(np.float32)


def _router_bias(case: Case, experts: int) -> FloatArray | None:
    """float32 [experts] as the option `bias` says, or None."""
    if case.bias == "none":
        return None
    if case.bias == "minus-zero":  # beside a logit of -0 the sum is -0, beside one of +0 it is not
        return np.full(experts, -0.0, np.float32)
    if case.bias == "tiny":
        return np.asarray(_TINY_BIAS[Draw("tiny-router-bias", case.seed).integers(_TINY_BIAS.size, (experts,))])
    bias = (Draw("router-bias", case.seed).normal((experts,)) * 0.7).astype(np.float32)
    if case.bias == "never":
        # As many are left as a token chooses, and two more.
        order = np.argsort(Draw("never-router-bias", case.seed).words(experts), kind="stable")
        bias[order[case.shape.t + 2 :]] = -np.inf
    if case.bias == "infinite":
        bias[experts * 2 // 3] = np.inf
    return bias


# --- words ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ChoiceIds:
    """Expert ids [T, k] as uint32.

    Attributes:
        name: of the stage.
        logits: float32 [T, experts], bias included: what was chosen by.
        top_k: k.
    """

    name: str
    logits: NDArray[np.float32]
    top_k: int

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `refmoe.families.stages.Stage`."""
        token, choice = divmod(index, self.top_k)
        kernel_text, reference_text = (self._expert(token, expert) for expert in (kernel, reference))
        return f"token {token} choice {choice}: kernel {kernel_text} reference {reference_text}", ""

    def _expert(self, token: int, expert: int) -> str:
        if expert >= self.logits.shape[1]:
            return f"expert 0x{expert:08X}, which does not exist"
        return f"expert {expert} (logit {number_text(int(self.logits.view(np.uint32)[token, expert]), 'f32')})"

    def plane(self, shape: tuple[int, ...]) -> Plane:
        """Tokens by choices; see `refmoe.families.stages.HasPlane`."""
        return matrix_plane(shape, "token", "choice")


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights [T, k] as uint32; `ids` are the reference's experts, int32 [T, k]."""

    name: str
    ids: NDArray[np.int32]

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `refmoe.families.stages.Stage`."""
        token, choice = divmod(index, self.ids.shape[1])
        place = f"token {token} choice {choice} (expert {self.ids[token, choice]})"
        return f"{place}: {compared_text(kernel, reference, 'f32')}", ""

    def plane(self, shape: tuple[int, ...]) -> Plane:
        """Tokens by choices; see `refmoe.families.stages.HasPlane`."""
        return matrix_plane(shape, "token", "choice")


@dataclass(frozen=True, eq=False)
class RefusedToken:
    """The complement of the first token without an answer, uint32 [1], 0 for none."""

    name: str

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `refmoe.families.stages.Stage`."""
        texts = [f"token {~word & _NONE}" if word else "no token" for word in (kernel, reference)]
        return f"the first token without an answer: kernel {texts[0]} reference {texts[1]}", ""


@dataclass(frozen=True, eq=False)
class FirstRows:
    """First rows of `experts` local experts and the rows in use, uint64 [E+1]."""

    name: str
    experts: int

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `refmoe.families.stages.Stage`."""
        what = "the rows in use" if index == self.experts else f"the first row of local expert {index}"
        return f"{what}: kernel {kernel} reference {reference}", ""


@dataclass(frozen=True, eq=False)
class ChoiceRows:
    """The row of each choice, at token + choice * T, uint32 [T*k]; `ids` are the experts, int32 [T, k]."""

    name: str
    ids: NDArray[np.int32]

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `refmoe.families.stages.Stage`."""
        choice, token = divmod(index, self.ids.shape[0])
        texts = ["no row" if row == _NONE else f"row {row}" for row in (kernel, reference)]
        place = f"token {token} choice {choice} (expert {self.ids[token, choice]})"
        return f"{place}: kernel {texts[0]} reference {texts[1]}", ""


@dataclass(frozen=True, eq=False)
class RowChoices:
    """The choice of each row, uint32 [T*k], of `tokens` tokens."""

    name: str
    tokens: int

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `refmoe.families.stages.Stage`."""
        return f"row {index}: kernel {self._choice(kernel)} reference {self._choice(reference)}", ""

    def _choice(self, entry: int) -> str:
        if entry == _NONE:
            return "nobody's"
        choice, token = divmod(entry, self.tokens)
        return f"token {token} choice {choice}"


# --- inputs, expectation, run ---------------------------------------------------------------------------------------


def _inputs(case: Case) -> Inputs:
    """Logits over the experts of all ranks and their bias; or, of dtype "ids", the choices themselves."""
    shape, experts = case.shape, case.shape.e * case.ranks
    if case.dtype == "ids":
        return {"topk_ids": expert_ids(case)}
    logits = _FILLS[case.fill].make(Draw("logits", case.fill, case.seed), shape.m, experts, shape.t)
    with np.errstate(invalid="ignore"):
        rounded = logits.astype(VALUE_DTYPES[case.dtype])
    return {"logits": rounded, "bias": _router_bias(case, experts)}


def _expect(case: Case, inputs: Inputs) -> Expectation:
    """The reference's choices, weights and maps; tokens without an answer as the kernel's contract has them."""
    if case.dtype == "ids":
        ids = inputs["topk_ids"]
        return Expectation(*_expected_maps(case, ids), None)
    logits = _biased(inputs)
    answered = _answered(logits, case.shape.t)
    ids = np.tile(np.arange(case.shape.t, dtype=np.int32), (case.shape.m, 1))
    weights = np.full(ids.shape, _NAN_WEIGHT, np.float32)
    ids[answered], weights[answered] = route_softmax_topk(inputs["logits"][answered], case.shape.t, bias=inputs["bias"])
    refused = np.flatnonzero(~answered)[:1].astype(np.uint32)
    outputs: dict[str, NDArray[Any]] = {
        "topk_ids": ids.view(np.uint32),
        "topk_weights": weights.view(np.uint32),
        "refused": ~refused if refused.size else np.zeros(1, np.uint32),
    }
    stages = (ChoiceIds("topk_ids", logits, case.shape.t), Weights("topk_weights", ids), RefusedToken("refused"))
    maps, map_stages = _expected_maps(case, ids)
    return Expectation({**outputs, **maps}, (*stages, *map_stages), _doubt_weights(case, weights, answered))


def _biased(inputs: Inputs) -> NDArray[np.float32]:
    """What is chosen by: written apart from the reference."""
    logits: NDArray[np.float32] = inputs["logits"].astype(np.float32)
    with np.errstate(invalid="ignore"):
        return logits if inputs["bias"] is None else (logits + inputs["bias"]).astype(np.float32)


def _answered(logits: NDArray[np.float32], k: int) -> NDArray[np.bool_]:
    """Tokens with neither NaN nor +Inf and at least k numbers."""
    rejected = np.isnan(logits) | (logits == np.inf)
    answered: NDArray[np.bool_] = ~rejected.any(axis=1) & (np.isfinite(logits).sum(axis=1) >= k)
    return answered


def _expected_maps(case: Case, ids: NDArray[np.int32]) -> tuple[dict[str, NDArray[Any]], tuple[Any, ...]]:
    stages = (
        FirstRows("offsets", case.shape.e),
        ChoiceRows("unpermuted_to_permuted", ids),
        RowChoices("permuted_to_unpermuted", case.shape.m),
    )
    return maps_of(build_permutation(ids, case.shape.e, case.first_expert)), stages


def _doubt_weights(case: Case, weights: NDArray[np.float32], answered: NDArray[np.bool_]) -> str | None:
    """Weights that are all alike would agree with those of a kernel that never looks at the logits."""
    if case.shape.t == 1 or not answered.any() or case.fill in ("signed-zeros", "equal"):
        return None  # one weight is 1, and so are the exponentials of numbers next to zero: the ids tell there
    found = np.unique(weights[answered]).size
    need = min(2 * int(answered.sum()), 4)
    return f"{found} distinct weights, fewer than {need}: nothing shows of the softmax" if found < need else None


def _far(case: Case, inputs: Inputs) -> Layout:
    """Where tokens lie in the buffers of the launch that chooses; a CTA takes eight of them."""
    logits = inputs["logits"]
    row_bytes = {"logits": logits.shape[1] * logits.itemsize, "topk_ids": 4, "topk_weights": 4, "chosen": 2}
    return replace(of_rows(case, row_bytes), tiles_before=int(case.rows_before) // 8)


def _run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    """Launch the kernels."""
    from refmoe.cuda import routing

    placed = {"first_expert": case.first_expert, "fill": case.poison}
    if case.dtype == "ids":
        return maps_of(called(case, routing.permute)(inputs["topk_ids"], case.shape.e, device=device, **placed))
    given = (inputs["logits"], case.shape.t, case.shape.e)
    device = far_device(case, device, _far(case, inputs), FirstFarDevice)
    if case.entry == "function":
        return outputs_of(called(case, routing.route)(*given, device=device, bias=inputs["bias"], **placed), None)
    routed, refused = called(case, routing.try_route)(*given, device=device, bias=inputs["bias"], **placed)
    return outputs_of(routed, refused)


def outputs_of(routed: Routed, refused: int | None) -> Outputs:
    """What routing kernels give, as bit patterns: ids, weights, the token that was refused, or none, and the maps."""
    return {
        "topk_ids": _as_type(routed.topk_ids, np.int32).view(np.uint32),
        "topk_weights": _as_type(routed.topk_weights, np.float32).view(np.uint32),
        "refused": np.array([0 if refused is None else ~refused & 0xFFFFFFFF], np.uint32),
        **maps_of(routed),
    }


def maps_of(permuted: Permuted | Permutation) -> dict[str, NDArray[Any]]:
    """The kernel's maps, or the reference's, as bit patterns."""
    return {
        "offsets": _as_type(permuted.offsets, np.int64).view(np.uint64),
        "unpermuted_to_permuted": _as_type(permuted.unpermuted_to_permuted, np.int32).view(np.uint32),
        "permuted_to_unpermuted": _as_type(permuted.permuted_to_unpermuted, np.int32).view(np.uint32),
    }


def _as_type(array: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """The array, which is of this type.

    Raises:
        TypeError: it is of another one.
    """
    return array.astype(dtype, casting="no", copy=False)


def _check(case: Case) -> None:
    given = case.fill == _GIVEN
    if given != (case.dtype == "ids"):
        raise refused("fill", case.fill, f"{_GIVEN} for dtype ids, and for no other")
    if not given and case.routing != "uniform":
        raise refused("routing", case.routing, f"dtype ids and the fill {_GIVEN} with it: logits choose for themselves")
    if given and case.bias != "none":
        raise refused("bias", case.bias, "logits with it: given ids have no bias")
    check_choices(case)
    check_before(case)
    if case.rows_before and (given or case.shape.m <= _FEW or case.shape.m % 8):
        raise refused("rows_before", str(case.rows_before), f"logits of more than {_FEW} tokens, whole groups of 8")


# --- cases ----------------------------------------------------------------------------------------------------------

#: Tokens that one CTA still routes and sorts, and one more, which takes two launches.
_FEW, _MANY = 16, 17

#: (experts, experts per token) of gpt-oss-20b, gpt-oss-120b and DeepSeek-V3.
_ROUTERS = ((32, 4), (128, 4), (256, 8))


#: Whether by the function that gives the first token without an answer, or by the one that refuses it.
ENTRY = word("entry", "try", "function", launch=True)


def _route(fill: str, m: int, e: int, t: int, dtype: str = "f32", seed: int = 7, **options: Any) -> Case:
    options.setdefault("poison", 0x7F)  # of 0xFF the bytes of -1 consist: what is left unwritten would look right
    return ROUTE.case(fill, Shape(m, e=e, t=t), dtype, seed, **options)


def _quick() -> Iterator[Case]:
    yield _route("gaussian", 1, 128, 4, bias="distinct")  # decode
    for fill, m in product(_LOGITS, (_FEW, _MANY)):
        yield _route(fill, m, 40, 4, dtype="bf16" if m == _MANY else "f32")
    yield _route("close", 5, 250, 3, bias="distinct")  # a k that is no multiple of 4, experts that are none of 32
    # As many choices a token as there may be, and experts for as many logits a lane; nearly all live on other ranks, as
    # each one here takes a CTA, and few tokens compare every choice with every other.
    yield _route("gaussian", 17, 25, 32, dtype="bf16", bias="distinct", first_expert=250, ranks=40)
    yield _route("ties", 3, 25, 32, first_expert=975, ranks=40)
    yield _route("gaussian", 9, 16, 4, first_expert=16, ranks=3, bias="distinct")
    yield _route("gaussian", 40, 16, 4, first_expert=32, ranks=3)
    yield _route("gaussian", 3, 1, 1)
    for m in (1, 9, 70):
        yield _route("given", m, 16, 2, dtype="ids")
    yield _route("given", 70, 16, 4, dtype="ids", routing="empty-experts")
    yield _route("given", 70, 16, 3, dtype="ids", routing="same-experts")
    yield _route("given", 9, 4, 3, dtype="ids", first_expert=4, ranks=3)
    yield _route("given", 9, 4, 2, dtype="ids", routing="elsewhere", first_expert=4, ranks=2)
    yield _route("given", 16, 9, 4, dtype="ids", ranks=3)  # as many choices as one CTA sorts, on the first rank
    yield _route("given", 13, 16, 5, dtype="ids")  # one more


def _default() -> Iterator[Case]:
    for m in (3, _FEW, _MANY):
        yield _route("gaussian", m, 12, 3, schedules=8)
    # More choices than 32 warps look at in 16 steps each, of a whole layer and of one rank of five.
    yield _route("gaussian", 16_500, 9, 8)
    yield _route("gaussian", 4104, 8, 32, ranks=5)
    # Choices of the expert in front of a rank's first one, which no byte counts.
    yield _route("gaussian", 17, 130, 32, first_expert=130, ranks=2)
    for m in (8, 70):  # given experts whose ids, and ids on this rank, are past 2^15
        yield _route("given", m, 8, 2, dtype="ids", first_expert=40_000, ranks=5002, routing="same-experts")
    yield _route("given", 8, 40_000, 4, dtype="ids")
    for dtype in ("f32", "bf16"):  # logits past the 2^31st: of 2^32 the executor could not number the threads
        yield _route("gaussian", 24, 1024, 1, dtype=dtype, rows_before=1 << 21)
    for e, t in _ROUTERS:
        for m in (1, 2, 8, _FEW, _MANY, 64):
            yield _route("gaussian", m, e, t, bias="distinct")
            if m > 2:  # fewer tokens may all have the same weights
                yield _route("ties", m, e, t, dtype="bf16")
        for first in (0, e // 4):  # the first two of four ranks
            yield _route("gaussian", 9, e // 4, t, first_expert=first, ranks=4)
    for fill, dtype, m in product(_LOGITS, ("f32", "bf16"), (_FEW, 100)):
        yield _route(fill, m, 72, 6, dtype=dtype, bias="distinct" if fill != "signed-zeros" else "none")
    for number, (e, t) in enumerate((*_ROUTERS, (99, 5))):
        for m in (_FEW, _MANY):
            yield _route("equal", m, e, t, dtype=("f32", "bf16")[(number + m) % 2])
            # Subnormal terms decide between zeros; most experts are never chosen.
            yield _route("signed-zeros", m, e, t, bias="tiny")
            yield _route("gaussian", m, e, t, bias="never", dtype=("f32", "bf16")[(number + m) % 2])
            yield _route("given", m, e, t, dtype="ids")
        yield _route("given", 2, e, t, dtype="ids")
    for m, dtype in product((1, _FEW, _MANY), ("f32", "bf16")):
        yield _route("gaussian", m, 40, 4, dtype=dtype, bias="infinite")
    for m in (5, _MANY):
        yield _route("exponents", m, 40, 8)
    for (m, experts), dtype in product(((5, 40), (5, 1000), (_MANY, 40)), ("f32", "bf16")):
        yield _route("largest", m, experts, 4, dtype=dtype)
    # A warp counts 1024 choices, and a lane 32 of them: of each an expert's is the first one, the second one, ...
    yield _route("rotating", 1024, 2, 32, ranks=16)
    # As many choices of one CTA as there may be.
    for dtype in ("f32", "bf16"):
        yield _route("gaussian", _FEW, 40, 32, dtype=dtype)
        yield _route("signed-zeros", 5, 40, 4, dtype=dtype, bias="minus-zero")
    # As many experts as there may be.
    yield _route("gaussian", 3, 1024, 4)
    # Choices that are counted eight at a time, four, two and one: 15 of them, in each entry.
    for experts, dtype in product((40, 250, 1000), ("f32", "bf16")):
        yield _route("gaussian", 3, experts, 5, dtype=dtype)
    yield _route("ties", _MANY, 64, 8, dtype="bf16", first_expert=960, ranks=16)
    # More rows that no expert here has than threads, which all belong to one expert; tokens too.
    yield _route("given", 3000, 1, 3, dtype="ids", first_expert=3, ranks=8)
    yield _route("equal", 9, 40, 4, bias="tiny")
    for m in (31, 32, 33, 1023, 1024, 1025):  # a warp's tokens, a CTA's threads, and one less and more
        yield _route("given", m, 9, 3, dtype="ids")
    # One and two choices behind those that a loop takes at once, and three.
    for m, experts, dtype in product((1, 3, 7), (100, 250, 1000), ("f32", "bf16")):
        yield _route("gaussian", m, experts, 2 if m == 3 else 1, dtype=dtype)
    yield _route("given", 66_000, 3, 2, dtype="ids")  # more than 65,536 rows
    yield _route("given", 2100, 3, 1, dtype="ids", routing="same-experts")  # all at one expert
    yield _route("gaussian", 0, 128, 4)
    yield _route("gaussian", 3, 8, 2, entry="function")
    yield _route("given", 0, 128, 4, dtype="ids")
    for m in (6, 40):
        yield _route("given", m, 8, 3, dtype="ids", routing="unset")
    yield _route("given", 7, 4, 2, dtype="ids", routing="unset", first_expert=4, ranks=2)
    yield _route("given", 5, 600, 3, dtype="ids")  # more experts than a CTA that sorts few has threads
    yield _route("given", 1100, 8, 4, dtype="ids")  # more tokens than a CTA has threads
    yield _route("given", 8225, 5, 4, dtype="ids")  # more than the registers of a CTA hold, by 33
    for first in (0, 8):
        yield _route("given", 1500, 8, 5, dtype="ids", first_expert=first, ranks=4)
    yield _route("given", 32, 128, 4, dtype="ids", routing="all-one-token")
    yield _route("same", 1100, 12, 4)
    for m in (23, 24, 25, 255, 256, 257):  # the choices of a load, of a warp's step, and one less and more
        yield _route("gaussian", m, 9, 1)
    # More choices than the registers of a CTA hold, of which all or half belong to this rank.
    yield _route("gaussian", 1100, 40, 32)
    yield _route("gaussian", 1100, 20, 32, first_expert=20, ranks=2)
    # The first of several ranks, which begins where a whole layer does.
    yield _route("gaussian", 700, 8, 4, ranks=4)
    # One expert here, whose CTA has fewer threads than there are rows without an expert.
    yield _route("ties", 40, 1, 4, dtype="bf16", ranks=8)
    yield _route("gaussian", 33, 1, 4, first_expert=3, ranks=8)
    yield _route("ties", 300, 600, 3)
    # Each entry has machine code of its own: each meets every fill, with more choices than are unrolled.
    for fill, dtype, m, experts in product(_LOGITS, ("f32", "bf16"), (_FEW, _MANY), (250, 1000)):
        bias = "none" if fill == "signed-zeros" else "distinct"
        yield _route(fill, m, experts, 11, dtype=dtype, bias=bias)
    # Three choices behind those that a loop takes at once, of any of a lane's four logits.
    for dtype, m in product(("f32", "bf16"), (_FEW, _MANY)):
        yield _route("gaussian", m, 128, 7, dtype=dtype)


def _full() -> Iterator[Case]:
    routers = (*_ROUTERS, (512, 10), (1024, 32), (33, 32), (64, 1))
    for seed, fill, dtype, (e, t) in product((1, 2, 3), _LOGITS, ("f32", "bf16"), routers):
        # Fewer tokens of nearly equal logits may all have the same weights.
        for m in (3 if fill in ("ties", "close") else 1, _FEW, _MANY, 130):
            yield _route(fill, m, e, t, dtype=dtype, seed=seed)
    for t in range(1, 33):
        yield _route("gaussian", 33, 64, t, bias="distinct")
        yield _route("given", 33, 16, t, dtype="ids", first_expert=16, ranks=4)
    for e, t in _ROUTERS:
        yield _route("gaussian", 8192, e, t)


_CHANGES: Mapping[str, Change] = {
    # More tokens than threads are counted for, and more experts than CTAs that walk over the rows.
    "logits-many_tokens": lambda given: {"logits": huge((1 << 26, 16), given["logits"]), "bias": None},
    "logits-many_experts": lambda given: {"logits": np.zeros((1, 1025), np.float32), "bias": None},
    "k-past_all": lambda given: {"k": 17},
    "k-past_32": lambda given: {"logits": np.zeros((3, 64), np.float32), "bias": None, "k": 33},
    "topk_ids-many_choices": lambda given: {"topk_ids": np.zeros((1, 33), np.int32)},
    "logits-many_choices": lambda given: {"logits": huge(((1 << 26) - 1, 64), given["logits"]), "bias": None, "k": 32},
    "num_experts_local-past_all": lambda given: {"num_experts_local": 17, "first_expert": 0},
    "topk_ids-of_many_experts": lambda given: {"num_experts_local": 1 << 21},
}


def _refuses() -> Iterator[Case]:
    ranks = {"num_experts_local": "zero text flag int32", "first_expert": "negative fraction huge", "fill": BYTE}
    yield from wrong_calls(
        _route("gaussian", 3, 8, 2, bias="distinct", first_expert=8, ranks=2),
        {
            **{"logits-many_tokens": "threads", "logits-many_choices": "rows after expansion and threads"},
            **{"k-past_all": "k: found int 17", "k-past_32": "k: found int 33"},
        },
        logits=f"{ARRAY} flat no_columns many_tokens many_experts many_choices",
        bias=f"{ARRAY} short",
        k="zero text flag int32 past_all past_32",
        **{
            **ranks,
            "num_experts_local": f"{ranks['num_experts_local']} past_all",
            "first_expert": f"{ranks['first_expert']} past",
        },
    )
    yield from wrong_calls(
        _route("given", 3, 8, 2, dtype="ids"),
        {"topk_ids-of_many_experts": "rows after expansion and threads"},
        topk_ids=f"{ARRAY} flat no_columns twice many_choices of_many_experts",
        **ranks,
    )


ROUTE = Family(
    name="routing",
    about="The experts of each token and their weights by softmax over the top k, and the row of each choice.",
    dtypes=("f32", "bf16", "ids"),
    sizes="met",
    fills=_FILLS,
    options=(ROUTING, *RANKS, _BIAS, ENTRY, SCHEDULES, ROWS_BEFORE, POISON, WRONG),
    inputs=_inputs,
    expect=_expect,
    run=_run,
    extents=routing_extents,
    cases={"quick": _quick, "default": _default, "full": _full},
    refuses=_refuses,
    changes=_CHANGES,
    contract=Contract(
        inputs=("logits", "bias", "topk_ids"),
        features=("bias",),
        outputs={
            **{"topk_ids": "", "topk_weights": "float32", "refused": "", "offsets": ""},
            **{"unpermuted_to_permuted": "", "permuted_to_unpermuted": ""},
        },
        settings=ROUTED,
        refusal="refused",
    ),
    sources=("routing",),
    host=("refmoe.cuda.routing",),
    check=_check,
    lacks=lacks_memory,
    group="moe",
)
