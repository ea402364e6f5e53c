"""The operators on the host code that launches kernels, and how a changed module takes the place of the real one."""

from __future__ import annotations

import ast
import gc
import importlib
import itertools
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from typing import Any

from refmoe.mutation.reach import HOST
from refmoe.mutation.site import Edit, Site, sites_of

#: Modules of refmoe/cuda that plan no launch: what runs it, what compiles it, and what hands torch's tensors to the
#: layer. That one registers operators with torch, which no case has and which a process does once.
_NO_LAUNCH = ("toolchain.py", "device.py", "moe/operators.py")

_COMPARISONS: Mapping[type[ast.cmpop], tuple[str, ...]] = {
    ast.Lt: ("<=", ">="),
    ast.LtE: ("<", ">"),
    ast.Gt: (">=", "<="),
    ast.GtE: (">", "<"),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
}
_ARITHMETIC: Mapping[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.FloorDiv: "*",
    ast.Mod: "//",
    ast.LShift: ">>",
    ast.RShift: "<<",
    ast.BitAnd: "|",
    ast.BitOr: "&",
}
_WIDTHS = {
    "uint8": "int8",
    "int32": "int16",
    "int64": "int32",
    "uint16": "uint8",
    "uint32": "int32",
    "float32": "float16",
}
_DTYPES = {"bf16": "fp16", "fp16": "bf16", "f32": "bf16"}
#: Arguments of a launch plan that give its size.
_DIMENSIONS = ("grid", "block", "shared_bytes")


def files() -> list[str]:
    """The modules of refmoe/cuda that plan launches, by their paths below it."""
    found = (path.relative_to(HOST).as_posix() for path in HOST.rglob("*.py"))
    return sorted(name for name in found if name not in _NO_LAUNCH and not name.endswith("__init__.py"))


def sites(file: str) -> Iterator[Site]:
    """Every mutant of a module of refmoe/cuda."""
    text = (HOST / file).read_text(encoding="utf-8")
    return sites_of("host", file.removesuffix(".py"), file, text, (_as_long(edit, text) for edit in edits(text)))


def _as_long(edit: Edit, text: str) -> Edit:
    """An edit that keeps the number of lines, so that functions below it stay where they are."""
    lines = text.count("\n", edit.start, edit.end) - edit.after.count("\n")
    return replace(edit, after=edit.after + "\n" * lines)


def edits(text: str) -> Iterator[Edit]:
    """Every edit of a module's text. Messages, types and docstrings stay."""
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    lines = text.split("\n")

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    def span(node: Any) -> tuple[int, int]:
        return offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)

    def source(node: ast.AST) -> str:
        begin, end = span(node)
        return text[begin:end]

    for node in _executed(ast.parse(text)):
        if isinstance(node, ast.Constant):
            yield from _constant(node, span(node))
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            between = span(node.left)[1], span(node.comparators[0])[0]
            for other in _COMPARISONS.get(type(node.ops[0]), ()):
                yield Edit("relation", *_trimmed(text, *between), other)
        elif isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in _ARITHMETIC:
            left, right = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
            begin, end = _trimmed(text, span(left)[1], span(right)[0])
            if "(" in text[begin:end] or ")" in text[begin:end]:
                continue
            yield Edit("arithmetic", begin, end, _ARITHMETIC[type(node.op)] + "=" * isinstance(node, ast.AugAssign))
        elif isinstance(node, ast.BoolOp):
            word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for one, two in itertools.pairwise(node.values):
                begin, end = _trimmed(text, span(one)[1], span(two)[0])
                if text[begin:end] == word:
                    yield Edit("logic", begin, end, other)
        elif isinstance(node, (ast.If, ast.IfExp)):
            yield Edit("guard", *span(node.test), f"(not ({source(node.test)}))")
            if isinstance(node, ast.If) and all(isinstance(each, ast.Raise) for each in node.body):
                yield Edit("dropped-check", *span(node.test), "False")
        elif isinstance(node, ast.Call):
            yield from _call(node, span, source)
        elif isinstance(node, ast.Tuple):
            yield from _swapped("swapped-arguments", node.elts, span, source)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            checks = ast.unparse(node.value.func).rpartition(".")[2].startswith(("check_", "one_of", "_check"))
            yield Edit("dropped-check" if checks else "dropped-statement", *span(node), "None")
        elif isinstance(node, ast.Attribute) and node.attr in _WIDTHS:
            end = span(node)[1]
            yield Edit("dtype", end - len(node.attr), end, _WIDTHS[node.attr])


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """A node and those below it that decide a launch."""
    if isinstance(node, (ast.Raise, ast.Import, ast.ImportFrom, ast.JoinedStr, ast.Assert)):
        return
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2].endswith("Error"):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith(("NDArray[", "npt.NDArray[")):
        return  # the name of a type
    yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "bases", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _executed(child)


def _constant(node: ast.Constant, span: tuple[int, int]) -> Iterator[Edit]:
    if isinstance(node.value, bool):
        yield Edit("constant", *span, str(not node.value))
    elif isinstance(node.value, int):
        yield Edit("off-by-one", *span, str(node.value + 1))
        if node.value:
            yield Edit("off-by-one", *span, str(node.value - 1))
    elif isinstance(node.value, str) and node.value in _DTYPES:
        yield Edit("dtype", *span, repr(_DTYPES[node.value]))


def _trimmed(text: str, begin: int, end: int) -> tuple[int, int]:
    gap = text[begin:end]
    return begin + len(gap) - len(gap.lstrip()), end - (len(gap) - len(gap.rstrip()))


Span = Callable[[Any], tuple[int, int]]
Text = Callable[[ast.AST], str]


def _call(node: ast.Call, span: Span, source: Text) -> Iterator[Edit]:
    called = ast.unparse(node.func).rpartition(".")[2]
    if called in ("min", "max"):
        begin, end = span(node.func)
        yield Edit("opposite", begin, end, "max" if called == "min" else "min")
    yield from _swapped("swapped-arguments", node.args, span, source)
    if called == "LaunchPlan":
        # kernel, grid, block, arguments, shared_bytes
        sizes = [*node.args[1:3], *node.args[4:5]]
        sizes += [word.value for word in node.keywords if word.arg in _DIMENSIONS]
        for size in sizes:
            for other in ("+ 1", "- 1", "* 2", "// 2"):
                begin, end = span(size)
                yield Edit("launch-size", begin, end, f"({source(size)}) {other}")


def _swapped(operator: str, nodes: list[ast.expr], span: Span, source: Text) -> Iterator[Edit]:
    for one, other in itertools.pairwise(nodes):
        if isinstance(one, ast.Starred) or isinstance(other, ast.Starred) or source(one) == source(other):
            continue
        begin, end = span(one)[0], span(other)[1]
        # The text keeps its lines, so that functions below stay where they are.
        between = ", " + "\n" * (_line_breaks(one, other))
        yield Edit(operator, begin, end, f"{source(other)}{between}{source(one)}")


def _line_breaks(one: ast.expr, other: ast.expr) -> int:
    """Line breaks between two elements."""
    return other.lineno - (one.end_lineno or one.lineno)


# --- a changed module in the place of the real one ------------------------------------------------------------------


@lru_cache(maxsize=64)
def statement_lines(file: str, line: int) -> frozenset[int]:
    """The lines of the innermost statement around a line; of a compound one those of its head."""
    tree = ast.parse((HOST / file).read_text(encoding="utf-8"))
    best: tuple[int, int] | None = None
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt):
            continue
        first, last = node.lineno, node.end_lineno or node.lineno
        body = getattr(node, "body", None)
        if isinstance(body, list) and body:
            last = max(first, body[0].lineno - 1)
        if first <= line <= last and (best is None or last - first <= best[1] - best[0]):
            best = first, last
    return frozenset(range(best[0], best[1] + 1)) if best else frozenset((line,))


def is_global(file: str, line: int) -> bool:
    """Whether a line stands outside of every function: it runs when the module is imported, not in a case."""
    tree = ast.parse((HOST / file).read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.Lambda)))
    return not any(
        (node.body[0].lineno if isinstance(node.body, list) else node.lineno) <= line <= (node.end_lineno or 0)
        for node in functions
    )


def module_name(file: str) -> str:
    """The dotted name of a module of refmoe/cuda."""
    return f"refmoe.cuda.{file.removesuffix('.py').replace('/', '.')}"


def put_in_place(file: str, text: str) -> None:
    """Give every function of a module the code of another text, and every constant its value, in this process.

    Whoever has imported a function keeps the object, so the objects stay and their code changes.

    Raises:
        SyntaxError: the text is no Python.
        Exception: what the text raises when it is run as a module.
    """
    path, name = str(HOST / file), module_name(file)
    module = importlib.import_module(name)
    old = compile((HOST / file).read_text(encoding="utf-8"), path, "exec")
    new = compile(text, path, "exec")
    changed = {one: other for one, other in _paired(old, new) if one != other}
    scratch = types.ModuleType(name)
    scratch.__file__ = path
    scratch.__package__ = module.__package__
    sys.modules[name] = scratch  # dataclasses look their module up
    try:
        exec(new, scratch.__dict__)
    finally:
        sys.modules[name] = module
    gc.unfreeze()  # what somebody froze is not listed
    for each in gc.get_objects():
        if isinstance(each, types.FunctionType) and each.__module__ == name and each.__globals__ is module.__dict__:
            for one, other in changed.items():
                if _same_place(each.__code__, one):
                    each.__code__ = other
    for key, value in vars(scratch).items():
        _replace(module, key, vars(module).get(key), value)
    _forget_results()


def _paired(old: types.CodeType, new: types.CodeType) -> Iterator[tuple[types.CodeType, types.CodeType]]:
    """The functions of two texts that differ in an expression, side by side; the outer ones first."""
    yield old, new
    inner = [[each for each in code.co_consts if isinstance(each, types.CodeType)] for code in (old, new)]
    for one in inner[0]:
        for other in inner[1]:
            if _same_place(one, other):
                yield from _paired(one, other)


def _same_place(one: types.CodeType, other: types.CodeType) -> bool:
    return (one.co_name, one.co_firstlineno, one.co_argcount) == (
        other.co_name,
        other.co_firstlineno,
        other.co_argcount,
    )


_PLAIN = (int, float, str, bytes, tuple, frozenset, dict, list, types.MappingProxyType)


def _replace(module: types.ModuleType, key: str, before: Any, after: Any) -> None:
    """Put a constant's new value wherever the old one was imported to, and a function's new defaults into it."""
    if isinstance(before, type) and isinstance(after, type) and is_dataclass(before) and is_dataclass(after):
        # Whoever has imported the class keeps it, so it stays. What its fields have where nobody says is a default of
        # the function that makes one.
        before, after = vars(before).get("__init__"), vars(after).get("__init__")
    if isinstance(before, types.FunctionType) and isinstance(after, types.FunctionType):
        for attribute in ("__defaults__", "__kwdefaults__"):
            if repr(getattr(before, attribute)) != repr(getattr(after, attribute)):
                setattr(before, attribute, getattr(after, attribute))
        return
    if is_dataclass(after) and not isinstance(after, type) and type(before).__name__ == type(after).__name__:
        # Whoever has imported it keeps the object, so it stays and its fields change, frozen or not.
        for each in fields(after):
            value = getattr(after, each.name)
            if isinstance(value, _PLAIN) and repr(value) != repr(getattr(before, each.name)):
                object.__setattr__(before, each.name, value)
        return
    if key.startswith("__") or not isinstance(after, _PLAIN) or repr(before) == repr(after):
        return
    for other in list(sys.modules.values()):
        if getattr(other, "__name__", "").startswith("refmoe.") and vars(other).get(key) is before:
            setattr(other, key, after)


def _forget_results() -> None:
    """Empty the caches of functions of refmoe/cuda: what they hold was computed by the real code."""
    for name, module in list(sys.modules.items()):
        if name.startswith("refmoe.cuda."):
            for each in vars(module).values():
                if hasattr(each, "cache_clear") and not name.endswith(("device", "toolchain")):
                    each.cache_clear()
