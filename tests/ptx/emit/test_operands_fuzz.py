"""Operands that do not fit: whatever a text says, only the executor's own errors come out."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from support.selection.thinned import thinned

from refmoe import ptx

# An instruction of every family, with operands that fit.
ACCEPTED = """
mov.u32 %r1, 1
mov.b64 %d1, {%r1, %r2}
mov.b64 {%r1, %r2}, %d1
mov.b32 %r1, {%h1, %h2}
mov.b64 %d1, {%h1, %h2, %h3, %h4}
mov.u64 %d1, cells
mov.pred %p1, %p2
mov.b128 %q1, {%d1, %d2}
mov.b128 {%d1, %d2}, %q1
mov.v2.u32 v, {%r1, %r2}
add.u32 %r1, %r2, %r3
add.cc.u32 %r1, %r2, %r3
addc.u64 %d1, %d2, %d3
mad.wide.u32 %d1, %r1, %r2, %d2
mul.hi.s64 %d1, %d2, %d3
add.rn.f32 %r1, %r2, %r3
fma.rn.f64 %d1, %d2, %d3, %d4
fma.rn.f16x2 %r1, %r2, %r3, %r4
fma.rn.oob.f16 %h1, %h2, %h3, %h4
min.f32 %r1, %r2, %r3, %r4
div.rn.f32 %r1, %r2, %r3
sqrt.approx.f32 %r1, %r2
ex2.approx.ftz.bf16x2 %r1, %r2
rem.s32 %r1, %r2, 3
setp.lt.and.s32 %p1|%p2, %r1, %r2, !%p3
setp.eq.f16x2 %p1|%p2, %r1, %r2
set.lt.u32.f32 %r1, %r2, %r3
selp.b32 %r1, %r2, %r3, %p1
slct.f32.s32 %r1, %r2, %r3, %r4
cvt.rn.f16x2.f32 %r1, %r2, %r3
cvt.rn.satfinite.e4m3x2.f32 %h1, %r1, %r2
cvt.u8.u32 %h1, %r1
cvt.rs.f16x2.f32 %r1, %r2, %r3, %r4
cvt.pack.sat.u8.s32.b32 %r1, %r2, %r3, %r4
prmt.b32 %r1, %r2, %r3, 0x5410
bfe.u32 %r1, %r2, 3, 4
bfi.b32 %r1, %r2, %r3, 1, 2
lop3.b32 %r1, %r2, %r3, %r4, 0x96
shf.l.wrap.b32 %r1, %r2, %r3, %r4
dp4a.u32.s32 %r1, %r2, %r3, %r4
popc.b32 %r1, %r2
bfind.shiftamt.u64 %r1, %d1
not.b64 %d1, %d2
cvta.to.global.u64 %d1, %d2
isspacep.global %p1, %d1
testp.notanumber.f32 %p1, %r1
vadd.s32.s32.s32.sat %r1, %r2.b1, %r3.h0
vmad.s32.s32.s32 %r1, %r2, -%r3, %r4
vadd4.u32.u32.u32.add %r1, %r2, %r3, %r4
copysign.f64 %d1, %d2, %d3
ld.global.u32 %r1, [%d0]
ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d0+16]
ld.shared.u64 %d1, [cells]
ld.const.u32 %r1, [table+4]
ld.param.u64 %d1, [out]
st.global.u32 [%d0], %r1
st.shared.v2.b32 [%r1], {%r2, %r3}
ld.acquire.gpu.u32 %r1, [%d0]
ldu.global.u32 %r1, [%d0]
atom.global.add.u32 %r1, [%d0], 1
atom.global.cas.b32 %r1, [%d0], %r2, %r3
atom.global.add.v2.f32 {%r1, %r2}, [%d0], {%r3, %r4}
red.global.add.f32 [%d0], %r1
red.global.v2.f16.add.noftz [%d0], {%h1, %h2}
atom.global.exch.b128 %q1, [%d0], %q2
shfl.sync.bfly.b32 %r1|%p1, %r2, 1, 31, -1
vote.sync.ballot.b32 %r1, %p1, -1
match.any.sync.b64 %r1, %d1, -1
redux.sync.add.u32 %r1, %r2, -1
elect.sync %r1|%p1, -1
activemask.b32 %r1
bar.sync 0
bar.arrive 1, 64
barrier.red.or.pred %p1, 0, %p2
bar.red.popc.u32 %r1, 0, 32, !%p1
bar.warp.sync -1
barrier.cluster.arrive
barrier.cluster.wait
membar.gl
fence.acq_rel.gpu
fence.proxy.async
nanosleep.u32 100
mbarrier.init.shared.b64 [%r1], 1
mbarrier.arrive.shared.b64 %d1, [%r1]
mbarrier.test_wait.shared.b64 %p1, [%r1], %d1
mbarrier.inval.shared.b64 [%r1]
mbarrier.try_wait.parity.shared.b64 %p1, [%r1], %r2, %r3
mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 16
mbarrier.pending_count.b64 %r1, %d1
cp.async.ca.shared.global [%r1], [%d0], 16, %r2
cp.async.commit_group
cp.async.wait_group 0
cp.async.mbarrier.arrive.shared.b64 [%r1]
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d0], 16, [%r2]
cp.async.bulk.wait_group 0
cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r1], 16
cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d0], [%r1], 16
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d0, {%r2, %r3}], [%r4]
mapa.shared::cluster.u32 %r1, %r2, 0
getctarank.shared::cluster.u32 %r1, %r2
prefetch.global.L2 [%d0]
discard.global.L2 [%d0], 128
st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r1], %r2, [%r3]
createpolicy.fractional.L2::evict_first.b64 %d1
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%r5]
stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r1], {%r2, %r3}
movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r2
wmma.load.a.sync.aligned.row.m16n16k16.shared.s8 {%r1, %r2}, [%r3], 16
mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%r1, %r2, %r3, %r4}, {%r5, %r6}, {%r7}, {%r1, %r2, %r3, %r4}
mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%r1, %r2}, {%r3}, {%r4}, {%r5, %r6}
setmaxnreg.dec.sync.aligned.u32 40
griddepcontrol.wait
wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r1, %r2, %r3, %r4}, %d1, %d2, 1, 1, 1, 0, 0
wgmma.fence.sync.aligned
bra NEXT
brx.idx %r1, TARGETS
call (%r1), seven, (%r2)
call seven2, (%r2)
ret
exit
trap
brkpt
alloca.u64 %d1, 16
stacksave.u64 %d1
tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d0], [%r1], 128
tensormap.replace.tile.global_address.global.b1024.b64 [%d0], %d1
pmevent 3
fns.b32 %r1, %r2, 0, 1
szext.wrap.u32 %r1, %r2, 8
"""
TEXT = """.version 9.0
.target sm_90a
.address_size 64
.const .align 4 .u32 table[4] = {{1, 2, 3, 4}};
.func (.reg .b32 r) seven (.reg .b32 a) {{ mov.u32 r, 7; ret; }}
.func seven2 (.reg .b32 a) {{ ret; }}
.visible .entry k(.param .u64 out)
{{
    .reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<16>; .reg .b64 %d<8>;
    .reg .b128 %q<3>; .reg .v2 .b32 v; .reg .b8 %c;
    {cells}
    ld.param.u64 %d0, [out];
    mov.u32 %r1, 1024; mov.u32 %r2, 1024; mov.u32 %r3, 1024; mov.u32 %r4, 1024;
    TARGETS: .branchtargets NEXT, NEXT;
    {instruction};
NEXT:
    ret;
}}
"""
# What is put in the place of an operand, or beside one.
ODD = (
    "%r1", "%d1", "%h1", "%p1", "%q1", "v", "%c", "!%p1", "-%r1", "%r1.h1", "%r1|%p1", "_", "7", "1.5",
    "0f3F800000", "-1",
    "{%r1}", "{%r1, %r2, %r3}", "{}", "{%h1, %h2}", "{{%r1}, %r2}", "[%d0]", "[%r1]", "[%p1]", "[cells]",
    "[%h1+4]", "[5]",
    "[%d0, {%r1, %r2}]", "[nowhere]", "cells", "table", "seven", "NEXT", "TARGETS", "nowhere", "%tid.x",
    "%tid", "%clock64",
    "%nothing", "(%r1)", "()", "1 / 0", "(1 + 2", "%r1 + 4", "0x1FFFFFFFFFFFFFFFF", "&", "", "[", "}", "%d1.b7",
)  # fmt: skip
SPACES = (".global", ".shared", ".shared::cluster", ".local", ".const", ".param", "")
TYPES = (".u8", ".u16", ".u32", ".u64", ".s32", ".f32", ".f64", ".b16", ".b32", ".b64", ".b128", ".f16x2", ".pred", "")
CHECKS = (ptx.Checks(), ptx.Checks(bounds=False, uninitialised=False, alignment=False, races=False))


def cut(operands: str) -> list[str]:
    """A list of operands at its outermost commas."""
    found, depth = [""], 0
    for letter in operands:
        depth += (letter in "{[(") - (letter in "}])")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return [each.strip() for each in found if each.strip()]


def mutated(rng: random.Random, instruction: str) -> str:
    """One or two changes: of an operand, of a width or of a state space."""
    opcode, _, rest = instruction.partition(" ")
    operands = cut(rest)
    for _ in range(rng.randint(1, 2)):
        kind = rng.choice(("drop", "double", "swap", "replace", "replace", "inside", "type", "space", "odd"))
        place = rng.randrange(len(operands)) if operands else 0
        if kind == "drop" and operands:
            del operands[place]
        elif kind == "double" and operands:
            operands.insert(place, operands[place])
        elif kind == "swap" and len(operands) > 1:
            other = rng.randrange(len(operands))
            operands[place], operands[other] = operands[other], operands[place]
        elif kind == "replace" and operands:
            operands[place] = rng.choice(ODD)
        elif kind == "inside" and operands:
            names = re.findall(r"%\w+", operands[place])
            if names:
                operands[place] = operands[place].replace(rng.choice(names), rng.choice(ODD), 1)
        elif kind == "type":
            opcode = re.sub(r"\.(u8|[usbf](16|32|64)|b128|f16x2|pred)(?=\.|$)", rng.choice(TYPES), opcode, count=1)
        elif kind == "space":
            opcode = re.sub(r"\.(global|shared|param|const)(::\w+)?", rng.choice(SPACES), opcode, count=1)
        elif kind == "odd":
            operands.append(rng.choice(ODD))
    return f"{rng.choice(('', '', '@%p1 ', '@!%p1 '))}{opcode} {', '.join(operands)}"


def outcome(instruction: str, cells: str, checks: ptx.Checks) -> None:
    """Run one instruction in a kernel; errors of the executor's own are as good as none."""
    text = TEXT.format(instruction=instruction, cells=cells)
    found: ptx.PtxError | None = None
    try:
        module = ptx.Module.parse(text, name="fuzz.ptx")
        ptx.launch(module, "k", (1, 1, 1), (32, 1, 1), [np.zeros(64, np.uint32)], 0, checks, 400)
    except ptx.PtxError as error:
        found = error
    if isinstance(found, ptx.UnknownOpcode | ptx.ParseError) and found.thread is not None:
        assert f"fuzz.ptx:{found.line}" in str(found)


SHARED = ".shared .align 16 .b8 cells[256];"
FAMILIES = ACCEPTED.strip().splitlines()


def test_the_instructions_themselves_fit() -> None:
    for instruction in FAMILIES:
        text = TEXT.format(instruction=instruction, cells=SHARED)
        try:
            module = ptx.Module.parse(text, name="fuzz.ptx")
            ptx.launch(module, "k", (1, 1, 1), (32, 1, 1), [np.zeros(64, np.uint32)], 0, CHECKS[1], 400)
        except (ptx.UnknownOpcode, ptx.ParseError):
            raise
        except ptx.PtxError:
            continue


@pytest.mark.parametrize("seed", thinned(range(4), 4))
def test_no_python_error_comes_out(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        outcome(mutated(rng, rng.choice(FAMILIES)), rng.choice((SHARED, SHARED, "")), rng.choice(CHECKS))
