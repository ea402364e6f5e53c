"""How long the first launch of a kernel takes that nobody ran before: from its PTX text to its result.

A text of so many lines is written for it, in the manner of a compiler: a new register for each value, branches around
some of them, exchange through shared memory. Operations are drawn, so that its parts have no code in common. Every
measured process has an empty cache of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from refmoe import ptx
from refmoe.bench.parity import environment, last_line
from refmoe.bench.timing import machine, verdict
from refmoe.errors import RefmoeError

#: Lines of the kernel that runs before the measured one: it has refmoe's own machine code for memory compiled.
_SMALL = 100

TARGETS = {"first_3000_s": 3.0, "first_20000_s": 15.0}
"""At most so long for the first launch of an uncached kernel of 3,000 and of 20,000 lines of PTX."""

_THREADS, _WORDS = 64, 256
_HEAD = """.version 8.7
.target sm_120a
.address_size 64
.visible .entry first(.param .u64 in, .param .u64 out) {
.reg .pred %p<{registers}>;
.reg .b32 %r<{registers}>;
.reg .f32 %f<{registers}>;
.reg .b64 %rd<8>;
.shared .align 4 .b8 exchange[{shared}];
ld.param.u64 %rd1, [in];
ld.param.u64 %rd2, [out];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd3, %r1, 4;
add.u64 %rd4, %rd1, %rd3;
add.u64 %rd5, %rd2, %rd3;
mov.u64 %rd6, exchange;
add.u64 %rd7, %rd6, %rd3;
add.u32 %r2, %r1, 1;
and.b32 %r3, %r2, {last};
mul.lo.u32 %r4, %r3, 4;
cvt.u64.u32 %rd3, %r4;
add.u64 %rd6, %rd6, %rd3;
mov.f32 %f1, 0f3F800000;
"""
_TAIL = """mov.b32 %r{scratch}, %f{sum};
xor.b32 %r{found}, %r{value}, %r{scratch};
st.global.u32 [%rd5], %r{found};
ret;
}
"""

Words = npt.NDArray[np.uint32]
_DRAWN_OF_A_PART = 4
_OPERATIONS: dict[str, Callable[[Words, Words], Words]] = {
    "add.u32": np.add,
    "sub.u32": np.subtract,
    "mul.lo.u32": np.multiply,
    "xor.b32": np.bitwise_xor,
    "and.b32": np.bitwise_and,
    "or.b32": np.bitwise_or,
    "min.u32": np.minimum,
    "max.u32": np.maximum,
}


class Writer:
    """A kernel that is written and computed at the same time.

    Attributes:
        lines: of its body.
        value: uint32 [threads], what each thread has.
        sum: float32 [threads], beside it.
    """

    def __init__(self, data: Words) -> None:
        self.data, self.lines = data, list[str]()
        # Kernels of other lengths have other data, and other parts.
        self.rng = np.random.default_rng(data)
        self.value, self.sum = np.arange(_THREADS, dtype=np.uint32), np.ones(_THREADS, np.float32)
        self.register, self.value_register, self.sum_register, self.label = 8, 1, 1, 0

    def write(self, lines: int) -> None:
        """Parts until there are so many lines."""
        part = 0
        while len(self.lines) < lines:
            self.lines += self._part(part)
            part += 1

    def _new(self) -> int:
        self.register += 1
        return self.register

    def _part(self, part: int) -> Iterator[str]:
        place, factor = part * 37 % (_WORDS - _THREADS), part * 2654435761 % (1 << 32) | 1
        word, product, high, low, turned, mixed = (self._new() for _ in range(6))
        yield f"ld.global.u32 %r{word}, [%rd4+{4 * place}];"
        yield f"mad.lo.u32 %r{product}, %r{self.value_register}, {factor}, %r{word};"
        yield f"shl.b32 %r{high}, %r{product}, 7;"
        yield f"shr.u32 %r{low}, %r{product}, 25;"
        yield f"or.b32 %r{turned}, %r{high}, %r{low};"
        yield f"xor.b32 %r{mixed}, %r{turned}, %r{word};"
        found = self.data[place : place + _THREADS]
        product_of = self.value * np.uint32(factor) + found
        self.value = (product_of << np.uint32(7) | product_of >> np.uint32(25)) ^ found
        self.value_register = mixed
        yield from self._drawn(found, word)
        yield from (self._branch, self._floats, self._exchange, self._floats)[part % 4]()

    def _drawn(self, found: Words, word: int) -> Iterator[str]:
        """Operations on the value and the word that was found, which is in register `word`."""
        for number in self.rng.integers(len(_OPERATIONS), size=_DRAWN_OF_A_PART):
            (name, operation), result = list(_OPERATIONS.items())[number], self._new()
            operands = [(self.value, self.value_register), (found, word)]
            (one, first), (other, second) = operands[:: 1 - 2 * int(self.rng.integers(2))]
            yield f"{name} %r{result}, %r{first}, %r{second};"
            self.value, self.value_register = operation(one, other), result

    def _branch(self) -> Iterator[str]:
        low, result, self.label = self._new(), self._new(), self.label + 1
        yield f"and.b32 %r{low}, %r{self.value_register}, 15;"
        yield f"setp.lt.u32 %p{low}, %r{low}, 5;"
        yield f"mov.u32 %r{result}, %r{self.value_register};"
        yield f"@%p{low} bra AFTER_{self.label};"
        yield f"add.u32 %r{result}, %r{result}, %r{low};"
        yield f"AFTER_{self.label}:"
        few = self.value & np.uint32(15)
        self.value = np.where(few < 5, self.value, self.value + few)
        self.value_register = result

    def _floats(self) -> Iterator[str]:
        small, number, half, total = (self._new() for _ in range(4))
        yield f"and.b32 %r{small}, %r{self.value_register}, 1023;"
        yield f"cvt.rn.f32.u32 %f{number}, %r{small};"
        yield f"mul.rn.f32 %f{half}, %f{self.sum_register}, 0f3F000000;"
        yield f"add.rn.f32 %f{total}, %f{half}, %f{number};"
        self.sum = self.sum * np.float32(0.5) + (self.value & np.uint32(1023)).astype(np.float32)
        self.sum_register = total

    def _exchange(self) -> Iterator[str]:
        other, result = self._new(), self._new()
        yield f"st.shared.u32 [%rd7], %r{self.value_register};"
        yield "bar.sync 0;"
        yield f"ld.shared.u32 %r{other}, [%rd6];"
        yield "bar.sync 0;"
        yield f"add.u32 %r{result}, %r{self.value_register}, %r{other};"
        self.value = self.value + np.roll(self.value, -1)
        self.value_register = result

    @property
    def text(self) -> str:
        """The module; its entry is `first(in, out)`."""
        scratch, found = self._new(), self._new()
        marks = {"registers": self.register + 1, "shared": 4 * _THREADS, "last": _THREADS - 1, "scratch": scratch}
        marks |= {"found": found, "value": self.value_register, "sum": self.sum_register}
        head, tail = _HEAD, _TAIL
        for name, number in marks.items():
            head, tail = head.replace(f"{{{name}}}", str(number)), tail.replace(f"{{{name}}}", str(number))
        return head + "\n".join(self.lines) + "\n" + tail

    @property
    def result(self) -> Words:
        """uint32 [threads], what the kernel writes."""
        return self.value ^ self.sum.view(np.uint32)


def kernel(lines: int) -> tuple[str, Words, Words]:
    """The text of a kernel of at least so many lines, its input and its result."""
    data = np.random.default_rng(lines).integers(0, 1 << 32, _WORDS, dtype=np.uint32)
    writer = Writer(data)
    writer.write(lines - len(_HEAD.splitlines()) - len(_TAIL.splitlines()))
    return writer.text, data, writer.result


def launch(lines: int) -> dict[str, float]:
    """Launch the kernel of so many lines in this process: `seconds` and `cpu_seconds` from its text to its result.

    Raises:
        RefmoeError: the result is another than NumPy's.
    """
    text, data, expected = kernel(lines)
    out = np.zeros(_THREADS, np.uint32)
    start, cpu = time.perf_counter(), time.process_time()
    ptx.launch(ptx.Module.parse(text), "first", (1, 1, 1), (_THREADS, 1, 1), [data, out])
    took = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
    if out.tolist() != expected.tolist():
        raise RefmoeError(f"bench first_launch: the kernel of {lines} lines gives another result than NumPy")
    return took


def run(*, sizes: tuple[int, ...] = (3000, 20000), rounds: int = 2) -> dict[str, Any]:
    """Kernels of `sizes` lines: their first launch, and that of the next process, which finds what the first compiled.

    Each launch has one block of 64 threads and all checks; what is measured is the way from the text to the result,
    without Python's start and imports. Each process has launched a kernel of 100 lines before: the first one of a new
    installation compiles refmoe's own functions for memory, once for all kernels, which is `fresh_s` with that kernel.
    The best of `rounds` counts: load only adds.

    Returns:
        JSON-able: `rows` by size with `lines`, `first_s`, `first_cpu_s`, `again_s` and `target`, `fresh_s`, `rounds`,
        `cores`, `versions`, `targets`, `reached` by target, and `all_reached`.

    Raises:
        RefmoeError: a launch fails, or its result is another than NumPy's.
    """
    rows, fresh = [], []
    for lines in sizes:
        took = [_twice(lines) for _ in range(rounds)]
        fresh += [first["small"]["seconds"] for first, _ in took]
        best = min((first["kernel"] for first, _ in took), key=lambda each: each["seconds"])
        row: dict[str, Any] = {"lines": lines, "first_s": best["seconds"], "first_cpu_s": best["cpu_seconds"]}
        row["again_s"] = min(again["kernel"]["seconds"] for _, again in took)
        rows.append(row)
        if (target := TARGETS.get(f"first_{lines}_s")) is not None:
            row |= {"target": f"first_{lines}_s", "best_s": row["first_s"], "most_s": target}
    reached = {row["target"]: row["best_s"] <= row["most_s"] for row in rows if "target" in row}
    return {
        "rows": rows,
        "fresh_s": min(fresh),
        "rounds": rounds,
        **machine("llvmlite"),
        **verdict({name: TARGETS[name] for name in reached}, reached),
    }


Took = dict[str, dict[str, float]]


def _twice(lines: int) -> tuple[Took, Took]:
    """What a process took with an empty cache, and the next one with what that left."""
    with tempfile.TemporaryDirectory(prefix="refmoe-first-launch-") as folder:
        return _in_child(lines, Path(folder)), _in_child(lines, Path(folder))


def _in_child(lines: int, folder: Path) -> Took:
    """Two launches in a process whose cache is in `folder`: of the `small` kernel, and of the `kernel`."""
    found = folder / "took.json"
    code = (
        "import json, pathlib, sys; from refmoe.bench.first_launch import launch; "
        f"took = {{'small': launch({_SMALL}), 'kernel': launch(int(sys.argv[2]))}}; "
        "pathlib.Path(sys.argv[1]).write_text(json.dumps(took))"
    )
    command = [sys.executable, "-c", code, str(found), str(lines)]
    own = environment(REFMOE_CACHE_DIR=str(folder / "cache"))
    ran = subprocess.run(command, env=own, capture_output=True, text=True)
    if ran.returncode:
        raise RefmoeError(f"bench first_launch: {lines} lines: {last_line(ran)}")
    took: Took = json.loads(found.read_text())
    return took
