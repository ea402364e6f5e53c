"""The proxy rule: what lanes wrote reaches a bulk store only through `fence.proxy.async`, wherever that lies."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_bulk import COMMIT, FENCE, Tensor, dump, expect, fill, load, run, store, wait

from refmoe import ptx

TENSOR = Tensor("u8", 8, (64, 16), (64,), (64, 4), (1, 1))
DONE = "@%p0 cp.async.bulk.wait_group 0;"
OUT = store(2) + COMMIT + DONE


def launch(body: str, out: np.ndarray | None = None) -> np.ndarray:
    """The tensor after a body; `other` is its address."""
    content = np.zeros(1024, np.uint8)
    memory = ptx.DeviceMemory()
    address = memory.place(ptx.Buffer(content, "tensor"))
    data = np.arange(256, dtype=np.uint8) if out is None else out
    run(body, data, TENSOR.encode(address), (0, 0), other=address, memory=memory)
    return content


def warned(body: str, strict: bool = False) -> tuple[ptx.RaceError, ...]:
    """What a body is warned of that loads the tensor."""
    memory = ptx.DeviceMemory()
    address = memory.place(ptx.Buffer(np.zeros(1024, np.uint8), "tensor"))
    data, checks = np.arange(256, dtype=np.uint8), ptx.Checks(strict=strict)
    result = run(body, data, TENSOR.encode(address), (0, 0), other=address, memory=memory, checks=checks)
    return result.warnings


@pytest.mark.parametrize(
    "between",
    [
        "fence.proxy.async.shared::cta; bar.sync 0;",
        "fence.proxy.async; bar.sync 0;",
        "membar.proxy.async.shared::cta; bar.sync 0;",
        # By the thread that copies, after the barrier.
        "bar.sync 0; @%p0 fence.proxy.async.shared::cta;",
        "bar.sync 0; @%p0 fence.proxy.async.shared::cta; bar.warp.sync -1;",
        # By a third one, ordered after the writes and before the copy.
        "bar.sync 0; @!%p1 fence.proxy.async.shared::cta; bar.sync 0;",
    ],
)
def test_a_fence_on_the_way(between: str) -> None:
    assert (launch(fill(256) + between + OUT)[:256] == np.arange(256)).all()


@pytest.mark.parametrize(
    "between",
    [
        "bar.sync 0;",
        # Of the other memory.
        "fence.proxy.async.global; bar.sync 0;",
        "membar.proxy.async.global; bar.sync 0;",
        # Another kind of fence.
        "fence.acq_rel.gpu; bar.sync 0;",
        # By some of the writers only.
        "@%p1 fence.proxy.async.shared::cta; bar.sync 0;",
        # By the copying thread, before the barrier that orders the others' writes.
        "@%p0 fence.proxy.async.shared::cta; bar.sync 0;",
        "fence.proxy.tensormap::generic.release.gpu; bar.sync 0;",
    ],
)
def test_no_fence_on_the_way(between: str) -> None:
    with pytest.raises(ptx.RaceError, match=r"proxy race .* no fence.proxy.async lies between") as caught:
        launch(fill(256) + between + OUT)
    assert caught.value.kind == "proxy"


def test_a_fence_before_the_write_is_none() -> None:
    with pytest.raises(ptx.RaceError, match="proxy"):
        launch(fill(256) + FENCE + "bar.sync 0; @!%p1 st.shared.u8 [%r8], 7; bar.sync 0;" + OUT)


def test_a_fence_without_a_barrier_orders_nothing() -> None:
    with pytest.raises(ptx.RaceError, match="write-read"):
        launch(fill(256) + FENCE + OUT)


@pytest.mark.parametrize(("fence", "right"), [(FENCE, True), ("", False)])
def test_one_thread_writes_and_copies(fence: str, right: bool) -> None:
    write = "".join(f"@%p0 st.shared.v4.b32 [%r8+{i}], {{%r1, %r1, %r1, %r1}};" for i in range(0, 256, 16))
    if right:
        launch(write + fence + OUT)
    else:
        with pytest.raises(ptx.RaceError, match="proxy"):
            launch(write + fence + OUT)


@pytest.mark.parametrize(("fence", "right"), [(FENCE, True), ("", False)])
def test_through_a_barrier_in_memory(fence: str, right: bool) -> None:
    # Both warps arrive, thread 0 waits and copies.
    start = "@%p0 mbarrier.init.shared::cta.b64 [%r7+8], 64; bar.sync 0;"
    meet = "mbarrier.arrive.shared::cta.b64 _, [%r7+8]; @!%p0 bra END;" + wait().replace("[%r7]", "[%r7+8]")
    body = start + fill(256) + fence + meet + OUT + "END:"
    if right:
        launch(body)
    else:
        with pytest.raises(ptx.RaceError, match="proxy"):
            launch(body)


def test_what_a_copy_brought_may_be_copied_on() -> None:
    # Asynchronous proxy to asynchronous proxy: the wait is enough.
    launch(expect(256) + load(2) + wait() + OUT)


def test_what_lanes_read_needs_no_fence() -> None:
    launch(expect(256) + load(2) + wait() + dump(256) + "bar.sync 0;" + expect(256) + load(2) + wait(1, 1))


@pytest.mark.parametrize(
    ("between", "right"),
    [
        ("fence.proxy.async.global; bar.sync 0;", True),
        ("bar.sync 0; fence.proxy.async;", True),
        ("bar.sync 0;", False),
        ("fence.proxy.async.shared::cta; bar.sync 0;", False),
    ],
)
def test_a_load_of_what_lanes_wrote_to_global_memory(between: str, right: bool) -> None:
    write = "cvt.u64.u32 %d9, %r1; add.u64 %d9, %d9, %d3; st.global.u8 [%d9], 5;"
    body = write + between + expect(256) + load(2) + wait() + dump(256)
    out = np.zeros(256, np.uint8)
    if right:
        launch(body, out)
        assert out.tolist() == [5] * 64 + [0] * 192
    else:
        with pytest.raises(ptx.RaceError, match=r"proxy race .* of tensor"):
            launch(body, out)


def test_without_race_checks_nothing_is_asked() -> None:
    content = np.zeros(1024, np.uint8)
    memory = ptx.DeviceMemory()
    address = memory.place(ptx.Buffer(content, "tensor"))
    body = fill(256) + "bar.sync 0;" + OUT
    data = np.arange(256, dtype=np.uint8)
    run(body, data, TENSOR.encode(address), (0, 0), memory=memory, checks=ptx.Checks(races=False))
    assert (content[:256] == data).all()


# What the asynchronous proxy knows of barriers

INIT = "@%p0 mbarrier.init.shared::cta.b64 [%r7+8], 1;"
SECOND = "add.u32 %r7, %r7, 8;" + expect(256) + load(2) + wait() + dump(256)


@pytest.mark.parametrize(
    "between",
    [
        "@%p0 fence.mbarrier_init.release.cluster; bar.sync 0;",
        "@%p0 fence.proxy.async.shared::cta; bar.sync 0;",
        "@%p0 fence.proxy.async; bar.sync 0;",
        "bar.sync 0; @%p0 fence.proxy.async.shared::cta;",
    ],
)
def test_a_barrier_that_copies_know(between: str) -> None:
    assert warned(INIT + between + SECOND) == ()


@pytest.mark.parametrize(
    "between",
    [
        "bar.sync 0;",
        # Before the initialisation.
        "fence.acq_rel.cluster; bar.sync 0;",
        # By a thread that initialised nothing: it concerns its own objects alone.
        "bar.sync 0; @!%p1 fence.mbarrier_init.release.cluster; bar.sync 0;",
        # By a thread to which nothing orders the initialisation.
        "@!%p1 fence.proxy.async.shared::cta; bar.sync 0;",
        "@%p0 fence.proxy.async.global; bar.sync 0;",
    ],
)
def test_a_barrier_that_copies_do_not_know(between: str) -> None:
    (warning,) = warned(INIT + between + SECOND)
    assert (warning.kind, warning.warning, warning.space) == ("proxy", "unfenced init", "shared")
    assert "on an mbarrier that was initialised by thread (0, 0, 0)" in warning.message
    assert "neither fence.mbarrier_init nor fence.proxy.async lies between" in warning.message
    with pytest.raises(ptx.RaceError, match="on an mbarrier that was initialised"):
        warned(INIT + between + SECOND, strict=True)
    # Lanes may use it as it is.
    lanes = "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r7+8];"
    launch(INIT + between + lanes)


def test_a_barrier_that_is_initialised_again() -> None:
    fence, again = (
        "@%p0 fence.mbarrier_init.release.cluster; bar.sync 0;",
        "@%p0 mbarrier.inval.shared::cta.b64 [%r7+8];",
    )
    launch(INIT + fence + again + INIT + fence + SECOND)
    (warning,) = warned(INIT + fence + again + INIT + "bar.sync 0;" + SECOND)
    assert warning.warning == "unfenced init"
