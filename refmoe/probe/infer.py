"""The questions, and what follows from their answers: the parameters of a member of the family, or a contradiction.

Every question changes one thing and nothing else. For example, F: the products 1 and -1 set E and cancel each other,
and C = 2^-j is all that is left. The largest j at which it is left is F. No answer is compared with a model of refmoe:
an inference knows the formats, the answers, and the family. At the end the member that was found has to give every
answer again, those to random operands included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from refmoe.errors import RefmoeError
from refmoe.probe.family import MODES, Member, Parameters, cut_to
from refmoe.probe.instructions import CODECS, Instruction
from refmoe.probe.vectors import Unreachable, Vector, mixture, reach

RANDOM = 400
"""Random vectors that the member found has to answer like the chip."""
_SEED = 20261123
_DEEP = 60
# Addends below the cut must not add up to something above it: K of them are less than 2^6 one.
_ROOM = 7
_QUARTERS = (2, 5, 6, 7, 10)
_SIGNED = tuple(sign * each for sign in (1, -1) for each in _QUARTERS)


class Answer(Protocol):
    """A black box: D's bits of vectors, which belong to the question of that name."""

    def __call__(self, question: str, vectors: Sequence[Vector], /) -> list[int]:
        """One answer for each vector, in order."""


class Contradiction(RefmoeError):
    """Answers that no member of the family gives; the message says which question showed it first."""

    def __init__(self, question: str, what: str) -> None:
        super().__init__(f"no model of the family fits: first contradiction at the question {question!r}: {what}")
        self.question = question


class Noise(Contradiction):
    """Two answers to one vector differ."""

    def __init__(self, question: str, number: int, first: int, second: int) -> None:
        RefmoeError.__init__(
            self,
            f"the question {question!r} was asked twice, and vector {number} is answered {first:#x} and then "
            f"{second:#x}: no model gives two answers",
        )
        self.question = question


def asked_twice(answer: Answer) -> Answer:
    """The same black box, of which every question is asked twice.

    The answers of the box raise `Noise` where the second differs from the first.
    """

    def twice(question: str, vectors: Sequence[Vector]) -> list[int]:
        first, second = answer(question, vectors), answer(question, vectors)
        for number, (one, two) in enumerate(zip(first, second, strict=True)):
            if one != two:
                raise Noise(question, number, one, two)
        return first

    return twice


@dataclass
class Found:
    """What an inference found.

    Attributes:
        parameters: of the member that gives every answer.
        unseen: what no operands of the formats can show, by name, with the reason.
        asked: how many vectors were answered.
    """

    parameters: Parameters
    unseen: dict[str, str]
    asked: int


def infer(instruction: Instruction, answer: Answer) -> Found:
    """The parameters of a black box.

    Raises:
        Contradiction: no member of the family gives its answers.
    """
    return _Interview(instruction, answer).run()


@dataclass
class _Interview:
    """One black box under questions."""

    instruction: Instruction
    answer: Answer
    history: list[tuple[str, list[Vector], list[int]]] = field(default_factory=list)
    unseen: dict[str, str] = field(default_factory=dict)
    blocks: tuple[tuple[tuple[int, ...], ...], ...] = ()
    joins: str = "first"
    align_bits: int = 0
    result_bits: int = 0
    cut: str = ""

    def __post_init__(self) -> None:
        self.accumulator = CODECS[self.instruction.accumulator]
        self.grouped = self.instruction.scales > 1
        self.low, self.high = reach(self.instruction)
        # The least addend that D shows, whatever becomes of subnormal results; FP16 has too few others.
        below = self.accumulator.fraction_bits if self.accumulator is CODECS["f16"] else 0
        self.least = max(self.low, self.accumulator.emin - below)

    # --- asking -----------------------------------------------------------------------------------------------------

    def ask(self, question: str, vectors: list[Vector]) -> list[int]:
        """D's bits."""
        found = self.answer(question, vectors)
        if len(found) != len(vectors):
            raise Contradiction(question, f"{len(found)} answers to {len(vectors)} vectors")
        self.history.append((question, vectors, found))
        return found

    def optional(self, name: str, decide: Callable[[], str | int]) -> str | int | None:
        """A parameter that not every format can show."""
        try:
            return decide()
        except Unreachable as error:
            self.unseen[name] = f"the formats cannot show it: {error}"
            return None

    def vector(self) -> Vector:
        """All products and C zero."""
        return Vector(self.instruction)

    def units(self, question: str, bits: int, exponent: int) -> int | None:
        """D / 2^exponent if that is an integer, else None.

        Raises:
            Contradiction: D is no finite number.
        """
        kind, sign, significand, at = self.accumulator.decode(bits)
        if kind != "number":
            raise Contradiction(question, f"{bits:#x} is {kind}, and all addends are finite and small")
        shift = exponent - (at - self.accumulator.fraction_bits)
        value = -significand if sign else significand
        if shift > 0 and value & ((1 << shift) - 1):
            return None
        return value >> shift if shift > 0 else value << -shift

    # --- the whole --------------------------------------------------------------------------------------------------

    def run(self) -> Found:
        """All questions."""
        self.nan = self._nan()
        if self.grouped:
            self._groups()
        else:
            self._order()
        places = [group[0] for group in self.blocks[0]]
        if len(places) < 4:
            sizes = ", ".join(str(sum(map(len, block))) for block in self.blocks)
            raise Contradiction("order", f"blocks of {sizes} terms; the family has at least 4 in each")
        self.places = places
        self.align_bits = self._align_bits()
        self.cut = self._cut()
        self.result_bits = self._result_bits()
        parameters = Parameters(
            self.blocks,
            self.joins,
            self.align_bits,
            self.result_bits,
            self.cut,
            self._rounding(),
            self.nan,
            self._zero_signs(),
            last_rounding=self._last_rounding() if self.joins == "last" else None,
        )
        found: dict[str, Any] = {"exponents": self._exponents() if self.grouped else "products"}
        asked: dict[str, Callable[[], str | int]] = {
            "product": self._product,
            "subnormal_a": lambda: self._subnormal(0),
            "subnormal_b": lambda: self._subnormal(1),
            "subnormal_scale": self._subnormal_scale,
            "zeros": self._zeros,
            "floor": self._floor,
            "inputs": lambda: self._inputs(found["zeros"], found["floor"]),
            "results": lambda: self._results(found["floor"]),
            "overflow": self._overflow,
        }
        if self.instruction.scale != "ue4m3":
            del asked["subnormal_scale"]
        for name, decide in asked.items():
            if found["exponents"] == "scales" and name in ("product", "subnormal_a", "subnormal_b"):
                self.unseen[name] = "the exponent of a term comes from its scales alone"
                continue
            if found.get("product") == "leading bit" and name in ("subnormal_a", "subnormal_b"):
                self.unseen[name] = "the exponent of a product is that of its leading bit, whatever its factors are"
                continue
            found[name] = self.optional(name, decide)
        return self._checked(Parameters(**{**parameters.__dict__, **found}))

    def _checked(self, parameters: Parameters) -> Found:
        """The member has to give every answer."""
        self.ask("random", mixture(self.instruction, RANDOM, _SEED))
        member = Member(self.instruction, parameters)
        for question, vectors, answers in self.history:
            for number, (vector, found) in enumerate(zip(vectors, answers, strict=True)):
                expected = member.answer(vector)
                if expected != found:
                    what = f"vector {number} is answered {found:#x}, and what was found gives {expected:#x}"
                    raise Contradiction(question, f"{what} ({parameters.words()})")
        return Found(parameters, self.unseen, sum(len(vectors) for _, vectors, _ in self.history))

    # --- which elements are added together --------------------------------------------------------------------------

    def _order(self) -> None:
        """Blocks and their order, of products that are aligned one by one."""
        k = self.instruction.k
        gap = self._big() - self.least
        self.joins = self._joins()
        everything = range(k)
        if self.joins == "last":
            if gap < 25 + _ROOM:
                raise Contradiction("joins", "C joins last, and products of these formats cannot show their order")
            pairs = [(i, j) for i in everything for j in everything if i < j]
            vectors = []
            for i, j in pairs:
                vector = self.vector()
                for each in everything:
                    vector.put(each, 1, self.least)
                vectors.append(vector.put(i, 1, self._big()).put(j, -1, self._big()))
            counts = [0] * k
            for (i, j), bits in zip(pairs, self.ask("order", vectors), strict=True):
                count = self._count(bits, self.least)
                counts[i], counts[j] = max(counts[i], count), max(counts[j], count)
        elif gap >= 25 + _ROOM:
            vectors = []
            for i in everything:
                vector = self.vector().add(1, self._big())
                for each in everything:
                    vector.put(each, 1, self.least)
                vectors.append(vector.put(i, -1, self._big()))
            counts = [self._count(bits, self.least) for bits in self.ask("order", vectors)]
        else:
            counts = self._narrow_order([(each,) for each in everything])
        self.blocks = tuple(tuple((each,) for each in block) for block in self._by_count(counts))

    def _big(self) -> int:
        """An exponent of products and of C from which the least product is far away."""
        return min(self.high, self.accumulator.emax - 1)

    def _count(self, bits: int, exponent: int) -> int:
        found = self.units("order", bits, exponent)
        if found is None or not 0 <= found < self.instruction.k:
            raise Contradiction("order", f"{bits:#x} is no count of the addends 2^{exponent} that are left")
        return found

    def _by_count(self, counts: Sequence[int]) -> list[list[int]]:
        """Positions by block: each has counted how many lie in later blocks."""
        blocks = [
            [at for at, each in enumerate(counts) if each == count] for count in sorted(set(counts), reverse=True)
        ]
        later = len(counts)
        for block in blocks:
            later -= len(block)
            if counts[block[0]] != later:
                what = f"{counts[block[0]]} addends come after element {block[0]}, and {later} are in later blocks"
                raise Contradiction("order", f"{what}: no chain of blocks")
        return blocks

    def _narrow_order(self, groups: Sequence[Sequence[int]]) -> list[int]:
        """For each group, how many are in later blocks: 2^24 + 1 - 1 is 2^24 - 1 if 1 is cut before -1 comes."""
        bits = self._short_bits()
        pairs = [(i, j) for i in range(len(groups)) for j in range(len(groups)) if i != j]
        vectors = [self.vector().add(1, bits + 1).put(groups[i][0], 1, 0).put(groups[j][0], -1, 0) for i, j in pairs]
        counts = [0] * len(groups)
        for (i, _), answer in zip(pairs, self.ask("order", vectors), strict=True):
            found = self.units("order", answer, 0)
            if found not in ((1 << bits + 1) - 1, 1 << bits + 1):
                raise Contradiction("order", f"2^{bits + 1} + 1 - 1 is {answer:#x}")
            counts[i] += found != 1 << bits + 1
        return counts

    def _short_bits(self) -> int:
        """How many bits of fraction a result has at most: the largest j at which 1 + 2^-j is not 1."""
        span = range(1, self.accumulator.fraction_bits + 1)
        found = self.ask("length", [self.vector().put(0, 1, 0).add(1, -j) for j in span])
        kept = [j for j, bits in zip(span, found, strict=True) if self.units("length", bits, -j) == (1 << j) + 1]
        if kept != list(range(1, len(kept) + 1)) or not kept:
            raise Contradiction("length", f"1 + 2^-j is kept for the j {kept}")
        return len(kept)

    def _joins(self) -> str:
        """Whether C is there while products cancel: then so small a C is cut."""
        small = -_DEEP if self.accumulator is CODECS["f32"] else self.accumulator.emin - self.accumulator.fraction_bits
        big = self._big() if self.accumulator is CODECS["f16"] else 0
        k = self.instruction.k
        pairs = [(0, 1), (0, k - 1), (k // 2, k - 1)]
        vectors = [self.vector().put(i, 1, big).put(j, -1, big).add(1, small) for i, j in pairs]
        left = [self.units("joins", bits, small) for bits in self.ask("joins", vectors)]
        if set(left) == {0}:
            return "first"
        if set(left) == {1}:
            return "last"
        raise Contradiction("joins", f"1 - 1 and a C of 2^{small} leave {left} times that")

    def _groups(self) -> None:
        """Groups of an exact sum, and their order: in a group 1 - 1 is nothing and sets no E, so that C is left."""
        k = self.instruction.k
        open_places, groups = list(range(k)), list[tuple[int, ...]]()
        while open_places:
            first, *others = open_places
            group = [first]
            if others:
                vectors = [self.vector().put(first, 1, 0).put(each, -1, 0).add(1, -_DEEP) for each in others]
                for each, bits in zip(others, self.ask(f"group of {first}", vectors), strict=True):
                    left = self.units("group", bits, -_DEEP)
                    if left not in (0, 1):
                        raise Contradiction(f"group of {first}", f"1 - 1 and a C of 2^-{_DEEP} leave {bits:#x}")
                    group += [each] if left else []
            groups.append(tuple(group))
            open_places = [each for each in open_places if each not in group]
        counts = self._narrow_order(groups) if len(groups) > 1 else [0]
        self.blocks = tuple(tuple(groups[at] for at in block) for block in self._by_count(counts))

    # --- lengths and roundings --------------------------------------------------------------------------------------

    def _pair(self, exponent: int) -> Vector:
        """Two products that set E and cancel."""
        return self.vector().put(self.places[0], 1, exponent).put(self.places[1], -1, exponent)

    def _small(self, vector: Vector, significand: int, exponent: int) -> Vector:
        """Add a small addend: C, or a product where C joins last or has no such number."""
        if self.joins == "first":
            try:
                return vector.add(significand, exponent)
            except Unreachable:
                if len(self.places) < 5 or self.grouped:
                    raise
        return vector.put(self.places[-1], significand, exponent)

    def _exponent(self) -> int:
        """Of the products that set E, so that small addends have room below."""
        if self.joins == "last":
            return self._big()
        return 0 if self.accumulator is CODECS["f32"] else 10

    def _left(self, question: str, make: Callable[[], Vector], start: int) -> int:
        """How many binades below `start` an addend is left where everything else cancels.

        Raises:
            Unreachable: no addend is so small that it is cut.
        """
        vectors = []
        for j in range(_DEEP + 1):
            try:
                vectors.append(self._small(make(), 1, start - j))
            except Unreachable:
                break
            if self.units_of_c(start - j) is None:
                vectors.pop()
                break
        if len(vectors) < 2:
            raise Unreachable("no addend is small enough")
        found = [self.units(question, bits, start - j) for j, bits in enumerate(self.ask(question, vectors))]
        kept = [j for j, each in enumerate(found) if each == 1]
        if kept != list(range(len(kept))) or any(found[len(kept) :]):
            raise Contradiction(question, f"what cancels leaves an addend of 2^({start} - j) for the j {kept} alone")
        if len(kept) == len(vectors):
            raise Unreachable(f"an addend of 2^{start - len(kept) + 1} is still left, and D has no smaller one")
        return len(kept) - 1

    def units_of_c(self, exponent: int) -> int | None:
        """The code of 2^exponent as D, or None if D has no such number."""
        return self.accumulator.code(1, exponent)

    def _align_bits(self) -> int:
        base = self._exponent()
        try:
            return self._left("F", lambda: self._pair(base), base)
        except Unreachable as error:
            raise Contradiction("F", f"nothing is cut: {error}") from error

    def _cut(self) -> str:
        """How quarters of a unit become units, where all else cancels."""
        base = self._exponent()
        unit = base - self.align_bits
        vectors = [self._small(self._pair(base), each, unit - 2) for each in _SIGNED]
        return self._mode("cut", [self.units("cut", bits, unit) for bits in self.ask("cut", vectors)], 0)

    def _result_bits(self) -> int:
        """The most bits of n + 2^-j, n powers of two, that a result keeps."""
        base = self._exponent()
        room = len(self.places) - (self.joins == "last")
        counts = [1 << at for at in range(room.bit_length()) if 1 << at <= room]
        asked, vectors = [], []
        for at, count in enumerate(counts):
            for j in range(1, self.align_bits + 1):
                vector = self.vector()
                for place in self.places[:count]:
                    vector.put(place, 1, base)
                # C alone: with every place taken there is no product left.
                small = vector.add(1, base - j) if self.joins == "first" else self._small(vector, 1, base - j)
                asked.append((at, j))
                vectors.append(small)
        found = [
            at + j
            for (at, j), bits in zip(asked, self.ask("m", vectors), strict=True)
            if self.units("m", bits, base - j) == (1 << at + j) + 1
        ]
        if not found:
            raise Contradiction("m", "1 + 2^-j is 1 for every j")
        if max(found) == max(at + j for at, j in asked):
            self.unseen["result_bits"] = f"at least {max(found)}: no sum of these addends is longer"
            return self.accumulator.fraction_bits
        return min(max(found), self.accumulator.fraction_bits)

    def _rounding(self) -> str:
        """How quarters of the last bit of 4 are rounded."""
        if "result_bits" in self.unseen:
            self.unseen["rounding"] = "no sum is long enough to be rounded"
            return "toward zero"
        base, vectors = self._exponent(), []
        for each in _SIGNED:
            sign = 1 if each > 0 else -1
            vector = self.vector()
            for place in self.places[:4]:
                vector.put(place, sign, base)
            vectors.append(self._small(vector, each, base - self.result_bits))
        step = base + 2 - self.result_bits
        found = [self.units("rounding", bits, step) for bits in self.ask("rounding", vectors)]
        return self._mode("rounding", found, 4 << self.result_bits)

    def _last_rounding(self) -> str:
        """How C plus quarters of its last bit is rounded, where it joins last."""
        vectors = [self.vector().add(1 if each > 0 else -1, 15).put(self.places[0], each, -10) for each in _SIGNED]
        found = [self.units("joins last", bits, -8) for bits in self.ask("joins last", vectors)]
        return self._mode("joins last", found, 4 << 23)

    def _mode(self, question: str, found: list[int | None], held: int) -> str:
        """The rounding that makes those integers of `held` and some quarters."""
        for mode in MODES:
            if found == [cut_to(each + (held if each > 0 else -held), 2, mode) for each in _SIGNED]:
                return mode
        raise Contradiction(question, f"{list(_SIGNED)} quarters of a unit become {found}, beside {held // 4}")

    # --- exponents --------------------------------------------------------------------------------------------------

    def _setting(self, question: str, make: Callable[[], Vector], start: int, meanings: dict[int, str]) -> str:
        """What the exponent is that two cancelling products give E, by its meaning."""
        exponent = start + self.align_bits - self._left(question, make, start)
        if exponent not in meanings:
            raise Contradiction(question, f"products give E the exponent {exponent}, not one of {sorted(meanings)}")
        return meanings[exponent]

    def _cancelling(self, a: int, b: int) -> Vector:
        """Those codes at two places, one product negative."""
        x = CODECS[self.instruction.a]
        return self.vector().codes(self.places[0], a, b).codes(self.places[1], a ^ x.sign, b)

    def _exponents(self) -> str:
        """Whether elements have a part in the exponent of a group's sum."""
        start = 4
        return self._setting("exponents", lambda: self._pair(start), start, {start: "products", 0: "scales"})

    def _product(self) -> str:
        """Whether 1.5 * 1.5 has the exponent 0 or 1."""
        base = self._exponent()
        a = CODECS[self.instruction.a].code(3, base // 2 - 1)
        b = CODECS[self.instruction.b].code(3, base - base // 2 - 1)
        if a is None or b is None:
            raise Unreachable("no 1.5 of that size")
        found = a, b
        meanings = {base: "factors", base + 1: "leading bit"}
        return self._setting("product", lambda: self._cancelling(*found), base + 1, meanings)

    def _subnormal(self, side: int) -> str:
        """The exponent of the least subnormal number of one side."""
        names = (self.instruction.a, self.instruction.b)
        codec, other = CODECS[names[side]], CODECS[names[1 - side]]
        one = other.code(1, other.emax)
        assert one is not None
        codes = (1 << codec.low, one) if side == 0 else (one, 1 << codec.low)
        emin = codec.emin + other.emax
        meanings = {emin: "emin", emin - codec.fraction_bits: "leading bit"}
        return self._setting(f"subnormal {'ab'[side]}", lambda: self._cancelling(*codes), emin, meanings)

    def _subnormal_scale(self) -> str:
        """The exponent of the scale 2^-9."""

        def make() -> Vector:
            vector = self._pair(0)
            vector.a_scales = [1] * self.instruction.scales
            vector.b_scales = [0x78] * self.instruction.scales
            return vector

        return self._setting("subnormal scale", make, 2, {2: "emin", -1: "leading bit"})

    def _zeros(self) -> str:
        """Whether zero times a large number sets E: then a small addend is cut."""
        x, y = CODECS[self.instruction.a], CODECS[self.instruction.b]
        cases: list[tuple[Vector, int]] = []
        if self.grouped:
            reach_of_scales = 16 if self.instruction.scale == "ue4m3" else 40
            cases.append((self.vector().shift(reach_of_scales, 0), reach_of_scales))
        else:
            large = x.code(1, x.emax), y.code(1, y.emax)
            assert large[0] is not None
            assert large[1] is not None
            cases.append((self.vector().codes(self.places[0], 0, large[1]), x.emin + y.emax))
            cases.append((self.vector().codes(self.places[0], large[0], 0), x.emax + y.emin))
        exponents = [exponent - self.align_bits - 1 for _, exponent in cases]
        vectors = [self._small(vector, 1, at) for (vector, _), at in zip(cases, exponents, strict=True)]
        if any(self.units_of_c(at) is None for at in exponents):
            raise Unreachable("D has no number that such a zero would cut")
        left = [self.units("zeros", *each) for each in zip(self.ask("zeros", vectors), exponents, strict=True)]
        if left not in ([1] * len(left), [0] * len(left)):
            raise Contradiction("zeros", f"small addends beside a zero of A and of B are left {left} times")
        return "takes no part" if left[0] == 1 else "takes part"

    def _floor(self) -> int:
        """The least E: the first of the products 2^-1, 2^-2, ... that is cut by itself, or a finer question.

        Raises:
            Unreachable: no sum shows it.
        """
        if self.joins == "last":
            raise Unreachable("a C that joins last hides it")
        if self.accumulator is not CODECS["f32"] or (self.result_bits, self.cut) != (23, "toward zero"):
            raise Unreachable("it is asked of FP32 results of 23 bits that are cut toward zero")
        vectors = []
        for e in range(1, 150):
            try:
                vectors.append(self._tiny([(1, -e)]))
            except Unreachable:
                break
        if not vectors:
            raise Unreachable("no product is that small")
        found = [self.units("floor", bits, -e) for e, bits in enumerate(self.ask("floor", vectors), 1)]
        if 0 in found and found.index(0) != 126:
            return self.align_bits - found.index(0)
        if 0 in found:
            raise Unreachable("results below 2^-126 are flushed")
        if self.grouped or len(found) < 149:
            raise Unreachable(f"down to 2^-{len(found)} nothing is cut, and sums show no smaller addend")
        return self._fine_floor()

    def _fine_floor(self) -> int:
        """A floor below -124, from 2^-149 - 2^-(u - 1) + 2^-u + 2^-u: it is 2^-149, or 0 where 2^-u alone is cut."""
        vectors = []
        for u in range(150, 151 + self.align_bits):
            try:
                vectors.append(self._tiny([(1, -149), (-1, 1 - u), (1, -u), (1, -u)]))
            except Unreachable:
                break
        if not vectors:
            raise Unreachable("no product beside 2^-149 is smaller")
        found = [self.units("fine floor", bits, -149) for bits in self.ask("fine floor", vectors)]
        if 0 not in found:
            raise Unreachable(f"down to 2^-{149 + len(found)} nothing is cut, and no product beside 2^-149 is smaller")
        return self.align_bits - (149 + found.index(0))

    def _tiny(self, addends: Sequence[tuple[int, int]]) -> Vector:
        """Products at the first places; where there are scales they bring them down."""
        shift = addends[0][1] - self.high if self.instruction.scale else 0
        vector = self.vector().shift(shift)
        for place, (significand, exponent) in zip(self.places, addends, strict=False):
            vector.put(place, significand, exponent - shift)
        return vector

    # --- the ends of the range --------------------------------------------------------------------------------------

    def _nan(self) -> int:
        """The bits of NaN, of every origin the same."""
        acc, x, y = (CODECS[name] for name in (self.instruction.accumulator, self.instruction.a, self.instruction.b))
        quiet, infinity = acc.nan(), acc.infinity()
        assert quiet is not None
        assert infinity is not None
        one_a, one_b = x.code(1, 0), y.code(1, 0)
        assert one_a is not None
        assert one_b is not None
        cs = self.vector(), self.vector()
        cs[0].c, cs[1].c = quiet ^ 0x12, quiet ^ 0x15 | acc.sign
        vectors = list(cs)
        for fmt, place in ((x, 0), (y, 1)):
            for code in (fmt.nan(), fmt.infinity()):
                if code is not None:
                    other = 0 if code == fmt.infinity() else (one_b if place == 0 else one_a)
                    vectors.append(self.vector().codes(0, *((code, other) if place == 0 else (other, code))))
        if (infinite := x.infinity()) is not None:
            vector = self.vector().codes(0, infinite, one_b)
            vector.c = infinity | acc.sign
            vectors.append(vector)
        if self.instruction.scale:
            vector = self.vector().put(0, 1, 0)
            vector.a_scales[0] = 0xFF
            vectors.append(vector)
        found = self.ask("nan", vectors)
        for bits in found:
            if acc.decode(bits)[0] != "nan":
                raise Contradiction("nan", f"a NaN becomes {bits:#x}")
        if len(set(found)) > 1:
            raise Contradiction("nan", f"NaN is {' and '.join(f'{bits:#x}' for bits in sorted(set(found)))}")
        return found[0]

    def _zero_signs(self) -> str:
        """The signs of three zeros."""
        base = self._exponent()
        x, y = CODECS[self.instruction.a], CODECS[self.instruction.b]
        one = y.code(1, 0)
        assert one is not None
        negative = self.vector()
        for k in range(self.instruction.k):
            negative.codes(k, x.sign, one)
        negative.c = self.accumulator.sign
        vectors = [negative, self._pair(base)]
        try:
            vectors.append(self._small(self._pair(base), -1, base - self.align_bits - 3))
        except Unreachable:
            self.unseen["zero_signs"] = "of the third zero: no addend is small enough"
        signs = ""
        for bits in self.ask("zero signs", vectors):
            signs += "-" if bits == self.accumulator.sign else "+"
            if bits not in (0, self.accumulator.sign) and (len(signs) < 3 or self.cut in ("toward zero", "up")):
                raise Contradiction("zero signs", f"a zero is {bits:#x}")
        return signs.ljust(3, "+")

    def _inputs(self, zeros: str | None, floor: int | None) -> str:
        """Whether a subnormal C is kept: added to the least normal number, where products reach that."""
        emin = self.accumulator.emin
        self._above(floor, emin - 1)
        try:
            vector, held = self._tiny([(1, emin)]), 2
        except Unreachable:
            if zeros == "takes part":
                raise
            vector, held = self.vector(), 0
        (bits,) = self.ask("inputs", [vector.add(1, emin - 1)])
        left = self.units("inputs", bits, emin - 1)
        if left not in (held, held + 1):
            raise Contradiction("inputs", f"a C of 2^{emin - 1} becomes {bits:#x}")
        return "kept" if left == held + 1 else "flushed"

    def _above(self, floor: int | None, exponent: int) -> None:
        """Raises Unreachable: the floor cuts 2^exponent."""
        if floor is not None and exponent < floor - self.align_bits:
            raise Unreachable(f"under a floor of {floor} every addend of 2^{exponent} is cut")

    def _results(self, floor: int | None) -> str:
        """Whether a subnormal sum of products is kept."""
        exponent = self.accumulator.emin - 3
        self._above(floor, exponent)
        (bits,) = self.ask("results", [self._tiny([(1, exponent)])])
        left = self.units("results", bits, exponent)
        if left not in (0, 1):
            raise Contradiction("results", f"2^{exponent} becomes {bits:#x}")
        return "kept" if left else "flushed"

    def _overflow(self) -> str:
        """What the largest number becomes when the largest power of two is added."""
        acc = self.accumulator
        infinity = acc.infinity()
        assert infinity is not None
        emax = acc.emax
        shift = emax - self.high if self.instruction.scale else 0
        vector = self.vector().shift(shift).put(self.places[0], 1, emax - shift)
        vector.c = infinity - 1
        (bits,) = self.ask("overflow", [vector])
        if bits == infinity:
            return "infinity"
        if infinity - (1 << (acc.fraction_bits - self.result_bits)) == bits:
            return "largest"
        raise Contradiction("overflow", f"the largest number and 2^{emax} become {bits:#x}")
