"""What a warpgroup may do with registers and shared memory while its products run, and what is found where it errs."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pytest
from support.tensor_cores import wgmma_specification as specification

from refmoe import ptx
from refmoe.reference.mma.product import tensor_core_mma
from refmoe.silicon.wgmma import descriptor

MMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
FENCE, COMMIT = "wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned;"
ACROSS = "fence.proxy.async.shared::cta;"
TILE = 4096

# %f0 .. %f3: accumulators, %g0 .. %g3: others, %a0 .. %a3: A in registers. %da, %db: two operands, 256 bytes apart from
# those of %dc, %dd. %t: the thread in its warpgroup, %w: its warp.
TEXT = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 tiles, .param .u64 out)
{{
    .reg .pred %p<8>, %on, %off; .reg .b32 %t, %w, %v<8>, %f<4>, %g<8>, %a<4>; .reg .b64 %d<8>, %da, %db, %dc, %dd;
    .shared .align 1024 .b8 tile[{tile}]; .shared .align 8 .b64 bar[2];
    mov.u32 %t, %tid.x; shr.u32 %w, %t, 5;
    ld.param.u64 %d0, [tiles]; ld.param.u64 %d1, [out];
    mul.wide.u32 %d2, %t, 16; add.s64 %d3, %d0, %d2; mov.u32 %v0, tile;
    setp.lt.u32 %on, %t, 0x80000000; setp.ge.u32 %off, %t, 0x80000000;
    cvt.u64.u32 %d4, %v0; shr.u64 %d4, %d4, 4;
    add.s64 %da, %d4, {a}; add.s64 %db, %d4, {b}; add.s64 %dc, %d4, {c}; add.s64 %dd, %d4, {d};
    mad.lo.u32 %v1, %t, 16, %v0;
    setp.eq.u32 %p0, %t, 0; setp.lt.u32 %p1, %t, 128;
    mov.u32 %v7, bar;
    @%p0 mbarrier.init.shared::cta.b64 [%v7], 1;
    {fill}
    {meet}
{body}
    ret;
}}
"""
FILL = """ld.global.v4.u32 {%v2, %v3, %v4, %v5}, [%d3]; @%p1 st.shared.v4.u32 [%v1], {%v2, %v3, %v4, %v5};
    @%p1 ld.global.v4.u32 {%v2, %v3, %v4, %v5}, [%d3+2048]; @%p1 st.shared.v4.u32 [%v1+2048], {%v2, %v3, %v4, %v5};
    fence.proxy.async.shared::cta;"""
# The first warpgroup alone.
FEW = "setp.lt.u32 %p1, %t, 128; " + FILL.replace("ld.global", "@%p1 ld.global", 1)
MEET = "bar.sync 0;"
ZERO = "mov.u32 %f0, 0; mov.u32 %f1, 0; mov.u32 %f2, 0; mov.u32 %f3, 0;"
STORE = "shl.b32 %v2, %t, 4; cvt.u64.u32 %d5, %v2; add.s64 %d5, %d5, %d1; st.global.v4.u32 [%d5], {%f0, %f1, %f2, %f3};"
PLACES = [descriptor(start, 128, 256, 0) for start in (0, 2048, 1024, 3072)]
# A at 0 with 64 rows of 32 bytes takes what is in front of B.
TILES = np.random.default_rng(0).standard_normal(TILE // 2).astype(np.float16).view(np.uint8)


def mma(a: str = "%da", b: str = "%db", d: str = "%f", adds: str = "%on", first: int = 0) -> str:
    """A product of `%da` and `%db` onto `%f0` .. `%f3`."""
    held = ", ".join(f"{d}{first + i}" for i in range(4))
    signs = "1, 1, 0;" if a.startswith("{") else "1, 1, 0, 0;"
    return f"{MMA} {{{held}}}, {a}, {b}, {adds}, {signs}"


def wait(keep: int = 0) -> str:
    return f"wgmma.wait_group.sync.aligned {keep};"


def late(warp: int) -> str:
    """That warp loses a few turns in a loop, so that the others go on before it."""
    spin = f"SPIN{warp}: ld.volatile.shared.u32 %g7, [%v0]; sub.u32 %g6, %g6, 1; setp.ne.u32 %p4, %g6, 0;"
    return f"setp.ne.u32 %p3, %w, {warp}; @%p3 bra HERE{warp}; mov.u32 %g6, 3; {spin} @%p4 bra SPIN{warp}; HERE{warp}:"


def text(*body: str, fill: str = FILL, meet: str = MEET) -> str:
    a, b, c, d = PLACES
    return TEXT.format(
        tile=TILE, a=a, b=b, c=c, d=d, fill=fill, meet=meet, body="\n".join(f"    {line}" for line in body)
    )


def run(
    *body: str, threads: int = 128, fill: str = FILL, meet: str = MEET, checks: ptx.Checks | None = None, grid: int = 1
) -> np.ndarray:
    """The accumulators, uint32 [grid, threads, 4], after a body."""
    out = np.zeros((threads, 4), np.uint32)
    module = ptx.Module.parse(text(*body, fill=fill, meet=meet), name="rules.ptx")
    ptx.launch(module, "k", (grid, 1, 1), (threads, 1, 1), [TILES, out], checks=checks, step_budget=20_000)
    return out


def operand(place: int, outer: int) -> np.ndarray:
    return specification.stored_rows(TILES, place, outer, 32).view(np.uint16)


def product(before: np.ndarray, a: int = 0, b: int = 1) -> np.ndarray:
    """D after A times B, from D before, float32 [64, 8]."""
    return tensor_core_mma(
        operand(PLACES[a], 64), operand(PLACES[b], 8), before, model="sm90_wgmma", a_format="f16", b_format="f16"
    )


def registers(matrix: np.ndarray) -> np.ndarray:
    """As `run` gives them."""
    return specification.d_registers(matrix.view(np.uint32)).T


NOTHING = np.zeros((64, 8), np.float32)
NOTHING_SAID = ptx.Checks(explain=False)


# What may be done


def test_a_product() -> None:
    found = run(ZERO, FENCE, mma(), COMMIT, wait(), STORE)
    np.testing.assert_array_equal(found, registers(product(NOTHING)))


def test_a_chain_needs_no_fence_and_no_wait_between() -> None:
    found = run(ZERO, FENCE, mma(), mma(), COMMIT, mma("%da", "%dd"), COMMIT, wait(1), wait(), STORE)
    np.testing.assert_array_equal(found, registers(product(product(product(NOTHING)), 0, 3)))


def test_a_chain_goes_on_after_a_wait() -> None:
    found = run(ZERO, FENCE, mma(), COMMIT, wait(), mma("%dc", "%dd"), COMMIT, wait(), STORE)
    np.testing.assert_array_equal(found, registers(product(product(NOTHING), 2, 3)))


def test_d_is_not_added_where_the_predicate_is_off() -> None:
    found = run(FENCE, mma(), mma(adds="%off"), mma(), COMMIT, wait(), STORE)
    np.testing.assert_array_equal(found, registers(product(product(NOTHING))))


def test_groups_complete_in_the_order_of_their_commits() -> None:
    move = "mov.u32 %f0, %g0; mov.u32 %f1, %g1; mov.u32 %f2, %g2; mov.u32 %f3, %g3;"
    # The first of two groups is complete, and the second still runs.
    found = run(FENCE, mma(d="%g", adds="%off"), COMMIT, mma("%dc", adds="%off"), COMMIT, wait(1),
                "mov.u32 %g4, %g0;", wait(0), move, STORE)  # fmt: skip
    np.testing.assert_array_equal(found, registers(product(NOTHING)))


def test_a_group_without_products_is_one() -> None:
    found = run(FENCE, mma(adds="%off"), COMMIT, COMMIT, wait(1), STORE)
    np.testing.assert_array_equal(found, registers(product(NOTHING)))


def test_results_reach_what_stands_behind_the_wait() -> None:
    # Instructions that no machine code is made of.
    add = "red.global.add.u32 [%d5], %f0; red.global.add.u32 [%d5+12], %f3;"
    found = run(FENCE, mma(adds="%off"), "shl.b32 %v2, %t, 4; cvt.u64.u32 %d5, %v2; add.s64 %d5, %d5, %d1;", COMMIT,
                wait(), add)  # fmt: skip
    expected = registers(product(NOTHING))
    np.testing.assert_array_equal(found[:, [0, 3]], expected[:, [0, 3]])


def test_warps_that_come_apart_meet_behind_another_instruction_of_whole_warps() -> None:
    found = run(ZERO, late(2), "setmaxnreg.inc.sync.aligned.u32 232;", FENCE, mma(), COMMIT, wait(), STORE)
    np.testing.assert_array_equal(found, registers(product(NOTHING)))


def test_rows_of_a_may_serve_several_products_that_run() -> None:
    rows = "mov.u32 %a0, 0x3C003C00; mov.u32 %a1, %a0; mov.u32 %a2, %a0; mov.u32 %a3, %a0;"
    held = "{%a0, %a1, %a2, %a3}"
    found = run(rows, FENCE, mma(held, d="%g", adds="%off"), mma(held, adds="%off"), COMMIT, wait(), STORE)
    ones = np.full((64, 16), 0x3C00, np.uint16)
    d = tensor_core_mma(ones, operand(PLACES[1], 8), NOTHING, model="sm90_wgmma", a_format="f16", b_format="f16")
    np.testing.assert_array_equal(found, registers(d))


def test_two_warpgroups_multiply_by_themselves() -> None:
    found = run("@!%p1 bra SECOND;", ZERO, FENCE, mma(), COMMIT, wait(), "bra END;",
                "SECOND:", ZERO, FENCE, mma("%dc", "%dd"), mma("%da", "%dd"), COMMIT, wait(), "END:", STORE,
                threads=256, fill=FEW)  # fmt: skip
    np.testing.assert_array_equal(found[:128], registers(product(NOTHING)))
    np.testing.assert_array_equal(found[128:], registers(product(product(NOTHING, 2, 3), 0, 3)))


def test_blocks_multiply_by_themselves() -> None:
    found = run(ZERO, FENCE, mma(), COMMIT, wait(), STORE, grid=5, checks=ptx.Checks(races=False))
    np.testing.assert_array_equal(found, registers(product(NOTHING)))


def test_a_loop_of_products() -> None:
    found = run(ZERO, FENCE, "mov.u32 %v6, 0;", "AGAIN:", mma(), COMMIT, "add.u32 %v6, %v6, 1;",
                "setp.lt.u32 %p2, %v6, 3; @%p2 bra AGAIN;", wait(), STORE)  # fmt: skip
    np.testing.assert_array_equal(found, registers(product(product(product(NOTHING)))))


def test_warps_that_come_one_after_another_multiply_together() -> None:
    found = run(ZERO, late(2), FENCE, mma(), late(0), COMMIT, late(3), wait(), STORE)
    np.testing.assert_array_equal(found, registers(product(NOTHING)))


# Registers

IN_USE = r"thread \(0, 0, 0\): %{0} is {1} of a wgmma that nobody has waited for: .*wgmma.mma_async.*; .*: {2}"
UNREADY = r"no wgmma.fence since %{0} was {1}"


@dataclass(frozen=True)
class Misuse:
    """A body, and what is said of it."""

    body: tuple[str, ...]
    error: type[ptx.PtxError]
    message: str


def misuse(message: str, *body: str, error: type[ptx.PtxError] = ptx.MisuseError) -> Misuse:
    return Misuse(body, error, message)


ROWS = "mov.u32 %a0, 0x3C003C00; mov.u32 %a1, %a0; mov.u32 %a2, %a0; mov.u32 %a3, %a0;"
HELD = mma("{%a0, %a1, %a2, %a3}")
WIDER = (
    "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%f0, %f1, %f2, %f3, %g0, %g1, %g2, %g3}, %da, %db, %on, 1, 1,"
    " 0, 0;"
)
REGISTERS = {
    "reading an accumulator before the wait": misuse(
        IN_USE.format("f1", "an accumulator", "mov.u32 %v6, %f1"),
        ZERO,
        FENCE,
        mma(),
        COMMIT,
        "mov.u32 %v6, %f1;",
        wait(),
    ),
    "writing an accumulator before the wait": misuse(
        IN_USE.format("f3", "an accumulator", "mov.u32 %f3, 0"), ZERO, FENCE, mma(), COMMIT, "mov.u32 %f3, 0;", wait()
    ),
    "storing accumulators before the wait": misuse(
        IN_USE.format("f0", "an accumulator", "st.global"), ZERO, FENCE, mma(), COMMIT, STORE, wait()
    ),
    "waiting for too few groups": misuse(
        IN_USE.format("f0", "an accumulator", "st.global"), ZERO, FENCE, mma(), COMMIT, wait(1), STORE, wait()
    ),
    "touching an accumulator many groups later": misuse(
        IN_USE.format("f0", "an accumulator", "mov.u32 %f0"),
        *(ZERO, FENCE, mma(), COMMIT, COMMIT, COMMIT, COMMIT, COMMIT, "mov.u32 %f0, 0;", wait()),
    ),
    "waiting for a product of no group": misuse(
        IN_USE.format("f0", "an accumulator", "st.global"), ZERO, FENCE, mma(), wait(), STORE, COMMIT, wait()
    ),
    "touching an accumulator on one of two ways": misuse(
        IN_USE.format("f2", "an accumulator", "add.u32 %f2"),
        ZERO,
        FENCE,
        mma(),
        COMMIT,
        "setp.eq.u32 %p2, %t, 0;",
        "@!%p2 bra ON;",
        "add.u32 %f2, %f2, 1;",
        "ON:",
        wait(),
    ),
    "touching an accumulator in the next turn of a loop": misuse(
        IN_USE.format("f0", "an accumulator", "@%p2 add.u32 %f0"),
        ZERO,
        FENCE,
        "mov.u32 %v6, 0;",
        "AGAIN:",
        "setp.eq.u32 %p2, %v6, 1; @%p2 add.u32 %f0, %f0, 1;",
        mma(),
        COMMIT,
        "add.u32 %v6, %v6, 1;",
        "setp.lt.u32 %p3, %v6, 2; @%p3 bra AGAIN;",
        wait(),
    ),
    "touching an accumulator in the next turn, in front of a fence": misuse(
        IN_USE.format("f0", "an accumulator", "@%p2 add.u32 %f0"),
        *(ZERO, "mov.u32 %v6, 0;", "AGAIN:", "setp.eq.u32 %p2, %v6, 1; @%p2 add.u32 %f0, %f0, 1;"),
        *(FENCE, mma(), COMMIT, "add.u32 %v6, %v6, 1;", "setp.lt.u32 %p3, %v6, 2; @%p3 bra AGAIN;", wait()),
    ),
    "writing rows of A before the wait": misuse(
        IN_USE.format("a2", "a register of A", "mov.u32 %a2, 0"),
        ROWS,
        ZERO,
        FENCE,
        HELD,
        COMMIT,
        "mov.u32 %a2, 0;",
        wait(),
    ),
    "reading rows of A before the wait": misuse(
        IN_USE.format("a0", "a register of A", "mov.u32 %v6, %a0"),
        ROWS,
        ZERO,
        FENCE,
        HELD,
        COMMIT,
        "mov.u32 %v6, %a0;",
        wait(),
    ),
    "accumulators as rows of A before the wait": misuse(
        IN_USE.format("f0", "an accumulator", "wgmma"),
        ZERO,
        FENCE,
        mma(),
        COMMIT,
        FENCE,
        mma("{%f0, %f1, %f2, %f3}", d="%g"),
        COMMIT,
        wait(),
    ),
    "accumulators of another shape before the wait": misuse(
        IN_USE.format("f0", "an accumulator", "wgmma.*m64n16"), ZERO, FENCE, mma(), COMMIT, FENCE, WIDER, COMMIT, wait()
    ),
    "no fence at all": misuse("no wgmma.fence before the first wgmma of the warpgroup", ZERO, mma(), COMMIT, wait()),
    "accumulators written after the fence": misuse(
        UNREADY.format("f0", r"accessed by .*: mov.u32 %f0, 0"), FENCE, ZERO, mma(), COMMIT, wait()
    ),
    "one accumulator written after the fence": misuse(
        UNREADY.format("f3", r"accessed by .*: add.u32 %f3"), ZERO, FENCE, "add.u32 %f3, %f3, 1;", mma(), COMMIT, wait()
    ),
    "accumulators read between two products": misuse(
        UNREADY.format("f2", r"accessed by .*: mov.u32 %v6, %f2"),
        ZERO,
        FENCE,
        mma(),
        COMMIT,
        wait(),
        "mov.u32 %v6, %f2;",
        mma(),
        COMMIT,
        wait(),
    ),
    "rows of A written after the fence": misuse(
        UNREADY.format("a0", r"accessed by .*: mov.u32 %a3, %a0"), ZERO, FENCE, ROWS, HELD, COMMIT, wait()
    ),
    "accumulators as rows of A without a fence": misuse(
        UNREADY.format("f0", "an accumulator of another wgmma"),
        ZERO,
        FENCE,
        mma(),
        COMMIT,
        wait(),
        mma("{%f0, %f1, %f2, %f3}", d="%g"),
        COMMIT,
        wait(),
    ),
    "accumulators of another shape without a fence": misuse(
        UNREADY.format("f0", "an accumulator of another wgmma"),
        ZERO,
        FENCE,
        mma(),
        COMMIT,
        wait(),
        WIDER,
        COMMIT,
        wait(),
    ),
    "rows of A as accumulators without a fence": misuse(
        UNREADY.format("a0", "a register of A of another wgmma"),
        ROWS,
        ZERO,
        FENCE,
        HELD,
        COMMIT,
        wait(),
        mma(d="%a"),
        COMMIT,
        wait(),
    ),
    "an exit with a group that runs": misuse(
        "the thread exits while a wgmma of its warpgroup runs", ZERO, FENCE, mma(), COMMIT
    ),
    "an exit with a product of no group": misuse(
        "the thread exits while a wgmma of its warpgroup", ZERO, FENCE, mma(), wait()
    ),
    "descriptors that differ": misuse(
        r"thread \(96, 0, 0\): an operand that differs between the threads of a warpgroup: 0x\w+ in its first, 0x",
        ZERO,
        "setp.ge.u32 %p2, %t, 96; @%p2 mov.u64 %db, %dd;",
        FENCE,
        mma(),
        COMMIT,
        wait(),
    ),
    "predicates that differ": misuse(
        r"thread \(5, 0, 0\): an operand that differs between the threads of a warpgroup",
        ZERO,
        "setp.ne.u32 %p2, %t, 5;",
        FENCE,
        mma(adds="%p2"),
        COMMIT,
        wait(),
    ),
    "a warp that has exited": misuse(
        "96 lanes of its warpgroup take part, 128 must",
        ZERO,
        "setp.eq.u32 %p2, %w, 3; @%p2 ret;",
        FENCE,
        mma(),
        COMMIT,
        wait(),
        error=ptx.WarpError,
    ),
    "a lane that has exited": misuse(
        "127 lanes of its warpgroup take part, 128 must",
        ZERO,
        "setp.eq.u32 %p2, %t, 77; @%p2 ret;",
        FENCE,
        mma(),
        COMMIT,
        wait(),
        error=ptx.WarpError,
    ),
    "warps at different products": misuse(
        r"its warpgroup is divided: others of its warps are at .*wgmma",
        ZERO,
        FENCE,
        "setp.eq.u32 %p2, %w, 1;",
        "@%p2 bra OTHER;",
        mma(),
        "bra ON;",
        "OTHER:",
        mma("%dc"),
        "ON:",
        COMMIT,
        wait(),
        error=ptx.WarpError,
    ),
    "a warp that never comes": misuse(
        r"gathering for .*wgmma.fence",
        ZERO,
        "setp.eq.u32 %p2, %w, 0;",
        "@%p2 bra AWAY;",
        FENCE,
        mma(),
        COMMIT,
        wait(),
        "bar.sync 1, 128;",
        "bra END;",
        "AWAY:",
        "bar.sync 1, 128;",
        FENCE,
        mma(),
        COMMIT,
        wait(),
        "END:",
        error=ptx.Deadlock,
    ),
}


@pytest.mark.parametrize("name", REGISTERS)
def test_misuse_of_registers_is_found(name: str) -> None:
    found = REGISTERS[name]
    with pytest.raises(found.error, match=found.message):
        run(*found.body)


@pytest.mark.parametrize("threads", [32, 64, 96, 160])
def test_warps_that_make_no_warpgroup_are_refused(threads: int) -> None:
    fill = "@%p0 bra NEVER; NEVER:"
    with pytest.raises(ptx.WarpError, match=f"{threads % 128} lanes of its warpgroup take part, 128 must"):
        run(ZERO, FENCE, threads=threads, fill=fill)


def test_a_branch_that_is_not_taken_touches_nothing() -> None:
    # The analysis cannot know: the instruction looks for itself.
    found = run(ZERO, FENCE, mma(), COMMIT, "@%off add.u32 %f0, %f0, 1;", wait(), STORE)
    np.testing.assert_array_equal(found, registers(product(NOTHING)))
    found = run(ZERO, FENCE, "@%off add.u32 %f0, %f0, 1;", mma(), COMMIT, wait(), STORE)
    np.testing.assert_array_equal(found, registers(product(NOTHING)))


# Shared memory

OVER = "st.shared.u32 [%v1{0}], 0;"


def test_operands_written_by_the_generic_proxy_need_a_proxy_fence() -> None:
    with pytest.raises(
        ptx.RaceError, match=r"proxy race on byte .* no fence.proxy.async lies between; .*wgmma"
    ) as caught:
        run(ZERO, FENCE, mma(), COMMIT, wait(), fill=FILL.replace(ACROSS, ""))
    assert caught.value.kind == "proxy"


def test_operands_that_copies_brought_without_a_proxy_fence_are_a_warning() -> None:
    copied = """cp.async.cg.shared.global [%v1], [%d3], 16; cp.async.cg.shared.global [%v1+2048], [%d3+2048], 16;
        cp.async.wait_all;"""
    body = text(ZERO, FENCE, mma(), COMMIT, wait(), STORE, fill=copied)
    out = np.zeros((128, 4), np.uint32)
    module = ptx.Module.parse(body, name="rules.ptx")
    (warning,) = ptx.launch(module, "k", (1, 1, 1), (128, 1, 1), [TILES, out], checks=NOTHING_SAID).warnings
    assert (warning.kind, warning.warning) == ("proxy", "copied operand")
    np.testing.assert_array_equal(out, registers(product(NOTHING)))
    with pytest.raises(ptx.RaceError, match=r"but it is an operand that cp.async brought"):
        ptx.launch(module, "k", (1, 1, 1), (128, 1, 1), [TILES, out], checks=ptx.Checks(strict=True))
    # A store behind the wait is none of the copies.
    stored = copied + "st.shared.u32 [%v1], 0;"
    with pytest.raises(ptx.RaceError, match=r"no fence.proxy.async lies between; "):
        run(ZERO, FENCE, mma(), COMMIT, wait(), fill=stored)


def test_a_proxy_fence_of_one_thread_is_its_own() -> None:
    # Nothing else in this kernel is of single lanes.
    def launch(*body: str) -> np.ndarray:
        whole = text(*body, fill=FILL.replace(ACROSS, "")).replace("@%p0 mbarrier.init.shared::cta.b64 [%v7], 1;", "")
        out = np.zeros((128, 4), np.uint32)
        module = ptx.Module.parse(whole, name="rules.ptx")
        ptx.launch(module, "k", (1, 1, 1), (128, 1, 1), [TILES, out], checks=NOTHING_SAID)
        return out

    found = launch("@%p0 " + ACROSS, "bar.sync 0;", ZERO, FENCE, mma(), COMMIT, wait(), STORE)
    np.testing.assert_array_equal(found, registers(product(NOTHING)))
    with pytest.raises(ptx.RaceError, match="proxy"):
        launch("@%p0 " + ACROSS, ZERO, FENCE, mma(), COMMIT, wait(), STORE)


def test_a_proxy_fence_of_the_reading_threads_will_do() -> None:
    found = run(ACROSS, ZERO, FENCE, mma(), COMMIT, wait(), STORE, fill=FILL.replace(ACROSS, ""))
    np.testing.assert_array_equal(found, registers(product(NOTHING)))


def test_operands_need_a_barrier_behind_those_who_write_them() -> None:
    with pytest.raises(
        ptx.RaceError, match=r"write-read race on byte .* and nothing orders the two; .*wgmma"
    ) as caught:
        run(ZERO, FENCE, mma(), COMMIT, wait(), meet="")
    assert caught.value.kind == "write-read"


@pytest.mark.parametrize("offset", ["", "+2048"], ids=["A", "B"])
@pytest.mark.parametrize("early", [True, False])
def test_operands_are_not_overwritten_before_the_wait(offset: str, early: bool) -> None:
    # Of B there are 256 bytes.
    over = "@!%p5 bra ON; " + OVER.format(offset) + " ON:"
    body = [ZERO, "setp.lt.u32 %p5, %t, 16;", FENCE, mma(), COMMIT, *([over, wait()] if early else [wait(), over])]
    if not early:
        # Each warp has waited for the whole product.
        np.testing.assert_array_equal(run(*body, STORE), registers(product(NOTHING)))
        return
    with pytest.raises(
        ptx.RaceError, match=r"read-write race on byte .* after a read by a wgmma of warps 0 to 3, not known"
    ):
        run(*body)


def test_what_no_product_reads_may_be_overwritten() -> None:
    # A ends at 2048, and B has the 256 bytes behind it.
    body = [ZERO, "setp.lt.u32 %p5, %t, 16;", FENCE, mma(), COMMIT, "@%p5 st.shared.u32 [%v1+2304], 0;", wait(), STORE]
    np.testing.assert_array_equal(run(*body), registers(product(NOTHING)))


BULK = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%v0], [%d0], 256, [%v7];"
EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%v7], 256;"


def test_copies_do_not_land_on_operands_before_the_wait() -> None:
    copy = f"@%p0 {EXPECT} @%p0 {BULK}"
    ready = "READY: mbarrier.try_wait.parity.shared::cta.b64 %p7, [%v7], 0; @!%p7 bra READY;"
    found = run(ZERO, FENCE, mma(), COMMIT, wait(), copy, ready, STORE)
    np.testing.assert_array_equal(found, registers(product(NOTHING)))
    with pytest.raises(ptx.RaceError, match=r"read-write race on byte 0 .* a wgmma of warps 0 to 3, not known"):
        run(ZERO, FENCE, mma(), COMMIT, copy, wait(), ready)


def test_a_second_product_still_reads_what_the_first_one_did() -> None:
    over = "@!%p5 bra ON; st.shared.u32 [%v1], 0; ON:"
    body = [ZERO, "setp.lt.u32 %p5, %t, 16;", FENCE, mma(), COMMIT, mma(b="%dd"), COMMIT, wait(1), over, wait()]
    with pytest.raises(ptx.RaceError, match=r"read-write race on byte 0 .* a wgmma of warps 0 to 3, not known to be"):
        run(*body)


def second_group(*other: str, first: tuple[str, ...] = (ZERO, FENCE, mma(), COMMIT, wait())) -> list[str]:
    """The first warpgroup multiplies, then the second does something."""
    return ["setp.lt.u32 %p6, %t, 128; @!%p6 bra SECOND;", *first, "bra END;", "SECOND:", *other, "END:"]


def test_others_do_not_overwrite_operands_before_they_know_of_the_wait() -> None:
    over = "sub.u32 %v1, %v1, 2048; setp.eq.u32 %p5, %t, 130; @%p5 st.shared.u32 [%v1], 0;"
    with pytest.raises(ptx.RaceError, match=r"race on byte 32 .*wgmma"):
        run(*second_group(over), threads=256, fill=FEW)
    # One thread of the warpgroup, of any warp, has waited and says so.
    for thread in (0, 45, 127):
        told = f"setp.eq.u32 %p5, %t, {thread}; @%p5 mbarrier.arrive.shared::cta.b64 _, [%v7];"
        ready = "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p7, [%v7], 0; @!%p7 bra WAIT;"
        run(*second_group(ready, over, first=(ZERO, FENCE, mma(), COMMIT, wait(), told)), threads=256, fill=FEW)
        early = (ZERO, FENCE, mma(), COMMIT, told, wait())
        with pytest.raises(ptx.RaceError, match="a wgmma of warps 0 to 3"):
            run(*second_group(ready, over, first=early), threads=256, fill=FEW)


def test_both_warpgroups_that_read_an_operand_are_waited_for() -> None:
    product_ = (ZERO, FENCE, mma(), COMMIT, wait())
    told = "setp.eq.u32 %p5, %t, {0}; @%p5 mbarrier.arrive.shared::cta.b64 _, [%v7];"
    ready = "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p7, [%v7], 0; @!%p7 bra WAIT;"
    over = "sub.u32 %v1, %v1, 4096; setp.eq.u32 %p5, %t, 258; @%p5 st.shared.u32 [%v1], 0;"
    for one, other in (((0,), "4 to 7"), ((128,), "0 to 3")):
        body = [
            "setp.ge.u32 %p6, %t, 256; @%p6 bra LAST;",
            *product_,
            told.format(*one),
            "bra END;",
            "LAST:",
            ready,
            over,
            "END:",
        ]
        with pytest.raises(ptx.RaceError, match=f"race on byte 32 .*a wgmma of warps {other}"):
            run(*body, threads=384, fill=FEW)


def test_uninitialised_operands_are_found() -> None:
    with pytest.raises(ptx.MemoryFault, match="uninitialised"):
        run(
            ZERO,
            FENCE,
            mma(),
            COMMIT,
            wait(),
            fill=FILL.replace("@%p1 st.shared.v4.u32 [%v1+2048]", "@%p0 st.shared.v4.u32 [%v1+2048]"),
        )


def test_products_are_computed_as_late_as_they_may_be() -> None:
    # Without the race checks, what overwrites an operand before the wait is multiplied.
    body = [ZERO, FENCE, mma(), COMMIT, "mov.u32 %v6, 0; st.shared.u32 [%v1], %v6; st.shared.u32 [%v1+4], %v6;",
            "st.shared.u32 [%v1+8], %v6; st.shared.u32 [%v1+12], %v6;", wait(), STORE]  # fmt: skip
    found = run(*body, checks=ptx.Checks(races=False))
    np.testing.assert_array_equal(found, np.zeros((128, 4), np.uint32))


def test_the_pattern_of_messages_names_instructions() -> None:
    # A message that names no line would be no help.
    with pytest.raises(ptx.MisuseError) as caught:
        run(*REGISTERS["reading an accumulator before the wait"].body)
    assert len(re.findall(r"rules.ptx:\d+", str(caught.value))) == 2
