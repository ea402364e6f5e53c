"""The operators on CUDA sources and headers. They read tokens, not a grammar: what does not build is no mutant."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from refmoe.cuda.toolchain import CSRC
from refmoe.mutation.site import Edit, Site, sites_of


@dataclass(frozen=True)
class Token:
    """A token of C++: its kind ("word", "number", "text", "mark"), its text, and its place in the file."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        """Offset behind its last character."""
        return self.start + len(self.text)


_TOKEN = re.compile(
    r"(?P<skip>\s+|//[^\n]*|/\*.*?\*/)"
    r'|(?P<text>"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\')'
    r"|(?P<number>0[xX][0-9a-fA-F']+[uUlL]*|\d[\d']*(?:\.\d*)?(?:[eE][+-]?\d+)?[fFuUlL]*)"
    r"|(?P<word>[A-Za-z_]\w*)"
    r"|(?P<mark><<=|>>=|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|::|.)",
    re.DOTALL,
)
_DIRECTIVE = re.compile(r"^[^\S\n]*#(?:\\\n|[^\n])*", re.MULTILINE)
#: What the compiler reads and no thread runs.
_DECLARED = re.compile(
    r"\b(?:static_assert|__launch_bounds__|__align__|alignas)\s*\((?:[^()]|\([^()]*\))*\)|\busing [^;]*;"
)

_OPENS, _CLOSES = "([{", ")]}"
#: Words that begin no statement that can be dropped, and those before brackets that are no call's.
_NO_STATEMENT = frozenset(
    (
        *("return", "const", "constexpr", "if", "for", "while", "do", "switch", "case", "else", "default", "goto"),
        *("using", "typedef", "struct", "class", "union", "enum", "template", "namespace", "static_assert", "extern"),
        *("static", "auto", "public", "private", "protected", "__shared__"),
    )
)
_NO_CALL = frozenset(
    (
        *("if", "for", "while", "switch", "catch", "return", "sizeof", "alignas", "decltype", "asm", "volatile"),
        "__launch_bounds__",
    )
)

_RELATIONS = {"<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"), "==": ("!=",), "!=": ("==",)}
_ARITHMETIC = {"+": "-", "-": "+", "*": "+", "/": "*", "%": "/", "+=": "-=", "-=": "+=", "*=": "+="}
_BITS = {"&": "|", "|": "&", "^": "|", "<<": ">>", ">>": "<<", "|=": "=", "&=": "|=", "^=": "|=", "~": ""}
_LOGIC = {"&&": "||", "||": "&&", "!": ""}
_WIDTHS = {
    "uint8_t": ("int8_t", "uint16_t"),
    "int8_t": ("uint8_t",),
    "uint16_t": ("uint8_t", "int16_t"),
    "int16_t": ("uint16_t",),
    "uint32_t": ("uint16_t", "int32_t"),
    "int32_t": ("uint32_t",),
    "uint64_t": ("uint32_t",),
    "int64_t": ("int32_t",),
}
_OPPOSITES = {"min": "max", "max": "min", "fminf": "fmaxf", "fmaxf": "fminf", "true": "false", "false": "true"}
_SCOPES = {
    "__threadfence": "__threadfence_block",
    "__threadfence_system": "__threadfence",
    "__syncthreads": "__syncwarp",
    "atomicMax": "atomicMax_block",
    "atomicAdd": "atomicAdd_block",
    "kFullWarp": "0x7FFFFFFFu",
    "kWholeWarp": "0x7FFFFFFFu",
}
_SHUFFLES = {
    "__shfl_xor_sync": "__shfl_down_sync",
    "__shfl_up_sync": "__shfl_down_sync",
    "__shfl_down_sync": "__shfl_up_sync",
    "__any_sync": "__all_sync",
    "__reduce_max_sync": "__reduce_min_sync",
    "__reduce_min_sync": "__reduce_max_sync",
}
_INDICES = {"threadIdx": "blockIdx", "blockIdx": "threadIdx", "blockDim": "gridDim", "gridDim": "blockDim"}
_COMPONENTS = {"x": "y", "y": "x", "z": "w", "w": "z"}
_SYNCHRONISES = re.compile(
    r"__sync|fence|barrier|bar\.|wait|commit|arrive|depcontrol|_expect", re.IGNORECASE
)  # in a statement
_IN_ASSEMBLY = (
    ("rounding", re.compile(r"\.rn\b"), (".rz",)),
    ("rounding", re.compile(r"\.rz\b"), (".rn",)),
    ("modifier", re.compile(r"\.ftz\b|\.satfinite\b|\.sat\b|\.relu\b"), ("",)),
    ("scope", re.compile(r"\.gpu\b|\.cluster\b|\.sys\b"), (".cta",)),
    ("scope", re.compile(r"\.acquire\b|\.release\b|\.acq_rel\b"), (".relaxed",)),
    ("constant", re.compile(r"(?<=, )\d+(?=[;,])"), ("0", "1")),
)


def sites(file: str) -> Iterator[Site]:
    """Every mutant of a file of refmoe/cuda/csrc, by its name there."""
    text = (CSRC / file).read_text(encoding="utf-8")
    return sites_of("cuda", file.partition(".")[0], file, text, edits(text))


def files() -> list[str]:
    """The sources and headers of refmoe/cuda/csrc."""
    return sorted(path.name for path in CSRC.iterdir() if path.suffix in (".cu", ".cuh"))


@cache
def tokens(text: str) -> tuple[Token, ...]:
    """The tokens of C++ code that threads run: no comments, directives or assertions."""
    hidden = [match.span() for pattern in (_DIRECTIVE, _DECLARED) for match in pattern.finditer(text)]
    bare = list(text)
    for start, end in hidden:
        bare[start:end] = [letter if letter == "\n" else " " for letter in bare[start:end]]
    found = _TOKEN.finditer("".join(bare))
    return tuple(Token(match.lastgroup or "", match[0], match.start()) for match in found if match.lastgroup != "skip")


def edits(text: str) -> Iterator[Edit]:
    """Every edit of a source's text."""
    read = tokens(text)
    pairs = _brackets(read)
    yield from _words(text, read)
    yield from _calls(text, read, pairs)
    yield from _statements(text, read, pairs)
    yield from _conditions(text, read, pairs)
    yield from _neighbours(text, read, pairs)


def _brackets(read: Sequence[Token]) -> dict[int, int]:
    """The index of the closing bracket by that of the opening one."""
    pairs: dict[int, int] = {}
    opened: list[int] = []
    for index, token in enumerate(read):
        if token.kind == "mark" and token.text in _OPENS:
            opened.append(index)
        elif token.kind == "mark" and token.text in _CLOSES and opened:
            pairs[opened.pop()] = index
    return pairs


def _words(text: str, read: Sequence[Token]) -> Iterator[Edit]:
    """Edits of single tokens."""
    for index, token in enumerate(read):
        before = read[index - 1].text if index else ""
        after = read[index + 1].text if index + 1 < len(read) else ""
        spaced = text[token.start - 1 : token.start].isspace() and text[token.end : token.end + 1].isspace()

        def to(operator: str, *others: str, token: Token = token) -> Iterator[Edit]:
            return (Edit(operator, token.start, token.end, other) for other in others)

        if token.kind == "number":
            yield from _number(token)
        elif token.kind == "text":
            for operator, pattern, others in _IN_ASSEMBLY:
                for match in pattern.finditer(token.text):
                    span = token.start + match.start(), token.start + match.end()
                    yield from (Edit(operator, *span, other) for other in others)
        elif token.kind == "mark":
            if spaced or token.text in ("!", "~"):
                yield from to("relation", *_RELATIONS.get(token.text, ()))
                for operator, table in (("arithmetic", _ARITHMETIC), ("bits", _BITS), ("logic", _LOGIC)):
                    if token.text in table and not (token.text in "&*" and before in ("auto", "const")):
                        yield from to(operator, table[token.text])
        elif before == "." and after != "(":
            if before == "." and token.text in _COMPONENTS and read[index - 2].text not in _INDICES:
                yield from to("component", _COMPONENTS[token.text])
        else:
            yield from to("width", *_WIDTHS.get(token.text, ()))
            for operator, names in (
                ("opposite", _OPPOSITES),
                ("scope", _SCOPES),
                ("shuffle", _SHUFFLES),
                ("index", _INDICES),
            ):
                if token.text in names:
                    yield from to(operator, names[token.text])
            if re.search(r"_rn(?=_|$)", token.text) and token.text.startswith("__"):
                yield from to("rounding", *(token.text.replace("_rn", other) for other in ("_rz", "_ru")))


def _number(token: Token) -> Iterator[Edit]:
    match = re.fullmatch(r"(0[xX][0-9a-fA-F']+|\d[\d']*)([uUlL]*)", token.text)
    if match is None:
        value = float(token.text.rstrip("fFlL"))
        yield Edit("constant", token.start, token.end, f"{value * 2 if value else 1.0}f")
        return
    digits = match[1].replace("'", "")
    value = int(digits, 0) if digits[:2] in ("0x", "0X") or digits == "0" else int(digits.lstrip("0"))
    write = (lambda number: f"0x{number:X}") if digits[:2] in ("0x", "0X") else str
    for other in (value + 1, value - 1):
        if other >= 0:
            yield Edit("off-by-one", token.start, token.end, write(other) + match[2])
    if value > 1:
        yield Edit("constant", token.start, token.end, write(value * 2) + match[2])


def _split(read: Sequence[Token], first: int, last: int) -> list[tuple[int, int]]:
    """(first, behind the last) token of each part of `read[first:last]` between commas outside of brackets."""
    parts, depth, begin = [], 0, first
    for index in range(first, last):
        word = read[index].text if read[index].kind == "mark" else ""
        depth += (word in _OPENS and word != "") - (word in _CLOSES and word != "")
        if word == "," and depth == 0:
            parts.append((begin, index))
            begin = index + 1
    return [*parts, (begin, last)] if begin < last else parts


_DECLARATION = re.compile(r"^const\b|^[\w:]+(?:<.*>)?\s*[*&]*\s+[*&]*\s*\(?[*&]?\w+\)?(?:\[.*\])?$|^[\w:]+[*&]+\s*\w+$")


def _calls(text: str, read: Sequence[Token], pairs: dict[int, int]) -> Iterator[Edit]:
    """Neighbouring arguments of a call, swapped."""
    for opening, closing in pairs.items():
        named = read[opening - 1] if opening else None
        named_call = (
            named is not None and named.kind == "word" and named.text not in _NO_CALL and read[opening].text in "({"
        )
        template_call = named is not None and named.text == ">" and read[opening].text == "("
        if not named_call and not template_call:
            continue
        if read[opening].text == "{" and ";" in text[read[opening].start : read[closing].end]:
            continue
        parts = _split(read, opening + 1, closing)
        texts = [text[read[first].start : read[last - 1].end] for first, last in parts if last > first]
        if len(texts) != len(parts) or any(_DECLARATION.match(each) for each in texts):
            continue
        for (left, left_end), (right, right_end), one, other in zip(parts, parts[1:], texts, texts[1:], strict=False):
            between = text[read[left_end - 1].end : read[right].start]
            span = read[left].start, read[right_end - 1].end
            yield Edit("swapped-arguments", *span, f"{other}{between}{one}")


def _statements(text: str, read: Sequence[Token], pairs: dict[int, int]) -> Iterator[Edit]:
    """Statements dropped."""
    heads = {
        pairs[index + 1]
        for index, token in enumerate(read)
        if token.text in ("if", "for", "while") and index + 1 in pairs
    }
    heads |= {
        pairs[index + 2]
        for index, token in enumerate(read)
        if token.text == "if" and index + 2 in pairs and read[index + 1].text == "constexpr"
    }
    for index, token in enumerate(read):
        begins = index and (read[index - 1].text in (";", "{", "}", "else") or index - 1 in heads)
        if not begins or token.text in _NO_STATEMENT or token.text in ";{}" or token.text == "#":
            continue
        following = read[index + 1] if index + 1 < len(read) else token
        if token.kind == "word" and following.kind == "word" and token.text != "asm":
            continue  # a declaration
        end = _statement_end(read, index, pairs)
        if end is None:
            continue
        statement = text[token.start : read[end].end]
        if not re.search(r"[=(]|\+\+|--|^(break|continue)\b", statement) or "__device__" in statement:
            continue
        operator = "dropped-synchronisation" if _SYNCHRONISES.search(statement) else "dropped-statement"
        yield Edit(operator, token.start, read[end].end, ";")


def _statement_end(read: Sequence[Token], index: int, pairs: dict[int, int]) -> int | None:
    while index < len(read):
        word = read[index].text if read[index].kind == "mark" else ""
        if word == ";":
            return index
        if word and word in _CLOSES:
            return None
        index = pairs.get(index, index) + 1
    return None


def _conditions(text: str, read: Sequence[Token], pairs: dict[int, int]) -> Iterator[Edit]:
    """Guards that always or never hold, and choices turned round."""
    for index, token in enumerate(read):
        if token.text == "if" and index + 1 in pairs:
            span = read[index + 1].end, read[pairs[index + 1]].start
            yield Edit("guard", *span, "true")
            yield Edit("guard", *span, "false")
        if token.text != "?":
            continue
        middle, depth, place = None, 0, index + 1
        while place < len(read):
            word = read[place].text
            if word == "?":
                depth += 1
            elif word == ":" and depth:
                depth -= 1
            elif word == ":" and middle is None:
                middle = place
            elif word in (",", ";", ")", "]", "}") or (word == ":" and middle is not None):
                break
            place = pairs.get(place, place) + 1
        if middle is None or middle == index + 1 or middle + 1 >= place:
            continue
        one = text[read[index + 1].start : read[middle - 1].end]
        other = text[read[middle + 1].start : read[place - 1].end]
        span = read[index + 1].start, read[place - 1].end
        yield Edit("swapped-choice", *span, f"({other}) : ({one})")


def _neighbours(text: str, read: Sequence[Token], pairs: dict[int, int]) -> Iterator[Edit]:
    """Names replaced by the next of the same type: parameters of a function in its body, fields of a struct."""
    fields: dict[str, dict[str, str]] = {}
    for index, token in enumerate(read):
        if token.text == "(" and index in pairs and pairs[index] + 1 < len(read):
            closing = pairs[index]
            body = closing + 1 + (read[closing + 1].text == "const")
            if read[body].text == "{" and body in pairs:
                following = _following(_declared(text, read, _split(read, index + 1, closing)))
                yield from _renamed(read, range(body, pairs[body]), following, member=False)
        if token.text == "struct" and index + 2 in pairs and read[index + 2].text == "{":
            declared = _fields(text[read[index + 2].end : read[pairs[index + 2]].start])
            fields[read[index + 1].text] = _following(declared)
    for following in fields.values():
        yield from _renamed(read, range(len(read)), following, member=True)


def _declared(text: str, read: Sequence[Token], parts: Sequence[tuple[int, int]]) -> list[tuple[str, str]]:
    found = []
    for first, last in parts:
        match = re.fullmatch(r"(.*[\s*&])(\w+)", text[read[first].start : read[last - 1].end], re.DOTALL)
        if match:
            found.append(("".join(match[1].split()), match[2]))
    return found


def _fields(body: str) -> list[tuple[str, str]]:
    lines = re.findall(r"^    (const )?([\w:]+(?: ?\*)?) ([\w, ]+);", body, re.MULTILINE)
    return [(const + kind, name.strip()) for const, kind, names in lines for name in names.split(",")]


def _following(declared: Sequence[tuple[str, str]]) -> dict[str, str]:
    by_type: dict[str, list[str]] = {}
    for kind, name in declared:
        by_type.setdefault(kind.replace("const", ""), []).append(name)
    return {
        name: names[(number + 1) % len(names)]
        for names in by_type.values()
        if len(names) > 1
        for number, name in enumerate(names)
    }


def _renamed(read: Sequence[Token], places: range, following: dict[str, str], *, member: bool) -> Iterator[Edit]:
    for index in places:
        token = read[index]
        is_member = index > 0 and read[index - 1].text in (".", "->")
        if token.kind == "word" and token.text in following and is_member == member:
            yield Edit("swapped-name", token.start, token.end, following[token.text])
