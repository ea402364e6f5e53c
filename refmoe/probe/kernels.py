"""A kernel around each instruction, as PTX text, and the layout of its operands in registers.

A tile asks eight questions: row i and row i + 8 of A hold the operands of question i, column i of B holds the others,
and D[i, i] and D[i + 8, i] must both be its answer. A warpgroup's tile has 64 rows, so that each question has eight
answers. Layouts: PTX ISA, "Matrix fragments for mma.m16n8k16" and its neighbours, "Block scaling for mma.sync".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refmoe.chips import TARGETS
from refmoe.probe.instructions import CODECS, Instruction
from refmoe.probe.vectors import Batch
from refmoe.silicon.wgmma import IMAGE_BYTES, InstructionKernel, descriptor

Array = Any
QUESTIONS = 8
"""Of a tile."""
MOST_TILES = IMAGE_BYTES // 256 - 2
"""Of a launch: as many as a warpgroup's image holds columns of."""
ENTRY = "probe"
_LANES = 32


def element_bits(instruction: Instruction) -> int:
    """Bits that an element takes in a register."""
    return 4 if instruction.packed else max(8, CODECS[instruction.a].bits)


def threads(instruction: Instruction) -> int:
    """Of a block."""
    return 4 * _LANES if instruction.warpgroup else _LANES


def ptx_text(instruction: Instruction, target: str) -> str:
    """The module of one instruction for one chip; its entry is `probe`."""
    warpgroup = instruction.warpgroup
    body = InstructionKernel(instruction.name, held=True).text(ENTRY) if warpgroup else _mma_text(instruction)
    return f".version {TARGETS[target].ptx_version}\n.target {target}\n.address_size 64\n{body}\n"


def _counts(instruction: Instruction) -> tuple[int, int, int]:
    """Registers of a lane: of A, of B, of C and D."""
    words = instruction.k * element_bits(instruction) // 32
    return words // 2, words // 4, 4 if instruction.accumulator == "f32" else 2


def _mma_text(instruction: Instruction) -> str:
    a, b, c = _counts(instruction)
    names = {"a": a, "b": b, "c": c, "d": c}
    vectors = {name: f"{{{', '.join(f'%{name}{i}' for i in range(count))}}}" for name, count in names.items()}
    scaled = bool(instruction.scales)
    operands = [vectors["d"], vectors["a"], vectors["b"], vectors["c"]]
    operands += ["{%s0}", "{%z, %z}", "{%s1}", "{%z, %z}"] if scaled else []
    sources = [("a", a), ("b", b), ("c", c), *([("s", 2)] if scaled else [])]
    parameters = [*(name for name, _ in sources), "d"]
    registers = ", ".join(f"%{name}<{count}>" for name, count in [*sources, ("d", c)])
    lines = [
        f".visible .entry {ENTRY}({', '.join(f'.param .u64 {name}_in' for name in parameters)}) {{",
        f".reg .b32 %thread, %block, {registers}; .reg .b64 %at, %lane, %tile; .reg .b16 %z;",
        "mov.u32 %thread, %tid.x; mov.u32 %block, %ctaid.x; mul.wide.u32 %lane, %thread, 4;",
        *(["mov.u16 %z, 0;"] if scaled else []),
    ]

    def address(name: str, count: int) -> str:
        return (
            f"ld.param.u64 %at, [{name}_in]; mul.wide.u32 %tile, %block, {4 * _LANES * count}; "
            "add.u64 %at, %at, %tile; add.u64 %at, %at, %lane;"
        )

    for name, count in sources:
        lines.append(address(name, count))
        lines += [f"ld.global.u32 %{name}{i}, [%at+{4 * _LANES * i}];" for i in range(count)]
    lines.append(f"{instruction.name} {', '.join(operands)};")
    lines.append(address("d", c))
    lines += [f"st.global.u32 [%at+{4 * _LANES * i}], %d{i};" for i in range(c)]
    return "\n".join([*lines, "ret;", "}"])


def arguments(instruction: Instruction, batch: Batch) -> tuple[list[Array], int]:
    """The arrays of a launch, D's the last of them, and the number of its tiles.

    At most `QUESTIONS * MOST_TILES` vectors; what is left of the last tile asks for zeros.
    """
    tiles = -(-len(batch) // QUESTIONS)
    a, b, c, sa, sb = _matrices(instruction, batch, tiles)
    if instruction.warpgroup:
        return _warpgroup(instruction, a, b, c, tiles), tiles
    # [tile, half, g, word, t] and so on: g is the lane's quad, t its place there.
    wa = np.concatenate([a, a], axis=1).reshape(tiles, 2, 8, -1, 4)
    wb = b.reshape(tiles, 8, -1, 4)
    a_registers = wa.transpose(0, 3, 1, 2, 4).reshape(tiles, -1, _LANES)
    b_registers = wb.transpose(0, 2, 1, 3).reshape(tiles, -1, _LANES)
    c_registers = _c_registers(instruction, c, 2)
    given = [a_registers, b_registers, c_registers]
    if instruction.scales:
        lane = np.arange(_LANES) // 4
        given.append(np.stack([sa[:, lane], sb[:, lane]], axis=1))
    given.append(np.zeros_like(c_registers))
    return [np.ascontiguousarray(each, np.uint32) for each in given], tiles


def _matrices(instruction: Instruction, batch: Batch, tiles: int) -> tuple[Array, ...]:
    """Words of A [tiles, 8, words] and of B, bits of C [tiles, 8], words of scales [tiles, 8]."""
    bits = element_bits(instruction)
    a, b = (np.zeros((tiles * QUESTIONS, instruction.k), np.uint32) for _ in range(2))
    c, sa, sb = (np.zeros(tiles * QUESTIONS, np.uint32) for _ in range(3))
    count = len(batch)
    a[:count], b[:count], c[:count] = batch.a, batch.b, batch.c
    if instruction.scales:
        places = np.arange(instruction.scales, dtype=np.uint32) * np.uint32(8)
        sa[:count] = (batch.a_scales.astype(np.uint32) << places).sum(axis=1, dtype=np.uint32)
        sb[:count] = (batch.b_scales.astype(np.uint32) << places).sum(axis=1, dtype=np.uint32)
    if not instruction.packed:
        # Four bits sit in the middle of their byte.
        a <<= 2 * (instruction.a == "e2m1")
        b <<= 2 * (instruction.b == "e2m1")

    def words(codes: Array) -> Array:
        split = codes.reshape(tiles, QUESTIONS, -1, 32 // bits)
        return (split << (np.arange(32 // bits, dtype=np.uint32) * np.uint32(bits))).sum(axis=-1, dtype=np.uint32)

    return words(a), words(b), *(each.reshape(tiles, QUESTIONS) for each in (c, sa, sb))


def _c_registers(instruction: Instruction, c: Array, halves: int) -> Array:
    """C [tiles, 8] on the diagonals of `halves` squares of 8 x 8, [tiles, registers, lanes], two halves a warp."""
    square = np.zeros((len(c), halves, 8, 8), np.uint32)
    place = np.arange(8)
    square[:, :, place, place] = c[:, None, :]
    # [tile, warp, half, g, t, pair]
    split = square.reshape(len(c), halves // 2, 2, 8, 4, 2)
    if instruction.accumulator == "f16":
        words = split[..., 0] | split[..., 1] << np.uint32(16)
        return words.transpose(0, 2, 1, 3, 4).reshape(len(c), 2, -1)
    return split.transpose(0, 2, 5, 1, 3, 4).reshape(len(c), 4, -1)


def _warpgroup(instruction: Instruction, a: Array, b: Array, c: Array, tiles: int) -> list[Array]:
    entry = InstructionKernel(instruction.name, held=True)
    image = np.zeros(IMAGE_BYTES, np.uint8)
    # Eight columns of 32 bytes: two cores of eight rows of 16.
    cores = b.view(np.uint8).reshape(tiles, 8, 2, 16).transpose(0, 2, 1, 3)
    image[: tiles * 256] = cores.reshape(-1)
    places = np.array([(0, descriptor(256 * tile, 128, 256, 0), 1) for tile in range(tiles)], np.uint64)
    # [tile, half of K, upper row, warp, g, t]
    rows = np.broadcast_to(a[:, None], (tiles, 8, *a.shape[1:])).reshape(tiles, 4, 2, 8, 2, 4)
    registers = rows.transpose(0, 4, 2, 1, 3, 5).reshape(tiles, 4, 4 * _LANES)
    sums = entry.packed(_c_registers(instruction, c, 8))
    return [image, places, np.ascontiguousarray(registers, np.uint32), sums]


def answers(instruction: Instruction, given: Array, count: int) -> Array:
    """D's array as answers [count, copies]: every row that holds a question's operands gives one."""
    warps = 4 if instruction.warpgroup else 1
    registers = 4 if instruction.accumulator == "f32" else 2
    flat = np.asarray(given).view(np.uint32)
    if instruction.warpgroup:
        flat = InstructionKernel(instruction.name, held=True).unpacked(flat)
    split = flat.reshape(-1, registers, warps, 8, 4)
    if instruction.accumulator == "f16":
        pairs = np.stack([split & np.uint32(0xFFFF), split >> np.uint32(16)], axis=-1)
        square = pairs.transpose(0, 2, 1, 3, 4, 5)
    else:
        square = split.reshape(-1, 2, 2, warps, 8, 4).transpose(0, 3, 1, 4, 5, 2)
    matrix = square.reshape(len(split), 2 * warps, 8, 8)
    place = np.arange(8)
    return matrix[:, :, place, place].transpose(0, 2, 1).reshape(-1, 2 * warps)[:count]
