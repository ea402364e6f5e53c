"""What native code leaves to Python, for one warp: accesses with all that they can report, and errors of exchanges.

A launch runs at first as if no value were undefined. Where it meets what may be one, a `Suspected` ends it, and it runs
again, with undefined values followed (`refmoe.ptx.engine.undefined`): they may never be used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.engine.loads_and_stores import Access, Load, Store
from refmoe.ptx.engine.tensor.matrix import PACKINGS, LoadMatrix, StoreMatrix, whole_warps
from refmoe.ptx.engine.tensor.mma import Mma
from refmoe.ptx.errors import WarpError
from refmoe.ptx.program.layout import Layout
from refmoe.ptx.program.unwritten import CANARIES
from refmoe.ptx.text.memory_ops import memory_opcode
from refmoe.ptx.text.syntax import Address, Instruction, Symbol

Array = Any
_LANES = 32


@dataclass(frozen=True)
class SlowShuffle:
    """A `shfl` in which a lane reads one that does not take part."""

    instruction: Instruction

    def __call__(self, machine: Lanes, warp: int, mask: int, addresses: int, values: int) -> None:
        """`addresses` are the lanes that are read, and `values` the members present, uint32 [32].

        Raises:
            WarpError: always.
        """
        lane = (mask & -mask).bit_length() - 1
        source, present = _array(addresses, np.uint64, _LANES)[lane], _array(values, np.uint32, _LANES)[lane]
        members = f"(members present: 0x{int(present):08X})"
        what = f"reads lane {int(source)}, which does not take part {members}"
        raise machine.error(WarpError, self.instruction, warp * _LANES + lane, what, link="", absent=True)


@dataclass(frozen=True)
class SlowAccess:
    """A load or store of plain elements."""

    access: Load | Store

    @classmethod
    def of(cls, instruction: Instruction, layout: Layout) -> SlowAccess:
        """The access of an instruction that native code has."""
        opcode = memory_opcode(instruction.opcode)
        assert opcode is not None
        loads = opcode.stem != "st"
        operand = instruction.operands[1 if loads else 0]
        space = opcode.space
        if space == "param" and isinstance(operand, Address) and isinstance(operand.base, Symbol):
            space = "local" if layout.spaces.get(operand.base.name) == "local" else space
        bounds = layout.bounded(instruction)
        if not loads:
            return cls(Store(instruction, space, opcode.size, opcode.count, bounds=bounds))
        dtypes = (np.dtype(f"u{opcode.size}"),) * opcode.count
        return cls(
            Load(
                instruction, space, opcode.size, opcode.count,
                coherent=opcode.coherent, bounds=bounds, signed=False, dtypes=dtypes,
            )
        )  # fmt: skip

    def __call__(self, machine: Lanes, warp: int, mask: int, addresses: int, values: int) -> None:
        """Do it.

        Args:
            machine: whose warp.
            warp: counted from its first.
            mask: the lanes that act, a bit a lane.
            addresses: pointer to uint64 [32].
            values: pointer to the elements, [count, 32], which a load fills and a store takes.

        Raises:
            PtxError: what the access found.
        """
        access = self.access
        frame = _frame(machine, warp, mask)
        places = _array(addresses, np.uint64, _LANES)
        held = _array(values, np.dtype(f"u{access.size}"), access.count * _LANES).reshape(access.count, _LANES)
        inside = frame.lanes() % _LANES
        if isinstance(access, Store):
            access(frame, places[inside], None, tuple(element[inside] for element in held))
        else:
            for element, loaded in zip(held, access(frame, places[inside], None), strict=True):
                element[inside] = loaded


@dataclass(frozen=True)
class SlowMatrix:
    """A whole `ldmatrix` or `stmatrix`."""

    work: LoadMatrix | StoreMatrix

    @classmethod
    def of(cls, instruction: Instruction) -> SlowMatrix:
        """The work of an instruction that native code has."""
        parts = instruction.opcode.split(".")
        count = next(int(part[1:]) for part in parts if part in ("x1", "x2", "x4"))
        space = "shared" if any(part.startswith("shared") for part in parts) else "generic"
        transposed = "trans" in parts
        if parts[0] == "stmatrix":
            return cls(StoreMatrix(Store(instruction, space, 8, 2), Store(instruction, space, 4, 1), count, transposed))
        packing = PACKINGS.get(parts[-1])
        row, word = Access(instruction, space, 8, 2), Access(instruction, space, 4, 1)
        return cls(LoadMatrix(row, word, count, transposed, packing, "m16n16" in parts))

    def __call__(self, machine: Lanes, warp: int, mask: int, addresses: int, values: int) -> None:
        """Do it: `values` are the registers, uint32 [count, 32].

        Raises:
            PtxError: what it found.
        """
        frame = _frame(machine, warp, mask)
        inside = frame.lanes() % _LANES
        held = _array(values, np.uint32, self.work.registers * _LANES).reshape(-1, _LANES)
        places = _array(addresses, np.uint64, _LANES)[inside]
        if isinstance(self.work, StoreMatrix):
            self.work(frame, places, tuple(register[inside] for register in held))
        else:
            for register, loaded in zip(held, self.work(frame, places), strict=True):
                register[inside] = loaded


@dataclass(frozen=True)
class SlowProduct:
    """A tensor-core instruction that a part of the warp runs, or whose scales are chosen wrongly."""

    work: Mma

    def __call__(self, machine: Lanes, warp: int, mask: int, addresses: int, values: int) -> None:
        """`values` are the selectors, A's byte and thread and then B's, uint32 [4, 32].

        Raises:
            WarpError: not all lanes are here.
            MisuseError: a selector out of its range, or not the same in the whole warp.
        """
        frame = _frame(machine, warp, mask)
        whole_warps(frame, self.work.instruction)
        selectors = _array(values, np.uint32, 4 * _LANES).astype(np.uint16).reshape(4, _LANES)
        self.work.check_selectors(frame, (None, *selectors[:2], None, *selectors[2:]))


@dataclass(frozen=True)
class SlowMeeting:
    """`bar.warp.sync` of a part of a warp, or of lanes that know different things."""

    def __call__(self, machine: Lanes, warp: int, mask: int, addresses: int, values: int) -> None:
        """The lanes of the mask have met; `values` are their member masks, uint32 [32]."""
        frame = _frame(machine, warp, mask)
        frame.warp_sync(_array(values, np.uint32, _LANES)[frame.lanes() % _LANES])


class Suspected(Exception):
    """A lane is about to read a register that nothing may have written."""


def looks_for_unwritten(machine: Lanes) -> bool:
    """Whether a read of an unwritten register ends the launch: not where undefined values are followed already."""
    return machine.checks.undefined and machine.undefined is None


@dataclass(frozen=True)
class Suspicion:
    """A look at the registers of Python code in front of an instruction, of these kinds."""

    instruction: Instruction
    kinds: tuple[str, ...]

    def __call__(self, frame: Frame, values: tuple[Array, ...]) -> None:
        """Raises Suspected where an acting lane may hold a register that nothing wrote."""
        if not looks_for_unwritten(frame.machine):
            return
        where = frame.where(None)
        for value, kind in zip(values, self.kinds, strict=True):
            hits = (
                np.full(frame.count, True)
                if kind == "pred"
                else frame.spread(value) == value.dtype.type(CANARIES[kind])
            )
            if (hits if where is None else hits & where).any():
                raise Suspected(self.instruction.text)


@dataclass(frozen=True)
class SlowSuspicion:
    """The same where native code found one."""

    instruction: Instruction

    def __call__(self, machine: Lanes, warp: int, mask: int, addresses: int, values: int) -> None:
        """Raises Suspected."""
        if looks_for_unwritten(machine):
            raise Suspected(self.instruction.text)


Slow = SlowSuspicion | SlowMeeting | SlowAccess | SlowShuffle | SlowMatrix | SlowProduct


def slow_form(instruction: Instruction, layout: Layout, products: Mapping[Instruction, Mma]) -> Slow:
    """What Python does for an instruction that native code has."""
    stem = instruction.opcode.split(".")[0]
    if stem == "bar":
        return SlowMeeting()
    if stem == "shfl":
        return SlowShuffle(instruction)
    if stem in ("ldmatrix", "stmatrix"):
        return SlowMatrix.of(instruction)
    return SlowProduct(products[instruction]) if stem == "mma" else SlowAccess.of(instruction, layout)


def _frame(machine: Lanes, warp: int, mask: int) -> Frame:
    """Some lanes of one warp."""
    acting = np.zeros(machine.lanes, bool)
    bits = np.array([mask], np.uint32).view(np.uint8)
    acting[warp * _LANES : (warp + 1) * _LANES] = np.unpackbits(bits, bitorder="little")
    return Frame(machine, acting, int(np.count_nonzero(acting)), True)


def _array(address: int, dtype: Any, size: int) -> Array:
    """Memory at an address as an array."""
    dtype = np.dtype(dtype)
    return np.frombuffer((ctypes.c_uint8 * (size * dtype.itemsize)).from_address(address), dtype)
