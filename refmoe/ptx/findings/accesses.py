"""What an instruction does to memory, in words: kind and scope."""

from __future__ import annotations

from dataclasses import dataclass

from refmoe.ptx.errors import Index3, WrittenInstruction
from refmoe.ptx.text.memory_ops import MemoryOpcode, memory_opcode
from refmoe.ptx.text.syntax import in_source

_SCOPES = ("cta", "cluster", "gpu", "sys")
# By how a spelling begins, longest first.
_STEMS = (
    ("cp.reduce.async.bulk", "reduction by a bulk copy"),
    ("cp.async.bulk.tensor", "tensor copy"),
    ("cp.async.bulk", "bulk copy"),
    ("cp.async", "asynchronous copy"),
    ("st.async", "asynchronous store"),
    ("clusterlaunchcontrol", "asynchronous answer"),
    ("red.async", "asynchronous reduction"),
    ("wgmma.mma_async", "product of a warpgroup"),
    ("ldmatrix", "plain load of matrices"),
    ("stmatrix", "plain store of matrices"),
    ("wmma.load", "plain load of a matrix"),
    ("wmma.store", "plain store of a matrix"),
    ("tex", "texture fetch"),
    ("tld4", "texture fetch"),
    ("suld", "surface load"),
    ("sust", "surface store"),
    ("sured", "surface reduction"),
    ("tensormap.replace", "edit of a tensor map"),
    ("tensormap.cp_fenceproxy", "copy of a tensor map"),
    ("mbarrier", "operation on an mbarrier"),
    ("ret", "exit"),
    ("exit", "exit"),
)
_PLAIN = {"ld": "plain load", "ldu": "plain load", "st": "plain store"}


@dataclass(frozen=True)
class Accessed:
    """One of two accesses.

    Attributes:
        kind: in words, `"plain load"`, `"relaxed atomic"`.
        scope: `"cta" "cluster" "gpu" "sys"` of a strong one, else None.
        block: of the thread that did it.
        thread: that thread, or one of several; None for a copy that completes on a barrier.
        line: in the PTX text, 1-based.
        source: `file:line` of the `.loc` in force, or None.
        callers: where the function of `source` is inlined, the function there, and so on, in the same form, innermost
            first, as far as the text says; empty where it is not inlined.
        text: the instruction.
    """

    kind: str
    scope: str | None
    block: Index3
    thread: Index3 | None
    line: int
    source: str | None
    callers: tuple[str, ...]
    text: str

    @classmethod
    def of(cls, instruction: WrittenInstruction, block: Index3, thread: Index3 | None) -> Accessed:
        """The access of an instruction."""
        kind, scope = kind_of(instruction.opcode)
        return cls(
            kind, scope, block, thread, instruction.line, instruction.source, instruction.callers, instruction.text
        )

    @property
    def where(self) -> str:
        """`line 25 (kernel.cu:9)`."""
        return f"line {self.line}{in_source(self.source, self.callers)}"

    def __str__(self) -> str:
        scope = f" .{self.scope}" if self.scope else ""
        who = f"block {self.block}" + ("" if self.thread is None else f" thread {self.thread}")
        return f"{self.kind}{scope}, {who}, {self.where}: {self.text}"


def kind_of(opcode: str) -> tuple[str, str | None]:
    """(words, scope) of a spelling; no scope for a weak access."""
    parts = memory_opcode(opcode)
    if parts is not None:
        return _memory_kind(parts), parts.scope if parts.strong else None
    for stem, words in _STEMS:
        if opcode == stem or opcode.startswith(stem + "."):
            return words, None
    return opcode.split(".")[0], None


def _memory_kind(parts: MemoryOpcode) -> str:
    if not parts.coherent:
        return "non-coherent load"
    if parts.stem in ("atom", "red"):
        return f"{parts.semantics or 'relaxed'} {'atomic' if parts.stem == 'atom' else 'reduction'}"
    if not parts.strong:
        return _PLAIN[parts.stem]
    return f"{parts.semantics} {'store' if parts.stem == 'st' else 'load'}"


def scope_at(opcode: str) -> str | None:
    """The scope that a strong access or a fence is spelled with, or has by default; None for anything else."""
    stem, *rest = opcode.split(".")
    parts = memory_opcode(opcode)
    if parts is not None:
        return parts.scope if parts.strong else None
    if stem == "membar":
        return {"cta": "cta", "gl": "gpu", "sys": "sys"}.get(rest[0])
    if stem == "fence" and "proxy" not in rest:
        return next((part for part in rest if part in _SCOPES), None)
    return None
