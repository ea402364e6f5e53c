"""What a kernel's hash is of: whatever decides its result, and neither comments nor blanks nor docstrings."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.selection.thinned import thinned

from refmoe import cuda
from refmoe.catalog import all_families, kernel_of
from refmoe.cuda.toolchain import CSRC, FLAGS
from refmoe.errors import ArgumentError
from refmoe.families import FAMILIES
from refmoe.museum.cutlass import kernel as cutlass
from refmoe.museum.deepgemm import kernel as deepgemm
from refmoe.testing import kernel
from refmoe.verify import source
from refmoe.verify.kernel import Devices, Kernel, _own_sha256
from refmoe.verify.source import (
    cuda_text,
    function_text,
    host_modules,
    kernel_sha256,
    python_text,
    sha256_of,
    source_files,
    statement_name,
)

# --- CUDA -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a = b;", "a = b;  // said"),
        ("a = b;\nc();", "a = b;\n\n   // said\n\n/* and\n said */\n  c();\n"),
        ("a = b;", "/* said */ a = b;"),
        ("f(a, 0);", "f(a, /*stream=*/0);"),
        ("f(0);", "f(/*stream=*/ 0);"),
        ("f(0);", "f(0 /* stream */);"),
        ("a b", "a/**/b"),
        ("a();\nb();", "a();  // goes on \\\n here\nb();"),
        ("#define A(x) x + 1", "#define A(x) \\\n    x + 1"),
        ('s = "a // b";', 's = "a // b";  // c "d'),
        ("x = 1'000;", "x = 1'000;  // it's a number"),
        ("c = '\"';", "c = '\"';  // a quote"),
    ],
)
def test_comments_and_blanks_of_cuda_decide_nothing(one: str, other: str) -> None:
    assert cuda_text(one) == cuda_text(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a = b;", "a = c;"),
        ("return x;", "returnx;"),
        # What looks like a comment in quotes is none, however the quotes are written.
        ('s = "a // b";', 's = "a // c";'),
        ('s = "a /* b */";', 's = "a /* c */";'),
        ('s = "\\"// b";', 's = "\\"// c";'),
        ("""c = '"'; a = "// b";""", """c = '"'; a = "// c";"""),
        ('s = R"(x" // b)";', 's = R"(x" // c)";'),
        ('s = u8R"q(")" // b)q";', 's = u8R"q(")" // c)q";'),
        ('s = R"(a\n\nb)";', 's = R"(a\nb)";'),
        ('s = R"(a\\\nb)";', 's = R"(ab)";'),
        ('s = "a  b";', 's = "a b";'),
        ("""x = 1'0; s = "'//"; b();""", """x = 1'0; s = "'//"; c();"""),
        ("x = 0x1'0 + '/' / '/' + b;", "x = 0x1'0 + '/' / '/' + c;"),
        ("#include <a//b.h>", "#include <a//c.h>"),
        # A backslash takes the next line into a comment; without it that line is code.
        ("a();  // goes on \\\nb();", "a();  // goes on\nb();"),
        # A blank before a bracket makes a macro without parameters.
        ("#define F(x) y", "#define F (x) y"),
        ("#define A\nB", "#define A B"),
    ],
)
def test_any_other_change_of_cuda_counts(one: str, other: str) -> None:
    assert cuda_text(one) != cuda_text(other)


def test_our_own_sources_keep_every_word_of_code() -> None:
    text = cuda_text((CSRC / "finalize.cu").read_text())
    assert "//" not in text
    assert 'extern "C" __global__' in text
    assert cuda_text(text) == text


# --- a kernel of CUDA, its host code and its flags ------------------------------------------------------------------


FILES = {
    "k.cu": '#include "a.cuh"\nint f() { return g(); }\n',
    "a.cuh": '#include "sub/a.cuh"\nint g() { return h(); }\n',
    "sub/a.cuh": "int h() { return 1; }  // one\n",
    "made_launch.py": '"""Launches."""\nfrom refmoe.cuda.made_grid import grid\n\n\ndef run():\n    grid()\n',
    "made_grid.py": "import refmoe.cuda.made_more\n\n\ndef grid():\n    return 4\n",
    "made_more.py": "from . import made_most\n\nBLOCK = 32\n",
    "made_most.py": "WARPS = 4\n",
}


class Tree:
    """A kernel of the files above, the host code among them modules of refmoe.cuda; tests change a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def sha256(self, changed: str = "", old: str = "", new: str = "", flags: tuple[str, ...] = FLAGS) -> str:
        """The hash with a change in one file."""
        for file, text in FILES.items():
            assert file != changed or text.count(old) == 1
            path = self.folder / file
            path.parent.mkdir(exist_ok=True)
            path.write_text(text.replace(old, new) if file == changed else text)
        for kept in (source._module_file, source._imports, source._module_text):
            kept.cache_clear()
        importlib.invalidate_caches()
        return kernel_sha256([self.folder / "k.cu"], ["refmoe.cuda.made_launch"], flags)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setattr(cuda, "__path__", [*cuda.__path__, str(tmp_path)])
    return Tree(tmp_path)


def test_a_kernel_that_stays_keeps_its_hash(tree: Tree) -> None:
    same = tree.sha256()
    assert tree.sha256() == same
    assert tree.sha256("sub/a.cuh", "  // one", "\n\n// the first of many\n") == same
    assert tree.sha256("made_launch.py", '"""Launches."""', '"""Launches it."""\n\n# on a grid\n') == same


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("k.cu", "g()", "g() + 1"),
        ("a.cuh", "h()", "h() + 1"),
        ("sub/a.cuh", "1;", "2;"),  # a header of a header, of a name that another one has
        ("made_launch.py", "    grid()", "    grid(1)"),
        ("made_grid.py", "return 4", "return 5"),
        ("made_more.py", "BLOCK = 32", "BLOCK = 64"),  # imported as a whole
        ("made_most.py", "WARPS = 4", "WARPS = 8"),  # imported relatively
    ],
)
def test_a_changed_line_of_what_decides_a_result_changes_the_hash(tree: Tree, file: str, old: str, new: str) -> None:
    same = tree.sha256()
    assert tree.sha256(file, old, new) != same
    assert tree.sha256() == same


def test_a_changed_flag_changes_the_hash(tree: Tree) -> None:
    assert tree.sha256() != tree.sha256(flags=(*FLAGS, "-use_fast_math"))


def test_a_host_module_that_there_is_not_is_refused_and_not_left_out() -> None:
    with pytest.raises(ArgumentError, match=r"refmoe\.cuda\.kernals"):
        host_modules(["refmoe.cuda.launch", "refmoe.cuda.kernals"])


def test_a_name_that_a_package_hands_on_leads_to_the_package(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("from refmoe.cuda import open_device, launch\nfrom refmoe import cuda\n")
    assert source._imports(tmp_path / "m.py", "x") == ("refmoe.cuda", "refmoe.cuda.launch", "refmoe.cuda")


@pytest.mark.parametrize("name", thinned(FAMILIES, 3))
def test_a_family_is_hashed_with_every_source_that_it_launches_and_the_host_code_that_does(
    name: str, tmp_path: Path
) -> None:
    family = FAMILIES[name]
    same = Kernel(family).source_sha256()
    assert same == Kernel(family, Devices(csrc=CSRC)).source_sha256()
    for number, stem in enumerate(family.sources):
        csrc = tmp_path / str(number)
        csrc.mkdir()
        for file in CSRC.iterdir():
            (csrc / file.name).write_bytes(file.read_bytes())
        path = csrc / f"{stem}.cu"
        path.write_text(path.read_text() + "\n// nothing\n")
        assert Kernel(family, Devices(csrc=csrc)).source_sha256() == same
        (csrc / "more").mkdir()
        for file in csrc.glob("*.*"):
            (csrc / "more" / file.name).write_bytes(file.read_bytes())
        path = csrc / "more" / f"{stem}.cu"
        path.write_text(path.read_text() + "\nint more;\n")
        assert Kernel(family, Devices(csrc=csrc / "more")).source_sha256() != same
    modules = host_modules(family.host)
    assert set(family.host) <= set(modules)
    assert "refmoe.cuda.launch" in modules


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("mxfp8_quantize", {"refmoe.policy", "refmoe.formats", "refmoe.reference.layout"}),
        ("sm12x_gemm", {"refmoe.chips", "refmoe.formats", "refmoe.reference.layout"}),
        ("moe", {"refmoe.chips", "refmoe.reference.backends"}),
    ],
)
def test_what_decides_tiles_and_alignments_is_hashed_and_what_a_kernel_is_held_against_is_not(
    name: str, modules: set[str]
) -> None:
    found = set(host_modules(FAMILIES[name].host))
    assert modules <= found
    ends = ("errors", "ptx", "families", "verify", "reference.mma", "reference.scalar")
    assert not [each for each in found for end in ends if f"{each}.".startswith(f"refmoe.{end}.")]


def sha256_with(name: str, module: str, text: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    """The hash of a family's kernel, or of an exhibit's, where one of refmoe's modules has another text."""
    case = next(iter(all_families()[name].level("quick")))
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:8]}.py"
    path.write_text(text)
    present = source._module_file
    with monkeypatch.context() as changed:
        changed.setattr(source, "_module_file", lambda asked: path if asked == module else present(asked))
        for kept in (_own_sha256, cutlass._sha256, deepgemm._sha256):
            kept.cache_clear()
        found = kernel_of(case, Devices()).source_sha256()
    for kept in (_own_sha256, cutlass._sha256, deepgemm._sha256):
        kept.cache_clear()
    assert found is not None
    return found


MXFP8, CUTLASS, DEEPGEMM, CUTE = "mxfp8_quantize", "cutlass_gemm", "deepgemm_gemm", "cute_deepseek_gemm"


@pytest.mark.parametrize(
    ("name", "module", "before"),
    thinned(
        [
            # What launches and what compiles, for refmoe's own kernels and for the museum's.
            *((name, "refmoe.cuda.device", "") for name in (MXFP8, CUTLASS, DEEPGEMM, CUTE)),
            *((name, "refmoe.cuda.toolchain", "") for name in (MXFP8, "moe", CUTLASS)),
            # What hands a case to the host code, and what that calls.
            (MXFP8, "refmoe.families.quantize", "def _run(case: Case, inputs: Inputs, device: Device) -> Outputs:"),
            (MXFP8, "refmoe.families.far", "def far_device("),
            ("moe", "refmoe.families.moe", "def _arguments(case: Case, inputs: Inputs) -> dict[str, Any]:"),
            ("sm12x_gemm", "refmoe.families.gemm.grouped", "def run_products("),
            (CUTLASS, "refmoe.museum.cutlass.kernel", "class Cutlass(Kernel):"),
            (DEEPGEMM, "refmoe.museum.deepgemm.kernel", "class DeepGemm(Kernel):"),
            (DEEPGEMM, "refmoe.museum.deepgemm.kernel", "def _taken(case: Case, problem: Problem, found: Any) -> Any:"),
            (CUTE, "refmoe.museum.cute_deepseek_gemm.kernel", "class CuteGemm(CuteKernel):"),
            (CUTE, "refmoe.museum.cute_kernel", "class CuteKernel(Kernel, ABC):"),
        ],
        3,
    ),
)
def test_a_statement_more_in_what_runs_a_case_changes_the_hash(
    name: str, module: str, before: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = source._module_file(module)
    assert path is not None
    text = path.read_text()
    assert text.count(before) == 1 or not before

    def sha256(more: str) -> str:
        # At the end of a module that counts as a whole, else at the head of the function or the class.
        changed = text + f"\n{more}\n" if not before else with_statement(text, before, more)
        return sha256_with(name, module, changed, monkeypatch, tmp_path)

    same = sha256_with(name, module, text, monkeypatch, tmp_path)
    assert sha256("# a comment") == same
    assert sha256("more = 1") != same


def with_statement(text: str, definition: str, statement: str) -> str:
    """A module's text with a statement more behind the first line of the body of a function or a class."""
    (node,) = (
        each
        for each in ast.parse(text).body
        if isinstance(each, (ast.FunctionDef, ast.ClassDef))
        and text.split("\n")[each.lineno - 1].startswith(definition.split("\n")[0])
    )
    lines = text.split("\n")
    lines.insert(node.body[0].end_lineno or 0, f"    {statement}")
    return "\n".join(lines)


def test_cases_and_expectations_of_a_family_decide_no_kernels_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, module in ((MXFP8, "refmoe.families.quantize"), (DEEPGEMM, "refmoe.museum.deepgemm.kernel")):
        path = source._module_file(module)
        assert path is not None
        text = path.read_text()
        same = sha256_with(name, module, text, monkeypatch, tmp_path)
        for function in ("def _quick()", "def _default()"):
            changed = with_statement(text, function, "more = 1")
            assert sha256_with(name, module, changed, monkeypatch, tmp_path) == same


def test_what_only_a_type_checker_imports_is_not_hashed(tmp_path: Path) -> None:
    text = "import refmoe.chips\nif TYPE_CHECKING:\n    import refmoe.policy\nelse:\n    import refmoe.formats\n"
    (tmp_path / "m.py").write_text(text + "def f():\n    from refmoe.cuda import launch\n")
    found = source._imports(tmp_path / "m.py", "x")
    assert set(found) == {"refmoe.chips", "refmoe.formats", "refmoe.cuda.launch"}


def test_every_kernel_has_a_hash_of_its_own() -> None:
    cases = [next(iter(family.level("quick"))) for family in all_families().values()]
    hashes = [kernel_of(case, Devices()).source_sha256() for case in cases]
    assert None not in hashes
    assert len(set(hashes)) == len(all_families())


# --- Python ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a = 1\nb = 2\n", "a = 1  # said\n\n\n# said\nb = 2"),
        ("def f():\n    return 1\n", 'def f():\n    """Says.\n\n    More.\n    """\n\n    return 1\n'),
        ("class C:\n    x = 1\n", 'class C:\n    """Says."""\n\n    x = 1  # said\n'),
        ("x = 1\n", '"""A module."""\n\nx = 1\n'),
        ("x = ('a'\n     'b')\n", "x = ('a'  # one\n     'b')\n"),
        ("x = 'ä'  \n", "x = 'ä'  # ö\n"),
        ("def f():\n    x = 1\n", 'def f():\n    "ä"  # ö\n    x = 1\n'),
    ],
)
def test_comments_blanks_and_docstrings_of_python_decide_nothing(one: str, other: str) -> None:
    assert python_text(one) == python_text(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a = 1\n", "a = 2\n"),
        ("if a:\n    b()\nc()\n", "if a:\n    b()\n    c()\n"),
        ("x = 'a # b'\n", "x = 'a # c'\n"),
        ("x = '''a # b'''\n", "x = '''a # c'''\n"),
        ("x = f'''{a}\n# b'''\n", "x = f'''{a}\n# c'''\n"),
        # Blanks and blank lines in a string are the string's: it may be the source of a kernel.
        ("x = '''a\n\nb'''\n", "x = '''a\nb'''\n"),
        ("x = '''a  \nb'''\n", "x = '''a\nb'''\n"),
        ("x = f'''a  \n{b}\n\nc'''\n", "x = f'''a\n{b}\nc'''\n"),
        # Line ends that only str.splitlines takes for some.
        ("x = 'a\x0cb'  # c\ny = 1\n", "x = 'a\x0cb'  # c\ny = 2\n"),
        ("def f():\n    x = '\u2028'\n    return 1\n", "def f():\n    x = '\u2028'\n    return 2\n"),
        # A string that is no docstring.
        ("x = 1\n'a'\n", "x = 1\n'b'\n"),
        ("def f():\n    b'a'\n", "def f():\n    b'b'\n"),
    ],
)
def test_any_other_change_of_python_counts(one: str, other: str) -> None:
    assert python_text(one) != python_text(other)


#: A kernel's module. Each line that ends in a mark decides the result of `quantize`, the others do not.
MODULE = '''
"""A module."""

import numpy as np  # *
import json
from helpers import *  # *
from helpers import scale as rescale  # *

BLOCK = 32  # *
LIMIT = 1.0  # *
TABLE = {"a": 1}  # *
TABLE["b"] = 2  # *
TABLE.update(c=3)  # *
for letter in "de":  # *
    TABLE[letter] = 4  # *
UNUSED = 5
UNUSED_TABLE = {}
UNUSED_TABLE["a"] = 6

try:
    from fast import rounded  # *
except ImportError:

    def rounded(x):
        return x + 7  # *


if BLOCK == 32:

    class Codes:
        LEAST = 8  # *

        def of(self, x):
            return halves(x)  # *

else:
    Codes = None  # *


def checked(function):
    return function  # *


def set_limit(value):
    global LIMIT
    LIMIT = value  # *


set_limit(9)  # *


def halves(x):
    return x / 2  # *


def doubled(x):
    def inner():
        return x * 2  # *

    return inner()


doubled = checked(doubled)  # *
third = lambda x: x / 3  # *


@checked  # *
def quantize(x):
    """Quantizes."""
    np.seterr(all="raise")  # *
    return Codes().of(doubled(third(rounded(x)))) + LIMIT + TABLE["a"] + rescale(BLOCK)  # *


def unrelated(x):
    return json.dumps(UNUSED + quantize(x))


class Unrelated:
    def quantize(self):
        return 10


if __name__ == "__main__":
    print(quantize(11))
'''
LINES = MODULE.split("\n")


def changed_line(number: int) -> str:
    """The module with a line of code changed, in a way that leaves it a module."""
    line = LINES[number]
    code, comment, rest = line.partition("  # *")
    if code.rstrip().endswith(":"):
        code = code.rstrip().removesuffix(":") + " :"
    elif code.startswith("@"):
        code += ".other"
    elif "import" in code:
        code += ", other" if not code.endswith("*") else ""
        code = code.replace("from helpers import *", "from others import *")
    else:
        code += "; other()"
    return "\n".join([*LINES[:number], code + comment + rest, *LINES[number + 1 :]])


CODE = [number for number, line in enumerate(LINES) if line.strip() and '"""' not in line]


@pytest.mark.parametrize("number", [n for n in CODE if "# *" in LINES[n]], ids=lambda n: LINES[n].strip())
def test_a_line_that_a_function_uses_changes_its_text(number: int) -> None:
    assert function_text(changed_line(number), "quantize") != function_text(MODULE, "quantize")


@pytest.mark.parametrize(
    "number",
    [
        n
        for n in CODE
        if "# *" not in LINES[n]
        and any(word in LINES[n] for word in ("json", "UNUSED", "return 10", "print", "class U"))
    ],
    ids=lambda n: LINES[n].strip(),
)
def test_a_line_that_no_used_statement_has_does_not(number: int) -> None:
    assert function_text(changed_line(number), "quantize") == function_text(MODULE, "quantize")


def test_a_function_that_reads_names_as_text_is_hashed_with_its_whole_module() -> None:
    text = "A = 1\n\n\ndef f(x):\n    return x + globals()['A']\n"
    assert function_text(text, "f") == python_text(text)
    assert function_text(text.replace("A = 1", "A = 2"), "f") != function_text(text, "f")


def test_statements_that_share_lines_go_together() -> None:
    text = "a = '''x\n'''; b = lambda x: x + 1; c = 2\n"
    assert function_text(text, "b") == python_text(text)
    assert statement_name(text, 2) is None


@pytest.mark.parametrize(
    ("line", "name"),
    [("def quantize(x):", "quantize"), ("@checked  # *", "quantize"), ("        return x * 2  # *", "doubled"),
     ("third = lambda x: x / 3  # *", "third"), ("            return halves(x)  # *", "Codes"),
     ("        return x + 7  # *", "rounded"), ("set_limit(9)  # *", None), ("    print(quantize(11))", None)],
)  # fmt: skip
def test_the_statement_around_a_line(line: str, name: str | None) -> None:
    assert statement_name(MODULE, LINES.index(line) + 1) == name


def test_a_function_that_is_not_there_is_refused() -> None:
    with pytest.raises(ArgumentError, match="no other in its file"):
        function_text(MODULE, "other")
    assert "print" in function_text("if __name__ == '__main__':\n    def f(x):\n        print(x)\n", "f")


# --- a user's kernel ------------------------------------------------------------------------------------------------


class Project:
    """A user's files; `quantize` is what they register."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.monkeypatch, self.made = root, monkeypatch, 0
        monkeypatch.syspath_prepend(str(root))
        monkeypatch.chdir(root)

    def kernel(self, *, sources: tuple[str, ...] = (), **files: str) -> Any:
        """The kernel of freshly imported files."""
        for name, text in files.items():
            (self.root / f"{name}.py").write_text(textwrap.dedent(text))
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        module: ModuleType = importlib.import_module("mine")
        self.monkeypatch.setitem(sys.modules, "mine", module)
        return kernel("quantize", arrays="numpy", layout="linear", sources=sources)(module.quantize)

    def sha256(self, **files: Any) -> str:
        return str(self.kernel(**files).source_sha256())


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return Project(tmp_path, monkeypatch)


PLAIN = "BLOCK = 32\n\n\ndef helper(x):\n    return x, BLOCK\n\n\ndef quantize(x):\n    return helper(x)\n"


def test_a_users_function_is_hashed_with_what_it_calls_and_the_constants_it_uses(project: Project) -> None:
    same = project.sha256(mine=PLAIN)
    assert project.kernel(mine=PLAIN).sources() == ("mine.py::quantize",)
    assert project.sha256(mine=PLAIN.replace("BLOCK = 32", "BLOCK = 64")) != same
    assert project.sha256(mine=PLAIN.replace("return x, BLOCK", "return x + 1, BLOCK")) != same
    assert project.sha256(mine=PLAIN.replace("return helper(x)", "return helper(x + 1)")) != same
    assert project.sha256(mine=PLAIN + "\n\ndef unrelated():\n    return quantize(1)\n") == same
    assert project.sha256(mine=PLAIN.replace("    return helper", '    """Says."""\n\n    return helper')) == same


def test_files_that_a_user_names_are_part_of_the_hash(project: Project) -> None:
    (project.root / "k.cu").write_text('#include "k.cuh"\nint f();  // said\n')
    (project.root / "k.cuh").write_text("int g();\n")
    (project.root / "k.cubin").write_bytes(b"\xff\x00\x80")
    (project.root / "other.py").write_text("def launch():\n    return 1\n\n\ndef unrelated():\n    return 2\n")
    named = ("k.cu", "k.cubin", "other.py::launch")

    def after(file: str, old: bytes, new: bytes) -> str:
        path, before = project.root / file, (project.root / file).read_bytes()
        path.write_bytes(before.replace(old, new))
        try:
            return project.sha256(mine=PLAIN, sources=named)
        finally:
            path.write_bytes(before)

    same = project.sha256(mine=PLAIN, sources=named)
    assert same != project.sha256(mine=PLAIN)
    assert after("k.cu", b"f()", b"h()") != same
    assert after("k.cuh", b"g()", b"h()") != same
    assert after("k.cubin", b"\x80", b"\x81") != same
    assert after("other.py", b"1", b"3") != same
    assert after("other.py", b"return 2", b"return 3") == same
    assert after("k.cu", b"said", b"meant") == same


Change = Callable[[str], str]


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        # A decorator that returns a function of its own, without saying which it wraps.
        (
            "def timed(f):\n    def inner(x):\n        return f(x)\n    return inner\n\n\n"
            "@timed\ndef quantize(x):\n    return x + 1\n",
            "x + 1", "x + 2",
        ),
        # The data of a function that another one made.
        (
            "def make(block):\n    def run(x):\n        return x + block\n    return run\n\n\nquantize = make(64)\n",
            "64", "65",
        ),
        # An instance, and a partial, are made somewhere else than their function.
        (
            "class K:\n    def __init__(self, block):\n        self.block = block\n"
            "    def run(self, x):\n        return x + self.block\n\n\nquantize = K(64).run\n",
            "64", "65",
        ),
        (
            "import functools\n\n\ndef run(x, block):\n    return x\n\n\nquantize = functools.partial(run, block=64)\n",
            "64", "65",
        ),
        ("class K:\n    @staticmethod\n    def run(x):\n        return x + 1\n\n\nquantize = K.run\n", "+ 1", "+ 2"),
        ("class K:\n    @classmethod\n    def run(cls, x):\n        return x + 1\n\n\nquantize = K.run\n", " 1", " 2"),
        ("quantize = lambda x: x + 1\n", "x + 1", "x + 2"),
        ("import functools\n\n\n@functools.lru_cache\ndef quantize(x):\n    return x + 1\n", "x + 1", "x + 2"),
    ],
    ids=["decorator", "closure", "method", "partial", "static method", "class method", "lambda", "cached"],
)  # fmt: skip
def test_however_a_function_was_made_its_hash_follows_it(project: Project, text: str, old: str, new: str) -> None:
    assert text.count(old) == 1
    assert project.sha256(mine=text) != project.sha256(mine=text.replace(old, new))


def test_a_decorator_of_another_file_hides_no_function(project: Project) -> None:
    deco = "def timed(f):\n    def inner(x):\n        return f(x)\n\n    return inner\n"
    mine = "from deco import timed\n\n\n@timed\ndef quantize(x):\n    return x + 1\n"
    same = project.sha256(deco=deco, mine=mine)
    assert set(project.kernel(deco=deco, mine=mine).sources()) == {"deco.py::timed", "mine.py::quantize"}
    assert project.sha256(deco=deco, mine=mine.replace("x + 1", "x + 2")) != same
    assert project.sha256(deco=deco.replace("f(x)", "f(x + 1)"), mine=mine) != same
    wraps = deco.replace("def inner", "@wraps(f)\n    def inner")
    wrapped = project.kernel(deco=f"from functools import wraps\n\n\n{wraps}", mine=mine)
    assert wrapped.sources() == ("mine.py::quantize", "deco.py::timed")


CALLABLE = """
from base import Base


class Rounds(Base):
    def __call__(self, x):
        return self.rounded(x)


quantize = Rounds()
"""


def test_an_instance_that_can_be_called_is_hashed_with_its_class_and_the_bases(project: Project) -> None:
    base = "class Base:\n    def rounded(self, x):\n        return x + 1\n"
    same = project.sha256(base=base, mine=CALLABLE)
    assert project.kernel(base=base, mine=CALLABLE).sources() == ("mine.py", "base.py")
    assert project.sha256(base=base, mine=CALLABLE + "\n# said\n") == same
    assert project.sha256(base=base, mine=CALLABLE.replace("(x)\n\n", "(x + 1)\n\n")) != same
    assert project.sha256(base=base.replace("x + 1", "x + 2"), mine=CALLABLE) != same
    held = CALLABLE + "\n\ncalled = quantize\n\n\ndef quantize(x):\n    return called(x)\n"
    assert project.sha256(base=base, mine=held) != project.sha256(base=base.replace("x + 1", "x + 2"), mine=held)


def test_a_report_can_be_held_against_the_files_again(project: Project) -> None:
    made = project.kernel(mine=PLAIN)
    assert made.source_sha256() == sha256_of(source_files(made.sources(), project.root))


def test_a_function_without_a_file_has_no_hash() -> None:
    made = kernel("quantize", arrays="numpy")(functools.partial(eval("lambda x: x")))
    assert (made.sources(), made.source_sha256()) == ((), None)


def test_what_runs_where_a_module_is_imported_counts() -> None:
    text = "if __name__ == '__main__':\n    K = 1\nelse:\n    K = 2\n\n\ndef f():\n    return K\n"
    assert "K = 2" in function_text(text, "f")
    assert "K = 1" not in function_text(text.replace("else:\n    K = 2\n", ""), "f")
