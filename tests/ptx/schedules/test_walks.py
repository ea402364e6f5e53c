"""Every schedule of a short launch: all outcomes that PTX's axioms allow, load buffering among them, and no other.

The verdicts are those of `refmoe.litmus`, which shares nothing with the executor.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from support.litmus.notation import program

from refmoe import ptx
from refmoe.litmus.axioms import judge
from refmoe.litmus.run import compare, observe
from refmoe.ptx.exploration import Footprint, Move

#: Race-free programs all of whose outcomes a few hundred walks show: name, program.
WEAK = {
    "store buffering": "0.0.0: st.relaxed.gpu x 1; ld.relaxed.gpu r0 y | "
    "1.0.0: st.relaxed.gpu y 1; ld.relaxed.gpu r0 x",
    "store buffering, fence.sc": "0.0.0: st.relaxed.gpu x 1; fence.sc.gpu; ld.relaxed.gpu r0 y | "
    "1.0.0: st.relaxed.gpu y 1; fence.sc.gpu; ld.relaxed.gpu r0 x",
    "load buffering": "0.0.0: ld.relaxed.gpu r0 x; st.relaxed.gpu y 1 | 1.0.0: ld.relaxed.gpu r0 y; st.relaxed.gpu x 1",
    "load buffering of lanes": "0.0.0: ld.volatile r0 x; st.volatile y 1 | 0.0.1: ld.volatile r0 y; st.volatile x 1",
    "load buffering, shared": "0.0.0: ld.relaxed.cta r0 a; st.relaxed.cta b 1 | "
    "0.1.0: ld.relaxed.cta r0 b; st.relaxed.cta a 1",
    "load buffering, one dependency": "0.0.0: ld.relaxed.gpu r0 x; st.relaxed.gpu y r0 | "
    "1.0.0: ld.relaxed.gpu r0 y; st.relaxed.gpu x 1",
    "load buffering, dependencies": "0.0.0: ld.relaxed.gpu r0 x; st.relaxed.gpu y r0 | "
    "1.0.0: ld.relaxed.gpu r0 y; st.relaxed.gpu x r0",
    "load buffering, conditions": "0.0.0: ld.relaxed.gpu r0 x; if r0 == 1 { st.relaxed.gpu y 1 } | "
    "1.0.0: ld.relaxed.gpu r0 y; if r0 == 1 { st.relaxed.gpu x 1 }",
    "load buffering, releases and acquires": "0.0.0: ld.acquire.gpu r0 x; st.release.gpu y 1 | "
    "1.0.0: ld.acquire.gpu r0 y; st.release.gpu x 1",
    "load buffering, fences": "0.0.0: ld.relaxed.gpu r0 x; fence.acq_rel.gpu; st.relaxed.gpu y 1 | "
    "1.0.0: ld.relaxed.gpu r0 y; fence.acq_rel.gpu; st.relaxed.gpu x 1",
    "load buffering as far as a fence": "0.0.0: st.weak x 7; st.release.gpu y 1 | "
    "1.0.0: ld.relaxed.gpu r0 y; st.relaxed.gpu z 1; fence.acq_rel.gpu; if r0 == 1 { ld.weak r1 x }",
    "load buffering past a fence": "0.0.0: ld.relaxed.gpu r0 x; fence.acq_rel.gpu; st.relaxed.gpu y 1 | "
    "1.0.0: ld.relaxed.gpu r0 y; st.relaxed.gpu x 1",
    "load buffering past a release": "0.0.0: ld.relaxed.gpu r0 x; st.release.gpu y 1 | "
    "1.0.0: ld.relaxed.gpu r0 y; st.release.gpu x 1",
    "load buffering past an acquire": "0.0.0: ld.relaxed.gpu r0 x; ld.acquire.gpu r1 z; st.relaxed.gpu y 1 | "
    "1.0.0: ld.relaxed.gpu r0 y; st.relaxed.gpu x 1; st.release.gpu z 1",
    "load buffering past fences of other scopes": "0.0.0: ld.relaxed.gpu r0 x; fence.acq_rel.cta; "
    "st.relaxed.gpu y 1 | 1.0.0: ld.relaxed.gpu r0 y; fence.acq_rel.cta; st.relaxed.gpu x 1",
    "load buffering, fences of a block": "0.0.0: ld.relaxed.gpu r0 x; fence.acq_rel.cta; st.relaxed.gpu y 1 | "
    "0.1.0: ld.relaxed.gpu r0 y; fence.acq_rel.cta; st.relaxed.gpu x 1",
    "load buffering past fences .sc of threads that are alone": "0.0.0: ld.relaxed.gpu r0 x; fence.sc.cta; "
    "st.relaxed.gpu y 1 | 1.0.0: ld.relaxed.gpu r0 y; fence.sc.cluster; st.relaxed.gpu x 1",
    "store buffering, fences .sc of a block": "0.0.0: st.relaxed.gpu x 1; fence.sc.cta; ld.relaxed.gpu r0 y | "
    "0.1.0: st.relaxed.gpu y 1; fence.sc.cta; ld.relaxed.gpu r0 x",
    "load buffering, a release and an acquire of a block": "0.0.0: ld.relaxed.gpu r0 x; st.release.gpu y 1 | "
    "0.1.0: ld.acquire.cta r0 y; st.relaxed.gpu x 1",
    "an atomic past a release": "0.0.0: atom.relaxed.gpu.add r0 x 7; st.release.gpu y 1 | "
    "1.0.0: ld.relaxed.gpu r0 y; atom.relaxed.gpu.add r1 x 5",
    "load buffering, a fence and a release": "0.0.0: ld.relaxed.gpu r0 x; fence.acq_rel.gpu; st.relaxed.gpu y 1 | "
    "1.0.0: ld.relaxed.gpu r0 y; st.release.gpu x 1",
    "load buffering, a release and an acquire": "0.0.0: ld.relaxed.gpu r0 x; st.release.gpu y 1 | "
    "1.0.0: ld.acquire.gpu r0 y; st.relaxed.gpu x 1",
    "a load before a fence, and a write behind the other": "0.0.0: ld.relaxed.gpu r0 x; fence.acq_rel.gpu; "
    "st.relaxed.gpu y 1 | 1.0.0: ld.relaxed.gpu r0 y; fence.acq_rel.gpu; if r0 == 1 { st.weak x 1 }",
    "a load past a release, and another one behind": "0.0.0: ld.relaxed.gpu r0 x; st.release.gpu y 1 | "
    "1.0.0: ld.acquire.gpu r0 y; ld.relaxed.gpu r1 x | 2.0.0: st.relaxed.gpu x 1",
    "own write": "0.0.0: ld.relaxed.gpu r0 x; st.relaxed.gpu x 1; ld.relaxed.gpu r1 x | 1.0.0: st.relaxed.gpu x 2",
    "atomics in two orders": "0.0.0: atom.relaxed.gpu.add r0 x 1; atom.relaxed.gpu.add r1 y 1 | "
    "1.0.0: atom.relaxed.gpu.add r0 y 1; atom.relaxed.gpu.add r1 x 1",
    "an atomic before a store": "0.0.0: st.relaxed.gpu x 1; st.relaxed.gpu y 1 | "
    "1.0.0: ld.relaxed.gpu r0 y; atom.relaxed.gpu.exch r1 x 2",
    "message": "0.0.0: st.weak x 7; st.release.gpu y 1 | 1.0.0: until ld.acquire.gpu r0 y == 1; ld.weak r1 x",
    "meeting lanes and a message": "0.0.0: st.weak x 5; warpsync 3 | 0.0.1: warpsync 3; atom.release.gpu.exch s0 y 1 | "
    "0.1.0: until ld.acquire.gpu r0 y == 1; ld.weak r1 x",
    "a barrier in memory": "0.0.0: st.weak a 5; arrive 0 | 0.1.0: wait 0 0; ld.weak r0 a",
}


#: The same of four threads, which has many walks.
INDEPENDENT_READS = (
    "0.0.0: st.relaxed.gpu x 1 | 1.0.0: st.relaxed.gpu y 1 | "
    "2.0.0: ld.acquire.gpu r0 x; ld.acquire.gpu r1 y | 3.0.0: ld.acquire.gpu r0 y; ld.acquire.gpu r1 x"
)


def test_walks_show_what_the_axioms_allow_and_nothing_else() -> None:
    found = {name: program(text, mbarriers=(1,) if "arrive" in text else ()) for name, text in WEAK.items()}
    # Walks go on behind the last new outcome, so that one that is not allowed would be seen.
    seen = observe(list(found.values()), 1, walks=600)
    for (name, each), observation in zip(found.items(), seen, strict=True):
        assert (observation.race, observation.error) == (None, None), name
        assert observation.outcomes == judge(each).outcomes, name


@pytest.mark.parametrize(("scope", "allowed"), [("cta", 4), ("cluster", 3)])
def test_a_fence_of_a_cluster_is_in_order_with_those_of_its_blocks(scope: str, allowed: int) -> None:
    each = program(
        f"0.0.0: st.relaxed.gpu x 1; fence.sc.{scope}; ld.relaxed.gpu r0 y | "
        f"1.0.0: st.relaxed.gpu y 1; fence.sc.{scope}; ld.relaxed.gpu r0 x",
        cluster=2,
    )
    (seen,) = observe([each], 1, walks=250)
    assert (seen.race, seen.error) == (None, None)
    assert seen.outcomes == judge(each).outcomes
    assert len(seen.outcomes) == allowed


#: Two of three threads put a load off past a fence.
OF_THREE = (
    "0.0.0: ld.relaxed.gpu r0 x; fence.acq_rel.gpu; st.relaxed.gpu y 1 | "
    "1.0.0: ld.relaxed.gpu r0 y; st.relaxed.gpu z 1 | 2.0.0: ld.relaxed.gpu r0 z; fence.acq_rel.gpu; st.relaxed.gpu x 1"
)


@pytest.mark.slow
def test_a_fence_that_acquires_nothing_may_come_while_a_load_passes_another_one() -> None:
    found = program(OF_THREE)
    (seen,) = observe([found], 1, walks=1500)
    assert len(seen.outcomes) == 8
    assert seen.outcomes == judge(found).outcomes


@pytest.mark.slow
def test_independent_reads_may_see_writes_in_different_orders() -> None:
    found = program(INDEPENDENT_READS)
    (seen,) = observe([found], 1, walks=1200)
    assert len(seen.outcomes) == 16
    assert seen.outcomes == judge(found).outcomes


#: Programs with a race that the executor's own order does not show, and what shows it.
RACES = {
    "data without a condition": "0.0.0: st.weak x 7; st.release.gpu y 1 | 1.0.0: ld.acquire.gpu r0 y; ld.weak r1 x",
    "a race behind load buffering": "0.0.0: ld.relaxed.gpu r0 x; st.relaxed.gpu y 1; if r0 == 1 { st.weak z 1 } | "
    "1.0.0: ld.relaxed.gpu r0 y; st.relaxed.gpu x 1; ld.weak r1 z",
}


def test_a_race_that_only_some_schedules_show() -> None:
    found = [program(text) for text in RACES.values()]
    report = compare([(each, judge(each)) for each in found], schedules=1, walks=400)
    assert report.kinds == {"agrees": len(RACES)}
    (once,) = observe(found[1:], 1)
    assert once.race is None


#: Store buffering between lanes 0 and 1 of a warp, without branches: guards say whose each access is.
GUARDED = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 cells, .param .u64 seen) {
    .reg .pred %p<3>; .reg .b32 %r<4>; .reg .b64 %d<4>;
    ld.param.u64 %d1, [cells]; ld.param.u64 %d2, [seen]; mov.u32 %r1, %tid.x; mov.u32 %r3, 9;
    setp.eq.u32 %p1, %r1, 0; setp.ne.u32 %p2, %r1, 1;
    @%p1 st.relaxed.gpu.global.u32 [%d1], 1;
    @!%p2 st.relaxed.gpu.global.u32 [%d1+4], 1;
    fence.acq_rel.gpu;
    @%p1 ld.relaxed.gpu.global.u32 %r3, [%d1+4];
    @!%p2 ld.relaxed.gpu.global.u32 %r3, [%d1];
    mad.wide.u32 %d3, %r1, 4, %d2; st.global.u32 [%d3], %r3;
    ret;
}"""


@pytest.mark.parametrize("lanes", [2, 32])
def test_lanes_whose_guard_is_off_and_own_fences_are_no_choice(lanes: int) -> None:
    module, seen = ptx.Module.parse(GUARDED, "guarded"), set()
    walks = 0
    for walk in ptx.every_walk(1000):
        cells, out = np.zeros(2, np.uint32), np.zeros(32, np.uint32)
        with suppress(ptx.Redundant):
            ptx.run_ptx(module, block=lanes, args=[cells, out], schedule=ptx.Schedule(walk=walk))
            seen.add(tuple(out[:2].tolist()))
        walks += 1
    assert seen == {(0, 0), (0, 1), (1, 0), (1, 1)}
    # All ways of four accesses; 30 lanes more, which do nothing, and fences make them no more.
    assert walks < 100


#: Lanes of one warp, one of which has exited when the other synchronises.
GONE = [
    "0.0.0: st.weak x 7; warpsync 3; st.weak x 8 | 0.0.1: warpsync 3; ld.weak r0 x",
    "0.0.0: warpsync 3; atom.relaxed.gpu.add q0 x 1 | 0.0.1: warpsync 3; ld.weak r0 x",
    "0.0.0: st.weak y 7 | 0.0.1: arrive 0; wait 0 0; ld.weak r0 y",
    "0.0.0: ld.weak r0 a | 0.0.1: arrive 0; wait 0 0; st.weak a 7",
    "0.0.0: st.weak x 7 | 0.0.1: warpsync 6; ld.weak r0 x | 0.0.2: warpsync 6",
]


def test_nothing_orders_what_a_lane_did_that_has_exited() -> None:
    found = [program(text, mbarriers=(1,)) for text in GONE]
    for one, observation in zip(found, observe(found, 1), strict=True):
        assert judge(one).when == "always"
        assert observation.race is not None, str(one)


def test_a_walk_is_run_again_by_its_name() -> None:
    text = WEAK["load buffering"]
    walks = {}
    for walk in ptx.every_walk(300):
        try:
            (seen,) = observe_one(text, ptx.Schedule(walk=walk))
        except ptx.Redundant:
            continue
        walks.setdefault(seen, str(ptx.Schedule(walk=walk)))
    assert set(walks) == judge(program(text)).outcomes
    for seen, name in walks.items():
        assert name.startswith("schedule=walk:")
        assert observe_one(text, ptx.Schedule.of(name)) == [seen]


def observe_one(text: str, schedule: ptx.Schedule) -> list[tuple[int, ...]]:
    """The outcome under one schedule."""
    from refmoe.litmus import run
    from refmoe.litmus.emit import module_text

    found = program(text)
    if text not in _MODULES:
        _MODULES[text] = ptx.Module.parse(module_text([found], "sm_80"), "litmus")
    outcome = run._run(_MODULES[text], 0, found, schedule, ptx.launch)
    assert isinstance(outcome, tuple)
    return [outcome]


_MODULES: dict[str, ptx.Module] = {}


def test_steps_that_do_not_depend_are_walked_in_one_order() -> None:
    x, y = (Move((lane, 0), Footprint("global", -1, 16 * lane, 16 * lane + 4)) for lane in (0, 1))

    def orders(*moves: Move) -> list[list[object]]:
        found = []
        for walk in ptx.every_walk(10):
            left, taken = list(moves), []
            try:
                while left:
                    chosen = walk.next(left)
                    left.remove(chosen)
                    taken.append(chosen.key)
            except ptx.Redundant:
                continue
            found.append(taken)
        return found

    assert orders(x, y) == [[(0, 0), (1, 0)]]
    same = Move((1, 0), x.footprint)
    assert sorted(orders(x, same)) == [[(0, 0), (1, 0)], [(1, 0), (0, 0)]]


@pytest.mark.parametrize(
    ("one", "other", "depends"),
    [
        (Footprint("global", -1, 0, 4), Footprint("global", -1, 3, 4, writes=False), True),
        (Footprint("global", -1, 0, 4), Footprint("global", -1, 4, 8), False),
        (Footprint("global", -1, 0, 4, writes=False), Footprint("global", -1, 0, 4, writes=False), False),
        (Footprint("shared", 0, 0, 4), Footprint("shared", 1, 0, 4), False),
        (Footprint("shared", 0, 0, 4), Footprint("global", -1, 0, 4), False),
        (Footprint("everything"), Footprint("global", -1, 0, 4, writes=False), True),
    ],
)
def test_what_depends_on_what(one: Footprint, other: Footprint, depends: bool) -> None:
    assert one.depends(other) == other.depends(one) == depends
