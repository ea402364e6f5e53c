"""An entry's PTX as blocks of instructions, and what its registers may hold: a sound, flow-insensitive analysis.

What it takes for granted, besides PTX, is `sound`: a launch has one dimension and whole warps, and a parameter that is
an integer of 32 bits is 0 to 2^31 - 1. `refmoe.mutation.trial` holds the launches of cases against that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Number

import numpy as np

from refmoe.cuda.arguments import INT32_MAX
from refmoe.cuda.launch import LaunchPlan
from refmoe.mutation import ptx
from refmoe.mutation.proofs import values
from refmoe.mutation.proofs.bounds import HostBounds, bounds_of
from refmoe.mutation.proofs.values import EITHER, FALSE, TRUE, KnownWord

#: By the beginning of an entry's name, parameters that are the bits of a float, and so any word.
ANY_WORD: Mapping[str, tuple[int, ...]] = {"refmoe_deepseek_finalize_": (8,), "refmoe_deepseek_route_": (10,)}

Held = KnownWord | int
WARP = 32


def sound(plan: LaunchPlan, text: str | None = None) -> bool:
    """Whether a launch is as the analysis takes for granted. A number that is no Python integer is not.

    Args:
        plan: the launch.
        text: the module of its entry, whose integers are asked about; without it all numbers are.
    """
    wanted = [True] * len(plan.arguments)
    if text is not None:
        kinds = _PARAMETERS.findall(text)
        # A number that the entry takes as a float may have any bits.
        wanted = [kind != "f32" for kind in kinds] if len(kinds) == len(plan.arguments) else wanted
        for place in _any_words(plan.kernel.entry):
            wanted[place] = False
    numbers = [
        each
        for each, asked in zip(plan.arguments, wanted, strict=True)
        if asked and isinstance(each, (Number, np.generic))
    ]
    small = all(isinstance(each, int) and 0 <= each <= INT32_MAX for each in numbers)
    return plan.block > 0 and plan.block % WARP == 0 and small


def _any_words(entry: str) -> tuple[int, ...]:
    return next((places for start, places in ANY_WORD.items() if entry.startswith(start)), ())


class NoProof(Exception):
    """The analysis does not follow a text; the message says what it does not know."""


_LABEL = re.compile(r"^[ \t]*([$\w]+):[ \t]*$", re.MULTILINE)
_IGNORED = re.compile(r"^[ \t]*(?:[{}]|\.(?:reg|shared|local|pragma)\b[^;]*;)?[ \t]*$")
_SCOPE = re.compile(
    r"^[ \t]*\{[ \t]*\.reg \.b16 \w+;[ \t]*(mov\.b32)[ \t]+(\{\w+, ?%\w+\})[ \t]*,[ \t]*(%\w+);[ \t]*\}$", re.MULTILINE
)
_NAME = re.compile(r"(?<![\w$%.])[%$A-Za-z_][\w$]*")
_DECLARED = re.compile(r"\.reg\s+\.(\w+)\s+([^;]+);")
_NUMBER = re.compile(r"^[ \t]*\.param[ \t]+\.[us]32[ \t]+([\w$]+)[ \t]*,?[ \t]*$", re.MULTILINE)
_PARAMETERS = re.compile(r"^[ \t]*\.param[ \t]+(?:\.align[ \t]+\d+[ \t]+)?\.(\w+)", re.MULTILINE)
_DIRECTIVE = re.compile(r"^[ \t]*\.(?!reg\b)[^;\n]*", re.MULTILINE)
#: An octal number, which Python does not read.
_OCTAL = re.compile(r"(?<![\w.])0\d")
#: What is named like a register, and is none that an instruction writes.
_READ_ONLY = frozenset(
    f"%{name}"
    for name in (
        *(
            "tid",
            "ntid",
            "ctaid",
            "nctaid",
            "laneid",
            "warpid",
            "nwarpid",
            "smid",
            "nsmid",
            "gridid",
            "clock",
            "clock64",
        ),
        *("clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid", "cluster_ctarank", "cluster_nctarank"),
        *("lanemask_eq", "lanemask_le", "lanemask_lt", "lanemask_ge", "lanemask_gt", "globaltimer", "globaltimer_lo"),
        *("globaltimer_hi", "is_explicit_cluster", "dynamic_smem_size", "total_smem_size"),
    )
)
_WRITES_NOTHING = frozenset(
    (
        *("st", "stmatrix", "red", "bra", "ret", "exit", "trap", "bar", "barrier", "fence", "membar"),
        *("griddepcontrol", "prefetch", "nanosleep"),
    )
)
_INTEGER = re.compile(r"[su](8|16|32|64)$")
_FLOAT = re.compile(r"0f([0-9A-Fa-f]{8})$")


@dataclass(frozen=True)
class StraightCode:
    """Instructions that run one after the other; `labels` name the first."""

    labels: tuple[str, ...]
    code: tuple[int, ...]


@dataclass(frozen=True)
class EntryCode:
    """The text of an entry.

    Attributes:
        text: the module.
        code: its instructions in order.
        blocks: what runs without a jump in between; the first is the beginning.
    """

    text: str
    code: tuple[ptx.Instruction, ...]
    blocks: tuple[StraightCode, ...]

    @classmethod
    def of(cls, text: str) -> EntryCode:
        """Take a module of one entry apart.

        Raises:
            NoProof: a line is neither an instruction nor a label nor a declaration.
        """
        body = text.index("\n{") + 1
        code = tuple(sorted([*ptx.instructions(text), *_scoped(text, body)], key=lambda each: each.start))
        marks = sorted(
            [(match.start(1), match.end(), match[1]) for match in _LABEL.finditer(text, body)]
            + [(each.start, each.end, index) for index, each in enumerate(code)]
        )
        at = body
        blocks: list[StraightCode] = []
        labels: list[str] = []
        held: list[int] = []
        for start, end, mark in marks:
            _nothing_between(text[at:start])
            at = end
            if isinstance(mark, str):
                if held:
                    blocks.append(StraightCode(tuple(labels), tuple(held)))
                    labels, held = [], []
                labels.append(mark)
                continue
            held.append(mark)
            if code[mark].name in ("call", "brx"):
                raise NoProof(f"what {code[mark].opcode} does")
            if code[mark].name in ("bra", "ret", "exit", "trap"):
                blocks.append(StraightCode(tuple(labels), tuple(held)))
                labels, held = [], []
        _nothing_between(text[at:])
        blocks.append(StraightCode(tuple(labels), tuple(held)))
        made = cls(text, code, tuple(blocks))
        made._followed()
        return made

    def _followed(self) -> None:
        """Refuse what the analysis would follow wrongly: registers that it does not see, and spellings it misreads."""
        known = {"_", "WARP_SZ"} | {label for block in self.blocks for label in block.labels}
        known |= {name for match in _DIRECTIVE.finditer(self.text) for name in _NAME.findall(match[0])}
        for each in self.code:
            _refuse(each)
            guard = [each.guard.lstrip("@!")] if each.guard else []
            for operand in (*guard, *(operand for _, operand in each.operands)):
                for name in _NAME.findall(operand):
                    if not (self._declares(name) or name in (_READ_ONLY if name[0] == "%" else known)):
                        raise NoProof(f"what {name} is")
                if _OCTAL.search(operand):
                    raise NoProof(f"which number {operand} is")

    def _declares(self, name: str) -> bool:
        return name in self.widths or name.rstrip("0123456789") in self.families

    @cached_property
    def families(self) -> frozenset[str]:
        """The letters of registers that are declared with their number, as `%r<9>`.

        Raises:
            NoProof: they end in a digit, so that where the number begins is open.
        """
        found = [
            name.partition("<")[0].strip()
            for match in _DECLARED.finditer(self.text)
            for name in match[2].split(",")
            if "<" in name
        ]
        for letters in found:
            if letters[-1:].isdigit():
                raise NoProof(f"which registers {letters} begins")
        return frozenset(found)

    @cached_property
    def widths(self) -> Mapping[str, int]:
        """Bits by the letters of a register's name; 1 of a predicate.

        Raises:
            NoProof: two scopes have registers of one name and of different widths.
        """
        found: dict[str, int] = {}
        for match in _DECLARED.finditer(self.text):
            width = 1 if match[1] == "pred" else int(re.sub(r"\D", "", match[1]))
            for name in match[2].split(","):
                letters = name.partition("<")[0].strip()
                if found.setdefault(letters, width) != width:
                    raise NoProof(f"how wide {letters} is")
        return found

    @cached_property
    def numbers(self) -> frozenset[str]:
        """Operands that are a parameter which is one integer of 32 bits."""
        match = re.search(r"\.entry\s+(\w+)", self.text)
        free = {f"_param_{place}" for place in _any_words(match[1] if match else "")}
        names = _NUMBER.findall(self.text)
        return frozenset(f"[{name}]" for name in names if name[name.rfind("_param_") :] not in free)

    @cached_property
    def bounds(self) -> HostBounds:
        """What is known of its launches."""
        match = re.search(r"\.entry\s+(\w+)", self.text)
        return bounds_of(match[1] if match else "")

    @cached_property
    def threads(self) -> int:
        """The most threads of a block.

        Raises:
            NoProof: the entry does not say.
        """
        match = re.search(r"^\.(?:maxntid|reqntid)\s+(\d+)\s*((?:,\s*1\s*)*)$", self.text, re.MULTILINE)
        if match is None:
            raise NoProof("how many threads a block has")
        return int(match[1])

    def width(self, register: str) -> int:
        """Bits of a register."""
        letters = register.rstrip("0123456789")
        width = self.widths.get(register, self.widths.get(letters))
        if width is None:
            raise NoProof(f"how wide {register} is")
        return width

    def registers(self, operand: str) -> list[str]:
        """The registers that an operand names."""
        if operand not in self.named:
            self.named[operand] = [name for name in _NAME.findall(operand) if self._declares(name)]
        return self.named[operand]

    @cached_property
    def named(self) -> dict[str, list[str]]:
        """Registers by operand, as far as anybody has asked."""
        return {}

    @cached_property
    def users(self) -> Mapping[str, frozenset[int]]:
        """By register, the instructions that read it, or that it guards."""
        found: dict[str, set[int]] = {}
        for index, each in enumerate(self.code):
            guard = [each.guard.lstrip("@!")] if each.guard else []
            # An address is read, also where it stands first, as that of an instruction which stores.
            first = [operand for _, operand in each.operands[:1] if operand.startswith("[")]
            read = [*first, *(operand for _, operand in each.sources)]
            for name in [*guard, *(name for operand in read for name in self.registers(operand))]:
                found.setdefault(name, set()).add(index)
        return {name: frozenset(users) for name, users in found.items()}

    def destinations(self, each: ptx.Instruction) -> list[str]:
        """The registers that an instruction writes, as far as its shape tells; all of them if it does not tell."""
        if each.name in _WRITES_NOTHING or each.opcode.startswith("cp."):
            return []
        if len(each.sources) == len(each.operands):
            return [name for _, operand in each.operands for name in self.registers(operand)]
        return self.registers(each.operands[0][1]) if each.operands else []

    @cached_property
    def targets(self) -> Mapping[str, int]:
        """The block of each label.

        Raises:
            NoProof: two labels have one name, in scopes of their own.
        """
        found: dict[str, int] = {}
        for number, block in enumerate(self.blocks):
            for label in block.labels:
                if label in found:
                    raise NoProof(f"which {label} is meant")
                found[label] = number
        return found


def _scoped(text: str, body: int) -> Iterator[ptx.Instruction]:
    """Halves of a word that are taken in a scope of their own, on one line."""
    for match in _SCOPE.finditer(text, body):
        operands = ((match.start(2), match[2]), (match.start(3), match[3]))
        yield ptx.Instruction("", -1, match[1], match.start(1), operands, match.start(), match.end())


def _refuse(each: ptx.Instruction) -> None:
    parts = each.opcode.split(".")
    if each.opcode.startswith("cvt.pack.") or (parts[0] in ("min", "max") and "relu" in parts):
        raise NoProof(f"what {each.opcode} gives")
    reduces = parts[0] in ("bar", "barrier") and "red" in parts
    carries = "cc" in parts or parts[0] in ("addc", "subc", "madc")
    if reduces or carries:
        raise NoProof(f"what {each.opcode} writes")


def _nothing_between(text: str) -> None:
    for line in text.splitlines():
        if not _IGNORED.match(line):
            raise NoProof(f"what {line.strip()!r} is")


@dataclass
class KnownRegisters:
    """What registers may hold, for all threads or for those of one lane.

    Attributes:
        program: the sound entry.
        lane: the lane of all threads in question; None for any.
        anyone: what registers may hold for any lane, where `lane` is one.
        held: by register; one that is not there is never written by what may run.
        reached: numbers of blocks that may run.
    """

    program: EntryCode
    lane: int | None = None
    anyone: KnownRegisters | None = None
    held: dict[str, Held] = field(default_factory=dict)
    reached: set[int] = field(default_factory=set)
    _grown: dict[str, int] = field(default_factory=dict)

    def solve(self) -> KnownRegisters:
        """Go over all that may run until nothing more is found; gives itself."""
        self.reached = {0}
        waiting = set(self.program.blocks[0].code)
        of_block = {index: number for number, block in enumerate(self.program.blocks) for index in block.code}
        while waiting:
            now, waiting = sorted(waiting), set()
            for index in now:
                for name in self._step(self.program.code[index]):
                    waiting |= {user for user in self.program.users.get(name, ()) if of_block[user] in self.reached}
            for number in sorted({of_block[index] for index in now}):
                self._enter(number, waiting)
        return self

    def _enter(self, number: int, waiting: set[int]) -> None:
        for after in self._after(number, self.program.blocks[number]):
            if after not in self.reached:
                self.reached.add(after)
                waiting |= set(self.program.blocks[after].code)
                if not self.program.blocks[after].code:
                    self._enter(after, waiting)

    def instructions(self) -> frozenset[int]:
        """Indices of the instructions in blocks that may run, those included whose guard is always false."""
        return frozenset(index for number in self.reached for index in self.program.blocks[number].code)

    def guard(self, each: ptx.Instruction) -> int:
        """The truths that an instruction's guard may have; 0 if nothing that may run writes it."""
        if not each.guard:
            return TRUE
        truth = self.truth(each.guard.lstrip("@!"))
        return _inverted(truth) if "!" in each.guard else truth

    def truth(self, register: str) -> int:
        """The truths of a predicate; 0 if nothing that may run writes it."""
        found = self.held.get(register, 0)
        return found if isinstance(found, int) else EITHER

    def _after(self, number: int, block: StraightCode) -> Iterator[int]:
        last = self.program.code[block.code[-1]] if block.code else None
        if last is None or last.name not in ("bra", "ret", "exit", "trap"):
            if number + 1 < len(self.program.blocks):
                yield number + 1
            return
        truth = self.guard(last)
        if truth & FALSE and number + 1 < len(self.program.blocks):
            yield number + 1
        if last.name == "bra" and truth & TRUE:
            target = last.operands[-1][1]
            if target not in self.program.targets:
                raise NoProof(f"where {target} is")
            yield self.program.targets[target]

    def of(self, operand: str, bits: int) -> KnownWord | None:
        """What an operand may be, as a word of so many bits; None if nothing that may run writes it."""
        if re.fullmatch(r"-?\d+|0[xX][0-9a-fA-F]+", operand):
            return values.constant(bits, int(operand, 0))
        if match := _FLOAT.match(operand):
            return values.constant(bits, int(match[1], 16))
        if operand in _SPECIAL:
            return self._special(operand, bits)
        names = self.program.registers(operand)
        if names != [operand]:
            return values.anything(bits)
        held = self.held.get(operand)
        if held is None:
            return None
        if isinstance(held, int):
            return values.anything(bits)
        return held if held.bits == bits else values.resized(held, bits, signed=False)

    def _special(self, name: str, bits: int) -> KnownWord:
        if name in ("%tid.y", "%tid.z", "%ctaid.y", "%ctaid.z"):
            return values.constant(bits, 0)
        if name == "%laneid" or (name == "%tid.x" and self.lane is not None):
            if self.lane is None:
                return values.between(bits, 0, WARP - 1)
            if name == "%laneid":
                return values.constant(bits, self.lane)
            word = values.known_bits(bits, ~self.lane & (WARP - 1), self.lane)
            return values.between(bits, 0, self.program.threads - 1, word.zeros, word.ones)
        if name == "%tid.x":
            return values.between(bits, 0, self.program.threads - 1)
        if name == "%ntid.x":
            return values.between(bits, WARP, self.program.threads, WARP - 1)
        return values.between(bits, 0, (1 << 31) - 1)

    def _step(self, each: ptx.Instruction) -> list[str]:
        """Go over an instruction; the registers that hold more than before."""
        if not self.guard(each) & TRUE:
            return []
        changed = []
        results = self._results(each)
        for name, held in results.items():
            if held is None:
                continue
            before = self.held.get(name)
            after = held if before is None else self._joined(name, before, held)
            if after != before:
                self.held[name] = after
                changed.append(name)
        return changed

    def _joined(self, name: str, before: Held, held: Held) -> Held:
        if isinstance(before, int) or isinstance(held, int):
            return before | held if isinstance(before, int) and isinstance(held, int) else EITHER
        after = values.joined(before, held)
        if after != before:
            self._grown[name] = self._grown.get(name, 0) + 1
            if self._grown[name] > _PATIENCE:
                after = values.widened(before, after)
        return after

    def _results(self, each: ptx.Instruction) -> dict[str, Held | None]:
        names = self.program.destinations(each)
        if len(names) == 1 and len(each.sources) < len(each.operands):
            width = self.program.width(names[0])
            return {names[0]: self._predicate(each) if width == 1 else self._word(each, width)}
        unknown: dict[str, Held | None] = {}
        for name in names:
            width = self.program.width(name)
            unknown[name] = EITHER if width == 1 else values.anything(width)
        if each.name == "shfl" and names:
            unknown[names[0]] = self._exchanged(each, self.program.width(names[0]))
        return unknown

    def _predicate(self, each: ptx.Instruction) -> int | None:
        parts, sources = each.opcode.split("."), [operand for _, operand in each.sources]
        if each.name in ("and", "or", "xor", "not", "mov"):
            truths = [_truth_of(operand, self) for operand in sources]
            if 0 in truths:
                return None
            return _combined(each.name, truths)
        integer = _INTEGER.match(parts[-1]) or re.match(r"b(16|32|64)$", parts[-1])
        if each.name != "setp" or len(parts) != 3 or integer is None:
            return EITHER
        bits = int(integer[1])
        one, other = (self.of(operand, bits) for operand in sources)
        if one is None or other is None:
            return None
        return values.compared(parts[1], one, other, signed=parts[-1][0] == "s")

    def _exchanged(self, each: ptx.Instruction, bits: int) -> KnownWord | None:
        whose = self.anyone or self
        return whose.of(each.sources[0][1], bits)

    def _word(self, each: ptx.Instruction, width: int) -> KnownWord | None:
        """The result of an instruction with one result, which is a word; None if an operand is never written."""
        parts, sources = each.opcode.split("."), [operand for _, operand in each.sources]
        kind = _INTEGER.match(parts[-1]) or re.match(r"[bf](8|16|32|64)$", parts[-1])
        if kind is None:
            return values.anything(width)
        bits, signed = int(kind[1]), parts[-1][0] == "s"
        if each.name == "ld":
            if "param" in parts and bits == 32 and sources[0] in self.program.numbers:
                return self._parameter(sources[0], width)
            return values.resized(values.anything(bits), width, signed=signed)
        if each.name == "selp" and self.truth(sources[2]) != EITHER:
            truth = self.truth(sources[2])
            return self.of(sources[0 if truth == TRUE else 1], width) if truth else None
        if each.name == "selp":
            sources = sources[:2]
        if each.name == "cvt" and len(parts) > 2:
            made = self._converted(parts, sources[0])
            return made and values.resized(made, width, signed=parts[-2][0] == "s")
        if each.name == "shfl":
            return self._exchanged(each, bits)
        if each.name == "redux" and parts[2] in ("min", "max"):
            found = (self.anyone or self).of(sources[0], bits)
            return found and values.between(bits, min(found.low, 0) if not found.unsigned else found.low, found.high)
        # The amount of a shift has 32 bits, whatever it shifts.
        shifts = each.name in ("shl", "shr")
        operands = [self.of(operand, 32 if shifts and number else bits) for number, operand in enumerate(sources)]
        if any(each is None for each in operands):
            return None
        words = [each for each in operands if each is not None]
        made = computed(each.name, parts, words, sources, signed=signed)
        if made is None:
            return values.anything(width)
        return made if made.bits == width else values.resized(made, width, signed=signed)

    def _parameter(self, operand: str, width: int) -> KnownWord:
        known, number = self.program.bounds, int(operand.rstrip("]").rpartition("_")[2])
        zeros = known.multiples.get(number, 1) - 1
        return values.between(width, known.least.get(number, 0), known.most.get(number, INT32_MAX), zeros)

    def _converted(self, parts: list[str], operand: str) -> KnownWord | None:
        source, target = _INTEGER.match(parts[-1]), _INTEGER.match(parts[-2])
        if source is None or target is None or len(parts) != 3:
            bits = re.search(r"(8|16|32|64)(?:x2)?$", parts[-2])
            return values.anything(int(bits[1]) * (2 if parts[-2].endswith("x2") else 1) if bits else 64)
        found = self.of(operand, int(source[1]))
        return found and values.resized(found, int(target[1]), signed=parts[-1][0] == "s")


#: Times that a register may grow before its interval goes to the end of the width.
_PATIENCE = 6
_SPECIAL = frozenset(f"%{name}.{axis}" for name in ("tid", "ctaid", "ntid", "nctaid") for axis in "xyz") | frozenset(
    ("%laneid",)
)


def _truth_of(operand: str, registers: KnownRegisters) -> int:
    if re.fullmatch(r"-?\d+", operand):
        return TRUE if int(operand) else FALSE
    return registers.truth(operand) if registers.program.registers(operand) == [operand] else EITHER


def _inverted(truth: int) -> int:
    return (TRUE if truth & FALSE else 0) | (FALSE if truth & TRUE else 0)


def _combined(name: str, truths: list[int]) -> int:
    if name == "mov":
        return truths[0]
    if name == "not":
        return _inverted(truths[0])
    found = 0
    for one in (FALSE, TRUE):
        for other in (FALSE, TRUE):
            if truths[0] & one and truths[1] & other:
                left, right = one == TRUE, other == TRUE
                result = {"and": left and right, "or": left or right, "xor": left != right}[name]
                found |= TRUE if result else FALSE
    return found


def computed(
    name: str, parts: list[str], words: list[KnownWord], sources: list[str], *, signed: bool
) -> KnownWord | None:
    """The result of an instruction on integers, or on bits; None if nothing is known of it."""
    if parts[-1][0] == "f":
        return _float_bits(name, words)
    if name == "mov":
        return words[0]
    if name == "selp":
        return values.joined(words[0], words[1])
    if name in ("add", "sub") and len(parts) == 2:
        return (values.added if name == "add" else values.subtracted)(words[0], words[1])
    if name in ("mul", "mad") and parts[1] in ("lo", "wide"):
        bits = words[0].bits * (2 if parts[1] == "wide" else 1)
        if not signed and not (words[0].unsigned and words[1].unsigned) and parts[1] == "wide":
            return None
        product = values.multiplied(words[0], words[1], bits)
        # The addend of a wide one has the width of the product, which `words` has not.
        return product if name == "mul" else None if parts[1] == "wide" else values.added(product, words[2])
    if name in ("and", "or", "xor"):
        return values.bitwise(name, words[0], words[1])
    if name == "not":
        return values.known_bits(words[0].bits, words[0].ones, words[0].zeros)
    if name in ("shl", "shr"):
        amount = words[1]
        if amount.constant is None:
            nonnegative = name == "shr" and words[0].unsigned
            return values.between(words[0].bits, 0, words[0].high) if nonnegative else None
        return values.shifted(name, words[0], amount.constant, signed=signed)
    if name in ("min", "max") and len(parts) == 2 and (signed or all(each.unsigned for each in words)):
        pick = min if name == "min" else max
        low, high = pick(each.low for each in words), pick(each.high for each in words)
        return values.between(words[0].bits, low, high)
    if name in ("div", "rem") and all(each.unsigned for each in words):
        if name == "div":
            return values.between(words[0].bits, words[0].low // max(words[1].high, 1), words[0].high)
        return values.between(words[0].bits, 0, min(words[0].high, max(words[1].high - 1, 0)))
    if name in ("popc", "clz"):
        return values.between(words[0].bits, 0, words[0].bits)
    if name == "dp4a":
        return values.between(32, words[2].low - (4 << 16), words[2].high + (4 << 16))
    return None


def _float_bits(name: str, words: list[KnownWord]) -> KnownWord | None:
    if name == "mov":
        return words[0]
    if name == "selp":
        return values.joined(words[0], words[1])
    if name == "abs":
        return values.known_bits(words[0].bits, 1 << (words[0].bits - 1), 0)
    return None
