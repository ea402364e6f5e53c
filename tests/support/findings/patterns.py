"""What CUDA programmers write, each kernel in a racy and a mended form: tests/data/patterns, compiled by nvcc.

A kernel begins with a line `//# name finds=KIND g=2 ...`: what its racy form is found for, and how it is launched.
`⟨racy¦mended⟩` is what tells the two forms apart. A file is compiled as one module, each form in a namespace.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from support.ptx_kernel import compile_cuda

from refmoe import ptx

FOLDER = Path(__file__).parents[2] / "data" / "patterns"
FILES = (
    "grid", "block", "asynchronous", "idioms", "roles", "library", "order", "warpgroups", "many", "chains", "scopes",
    "queues", "clusters",
)  # fmt: skip
_CHOICE = re.compile("⟨(.*?)¦(.*?)⟩", re.DOTALL)
_FORMS = ("racy", "mended")


@dataclass(frozen=True)
class Pattern:
    """A kernel in two forms.

    Attributes:
        file: in which it stands.
        name: of the kernel.
        finds: the error of its racy form, with its kind if it has one, or `"warning"`.
        numbers: g blocks, b threads, cluster, sm bytes of dynamic shared memory, coop 1 if it is cooperative, prev the
            argument that the grid before writes.
        body: CUDA C++ of both.
    """

    file: str
    name: str
    finds: str
    numbers: dict[str, int]
    body: str

    def __str__(self) -> str:
        return f"{self.file}-{self.name}"

    def text(self, form: str) -> str:
        """CUDA C++ of one form."""
        number = 1 + _FORMS.index(form)
        body = _CHOICE.sub(lambda match: match[number], self.body).replace("NAME", f"{self.name}_{form}")
        return f"namespace {self.name}_{form}_names {{\n{body}\n}}\n"

    def launch(self, folder: Path, form: str, schedules: int) -> str:
        """Run one form under so many schedules; what was found, as in `finds`, or `""`."""
        module, numbers = _module(self.file, folder), self.numbers
        out, given, zeros = np.zeros(4096, np.uint32), np.arange(4096, dtype=np.uint32), np.zeros(256, np.uint32)
        previous = [f"argument {numbers['prev']}"] if "prev" in numbers else []
        try:
            result = ptx.launch(
                module, f"{self.name}_{form}", (numbers.get("g", 1), 1, 1), (numbers.get("b", 64), 1, 1),
                [out, given, zeros], numbers.get("sm", 0), ptx.Checks(explain=False), 20_000, stdout=io.StringIO(),
                cluster=(numbers["cluster"], 1, 1) if "cluster" in numbers else None,
                cooperative=bool(numbers.get("coop")), previous_grid_writes=previous, schedules=schedules,
            )  # fmt: skip
        except ptx.PtxError as error:
            kind = getattr(error, "kind", "")
            return type(error).__name__ + (f":{kind.replace(' ', '-')}" if kind else "")
        return "warning" if result.warnings else ""


def _parts(file: str) -> list[str]:
    """What a file begins with, and its kernels."""
    return (FOLDER / f"{file}.cu").read_text(encoding="utf-8").split("\n//# ")


def _read(file: str) -> list[Pattern]:
    found = []
    for part in _parts(file)[1:]:
        head, _, body = part.partition("\n")
        name, finds, *numbers = head.split()
        words = dict(each.split("=") for each in numbers)
        found.append(Pattern(file, name, finds.removeprefix("finds="), {k: int(v) for k, v in words.items()}, body))
    return found


PATTERNS = [pattern for file in FILES for pattern in _read(file)]


@cache
def _module(file: str, folder: Path) -> ptx.Module:
    common = (FOLDER / "common.cuh").read_text(encoding="utf-8")
    forms = [each.text(form) for each in PATTERNS if each.file == file for form in _FORMS]
    return compile_cuda("\n".join([common, _parts(file)[0], *forms]), folder, "sm_90a")
