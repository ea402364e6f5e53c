"""Kernels with bulk copies and tensor maps that race, and their mended twins, for the findings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from support.ptx_bulk import COMMIT, FENCE, TEXT, TILE_BYTES, Tensor, dump, expect, fill, load, store, wait

from refmoe import ptx

TENSOR = Tensor("u8", 8, (64, 16), (64,), (64, 4), (1, 1))
READ = "@%p0 cp.async.bulk.wait_group.read 0;"
DONE = "@%p0 cp.async.bulk.wait_group 0;"
# Threads that are not thread 0 of warp 0.
_LAST = "setp.eq.u32 %p5, %r1, 63;"
_OVERWRITE = "@{} st.shared.u32 [%r8+16], 7;"
# %d3: a map in global memory, and 128 bytes behind it its copy; %r9: shared memory for a map.
_MAP_TO_SHARED = """
    add.u32 %r9, %r8, 4096;
    mov.u32 %r20, 0;
MAP:
    cvt.u64.u32 %d10, %r20; add.u64 %d10, %d10, %d3; @%p0 ld.global.u32 %r21, [%d10];
    add.u32 %r22, %r9, %r20; @%p0 st.shared.u32 [%r22], %r21;
    add.u32 %r20, %r20, 4; setp.lt.u32 %p10, %r20, 128; @%p10 bra MAP;
    @%p0 tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r9], 1, 8;
    bar.sync 0;
"""
_PUT = "@%p1 tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d3], [%r9], 128;"
_DRAIN = COMMIT + READ + "bar.warp.sync -1;"
_GO = "setp.lt.u32 %p1, %r1, 32; @!%p1 bra END;"


def _by_map(text: str) -> str:
    """The copies of a body by the map in global memory."""
    return text.replace("[%d1,", "[%d3,")


@dataclass(frozen=True)
class BulkRow:
    """See `support.findings.plain.Row`; bodies of `support.ptx_bulk.TEXT`."""

    name: str
    racy: str
    mended: str
    kind: str
    accesses: tuple[str, str]
    remedy: str
    section: str
    warning: str = ""
    clean: bool = True

    def __str__(self) -> str:
        return self.name

    def launch(self, source: str, **options: Any) -> tuple[ptx.LaunchResult, np.ndarray]:
        """Run a text; the result and what the tensor holds."""
        memory = ptx.DeviceMemory()
        content = (np.arange(1024) % 251).astype(np.uint8)
        address = memory.place(ptx.Buffer(content, "tensor"))
        encoded = TENSOR.encode(address)
        # What launches write into maps goes on in their memory.
        maps = memory.place(ptx.Buffer(np.frombuffer(encoded * 2, np.uint8).copy(), "maps"))
        out = np.arange(1024).astype(np.uint8)
        module = ptx.Module.parse(source, name="row.ptx")
        result = ptx.launch(
            module, "k", (1, 1, 1), (64, 1, 1), [out, encoded, maps, 0, 0, 0, 0, 0], memory=memory,
            step_budget=200_000, **options,
        )  # fmt: skip
        return result, content

    @property
    def text(self) -> str:
        return _text(self.racy)

    @property
    def twin(self) -> str:
        return _text(self.mended)


def _text(body: str) -> str:
    # An instruction a line: a change of one leaves the others alone.
    lines = [each.strip() + ";" for each in body.replace("\n", " ").split(";")[:-1]]
    return TEXT.format(body="\n".join(lines).replace(": ", ":\n"), tile=TILE_BYTES)


_OUT = store(2) + COMMIT
_IN = expect(256) + load(2)
_FILL = fill(256)
_AGAIN = expect(256) + load(2) + wait(1, 1)
# All lanes of a warp read, and one arrives for it; then thread 32 loads again.
_PIPELINE = """
    add.u32 %r10, %r7, 8;
    @%p0 mbarrier.init.shared::cta.b64 [%r10], 1;
    bar.sync 0;
    setp.eq.u32 %p6, %r1, 32;
    @!%p1 bra PRODUCER;
""" + wait(0, 0) + """
    and.b32 %r11, %r1, 31; mad.lo.u32 %r11, %r11, 4, %r8;
    ld.shared.u32 %r12, [%r11];
    {consume}
    {meet}
    @%p0 mbarrier.arrive.shared::cta.b64 _, [%r10];
    {late}
    mul.wide.u32 %d9, %r1, 4; add.s64 %d9, %d9, %d0;
    st.global.u32 [%d9], {kept};
    bra OUT;
PRODUCER:
    @%p6 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r7], 256;
    @%p6 {load};
    @!%p6 bra OUT;
FREE:
    mbarrier.try_wait.parity.shared::cta.b64 %p7, [%r10], 0;
    @!%p7 bra FREE;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r7], 256;
    {load};
LANDED:
    mbarrier.try_wait.parity.shared::cta.b64 %p7, [%r7], 1;
    @!%p7 bra LANDED;
OUT:
    ret;
"""  # fmt: skip
_MMA = (
    (
        "mov.u32 %r30, 0; mov.u32 %r31, 0; mov.u32 %r32, 0; mov.u32 %r33, 0; "
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{%r30, %r31, %r32, %r33}}, {{%r12, %r12, %r12, %r12}}, "
        "{{%r12, %r12}}, {{%r30, %r31, %r32, %r33}};"
    )
    .replace("{{", "{")
    .replace("}}", "}")
)
_SHUFFLE = "shfl.sync.bfly.b32 %r13, %r12, 1, 31, -1;"
# Half of the lanes each: those of the other half are not behind the lane that signals.
_HALVES = (
    "and.b32 %r14, %r1, 16; setp.ne.u32 %p6, %r14, 0; @%p6 bra HIGH;"
    "shfl.sync.bfly.b32 %r13, %r12, 1, 31, 0xffff; bra MET; HIGH: shfl.sync.bfly.b32 %r13, %r12, 1, 31, 0xffff0000;"
    "MET: mov.u32 %r14, 0;"
)
_OTHER_SHUFFLE = "mov.u32 %r14, 3; shfl.sync.bfly.b32 %r13, %r14, 1, 31, -1;"


def pipeline(consume: str = "", meet: str = "", late: str = "", kept: str = "%r12") -> str:
    """`kept`: the register that reaches the output."""
    return _PIPELINE.format(
        consume=consume, meet=meet, late=late, kept=kept, load=load(2).removeprefix("@%p0 ").rstrip(";")
    )


_MAP_STORE = expect(256) + _by_map(load(2)) + wait() + _by_map(store(2)) + COMMIT
_REPLACE = "@%p0 tensormap.replace.tile.global_dim.global.b1024.b32 [%d3], 1, 9;"
_LANE = "setp.eq.u32 %p5, %r1, 5;"
# Thread 0 waits for its load and says so; thread 63 hears of it.
_MAP_SIGNAL = (
    _LAST + "add.u32 %r10, %r7, 16; @%p0 st.shared.u32 [%r10], 0; bar.sync 0; @!%p1 bra HEAR;" + expect(256)
    + _by_map(load(2)).replace("{", "{{").replace("}", "}}") + wait() + "@%p0 st.release.cta.shared.u32 [%r10], 1;"
    "bra SAID; HEAR: ld.{poll}.shared.u32 %r11, [%r10]; setp.eq.u32 %p6, %r11, 0; @%p6 bra HEAR;"
    "@%p5 st.global.u32 [%d3+32], 0; SAID: mov.u32 %r20, 0;"
)  # fmt: skip
_PIPE = ("plain load", "tensor copy")
MEET = "bar.warp.sync -1;"
BULK_ROWS = [
    BulkRow("store without a proxy fence", _FILL + "bar.sync 0;" + _OUT + DONE, _FILL + FENCE + "bar.sync 0;" + _OUT
            + DONE, "proxy", ("plain store", "tensor copy"), "fence.proxy.async", "proxies"),
    BulkRow("proxy fence of another thread", _FILL + _LAST + "bar.sync 0; @%p5 " + FENCE + _OUT + DONE,
            _FILL + "bar.sync 0; @%p0 " + FENCE + _OUT + DONE, "proxy", ("plain store", "tensor copy"),
            "fence.proxy.async", "proxies"),
    BulkRow("proxy fence of some writers", _FILL + "@%p1 " + FENCE + "bar.sync 0;" + _OUT + DONE, _FILL + FENCE +
            "bar.sync 0;" + _OUT + DONE, "proxy", ("plain store", "tensor copy"), "fence.proxy.async", "proxies"),
    BulkRow("load nobody waited for", _IN + _OVERWRITE.format("%p0") + wait(), _IN + wait() + _OVERWRITE.format("%p0"),
            "write-write", ("tensor copy", "plain store"), "a wait for the phase of parity 0", "bulk-copies"),
    BulkRow("load of another thread", _IN + _LAST + _OVERWRITE.format("%p5") + wait(), _IN + _LAST + wait() +
            _OVERWRITE.format("%p5"), "write-write", ("tensor copy", "plain store"), "a wait for the phase of parity 0",
            "bulk-copies"),
    BulkRow("load over what is read", _IN + wait() + dump(256) + _AGAIN, _IN + wait() + dump(256) + "bar.sync 0;" +
            _AGAIN, "read-write", ("plain load", "tensor copy"), "bar.sync 0", "two-warps-of-a-block"),
    BulkRow("source of a store overwritten", _FILL + FENCE + "bar.sync 0;" + _OUT + _OVERWRITE.format("%p0") + DONE,
            _FILL + FENCE + "bar.sync 0;" + _OUT + READ + _OVERWRITE.format("%p0") + DONE, "read-write",
            ("tensor copy", "plain store"), "cp.async.bulk.wait_group.read 0", "bulk-copies"),
    BulkRow("source of a store overwritten by another", _FILL + FENCE + _LAST + "bar.sync 0;" + _OUT +
            _OVERWRITE.format("%p5") + DONE, _FILL + FENCE + _LAST + "bar.sync 0;" + _OUT + READ + "bar.sync 0;" +
            _OVERWRITE.format("%p5") + DONE, "read-write", ("tensor copy", "plain store"), "bar.sync 0", "bulk-copies"),
    BulkRow("one lane arrives for its warp", pipeline(), pipeline(meet=MEET), "read-write", _PIPE, "bar.warp.sync",
            "two-lanes-of-a-warp"),
    BulkRow("a collective of other values", pipeline(_OTHER_SHUFFLE), pipeline(_OTHER_SHUFFLE, MEET), "read-write",
            _PIPE, "bar.warp.sync", "two-lanes-of-a-warp"),
    BulkRow("a collective behind the signal", pipeline(late=_SHUFFLE, kept="%r13"),
            pipeline(meet=MEET, late=_SHUFFLE, kept="%r13"), "read-write",
            _PIPE, "bar.warp.sync", "two-lanes-of-a-warp"),
    BulkRow("halves of a warp took the values", pipeline(_HALVES, kept="%r13"), pipeline(_HALVES, MEET, kept="%r13"),
            "read-write", _PIPE, "bar.warp.sync", "two-lanes-of-a-warp"),
    BulkRow("mma took the values", pipeline(_MMA, kept="%r30"), pipeline(_MMA, MEET, kept="%r30"), "read-write",
            _PIPE, "__syncwarp()",
            "values-that-a-collective-took", "warp-collective"),
    BulkRow("a shuffle took the values", pipeline("add.u32 %r12, %r12, 1;" + _SHUFFLE, kept="%r13"),
            pipeline(_SHUFFLE, MEET, kept="%r13"),
            "read-write", _PIPE, "__syncwarp()", "values-that-a-collective-took", "warp-collective"),
    BulkRow("map rewritten under a load", _GO + _MAP_TO_SHARED.replace("bar.sync 0;", "bar.warp.sync -1;") + expect(256)
            + _by_map(load(2)) + _PUT + wait() + "END: mov.u32 %r20, 0;",
            _GO + _MAP_TO_SHARED.replace("bar.sync 0;", "bar.warp.sync -1;") + expect(256)
            + _by_map(load(2)) + _DRAIN + _PUT + wait() + "END: mov.u32 %r20, 0;", "tensor map",
            ("tensor copy", "copy of a tensor map"), "cp.async.bulk.commit_group", "tensor-maps"),
    BulkRow("map rewritten after another wait", expect(256) + _by_map(load(2)) + wait() + _by_map(store(2)) + COMMIT +
            "@%p0 tensormap.replace.tile.global_dim.global.b1024.b32 [%d3], 1, 9;" + DONE,
            expect(256) + _by_map(load(2)) + wait() + _by_map(store(2)) + COMMIT + READ +
            "@%p0 tensormap.replace.tile.global_dim.global.b1024.b32 [%d3], 1, 9;" + DONE, "tensor map",
            ("tensor copy", "edit of a tensor map"), "cp.async.bulk.wait_group.read 0", "tensor-maps"),
    BulkRow("map rewritten a group too early", _MAP_STORE + "@%p0 cp.async.bulk.wait_group.read 1;" + _REPLACE + DONE,
            _MAP_STORE + READ + _REPLACE + DONE, "tensor map", ("tensor copy", "edit of a tensor map"),
            "cp.async.bulk.wait_group.read 0", "tensor-maps"),
    BulkRow("map rewritten by another lane", _MAP_STORE + READ + _LANE + _REPLACE.replace("@%p0", "@%p5") + DONE,
            _MAP_STORE + READ + _LANE + "bar.warp.sync -1;" + _REPLACE.replace("@%p0", "@%p5") + DONE, "tensor map",
            ("tensor copy", "edit of a tensor map"), "", "tensor-maps"),
    BulkRow("map rewritten behind a relaxed signal", _MAP_SIGNAL.format(poll="relaxed.cta"),
            _MAP_SIGNAL.format(poll="acquire.cta"), "tensor map", ("tensor copy", "plain store"), "", "tensor-maps"),
    BulkRow("plain stores over a map", expect(256) + _by_map(load(2)) + _LAST + "@%p5 st.global.u32 [%d3+32], 0;" +
            wait(), expect(256) + _by_map(load(2)) + _LAST + wait() + "@%p5 st.global.u32 [%d3+32], 0;", "tensor map",
            ("tensor copy", "plain store"), "", "tensor-maps"),
]  # fmt: skip
