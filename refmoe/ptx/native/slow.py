"""What native code leaves to Python, for one warp: accesses with all that they can report, and errors of exchanges."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from refmoe.ptx.access import Load, Store
from refmoe.ptx.errors import WarpError
from refmoe.ptx.frame import Frame
from refmoe.ptx.layout import Layout
from refmoe.ptx.memory_ops import memory_opcode
from refmoe.ptx.syntax import Address, Instruction, Symbol

if TYPE_CHECKING:
    from refmoe.ptx.machine import Machine

Array = Any
_LANES = 32


@dataclass(frozen=True)
class SlowShuffle:
    """A `shfl` in which a lane reads one that does not take part."""

    instruction: Instruction

    def __call__(self, machine: Machine, warp: int, mask: int, addresses: int, values: int) -> None:
        """`addresses` are the lanes that are read, and `values` the members present, uint32 [32].

        Raises:
            WarpError: always.
        """
        lane = (mask & -mask).bit_length() - 1
        source, present = _array(addresses, np.uint64, _LANES)[lane], _array(values, np.uint32, _LANES)[lane]
        members = f"(members present: 0x{int(present):08X})"
        what = f"reads lane {int(source)}, which does not take part {members}"
        raise machine.error(WarpError, self.instruction, warp * _LANES + lane, what, link="")


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
        if not loads:
            return cls(Store(instruction, space, opcode.size, opcode.count))
        dtypes = (np.dtype(f"u{opcode.size}"),) * opcode.count
        return cls(Load(instruction, space, opcode.size, opcode.count, signed=False, dtypes=dtypes))

    def __call__(self, machine: Machine, warp: int, mask: int, addresses: int, values: int) -> None:
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
        acting = np.zeros(machine.lanes, bool)
        bits = np.array([mask], np.uint32).view(np.uint8)
        acting[warp * _LANES : (warp + 1) * _LANES] = np.unpackbits(bits, bitorder="little")
        frame = Frame(machine, acting, int(np.count_nonzero(acting)), True)
        places = _array(addresses, np.uint64, _LANES)
        held = _array(values, np.dtype(f"u{access.size}"), access.count * _LANES).reshape(access.count, _LANES)
        inside = np.flatnonzero(acting) % _LANES
        if isinstance(access, Store):
            access(frame, places[inside], None, tuple(element[inside] for element in held))
        else:
            for element, loaded in zip(held, access(frame, places[inside], None), strict=True):
                element[inside] = loaded


def slow_form(instruction: Instruction, layout: Layout) -> SlowAccess | SlowShuffle:
    """What Python does for an instruction that native code has."""
    return SlowShuffle(instruction) if instruction.opcode.startswith("shfl") else SlowAccess.of(instruction, layout)


def _array(address: int, dtype: Any, size: int) -> Array:
    """Memory at an address as an array."""
    dtype = np.dtype(dtype)
    return np.frombuffer((ctypes.c_uint8 * (size * dtype.itemsize)).from_address(address), dtype)
