"""The two walks of docs/internals/architecture.md, counted: no call climbs back to a room but through the protocol.

A room is a folder or file directly below refmoe. A call *climbs* if it goes to a room on a higher floor than its
caller's, and it *returns* if its room is further out on the stack already. There are two ways up. One is the protocol
of a kernel: `run_case` asks the kernel that it was given, whoever's it is. The other is that of a device: host code
launches on the device that it was given, which holds each launch against the family's count of its CTAs and threads.

Each walk is taken once before, with another seed. What is compiled then is kept: a compiler calls back whoever writes
the code, and is no part of the walk.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import refmoe
from refmoe.catalog import kernel_of, parse_case
from refmoe.families.extents.geometry import HeldDevice
from refmoe.reports.parity import record_of
from refmoe.verify import source
from refmoe.verify.kernel import Kernel
from refmoe.verify.runner import run_cases
from refmoe.verify.verdict import Verdict

PACKAGE = Path(refmoe.__file__).parent


def _floors() -> dict[str, int]:
    """The floor of each room, 0 for the lowest, as pyproject.toml lists them for import-linter."""
    text = (PACKAGE.parent / "pyproject.toml").read_text()
    listed = re.search(r"^layers = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert listed is not None
    rows = re.findall(r'"([^"]+)"', listed[1])
    return {room: floor for floor, row in enumerate(reversed(rows)) for room in row.split(" : ")}


FLOORS = {**_floors(), "__init__": 99}


@cache
def _room_of_file(path: str) -> str | None:
    if not path.startswith(f"{PACKAGE}/"):
        return None
    return path[len(str(PACKAGE)) + 1 :].partition("/")[0].removesuffix(".py")


def room_of(frame: FrameType) -> str | None:
    """The room of a frame, None for code that is not refmoe's, or that a module runs while it is imported."""
    return None if frame.f_code.co_name == "<module>" else _room_of_file(frame.f_code.co_filename)


def rooms_on(frame: FrameType | None) -> Iterator[str]:
    """The rooms on the stack, from the innermost out."""
    while frame is not None:
        room = room_of(frame)
        if room is not None:
            yield room
        frame = frame.f_back


def climbs(walk: Callable[[], Any]) -> set[str]:
    """The calls of a walk that climb or return, as "caller's room -> room: function"."""
    found: set[str] = set()

    def seen(frame: FrameType, event: str, argument: Any) -> None:
        room = room_of(frame) if event == "call" else None
        if room is None or (caller := next(rooms_on(frame.f_back), room)) == room:
            return
        if FLOORS[room] > FLOORS[caller] or room in rooms_on(frame.f_back):
            found.add(f"{caller} -> {room}: {frame.f_code.co_name}")

    sys.setprofile(seen)
    try:
        walk()
    finally:
        sys.setprofile(None)
    return found


def of_the_protocol(call: str) -> bool:
    """Whether a call is one of a kernel's methods, by what runs it or by a method that extends it, or of a device's."""
    rooms, _, name = call.partition(": ")
    if rooms in ("cuda -> families", "families -> cuda"):
        return hasattr(HeldDevice, name)
    return "verify" in rooms and hasattr(Kernel, name)


def test_from_a_case_string_to_a_reports_record() -> None:
    def walk(seed: int = 7) -> None:
        results = list(run_cases([parse_case(f"expand:bf16:m1k64e2t1:fingerprint:seed{seed}@ptx")], kernel_of))
        assert results[0].verdict.ran
        record_of(results[0])

    walk(8)
    # The runner knows no list of kernels: it is given the function that finds one.
    assert [call for call in climbs(walk) if not of_the_protocol(call)] == ["verify -> catalog: kernel_of"]


def test_from_a_users_kernel_to_its_verdict() -> None:
    def zeros(x: Any) -> tuple[Any, Any]:
        return np.zeros(x.shape, np.uint8), np.zeros((x.shape[0], x.shape[1] // 32), np.uint8)

    def walk(seed: int = 7) -> None:
        cases = [f"mxfp8_quantize:bf16:m1k64:gaussian:seed{seed}@ptx"]
        checked = refmoe.check(zeros, "mxfp8_quantize", arrays="numpy", cases=cases)
        assert [result.verdict for result in checked.results] == [Verdict.MISMATCH]

    walk(8)
    calls = climbs(walk)
    assert calls, "the walk was not seen"
    # A user's kernel knows of what its hash is made; how a hash is made stands beside that of every other kernel.
    hashing = {f"testing -> verify: {name}" for name in vars(source)}
    assert {call for call in calls if not of_the_protocol(call)} <= hashing
