"""Kernels of one instruction on textures or surfaces."""

from __future__ import annotations

from typing import Any

import numpy as np

from refmoe import ptx

HEADER = ".version 8.7\n.target sm_90a\n.address_size 64\n"
# What stands between the braces: coordinates are %f0 to %f2, or %r1 to %r3 where they are integers; the layer is %r4.
COORDINATES = {
    "1d": "{{{0}}}", "2d": "{{{0}, {1}}}", "3d": "{{{0}, {1}, {2}, {2}}}", "a1d": "{{%r4, {0}}}",
    "a2d": "{{%r4, {0}, {1}, {1}}}", "cube": "{{{0}, {1}, {2}, {2}}}", "acube": "{{%r4, {0}, {1}, {2}}}",
}  # fmt: skip


def body(instruction: str, store: str = "") -> str:
    """A kernel (handle, coordinates of 16 bytes a thread, out of 16 bytes a thread): results are in %r10 to %r13."""
    return f"""{HEADER}
.visible .entry k(.param .u64 handle, .param .u64 places, .param .u64 out) {{
    .reg .b32 %r<20>;
    .reg .b16 %h<10>;
    .reg .f32 %f<4>;
    .reg .b64 %d<10>;
    .reg .pred %p<2>;
    ld.param.u64 %d0, [handle];
    ld.param.u64 %d1, [places];
    ld.param.u64 %d2, [out];
    mov.u32 %r0, %tid.x;
    mad.wide.u32 %d3, %r0, 16, %d1;
    mad.wide.u32 %d4, %r0, 16, %d2;
    ld.global.v4.u32 {{%r1, %r2, %r3, %r4}}, [%d3];
    mov.b32 %f0, %r1;
    mov.b32 %f1, %r2;
    mov.b32 %f2, %r3;
    mov.b32 %r10, 0;
    mov.b32 %r11, 0;
    mov.b32 %r12, 0;
    mov.b32 %r13, 0;
    {instruction}
    {store or "st.global.v4.u32 [%d4], {%r10, %r11, %r12, %r13};"}
    ret;
}}
"""


def places(coordinates: Any, layers: Any = 0, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """Uint32 [n, 4] of coordinates [n, up to 3] and layers."""
    given = np.atleast_2d(np.asarray(coordinates, dtype))
    whole = np.zeros((len(given), 3), dtype)
    whole[:, : given.shape[1]] = given
    held = np.zeros((len(given), 4), np.uint32)
    held[:, :3], held[:, 3] = whole.view(np.uint32), layers
    return held


def run(instruction: str, handle: Any, where: np.ndarray[Any, Any], **more: Any) -> np.ndarray[Any, Any]:
    """Run a kernel of an instruction, a thread for each place: uint32 [n, 4]."""
    out = np.zeros((len(where), 4), np.uint32)
    module = ptx.Module.parse(body(instruction), name="test.ptx")
    ptx.launch(module, "k", (1, 1, 1), (len(where), 1, 1), [handle, where, out], **more)
    return out


def fetch(
    texture: Any, coordinates: Any, geometry: str = "2d", layers: Any = 0, kind: str = "f32", of: str = "f32"
) -> np.ndarray[Any, Any]:
    """The four registers of `tex` for each coordinate: uint32 [n, 4]."""
    names = ("%f0", "%f1", "%f2") if of == "f32" else ("%r1", "%r2", "%r3")
    inside = COORDINATES[geometry].format(*names)
    where = places(coordinates, layers, np.float32 if of == "f32" else np.int32)
    return run(f"tex.{geometry}.v4.{kind}.{of} {{%r10, %r11, %r12, %r13}}, [%d0, {inside}];", texture, where)
