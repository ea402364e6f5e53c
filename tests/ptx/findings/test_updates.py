"""Updates of one place by several threads: what they are, and the atomics that findings offer for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.findings.found import finding_of
from support.findings.plain import CELLS
from support.ptx_kernel import compile_cuda, line_of, text

from refmoe import ptx
from refmoe.ptx.findings.finding import Finding
from refmoe.ptx.findings.updates import update_with
from refmoe.ptx.text.syntax import Instruction

COUNT = """
    mul.wide.u32 %d3, %r1, 4; add.u64 %d3, %d3, %d1; ld.global.u32 %r4, [%d3]; and.b32 %r4, %r4, 3;
    setp.ge.u32 %p1, %r1, 4; mov.u32 %r5, cell; mad.lo.u32 %r6, %r1, 4, %r5;
    @!%p1 st.shared.u32 [%r6], 0;
    bar.sync 0;
    mad.lo.u32 %r6, %r4, 4, %r5;
    {count}
    bar.sync 0;
    mad.lo.u32 %r6, %r1, 4, %r5;
    @!%p1 ld.shared.u32 %r7, [%r6];
    @!%p1 st.global.u32 [%d2], %r7;
    ret;
"""


@pytest.mark.parametrize(("count", "atomic"), [
    ("ld.shared.u32 %r8, [%r6];\nadd.s32 %r9, %r8, 1;\nst.shared.u32 [%r6], %r9;", "atomicAdd_block"),
    ("ld.shared.u32 %r8, [%r6];\nadd.s32 %r9, %r2, %r8;\nst.shared.u32 [%r6], %r9;", "atomicAdd_block"),
    ("ld.shared.u32 %r8, [%r6];\nor.b32 %r9, %r8, %r2;\nst.shared.u32 [%r6], %r9;", "atomicOr_block"),
    ("ld.shared.u32 %r8, [%r6];\nmax.s32 %r9, %r8, %r2;\nst.shared.u32 [%r6], %r9;", "atomicMax_block"),
    # What is added is loaded behind, is taken away, or is a product.
    ("ld.shared.u32 %r8, [%r6];\nld.global.u32 %r10, [%d3];\nadd.u32 %r9, %r8, %r2;\nst.shared.u32 [%r6], %r9;",
     "atomicAdd_block"),
    ("ld.shared.u32 %r8, [%r6];\nsub.u32 %r9, %r8, %r2;\nst.shared.u32 [%r6], %r9;", "atomicAdd_block"),
    ("ld.shared.u32 %r8, [%r6];\nmad.lo.s32 %r9, %r2, 3, %r8;\nst.shared.u32 [%r6], %r9;", "atomicAdd_block"),
])  # fmt: skip
def test_an_update_takes_an_atomic(count: str, atomic: str) -> None:
    body = COUNT.format(count=count)
    finding = finding_of(ptx.Module.parse(text(body, CELLS)))
    load, store = (
        line_of(body, each, module_scope=CELLS) for each in ("ld.shared.u32 %r8", "st.shared.u32 [%r6], %r9")
    )
    assert finding.remedy == f"{atomic} in place of the load at line {load} and the store at line {store}"
    assert finding.section == "updates-by-several-threads"
    assert (finding.clean, finding.same, finding.orders) == (True, True, False)
    assert finding.edited is not None
    out, given = np.zeros(256, np.uint32), np.arange(256, dtype=np.uint32)
    ptx.launch(ptx.Module.parse(finding.edited), "k", (1, 1, 1), (64, 1, 1), [out, given, 0])
    threads = np.arange(64, dtype=np.uint32)
    times = 2**32 - 1 if "sub" in count else 3 if "mad" in count else 1
    sums = threads.reshape(16, 4).sum(0, dtype=np.uint32) * np.uint32(times)
    expected = {
        "atomicAdd_block": [16] * 4 if "1;" in count else sums,
        "atomicOr_block": [np.bitwise_or.reduce(threads[n::4]) for n in range(4)],
        "atomicMax_block": [60, 61, 62, 63],
    }[atomic]
    assert out[:4].tolist() == list(expected)


def test_an_update_whose_old_value_is_used_takes_an_atomic_that_returns_it() -> None:
    """Threads append to a list: `list[count++] = thread`."""
    body = """
        mov.u32 %r5, cell;
        setp.ne.u32 %p1, %r1, 0;
        @!%p1 st.shared.u32 [%r5], 0;
        bar.sync 0;
        ld.shared.u32 %r8, [%r5];
        add.s32 %r9, %r8, 1;
        st.shared.u32 [%r5], %r9;
        mul.wide.u32 %d3, %r8, 4; add.u64 %d3, %d3, %d0; st.global.u32 [%d3], %r1;
        ret;
    """
    finding = finding_of(ptx.Module.parse(text(body, CELLS)))
    load, store = (
        line_of(body, each, module_scope=CELLS) for each in ("ld.shared.u32 %r8", "st.shared.u32 [%r5], %r9")
    )
    words = f"atomicAdd_block in place of the load at line {load} and the store at line {store}"
    assert finding.remedy == f"{words}; it returns what the load gave"
    assert (finding.clean, finding.same, finding.section) == (True, False, "updates-by-several-threads")
    assert finding.edited is not None
    out, given = np.zeros(256, np.uint32), np.zeros(256, np.uint32)
    ptx.launch(ptx.Module.parse(finding.edited), "k", (1, 1, 1), (64, 1, 1), [out, given, 0])
    assert sorted(out[:64]) == list(range(64))


def test_an_update_that_other_blocks_make_too_takes_an_atomic_of_the_grid() -> None:
    """The first lane whose value is used as an address ends the launch, so that no two blocks are seen."""
    body = """
        ld.global.u32 %r8, [%d1];
        add.s32 %r9, %r8, 1;
        st.global.u32 [%d1], %r9;
        mul.wide.u32 %d3, %r8, 4; add.u64 %d3, %d3, %d0; st.global.u32 [%d3], %r2;
        ret;
    """
    finding = finding_of(ptx.Module.parse(text(body)), blocks=2)
    assert finding.remedy.startswith("atomicAdd in place of the load")
    out, given = np.zeros(256, np.uint32), np.zeros(256, np.uint32)
    ptx.launch(ptx.Module.parse(str(finding.edited)), "k", (2, 1, 1), (64, 1, 1), [out, given, 0])
    assert sorted(out[:128]) == list(range(128))


@pytest.mark.parametrize("count", [
    # The operation has no atomic; the place is another one; the value has been changed in between.
    "ld.shared.u32 %r8, [%r6];\nsub.u32 %r9, %r2, %r8;\nst.shared.u32 [%r6], %r9;",
    "ld.shared.u32 %r8, [%r6+64];\nadd.u32 %r9, %r8, %r2;\nst.shared.u32 [%r6], %r9;",
    "ld.shared.u32 %r8, [%r6];\nadd.u32 %r9, %r8, 1;\nadd.u32 %r6, %r6, 4;\nst.shared.u32 [%r6], %r9;",
])  # fmt: skip
def test_what_is_no_update_is_offered_none(count: str) -> None:
    body = COUNT.format(count=count).replace("bar.sync 0;", "@!%p1 st.shared.u32 [%r6+64], 0; bar.sync 0;", 1)
    assert "atomic" not in finding_of(ptx.Module.parse(text(body, CELLS))).remedy


TWO_UPDATES = """
extern "C" __global__ void k(unsigned* out, const unsigned* in) {
    __shared__ TYPE count[16];
    if (threadIdx.x < 16) count[threadIdx.x] = 0;
    __syncthreads();
    count[in[threadIdx.x] & 15] += 1;
    __syncthreads();
    if (threadIdx.x < 16) out[threadIdx.x] += count[threadIdx.x];
}
"""


def test_two_updates_of_one_kernel_take_two_atomics(tmp_path: Path) -> None:
    finding = finding_of(compile_cuda(TWO_UPDATES.replace("TYPE", "unsigned"), tmp_path), blocks=2)
    first, second = finding.remedy.split(", and ")
    assert first.startswith("atomicAdd_block in place of the load")
    assert second.startswith("atomicAdd in place of the load")
    assert (finding.clean, finding.same) == (True, True)
    out, given = np.zeros(256, np.uint32), np.arange(256, dtype=np.uint32)
    ptx.launch(ptx.Module.parse(str(finding.edited)), "k", (2, 1, 1), (64, 1, 1), [out, given])
    assert (out[:16] == 8).all()


def test_copies_of_one_update_race_with_each_other() -> None:
    """A loop that was unrolled: an update of one turn races with that of another."""
    turn = "ld.shared.u32 %r8, [cell];\nadd.u32 %r9, %r8, 1;\nst.shared.u32 [cell], %r9;\n"
    body = f"""
        setp.ne.u32 %p1, %r1, 0;
        @!%p1 st.shared.u32 [cell], 0;
        bar.sync 0;
        {turn}{turn.replace("%r8", "%r10").replace("%r9", "%r11")}
        bar.sync 0;
        ld.shared.u32 %r12, [cell]; st.global.u32 [%d2], %r12;
        ret;
    """
    finding = finding_of(ptx.Module.parse(text(body, CELLS)))
    assert "atomicAdd_block" in finding.remedy
    assert "and likewise at line" in finding.remedy
    assert (finding.clean, finding.same) == (True, True)
    out, given = np.zeros(256, np.uint32), np.zeros(256, np.uint32)
    ptx.launch(ptx.Module.parse(str(finding.edited)), "k", (1, 1, 1), (64, 1, 1), [out, given, 0])
    assert (out[:64] == 128).all()


def test_an_update_beside_an_atomic_becomes_one_too() -> None:
    body = """
        setp.ne.u32 %p1, %r1, 0; setp.lt.u32 %p2, %r1, 32;
        @!%p1 st.shared.u32 [cell], 0;
        bar.sync 0;
        @%p2 bra PLAIN;
        red.relaxed.cta.shared.add.u32 [cell], 1;
        bra DONE;
    PLAIN:
        @%p1 bra DONE;
        ld.shared.u32 %r8, [cell];
        add.u32 %r9, %r8, 1;
        st.shared.u32 [cell], %r9;
    DONE:
        bar.sync 0;
        ld.shared.u32 %r12, [cell]; st.global.u32 [%d2], %r12;
        ret;
    """
    finding = finding_of(ptx.Module.parse(text(body, CELLS)))
    assert finding.remedy.startswith("atomicAdd_block in place of the load")
    out, given = np.zeros(256, np.uint32), np.zeros(256, np.uint32)
    ptx.launch(ptx.Module.parse(str(finding.edited)), "k", (1, 1, 1), (64, 1, 1), [out, given, 0])
    assert (out[:64] == 33).all()


def test_an_update_that_no_atomic_does_is_offered_no_order(tmp_path: Path) -> None:
    """No atomic adds to 16 bits. A barrier and strong accesses would lose updates."""
    finding = finding_of(compile_cuda(TWO_UPDATES.replace("TYPE", "unsigned short"), tmp_path))
    assert finding.remedy == ""
    assert "atomicCAS" in finding.why
    assert finding.missing.startswith("an atomic")
    assert finding.section == "updates-by-several-threads"


def test_what_is_stored_behind_a_barrier_is_no_update() -> None:
    """All threads store the same total. An atomic would add to it once a thread."""
    body = """
        setp.ne.u32 %p1, %r1, 0;
        @!%p1 st.shared.u32 [cell], 0;
        bar.sync 0;
        ld.shared.u32 %r8, [cell];
        bar.sync 0;
        add.u32 %r9, %r8, 1;
        st.shared.u32 [cell], %r9;
        ret;
    """
    out, given = np.zeros(256, np.uint32), np.zeros(256, np.uint32)
    result = ptx.launch(ptx.Module.parse(text(body, CELLS)), "k", (1, 1, 1), (64, 1, 1), [out, given, 0])
    (warning,) = result.warnings
    assert isinstance(warning.finding, Finding)
    assert warning.finding.section == "the-same-value"
    assert "atomic" not in warning.finding.remedy


SHORT = "ld.shared.u16 %r8, [%r6];"
FLOAT = "ld.shared.f32 %r8, [%r6];"
LOAD, ADD, STORE = "ld.shared.u32 %r8, [%r6];", "add.u32 %r9, %r8, %r2;", "st.shared.u32 [%r6], %r9;"


@pytest.mark.parametrize(("body", "found"), [
    ((LOAD, ADD, STORE), ("add", "u32", "%r2", "store")),
    ((LOAD, "mov.u32 %r20, 1;", ADD, "mov.u32 %r21, 1;", "@%p1 " + STORE), ("add", "u32", "%r2", "store")),
    ((LOAD, "add.s32 %r9, 7, %r8;", STORE), ("add", "u32", "7", "store")),
    ((FLOAT, "add.rn.f32 %r9, %r8, %r2;", STORE.replace("u32", "f32")), ("add", "f32", "%r2", "store")),
    ((FLOAT, "add.ftz.f32 %r9, %r8, %r2;", STORE.replace("u32", "f32")), ("add", "f32", "%r2", "store")),
    ((LOAD, "min.s32 %r9, %r8, %r2;", STORE), ("min", "s32", "%r2", "store")),
    # What is added has to be computed, or is loaded behind.
    ((LOAD, "sub.u32 %r9, %r8, %r2;", STORE), ("add", "u32", "%by", "store")),
    ((LOAD, "sub.u32 %r9, %r2, %r8;", STORE), ()),
    ((FLOAT, "fma.rn.f32 %r9, %r2, %r3, %r8;", STORE.replace("u32", "f32")), ("add", "f32", "%by", "store")),
    ((FLOAT, "fma.rn.f32 %r9, %r8, %r3, %r2;", STORE.replace("u32", "f32")), ()),
    ((LOAD, "mad.lo.s32 %r9, %r2, %r8, %r8;", STORE), ()),
    ((LOAD, "ld.shared.u32 %r2, [%r7];", ADD, STORE), ("add", "u32", "%r2", "store")),
    ((LOAD, "ld.shared.u32 %r2, [%r8];", ADD, STORE), ()),
    # What was loaded or stored is used, and what is added is there at the load, or not.
    ((LOAD, ADD, STORE, "mov.u32 %r20, %r8;"), ("add", "u32", "%r2", "load")),
    ((LOAD, ADD, STORE, "st.global.u32 [%d1], %r9;"), ("add", "u32", "%r2", "load")),
    ((LOAD, ADD, "mov.u32 %r2, 0;", STORE), ()),
    ((LOAD, "add.u32 %r2, %r8, %r2;", STORE.replace("%r9", "%r2")), ()),
    ((LOAD, ADD, "@%p1 " + STORE, "mov.u32 %r20, %r8;"), ()),
    ((LOAD, "ld.shared.u32 %r2, [%r7];", ADD, STORE, "mov.u32 %r20, %r8;"), ()),
    # Nothing, or twice the same, is added; the width is another one.
    ((LOAD, STORE.replace("%r9", "%r8")), ()),
    ((LOAD, "add.u32 %r9, %r8, %r8;", STORE), ()),
    ((LOAD, ADD, STORE.replace("u32", "u16")), ()),
    (("ld.shared.u64 %d8, [%r6];", "add.u64 %d9, %d8, 1;", "mov.b64 {%r9, %r10}, %d9;", STORE), ()),
    (("ld.shared.s32 %d4, [%r6];", "add.s64 %d5, %d4, 1;", "st.shared.u64 [%r6], %d5;"), ()),
    # The operation has no atomic, or there are two; the value does not come to the store.
    ((FLOAT, "max.f32 %r9, %r8, %r2;", STORE.replace("u32", "f32")), ()),
    ((LOAD, "add.sat.s32 %r9, %r8, %r2;", STORE), ()),
    ((LOAD, "add.u32 %r10, %r8, %r2;", "sub.u32 %r9, %r10, %r3;", STORE), ()),
    ((LOAD, "mul.lo.u32 %r9, %r8, 3;", STORE), ()),
    ((LOAD, "mov.u32 %r9, %r2;", STORE), None),
    ((LOAD, ADD, "mov.u32 %r9, 7;", STORE), None),
    # Halves.
    ((SHORT, "add.f16 %r9, %r8, %r2;", STORE.replace("u32", "u16")), ("add", "f16", "%r2", "store")),
    ((LOAD, "add.rn.bf16x2 %r9, %r8, %r2;", STORE), ("add", "bf16x2", "%r2", "store")),
    ((LOAD, "add.f16 %r9, %r8, %r2;", STORE), ()),
    # As Triton spells it; a register of a scope of its own; a name that is taken.
    (("ld.shared.b32 { %r8 }, [%r6];", ADD, "st.shared.b32 [%r6], { %r9 };"), ("add", "u32", "%r2", "store")),
    ((LOAD, "{ .reg .b32 %r2; mov.u32 %r2, 5;", ADD, "}", STORE), ()),
    ((".reg .b32 %by;", LOAD, "sub.u32 %r9, %r8, %by;", STORE), ("add", "u32", "%by_", "store")),
    # The old value is the address of what has no result.
    ((LOAD, ADD, STORE, "mov.u64 %d9, 0; mbarrier.init.shared.b64 [%r8], 1;"), ("add", "u32", "%r2", "load")),
    ((LOAD, ADD, STORE, "nanosleep.u32 %r8;"), ("add", "u32", "%r2", "load")),
    ((LOAD, "prefetch.global [%d1];", ADD, STORE), ("add", "u32", "%r2", "store")),
    # Guards.
    (("@%p1 " + LOAD, ADD, "@%p1 " + STORE), ("add", "u32", "%r2", "store")),
    (("@%p1 " + LOAD, ADD, "@!%p1 " + STORE), ()),
    (("@%p1 " + LOAD, "setp.eq.u32 %p1, %r1, 0;", ADD, "@%p1 " + STORE), ()),
    (("@%p1 " + LOAD, ADD, "@%p1 " + STORE, "mov.u32 %r20, %r8;"), ()),
    # Other threads may have come in between; some lanes have gone.
    ((LOAD, "bar.sync 0;", ADD, STORE), None),
    ((LOAD, ADD, "bar.warp.sync 0xffffffff;", STORE), None),
    ((LOAD, "@%p1 exit;", ADD, STORE), ("add", "u32", "%r2", "store")),
    ((LOAD, "@%p1 ret;", ADD, STORE, "mov.u32 %r20, %r8;"), ()),
    # Another place, or another address in the register; a value that may not be the one; another way to come here.
    (("ld.shared.u32 %r8, [%r6+4];", ADD, STORE), None),
    ((LOAD, ADD, "add.u32 %r6, %r6, 4;", STORE), None),
    (("ld.shared.u32 %r6, [%r6];", "add.u32 %r9, %r6, %r2;", STORE), None),
    ((LOAD, "add.u32 %r8, %r8, %r2;", STORE.replace("%r9", "%r8")), ("add", "u32", "%r2", "store")),
    (("@%p1 " + LOAD, ADD, STORE), ()),
    ((LOAD, "@%p1 " + ADD, STORE), ()),
    ((LOAD, ADD, "mov.u32 %r8, 0;", STORE), ("add", "u32", "%r2", "store")),
    ((LOAD, "AWAY:", ADD, STORE), None),
    ((LOAD, ADD, "@%p1 bra AWAY;", STORE, "AWAY:"), None),
    # They are strong, or no accesses of one element.
    (("ld.relaxed.cta.shared.u32 %r8, [%r6];", ADD, STORE), None),
    ((LOAD, ADD, "st.relaxed.cta.shared.u32 [%r6], %r9;"), None),
    (("ld.shared.v2.u32 {%r8, %r10}, [%r6];", ADD, STORE), None),
])  # fmt: skip
def test_what_an_update_is(body: tuple[str, ...], found: tuple[str, ...] | None) -> None:
    function = ptx.Module.parse(text("\n".join(body) + "\nret;", CELLS)).read("k")
    assert function is not None
    assert function.body is not None
    stores = [each for each in function.body if isinstance(each, Instruction) and each.opcode.startswith("st.")]
    update = update_with(function.body, function.body.index(stores[0]))
    assert (update is None) == (found is None)
    if update is not None:
        atomic = update.atomic
        assert (() if atomic is None else (atomic.operation, atomic.type, atomic.by, atomic.at)) == found
