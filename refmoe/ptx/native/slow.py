"""An access of one warp that native code did not do: the same access in Python, with all that it can report."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from refmoe.ptx.access import Load, Store
from refmoe.ptx.frame import Frame
from refmoe.ptx.layout import Layout
from refmoe.ptx.memory_ops import memory_opcode
from refmoe.ptx.syntax import Address, Instruction, Symbol

if TYPE_CHECKING:
    from refmoe.ptx.machine import Machine

Array = Any
_LANES = 32


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


def _array(address: int, dtype: Any, size: int) -> Array:
    """Memory at an address as an array."""
    dtype = np.dtype(dtype)
    return np.frombuffer((ctypes.c_uint8 * (size * dtype.itemsize)).from_address(address), dtype)
