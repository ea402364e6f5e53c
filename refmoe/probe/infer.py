"""From answers to parameters, and from nothing else: no model of refmoe is asked here.

Each parameter has questions of its own, which tell its values apart whatever the parameters found after it are. The
order matters: the place of C and the blocks come first, then F, then what is measured in units of 2^(E - F). At the end
every answer, and answers to products drawn at random, must be those of the family's member that was found.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from refmoe.errors import RefmoeError
from refmoe.probe.family import AFTER, AWAY, DOWN, EVEN, FIRST, FLUSHED, KEPT, LEAST, NORMALISED, UP, ZERO, Parameters
from refmoe.probe.family import predict
from refmoe.probe.instructions import Instruction
from refmoe.probe.questions import (
    FORMATS,
    INFINITY,
    Answer,
    Question,
    Scene,
    decode,
    encode,
    factors,
    negated,
)
from refmoe.formats import Specials

_FAR = 44  # bits below E at which no instruction of the family keeps a term
_RANDOM = 192
_TWO = Fraction(2)


class NoMember(RefmoeError):
    """The answers are those of no member of the family; the message says where they first contradict it."""


def infer(instruction: Instruction, answer: Answer) -> Parameters:
    """The parameters of an instruction.

    Args:
        instruction: what is asked.
        answer: the bits of D of each question.

    Raises:
        NoMember: no member of the family gives these answers.
    """
    return _Inference(instruction, answer).run()


class _Inference:
    def __init__(self, instruction: Instruction, answer: Answer) -> None:
        self.instruction, self.answer = instruction, answer
        self.asked: dict[Question, int] = {}
        self.half = instruction.accumulator == "f16"
        self.k = instruction.k
        self.c_first = True
        self.blocks: tuple[tuple[int, ...], ...] = ()
        self.scale_of: tuple[int, ...] = ()
        self.formats = (instruction.a_format, instruction.b_format)

    # --- asking -----------------------------------------------------------------------------------------------------

    def ask(self, scenes: Iterable[Scene | None]) -> list[Fraction | None]:
        """The numbers that come back; None for a NaN, an infinity, or what the formats cannot ask."""
        found = self.bits(scenes)
        values = []
        for bits in found:
            number = None if bits is None else decode(bits, self.instruction.accumulator)
            values.append(None if number is None or number.special else number.value)
        return values

    def bits(self, scenes: Iterable[Scene | None]) -> list[int | None]:
        """The bits that come back; None for what the formats cannot ask."""
        questions = [None if scene is None else scene.question() for scene in scenes]
        wanted = [each for each in questions if each is not None and each not in self.asked]
        if wanted:
            wanted = list(dict.fromkeys(wanted))
            self.asked.update(zip(wanted, self.answer(wanted), strict=True))
        return [None if each is None else self.asked[each] for each in questions]

    def scene(self, about: str) -> Scene:
        return Scene(self.instruction, about)

    # --- the steps --------------------------------------------------------------------------------------------------

    def run(self) -> Parameters:
        """All of it."""
        found = Parameters(blocks=(tuple(range(self.k)),))
        if self.instruction.scales:
            self.scale_of = self.find_scales()
        grouped = self.find_c_place()
        group = self.find_group() if grouped else 1
        if self.c_first:
            align, blocks = self.find_blocks_with_c(group)
        else:
            align, blocks = self.find_blocks_without_c()
        self.blocks = blocks
        found = replace(found, blocks=blocks, align_bits=align, scale_of=self.scale_of, group=group)
        found = replace(found, c_place=FIRST if self.c_first else AFTER)
        if group > 1:
            found = replace(found, zero_group=self.find_zero_group(), product_exponent=None)
        bits, rounding = self.find_result(align, group)
        found = replace(found, result_bits=bits, rounding=rounding)
        found = replace(found, align_rounding=self.find_align_rounding(align, group))
        if group == 1:
            found = replace(
                found,
                product_exponent=self.find_product_exponent(align),
                zero_exponents=(self.find_zero(align, 0), self.find_zero(align, 1)),
            )
        flushed = (self.find_flushed(0), self.find_flushed(1))
        found = replace(found, subnormal_operands=flushed)
        if group == 1:
            exponents = tuple(None if flushed[s] != KEPT else self.find_subnormal(align, s) for s in (0, 1))
            found = replace(found, subnormal_exponents=(exponents[0], exponents[1]))
        found = replace(found, nan=self.find_nan(), zero_sign=self.find_zero_sign(), overflow=self.find_overflow())
        result, c = self.find_subnormals()
        found = replace(found, subnormal_result=result, subnormal_c=c)
        if result == KEPT and group == 1:
            found = replace(found, floor=self.find_floor(align))
        if self.instruction.scales:
            found = replace(found, **self.find_scale_rules())
        self.confirm(found)
        return found

    def confirm(self, found: Parameters) -> None:
        """Every answer is that of the member that was found, on products drawn at random too."""
        self.bits(_random_scenes(self.instruction))
        for question, bits in self.asked.items():
            wanted = predict(found, self.instruction, question)
            if wanted != bits:
                raise NoMember(
                    f"no model of the family fits: first contradiction in a question on {question.about}, terms "
                    f"{question.terms[:4]}, C {question.c:#x}: {bits:#x} came back, and what the other answers "
                    f"say gives {wanted:#x}"
                )

    def find_scales(self) -> tuple[int, ...]:
        """For each element of K, the scale that multiplies it: each scale is another power of two."""
        fmt = self.instruction.scale_format
        one = 127 if fmt == "ue8m0" else 0x38
        step = 1 if fmt == "ue8m0" else 8
        scales = [one + i * step for i in range(self.instruction.scales)]
        ones = [one] * len(scales)
        maps = []
        for given in ((scales, ones), (ones, scales)):
            values = self.ask(self.scene("scale_of").product(k, 1).scales(*given) for k in range(self.k))
            maps.append([next((i for i in range(len(scales)) if value == 2**i), None) for value in values])
        if maps[0] != maps[1] or None in maps[0]:
            raise NoMember("no model of the family fits: first contradiction in scale_of: a scale is no power of two")
        return tuple(i for i in maps[0] if i is not None)

    def cancelling(self, about: str, i: int, j: int, below: Fraction | int, value: Fraction | int = 1) -> Scene:
        """+v at i, -v at j and C = below: with FP16 accumulators all as far up as FP16's range asks for."""
        up = self.up
        scene = self.scene(about).product(i, value * up).product(j, -value * up)
        return scene.accumulator(below * up)

    @property
    def up(self) -> Fraction:
        """What F is measured at: products of 1, or the largest, where C has the exponents of FP16."""
        if not self.half:
            return Fraction(1)
        return _TWO ** (sum(FORMATS[name].emax for name in self.formats) - 1)

    def find_c_place(self) -> bool:
        """Where C is added; whether some products are summed before they are aligned."""
        partners = list(range(1, self.k))
        far = _TWO**-100 if not self.half else _TWO**-24 / self.up
        values = self.ask(self.cancelling("c_place", 0, j, far) for j in partners)
        kept = [value is not None and value != 0 for value in values]
        if not any(kept):
            return self.k == 64 and bool(self.instruction.scales) and self.exponent_from_scales()
        if all(kept):
            self.c_first = False
            return False
        return True

    def exponent_from_scales(self) -> bool:
        """Whether a large product cuts no more of C than a small one does."""
        j = self.k - 1
        small = self.ask(self.cancelling("exponent", 0, j, _TWO**-x) for x in range(_FAR))
        large = self.ask(self.cancelling("exponent", 0, j, _TWO**-x, 16) for x in range(_FAR))
        return _last_kept(small) == _last_kept(large) and _last_kept(small) is not None

    def find_group(self) -> int:
        """How many elements of K are summed exactly: two halves of a unit make one if they are of one group."""
        j = self.k - 1
        align = _last_kept(self.ask(self.cancelling("group", 0, j, _TWO**-x) for x in range(_FAR)))
        if align is None:
            raise NoMember("no model of the family fits: first contradiction in group: no term is cut")
        first = self.scale_of.index(self.scale_of[0])
        members = [k for k in range(1, self.k) if self.scale_of[k] == self.scale_of[first]]
        other = next(k for k in range(self.k) if self.scale_of[k] != self.scale_of[0])
        values = self.ask(self._halves(0, k, other, align) for k in members)
        together = [0, *(k for k, value in zip(members, values, strict=True) if value not in (0, None))]
        size = len(together)
        if together != list(range(size)) or self.k % size:
            raise NoMember("no model of the family fits: first contradiction in group: its elements are no run of K")
        return size

    def _halves(self, i: int, k: int, other: int, align: int) -> Scene:
        """Half a unit at i and at k, while a product at `other` and C cancel far above them."""
        scene = self.scene("group").product(i, Fraction(1, 4)).product(k, Fraction(1, 4)).product(other, -16)
        slots = self.instruction.scales
        low, high = self.scale_of[i], self.scale_of[other]
        if self.instruction.scale_format == "ue8m0":
            a, b = [127] * slots, [127] * slots
            a[high], a[low] = 127 + 16, 127
            # unit = 2^(20 - align), and a quarter times the scales is half of it
            b[low] = 127 + 21 - align
        else:
            a, b = [0x38] * slots, [0x38] * slots
            a[high] = b[high] = 15 << 3
            need = 21 - align
            one = max(need // 2, -6)
            a[low], b[low] = (one + 7) << 3, encode(_TWO ** (need - one), "e4m3") or 0
        return scene.scales(a, b).accumulator(_TWO**20)

    def find_zero_group(self) -> str:
        """Whether a group whose products cancel cuts what lies far below its scales."""
        value = self.ask([self.cancelling("zero_group", 0, 1, _TWO**-100)])[0]
        return "counts" if value == 0 else "skipped"

    def find_blocks_with_c(self, group: int) -> tuple[int | None, tuple[tuple[int, ...], ...]]:
        """F and the blocks, of terms that cancel above a small C."""
        reach = _FAR if not self.half else 60
        kept: dict[int, int | None] = {}
        for j in range(1, self.k):
            kept[j] = None
        scenes = [(j, x, self.cancelling("align_bits", 0, j, _TWO**-x)) for j in kept for x in range(1, reach)]
        for (j, x, _), value in zip(scenes, self.ask(scene for *_, scene in scenes), strict=True):
            if value not in (0, None):
                kept[j] = x
        if group > 1:
            # Of one group nothing is cut where a sum of 0 brings no exponent.
            kept = {j: x for j, x in kept.items() if j >= group}
        known = [x for x in kept.values() if x is not None]
        if not known:
            raise NoMember("no model of the family fits: first contradiction in align_bits: C is lost beside any term")
        top = max(known)
        # Sums of several products grow; what was cut at the sum's size shows that it passed between two blocks.
        rest, blocks = list(range(self.k)), []
        while rest:
            lead = rest[0]
            near = [lead, *(each for each in rest[1:] if self.same_block(lead, each, top, group))]
            blocks.append(near)
            rest = [each for each in rest if each not in near]
        ordered = self.in_order(blocks)
        if all(len(block) == 1 for block in blocks):
            return None, ordered
        return top, ordered

    def same_block(self, i: int, j: int, top: int, group: int) -> bool:
        """Whether C is cut no more than in one block, while the sum grows between two."""
        if group > 1:
            return True if j < group else self.ask([self.cancelling("blocks", i, j, _TWO**-top)])[0] != 0
        plain, grown = self.ask(
            [self.cancelling("blocks", i, j, _TWO**-top), self.cancelling("blocks", i, j, _TWO**-top, Fraction(9, 4))]
        )
        if plain in (0, None):
            return False
        if grown not in (0, None):
            return True
        # A product of 2.25 has an exponent of its own, or its sum grew: products of 1 that add up tell.
        more = self.ask([self.cancelling("blocks", i, j, _TWO ** (1 - top), Fraction(9, 4))])[0]
        mates = [each for each in range(self.k) if each not in (i, j)][:2]
        if len(mates) < 2 or more in (0, None):
            return False
        scene = self.cancelling("blocks", i, j, _TWO**-top)
        for mate, value in zip(mates, (1, -1), strict=True):
            scene.product(mate, value * self.up)
        return self.ask([scene])[0] not in (0, None)

    def in_order(self, blocks: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        """The blocks as they are chained. C = 2^(n+1) - 1: adding 2 and then taking 2 away loses its last bit."""
        if len(blocks) == 1:
            return (tuple(blocks[0]),)
        length = self._plain_bits()
        before = [0] * len(blocks)
        for one in range(len(blocks)):
            for other in range(one + 1, len(blocks)):
                scale = _TWO**-length if self.half else Fraction(1)
                scene = self.scene("blocks").product(blocks[one][0], 2 * scale).product(blocks[other][0], -2 * scale)
                value = self.ask([scene.accumulator((2 ** (length + 1) - 1) * scale)])[0]
                lost = value is not None and value != (2 ** (length + 1) - 1) * scale
                before[other if lost else one] += 1
        order = sorted(range(len(blocks)), key=lambda number: before[number])
        return tuple(tuple(blocks[number]) for number in order)

    def _plain_bits(self) -> int:
        """How far below 1 a C can lie that is added to a product of 1."""
        most = FORMATS[self.instruction.accumulator].mantissa_bits
        values = self.ask(self.scene("result_bits").product(0, 1).accumulator(_TWO**-x) for x in range(1, most + 1))
        found = [x for x, value in enumerate(values, 1) if value is not None and value == 1 + _TWO**-x]
        return max(found, default=1)

    def find_blocks_without_c(self) -> tuple[int | None, tuple[tuple[int, ...], ...]]:
        """F and the blocks where C comes last: products that cancel lose the small ones up to the later of their blocks."""
        high = sum(FORMATS[name].emax for name in self.formats)
        low = sum(FORMATS[name].emin for name in self.formats)
        tails = []
        scenes = []
        for i in range(self.k):
            for j in range(self.k):
                scene = self.scene("blocks").product(i, _TWO**high).product(j, -(_TWO**high)) if i != j else None
                for each in range(self.k):
                    if scene is not None and each not in (i, j):
                        scene.product(each, _TWO**low)
                scenes.append(scene)
        values = self.ask(scenes)
        for i in range(self.k):
            row = [value for value in values[i * self.k : (i + 1) * self.k] if value is not None]
            tails.append(int(max(row) / _TWO**low))
        blocks = [[k for k in range(self.k) if tails[k] == tail] for tail in sorted(set(tails), reverse=True)]
        lead = blocks[0]
        if len(lead) < 3:
            raise NoMember("no model of the family fits: first contradiction in blocks: C comes last, after single sums")
        i, j, k = lead[:3]
        kept = self.ask(
            self.scene("align_bits").product(i, _TWO**high).product(j, -(_TWO**high)).product(k, _TWO ** (high - x))
            for x in range(1, _FAR)
        )
        top = _last_kept(kept)
        return (None if top is None else top + 1), tuple(tuple(block) for block in blocks)

    # --- what one block does ----------------------------------------------------------------------------------------

    def fine(self, scene: Scene, value: Fraction, taken: int) -> Scene:
        """A small addend of the first block: C, or where C comes last a product behind `taken` others."""
        return scene.accumulator(value) if self.c_first else scene.product(self.blocks[0][taken], value)

    @property
    def base(self) -> Fraction:
        """The size of the large products beside `fine`."""
        return Fraction(1) if self.c_first else _TWO ** sum(FORMATS[name].emax for name in self.formats)

    def spread(self, about: str, growth: int, group: int = 1) -> Scene | None:
        """2^growth products of `base` in the first block."""
        count = 1 << growth
        if count >= len(self.blocks[0]):
            return None
        base = self.base / (1 << growth if not self.c_first and False else 1)
        scene = self.scene(about)
        for k in self.blocks[0][:count]:
            scene.product(k, base)
        return scene

    def find_result(self, align: int | None, group: int) -> tuple[int, str | None]:
        """m and how a sum is rounded to it."""
        most = FORMATS[self.instruction.accumulator].mantissa_bits
        bits = 0
        for growth in range(7):
            reach = range(1, most + 2) if align is None else range(1, min(align + growth, most) + 1)
            seen = []
            for x in reach:
                scene = self.spread("result_bits", growth)
                if scene is not None:
                    total = self.base * 2**growth
                    self.fine(scene, total * _TWO**-x, 1 << growth)
                    seen.append((x, total * (1 + _TWO**-x), scene))
            values = self.ask(scene for *_, scene in seen)
            bits = max([bits, *(x for (x, wanted, _), v in zip(seen, values, strict=True) if v == wanted)])
            if align is None:
                break
        rounding = None
        for growth in range(7):
            if align is not None and growth + align < bits + 2:
                continue
            rounding = self._rounding(bits, growth)
            if rounding is not None:
                break
        return bits, rounding

    def _rounding(self, bits: int, growth: int) -> str | None:
        """How sums of both signs and quarters of a last bit are rounded."""
        scenes, total = [], self.base * 2**growth
        for sign in (1, -1):
            for quarters in (1, 2, 3, 5, 6, 7):
                scene = self.spread("rounding", growth)
                if scene is None:
                    return None
                if sign < 0:
                    scene.terms = {k: (negated(a, self.formats[0]), b) for k, (a, b) in scene.terms.items()}
                scenes.append(self.fine(scene, sign * quarters * total * _TWO ** (-bits - 2), 1 << growth))
        values = self.ask(scenes)
        if None in values:
            return None
        steps = [(abs(value) - total) / (total * _TWO**-bits) for value in values if value is not None]
        tables = {
            ZERO: (0, 0, 0, 1, 1, 1) * 2,
            EVEN: (0, 0, 1, 1, 2, 2) * 2,
            AWAY: (0, 1, 1, 1, 2, 2) * 2,
            UP: (1, 1, 1, 2, 2, 2, 0, 0, 0, 1, 1, 1),
            DOWN: (0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2),
        }
        for name, table in tables.items():
            if tuple(steps) == table:
                return name
        said = ", ".join(str(float(step)) for step in steps)
        raise NoMember(f"no model of the family fits: first contradiction in rounding: sums move by {said} last bits")

    def find_align_rounding(self, align: int | None, group: int) -> str | None:
        """How a term is cut to a multiple of the unit."""
        block = self.blocks[0]
        if align is None or len(block) < 3:
            return None
        up = self.up if self.c_first else self.base
        i, j = block[0], block[-1]
        scenes = []
        for quarters in (2, 3, 6, -2, -3, -6):
            scene = self.scene("align_rounding").product(i, up).product(j, -up)
            value = up * quarters * _TWO ** (-align - 2)
            scenes.append(scene.accumulator(value) if self.c_first else scene.product(block[1], value))
        values = self.ask(scenes)
        if None in values:
            return None
        steps = [value / (up * _TWO**-align) for value in values if value is not None]
        tables = {
            ZERO: (0, 0, 1, 0, 0, -1),
            DOWN: (0, 0, 1, -1, -1, -2),
            UP: (1, 1, 2, 0, 0, -1),
            EVEN: (0, 1, 2, 0, -1, -2),
            AWAY: (1, 1, 2, -1, -1, -2),
        }
        for name, table in tables.items():
            if tuple(steps) == table:
                return name
        said = ", ".join(str(float(step)) for step in steps)
        raise NoMember(f"no model of the family fits: first contradiction in align_rounding: terms become {said} units")

    # --- exponents --------------------------------------------------------------------------------------------------

    def threshold(self, about: str, products: Sequence[tuple[int, int, int]], highest: int, lowest: int) -> int | None:
        """The least t such that 2^t comes back beside products that are zero or cancel; None if all do."""
        scenes, sizes = [], []
        spare = next(k for k in self.blocks[0] if k not in [each for each, _, _ in products])
        for t in range(highest, lowest - 1, -1):
            scene = self.scene(about)
            for k, a, b in products:
                scene.pair(k, a, b)
            scenes.append(scene.accumulator(_TWO**t) if self.c_first else scene.product(spare, _TWO**t))
            sizes.append(t)
        values = self.ask(scenes)
        lost = [t for t, value in zip(sizes, values, strict=True) if value is not None and value != _TWO**t]
        return None if not lost else max(lost) + 1

    @property
    def lowest(self) -> int:
        """The exponent of the least number that `threshold` may ask for."""
        if self.c_first:
            return -24 if self.half else -126
        return sum(FORMATS[name].emin - FORMATS[name].mantissa_bits for name in self.formats)

    def find_product_exponent(self, align: int | None) -> str | None:
        """The exponent of 1.5 times 1.5."""
        if align is None or len(self.blocks[0]) < 3:
            return None
        up = self.up if self.c_first else self.base / 2
        found = factors(Fraction(9, 4) * up, *self.formats)
        three = factors(Fraction(3, 2) * up, *self.formats)
        if found is None or three is None:
            return None
        i, j = self.blocks[0][0], self.blocks[0][-1]
        a, b = found
        top = _exponent(up)
        found_at = self.threshold(
            "product_exponent", [(i, a, b), (j, negated(a, self.formats[0]), b)], top - 1, max(top - align - 4, self.lowest)
        )
        if found_at is None:
            return None
        e = found_at + align - top
        if e in (0, 1):
            return NORMALISED if e else "sum"
        raise NoMember(f"no model of the family fits: first contradiction in product_exponent: 1.5 * 1.5 has {e}")

    def find_zero(self, align: int | None, side: int) -> int | None:
        """The exponent that a zero operand brings into E, beside the largest power of two."""
        if align is None:
            return None
        other = FORMATS[self.formats[1 - side]].emax
        code = encode(_TWO**other, self.formats[1 - side]) or 0
        pair = (0, code) if side == 0 else (code, 0)
        found = self.threshold("zero_exponents", [(self.blocks[0][0], *pair)], min(other, 14), self.lowest)
        return None if found is None else found + align - other

    def find_flushed(self, side: int) -> str | None:
        """Whether a subnormal operand is a number."""
        fmt = FORMATS[self.formats[side]]
        value, one = fmt.emin - 1, max(-fmt.emin + 1, 0)
        codes = [encode(_TWO**value, self.formats[side]), encode(_TWO ** min(one, FORMATS[self.formats[1 - side]].emax), self.formats[1 - side])]
        if None in codes:
            return None
        x, y = (int(code) for code in codes if code is not None)
        pair = (x, y) if side == 0 else (y, x)
        found = self.ask([self.scene("subnormal_operands").pair(0, *pair)])[0]
        return FLUSHED if found == 0 else KEPT

    def find_subnormal(self, align: int | None, side: int) -> str | None:
        """Whether half of the least normal operand has its exponent or its own."""
        if align is None or len(self.blocks[0]) < 3:
            return None
        name, partner = self.formats[side], self.formats[1 - side]
        e = FORMATS[name].emin - 1
        beside = FORMATS[partner].emax if self.half or not self.c_first else min(FORMATS[partner].emax, max(0, -e - 10))
        x, y = encode(_TWO**e, name) or 0, encode(_TWO**beside, partner) or 0
        minus = negated(x, name)
        pairs = [(x, y), (minus, y)] if side == 0 else [(y, x), (y, minus)]
        i, j = self.blocks[0][0], self.blocks[0][-1]
        top = e + beside
        products = [(i, *pairs[0]), (j, *pairs[1])]
        lowest = max(top - align - 4, self.lowest)
        found = self.threshold("subnormal_exponents", products, top - 1, lowest)
        if found is None:
            return None
        offset = found + align - top
        if offset in (0, 1):
            return LEAST if offset else NORMALISED
        raise NoMember(
            f"no model of the family fits: first contradiction in subnormal_exponents: half of the least normal number "
            f"of {name} has the exponent {offset + e}"
        )

    def find_floor(self, align: int | None) -> int | None:
        """The least E: 2^-149 as a sum of products, of which the last is 2^-y."""
        scenes, sizes = [], []
        least = FORMATS[self.instruction.accumulator].emin - FORMATS[self.instruction.accumulator].mantissa_bits
        if align is None:
            return None
        room = len(self.blocks[0])
        for y in range(-least - 30, -least + 26):
            scene: Scene | None = self.scene("floor")
            assert scene is not None
            if self.instruction.scales and -y < -20:
                # Half of it on each side; products then have ordinary sizes.
                half = y // 2
                if self.instruction.scale_format != "ue8m0":
                    return None
                slots = self.instruction.scales
                scene.scales([127 - half] * slots, [127 - (y - half)] * slots)
                unit = Fraction(1)
            else:
                unit = _TWO**-y
            parts = _pieces(max(0, y + least), room, unit, self.formats)
            for k, part in zip(self.blocks[0], parts or (), strict=False):
                scene.product(k, part)
            scenes.append(scene if parts else None)
            sizes.append(y)
        values = self.ask(scenes)
        lost = [y for y, value in zip(sizes, values, strict=True) if value == 0]
        seen = [y for y, value in zip(sizes, values, strict=True) if value not in (0, None)]
        if not lost or not seen:
            return None
        floor = align - (min(lost) - 1)
        # Without a floor the largest term sets E, and is cut at the same place; that is no floor of E's own.
        return floor if floor > least - 1 else None

    # --- specials ---------------------------------------------------------------------------------------------------

    def find_nan(self) -> int:
        """The bits of a NaN, of whatever makes one."""
        c_fmt = FORMATS[self.instruction.accumulator]
        infinity = ((1 << c_fmt.exponent_bits) - 1) << c_fmt.mantissa_bits
        scenes = [self.scene("nan").bits(infinity | 1), self.scene("nan").bits(infinity | 1 << (c_fmt.mantissa_bits - 1) | 5)]
        for side in (0, 1):
            fmt = FORMATS[self.formats[side]]
            one = encode(1, self.formats[1 - side]) or 0
            if fmt.nan_code is not None:
                scenes.append(self.scene("nan").pair(0, *((fmt.nan_code, one) if side == 0 else (one, fmt.nan_code))))
            if fmt.specials is Specials.IEEE:
                code = ((1 << fmt.exponent_bits) - 1) << (fmt.mantissa_bits + fmt.unused_low_bits)
                scenes.append(self.scene("nan").pair(1, *((code, 0) if side == 0 else (0, code))))
                scenes.append(self.scene("nan").pair(1, *((code, one) if side == 0 else (one, code))).bits(infinity | c_sign(c_fmt)))
        found = {bits for bits in self.bits(scenes) if bits is not None}
        if len(found) != 1:
            words = ", ".join(f"{bits:#x}" for bits in sorted(found))
            raise NoMember(f"no model of the family fits: first contradiction in nan: NaNs came back as {words}")
        return found.pop()

    def find_zero_sign(self) -> str:
        """The sign of a sum of negative zeros."""
        minus = c_sign(FORMATS[self.instruction.accumulator])
        a, b = negated(0, self.formats[0]), encode(1, self.formats[1]) or 0
        scene = self.scene("zero_sign").bits(minus)
        for k in range(self.k):
            scene.pair(k, a, b)
        return "-" if self.bits([scene])[0] == minus else "+"

    def find_overflow(self) -> str | None:
        """What comes back beyond the largest number: C and a product of the same size."""
        fmt = FORMATS[self.instruction.accumulator]
        scene = self.scene("overflow").accumulator(_TWO**fmt.emax)
        if self.instruction.scale_format == "ue8m0":
            slots = self.instruction.scales
            scene.scales([127 + 64] * slots, [127 + 63] * slots).product(0, 1)
        else:
            scene.product(0, _TWO**fmt.emax)
        bits = self.bits([scene])[0]
        if bits is None:
            return None
        infinity = ((1 << fmt.exponent_bits) - 1) << fmt.mantissa_bits
        if bits not in (infinity, infinity - 1):
            raise NoMember(f"no model of the family fits: first contradiction in overflow: {bits:#x} came back")
        return INFINITY if bits == infinity else "largest"

    def find_subnormals(self) -> tuple[str | None, str | None]:
        """Whether subnormal results, and a subnormal C, are numbers."""
        emin = FORMATS[self.instruction.accumulator].emin
        small, least = self.scene("subnormal_result"), self.scene("subnormal_c")
        if self.instruction.scale_format == "ue8m0":
            slots = self.instruction.scales
            for scene, e in ((small, emin - 3), (least, emin)):
                scene.scales([127 + e // 2] * slots, [127 + e - e // 2] * slots).product(0, 1)
        else:
            small.product(0, _TWO ** (emin - 3))
            least.product(0, _TWO**emin)
        least.accumulator(_TWO ** (emin - 4))
        alone = self.scene("subnormal_c").accumulator(_TWO ** (emin - 4))
        result, beside, single = self.ask([small, least, alone])
        kept = None if result is None else (FLUSHED if result == 0 else KEPT)
        if beside is None:
            return kept, FLUSHED if single == 0 else KEPT
        if kept == FLUSHED or beside == _TWO**emin * (1 + _TWO**-4):
            return kept, KEPT if beside != _TWO**emin else FLUSHED
        return kept, FLUSHED

    def find_scale_rules(self) -> dict[str, object]:
        """What the bytes of scales that are no ordinary numbers do."""
        slots, fmt = self.instruction.scales, self.instruction.scale_format
        one = 127 if fmt == "ue8m0" else 0x38
        nan = 0xFF if fmt == "ue8m0" else 0x7F
        ones = [one] * slots
        both = self.bits(self.scene("scale_nan").product(0, 1).scales(*each) for each in (([nan] * slots, ones), (ones, [nan] * slots)))
        special = {bits is not None and decode(bits, self.instruction.accumulator).special == "nan" for bits in both}
        if len(special) > 1:
            raise NoMember("no model of the family fits: first contradiction in scale_nan: A's and B's differ")
        found: dict[str, object] = {"scale_nan": special.pop()}
        if fmt == "ue8m0":
            value = self.ask([self.scene("scale_zero").product(0, 1).scales([0] * slots, [254] * slots)])[0]
            found["scale_zero"] = "0" if value == 0 else "2^-127"
        else:
            value = self.ask([self.scene("scale_sign").product(0, 1).scales([one | 0x80] * slots, ones)])[0]
            found["scale_sign"] = "negates" if value == -1 else "ignored"
        return found


def c_sign(fmt: object) -> int:
    """The sign bit of C's format."""
    return 1 << (fmt.exponent_bits + fmt.mantissa_bits)  # type: ignore[attr-defined]


def _exponent(value: Fraction) -> int:
    """Of a power of two."""
    return value.numerator.bit_length() - value.denominator.bit_length()


def _last_kept(values: Sequence[Fraction | None]) -> int | None:
    """The last place at which something came back."""
    return max((x for x, value in enumerate(values) if value not in (0, None)), default=None)


def _pieces(width: int, room: int, unit: Fraction, formats: tuple[str, str]) -> list[Fraction] | None:
    """At most `room` products that add up to 2^width units, one of which is a single unit; None if there are none."""
    rest, parts = 2**width, [1]
    rest -= 1
    while rest:
        if len(parts) >= room:
            return None
        size = next((n for n in _sizes(rest) if factors(n * unit, *formats) is not None), None)
        if size is None:
            return None
        parts.append(size)
        rest -= size
    return [n * unit for n in parts] if factors(unit, *formats) is not None else None


def _sizes(rest: int) -> Iterable[int]:
    """Whole numbers up to `rest` whose first bits are few, the largest first."""
    top = rest.bit_length()
    found = {odd << shift for odd in (1, 3, 5, 7, 9, 15, 21, 25, 35, 49) for shift in range(top + 1)}
    return sorted((n for n in found if n <= rest), reverse=True)


def _random_scenes(instruction: Instruction) -> list[Scene]:
    """Products of any codes, of neighbouring and of far sizes; the same ones each time."""
    rng = random.Random(instruction.name)
    scenes = []
    a_fmt, b_fmt, c_fmt = (FORMATS[n] for n in (instruction.a_format, instruction.b_format, instruction.accumulator))
    for number in range(_RANDOM):
        scene = Scene(instruction, "random products")
        narrow = number % 3 == 0

        def code(fmt: object, name: str, narrow: bool = narrow) -> int:
            while True:
                bits = rng.getrandbits(1 + fmt.exponent_bits + fmt.mantissa_bits)  # type: ignore[attr-defined]
                if narrow and fmt.exponent_bits > 2:  # type: ignore[attr-defined]
                    field = fmt.bias + rng.randint(-3, 3)  # type: ignore[attr-defined]
                    mask = ((1 << fmt.exponent_bits) - 1) << fmt.mantissa_bits  # type: ignore[attr-defined]
                    bits = bits & ~mask | field << fmt.mantissa_bits  # type: ignore[attr-defined]
                bits <<= fmt.unused_low_bits  # type: ignore[attr-defined]
                if not decode(bits, name).special:
                    return bits

        for k in range(instruction.k):
            if rng.random() < 0.8:
                scene.pair(k, code(a_fmt, instruction.a_format), code(b_fmt, instruction.b_format))
        if number % 4:
            scene.bits(code(c_fmt, instruction.accumulator))
        if instruction.scales:
            one, low, high = (127, -6, 6) if instruction.scale_format == "ue8m0" else (0x38, -0x30, 0x40)
            scene.scales(*([one + rng.randint(low, high) for _ in range(instruction.scales)] for _ in range(2)))
        scenes.append(scene)
    return scenes


Progress = Callable[[str], None]
