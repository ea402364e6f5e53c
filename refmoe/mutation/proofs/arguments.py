"""Arguments of host code of which a function makes no use, or the same use of several.

Of a dictionary that a function makes, `tuple` takes the keys: what the values are made of does not matter. A function
that asks of a number whether it is 0, and takes its lowest 32 bits, does not tell a signed word from an unsigned one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

#: Where the modules of refmoe are.
_PACKAGE = Path(__file__).parents[2]
_WORDS = ("uint32", "int32")
_LOWEST = 0xFFFFFFFF
#: What keeps the lowest bits of a number: they depend on no others.
_OF_LOWEST = (ast.Add, ast.Sub, ast.Mult, ast.BitAnd, ast.BitOr, ast.BitXor)


def unread_arguments(tree: ast.Module) -> int:
    """Put 0 for each constant that the keys of a dictionary do not depend on; how many there are."""
    own = _functions(tree)
    count = 0
    if "tuple" in _names(tree):
        return 0
    for call in ast.walk(tree):
        if not _calls(call, "tuple") or len(call.args) != 1 or call.keywords:  # type: ignore[attr-defined]
            continue
        inner = call.args[0]  # type: ignore[attr-defined]
        if not isinstance(inner, ast.Call) or not isinstance(inner.func, ast.Name) or inner.func.id not in own:
            continue
        function = own[inner.func.id]
        names = [each.arg for each in function.args.args]
        if inner.keywords or any(isinstance(each, ast.Starred) for each in inner.args) or len(inner.args) > len(names):
            continue
        for place, (name, given) in enumerate(zip(names, inner.args, strict=False)):
            whole = isinstance(given, ast.Constant) and type(given.value) is int
            if whole and _is_int(function.args.args[place]) and _in_values_alone(function, name):
                inner.args[place] = ast.copy_location(ast.Constant(0), given)
                count += 1
    return count


def _in_values_alone(function: ast.FunctionDef, name: str) -> bool:
    """Whether an integer is used for values of a dictionary alone, by arithmetic that fails for none.

    The function sets names and returns a display of a dictionary, which decides what the keys are.
    """
    tainted = {name}
    *lines, last = [each for each in function.body if not _is_text(each)]
    for line in lines:
        if not isinstance(line, ast.Assign) or len(line.targets) != 1 or not isinstance(line.targets[0], ast.Name):
            return False
        if _read(line.value) & tainted:
            if not _is_plain(line.value, tainted):
                return False
            tainted.add(line.targets[0].id)
        elif line.targets[0].id in tainted:
            return False
    if not isinstance(last, ast.Return) or not isinstance(last.value, ast.Dict) or function.decorator_list:
        return False
    for key, value in zip(last.value.keys, last.value.values, strict=True):
        if key is None or _read(key) & tainted or (_read(value) & tainted and not _is_plain(value, tainted)):
            return False
    return True


def _is_plain(node: ast.expr, tainted: set[str]) -> bool:
    """Whether an expression fails for no integers under some names, or for all of them; what it is made of is one."""
    if isinstance(node, ast.Name) or not _read(node) & tainted:
        return True
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.FloorDiv):
        return False
    if isinstance(node.op, ast.FloorDiv) and _read(node.right) & tainted:
        return False
    return _is_plain(node.left, tainted) and _is_plain(node.right, tainted)


def unsigned_words(tree: ast.Module) -> int:
    """Make an unsigned word of each signed one that goes to a function which does not tell them apart; how many."""
    known: dict[str, ast.FunctionDef] = {**_imported(tree), **_functions(tree)}
    if "int" in _names(tree) or _numpy(tree) is None:
        return 0
    count = 0
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id not in known:
            continue
        function = known[call.func.id]
        if len(call.args) != 1 or call.keywords or len(function.args.args) != 1 or function.args.kwonlyargs:
            continue
        if (word := _word(call.args[0], str(_numpy(tree)))) is None or not _takes_lowest(function):
            continue
        word.attr = _WORDS[0]
        count += 1
    return count


def _word(node: ast.expr, numpy: str) -> ast.Attribute | None:
    """The type of the word in `int(array.view(np.uint32)[0])`."""
    if not _calls(node, "int") or len(node.args) != 1 or node.keywords:  # type: ignore[attr-defined]
        return None
    item = node.args[0]  # type: ignore[attr-defined]
    if not isinstance(item, ast.Subscript) or not isinstance(item.slice, ast.Constant):
        return None
    if type(item.slice.value) is not int:
        return None
    view = item.value
    if not isinstance(view, ast.Call) or not isinstance(view.func, ast.Attribute) or view.func.attr != "view":
        return None
    if len(view.args) != 1 or view.keywords or not isinstance(view.args[0], ast.Attribute):
        return None
    found = view.args[0]
    return found if isinstance(found.value, ast.Name) and found.value.id == numpy and found.attr in _WORDS else None


def _takes_lowest(function: ast.FunctionDef) -> bool:
    """Whether a function asks of its argument whether it is 0, takes its lowest 32 bits, and does nothing else."""
    body = [each for each in function.body if not _is_text(each)]
    if len(body) != 1 or not isinstance(body[0], ast.Return) or body[0].value is None or function.decorator_list:
        return False
    name = function.args.args[0].arg
    left = [body[0].value]
    while left:
        node = left.pop()
        if name not in _read(node) or _is_zero_test(node, name) or _is_masked(node, name):
            continue
        if not isinstance(node, ast.IfExp):
            return False
        left += [node.test, node.body, node.orelse]
    return True


def _is_zero_test(node: ast.expr, name: str) -> bool:
    return (
        isinstance(node, ast.Compare)
        and len(node.ops) == 1
        and isinstance(node.ops[0], ast.Eq | ast.NotEq)
        and isinstance(node.left, ast.Name)
        and node.left.id == name
        and isinstance(node.comparators[0], ast.Constant)
        and type(node.comparators[0].value) is int
        and node.comparators[0].value == 0
    )


def _is_masked(node: ast.expr, name: str) -> bool:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.BitAnd):
        return False
    mask = node.right
    whole = isinstance(mask, ast.Constant) and type(mask.value) is int and 0 <= mask.value <= _LOWEST
    return whole and _of_lowest(node.left, name)


def _of_lowest(node: ast.expr, name: str) -> bool:
    """Whether the lowest bits of an expression depend on the lowest ones of a number alone."""
    if isinstance(node, ast.Name):
        return node.id == name
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Invert | ast.USub) and _of_lowest(node.operand, name)
    both = isinstance(node, ast.BinOp) and isinstance(node.op, _OF_LOWEST)
    return both and _of_lowest(node.left, name) and _of_lowest(node.right, name)  # type: ignore[attr-defined]


def _calls(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _is_int(argument: ast.arg) -> bool:
    return isinstance(argument.annotation, ast.Name) and argument.annotation.id == "int"


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _read(node: ast.expr) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _names(tree: ast.Module) -> list[str]:
    """All names that anything in a module is given."""
    return [name for node in ast.walk(tree) for name in _bound(node)]


def _bound(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.alias):
        yield node.asname or node.name.partition(".")[0]
    else:
        for field in ("name", "rest"):
            if isinstance(found := getattr(node, field, None), str):
                yield found


def _functions(tree: ast.Module) -> Mapping[str, ast.FunctionDef]:
    """The functions of a module, of names that nothing else in it has."""
    names = _names(tree)
    return {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef) and names.count(each.name) == 1}


def _imported(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """The functions that a module takes from others of refmoe, under their own names, which nothing else has."""
    names = _names(tree)
    found: dict[str, ast.FunctionDef] = {}
    for each in tree.body:
        if isinstance(each, ast.ImportFrom) and each.level == 0 and (each.module or "").startswith("refmoe."):
            path = _PACKAGE.joinpath(*str(each.module).split(".")[1:]).with_suffix(".py")
            held = _functions(ast.parse(path.read_text(encoding="utf-8"))) if path.is_file() else {}
            for alias in each.names:
                if alias.asname is None and alias.name in held and names.count(alias.name) == 1:
                    found[alias.name] = held[alias.name]
    return found


def _numpy(tree: ast.Module) -> str | None:
    """What a module calls NumPy; None if it gives that name another meaning, too."""
    found = [
        alias.asname or alias.name
        for each in tree.body
        if isinstance(each, ast.Import)
        for alias in each.names
        if alias.name == "numpy"
    ]
    return found[0] if len(found) == 1 and _names(tree).count(found[0]) == 1 else None
