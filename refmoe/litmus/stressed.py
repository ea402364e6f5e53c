"""Litmus programs as kernels of many instances, for a GPU: what `refmoe.litmus.emit` writes, with stress around it.

Each program is an entry of its own. Its blocks are dealt to instances in an order that a launch shuffles, every
instance has memory of its own, and its blocks wait for each other for a while before they begin, each thread then for a
number of turns of its own. Blocks behind those of the instances write and read all over a scratch buffer meanwhile.
Nothing of that orders anything: the blocks meet by relaxed additions, to which PTX gives no causality.

    entry(global, results, meetings, scratch, instances, multiplier, offset, patience, seed)

An instance's global memory has `INSTANCE_BYTES`, its results 8 bytes for each of `Program.registers`, its meeting place
`MEETING_BYTES`. Cluster c of the grid is the cluster (c * multiplier + offset) mod count of the instances' clusters, in
order; the multiplier and the count have no common divisor.
"""

from __future__ import annotations

from collections.abc import Sequence

from refmoe.litmus.emit import HEADERS, Arch, GridShape, KernelWriter, shape
from refmoe.litmus.program import Barrier, Program, walk

#: Global memory of an instance: that of a program, in lines of its own.
INSTANCE_BYTES = 256
#: Where the blocks of an instance meet.
MEETING_BYTES = 128
#: The scratch buffer, a power of two.
SCRATCH_BYTES = 1 << 20
# Accesses of a thread of a block that does nothing but stress.
_STRESS_TURNS = 64

PARAMETERS = (
    ".param .u64 global, .param .u64 results, .param .u64 meetings, .param .u64 scratch, .param .u32 instances, "
    ".param .u32 multiplier, .param .u32 offset, .param .u32 patience, .param .u32 seed"
)


def stressed_text(programs: Sequence[Program], target: Arch = "sm_90") -> str:
    """A module with an entry `litmus_N` for each program."""
    return HEADERS[target] + "\n".join(
        _Stressed(target).stressed(program, f"litmus_{number}") for number, program in enumerate(programs)
    )


def clusters_of(program: Program) -> int:
    """Clusters of one instance; without clusters its blocks."""
    how = shape(program)
    return how.grid // how.cluster


class _Stressed(KernelWriter):
    """Writes the entry of one program."""

    def stressed(self, program: Program, name: str) -> str:
        """The entry, with its program between the stress and the end."""
        how = shape(program)
        add = self.lines.append
        for line in _dealt(how, clusters_of(program), 8 * max(1, len(program.registers))):
            add(line)
        self._program(program)
        add("stress:")
        for line in _stress():
            add(line)
        cluster = [f".reqnctapercluster {how.cluster}, 1, 1"] if how.cluster > 1 else []
        return self.entry(name, PARAMETERS, _REGISTERS, cluster)

    def _begin(self) -> None:
        """The blocks of an instance meet, if they come soon enough; then each thread waits for turns of its own."""
        together = any(isinstance(each, Barrier) for own in self.program.threads for each in walk(own.instructions))
        for line in _meeting(shape(self.program), together):
            self.lines.append(line)


_REGISTERS = (
    "    .reg .pred %q;\n    .reg .b32 %n, %m, %count, %left, %mix, %seen;\n    .reg .b64 %meetings, %scratch, %far;\n"
    "    .reg .b64 %wide;\n"
)


def _dealt(how: GridShape, clusters: int, result_bytes: int) -> list[str]:
    """Which block of which instance this is: into %cta, %global and %results; blocks behind all of them stress."""
    return [
        "ld.param.u64 %meetings, [meetings];",
        "ld.param.u64 %scratch, [scratch];",
        "ld.param.u32 %count, [instances];",
        f"mul.lo.u32 %count, %count, {clusters};",
        "mov.u32 %n, %ctaid.x;",
        f"div.u32 %m, %n, {how.cluster};",
        f"rem.u32 %cta, %n, {how.cluster};",
        "setp.ge.u32 %q, %m, %count;",
        "@%q bra stress;",
        # The product of two numbers below the count needs 64 bits.
        "ld.param.u32 %n, [multiplier];",
        "mul.wide.u32 %wide, %m, %n;",
        "ld.param.u32 %n, [offset];",
        "cvt.u64.u32 %far, %n;",
        "add.u64 %wide, %wide, %far;",
        "cvt.u64.u32 %far, %count;",
        "rem.u64 %wide, %wide, %far;",
        "cvt.u32.u64 %m, %wide;",
        f"rem.u32 %n, %m, {clusters};",
        f"div.u32 %m, %m, {clusters};",
        f"mad.lo.u32 %cta, %n, {how.cluster}, %cta;",
        f"mad.wide.u32 %global, %m, {INSTANCE_BYTES}, %global;",
        f"mad.wide.u32 %results, %m, {result_bytes}, %results;",
        f"mad.wide.u32 %meetings, %m, {MEETING_BYTES}, %meetings;",
        # Bits of its own for each thread: a multiplicative hash (Knuth) of its instance and its place in it.
        "ld.param.u32 %mix, [seed];",
        "mad.lo.u32 %mix, %m, 0x9E3779B1, %mix;",
        "mad.lo.u32 %mix, %cta, 0x85EBCA77, %mix;",
        "mad.lo.u32 %mix, %thread, 0xC2B2AE3D, %mix;",
        "mul.lo.u32 %mix, %mix, 0x27D4EB2F;",
        "shr.u32 %mix, %mix, 24;",
    ]


def _meeting(how: GridShape, together: bool) -> list[str]:
    """The instance's blocks wait for each other, but not for ever; then each thread for `%mix` turns.

    Lanes leave the loops one by one, and the barriers of a block are for warps whose lanes come together: on an H200 an
    instruction is illegal where they do not. So a warp whose program has such barriers gathers before it begins.
    """
    gathered = f"bar.warp.sync {(1 << min(how.block, 32)) - 1:#x};"
    return [
        "ld.param.u32 %left, [patience];",
        "setp.ne.u32 %q, %thread, 0;",
        "@%q bra met;",
        "red.relaxed.gpu.global.add.u32 [%meetings], 1;",
        "meet:",
        "ld.relaxed.gpu.global.u32 %seen, [%meetings];",
        f"setp.ge.u32 %q, %seen, {how.grid};",
        "@%q bra met;",
        "setp.eq.u32 %q, %left, 0;",
        "@%q bra met;",
        "sub.u32 %left, %left, 1;",
        "bra meet;",
        "met:",
        gathered,
        "bar.sync 0;",
        "ld.param.u32 %left, [patience];",
        "min.u32 %mix, %mix, %left;",
        "wait:",
        "setp.eq.u32 %q, %mix, 0;",
        "@%q bra begin;",
        "sub.u32 %mix, %mix, 1;",
        "bra wait;",
        "begin:",
        *([gathered] if together else []),
    ]


def _stress() -> list[str]:
    """A block without an instance: every thread writes and reads the scratch buffer at places that look random."""
    return [
        "ld.param.u32 %n, [seed];",
        "mov.u32 %m, %ctaid.x;",
        "mad.lo.u32 %n, %m, 0x9E3779B1, %n;",
        "mad.lo.u32 %n, %thread, 0x85EBCA77, %n;",
        f"mov.u32 %left, {_STRESS_TURNS};",
        "again:",
        "mad.lo.u32 %n, %n, 1664525, 1013904223;",
        "shr.u32 %m, %n, 4;",
        f"and.b32 %m, %m, {SCRATCH_BYTES - 4:#x};",
        "cvt.u64.u32 %far, %m;",
        "add.u64 %far, %scratch, %far;",
        "st.relaxed.gpu.global.u32 [%far], %n;",
        "xor.b32 %m, %m, 128;",
        "cvt.u64.u32 %far, %m;",
        "add.u64 %far, %scratch, %far;",
        "ld.relaxed.gpu.global.u32 %seen, [%far];",
        "sub.u32 %left, %left, 1;",
        "setp.ne.u32 %q, %left, 0;",
        "@%q bra again;",
        "ret;",
    ]
