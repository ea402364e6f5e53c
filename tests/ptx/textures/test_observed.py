"""Who looks on at a launch sees surfaces too."""

from __future__ import annotations

import numpy as np
from support.textures.kernels import places, run

from refmoe import ptx

STORE = "sust.b.2d.b32.trap [%d0, {%r1, %r2}], {%r0};"
WHERE = places([[4 * x, y] for y in range(4) for x in range(8)], 0, np.int32)


def test_a_watchpoint_sees_surface_stores() -> None:
    watch = ptx.Watch("image", 36, 4)
    data = np.zeros((4, 8), np.uint32)
    run(STORE, ptx.SurfaceObject(ptx.CudaArray(data, name="image")), WHERE, watch=watch)
    (write,) = watch.writes
    assert (write.thread, write.offset, write.text.split()[0]) == ((9, 0, 0), 36, "sust.b.2d.b32.trap")
    assert data[1, 1] == 9


def test_a_profile_counts_them() -> None:
    profile = ptx.Profile()
    data = np.zeros((4, 8), np.uint32)
    run(STORE, ptx.SurfaceObject(ptx.CudaArray(data)), WHERE, profile=profile)
    (kernel,) = profile.kernels
    assert kernel.by_opcode()["sust.b.2d.b32.trap"].lanes == 32
    assert data.ravel().tolist() == list(range(32))
