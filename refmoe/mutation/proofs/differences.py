"""Which bits of which registers may differ between an entry and a mutant of it, and whether anything sees them.

Both are run in thought side by side. They differ in one instruction. A difference goes from a register to the registers
that are computed of it, bit by bit. If none reaches an address, a store, a branch, a guard or an instruction that the
analysis does not follow, then both run the same instructions and write the same memory: the mutant is the same kernel.

The analysis does not follow the order of instructions. A register may hold at any place what it may hold at one, and so
differs at all of them if it differs at one. That a register is written before it is read is not known either.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from refmoe.mutation.proofs import values
from refmoe.mutation.proofs.program import WARP, EntryCode, KnownRegisters, NoProof
from refmoe.mutation.proofs.values import EITHER, TRUE, KnownWord
from refmoe.mutation.ptx import Instruction
from refmoe.mutation.site import Site

_INTEGER = re.compile(r"([su])(8|16|32|64)$")
#: Exchanges whose clamp is 31 where the whole warp takes part; that of `up` is 0.
_EXCHANGES = frozenset(("bfly", "down", "idx"))

#: Modifiers of loads that others, or what comes behind, may depend on.
_ORDERS = frozenset(("acquire", "relaxed", "volatile", "mmio"))

#: Instructions that compute one register of others, and do nothing else.
_PURE = frozenset(
    (
        *(
            "mov",
            "add",
            "sub",
            "mul",
            "mad",
            "fma",
            "div",
            "rem",
            "min",
            "max",
            "abs",
            "neg",
            "and",
            "or",
            "xor",
            "not",
        ),
        *(
            "shl",
            "shr",
            "selp",
            "setp",
            "cvt",
            "cvta",
            "prmt",
            "bfi",
            "bfe",
            "brev",
            "popc",
            "clz",
            "bfind",
            "copysign",
        ),
        *("rcp", "sqrt", "rsqrt", "ex2", "lg2", "tanh", "dp4a", "shfl"),
    )
)


class _Seen(Exception):
    """A difference reaches what somebody sees."""


def proof(site: Site, text: str) -> str | None:
    """Why a mutant of an entry is the same kernel, in a few words; None if that is not proven.

    Args:
        site: the mutant, of the floor "ptx".
        text: the sound module of the entry.
    """
    try:
        program, changed = EntryCode.of(text), EntryCode.of(site.applied(text))
        at = next(index for index, each in enumerate(program.code) if each.start <= site.start < each.end)
        dropped = len(changed.code) < len(program.code)
        old, new = program.code[at], None if dropped else changed.code[at]
        if old.opcode == "griddepcontrol.launch_dependents" and new is None:
            return "a launch behind begins later, and waits for the same bytes"
        return _unseen(program, at, old, new)
    except (NoProof, StopIteration):
        return None


def _unseen(program: EntryCode, at: int, old: Instruction, new: Instruction | None) -> str | None:
    anyone = KnownRegisters(program).solve()
    if at not in anyone.instructions():
        return "the instruction never runs"
    if old.name != "shfl":
        return "no bit that differs is seen by anything" if _holds(_Run([anyone], at, old, new)) else None
    lanes = [KnownRegisters(program, lane, anyone).solve() for lane in range(WARP)]
    if _holds(_Run(lanes, at, old, new)):
        return "no bit that differs is seen by anything, lane by lane"
    return None


def _holds(run: _Run) -> bool:
    try:
        run.solve()
    except _Seen:
        return False
    return True


@dataclass
class _Run:
    """The entry and its mutant, side by side.

    Attributes:
        lanes: what registers of the sound entry hold: for all threads, or for those of each lane.
        at: index of the instruction in which they differ.
        old, new: this instruction; None for none.
        differ: by lane and register, a mask of bits that may differ; 1 of a predicate that may.
    """

    lanes: list[KnownRegisters]
    at: int
    old: Instruction
    new: Instruction | None
    differ: dict[tuple[int, str], int] = field(default_factory=dict)

    @property
    def program(self) -> EntryCode:
        return self.lanes[0].program

    def solve(self) -> None:
        """Follow every difference to its end.

        Raises:
            _Seen: one reaches what somebody sees.
        """
        running = [registers.instructions() for registers in self.lanes]
        waiting = {(lane, self.at) for lane, indices in enumerate(running) if self.at in indices}
        while waiting:
            lane, index = waiting.pop()
            each = self.program.code[index]
            found = self._made(lane) if index == self.at else self._carried(lane, each)
            for name, mask in found.items():
                before = self.differ.get((lane, name), 0)
                if mask & ~before:
                    self.differ[lane, name] = before | mask
                    for user in self.program.users.get(name, ()):
                        # An exchange takes a difference to other lanes.
                        there = range(len(self.lanes)) if self.program.code[user].name == "shfl" else (lane,)
                        waiting |= {(one, user) for one in there if user in running[one]}

    def _carried(self, lane: int, each: Instruction) -> dict[str, int]:
        """The differences that an instruction makes of those in its operands.

        Raises:
            _Seen: it does something else with them.
        """
        if each.guard and (lane, each.guard.lstrip("@!")) in self.differ:
            raise _Seen
        if not self.lanes[lane].guard(each) & TRUE:
            return {}
        if each.name not in _PURE:
            raise _Seen
        masks = [self._mask(lane, operand) for _, operand in each.sources]
        if each.name == "shfl":
            return self._through_exchange(lane, each, masks)
        return self._into(each, carried(each, masks, self.lanes[lane]))

    def _into(self, each: Instruction, mask: int) -> dict[str, int]:
        return {
            name: mask & ((1 << self.program.width(name)) - 1)
            for name in self.program.destinations(each)
            if mask & ((1 << self.program.width(name)) - 1)
        }

    def _mask(self, lane: int, operand: str) -> int:
        names = self.program.registers(operand)
        if names == [operand]:
            return self.differ.get((lane, operand), 0)
        return -1 if any((lane, name) in self.differ for name in names) else 0

    def _everything(self, each: Instruction) -> dict[str, int]:
        return {name: (1 << self.program.width(name)) - 1 for name in self.program.destinations(each)}

    def _made(self, lane: int) -> dict[str, int]:
        """The differences that the mutant's instruction makes."""
        old, new = self.old, self.new
        if old.guard and (lane, old.guard.lstrip("@!")) in self.differ:
            raise _Seen
        if new is not None and new.guard != old.guard:
            raise _Seen
        if not self.lanes[lane].guard(old) & TRUE:
            return {}
        if old.name not in _PURE and not (old.name == "ld" and new is not None):
            raise _Seen
        if new is None:
            return self._everything(old)
        if _result(new) != _result(old):
            raise _Seen
        texts = [operand for _, operand in old.sources], [operand for _, operand in new.sources]
        # What is known of a register holds once it is written, and only what the sound instruction reads is for sure.
        if not self._registers(texts[1]) <= self._registers(texts[0]):
            raise _Seen
        if old.opcode != new.opcode:
            if texts[0] != texts[1] or new.name not in (*_PURE, "ld"):
                raise _Seen
            if {"ld", "shfl"} & {old.name, new.name} and old.name != new.name:
                raise _Seen
            if old.name == "ld" and not _reads_less(old, new):
                raise _Seen
            masks = [self._mask(lane, operand) for operand in texts[0]]
            if old.name == "shfl":
                return self._through_exchange(lane, old, masks) | self._other_exchange(lane, old, new)
            if any(masks):
                if old.name == "ld":
                    raise _Seen
                return self._everything(old)
            return self._into(old, between_opcodes(old, new, self.lanes[lane]))
        if old.name == "ld" or old.name == "shfl" or len(texts[0]) != len(texts[1]):
            raise _Seen
        before = [self._mask(lane, operand) for operand in (*texts[0], *texts[1])]
        if not any(before) and _decided_alike(old, new, self.lanes[lane]):
            return {}
        pairs = zip(*texts, strict=True)
        masks = [
            self._mask(lane, one) | self._mask(lane, other) | self._apart(lane, one, other) for one, other in pairs
        ]
        return self._into(old, carried(old, masks, self.lanes[lane]))

    def _apart(self, lane: int, one: str, other: str) -> int:
        """The bits in which two operands differ."""
        if one == other:
            return 0
        values_of = [self.lanes[lane].of(operand, 64) for operand in (one, other)]
        if values_of[0] is None or values_of[1] is None or {one, other} & self._predicates((one, other)):
            return -1
        left, right = values_of[0], values_of[1]
        return ~(left.zeros & right.zeros | left.ones & right.ones)

    def _registers(self, operands: list[str]) -> set[str]:
        return {name for operand in operands for name in self.program.registers(operand)}

    def _predicates(self, operands: tuple[str, ...]) -> set[str]:
        return {each for each in operands for name in self.program.registers(each) if self.program.width(name) == 1}

    def _through_exchange(self, lane: int, each: Instruction, masks: list[int]) -> dict[str, int]:
        if any(masks[1:]) or each.guard:
            raise _Seen
        mask = 0
        for source in range(len(self.lanes)):
            if source in self._sources(lane, each):
                mask |= self._mask(source, each.sources[0][1])
        names = self.program.destinations(each)
        return {names[0]: mask} if mask else {}

    def _sources(self, lane: int, each: Instruction) -> set[int]:
        """The lanes that an exchange may give a lane's value of."""
        everyone = set(range(len(self.lanes)))
        mode, (step, clamp, members) = each.opcode.split(".")[2], [operand for _, operand in each.sources[1:]]
        if len(self.lanes) == 1 or (clamp, members) != ("31", "-1") or not _is_lane(step) or mode not in _EXCHANGES:
            return everyone
        return {_source(mode, lane, int(step))}

    def _other_exchange(self, lane: int, old: Instruction, new: Instruction) -> dict[str, int]:
        step, clamp, members = (operand for _, operand in old.sources[1:])
        modes = old.opcode.split(".")[2], new.opcode.split(".")[2]
        known = (clamp, members) == ("31", "-1") and _is_lane(step) and set(modes) <= _EXCHANGES
        if len(self.lanes) == 1 or not known or old.guard:
            raise _Seen
        found = [_source(mode, lane, int(step)) for mode in modes]
        valid = [_in_warp(mode, lane, int(step)) for mode in modes]
        names = self.program.destinations(old)
        made = {}
        if found[0] != found[1]:
            made[names[0]] = (1 << self.program.width(names[0])) - 1
        if valid[0] != valid[1] and len(names) > 1:
            made[names[1]] = 1
        return made


def _result(each: Instruction) -> str:
    return each.operands[0][1]


def _is_lane(step: str) -> bool:
    """Whether the step of an exchange is a number that it takes as it is, not modulo the warp."""
    return re.fullmatch(r"\d+", step) is not None and int(step) < WARP


def _at(mode: str, lane: int, step: int) -> int:
    return {"bfly": lane ^ step, "down": lane + step, "idx": step}[mode]


def _in_warp(mode: str, lane: int, step: int) -> bool:
    return 0 <= _at(mode, lane, step) < WARP


def _source(mode: str, lane: int, step: int) -> int:
    """The lane whose value an exchange gives, without a clamp; its own if there is no such lane."""
    return _at(mode, lane, step) if _in_warp(mode, lane, step) else lane


def carried(each: Instruction, masks: list[int], registers: KnownRegisters) -> int:
    """The bits of a result that may differ, of the bits of operands that may; -1 for all.

    Values are those of the sound entry. So they tell nothing of an operand's bits that differ.
    """
    if not any(masks):
        return 0
    name, parts = each.name, each.opcode.split(".")
    sources = [operand for _, operand in each.sources]
    kind = re.match(r"[subf](8|16|32|64)$", parts[-1])
    bits = int(kind[1]) if kind else 0
    full = (1 << bits) - 1
    if not kind or (parts[-1][0] == "f" and name not in ("mov", "abs", "neg", "copysign", "selp")):
        return -1
    if name in ("shl", "shr"):
        # The amount has 32 bits, whatever it shifts.
        return _through_shift(name, parts[-1], [masks[0] & full, masks[1]], sources, registers, bits)
    masks = [mask & full for mask in masks]
    if name == "mov" and "{" not in sources[0] + each.operands[0][1]:
        return masks[0]
    if name in ("neg", "abs") and parts[-1][0] == "f":
        return _through_sign(name, parts, masks[0], 1 << (bits - 1))
    if name == "copysign":
        sign = 1 << (bits - 1)
        return masks[0] & sign | masks[1] & (full >> 1)
    if name == "not":
        return masks[0]
    if name == "selp":
        return -1 if masks[2] else masks[0] | masks[1]
    if name in ("and", "or"):
        return _through_bits(name, masks, [registers.of(operand, bits) for operand in sources], full)
    if name == "xor":
        return masks[0] | masks[1]
    if name in ("add", "sub") and len(parts) == 2:
        return _carries(masks[0] | masks[1])
    if name in ("mul", "mad") and "lo" in parts:
        return _carries(masks[0] | masks[1] | (masks[2] if name == "mad" else 0))
    if name == "cvt" and len(parts) == 3 and _INTEGER.match(parts[1]) and _INTEGER.match(parts[2]):
        above = -1 << bits if parts[2][0] == "s" and masks[0] >> (bits - 1) else 0
        target = int(parts[1][1:])
        mask = masks[0] | above
        cut = mask & ((1 << target) - 1)
        # A register that is wider than the type holds the sign above it.
        return cut | (-1 << target if parts[1][0] == "s" and cut >> (target - 1) else 0)
    return -1


def _through_sign(name: str, parts: list[str], mask: int, sign: int) -> int:
    """Every NaN becomes one and the same, so any bit but the sign may decide about all of them; so may it with `ftz`.

    Two words that differ in the sign alone are both NaN, and then become the same, or neither is.
    """
    if len(parts) != 2 or mask & ~sign:
        return -1
    return mask if name == "neg" else 0


def _through_bits(name: str, masks: list[int], held: list[KnownWord | None], full: int) -> int:
    found = 0
    for mine, other in ((0, 1), (1, 0)):
        value = held[other]
        decided = 0 if value is None else (value.zeros if name == "and" else value.ones) & ~masks[other]
        found |= masks[mine] & ~decided
    return found & full


def _carries(mask: int) -> int:
    """A sum or product differs from the lowest bit that differs in an operand on."""
    return -(mask & -mask) if mask else 0


def _through_shift(
    name: str, kind: str, masks: list[int], sources: list[str], registers: KnownRegisters, bits: int
) -> int:
    amount = registers.of(sources[1], 32)
    if masks[1] or amount is None or amount.constant is None:
        return -1
    by = min(amount.constant, bits)
    if name == "shl":
        return (masks[0] << by) & ((1 << bits) - 1)
    smeared = masks[0] | (-1 << bits if kind[0] == "s" and masks[0] >> (bits - 1) else 0)
    return (smeared >> by) & ((1 << bits) - 1)


def between_opcodes(old: Instruction, new: Instruction, registers: KnownRegisters) -> int:
    """The bits in which the results of two opcodes may differ on the same operands; -1 for all."""
    one, other = old.opcode.split("."), new.opcode.split(".")
    if old.name != new.name or len(one) != len(other):
        return -1
    at = [number for number, word in enumerate(one) if word != other[number]]
    if len(at) != 1:
        return -1
    before, after = one[at[0]], other[at[0]]
    if old.name == "ld":
        return -1 << int(after[1:]) if not old.operands[0][1].startswith("{") else -1
    if old.name == "setp" and len(one) == 3:
        return _comparisons(old, one, other, registers)
    if old.name == "cvt":
        return _conversions(old, one, at[0], before, after, registers)
    types = _INTEGER.match(before), _INTEGER.match(after)
    if not types[0] or not types[1] or types[0][2] != types[1][2] or at[0] != len(one) - 1:
        return -1
    bits = int(types[0][2])
    held = [registers.of(operand, bits) for _, operand in old.sources]
    if any(each is None for each in held):
        return 0
    words = [each for each in held if each is not None]
    return _signs(old, one, words, registers)


def _reads_less(old: Instruction, new: Instruction) -> bool:
    """Whether two loads differ in nothing but their type, the second reads no more, and neither orders anything."""
    one, other = old.opcode.split("."), new.opcode.split(".")
    kinds = [re.fullmatch(r"[subf](\d+)", parts[-1]) for parts in (one, other)]
    if one[:-1] != other[:-1] or _ORDERS & {*one} or not kinds[0] or not kinds[1]:
        return False
    return int(kinds[1][1]) <= int(kinds[0][1])


def _signs(old: Instruction, parts: list[str], words: list[KnownWord], registers: KnownRegisters) -> int:
    """Signed and unsigned operands of an instruction on integers."""
    if old.name in ("mul", "mad") and parts[1] == "wide":
        return 0 if words[0].unsigned and words[1].unsigned else -1 << words[0].bits
    if old.name == "shr":
        amount = registers.of(old.sources[1][1], 32)
        if words[0].unsigned:
            return 0
        by = None if amount is None else amount.constant
        return -1 if by is None else -1 << max(words[0].bits - by, 0)
    if old.name in ("min", "max", "div", "rem") and len(parts) == 2:
        both = all(each.unsigned for each in words)
        alike = both or (old.name in ("min", "max") and all(each.high < 0 for each in words))
        return 0 if alike else -1
    return -1


def _comparisons(old: Instruction, one: list[str], other: list[str], registers: KnownRegisters) -> int:
    types = _INTEGER.match(one[2]), _INTEGER.match(other[2])
    if not types[0] or not types[1] or types[0][2] != types[1][2]:
        return -1
    bits = int(types[0][2])
    left, right = (registers.of(operand, bits) for _, operand in old.sources)
    if left is None or right is None:
        return 0
    truths = [values.compared(each[1], left, right, signed=each[2][0] == "s") for each in (one, other)]
    if truths[0] == truths[1] != EITHER:
        return 0
    if one[1] == other[1]:
        return 0 if (left.unsigned and right.unsigned) or (left.high < 0 and right.high < 0) else -1
    closer = {frozenset(("lt", "le")), frozenset(("gt", "ge"))}
    never_equal = values.compared("eq", left, right, signed=True) == values.FALSE
    return 0 if frozenset((one[1], other[1])) in closer and one[2] == other[2] and never_equal else -1


def _decided_alike(old: Instruction, new: Instruction, registers: KnownRegisters) -> bool:
    """Whether two comparisons of integers, each of its own operands, always have the same truth."""
    parts = old.opcode.split(".")
    kind = _INTEGER.match(parts[-1])
    if old.name != "setp" or len(parts) != 3 or kind is None:
        return False
    truths = []
    for each in (old, new):
        left, right = (registers.of(operand, int(kind[2])) for _, operand in each.sources)
        if left is None or right is None:
            return False
        truths.append(values.compared(parts[1], left, right, signed=kind[1] == "s"))
    return truths[0] == truths[1] != EITHER


def _conversions(
    old: Instruction, parts: list[str], at: int, before: str, after: str, registers: KnownRegisters
) -> int:
    source = _INTEGER.match(parts[-1])
    if source is None:
        return -1
    held = registers.of(old.sources[0][1], int(source[2]))
    if held is None:
        return 0
    if parts[-2] in ("f32", "f64") and {before, after} == {"rn", "rz"}:
        exact = 24 if parts[-2] == "f32" else 53
        least = -1 << exact if source[1] == "s" else 0
        return 0 if least <= held.low and held.high <= 1 << exact else -1
    types = _INTEGER.match(before), _INTEGER.match(after)
    if not types[0] or not types[1] or types[0][2] != types[1][2]:
        return -1
    if at == len(parts) - 1:
        if held.unsigned:
            return 0
        return -1 << held.bits if len(parts) == 3 and _INTEGER.match(parts[1]) else -1
    # The sign of the target type says how a wider register is filled, and nothing else without saturation.
    return -1 << int(types[0][2]) if len(parts) == 3 and _INTEGER.match(parts[2]) else -1
