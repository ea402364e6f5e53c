"""The hash of all that decides a kernel's result: device sources, host code, build flags.

A report vouches for a kernel as long as this hash stays the same. Comments, blank lines and docstrings are left out: a
better sentence makes no report stale.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from refmoe.cuda.toolchain import FLAGS, with_includes
from refmoe.errors import ArgumentError

__all__ = [
    "cuda_text",
    "function_text",
    "host_modules",
    "kernel_sha256",
    "python_text",
    "sha256_of",
    "source_files",
    "statement_name",
]

#: Host code that runs any launch and makes none: a change in it is seen by every family's cases, not by one.
_MACHINERY = ("refmoe.cuda.device", "refmoe.cuda.toolchain")


def sha256_of(parts: Mapping[str, str]) -> str:
    """SHA-256 of named texts, in the order of their names."""
    digest = hashlib.sha256()
    for name, text in sorted(parts.items()):
        digest.update(f"\0{name}\0{len(text.encode())}\0{text}".encode())
    return digest.hexdigest()


def kernel_sha256(sources: Iterable[Path], host: Iterable[str], flags: Iterable[str] = FLAGS) -> str:
    """The hash of CUDA sources with the headers that they include, host modules with those that they import, and flags.

    Args:
        sources: CUDA or C++ files.
        host: dotted names of the modules that make the launches.
        flags: what the sources are built with.

    Raises:
        OSError: a source cannot be read.
    """
    parts = {"flags": "\0".join(flags)}
    for source in sources:
        parts |= {f"device/{file.name}": cuda_text(file.read_text(encoding="utf-8")) for file in with_includes(source)}
    parts |= {f"host/{name}": _module_text(path) for name, path in host_modules(host).items()}
    return sha256_of(parts)


def cuda_text(text: str) -> str:
    """C++ or CUDA without comments and blanks; text in quotes is kept as it is."""
    # A comment separates words, as a blank does.
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
    bare = re.sub(pattern, lambda m: " " if m[0].startswith("/") else m[0], text, flags=re.DOTALL)
    return "\n".join(line for each in bare.splitlines() if (line := " ".join(each.split())))


def python_text(text: str) -> str:
    """Python without comments, docstrings and blank lines. The result is the same for every version of Python."""
    lines = text.splitlines()
    for start, end in sorted(_unread(text), reverse=True):
        head, tail = lines[start[0] - 1][: start[1]], lines[end[0] - 1][end[1] :]
        lines[start[0] - 1 : end[0]] = [head + tail]
    return "\n".join(line.rstrip() for line in lines if line.strip())


Span = tuple[tuple[int, int], tuple[int, int]]


def _unread(text: str) -> Iterator[Span]:
    """(line, column) of the start and the end of every comment and docstring."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start, token.end
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    lines = text.splitlines()

    def place(line: int | None, column: int | None) -> tuple[int, int]:
        # The tree counts bytes, a line has characters.
        assert line is not None
        return line, len(lines[line - 1].encode()[:column].decode())

    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            yield place(first.lineno, first.col_offset), place(first.end_lineno, first.end_col_offset)


@lru_cache(maxsize=64)
def _module_text(path: Path) -> str:
    return python_text(path.read_text(encoding="utf-8"))


def host_modules(names: Iterable[str]) -> dict[str, Path]:
    """`names` and the modules of refmoe.cuda and refmoe.museum that they import, directly or not, with their files."""
    found: dict[str, Path] = {}
    pending = list(names)
    while pending:
        name = pending.pop()
        path = _module_file(name)
        if name in found or path is None or name in _MACHINERY:
            continue
        found[name] = path
        pending += [each for each in _imports(path) if each.startswith(("refmoe.cuda.", "refmoe.museum."))]
    return found


@lru_cache(maxsize=256)
def _module_file(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin) if spec is not None and spec.origin is not None else None


@lru_cache(maxsize=256)
def _imports(path: Path) -> tuple[str, ...]:
    """What a module imports with `from ... import ...`: the modules, and the names in case those are modules."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(names)


def function_text(text: str, name: str) -> str:
    """The top-level statement of a module that defines `name`, and those that it uses, directly or not.

    Args:
        text: the module's source.
        name: a function, class or variable of its top level.

    Raises:
        ArgumentError: there is none of that name.
    """
    statements = {each: node for node in ast.parse(text).body for each in _defined(node)}
    if name not in statements:
        raise ArgumentError("kernel", f"no {name} in its file", "a function that the file defines")
    used, pending = {name}, [name]
    while pending:
        for node in ast.walk(statements[pending.pop()]):
            called = node.id if isinstance(node, ast.Name) else ""
            if called in statements and called not in used:
                used.add(called)
                pending.append(called)
    lines = text.splitlines()
    nodes = sorted({statements[each] for each in used}, key=lambda node: node.lineno)
    return "\n".join(python_text("\n".join(lines[_first_line(node) - 1 : node.end_lineno])) for node in nodes)


def statement_name(text: str, line: int) -> str | None:
    """A name that the top-level statement around a line defines; for a lambda it is the variable of the assignment."""
    for node in ast.parse(text).body:
        if _first_line(node) <= line <= (node.end_lineno or node.lineno):
            return next(_defined(node), None)
    return None


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])


def _defined(node: ast.stmt) -> Iterator[str]:
    """The names that a statement of a module's top level defines, those inside `if` and `try` included."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    else:
        yield from (
            each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        )
        for inner in (*getattr(node, "body", ()), *getattr(node, "orelse", ()), *getattr(node, "finalbody", ())):
            yield from _defined(inner)


def source_files(sources: Iterable[str], root: Path) -> dict[str, str]:
    """The texts of `FILE` and `FILE::NAME`, by that name. NAME is a function of a .py file, with all that it uses.

    Raises:
        OSError: a file cannot be read.
        ArgumentError: a file without that function.
    """
    texts: dict[str, str] = {}
    for source in sources:
        file, _, name = source.partition("::")
        text = (root / file).read_text(encoding="utf-8")
        if file.endswith(".py"):
            text = function_text(text, name) if name else python_text(text)
        elif Path(file).suffix in (".cu", ".cuh", ".cpp", ".hpp", ".h", ".c"):
            text = cuda_text(text)
        texts[source] = text
    return texts
