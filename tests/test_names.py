"""A class name stands for one thing: a second class of a name is listed here with the reason why both may live."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent / "refmoe"

#: Why several classes may have one name, and the names with the number of classes that have each.
ALLOWED: Mapping[str, Mapping[str, int]] = {
    "The litmus oracle names what PTX names, as the executor does, and the two may share no module.": {
        "Address": 2, "Arrive": 2, "Atomic": 2, "BulkLoad": 2, "BulkStore": 2, "Fence": 2, "Load": 3, "Memory": 2,
        "Program": 3, "Store": 2, "Wait": 3,
    },
    "An oracle shares no code with what it checks: each scalar reference has its own record.": {
        "Block": 3, "Expert": 2, "Fused": 2, "Row": 3, "Term": 2,
    },
    "Each family, and each kernel beside it, has a record of its own of the same role.": {
        "DeepSeekGemm": 3, "Headers": 2, "Operands": 5, "Permuted": 2, "Problem": 2, "RowScales": 2, "Size": 3,
    },
    "A word of compilers: one class reads text, the other is of machine code or of the counts of a benchmark.": {
        "Code": 2, "Edit": 2, "Homes": 2, "Instruction": 4, "Target": 4,
        "Token": 2, "Turns": 2, "Value": 2, "Variable": 2, "Vector": 2,
    },
    "A word of pages and documents, beside one of computing; no module imports both.": {
        "Column": 2, "DifferenceRecord": 2, "Found": 2, "Group": 3, "Kind": 3, "Limits": 2, "Source": 2,
        "Table": 2,
    },
    "Rooms that do not import each other use a plain word, each for a record of its own.": {
        "Answer": 2, "Batch": 2, "Blocks": 3, "Box": 2, "Checked": 2, "Difference": 2, "Draw": 2, "Evidence": 2,
        "Kept": 2, "Launch": 3, "LayerShape": 2, "Layout": 2, "Mma": 2, "Pair": 2,
        "Piece": 2, "Place": 2, "Product": 2, "Rule": 2, "Run": 2, "Scales": 2, "Shape": 2, "Stored": 2, "Subject": 2,
        "Writer": 2,
    },
}  # fmt: skip


@cache
def names_of(text: str) -> tuple[list[str], list[tuple[str, str]]]:
    """The public classes that a module defines, and (name, module) of all that it imports from refmoe."""
    tree = ast.parse(text)
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    imports = [
        (alias.name, node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("refmoe.")
        for alias in node.names
    ]
    return classes, imports


def doubles(sources: Mapping[str, str]) -> dict[str, int]:
    """The classes that several modules define, and how many; `sources` are texts by module."""
    counts = Counter(name for text in sources.values() for name in names_of(text)[0])
    return {name: count for name, count in counts.items() if count > 1}


def meetings(sources: Mapping[str, str]) -> Iterator[str]:
    """Modules that import, or define, two classes of one name."""
    names = doubles(sources)
    for module, text in sources.items():
        classes, imports = names_of(text)
        met = {*((name, module) for name in classes), *imports}
        yield from (f"{module}: {name}" for name in sorted(names) if sum(each == name for each, _ in met) > 1)


def _sources() -> dict[str, str]:
    return {
        ".".join(("refmoe", *path.relative_to(ROOT).with_suffix("").parts)): path.read_text(encoding="utf-8")
        for path in sorted(ROOT.rglob("*.py"))
    }


def test_a_class_name_that_exists_twice_is_listed_with_the_reason() -> None:
    allowed = {name: count for names in ALLOWED.values() for name, count in names.items()}
    assert doubles(_sources()) == allowed


def test_no_module_meets_two_classes_of_one_name() -> None:
    assert list(meetings(_sources())) == []


def test_a_double_name_is_found() -> None:
    sources = {
        "refmoe.a": "class Step: ...\nclass _Own: ...\nclass One: ...",
        "refmoe.b": "class Step: ...\nclass _Own: ...",
        "refmoe.c": "from refmoe.a import Step as First\nfrom refmoe.b import Step",
        "refmoe.d": "from refmoe.a import One, Step",
    }
    assert (doubles(sources), list(meetings(sources))) == ({"Step": 2}, ["refmoe.c: Step"])
