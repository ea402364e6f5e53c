"""The operators on the compiler's PTX. A site names the entry, and the line in its text (`refmoe.mutation.entries`)."""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from refmoe.mutation.entries import sound_text
from refmoe.mutation.reach import EntryKey
from refmoe.mutation.site import Edit, Site, sites_of


@dataclass(frozen=True)
class Instruction:
    """One instruction of a text.

    Attributes:
        guard: `@%p1`, `@!%p1` or "".
        opcode: with its modifiers.
        opcode_at, guard_at: offsets in the text; of the guard -1 without one.
        operands: (offset, text) of each.
        start, end: of the whole, its semicolon included.
    """

    guard: str
    guard_at: int
    opcode: str
    opcode_at: int
    operands: tuple[tuple[int, str], ...]
    start: int
    end: int

    @property
    def name(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def sources(self) -> tuple[tuple[int, str], ...]:
        """The operands that it reads."""
        return self.operands if self.name in _NO_RESULT else self.operands[1:]


_LINE = re.compile(r"^[ \t]*(?:(@!?%?\w+)[ \t]+)?([a-z][\w.:]*)(?:[ \t]+([^;\n]*?))?[ \t]*;", re.MULTILINE)
_NO_RESULT = frozenset(
    (
        *("st", "red", "stmatrix", "cp", "prefetch", "bra", "call", "nanosleep"),
        *("bar", "barrier", "fence", "membar", "mbarrier", "wgmma", "griddepcontrol"),
    )
)
_SYNCHRONISES = re.compile(
    r"^(bar|barrier|fence|membar|mbarrier|griddepcontrol)\b|wait|commit|wgmma\.fence|cp\.async\.mbarrier"
)

_RELATIONS = {
    **{"lt": ("le", "ge"), "le": ("lt", "gt"), "gt": ("ge", "le"), "ge": ("gt", "lt"), "eq": ("ne",), "ne": ("eq",)},
    **{"ltu": ("leu",), "leu": ("ltu",), "gtu": ("geu",), "geu": ("gtu",), "equ": ("neu",), "neu": ("equ",)},
}
#: Opcodes by what they become: the same operands, another result.
_OPPOSITES = {
    **{"min": "max", "max": "min", "and": "or", "or": "and", "xor": "or"},
    **{"shl": "shr", "add": "sub", "sub": "add"},
}
#: Opcodes whose result depends on whether their operands are signed.
_SIGNED = frozenset(
    ("setp", "shr", "div", "rem", "cvt", "mul", "mad", "min", "max", "bfe", "dp4a", "redux", "atom", "red")
)
_SIGNS = {f"{one}{bits}": f"{other}{bits}" for bits in (8, 16, 32, 64) for one, other in ("su", "us")}
_NARROWER = {
    **{"b32": "b16", "u32": "u16", "s32": "s16", "b16": "b8", "u16": "u8", "s16": "s8"},
    **{"b64": "b32", "u64": "u32"},
}
#: Opcodes whose operands have an order.
_IN_ORDER = frozenset(
    (
        *("sub", "shl", "shr", "div", "rem", "prmt", "bfi", "bfe", "copysign"),
        *("setp", "selp", "slct", "fma", "mad", "mma", "dp4a"),
    )
)
_MODES = {"bfly": "down", "up": "down", "down": "up", "idx": "bfly", "ballot": "any", "any": "all"}


def instructions(text: str) -> Iterator[Instruction]:
    """The instructions of a module of one entry, in order."""
    body = text.find("\n{") + 1
    for match in _LINE.finditer(text, body):
        guard, opcode, operands = match[1] or "", match[2], match[3] or ""
        if match[2].startswith(("reg", "param", "pragma")):
            continue
        yield Instruction(
            guard, match.start(1), opcode, match.start(2), tuple(_split(operands, match.start(3))),
            match.start(1) if guard else match.start(2), match.end(),
        )  # fmt: skip


def _split(operands: str, at: int) -> Iterator[tuple[int, str]]:
    depth, begin = 0, 0
    for index, letter in enumerate(operands + ","):
        depth += (letter in "[{(") - (letter in "]})")
        if letter == "," and depth == 0:
            part = operands[begin:index]
            if part.strip():
                yield at + begin + len(part) - len(part.lstrip()), part.strip()
            begin = index + 1


def sites(key: EntryKey) -> Iterator[Site]:
    """Every mutant of an entry of a source as the compiler made it for an arch."""
    source, entry, arch = key
    text = sound_text(key)
    return sites_of("ptx", source, f"{source}.{arch}.{entry}", text, edits(text))


def key_of(site: Site) -> EntryKey:
    """The entry that a site is in."""
    source, arch, entry = site.file.split(".")
    return source, entry, arch


def edits(text: str) -> Iterator[Edit]:
    """Every edit of a module of one entry."""
    registers = {match[1]: int(match[2]) for match in re.finditer(r"\.reg \.\w+\s+%(\w+)<(\d+)>", text)}
    for each in instructions(text):
        if each.name in ("ret", "exit", "trap"):
            continue
        synchronises = _SYNCHRONISES.search(each.opcode) is not None
        if not each.opcode.startswith("ld.param"):
            dropped = "dropped-synchronisation" if synchronises else "dropped-instruction"
            yield Edit(dropped, each.start, each.end, "")
        if each.guard:
            turned = each.guard.replace("@!", "@") if "!" in each.guard else each.guard.replace("@", "@!")
            yield Edit("guard", each.guard_at, each.guard_at + len(each.guard), turned)
        yield from _opcode(each)
        yield from _operands(each, registers)


def _opcode(each: Instruction) -> Iterator[Edit]:
    parts = each.opcode.split(".")
    typed = each.name in _SIGNED and not {"lo", "eq", "ne"} & set(parts)

    def to(operator: str, number: int, *words: str) -> Iterator[Edit]:
        for word in words:
            changed = ".".join([*parts[:number], *([word] if word else []), *parts[number + 1 :]])
            yield Edit(operator, each.opcode_at, each.opcode_at + len(each.opcode), changed)

    if each.name in _OPPOSITES and not {"pred", "cc"} & set(parts):
        yield from to("opposite", 0, _OPPOSITES[each.name])
    for number, word in enumerate(parts[1:], 1):
        if each.name == "setp" and word in _RELATIONS:
            yield from to("relation", number, *_RELATIONS[word])
        if each.name in ("shfl", "vote") and word in _MODES:
            yield from to("shuffle", number, _MODES[word])
        if word in ("rn", "rz"):
            yield from to("rounding", number, "rz" if word == "rn" else "rn")
        if word in ("ftz", "sat", "satfinite", "noftz"):
            yield from to("modifier", number, "")
        if word in ("gpu", "sys", "cluster"):
            yield from to("scope", number, "cta")
        if word in ("acquire", "release", "acq_rel"):
            yield from to("scope", number, "relaxed")
        if word in _SIGNS and typed:
            yield from to("type", number, _SIGNS[word])
        if word in _NARROWER and each.name in ("ld", "st") and "param" not in parts and "v4" not in parts:
            yield from to("width", number, _NARROWER[word])
    if parts[-1] == "f32" and each.name in ("add", "sub", "mul", "fma") and "ftz" not in parts:
        yield from to("modifier", len(parts) - 1, "ftz.f32", "sat.f32")


def _operands(each: Instruction, registers: dict[str, int]) -> Iterator[Edit]:
    if each.name == "bra":
        return
    for at, operand in each.sources:
        yield from _immediates(each, at, operand)
        for match in re.finditer(r"%(r|rd|rs|f|fd|p|h)(\d+)\b", operand):
            name, number = match[1], int(match[2])
            for other in (number + 1, number - 1):
                if 0 < other < registers.get(name, 0):
                    span = at + match.start(), at + match.end()
                    yield Edit("swapped-register", *span, f"%{name}{other}")
    # A sum does not change with the order of its terms, a difference does.
    sources = each.sources
    pairs = list(itertools.pairwise(sources)) if each.name in _IN_ORDER else []
    for (first_at, first), (second_at, second) in pairs:
        product = each.name in ("fma", "mad", "dp4a") and first_at == sources[0][0]
        if first == second or product or first[0] in "{[" or second[0] in "{[":
            continue
        yield Edit("swapped-operands", first_at, second_at + len(second), f"{second}, {first}")


def _immediates(each: Instruction, at: int, operand: str) -> Iterator[Edit]:
    for match in re.finditer(r"0f([0-9A-F]{8})|(?<![\w%$.])-?\d+\b", operand):
        span = at + match.start(), at + match.end()
        if match[1]:
            (value,) = struct.unpack(">f", bytes.fromhex(match[1]))
            yield Edit("constant", *span, f"0f{(int(match[1], 16) + 1) & 0xFFFFFFFF:08X}")
            if value:
                yield Edit("constant", *span, f"0f{int(match[1], 16) ^ 0x80000000:08X}")
            continue
        number = int(match[0])
        for other in (number + 1, number - 1):
            if other >= 0 or number < 0:
                yield Edit("off-by-one", *span, str(other))
