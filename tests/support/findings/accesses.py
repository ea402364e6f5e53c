"""Random programs of a few accesses, and what becomes of them by the ways in which races are looked for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from support.ptx_kernel import text

from refmoe import ptx
from refmoe.ptx import launcher
from refmoe.ptx.engine import machine
from refmoe.ptx.engine.bulk.exact import ExactBulkShadow
from refmoe.ptx.engine.exact_races import ExactShadow
from refmoe.ptx.engine.races import RaceShadow
from refmoe.ptx.findings import unexplained

#: How races are looked for: by the last accesses, in native code or in Python, or by all of them.
MODES = ("native", "python", "exact")
# Bytes of copies that are under way would be another error.
_CHECKS = ptx.Checks(uninitialised=False, undefined=False)
_WIDTHS = {"words": (4,), "widths": (1, 2, 4, 4, 8, 8), "plain": (1, 4, 8)}
_BYTES = 16
_READ = {1: "%h1", 2: "%h1", 4: "%r20", 8: "%d10"}
_WRITTEN = {1: "%h2", 2: "%h2", 4: "%r22", 8: "%d11"}
_OWN_VALUES = "mov.u32 %r22, %r2; cvt.u64.u32 %d11, %r22; cvt.u16.u32 %h2, %r22;"
_EQUAL_VALUES = "mov.u32 %r22, 0; mov.u64 %d11, 0; mov.u16 %h2, 0;"
_CLEARED = """
    mov.u32 %r3, cell; setp.eq.u32 %p4, %r1, 0; mov.u64 %d12, 0;
    @%p4 st.shared.v2.u64 [%r3], {%d12, %d12};
    bar.sync 0;
"""


@dataclass(frozen=True)
class Program:
    """A body whose lines are each an access of one thread, or of all of a block, or what all threads execute.

    Attributes:
        body: PTX of `support.ptx_kernel`.
        blocks, warps, cluster: the launch: blocks of a grid and of a cluster, warps of a block.
        declarations: of the entry.
    """

    body: str
    blocks: int
    warps: int
    cluster: int
    declarations: str = ""


def random_program(seed: int) -> Program:
    """The program of a seed: accesses of 16 bytes by up to three blocks, in any strength, scope and width."""
    rng = random.Random(seed)
    of = rng.choice(("words", "words", "widths", "plain"))
    warps, blocks, space = rng.choice((1, 2, 2, 3)), rng.choice((1, 2, 2, 3)), rng.choice("gggs")
    cluster = rng.choice((1, 1, 2)) if blocks == 2 else 1
    lines = [rng.choice((_OWN_VALUES, _OWN_VALUES, _OWN_VALUES, _EQUAL_VALUES))]
    if space == "s":
        lines.append(_CLEARED)
    for _ in range(rng.randrange(3, 12)):
        lines.append(_line(rng, of, space, blocks, warps, cluster))
    return Program(
        "\n".join([*lines, "ret;"]), blocks, warps, cluster, ".shared .align 16 .b8 cell[16];" if space == "s" else ""
    )


def _line(rng: random.Random, of: str, space: str, blocks: int, warps: int, cluster: int) -> str:
    choice = rng.random()
    if choice < 0.12:
        return "bar.sync 0;"
    if choice < 0.16:
        return "bar.warp.sync -1;"
    if choice < 0.19 and cluster > 1:
        return "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    if choice < 0.24:
        return rng.choice(("fence.acq_rel.gpu;", "fence.sc.gpu;", "fence.acq_rel.cta;"))
    access, block = _access(rng, of, space), rng.randrange(blocks)
    if access.startswith("ld") and rng.random() < 0.1:
        return f"setp.eq.u32 %p1, %r60, {block}; @%p1 {access}"
    thread = rng.choice((0, 0, 1, 32, 64)[: 2 + warps])
    return f"setp.eq.u32 %p1, %r60, {block}; setp.eq.u32 %p2, %r1, {thread}; and.pred %p3, %p1, %p2; @%p3 {access}"


def _access(rng: random.Random, of: str, space: str) -> str:
    name, base = (".global", "%d1") if space == "g" else (".shared", "%r3")
    kind = rng.choice(("ld", "st") if of == "plain" else ("ld", "ld", "st", "st", "atom", "red"))
    width = rng.choice(_WIDTHS[of])
    scope = rng.choice((".cta", ".cluster", ".gpu", ".gpu"))
    if kind in ("atom", "red"):
        width = rng.choice((4, 8)) if of == "widths" else 4
        meaning = rng.choice((".relaxed", ".release", ".acquire", ".acq_rel")[: 4 if kind == "atom" else 2])
        gives = f"{_READ[width]}, " if kind == "atom" else ""
        place = rng.randrange(_BYTES // width) * width
        return f"{kind}{meaning}{scope}{name}.add.u{8 * width} {gives}[{base}+{place}], {_WRITTEN[width]};"
    ordering = ".acquire" if kind == "ld" else ".release"
    meaning = "" if width == 1 else rng.choice(("", "", ".relaxed", ".relaxed", ".volatile", ordering))
    scope = scope if meaning in (".relaxed", ordering) else ""
    address = f"[{base}+{rng.randrange(_BYTES // width) * width}]"
    if kind == "ld" and not meaning and width == 8:
        return f"ld{name}.v2.u32 {{%r20, %r21}}, {address};"
    operands = f"{_READ[width]}, {address}" if kind == "ld" else f"{address}, {_WRITTEN[width]}"
    return f"{kind}{meaning}{scope}{name}.u{8 * width} {operands};"


def _is_not_known(*_: Any) -> bool:
    return False


@contextmanager
def looking(mode: str) -> Iterator[None]:
    """Look for races by one of `MODES`."""
    with pytest.MonkeyPatch.context() as patches:
        if mode == "exact":
            patches.setattr(launcher, "RaceShadow", ExactShadow)
            patches.setattr(machine, "RaceShadow", ExactShadow)
            patches.setattr(machine, "BulkShadow", ExactBulkShadow)
        elif mode == "python":
            patches.setattr(RaceShadow, "_in_order", _is_not_known)
        yield


def verdict(program: Program, mode: str) -> str:
    """What a launch finds by one of `MODES`: `"race"`, `"warning"` or `"clean"`."""
    module = ptx.Module.parse(text(program.body, declarations=program.declarations), name="test.ptx")
    out, source = np.zeros(32 * program.warps * program.blocks, np.uint32), np.zeros(4, np.uint32)
    cluster = None if program.cluster == 1 else (program.cluster, 1, 1)
    try:
        with unexplained(), looking(mode):
            result = ptx.launch(
                module,
                "k",
                (program.blocks, 1, 1),
                (32 * program.warps, 1, 1),
                [out, source, 0],
                cluster=cluster,
                checks=_CHECKS,
            )
    except ptx.RaceError:
        return "race"
    return "warning" if result.warnings else "clean"
