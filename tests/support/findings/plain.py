"""Kernels that race and their mended twins, for the findings: bodies of `support.ptx_kernel`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from support.ptx_kernel import text

from refmoe import ptx

CELLS = ".shared .align 16 .b8 cell[1024];"
_EXCHANGE = """
    mov.u32 %r3, cell;
    mad.lo.u32 %r4, %r1, 4, %r3;
    xor.b32 %r5, %r1, {distance};
    mad.lo.u32 %r6, %r5, 4, %r3;
    st.shared.u32 [%r4], %r2;
    {order}
    ld.shared.u32 %r7, [%r6];
    st.global.u32 [%d2], %r7;
    ret;
"""
_LOOP = """
    mov.u32 %r3, cell; mad.lo.u32 %r4, %r1, 4, %r3;
    xor.b32 %r5, %r1, {distance}; mad.lo.u32 %r6, %r5, 4, %r3;
    mov.u32 %r8, 0; mov.u32 %r10, 0;
LOOP:
    add.u32 %r9, %r8, %r1;
    st.shared.u32 [%r4], %r9;
    {barrier}
    ld.shared.u32 %r7, [%r6];
    {order}
    add.u32 %r10, %r10, %r7;
    add.u32 %r8, %r8, 1;
    setp.lt.u32 %p1, %r8, 4;
    @%p1 bra LOOP;
    st.global.u32 [%d2], %r10;
    ret;
"""
# One thread writes in a branch of its own, another reads in another: the meeting is between the two.
_BRANCHES = """
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra SKIP;
    st.shared.u32 [cell], 7;
SKIP:
    {order}
    setp.ne.u32 %p2, %r1, {reader};
    @%p2 bra DONE;
    ld.shared.u32 %r7, [cell];
    st.global.u32 [%d2], %r7;
DONE:
    ret;
"""
# in: data at 0, flag at 128. Block 0 writes data and sets the flag, block 1 waits for the flag and reads.
_MESSAGE = """
    add.u64 %d5, %d1, 128;
    setp.ne.u32 %p3, %r1, 0;
    @%p3 bra DONE;
    setp.ne.u32 %p1, %r60, 0;
    @%p1 bra READER;
    st.global.u32 [%d1], 42;
    {release}
    {set}
    bra DONE;
READER:
    {poll}
    setp.eq.u32 %p2, %r7, 0;
    @%p2 bra READER;
    {acquire}
    ld.global.u32 %r8, [%d1];
    st.global.u32 [%d0], %r8;
DONE:
    ret;
"""
# The same between two warps of one block.
_WARP_MESSAGE = _MESSAGE.replace("setp.ne.u32 %p3, %r1, 0;", "and.b32 %r9, %r1, 31; setp.ne.u32 %p3, %r9, 0;").replace(
    "setp.ne.u32 %p1, %r60, 0;", "setp.lt.u32 %p1, %r1, 32; not.pred %p1, %p1;"
)
_SET = "st.{}.global.u32 [%d5], 1;"
_POLL = "ld.{}.global.u32 %r7, [%d5];"
_GOOD = {"release": "", "set": _SET.format("release.gpu"), "poll": _POLL.format("acquire.gpu"), "acquire": ""}
_COUNTER = """
    setp.ne.u32 %p3, %r1, 0;
    @%p3 bra DONE;
    {add}
    {read}
    add.u64 %d6, %d0, 128; mad.wide.u32 %d6, %r60, 4, %d6;
    st.global.u32 [%d6], %r7;
DONE:
    ret;
"""
# Every block adds; the last one sums up.
_LAST_BLOCK = """
    mad.wide.u32 %d6, %r60, 4, %d1;
    setp.ne.u32 %p3, %r1, 0;
    @%p3 bra JOIN;
    st.global.u32 [%d6], 5;
    {fence}
    {count}
    setp.eq.u32 %p4, %r7, 3;
    selp.u32 %r8, 1, 0, %p4;
    st.shared.u32 [cell], %r8;
JOIN:
    bar.sync 0;
    ld.shared.u32 %r9, [cell];
    setp.eq.u32 %p5, %r9, 0;
    @%p5 bra DONE;
    {fence}
    setp.gt.u32 %p6, %r1, 3;
    @%p6 bra DONE;
    mul.wide.u32 %d7, %r1, 4; add.u64 %d7, %d7, %d1;
    ld.global.u32 %r10, [%d7];
    mul.wide.u32 %d8, %r1, 4; add.u64 %d8, %d8, %d0;
    st.global.u32 [%d8], %r10;
DONE:
    ret;
"""
_COPY = """
    mov.u32 %r3, cell; mad.lo.u32 %r4, %r1, 16, %r3;
    xor.b32 %r5, %r1, {distance}; mad.lo.u32 %r6, %r5, 16, %r3;
    mul.wide.u32 %d4, %r1, 16; add.u64 %d4, %d4, %d1;
    {first}
    cp.async.ca.shared.global [%r4], [%d4], 16;
    cp.async.commit_group;
    {order}
    {then}
    ret;
"""
_USE = "ld.shared.u32 %r7, [%r6]; st.global.u32 [%d2], %r7;"
_TEXTURE = """
    mul.wide.u32 %d4, %r1, 4; add.u64 %d4, %d4, %d0;
    {first}
    {order}
    {then}
    ret;
"""
# Every block reads the cells of the next one of its cluster.
_NEIGHBOUR = """
    mov.u32 %r3, cell; mad.lo.u32 %r3, %r1, 4, %r3;
    mov.u32 %r9, %cluster_ctarank; xor.b32 %r10, %r9, 1;
    st.shared.u32 [%r3], %r2;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    mapa.shared::cluster.u32 %r5, %r3, %r10;
    ld.shared::cluster.u32 %r7, [%r5];
    {order}
    {again}
    st.global.u32 [%d2], %r7;
    {end}
    ret;
"""
_AGAIN = "st.shared.u32 [%r3], 1;"
_MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
_AFTER = """
    mul.wide.u32 %d4, %r2, 4; add.u64 %d4, %d4, %d1;
    setp.eq.u32 %p1, %r1, 0;
    {wait}
    ld.global.u32 %r7, [%d4];
    st.global.u32 [%d2], %r7;
    ret;
"""


@dataclass(frozen=True)
class Row:
    """A kernel that races in one way, and what is to be said of it.

    Attributes:
        name: of the row.
        racy, mended: bodies.
        kind: of the race.
        accesses: kinds of the earlier access and of the later one.
        remedy: what stands in the change that orders them.
        section: of the page on races.
        warning: what makes it softer, or nothing.
        grid, threads: of the launch.
        options: of the launch.
    """

    name: str
    racy: str
    mended: str
    kind: str
    accesses: tuple[str, str]
    remedy: str
    section: str
    warning: str = ""
    grid: int = 1
    threads: int = 64
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    def launch(self, source: str, **options: Any) -> tuple[ptx.LaunchResult, np.ndarray]:
        """Run a text; the result and what is in `out`."""
        out, data = np.zeros(256, np.uint32), np.zeros(256, np.uint32)
        data[64:] = np.arange(192)
        module = ptx.Module.parse(source, name="row.ptx")
        result = ptx.launch(
            module, "k", (self.grid, 1, 1), (self.threads, 1, 1), [out, data, 0], step_budget=20_000,
            **{**self.options, **options},
        )  # fmt: skip
        return result, out

    @property
    def text(self) -> str:
        return text(self.racy, declarations=CELLS)

    @property
    def twin(self) -> str:
        return text(self.mended, declarations=CELLS)


def _message(**parts: str) -> str:
    return _MESSAGE.format(**{**_GOOD, **parts})


def _warp_message(**parts: str) -> str:
    return _WARP_MESSAGE.format(**{**_GOOD, **parts})


_PLAIN = ("plain store", "plain load")
ROWS = [
    Row("two warps", _EXCHANGE.format(distance=32, order="bar.warp.sync -1;"),
        _EXCHANGE.format(distance=32, order="bar.sync 0;"), "write-read", _PLAIN, "bar.sync 0",
        "two-warps-of-a-block"),
    Row("two lanes", _EXCHANGE.format(distance=1, order=""), _EXCHANGE.format(distance=1, order="bar.warp.sync -1;"),
        "write-read", _PLAIN, "bar.warp.sync", "two-lanes-of-a-warp"),
    Row("two warps in a loop", _LOOP.format(distance=32, barrier="bar.sync 0;", order=""),
        _LOOP.format(distance=32, barrier="bar.sync 0;", order="bar.sync 0;"), "read-write",
        ("plain load", "plain store"), "bar.sync 0", "two-warps-of-a-block"),
    Row("two lanes in a loop", _LOOP.format(distance=1, barrier="bar.warp.sync -1;", order=""),
        _LOOP.format(distance=1, barrier="bar.warp.sync -1;", order="bar.warp.sync -1;"), "read-write",
        ("plain load", "plain store"), "bar.warp.sync", "two-lanes-of-a-warp"),
    Row("branches of two warps", _BRANCHES.format(order="", reader=33),
        _BRANCHES.format(order="bar.sync 0;", reader=33), "write-read", _PLAIN, "bar.sync 0", "two-warps-of-a-block"),
    Row("branches of two lanes", _BRANCHES.format(order="", reader=3),
        _BRANCHES.format(order="bar.warp.sync -1;", reader=3), "write-read", _PLAIN, "bar.warp.sync",
        "two-lanes-of-a-warp"),
    Row("a value that nobody uses", _LOOP.format(distance=32, barrier="bar.sync 0;", order="").replace("%r10;", "%r7;"),
        _LOOP.format(distance=32, barrier="bar.sync 0;", order="bar.sync 0;").replace("%r10;", "%r7;"), "read-write",
        ("plain load", "plain store"), "bar.sync 0", "values-that-nobody-uses", "unused value"),
    Row("relaxed poll", _message(poll=_POLL.format("relaxed.gpu")), _message(), "write-read", _PLAIN,
        "ld.acquire.gpu", "release-and-acquire", "missing acquire", 2),
    Row("volatile poll", _message(poll=_POLL.format("volatile")),
        _message(poll=_POLL.format("volatile"), acquire="fence.acq_rel.gpu;"), "write-read", _PLAIN,
        "__threadfence()", "release-and-acquire", "missing acquire", 2),
    Row("relaxed signal", _message(set=_SET.format("relaxed.gpu")), _message(), "write-read", _PLAIN,
        "st.release.gpu", "release-and-acquire", "", 2),
    Row("volatile signal", _message(set=_SET.format("volatile")),
        _message(set=_SET.format("volatile"), release="membar.gl;"), "write-read", _PLAIN, "__threadfence()",
        "release-and-acquire", "", 2),
    Row("relaxed both", _message(set=_SET.format("relaxed.gpu"), poll=_POLL.format("relaxed.gpu")), _message(),
        "write-read", _PLAIN, "st.release.gpu", "release-and-acquire", "", 2),
    Row("fence of the block",
        _message(set=_SET.format("relaxed.gpu"), release="fence.acq_rel.cta;"),
        _message(set=_SET.format("relaxed.gpu"), release="fence.acq_rel.gpu;"), "write-read", _PLAIN,
        "fence.acq_rel.gpu", "scopes", "", 2),
    Row("membar.cta",
        _message(set=_SET.format("volatile"), release="membar.cta;"),
        _message(set=_SET.format("volatile"), release="membar.gl;"), "write-read", _PLAIN, "membar.gl", "scopes", "",
        2),
    Row("fence of the block behind the poll",
        _message(poll=_POLL.format("relaxed.gpu"), acquire="fence.acq_rel.cta;"),
        _message(poll=_POLL.format("relaxed.gpu"), acquire="fence.acq_rel.gpu;"), "write-read", _PLAIN,
        "fence.acq_rel.gpu", "scopes", "", 2),
    Row("release of the block", _message(set=_SET.format("release.cta")), _message(), "write-read",
        ("release store", "acquire load"), "st.release.gpu", "scopes", "", 2),
    Row("acquire of the block", _message(poll=_POLL.format("acquire.cta")), _message(), "write-read",
        ("release store", "acquire load"), "ld.acquire.gpu", "scopes", "", 2),
    Row("plain signal", _message(set="st.global.u32 [%d5], 1;"), _message(), "write-read",
        ("plain store", "acquire load"), "st.release.gpu", "strong-and-plain-accesses", "", 2),
    Row("relaxed poll of a warp", _warp_message(poll=_POLL.format("relaxed.cta"), set=_SET.format("release.cta")),
        _warp_message(), "write-read", _PLAIN, "ld.acquire.cta", "release-and-acquire", "missing acquire"),
    Row("relaxed signal of a warp", _warp_message(poll=_POLL.format("acquire.cta"), set=_SET.format("relaxed.cta")),
        _warp_message(), "write-read", _PLAIN, "st.release.cta", "release-and-acquire"),
    Row("atomics of the block",
        _COUNTER.format(add="atom.global.cta.add.u32 %r7, [%d0], 1;", read="mov.u32 %r7, 1;"),
        _COUNTER.format(add="atom.global.gpu.add.u32 %r7, [%d0], 1;", read="mov.u32 %r7, 1;"), "write-write",
        ("relaxed atomic", "relaxed atomic"), "atom.global.gpu.add.u32", "scopes", "", 3),
    Row("plain read of a counter",
        # That it is not 0 does not depend on who comes first.
        _COUNTER.format(add="red.global.add.u32 [%d0], 1;", read="ld.global.u32 %r7, [%d0];\nmin.u32 %r7, %r7, 1;"),
        _COUNTER.format(add="red.global.add.u32 [%d0], 1;", read="ld.relaxed.gpu.global.u32 %r7, [%d0];\n"
                        "min.u32 %r7, %r7, 1;"),
        "write-read", ("relaxed reduction", "plain load"), "ld.relaxed.gpu.global.u32", "strong-and-plain-accesses",
        "", 2),
    Row("last block without a fence",
        _LAST_BLOCK.format(fence="", count="atom.global.add.u32 %r7, [%d0+512], 1;"),
        _LAST_BLOCK.format(fence="membar.gl;", count="atom.global.add.u32 %r7, [%d0+512], 1;"), "write-read", _PLAIN,
        "__threadfence()", "release-and-acquire", "", 4),
    Row("last block by relaxed",
        _LAST_BLOCK.format(fence="", count="atom.relaxed.gpu.global.add.u32 %r7, [%d0+512], 1;"),
        _LAST_BLOCK.format(fence="", count="atom.acq_rel.gpu.global.add.u32 %r7, [%d0+512], 1;"), "write-read", _PLAIN,
        "atom.", "release-and-acquire", "", 4),
    Row("own copy not waited for", _COPY.format(distance=0, first="", order="", then="st.shared.u32 [%r4], %r1;"),
        _COPY.format(distance=0, first="", order="cp.async.wait_all;", then="st.shared.u32 [%r4], %r1;"),
        "write-write", ("asynchronous copy", "plain store"), "cp.async.wait_all", "asynchronous-copies", "", 1, 32),
    Row("copies of others", _COPY.format(distance=1, first="", order="cp.async.wait_group 0;", then=_USE),
        _COPY.format(distance=1, first="", order="cp.async.wait_group 0; bar.warp.sync -1;", then=_USE),
        "write-read", ("asynchronous copy", "plain load"), "bar.warp.sync", "asynchronous-copies", "", 1, 32),
    Row("one group too few",
        _COPY.format(distance=0, first="", order="cp.async.wait_group 1;", then="st.shared.u32 [%r4], %r1;"),
        _COPY.format(distance=0, first="", order="cp.async.wait_group 0;", then="st.shared.u32 [%r4], %r1;"),
        "write-write", ("asynchronous copy", "plain store"), "cp.async.wait_group 0", "asynchronous-copies", "", 1, 32),
    Row("copy over what others read",
        _COPY.format(distance=1, first="st.shared.u32 [%r4], 1; bar.warp.sync -1; ld.shared.u32 %r7, [%r6];",
                     order="cp.async.wait_all;", then="st.global.u32 [%d2], %r7;"),
        _COPY.format(distance=1, first="st.shared.u32 [%r4], 1; bar.warp.sync -1; ld.shared.u32 %r7, [%r6]; "
                     "bar.warp.sync -1;", order="cp.async.wait_all;", then="st.global.u32 [%d2], %r7;"),
        "read-write", ("plain load", "asynchronous copy"), "bar.warp.sync", "two-lanes-of-a-warp", "", 1, 32),
    Row("non-coherent after the write",
        _TEXTURE.format(first="st.global.u32 [%d4], %r1;", order="bar.sync 0;", then="ld.global.nc.u32 %r7, [%d4];"),
        _TEXTURE.format(first="st.global.u32 [%d4], %r1;", order="bar.sync 0;", then="ld.global.u32 %r7, [%d4];"),
        "non-coherent", ("plain store", "non-coherent load"), "a plain ld.global", "non-coherent-loads"),
    Row("non-coherent before the write",
        _TEXTURE.format(first="ld.global.nc.u32 %r7, [%d4];", order="bar.sync 0;", then="st.global.u32 [%d4+4], %r1;"),
        _TEXTURE.format(first="ld.global.u32 %r7, [%d4];", order="bar.sync 0;", then="st.global.u32 [%d4+4], %r1;"),
        "read-write", ("non-coherent load", "plain store"), "a plain ld.global", "non-coherent-loads"),
    Row("the next block's memory overwritten", _NEIGHBOUR.format(order="", again=_AGAIN, end=_MEET),
        _NEIGHBOUR.format(order=_MEET, again=_AGAIN, end=_MEET), "write-read", ("plain store", "plain load"),
        "barrier.cluster", "two-blocks-of-a-cluster", "", 2, 32, {"cluster": (2, 1, 1)}),
    Row("exit before the other has read", _NEIGHBOUR.format(order="", again="", end=""),
        _NEIGHBOUR.format(order="", again="", end=_MEET), "exit", ("plain load", "exit"), "barrier.cluster",
        "blocks-that-exit", "", 2, 32, {"cluster": (2, 1, 1)}),
    Row("no wait for the grid before", _AFTER.format(wait=""), _AFTER.format(wait="griddepcontrol.wait;"),
        "previous grid", ("", "plain load"), "griddepcontrol.wait", "the-grid-before", "", 2, 64,
        {"previous_grid_writes": ["argument 1"]}),
    Row("wait of one thread without a barrier", _AFTER.format(wait="@%p1 griddepcontrol.wait;"),
        _AFTER.format(wait="@%p1 griddepcontrol.wait; bar.sync 0;"),
        "previous grid", ("", "plain load"), "griddepcontrol.wait", "the-grid-before", "", 2, 64,
        {"previous_grid_writes": ["argument 1"]}),
    Row("non-coherent load of what the grid before wrote", _AFTER.format(wait="griddepcontrol.wait;").replace(
        "ld.global.u32", "ld.global.nc.u32"), _AFTER.format(wait="griddepcontrol.wait;"), "previous grid",
        ("", "non-coherent load"), "a plain ld.global", "non-coherent-loads", "non-coherent", 2, 64,
        {"previous_grid_writes": ["argument 1"]}),
    Row("trigger in the place of the wait", _AFTER.format(wait="griddepcontrol.launch_dependents;"),
        _AFTER.format(wait="griddepcontrol.wait; griddepcontrol.launch_dependents;"), "previous grid",
        ("", "plain load"), "griddepcontrol.wait", "the-grid-before", "", 2, 64,
        {"previous_grid_writes": ["argument 1"]}),
    Row("own write behind a non-coherent load",
        _TEXTURE.format(first="st.global.u32 [%d4], %r1;", order="", then="ld.global.nc.u32 %r7, [%d4];"),
        _TEXTURE.format(first="st.global.u32 [%d4], %r1;", order="", then="ld.global.u32 %r7, [%d4];"),
        "non-coherent", ("plain store", "non-coherent load"), "a plain ld.global", "non-coherent-loads"),
    Row("own non-coherent load before the write",
        _TEXTURE.format(first="ld.global.nc.u32 %r7, [%d4];", order="", then="st.global.u32 [%d4], %r1;"),
        _TEXTURE.format(first="ld.global.u32 %r7, [%d4];", order="", then="st.global.u32 [%d4], %r1;"),
        "read-write", ("non-coherent load", "plain store"), "a plain ld.global", "non-coherent-loads"),
    Row("same value", "setp.lt.u32 %p1, %r1, 32;\n"
        "@%p1 st.global.u32 [%d0], 3;\nnot.pred %p1, %p1;\n@%p1 st.global.u32 [%d0], 3;\nret;",
        "setp.eq.u32 %p1, %r1, 0;\n@%p1 st.global.u32 [%d0], 3;\nret;", "write-write",
        ("plain store", "plain store"), "", "the-same-value", "same value"),
]  # fmt: skip
