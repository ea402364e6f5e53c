"""Kernels in which somebody signals for others, or signals too early: racy, and as an expert would mend them.

in: data at 0, flags from 128 on. Block 0 makes the data, block 1 uses it, if nothing else is said.
"""

from __future__ import annotations

from support.findings.plain import Row

_PLACES = """
    add.u64 %d5, %d1, 128;
    mul.wide.u32 %d6, %r1, 4; add.u64 %d6, %d6, %d1;
    setp.ne.u32 %p1, %r60, 0;
    setp.eq.u32 %p4, %r1, 0;
    @%p1 bra READER;
"""
# All threads of block 0 write, one of them signals; one of block 1 polls, and all read.
_FOR_OTHERS = (
    _PLACES
    + """
    add.u32 %r10, %r1, 7;
    st.global.u32 [%d6+512], %r10;
    {written}
    @%p4 {set}
    bra DONE;
READER:
    @!%p4 bra MEET;
POLL:
    {poll}
    setp.eq.u32 %p2, %r7, 0;
    @%p2 bra POLL;
MEET:
    {seen}
    ld.global.u32 %r8, [%d6+512];
    mul.wide.u32 %d7, %r1, 4; add.u64 %d7, %d7, %d0;
    st.global.u32 [%d7], %r8;
DONE:
    ret;
"""
)
# One thread each.
_FLAG = """
    add.u64 %d5, %d1, 128;
    setp.ne.u32 %p3, %r1, 0;
    @%p3 bra DONE;
    setp.ne.u32 %p1, %r60, 0;
    @%p1 bra READER;
    {make}
    bra DONE;
READER:
    {poll}
    setp.eq.u32 %p2, %r7, 0;
    @%p2 bra READER;
    {use}
DONE:
    ret;
"""
_WRITE = "st.global.u32 [%d1], 42;"
_READ = "ld.global.u32 %r8, [%d1]; st.global.u32 [%d0], %r8;"
_RELEASE, _RELAXED = "st.release.gpu.global.u32 [%d5], 1;", "st.relaxed.gpu.global.u32 [%d5], 1;"
_ACQUIRE, _LOOK = "ld.acquire.gpu.global.u32 %r7, [%d5];", "ld.relaxed.gpu.global.u32 %r7, [%d5];"
# Block 0 writes, block 1 hears of it and tells block 2.
_CHAIN = """
    add.u64 %d5, %d1, 128;
    setp.ne.u32 %p3, %r1, 0;
    @%p3 bra DONE;
    setp.eq.u32 %p1, %r60, 1;
    @%p1 bra MIDDLE;
    setp.eq.u32 %p1, %r60, 2;
    @%p1 bra LAST;
    st.global.u32 [%d1], 42;
    st.release.gpu.global.u32 [%d5], 1;
    bra DONE;
MIDDLE:
    {hear}
    setp.eq.u32 %p2, %r7, 0;
    @%p2 bra MIDDLE;
    {tell}
    bra DONE;
LAST:
    ld.acquire.gpu.global.u32 %r9, [%d5+32];
    setp.ne.u32 %p2, %r9, 1;
    @%p2 bra LAST;
    ld.global.u32 %r8, [%d1]; st.global.u32 [%d0], %r8;
DONE:
    ret;
"""
# Every block adds one to a number, in its turn.
_LOCK = """
    add.u64 %d5, %d1, 128;
    setp.ne.u32 %p3, %r1, 0;
    @%p3 bra DONE;
LOCK:
    {take}
    setp.ne.u32 %p2, %r7, 0;
    @%p2 bra LOCK;
    {taken}
    ld.global.u32 %r8, [%d0]; add.u32 %r8, %r8, 1; st.global.u32 [%d0], %r8;
    {before}
    {free}
DONE:
    ret;
"""
_CAS, _FREE = "atom.relaxed.gpu.global.cas.b32 %r7, [%d5], 0, 1;", "st.relaxed.gpu.global.u32 [%d5], 0;"
_FENCE = "fence.acq_rel.gpu;"
_GOOD_LOCK = {"take": _CAS, "taken": _FENCE, "before": _FENCE, "free": _FREE}
# All threads of a block write, arrive and wait, and read what another warp wrote.
_BARRIER = """
    mov.u32 %r3, cell; add.u32 %r3, %r3, 512;
    setp.eq.u32 %p4, %r1, 0;
    @%p4 mbarrier.init.shared::cta.b64 [%r3], 64;
    bar.sync 0;
    mov.u32 %r4, cell; mad.lo.u32 %r5, %r1, 4, %r4;
    xor.b32 %r6, %r1, 33; mad.lo.u32 %r6, %r6, 4, %r4;
    {write}
    {arrive}
    {write_late}
WAIT:
    {wait}
    @!%p5 bra WAIT;
    ld.shared.u32 %r8, [%r6];
    st.global.u32 [%d2], %r8;
    ret;
"""
_STORE = "st.shared.u32 [%r5], %r1;"
_ARRIVE = "mbarrier.arrive{}.shared::cta.b64 _, [%r3];"
_WAIT = "mbarrier.try_wait.parity{}.shared::cta.b64 %p5, [%r3], 0;"
_GOOD_BARRIER = {"write": _STORE, "arrive": _ARRIVE.format(""), "write_late": "", "wait": _WAIT.format("")}
_CLUSTER = """
    mov.u32 %r3, cell; mad.lo.u32 %r3, %r1, 4, %r3;
    mov.u32 %r9, %cluster_ctarank; xor.b32 %r10, %r9, 1;
    st.shared.u32 [%r3], %r2;
    {arrive} barrier.cluster.wait.aligned;
    mapa.shared::cluster.u32 %r5, %r3, %r10;
    ld.shared::cluster.u32 %r7, [%r5];
    st.global.u32 [%d2], %r7;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    ret;
"""
# Warp 0 reads what warp 1 then writes, each in a branch of its own.
_APART = """
    mov.u32 %r3, cell; mad.lo.u32 %r4, %r1, 4, %r3;
    and.b32 %r5, %r1, 31; mad.lo.u32 %r5, %r5, 4, %r3;
    st.shared.u32 [%r4], 5;
    bar.sync 0;
    setp.gt.u32 %p1, %r1, 31;
    @%p1 bra WRITER;
    ld.shared.u32 %r7, [%r5];
    {read}
    st.global.u32 [%d2], %r7;
    bra DONE;
WRITER:
    {write}
    st.shared.u32 [%r5], 9;
DONE:
    ret;
"""
_UNROLLED = """
    .file 1 "row.cu"
    .loc 1 7 0
    mov.u32 %r3, cell; mad.lo.u32 %r4, %r1, 4, %r3;
    xor.b32 %r5, %r1, 33; mad.lo.u32 %r5, %r5, 4, %r3;
    st.shared.u32 [%r4], 5;
    bar.sync 0;
    ld.shared.u32 %r7, [%r5];
    {order}
    st.shared.u32 [%r4], 6;
    bar.sync 0;
    ld.shared.u32 %r8, [%r5];
    {order}
    st.shared.u32 [%r4], 7;
    bar.sync 0;
    ld.shared.u32 %r9, [%r5];
    add.u32 %r7, %r7, %r8; add.u32 %r7, %r7, %r9;
    st.global.u32 [%d2], %r7;
    ret;
"""
_INIT = """
    setp.eq.u32 %p1, %r1, 0;
    @%p1 st.shared.u32 [cell], 0;
    {order}
    red.shared.add.u32 [cell], 1;
    bar.sync 0;
    ld.shared.u32 %r7, [cell];
    st.global.u32 [%d2], %r7;
    ret;
"""


def _others(**parts: str) -> str:
    good = {"written": "bar.sync 0;", "set": _RELEASE, "poll": _ACQUIRE, "seen": "bar.sync 0;"}
    return _FOR_OTHERS.format(**{**good, **parts})


def _flag(**parts: str) -> str:
    return _FLAG.format(**{"make": _WRITE + "\n" + _RELEASE, "poll": _ACQUIRE, "use": _READ, **parts})


def _chain(hear: str, tell: str) -> str:
    return _CHAIN.format(hear=hear, tell=tell)


_PLAIN = ("plain store", "plain load")
_OTHERS, _PASSING = "one-thread-for-others", "release-and-acquire"
_TELL = "st.release.gpu.global.u32 [%d5+32], 1;"
_TELL_LOOSELY = "st.relaxed.gpu.global.u32 [%d5+32], 1;"
EXPERT_ROWS = [
    Row("release in front of the write", _flag(make=_RELEASE + "\n" + _WRITE), _flag(), "write-read", _PLAIN,
        "st.release.gpu.global.u32 of line", _PASSING, "", 2),
    Row("fence in front of the write", _flag(make=_FENCE + "\n" + _WRITE + "\n" + _RELAXED),
        _flag(make=_WRITE + "\n" + _FENCE + "\n" + _RELAXED), "write-read", _PLAIN, "release", _PASSING, "", 2),
    Row("a lane polls for its warp", _others(seen=""), _others(), "write-read", _PLAIN, "bar.warp.sync", _OTHERS, "",
        2, 32),
    Row("a lane signals for its warp", _others(written=""), _others(), "write-read", _PLAIN, "bar.warp.sync", _OTHERS,
        "", 2, 32),
    Row("a thread polls for its block", _others(seen="bar.warp.sync -1;"), _others(), "write-read", _PLAIN,
        "bar.sync 0", _OTHERS, "", 2),
    Row("a thread signals for its block", _others(written="bar.warp.sync -1;"), _others(), "write-read", _PLAIN,
        "bar.sync 0", _OTHERS, "", 2),
    Row("a thread polls loosely for its block", _others(poll=_LOOK), _others(), "write-read", _PLAIN,
        "ld.acquire.gpu", _PASSING, "missing acquire", 2),
    Row("a thread polls loosely for its warp", _others(poll=_LOOK, seen="bar.warp.sync -1;"), _others(), "write-read",
        _PLAIN, "ld.acquire.gpu", _OTHERS, "", 2),
    Row("a lane polls loosely for its warp", _others(poll=_LOOK, seen="", written="bar.warp.sync -1;"),
        _others(written="bar.warp.sync -1;", seen="bar.warp.sync -1;"), "write-read", _PLAIN, "ld.acquire.gpu",
        _OTHERS, "", 2, 32),
    Row("a chain without its second release", _chain(_ACQUIRE, _TELL_LOOSELY), _chain(_ACQUIRE, _TELL),
        "write-read", _PLAIN, "st.release.gpu", _PASSING, "", 3),
    Row("a chain without its first acquire", _chain(_LOOK, _TELL), _chain(_ACQUIRE, _TELL),
        "write-read", _PLAIN, "ld.acquire.gpu", _PASSING, "", 3),
    Row("a ticket without a release",
        _flag(make=_WRITE + "\nred.relaxed.gpu.global.add.u32 [%d5], 1;"),
        _flag(make=_WRITE + "\nred.release.gpu.global.add.u32 [%d5], 1;"), "write-read", _PLAIN,
        "red.release.gpu", _PASSING, "", 2),
    Row("data read before the signal, and overwritten",
        _flag(make="ld.global.u32 %r8, [%d1]; st.global.u32 [%d0], %r8;\n" + _RELAXED, use="st.global.u32 [%d1], 9;"),
        _flag(make="ld.global.u32 %r8, [%d1]; st.global.u32 [%d0], %r8;\n" + _RELEASE, use="st.global.u32 [%d1], 9;"),
        "read-write", ("plain load", "plain store"), "st.release.gpu", _PASSING, "", 2),
    Row("data overwritten behind a loose poll",
        _flag(make="ld.global.u32 %r8, [%d1]; st.global.u32 [%d0], %r8;\n" + _RELEASE, poll=_LOOK,
              use="st.global.u32 [%d1], 9;"),
        _flag(make="ld.global.u32 %r8, [%d1]; st.global.u32 [%d0], %r8;\n" + _RELEASE, use="st.global.u32 [%d1], 9;"),
        "read-write", ("plain load", "plain store"), "ld.acquire.gpu", _PASSING, "", 2),
    Row("data overwritten behind an atomic that adds nothing",
        _flag(make="ld.global.u32 %r8, [%d1]; st.global.u32 [%d0], %r8;\n" + _RELEASE,
              poll="atom.relaxed.gpu.global.add.u32 %r7, [%d5], 0;", use="st.global.u32 [%d1], 9;"),
        _flag(make="ld.global.u32 %r8, [%d1]; st.global.u32 [%d0], %r8;\n" + _RELEASE,
              poll="atom.acquire.gpu.global.add.u32 %r7, [%d5], 0;", use="st.global.u32 [%d1], 9;"),
        "read-write", ("plain load", "plain store"), "atom.acquire.gpu", _PASSING, "", 2),
    Row("a lock without an acquire", _LOCK.format(**{**_GOOD_LOCK, "taken": ""}), _LOCK.format(**_GOOD_LOCK),
        "write-read", _PLAIN, "atom.acquire.gpu", _PASSING, "", 3),
    Row("a lock without a release", _LOCK.format(**{**_GOOD_LOCK, "before": ""}), _LOCK.format(**_GOOD_LOCK),
        "write-read", _PLAIN, "release.gpu", _PASSING, "", 3),
    Row("an arrival that is relaxed", _BARRIER.format(**{**_GOOD_BARRIER, "arrive": _ARRIVE.format(".relaxed.cta")}),
        _BARRIER.format(**_GOOD_BARRIER), "write-read", _PLAIN, "mbarrier.arrive.release.cta", "barriers-in-memory"),
    Row("a wait that is relaxed", _BARRIER.format(**{**_GOOD_BARRIER, "wait": _WAIT.format(".relaxed.cta")}),
        _BARRIER.format(**_GOOD_BARRIER), "write-read", _PLAIN, "mbarrier.try_wait.parity.acquire.cta",
        "barriers-in-memory"),
    Row("an arrival in front of the write", _BARRIER.format(**{**_GOOD_BARRIER, "write": "", "write_late": _STORE}),
        _BARRIER.format(**_GOOD_BARRIER), "write-read", _PLAIN, "mbarrier.arrive.shared::cta.b64 of line", _PASSING),
    Row("an arrival at the cluster that is relaxed",
        _CLUSTER.format(arrive="barrier.cluster.arrive.relaxed.aligned;"),
        _CLUSTER.format(arrive="barrier.cluster.arrive.aligned;"), "write-read", _PLAIN,
        "barrier.cluster.arrive.release.aligned", "barriers-in-memory", "", 2, 32, {"cluster": (2, 1, 1)}),
    Row("two branches of one block", _APART.format(read="", write=""),
        _APART.format(read="bar.sync 0;", write="bar.sync 0;"), "read-write", ("plain load", "plain store"),
        "bar.sync 0", "two-warps-of-a-block"),
    Row("a loop that was unrolled", _UNROLLED.format(order=""), _UNROLLED.format(order="bar.sync 0;"), "write-read",
        _PLAIN, "likewise at line", "two-warps-of-a-block"),
    Row("a counter that is reset without a barrier", _INIT.format(order=""), _INIT.format(order="bar.sync 0;"),
        "write-write", ("plain store", "relaxed reduction"), "bar.sync 0", "two-warps-of-a-block"),
]  # fmt: skip
# What no small change mends, and a part of why.
HOPELESS_ROWS = [
    Row("two blocks without a signal", "setp.ne.u32 %p3, %r1, 0;\n@%p3 bra DONE;\nsetp.eq.u32 %p1, %r60, 0;\n"
        "@%p1 st.global.u32 [%d1], 5;\n@%p1 bra DONE;\nld.global.u32 %r7, [%d1];\nst.global.u32 [%d0], %r7;\nDONE:\n"
        "ret;", "", "", _PLAIN, "of scopes, fences, waits and barriers", "two-blocks", "", 2),
    Row("a strong write and a plain read without a signal", "setp.ne.u32 %p3, %r1, 0;\n@%p3 bra DONE;\n"
        "setp.eq.u32 %p1, %r60, 0;\n@%p1 st.volatile.global.u32 [%d1], 5;\n@%p1 bra DONE;\nld.global.u32 %r7, [%d1];\n"
        "st.global.u32 [%d0], %r7;\nDONE:\nret;", "", "", _PLAIN, "the result depends on the schedule",
        "strong-and-plain-accesses", "", 2),
    Row("two writes of one place", "st.global.u32 [%d0], %r1;\nret;", "", "", _PLAIN,
        "choose the lane that stores", "lanes-of-one-store", "", 1, 32),
    Row("one place in two widths", "setp.ne.u32 %p3, %r1, 0;\n@%p3 bra DONE;\nsetp.eq.u32 %p1, %r60, 0;\n"
        "@%p1 atom.global.add.u64 %d9, [%d1], 1;\n@%p1 bra DONE;\nld.relaxed.gpu.global.u32 %r7, [%d1];\n"
        "st.global.u32 [%d0], %r7;\nDONE:\nret;", "", "", _PLAIN, "one width", "strong-and-plain-accesses", "", 2),
]  # fmt: skip
