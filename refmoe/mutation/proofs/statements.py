"""Whether a mutant of host code is the same program.

There are four rules; two of them are those of `arguments`. Of equal integers `min` and `max` give the first, which is
as good as any other. So their order is of no account where every argument is an integer for sure, and computing one
does nothing else. Of sequences that are equally long for sure `zip` leaves nothing over, whether it is strict or not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from refmoe.mutation.proofs.arguments import unread_arguments, unsigned_words

#: Where the modules of refmoe are.
_PACKAGE = Path(__file__).parents[2]
_NAMED = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
    *(ast.ExceptHandler, ast.MatchAs, ast.MatchStar),
)
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult)


def same_module(sound: str, other: str) -> str | None:
    """Why another text of a module is the same program, in a few words; None if that is not proven.

    Args:
        sound: the module as it is.
        other: that of the mutant.
    """
    trees = ast.parse(sound), ast.parse(other)
    for count, why in (
        (_sorted_calls, "the smallest and the largest of some integers do not depend on their order"),
        (_plain_zips, "sequences that are equally long leave nothing over"),
        (unread_arguments, "the keys of a dictionary do not depend on a number"),
        (unsigned_words, "a function takes the lowest bits of a word, whatever its sign"),
    ):
        found = [count(tree) for tree in trees]
        if ast.dump(trees[0]) == ast.dump(trees[1]) and any(found):
            return why
    return None


def _plain_zips(tree: ast.Module) -> int:
    """Take `strict` away from each `zip` of sequences that are equally long; how many there are."""
    if "zip" in {name for each in ast.walk(tree) for name in _bound(each)}:
        return 0
    count = 0
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        lengths = _lengths(function)
        for call in ast.walk(function):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != "zip":
                continue
            words = [word for word in call.keywords if word.arg != "strict" or not _is_truth(word.value)]
            sizes = {_length(each, lengths) for each in call.args}
            if words or not call.keywords or len(sizes) != 1 or None in sizes:
                continue
            call.keywords = []
            count += 1
    return count


def _is_truth(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is bool


def _lengths(function: ast.FunctionDef) -> dict[str, int]:
    """Names of a function that are bound once, to a sequence whose length is seen, and are only read afterwards."""
    names = [name for each in ast.walk(function) if each is not function for name in _bound(each)]
    found = {}
    for each in ast.walk(function):
        target = each.targets[0] if isinstance(each, ast.Assign) and len(each.targets) == 1 else None
        if isinstance(each, ast.Assign) and isinstance(target, ast.Name) and names.count(target.id) == 1:
            size = _length(each.value, {})
            if size is not None and _only_read(function, target.id):
                found[target.id] = size
    return found


def _length(node: ast.expr, lengths: dict[str, int]) -> int | None:
    """How long a sequence is; None if that is not seen."""
    if isinstance(node, ast.Name):
        return lengths.get(node.id)
    if isinstance(node, ast.Tuple | ast.List):
        return None if any(isinstance(each, ast.Starred) for each in node.elts) else len(node.elts)
    if isinstance(node, ast.ListComp) and len(node.generators) == 1:
        (each,) = node.generators
        return None if each.ifs or each.is_async else _length(each.iter, lengths)
    return None


def _only_read(function: ast.FunctionDef, name: str) -> bool:
    """Whether a sequence is never handed on, but for its elements and to `zip`: so nobody makes it longer."""
    uses = [each for each in ast.walk(function) if isinstance(each, ast.Name) and each.id == name]
    read = set()
    for each in ast.walk(function):
        if isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Load) and isinstance(each.slice, ast.Constant):
            read.add(each.value)
        elif isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == "zip":
            read.update(each.args)
    return all(isinstance(each.ctx, ast.Store) or each in read for each in uses)


def _sorted_calls(tree: ast.Module) -> int:
    """Put the arguments of each `min` and `max` of integers in one order; how many there are."""
    taken = {name for each in ast.walk(tree) for name in _bound(each)}
    constants = _constants(tree) | _imported(tree)
    count = 0
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        integers = _integers(function) | constants - _locals(function)
        for call in ast.walk(function):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.keywords:
                continue
            if call.func.id not in {"min", "max"} - taken or len(call.args) < 2:
                continue
            if all(_is_int(each, integers) for each in call.args):
                call.args.sort(key=ast.dump)
                count += 1
    return count


def _bound(node: ast.AST) -> Iterator[str]:
    """The names that a node gives a meaning."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.alias):
        yield node.asname or node.name.partition(".")[0]
    elif isinstance(node, _NAMED) and node.name:
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest


def _assigned(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """Names that are assigned once in a module, each with its value."""
    names = [name for each in body for node in ast.walk(each) for name in _bound(node)]
    for each in body:
        target = each.targets[0] if isinstance(each, ast.Assign) and len(each.targets) == 1 else None
        if isinstance(each, ast.Assign) and isinstance(target, ast.Name) and names.count(target.id) == 1:
            yield target.id, each.value


def _constants(tree: ast.Module) -> set[str]:
    """Names of a module that are assigned once, an integer that is written there."""
    return {name for name, value in _assigned(tree.body) if _is_int(value, set())}


def _imported(tree: ast.Module) -> set[str]:
    """Names that a module takes from others of refmoe, under their own name, where they are such integers."""
    names = [name for each in ast.walk(tree) for name in _bound(each)]
    found = set()
    for each in tree.body:
        if isinstance(each, ast.ImportFrom) and each.level == 0 and (each.module or "").startswith("refmoe."):
            path = _PACKAGE.joinpath(*str(each.module).split(".")[1:]).with_suffix(".py")
            held = _constants(ast.parse(path.read_text(encoding="utf-8"))) if path.is_file() else set()
            found |= {alias.name for alias in each.names if alias.asname is None and alias.name in held}
    return {name for name in found if names.count(name) == 1}


def _locals(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {name for each in ast.walk(function) if each is not function for name in _bound(each)}


def _integers(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Names that are integers wherever a function reads them: annotated so, or sizes of an array, and bound once."""
    names = [name for each in ast.walk(function) if each is not function for name in _bound(each)]
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    found = {each.arg for each in arguments if isinstance(each.annotation, ast.Name) and each.annotation.id == "int"}
    for each in ast.walk(function):
        if not isinstance(each, ast.Assign) or not isinstance(each.value, ast.Attribute) or each.value.attr != "shape":
            continue
        for target in each.targets:
            if isinstance(target, ast.Tuple) and all(isinstance(part, ast.Name) for part in target.elts):
                found |= {part.id for part in target.elts if isinstance(part, ast.Name)}
    return {name for name in found if names.count(name) == 1}


def _is_int(node: ast.expr, integers: set[str]) -> bool:
    """Whether an expression is an integer for sure, and computing it does nothing else."""
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    if isinstance(node, ast.Name):
        return node.id in integers
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.LShift):
        return all(isinstance(each, ast.Constant) and type(each.value) is int for each in (node.left, node.right))
    if isinstance(node, ast.BinOp) and isinstance(node.op, _ARITHMETIC):
        return _is_int(node.left, integers) and _is_int(node.right, integers)
    return False
