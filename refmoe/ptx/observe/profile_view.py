"""A profile as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from refmoe.ptx.observe.kernel_profile import Executed, KernelProfile
from refmoe.ptx.program.liveness import Live
from refmoe.ptx.text.syntax import Instruction

_LONGEST = 60


def text_of(kernel: KernelProfile, top: int) -> str:
    """The tables of one kernel, of each the `top` rows that count most."""
    grid, block = ("x".join(map(str, sizes)) for sizes in (kernel.blocks, kernel.threads))
    times = "" if kernel.launches == 1 else f", {kernel.launches} launches"
    lines = [f"profile of {_cut(kernel.entry)}, {grid} blocks of {block} threads{times}", ""]
    total, texts = kernel.executed, _texts(kernel)
    ran = f"{total.warps:,} instructions by warps, {total.lanes:,} by lanes"
    lines.append(f"executed: {ran}; {total.active:.1f} of 32 lanes at work on the average")
    lines += _executed("source line", kernel.by_source(), top)
    by_line = {f"{line:5}  {texts.get(line, '')}": each for line, each in kernel.by_line().items()}
    lines += _executed("PTX line", by_line, top)
    lines += _executed("opcode", kernel.by_opcode(), top)
    lines += _shared(kernel, top) + _device(kernel, top) + _local(kernel, top)
    live = kernel.live
    lines.append(
        f"live at once: at most {live.registers} registers of 32 bits and {live.predicates} predicates of the PTX; "
        f"the most registers at line {_where(live).strip()}"
    )
    return "\n".join(lines) + "\n"


def _executed(heading: str, rows: dict[str, Executed], top: int) -> list[str]:
    order = sorted(rows.items(), key=lambda row: -row[1].warps)
    cells = [(f"{each.warps:,}", f"{each.lanes:,}", f"{each.active:.1f}", name) for name, each in order]
    return _table(("by warps", "by lanes", "lanes at work", heading), cells, top) if rows else []


def _shared(kernel: KernelProfile, top: int) -> list[str]:
    rows = kernel.shared
    if not rows:
        return []
    took, fewest = sum(row.wavefronts for row in rows.values()), sum(row.fewest for row in rows.values())
    accesses = sum(row.accesses for row in rows.values())
    clashing = [each for each in rows if rows[each].wavefronts > rows[each].fewest]
    order = sorted(clashing, key=lambda each: (rows[each].fewest - rows[each].wavefronts, each.line))
    cells = [
        (
            f"{rows[each].accesses:,}",
            f"{rows[each].wavefronts:,}",
            f"{rows[each].fewest:,}",
            ", ".join(f"{rows[each].degrees[degree]:,} x {degree}" for degree in sorted(rows[each].degrees)),
            _where(each),
        )
        for each in order
    ]
    head = f"shared memory: {accesses:,} accesses by warps took {took:,} wavefronts; without bank conflicts {fewest:,}"
    if not cells:
        return [head, ""]
    return [head, *_table(("accesses", "wavefronts", "fewest", "accesses x degree", "PTX line"), cells, top)]


def _device(kernel: KernelProfile, top: int) -> list[str]:
    rows = kernel.device
    if not rows:
        return []
    took, fewest = sum(row.sectors for row in rows.values()), sum(row.fewest for row in rows.values())
    accesses = sum(row.accesses for row in rows.values())
    order = sorted(rows, key=lambda each: (rows[each].fewest - rows[each].sectors, -rows[each].sectors, each.line))
    cells = [
        (f"{rows[each].accesses:,}", f"{rows[each].sectors:,}", f"{rows[each].fewest:,}", _where(each))
        for each in order
    ]
    head = (
        f"device memory: {accesses:,} accesses by warps touched {took:,} sectors of 32 bytes; the fewest are {fewest:,}"
    )
    return [head, *_table(("accesses", "sectors", "fewest", "PTX line"), cells, top)]


def _local(kernel: KernelProfile, top: int) -> list[str]:
    rows = kernel.local
    if not rows:
        return []
    order = sorted(rows, key=lambda each: (-rows[each].accesses, each.line))
    cells = [(f"{rows[each].accesses:,}", f"{rows[each].lanes:,}", _where(each)) for each in order]
    head = f"local memory: {sum(row.accesses for row in rows.values()):,} accesses by warps"
    return [head, *_table(("by warps", "by lanes", "PTX line"), cells, top)]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], top: int) -> list[str]:
    """Columns aligned to the right, the last to the left, with a line that says what is left out."""
    shown = rows[:top]
    widths = [max(len(cell) for cell in column) for column in zip(headings, *shown, strict=True)]

    def line(cells: Sequence[str]) -> str:
        numbers = "  ".join(cell.rjust(width) for cell, width in zip(cells[:-1], widths, strict=False))
        return f"  {numbers}  {cells[-1]}".rstrip()

    left = len(rows) - len(shown)
    return [line(headings), *map(line, shown), *([f"  and {left:,} more"] if left else []), ""]


def _texts(kernel: KernelProfile) -> dict[int, str]:
    """What stands on each line of the PTX: its first instruction."""
    found: dict[int, str] = {}
    for block in kernel.code.program.blocks:
        every: Iterable[Any] = (*block.instructions, block.terminator.instruction)
        for instruction in every:
            if instruction is not None:
                found.setdefault(instruction.line, _cut(instruction.text))
    return found


def _where(instruction: Instruction | Live) -> str:
    return f"{instruction.line:5}{_from(instruction.source)}  {_cut(instruction.text)}"


def _from(source: str | None) -> str:
    return f" ({source})" if source else ""


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
