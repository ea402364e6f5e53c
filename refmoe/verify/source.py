"""The hash of all that decides a kernel's result: device sources, host code, build flags.

A report vouches for a kernel as long as this hash stays the same. Comments, blank lines and docstrings are left out: a
better sentence makes no report stale.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import inspect
import io
import re
import tokenize
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from os.path import relpath
from pathlib import Path
from typing import Any

from refmoe.cuda.toolchain import CSRC, FLAGS, with_includes
from refmoe.errors import ArgumentError

#: The module of the devices: whatever a kernel's own code launches, this compiles, uploads and launches.
_DEVICES = "refmoe.cuda.device"

#: Modules that host code imports and that decide no kernel's result, with all below them.
_ENDS = (
    # What stands for the chip: a change in it is seen by every family's cases, not by one.
    *("refmoe.ptx", "refmoe.files"),
    # How something is said.
    *("refmoe.errors", "refmoe.printed_modules"),
    # What a kernel is held against.
    *("refmoe.families", "refmoe.verify", "refmoe.reference.mma"),
    *("refmoe.reference.scalar", "refmoe.reference.oracles"),
)


def sha256_of(parts: Mapping[str, str]) -> str:
    """SHA-256 of named texts, in the order of their names."""
    digest = hashlib.sha256()
    for name, text in sorted(parts.items()):
        digest.update(f"\0{name}\0{len(text.encode())}\0{text}".encode())
    return digest.hexdigest()


def file_sha256(name: str) -> str | None:
    """The hash of a file below refmoe/cuda, CUDA or Python, its comments left out; None if it is gone."""
    path = CSRC.parent / name
    try:
        state = path.stat()
        return _file_sha256(path, name, (state.st_mtime_ns, state.st_size))
    except OSError:
        return None


@lru_cache(maxsize=256)
def _file_sha256(path: Path, name: str, state: tuple[int, int]) -> str:
    text = path.read_text(encoding="utf-8")
    return sha256_of({name: python_text(text) if path.suffix == ".py" else cuda_text(text)})


def kernel_sha256(
    sources: Iterable[Path], host: Iterable[str], flags: Iterable[str] = FLAGS, run: Iterable[object] = ()
) -> str:
    """The hash of all that decides what a kernel gives.

    Of CUDA sources with the headers that they include, of host modules with those that they import, of what compiles
    and launches, of flags, and of the functions and classes that hand a case's inputs to the host code.

    Args:
        sources: CUDA or C++ files.
        host: dotted names of the modules that make the launches.
        flags: what the sources are built with.
        run: functions and classes of refmoe, with what they use: `Family.run`, or a subclass of `Kernel`.

    Raises:
        ArgumentError: a host module that there is not.
        OSError: a source cannot be read.
    """
    host = (*host, _DEVICES)
    parts = {"flags": "\0".join(flags)}
    parts |= {f"run/{name}": text for name, text in code_texts(run, host_modules(host)).items()}
    for number, source in enumerate(sources):
        parts |= {f"device/{number}/{name}": text for name, text in _cuda_files(source).items()}
    parts |= {f"host/{name}": _module_text(path) for name, path in host_modules(host).items()}
    return sha256_of(parts)


def _cuda_files(source: Path) -> dict[str, str]:
    """The texts of a source and of the headers that it includes, by their paths from the source's folder."""
    files = {relpath(file, source.parent): file for file in with_includes(source)}
    return {name: cuda_text(file.read_text(encoding="utf-8")) for name, file in sorted(files.items())}


_COMMENT = r"//(?:\\\n|[^\n])*|/\*.*?\*/"  # a backslash at its end takes the next line into a line comment
_CUDA = re.compile(
    r'(?<![A-Za-z0-9_])(?:u8|[uUL])?R"(?P<end>[^()\\\s"]{0,16})\(.*?\)(?P=end)"'  # a raw string
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![\w.])\.?\d(?:[eEpP][+-]|'?[\w.])*"  # a number: its ' opens nothing
    r"|'(?:\\.|[^'\\\n])*'"
    r"|\#[^\S\n]*include[^\S\n]*<[^>\n]*>"
    rf"|(?P<gap>(?:\s|\\\n|{_COMMENT})+)",
    re.DOTALL,
)


@lru_cache(maxsize=512)
def cuda_text(text: str) -> str:
    """C++ or CUDA without comments and blanks; text in quotes is kept as it is."""

    def bare(match: re.Match[str]) -> str:
        if match["gap"] is None:
            return match[0]
        blanks = re.sub(rf"{_COMMENT}|\\\n", "", match["gap"], flags=re.DOTALL)
        if "\n" in blanks or match.start() == 0 or match.end() == len(text):
            return "\n"
        # Between words, and before a bracket that may open a macro's parameters, a blank means something.
        return "" if text[match.start() - 1] in "([{,;" or text[match.end()] in ")]},;" else " "

    return _CUDA.sub(bare, text).strip("\n")


# Every kernel's hash has most of the same modules: there is room for all of them.
@lru_cache(maxsize=512)
def python_text(text: str) -> str:
    """Python without comments, docstrings and blank lines. The result is the same for every version of Python."""
    spans, inside = _unread(text)
    lines: list[str | None] = list(text.split("\n"))
    for start, end in sorted(spans, reverse=True):
        head, tail = str(lines[start[0] - 1])[: start[1]], str(lines[end[0] - 1])[end[1] :]
        lines[start[0] - 1 : end[0]] = [head + tail, *[None] * (end[0] - start[0])]
    kept = (
        # The end of a line inside a string is the string's.
        line if number in inside else line.rstrip()
        for number, line in enumerate(lines, 1)
        if line is not None and (line.strip() or number in inside)
    )
    return "\n".join(kept)


Span = tuple[tuple[int, int], tuple[int, int]]


@functools.cache
def python_sha256(patterns: tuple[str, ...]) -> str:
    """SHA-256 over the files of the package that patterns name, without comments, docstrings and blank lines.

    Args:
        patterns: such as "reference/*.py", from the package's folder.

    Raises:
        ArgumentError: a pattern that names no file: a file was renamed, and what it decides would go unseen.
    """
    root = Path(__file__).resolve().parent.parent
    files: set[Path] = set()
    for pattern in patterns:
        named = set(root.glob(pattern))
        if not named:
            raise ArgumentError("patterns", f"no file {pattern} in the package", "sources that are there")
        files |= named
    texts = {file.relative_to(root).as_posix(): python_text(file.read_text(encoding="utf-8")) for file in files}
    return sha256_of(texts)


def _unread(text: str) -> tuple[list[Span], set[int]]:
    """(line, column) of the start and the end of every comment and docstring; and the lines that end in a string."""
    spans: list[Span] = []
    inside: set[int] = set()
    opened: list[int] = []
    # From Python 3.12 on an f-string is several tokens.
    starts, ends = ({getattr(tokenize, f"{kind}STRING_{side}", -1) for kind in "FT"} for side in ("START", "END"))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            spans.append((token.start, token.end))
        elif token.type in starts:
            opened.append(token.start[0])
        elif token.type == tokenize.STRING or token.type in ends:
            inside |= set(range(token.start[0] if token.type == tokenize.STRING else opened.pop(), token.end[0]))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    lines = text.split("\n")

    def place(line: int | None, column: int | None) -> tuple[int, int]:
        # The tree counts bytes, a line has characters.
        assert line is not None
        return line, len(lines[line - 1].encode()[:column].decode())

    pending: list[Any] = [ast.parse(text)]
    while pending:
        node = pending.pop()
        # What may have a docstring is a statement.
        for part in _INNER:
            pending += getattr(node, part, ())
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            spans.append((place(first.lineno, first.col_offset), place(first.end_lineno, first.end_col_offset)))
            inside -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return spans, inside


@lru_cache(maxsize=512)
def _module_text(path: Path) -> str:
    return python_text(path.read_text(encoding="utf-8"))


def host_modules(names: Iterable[str]) -> dict[str, Path]:
    """`names` and the modules of refmoe that they import, directly or not, with their files.

    Chips, formats, policies and layouts are among them: they decide tiles, stages and alignments. `_ENDS` are not, nor
    is what only a type checker imports.

    Raises:
        ArgumentError: one of `names` is no module.
    """
    found: dict[str, Path] = {}
    pending = list(names)
    if absent := [name for name in pending if _module_file(name) is None]:
        raise ArgumentError("host", absent[0], "a module")
    while pending:
        name = pending.pop()
        path = _module_file(name)
        if name in found or path is None or any(f"{name}.".startswith(f"{end}.") for end in _ENDS):
            continue
        found[name] = path
        pending += _imports(path, name if path.name == "__init__.py" else name.rpartition(".")[0])
    return found


@lru_cache(maxsize=256)
def _module_file(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin) if spec is not None and spec.origin is not None else None


@lru_cache(maxsize=256)
def _imports(path: Path, package: str) -> tuple[str, ...]:
    """The modules of refmoe that a module of a package imports: of `from a import b` a.b if that is one, else a."""
    names: list[str] = []
    for node in _executed(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = importlib.util.resolve_name("." * node.level, package) if node.level else ""
            names += [f"{'.'.join(filter(None, (above, node.module)))}.{alias.name}" for alias in node.names]
    return tuple(_module_of(name) for name in names if name.startswith("refmoe."))


# Where a statement has others. Expressions, which are most of a tree, have none.
_INNER = ("body", "handlers", "orelse", "finalbody", "cases")


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """A statement and all in it, without what is read by a type checker alone."""
    yield node
    typed = isinstance(node, ast.If) and _is_type_checking(node.test)
    for part in ("orelse",) if typed else _INNER:
        for inner in getattr(node, part, ()):
            yield from _executed(inner)


def _is_type_checking(test: ast.expr) -> bool:
    if isinstance(test, ast.Attribute):
        return test.attr == "TYPE_CHECKING" and isinstance(test.value, ast.Name) and test.value.id == "typing"
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _module_of(name: str) -> str:
    """The module of a dotted name: itself, or the one that the name is in."""
    above = name.rpartition(".")[0]
    file = _module_file(above) if above else None
    # Only of a package a submodule is looked for: the search imports what it looks in.
    return name if file is not None and file.name == "__init__.py" and _module_file(name) is not None else above


# --- a function of a module -----------------------------------------------------------------------------------------


def code_texts(objects: Iterable[object], covered: Collection[str]) -> dict[str, str]:
    """The texts of functions and classes, and of all in refmoe that they use, directly or not, by "module::name".

    A family's file also has its cases and its expectation, which decide no kernel's result: only what is used counts.

    Args:
        objects: functions and classes of refmoe's modules.
        covered: modules that are hashed as a whole elsewhere, and are left out.
    """
    found: dict[str, str] = {}
    pending: list[tuple[str, str]] = []
    for each in objects:
        if inspect.isclass(each):
            pending.append((each.__module__, each.__qualname__.partition(".")[0]))
        else:
            pending += [(one.__module__, _name_of(one) if whole else "") for one, whole in functions_of(each)]
    while pending:
        module, name = pending.pop()
        path, key = _module_file(module), f"{module}::{name}"
        left_out = any(f"{module}.".startswith(f"{end}.") for end in _ENDS) and not module.startswith(
            "refmoe.families."
        )
        if key in found or path is None or left_out or module in covered:
            continue
        found[key], used = _code_text(path, module, name)
        pending += used
    return found


def _name_of(function: Any) -> str:
    """The statement of its module's top level that a function is written in; "" if there is none of a name."""
    path = _module_file(function.__module__)
    text = "" if path is None else path.read_text(encoding="utf-8")
    return statement_name(text, function.__code__.co_firstlineno) or ""


@lru_cache(maxsize=1024)
def _code_text(path: Path, module: str, name: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The text of what a module has under a name, all of it for ""; and the (module, name) in refmoe that it uses."""
    text = path.read_text(encoding="utf-8")
    try:
        statements = _statements(text, name) if name else [text]
    except ArgumentError:  # handed on by the package when it is asked for
        statements = [text]
    tree = ast.parse("\n".join(statements))
    read = {name, *(each.id for each in _evaluated(tree) if isinstance(each, ast.Name))}
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    used: list[tuple[str, str]] = []
    for node in _executed(tree):
        if isinstance(node, ast.Import):
            used += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = importlib.util.resolve_name("." * node.level, package) if node.level else ""
            source = ".".join(filter(None, (above, node.module)))
            for alias in node.names:
                if (alias.asname or alias.name) in read and source.startswith("refmoe"):
                    whole = f"{source}.{alias.name}"
                    used.append((whole, "") if _module_of(whole) == whole else (source, alias.name))
    return "\n".join(map(python_text, statements)), tuple(each for each in used if each[0].startswith("refmoe."))


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it, without annotations, which nobody evaluates."""
    yield node
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _evaluated(child)


def functions_of(function: object) -> list[tuple[Any, bool]]:
    """A function and those that it wraps or encloses, directly or not; the innermost that it wraps comes first.

    The bool beside each says whether the function's text alone decides what it does. It does not if the function gets
    data from a function around it, an instance or a `functools.partial`: that data is written elsewhere in the module.
    Of an instance that can be called its classes come last.
    """
    found: dict[int, tuple[Any, bool]] = {}
    instances: list[tuple[Any, bool]] = []
    pending = [(inspect.unwrap(function) if callable(function) else function, True), (function, True)]
    while pending:
        each, whole = pending.pop(0)
        if id(each) in found and found[id(each)][1] <= whole:
            continue
        enclosed = list(_enclosed(each))
        whole = whole and all(callable(value) or inspect.ismodule(value) for value in enclosed)
        found[id(each)] = each, whole
        if isinstance(each, functools.partial):
            pending.append((each.func, False))
        elif inspect.ismethod(each):
            pending.append((each.__func__, whole and inspect.isclass(each.__self__)))
        elif not inspect.isroutine(each) and not inspect.isclass(each):
            instances += [(kind, False) for kind in type(each).__mro__]
        inner = [*enclosed, getattr(each, "__wrapped__", None)]
        pending += [(value, True) for value in inner if callable(value) and not inspect.isclass(value)]
    return [*(pair for pair in found.values() if inspect.isfunction(pair[0])), *dict.fromkeys(instances)]


def _enclosed(function: object) -> Iterator[object]:
    """The values that a function has from the function around it."""
    for cell in getattr(function, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue


#: What reads names that no tree shows.
_DYNAMIC = {"eval", "exec", "globals", "vars"}


@lru_cache(maxsize=64)
def function_text(text: str, name: str) -> str:
    """What defines `name` in a module and what that uses, see `_statements`, without comments and docstrings.

    Raises:
        ArgumentError: there is none of that name.
    """
    return "\n".join(map(python_text, _statements(text, name)))


def _statements(text: str, name: str) -> list[str]:
    """The top-level statements of a module that define `name`, and those that they use, directly or not.

    A statement is used if it defines or changes a name that a used statement mentions: every definition counts, a call
    like `TABLE.update(...)`, a loop, a star import. `if __name__ == "__main__"` is left out.

    Args:
        text: the module's source.
        name: a function, class or variable of its top level.

    Raises:
        ArgumentError: there is none of that name.
    """
    units = [unit for unit in _units(ast.parse(text)) if not unit.script or name in unit.bound]
    if not any(name in unit.bound for unit in units):
        raise ArgumentError("kernel", f"no {name} in its file", "a function that the file defines")
    used, chosen = {name, "*"}, list[_Unit]()
    while more := [unit for unit in units if unit not in chosen and used & (unit.bound | unit.changed)]:
        chosen += more
        for unit in more:
            used |= unit.mentioned | unit.functions
    if used & _DYNAMIC:
        return [text]
    lines = text.split("\n")
    ordered = sorted(chosen, key=lambda unit: unit.first)
    return ["\n".join(lines[unit.first - 1 : unit.last]) for unit in ordered]


@dataclass(frozen=True, eq=False)
class _Unit:
    """Top-level statements that share lines; mostly one.

    Attributes:
        nodes: the statements.
        first, last: its lines.
    """

    nodes: tuple[ast.stmt, ...]
    first: int
    last: int

    @cached_property
    def bound(self) -> set[str]:
        """The names that it defines."""
        return {name for node in self.nodes for name in _bound(node)}

    @cached_property
    def mentioned(self) -> set[str]:
        """The names that occur in it."""
        return {each.id for node in self.nodes for each in ast.walk(node) if isinstance(each, ast.Name)}

    @cached_property
    def changed(self) -> set[str]:
        """The names that it mentions, if it is of a kind that may change what they stand for."""
        return set[str]() if all(map(_only_defines, self.nodes)) else self.mentioned

    @cached_property
    def functions(self) -> set[str]:
        """The functions and classes that it defines: one that sets a used global may be called from anywhere."""
        return {node.name for node in self.nodes if isinstance(node, _SCOPES)}

    @cached_property
    def script(self) -> bool:
        """Whether it is `if __name__ == "__main__"` without an `else`, which runs where the module is imported."""
        return all(
            isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'" and not node.orelse
            for node in self.nodes
        )


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _units(tree: ast.Module) -> Iterator[_Unit]:
    nodes: list[ast.stmt] = []
    last = 0
    for node in [*tree.body, None]:
        if nodes and (node is None or _first_line(node) > last):
            yield _Unit(tuple(nodes), _first_line(nodes[0]), last)
            nodes = []
        if node is not None:
            nodes.append(node)
            last = max(last, node.end_lineno or node.lineno)


def statement_name(text: str, line: int) -> str | None:
    """A name that the top-level statement around a line defines; for a lambda it is the variable of the assignment.

    None if the statement defines no name, or if several statements share the line.
    """
    for unit in _units(ast.parse(text)):
        if unit.first <= line <= unit.last and len(unit.nodes) == 1:
            return next(_bound(unit.nodes[0]), None)
    return None


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])


def _only_defines(node: ast.stmt) -> bool:
    """Whether a statement gives names a meaning and does nothing to what others stand for."""
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return not any(
            isinstance(each, (ast.Attribute, ast.Subscript)) for target in targets for each in ast.walk(target)
        )
    return isinstance(node, (*_SCOPES, ast.Import, ast.ImportFrom))


def _bound(node: ast.AST) -> Iterator[str]:
    """The names of a module's top level that a statement defines, those inside `if`, `try` and the like included."""
    if isinstance(node, _SCOPES):
        yield node.name
        for each in ast.walk(node):
            yield from each.names if isinstance(each, ast.Global) else ()
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        yield from (each.target.id for each in ast.walk(node) if isinstance(each, ast.NamedExpr))
    elif isinstance(node, ast.Name):
        yield from () if isinstance(node.ctx, ast.Load) else (node.id,)
    else:
        if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            yield node.name
        for child in ast.iter_child_nodes(node):
            yield from _bound(child)


def imported_modules(path: Path, name: str = "", package: str | None = None) -> tuple[str, ...]:
    """The dotted names of modules that a Python file imports, as far as they may be; of `from a import b` a and a.b.

    Args:
        path: the file; one whose name ends in another suffix than .py imports none.
        name: of a function in it, to leave out what it does not use; "" for all.
        package: what relative imports begin at, None where they are left out.

    Raises:
        OSError: the file cannot be read.
        ArgumentError: it has no such function.
    """
    if path.suffix != ".py":
        return ()
    state = path.stat()
    return _imported_modules(path, name, package, (state.st_mtime_ns, state.st_size))


# Every case of a kernel asks for its sources, and reading one takes milliseconds.
@lru_cache(maxsize=1024)
def _imported_modules(path: Path, name: str, package: str | None, state: tuple[int, int]) -> tuple[str, ...]:
    text = path.read_text(encoding="utf-8")
    try:
        tree = ast.parse(function_text(text, name) if name else text)
    except SyntaxError:  # a body that was a docstring alone is gone
        tree = ast.parse(text)
    return tuple(_named_by(tree, package))


def _named_by(tree: ast.Module, package: str | None) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (not node.level or package):
            above = importlib.util.resolve_name("." * node.level, package) if node.level else ""
            module = ".".join(filter(None, (above, node.module)))
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def source_files(sources: Iterable[str], root: Path) -> dict[str, str]:
    """The texts of `FILE` and `FILE::NAME`, by that name. NAME is a function of a .py file, with all that it uses.

    A CUDA or C++ file comes with the headers that it includes from its folder.

    Raises:
        OSError: a file cannot be read.
        ArgumentError: a file without that function.
    """
    texts: dict[str, str] = {}
    for source in sources:
        file, _, name = source.partition("::")
        path = root / file
        if path.suffix == ".py":
            text = path.read_text(encoding="utf-8")
            texts[source] = function_text(text, name) if name else python_text(text)
        elif path.suffix in (".cu", ".cuh", ".cpp", ".cc", ".cxx", ".hpp", ".h", ".c"):
            texts |= {f"{source}/{each}": text for each, text in _cuda_files(path).items()}
        else:
            texts[source] = path.read_bytes().decode("latin-1")  # of anything, every byte
    return texts
