"""Which block scales CuTe DSL's own matrix products take: each combination is constructed, and its answer recorded.

On SM12x these are the operations of `cutlass.cute.nvgpu.warp`. On SM100 it is the function that the package's examples
make their products with, `make_blockscaled_trivial_tiled_mma`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from refmoe.chips import CHIPS, Mma
from refmoe.cute.package import CompileError, imported
from refmoe.cute.program import compile as compile_function

ELEMENTS = ("Float4E2M1FN", "Float6E2M3FN", "Float6E3M2FN", "Float8E4M3FN", "Float8E5M2")
SCALES = ("Float8E8M0FNU", "Float8E4M3FN", "Float32")
#: Elements that share a scale: those of NVFP4, of MX, and of DeepSeek's tokens.
BLOCKS = (16, 32, 128)

#: Operations of SM12x, and the elements of a block, which each has as its own.
_SM120 = {"MmaMXF8Op": 32, "MmaMXF4Op": 32, "MmaMXF4NVF4Op": 16}


@dataclass(frozen=True)
class Answer:
    """What CuTe DSL says of one combination.

    Attributes:
        arch: the chip.
        operation: what was asked.
        elements: of A and of B, by their names in `cutlass`.
        scale: type of a scale.
        block: elements that share one.
        refusal: its message, None if it takes the combination.
        made: (type, elements) of the scales that the operation has which was made; None if none was.
    """

    arch: str
    operation: str
    elements: tuple[str, str]
    scale: str
    block: int
    refusal: str | None
    made: tuple[str, int] | None

    @property
    def ignored(self) -> bool:
        """Whether it made an operation with other scales than it was asked for, without a word."""
        return self.made is not None and self.made != (self.scale, self.block)


def ask() -> tuple[Answer, ...]:
    """Every combination on SM120 and SM100: on the first chip that has their block-scaled products.

    Raises:
        CuteMissing: CuTe DSL is not installed.
    """
    kinds = {Mma.SYNC_MX: _sm120, Mma.TCGEN05_MX: _sm100}
    first = {mma: next(chip.arch for chip in CHIPS.values() if mma in chip.sums) for mma in kinds}
    return tuple(answer for mma, combinations in kinds.items() for answer in _answers(first[mma], combinations))


def _answers(arch: str, combinations: Callable[[], Iterator[tuple[Any, ...]]]) -> list[Answer]:
    """The answers of a chip; operations can be made only while a function for it is compiled."""
    cute = imported("cutlass.cute")
    answers: list[Answer] = []

    def collect() -> None:
        for operation, elements, scale, block, make in combinations():
            refusal, made = None, None
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    made = make()
            except Exception as error:  # whatever it refuses with
                refusal = _sentence(str(error))
            answers.append(Answer(arch, operation, elements, scale, block, refusal, made))

    def asked() -> None:
        collect()

    try:
        compile_function(cute.jit(asked), arch=arch)
    except CompileError as error:
        # It launches nothing, of which there is no PTX.
        if not answers:
            raise error
    return answers


def _sm120() -> Iterator[tuple[Any, ...]]:
    cutlass, warp = imported("cutlass"), imported("cutlass.cute.nvgpu.warp")
    for operation, block in _SM120.items():
        for element in ELEMENTS:
            for scale in SCALES:

                def make(operation: str = operation, element: str = element, scale: str = scale) -> tuple[str, int]:
                    made = getattr(warp, operation)(getattr(cutlass, element), cutlass.Float32, getattr(cutlass, scale))
                    return made.sf_type.__name__, made.sf_vec_size

                yield operation, (element, element), scale, block, make
    for first, second in (
        ("Float4E2M1FN", "Float8E4M3FN"),
        ("Float8E4M3FN", "Float4E2M1FN"),
        ("Float8E4M3FN", "Float8E5M2"),
    ):
        for scale in SCALES:

            def mixed(first: str = first, second: str = second, scale: str = scale) -> tuple[str, int]:
                made = warp.MmaMXF8F6F4Op(*(getattr(cutlass, name) for name in (first, second, "Float32", scale)))
                return made.sf_type.__name__, made.sf_vec_size

            yield "MmaMXF8F6F4Op", (first, second), scale, 32, mixed


def _sm100() -> Iterator[tuple[Any, ...]]:
    cutlass, tcgen05 = imported("cutlass"), imported("cutlass.cute.nvgpu.tcgen05")
    helpers = imported("cutlass.utils.blackwell_helpers")
    major = imported("cutlass.cute.nvgpu").OperandMajorMode.K
    for element in ELEMENTS:
        for scale in SCALES:
            for block in BLOCKS:

                def make(element: str = element, scale: str = scale, block: int = block) -> tuple[str, int]:
                    kind = getattr(cutlass, element)
                    made = helpers.make_blockscaled_trivial_tiled_mma(
                        *(kind, kind, major, major, getattr(cutlass, scale), block),
                        *(tcgen05.CtaGroup.ONE, (128, 128)),
                    )
                    return made.op.sf_dtype.__name__, made.op.sf_vec_size

                yield "make_blockscaled_trivial_tiled_mma", (element, element), scale, block, make


def _sentence(text: str) -> str:
    """The message itself, without colours, the place in a source that it names, and advice."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return " ".join(plain.split("-->")[0].split()).removeprefix("error: ")


def table(answers: Sequence[Answer]) -> str:
    """The answers as a Markdown table, a row for each operation and pair of elements."""
    rows = dict.fromkeys((each.arch, each.operation, each.elements) for each in answers)
    lines = ["| chip | operation | elements | takes | makes other scales of what it is asked for | refuses |"]
    lines.append("|---|---|---|---|---|---|")
    for arch, operation, elements in rows:
        its = [each for each in answers if (each.arch, each.operation, each.elements) == (arch, operation, elements)]
        taken = [_asked(each) for each in its if each.refusal is None and not each.ignored]
        other = dict.fromkeys(_made(each) for each in its if each.ignored)
        turned = [
            f"{made} of {', '.join(_asked(each) for each in its if each.ignored and _made(each) == made)}"
            for made in other
        ]
        messages = dict.fromkeys(each.refusal for each in its if each.refusal is not None)
        refused = [f"{', '.join(_asked(each) for each in its if each.refusal == text)}: {text}" for text in messages]
        names = " x ".join(_short(name) for name in dict.fromkeys(elements))
        cells = (arch, f"`{operation}`", names, ", ".join(taken), "; ".join(turned), "; ".join(refused))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _asked(answer: Answer) -> str:
    return f"{_short(answer.scale)}/{answer.block}"


def _made(answer: Answer) -> str:
    assert answer.made is not None
    return f"{_short(answer.made[0])}/{answer.made[1]}"


def _short(name: str) -> str:
    """As in a table: "E4M3", "E8M0", "FP32"."""
    return (
        "FP32" if name == "Float32" else name.removeprefix("Float").lstrip("468").removesuffix("FNU").removesuffix("FN")
    )
