"""Instructions of a whole warp, with what is undefined of their operands: exchanges, matrices, products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.slow import SlowMatrix
from refmoe.ptx.engine.tensor.matrix import LoadMatrix, StoreMatrix, transposed
from refmoe.ptx.engine.tensor.mma import Scales
from refmoe.ptx.engine.undefined import exchange
from refmoe.ptx.engine.undefined.origins import Absent, Origins
from refmoe.ptx.engine.undefined.rules import everything
from refmoe.ptx.engine.undefined.shades import Shade, blamed, shade
from refmoe.ptx.engine.warp import Shuffle
from refmoe.ptx.program.registers import destinations_and_sources
from refmoe.ptx.text.spellings import synchronised
from refmoe.ptx.text.syntax import Instruction, Operand, Register, Vector
from refmoe.ptx.text.wgmma import form_of
from refmoe.ptx.text.wgmma import operands_of as wgmma_operands

Array = Any
_LANES = 32
# Bits of a register that hold elements, where others are not looked at: E2M1 in bits 2 to 5 of a byte each.
_E2M1_BITS = np.uint32(0x3C3C3C3C)


class Running(Protocol):
    """A block that runs with what is undefined, see `refmoe.ptx.engine.undefined.execution`.

    Attributes:
        frame: its lanes.
        origins: the numbers of the launch.
    """

    frame: Frame
    origins: Origins

    def shade(self, operand: Operand, kind: str | None = None) -> Shade | None:
        """What is undefined of an operand."""
        ...

    def value(self, operand: Operand, kind: str) -> Array | None:
        """The value of an operand in all lanes."""
        ...

    def use(self, sink: str, held: Shade | None, guarded: bool = True) -> None:
        """A value decides something."""
        ...

    def assign(self, operand: Operand, kind: str, made: Shade | None, signed: bool = False) -> None:
        """A destination gets a value."""
        ...


def exchanged(run: Running, instruction: Instruction) -> Callable[[], None]:
    """What assigns the results of `shfl`, `vote`, `match`, `redux`, `elect` or `movmatrix`."""
    if instruction.opcode.startswith("movmatrix"):
        return _moved(run, instruction)
    written, instruction = instruction, synchronised(instruction)
    frame, parts = run.frame, instruction.opcode.split(".")
    stem = parts[0]
    destinations, sources = destinations_and_sources(instruction)
    run.use("a member mask", run.shade(sources[-1]))
    kind = {"vote": "pred", "match": parts[-1]}.get(stem, "b32")
    member = _everywhere(run, sources[-1], "b32")
    held = run.shade(sources[0], kind) if stem != "elect" else None
    count = frame.machine.lanes
    mask = (
        frame.to_all(held.mask)
        if held is not None
        else np.zeros(count, bool if kind == "pred" else f"u{int(kind[1:]) // 8}")
    )
    origins = frame.to_all(held.origins) if held is not None else np.zeros(count, np.int64)
    mask = np.where(frame.mask, mask, mask.dtype.type(0))
    taking_part = frame.mask & (member >> frame.machine.lane_in_warp.astype(np.uint32) & np.uint32(1) != 0)
    results: list[tuple[str, Array, Array]] = []
    if stem == "shfl":
        results = _shuffled(run, written, parts[2], sources, member, mask, origins)
    elif stem == "vote":
        values = _everywhere(run, sources[0], "pred")
        if parts[2] == "ballot":
            results = [("b32", *exchange.ballot(values, mask, origins, taking_part))]
        else:
            results = [("pred", *exchange.vote(parts[2], values, mask, origins, taking_part))]
    elif stem == "match":
        open_, whence = exchange.match(mask, origins, taking_part)
        results = [("b32", everything("b32", open_), whence), ("pred", open_, whence)]
    elif stem == "redux":
        results = [("b32", *exchange.redux(parts[2], _everywhere(run, sources[0], "b32"), mask, origins, taking_part))]

    def assign() -> None:
        for number, target in enumerate(destinations):
            if isinstance(target, Register):
                made = None
                if number < len(results):
                    _, masks, whence = results[number]
                    made = shade(frame.from_all(masks), frame.from_all(whence))
                run.assign(target, target.kind, made)

    return assign


def _moved(run: Running, instruction: Instruction) -> Callable[[], None]:
    """Each half moves with what is undefined of it; of two origins a word keeps that of its lower half."""
    destination, source = instruction.operands
    held = run.shade(source, "b32")
    assert held is not None
    assert isinstance(destination, Register)
    frame = run.frame
    mask, origins = frame.to_all(held.mask), frame.to_all(held.origins)
    halves = np.repeat(origins, 2).reshape(-1, 8, 8).transpose(0, 2, 1).reshape(-1, 2)
    masks = transposed(mask)
    whence = np.where(masks & np.uint32(0xFFFF) != 0, halves[:, 0], halves[:, 1])
    made = shade(frame.from_all(masks), frame.from_all(whence))
    return lambda: run.assign(destination, destination.kind, made)


def _everywhere(run: Running, operand: Operand, kind: str) -> Array:
    value = run.value(operand, kind)
    assert value is not None
    return run.frame.to_all(value)


def _shuffled(
    run: Running,
    instruction: Instruction,
    mode: str,
    sources: tuple[Operand, ...],
    member: Array,
    mask: Array,
    origins: Array,
) -> list[tuple[str, Array, Array]]:
    """The value moves with what is undefined of it; what a lane has that does not take part is undefined."""
    frame = run.frame
    for operand in sources[1:3]:
        run.use("the lane operand of a shuffle", run.shade(operand))
    amount, control = (_everywhere(run, operand, "b32") for operand in sources[1:3])
    source, _, absent, _ = Shuffle(instruction, mode).sources(
        frame, frame.from_all(amount), frame.from_all(control), frame.from_all(member)
    )
    machine = frame.machine
    place = machine.warp_start + source
    moved, whence = mask[place], origins[place]
    if absent.any():
        event = Absent(instruction, source[absent])
        threads = np.flatnonzero(absent) + machine.first_thread
        moved = np.where(absent, np.uint32(0xFFFFFFFF), moved)
        whence = whence.copy()
        whence[absent] = run.origins.add(event, threads)
    return [("b32", moved, whence)]


# Matrices in shared memory


def matrix_loaded(instruction: Instruction, bits: Array, origins: Array) -> tuple[Array, Array]:
    """Masks uint32 and origins int64, both [registers, lanes], of `ldmatrix` of rows uint8 [n, 16]."""
    work = SlowMatrix.of(instruction).work
    assert isinstance(work, LoadMatrix)
    masks = work.deal(np.ascontiguousarray(bits).view(np.uint16))
    # A register is of several rows; the first of the warp with something undefined is named.
    of_warps = bits.any(axis=1).reshape(-1, work.addresses)
    named = origins.reshape(-1, work.addresses)[np.arange(len(of_warps)), np.argmax(of_warps, axis=1)]
    return masks, np.broadcast_to(np.repeat(named, _LANES), masks.shape)


def matrix_stored(instruction: Instruction, masks: Array) -> Array:
    """What is undefined of the rows of `stmatrix`, uint8 [n, 16], of its registers uint32 [registers, lanes]."""
    work = SlowMatrix.of(instruction).work
    assert isinstance(work, StoreMatrix)
    return work.gather(masks).view(np.uint8).reshape(-1, 16)


# Products


def multiplied(run: Running, instruction: Instruction) -> Callable[[], None]:
    """What assigns the results of `mma`: see `exchange.product`."""
    operands, frame = instruction.operands, run.frame
    parts = instruction.opcode.split(".")
    shape = next(part for part in parts if part.startswith("m") and "n8k" in part)
    rows = int(shape[1 : shape.index("n")])
    types = parts[parts.index("col") + 1 :]
    types = [each for each in types if "::" not in each and each != "block_scale"]
    d_type, a_type, b_type = types[:3]
    packed = "mxf4" in instruction.opcode
    shades = [_fragment(run, operand) for operand in operands[1:4]]
    everyone = [each for fragment in shades for each in fragment]
    scales: list[Array | None] = [None, None]
    if len(operands) > 4:
        vector = next((int(part[-2]) for part in parts if part.startswith("scale_vec")), 2 if packed else 1)
        for number, lines in ((0, rows), (1, 8)):
            register, selectors = operands[4 + 2 * number], operands[5 + 2 * number]
            (held,) = _fragment(run, register)
            everyone.append(held)
            scales[number] = _scales(run, held, selectors, lines, vector)
    a, b = (
        [_open(run, each, type_, packed) for each in fragment]
        for fragment, type_ in zip(shades[:2], (a_type, b_type), strict=True)
    )
    halves = d_type == "f16"
    c = [part for each in shades[2] for part in _parts(run, each, halves)]
    found = exchange.product(rows, a, b, c, *scales)
    origins = blamed(everyone, frame.count)
    named = _of_warp(frame.to_all(origins))
    elements = _elements(operands[0])

    def assign() -> None:
        for number, target in enumerate(elements):
            if halves:
                low, high = found[2 * number : 2 * number + 2]
                mask = np.where(low, np.uint32(0xFFFF), np.uint32(0)) | np.where(
                    high, np.uint32(0xFFFF0000), np.uint32(0)
                )
            else:
                mask = everything(target.kind if isinstance(target, Register) else "b32", found[number])
            kind = target.kind if isinstance(target, Register) else "b32"
            run.assign(target, kind, shade(frame.from_all(mask), frame.from_all(named)))

    return assign


def multiplied_by_warpgroup(run: Running, instruction: Instruction) -> Callable[[], None]:
    """What assigns the results of `wgmma.mma_async`, which nobody reads before the product has been waited for.

    Register i of A has elements of row 16w + g + 8 (i % 2), and element i of D is of row 16w + g + 8 (i / 2 % 2), both
    in the four lanes 4g + t of warp w. A row of A with something undefined makes that row of D undefined. Of a sum that
    is added an undefined bit makes it undefined.
    """
    form = form_of(instruction.opcode)
    assert form is not None
    given, frame = wgmma_operands(form, instruction), run.frame
    adds = run.value(given.adds, "pred")
    assert adds is not None
    on = frame.to_all(adds) & frame.mask
    a, d = ([run.shade(each) for each in side] for side in (given.a or (), given.d))
    rows = [np.zeros(frame.machine.lanes, bool), np.zeros(frame.machine.lanes, bool)]
    for number, held in enumerate(a):
        if held is not None:
            by_row = (frame.to_all(held.mask != 0) & frame.mask).reshape(-1, 4).any(axis=1)
            rows[number % 2] |= np.repeat(by_row, 4)
    halves = form.d == "f16"
    named = _of_warp(frame.to_all(blamed((*a, *d), frame.count)))
    masks = []
    for number, held in enumerate(d):
        before = [part & on for part in _parts(run, held, halves)]
        if halves:
            low, high = (part | rows[number % 2] for part in before)
            masks.append(np.where(low, np.uint32(0xFFFF), np.uint32(0)) | np.where(high, np.uint32(0xFFFF0000), 0))
        else:
            masks.append(everything("b32", before[0] | rows[number // 2 % 2]))

    def assign() -> None:
        for target, mask in zip(given.d, masks, strict=True):
            made = shade(frame.from_all(mask.astype(np.uint32)), frame.from_all(named))
            run.assign(target, "b32", made)

    return assign


def _elements(operand: Operand) -> tuple[Operand, ...]:
    return operand.elements if isinstance(operand, Vector) else (operand,)


def _fragment(run: Running, operand: Operand) -> list[Shade | None]:
    return [run.shade(each) for each in _elements(operand)]


def _open(run: Running, held: Shade | None, type_: str, packed: bool) -> Array:
    """bool [lanes of the machine]: whether an element of a register is undefined."""
    if held is None:
        return np.zeros(run.frame.machine.lanes, bool)
    mask = held.mask & _E2M1_BITS if type_ == "e2m1" and not packed else held.mask
    found: Array = run.frame.to_all(mask != 0) & run.frame.mask
    return found


def _parts(run: Running, held: Shade | None, halves: bool) -> list[Array]:
    """The same of each element of a register of C, which has two if they are `halves`."""
    if held is None:
        return [np.zeros(run.frame.machine.lanes, bool)] * (1 + halves)
    masks = [held.mask & np.uint32(0xFFFF), held.mask >> np.uint32(16)] if halves else [held.mask]
    return [run.frame.to_all(mask != 0) & run.frame.mask for mask in masks]


def _scales(run: Running, held: Shade | None, selectors: Operand, rows: int, count: int) -> Array | None:
    """bool [warps, rows]: whether a scale of a row is undefined; those that are not chosen do not matter."""
    byte, thread = _elements(selectors)
    for selector in (byte, thread):
        run.use("a selector of scales", run.shade(selector))
    if held is None:
        return None
    values = [_everywhere(run, selector, "b16") for selector in (byte, thread)]
    found: Array = Scales(rows, count)(run.frame.to_all(held.mask), *values).any(axis=2)
    return found


def _of_warp(origins: Array) -> Array:
    """int64 [lanes]: the first origin of each warp."""
    by_warp = origins.reshape(-1, _LANES)
    first = np.argmax(by_warp != 0, axis=1)
    return np.repeat(by_warp[np.arange(len(by_warp)), first], _LANES)
